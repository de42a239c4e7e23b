/* config.c - config.json of a Drama 3 checkpoint: which fields there are, what they may say, and how they must agree. */
#include "checkpoint/config.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "checkpoint/config_fields.h"

#define MAX_CONFIG_BYTES (16u << 20)
#define MAX_WIDTH (1 << 29) /* of one head set, hidden or inner: four of them still fit an int */

/* The configuration and the numbers that only have to agree with it. */
struct reading {
    struct th_config config;
    int text_dim, decoder_layers, max_seq_len;
    double tower_rotary; /* share of head_dim */
};

#define AT(field) offsetof(struct reading, field)
#define BACKBONE(field) offsetof(struct reading, config.backbone.field)
#define TOWER(field) offsetof(struct reading, config.tower.field)

/* ---- text_config: the backbone ----------------------------------------------------------------------------------------------- */

static const struct th_int_rule text_ints[] = {
    {"num_hidden_layers", 1, BACKBONE(layers)},
    {"hidden_size", 1, BACKBONE(hidden)},
    {"num_attention_heads", 1, BACKBONE(heads)},
    {"num_key_value_heads", 1, BACKBONE(kv_heads)},
    {"head_dim", 1, BACKBONE(head_dim)},
    {"vocab_size", 1, BACKBONE(vocab)},
    {"max_position_embeddings", 1, BACKBONE(max_positions)},
    {"num_experts", 1, BACKBONE(experts)},
    {"num_experts_per_tok", 1, BACKBONE(top_k)},
    {"moe_intermediate_size", 1, BACKBONE(expert_inner)},
    {"shared_expert_intermediate_size", 1, BACKBONE(shared_inner)}, /* 0 would be a model without one: not supported */
    {"linear_conv_kernel_dim", 1, BACKBONE(conv_width)},
    {"linear_num_key_heads", 1, BACKBONE(key_heads)},
    {"linear_key_head_dim", 1, BACKBONE(key_dim)},
    {"linear_num_value_heads", 1, BACKBONE(value_heads)},
    {"linear_value_head_dim", 1, BACKBONE(value_dim)},
};
static const struct th_number_rule text_numbers[] = {{"rms_norm_eps", INFINITY, BACKBONE(norm_eps)}};
static const struct th_word_rule text_words[] = {
    {"hidden_act", TH_OPTIONAL, "silu", NULL},
    {"output_gate_type", TH_NULLABLE, "silu", "swish"},
    {"mamba_ssm_dtype", TH_NULLABLE, "float32", NULL},
};
static const struct th_flag_rule text_flags[] = {
    {"attn_output_gate", TH_OPTIONAL, 1},
    {"tie_word_embeddings", TH_OPTIONAL, 0},
    {"norm_topk_prob", TH_OPTIONAL, 1},
    {"attention_bias", TH_OPTIONAL, 0},
};
/* Said by the published form only; a configuration saved again has dropped them. */
static const struct th_flag_rule published_flags[] = {
    {"rotary_interleaved", TH_OPTIONAL, 0},
    {"use_qk_norm", TH_OPTIONAL, 1},
    {"layernorm_zero_centered_gamma", TH_REQUIRED, 1},
    {"shared_expert_gate", TH_OPTIONAL, 1},
};

/* An array of one string a layer. */
static thespis_status layer_words(const struct th_fields *text, const char *key, int layers, const json_t **words)
{
    TH_TRY(th_field_array(text, key, TH_REQUIRED, words));
    if (json_array_size(*words) != (size_t)layers)
        return th_field_refuse(text, key, THESPIS_FORMAT, "one string for each of the %d layers", layers);
    return THESPIS_OK;
}

static thespis_status refuse_layer(const struct th_fields *text, const char *key, int layer, const json_t *word,
                                   const char *expected)
{
    char name[64];
    snprintf(name, sizeof name, "%s[%d]", key, layer);
    return th_value_refuse(text, name, word, json_is_string(word) ? THESPIS_UNSUPPORTED : THESPIS_FORMAT, "%s", expected);
}

static int says(const json_t *word, const char *text)
{
    return json_is_string(word) && strcmp(json_string_value(word), text) == 0;
}

