/* cpu_codec_rows.c - the parts of the codec that work on [time][width] rows: linear layers, transformers, ConvNeXt blocks. */
#include <math.h>
#include <string.h>

#include "backend/cpu/codec.h"
#include "backend/cpu/simd.h"

#define HALF_HEAD (TH_CODEC_HEAD_DIM / 2)

static void run_linear(const struct th_cpu_codec *codec, struct th_linear_job *job)
{
    double each = 16.0 * job->inputs * job->rows * (job->kind == TH_LINEAR_GATED ? 2 : 1);
    th_codec_run(codec, codec->kernels->linear, job, (job->outputs + 15) / 16, each);
}

void th_codec_run_linear(const struct th_cpu_codec *codec, const struct th_packed_linear *linear, const float *in, size_t in_stride,
                         int rows, float *out)
{
    struct th_linear_job job = {.kind = TH_LINEAR_PLAIN,
                                .weight = linear->weight,
                                .bias = linear->bias,
                                .inputs = linear->inputs,
                                .outputs = linear->outputs,
                                .rows = rows,
                                .in = in,
                                .in_stride = in_stride,
                                .out = out};
    run_linear(codec, &job);
}

static void run_norm(const struct th_cpu_codec *codec, enum th_norm_kind kind, const float *weight, const float *bias, int width,
                     float eps, const float *in, float *out, int rows)
{
    struct th_norm_job job = {.kind = kind, .in = in, .out = out, .weight = weight, .bias = bias, .width = width, .eps = eps};
    th_codec_run(codec, codec->kernels->norm, &job, rows, 4.0 * width);
}

/* The reference's table, row by row: frequencies and angles in float, cos and sin of the angle in double, rounded to float, then to
 * bf16. Positions count from the start of the utterance: the rounding makes them absolute. */
static void fill_rotation(float *cosine, float *sine, int64_t position, int rows)
{
    for (int m = 0; m < HALF_HEAD; m++) {
        float frequency = 1.0f / powf(10000.0f, (float)(2 * m) / (float)TH_CODEC_HEAD_DIM);
        for (int t = 0; t < rows; t++) {
            float angle = (float)(position + t) * frequency;
            cosine[t * HALF_HEAD + m] = th_round_bf16((float)cos((double)angle));
            sine[t * HALF_HEAD + m] = th_round_bf16((float)sin((double)angle));
        }
    }
}

/* x += gamma * (weight in) */
static void run_branch(const struct th_cpu_codec *codec, const float *weight, const float *bias, const float *gamma, int inputs,
                       int outputs, const float *in, float *x, int rows)
{
    struct th_linear_job job = {.kind = TH_LINEAR_ADD,
                                .weight = weight,
                                .bias = bias,
                                .gamma = gamma,
                                .inputs = inputs,
                                .outputs = outputs,
                                .rows = rows,
                                .in = in,
                                .in_stride = (size_t)inputs,
                                .out = x};
    run_linear(codec, &job);
}

static void run_attention(const struct th_cpu_codec *codec, const struct th_codec_transformer *transformer, int index,
                          const struct th_ring *ring, struct th_codec_work *work, float *x, int rows, int64_t position)
{
    const struct th_codec_layer *layer = &transformer->layer[index];
    const int dim = transformer->dim;
    run_norm(codec, TH_NORM_RMS, layer->attention_norm, NULL, dim, 1e-5f, x, work->normed, rows);
    struct th_linear_job qkv = {.kind = TH_LINEAR_PLAIN,
                                .weight = layer->wqkv,
                                .inputs = dim,
                                .outputs = 3 * dim,
                                .rows = rows,
                                .in = work->normed,
                                .in_stride = (size_t)dim,
                                .out = work->wide};
    run_linear(codec, &qkv);
    size_t layer_ring = (size_t)index * (size_t)transformer->window * (size_t)dim;
    struct th_attention_job attention = {.qkv = work->wide,
                                         .cosine = work->cosine,
                                         .sine = work->sine,
                                         .keys = ring->keys + layer_ring,
                                         .values = ring->values + layer_ring,
                                         .scores = work->scores,
                                         .out = work->attended,
                                         .rows = rows,
                                         .heads = transformer->heads,
                                         .window = transformer->window,
                                         .position = position};
    double keys = position + rows < transformer->window ? (double)(position + rows) : transformer->window;
    th_codec_run(codec, codec->kernels->attention, &attention, transformer->heads, keys * rows * 3 * TH_CODEC_HEAD_DIM);
    run_branch(codec, layer->wo, NULL, layer->attention_scale, dim, dim, work->attended, x, rows);
}

