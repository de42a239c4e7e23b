/* model_network.c - the network's tensors in the order of the forward pass: for each, its name, shape and place in the model. */
#include <math.h>
#include <string.h>

#include "checkpoint/model_loader.h"

/* ---- routed experts ---------------------------------------------------------------------------------------------------------- */

/* How the experts of one layer lie in memory. gate and up are [inner, hidden], down is [hidden, inner]. */
struct expert_shape {
    int experts, inner, hidden;
    int fp8;
    size_t blocks; /* of one matrix: ceil(inner / 128) * ceil(hidden / 128) */
};

static int64_t blocks_of(int size)
{
    return ((int64_t)size + TH_EXPERT_BLOCK - 1) / TH_EXPERT_BLOCK;
}

static struct expert_shape expert_shape(const struct th_config *config)
{
    struct expert_shape shape = {.experts = config->backbone.experts, .inner = config->backbone.expert_inner};
    shape.hidden = config->backbone.hidden;
    shape.fp8 = config->expert_format == TH_EXPERTS_FP8;
    shape.blocks = (size_t)(blocks_of(shape.inner) * blocks_of(shape.hidden));
    return shape;
}

/* rows x cols values, `skip` values behind the tensor's first. */
static struct th_expert_matrix expert_view(const struct th_tensor *tensor, size_t skip, int rows, int cols)
{
    struct th_expert_matrix view = {.rows = rows, .cols = cols};
    if (tensor->dtype == TH_E4M3)
        view.codes = (const uint8_t *)tensor->data + skip;
    else
        view.bf16 = (const uint16_t *)tensor->data + skip;
    return view;
}

static thespis_status take_weight(const struct th_scope *scope, const char *suffix, int rank, const int64_t *dims,
                                  const struct expert_shape *shape, const struct th_tensor **tensor)
{
    return th_scope_take(scope, suffix, shape->fp8 ? TH_IS_E4M3 : TH_IS_BF16, rank, dims, tensor);
}

/* Room for the scales of `matrices` matrices of every expert. */
static thespis_status own_scales(struct th_loader *loader, const struct expert_shape *shape, size_t matrices, float **scales)
{
    size_t each = matrices * shape->blocks * sizeof **scales;
    return th_loader_own(loader, (size_t)shape->experts, each, "the experts' scales", (void **)scales);
}

/* The scales of one tensor, widened to `scales`. */
static thespis_status take_scales(const struct th_scope *scope, const char *suffix, int rank, const int64_t *dims, float *scales)
{
    const struct th_tensor *tensor;
    TH_TRY(th_scope_take(scope, suffix, TH_IS_REAL, rank, dims, &tensor));
    size_t count = tensor->bytes / th_dtype_size(tensor->dtype);
    th_tensor_floats(tensor, scales);
    for (size_t i = 0; i < count; i++)
        if (!isfinite(scales[i]))
            return th_fail(scope->loader->error, THESPIS_FORMAT, "tensor '%s' holds a scale that is not finite (number %zu: %g)",
                           tensor->name, i, (double)scales[i]);
    th_sha256_add(&scope->loader->hash, scales, count * sizeof *scales);
    return THESPIS_OK;
}

/* Layout with one tensor for all gates and ups, one for all downs. */
static thespis_status take_stacked(const struct th_scope *scope, const struct expert_shape *shape, struct th_expert **experts)
{
    const struct th_tensor *gate_up, *down;
    int64_t count = shape->experts, inner = shape->inner, hidden = shape->hidden;
    TH_TRY(take_weight(scope, "gate_up_proj", 3, (int64_t[]){count, 2 * inner, hidden}, shape, &gate_up));
    TH_TRY(take_weight(scope, "down_proj", 3, (int64_t[]){count, hidden, inner}, shape, &down));
    TH_TRY(TH_OWN(scope->loader, experts, (size_t)count, "the experts"));
    size_t size = (size_t)(inner * hidden);
    for (size_t e = 0; e < (size_t)count; e++) {
        (*experts)[e].gate = expert_view(gate_up, 2 * e * size, shape->inner, shape->hidden);
        (*experts)[e].up = expert_view(gate_up, (2 * e + 1) * size, shape->inner, shape->hidden);
        (*experts)[e].down = expert_view(down, e * size, shape->hidden, shape->inner);
    }
    return THESPIS_OK;
}

