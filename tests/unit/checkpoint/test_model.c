/* test_model.c - a model of every layout is taken tensor by tensor; every tensor that is missing, unknown or misshapen is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "base/memory.h"
#include "unit/checkpoint/small_model.h"

static struct bag bag;

/* ---- opening ----------------------------------------------------------------------------------------------------------------- */

static struct th_model *open_good(void)
{
    struct th_model *model;
    thespis_error error;
    if (th_model_open(scratch_folder, &model, &error) != THESPIS_OK) fail_msg("refused: %s", error.message);
    return model;
}

static void expect_refused(const char *named, const char *part)
{
    struct th_model *model;
    thespis_error error;
    thespis_status status = th_model_open(scratch_folder, &model, &error);
    if (status != THESPIS_FORMAT || strstr(error.message, named) == NULL || strstr(error.message, part) == NULL)
        fail_msg("expected a format error with '%s' and '%s', got %s: '%s'", named, part, thespis_status_name(status),
                 error.message);
    assert_null(model);
}

/* ---- what was taken ---------------------------------------------------------------------------------------------------------- */

static void check_matrix(const char *name, const struct th_matrix *matrix)
{
    const struct th_tensor_out *t = bag_find(&bag, name);
    assert_int_equal(matrix->rows, t->shape[0]);
    assert_int_equal(matrix->cols, t->shape[1]);
    assert_memory_equal(matrix->data, t->data, bag_bytes(t));
}

