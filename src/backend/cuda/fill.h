/* fill.h - values of a generated checkpoint, made on the device: the same bits as tools/make_checkpoint writes
 * (checkpoint/holes.h). */
#ifndef THESPIS_BACKEND_CUDA_FILL_H
#define THESPIS_BACKEND_CUDA_FILL_H

#include "backend/cuda/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* bf16(a + b * normal(key, i)) for elements first .. first + count - 1 of a matrix with `cols` columns; row loud_row doubled. */
cudaError_t th_cuda_fill_normal(const struct th_cuda_launch *launch, void *to, size_t first, size_t count, uint64_t key, float a,
                                float b, long long loud_row, long long cols);
/* E4M3 codes of rows first_row .. first_row + count - 1 of a matrix [rows, cols]. */
cudaError_t th_cuda_fill_e4m3(const struct th_cuda_launch *launch, void *to, int first_row, int count, int rows, int cols,
                              uint64_t key, float b, int scale_bf16);

#ifdef __cplusplus
}
#endif

#endif
