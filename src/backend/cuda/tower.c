/* tower.c - the layers that draw codes 1.. of a frame (docs/model.md, "Tower layer"). A row's label is the next row's frame; a
 * layer hands on only its normed output, and that norm is made where it is read: by the layer's head, or by the next layer. */
#include "backend/cuda/lm.h"
#include "backend/cuda/norm.h"
#include "backend/cuda/product.h"

struct th_cuda_label th_cuda_label_of(const struct th_cuda *cuda, int t)
{
    const struct th_config *config = &cuda->model->config;
    const struct th_tower_config *tower = &config->tower;
    return (struct th_cuda_label){.pass = cuda->forward->pass,
                                  .width = tower->hidden,
                                  .book = t < tower->shared_layers ? 0 : t - tower->shared_layers,
                                  .first = t == 0 ? tower->backbone_codebooks + 1 : 0,
                                  .codebooks = tower->codebooks,
                                  .codebook_size = tower->codebook_size,
                                  .table_rows = tower->codebook_size,
                                  .semantic_start = config->semantic_start,
                                  .semantic_end = config->semantic_end,
                                  .table = cuda->weights.tower[t].table,
                                  .code_embed = cuda->weights.code_embed,
                                  .out = cuda->forward->label};
}

/* Layers that need no other code than code 0 have labels of their own, all made when it is drawn. */
int th_cuda_early_labels(const struct th_cuda *cuda)
{
    const int early = cuda->model->config.tower.shared_layers + 1; /* the first residual layer takes code 0 as well */
    return early <= TH_CUDA_LABELS ? early : 0;
}

/* Where layer t finds its labels. A prompt's are all known and made here; a frame's were made by the draw. */
static thespis_status find_labels(struct th_cuda *cuda, const struct th_cuda_batch *batch, int t, const uint16_t **label,
                                  thespis_error *error)
{
    const struct th_cuda_forward *f = cuda->forward;
    const int early = th_cuda_early_labels(cuda);
    *label = f->label;
    if (!batch->sequential && early > 0) {
        if (t < early) *label += (size_t)t * (size_t)f->capacity * (size_t)cuda->model->config.tower.hidden;
        return THESPIS_OK;
    }
    struct th_cuda_label make = th_cuda_label_of(cuda, t);
    make.columns = batch->columns;
    TH_CUDA(th_cuda_label(th_cuda_next(cuda), &make), "the tower's labels", error);
    return THESPIS_OK;
}

/* m = W_eh [norm(e; enorm) ; norm(h; hnorm)], which begins the layer's stream. */
static thespis_status join(struct th_cuda *cuda, const struct th_cuda_batch *batch, int t, int follow, thespis_error *error)
{
    const uint16_t *label;
    TH_TRY(find_labels(cuda, batch, t, &label, error));
    const struct th_tower_config *config = &cuda->model->config.tower;
    const struct th_cuda_tower_layer *layer = &cuda->weights.tower[t];
    struct th_cuda_forward *f = cuda->forward;
    struct th_cuda_product join = {
        .w = layer->eh,
        .columns = batch->columns,
        .input = TH_CUDA_JOIN,
        .x = label,
        .x_stride = config->hidden,
        .norm = layer->enorm,
        .x2 = follow ? f->tower[(t + 1) % 2] : f->handed,
        .x2_stride = config->hidden,
        .norm2 = layer->hnorm,
        .first2 = follow ? cuda->weights.tower[t - 1].final_norm : NULL,
        .eps = (float)config->norm_eps,
        .normed = f->at->normed,
        .first = follow ? f->handed : NULL,
        .outputs = 1,
        .output = {{.kind = TH_CUDA_STORE, .rows = config->hidden, .out = f->tower[t % 2], .stride = config->hidden}},
    };
    TH_CUDA(th_cuda_product(th_cuda_next(cuda), &join), "the tower's input", error);
    return THESPIS_OK;
}

/* w over norm(the layer's stream) */
static struct th_cuda_product branch_input(const struct th_cuda *cuda, const struct th_cuda_batch *batch, int t,
                                           const struct th_cuda_matrix *w, const float *norm, struct th_cuda_output output)
{
    const struct th_tower_config *config = &cuda->model->config.tower;
    struct th_cuda_forward *f = cuda->forward;
    return (struct th_cuda_product){.w = *w,
                                    .columns = batch->columns,
                                    .input = TH_CUDA_NORM,
                                    .x = f->tower[t % 2],
                                    .x_stride = config->hidden,
                                    .norm = norm,
                                    .eps = (float)config->norm_eps,
                                    .normed = f->at->normed,
                                    .outputs = 1,
                                    .output = {output}};
}

/* the layer's stream += w x */
static struct th_cuda_product branch_output(const struct th_cuda *cuda, const struct th_cuda_batch *batch, int t,
                                            const struct th_cuda_matrix *w, const uint16_t *x, int width)
{
    const int hidden = cuda->model->config.tower.hidden;
    return (struct th_cuda_product){
        .w = *w,
        .columns = batch->columns,
        .input = TH_CUDA_PLAIN,
        .x = x,
        .x_stride = width,
        .outputs = 1,
        .output = {{.kind = TH_CUDA_RESIDUAL, .rows = hidden, .out = cuda->forward->tower[t % 2], .stride = hidden}}};
}