/* layer_types must repeat: the first full layer sets the interval. */
static thespis_status read_layer_types(const struct th_fields *text, struct th_backbone_config *backbone)
{
    static const char key[] = "layer_types";
    const json_t *types;
    TH_TRY(layer_words(text, key, backbone->layers, &types));
    backbone->interval = 0;
    for (int i = 0; i < backbone->layers; i++) {
        const json_t *type = json_array_get(types, (size_t)i);
        int full = says(type, "full_attention");
        if (!full && !says(type, "linear_attention"))
            return refuse_layer(text, key, i, type, "\"linear_attention\" or \"full_attention\"");
        if (full && backbone->interval == 0) backbone->interval = i + 1;
        int periodic = backbone->interval != 0 && (i + 1) % backbone->interval == 0;
        if (full != periodic)
            return refuse_layer(text, key, i, type, "layer_types that repeat: full attention at multiples of one interval only");
    }
    if (backbone->interval == 0) return th_field_refuse(text, key, THESPIS_FORMAT, "at least one \"full_attention\"");
    return THESPIS_OK;
}

static thespis_status read_published_form(const struct th_fields *text, struct th_backbone_config *backbone)
{
    static const char key[] = "mlp_layer_types";
    const json_t *types;
    TH_TRY(read_layer_types(text, backbone));
    TH_TRY(layer_words(text, key, backbone->layers, &types));
    for (int i = 0; i < backbone->layers; i++) {
        const json_t *type = json_array_get(types, (size_t)i);
        if (!says(type, "moe")) return refuse_layer(text, key, i, type, "\"moe\"");
    }
    return th_fields_flags(text, published_flags, TH_COUNT(published_flags));
}

static thespis_status read_form(const struct th_fields *text, struct th_backbone_config *backbone)
{
    static const struct th_word_rule form = {"model_type", TH_REQUIRED, "fish_omni_text", "qwen3_5_moe_text"};
    TH_TRY(th_fields_words(text, &form, 1));
    if (says(json_object_get(text->object, "model_type"), form.word)) return read_published_form(text, backbone);
    TH_TRY(th_field_int(text, "full_attention_interval", TH_REQUIRED, 1, &backbone->interval));
    if (backbone->interval > backbone->layers)
        return th_field_refuse(text, "full_attention_interval", THESPIS_FORMAT, "an integer from 1 to num_hidden_layers, %d",
                               backbone->layers);
    return THESPIS_OK;
}

static thespis_status check_rotary(const struct th_fields *fields, const char *key, int head_dim, double share, int *rotary_dim)
{
    *rotary_dim = (int)(head_dim * share);
    if (*rotary_dim > 0 && *rotary_dim % 2 == 0) return THESPIS_OK;
    return th_field_refuse(fields, key, THESPIS_FORMAT,
                           "a share of head_dim, %d, that rotates an even number of dimensions above 0 (not %d)", head_dim,
                           *rotary_dim);
}

/* Fields beside rope_parameters may only repeat what stands in it. */
static thespis_status check_rope_repeats(const struct th_fields *text, double theta, double rotary, const json_t *parameters)
{
    double beside_theta = theta, beside_rotary = rotary;
    struct th_fields scaling;
    TH_TRY(th_field_number(text, "rope_theta", TH_NULLABLE, INFINITY, &beside_theta));
    TH_TRY(th_field_number(text, "partial_rotary_factor", TH_NULLABLE, 1.0, &beside_rotary));
    TH_TRY(th_field_object(text, "rope_scaling", TH_NULLABLE, "text_config.rope_scaling.", &scaling));
    if (beside_theta != theta)
        return th_field_refuse(text, "rope_theta", THESPIS_FORMAT, "rope_parameters' own value, %.17g", theta);
    if (beside_rotary != rotary)
        return th_field_refuse(text, "partial_rotary_factor", THESPIS_FORMAT, "rope_parameters' own value, %.17g", rotary);
    if (scaling.object != NULL && !th_json_same(scaling.object, parameters))
        return th_field_refuse(text, "rope_scaling", THESPIS_FORMAT, "what rope_parameters says");
    return THESPIS_OK;
}

