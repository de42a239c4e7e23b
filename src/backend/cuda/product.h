/* product.h - y = W x for columns of bf16 inputs: every dense product of the language model, with what comes before and after it.
 * Packed matrices are described in weights.h.
 *
 * Order of sums. With n = cols / 32, inputs are cut into sixteen segments, steps s*n/16 .. (s+1)*n/16 - 1 for s = 0..15 (some may
 * be empty). A segment is summed from zero, step after step, by the matrix instruction; the segments' sums are added to zero in
 * order 0..15. Every form of the product keeps this order, so that a column's bytes depend neither on the number of columns nor on
 * what the others hold. */
#ifndef THESPIS_BACKEND_CUDA_PRODUCT_H
#define THESPIS_BACKEND_CUDA_PRODUCT_H

#include "backend/cuda/runtime.h"
#include "backend/cuda/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows that a part of n rows takes in a packed matrix. */
static inline int th_cuda_padded_rows(int n)
{
    return (n + 15) / 16 * 16;
}
enum th_cuda_output_kind {
    TH_CUDA_STORE,    /* out[c][r] = bf16(y) */
    TH_CUDA_RESIDUAL, /* out[c][r] = bf16(out[c][r] + bf16(y)), in place */
    TH_CUDA_SILU,     /* out[c][r] = bf16(silu(bf16(gate)) * bf16(up)), r < rows / 2 */
    TH_CUDA_FLOAT     /* float out[c][r] = y, unrounded */
};

/* What becomes of the next `rows` rows of the packed matrix (the next part begins at a multiple of 16). */
struct th_cuda_output {
    int kind; /* enum th_cuda_output_kind */
    int rows; /* without padding; TH_CUDA_SILU: gate and up together */
    void *out;
    int stride; /* elements from one column to the next */
};

enum th_cuda_input_kind {
    TH_CUDA_PLAIN, /* x [columns][x_stride], of which cols are read */
    TH_CUDA_NORM,  /* bf16(RMS norm of x), x [columns][x_stride] */
    TH_CUDA_JOIN   /* [norm(x) ; norm2(h)], cols / 2 each, h = x2, or norm(x2; first2) rounded when first2 is not NULL */
};

#define TH_CUDA_OUTPUTS 4
#define TH_CUDA_FUSED_COLUMNS 8 /* up to here norms are part of the product's kernel; beyond they are kernels before it */

/* All pointers are to device memory; activations are bf16, norm weights f32 (the 1 of 1 + w is added here). x pointers and strides
 * are multiples of 8 elements. */
struct th_cuda_product {
    struct th_cuda_matrix w;
    int columns; /* 1..1024; all are computed */
    int input;   /* enum th_cuda_input_kind */
    const uint16_t *x;
    int x_stride;
    const float *norm;  /* NORM, JOIN: [cols], JOIN: [cols/2] */
    const uint16_t *x2; /* JOIN */
    int x2_stride;
    const float *norm2, *first2; /* JOIN: [cols/2]; first2 may be NULL */
    float eps;
    uint16_t *normed; /* NORM: [columns][cols]; JOIN: [columns][cols] as well. The product's input, always written (others use it
                         too); must not be x or x2 */
    uint16_t *first;  /* JOIN with first2: [columns][cols/2], norm(x2; first2), always written */
    int outputs;      /* 1..TH_CUDA_OUTPUTS */
    struct th_cuda_output output[TH_CUDA_OUTPUTS]; /* none may overlap the inputs */
};

cudaError_t th_cuda_product(const struct th_cuda_launch *launch, const struct th_cuda_product *product);

#ifdef __cplusplus
}
#endif

#endif
