/* codec_entries.c - the codec's entries of the backend: what may be asked, the life of weights and streams, what passes between
 * host and device. The codec has a stream of its own, behind that of the language model. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/codec.h"
#include "base/memory.h"

/* ---- life ---------------------------------------------------------------------------------------------------------------------
 */

static thespis_status prepare(struct th_cuda *cuda, struct th_cuda_codec *codec, thespis_error *error)
{
    int least = 0, greatest = 0;
    TH_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest), "the codec's stream", error);
    TH_CUDA(cudaStreamCreateWithPriority(&codec->launch.stream, cudaStreamNonBlocking, least), "the codec's stream", error);
    codec->launch.early = 0; /* measured: without it the full-size codec decodes and encodes 10 and 15 % faster */
    const char *form = getenv("THESPIS_CUDA_CODEC"); /* for measurements: both forms keep every promise */
    codec->plain = form != NULL && strcmp(form, "plain") == 0;
    codec->processors = cuda->processors > 0 ? cuda->processors : 1;
    TH_CUDA(cudaHostAlloc((void **)&codec->host_samples, TH_CUDA_CODEC_FRAMES * TH_CUDA_CODEC_FRAME * sizeof(float),
                          cudaHostAllocDefault),
            "host memory for samples", error);
    TH_CUDA(cudaHostAlloc((void **)&codec->host_codes, TH_CUDA_CODEC_FRAMES * (size_t)codec->source->books * sizeof(int32_t),
                          cudaHostAllocDefault),
            "host memory for codes", error);
    return th_cuda_codec_load(codec, error);
}

thespis_status th_cuda_codec_prepare(struct th_cuda *cuda, thespis_error *error)
{
    cuda->codec_part = NULL;
    if (cuda->codec == NULL) return THESPIS_OK;
    struct th_cuda_codec *codec;
    TH_TRY(TH_ALLOC(&codec, 1, "the codec", error));
    cuda->codec_part = codec;
    codec->source = cuda->codec;
    thespis_status status = prepare(cuda, codec, error);
    if (status != THESPIS_OK) th_cuda_codec_release(cuda);
    return status;
}

void th_cuda_codec_release(struct th_cuda *cuda)
{
    struct th_cuda_codec *codec = cuda->codec_part;
    if (codec == NULL) return;
    /* Nothing can be done about a failure here: the device is given up, or lost already. */
    if (codec->launch.stream != NULL) {
        (void)cudaStreamSynchronize(codec->launch.stream);
        (void)cudaStreamDestroy(codec->launch.stream);
    }
    (void)cudaFree(codec->packed);
    (void)cudaFree(codec->work.memory);
    (void)cudaFreeHost(codec->host_samples);
    (void)cudaFreeHost(codec->host_codes);
    th_free(codec->layers);
    th_free(codec);
    cuda->codec_part = NULL;
}

uint64_t th_cuda_codec_bytes(const struct th_cuda *cuda)
{
    const struct th_cuda_codec *codec = cuda->codec_part;
    return codec == NULL ? 0 : (uint64_t)(codec->packed_floats + codec->work.floats) * sizeof(float);
}

/* The codec, when it is there with the half that is asked for. */
static thespis_status find(struct th_backend *backend, int encoder, struct th_cuda_codec **codec, thespis_error *error)
{
    *codec = th_cuda_of(backend)->codec_part;
    if (*codec == NULL) return th_fail(error, THESPIS_UNSUPPORTED, "no codec was opened");
    if (!(encoder ? (*codec)->source->has_encoder : (*codec)->source->has_decoder))
        return th_fail(error, THESPIS_UNSUPPORTED, "the codec was opened without its %s", encoder ? "encoder" : "decoder");
    return th_cuda_enter(th_cuda_of(backend), error);
}

/* ---- streams ------------------------------------------------------------------------------------------------------------------
 */

static struct th_cuda_codec_stream *stream_of(struct th_codec_stream *stream)
{
    return (struct th_cuda_codec_stream *)(void *)stream;
}