/* Floats of a tensor, as stored. */
static float stored(const struct th_tensor_out *t, size_t i)
{
    float value;
    uint16_t half;
    if (t->dtype != TH_BF16) {
        memcpy(&value, (const char *)t->data + i * sizeof value, sizeof value);
        return value;
    }
    memcpy(&half, (const char *)t->data + i * sizeof half, sizeof half);
    uint32_t bits = (uint32_t)half << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void check_floats(const char *name, const float *floats)
{
    const struct th_tensor_out *t = bag_find(&bag, name);
    assert_non_null(floats);
    for (size_t i = 0; i < bag_bytes(t) / th_dtype_size(t->dtype); i++)
        if (floats[i] != stored(t, i)) fail_msg("%s[%zu]: %g is not %g", name, i, (double)floats[i], (double)stored(t, i));
}

static void check_moe(const struct th_moe_weights *moe)
{
    check_matrix("model.language_model.layers.1.mlp.gate.weight", &moe->router);
    check_matrix("model.language_model.layers.1.mlp.shared_expert.gate_proj.weight", &moe->shared_gate);
    check_matrix("model.language_model.layers.1.mlp.shared_expert.up_proj.weight", &moe->shared_up);
    check_matrix("model.language_model.layers.1.mlp.shared_expert.down_proj.weight", &moe->shared_down);
    check_matrix("model.language_model.layers.1.mlp.shared_expert_gate.weight", &moe->shared_expert_gate);
}

static void check_backbone(const struct th_model *model)
{
    const struct th_deltanet_weights *d = &model->layers[0].deltanet;
    const struct th_attention_weights *a = &model->layers[1].attention;
    check_matrix("model.language_model.embed_tokens.weight", &model->embed);
    check_matrix("lm_head.weight", &model->lm_head);
    check_floats("model.language_model.norm.weight", model->final_norm);
    assert_false(model->layers[0].is_full_attention);
    assert_true(model->layers[1].is_full_attention);
    check_floats("model.language_model.layers.0.input_layernorm.weight", model->layers[0].input_norm);
    check_floats("model.language_model.layers.1.post_attention_layernorm.weight", model->layers[1].post_norm);
    check_matrix("model.language_model.layers.0.linear_attn.in_proj_qkv.weight", &d->qkv);
    check_matrix("model.language_model.layers.0.linear_attn.in_proj_z.weight", &d->z);
    check_matrix("model.language_model.layers.0.linear_attn.in_proj_b.weight", &d->b);
    check_matrix("model.language_model.layers.0.linear_attn.in_proj_a.weight", &d->a);
    check_matrix("model.language_model.layers.0.linear_attn.out_proj.weight", &d->out);
    check_floats("model.language_model.layers.0.linear_attn.conv1d.weight", d->conv);
    check_floats("model.language_model.layers.0.linear_attn.A_log", d->a_log);
    check_floats("model.language_model.layers.0.linear_attn.norm.weight", d->norm);
    check_matrix("model.language_model.layers.1.self_attn.q_proj.weight", &a->q);
    check_matrix("model.language_model.layers.1.self_attn.k_proj.weight", &a->k);
    check_matrix("model.language_model.layers.1.self_attn.v_proj.weight", &a->v);
    check_matrix("model.language_model.layers.1.self_attn.o_proj.weight", &a->o);
    check_floats("model.language_model.layers.1.self_attn.q_norm.weight", a->q_norm);
    check_floats("model.language_model.layers.1.self_attn.k_norm.weight", a->k_norm);
    check_moe(&model->layers[1].moe);
}

static void check_tower_layer(const char *prefix, const char *table, const struct th_tower_layer *layer)
{
    char name[128];
    const struct {
        const char *suffix;
        const struct th_matrix *matrix;
    } matrices[] = {
        {table, &layer->table},
        {"eh_proj", &layer->eh},
        {"transformer_layer.attention.wqkv", &layer->wqkv},
        {"transformer_layer.attention.wo", &layer->wo},
        {"transformer_layer.feed_forward.w1", &layer->w1},
        {"transformer_layer.feed_forward.w3", &layer->w3},
        {"transformer_layer.feed_forward.w2", &layer->w2},
    };
    const struct {
        const char *suffix;
        const float *floats;
    } vectors[] = {
        {"enorm", layer->enorm},
        {"hnorm", layer->hnorm},
        {"transformer_layer.attention_norm", layer->attention_norm},
        {"transformer_layer.attention.q_norm", layer->q_norm},
        {"transformer_layer.attention.k_norm", layer->k_norm},
        {"transformer_layer.ffn_norm", layer->ffn_norm},
        {"final_layernorm", layer->final_norm},
    };
    for (size_t i = 0; i < 7; i++) {
        snprintf(name, sizeof name, "%s%s.weight", prefix, matrices[i].suffix);
        check_matrix(name, matrices[i].matrix);
        snprintf(name, sizeof name, "%s%s.weight", prefix, vectors[i].suffix);
        check_floats(name, vectors[i].floats);
    }
}

static void check_tower(const struct th_model *model, const char *shared_table, const char *residual_table)
{
    check_matrix("audio_decoder.codebook_embeddings.weight", &model->code_embed);
    check_tower_layer("audio_decoder_mtp_shared.layers.0.", shared_table, &model->tower[0]);
    check_tower_layer("audio_decoder_mtp.layers.0.", residual_table, &model->tower[1]);
    check_tower_layer("audio_decoder_mtp.layers.1.", residual_table, &model->tower[2]);
    check_matrix("audio_decoder_mtp.heads.0.weight", &model->heads[0]);
    check_matrix("audio_decoder_mtp.heads.1.weight", &model->heads[1]);
}

/* `skip` items into the tensor of weights and `scale_skip` into that of scales. */
static void check_expert_matrix(const struct th_expert_matrix *matrix, int rows, int cols, const char *weights, size_t skip,
                                const char *scales, size_t scale_skip)
{
    const struct th_tensor_out *w = bag_find(&bag, weights);
    size_t size = th_dtype_size(w->dtype);
    const void *data = matrix->codes != NULL ? (const void *)matrix->codes : matrix->bf16;
    assert_int_equal(matrix->rows, rows);
    assert_int_equal(matrix->cols, cols);
    assert_true((matrix->codes != NULL) == (size == 1) && (matrix->bf16 != NULL) == (size == 2));
    assert_memory_equal(data, (const char *)w->data + skip * size, (size_t)(rows * cols) * size);
    assert_true((matrix->scales != NULL) == (size == 1));
    if (matrix->scales == NULL) return;
    const struct th_tensor_out *s = bag_find(&bag, scales);
    for (int i = 0; i < BLOCKS(rows) * BLOCKS(cols); i++) assert_true(matrix->scales[i] == stored(s, scale_skip + (size_t)i));
}

static void check_separate(const struct th_model *model, const struct small *s)
{
    for (int layer = 0; layer < SMALL_LAYERS; layer++)
        for (int e = 0; e < SMALL_EXPERTS; e++) {
            char names[6][128];
            static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
            for (int i = 0; i < 6; i++)
                snprintf(names[i], sizeof names[i], "model.language_model.layers.%d.mlp.experts.%d.%s.weight%s", layer, e,
                         parts[i / 2], i % 2 == 1 ? "_scale_inv" : "");
            const struct th_expert *expert = &model->layers[layer].moe.experts[e];
            check_expert_matrix(&expert->gate, s->inner, s->hidden, names[0], 0, names[1], 0);
            check_expert_matrix(&expert->up, s->inner, s->hidden, names[2], 0, names[3], 0);
            check_expert_matrix(&expert->down, s->hidden, s->inner, names[4], 0, names[5], 0);
        }
}

static void check_stacked(const struct th_model *model, const struct small *s)
{
    static const char gate_up[] = "model.language_model.layers.1.mlp.experts.gate_up_proj";
    static const char down[] = "model.language_model.layers.1.mlp.experts.down_proj";
    static const char gate_up_scales[] = "model.language_model.layers.1.mlp.experts.gate_up_proj_scale_inv";
    static const char down_scales[] = "model.language_model.layers.1.mlp.experts.down_proj_scale_inv";
    const size_t size = (size_t)(s->inner * s->hidden), blocks = (size_t)(BLOCKS(s->inner) * BLOCKS(s->hidden));
    for (size_t e = 0; e < SMALL_EXPERTS; e++) {
        const struct th_expert *expert = &model->layers[1].moe.experts[e];
        check_expert_matrix(&expert->gate, s->inner, s->hidden, gate_up, 2 * e * size, gate_up_scales, 2 * e * blocks);
        check_expert_matrix(&expert->up, s->inner, s->hidden, gate_up, (2 * e + 1) * size, gate_up_scales, (2 * e + 1) * blocks);
        check_expert_matrix(&expert->down, s->hidden, s->inner, down, e * size, down_scales, e * blocks);
    }
}

static void check_layout(const struct small *s)
{
    small_tensors(&bag, s);
    small_write(s, &bag);
    struct th_model *model = open_good();
    check_backbone(model);
    check_tower(model, "semantic_embedding", "codebook_embedding");
    if (s->stacked)
        check_stacked(model, s);
    else
        check_separate(model, s);
    th_model_close(model);
    bag_free(&bag);
}

static void test_layouts(void **state)
{
    (void)state;
    struct small s = small_bf16;
    check_layout(&s);
    s.stacked = 1;
    check_layout(&s);
    s = small_fp8;
    check_layout(&s);
    s.scale = TH_BF16;
    s.norm = TH_BF16;
    s.a_log = TH_BF16;
    check_layout(&s);
    s.stacked = 1;
    check_layout(&s);
    s.inner = 256; /* two blocks each way: the order of rows and columns of blocks shows */
    s.scale = TH_F32;
    check_layout(&s);
}

/* dt_bias of 32 bits is rounded to the nearest bf16, ties to even. */
static void test_dt_bias_is_rounded(void **state)
{
    (void)state;
    struct small s = small_bf16;
    s.dt_bias = TH_F32;
    small_tensors(&bag, &s);
    static const float in[2] = {1.00390625f, -1.01171875f}, out[2] = {1.0f, -1.015625f};
    memcpy((void *)bag_find(&bag, "model.language_model.layers.0.linear_attn.dt_bias")->data, in, sizeof in);
    small_write(&s, &bag);
    struct th_model *model = open_good();
    assert_memory_equal(model->layers[0].deltanet.dt_bias, out, sizeof out);
    th_model_close(model);
    bag_free(&bag);
}

/* ---- one tensor wrong -------------------------------------------------------------------------------------------------------- */

static void test_every_tensor_is_needed(void **state)
{
    (void)state;
    small_tensors(&bag, &small_bf16);
    for (size_t i = 0; i < bag.count; i++) {
        struct bag less = bag;
        char named[200];
        less.tensors[i] = less.tensors[--less.count];
        snprintf(named, sizeof named, "'%s'", bag.tensors[i].name);
        small_write(&small_bf16, &less);
        expect_refused(named, "is missing");
    }
    bag_free(&bag);
}

static void test_every_type_and_shape_is_checked(void **state)
{
    (void)state;
    small_tensors(&bag, &small_bf16);
    for (size_t i = 0; i < bag.count; i++) {
        struct bag other = bag;
        struct th_tensor_out *t = &other.tensors[i];
        char named[200];
        snprintf(named, sizeof named, "'%s'", t->name);
        t->dtype = th_dtype_size(t->dtype) == 2 ? TH_F16 : TH_I32;
        small_write(&small_bf16, &other);
        expect_refused(named, "has dtype");
        *t = bag.tensors[i];
        t->shape[t->rank++] = 1;
        small_write(&small_bf16, &other);
        expect_refused(named, "has shape");
        *t = bag.tensors[i];
        /* Fewer rows; lm_head may lose the last of them. */
        t->shape[0] = strcmp(t->name, "lm_head.weight") == 0 ? SMALL_BAND_END : t->shape[0] - 1;
        small_write(&small_bf16, &other);
        expect_refused(named, strcmp(t->name, "lm_head.weight") == 0 ? "need at least 24" : "has shape");
    }
    bag_free(&bag);
}

static void test_fp8_needs_codes_and_scales(void **state)
{
    (void)state;
    static const char weight[] = "model.language_model.layers.1.mlp.experts.2.up_proj.weight";
    static const char scale[] = "model.language_model.layers.1.mlp.experts.2.up_proj.weight_scale_inv";
    struct small s = small_fp8;
    small_tensors(&bag, &s);
    struct bag other = bag;
    bag_find(&other, weight)->dtype = TH_E5M2;
    small_write(&s, &other);
    expect_refused(weight, "has dtype F8_E5M2, F8_E4M3 is right");
    other = bag;
    bag_find(&other, scale)->shape[0] = 2;
    bag_find(&other, scale)->shape[1] = 1;
    small_write(&s, &other);
    expect_refused(scale, "has shape [2, 1], [1, 2] is right");
    other = bag;
    *bag_find(&other, scale) = other.tensors[--other.count];
    small_write(&s, &other);
    expect_refused(scale, "is missing");
    bag_free(&bag);
}

static void test_formats_do_not_mix(void **state)
{
    (void)state;
    struct small plain = small_fp8, codes = small_fp8;
    plain.fp8 = 0;
    small_tensors(&bag, &plain);
    small_write(&codes, &bag);
    expect_refused("experts.0.gate_proj.weight", "has dtype BF16, F8_E4M3 is right");
    bag_free(&bag);
    small_tensors(&bag, &codes);
    small_write(&plain, &bag);
    expect_refused("experts.0.gate_proj.weight", "has dtype F8_E4M3, BF16 is right");
    bag_free(&bag);
}

static void test_scales_are_finite(void **state)
{
    (void)state;
    static const char scale[] = "model.language_model.layers.0.mlp.experts.1.gate_proj.weight_scale_inv";
    const float values[] = {NAN, INFINITY, -INFINITY, 0.0f, -1.0f};
    small_tensors(&bag, &small_fp8);
    for (size_t i = 0; i < 5; i++) {
        memcpy((char *)bag_find(&bag, scale)->data + 4, &values[i], 4);
        small_write(&small_fp8, &bag);
        if (isfinite(values[i]))
            th_model_close(open_good());
        else
            expect_refused(scale, "not finite (number 1");
    }
    bag_free(&bag);
}

/* ---- names ------------------------------------------------------------------------------------------------------------------- */

static void test_unknown_names(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        {"visual.blocks.0.weight", "belongs to no part"},
        {"model.visual.weight", "belongs to no part"},
        {"lm_head", "belongs to no part"},
        {"audio_decoder_mtp_shared", "belongs to no part"},
        {"lm_head.bias", "is not expected"},
        {"model.language_model.layers.2.input_layernorm.weight", "is not expected"},
        {"model.language_model.layers.0.self_attn.q_proj.weight", "is not expected"},
        {"model.language_model.layers.00.input_layernorm.weight", "is not expected"},
        {"model.language_model.layers.0.mlp.experts.3.gate_proj.weight", "is not expected"},
        {"model.language_model.layers.0.mlp.experts.0.gate_proj.weight_scale_inv", "is not expected"},
        {"model.language_model.layers.0.mlp.experts.down_proj", "is not expected"},
        {"audio_decoder_mtp.layers.2.enorm.weight", "is not expected"},
        {"audio_decoder_mtp.heads.2.weight", "is not expected"},
        {"audio_decoder_mtp_shared.heads.0.weight", "is not expected"},
        {"audio_decoder.mtp.weight", "is not expected"},
        {"audio_decoder_mtp.layers.0.semantic_embedding.weight", "is not expected"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        small_tensors(&bag, &small_bf16);
        VECTOR(&bag, TH_BF16, 3, "%s", names[i][0]);
        small_write(&small_bf16, &bag);
        expect_refused(names[i][0], names[i][1]);
        bag_free(&bag);
    }
}

static void test_skipped_names(void **state)
{
    (void)state;
    small_tensors(&bag, &small_bf16);
    VECTOR(&bag, TH_F32, 3, "model.language_model.layers.0.self_attn.rotary_emb.inv_freq");
    VECTOR(&bag, TH_F16, 3, "model.language_model.mtp.layers.0.weight");
    VECTOR(&bag, TH_U8, 3, "model.language_model.visual.patch_embed.weight");
    small_write(&small_bf16, &bag);
    th_model_close(open_good());
    bag_free(&bag);
}

static void rename_tensor(const char *from, const char *to)
{
    struct th_tensor_out *t = bag_find(&bag, from);
    free((void *)t->name);
    free((void *)t->data);
    t->name = strdup(to);
    bag_fill(t);
}

static void test_either_word_for_a_table(void **state)
{
    (void)state;
    small_tensors(&bag, &small_bf16);
    rename_tensor("audio_decoder_mtp_shared.layers.0.semantic_embedding.weight",
                  "audio_decoder_mtp_shared.layers.0.codebook_embedding.weight");
    rename_tensor("audio_decoder_mtp.layers.0.codebook_embedding.weight", "audio_decoder_mtp.layers.0.semantic_embedding.weight");
    rename_tensor("audio_decoder_mtp.layers.1.codebook_embedding.weight", "audio_decoder_mtp.layers.1.semantic_embedding.weight");
    small_write(&small_bf16, &bag);
    struct th_model *model = open_good();
    check_tower(model, "codebook_embedding", "semantic_embedding");
    th_model_close(model);
    bag_free(&bag);
}

static void test_lm_head_rows(void **state)
{
    (void)state;
    const int rows[] = {SMALL_BAND_END + 1, SMALL_VOCAB, SMALL_VOCAB + 8};
    for (size_t i = 0; i < 3; i++) {
        small_tensors(&bag, &small_bf16);
        struct th_tensor_out *t = bag_find(&bag, "lm_head.weight");
        t->shape[0] = rows[i];
        free((void *)t->data);
        bag_fill(t);
        small_write(&small_bf16, &bag);
        struct th_model *model = open_good();
        assert_int_equal(model->lm_head.rows, rows[i]);
        th_model_close(model);
        bag_free(&bag);
    }
}

/* Counts that no file can satisfy are refused before they size any memory. */
static void test_counts_beyond_the_files(void **state)
{
    (void)state;
    small_tensors(&bag, &small_bf16);
    small_write(&small_bf16, &bag);
    small_config(&small_bf16, 2000000000, SMALL_EXPERTS);
    expect_refused("num_hidden_layers", "is 2000000000, but the checkpoint has");
    small_config(&small_bf16, SMALL_LAYERS, 2000000000);
    expect_refused("mlp.gate.weight", "has shape [3, 8], [2000000000, 8] is right");
    small_config(&small_bf16, 3, SMALL_EXPERTS);
    expect_refused("layers.2.input_layernorm.weight", "is missing");
    small_config(&small_bf16, 1000, SMALL_EXPERTS);
    expect_refused("num_hidden_layers", "is 1000");
    bag_free(&bag);
}

/* ---- files ------------------------------------------------------------------------------------------------------------------- */

/* An index over two shards; tensor i lies in shard i % 2. `twist` is listed as `file` (NULL: not listed at all). */
static void write_two_shards(const char *twist, const char *file)
{
    scratch_empty();
    small_config(&small_bf16, SMALL_LAYERS, SMALL_EXPERTS);
    small_shard("model-1.safetensors", &bag, 0, 2);
    small_shard("model-2.safetensors", &bag, 1, 2);
    json_t *map = json_object();
    for (size_t i = 0; i < bag.count; i++)
        json_object_set_new(map, bag.tensors[i].name, json_string(i % 2 == 0 ? "model-1.safetensors" : "model-2.safetensors"));
    if (twist != NULL && file == NULL) json_object_del(map, twist);
    if (twist != NULL && file != NULL) json_object_set_new(map, twist, json_string(file));
    json_t *index = json_pack("{s:{s:i},s:o}", "metadata", "total_size", 1, "weight_map", map);
    char *text = json_dumps(index, 0);
    scratch_text("model.safetensors.index.json", text);
    free(text);
    json_decref(index);
}

static void test_index(void **state)
{
    (void)state;
    static const char first[] = "model.language_model.embed_tokens.weight"; /* in model-1 */
    small_tensors(&bag, &small_bf16);
    write_two_shards(NULL, NULL);
    scratch_text("unlisted.safetensors", "not read at all");
    struct th_model *model = open_good();
    assert_int_equal(model->shard_count, 2);
    check_backbone(model);
    check_separate(model, &small_bf16);
    th_model_close(model);
    write_two_shards(first, "model-2.safetensors");
    expect_refused(first, "in 'model-2.safetensors', but it lies in 'model-1.safetensors'");
    write_two_shards(first, NULL);
    expect_refused(first, "does not list tensor");
    write_two_shards("model.language_model.layers.9.x", "model-1.safetensors");
    expect_refused("model.language_model.layers.9.x", "no shard has it");
    static const char *const paths[] = {"../model-1.safetensors", "/etc/passwd",     "", ".", "..",
                                        "a/b.safetensors",        "a\\b.safetensors"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        write_two_shards(first, paths[i]);
        expect_refused(first, "must be a plain file name");
    }
    bag_free(&bag);
}

static void test_index_texts(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"{}", "weight_map must be an object of tensors, got nothing"},
        {"{\"weight_map\":[]}", "got array"},
        {"{\"weight_map\":{}}", "an empty one"},
        {"[]", "weight_map must be"},
        {"", "not valid JSON"},
        {"{\"weight_map\":{\"a\":1}}", "must be a plain file name, got integer"},
        {"{\"weight_map\":{\"a\":\"x\",\"a\":\"x\"}}", "duplicate"},
    };
    small_tensors(&bag, &small_bf16);
    small_write(&small_bf16, &bag);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        scratch_text("model.safetensors.index.json", texts[i][0]);
        expect_refused("model.safetensors.index.json", texts[i][1]);
    }
    scratch_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"absent.safetensors\"}}");
    struct th_model *model;
    thespis_error error;
    assert_int_equal(th_model_open(scratch_folder, &model, &error), THESPIS_IO);
    assert_non_null(strstr(error.message, "absent.safetensors"));
    bag_free(&bag);
}