static void run_feed_forward(const struct th_cpu_codec *codec, const struct th_codec_transformer *transformer, int index,
                             struct th_codec_work *work, float *x, int rows)
{
    const struct th_codec_layer *layer = &transformer->layer[index];
    const int dim = transformer->dim;
    run_norm(codec, TH_NORM_RMS, layer->ffn_norm, NULL, dim, 1e-5f, x, work->normed, rows);
    struct th_linear_job gated = {.kind = TH_LINEAR_GATED,
                                  .weight = layer->w1,
                                  .weight2 = layer->w3,
                                  .inputs = dim,
                                  .outputs = transformer->inner,
                                  .rows = rows,
                                  .in = work->normed,
                                  .in_stride = (size_t)dim,
                                  .out = work->wide};
    run_linear(codec, &gated);
    run_branch(codec, layer->w2, NULL, layer->ffn_scale, transformer->inner, dim, work->wide, x, rows);
}

void th_codec_run_transformer(const struct th_cpu_codec *codec, const struct th_codec_transformer *transformer,
                              struct th_ring *ring, struct th_codec_work *work, float *x, int rows, int64_t position)
{
    fill_rotation(work->cosine, work->sine, position, rows);
    for (int i = 0; i < transformer->layers; i++) {
        run_attention(codec, transformer, i, ring, work, x, rows, position);
        run_feed_forward(codec, transformer, i, work, x, rows);
    }
    run_norm(codec, TH_NORM_RMS, transformer->norm, NULL, transformer->dim, 1e-5f, x, x, rows);
}

void th_codec_carry_rows(float *carried, float *buffer, int count, int rows, int width)
{
    size_t kept = (size_t)count * (size_t)width;
    memcpy(buffer, carried, kept * sizeof(float));
    memcpy(carried, buffer + (size_t)rows * (size_t)width, kept * sizeof(float));
}

void th_codec_run_next(const struct th_cpu_codec *codec, const struct th_packed_next *next, float *carried,
                       struct th_codec_work *work, float *x, int rows)
{
    const struct th_convnext *source = next->source;
    const int width = source->depthwise.out, past = source->depthwise.kernel - 1;
    memcpy(work->context + (size_t)past * (size_t)width, x, (size_t)rows * (size_t)width * sizeof(float));
    th_codec_carry_rows(carried, work->context, past, rows, width);
    struct th_depthwise_job depthwise = {.in = work->context,
                                         .out = work->normed,
                                         .weight = next->depthwise,
                                         .bias = source->depthwise.bias,
                                         .width = width,
                                         .kernel = past + 1};
    th_codec_run(codec, codec->kernels->depthwise, &depthwise, rows, 3.0 * width * past);
    run_norm(codec, TH_NORM_LAYER, source->norm_weight, source->norm_bias, width, 1e-6f, work->normed, work->normed, rows);
    struct th_linear_job inner = {.kind = TH_LINEAR_GELU,
                                  .weight = source->w1,
                                  .bias = source->b1,
                                  .inputs = width,
                                  .outputs = 4 * width,
                                  .rows = rows,
                                  .in = work->normed,
                                  .in_stride = (size_t)width,
                                  .out = work->wide};
    run_linear(codec, &inner);
    run_branch(codec, source->w2, source->b2, source->gamma, 4 * width, width, work->wide, x, rows);
}

void th_codec_run_snake_rows(const struct th_cpu_codec *codec, const struct th_packed_snake *snake, int width, const float *in,
                             float *out, int rows)
{
    struct th_snake_rows_job job = {.in = in, .out = out, .alpha = snake->alpha, .inverse = snake->inverse, .width = width};
    th_codec_run(codec, codec->kernels->snake_rows, &job, rows, 16.0 * width);
}
