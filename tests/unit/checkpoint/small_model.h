/* small_model.h - a model of a few kilobytes for tests: its configuration, and the list of its tensors written from the
 * specification's tables, apart from the reader's own. */
#ifndef TESTS_CHECKPOINT_SMALL_MODEL_H
#define TESTS_CHECKPOINT_SMALL_MODEL_H

#include <stdarg.h>
#include <stdint.h>

#include "checkpoint/model.h"
#include "unit/checkpoint/scratch.h"

#define SMALL_LAYERS 2 /* DeltaNet, full attention */
#define SMALL_HEADS 2
#define SMALL_HEAD_DIM 4
#define SMALL_KEY_DIM 2
#define SMALL_VALUE_HEADS 2
#define SMALL_VALUE_DIM 3
#define SMALL_SHARED_INNER 5
#define SMALL_EXPERTS 3
#define SMALL_VOCAB 40
#define SMALL_BAND 4
#define SMALL_BAND_END 23
#define SMALL_CODEBOOKS 3
#define SMALL_TOWER_INNER 7

/* What differs between the checkpoints of the tests. */
struct small {
    int hidden, inner; /* FP8 experts: multiples of 128 */
    int fp8, stacked;
    enum th_dtype scale, norm, a_log, dt_bias;
};
static const struct small small_bf16 = {8, 6, 0, 0, TH_F32, TH_BF16, TH_F32, TH_BF16};
static const struct small small_fp8 = {256, 128, 1, 0, TH_F32, TH_F32, TH_F32, TH_F32};

/* Tensors with owned names and data. */
struct bag {
    struct th_tensor_out tensors[256];
    size_t count;
};

static inline size_t bag_bytes(const struct th_tensor_out *tensor)
{
    size_t bytes = th_dtype_size(tensor->dtype);
    for (int i = 0; i < tensor->rank; i++) bytes *= (size_t)tensor->shape[i];
    return bytes;
}

/* Item i of a tensor, before it is stored; floats that bf16 cannot hold. */
static inline float bag_value(const char *name, size_t i)
{
    size_t seed = 0;
    for (const char *c = name; *c != '\0'; c++) seed = seed * 31 + (unsigned char)*c;
    return (float)((seed + i * 37) % 255) / 64.0f - 2.0f + 1.0f / 1024.0f;
}

static inline void bag_fill(struct th_tensor_out *tensor)
{
    size_t size = th_dtype_size(tensor->dtype), count = bag_bytes(tensor) / size;
    unsigned char *data = malloc(count * size + 1);
    if (data == NULL) abort();
    for (size_t i = 0; i < count; i++) {
        float value = bag_value(tensor->name, i);
        const unsigned char *bytes = (const unsigned char *)&value; /* little-endian: the upper half is a bf16 */
        memcpy(data + i * size, size == 2 ? bytes + 2 : size == 1 ? bytes + 1 : bytes, size);
    }
    tensor->data = data;
}

static inline struct th_tensor_out *bag_add(struct bag *bag, enum th_dtype dtype, int rank, const int64_t *shape,
                                            const char *format, ...) __attribute__((format(printf, 5, 6)));

static inline struct th_tensor_out *bag_add(struct bag *bag, enum th_dtype dtype, int rank, const int64_t *shape,
                                            const char *format, ...)
{
    char name[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    if (bag->count == sizeof bag->tensors / sizeof *bag->tensors) abort();
    struct th_tensor_out *tensor = &bag->tensors[bag->count++];
    *tensor = (struct th_tensor_out){.name = strdup(name), .dtype = dtype, .rank = rank};
    memcpy(tensor->shape, shape, (size_t)rank * sizeof *shape);
    bag_fill(tensor);
    return tensor;
}

#define VECTOR(bag, dtype, n, ...) bag_add(bag, dtype, 1, (int64_t[]){n}, __VA_ARGS__)
#define MATRIX(bag, rows, cols, ...) bag_add(bag, TH_BF16, 2, (int64_t[]){rows, cols}, __VA_ARGS__)
#define BLOCKS(n) (((n) + 127) / 128)

static inline struct th_tensor_out *bag_find(struct bag *bag, const char *name)
{
    for (size_t i = 0; i < bag->count; i++)
        if (strcmp(bag->tensors[i].name, name) == 0) return &bag->tensors[i];
    fprintf(stderr, "the test's bag has no '%s'\n", name);
    abort();
}

static inline void bag_free(struct bag *bag)
{
    for (size_t i = 0; i < bag->count; i++) {
        free((void *)bag->tensors[i].name);
        free((void *)bag->tensors[i].data);
    }
    bag->count = 0;
}

static inline void small_separate(struct bag *bag, const struct small *s, int layer)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    for (int e = 0; e < SMALL_EXPERTS; e++)
        for (int p = 0; p < 3; p++) {
            int64_t rows = p < 2 ? s->inner : s->hidden, cols = p < 2 ? s->hidden : s->inner;
            const char *const name = "model.language_model.layers.%d.mlp.experts.%d.%s.weight%s";
            bag_add(bag, s->fp8 ? TH_E4M3 : TH_BF16, 2, (int64_t[]){rows, cols}, name, layer, e, parts[p], "");
            if (s->fp8) bag_add(bag, s->scale, 2, (int64_t[]){BLOCKS(rows), BLOCKS(cols)}, name, layer, e, parts[p], "_scale_inv");
        }
}

