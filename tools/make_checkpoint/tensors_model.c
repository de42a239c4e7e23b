/* tensors_model.c - the language model's tensors, with gains that keep random weights well-behaved.
 *
 * Every linear layer keeps the scale of its input (gain 1) or shrinks what it adds to the residual stream; router logits are wide,
 * so that the last chosen expert carries little weight and a flip between it and the first rejected one moves little. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "make_checkpoint.h"

/* Where recipes go; the first failure stays. */
struct builder {
    const struct th_job *job;
    const struct th_preset *p;
    struct th_recipes *list;
    thespis_status status;
    thespis_error *error;
    char prefix[TH_RECIPE_NAME];
    struct th_recipe nobody; /* what a failed put gives, so that rules can be set without asking */
};

static void set_prefix(struct builder *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void set_prefix(struct builder *b, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(b->prefix, sizeof b->prefix, format, arguments);
    va_end(arguments);
}

/* A tensor `prefix` + `name`. */
static struct th_recipe *put(struct builder *b, const char *name, enum th_dtype dtype, int rank, const int64_t *shape)
{
    char full[2 * TH_RECIPE_NAME];
    struct th_recipe *recipe = &b->nobody;
    snprintf(full, sizeof full, "%s%s", b->prefix, name);
    if (b->status == THESPIS_OK) b->status = th_recipes_add(b->list, full, dtype, rank, shape, &recipe, b->error);
    return recipe;
}

static struct th_recipe *normal(struct builder *b, const char *name, int64_t rows, int64_t cols, double deviation)
{
    struct th_recipe *recipe = put(b, name, TH_BF16, 2, (int64_t[]){rows, cols});
    recipe->rule = TH_RULE_NORMAL;
    recipe->b = (float)deviation;
    return recipe;
}

static void linear(struct builder *b, const char *name, int64_t out, int64_t in, double gain)
{
    normal(b, name, out, in, gain / sqrt((double)in));
}

static void norm(struct builder *b, const char *name, int64_t size, double mean, enum th_dtype dtype)
{
    struct th_recipe *recipe = put(b, name, dtype, 1, (int64_t[]){size});
    recipe->rule = TH_RULE_NORMAL;
    recipe->a = (float)mean;
    recipe->b = 0.1f;
}

static void uniform(struct builder *b, const char *name, int64_t size, enum th_rule rule, double low, double high,
                    enum th_dtype dtype)
{
    struct th_recipe *recipe = put(b, name, dtype, 1, (int64_t[]){size});
    recipe->rule = rule;
    recipe->a = (float)low;
    recipe->b = (float)high;
}

/* ---- backbone ---------------------------------------------------------------------------------------------------------------- */

static void attention(struct builder *b)
{
    const struct th_preset *p = b->p;
    linear(b, "self_attn.q_proj.weight", (int64_t)2 * p->heads * p->head_dim, p->hidden, 1.0);
    linear(b, "self_attn.k_proj.weight", (int64_t)p->kv_heads * p->head_dim, p->hidden, 1.0);
    linear(b, "self_attn.v_proj.weight", (int64_t)p->kv_heads * p->head_dim, p->hidden, 1.0);
    linear(b, "self_attn.o_proj.weight", p->hidden, (int64_t)p->heads * p->head_dim, 0.8);
    norm(b, "self_attn.q_norm.weight", p->head_dim, 0.3, TH_BF16);
    norm(b, "self_attn.k_norm.weight", p->head_dim, 0.3, TH_BF16);
}

static void deltanet(struct builder *b)
{
    const struct th_preset *p = b->p;
    int64_t keys = (int64_t)p->key_heads * p->key_dim, values = (int64_t)p->value_heads * p->value_dim;
    linear(b, "linear_attn.in_proj_qkv.weight", 2 * keys + values, p->hidden, 1.0);
    linear(b, "linear_attn.in_proj_z.weight", values, p->hidden, 1.0);
    linear(b, "linear_attn.in_proj_b.weight", p->value_heads, p->hidden, 1.0);
    linear(b, "linear_attn.in_proj_a.weight", p->value_heads, p->hidden, 1.0);
    struct th_recipe *conv = put(b, "linear_attn.conv1d.weight", TH_BF16, 3, (int64_t[]){2 * keys + values, 1, 4});
    conv->rule = TH_RULE_NORMAL;
    conv->b = 0.5f;
    uniform(b, "linear_attn.A_log", p->value_heads, TH_RULE_LOG_UNIFORM, 0.5, 8.0, p->a_log_f32 ? TH_F32 : TH_BF16);
    uniform(b, "linear_attn.dt_bias", p->value_heads, TH_RULE_UNIFORM, -5.0, -1.0, TH_BF16);
    norm(b, "linear_attn.norm.weight", p->value_dim, 1.0, p->gated_norm_f32 ? TH_F32 : TH_BF16);
    linear(b, "linear_attn.out_proj.weight", p->hidden, values, 0.35);
}

static int scales_are_bf16(const struct builder *b)
{
    return b->job->scales == TH_SCALES_PRESET ? b->p->scales_bf16 : b->job->scales == TH_SCALES_BF16;
}

/* One matrix of one expert: codes and scales under the name of the weight, or bf16. */
static void expert_matrix(struct builder *b, int expert, const char *name, int64_t rows, int64_t cols, double gain)
{
    char full[64];
    double deviation = gain / sqrt((double)cols);
    snprintf(full, sizeof full, "mlp.experts.%d.%s.weight", expert, name);
    if (b->job->bf16_experts) {
        normal(b, full, rows, cols, deviation);
        return;
    }
    struct th_recipe *codes = put(b, full, TH_E4M3, 2, (int64_t[]){rows, cols});
    codes->rule = TH_RULE_E4M3;
    codes->b = (float)deviation;
    codes->scale_bf16 = scales_are_bf16(b);
    char source[TH_RECIPE_NAME];
    snprintf(source, sizeof source, "%s", codes->source);
    snprintf(full, sizeof full, "mlp.experts.%d.%s.weight_scale_inv", expert, name);
    int64_t shape[] = {(rows + TH_SCALE_BLOCK - 1) / TH_SCALE_BLOCK, (cols + TH_SCALE_BLOCK - 1) / TH_SCALE_BLOCK};
    struct th_recipe *scales = put(b, full, scales_are_bf16(b) ? TH_BF16 : TH_F32, 2, shape);
    snprintf(scales->source, sizeof scales->source, "%s", source);
    scales->rule = TH_RULE_SCALE;
    scales->b = (float)deviation;
    scales->rows = rows;
    scales->cols = cols;
    scales->scale_bf16 = scales_are_bf16(b);
}

/* All experts' matrices behind one another: the same values as one by one. `height` is a matrix's share of a stacked row count. */
static void stacked(struct builder *b, const char *name, enum th_stack stack, int64_t height, int64_t cols, double gain)
{
    int64_t experts = b->p->experts, each = stack == TH_STACK_GATE_UP ? 2 : 1;
    int64_t row_blocks = (height + TH_SCALE_BLOCK - 1) / TH_SCALE_BLOCK, col_blocks = (cols + TH_SCALE_BLOCK - 1) / TH_SCALE_BLOCK;
    char full[64];
    snprintf(full, sizeof full, "mlp.experts.%s", name);
    for (int part = 0; part < (b->job->bf16_experts ? 1 : 2); part++) {
        int64_t weight_shape[] = {experts, each * height, cols}, scale_shape[] = {experts, each * row_blocks, col_blocks};
        enum th_dtype scale_dtype = scales_are_bf16(b) ? TH_BF16 : TH_F32;
        if (part == 1) snprintf(full, sizeof full, "mlp.experts.%s_scale_inv", name);
        struct th_recipe *recipe = put(b, full,
                                       part == 1              ? scale_dtype
                                       : b->job->bf16_experts ? TH_BF16
                                                              : TH_E4M3,
                                       3, part == 1 ? scale_shape : weight_shape);
        recipe->rule = part == 1 ? TH_RULE_SCALE : b->job->bf16_experts ? TH_RULE_NORMAL : TH_RULE_E4M3;
        snprintf(recipe->source, sizeof recipe->source, "%.100smlp.experts.", b->prefix);
        recipe->stack = stack;
        recipe->b = (float)(gain / sqrt((double)cols));
        recipe->slices = experts * each;
        recipe->rows = height;
        recipe->cols = cols;
        recipe->scale_bf16 = scales_are_bf16(b);
    }
}

static void moe(struct builder *b)
{
    const struct th_preset *p = b->p;
    linear(b, "mlp.gate.weight", p->experts, p->hidden, 3.5);
    linear(b, "mlp.shared_expert_gate.weight", 1, p->hidden, 1.0);
    linear(b, "mlp.shared_expert.gate_proj.weight", p->shared_inner, p->hidden, 1.0);
    linear(b, "mlp.shared_expert.up_proj.weight", p->shared_inner, p->hidden, 1.0);
    linear(b, "mlp.shared_expert.down_proj.weight", p->hidden, p->shared_inner, 0.6);
    if (b->job->stacked) {
        stacked(b, "gate_up_proj", TH_STACK_GATE_UP, p->expert_inner, p->hidden, 1.0);
        stacked(b, "down_proj", TH_STACK_DOWN, p->hidden, p->expert_inner, 0.6);
        return;
    }
    for (int expert = 0; expert < p->experts; expert++) {
        expert_matrix(b, expert, "gate_proj", p->expert_inner, p->hidden, 1.0);
        expert_matrix(b, expert, "up_proj", p->expert_inner, p->hidden, 1.0);
        expert_matrix(b, expert, "down_proj", p->hidden, p->expert_inner, 0.6);
    }
}

static void backbone(struct builder *b, const struct th_vocabulary *vocabulary)
{
    const struct th_preset *p = b->p;
    set_prefix(b, "%s", "");
    normal(b, "model.language_model.embed_tokens.weight", vocabulary->vocab, p->hidden, 1.0);
    norm(b, "model.language_model.norm.weight", p->hidden, 0.0, TH_BF16);
    normal(b, "lm_head.weight", vocabulary->vocab, p->hidden, 2.5 / sqrt((double)p->hidden))->loud_row = vocabulary->eos;
    for (int layer = 0; layer < p->layers; layer++) {
        set_prefix(b, "model.language_model.layers.%d.", layer);
        norm(b, "input_layernorm.weight", p->hidden, 0.0, TH_BF16);
        norm(b, "post_attention_layernorm.weight", p->hidden, 0.0, TH_BF16);
        if ((layer + 1) % p->interval == 0)
            attention(b);
        else
            deltanet(b);
        moe(b);
    }
}

/* ---- tower ------------------------------------------------------------------------------------------------------------------- */

static void tower_layer(struct builder *b, const char *table)
{
    const struct th_preset *p = b->p;
    int64_t hidden = p->hidden, heads = (int64_t)p->heads * p->head_dim, kv = (int64_t)p->kv_heads * p->head_dim;
    normal(b, table, p->band, hidden, 0.7);
    norm(b, "enorm.weight", hidden, 0.0, TH_BF16);
    norm(b, "hnorm.weight", hidden, 0.0, TH_BF16);
    norm(b, "final_layernorm.weight", hidden, 0.0, TH_BF16);
    linear(b, "eh_proj.weight", hidden, 2 * hidden, 1.0);
    norm(b, "transformer_layer.attention_norm.weight", hidden, 0.0, TH_BF16);
    norm(b, "transformer_layer.ffn_norm.weight", hidden, 0.0, TH_BF16);
    linear(b, "transformer_layer.attention.wqkv.weight", 2 * heads + 2 * kv, hidden, 1.0);
    linear(b, "transformer_layer.attention.wo.weight", hidden, heads, 0.5);
    norm(b, "transformer_layer.attention.q_norm.weight", p->head_dim, 0.3, TH_BF16);
    norm(b, "transformer_layer.attention.k_norm.weight", p->head_dim, 0.3, TH_BF16);
    linear(b, "transformer_layer.feed_forward.w1.weight", p->tower_inner, hidden, 1.0);
    linear(b, "transformer_layer.feed_forward.w3.weight", p->tower_inner, hidden, 1.0);
    linear(b, "transformer_layer.feed_forward.w2.weight", hidden, p->tower_inner, 0.5);
}

static void tower(struct builder *b)
{
    const struct th_preset *p = b->p;
    set_prefix(b, "%s", "");
    normal(b, "audio_decoder.codebook_embeddings.weight", (int64_t)p->codebooks * p->band, p->hidden, 0.5);
    for (int i = 0; i < p->tower_shared; i++) {
        set_prefix(b, "audio_decoder_mtp_shared.layers.%d.", i);
        tower_layer(b, "semantic_embedding.weight");
    }
    for (int i = 0; i < p->codebooks - 1; i++) {
        set_prefix(b, "audio_decoder_mtp.layers.%d.", i);
        tower_layer(b, "codebook_embedding.weight");
    }
    for (int i = 0; i < p->codebooks - 1; i++) {
        set_prefix(b, "audio_decoder_mtp.heads.%d.", i);
        linear(b, "weight", p->band, p->hidden, 2.5);
    }
}

thespis_status th_model_recipes(const struct th_job *job, const struct th_vocabulary *vocabulary, struct th_recipes *list,
                                thespis_error *error)
{
    struct builder b = {.job = job, .p = job->preset, .list = list, .status = THESPIS_OK, .error = error};
    backbone(&b, vocabulary);
    tower(&b);
    uint64_t wanted = job->preset->total_bytes;
    if (b.status == THESPIS_OK && wanted != 0 && !job->bf16_experts && job->scales != TH_SCALES_BF16 && list->bytes != wanted)
        b.status = th_fail(error, THESPIS_INVALID, "preset %s sums up to %llu bytes, the published size is %llu", job->preset->name,
                           (unsigned long long)list->bytes, (unsigned long long)wanted);
    return b.status;
}
