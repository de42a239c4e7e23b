/* experts.h - the mixture of experts after the router's logits: choice, experts, shared expert's down, sum, residual.
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

/* All in device memory. H = experts.hidden, I = experts.inner, S = shared_down.cols, entries = columns * top_k. */
struct th_cuda_moe {
    struct th_cuda_experts experts;    /* FP8: H and I multiples of 128; bf16: H of 32, I of 32 */
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
