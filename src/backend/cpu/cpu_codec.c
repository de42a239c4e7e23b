/* cpu_codec.c - the codec's entries of the backend: what may be asked, and the life of packed weights and streams. */
#include "backend/cpu/codec.h"
#include "base/memory.h"

thespis_status th_cpu_codec_prepare(struct th_cpu *cpu, thespis_error *error)
{
    cpu->codec_part = NULL;
    if (cpu->codec == NULL) return THESPIS_OK;
    struct th_cpu_codec *codec;
    TH_TRY(TH_ALLOC(&codec, 1, "the codec", error));
    cpu->codec_part = codec;
    codec->source = cpu->codec;
    codec->kernels = cpu->codec_kernels;
    codec->pool = cpu->pool;
    thespis_status status = th_codec_pack(codec, error);
    if (status == THESPIS_OK && codec->source->has_decoder) {
        int rate = 4;
        for (int b = 0; b < TH_CODEC_BLOCKS; b++) codec->rates[b] = rate *= codec->source->decoder.blocks[b].conv.stride;
        status = th_codec_work_open(codec, 0, TH_DECODE_MAX_FRAMES, &codec->work, error);
    }
    if (status == THESPIS_OK && codec->source->has_encoder) {
        int channels = codec->source->encoder.first.out; /* about 2 MiB for the largest signal of a block */
        codec->encode_frames = channels >= 64 ? 4 : channels >= 16 ? 8 : 16;
    }
    if (status != THESPIS_OK) th_cpu_codec_release(cpu);
    return status;
}

void th_cpu_codec_release(struct th_cpu *cpu)
{
    struct th_cpu_codec *codec = cpu->codec_part;
    if (codec == NULL) return;
    th_codec_work_close(&codec->work);
    th_free(codec->packed);
    th_free(codec->books);
    th_free(codec);
    cpu->codec_part = NULL;
}

uint64_t th_cpu_codec_bytes(const struct th_cpu *cpu)
{
    const struct th_cpu_codec *codec = cpu->codec_part;
    return codec == NULL ? 0 : codec->packed_floats * sizeof(float) + codec->work.bytes;
}

/* The codec, when it is there with the half that is asked for. */
static thespis_status find(struct th_backend *backend, int encoder, struct th_cpu_codec **codec, thespis_error *error)
{
    *codec = th_cpu_of(backend)->codec_part;
    if (*codec == NULL) return th_fail(error, THESPIS_UNSUPPORTED, "no codec was opened");
    if (!(encoder ? (*codec)->source->has_encoder : (*codec)->source->has_decoder))
        return th_fail(error, THESPIS_UNSUPPORTED, "the codec was opened without its %s", encoder ? "encoder" : "decoder");
    return THESPIS_OK;
}

thespis_status th_cpu_codec_open(struct th_backend *backend, struct th_codec_stream **stream, thespis_error *error)
{
    *stream = NULL;
    struct th_cpu_codec *codec;
    TH_TRY(find(backend, 0, &codec, error));
    return th_codec_stream_open(codec, stream, error);
}

void th_cpu_codec_close(struct th_backend *backend, struct th_codec_stream *stream)
{
    (void)backend;
    th_codec_stream_close(stream);
}

void th_cpu_codec_reset(struct th_backend *backend, struct th_codec_stream *stream)
{
    (void)backend;
    th_codec_stream_reset(stream);
}

/* Into work->codes, those above a book's last entry as its last. */
static thespis_status take_codes(struct th_cpu_codec *codec, const int32_t *codes, int frames, thespis_error *error)
{
    const int books = codec->source->books;
    for (int f = 0; f < frames; f++)
        for (int i = 0; i < books; i++) {
            int32_t code = codes[f * books + i], last = codec->books[i].entries - 1;
            if (code < 0)
                return th_fail(error, THESPIS_INVALID, "code %d of frame %d, codebook %d is negative, must be 0 to %d", (int)code,
                               f, i, (int)last);
            codec->work.codes[f * books + i] = code > last ? last : code;
        }
    return THESPIS_OK;
}

thespis_status th_cpu_codec_decode(struct th_backend *backend, struct th_codec_stream *stream, const int32_t *codes, int frames,
                                   float *samples, thespis_error *error)
{
    struct th_cpu_codec *codec;
    TH_TRY(find(backend, 0, &codec, error));
    if (frames < 1 || frames > TH_DECODE_MAX_FRAMES)
        return th_fail(error, THESPIS_INVALID, "a chunk has %d frames, must be 1 to %d", frames, TH_DECODE_MAX_FRAMES);
    if (stream->position + frames > TH_CODEC_POSITIONS)
        return th_fail(error, THESPIS_LIMIT, "the codec's stream has %lld frames and would take %d more; it holds at most %d",
                       (long long)stream->position, frames, TH_CODEC_POSITIONS);
    TH_TRY(take_codes(codec, codes, frames, error));
    th_codec_decode_chunk(codec, stream, frames, samples);
    return THESPIS_OK;
}

thespis_status th_cpu_codec_encode(struct th_backend *backend, const float *samples, size_t count, int32_t *codes,
                                   thespis_progress progress, void *context, thespis_error *error)
{
    struct th_cpu_codec *codec;
    TH_TRY(find(backend, 1, &codec, error));
    return th_codec_encode_all(codec, samples, count, codes, progress, context, error);
}