static thespis_status take_stacked_scales(const struct th_scope *scope, const struct expert_shape *shape, struct th_expert *experts)
{
    const int64_t count = shape->experts, inner = blocks_of(shape->inner), hidden = blocks_of(shape->hidden);
    float *gate_up, *down; /* [experts][gate | up][blocks], [experts][blocks] */
    TH_TRY(own_scales(scope->loader, shape, 2, &gate_up));
    TH_TRY(own_scales(scope->loader, shape, 1, &down));
    for (size_t e = 0; e < (size_t)count; e++) {
        experts[e].gate.scales = gate_up + 2 * e * shape->blocks;
        experts[e].up.scales = gate_up + (2 * e + 1) * shape->blocks;
        experts[e].down.scales = down + e * shape->blocks;
    }
    TH_TRY(take_scales(scope, "gate_up_proj_scale_inv", 3, (int64_t[]){count, 2 * inner, hidden}, gate_up));
    return take_scales(scope, "down_proj_scale_inv", 3, (int64_t[]){count, hidden, inner}, down);
}

/* ... and with three tensors for each expert. */
static thespis_status take_expert(const struct th_scope *scope, const struct expert_shape *shape, struct th_expert *expert)
{
    const struct th_tensor *gate, *up, *down;
    const int64_t wide[] = {shape->inner, shape->hidden}, tall[] = {shape->hidden, shape->inner};
    TH_TRY(take_weight(scope, "gate_proj.weight", 2, wide, shape, &gate));
    TH_TRY(take_weight(scope, "up_proj.weight", 2, wide, shape, &up));
    TH_TRY(take_weight(scope, "down_proj.weight", 2, tall, shape, &down));
    expert->gate = expert_view(gate, 0, shape->inner, shape->hidden);
    expert->up = expert_view(up, 0, shape->inner, shape->hidden);
    expert->down = expert_view(down, 0, shape->hidden, shape->inner);
    return THESPIS_OK;
}

/* A count from the configuration that no set of this many tensors can satisfy must not size memory. */
static thespis_status check_count(const struct th_loader *loader, const char *what, int count)
{
    if ((size_t)count <= loader->count) return THESPIS_OK;
    return th_fail(loader->error, THESPIS_FORMAT, "'%.200s': config.json says %s is %d, but the checkpoint has %zu tensors in all",
                   loader->folder, what, count, loader->count);
}

static thespis_status take_separate(const struct th_scope *scope, const struct expert_shape *shape, struct th_expert **experts)
{
    struct th_loader *loader = scope->loader;
    TH_TRY(check_count(loader, "text_config.num_experts", shape->experts));
    TH_TRY(TH_OWN(loader, experts, (size_t)shape->experts, "the experts"));
    for (int e = 0; e < shape->experts; e++) {
        struct th_scope expert = th_scope_make(loader, "%s%d.", scope->prefix, e);
        TH_TRY(take_expert(&expert, shape, &(*experts)[e]));
    }
    return THESPIS_OK;
}

static thespis_status take_separate_scales(const struct th_scope *scope, const struct expert_shape *shape,
                                           struct th_expert *experts)
{
    const int64_t inner = blocks_of(shape->inner), hidden = blocks_of(shape->hidden);
    const int64_t wide[] = {inner, hidden}, tall[] = {hidden, inner};
    float *scales; /* [experts][gate | up | down][blocks] */
    TH_TRY(own_scales(scope->loader, shape, 3, &scales));
    for (int e = 0; e < shape->experts; e++, scales += 3 * shape->blocks) {
        struct th_scope expert = th_scope_make(scope->loader, "%s%d.", scope->prefix, e);
        experts[e].gate.scales = scales;
        experts[e].up.scales = scales + shape->blocks;
        experts[e].down.scales = scales + 2 * shape->blocks;
        TH_TRY(take_scales(&expert, "gate_proj.weight_scale_inv", 2, wide, scales));
        TH_TRY(take_scales(&expert, "up_proj.weight_scale_inv", 2, wide, scales + shape->blocks));
        TH_TRY(take_scales(&expert, "down_proj.weight_scale_inv", 2, tall, scales + 2 * shape->blocks));
    }
    return THESPIS_OK;
}

