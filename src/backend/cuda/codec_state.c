/* codec_state.c - work space, streams and encodings: each one block of floats on the device, carved by a walk that is made once to
 * count and once to assign. */
#include "backend/cuda/codec.h"

float *th_cuda_carve(struct th_cuda_carver *carver, size_t count, size_t size)
{
    size_t floats;
    if (__builtin_mul_overflow(count, size, &floats) || floats > SIZE_MAX / 16 || carver->used > SIZE_MAX / 16) {
        carver->overflow = 1;
        return NULL;
    }
    float *piece = carver->memory == NULL ? NULL : carver->memory + carver->used;
    carver->used += (floats + 63) / 64 * 64;
    return piece;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* ---- work space ---------------------------------------------------------------------------------------------------------------
 */

static size_t transformer_width(const struct th_codec_transformer *transformer)
{
    return larger(3 * (size_t)transformer->dim, (size_t)th_cuda_codec_padded(transformer->inner));
}

static size_t widest(const struct th_codec *codec)
{
    size_t width = 4 * (size_t)codec->latent;
    if (codec->has_decoder) width = larger(width, transformer_width(&codec->decoder.post));
    if (!codec->has_encoder) return width;
    return larger(width, larger(transformer_width(&codec->encoder.transformer), transformer_width(&codec->encoder.pre)));
}

/* Floats a frame of the largest signal. */
static size_t largest_signal(const struct th_codec *codec)
{
    size_t most = 0, rows = 4;
    for (int b = 0; b < TH_CODEC_BLOCKS && codec->has_decoder; b++) {
        const struct th_conv *conv = &codec->decoder.blocks[b].conv;
        most = larger(most, rows * (size_t)th_cuda_codec_padded(conv->in));
        rows *= (size_t)conv->stride;
        most = larger(most, rows * (size_t)th_cuda_codec_padded(conv->out));
    }
    rows = TH_CUDA_CODEC_FRAME;
    for (int b = 0; b < TH_CODEC_BLOCKS && codec->has_encoder; b++) {
        const struct th_conv *conv = &codec->encoder.blocks[b].conv;
        most = larger(most, rows * (size_t)th_cuda_codec_padded(conv->in));
        rows /= (size_t)conv->stride;
    }
    return most;
}

static void carve_work(const struct th_codec *source, struct th_cuda_carver *carver, struct th_cuda_codec_work *work)
{
    const size_t frames = TH_CUDA_CODEC_FRAMES, rows = 4 * frames, latent = (size_t)source->latent;
    const size_t signal = largest_signal(source);
    work->latent = th_cuda_carve(carver, rows, latent);
    work->other = th_cuda_carve(carver, rows, latent);
    work->normed = th_cuda_carve(carver, rows, latent);
    work->attended = th_cuda_carve(carver, rows, latent);
    work->wide = th_cuda_carve(carver, rows, widest(source));
    work->cosine = th_cuda_carve(carver, rows, TH_CUDA_CODEC_HEAD / 2);
    work->sine = th_cuda_carve(carver, rows, TH_CUDA_CODEC_HEAD / 2);
    work->x = th_cuda_carve(carver, frames, signal);
    work->a = th_cuda_carve(carver, frames, signal);
    work->b = th_cuda_carve(carver, frames, signal);
    work->samples = th_cuda_carve(carver, frames, TH_CUDA_CODEC_FRAME);
    work->codes = (int32_t *)th_cuda_carve(carver, frames, (size_t)source->books);
}

size_t th_cuda_codec_work_floats(const struct th_cuda_codec *codec)
{
    struct th_cuda_codec_work work;
    struct th_cuda_carver carver = {0};
    carve_work(codec->source, &carver, &work);
    return carver.used;
}

void th_cuda_codec_work_assign(struct th_cuda_codec *codec)
{
    struct th_cuda_carver carver = {.memory = codec->work.memory};
    carve_work(codec->source, &carver, &codec->work);
}

/* ---- state --------------------------------------------------------------------------------------------------------------------
 */

static void carve_past(struct th_cuda_carver *carver, int rows, int width, struct th_cuda_past *past)
{
    for (int side = 0; side < 2; side++) past->side[side] = th_cuda_carve(carver, (size_t)rows, (size_t)width);
}

static void carve_conv_past(struct th_cuda_carver *carver, const struct th_cuda_conv *conv, struct th_cuda_past *past)
{
    carve_past(carver, (conv->taps - 1) * conv->step, conv->inputs, past);
}

static void carve_ring(struct th_cuda_carver *carver, const struct th_cuda_transformer *transformer, struct th_cuda_ring *ring)
{
    const size_t rows = (size_t)transformer->layers * (size_t)transformer->slots;
    const size_t width = (size_t)transformer->heads * TH_CUDA_CODEC_HEAD;
    ring->keys = th_cuda_carve(carver, rows, width);
    ring->values = th_cuda_carve(carver, rows, width);
}

static void carve_stream(const struct th_cuda_codec *codec, struct th_cuda_carver *carver, struct th_cuda_codec_stream *stream)
{
    const struct th_cuda_decoder *decoder = &codec->decoder;
    carve_ring(carver, &decoder->post, &stream->post);
    for (int i = 0; i < TH_CODEC_STAGES; i++)
        carve_past(carver, decoder->up_next[i].taps - 1, codec->source->latent, &stream->next[i]);
    carve_conv_past(carver, &decoder->first, &stream->first);
    for (int b = 0; b < TH_CODEC_BLOCKS; b++) {
        carve_conv_past(carver, &decoder->conv[b], &stream->conv[b]);
        for (int u = 0; u < 3; u++) carve_conv_past(carver, &decoder->unit[b][u].dilated, &stream->unit[b][u]);
    }
    carve_past(carver, decoder->last_taps - 1, decoder->last_width, &stream->last);
}

static void carve_encoding(const struct th_cuda_codec *codec, struct th_cuda_carver *carver, struct th_cuda_encoding *encoding)
{
    const struct th_cuda_encoder *encoder = &codec->encoder;
    carve_past(carver, encoder->first_taps - 1, 1, &encoding->first);
    for (int b = 0; b < TH_CODEC_BLOCKS; b++) {
        for (int u = 0; u < 3; u++) carve_conv_past(carver, &encoder->unit[b][u].dilated, &encoding->unit[b][u]);
        carve_conv_past(carver, &encoder->conv[b], &encoding->conv[b]);
    }
    carve_ring(carver, &encoder->inner, &encoding->inner);
    carve_conv_past(carver, &encoder->last, &encoding->last);
    for (int i = 0; i < TH_CODEC_STAGES; i++)
        carve_past(carver, encoder->down_next[i].taps - 1, codec->source->latent, &encoding->next[i]);
    carve_ring(carver, &encoder->pre, &encoding->pre);
}

/* floats of device memory, zeroed on the codec's stream. */
static thespis_status make_state(const struct th_cuda_codec *codec, const struct th_cuda_carver *counted, const char *what,
                                 float **memory, thespis_error *error)
{
    if (counted->overflow) return th_fail_memory(error, what, SIZE_MAX);
    TH_CUDA(cudaMalloc((void **)memory, counted->used * sizeof(float)), what, error);
    thespis_status status =
        th_cuda_status(cudaMemsetAsync(*memory, 0, counted->used * sizeof(float), codec->launch.stream), what, error);
    if (status == THESPIS_OK) return status;
    cudaFree(*memory);
    *memory = NULL;
    return status;
}

thespis_status th_cuda_codec_stream_make(const struct th_cuda_codec *codec, struct th_cuda_codec_stream *stream,
                                         thespis_error *error)
{
    struct th_cuda_carver carver = {0};
    carve_stream(codec, &carver, stream);
    stream->floats = carver.used;
    TH_TRY(make_state(codec, &carver, "memory for a codec stream", &stream->memory, error));
    carver = (struct th_cuda_carver){.memory = stream->memory};
    carve_stream(codec, &carver, stream);
    return THESPIS_OK;
}

thespis_status th_cuda_encoding_make(const struct th_cuda_codec *codec, struct th_cuda_encoding *encoding, thespis_error *error)
{
    struct th_cuda_carver carver = {0};
    carve_encoding(codec, &carver, encoding);
    encoding->floats = carver.used;
    TH_TRY(make_state(codec, &carver, "memory for an encoding", &encoding->memory, error));
    carver = (struct th_cuda_carver){.memory = encoding->memory};
    carve_encoding(codec, &carver, encoding);
    return THESPIS_OK;
}
