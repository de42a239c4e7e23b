/* cpu_codec_state.c - work space, stream state and encoding state: each one block of floats, carved by a walk that is made once to
 * count and once to assign. */
#include <string.h>

#include "backend/cpu/codec.h"
#include "base/memory.h"

static int larger(int a, int b)
{
    return a > b ? a : b;
}

static size_t larger_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* ---- work space -------------------------------------------------------------------------------------------------------------- */

struct row_sizes {
    int wide, scores;
};

static void add_transformer(struct row_sizes *sizes, const struct th_codec_transformer *transformer)
{
    sizes->wide = larger(sizes->wide, larger(3 * transformer->dim, transformer->inner));
    sizes->scores = larger(sizes->scores, transformer->heads * ((transformer->window + 15) / 16 * 16));
}

static struct row_sizes row_sizes_of(const struct th_codec *codec, int encoding)
{
    struct row_sizes sizes = {4 * codec->latent, 0};
    if (encoding) {
        add_transformer(&sizes, &codec->encoder.transformer);
        add_transformer(&sizes, &codec->encoder.pre);
    } else {
        add_transformer(&sizes, &codec->decoder.post);
    }
    return sizes;
}

/* Floats of the largest signal of a piece. */
static size_t decode_signal(const struct th_cpu_codec *codec, int piece)
{
    size_t most = th_signal_floats(1, TH_CODEC_FRAME * piece);
    for (int b = 0; b < TH_CODEC_BLOCKS; b++)
        most = larger_size(most, th_signal_floats(codec->source->decoder.blocks[b].conv.out, codec->rates[b] * piece));
    return most;
}

static size_t encode_signal(const struct th_codec *codec, int frames)
{
    int columns = TH_CODEC_FRAME * frames;
    size_t most = 0;
    for (int b = 0; b < TH_CODEC_BLOCKS; b++) {
        const struct th_conv *conv = &codec->encoder.blocks[b].conv;
        most = larger_size(most, th_signal_floats(conv->in, columns));
        columns /= conv->stride;
        most = larger_size(most, th_signal_floats(conv->in * conv->stride, columns)); /* split into phases */
    }
    return larger_size(most, th_signal_floats(codec->latent, columns));
}

static void carve_signal(struct th_carver *carver, struct th_signal *signal, size_t floats)
{
    signal->floats = floats;
    signal->data = th_carve(carver, floats, 1);
}

static void carve_work(struct th_carver *carver, const struct th_cpu_codec *codec, int encoding, struct th_codec_work *work)
{
    const struct th_codec *source = codec->source;
    const struct row_sizes sizes = row_sizes_of(source, encoding);
    const size_t rows = 4 * (size_t)work->frames, latent = (size_t)source->latent, piece = (size_t)work->piece;
    work->latent = th_carve(carver, rows, latent);
    work->other = th_carve(carver, rows, latent);
    work->normed = th_carve(carver, rows, latent);
    work->attended = th_carve(carver, rows, latent);
    work->wide = th_carve(carver, rows, (size_t)sizes.wide);
    work->scores = th_carve(carver, (size_t)sizes.scores, 1);
    work->cosine = th_carve(carver, rows, TH_CODEC_HEAD_DIM / 2);
    work->sine = th_carve(carver, rows, TH_CODEC_HEAD_DIM / 2);
    work->context = th_carve(carver, rows + TH_CODEC_PAST, latent);
    if (!encoding) {
        const struct th_codec_block *block = &source->decoder.blocks[0];
        work->head = th_carve(carver, 4 * piece, (size_t)block->conv.in);
        work->head_snake = th_carve(carver, 1 + 4 * piece, (size_t)block->conv.in);
        work->spread = th_carve(carver, (size_t)codec->rates[0] * piece, (size_t)block->conv.out);
        work->codes = (int32_t *)th_carve(carver, (size_t)work->frames, (size_t)source->books);
    }
    size_t signal = encoding ? encode_signal(source, work->piece) : decode_signal(codec, work->piece);
    carve_signal(carver, &work->x, signal);
    carve_signal(carver, &work->a, signal);
    carve_signal(carver, &work->b, signal);
}

/* Frames whose largest signal has about 2 MiB: few calls, and the second cache still helps. */
static int piece_frames(size_t floats_a_frame, int most)
{
    size_t frames = ((size_t)1 << 19) / floats_a_frame;
    return frames < 1 ? 1 : frames > (size_t)most ? most : (int)frames;
}

thespis_status th_codec_work_open(const struct th_cpu_codec *codec, int encoding, int frames, struct th_codec_work *work,
                                  thespis_error *error)
{
    *work = (struct th_codec_work){.frames = frames, .piece = frames};
    if (!encoding) work->piece = piece_frames(decode_signal(codec, 1), 16);
    struct th_carver carver = {NULL, 0, 0};
    carve_work(&carver, codec, encoding, work);
    if (carver.overflow) return th_fail_memory(error, "the codec's work space", SIZE_MAX);
    TH_TRY(TH_ALLOC(&work->memory, carver.used, "the codec's work space", error));
    work->bytes = carver.used * sizeof(float);
    carver = (struct th_carver){work->memory, 0, 0};
    carve_work(&carver, codec, encoding, work);
    return THESPIS_OK;
}