/* Weights first: once their shapes are known to be right, the number of scales is bounded by the file's size. */
static thespis_status take_experts(const struct th_scope *scope, const struct th_config *config, struct th_expert **experts)
{
    const struct expert_shape shape = expert_shape(config);
    int stacked = th_scope_has(scope, "gate_up_proj");
    TH_TRY(stacked ? take_stacked(scope, &shape, experts) : take_separate(scope, &shape, experts));
    if (!shape.fp8) return THESPIS_OK;
    return stacked ? take_stacked_scales(scope, &shape, *experts) : take_separate_scales(scope, &shape, *experts);
}

/* ---- backbone ---------------------------------------------------------------------------------------------------------------- */

static thespis_status take_moe(const struct th_scope *layer, const struct th_config *config, struct th_moe_weights *moe)
{
    const struct th_backbone_config *b = &config->backbone;
    const int hidden = b->hidden, shared = b->shared_inner;
    const struct th_matrix_rule matrices[] = {
        {"mlp.gate.weight", b->experts, hidden, &moe->router},
        {"mlp.shared_expert.gate_proj.weight", shared, hidden, &moe->shared_gate},
        {"mlp.shared_expert.up_proj.weight", shared, hidden, &moe->shared_up},
        {"mlp.shared_expert.down_proj.weight", hidden, shared, &moe->shared_down},
        {"mlp.shared_expert_gate.weight", 1, hidden, &moe->shared_expert_gate},
    };
    struct th_scope experts = th_scope_make(layer->loader, "%smlp.experts.", layer->prefix);
    TH_TRY(th_scope_matrices(layer, matrices, TH_COUNT(matrices)));
    return take_experts(&experts, config, &moe->experts);
}

