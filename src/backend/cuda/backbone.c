/* backbone.c - the network that scores the main token, in the order of docs/model.md: row input, layers, final norm, candidates. */
#include <math.h>

#include "backend/cuda/experts.h"
#include "backend/cuda/lm.h"
#include "backend/cuda/norm.h"
#include "backend/cuda/product.h"

static struct th_cuda_output store(void *out, int rows, int stride)
{
    return (struct th_cuda_output){.kind = TH_CUDA_STORE, .rows = rows, .out = out, .stride = stride};
}

static void *state_at(const struct th_cuda *cuda, size_t at)
{
    return cuda->state + at;
}

/* w over norm(stream): what a layer's two branches begin with. */
static struct th_cuda_product branch_input(const struct th_cuda *cuda, const struct th_cuda_batch *batch,
                                           const struct th_cuda_matrix *w, const float *norm)
{
    const struct th_backbone_config *config = &cuda->model->config.backbone;
    const struct th_cuda_forward *f = cuda->forward;
    return (struct th_cuda_product){.w = *w,
                                    .columns = batch->columns,
                                    .input = TH_CUDA_NORM,
                                    .x = f->stream,
                                    .x_stride = config->hidden,
                                    .norm = norm,
                                    .eps = (float)config->norm_eps,
                                    .normed = f->at->normed};
}

/* stream += w attended */
static thespis_status branch_output(struct th_cuda *cuda, const struct th_cuda_batch *batch, const struct th_cuda_matrix *w,
                                    int width, thespis_error *error)
{
    const int hidden = cuda->model->config.backbone.hidden;
    struct th_cuda_forward *f = cuda->forward;
    struct th_cuda_product out = {
        .w = *w,
        .columns = batch->columns,
        .input = TH_CUDA_PLAIN,
        .x = f->at->attended,
        .x_stride = width,
        .outputs = 1,
        .output = {{.kind = TH_CUDA_RESIDUAL, .rows = hidden, .out = f->stream, .stride = hidden}},
    };
    TH_CUDA(th_cuda_product(th_cuda_next(cuda), &out), "a branch's output", error);
    return THESPIS_OK;
}

/* ---- attention ------------------------------------------------------------------------------------------------------------------
 */

thespis_status th_cuda_attend(struct th_cuda *cuda, const struct th_cuda_batch *batch, struct th_cuda_attention *attention,
                              size_t cache_at, size_t cache_bytes, thespis_error *error)
{
    struct th_cuda_forward *f = cuda->forward;
    attention->pass = f->pass;
    attention->tower = batch->tower;
    attention->columns = batch->columns;
    attention->sequential = batch->sequential;
    attention->splits = batch->splits;
    attention->rows = f->at->rows;
    attention->row_stride = f->row_stride;
    attention->keys = state_at(cuda, cache_at);
    attention->values = state_at(cuda, cache_at + cache_bytes);
    attention->lane_stride = cuda->layout.stride;
    attention->partial = f->at->partial;
    attention->arrived = f->at->arrived;
    attention->out = f->at->attended;
    TH_CUDA(th_cuda_attention(th_cuda_next(cuda), attention), "attention", error);
    return THESPIS_OK;
}

static thespis_status attention_layer(struct th_cuda *cuda, const struct th_cuda_batch *batch, const struct th_cuda_layer *layer,
                                      thespis_error *error)
{
    const struct th_backbone_config *config = &cuda->model->config.backbone;
    struct th_cuda_forward *f = cuda->forward;
    const int dim = config->head_dim, queries = 2 * config->heads * dim, keys = config->kv_heads * dim;
    struct th_cuda_product in = branch_input(cuda, batch, &layer->in, layer->input_norm);
    in.outputs = 3;
    in.output[0] = store(f->at->rows, queries, f->row_stride);
    in.output[1] = store(f->at->rows + queries, keys, f->row_stride);
    in.output[2] = store(f->at->rows + queries + keys, keys, f->row_stride);
    TH_CUDA(th_cuda_product(th_cuda_next(cuda), &in), "queries, keys and values", error);
    struct th_cuda_attention attention = {.heads = config->heads,
                                          .kv_heads = config->kv_heads,
                                          .head_dim = dim,
                                          .query = 0,
                                          .gate = dim,
                                          .head_stride = 2 * dim,
                                          .key = queries,
                                          .value = queries + keys,
                                          .q_norm = layer->q_norm,
                                          .k_norm = layer->k_norm,
                                          .eps = (float)config->norm_eps,
                                          .cosine = f->backbone_rope.cosine,
                                          .sine = f->backbone_rope.sine,
                                          .pairs = f->backbone_rope.pairs};
    const struct th_cuda_state_layout *l = &cuda->layout;
    TH_TRY(th_cuda_attend(cuda, batch, &attention, l->backbone_at + 2 * (size_t)layer->state * l->backbone_bytes, l->backbone_bytes,
                          error));
    return branch_output(cuda, batch, &layer->out, config->heads * dim, error);
}

