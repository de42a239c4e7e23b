/* codec_kernels.h - the codec's kernels on a device. Everything lies as rows, [time][width], whatever the rate: a width is the
 * number of channels rounded up to 16, the rest zeros that stay zeros. So a convolution is a product of weights with rows that
 * overlap, a transposed one makes `stride` rows of out[t][phase][channel] in one, and a strided one reads `stride` rows as one.
 *
 * Sums have one order for every number of rows, so no window shows: see each job. A job's pointers are the device's. */
#ifndef THESPIS_BACKEND_CUDA_CODEC_KERNELS_H
#define THESPIS_BACKEND_CUDA_CODEC_KERNELS_H

#include "backend/cuda/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TH_CUDA_CODEC_HEAD 64      /* width of a head */
#define TH_CUDA_CODEC_STEP 16      /* inputs of one step of a product */
#define TH_CUDA_CODEC_WIDTH 64     /* most values of a codebook's vector */
#define TH_CUDA_CODEC_LATENT 8192  /* widest row of norms, lookup and search */
#define TH_CUDA_CODEC_WINDOW 8192  /* most positions that attention looks back */
#define TH_CUDA_CODEC_CONTEXT 64   /* most rows that a convolution looks back */
#define TH_CUDA_CODEC_LAST_TAPS 16 /* most taps of the first and the last convolution */

/* ---- codec_conv.cu ----------------------------------------------------------------------------------------------------------- */

/* A packed layer: out row t = bias + sum over steps, a step being (16 inputs, tap): inputs outside, taps inside. Tap k reads input
 * row t + k * step - (taps - 1) * step. The steps are cut evenly into `split` parts, each part summed in order, parts in order. */
struct th_cuda_conv {
    int inputs, outputs; /* widths of rows; multiples of 16 */
    int taps, step;
    int split;           /* 1 or TH_CUDA_CODEC_SPLIT */
    int tile;            /* outputs of a block: 32, 64 or 96 */
    const float *weight; /* [tiles][inputs / 16][taps][16][tile] */
    const float *bias;   /* [outputs], or NULL */
    const float *scale;  /* NULL: plain float32. Else rows of weights and inputs are split in halves (see codec_split.cu), weights
                            as [tiles][inputs / 16][taps][tile / 16][high, low][32][4] pairs, each row divided by its scale, a
                            power of two; inputs as th_cuda_conv_job.split makes them. [outputs] */
};
#define TH_CUDA_CODEC_SPLIT 4

enum th_cuda_conv_kind {
    TH_CUDA_CONV_PLAIN,  /* out = y */
    TH_CUDA_CONV_GELU,   /* out = gelu(y) */
    TH_CUDA_CONV_GATED,  /* rows of weights in fours (a, b, A, B): out = silu(a) * A, silu(b) * B; out has half the width */
    TH_CUDA_CONV_BRANCH, /* out = residual + gamma * y */
    TH_CUDA_CONV_SUM     /* out = residual + y */
};

struct th_cuda_conv_job {
    struct th_cuda_conv conv;
    enum th_cuda_conv_kind kind;
    int rows;                     /* of `out` */
    const float *in;              /* [rows][inputs] */
    const float *past;            /* [(taps - 1) * step][inputs]: the rows before; NULL for one tap */
    float *kept;                  /* the same for the next window; not `past` */
    const float *residual;        /* [rows][outputs]; may be `out` */
    const float *gamma;           /* [outputs] */
    float *out;                   /* [rows][outputs] or NULL */
    float *snaked;                /* the same of snake(out), or NULL */
    int split;                    /* 1: `snaked` is split in halves, for a layer that has scales; four values stay 16 bytes */
    const float *alpha, *inverse; /* [outputs]: of the snake; inverse = 1 / (alpha + 1e-9) */
};
/* `processors`: multiprocessors of the device; chooses the number of columns of a block, which changes no byte. */
cudaError_t th_cuda_codec_conv(const struct th_cuda_launch *launch, const struct th_cuda_conv_job *job, int processors);
/* codec_split.cu: what it calls for a layer that has scales. */
cudaError_t th_cuda_codec_conv_split(const struct th_cuda_launch *launch, const struct th_cuda_conv_job *job, int processors);

/* ---- codec_ends.cu ----------------------------------------------------------------------------------------------------------- */

/* Samples to rows: out[t][c] = bias[c] + sum_k weight[k][c] in[t + k - (taps - 1)], taps in order; with its snake. */
struct th_cuda_first_job {
    int taps, width, rows;
    const float *weight, *bias; /* [taps][width], [width] */
    const float *in;            /* [rows] */
    const float *past;          /* [taps - 1] */
    float *kept;                /* [taps - 1] */
    float *out, *snaked;        /* [rows][width] */
    int split;                  /* as in th_cuda_conv_job */
    const float *alpha, *inverse;
};
cudaError_t th_cuda_codec_first(const struct th_cuda_launch *launch, const struct th_cuda_first_job *job);

