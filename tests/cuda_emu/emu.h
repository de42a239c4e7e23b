/* emu.h - what the parts of the emulator share: running blocks as fibers, and handing work to streams. */
#ifndef THESPIS_CUDA_EMU_EMU_H
#define THESPIS_CUDA_EMU_EMU_H

#include "cuda_emu/emu_runtime.h"

#define TH_EMU_SLOT 64 /* bytes that a thread hands over in a warp operation */

#ifdef __cplusplus
extern "C" {
#endif

struct th_emu_index {
    unsigned x, y, z;
};
/* Of the thread that runs now. */
extern struct th_emu_index th_emu_thread_index, th_emu_block_index, th_emu_block_size, th_emu_grid_size;
extern void *th_emu_dynamic_shared;

struct th_emu_kernel {
    const char *text; /* the launch as it is written, for reports */
    void (*run)(const void *arguments);
    struct th_emu_index grid, block;
    size_t shared;
};

/* Runs the kernel now, or adds it to the capture that the stream is in. `arguments` are copied. */
cudaError_t th_emu_submit(cudaStream_t stream, const struct th_emu_kernel *kernel, const void *arguments, size_t bytes);
/* fibers.c: all blocks, one after another. */
cudaError_t th_emu_run(const struct th_emu_kernel *kernel, const void *arguments);

/* Called by threads of a running kernel. */
void th_emu_block_barrier(const char *file, int line);
/* All threads of `mask` hand over `bytes` <= TH_EMU_SLOT; returns the 32 slots, valid until this thread's next warp operation. The
 * last to come runs finish(slots) first, unless it is NULL. `kind` must be the same for all. */
const unsigned char *th_emu_warp(uint32_t mask, int kind, const void *in, size_t bytes, void (*finish)(unsigned char *slots));
int th_emu_lane(void);
/* finish functions of the matrix instructions. */
void th_emu_finish_bf16(unsigned char *slots);
void th_emu_finish_f16(unsigned char *slots);
void th_emu_finish_e4m3(unsigned char *slots);

#ifdef __cplusplus
}
#endif

#endif