thespis_status th_cuda_codec_open(struct th_backend *backend, struct th_codec_stream **out, thespis_error *error)
{
    *out = NULL;
    struct th_cuda_codec *codec;
    TH_TRY(find(backend, 0, &codec, error));
    struct th_cuda_codec_stream *stream;
    TH_TRY(TH_ALLOC(&stream, 1, "a codec stream", error));
    thespis_status status = th_cuda_codec_stream_make(codec, stream, error);
    if (status != THESPIS_OK) {
        th_free(stream);
        return th_cuda_leave(th_cuda_of(backend), status);
    }
    *out = (struct th_codec_stream *)(void *)stream;
    return THESPIS_OK;
}

void th_cuda_codec_close(struct th_backend *backend, struct th_codec_stream *stream)
{
    if (stream == NULL) return;
    (void)cudaSetDevice(th_cuda_of(backend)->device); /* on a lost device this does nothing, and so does the next */
    (void)cudaFree(stream_of(stream)->memory);
    th_free(stream_of(stream));
}

void th_cuda_codec_reset(struct th_backend *backend, struct th_codec_stream *out)
{
    struct th_cuda_codec_stream *stream = stream_of(out);
    struct th_cuda_codec *codec = th_cuda_of(backend)->codec_part;
    stream->position = 0;
    stream->side = 0;
    thespis_status status = th_cuda_enter(th_cuda_of(backend), NULL);
    if (status == THESPIS_OK)
        status = th_cuda_status(cudaMemsetAsync(stream->memory, 0, stream->floats * sizeof(float), codec->launch.stream),
                                "a codec stream", NULL);
    if (status != THESPIS_OK) stream->position = -1; /* the next window says so */
}

/* ---- windows ------------------------------------------------------------------------------------------------------------------
 */

/* Into host_codes, those above a book's last entry as its last. */
static thespis_status take_codes(struct th_cuda_codec *codec, const int32_t *codes, int frames, thespis_error *error)
{
    const int books = codec->source->books;
    for (int f = 0; f < frames; f++)
        for (int i = 0; i < books; i++) {
            int32_t code = codes[f * books + i], last = codec->source->book[i].entries - 1;
            if (code < 0)
                return th_fail(error, THESPIS_INVALID, "code %d of frame %d, codebook %d is negative, must be 0 to %d", (int)code,
                               f, i, (int)last);
            codec->host_codes[f * books + i] = code > last ? last : code;
        }
    return THESPIS_OK;
}

static cudaError_t decode(struct th_cuda_codec *codec, const struct th_cuda_codec_stream *stream, int frames)
{
    const cudaStream_t on = codec->launch.stream;
    const size_t codes = (size_t)frames * (size_t)codec->source->books * sizeof(int32_t);
    TH_CUDA_TRY(cudaMemcpyAsync(codec->work.codes, codec->host_codes, codes, cudaMemcpyHostToDevice, on));
    TH_CUDA_TRY(th_cuda_codec_run_decode(codec, stream, frames));
    TH_CUDA_TRY(cudaMemcpyAsync(codec->host_samples, codec->work.samples, (size_t)frames * TH_CUDA_CODEC_FRAME * sizeof(float),
                                cudaMemcpyDeviceToHost, on));
    return cudaStreamSynchronize(on);
}

static thespis_status check_window(const struct th_cuda_codec_stream *stream, int frames, thespis_error *error)
{
    if (frames < 1 || frames > TH_DECODE_MAX_FRAMES)
        return th_fail(error, THESPIS_INVALID, "a chunk has %d frames, must be 1 to %d", frames, TH_DECODE_MAX_FRAMES);
    if (stream->position < 0) return th_fail(error, THESPIS_DEVICE, "the codec's stream could not be cleared");
    if (stream->position + frames > TH_CUDA_CODEC_POSITIONS)
        return th_fail(error, THESPIS_LIMIT, "the codec's stream has %lld frames and would take %d more; it holds at most %d",
                       (long long)stream->position, frames, TH_CUDA_CODEC_POSITIONS);
    return THESPIS_OK;
}