/* Rows to samples: out[t] = tanh(bias + sum over (16 inputs, tap, input)). */
struct th_cuda_last_job {
    int taps, width, rows;
    const float *weight; /* [taps][width] */
    const float *bias;   /* [1] */
    const float *in;     /* [rows][width] */
    const float *past;   /* [taps - 1][width] */
    float *kept;         /* [taps - 1][width] */
    float *out;          /* [rows] */
};
cudaError_t th_cuda_codec_last(const struct th_cuda_launch *launch, const struct th_cuda_last_job *job);

/* ---- codec_rows.cu ----------------------------------------------------------------------------------------------------------- */

/* out = RMS norm of in (eps 1e-5); then, when alpha is there, its snake. */
struct th_cuda_rms_job {
    int rows, width;
    const float *in, *weight;
    float *out; /* may be `in` */
    const float *alpha, *inverse;
};
cudaError_t th_cuda_codec_rms(const struct th_cuda_launch *launch, const struct th_cuda_rms_job *job);

/* out = layer norm (eps 1e-6) of the depthwise convolution of `in` over time, taps in order. */
struct th_cuda_depthwise_job {
    int rows, width, taps;
    const float *in;                      /* [rows][width] */
    const float *past;                    /* [taps - 1][width] */
    float *kept;                          /* [taps - 1][width] */
    const float *weight, *bias;           /* [taps][width], [width] */
    const float *norm_weight, *norm_bias; /* [width] */
    float *out;                           /* [rows][width] */
};
cudaError_t th_cuda_codec_depthwise(const struct th_cuda_launch *launch, const struct th_cuda_depthwise_job *job);

/* One codebook. */
struct th_cuda_book {
    int entries;
    const float *codebook;            /* [entries][vector] */
    const float *out_weight;          /* [vector][latent] */
    const float *out_bias;            /* [latent] */
    const float *in_weight, *in_bias; /* [vector][latent], [vector]; NULL without the encoder */
    const float *unit, *unit_square;  /* [vector][entries]: rows of length 1; [entries]: their squared lengths */
};

/* out = q_0 + (q_1 + ... + q_last), q_i = out_bias + out_weight (row of the code), values of the row in order. */
struct th_cuda_lookup_job {
    int frames, books, vector, latent;
    const struct th_cuda_book *book; /* [books] on the device */
    const int32_t *codes;            /* [frames][books], within each book */
    float *out;                      /* [frames][latent] */
};
cudaError_t th_cuda_codec_lookup(const struct th_cuda_launch *launch, const struct th_cuda_lookup_job *job);

/* Codes of latent rows: the nearest by angle, the lowest of equals; its projection is taken off before the next book. */
struct th_cuda_search_job {
    int frames, books, vector, latent;
    const struct th_cuda_book *book; /* [books] on the device */
    const float *in;                 /* [frames][latent] */
    int32_t *codes;                  /* [frames][books] */
};
cudaError_t th_cuda_codec_search(const struct th_cuda_launch *launch, const struct th_cuda_search_job *job);

/* ---- codec_attention.cu ------------------------------------------------------------------------------------------------------ */

/* cosine, sine [rows][32] of rows position..: (float)position * frequency in float, cos and sin in double, rounded to float and
 * then to bf16. */
struct th_cuda_angles_job {
    int rows;
    int64_t position;
    const float *frequency; /* [32] */
    float *cosine, *sine;
};
cudaError_t th_cuda_codec_angles(const struct th_cuda_launch *launch, const struct th_cuda_angles_job *job);

/* First the keys (turned) and values of all rows go to the ring, position p to slot p mod slots; then each row looks at positions
 * max(0, p - window + 1) .. p, counted from that first one. slots >= window + rows - 1, so that no row's key is overwritten before
 * it was used. */
struct th_cuda_attention_job {
    int rows, heads, window, slots;
    int64_t position; /* of the first row */
    const float *qkv; /* [rows][3][heads][64] */
    const float *cosine, *sine;
    float *keys, *values; /* [heads][slots][64] */
    float *out;           /* [rows][heads][64] */
};
cudaError_t th_cuda_codec_attention(const struct th_cuda_launch *launch, const struct th_cuda_attention_job *job);

/* ---- codec_pack.cu ----------------------------------------------------------------------------------------------------------- */

enum th_cuda_pack_kind {
    TH_CUDA_PACK_PLAIN,      /* source [out][in][kernel], taps = kernel; matrices too (kernel 1) */
    TH_CUDA_PACK_TRANSPOSED, /* source [in][out][kernel], kernel = taps * stride: row = (phase, output) */
    TH_CUDA_PACK_STRIDED,    /* source [out][in][kernel], kernel = taps * stride: input = (phase, channel) */
    TH_CUDA_PACK_GATED       /* two sources [out][in]: rows in fours, two of the first, two of the second */
};
struct th_cuda_pack_job {
    enum th_cuda_pack_kind kind;
    struct th_cuda_conv conv;     /* where to; conv.weight is written */
    int in, out, kernel, stride;  /* of the source */
    int in_width, out_width;      /* in, out rounded up to 16 */
    const float *source, *second; /* on the device */
};
cudaError_t th_cuda_codec_pack(const struct th_cuda_launch *launch, const struct th_cuda_pack_job *job);

#ifdef __cplusplus
}
#endif

#endif
