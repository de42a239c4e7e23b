/* codec.h - the codec on a device: packed weights, the state of a stream, and the parts its files share.
 *
 * Everything is rows (codec_kernels.h). The state of a stream is, for each layer that looks back, the rows before the window,
 * twice: a window reads one copy and writes the other, and only when all went well the two change places. So a window that failed
 * leaves the stream as it was. Beside that the rings of keys and values, and the position. */
#ifndef THESPIS_BACKEND_CUDA_CODEC_H
#define THESPIS_BACKEND_CUDA_CODEC_H

#include "backend/cuda/codec_kernels.h"
#include "backend/cuda/cuda.h"

#define TH_CUDA_CODEC_FRAME 2048       /* samples */
#define TH_CUDA_CODEC_POSITIONS 327680 /* rows of the reference's rotation table */
#define TH_CUDA_CODEC_FRAMES 64        /* most frames of a window, of decoding and of encoding */

/* ---- weights ------------------------------------------------------------------------------------------------------------------
 */

struct th_cuda_snake {
    const float *alpha, *inverse; /* [width of the layer that writes it] */
};

struct th_cuda_unit {
    struct th_cuda_snake snake1, snake2;
    struct th_cuda_conv dilated, pointwise;
};

/* x + gamma * (W2 gelu(W1 norm(depthwise(x)) + b1) + b2) */
struct th_cuda_next {
    int taps;
    const float *weight, *bias, *norm_weight, *norm_bias, *gamma;
    struct th_cuda_conv inner, outer;
};

struct th_cuda_codec_layer {
    const float *attention_norm, *ffn_norm, *attention_scale, *ffn_scale;
    struct th_cuda_conv qkv, out, gated, down;
};

struct th_cuda_transformer {
    int layers, heads, window, slots;  /* slots of a ring: window + rows of the largest piece */
    struct th_cuda_codec_layer *layer; /* [layers], host */
    const float *norm;
};

struct th_cuda_decoder {
    struct th_cuda_transformer post;
    struct th_cuda_conv up[TH_CODEC_STAGES];
    struct th_cuda_next up_next[TH_CODEC_STAGES];
    struct th_cuda_conv first;
    struct th_cuda_snake snake[TH_CODEC_BLOCKS]; /* in front of conv */
    struct th_cuda_conv conv[TH_CODEC_BLOCKS];
    struct th_cuda_snake spread[TH_CODEC_BLOCKS]; /* unit[0].snake1 over all phases of conv's output */
    struct th_cuda_unit unit[TH_CODEC_BLOCKS][3];
    struct th_cuda_snake last_snake;
    int last_taps, last_width;
    const float *last_weight, *last_bias;
};

struct th_cuda_encoder {
    int first_taps, first_width;
    const float *first_weight, *first_bias;
    struct th_cuda_unit unit[TH_CODEC_BLOCKS][3];
    struct th_cuda_snake snake[TH_CODEC_BLOCKS];
    struct th_cuda_conv conv[TH_CODEC_BLOCKS];
    struct th_cuda_transformer inner, pre;
    struct th_cuda_snake last_snake;
    struct th_cuda_conv last, down[TH_CODEC_STAGES];
    struct th_cuda_next down_next[TH_CODEC_STAGES];
};

/* ---- work space and state -----------------------------------------------------------------------------------------------------
 */

/* Hands out pieces of one block of floats: with memory NULL it only counts, so that the same walk measures and assigns. */
struct th_cuda_carver {
    float *memory;
    size_t used; /* floats; a multiple of 64 */
    int overflow;
};
float *th_cuda_carve(struct th_cuda_carver *carver, size_t count, size_t size);

/* Buffers of a window, used by decoding and encoding in turn. */
struct th_cuda_codec_work {
    float *memory;
    size_t floats;
    float *latent, *other, *normed, *attended; /* [4 * frames][D] */
    float *wide;                               /* [4 * frames][the widest layer inside a transformer or ConvNeXt] */
    float *cosine, *sine;                      /* [4 * frames][32] */
    float *x, *a, *b;                          /* a signal: the residual stream, snake of it, what lies inside a unit */
    float *samples;                            /* [frames * 2048] */
    int32_t *codes;                            /* [frames][books] */
};

/* The rows before a window, in two copies. */
struct th_cuda_past {
    float *side[2];
};

struct th_cuda_ring {
    float *keys, *values; /* [layers][heads][slots][64] */
};