static thespis_status attend(struct th_cuda *cuda, const struct th_cuda_batch *batch, int t, thespis_error *error)
{
    const struct th_tower_config *config = &cuda->model->config.tower;
    const struct th_cuda_tower_layer *layer = &cuda->weights.tower[t];
    struct th_cuda_forward *f = cuda->forward;
    const int dim = config->head_dim, queries = config->heads * dim, keys = config->kv_heads * dim;
    struct th_cuda_output rows = {
        .kind = TH_CUDA_STORE, .rows = 2 * queries + 2 * keys, .out = f->at->rows, .stride = f->row_stride};
    struct th_cuda_product in = branch_input(cuda, batch, t, &layer->wqkv, layer->attention_norm, rows);
    TH_CUDA(th_cuda_product(th_cuda_next(cuda), &in), "the tower's queries, keys and values", error);
    struct th_cuda_attention attention = {.heads = config->heads,
                                          .kv_heads = config->kv_heads,
                                          .head_dim = dim,
                                          .query = 0,
                                          .gate = queries,
                                          .head_stride = dim,
                                          .key = 2 * queries,
                                          .value = 2 * queries + keys,
                                          .q_norm = layer->q_norm,
                                          .k_norm = layer->k_norm,
                                          .eps = (float)config->norm_eps,
                                          .cosine = f->tower_rope.cosine,
                                          .sine = f->tower_rope.sine,
                                          .pairs = f->tower_rope.pairs};
    const struct th_cuda_state_layout *l = &cuda->layout;
    TH_TRY(th_cuda_attend(cuda, batch, &attention, l->tower_at + 2 * (size_t)t * l->tower_bytes, l->tower_bytes, error));
    struct th_cuda_product out = branch_output(cuda, batch, t, &layer->wo, f->at->attended, queries);
    TH_CUDA(th_cuda_product(th_cuda_next(cuda), &out), "the tower's attention output", error);
    return THESPIS_OK;
}

static thespis_status feed_forward(struct th_cuda *cuda, const struct th_cuda_batch *batch, int t, thespis_error *error)
{
    const struct th_tower_config *config = &cuda->model->config.tower;
    const struct th_cuda_tower_layer *layer = &cuda->weights.tower[t];
    struct th_cuda_forward *f = cuda->forward;
    struct th_cuda_output act = {.kind = TH_CUDA_SILU, .rows = 2 * config->inner, .out = f->at->inner, .stride = config->inner};
    struct th_cuda_product in = branch_input(cuda, batch, t, &layer->w13, layer->ffn_norm, act);
    TH_CUDA(th_cuda_product(th_cuda_next(cuda), &in), "the tower's gate and up", error);
    struct th_cuda_product out = branch_output(cuda, batch, t, &layer->w2, f->at->inner, config->inner);
    TH_CUDA(th_cuda_product(th_cuda_next(cuda), &out), "the tower's down", error);
    return THESPIS_OK;
}

thespis_status th_cuda_tower_layer(struct th_cuda *cuda, const struct th_cuda_batch *batch, int t, int follow, thespis_error *error)
{
    TH_TRY(join(cuda, batch, t, follow, error));
    TH_TRY(attend(cuda, batch, t, error));
    return feed_forward(cuda, batch, t, error);
}

thespis_status th_cuda_tower_hand_on(struct th_cuda *cuda, const struct th_cuda_batch *batch, int t, thespis_error *error)
{
    const struct th_tower_config *config = &cuda->model->config.tower;
    struct th_cuda_forward *f = cuda->forward;
    TH_TRY(th_cuda_norm_rows(cuda, batch->columns, f->tower[t % 2], cuda->weights.tower[t].final_norm, config->norm_eps, f->handed,
                             error));
    return th_cuda_probe(cuda, batch, "tower_layer", t, config->hidden, TH_CUDA_BF16, f->handed, config->hidden, error);
}

thespis_status th_cuda_tower(struct th_cuda *cuda, const struct th_cuda_batch *batch, thespis_error *error)
{
    for (int t = 0; t < cuda->tower_layers; t++) {
        TH_TRY(th_cuda_tower_layer(cuda, batch, t, t > 0 && cuda->probe == NULL, error));
        if (cuda->probe != NULL) TH_TRY(th_cuda_tower_hand_on(cuda, batch, t, error));
    }
    return THESPIS_OK;
}

thespis_status th_cuda_code_logits(struct th_cuda *cuda, int columns, int head, int norm, thespis_error *error)
{
    const struct th_tower_config *config = &cuda->model->config.tower;
    const int t = config->shared_layers + head;
    struct th_cuda_forward *f = cuda->forward;
    struct th_cuda_product product = {
        .w = cuda->weights.heads[head],
        .columns = columns,
        .input = norm ? TH_CUDA_NORM : TH_CUDA_PLAIN,
        .x = norm ? f->tower[t % 2] : f->handed,
        .x_stride = config->hidden,
        .norm = cuda->weights.tower[t].final_norm,
        .eps = (float)config->norm_eps,
        .normed = f->handed,
        .outputs = 1,
        .output = {{.kind = TH_CUDA_STORE, .rows = config->codebook_size, .out = f->logits, .stride = f->logit_stride}}};
    TH_CUDA(th_cuda_product(th_cuda_next(cuda), &product), "a code head", error);
    return THESPIS_OK;
}
