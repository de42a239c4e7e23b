/* product.h - y = W x for columns of bf16 inputs: every dense product of the language model, with what comes before and after it.
 *
 * Packed matrices. A tile is 16 rows x 32 inputs of bf16, 1,024 bytes: two steps of m16n8k16, each [32 lanes][16 bytes]. Lane l
 * (g = l / 4, q = l % 4) owns inputs 8q..8q+7 of the tile; its sixteen bytes of step s (0, 1) are the pairs
 *     row g   inputs 8q+4s, 8q+4s+1   |   row g+8 the same   |   row g   inputs 8q+4s+2, 8q+4s+3   |   row g+8 the same.
 * A matrix is [ceil(rows/16)][cols/32] tiles; rows past the end are zeros. So is a stack of matrices that share their input: each
 * part begins at a new tile. A silu part holds gate and up [n, cols] as 2n rows: its tile t has gate rows 8t..8t+7, then up rows
 * 8t..8t+7 (n a multiple of 8, padded to whole tiles when it is not).
 *
 * Order of sums. With n = cols / 32, inputs are cut into eight segments, steps s*n/8 .. (s+1)*n/8 - 1 for s = 0..7 (some may be
 * empty). A segment is summed from zero, step after step, by the matrix instruction; the segments' sums are added to zero in order
 * 0..7. Every form of the product keeps this order, so that a column's bytes depend neither on the number of columns nor on what
 * the others hold. */
#ifndef THESPIS_BACKEND_CUDA_PRODUCT_H
#define THESPIS_BACKEND_CUDA_PRODUCT_H

#include "backend/cuda/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* bf16, packed; in device memory, aligned to 16 bytes. */
struct th_cuda_matrix {
    const void *tiles; /* [rows/16][cols/32][1024 bytes] */
    int rows;          /* packed: parts with their padding, a multiple of 16 */
    int cols;          /* a multiple of 32 */
};

/* Rows that a part of n rows takes in a packed matrix. */
static inline int th_cuda_padded_rows(int n)
{
    return (n + 15) / 16 * 16;
}
static inline size_t th_cuda_matrix_bytes(int packed_rows, int cols)
{
    return (size_t)packed_rows * (size_t)cols * 2;
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