static thespis_status read_rope(const struct th_fields *text, struct th_backbone_config *backbone)
{
    static const struct th_word_rule kinds[] = {{"rope_type", TH_OPTIONAL, "default", NULL},
                                                {"type", TH_OPTIONAL, "default", NULL}};
    struct th_fields rope;
    double rotary = 1.0;
    TH_TRY(th_field_object(text, "rope_parameters", TH_REQUIRED, "text_config.rope_parameters.", &rope));
    TH_TRY(th_fields_words(&rope, kinds, TH_COUNT(kinds)));
    if (json_object_get(rope.object, "mrope_section") != NULL)
        return th_field_refuse(&rope, "mrope_section", THESPIS_UNSUPPORTED, "no such field (positions have one axis)");
    TH_TRY(th_field_number(&rope, "rope_theta", TH_REQUIRED, INFINITY, &backbone->rope_theta));
    TH_TRY(th_field_number(&rope, "partial_rotary_factor", TH_OPTIONAL, 1.0, &rotary));
    TH_TRY(check_rotary(&rope, "partial_rotary_factor", backbone->head_dim, rotary, &backbone->rotary_dim));
    return check_rope_repeats(text, backbone->rope_theta, rotary, rope.object);
}

static thespis_status check_divides(const struct th_fields *fields, const char *many_key, int many, const char *few_key, int few)
{
    if (many % few == 0) return THESPIS_OK;
    return th_field_refuse(fields, many_key, THESPIS_FORMAT, "a multiple of %s, %d", few_key, few);
}

/* An array's width in bytes is counted in 64 bits, but rows and columns are ints. */
static thespis_status check_width(const struct th_fields *fields, const char *key, int count, int size)
{
    if ((int64_t)count * size <= MAX_WIDTH) return THESPIS_OK;
    return th_field_refuse(fields, key, THESPIS_UNSUPPORTED, "a width of at most %d in all (here %d x %d)", MAX_WIDTH, count, size);
}

static thespis_status check_text(const struct th_fields *text, const struct th_backbone_config *b)
{
    TH_TRY(check_width(text, "hidden_size", b->hidden, 1));
    TH_TRY(check_width(text, "head_dim", b->heads, b->head_dim));
    TH_TRY(check_width(text, "linear_key_head_dim", b->key_heads, b->key_dim));
    TH_TRY(check_width(text, "linear_value_head_dim", b->value_heads, b->value_dim));
    TH_TRY(check_width(text, "moe_intermediate_size", b->expert_inner, 1));
    TH_TRY(check_width(text, "shared_expert_intermediate_size", b->shared_inner, 1));
    TH_TRY(check_divides(text, "num_attention_heads", b->heads, "num_key_value_heads", b->kv_heads));
    TH_TRY(check_divides(text, "linear_num_value_heads", b->value_heads, "linear_num_key_heads", b->key_heads));
    if (b->top_k > b->experts)
        return th_field_refuse(text, "num_experts_per_tok", THESPIS_FORMAT, "at most num_experts, %d", b->experts);
    if (b->conv_width != 4) return th_field_refuse(text, "linear_conv_kernel_dim", THESPIS_UNSUPPORTED, "4");
    return THESPIS_OK;
}

static thespis_status read_text(const struct th_fields *root, struct th_fields *text, struct reading *reading)
{
    TH_TRY(th_field_object(root, "text_config", TH_REQUIRED, "text_config.", text));
    TH_TRY(th_fields_ints(text, text_ints, TH_COUNT(text_ints), reading));
    TH_TRY(th_fields_numbers(text, text_numbers, TH_COUNT(text_numbers), reading));
    TH_TRY(th_fields_words(text, text_words, TH_COUNT(text_words)));
    TH_TRY(th_fields_flags(text, text_flags, TH_COUNT(text_flags)));
    TH_TRY(read_form(text, &reading->config.backbone));
    TH_TRY(read_rope(text, &reading->config.backbone));
    return check_text(text, &reading->config.backbone);
}

