/* experts.h - the mixture of experts after the router's logits: choice, experts, shared expert's down, sum, residual.
 *
 * Packed experts. FP8: a tile is 16 rows x 64 inputs of E4M3, 1,024 bytes: two steps of m16n8k32, each [32 lanes][16 bytes]. Lane l
 * (g = l / 4, q = l % 4) owns inputs 16q..16q+15 of the tile; its sixteen bytes of step s (0, 1) are
 *     row g   inputs 16q+8s .. +3   |   row g+8 the same   |   row g   inputs 16q+8s+4 .. +7   |   row g+8 the same.
 * bf16: tiles of product.h. Gate and up are one matrix of 2 * inner rows, interleaved as a silu part of product.h.
 *
 * Order of sums. FP8: 128 inputs are summed from zero by the matrix instruction (four steps of 32), then enter their segment's sum
 * by fma(inner, activation scale * weight scale, sum), block after block. Gate and up: with n = cols / 128 there are eight
 * segments, blocks s*n/8 .. (s+1)*n/8 - 1, added to zero in order 0..7. Down: one segment. bf16: gate and up as product.h; down:
 * one segment of all steps. Slots are added in slot order. The same in both forms below, so that bytes do not depend on the number
 * of columns.
 *
 * Forms. Up to TH_CUDA_ENTRY_COLUMNS columns each entry reads its expert's weights by itself: two kernels in all. Beyond, entries
 * are grouped by expert (route.h), each active expert is read once, and a last kernel adds the slots. */
#ifndef THESPIS_BACKEND_CUDA_EXPERTS_H
#define THESPIS_BACKEND_CUDA_EXPERTS_H

#include "backend/cuda/product.h"
#include "backend/cuda/route.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TH_CUDA_ENTRY_COLUMNS 8

/* One matrix of every expert of a layer. */
struct th_cuda_expert_matrix {
    const void *tiles; /* [experts][rows/16][cols/64 (FP8) or cols/32 (bf16)][1024 bytes] */
    /* f32 multipliers of blocks of 128 x 128; NULL: bf16 experts. Gate and up: [experts][2][inner/128][cols/128], gate's before
     * up's. Down: [experts][rows/128][cols/128]. Rows and cols are multiples of 128 (inner too). */
    const float *scales;
    int experts, rows, cols; /* gate and up: rows = 2 * inner. bf16: rows a multiple of 16, cols of 32 */
};
static inline size_t th_cuda_expert_bytes(int rows, int cols, int fp8)
{
    return (size_t)rows * (size_t)cols * (fp8 ? 1 : 2);
}

/* All in device memory. H = gate_up.cols = down.rows, I = down.cols, S = shared_down.cols, entries = columns * top_k. */
struct th_cuda_moe {
    struct th_cuda_expert_matrix gate_up, down;
    struct th_cuda_matrix shared_down; /* [H, S], S a multiple of 32 */
    int columns, top_k;                /* top_k <= TH_CUDA_MOST_TOP_K */
    const int32_t *count;              /* columns in use, or NULL: all. The results of others are not defined, but cost little */
    const uint16_t *x;                 /* [columns][H]: after the post-attention norm */
    const uint16_t *router;            /* [columns][router_stride]: logits */
    int router_stride;
    const uint16_t *shared_act; /* [columns][S]: silu(gate) * up of the shared expert */
    const float *shared_open;   /* [columns]: logit of its gate */

    /* Work space; chosen, weights and (FP8) codes and scales are always written, so that checks may read them. */
    int32_t *chosen;  /* [columns][top_k] */
    float *weights;   /* [columns][top_k] */
    uint8_t *codes;   /* [columns][H]; FP8 */
    float *scales;    /* [columns][H/128]; FP8 */
    uint16_t *act;    /* [entries][I] */
    uint16_t *parts;  /* [entries][H]: bf16(weight * down); only beyond TH_CUDA_ENTRY_COLUMNS */
    uint16_t *shared; /* [columns][H]: the shared expert's down; only beyond TH_CUDA_ENTRY_COLUMNS */
    int32_t *groups;  /* [th_cuda_groups_ints(experts, entries)]; only beyond TH_CUDA_ENTRY_COLUMNS */
    uint16_t *stream; /* [columns][H]: stream = bf16(stream + y), in place; NULL: none */
    uint16_t *branch; /* [columns][H]: y itself, for checks; NULL: none */
};

cudaError_t th_cuda_moe(const struct th_cuda_launch *launch, const struct th_cuda_moe *moe);

#ifdef __cplusplus
}
#endif

#endif
