/* codec.h - the loops of the codec, written once in simd.h's words and compiled for each instruction set.
 *
 * A kernel is a th_pool_task: it works on items begin..end-1 of its job, each of which writes its own outputs, so neither the
 * cutting nor the number of threads changes a byte. Two layouts: signals are [channel][time], their rows `stride` floats apart and
 * readable and writable up to the next multiple of 16 columns; rows are [time][width].
 *
 * Orders of summation, the same for every column, chunk and tile:
 *  - conv: one chain bias + sum over (input channel, tap) in order, for each block of `block` input channels a chain of its own;
 * the blocks' sums are added in order.
 *  - linear and every dot product over a row: product k goes to running sum k mod 16, in order of k; then v16_sum; then the bias.
 *  - attention: keys from max(0, i - window + 1) to i, counted from that first one. */
#ifndef THESPIS_BACKEND_CPU_KERNELS_CODEC_H
#define THESPIS_BACKEND_CPU_KERNELS_CODEC_H

#include <stddef.h>
#include <stdint.h>

#define TH_CONV_GROUP 6       /* outputs whose sums live in registers together */
#define TH_CONV_PARTIAL 3072  /* floats of a set's sums for one tile: rows of a set * tile */
#define TH_CONV_SET_PHASES 24 /* most rows of a set of a transposed convolution */

/* A convolution over [channel][time], ready for the kernel. Transposed ones have `phases` output columns for each input column;
 * their rows are (output, phase). Outputs are cut evenly into `sets`, a set's rows evenly into groups of at most TH_CONV_GROUP. */
struct th_packed_conv {
    int in, out;
    int taps, step; /* tap k reads input column t + k * step, counted from the left end of the context */
    int phases;     /* 1: plain */
    int sets;
    int block;     /* input channels of one chain */
    int context;   /* columns before the first that count: (taps - 1) * step */
    float *weight; /* [group][in][taps][rows of the group] */
    float *bias;   /* [out] */
};

/* out = conv(in) (+ residual); snake(out) may be stored beside it or instead of it. Items: tiles * sets, tile by tile. */
struct th_conv_job {
    const struct th_packed_conv *conv;
    const float *in; /* [in][context + columns] */
    size_t in_stride;
    int columns;           /* input columns */
    int tile;              /* input columns of an item: a multiple of 16; tile * rows of a set <= TH_CONV_PARTIAL */
    const float *residual; /* [out][columns * phases], `stride` apart, or NULL; may be `out` */
    float *out;            /* [out][columns * phases], `stride` apart, or NULL */
    float *snake;          /* the same of snake(out), or NULL */
    size_t stride;
    const float *alpha, *inverse; /* [out]: of the snake; inverse = 1 / (alpha + 1e-9) */
};

enum th_linear_kind {
    TH_LINEAR_PLAIN, /* out = Wx + b */
    TH_LINEAR_GELU,  /* out = gelu(Wx + b) */
    TH_LINEAR_GATED, /* out = silu(Wx) * (W2 x) */
    TH_LINEAR_ADD    /* out += gamma * (Wx + b) */
};

/* Products of weight rows with time rows. Rows of `in` may overlap (in_stride < inputs): a convolution over time. Items: 16
 * outputs. */
struct th_linear_job {
    enum th_linear_kind kind;
    const float *weight, *weight2; /* [outputs][inputs] */
    const float *bias, *gamma;     /* [outputs]; bias may be NULL */
    int inputs, outputs, rows;
    const float *in; /* [rows][inputs], in_stride apart */
    size_t in_stride;
    float *out; /* [rows][outputs] */
};

enum th_norm_kind { TH_NORM_RMS, TH_NORM_LAYER };

/* Items: rows. */
struct th_norm_job {
    enum th_norm_kind kind;
    const float *in;            /* [rows][width] */
    float *out;                 /* [rows][width]; may be `in` */
    const float *weight, *bias; /* [width]; bias for TH_NORM_LAYER */
    int width;
    float eps;
};

/* out[t][c] = bias[c] + sum_k weight[k][c] in[t + k][c]. Items: rows of `out`. */
struct th_depthwise_job {
    const float *in;            /* [kernel - 1 + rows][width] */
    float *out;                 /* [rows][width] */
    const float *weight, *bias; /* [kernel][width], [width] */
    int width, kernel;
};

/* Adds the new keys and values to the ring as it goes: position p lies in slot p mod window. Items: heads. */
struct th_attention_job {
    const float *qkv;           /* [rows][3][heads][64], before the rotation */
    const float *cosine, *sine; /* [rows][32] */
    float *keys, *values;       /* [heads][window][64], rotated keys */
    float *scores;              /* [heads][window rounded up to 16]: scratch */
    float *out;                 /* [rows][heads][64] */
    int rows, heads, window;
    int64_t position; /* of the first row */
};

/* out = snake(in) by channel. Items: rows. */
struct th_snake_rows_job {
    const float *in; /* [rows][width] */
    float *out;      /* [rows][width] */
    const float *alpha, *inverse;
    int width;
};

/* Rows to a signal, with its snake beside it. Items: channels. */
struct th_turn_job {
    const float *in; /* [columns][width] */
    int columns, width;
    float *out, *snake; /* [width][columns], `stride` apart */
    size_t stride;
    const float *alpha, *inverse;
};