/* ---- audio_decoder_config: the tower ----------------------------------------------------------------------------------------- */

static const struct th_int_rule decoder_ints[] = {
    {"dim", 1, TOWER(hidden)},
    {"text_dim", 1, AT(text_dim)},
    {"n_head", 1, TOWER(heads)},
    {"n_local_heads", 1, TOWER(kv_heads)},
    {"head_dim", 1, TOWER(head_dim)},
    {"n_layer", 1, AT(decoder_layers)},
    {"shared_enrichment_layers", 1, TOWER(shared_layers)},
    {"intermediate_size", 1, TOWER(inner)},
    {"num_codebooks", 2, TOWER(codebooks)},
    {"vocab_size", 1, TOWER(codebook_size)},
    {"max_seq_len", 1, AT(max_seq_len)},
};
static const struct th_number_rule decoder_numbers[] = {
    {"norm_eps", INFINITY, TOWER(norm_eps)},
    {"rope_base", INFINITY, TOWER(rope_theta)},
    {"rotary_percent", 1.0, AT(tower_rotary)},
};
static const struct th_word_rule decoder_words[] = {
    {"model_type", TH_OPTIONAL, "fish_qwen3_audio_decoder", NULL},
    {"decoder_type", TH_REQUIRED, "codebook_mtp_shared", NULL},
    {"vq_feature_scope", TH_OPTIONAL, "all_vq", NULL},
    {"vq_feature_placement", TH_REQUIRED, "backbone_partial", "mtp_shared_pre"},
};
static const struct th_flag_rule decoder_flags[] = {
    {"attention_output_gate", TH_REQUIRED, 1},
    {"layernorm_zero_centered_gamma", TH_REQUIRED, 1},
    {"use_moe", TH_NULLABLE, 0},
    {"mtp_use_swa", TH_NULLABLE, 0},
    {"attention_qkv_bias", TH_NULLABLE, 0},
    {"attention_o_bias", TH_NULLABLE, 0},
};
static const char *const decoder_absent[] = {"window_size", "window_attn_skip_freq", "window_rotary_base"};

static thespis_status refuse_present(const struct th_fields *fields, const char *key)
{
    const json_t *value = json_object_get(fields->object, key);
    if (value == NULL || json_is_null(value)) return THESPIS_OK;
    return th_field_refuse(fields, key, THESPIS_UNSUPPORTED, "no such field, or null");
}

static thespis_status check_mtp_spec(const struct th_fields *decoder)
{
    static const struct th_word_rule variant = {"attention_variant", TH_OPTIONAL, "full_attention", NULL};
    struct th_fields spec;
    const char *key;
    json_t *value;
    TH_TRY(th_field_object(decoder, "mtp_spec", TH_NULLABLE, "audio_decoder_config.mtp_spec.", &spec));
    if (spec.object == NULL) return THESPIS_OK;
    TH_TRY(th_fields_words(&spec, &variant, 1));
    json_object_foreach((json_t *)spec.object, key, value)
    {
        if (strcmp(key, "num_experts") == 0 || strcmp(key, "num_experts_per_tok") == 0 || strncmp(key, "moe_", 4) == 0)
            return th_field_refuse(&spec, key, THESPIS_UNSUPPORTED, "no such field (the tower has no experts)");
    }
    return THESPIS_OK;
}

static thespis_status check_decoder_variants(const struct th_fields *decoder)
{
    const json_t *dropout = json_object_get(decoder->object, "dropout");
    TH_TRY(th_fields_words(decoder, decoder_words, TH_COUNT(decoder_words)));
    TH_TRY(th_fields_flags(decoder, decoder_flags, TH_COUNT(decoder_flags)));
    for (size_t i = 0; i < TH_COUNT(decoder_absent); i++) TH_TRY(refuse_present(decoder, decoder_absent[i]));
    TH_TRY(check_mtp_spec(decoder));
    if (dropout != NULL && !(json_is_number(dropout) && json_number_value(dropout) == 0.0))
        return th_field_refuse(decoder, "dropout", json_is_number(dropout) ? THESPIS_UNSUPPORTED : THESPIS_FORMAT, "the number 0");
    return THESPIS_OK;
}

