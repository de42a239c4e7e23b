/* codec.h - the codec on the CPU: packed weights, the state of a stream, and the parts its files share.
 *
 * Rate of a stage: columns a frame. Rows up to the decoder's first block (4 a frame) are [time][width]; from there to the last
 * sample they are signals, [channel][time]. A convolution's input holds its context, the columns before the chunk, in front of it;
 * the state of a stream is those contexts, the rings of keys and values, and the position. Nothing else passes from a chunk to the
 * next. */
#ifndef THESPIS_BACKEND_CPU_CODEC_H
#define THESPIS_BACKEND_CPU_CODEC_H

#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/codec.h"

#define TH_CODEC_FRAME 2048       /* samples */
#define TH_CODEC_POSITIONS 327680 /* rows of the reference's rotation table */
#define TH_CODEC_PAST 6           /* rows of context that a convolution over rows may need */
#define TH_CODEC_MARGIN 64        /* columns in front of a signal's first one, which hold the context of its consumer */

/* ---- packed weights ---------------------------------------------------------------------------------------------------------- */

/* A linear layer over rows whose weights had to be reordered. */
struct th_packed_linear {
    int inputs, outputs;
    float *weight; /* [outputs][inputs] */
    float *bias;   /* [outputs] */
};

struct th_packed_snake {
    const float *alpha; /* [channels], in the checkpoint */
    float *inverse;     /* [channels]: 1 / (alpha + 1e-9) */
};

struct th_packed_unit {
    struct th_packed_snake snake1, snake2;
    struct th_packed_conv dilated, pointwise;
};

struct th_packed_next {
    const struct th_convnext *source;
    float *depthwise; /* [kernel][D] */
};

struct th_packed_decoder {
    struct th_packed_linear up[TH_CODEC_STAGES]; /* D -> [2][D]: both phases of a transposed convolution */
    struct th_packed_next up_next[TH_CODEC_STAGES];
    struct th_packed_linear first; /* [7][D] -> channels of the first block */
    struct th_packed_snake snake[TH_CODEC_BLOCKS];
    struct th_packed_linear spread;              /* block 0: [2][channels] -> [stride][channels / 2] */
    struct th_packed_conv conv[TH_CODEC_BLOCKS]; /* blocks 1 and up; conv[0] is empty */
    struct th_packed_unit unit[TH_CODEC_BLOCKS][3];
    struct th_packed_snake last_snake;
    struct th_packed_conv last;
};

struct th_packed_encoder {
    struct th_packed_conv first;
    struct th_packed_unit unit[TH_CODEC_BLOCKS][3];
    struct th_packed_snake snake[TH_CODEC_BLOCKS];
    struct th_packed_conv conv[TH_CODEC_BLOCKS]; /* over (channel, phase): two taps */
    struct th_packed_snake last_snake;
    struct th_packed_linear last;                  /* [3][D] -> D */
    struct th_packed_linear down[TH_CODEC_STAGES]; /* [2][D] -> D */
    struct th_packed_next down_next[TH_CODEC_STAGES];
};

/* ---- work space and state ---------------------------------------------------------------------------------------------------- */

/* A signal being worked on: column 0 of channel c is data[c * stride + TH_CODEC_MARGIN]. */
struct th_signal {
    float *data;
    size_t floats; /* there */
    int channels, columns;
    size_t stride;
};

/* Buffers of a chunk. One set for decoding, made with the packed weights; one for encoding, made for each recording. */
struct th_codec_work {
    int frames; /* largest n of one call of the rows' part */
    int piece;  /* frames that the signals' part takes at a time */
    float *memory;
    size_t bytes;
    float *latent;            /* [4 * frames][D]: rows between stages, in turn with `other` */
    float *other;             /* [4 * frames][D] */
    float *normed;            /* [4 * frames][D] */
    float *wide;              /* [4 * frames][max(4D, 3D, inner)] */
    float *attended;          /* [4 * frames][D] */
    float *scores;            /* [heads][window rounded up to 16] */
    float *cosine, *sine;     /* [4 * frames][32] */
    float *context;           /* [TH_CODEC_PAST + 4 * frames][D]: input of a convolution over rows */
    float *head;              /* [4 * piece][channels of the first block] */
    float *head_snake;        /* [1 + 4 * piece][the same] */
    float *spread;            /* [rate of block 0 * piece][channels of its units] */
    int32_t *codes;           /* [frames][books], clamped */
    struct th_signal x, a, b; /* residual stream; snake of it; what lies between two convolutions of a unit */
};

/* Keys and values of a transformer. */
struct th_ring {
    float *keys, *values; /* [layers][heads][window][64] */
};

/* Contexts of a chain of residual units. */
struct th_unit_state {
    float *context[3]; /* [channels][(kernel - 1) * dilation] */
};

struct th_codec_stream {
    int64_t position; /* frames decoded */
    float *memory;    /* all below, zeroed by a reset */
    size_t floats;
    struct th_ring post;
    float *next[TH_CODEC_STAGES]; /* [6][D]: inputs of the depthwise convolutions */
    float *first;                 /* [6][D] */
    float *spread;                /* [1][channels of the first block] */
    float *conv[TH_CODEC_BLOCKS]; /* [channels][1]; conv[0] is empty */
    struct th_unit_state unit[TH_CODEC_BLOCKS];
    float *last; /* [channels][6] */
};

