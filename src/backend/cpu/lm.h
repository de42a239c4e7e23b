/* lm.h - the language model on the CPU: three kinds of struct. The network's numbers are checkpoint/config.h, its weights
 * checkpoint/model.h; here is the state of a request (th_lane) and the work space in which rows pass through the layers
 * (th_lm_work).
 *
 * Rows that are worked on together are the columns of a batch: a piece of one lane's prompt, or the newest row of several lanes.
 * Every buffer of activations is [columns][width]. */
#ifndef THESPIS_BACKEND_CPU_LM_H
#define THESPIS_BACKEND_CPU_LM_H

#include "backend/cpu/cpu.h"
#include "backend/cpu/faults.h"
#include "backend/cpu/kernels/lm.h"
#include "backend/cpu/simd.h"

#define TH_LM_PIECE 256 /* most rows of a prompt that pass together; longer feeds are cut */

/* Keys and values of one attention layer, in place at their rows. Rounded to bf16 in that precision, but kept as floats. */
struct th_lm_cache {
    float *keys, *values; /* [max_rows][kv_heads * head_dim] */
};

/* One Gated DeltaNet layer. */
struct th_lm_delta_state {
    float *heads; /* [value_heads][ceil(value_dim/32)][key_dim][32], always 32-bit */
    float *conv;  /* [conv_width - 1][channels]: the last inputs of the convolution, oldest first */
};

/* The state of one request. The backbone has seen rows 0..backbone_rows-1: all but a frame that was just drawn. The tower has seen
 * rows 0..tower_rows-1; a row's tower pass needs the next row as its label, so after a prompt it is one row behind. */
struct th_lane {
    int begun, ended;  /* ended: the last draw was end of speech, which is no row */
    int rows;          /* fed and drawn */
    int backbone_rows; /* rows or rows - 1 */
    int tower_rows;    /* backbone_rows or backbone_rows - 1 */
    int prompt_rows;   /* rows after the last feed */
    int32_t *newest;   /* [W]: row rows-1 */
    float *hidden;     /* [H]: row backbone_rows-1 after the final norm */
    struct th_sampler sampler;
    struct th_lm_cache *backbone;    /* [layers], set where a layer is full attention */
    struct th_lm_delta_state *delta; /* [layers], set where it is not */
    struct th_lm_cache *tower;       /* [shared + residual layers] */
    float *memory;                   /* all the floats above; [lane_floats] */
};

/* Consecutive rows of one lane in a batch. */
struct th_lm_span {
    struct th_lane *lane;
    int number;   /* of the lane */
    int column;   /* first column */
    int position; /* its row */
    int count;
};

struct th_lm_batch {
    int columns, span_count;
    struct th_lm_span *spans; /* [span_count], in column order */
};

/* cos and sin of position * theta^(-2i/rotary_dim). */
struct th_lm_rope {
    int pairs;
    float *cosine, *sine; /* [max_rows][pairs] */
};

/* Work space of one batch. C is `columns` below, H the model's width. Buffers that never live at the same time are still apart:
 * beside the weights they are small, and each has one meaning. */
