/* codec_jobs.c - encoding and decoding alone: voices, `thespis encode`, `thespis decode`. */
#include "engine/codec_jobs.h"

#include <math.h>
#include <string.h>

#include "audio/recording.h"
#include "base/memory.h"
#include "engine/engine.h"

struct thespis_decoder {
    thespis_engine *engine;
    struct th_codec_stream *stream;
};

static thespis_status check_samples(const float *samples, size_t count, thespis_error *error)
{
    if (count == 0) return th_fail(error, THESPIS_INVALID, "no audio: the recording has no samples");
    for (size_t i = 0; i < count; i++)
        if (!isfinite(samples[i])) return th_fail(error, THESPIS_INVALID, "sample %zu of the recording is not a finite number", i);
    return THESPIS_OK;
}

/* The backend's order is frame by frame, everybody else's codebook by codebook. */
static void to_codebook_major(const int32_t *in, int books, size_t frames, int32_t *out)
{
    for (size_t f = 0; f < frames; f++)
        for (int b = 0; b < books; b++) out[(size_t)b * frames + f] = in[f * (size_t)books + b];
}

thespis_status th_encode(thespis_engine *e, const float *samples, size_t count, int32_t **codes, size_t *frames,
                         thespis_error *error)
{
    *codes = NULL;
    *frames = 0;
    TH_TRY(check_samples(samples, count, error));
    size_t n = (count + THESPIS_FRAME_SAMPLES - 1) / THESPIS_FRAME_SAMPLES;
    int books = e->parts.codebooks;
    int32_t *by_frame = NULL, *by_book = NULL;
    thespis_status status = TH_ALLOC(&by_frame, n * (size_t)books, "codes", error);
    if (status == THESPIS_OK) status = TH_ALLOC(&by_book, n * (size_t)books, "codes", error);
    if (status == THESPIS_OK) {
        fenv_t callers;
        th_default_floats(&callers);
        pthread_mutex_lock(&e->encode_mutex);
        status = e->parts.backend->ops->codec_encode(e->parts.backend, samples, count, by_frame, e->progress, e->progress_context,
                                                     error);
        pthread_mutex_unlock(&e->encode_mutex);
        fesetenv(&callers);
    }
    if (status == THESPIS_OK) {
        to_codebook_major(by_frame, books, n, by_book);
        *codes = by_book;
        *frames = n;
        by_book = NULL;
    }
    th_free(by_frame);
    th_free(by_book);
    return status;
}

thespis_status thespis_encode_samples(thespis_engine *engine, const float *samples, size_t count, int32_t **codes, size_t *frames,
                                      thespis_error *error)
{
    return th_encode(engine, samples, count, codes, frames, error);
}

thespis_status thespis_encode_file(thespis_engine *engine, const char *path, double max_seconds, int32_t **codes, size_t *frames,
                                   thespis_error *error)
{
    struct th_recording recording;
    *codes = NULL;
    *frames = 0;
    fenv_t callers;
    th_default_floats(&callers);
    thespis_status status = th_recording_read_file(path, max_seconds, &recording, error);
    fesetenv(&callers);
    TH_TRY(status);
    status = th_encode(engine, recording.samples, recording.count, codes, frames, error);
    th_recording_free(&recording);
    return status;
}

void thespis_codes_free(int32_t *codes)
{
    th_free(codes);
}

thespis_status thespis_decoder_new(thespis_engine *engine, thespis_decoder **decoder, thespis_error *error)
{
    *decoder = NULL;
    thespis_decoder *d;
    TH_TRY(TH_ALLOC(&d, 1, "a decoder", error));
    d->engine = engine;
    thespis_status status = engine->parts.backend->ops->codec_open(engine->parts.backend, &d->stream, error);
    if (status != THESPIS_OK) {
        th_free(d);
        return status;
    }
    *decoder = d;
    return THESPIS_OK;
}

static thespis_status decode_window(thespis_decoder *d, const int32_t *codes, size_t stride, size_t first, int n, float *samples,
                                    thespis_error *error)
{
    struct th_backend *backend = d->engine->parts.backend;
    int books = d->engine->parts.codebooks;
    int32_t window[TH_DECODE_MAX_FRAMES * TH_CODEC_MAX_BOOKS];
    for (int f = 0; f < n; f++)
        for (int b = 0; b < books; b++) {
            int32_t code = codes[(size_t)b * stride + first + (size_t)f];
            if (code < 0)
                return th_fail(error, THESPIS_INVALID, "code %d of frame %zu in codebook %d must not be negative", (int)code,
                               first + (size_t)f, b);
            window[f * books + b] = code;
        }
    fenv_t callers;
    th_default_floats(&callers);
    pthread_mutex_lock(&d->engine->decode_mutex);
    thespis_status status = backend->ops->codec_decode(backend, d->stream, window, n, samples, error);
    pthread_mutex_unlock(&d->engine->decode_mutex);
    fesetenv(&callers);
    return status;
}

thespis_status thespis_decoder_push(thespis_decoder *decoder, const int32_t *codes, size_t stride, size_t first, size_t frames,
                                    float *samples, thespis_error *error)
{
    if (first > stride || frames > stride - first)
        return th_fail(error, THESPIS_INVALID, "frames %zu to %zu lie past the %zu given", first, first + frames, stride);
    for (size_t done = 0; done < frames;) {
        size_t left = frames - done;
        int n = left < TH_DECODE_MAX_FRAMES ? (int)left : TH_DECODE_MAX_FRAMES;
        TH_TRY(decode_window(decoder, codes, stride, first + done, n, samples + done * THESPIS_FRAME_SAMPLES, error));
        done += (size_t)n;
    }
    return THESPIS_OK;
}

void thespis_decoder_free(thespis_decoder *decoder)
{
    if (decoder == NULL) return;
    struct th_backend *backend = decoder->engine->parts.backend;
    backend->ops->codec_close(backend, decoder->stream);
    th_free(decoder);
}