/* How many codes of a frame enter the backbone's row. */
static thespis_status read_placement(const struct th_fields *decoder, struct th_tower_config *tower)
{
    static const char key[] = "vq_backbone_codebooks";
    int partial = says(json_object_get(decoder->object, "vq_feature_placement"), "backbone_partial");
    tower->backbone_codebooks = 0;
    TH_TRY(th_field_int(decoder, key, TH_OPTIONAL, 0, &tower->backbone_codebooks));
    if (partial && (tower->backbone_codebooks < 1 || tower->backbone_codebooks >= tower->codebooks))
        return th_field_refuse(decoder, key, THESPIS_FORMAT,
                               "an integer from 1 to %d, as vq_feature_placement is \"backbone_partial\"", tower->codebooks - 1);
    if (!partial && tower->backbone_codebooks != 0)
        return th_field_refuse(decoder, key, THESPIS_FORMAT, "0, as vq_feature_placement is \"mtp_shared_pre\"");
    return THESPIS_OK;
}

static thespis_status check_equal(const struct th_fields *fields, const char *key, int value, const char *other_key, int other)
{
    if (value == other) return THESPIS_OK;
    return th_field_refuse(fields, key, THESPIS_FORMAT, "the same as %s, %d", other_key, other);
}

static thespis_status check_decoder(const struct th_fields *decoder, struct reading *reading)
{
    struct th_tower_config *t = &reading->config.tower;
    const struct th_backbone_config *b = &reading->config.backbone;
    if (t->codebooks > TH_MAX_CODEBOOKS)
        return th_field_refuse(decoder, "num_codebooks", THESPIS_UNSUPPORTED, "at most %d", TH_MAX_CODEBOOKS);
    TH_TRY(check_equal(decoder, "text_dim", reading->text_dim, "dim", t->hidden));
    TH_TRY(check_equal(decoder, "n_layer", reading->decoder_layers, "shared_enrichment_layers", t->shared_layers));
    TH_TRY(check_equal(decoder, "max_seq_len", reading->max_seq_len, "num_codebooks + 1", t->codebooks + 1));
    TH_TRY(check_divides(decoder, "n_head", t->heads, "n_local_heads", t->kv_heads));
    TH_TRY(check_equal(decoder, "dim", t->hidden, "text_config.hidden_size", b->hidden));
    TH_TRY(check_equal(decoder, "n_head", t->heads, "text_config.num_attention_heads", b->heads));
    TH_TRY(check_equal(decoder, "n_local_heads", t->kv_heads, "text_config.num_key_value_heads", b->kv_heads));
    TH_TRY(check_equal(decoder, "head_dim", t->head_dim, "text_config.head_dim", b->head_dim));
    TH_TRY(check_width(decoder, "intermediate_size", t->inner, 1));
    TH_TRY(check_width(decoder, "shared_enrichment_layers", t->shared_layers, 1));
    TH_TRY(check_width(decoder, "vocab_size", t->codebooks, t->codebook_size));
    return check_rotary(decoder, "rotary_percent", t->head_dim, reading->tower_rotary, &t->rotary_dim);
}

static thespis_status read_decoder(const struct th_fields *root, const struct th_fields *text, struct reading *reading)
{
    struct th_fields decoder;
    struct th_tower_config *tower = &reading->config.tower;
    TH_TRY(th_field_object(root, "audio_decoder_config", TH_REQUIRED, "audio_decoder_config.", &decoder));
    TH_TRY(th_fields_ints(&decoder, decoder_ints, TH_COUNT(decoder_ints), reading));
    TH_TRY(th_fields_numbers(&decoder, decoder_numbers, TH_COUNT(decoder_numbers), reading));
    TH_TRY(check_decoder_variants(&decoder));
    TH_TRY(read_placement(&decoder, tower));
    TH_TRY(check_decoder(&decoder, reading));
    tower->residual_layers = tower->codebooks - 1;
    int layers = tower->shared_layers + tower->residual_layers, said = layers;
    TH_TRY(th_field_int(text, "tower_layer_count", TH_OPTIONAL, 0, &said));
    return check_equal(text, "tower_layer_count", said, "shared_enrichment_layers + num_codebooks - 1", layers);
}