/* The reference holds dt_bias in bf16 whatever the file says: round to nearest, ties to even. */
static float round_to_bf16(float value)
{
    uint32_t bits;
    if (isnan(value)) return value;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

static thespis_status take_deltanet(const struct th_scope *layer, const struct th_backbone_config *b, struct th_deltanet_weights *d)
{
    const int hidden = b->hidden, heads = b->value_heads, values = heads * b->value_dim;
    const int channels = 2 * b->key_heads * b->key_dim + values;
    const struct th_matrix_rule matrices[] = {
        {"linear_attn.in_proj_qkv.weight", channels, hidden, &d->qkv}, {"linear_attn.in_proj_z.weight", values, hidden, &d->z},
        {"linear_attn.in_proj_b.weight", heads, hidden, &d->b},        {"linear_attn.in_proj_a.weight", heads, hidden, &d->a},
        {"linear_attn.out_proj.weight", hidden, values, &d->out},
    };
    const struct th_vector_rule vectors[] = {
        {"linear_attn.A_log", heads, &d->a_log},
        {"linear_attn.norm.weight", b->value_dim, &d->norm},
    };
    float *conv, *dt_bias;
    TH_TRY(th_scope_matrices(layer, matrices, TH_COUNT(matrices)));
    TH_TRY(th_scope_vectors(layer, vectors, TH_COUNT(vectors)));
    TH_TRY(th_scope_floats(layer, "linear_attn.conv1d.weight", 3, (int64_t[]){channels, 1, b->conv_width}, &conv));
    TH_TRY(th_scope_floats(layer, "linear_attn.dt_bias", 1, (int64_t[]){heads}, &dt_bias));
    for (int i = 0; i < heads; i++) dt_bias[i] = round_to_bf16(dt_bias[i]);
    d->conv = conv;
    d->dt_bias = dt_bias;
    return THESPIS_OK;
}

static thespis_status take_attention(const struct th_scope *layer, const struct th_backbone_config *b,
                                     struct th_attention_weights *a)
{
    const int hidden = b->hidden, queries = b->heads * b->head_dim, keys = b->kv_heads * b->head_dim;
    const struct th_matrix_rule matrices[] = {
        {"self_attn.q_proj.weight", 2 * queries, hidden, &a->q},
        {"self_attn.k_proj.weight", keys, hidden, &a->k},
        {"self_attn.v_proj.weight", keys, hidden, &a->v},
        {"self_attn.o_proj.weight", hidden, queries, &a->o},
    };
    const struct th_vector_rule vectors[] = {
        {"self_attn.q_norm.weight", b->head_dim, &a->q_norm},
        {"self_attn.k_norm.weight", b->head_dim, &a->k_norm},
    };
    TH_TRY(th_scope_matrices(layer, matrices, TH_COUNT(matrices)));
    return th_scope_vectors(layer, vectors, TH_COUNT(vectors));
}

static thespis_status take_backbone_layer(struct th_loader *loader, int i, struct th_backbone_layer *layer)
{
    const struct th_config *config = &loader->model->config;
    const int hidden = config->backbone.hidden;
    struct th_scope scope = th_scope_make(loader, "model.language_model.layers.%d.", i);
    const struct th_vector_rule norms[] = {
        {"input_layernorm.weight", hidden, &layer->input_norm},
        {"post_attention_layernorm.weight", hidden, &layer->post_norm},
    };
    layer->is_full_attention = th_config_is_full_attention(config, i);
    TH_TRY(th_scope_vectors(&scope, norms, TH_COUNT(norms)));
    if (layer->is_full_attention)
        TH_TRY(take_attention(&scope, &config->backbone, &layer->attention));
    else
        TH_TRY(take_deltanet(&scope, &config->backbone, &layer->deltanet));
    return take_moe(&scope, config, &layer->moe);
}

/* lm_head may have fewer rows than the vocabulary, as only the candidates' are used. */
static thespis_status take_lm_head(struct th_loader *loader)
{
    static const char name[] = "lm_head.weight";
    const struct th_config *config = &loader->model->config;
    struct th_scope scope = th_scope_make(loader, "%s", "");
    const struct th_entry *entry = th_loader_find(loader, name);
    const int needed = th_config_candidate_token(config, config->candidates - 1) + 1;
    int rows = config->backbone.vocab;
    if (entry != NULL && entry->tensor->rank == 2) {
        int64_t has = entry->tensor->shape[0];
        if (has < needed || has > INT32_MAX)
            return th_fail(loader->error, THESPIS_FORMAT,
                           "'%.150s': tensor '%s' has %lld rows, the candidates' ids need at least %d", entry->shard->path, name,
                           (long long)has, needed);
        rows = (int)has;
    }
    return th_scope_matrix(&scope, name, rows, config->backbone.hidden, &loader->model->lm_head);
}

static thespis_status take_backbone(struct th_loader *loader)
{
    struct th_model *model = loader->model;
    const struct th_backbone_config *b = &model->config.backbone;
    struct th_scope scope = th_scope_make(loader, "model.language_model.");
    const struct th_vector_rule norm = {"norm.weight", b->hidden, &model->final_norm};
    TH_TRY(th_scope_matrix(&scope, "embed_tokens.weight", b->vocab, b->hidden, &model->embed));
    TH_TRY(check_count(loader, "text_config.num_hidden_layers", b->layers));
    TH_TRY(TH_OWN(loader, &model->layers, (size_t)b->layers, "the layers"));
    for (int i = 0; i < b->layers; i++) TH_TRY(take_backbone_layer(loader, i, &model->layers[i]));
    TH_TRY(th_scope_vectors(&scope, &norm, 1));
    return take_lm_head(loader);
}

/* ---- tower ------------------------------------------------------------------------------------------------------------------- */

/* Shared layers call their table of codes semantic, residual ones codebook; either stack may use the other's word. */
static const char *table_name(const struct th_scope *scope, int is_shared)
{
    static const char semantic[] = "semantic_embedding.weight", codebook[] = "codebook_embedding.weight";
    const char *own = is_shared ? semantic : codebook, *other = is_shared ? codebook : semantic;
    return !th_scope_has(scope, own) && th_scope_has(scope, other) ? other : own;
}

static thespis_status take_tower_layer(const struct th_scope *scope, const char *table, const struct th_tower_config *t,
                                       struct th_tower_layer *layer)
{
    const int hidden = t->hidden, queries = t->heads * t->head_dim, keys = t->kv_heads * t->head_dim;
    const struct th_matrix_rule matrices[] = {
        {table, t->codebook_size, hidden, &layer->table},
        {"eh_proj.weight", hidden, 2 * hidden, &layer->eh},
        {"transformer_layer.attention.wqkv.weight", 2 * queries + 2 * keys, hidden, &layer->wqkv},
        {"transformer_layer.attention.wo.weight", hidden, queries, &layer->wo},
        {"transformer_layer.feed_forward.w1.weight", t->inner, hidden, &layer->w1},
        {"transformer_layer.feed_forward.w3.weight", t->inner, hidden, &layer->w3},
        {"transformer_layer.feed_forward.w2.weight", hidden, t->inner, &layer->w2},
    };
    const struct th_vector_rule vectors[] = {
        {"enorm.weight", hidden, &layer->enorm},
        {"hnorm.weight", hidden, &layer->hnorm},
        {"transformer_layer.attention_norm.weight", hidden, &layer->attention_norm},
        {"transformer_layer.attention.q_norm.weight", t->head_dim, &layer->q_norm},
        {"transformer_layer.attention.k_norm.weight", t->head_dim, &layer->k_norm},
        {"transformer_layer.ffn_norm.weight", hidden, &layer->ffn_norm},
        {"final_layernorm.weight", hidden, &layer->final_norm},
    };
    TH_TRY(th_scope_matrices(scope, matrices, TH_COUNT(matrices)));
    return th_scope_vectors(scope, vectors, TH_COUNT(vectors));
}

static thespis_status take_tower(struct th_loader *loader)
{
    struct th_model *model = loader->model;
    const struct th_tower_config *t = &model->config.tower;
    struct th_scope root = th_scope_make(loader, "audio_decoder.");
    TH_TRY(th_scope_matrix(&root, "codebook_embeddings.weight", t->codebooks * t->codebook_size, t->hidden, &model->code_embed));
    TH_TRY(check_count(loader, "audio_decoder_config.shared_enrichment_layers", t->shared_layers));
    TH_TRY(TH_OWN(loader, &model->tower, (size_t)(t->shared_layers + t->residual_layers), "the tower"));
    TH_TRY(TH_OWN(loader, &model->heads, (size_t)t->residual_layers, "the tower's heads"));
    for (int i = 0; i < t->shared_layers; i++) {
        struct th_scope scope = th_scope_make(loader, "audio_decoder_mtp_shared.layers.%d.", i);
        TH_TRY(take_tower_layer(&scope, table_name(&scope, 1), t, &model->tower[i]));
    }
    for (int r = 0; r < t->residual_layers; r++) {
        struct th_scope scope = th_scope_make(loader, "audio_decoder_mtp.layers.%d.", r);
        struct th_scope head = th_scope_make(loader, "audio_decoder_mtp.heads.%d.", r);
        TH_TRY(take_tower_layer(&scope, table_name(&scope, 0), t, &model->tower[t->shared_layers + r]));
        TH_TRY(th_scope_matrix(&head, "weight", t->codebook_size, t->hidden, &model->heads[r]));
    }
    return THESPIS_OK;
}

thespis_status th_loader_take_network(struct th_loader *loader)
{
    TH_TRY(take_backbone(loader));
    return take_tower(loader);
}