/* A th_codec_stream of this backend. */
struct th_cuda_codec_stream {
    int64_t position; /* frames decoded */
    int side;         /* the copy to be read next */
    float *memory;    /* all below: device, zero at first */
    size_t floats;
    struct th_cuda_ring post;
    struct th_cuda_past next[TH_CODEC_STAGES], first, conv[TH_CODEC_BLOCKS], unit[TH_CODEC_BLOCKS][3], last;
};

/* What an encoding in progress carries from block to block. */
struct th_cuda_encoding {
    int64_t position;
    int side;
    float *memory;
    size_t floats;
    struct th_cuda_past first, unit[TH_CODEC_BLOCKS][3], conv[TH_CODEC_BLOCKS], last, next[TH_CODEC_STAGES];
    struct th_cuda_ring inner, pre;
};

struct th_cuda_codec {
    const struct th_codec *source;
    struct th_cuda_launch launch;
    int processors;
    int plain;     /* 1: no layer is split for the tensor cores */
    float *packed; /* device: all weights in one block */
    size_t packed_floats;
    struct th_cuda_codec_layer *layers; /* host: of all transformers */
    const struct th_cuda_book *books;   /* device */
    const float *frequency;             /* device [32] */
    struct th_cuda_decoder decoder;
    struct th_cuda_encoder encoder;
    struct th_cuda_codec_work work;
    float *host_samples; /* pinned [frames * 2048] */
    int32_t *host_codes; /* pinned [frames][books] */
};

static inline int th_cuda_codec_padded(int channels)
{
    return (channels + 15) / 16 * 16;
}

/* ---- codec_weights.c -----------------------------------------------------------------------------------------------------------
 */

/* Refuses what the kernels lack by name, then fills codec->packed, decoder, encoder, books. */
thespis_status th_cuda_codec_load(struct th_cuda_codec *codec, thespis_error *error);

/* ---- codec_state.c -------------------------------------------------------------------------------------------------------------
 */

/* Floats of the work space; the pieces of work->memory. */
size_t th_cuda_codec_work_floats(const struct th_cuda_codec *codec);
void th_cuda_codec_work_assign(struct th_cuda_codec *codec);
/* Device memory of a stream or an encoding, its pieces, and zeros in them. */
thespis_status th_cuda_codec_stream_make(const struct th_cuda_codec *codec, struct th_cuda_codec_stream *stream,
                                         thespis_error *error);
thespis_status th_cuda_encoding_make(const struct th_cuda_codec *codec, struct th_cuda_encoding *encoding, thespis_error *error);

/* ---- codec_parts.c: what decoding and encoding share. A position is that of the first row. -------------------------------------
 */

struct th_cuda_conv_job th_cuda_conv_plain(const struct th_cuda_conv *conv, int rows, const float *in, float *out);
void th_cuda_conv_past(struct th_cuda_conv_job *job, const struct th_cuda_past *past, int side);
/* `next` reads it, in the form it wants. */
void th_cuda_conv_snake(struct th_cuda_conv_job *job, const struct th_cuda_snake *snake, float *snaked,
                        const struct th_cuda_conv *next);
cudaError_t th_cuda_run_conv(const struct th_cuda_codec *codec, const struct th_cuda_conv_job *job);
/* x [rows][D] in place. `after`, when it is there: snake of the result in its stead. */
cudaError_t th_cuda_run_transformer(const struct th_cuda_codec *codec, const struct th_cuda_transformer *transformer,
                                    const struct th_cuda_ring *ring, float *x, int rows, int64_t position,
                                    const struct th_cuda_snake *after);
/* x [rows][D] in place. */
cudaError_t th_cuda_run_next(const struct th_cuda_codec *codec, const struct th_cuda_next *next, const struct th_cuda_past *past,
                             int side, float *x, int rows);
/* Work x: residual stream, work a: snake1 of it. After the last unit a is `after` of the stream, as `next` wants it (NULL: plain),
 * and x is not kept. */
cudaError_t th_cuda_run_units(const struct th_cuda_codec *codec, const struct th_cuda_unit *units, const struct th_cuda_past *past,
                              int side, const struct th_cuda_snake *after, const struct th_cuda_conv *next, int rows);

/* ---- codec_decode.c, codec_encode.c --------------------------------------------------------------------------------------------
 */

/* work->codes to work->samples; the stream's position and side stay as they are. */
cudaError_t th_cuda_codec_run_decode(struct th_cuda_codec *codec, const struct th_cuda_codec_stream *stream, int frames);
/* work->samples to work->codes, the same. */
cudaError_t th_cuda_codec_run_encode(struct th_cuda_codec *codec, const struct th_cuda_encoding *encoding, int frames);

#endif
