/* forward.h - what happens between the products of the language model, on the device: row inputs, attention, Gated DeltaNet, the
 * draw; and the columns of a pass, which all kernels read.
 *
 * Every launcher takes the largest number of columns it may meet (`columns`, the bucket that a graph was made for) and reads the
 * number that are there from the pass, in device memory; what lies beyond is neither read nor written. Activations are plain
 * [column][width] bf16. A lane's state is given as the address in lane 0 and the distance in bytes from lane to lane.
 *
 * No sum depends on the number of columns, on neighbours, or on whether a row comes in a prompt or alone. */
#ifndef THESPIS_BACKEND_CUDA_FORWARD_H
#define THESPIS_BACKEND_CUDA_FORWARD_H

#include "backend/cuda/runtime.h"
#include "checkpoint/config.h"
#include "sampler/sampler.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TH_CUDA_FRAME (1 + TH_MAX_CODEBOOKS) /* room for a frame */
#define TH_CUDA_SPLIT 64                     /* rows of a cache that are attended together, counted from row 0 */

/* ---- the columns of a pass ----------------------------------------------------------------------------------------------------
 */

/* One row of one lane. */
struct th_cuda_column {
    int32_t lane, position; /* position -1: a backbone column that has turned out to be no row */
    /* tower alone */
    int32_t source; /* the backbone column whose final norm is this row's hidden; -1: what the lane keeps */
    int32_t keep;   /* 1: that hidden becomes what the lane keeps */
    int32_t forced; /* 1: `label` is given; 0: the draws fill it in */
    /* the sampler, as struct th_sampler has it for this frame */
    int32_t top_k, greedy;
    float temperature, top_p;
    uint32_t row;
    uint64_t seed, step;
    int32_t window[TH_RAS_WINDOW];
    int32_t input[TH_CUDA_FRAME]; /* the row itself */
    int32_t label[TH_CUDA_FRAME]; /* tower: the next row */
};

/* In device memory; uploaded whole before a pass. Backbone columns lie at column[0..], tower columns at column[capacity..]. */
struct th_cuda_pass {
    int32_t backbone_count, tower_count;
    int32_t capacity; /* the bucket; the host sizes the allocation */
    int32_t reserved;
    struct th_cuda_column column[];
};
#define TH_CUDA_PASS_BYTES(columns) (sizeof(struct th_cuda_pass) + 2 * (size_t)(columns) * sizeof(struct th_cuda_column))

/* What the draws of a tower column came to. Cleared by the main draw. */
enum { TH_CUDA_DRAWN, TH_CUDA_NOT_FINITE, TH_CUDA_OVERFLOWS };
struct th_cuda_drawn {
    int32_t failed; /* TH_CUDA_...: of the first failure; the draws after it were skipped */
    int32_t head;   /* 0 main, j the head of code j */
    int32_t index;  /* of the logit at fault */
    float value;    /* that logit */
    int32_t frame[TH_CUDA_FRAME];
};

/* ---- embed.cu: rows in ----------------------------------------------------------------------------------------------------------
 */

/* stream[c] = embedding of the backbone column's frame: token, and for speech the sum of codes 1..books, rounded, times `scale`.
 * The frame is the column's input; with `drawn`, the label that tower column c has just drawn: then a column whose draw failed or
 * ended speech is no row, and its position becomes -1. */
struct th_cuda_embed {
    struct th_cuda_pass *pass;
    int columns, width, books, codebook_size, semantic_start, semantic_end, eos;
    const struct th_cuda_drawn *drawn;
    float scale;                        /* 1/sqrt(1 + books) */
    const uint16_t *embed, *code_embed; /* [vocab][width], [books * codebook_size][width] */
    uint16_t *stream;                   /* [columns][width] */
};
cudaError_t th_cuda_embed(const struct th_cuda_launch *launch, const struct th_cuda_embed *embed);

/* handed[i] of tower column i = its hidden; lane_hidden = that where `keep` says so. */
struct th_cuda_hand {
    const struct th_cuda_pass *pass;
    int columns, width;
    const uint16_t *final; /* [columns][width] after the backbone's final norm */
    uint16_t *lane_hidden; /* [width] of lane 0 */
    size_t lane_stride;
    uint16_t *handed; /* [columns][width] */
};
cudaError_t th_cuda_hand(const struct th_cuda_launch *launch, const struct th_cuda_hand *hand);
/* lane_hidden = final[c] of every backbone column that is a row; `handed` is not used. */
cudaError_t th_cuda_keep(const struct th_cuda_launch *launch, const struct th_cuda_hand *hand);

/* out[i] = what the tower's layer adds to its hidden: the label's code of `book` in this layer's table (zero if the label is not
 * speech), plus, with `first`, the sum of the input frame's codes first..codebooks-1 if that is speech. */