struct th_lm_work {
    int columns;
    struct th_lm_span *spans;    /* [lanes or 1] */
    struct th_product *products; /* [most products that share a step] */
    int32_t *frames;             /* [C][W] */
    const int32_t **labels;      /* [C]: the label frame of each tower row */
    const int32_t **inputs;      /* [C]: its input frame */
    float *residual;             /* [C][H] the stream between layers */
    float *normed;               /* [C][H] input of a branch */
    float *branch;               /* [C][H] what a branch adds */
    float *final;                /* [C][H] after the backbone's final norm */
    float *handed;               /* [C][H] what a tower layer takes, and then what it hands on */
    /* attention */
    float *query_gate;  /* [C][heads * 2 * head_dim], or the tower's [C][(2 heads + 2 kv_heads) * head_dim] */
    float *key, *value; /* [C][kv_heads * head_dim] */
    float *query;       /* [C][heads * head_dim] normed and rotated */
    float *attended;    /* [C][heads * head_dim] */
    /* DeltaNet; channels = 2 key_heads*key_dim + value_heads*value_dim */
    float *qkv, *mixed;          /* [C][channels] before and after the convolution */
    float *z, *delta_out;        /* [C][value_heads * value_dim] */
    float *a, *b, *decay, *beta; /* [C][value_heads] */
    /* mixture of experts; entries = C * top_k */
    float *router, *probabilities;  /* [C][experts] */
    int *chosen;                    /* [C][top_k] in slot order */
    float *slot_weights;            /* [C][top_k] */
    int *expert_first;              /* [experts + 1]: entries of expert e are expert_first[e] .. expert_first[e+1]-1 */
    int *entry_column;              /* [entries], grouped by expert */
    int *entry_of_slot;             /* [C][top_k] */
    float *quantised;               /* [C][H] E4M3 values */
    float *quantised_scales;        /* [C][ceil(H/128)] */
    float *gate, *up;               /* [entries][expert_inner], or [C][shared_inner], or the tower's [C][inner] */
    float *inner_scales;            /* [entries][ceil(expert_inner/128)] */
    float *down;                    /* [entries][H] */
    float *shared_gate, *shared_up; /* [C][shared_inner] */
    float *shared;                  /* [C][H] */
    float *shared_open;             /* [C] logit of the shared expert's gate */
    /* tower */
    float *embedding; /* [C][H] of a label's code, plus the extra input */
    float *joined;    /* [C][2H] */
    float *logits;    /* [C][max(candidates, codebook_size)] */
    float *probe;     /* [C][H] codes as floats */
    float *memory;    /* all the floats above */
};

struct th_cpu_lm {
    int lane_count, max_rows;
    struct th_lane *lanes; /* [lane_count] */
    size_t lane_floats;
    struct th_lm_work work;
    uint64_t work_bytes, weight_bytes;
    float **conv_taps; /* [layers]: [conv_width][channels] where a layer is DeltaNet; NULL elsewhere */
    struct th_lm_rope backbone_rope, tower_rope;
    struct th_draw_scratch draw;
};

static inline int th_lm_channels(const struct th_backbone_config *config)
{
    return 2 * config->key_heads * config->key_dim + config->value_heads * config->value_dim;
}
static inline int th_lm_tower_layers(const struct th_config *config)
{
    return config->tower.shared_layers + config->tower.residual_layers;
}
static inline int th_lm_bf16(const struct th_cpu *cpu)
{
    return cpu->options.precision == THESPIS_PRECISION_BF16;
}
/* Rounds one value at a place where bf16 precision rounds. */
static inline float th_lm_round(float value, int bf16)
{
    return bf16 ? th_round_bf16(value) : value;
}

/* lm.c: prepare at open, release, lanes, memory. */
thespis_status th_cpu_lm_prepare(struct th_cpu *cpu, thespis_error *error);
void th_cpu_lm_release(struct th_cpu *cpu);
thespis_status th_cpu_lanes(struct th_backend *backend, int count, int max_rows, thespis_error *error);
void th_cpu_lm_memory(const struct th_cpu *cpu, struct th_backend_memory *memory);

/* run.c and checks.c: the entries of th_backend_ops. */
thespis_status th_cpu_begin(struct th_backend *backend, int lane, const struct th_sampling *sampling, thespis_error *error);
thespis_status th_cpu_feed(struct th_backend *backend, int lane, const int32_t *rows, int n, thespis_error *error);
thespis_status th_cpu_step(struct th_backend *backend, struct th_step *steps, int n, thespis_error *error);
thespis_status th_cpu_copy(struct th_backend *backend, int from, int to, thespis_error *error);
thespis_status th_cpu_resample(struct th_backend *backend, int lane, const struct th_sampling *sampling, thespis_error *error);
int th_cpu_rows(const struct th_backend *backend, int lane);
thespis_status th_cpu_layer(struct th_backend *backend, int lane, int part, int layer, int row0, int n, const float *in,
                            const int32_t *frames, const int32_t *labels, float *out, thespis_error *error);
