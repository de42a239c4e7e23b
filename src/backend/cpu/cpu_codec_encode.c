/* cpu_codec_encode.c - samples to codes: the encoder's blocks (signals), its transformer, downsampling, pre transformer and
 * codebooks (rows), a block of frames at a time with carried state, so that memory does not grow with the recording. */
#include <math.h>
#include <string.h>

#include "backend/cpu/codec.h"

/* The convolutional part: samples, zeros after the last, to work->latent [4 * frames][D]. */
static void encode_signal(struct th_cpu_codec *codec, struct th_encode_state *state, struct th_codec_work *work,
                          const float *samples, size_t count, int frames)
{
    const struct th_packed_encoder *encoder = &codec->encoder;
    const size_t whole = (size_t)frames * TH_CODEC_FRAME;
    th_signal_shape(&work->b, 1, frames * TH_CODEC_FRAME);
    memcpy(th_signal_start(&work->b), samples, count * sizeof(float));
    memset(th_signal_start(&work->b) + count, 0, (whole - count) * sizeof(float));
    struct th_conv_result first = {.out = &work->x, .snaked = &work->a, .snake = &encoder->unit[0][0].snake1};
    th_codec_run_conv(codec, &encoder->first, &work->b, state->first, &first);
    for (int b = 0; b < TH_CODEC_BLOCKS; b++) {
        th_codec_run_units(codec, encoder->unit[b], &state->unit[b], &encoder->snake[b], &work->x, &work->a, &work->b);
        const int phases = codec->source->encoder.blocks[b].conv.stride, channels = work->a.channels;
        th_signal_shape(&work->b, channels * phases, work->a.columns / phases);
        struct th_phases_job split = {.in = th_signal_start(&work->a),
                                      .in_stride = work->a.stride,
                                      .out = th_signal_start(&work->b),
                                      .out_stride = work->b.stride,
                                      .columns = work->b.columns,
                                      .phases = phases};
        th_codec_run(codec, codec->kernels->phases, &split, channels, 4.0 * work->a.columns);
        struct th_conv_result down = {.out = &work->x};
        if (b + 1 < TH_CODEC_BLOCKS) {
            down.snaked = &work->a;
            down.snake = &encoder->unit[b + 1][0].snake1;
        }
        th_codec_run_conv(codec, &encoder->conv[b], &work->b, state->conv[b], &down);
    }
    struct th_unturn_job turn = {
        .in = th_signal_start(&work->x), .in_stride = work->x.stride, .out = work->latent, .width = codec->source->latent};
    th_codec_run(codec, codec->kernels->unturn, &turn, 4 * frames, 4.0 * codec->source->latent);
}

/* work->latent [4 * frames][D] to the frames' latents, [frames][D] in work->other. */
static void encode_rows(struct th_cpu_codec *codec, struct th_encode_state *state, struct th_codec_work *work, int frames)
{
    const struct th_codec_encoder *source = &codec->source->encoder;
    const struct th_packed_encoder *encoder = &codec->encoder;
    const int latent = codec->source->latent, past = source->last.kernel - 1, rows = 4 * frames;
    th_codec_run_transformer(codec, &source->transformer, &state->inner, work, work->latent, rows, 4 * state->position);
    th_codec_run_snake_rows(codec, &encoder->last_snake, latent, work->latent, work->context + (size_t)past * (size_t)latent, rows);
    th_codec_carry_rows(state->last, work->context, past, rows, latent);
    th_codec_run_linear(codec, &encoder->last, work->context, (size_t)latent, rows, work->other);
    th_codec_run_linear(codec, &encoder->down[0], work->other, 2 * (size_t)latent, rows / 2, work->latent);
    th_codec_run_next(codec, &encoder->down_next[0], state->next[0], work, work->latent, rows / 2);
    th_codec_run_linear(codec, &encoder->down[1], work->latent, 2 * (size_t)latent, frames, work->other);
    th_codec_run_next(codec, &encoder->down_next[1], state->next[1], work, work->other, frames);
    th_codec_run_transformer(codec, &source->pre, &state->pre, work, work->other, frames, state->position);
}

static void encode_block(struct th_cpu_codec *codec, struct th_encode_state *state, struct th_codec_work *work,
                         const float *samples, size_t count, int frames, int32_t *codes)
{
    const struct th_codec *source = codec->source;
    encode_signal(codec, state, work, samples, count, frames);
    encode_rows(codec, state, work, frames);
    struct th_quantise_job quantise = {.books = codec->books,
                                       .count = source->books,
                                       .width = source->code_width,
                                       .latent = source->latent,
                                       .residual = work->other,
                                       .codes = codes};
    double search = (double)source->code_width * (2 * source->latent + source->book_entries[0]);
    th_codec_run(codec, codec->kernels->quantise, &quantise, frames, search * source->books);
    state->position += frames;
}

static thespis_status check_samples(const float *samples, size_t count, thespis_error *error)
{
    if (count == 0) return th_fail(error, THESPIS_INVALID, "the recording has no samples");
    size_t frames = (count - 1) / TH_CODEC_FRAME + 1;
    if (frames > TH_CODEC_POSITIONS / 4)
        return th_fail(error, THESPIS_LIMIT, "the recording has %zu frames, the codec takes at most %d", frames,
                       TH_CODEC_POSITIONS / 4);
    for (size_t i = 0; i < count; i++)
        if (!isfinite(samples[i])) return th_fail(error, THESPIS_INVALID, "sample %zu of the recording is not a finite number", i);
    return THESPIS_OK;
}

thespis_status th_codec_encode_all(struct th_cpu_codec *codec, const float *samples, size_t count, int32_t *codes,
                                   thespis_progress progress, void *context, thespis_error *error)
{
    TH_TRY(check_samples(samples, count, error));
    const size_t frames = (count - 1) / TH_CODEC_FRAME + 1;
    const int most = (size_t)codec->encode_frames < frames ? codec->encode_frames : (int)frames;
    struct th_encode_state state;
    struct th_codec_work work = {0};
    thespis_status status = th_encode_state_open(codec, &state, error);
    if (status == THESPIS_OK) status = th_codec_work_open(codec, 1, most, &work, error);
    for (size_t f = 0; status == THESPIS_OK && f < frames; f += (size_t)most) {
        const int n = frames - f < (size_t)most ? (int)(frames - f) : most;
        const size_t at = f * TH_CODEC_FRAME, whole = (size_t)n * TH_CODEC_FRAME;
        encode_block(codec, &state, &work, samples + at, count - at < whole ? count - at : whole, n,
                     codes + f * (size_t)codec->source->books);
        if (progress != NULL) progress(context, "encode", f + (size_t)n, frames);
    }
    th_codec_work_close(&work);
    th_encode_state_close(&state);
    return status;
}
