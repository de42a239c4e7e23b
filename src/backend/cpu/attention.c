/* attention.c - grouped-query attention with an output gate (docs/model.md, "Full attention layer"), for the backbone and the
 * tower. */
#include "backend/cpu/lm.h"

struct attention_work {
    struct th_cpu *cpu;
    const struct th_lm_batch *batch;
    const struct th_lm_heads *heads;
};

static const struct th_lm_span *span_of(const struct th_lm_batch *batch, int column)
{
    int low = 0, high = batch->span_count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (batch->spans[middle].column <= column)
            low = middle;
        else
            high = middle - 1;
    }
    return &batch->spans[low];
}

static const struct th_lm_cache *cache_of(const struct th_lm_span *span, const struct th_lm_heads *heads)
{
    return heads->in_tower ? &span->lane->tower[heads->layer] : &span->lane->backbone[heads->layer];
}

static void rotate(const struct th_lm_rope *rope, int position, int interleaved, int bf16, float *x)
{
    const float *cosine = rope->cosine + (size_t)position * (size_t)rope->pairs;
    const float *sine = rope->sine + (size_t)position * (size_t)rope->pairs;
    for (int i = 0; i < rope->pairs; i++) {
        float *a = interleaved ? &x[2 * i] : &x[i], *b = interleaved ? &x[2 * i + 1] : &x[i + rope->pairs];
        float turned = *a * cosine[i] - *b * sine[i];
        *b = th_lm_round(*b * cosine[i] + *a * sine[i], bf16);
        *a = th_lm_round(turned, bf16);
    }
}

/* One column: queries to work.query, key and value to their row of the lane's cache. */
static void place_column(const struct attention_work *at, int column)
{
    const struct th_lm_heads *heads = at->heads;
    const struct th_lm_kernels *kernels = at->cpu->lm_kernels;
    const int bf16 = th_lm_bf16(at->cpu), dim = heads->head_dim, width = heads->kv_heads * dim;
    const struct th_lm_span *span = span_of(at->batch, column);
    const int position = span->position + column - span->column;
    float *query = at->cpu->lm->work.query + (size_t)column * (size_t)(heads->heads * dim);
    for (int h = 0; h < heads->heads; h++, query += dim) {
        const float *raw = heads->query + (size_t)column * (size_t)heads->column_stride + (size_t)h * (size_t)heads->head_stride;
        kernels->norm(raw, heads->q_norm, 1.0f, heads->eps, dim, bf16, query);
        rotate(heads->rope, position, heads->interleaved, bf16, query);
    }
    const struct th_lm_cache *cache = cache_of(span, heads);
    const float *raw = heads->key + (size_t)column * (size_t)heads->kv_stride;
    float *key = cache->keys + (size_t)position * (size_t)width;
    for (int h = 0; h < heads->kv_heads; h++) {
        kernels->norm(raw + h * dim, heads->k_norm, heads->k_norm_plus, heads->eps, dim, bf16, key + h * dim);
        rotate(heads->rope, position, heads->interleaved, bf16, key + h * dim);
    }
    memcpy(cache->values + (size_t)position * (size_t)width, heads->value + (size_t)column * (size_t)heads->kv_stride,
           (size_t)width * sizeof(float));
}

static void place_task(void *context, int begin, int end)
{
    for (int column = begin; column < end; column++) place_column(context, column);
}

