/* cpu_codec_decode.c - codes to samples, in the order of the graph: lookup, post transformer, two upsampling stages (rows), then
 * the decoder's blocks (signals), a piece of a few frames at a time. */
#include <string.h>

#include "backend/cpu/codec.h"

static void swap_signals(struct th_signal *a, struct th_signal *b)
{
    struct th_signal kept = *a;
    *a = *b;
    *b = kept;
}

static void swap_rows(struct th_codec_work *work)
{
    float *kept = work->latent;
    work->latent = work->other;
    work->other = kept;
}

/* Codes to the decoder's input: work->context holds [6 + 4 * frames][D], its first six rows from before. */
static void decode_rows(struct th_cpu_codec *codec, struct th_codec_stream *stream, int frames)
{
    const struct th_codec *source = codec->source;
    struct th_codec_work *work = &codec->work;
    const int latent = source->latent;
    struct th_lookup_job lookup = {.books = codec->books,
                                   .count = source->books,
                                   .width = source->code_width,
                                   .latent = latent,
                                   .codes = work->codes,
                                   .out = work->latent};
    th_codec_run(codec, codec->kernels->lookup, &lookup, frames, (double)source->books * source->code_width * latent);
    th_codec_run_transformer(codec, &source->decoder.post, &stream->post, work, work->latent, frames, stream->position);
    int rows = frames;
    for (int i = 0; i < TH_CODEC_STAGES; i++) {
        th_codec_run_linear(codec, &codec->decoder.up[i], work->latent, (size_t)latent, rows, work->other);
        swap_rows(work);
        rows *= 2;
        th_codec_run_next(codec, &codec->decoder.up_next[i], stream->next[i], work, work->latent, rows);
    }
    const int past = source->decoder.first.kernel - 1;
    memcpy(work->context + (size_t)past * (size_t)latent, work->latent, (size_t)rows * (size_t)latent * sizeof(float));
    th_codec_carry_rows(stream->first, work->context, past, rows, latent);
}

/* First convolution and the first block's upsampling, over rows: few columns, many channels. Leaves x and a of block 0. */
static void decode_head(struct th_cpu_codec *codec, struct th_codec_stream *stream, const float *rows_in, int rows)
{
    struct th_codec_work *work = &codec->work;
    const struct th_packed_decoder *decoder = &codec->decoder;
    const int width = decoder->first.outputs, out = codec->source->decoder.blocks[0].conv.out;
    th_codec_run_linear(codec, &decoder->first, rows_in, (size_t)codec->source->latent, rows, work->head);
    th_codec_run_snake_rows(codec, &decoder->snake[0], width, work->head, work->head_snake + width, rows);
    th_codec_carry_rows(stream->spread, work->head_snake, 1, rows, width);
    th_codec_run_linear(codec, &decoder->spread, work->head_snake, (size_t)width, rows, work->spread);
    const int columns = rows * (decoder->spread.outputs / out);
    th_signal_shape(&work->x, out, columns);
    th_signal_shape(&work->a, out, columns);
    struct th_turn_job turn = {.in = work->spread,
                               .columns = columns,
                               .width = out,
                               .out = th_signal_start(&work->x),
                               .snake = th_signal_start(&work->a),
                               .stride = work->x.stride,
                               .alpha = decoder->unit[0][0].snake1.alpha,
                               .inverse = decoder->unit[0][0].snake1.inverse};
    th_codec_run(codec, codec->kernels->turn, &turn, out, 16.0 * columns);
}

static void decode_piece(struct th_cpu_codec *codec, struct th_codec_stream *stream, const float *rows_in, int frames,
                         float *samples)
{
    struct th_codec_work *work = &codec->work;
    const struct th_packed_decoder *decoder = &codec->decoder;
    decode_head(codec, stream, rows_in, 4 * frames);
    for (int b = 0; b < TH_CODEC_BLOCKS; b++) {
        if (b > 0) {
            struct th_conv_result up = {.out = &work->x, .snaked = &work->b, .snake = &decoder->unit[b][0].snake1};
            th_codec_run_conv(codec, &decoder->conv[b], &work->a, stream->conv[b], &up);
            swap_signals(&work->a, &work->b);
        }
        const struct th_packed_snake *after = b + 1 < TH_CODEC_BLOCKS ? &decoder->snake[b + 1] : &decoder->last_snake;
        th_codec_run_units(codec, decoder->unit[b], &stream->unit[b], after, &work->x, &work->a, &work->b);
    }
    struct th_conv_result wave = {.out = &work->b};
    th_codec_run_conv(codec, &decoder->last, &work->a, stream->last, &wave);
    struct th_tanh_job bound = {.in = th_signal_start(&work->b), .out = samples, .count = frames * TH_CODEC_FRAME};
    th_codec_run(codec, codec->kernels->tanh, &bound, frames * TH_CODEC_FRAME / 1024, 16.0 * 1024);
}

void th_codec_decode_chunk(struct th_cpu_codec *codec, struct th_codec_stream *stream, int frames, float *samples)
{
    struct th_codec_work *work = &codec->work;
    decode_rows(codec, stream, frames);
    for (int f = 0; f < frames; f += work->piece) {
        int n = frames - f < work->piece ? frames - f : work->piece;
        decode_piece(codec, stream, work->context + (size_t)(4 * f) * (size_t)codec->source->latent, n,
                     samples + (size_t)f * TH_CODEC_FRAME);
    }
    stream->position += frames;
}