thespis_status th_cuda_codec_decode(struct th_backend *backend, struct th_codec_stream *out, const int32_t *codes, int frames,
                                    float *samples, thespis_error *error)
{
    struct th_cuda_codec_stream *stream = stream_of(out);
    struct th_cuda_codec *codec;
    TH_TRY(find(backend, 0, &codec, error));
    TH_TRY(check_window(stream, frames, error));
    TH_TRY(take_codes(codec, codes, frames, error));
    thespis_status status = th_cuda_status(decode(codec, stream, frames), "decoding frames", error);
    if (status != THESPIS_OK) return th_cuda_leave(th_cuda_of(backend), status);
    memcpy(samples, codec->host_samples, (size_t)frames * TH_CUDA_CODEC_FRAME * sizeof(float));
    stream->position += frames;
    stream->side = 1 - stream->side;
    return THESPIS_OK;
}

/* ---- recordings ---------------------------------------------------------------------------------------------------------------
 */

static thespis_status check_samples(const float *samples, size_t count, thespis_error *error)
{
    if (count == 0) return th_fail(error, THESPIS_INVALID, "the recording has no samples");
    size_t frames = (count - 1) / TH_CUDA_CODEC_FRAME + 1;
    if (frames > TH_CUDA_CODEC_POSITIONS / 4)
        return th_fail(error, THESPIS_LIMIT, "the recording has %zu frames, the codec takes at most %d", frames,
                       TH_CUDA_CODEC_POSITIONS / 4);
    for (size_t i = 0; i < count; i++)
        if (!isfinite(samples[i])) return th_fail(error, THESPIS_INVALID, "sample %zu of the recording is not a finite number", i);
    return THESPIS_OK;
}

/* One block: samples, zeros after the last, to host_codes. */
static cudaError_t encode(struct th_cuda_codec *codec, const struct th_cuda_encoding *encoding, const float *samples, size_t count,
                          int frames)
{
    const cudaStream_t on = codec->launch.stream;
    const size_t whole = (size_t)frames * TH_CUDA_CODEC_FRAME;
    memcpy(codec->host_samples, samples, count * sizeof(float));
    memset(codec->host_samples + count, 0, (whole - count) * sizeof(float));
    TH_CUDA_TRY(cudaMemcpyAsync(codec->work.samples, codec->host_samples, whole * sizeof(float), cudaMemcpyHostToDevice, on));
    TH_CUDA_TRY(th_cuda_codec_run_encode(codec, encoding, frames));
    TH_CUDA_TRY(cudaMemcpyAsync(codec->host_codes, codec->work.codes,
                                (size_t)frames * (size_t)codec->source->books * sizeof(int32_t), cudaMemcpyDeviceToHost, on));
    return cudaStreamSynchronize(on);
}

static thespis_status encode_all(struct th_cuda_codec *codec, struct th_cuda_encoding *encoding, const float *samples, size_t count,
                                 int32_t *codes, thespis_progress progress, void *context, thespis_error *error)
{
    const size_t frames = (count - 1) / TH_CUDA_CODEC_FRAME + 1, books = (size_t)codec->source->books;
    for (size_t f = 0; f < frames; f += TH_CUDA_CODEC_FRAMES) {
        const int n = frames - f < TH_CUDA_CODEC_FRAMES ? (int)(frames - f) : TH_CUDA_CODEC_FRAMES;
        const size_t at = f * TH_CUDA_CODEC_FRAME, whole = (size_t)n * TH_CUDA_CODEC_FRAME;
        TH_CUDA(encode(codec, encoding, samples + at, count - at < whole ? count - at : whole, n), "encoding a recording", error);
        memcpy(codes + f * books, codec->host_codes, (size_t)n * books * sizeof(int32_t));
        encoding->position += n;
        encoding->side = 1 - encoding->side;
        if (progress != NULL) progress(context, "encode", f + (size_t)n, frames);
    }
    return THESPIS_OK;
}

thespis_status th_cuda_codec_encode(struct th_backend *backend, const float *samples, size_t count, int32_t *codes,
                                    thespis_progress progress, void *context, thespis_error *error)
{
    struct th_cuda_codec *codec;
    TH_TRY(find(backend, 1, &codec, error));
    TH_TRY(check_samples(samples, count, error));
    struct th_cuda_encoding encoding = {0};
    thespis_status status = th_cuda_encoding_make(codec, &encoding, error);
    if (status == THESPIS_OK) status = encode_all(codec, &encoding, samples, count, codes, progress, context, error);
    if (encoding.memory != NULL) (void)cudaFree(encoding.memory);
    return status == THESPIS_OK ? status : th_cuda_leave(th_cuda_of(backend), status);
}
