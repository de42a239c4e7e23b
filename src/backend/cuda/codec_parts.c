/* codec_parts.c - the parts that decoding and encoding share: layers, transformers, ConvNeXt blocks, residual units. */
#include "backend/cuda/codec.h"

struct th_cuda_conv_job th_cuda_conv_plain(const struct th_cuda_conv *conv, int rows, const float *in, float *out)
{
    return (struct th_cuda_conv_job){.conv = *conv, .kind = TH_CUDA_CONV_PLAIN, .rows = rows, .in = in, .out = out};
}

void th_cuda_conv_past(struct th_cuda_conv_job *job, const struct th_cuda_past *past, int side)
{
    job->past = past->side[side];
    job->kept = past->side[1 - side];
}

void th_cuda_conv_snake(struct th_cuda_conv_job *job, const struct th_cuda_snake *snake, float *snaked,
                        const struct th_cuda_conv *next)
{
    job->split = next != NULL && next->scale != NULL;
    job->snaked = snaked;
    job->alpha = snake->alpha;
    job->inverse = snake->inverse;
}

cudaError_t th_cuda_run_conv(const struct th_cuda_codec *codec, const struct th_cuda_conv_job *job)
{
    return th_cuda_codec_conv(&codec->launch, job, codec->processors);
}

static cudaError_t run_rms(const struct th_cuda_codec *codec, const float *weight, const float *in, float *out, int rows,
                           const struct th_cuda_snake *after)
{
    struct th_cuda_rms_job job = {.rows = rows, .width = codec->source->latent, .in = in, .weight = weight, .out = out};
    if (after != NULL) {
        job.alpha = after->alpha;
        job.inverse = after->inverse;
    }
    return th_cuda_codec_rms(&codec->launch, &job);
}

/* x += gamma * (layer of in) */
static cudaError_t run_branch(const struct th_cuda_codec *codec, const struct th_cuda_conv *conv, const float *gamma,
                              const float *in, float *x, int rows)
{
    struct th_cuda_conv_job job = th_cuda_conv_plain(conv, rows, in, x);
    job.kind = TH_CUDA_CONV_BRANCH;
    job.residual = x;
    job.gamma = gamma;
    return th_cuda_run_conv(codec, &job);
}

static cudaError_t run_layer(const struct th_cuda_codec *codec, const struct th_cuda_codec_layer *layer,
                             struct th_cuda_attention_job *attention, float *x, int rows)
{
    const struct th_cuda_codec_work *work = &codec->work;
    TH_CUDA_TRY(run_rms(codec, layer->attention_norm, x, work->normed, rows, NULL));
    struct th_cuda_conv_job qkv = th_cuda_conv_plain(&layer->qkv, rows, work->normed, work->wide);
    TH_CUDA_TRY(th_cuda_run_conv(codec, &qkv));
    TH_CUDA_TRY(th_cuda_codec_attention(&codec->launch, attention));
    TH_CUDA_TRY(run_branch(codec, &layer->out, layer->attention_scale, work->attended, x, rows));
    TH_CUDA_TRY(run_rms(codec, layer->ffn_norm, x, work->normed, rows, NULL));
    struct th_cuda_conv_job gated = th_cuda_conv_plain(&layer->gated, rows, work->normed, work->wide);
    gated.kind = TH_CUDA_CONV_GATED;
    TH_CUDA_TRY(th_cuda_run_conv(codec, &gated));
    return run_branch(codec, &layer->down, layer->ffn_scale, work->wide, x, rows);
}

cudaError_t th_cuda_run_transformer(const struct th_cuda_codec *codec, const struct th_cuda_transformer *transformer,
                                    const struct th_cuda_ring *ring, float *x, int rows, int64_t position,
                                    const struct th_cuda_snake *after)
{
    const struct th_cuda_codec_work *work = &codec->work;
    const size_t ring_floats = (size_t)transformer->slots * (size_t)codec->source->latent;
    struct th_cuda_angles_job angles = {
        .rows = rows, .position = position, .frequency = codec->frequency, .cosine = work->cosine, .sine = work->sine};
    TH_CUDA_TRY(th_cuda_codec_angles(&codec->launch, &angles));
    for (int i = 0; i < transformer->layers; i++) {
        struct th_cuda_attention_job attention = {.rows = rows,
                                                  .heads = transformer->heads,
                                                  .window = transformer->window,
                                                  .slots = transformer->slots,
                                                  .position = position,
                                                  .qkv = work->wide,
                                                  .cosine = work->cosine,
                                                  .sine = work->sine,
                                                  .keys = ring->keys + (size_t)i * ring_floats,
                                                  .values = ring->values + (size_t)i * ring_floats,
                                                  .out = work->attended};
        TH_CUDA_TRY(run_layer(codec, &transformer->layer[i], &attention, x, rows));
    }
    return run_rms(codec, transformer->norm, x, x, rows, after);
}

cudaError_t th_cuda_run_next(const struct th_cuda_codec *codec, const struct th_cuda_next *next, const struct th_cuda_past *past,
                             int side, float *x, int rows)
{
    const struct th_cuda_codec_work *work = &codec->work;
    struct th_cuda_depthwise_job depthwise = {.rows = rows,
                                              .width = codec->source->latent,
                                              .taps = next->taps,
                                              .in = x,
                                              .past = past->side[side],
                                              .kept = past->side[1 - side],
                                              .weight = next->weight,
                                              .bias = next->bias,
                                              .norm_weight = next->norm_weight,
                                              .norm_bias = next->norm_bias,
                                              .out = work->normed};
    TH_CUDA_TRY(th_cuda_codec_depthwise(&codec->launch, &depthwise));
    struct th_cuda_conv_job inner = th_cuda_conv_plain(&next->inner, rows, work->normed, work->wide);
    inner.kind = TH_CUDA_CONV_GELU;
    TH_CUDA_TRY(th_cuda_run_conv(codec, &inner));
    return run_branch(codec, &next->outer, next->gamma, work->wide, x, rows);
}

cudaError_t th_cuda_run_units(const struct th_cuda_codec *codec, const struct th_cuda_unit *units, const struct th_cuda_past *past,
                              int side, const struct th_cuda_snake *after, const struct th_cuda_conv *next, int rows)
{
    const struct th_cuda_codec_work *work = &codec->work;
    for (int u = 0; u < 3; u++) {
        struct th_cuda_conv_job dilated = th_cuda_conv_plain(&units[u].dilated, rows, work->a, NULL);
        th_cuda_conv_past(&dilated, &past[u], side);
        th_cuda_conv_snake(&dilated, &units[u].snake2, work->b, &units[u].pointwise);
        TH_CUDA_TRY(th_cuda_run_conv(codec, &dilated));
        struct th_cuda_conv_job sum = th_cuda_conv_plain(&units[u].pointwise, rows, work->b, u < 2 ? work->x : NULL);
        sum.kind = TH_CUDA_CONV_SUM;
        sum.residual = work->x;
        th_cuda_conv_snake(&sum, u < 2 ? &units[u + 1].snake1 : after, work->a, u < 2 ? &units[u + 1].dilated : next);
        TH_CUDA_TRY(th_cuda_run_conv(codec, &sum));
    }
    return cudaSuccess;
}