static inline void small_stacked(struct bag *bag, const struct small *s, int layer)
{
    const char *const name = "model.language_model.layers.%d.mlp.experts.%s";
    const int64_t e = SMALL_EXPERTS, h = s->hidden, i = s->inner;
    enum th_dtype dtype = s->fp8 ? TH_E4M3 : TH_BF16;
    bag_add(bag, dtype, 3, (int64_t[]){e, 2 * i, h}, name, layer, "gate_up_proj");
    bag_add(bag, dtype, 3, (int64_t[]){e, h, i}, name, layer, "down_proj");
    if (!s->fp8) return;
    bag_add(bag, s->scale, 3, (int64_t[]){e, 2 * BLOCKS(i), BLOCKS(h)}, name, layer, "gate_up_proj_scale_inv");
    bag_add(bag, s->scale, 3, (int64_t[]){e, BLOCKS(h), BLOCKS(i)}, name, layer, "down_proj_scale_inv");
}

static inline void small_deltanet(struct bag *bag, const struct small *s, const char *p)
{
    const int values = SMALL_VALUE_HEADS * SMALL_VALUE_DIM, channels = 2 * SMALL_KEY_DIM + values;
    MATRIX(bag, channels, s->hidden, "%slinear_attn.in_proj_qkv.weight", p);
    MATRIX(bag, values, s->hidden, "%slinear_attn.in_proj_z.weight", p);
    MATRIX(bag, SMALL_VALUE_HEADS, s->hidden, "%slinear_attn.in_proj_b.weight", p);
    MATRIX(bag, SMALL_VALUE_HEADS, s->hidden, "%slinear_attn.in_proj_a.weight", p);
    bag_add(bag, TH_BF16, 3, (int64_t[]){channels, 1, 4}, "%slinear_attn.conv1d.weight", p);
    VECTOR(bag, s->a_log, SMALL_VALUE_HEADS, "%slinear_attn.A_log", p);
    VECTOR(bag, s->dt_bias, SMALL_VALUE_HEADS, "%slinear_attn.dt_bias", p);
    VECTOR(bag, s->norm, SMALL_VALUE_DIM, "%slinear_attn.norm.weight", p);
    MATRIX(bag, s->hidden, values, "%slinear_attn.out_proj.weight", p);
}

static inline void small_attention(struct bag *bag, const struct small *s, const char *p)
{
    MATRIX(bag, SMALL_HEADS * 2 * SMALL_HEAD_DIM, s->hidden, "%sself_attn.q_proj.weight", p);
    MATRIX(bag, SMALL_HEAD_DIM, s->hidden, "%sself_attn.k_proj.weight", p);
    MATRIX(bag, SMALL_HEAD_DIM, s->hidden, "%sself_attn.v_proj.weight", p);
    MATRIX(bag, s->hidden, SMALL_HEADS * SMALL_HEAD_DIM, "%sself_attn.o_proj.weight", p);
    VECTOR(bag, s->norm, SMALL_HEAD_DIM, "%sself_attn.q_norm.weight", p);
    VECTOR(bag, s->norm, SMALL_HEAD_DIM, "%sself_attn.k_norm.weight", p);
}