/* What an encoding in progress carries from block to block. */
struct th_encode_state {
    int64_t position; /* frames encoded */
    float *memory;
    size_t floats;
    float *first; /* [1][6] */
    struct th_unit_state unit[TH_CODEC_BLOCKS];
    float *conv[TH_CODEC_BLOCKS]; /* [channels * stride][1] */
    struct th_ring inner, pre;
    float *last;                  /* [2][D] */
    float *next[TH_CODEC_STAGES]; /* [6][D] */
};

struct th_cpu_codec {
    const struct th_codec *source;
    const struct th_codec_kernels *kernels;
    struct th_pool *pool;
    struct th_packed_book *books; /* [books] */
    struct th_packed_decoder decoder;
    struct th_packed_encoder encoder;
    int rates[TH_CODEC_BLOCKS]; /* columns a frame after each block of the decoder */
    float *packed;              /* all packed weights in one block */
    size_t packed_floats;
    struct th_codec_work work; /* for decoding */
    int encode_frames;         /* frames of one block of an encoding; changes no code */
};

/* Hands out pieces of one block: with memory NULL it only counts, so that the same walk measures and assigns. */
struct th_carver {
    float *memory;
    size_t used; /* floats; a multiple of 16 */
    int overflow;
};
float *th_carve(struct th_carver *carver, size_t count, size_t size);

/* ---- cpu_codec_pack.c -------------------------------------------------------------------------------------------------------- */

thespis_status th_codec_pack(struct th_cpu_codec *codec, thespis_error *error);

/* ---- cpu_codec_conv.c: signals ----------------------------------------------------------------------------------------------- */

/* Floats that a signal of this shape takes. */
size_t th_signal_floats(int channels, int columns);
void th_signal_shape(struct th_signal *signal, int channels, int columns);
static inline float *th_signal_start(const struct th_signal *signal)
{
    return signal->data + TH_CODEC_MARGIN;
}

/* Where a convolution's result goes; all but `out` and `snake` may be left out, and one of those. */
struct th_conv_result {
    const struct th_signal *residual;
    struct th_signal *out;
    struct th_signal *snaked;
    const struct th_packed_snake *snake;
};
/* Puts the carried columns in front of `in`, convolves, and keeps the last columns for the next chunk. `context` may be NULL when
 * the convolution needs none. Results are shaped here. */
void th_codec_run_conv(const struct th_cpu_codec *codec, const struct th_packed_conv *conv, struct th_signal *in, float *context,
                       const struct th_conv_result *result);
/* x: residual stream, a: snake1 of it. After the last unit a is `after` of the stream. b is scratch. */
void th_codec_run_units(const struct th_cpu_codec *codec, const struct th_packed_unit *units, struct th_unit_state *state,
                        const struct th_packed_snake *after, struct th_signal *x, struct th_signal *a, struct th_signal *b);

/* ---- cpu_codec_rows.c: rows -------------------------------------------------------------------------------------------------- */

void th_codec_run_linear(const struct th_cpu_codec *codec, const struct th_packed_linear *linear, const float *in, size_t in_stride,
                         int rows, float *out);
/* x [rows][dim] in place. `position` of the first row. */
void th_codec_run_transformer(const struct th_cpu_codec *codec, const struct th_codec_transformer *transformer,
                              struct th_ring *ring, struct th_codec_work *work, float *x, int rows, int64_t position);
/* x [rows][D] in place; carried [6][D]. */
void th_codec_run_next(const struct th_cpu_codec *codec, const struct th_packed_next *next, float *carried,
                       struct th_codec_work *work, float *x, int rows);
void th_codec_run_snake_rows(const struct th_cpu_codec *codec, const struct th_packed_snake *snake, int width, const float *in,
                             float *out, int rows);
/* buffer [count + rows][width]: puts `carried` [count][width] in front, and back there the last `count` rows. */
void th_codec_carry_rows(float *carried, float *buffer, int count, int rows, int width);
/* Runs `items` of a kernel, each worth `products` multiply-adds, in pieces worth a thread's while. */
void th_codec_run(const struct th_cpu_codec *codec, void (*kernel)(void *, int, int), void *job, int items, double products);

/* ---- cpu_codec_state.c: who owns which floats -------------------------------------------------------------------------------- */

thespis_status th_codec_work_open(const struct th_cpu_codec *codec, int encoding, int frames, struct th_codec_work *work,
                                  thespis_error *error);
void th_codec_work_close(struct th_codec_work *work);
thespis_status th_codec_stream_open(const struct th_cpu_codec *codec, struct th_codec_stream **stream, thespis_error *error);
void th_codec_stream_reset(struct th_codec_stream *stream);
void th_codec_stream_close(struct th_codec_stream *stream);
thespis_status th_encode_state_open(const struct th_cpu_codec *codec, struct th_encode_state *state, thespis_error *error);
void th_encode_state_close(struct th_encode_state *state);

/* ---- cpu_codec_decode.c, cpu_codec_encode.c ---------------------------------------------------------------------------------- */

/* codes [frames][books], checked and clamped, in work->codes. */
void th_codec_decode_chunk(struct th_cpu_codec *codec, struct th_codec_stream *stream, int frames, float *samples);
thespis_status th_codec_encode_all(struct th_cpu_codec *codec, const float *samples, size_t count, int32_t *codes,
                                   thespis_progress progress, void *context, thespis_error *error);

#endif
