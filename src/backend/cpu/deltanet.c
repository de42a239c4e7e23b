/* deltanet.c - a Gated DeltaNet layer (docs/model.md, "Gated DeltaNet layer"), row by row for prompts and frames alike. */
#include "backend/cpu/lm.h"

struct delta_work {
    struct th_cpu *cpu;
    const struct th_lm_batch *batch;
    const struct th_backbone_config *config;
    const struct th_deltanet_weights *weights;
    int layer, channels, key_width, value_width;
};

/* Row t of the convolution's inputs: of this batch, or from the state when t < 0. */
static const float *conv_input(const struct delta_work *at, const struct th_lm_span *span, int t)
{
    if (t >= 0) return at->cpu->lm->work.qkv + (size_t)(span->column + t) * (size_t)at->channels;
    return span->lane->delta[at->layer].conv + (size_t)(at->config->conv_width - 1 + t) * (size_t)at->channels;
}

#define CONV_SLICE 256 /* channels that a thread takes at a time */
#define CONV_MOST 16   /* taps */

/* Item: a slice of channels of one span; the state moves on with the slice. */
static void convolve_slice(const struct delta_work *at, const struct th_lm_span *span, int first)
{
    const int width = at->config->conv_width, kept = width - 1;
    const int n = at->channels - first < CONV_SLICE ? at->channels - first : CONV_SLICE;
    for (int t = 0; t < span->count; t++) {
        const float *inputs[CONV_MOST];
        for (int j = 0; j < width; j++) inputs[j] = conv_input(at, span, t - kept + j) + first;
        at->cpu->lm_kernels->convolve(inputs, at->cpu->lm->conv_taps[at->layer] + first, width, at->channels, n,
                                      th_lm_bf16(at->cpu),
                                      at->cpu->lm->work.mixed + (size_t)(span->column + t) * (size_t)at->channels + (size_t)first);
    }
    if (TH_FAULT_IS(8) && span->count == 1) return;
    float *state = span->lane->delta[at->layer].conv + first;
    for (int j = 0; j < kept; j++) /* oldest first: a source that is still in the state lies after its target */
        memcpy(state + (size_t)j * (size_t)at->channels, conv_input(at, span, span->count - kept + j) + first,
               (size_t)n * sizeof(float));
}

static void convolve_task(void *context, int begin, int end)
{
    const struct delta_work *at = context;
    int slices = (at->channels + CONV_SLICE - 1) / CONV_SLICE;
    for (int item = begin; item < end; item++) convolve_slice(at, &at->batch->spans[item / slices], item % slices * CONV_SLICE);
}

/* Unit queries (scaled) and keys, and the gates, of each column. */
static void prepare_task(void *context, int begin, int end)
{
    const struct delta_work *at = context;
    const struct th_backbone_config *config = at->config;
    const struct th_lm_kernels *kernels = at->cpu->lm_kernels;
    struct th_lm_work *work = &at->cpu->lm->work;
    for (int c = begin; c < end; c++) {
        float *query = work->mixed + (size_t)c * (size_t)at->channels, *key = query + at->key_width;
        for (int h = 0; h < config->key_heads; h++) {
            kernels->unit(query + h * config->key_dim, 1.0f / sqrtf((float)config->key_dim), config->key_dim,
                          query + h * config->key_dim);
            kernels->unit(key + h * config->key_dim, 1.0f, config->key_dim, key + h * config->key_dim);
        }
        size_t gates = (size_t)c * (size_t)config->value_heads;
        kernels->delta_gates(work->a + gates, work->b + gates, at->weights->a_log, at->weights->dt_bias, config->value_heads,
                             th_lm_bf16(at->cpu) && !TH_FAULT_IS(13), work->decay + gates, work->beta + gates);
    }
}

/* Item: one value head of one span, all its rows. */
static void recur_task(void *context, int begin, int end)
{
    const struct delta_work *at = context;
    const struct th_backbone_config *config = at->config;
    struct th_lm_work *work = &at->cpu->lm->work;
    const int heads = config->value_heads, tiles = (config->value_dim + TH_DELTA_TILE - 1) / TH_DELTA_TILE;
    for (int item = begin; item < end; item++) {
        const struct th_lm_span *span = &at->batch->spans[item / heads];
        int head = item % heads, key_head = TH_FAULT_IS(11) ? head % config->key_heads : head / (heads / config->key_heads);
        const float *mixed = work->mixed + (size_t)span->column * (size_t)at->channels;
        size_t gate = (size_t)span->column * (size_t)heads + (size_t)head;
        struct th_delta delta = {
            .state = span->lane->delta[at->layer].heads + (size_t)head * (size_t)(tiles * config->key_dim * TH_DELTA_TILE),
            .query = mixed + key_head * config->key_dim,
            .key = mixed + at->key_width + key_head * config->key_dim,
            .value = mixed + 2 * at->key_width + head * config->value_dim,
            .decay = work->decay + gate,
            .beta = work->beta + gate,
            .out = work->delta_out + (size_t)span->column * (size_t)at->value_width + (size_t)(head * config->value_dim),
            .rows = span->count,
            .key_dim = config->key_dim,
            .value_dim = config->value_dim,
            .stride = at->channels,
            .gate_stride = heads,
            .out_stride = at->value_width,
            .bf16 = th_lm_bf16(at->cpu)};
        at->cpu->lm_kernels->delta(&delta);
        for (int t = 0; t < span->count; t++) {
            float *out = delta.out + (size_t)t * (size_t)at->value_width;
            const float *z = work->z + (out - work->delta_out);
            at->cpu->lm_kernels->gated_norm(out, at->weights->norm, z, (float)config->norm_eps, config->value_dim,
                                            th_lm_bf16(at->cpu), out);
        }
    }
}

void th_lm_deltanet(struct th_cpu *cpu, const struct th_lm_batch *batch, int layer)
{
    const struct th_backbone_config *config = &cpu->model->config.backbone;
    const struct th_deltanet_weights *weights = &cpu->model->layers[layer].deltanet;
    struct th_lm_work *work = &cpu->lm->work;
    const int columns = batch->columns;
    struct delta_work at = {.cpu = cpu,
                            .batch = batch,
                            .config = config,
                            .weights = weights,
                            .layer = layer,
                            .channels = th_lm_channels(config),
                            .key_width = config->key_heads * config->key_dim,
                            .value_width = config->value_heads * config->value_dim};

    struct th_product inputs[] = {th_lm_product(cpu, &weights->qkv, work->normed, columns, work->qkv),
                                  th_lm_product(cpu, &weights->z, work->normed, columns, work->z),
                                  th_lm_product(cpu, &weights->b, work->normed, columns, work->b),
                                  th_lm_product(cpu, &weights->a, work->normed, columns, work->a)};
    th_lm_products(cpu, inputs, 4);
    int rows = columns / batch->span_count; /* of a span: one, or all */
    int slices = (at.channels + CONV_SLICE - 1) / CONV_SLICE;
    th_lm_each(cpu, batch->span_count * slices, CONV_SLICE * 16 * rows, convolve_task, &at);
    th_lm_each(cpu, columns, at.key_width * 4, prepare_task, &at);
    th_lm_each(cpu, batch->span_count * config->value_heads, rows * config->key_dim * config->value_dim * 2, recur_task, &at);
    struct th_product out = th_lm_product(cpu, &weights->out, work->delta_out, columns, work->branch);
    th_lm_products(cpu, &out, 1);
}
