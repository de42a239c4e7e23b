/* pack.h - rows as they are stored become tiles (weights.h says how they lie). */
#ifndef THESPIS_BACKEND_CUDA_PACK_H
#define THESPIS_BACKEND_CUDA_PACK_H

#include "backend/cuda/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How rows go to the 16 rows of a tile: all in order, or eight of each of two matrices. */
enum th_cuda_rows { TH_CUDA_ROWS_ALL, TH_CUDA_ROWS_FIRST, TH_CUDA_ROWS_SECOND };

/* Rows first_row .. first_row + rows - 1 of a part whose first tile is at `tiles`; `from` (device, 8-byte aligned) has them one
 * after another, row_bytes each, a multiple of 64. Rows from there up to pad_to become zeros (TH_CUDA_ROWS_ALL only). bf16 and E4M3
 * are the same to it: a tile's row has 64 bytes in both, and the order of bytes is the same. */
cudaError_t th_cuda_pack(const struct th_cuda_launch *launch, const void *from, void *tiles, size_t row_bytes, int first_row,
                         int rows, int pad_to, enum th_cuda_rows kind);

#ifdef __cplusplus
}
#endif

#endif