static void test_without_index(void **state)
{
    (void)state;
    small_tensors(&bag, &small_bf16);
    scratch_empty();
    small_config(&small_bf16, SMALL_LAYERS, SMALL_EXPERTS);
    expect_refused(scratch_folder, "holds no weights");
    small_shard("b.safetensors", &bag, 0, 2);
    small_shard("a.safetensors", &bag, 1, 2);
    scratch_text("codec.safetensors", "not the language model's");
    struct th_model *model = open_good();
    assert_int_equal(model->shard_count, 2);
    th_model_close(model);
    small_shard("c.safetensors", &bag, 0, bag.count);
    expect_refused(bag.tensors[0].name, "is twice in the checkpoint");
    small_shard("model.safetensors", &bag, 0, 1); /* goes before the others */
    model = open_good();
    assert_int_equal(model->shard_count, 1);
    th_model_close(model);
    bag_free(&bag);
}

static void test_files_that_are_none(void **state)
{
    (void)state;
    struct th_model *model;
    thespis_error error;
    char path[SCRATCH_PATH];
    small_tensors(&bag, &small_bf16);
    assert_int_equal(th_model_open("/nonexistent", &model, &error), THESPIS_IO);
    assert_non_null(strstr(error.message, "/nonexistent/config.json"));
    small_write(&small_bf16, &bag);
    scratch_path(path, "model.safetensors");
    assert_int_equal(truncate(path, 5000), 0);
    expect_refused("model.safetensors", "truncated");
    assert_int_equal(truncate(path, 0), 0);
    expect_refused("model.safetensors", "it has 0 bytes");
    bag_free(&bag);
}