thespis_status th_cpu_head(struct th_backend *backend, int part, int n, const float *in, float *out, thespis_error *error);
/* THESPIS_UNSUPPORTED without a model, THESPIS_INVALID for a lane that is not there. */
thespis_status th_cpu_check_lane(const struct th_cpu *cpu, int lane, thespis_error *error);

/* products.c: the two ways in which work is cut among threads. */
/* All rows of all products; they may share inputs but not outputs. */
void th_lm_products(struct th_cpu *cpu, const struct th_product *products, int count);
/* task over 0..count-1, `cost` (in multiply-adds, roughly) each. */
void th_lm_each(struct th_cpu *cpu, int count, int cost, th_pool_task task, void *context);
/* y [columns][rows of w] = w x, x [columns][cols of w]; rounded in bf16 precision. */
struct th_product th_lm_product(const struct th_cpu *cpu, const struct th_matrix *w, const float *x, int columns, float *y);
void th_lm_norm_rows(struct th_cpu *cpu, const float *x, const float *w, double eps, int columns, float *y, int y_stride);
/* y = x + add; both [columns][H] */
void th_lm_add_rows(struct th_cpu *cpu, const float *x, const float *add, int columns, float *y);
/* gate = silu(gate) * up; both [columns][n] */
void th_lm_silu_rows(struct th_cpu *cpu, float *gate, const float *up, int columns, int n);
/* Hands [columns][cols] to the probe, span by span. */
void th_lm_probe(struct th_cpu *cpu, const struct th_lm_batch *batch, const char *name, int layer, int cols, const float *values);

/* attention.c */
struct th_lm_heads {
    int heads, kv_heads, head_dim;
    const float *query, *gate; /* head h of column c at [c * column_stride + h * head_stride] */
    const float *key, *value;  /* [columns][kv_stride], kv_heads * head_dim of each row */
    int column_stride, head_stride, kv_stride;
    const float *q_norm, *k_norm; /* [head_dim] */
    float k_norm_plus;            /* the 1 of 1 + w */
    float eps;
    const struct th_lm_rope *rope;
    int interleaved; /* pairs (2i, 2i+1), else (i, i + pairs) */
    int round_sigmoid;
    int in_tower, layer; /* which cache of each lane */
};
/* Norms, rotates and stores the rows' keys and values, then attends over each lane's rows so far: work.attended, gated. */
void th_lm_attend(struct th_cpu *cpu, const struct th_lm_batch *batch, const struct th_lm_heads *heads);
void th_lm_attention(struct th_cpu *cpu, const struct th_lm_batch *batch, int layer); /* work.normed -> work.branch */

/* deltanet.c: work.normed -> work.branch */
void th_lm_deltanet(struct th_cpu *cpu, const struct th_lm_batch *batch, int layer);

/* moe.c: work.normed -> work.branch */
void th_lm_moe(struct th_cpu *cpu, const struct th_lm_batch *batch, int layer);

/* backbone.c */
void th_lm_embed(const struct th_cpu *cpu, const int32_t *frame, float *x);                /* [W] -> [H] */
void th_lm_backbone_layer(struct th_cpu *cpu, const struct th_lm_batch *batch, int layer); /* work.residual in place */
/* work.frames -> work.final */
void th_lm_backbone(struct th_cpu *cpu, const struct th_lm_batch *batch);
void th_lm_candidate_logits(struct th_cpu *cpu, const float *final, int columns, float *logits); /* [columns][candidates] */

/* tower.c */
/* What the first layer adds to a label's embedding: the input frame's codes that did not enter the backbone. x [H] */
void th_lm_extra(const struct th_cpu *cpu, const int32_t *frame, float *x);
/* Layer t over work.inputs and work.labels; work.handed in place */
void th_lm_tower_layer(struct th_cpu *cpu, const struct th_lm_batch *batch, int t);
/* All layers, when the labels are known: fills the caches */
void th_lm_tower(struct th_cpu *cpu, const struct th_lm_batch *batch);
void th_lm_code_logits(struct th_cpu *cpu, int head, const float *x, int columns, float *logits); /* [columns][codebook_size] */

#endif