static inline void small_layer(struct bag *bag, const struct small *s, int layer)
{
    char p[64];
    snprintf(p, sizeof p, "model.language_model.layers.%d.", layer);
    VECTOR(bag, s->norm, s->hidden, "%sinput_layernorm.weight", p);
    VECTOR(bag, s->norm, s->hidden, "%spost_attention_layernorm.weight", p);
    if (layer == 0)
        small_deltanet(bag, s, p);
    else
        small_attention(bag, s, p);
    MATRIX(bag, SMALL_EXPERTS, s->hidden, "%smlp.gate.weight", p);
    MATRIX(bag, SMALL_SHARED_INNER, s->hidden, "%smlp.shared_expert.gate_proj.weight", p);
    MATRIX(bag, SMALL_SHARED_INNER, s->hidden, "%smlp.shared_expert.up_proj.weight", p);
    MATRIX(bag, s->hidden, SMALL_SHARED_INNER, "%smlp.shared_expert.down_proj.weight", p);
    MATRIX(bag, 1, s->hidden, "%smlp.shared_expert_gate.weight", p);
    if (s->stacked)
        small_stacked(bag, s, layer);
    else
        small_separate(bag, s, layer);
}

static inline void small_tower_layer(struct bag *bag, const struct small *s, const char *p, const char *table)
{
    const int h = s->hidden, queries = SMALL_HEADS * SMALL_HEAD_DIM;
    MATRIX(bag, SMALL_BAND, h, "%s%s.weight", p, table);
    VECTOR(bag, s->norm, h, "%senorm.weight", p);
    VECTOR(bag, s->norm, h, "%shnorm.weight", p);
    MATRIX(bag, h, 2 * h, "%seh_proj.weight", p);
    VECTOR(bag, s->norm, h, "%stransformer_layer.attention_norm.weight", p);
    MATRIX(bag, 2 * queries + 2 * SMALL_HEAD_DIM, h, "%stransformer_layer.attention.wqkv.weight", p);
    VECTOR(bag, s->norm, SMALL_HEAD_DIM, "%stransformer_layer.attention.q_norm.weight", p);
    VECTOR(bag, s->norm, SMALL_HEAD_DIM, "%stransformer_layer.attention.k_norm.weight", p);
    MATRIX(bag, h, queries, "%stransformer_layer.attention.wo.weight", p);
    VECTOR(bag, s->norm, h, "%stransformer_layer.ffn_norm.weight", p);
    MATRIX(bag, SMALL_TOWER_INNER, h, "%stransformer_layer.feed_forward.w1.weight", p);
    MATRIX(bag, SMALL_TOWER_INNER, h, "%stransformer_layer.feed_forward.w3.weight", p);
    MATRIX(bag, h, SMALL_TOWER_INNER, "%stransformer_layer.feed_forward.w2.weight", p);
    VECTOR(bag, s->norm, h, "%sfinal_layernorm.weight", p);
}

static inline void small_tensors(struct bag *bag, const struct small *s)
{
    bag->count = 0;
    MATRIX(bag, SMALL_VOCAB, s->hidden, "model.language_model.embed_tokens.weight");
    VECTOR(bag, s->norm, s->hidden, "model.language_model.norm.weight");
    MATRIX(bag, SMALL_VOCAB, s->hidden, "lm_head.weight");
    for (int layer = 0; layer < SMALL_LAYERS; layer++) small_layer(bag, s, layer);
    MATRIX(bag, SMALL_CODEBOOKS * SMALL_BAND, s->hidden, "audio_decoder.codebook_embeddings.weight");
    small_tower_layer(bag, s, "audio_decoder_mtp_shared.layers.0.", "semantic_embedding");
    for (int r = 0; r < SMALL_CODEBOOKS - 1; r++) {
        char p[64];
        snprintf(p, sizeof p, "audio_decoder_mtp.layers.%d.", r);
        small_tower_layer(bag, s, p, "codebook_embedding");
        MATRIX(bag, SMALL_BAND, s->hidden, "audio_decoder_mtp.heads.%d.weight", r);
    }
}

