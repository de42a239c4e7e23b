/* codec_decode.c - codes to samples, in the order of the graph: lookup, post transformer, two upsampling stages, the decoder's
 * first convolution, four blocks, the last convolution. */
#include "backend/cuda/codec.h"

/* Codes to the decoder's input, [4 * frames][D] in work->latent. */
static cudaError_t decode_latent(const struct th_cuda_codec *codec, const struct th_cuda_codec_stream *stream, int frames)
{
    const struct th_cuda_codec_work *work = &codec->work;
    const struct th_cuda_decoder *decoder = &codec->decoder;
    struct th_cuda_lookup_job lookup = {.frames = frames,
                                        .books = codec->source->books,
                                        .vector = codec->source->code_width,
                                        .latent = codec->source->latent,
                                        .book = codec->books,
                                        .codes = work->codes,
                                        .out = work->latent};
    TH_CUDA_TRY(th_cuda_codec_lookup(&codec->launch, &lookup));
    TH_CUDA_TRY(th_cuda_run_transformer(codec, &decoder->post, &stream->post, work->latent, frames, stream->position, NULL));
    float *from = work->latent, *to = work->other;
    for (int i = 0; i < TH_CODEC_STAGES; i++) {
        struct th_cuda_conv_job up = th_cuda_conv_plain(&decoder->up[i], frames << i, from, to);
        TH_CUDA_TRY(th_cuda_run_conv(codec, &up));
        TH_CUDA_TRY(th_cuda_run_next(codec, &decoder->up_next[i], &stream->next[i], stream->side, to, frames << (i + 1)));
        float *kept = from;
        from = to;
        to = kept;
    }
    return cudaSuccess;
}

cudaError_t th_cuda_codec_run_decode(struct th_cuda_codec *codec, const struct th_cuda_codec_stream *stream, int frames)
{
    struct th_cuda_codec_work *work = &codec->work;
    const struct th_cuda_decoder *decoder = &codec->decoder;
    TH_CUDA_TRY(decode_latent(codec, stream, frames));
    int rows = 4 * frames;
    struct th_cuda_conv_job first = th_cuda_conv_plain(&decoder->first, rows, work->latent, NULL);
    th_cuda_conv_past(&first, &stream->first, stream->side);
    th_cuda_conv_snake(&first, &decoder->snake[0], work->a, &decoder->conv[0]);
    TH_CUDA_TRY(th_cuda_run_conv(codec, &first));
    for (int b = 0; b < TH_CODEC_BLOCKS; b++) {
        struct th_cuda_conv_job up = th_cuda_conv_plain(&decoder->conv[b], rows, work->a, work->x);
        th_cuda_conv_past(&up, &stream->conv[b], stream->side);
        th_cuda_conv_snake(&up, &decoder->spread[b], work->b, &decoder->unit[b][0].dilated);
        TH_CUDA_TRY(th_cuda_run_conv(codec, &up));
        float *kept = work->a;
        work->a = work->b;
        work->b = kept;
        rows *= codec->source->decoder.blocks[b].conv.stride;
        const int more = b + 1 < TH_CODEC_BLOCKS;
        const struct th_cuda_snake *after = more ? &decoder->snake[b + 1] : &decoder->last_snake;
        const struct th_cuda_conv *next = more ? &decoder->conv[b + 1] : NULL;
        TH_CUDA_TRY(th_cuda_run_units(codec, decoder->unit[b], stream->unit[b], stream->side, after, next, rows));
    }
    struct th_cuda_last_job last = {.taps = decoder->last_taps,
                                    .width = decoder->last_width,
                                    .rows = rows,
                                    .weight = decoder->last_weight,
                                    .bias = decoder->last_bias,
                                    .in = work->a,
                                    .past = stream->last.side[stream->side],
                                    .kept = stream->last.side[1 - stream->side],
                                    .out = work->samples};
    return th_cuda_codec_last(&codec->launch, &last);
}