/* ---- the whole --------------------------------------------------------------------------------------------------------------- */

static void id_of_scratch(char id[65])
{
    struct th_model *model = open_good();
    memcpy(id, model->id, 65);
    assert_int_equal(strlen(id), 64);
    assert_true(model->mapped_bytes > 0 && model->owned_bytes > 0);
    th_model_close(model);
}

static void test_id(void **state)
{
    (void)state;
    char first[65], again[65], other[65];
    small_tensors(&bag, &small_bf16);
    small_write(&small_bf16, &bag);
    id_of_scratch(first);
    id_of_scratch(again);
    assert_string_equal(first, again);
    *(uint16_t *)bag_find(&bag, "model.language_model.norm.weight")->data ^= 1; /* other training, same shapes */
    small_write(&small_bf16, &bag);
    id_of_scratch(other);
    assert_string_not_equal(first, other);
    *(uint16_t *)bag_find(&bag, "model.language_model.norm.weight")->data ^= 1;
    small_write(&small_bf16, &bag);
    id_of_scratch(again);
    assert_string_equal(first, again);
    char path[SCRATCH_PATH];
    scratch_path(path, "config.json");
    FILE *file = fopen(path, "ab");
    fputc('\n', file);
    scratch_close(file);
    id_of_scratch(other);
    assert_string_not_equal(first, other);
    bag_free(&bag);
}

