/* runtime.h - the CUDA runtime for host code, from the toolkit or from the emulator (tests/cuda_emu, THESPIS_CUDA_EMU), and how its
 * failures become ours. Nothing else in the project includes a header of the toolkit. */
#ifndef THESPIS_BACKEND_CUDA_RUNTIME_H
#define THESPIS_BACKEND_CUDA_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#ifdef TH_CUDA_EMU
#include "cuda_emu/emu_runtime.h"
#else
#include <cuda_runtime_api.h>
#endif

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How a launcher launches: every `th_cuda_NAME(const struct th_cuda_launch *launch, ...)` takes one. */
struct th_cuda_launch {
    cudaStream_t stream;
    int early; /* 1: the kernel may start before its predecessor ends (programmatic dependent launch; the kernel waits for it with
                  th_dependency_wait before it reads what the predecessor writes). 0 below sm_90 and in the emulator. */
};

/* cudaSuccess -> THESPIS_OK, cudaErrorMemoryAllocation -> THESPIS_MEMORY, everything else -> THESPIS_DEVICE: "WHAT: reason". */
thespis_status th_cuda_status(cudaError_t code, const char *what, thespis_error *error);

/* Returns at once when a call failed; for functions that own nothing at that point. */
#define TH_CUDA(call, what, error) TH_TRY(th_cuda_status((call), (what), (error)))

/* For launchers: passes a failure up as it is. */
#define TH_CUDA_TRY(call)                                                                                                          \
    do {                                                                                                                           \
        cudaError_t th_cuda_code = (call);                                                                                         \
        if (th_cuda_code != cudaSuccess) return th_cuda_code;                                                                      \
    } while (0)

#ifdef __cplusplus
}
#endif

#endif