/* ---- quantization_config: the routed experts --------------------------------------------------------------------------------- */

static thespis_status check_block_size(const struct th_fields *quantization)
{
    static const char key[] = "weight_block_size";
    const json_t *block;
    TH_TRY(th_field_array(quantization, key, TH_REQUIRED, &block));
    int right = json_array_size(block) == 2;
    for (size_t i = 0; i < 2 && right; i++) {
        const json_t *size = json_array_get(block, i);
        right = json_is_integer(size) && json_integer_value(size) == TH_EXPERT_BLOCK;
    }
    return right ? THESPIS_OK
                 : th_field_refuse(quantization, key, THESPIS_UNSUPPORTED, "[%d, %d], two integers", TH_EXPERT_BLOCK,
                                   TH_EXPERT_BLOCK);
}

static thespis_status read_quantization(const struct th_fields *root, const struct th_fields *text, struct th_config *config)
{
    static const struct th_word_rule words[] = {{"quant_method", TH_REQUIRED, "bsgemm-moe", NULL},
                                                {"activation_scheme", TH_REQUIRED, "dynamic", NULL}};
    struct th_fields quantization;
    TH_TRY(th_field_object(root, "quantization_config", TH_NULLABLE, "quantization_config.", &quantization));
    config->expert_format = TH_EXPERTS_BF16;
    if (quantization.object == NULL) return THESPIS_OK;
    if (says(json_object_get(quantization.object, "quant_method"), "drama3-int4"))
        return th_field_refuse(
            &quantization, "quant_method", THESPIS_UNSUPPORTED,
            "\"bsgemm-moe\" (FP8 experts) or no quantization_config (bf16); 4-bit checkpoints are not supported");
    TH_TRY(th_fields_words(&quantization, words, TH_COUNT(words)));
    TH_TRY(check_block_size(&quantization));
    config->expert_format = TH_EXPERTS_FP8;
    if (config->backbone.hidden % TH_EXPERT_BLOCK != 0)
        return th_field_refuse(text, "hidden_size", THESPIS_FORMAT, "a multiple of %d, as the experts are FP8", TH_EXPERT_BLOCK);
    if (config->backbone.expert_inner % TH_EXPERT_BLOCK != 0)
        return th_field_refuse(text, "moe_intermediate_size", THESPIS_FORMAT, "a multiple of %d, as the experts are FP8",
                               TH_EXPERT_BLOCK);
    return THESPIS_OK;
}

/* ---- top level --------------------------------------------------------------------------------------------------------------- */

static const struct th_word_rule root_words[] = {
    {"model_type", TH_REQUIRED, "fish_omni", NULL},
    {"speech_template_version", TH_REQUIRED, "reference-bracket-v1", NULL},
    {"dtype", TH_OPTIONAL, "bfloat16", NULL},
    {"torch_dtype", TH_OPTIONAL, "bfloat16", NULL},
};

/* transformers' own default is true, so files say it even where text_config does. */
static const struct th_flag_rule root_flags[] = {{"tie_word_embeddings", TH_OPTIONAL, 0}};

static thespis_status check_architectures(const struct th_fields *root)
{
    static const char key[] = "architectures";
    const json_t *names;
    int found = 0;
    TH_TRY(th_field_array(root, key, TH_OPTIONAL, &names));
    if (names == NULL) return THESPIS_OK;
    for (size_t i = 0; i < json_array_size(names); i++) {
        const json_t *name = json_array_get(names, i);
        if (!json_is_string(name)) return th_field_refuse(root, key, THESPIS_FORMAT, "strings only");
        found |= says(name, "FishOmniModel");
    }
    return found ? THESPIS_OK : th_field_refuse(root, key, THESPIS_UNSUPPORTED, "an array that holds \"FishOmniModel\"");
}