/* ---- Gated DeltaNet
 * --------------------------------------------------------------------------------------------------------------- */

static thespis_status delta_layer(struct th_cuda *cuda, const struct th_cuda_batch *batch, const struct th_cuda_layer *layer,
                                  thespis_error *error)
{
    const struct th_backbone_config *config = &cuda->model->config.backbone;
    struct th_cuda_forward *f = cuda->forward;
    const int values = config->value_heads * config->value_dim;
    struct th_cuda_product in = branch_input(cuda, batch, &layer->in, layer->input_norm);
    in.outputs = 4;
    in.output[0] = store(f->at->rows, cuda->channels, f->row_stride);
    in.output[1] = store(f->at->rows + cuda->channels, values, f->row_stride);
    in.output[2] = store(f->at->rows + cuda->channels + values, config->value_heads, f->row_stride);
    in.output[3] = store(f->at->rows + cuda->channels + values + config->value_heads, config->value_heads, f->row_stride);
    TH_CUDA(th_cuda_product(th_cuda_next(cuda), &in), "DeltaNet's inputs", error);
    const struct th_cuda_state_layout *l = &cuda->layout;
    struct th_cuda_deltanet deltanet = {.pass = f->pass,
                                        .columns = batch->columns,
                                        .sequential = batch->sequential,
                                        .key_heads = config->key_heads,
                                        .value_heads = config->value_heads,
                                        .dim = config->value_dim,
                                        .rows = f->at->rows,
                                        .row_stride = f->row_stride,
                                        .conv = layer->conv,
                                        .a_log = layer->a_log,
                                        .dt_bias = layer->dt_bias,
                                        .norm = layer->norm,
                                        .eps = (float)config->norm_eps,
                                        .delta = state_at(cuda, l->delta_at + (size_t)layer->state * l->delta_bytes),
                                        .ring = state_at(cuda, l->conv_at + (size_t)layer->state * l->conv_bytes),
                                        .lane_stride = l->stride,
                                        .scratch = f->scratch,
                                        .out = f->at->attended};
    TH_CUDA(th_cuda_deltanet(th_cuda_next(cuda), &deltanet), "DeltaNet", error);
    return branch_output(cuda, batch, &layer->out, values, error);
}

/* ---- mixture of experts
 * ----------------------------------------------------------------------------------------------------------- */

static thespis_status probe_routing(struct th_cuda *cuda, const struct th_cuda_batch *batch, int number, thespis_error *error)
{
    const struct th_backbone_config *config = &cuda->model->config.backbone;
    const struct th_cuda_forward *f = cuda->forward;
    const int hidden = config->hidden, top_k = config->top_k;
    if (cuda->probe == NULL) return THESPIS_OK;
    TH_TRY(th_cuda_probe(cuda, batch, "moe_input", number, hidden, TH_CUDA_BF16, f->at->normed, hidden, error));
    TH_TRY(th_cuda_probe(cuda, batch, "moe_router", number, config->experts, TH_CUDA_BF16, f->router, f->router_stride, error));
    TH_TRY(th_cuda_probe(cuda, batch, "moe_experts", number, top_k, TH_CUDA_I32, f->chosen, top_k, error));
    TH_TRY(th_cuda_probe(cuda, batch, "moe_weights", number, top_k, TH_CUDA_F32, f->weights, top_k, error));
    if (cuda->model->config.expert_format != TH_EXPERTS_FP8) return THESPIS_OK;
    TH_TRY(th_cuda_probe(cuda, batch, "moe_codes", number, hidden, TH_CUDA_U8, f->codes, hidden, error));
    const int blocks = (hidden + TH_EXPERT_BLOCK - 1) / TH_EXPERT_BLOCK;
    return th_cuda_probe(cuda, batch, "moe_scales", number, blocks, TH_CUDA_F32, f->scales, blocks, error);
}

