/* backbone.c - the network that scores the main token, in the order of docs/model.md: row input, layers, final norm, candidates. */
#include "backend/cpu/lm.h"

static int clamp_code(const struct th_config *config, int32_t code)
{
    return code < 0 ? 0 : code >= config->tower.codebook_size ? config->tower.codebook_size - 1 : code;
}

static const uint16_t *code_embedding(const struct th_model *model, int book, int32_t code)
{
    size_t row = (size_t)book * (size_t)model->config.tower.codebook_size + (size_t)clamp_code(&model->config, code);
    return model->code_embed.data + row * (size_t)model->code_embed.cols;
}

/* x = sum of the embeddings of codes first..last of the frame, rounded once; 32-bit sums in the order of the books. */
static void sum_codes(const struct th_cpu *cpu, const int32_t *frame, int first, int last, float *x)
{
    const struct th_model *model = cpu->model;
    const int hidden = model->config.backbone.hidden, bf16 = th_lm_bf16(cpu);
    for (int i = 0; i < hidden; i++) x[i] = 0.0f;
    for (int j = first; j <= last; j++) {
        const uint16_t *row = code_embedding(model, j, frame[1 + j]);
        for (int i = 0; i < hidden; i++) x[i] += th_bf16_to_float(row[i]);
    }
    for (int i = 0; i < hidden; i++) x[i] = th_lm_round(x[i], bf16);
}

void th_lm_embed(const struct th_cpu *cpu, const int32_t *frame, float *x)
{
    const struct th_config *config = &cpu->model->config;
    const int hidden = config->backbone.hidden, bf16 = th_lm_bf16(cpu), books = config->tower.backbone_codebooks;
    const uint16_t *row = cpu->model->embed.data + (size_t)frame[0] * (size_t)hidden;
    if (!th_config_is_semantic(config, frame[0])) {
        for (int i = 0; i < hidden; i++) x[i] = th_bf16_to_float(row[i]);
        return;
    }
    const float scale = (float)(1.0 / sqrt(1.0 + books));
    sum_codes(cpu, frame, 1, books, x);
    for (int i = 0; i < hidden; i++) x[i] = th_lm_round(th_lm_round(th_bf16_to_float(row[i]) + x[i], bf16) * scale, bf16);
}

void th_lm_extra(const struct th_cpu *cpu, const int32_t *frame, float *x)
{
    const struct th_config *config = &cpu->model->config;
    if (th_config_is_semantic(config, frame[0]) || TH_FAULT_IS(9))
        sum_codes(cpu, frame, config->tower.backbone_codebooks + 1, config->tower.codebooks - 1, x);
    else
        memset(x, 0, (size_t)config->backbone.hidden * sizeof(float));
}

void th_lm_backbone_layer(struct th_cpu *cpu, const struct th_lm_batch *batch, int layer)
{
    const struct th_backbone_config *config = &cpu->model->config.backbone;
    const struct th_backbone_layer *weights = &cpu->model->layers[layer];
    struct th_lm_work *work = &cpu->lm->work;
    const int columns = batch->columns;

    th_lm_norm_rows(cpu, work->residual, weights->input_norm, config->norm_eps, columns, work->normed, config->hidden);
    if (weights->is_full_attention)
        th_lm_attention(cpu, batch, layer);
    else
        th_lm_deltanet(cpu, batch, layer);
    th_lm_add_rows(cpu, work->residual, work->branch, columns, work->residual);

    th_lm_norm_rows(cpu, work->residual, weights->post_norm, config->norm_eps, columns, work->normed, config->hidden);
    th_lm_moe(cpu, batch, layer);
    th_lm_add_rows(cpu, work->residual, work->branch, columns, work->residual);
}

void th_lm_backbone(struct th_cpu *cpu, const struct th_lm_batch *batch)
{
    const struct th_config *config = &cpu->model->config;
    struct th_lm_work *work = &cpu->lm->work;
    const int hidden = config->backbone.hidden;
    for (int c = 0; c < batch->columns; c++)
        th_lm_embed(cpu, work->frames + (size_t)c * (size_t)config->frame_width, work->residual + (size_t)c * (size_t)hidden);
    th_lm_probe(cpu, batch, "embed", 0, hidden, work->residual);
    for (int layer = 0; layer < config->backbone.layers; layer++) {
        th_lm_backbone_layer(cpu, batch, layer);
        th_lm_probe(cpu, batch, "backbone_layer", layer, hidden, work->residual);
    }
    th_lm_norm_rows(cpu, work->residual, cpu->model->final_norm, config->backbone.norm_eps, batch->columns, work->final, hidden);
    th_lm_probe(cpu, batch, "backbone_final", 0, hidden, work->final);
}

/* The candidates are two runs of lm_head's rows: end of speech and the band, whichever id is lower first. */
void th_lm_candidate_logits(struct th_cpu *cpu, const float *final, int columns, float *logits)
{
    const struct th_config *config = &cpu->model->config;
    const struct th_matrix *head = &cpu->model->lm_head;
    const int eos_first = config->eos < config->semantic_start, band = config->candidates - 1;
    struct th_matrix eos = {head->data + (size_t)config->eos * (size_t)head->cols, 1, head->cols};
    struct th_matrix semantic = {head->data + (size_t)config->semantic_start * (size_t)head->cols, band, head->cols};
    struct th_product products[] = {th_lm_product(cpu, &eos, final, columns, logits + (eos_first ? 0 : band)),
                                    th_lm_product(cpu, &semantic, final, columns, logits + (eos_first ? 1 : 0))};
    products[0].y_stride = products[1].y_stride = config->candidates;
    th_lm_products(cpu, products, 2);
}
