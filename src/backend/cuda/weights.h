/* weights.h - the network's weights as they lie on the device: packed once while loading (pack.cu, load.c), read only afterwards.
 *
 * A packed bf16 matrix is a sequence of tiles of 16 rows x 32 inputs, 1,024 bytes: tile (row / 16) * (cols / 32) + input / 32.
 * A tile is two fragments of 512 bytes, one for each m16n8k16 step; in a fragment lane l (g = l / 4, q = l % 4) has 16 bytes, the
 * `a` of th_mma_bf16. Inside a tile lane q owns inputs 8q..8q+7: in step s the pairs are {8q+4s, 8q+4s+1} of rows g, g+8 and then
 * {8q+4s+2, 8q+4s+3} of rows g, g+8. So a column's b of both steps are one 16-byte load from x[column][32 t + 8q]: .x, .y are b0,
 * b1 of step 0 and .z, .w those of step 1.
 *
 * A packed E4M3 matrix has tiles of 16 rows x 64 inputs, 1,024 bytes, two m16n8k32 steps: lane q owns bytes 16q..16q+15; step s has
 * bytes 16q+8s..+3 of rows g, g+8 and then 16q+8s+4..+7 of rows g, g+8. A column's b of both steps are one 16-byte load from
 * x[column][64 t + 16q].
 *
 * Matrices that take the same input are one: each part begins at a multiple of 16 rows, rows between are zero. In an interleaved
 * pair (gate and up) tile t has rows 8t..8t+7 of the first in its rows 0..7 and the same rows of the second in its rows 8..15: a
 * thread holds gate in c[0], c[1] and up in c[2], c[3] of one column pair. */
#ifndef THESPIS_BACKEND_CUDA_WEIGHTS_H
#define THESPIS_BACKEND_CUDA_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#define TH_TILE_ROWS 16
#define TH_TILE_BYTES 1024
#define TH_TILE_INPUTS_BF16 32
#define TH_TILE_INPUTS_E4M3 64

/* bf16, packed. */
struct th_cuda_matrix {
    const void *tiles; /* device */
    int rows;          /* with padding: a multiple of 16 */
    int cols;          /* a multiple of 32 */
};

/* All experts of a layer, one after another. */
struct th_cuda_experts {
    int fp8;                    /* 1: E4M3 with scales for each 128 x 128; 0: bf16, scales NULL */
    int count, inner, hidden;   /* gate_up: [2 inner, hidden] interleaved; down: [hidden, inner] */
    const void *gate_up, *down; /* device: expert e at e * gate_up_bytes, e * down_bytes */
    size_t gate_up_bytes, down_bytes;
    const float *gate_up_scales; /* device [count][2][ceil(inner/128)][ceil(hidden/128)]: gate's, then up's */
    const float *down_scales;    /* device [count][ceil(hidden/128)][ceil(inner/128)] */
};

/* Vectors are f32 on the device, as th_model has them (norms without the 1 that is added). */
struct th_cuda_layer {
    int full_attention;
    int state; /* number of this layer among those of its kind: which cache, or which DeltaNet state of a lane */
    const float *input_norm, *post_norm; /* [H] */
    /* full attention: q (per head query, gate) | k | v; of a DeltaNet layer: qkv | z | b | a */
    struct th_cuda_matrix in;
    int k_at, v_at; /* first rows of the parts of `in` */
    int z_at, b_at, a_at;
    struct th_cuda_matrix out;    /* o, or DeltaNet's out */
    const float *q_norm, *k_norm; /* full attention: [head_dim] */
    const float *conv;            /* DeltaNet: [channels][4], tap 0 the oldest */
    const float *a_log, *dt_bias; /* [value_heads] */
    const float *norm;            /* [value_dim], plain */
    /* router | shared gate and up interleaved | the shared expert's gate (one row) */
    struct th_cuda_matrix moe_in;
    int shared_at;                     /* first row of the pair: its tile t is at rows shared_at + 16t, for inner rows 8t..8t+7 */
    int shared_gate_at;                /* the one row */
    struct th_cuda_matrix shared_down; /* [H, shared_inner] */
    struct th_cuda_experts experts;
};

struct th_cuda_tower_layer {
    const uint16_t *table;                                               /* bf16 [codebook_size][H], as stored */
    const float *enorm, *hnorm, *attention_norm, *ffn_norm, *final_norm; /* [H] */
    struct th_cuda_matrix eh;                                            /* [H, 2H] */
    struct th_cuda_matrix wqkv; /* queries | gates | keys | values as one part, no padding between */
    const float *q_norm, *k_norm;
    struct th_cuda_matrix wo;
    struct th_cuda_matrix w13; /* w1, w3 interleaved: [2 inner, H] */
    struct th_cuda_matrix w2;
};

struct th_cuda_weights {
    const uint16_t *embed;            /* bf16 [vocab][H], as stored */
    const uint16_t *code_embed;       /* bf16 [codebooks * codebook_size][H], as stored */
    struct th_cuda_matrix candidates; /* rows of lm_head in candidate order, [candidates, H] */
    const float *final_norm;
    struct th_cuda_layer *layers;      /* host array [backbone.layers] */
    struct th_cuda_tower_layer *tower; /* host array [shared + residual layers] */
    struct th_cuda_matrix *heads;      /* host array [residual layers]: [codebook_size, H] */
    void *memory;                      /* the one device allocation that all of the above points into */
    uint64_t bytes;                    /* of it */
};

#endif