void th_codec_work_close(struct th_codec_work *work)
{
    th_free(work->memory);
    *work = (struct th_codec_work){0};
}

/* ---- state ------------------------------------------------------------------------------------------------------------------- */

static void carve_ring(struct th_carver *carver, const struct th_codec_transformer *transformer, struct th_ring *ring)
{
    size_t rows = (size_t)transformer->layers * (size_t)transformer->window;
    ring->keys = th_carve(carver, rows, (size_t)transformer->dim);
    ring->values = th_carve(carver, rows, (size_t)transformer->dim);
}

static void carve_units(struct th_carver *carver, const struct th_packed_unit *units, struct th_unit_state *state)
{
    for (int u = 0; u < 3; u++) state->context[u] = th_carve(carver, (size_t)units[u].dilated.in, (size_t)units[u].dilated.context);
}

static void carve_stream(struct th_carver *carver, const struct th_cpu_codec *codec, struct th_codec_stream *stream)
{
    const struct th_codec *source = codec->source;
    const size_t latent = (size_t)source->latent;
    carve_ring(carver, &source->decoder.post, &stream->post);
    for (int i = 0; i < TH_CODEC_STAGES; i++)
        stream->next[i] = th_carve(carver, (size_t)source->decoder.up_next[i].depthwise.kernel - 1, latent);
    stream->first = th_carve(carver, (size_t)source->decoder.first.kernel - 1, latent);
    stream->spread = th_carve(carver, (size_t)source->decoder.blocks[0].conv.in, 1);
    for (int b = 0; b < TH_CODEC_BLOCKS; b++) {
        if (b > 0) stream->conv[b] = th_carve(carver, (size_t)codec->decoder.conv[b].in, (size_t)codec->decoder.conv[b].context);
        carve_units(carver, codec->decoder.unit[b], &stream->unit[b]);
    }
    stream->last = th_carve(carver, (size_t)codec->decoder.last.in, (size_t)codec->decoder.last.context);
}

thespis_status th_codec_stream_open(const struct th_cpu_codec *codec, struct th_codec_stream **out, thespis_error *error)
{
    *out = NULL;
    struct th_codec_stream *stream;
    TH_TRY(TH_ALLOC(&stream, 1, "a codec stream", error));
    struct th_carver carver = {NULL, 0, 0};
    carve_stream(&carver, codec, stream);
    thespis_status status = carver.overflow ? th_fail_memory(error, "a codec stream", SIZE_MAX)
                                            : TH_ALLOC(&stream->memory, carver.used, "a codec stream", error);
    if (status != THESPIS_OK) {
        th_free(stream);
        return status;
    }
    stream->floats = carver.used;
    carver = (struct th_carver){stream->memory, 0, 0};
    carve_stream(&carver, codec, stream);
    *out = stream;
    return THESPIS_OK;
}

void th_codec_stream_reset(struct th_codec_stream *stream)
{
    memset(stream->memory, 0, stream->floats * sizeof(float));
    stream->position = 0;
}

void th_codec_stream_close(struct th_codec_stream *stream)
{
    if (stream == NULL) return;
    th_free(stream->memory);
    th_free(stream);
}

static void carve_encode(struct th_carver *carver, const struct th_cpu_codec *codec, struct th_encode_state *state)
{
    const struct th_codec_encoder *source = &codec->source->encoder;
    const size_t latent = (size_t)codec->source->latent;
    state->first = th_carve(carver, (size_t)codec->encoder.first.in, (size_t)codec->encoder.first.context);
    for (int b = 0; b < TH_CODEC_BLOCKS; b++) {
        carve_units(carver, codec->encoder.unit[b], &state->unit[b]);
        state->conv[b] = th_carve(carver, (size_t)codec->encoder.conv[b].in, (size_t)codec->encoder.conv[b].context);
    }
    carve_ring(carver, &source->transformer, &state->inner);
    carve_ring(carver, &source->pre, &state->pre);
    state->last = th_carve(carver, (size_t)source->last.kernel - 1, latent);
    for (int i = 0; i < TH_CODEC_STAGES; i++)
        state->next[i] = th_carve(carver, (size_t)source->down_next[i].depthwise.kernel - 1, latent);
}

thespis_status th_encode_state_open(const struct th_cpu_codec *codec, struct th_encode_state *state, thespis_error *error)
{
    *state = (struct th_encode_state){0};
    struct th_carver carver = {NULL, 0, 0};
    carve_encode(&carver, codec, state);
    if (carver.overflow) return th_fail_memory(error, "an encoding", SIZE_MAX);
    TH_TRY(TH_ALLOC(&state->memory, carver.used, "an encoding", error));
    state->floats = carver.used;
    carver = (struct th_carver){state->memory, 0, 0};
    carve_encode(&carver, codec, state);
    return THESPIS_OK;
}

void th_encode_state_close(struct th_encode_state *state)
{
    th_free(state->memory);
    *state = (struct th_encode_state){0};
}
