/* codec_encode.c - samples to codes: the encoder's blocks, its transformer, downsampling, pre transformer, codebooks; a block of
 * frames at a time with carried state, so that memory does not grow with the recording. */
#include "backend/cuda/codec.h"

/* The convolutional part: work->samples to [4 * frames][D] in work->latent. */
static cudaError_t encode_signal(struct th_cuda_codec *codec, const struct th_cuda_encoding *encoding, int frames)
{
    struct th_cuda_codec_work *work = &codec->work;
    const struct th_cuda_encoder *encoder = &codec->encoder;
    int rows = frames * TH_CUDA_CODEC_FRAME;
    struct th_cuda_first_job first = {.taps = encoder->first_taps,
                                      .width = encoder->first_width,
                                      .rows = rows,
                                      .weight = encoder->first_weight,
                                      .bias = encoder->first_bias,
                                      .in = work->samples,
                                      .past = encoding->first.side[encoding->side],
                                      .kept = encoding->first.side[1 - encoding->side],
                                      .out = work->x,
                                      .snaked = work->a,
                                      .split = encoder->unit[0][0].dilated.scale != NULL,
                                      .alpha = encoder->unit[0][0].snake1.alpha,
                                      .inverse = encoder->unit[0][0].snake1.inverse};
    TH_CUDA_TRY(th_cuda_codec_first(&codec->launch, &first));
    for (int b = 0; b < TH_CODEC_BLOCKS; b++) {
        TH_CUDA_TRY(th_cuda_run_units(codec, encoder->unit[b], encoding->unit[b], encoding->side, &encoder->snake[b],
                                      &encoder->conv[b], rows));
        rows /= codec->source->encoder.blocks[b].conv.stride;
        const int more = b + 1 < TH_CODEC_BLOCKS;
        struct th_cuda_conv_job down = th_cuda_conv_plain(&encoder->conv[b], rows, work->a, more ? work->x : work->latent);
        th_cuda_conv_past(&down, &encoding->conv[b], encoding->side);
        if (more) th_cuda_conv_snake(&down, &encoder->unit[b + 1][0].snake1, work->b, &encoder->unit[b + 1][0].dilated);
        TH_CUDA_TRY(th_cuda_run_conv(codec, &down));
        float *kept = work->a;
        work->a = work->b;
        work->b = kept;
    }
    return cudaSuccess;
}

/* work->latent [4 * frames][D] to the frames' latents, [frames][D] in work->other. */
static cudaError_t encode_latent(struct th_cuda_codec *codec, const struct th_cuda_encoding *encoding, int frames)
{
    struct th_cuda_codec_work *work = &codec->work;
    const struct th_cuda_encoder *encoder = &codec->encoder;
    TH_CUDA_TRY(th_cuda_run_transformer(codec, &encoder->inner, &encoding->inner, work->latent, 4 * frames, 4 * encoding->position,
                                        &encoder->last_snake));
    struct th_cuda_conv_job last = th_cuda_conv_plain(&encoder->last, 4 * frames, work->latent, work->other);
    th_cuda_conv_past(&last, &encoding->last, encoding->side);
    TH_CUDA_TRY(th_cuda_run_conv(codec, &last));
    float *from = work->other, *to = work->latent;
    for (int i = 0; i < TH_CODEC_STAGES; i++) {
        const int rows = 2 * frames >> i;
        struct th_cuda_conv_job down = th_cuda_conv_plain(&encoder->down[i], rows, from, to);
        TH_CUDA_TRY(th_cuda_run_conv(codec, &down));
        TH_CUDA_TRY(th_cuda_run_next(codec, &encoder->down_next[i], &encoding->next[i], encoding->side, to, rows));
        float *kept = from;
        from = to;
        to = kept;
    }
    return th_cuda_run_transformer(codec, &encoder->pre, &encoding->pre, work->other, frames, encoding->position, NULL);
}

cudaError_t th_cuda_codec_run_encode(struct th_cuda_codec *codec, const struct th_cuda_encoding *encoding, int frames)
{
    TH_CUDA_TRY(encode_signal(codec, encoding, frames));
    TH_CUDA_TRY(encode_latent(codec, encoding, frames));
    struct th_cuda_search_job search = {.frames = frames,
                                        .books = codec->source->books,
                                        .vector = codec->source->code_width,
                                        .latent = codec->source->latent,
                                        .book = codec->books,
                                        .in = codec->work.other,
                                        .codes = codec->work.codes};
    return th_cuda_codec_search(&codec->launch, &search);
}
