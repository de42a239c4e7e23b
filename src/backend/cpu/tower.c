/* tower.c - the layers that draw codes 1.. of a frame (docs/model.md, "Tower layer"). A row's label is the next row's frame; a
 * layer hands on only its normed output. */
#include "backend/cpu/lm.h"

struct embed_work {
    struct th_cpu *cpu;
    int t;
};

/* e = label's code in this layer's table, 0 for a label that is not speech; the first layer adds the input frame's other codes. */
static void embed_task(void *context, int begin, int end)
{
    const struct embed_work *at = context;
    const struct th_cpu *cpu = at->cpu;
    const struct th_config *config = &cpu->model->config;
    const struct th_tower_layer *layer = &cpu->model->tower[at->t];
    struct th_lm_work *work = &cpu->lm->work;
    const int hidden = config->tower.hidden, bf16 = th_lm_bf16(cpu),
              book = at->t < config->tower.shared_layers ? 0 : at->t - config->tower.shared_layers;
    for (int c = begin; c < end; c++) {
        const int32_t *label = TH_FAULT_IS(10) ? work->inputs[c] : work->labels[c];
        float *e = work->embedding + (size_t)c * (size_t)hidden, *joined = work->joined + (size_t)c * (size_t)(2 * hidden);
        memset(e, 0, (size_t)hidden * sizeof(float));
        if (th_config_is_semantic(config, label[0])) {
            int32_t code = label[1 + book];
            code = code < 0 ? 0 : code >= layer->table.rows ? layer->table.rows - 1 : code;
            const uint16_t *row = layer->table.data + (size_t)code * (size_t)hidden;
            for (int i = 0; i < hidden; i++) e[i] = th_bf16_to_float(row[i]);
        }
        if (at->t == 0) {
            th_lm_extra(cpu, work->inputs[c], joined); /* not in use yet */
            cpu->lm_kernels->add(e, joined, hidden, bf16, e);
        }
        cpu->lm_kernels->norm(e, layer->enorm, 1.0f, (float)config->tower.norm_eps, hidden, bf16, joined);
    }
}

static void attend(struct th_cpu *cpu, const struct th_lm_batch *batch, int t)
{
    const struct th_tower_config *config = &cpu->model->config.tower;
    const struct th_tower_layer *layer = &cpu->model->tower[t];
    struct th_lm_work *work = &cpu->lm->work;
    const int dim = config->head_dim, queries = config->heads * dim, keys = config->kv_heads * dim, width = 2 * queries + 2 * keys;
    struct th_product input = th_lm_product(cpu, &layer->wqkv, work->normed, batch->columns, work->query_gate);
    th_lm_products(cpu, &input, 1);
    struct th_lm_heads heads = {.heads = config->heads,
                                .kv_heads = config->kv_heads,
                                .head_dim = dim,
                                .query = work->query_gate,
                                .gate = work->query_gate + queries,
                                .key = work->query_gate + 2 * queries,
                                .value = work->query_gate + 2 * queries + keys,
                                .column_stride = width,
                                .head_stride = dim,
                                .kv_stride = width,
                                .q_norm = layer->q_norm,
                                .k_norm = layer->k_norm,
                                .k_norm_plus = 1.0f,
                                .eps = (float)config->norm_eps,
                                .rope = &cpu->lm->tower_rope,
                                .interleaved = !TH_FAULT_IS(3),
                                .round_sigmoid = 1,
                                .in_tower = 1,
                                .layer = t};
    th_lm_attend(cpu, batch, &heads);
    struct th_product output = th_lm_product(cpu, &layer->wo, work->attended, batch->columns, work->branch);
    th_lm_products(cpu, &output, 1);
}

static void feed_forward(struct th_cpu *cpu, int columns, int t)
{
    const struct th_tower_layer *layer = &cpu->model->tower[t];
    struct th_lm_work *work = &cpu->lm->work;
    struct th_product inputs[] = {th_lm_product(cpu, &layer->w1, work->normed, columns, work->gate),
                                  th_lm_product(cpu, &layer->w3, work->normed, columns, work->up)};
    th_lm_products(cpu, inputs, 2);
    th_lm_silu_rows(cpu, work->gate, work->up, columns, cpu->model->config.tower.inner);
    struct th_product output = th_lm_product(cpu, &layer->w2, work->gate, columns, work->branch);
    th_lm_products(cpu, &output, 1);
}

void th_lm_tower_layer(struct th_cpu *cpu, const struct th_lm_batch *batch, int t)
{
    const struct th_tower_config *config = &cpu->model->config.tower;
    const struct th_tower_layer *layer = &cpu->model->tower[t];
    struct th_lm_work *work = &cpu->lm->work;
    const int columns = batch->columns, hidden = config->hidden;
    const double eps = config->norm_eps;

    struct embed_work embed = {cpu, t};
    th_lm_each(cpu, columns, hidden * (t == 0 ? config->codebooks + 2 : 4), embed_task, &embed);
    th_lm_norm_rows(cpu, work->handed, layer->hnorm, eps, columns, work->joined + hidden, 2 * hidden);
    struct th_product join = th_lm_product(cpu, &layer->eh, work->joined, columns, work->residual);
    th_lm_products(cpu, &join, 1);

    th_lm_norm_rows(cpu, work->residual, layer->attention_norm, eps, columns, work->normed, hidden);
    attend(cpu, batch, t);
    th_lm_add_rows(cpu, work->residual, work->branch, columns, work->residual);

    th_lm_norm_rows(cpu, work->residual, layer->ffn_norm, eps, columns, work->normed, hidden);
    feed_forward(cpu, columns, t);
    th_lm_add_rows(cpu, work->residual, work->branch, columns, work->residual);
    th_lm_norm_rows(cpu, work->residual, layer->final_norm, eps, columns, work->handed, hidden);
    th_lm_probe(cpu, batch, "tower_layer", t, hidden, work->handed);
}

void th_lm_tower(struct th_cpu *cpu, const struct th_lm_batch *batch)
{
    for (int t = 0; t < th_lm_tower_layers(&cpu->model->config); t++) th_lm_tower_layer(cpu, batch, t);
}

void th_lm_code_logits(struct th_cpu *cpu, int head, const float *x, int columns, float *logits)
{
    struct th_product product = th_lm_product(cpu, &cpu->model->heads[head], x, columns, logits);
    th_lm_products(cpu, &product, 1);
}