/* config.json in the form of a configuration saved again, as it is the shorter one. */
static inline void small_config(const struct small *s, int layers, int experts)
{
    FILE *file = scratch_create("config.json");
    fprintf(file,
            "{\"model_type\":\"fish_omni\",\"speech_template_version\":\"reference-bracket-v1\",\"eos_token_id\":7,"
            "\"semantic_start_token_id\":%d,\"semantic_end_token_id\":%d,\"quantization_config\":%s,"
            "\"text_config\":{\"model_type\":\"qwen3_5_moe_text\",\"full_attention_interval\":2,\"num_hidden_layers\":%d,"
            "\"hidden_size\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":1,\"head_dim\":%d,\"vocab_size\":%d,"
            "\"max_position_embeddings\":64,\"num_experts\":%d,\"num_experts_per_tok\":2,\"moe_intermediate_size\":%d,"
            "\"shared_expert_intermediate_size\":%d,\"linear_conv_kernel_dim\":4,\"linear_num_key_heads\":1,"
            "\"linear_key_head_dim\":%d,\"linear_num_value_heads\":%d,\"linear_value_head_dim\":%d,\"rms_norm_eps\":1e-6,"
            "\"rope_parameters\":{\"rope_theta\":10000.0}},"
            "\"audio_decoder_config\":{\"decoder_type\":\"codebook_mtp_shared\",\"dim\":%d,\"text_dim\":%d,\"n_head\":%d,"
            "\"n_local_heads\":1,\"head_dim\":%d,\"n_layer\":1,\"shared_enrichment_layers\":1,\"intermediate_size\":%d,"
            "\"num_codebooks\":%d,\"vocab_size\":%d,\"max_seq_len\":%d,\"norm_eps\":1e-6,\"rope_base\":10000,\"rotary_percent\":1,"
            "\"attention_output_gate\":true,\"layernorm_zero_centered_gamma\":true,\"vq_feature_placement\":\"backbone_partial\","
            "\"vq_backbone_codebooks\":1}}",
            SMALL_BAND_END - SMALL_BAND + 1, SMALL_BAND_END,
            s->fp8 ? "{\"quant_method\":\"bsgemm-moe\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128]}" : "null",
            layers, s->hidden, SMALL_HEADS, SMALL_HEAD_DIM, SMALL_VOCAB, experts, s->inner, SMALL_SHARED_INNER, SMALL_KEY_DIM,
            SMALL_VALUE_HEADS, SMALL_VALUE_DIM, s->hidden, s->hidden, SMALL_HEADS, SMALL_HEAD_DIM, SMALL_TOWER_INNER,
            SMALL_CODEBOOKS, SMALL_BAND, SMALL_CODEBOOKS + 1);
    scratch_close(file);
}

/* Tensors first, first + step, ... as one file. Data without holes in the order given; alignment needs wide types first. */
static inline void small_shard(const char *name, const struct bag *bag, size_t first, size_t step)
{
    static char header[1 << 16];
    size_t used = 1, offset = 0;
    unsigned char *data = malloc(1 << 22);
    if (data == NULL) abort();
    header[0] = '{';
    for (size_t size = 8; size >= 1; size /= 2)
        for (size_t i = first; i < bag->count; i += step) {
            const struct th_tensor_out *t = &bag->tensors[i];
            size_t bytes = bag_bytes(t);
            if (th_dtype_size(t->dtype) != size) continue;
            used += (size_t)snprintf(header + used, sizeof header - used, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                                     offset > 0 ? "," : "", t->name, th_dtype_name(t->dtype));
            for (int k = 0; k < t->rank; k++)
                used += (size_t)snprintf(header + used, sizeof header - used, "%s%lld", k > 0 ? "," : "", (long long)t->shape[k]);
            used += (size_t)snprintf(header + used, sizeof header - used, "],\"data_offsets\":[%zu,%zu]}", offset, offset + bytes);
            if (used > sizeof header - 512 || offset + bytes > 1 << 22) abort();
            memcpy(data + offset, t->data, bytes);
            offset += bytes;
        }
    header[used++] = '}';
    while (used % 8 != 0) header[used++] = ' ';
    scratch_safetensors(name, used, header, used, data, offset);
    free(data);
}

static inline void small_write(const struct small *s, const struct bag *bag)
{
    scratch_empty();
    small_config(s, SMALL_LAYERS, SMALL_EXPERTS);
    small_shard("model.safetensors", bag, 0, 1);
}

#endif