thespis_status th_cuda_moe_layer(struct th_cuda *cuda, const struct th_cuda_batch *batch, int number, int alone,
                                 thespis_error *error)
{
    const struct th_backbone_config *config = &cuda->model->config.backbone;
    const struct th_cuda_layer *layer = &cuda->weights.layers[number];
    struct th_cuda_forward *f = cuda->forward;
    struct th_cuda_product in = branch_input(cuda, batch, &layer->moe_in, layer->post_norm);
    if (alone) {
        in.input = TH_CUDA_PLAIN;
        in.x = f->at->normed;
    }
    in.outputs = 3;
    in.output[0] = store(f->router, config->experts, f->router_stride);
    in.output[1] = (struct th_cuda_output){
        .kind = TH_CUDA_SILU, .rows = 2 * config->shared_inner, .out = f->at->inner, .stride = config->shared_inner};
    in.output[2] = (struct th_cuda_output){.kind = TH_CUDA_FLOAT, .rows = 1, .out = f->shared_open, .stride = 1};
    TH_CUDA(th_cuda_product(th_cuda_next(cuda), &in), "the router and the shared expert", error);
    struct th_cuda_moe moe = {.experts = layer->experts,
                              .shared_down = layer->shared_down,
                              .columns = batch->columns,
                              .top_k = config->top_k,
                              .count = &f->pass->backbone_count,
                              .x = f->at->normed,
                              .router = f->router,
                              .router_stride = f->router_stride,
                              .shared_act = f->at->inner,
                              .shared_open = f->shared_open,
                              .chosen = f->chosen,
                              .weights = f->weights,
                              .codes = f->codes,
                              .scales = f->scales,
                              .act = f->act,
                              .parts = f->parts,
                              .shared = f->shared,
                              .groups = f->groups,
                              .stream = alone ? NULL : f->stream,
                              .branch = alone ? f->branch : NULL};
    TH_CUDA(th_cuda_moe(th_cuda_next(cuda), &moe), "the experts", error);
    return probe_routing(cuda, batch, number, error);
}

/* ---- the whole ------------------------------------------------------------------------------------------------------------------
 */

thespis_status th_cuda_backbone_layer(struct th_cuda *cuda, const struct th_cuda_batch *batch, int number, thespis_error *error)
{
    const struct th_cuda_layer *layer = &cuda->weights.layers[number];
    TH_TRY(layer->full_attention ? attention_layer(cuda, batch, layer, error) : delta_layer(cuda, batch, layer, error));
    return th_cuda_moe_layer(cuda, batch, number, 0, error);
}

static thespis_status embed_rows(struct th_cuda *cuda, const struct th_cuda_batch *batch, int drawn, thespis_error *error)
{
    const struct th_config *config = &cuda->model->config;
    struct th_cuda_forward *f = cuda->forward;
    struct th_cuda_embed embed = {.pass = f->pass,
                                  .columns = batch->columns,
                                  .width = config->backbone.hidden,
                                  .books = config->tower.backbone_codebooks,
                                  .codebook_size = config->tower.codebook_size,
                                  .semantic_start = config->semantic_start,
                                  .semantic_end = config->semantic_end,
                                  .eos = config->eos,
                                  .drawn = drawn ? f->drawn : NULL,
                                  .scale = (float)(1.0 / sqrt(1.0 + config->tower.backbone_codebooks)),
                                  .embed = cuda->weights.embed,
                                  .code_embed = cuda->weights.code_embed,
                                  .stream = f->stream};
    TH_CUDA(th_cuda_embed(th_cuda_next(cuda), &embed), "row inputs", error);
    return THESPIS_OK;
}

thespis_status th_cuda_norm_rows(struct th_cuda *cuda, int columns, const uint16_t *x, const float *w, double eps, uint16_t *out,
                                 thespis_error *error)
{
    const int hidden = cuda->model->config.backbone.hidden;
    TH_CUDA(th_cuda_norm(th_cuda_next(cuda), x, hidden, w, (float)eps, hidden, columns, out, hidden), "a norm", error);
    return THESPIS_OK;
}

thespis_status th_cuda_backbone(struct th_cuda *cuda, const struct th_cuda_batch *batch, int drawn, thespis_error *error)
{
    const struct th_backbone_config *config = &cuda->model->config.backbone;
    struct th_cuda_forward *f = cuda->forward;
    TH_TRY(embed_rows(cuda, batch, drawn, error));
    TH_TRY(th_cuda_probe(cuda, batch, "embed", 0, config->hidden, TH_CUDA_BF16, f->stream, config->hidden, error));
    for (int layer = 0; layer < config->layers; layer++) {
        TH_TRY(th_cuda_backbone_layer(cuda, batch, layer, error));
        TH_TRY(th_cuda_probe(cuda, batch, "backbone_layer", layer, config->hidden, TH_CUDA_BF16, f->stream, config->hidden, error));
    }
    TH_TRY(th_cuda_norm_rows(cuda, batch->columns, f->stream, cuda->weights.final_norm, config->norm_eps, f->final, error));
    return th_cuda_probe(cuda, batch, "backbone_final", 0, config->hidden, TH_CUDA_BF16, f->final, config->hidden, error);
}

thespis_status th_cuda_candidate_logits(struct th_cuda *cuda, int columns, thespis_error *error)
{
    const struct th_config *config = &cuda->model->config;
    struct th_cuda_forward *f = cuda->forward;
    struct th_cuda_product head = {.w = cuda->weights.candidates,
                                   .columns = columns,
                                   .input = TH_CUDA_PLAIN,
                                   .x = f->handed,
                                   .x_stride = config->backbone.hidden,
                                   .outputs = 1,
                                   .output = {store(f->logits, config->candidates, f->logit_stride)}};
    TH_CUDA(th_cuda_product(th_cuda_next(cuda), &head), "the main head", error);
    return THESPIS_OK;
}
