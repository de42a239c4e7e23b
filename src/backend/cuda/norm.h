/* norm.h - RMS norms and quantisation of rows, as kernels of their own. Inside products (product.h) and experts (experts.h) the
 * same device functions run, so that a norm's bytes do not depend on where it is computed.
 *
 * y = bf16(x * f * (1 + w)) with f = 1 / sqrt(sum(x^2) / n + eps), products from left to right. Order of the sum: element i belongs
 * to running sum (i / 8) % 256, a chain of fused multiply-adds over its elements in order; 32 neighbouring sums are added as a
 * butterfly (distances 16, 8, 4, 2, 1), the eight results in order. */
#ifndef THESPIS_BACKEND_CUDA_NORM_H
#define THESPIS_BACKEND_CUDA_NORM_H

#include "backend/cuda/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y [columns][y_stride] = norm of x [columns][x_stride] (bf16), n values a row (a multiple of 8), w f32 [n]. y may be x. Strides
 * are multiples of 8. */
cudaError_t th_cuda_norm(const struct th_cuda_launch *launch, const uint16_t *x, int x_stride, const float *w, float eps, int n,
                         int columns, uint16_t *y, int y_stride);

/* E4M3 codes [columns][n] of x [columns][n] (bf16) and scales f32 [columns][n/128]: per 128 values most = max(|x|, 1e-10), code =
 * e4m3(x * (1 / most * 448)), scale = most * (1 / 448). n is a multiple of 128. A group
 * that holds a NaN or an infinity has a scale of NaN or infinity, so that its products are NaN. */
cudaError_t th_cuda_quantise(const struct th_cuda_launch *launch, const uint16_t *x, int n, int columns, uint8_t *codes,
                             float *scales);

#ifdef __cplusplus
}
#endif

#endif
