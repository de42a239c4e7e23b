/* cpu_codec_conv.c - running convolutions and residual units over signals with carried context. */
#include <string.h>

#include "backend/cpu/codec.h"

#define PIECE_PRODUCTS 250e3 /* multiply-adds that repay handing a piece to a thread */

/* Row strides are odd multiples of 16 floats: rows that lay a power of two apart would fall into the same cache sets. */
static size_t stride_for(int columns)
{
    size_t lines = (size_t)TH_CODEC_MARGIN / 16 + ((size_t)columns + 15) / 16 + 1;
    return (lines | 1) * 16;
}

size_t th_signal_floats(int channels, int columns)
{
    return (size_t)channels * stride_for(columns);
}

void th_signal_shape(struct th_signal *signal, int channels, int columns)
{
    signal->channels = channels;
    signal->columns = columns;
    signal->stride = stride_for(columns);
}

void th_codec_run(const struct th_cpu_codec *codec, void (*kernel)(void *, int, int), void *job, int items, double products)
{
    double grain = products > 0 ? PIECE_PRODUCTS / products : items;
    th_pool_run(codec->pool, items, grain >= items ? items : grain < 1 ? 1 : (int)grain, kernel, job);
}

/* context -> the columns before the first; the last columns of both together -> context. The chunk may be shorter than the context:
 * then its older part stays, shifted. */
static void carry_columns(struct th_signal *signal, float *context, int count)
{
    for (int c = 0; c < signal->channels; c++) {
        float *start = th_signal_start(signal) + (size_t)c * signal->stride, *kept = context + (size_t)c * (size_t)count;
        memcpy(start - count, kept, (size_t)count * sizeof(float));
        memcpy(kept, start + signal->columns - count, (size_t)count * sizeof(float));
    }
}

/* Columns of an item: as many as keep a block's inputs in the first cache, within what the partial sums have room for. */
static int tile_for(const struct th_packed_conv *conv, int columns)
{
    const int rows = conv->phases > 1 ? TH_CONV_SET_PHASES : TH_CONV_GROUP, most = TH_CONV_PARTIAL / rows;
    const int block = conv->in < conv->block ? conv->in : conv->block;
    int tile = (5120 / block - conv->context) / 16 * 16;
    if (tile < 64) tile = 64;
    if (tile > most) tile = most / 16 * 16;
    int whole = (columns + 15) / 16 * 16;
    return tile < whole ? tile : whole;
}

void th_codec_run_conv(const struct th_cpu_codec *codec, const struct th_packed_conv *conv, struct th_signal *in, float *context,
                       const struct th_conv_result *result)
{
    if (conv->context > 0) carry_columns(in, context, conv->context);
    const int columns = in->columns * conv->phases;
    if (result->out != NULL) th_signal_shape(result->out, conv->out, columns);
    if (result->snaked != NULL) th_signal_shape(result->snaked, conv->out, columns);
    struct th_conv_job job = {
        .conv = conv,
        .in = th_signal_start(in) - conv->context,
        .in_stride = in->stride,
        .columns = in->columns,
        .tile = tile_for(conv, in->columns),
        .residual = result->residual == NULL ? NULL : th_signal_start(result->residual),
        .out = result->out == NULL ? NULL : th_signal_start(result->out),
        .snake = result->snaked == NULL ? NULL : th_signal_start(result->snaked),
        .stride = stride_for(columns),
        .alpha = result->snake == NULL ? NULL : result->snake->alpha,
        .inverse = result->snake == NULL ? NULL : result->snake->inverse,
    };
    const int tiles = (in->columns + job.tile - 1) / job.tile;
    const double each = (double)conv->in * conv->taps * conv->out * conv->phases / conv->sets * job.tile;
    th_codec_run(codec, codec->kernels->conv, &job, tiles * conv->sets, each);
}

void th_codec_run_units(const struct th_cpu_codec *codec, const struct th_packed_unit *units, struct th_unit_state *state,
                        const struct th_packed_snake *after, struct th_signal *x, struct th_signal *a, struct th_signal *b)
{
    for (int u = 0; u < 3; u++) {
        const struct th_packed_snake *next = u < 2 ? &units[u + 1].snake1 : after;
        struct th_conv_result middle = {.snaked = b, .snake = &units[u].snake2};
        th_codec_run_conv(codec, &units[u].dilated, a, state->context[u], &middle);
        struct th_conv_result sum = {.residual = x, .out = x, .snaked = a, .snake = next};
        th_codec_run_conv(codec, &units[u].pointwise, b, NULL, &sum);
    }
}
