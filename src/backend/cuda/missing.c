/* missing.c - parts that are not written yet refuse by name; each goes when its file lands. */
#include "backend/cuda/cuda.h"

#define MISSING __attribute__((weak))

MISSING thespis_status th_cuda_codec_prepare(struct th_cuda *cuda, thespis_error *error)
{
    (void)cuda, (void)error;
    return THESPIS_OK;
}
MISSING void th_cuda_codec_release(struct th_cuda *cuda)
{
    (void)cuda;
}
MISSING uint64_t th_cuda_codec_bytes(const struct th_cuda *cuda)
{
    (void)cuda;
    return 0;
}
MISSING thespis_status th_cuda_codec_open(struct th_backend *backend, struct th_codec_stream **stream, thespis_error *error)
{
    (void)backend, (void)stream;
    return th_fail(error, THESPIS_UNSUPPORTED, "the codec is missing in this build's CUDA backend");
}
MISSING void th_cuda_codec_close(struct th_backend *backend, struct th_codec_stream *stream)
{
    (void)backend, (void)stream;
}
MISSING void th_cuda_codec_reset(struct th_backend *backend, struct th_codec_stream *stream)
{
    (void)backend, (void)stream;
}
MISSING thespis_status th_cuda_codec_decode(struct th_backend *backend, struct th_codec_stream *stream, const int32_t *codes,
                                            int frames, float *samples, thespis_error *error)
{
    (void)backend, (void)stream, (void)codes, (void)frames, (void)samples;
    return th_fail(error, THESPIS_UNSUPPORTED, "the codec is missing in this build's CUDA backend");
}
MISSING thespis_status th_cuda_codec_encode(struct th_backend *backend, const float *samples, size_t count, int32_t *codes,
                                            thespis_progress progress, void *context, thespis_error *error)
{
    (void)backend, (void)samples, (void)count, (void)codes, (void)progress, (void)context;
    return th_fail(error, THESPIS_UNSUPPORTED, "the codec is missing in this build's CUDA backend");
}