/* Splits time into phases: out[c * phases + j][t] = in[c][t * phases + j]. Items: channels. */
struct th_phases_job {
    const float *in;
    float *out; /* [channels * phases][columns] */
    size_t in_stride, out_stride;
    int columns, phases; /* columns of `out` */
};

/* A signal to rows: out[t][c] = in[c][t]. Items: columns. */
struct th_unturn_job {
    const float *in;
    size_t in_stride;
    float *out; /* [columns][width] */
    int width;
};

/* out = tanh(in). Items: blocks of 1024 samples. */
struct th_tanh_job {
    const float *in; /* [count] */
    float *out;      /* [count] */
    int count;
};

/* One codebook, ready for the kernels. */
struct th_packed_book {
    int entries, padded;              /* padded: entries rounded up to 16 */
    const float *codebook;            /* [entries][width] */
    const float *out_bias;            /* [latent] */
    float *out_weight;                /* [width][latent] */
    const float *in_weight, *in_bias; /* [width][latent], [width]; NULL without the encoder */
    float *unit;                      /* [width][padded]: normalised rows, turned */
    float *unit_square;               /* [padded]: their squared lengths; +inf where padded */
};

/* out = q_0 + (q_1 + ... + q_last), q_i = out_weight code row + out_bias. Items: frames. */
struct th_lookup_job {
    const struct th_packed_book *books; /* [count] */
    int count, width, latent;
    const int32_t *codes; /* [frames][count], within each book */
    float *out;           /* [frames][latent] */
};

/* Codes of latent rows, which become residuals on the way. Items: frames. */
struct th_quantise_job {
    const struct th_packed_book *books;
    int count, width, latent;
    float *residual; /* [frames][latent] */
    int32_t *codes;  /* [frames][count] */
};
#define TH_CODE_WIDTH_MAX 64

/* The functions of vmath.h, for checks. */
enum th_vmath {
    TH_VMATH_EXP,
    TH_VMATH_LOG,
    TH_VMATH_SIN,
    TH_VMATH_TANH,
    TH_VMATH_ERF,
    TH_VMATH_SIGMOID,
    TH_VMATH_SILU,
    TH_VMATH_COUNT
};

struct th_codec_kernels {
    void (*conv)(void *job, int begin, int end);
    void (*linear)(void *job, int begin, int end);
    void (*norm)(void *job, int begin, int end);
    void (*depthwise)(void *job, int begin, int end);
    void (*attention)(void *job, int begin, int end);
    void (*snake_rows)(void *job, int begin, int end);
    void (*turn)(void *job, int begin, int end);
    void (*unturn)(void *job, int begin, int end);
    void (*phases)(void *job, int begin, int end);
    void (*tanh)(void *job, int begin, int end);
    void (*lookup)(void *job, int begin, int end);
    void (*quantise)(void *job, int begin, int end);
    void (*vmath)(enum th_vmath function, const float *in, float *out, int count);
};

/* Outputs of set i, rows of a set's group g: the cuts that packing and kernel share. */
static inline int th_conv_set_begin(const struct th_packed_conv *conv, int set)
{
    return (int)((int64_t)conv->out * set / conv->sets);
}
static inline int th_conv_groups(int rows)
{
    return (rows + TH_CONV_GROUP - 1) / TH_CONV_GROUP;
}
static inline int th_conv_group_begin(int rows, int group)
{
    return rows * group / th_conv_groups(rows);
}

#ifdef TH_ISA
#include "backend/cpu/kernels/vmath.h"

void TH_NAME(th_codec_conv)(void *job, int begin, int end);
void TH_NAME(th_codec_linear)(void *job, int begin, int end);
void TH_NAME(th_codec_norm)(void *job, int begin, int end);
void TH_NAME(th_codec_depthwise)(void *job, int begin, int end);
void TH_NAME(th_codec_attention)(void *job, int begin, int end);
void TH_NAME(th_codec_snake_rows)(void *job, int begin, int end);
void TH_NAME(th_codec_turn)(void *job, int begin, int end);
void TH_NAME(th_codec_unturn)(void *job, int begin, int end);
void TH_NAME(th_codec_phases)(void *job, int begin, int end);
void TH_NAME(th_codec_tanh)(void *job, int begin, int end);
void TH_NAME(th_codec_lookup)(void *job, int begin, int end);
void TH_NAME(th_codec_quantise)(void *job, int begin, int end);
void TH_NAME(th_codec_vmath)(enum th_vmath function, const float *in, float *out, int count);

/* The first n of sixteen lanes; most often all of them. */
static inline v16 th_load(const float *p, int n)
{
    return n >= 16 ? v16_load(p) : v16_load_part(p, n);
}
static inline void th_store(float *p, v16 x, int n)
{
    if (n >= 16)
        v16_store(p, x);
    else
        v16_store_part(p, x, n);
}

/* x + sin(alpha x)^2 / (alpha + 1e-9) */
static inline v16 th_snake(v16 x, v16 alpha, v16 inverse)
{
    v16 s = v16_sin(v16_mul(alpha, x));
    return v16_fma(inverse, v16_mul(s, s), x);
}
#endif

#endif
