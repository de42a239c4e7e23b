/* kernels.h - the register of kernels. Every __global__ function of src/backend/cuda is in the list at the end of its file, with
 * the most threads of a block and the most dynamic shared memory that it is ever launched with:
 *
 *     TH_CUDA_KERNELS(pack) = {
 *         TH_CUDA_KERNEL(256, 0, pack_rows),
 *         TH_CUDA_KERNEL(256, 32 * 1024, narrow<1, 8>), // each instance of a template
 *         TH_CUDA_KERNELS_END};
 *
 * and the list's name in kernels.c. scripts/check-launch-limits compares it with the compiled code of every architecture,
 * `thespis check kernels` with the driver of the device at hand. */
#ifndef THESPIS_BACKEND_CUDA_KERNELS_H
#define THESPIS_BACKEND_CUDA_KERNELS_H

#include "backend/cuda/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

struct th_cuda_kernel {
    const char *name; /* as it is written: "narrow<1, 8>" */
    const void *function;
    int threads;   /* most of a block */
    size_t shared; /* most bytes of dynamic shared memory */
};

#ifdef __cplusplus
#define TH_CUDA_KERNELS(file)                                                                                                      \
    extern "C" const struct th_cuda_kernel th_cuda_kernels_##file[];                                                               \
    const struct th_cuda_kernel th_cuda_kernels_##file[]
#define TH_CUDA_KERNEL(threads, shared, ...)                                                                                       \
    {                                                                                                                              \
#__VA_ARGS__, reinterpret_cast < const void *>(&__VA_ARGS__), threads, shared                                              \
    }
#define TH_CUDA_KERNELS_END                                                                                                        \
    {                                                                                                                              \
        nullptr, nullptr, 0, 0                                                                                                     \
    }
#endif

/* kernels.c: the lists of all files, each ended by a kernel without a name; NULL behind the last. */
const struct th_cuda_kernel *th_cuda_kernel_list(size_t index);
/* Asks the driver whether the current device can launch a kernel as it is registered; THESPIS_DEVICE says what it lacks. */
thespis_status th_cuda_check_kernel(const struct th_cuda_kernel *kernel, thespis_error *error);

#ifdef __cplusplus
}
#endif

#endif