static void test_shipped_checkpoint(void **state)
{
    (void)state;
    struct th_model *model;
    thespis_error error;
    if (th_model_open(TEST_SOURCE_DIR "/models/stage", &model, &error) != THESPIS_OK) fail_msg("%s", error.message);
    assert_int_equal(model->config.expert_format, TH_EXPERTS_FP8);
    assert_non_null(model->layers[model->config.backbone.layers - 1].moe.experts[0].down.scales);
    th_model_close(model);
    th_model_close(NULL);
}

#ifdef TH_FAULTS
static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    small_tensors(&bag, &small_fp8);
    write_two_shards(NULL, NULL);
    small_config(&small_fp8, SMALL_LAYERS, SMALL_EXPERTS);
    struct th_model *model;
    thespis_error error;
    thespis_status status;
    long n = 0;
    do {
        th_memory_fail_from(++n);
        status = th_model_open(scratch_folder, &model, &error);
        th_memory_fail_from(0);
        if (status != THESPIS_OK && status != THESPIS_MEMORY) fail_msg("allocation %ld: %s", n, error.message);
        if (status != THESPIS_OK) assert_null(model);
    } while (status != THESPIS_OK);
    th_model_close(model);
    bag_free(&bag);
    assert_true(n > 20);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_dt_bias_is_rounded),
        cmocka_unit_test(test_every_tensor_is_needed),
        cmocka_unit_test(test_every_type_and_shape_is_checked),
        cmocka_unit_test(test_fp8_needs_codes_and_scales),
        cmocka_unit_test(test_formats_do_not_mix),
        cmocka_unit_test(test_scales_are_finite),
        cmocka_unit_test(test_unknown_names),
        cmocka_unit_test(test_skipped_names),
        cmocka_unit_test(test_either_word_for_a_table),
        cmocka_unit_test(test_lm_head_rows),
        cmocka_unit_test(test_counts_beyond_the_files),
        cmocka_unit_test(test_index),
        cmocka_unit_test(test_index_texts),
        cmocka_unit_test(test_without_index),
        cmocka_unit_test(test_files_that_are_none),
        cmocka_unit_test(test_id),
        cmocka_unit_test(test_shipped_checkpoint),
#ifdef TH_FAULTS
        cmocka_unit_test(test_every_allocation_may_fail),
#endif
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
