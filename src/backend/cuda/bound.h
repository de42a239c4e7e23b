/* bound.h - how fast the device reads: the limit of a lane alone. */
#ifndef THESPIS_BACKEND_CUDA_BOUND_H
#define THESPIS_BACKEND_CUDA_BOUND_H

#include "backend/cuda/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads `bytes` (a multiple of 16) at `from` once, with `blocks` blocks; *sum (device) keeps the reads from being left out. */
cudaError_t th_cuda_read_all(const struct th_cuda_launch *launch, const void *from, size_t bytes, int blocks, uint32_t *sum);

#ifdef __cplusplus
}
#endif

#endif