static thespis_status check_extra_tokens(const struct th_fields *root)
{
    static const char key[] = "extra_samplable_token_ids";
    const json_t *tokens;
    TH_TRY(th_field_array(root, key, TH_NULLABLE, &tokens));
    if (tokens == NULL || json_array_size(tokens) == 0) return THESPIS_OK;
    return th_field_refuse(root, key, THESPIS_UNSUPPORTED, "an empty array, null or no such field");
}

static thespis_status check_root(const struct th_fields *root)
{
    int schema = 1;
    TH_TRY(th_fields_words(root, root_words, TH_COUNT(root_words)));
    TH_TRY(th_fields_flags(root, root_flags, TH_COUNT(root_flags)));
    TH_TRY(check_architectures(root));
    TH_TRY(th_field_int(root, "fish_schema_version", TH_OPTIONAL, 0, &schema));
    if (schema != 1) return th_field_refuse(root, "fish_schema_version", THESPIS_UNSUPPORTED, "1");
    TH_TRY(refuse_present(root, "audio_encoder_config"));
    return check_extra_tokens(root);
}

/* The band of semantic tokens and the end of speech, both inside the vocabulary, apart from each other. */
static thespis_status read_tokens(const struct th_fields *root, struct th_config *config)
{
    int vocab = config->backbone.vocab, size = config->tower.codebook_size;
    TH_TRY(th_field_int(root, "semantic_start_token_id", TH_REQUIRED, 0, &config->semantic_start));
    TH_TRY(th_field_int(root, "semantic_end_token_id", TH_REQUIRED, config->semantic_start, &config->semantic_end));
    TH_TRY(th_field_int(root, "eos_token_id", TH_REQUIRED, 0, &config->eos));
    if (config->semantic_end >= vocab)
        return th_field_refuse(root, "semantic_end_token_id", THESPIS_FORMAT, "an id below text_config.vocab_size, %d", vocab);
    if ((int64_t)config->semantic_end - config->semantic_start + 1 != size)
        return th_field_refuse(root, "semantic_end_token_id", THESPIS_FORMAT,
                               "a band of audio_decoder_config.vocab_size, %d, tokens: %d to %" PRId64, size,
                               config->semantic_start, (int64_t)config->semantic_start + size - 1);
    if (config->eos >= vocab)
        return th_field_refuse(root, "eos_token_id", THESPIS_FORMAT, "an id below text_config.vocab_size, %d", vocab);
    if (th_config_is_semantic(config, config->eos))
        return th_field_refuse(root, "eos_token_id", THESPIS_FORMAT, "an id outside the semantic band, %d to %d",
                               config->semantic_start, config->semantic_end);
    return THESPIS_OK;
}

static thespis_status read_root(const struct th_fields *root, struct th_config *config)
{
    struct reading reading = {.config = {.eos = 0}};
    struct th_fields text;
    TH_TRY(check_root(root));
    TH_TRY(read_text(root, &text, &reading));
    TH_TRY(read_decoder(root, &text, &reading));
    TH_TRY(read_tokens(root, &reading.config));
    TH_TRY(read_quantization(root, &text, &reading.config));
    *config = reading.config;
    config->frame_width = 1 + config->tower.codebooks;
    config->candidates = config->tower.codebook_size + 1;
    return THESPIS_OK;
}

thespis_status th_config_parse(const char *text, size_t bytes, const char *name, struct th_config *config, thespis_error *error)
{
    json_t *json;
    memset(config, 0, sizeof *config);
    TH_TRY(th_json_parse(text, bytes, name, &json, error));
    struct th_fields root = {.object = json, .file = name, .prefix = "", .error = error};
    thespis_status status = json_is_object(json)
                                ? read_root(&root, config)
                                : th_fail(error, THESPIS_FORMAT, "%s: expected an object, got %s", name, th_json_kind(json));
    json_decref(json);
    return status;
}

thespis_status th_config_read(const char *path, struct th_config *config, thespis_error *error)
{
    char *text;
    size_t bytes;
    memset(config, 0, sizeof *config);
    TH_TRY(th_file_read(path, MAX_CONFIG_BYTES, &text, &bytes, error));
    thespis_status status = th_config_parse(text, bytes, path, config, error);
    th_free(text);
    return status;
}