struct th_cuda_label {
    const struct th_cuda_pass *pass;
    int columns, width, book, first, codebooks, codebook_size, table_rows, semantic_start, semantic_end; /* first 0: no extra */
    const uint16_t *table, *code_embed; /* [table_rows][width], [codebooks * codebook_size][width] */
    uint16_t *out;                      /* [columns][width] */
};
cudaError_t th_cuda_label(const struct th_cuda_launch *launch, const struct th_cuda_label *label);

/* ---- attention.cu ---------------------------------------------------------------------------------------------------------------
 */

/* Norms and rotates queries and keys, stores keys and values at the rows' places, attends over the rows so far, gates.
 * Order of sums: a split of TH_CUDA_SPLIT rows is summed row by row; splits are combined in order. */
struct th_cuda_attention {
    const struct th_cuda_pass *pass;
    int tower; /* which columns; also: pairs (2i, 2i+1) instead of (i, i + pairs), and the gate's sigmoid rounded */
    int columns;
    int sequential; /* the columns are consecutive rows of one lane (a prompt) */
    int splits;     /* at least position / TH_CUDA_SPLIT + 1 of every column; only read if not sequential */
    int heads, kv_heads, head_dim;
    const uint16_t *rows; /* [columns][row_stride]: products' outputs */
    int row_stride;
    int query, gate, head_stride; /* where in a row: head h at + h * head_stride */
    int key, value;               /* kv head h at + h * head_dim */
    const float *q_norm, *k_norm; /* [head_dim], 1 + w */
    float eps;
    const float *cosine, *sine; /* [max_rows][pairs] */
    int pairs;
    uint16_t *keys, *values; /* lane 0: [max_rows][kv_heads * head_dim] */
    size_t lane_stride;
    float *partial;    /* th_cuda_attention_partial_bytes */
    unsigned *arrived; /* [columns][kv_heads], zero before the first launch; zero again after each */
    uint16_t *out;     /* [columns][heads * head_dim] */
};
size_t th_cuda_attention_partial_bytes(int columns, int splits, int heads, int head_dim);
cudaError_t th_cuda_attention(const struct th_cuda_launch *launch, const struct th_cuda_attention *attention);

/* ---- deltanet.cu ----------------------------------------------------------------------------------------------------------------
 */

/* Convolution, gates, recurrence and gated norm of one Gated DeltaNet layer.
 * State: delta is f32 [value_heads][key_dim * value_dim] in the kernel's own order, zero at the start of a sequence; the ring is
 * bf16 [4][channels], row p of a sequence in slot p % 4, zero at the start. channels = 2 key_heads key_dim + value_heads value_dim.
 */
struct th_cuda_deltanet {
    const struct th_cuda_pass *pass;
    int columns, sequential;
    int key_heads, value_heads, dim; /* key_dim == value_dim == dim */
    const uint16_t *rows;            /* [columns][row_stride]: qkv | z | b | a */
    int row_stride;
    const float *conv;            /* [channels][4], tap 0 the oldest */
    const float *a_log, *dt_bias; /* [value_heads] */
    const float *norm;            /* [dim] */
    float eps;
    float *delta;
    uint16_t *ring; /* of lane 0 */
    size_t lane_stride;
    float *scratch; /* th_cuda_deltanet_scratch_bytes; only read and written if sequential */
    uint16_t *out;  /* [columns][value_heads * dim] */
};
size_t th_cuda_deltanet_scratch_bytes(int columns, int key_heads, int value_heads, int dim);
cudaError_t th_cuda_deltanet(const struct th_cuda_launch *launch, const struct th_cuda_deltanet *deltanet);

/* ---- draw.cu --------------------------------------------------------------------------------------------------------------------
 */

#define TH_CUDA_LABELS 8 /* most labels that one draw makes */

/* Draws from logits of the tower's columns as src/sampler does, to the bit. head 0: main token and code 0 into label[0], label[1],
 * clearing `drawn`; head j: code j into label[1 + j]. Logits that are not finite mark the column as failed. */
struct th_cuda_draw {
    struct th_cuda_pass *pass;
    int columns, head, count; /* count: candidates or codebook_size */
    int width;                /* W */
    int eos, semantic_start, codebook_size;
    const uint16_t *logits; /* [columns][stride] bf16 */
    int stride;
    struct th_cuda_drawn *drawn; /* [columns] */
    /* [columns], may be the host's: this head ends the frame, drawn and the label go there. Or NULL */
    struct th_cuda_drawn *result;
    /* Then makes the labels that the code or the main token allows, as th_cuda_label does: number k from tables[k] into label.out +
     * k * label_step; label.first counts for number 0 alone. */
    int labels;
    const uint16_t *tables[TH_CUDA_LABELS];
    size_t label_step;
    struct th_cuda_label label; /* pass, columns and table are not read */
    int slow;                   /* take the plain loops that settle close calls everywhere; for tests */
};
cudaError_t th_cuda_draw(const struct th_cuda_launch *launch, const struct th_cuda_draw *draw);

#ifdef __cplusplus
}
#endif

#endif