/* Item: one key head of one column. */
static void attend_task(void *context, int begin, int end)
{
    const struct attention_work *at = context;
    const struct th_lm_heads *heads = at->heads;
    const struct th_lm_kernels *kernels = at->cpu->lm_kernels;
    const struct th_lm_work *work = &at->cpu->lm->work;
    const int bf16 = th_lm_bf16(at->cpu), dim = heads->head_dim, group = heads->heads / heads->kv_heads;
    for (int item = begin; item < end; item++) {
        int column = item / heads->kv_heads, kv = item % heads->kv_heads;
        const struct th_lm_span *span = span_of(at->batch, column);
        const struct th_lm_cache *cache = cache_of(span, heads);
        size_t first = (size_t)column * (size_t)(heads->heads * dim) + (size_t)(kv * group * dim);
        struct th_attend attend = {.query = work->query + first,
                                   .keys = cache->keys + kv * dim,
                                   .values = cache->values + kv * dim,
                                   .stride = heads->kv_heads * dim,
                                   .rows = span->position + column - span->column + 1,
                                   .group = group,
                                   .head_dim = dim,
                                   .scale = 1.0f / sqrtf((float)dim),
                                   .out = work->attended + first};
        kernels->attend(&attend, bf16);
        for (int h = 0; h < group && !(TH_FAULT_IS(7) && !heads->in_tower); h++) {
            const float *gate =
                heads->gate + (size_t)column * (size_t)heads->column_stride + (size_t)(kv * group + h) * (size_t)heads->head_stride;
            kernels->sigmoid_mul(attend.out + h * dim, gate, dim, bf16, bf16 && heads->round_sigmoid, attend.out + h * dim);
        }
    }
}

void th_lm_attend(struct th_cpu *cpu, const struct th_lm_batch *batch, const struct th_lm_heads *heads)
{
    struct attention_work at = {cpu, batch, heads};
    int width = heads->heads * heads->head_dim, rows = 0;
    for (int i = 0; i < batch->span_count; i++) {
        int last = batch->spans[i].position + batch->spans[i].count;
        rows = last > rows ? last : rows;
    }
    th_lm_each(cpu, batch->columns, width * 2, place_task, &at);
    th_lm_each(cpu, batch->columns * heads->kv_heads, width / heads->kv_heads * (rows + 16) * 2, attend_task, &at);
}

void th_lm_attention(struct th_cpu *cpu, const struct th_lm_batch *batch, int layer)
{
    const struct th_backbone_config *config = &cpu->model->config.backbone;
    const struct th_attention_weights *weights = &cpu->model->layers[layer].attention;
    struct th_lm_work *work = &cpu->lm->work;
    const int dim = config->head_dim, columns = batch->columns;
    struct th_product inputs[] = {th_lm_product(cpu, &weights->q, work->normed, columns, work->query_gate),
                                  th_lm_product(cpu, &weights->k, work->normed, columns, work->key),
                                  th_lm_product(cpu, &weights->v, work->normed, columns, work->value)};
    th_lm_products(cpu, inputs, 3);

    const int apart = TH_FAULT_IS(1); /* queries and gates lie by turns, a head each */
    struct th_lm_heads heads = {.heads = config->heads,
                                .kv_heads = config->kv_heads,
                                .head_dim = dim,
                                .query = work->query_gate,
                                .gate = work->query_gate + (apart ? config->heads * dim : dim),
                                .key = work->key,
                                .value = work->value,
                                .column_stride = config->heads * 2 * dim,
                                .head_stride = apart ? dim : 2 * dim,
                                .kv_stride = config->kv_heads * dim,
                                .q_norm = weights->q_norm,
                                .k_norm = weights->k_norm,
                                .k_norm_plus = TH_FAULT_IS(4) ? 0.0f : 1.0f,
                                .eps = (float)config->norm_eps,
                                .rope = &cpu->lm->backbone_rope,
                                .interleaved = TH_FAULT_IS(2),
                                .round_sigmoid = 0,
                                .in_tower = 0,
                                .layer = layer};
    th_lm_attend(cpu, batch, &heads);
    struct th_product out = th_lm_product(cpu, &weights->o, work->attended, columns, work->branch);
    th_lm_products(cpu, &out, 1);
    for (int i = 0; TH_FAULT_IS(7) && i < columns * config->hidden; i++)
        work->branch[i] *= cpu->lm_kernels->sigmoid(
            heads.gate[(size_t)(i / config->hidden) * (size_t)heads.column_stride + (size_t)(i % config->hidden % dim)]);
}
