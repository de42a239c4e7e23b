/* test_config.c - every rule of config.json: one change to a good configuration, and what the refusal must say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "checkpoint/config.h"

/* The published form, with every field that has a rule and may be present. */
static const char published[] =
    "{'model_type':'fish_omni','architectures':['Other','FishOmniModel'],'fish_schema_version':1,"
    "'speech_template_version':'reference-bracket-v1','dtype':'bfloat16','torch_dtype':'bfloat16','eos_token_id':290,"
    "'semantic_start_token_id':300,'semantic_end_token_id':363,'audio_encoder_config':null,'extra_samplable_token_ids':[],"
    "'unknown_key':{'is':'ignored'},'tie_word_embeddings':false,"
    "'quantization_config':{'quant_method':'bsgemm-moe','activation_scheme':'dynamic','weight_block_size':[128,128]},"
    "'text_config':{'model_type':'fish_omni_text','num_hidden_layers':4,'hidden_size':256,'num_attention_heads':4,"
    "'num_key_value_heads':2,'head_dim':64,'vocab_size':512,'max_position_embeddings':2048,'num_experts':8,"
    "'num_experts_per_tok':2,'moe_intermediate_size':128,'shared_expert_intermediate_size':96,'linear_conv_kernel_dim':4,"
    "'linear_num_key_heads':2,'linear_key_head_dim':32,'linear_num_value_heads':4,'linear_value_head_dim':48,"
    "'rms_norm_eps':1e-6,'hidden_act':'silu','output_gate_type':null,'mamba_ssm_dtype':'float32','attn_output_gate':true,"
    "'tie_word_embeddings':false,'norm_topk_prob':true,'attention_bias':false,'rotary_interleaved':false,'use_qk_norm':true,"
    "'layernorm_zero_centered_gamma':true,'shared_expert_gate':true,'tower_layer_count':11,"
    "'layer_types':['linear_attention','full_attention','linear_attention','full_attention'],"
    "'mlp_layer_types':['moe','moe','moe','moe'],"
    "'rope_parameters':{'rope_type':'default','rope_theta':10000000,'partial_rotary_factor':0.25},"
    "'rope_theta':1e7,'partial_rotary_factor':0.25,"
    "'rope_scaling':{'rope_theta':10000000.0,'rope_type':'default','partial_rotary_factor':0.25}},"
    "'audio_decoder_config':{'model_type':'fish_qwen3_audio_decoder','decoder_type':'codebook_mtp_shared','dim':256,"
    "'text_dim':256,'n_head':4,'n_local_heads':2,'head_dim':64,'n_layer':2,'shared_enrichment_layers':2,"
    "'intermediate_size':384,'num_codebooks':10,'vocab_size':64,'max_seq_len':11,'norm_eps':1e-5,'rope_base':500000,"
    "'rotary_percent':0.5,'rotary_interleaved':'never read','attention_qk_norm':7,'attention_output_gate':true,"
    "'layernorm_zero_centered_gamma':true,'vq_feature_scope':'all_vq','vq_feature_placement':'backbone_partial',"
    "'vq_backbone_codebooks':1,'mtp_spec':{'attention_variant':'full_attention','other':1},'use_moe':false,"
    "'mtp_use_swa':false,'attention_qkv_bias':false,'attention_o_bias':null,'window_size':null,'dropout':0.0}}";

/* Changes that turn it into the form of a configuration saved again. */
static const char *const saved_again[][2] = {
    {"text_config.model_type", "'qwen3_5_moe_text'"},
    {"text_config.full_attention_interval", "2"},
    {"text_config.layer_types", NULL},
    {"text_config.mlp_layer_types", NULL},
    {"text_config.use_qk_norm", NULL},
    {"text_config.rotary_interleaved", NULL},
    {"text_config.shared_expert_gate", NULL},
    {"text_config.layernorm_zero_centered_gamma", NULL},
};

/* ---- changing a configuration ------------------------------------------------------------------------------------------------ */

/* JSON with ' for ", to be readable in C. */
static json_t *from_text(const char *text)
{
    char *copy = strdup(text);
    assert_non_null(copy);
    for (char *c = copy; *c != '\0'; c++)
        if (*c == '\'') *c = '"';
    json_error_t where;
    json_t *value = json_loads(copy, JSON_DECODE_ANY, &where);
    if (value == NULL) fail_msg("the test's own JSON is broken: %s in %s", where.text, copy);
    free(copy);
    return value;
}

/* "text_config.hidden_size" becomes `text`, or disappears for NULL. */
static void change(json_t *config, const char *path, const char *text)
{
    json_t *object = config;
    const char *dot;
    while ((dot = strchr(path, '.')) != NULL) {
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)(dot - path), path);
        object = json_object_get(object, key);
        assert_non_null(object);
        path = dot + 1;
    }
    if (text == NULL)
        json_object_del(object, path);
    else
        assert_int_equal(json_object_set_new(object, path, from_text(text)), 0);
}

static json_t *base_config(int again)
{
    json_t *config = from_text(published);
    for (size_t i = 0; again && i < sizeof saved_again / sizeof *saved_again; i++)
        change(config, saved_again[i][0], saved_again[i][1]);
    return config;
}

/* Parses and releases the JSON. */
static thespis_status parse(json_t *json, struct th_config *config, thespis_error *error)
{
    char *text = json_dumps(json, 0);
    assert_non_null(text);
    memset(error, 0, sizeof *error);
    thespis_status status = th_config_parse(text, strlen(text), "config.json", config, error);
    free(text);
    json_decref(json);
    return status;
}

static void expect(int again, const char *path, const char *text, thespis_status status, const char *named, const char *part)
{
    struct th_config config;
    thespis_error error;
    json_t *json = base_config(again);
    change(json, path, text);
    thespis_status got = parse(json, &config, &error);
    int right = got == status;
    if (status != THESPIS_OK)
        right = right && strstr(error.message, named) != NULL && strstr(error.message, part) != NULL &&
                strncmp(error.message, "config.json: ", 13) == 0;
    if (!right)
        fail_msg("%s = %s: expected %s with '%s' and '%s', got %s: '%s'", path, text != NULL ? text : "(absent)",
                 thespis_status_name(status), named, part, thespis_status_name(got), error.message);
}

/* ---- what is accepted -------------------------------------------------------------------------------------------------------- */

#define NUMBERS 29

/* All integers of the two parts, in the order of their declarations. */
static void numbers_of(const struct th_config *config, int numbers[NUMBERS])
{
    const struct th_backbone_config *b = &config->backbone;
    const struct th_tower_config *t = &config->tower;
    const int all[NUMBERS] = {b->hidden,
                              b->layers,
                              b->interval,
                              b->vocab,
                              b->heads,
                              b->kv_heads,
                              b->head_dim,
                              b->rotary_dim,
                              b->key_heads,
                              b->key_dim,
                              b->value_heads,
                              b->value_dim,
                              b->conv_width,
                              b->experts,
                              b->top_k,
                              b->expert_inner,
                              b->shared_inner,
                              b->max_positions,
                              t->hidden,
                              t->heads,
                              t->kv_heads,
                              t->head_dim,
                              t->rotary_dim,
                              t->shared_layers,
                              t->residual_layers,
                              t->inner,
                              t->codebooks,
                              t->codebook_size,
                              t->backbone_codebooks};
    memcpy(numbers, all, sizeof all);
}

static void expect_published(int again)
{
    static const int want[NUMBERS] = {256, 4,  2,    512, 4, 2, 64, 16, 2, 32, 4,   48, 4,  8, 2,
                                      128, 96, 2048, 256, 4, 2, 64, 32, 2, 9,  384, 10, 64, 1};
    struct th_config c;
    thespis_error error;
    int got[NUMBERS];
    assert_int_equal(parse(base_config(again), &c, &error), THESPIS_OK);
    numbers_of(&c, got);
    assert_memory_equal(got, want, sizeof want);
    assert_true(c.backbone.rope_theta == 1e7 && c.backbone.norm_eps == 1e-6);
    assert_true(c.tower.rope_theta == 500000.0 && c.tower.norm_eps == 1e-5);
    assert_int_equal(c.expert_format, TH_EXPERTS_FP8);
    assert_int_equal(c.eos, 290);
    assert_int_equal(c.semantic_start, 300);
    assert_int_equal(c.semantic_end, 363);
    assert_int_equal(c.frame_width, 11);
    assert_int_equal(c.candidates, 65);
    assert_int_equal(th_config_candidate_token(&c, 0), 290);
    assert_int_equal(th_config_candidate_token(&c, 64), 363);
}

static void test_published_form(void **state)
{
    (void)state;
    expect_published(0);
}

static void test_form_saved_again(void **state)
{
    (void)state;
    expect_published(1);
}

static const char *const accepted[][2] = {
    {"architectures", NULL},
    {"fish_schema_version", NULL},
    {"dtype", NULL},
    {"audio_encoder_config", NULL},
    {"tie_word_embeddings", NULL},
    {"extra_samplable_token_ids", "null"},
    {"extra_samplable_token_ids", NULL},
    {"quantization_config", NULL},
    {"quantization_config", "null"},
    {"eos_token_id", "299"},
    {"eos_token_id", "364"},
    {"eos_token_id", "511"},
    {"eos_token_id", "0"},
    {"text_config.hidden_act", NULL},
    {"text_config.output_gate_type", "'silu'"},
    {"text_config.output_gate_type", "'swish'"},
    {"text_config.mamba_ssm_dtype", "null"},
    {"text_config.attn_output_gate", NULL},
    {"text_config.tie_word_embeddings", NULL},
    {"text_config.norm_topk_prob", NULL},
    {"text_config.attention_bias", NULL},
    {"text_config.rotary_interleaved", NULL},
    {"text_config.use_qk_norm", NULL},
    {"text_config.shared_expert_gate", NULL},
    {"text_config.tower_layer_count", NULL},
    {"text_config.rms_norm_eps", "1"},
    {"text_config.rope_theta", "null"},
    {"text_config.partial_rotary_factor", "null"},
    {"text_config.rope_scaling", "null"},
    {"text_config.rope_scaling", NULL},
    {"text_config.layer_types", "['linear_attention','linear_attention','full_attention','linear_attention']"},
    {"text_config.layer_types", "['full_attention','full_attention','full_attention','full_attention']"},
    {"audio_decoder_config.model_type", NULL},
    {"audio_decoder_config.vq_feature_scope", NULL},
    {"audio_decoder_config.vq_backbone_codebooks", "9"},
    {"audio_decoder_config.mtp_spec", "null"},
    {"audio_decoder_config.mtp_spec", "{}"},
    {"audio_decoder_config.use_moe", "null"},
    {"audio_decoder_config.mtp_use_swa", NULL},
    {"audio_decoder_config.window_rotary_base", "null"},
    {"audio_decoder_config.dropout", "0"},
    {"audio_decoder_config.dropout", NULL},
    {"audio_decoder_config.rotary_percent", "1"},
    {"audio_decoder_config.rotary_interleaved", "false"},
};

static void test_accepted(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) expect(0, accepted[i][0], accepted[i][1], THESPIS_OK, "", "");
    const char *const free_when_saved_again[][2] = {{"text_config.use_qk_norm", "false"},
                                                    {"text_config.layernorm_zero_centered_gamma", "false"},
                                                    {"text_config.layer_types", "'anything'"},
                                                    {"text_config.full_attention_interval", "4"}};
    for (size_t i = 0; i < 4; i++) expect(1, free_when_saved_again[i][0], free_when_saved_again[i][1], THESPIS_OK, "", "");
}

static void test_consequences(void **state)
{
    (void)state;
    struct th_config c;
    thespis_error error;
    json_t *json = base_config(0);
    change(json, "text_config.rope_parameters", "{'type':'default','rope_theta':5}");
    change(json, "text_config.rope_theta", "5.0");
    change(json, "text_config.partial_rotary_factor", "1");
    change(json, "text_config.rope_scaling", NULL);
    change(json, "audio_decoder_config.vq_feature_placement", "'mtp_shared_pre'");
    change(json, "audio_decoder_config.vq_backbone_codebooks", NULL);
    change(json, "quantization_config", NULL);
    change(json, "text_config.hidden_size", "250"); /* no FP8 blocks, no multiple of 128 */
    change(json, "audio_decoder_config.dim", "250");
    change(json, "audio_decoder_config.text_dim", "250");
    change(json, "eos_token_id", "400");
    assert_int_equal(parse(json, &c, &error), THESPIS_OK);
    assert_int_equal(c.backbone.rotary_dim, 64); /* an absent factor is 1 */
    assert_int_equal(c.tower.backbone_codebooks, 0);
    assert_int_equal(c.expert_format, TH_EXPERTS_BF16);
    assert_int_equal(th_config_candidate_token(&c, 0), 300);
    assert_int_equal(th_config_candidate_token(&c, 64), 400);
}

/* ---- what is refused --------------------------------------------------------------------------------------------------------- */

#define BAD THESPIS_FORMAT
#define OTHER THESPIS_UNSUPPORTED
#define TEXT "text_config."
#define ROPE "text_config.rope_parameters."
#define TOWER "audio_decoder_config."
#define QUANT "quantization_config."

struct refusal {
    const char *path, *value; /* value NULL: the field is removed */
    thespis_status status;
    const char *part; /* of the message, beside the field's name */
};

static const struct refusal refusals[] = {
    /* top level */
    {"model_type", "'qwen3'", OTHER, "expected \"fish_omni\", got string \"qwen3\""},
    {"model_type", "1", BAD, "got integer 1"},
    {"model_type", NULL, BAD, "got nothing"},
    {"model_type", "null", BAD, "got null"},
    {"architectures", "['Other']", OTHER, "FishOmniModel"},
    {"architectures", "[]", OTHER, "FishOmniModel"},
    {"architectures", "'FishOmniModel'", BAD, "expected an array, got string"},
    {"architectures", "null", BAD, "expected an array, got null"},
    {"architectures", "['FishOmniModel',1]", BAD, "strings only"},
    {"fish_schema_version", "2", OTHER, "expected 1, got integer 2"},
    {"fish_schema_version", "1.0", BAD, "got number 1"},
    {"fish_schema_version", "true", BAD, "got boolean true"},
    {"fish_schema_version", "null", BAD, "got null"},
    {"speech_template_version", NULL, BAD, "reference-bracket-v1"},
    {"speech_template_version", "'v2'", OTHER, "got string \"v2\""},
    {"dtype", "'float16'", OTHER, "bfloat16"},
    {"dtype", "null", BAD, "got null"},
    {"torch_dtype", "'float32'", OTHER, "bfloat16"},
    {"audio_encoder_config", "{}", OTHER, "got object"},
    {"audio_encoder_config", "false", OTHER, "got boolean"},
    {"tie_word_embeddings", "true", OTHER, "expected false"},
    {"tie_word_embeddings", "0", BAD, "got integer 0"},
    {"extra_samplable_token_ids", "[5]", OTHER, "got array of 1"},
    {"extra_samplable_token_ids", "0", BAD, "got integer 0"},
    {"text_config", NULL, BAD, "expected an object, got nothing"},
    {"text_config", "[]", BAD, "got array"},
    {"text_config", "null", BAD, "got null"},
    {"audio_decoder_config", NULL, BAD, "expected an object, got nothing"},
    {"audio_decoder_config", "'x'", BAD, "got string"},
    {"eos_token_id", "[290]", BAD, "got array of 1"},
    {"eos_token_id", "-1", BAD, "got integer -1"},
    {"eos_token_id", "512", BAD, "below text_config.vocab_size, 512"},
    {"eos_token_id", "300", BAD, "outside the semantic band, 300 to 363"},
    {"eos_token_id", "363", BAD, "outside the semantic band"},
    {"eos_token_id", "2147483648", BAD, "to 2147483647, got integer 2147483648"},
    {"semantic_start_token_id", "-1", BAD, "from 0"},
    {"semantic_end_token_id", "299", BAD, "from 300"},
    {"semantic_end_token_id", "362", BAD, "300 to 363"},
    {"semantic_end_token_id", "2147483647", BAD, "below text_config.vocab_size"},
    {"semantic_end_token_id", "512", BAD, "below text_config.vocab_size"},
    /* text_config */
    {TEXT "model_type", "'qwen3_next'", OTHER, "\"fish_omni_text\" or \"qwen3_5_moe_text\""},
    {TEXT "model_type", NULL, BAD, "got nothing"},
    {TEXT "num_hidden_layers", "5", BAD, "5 layers"},
    {TEXT "layer_types", "['linear_attention','linear_attention','linear_attention','linear_attention']", BAD, "at least one"},
    {TEXT "layer_types", "['linear_attention','full_attention','full_attention','full_attention']", OTHER,
     "[2]: expected layer_types that repeat"},
    {TEXT "layer_types", "['linear_attention','full_attention','linear_attention','linear_attention']", OTHER,
     "[3]: expected layer_types"},
    {TEXT "layer_types", "['linear_attention','full_attention','linear_attention','sliding']", OTHER,
     "[3]: expected \"linear_attention\""},
    {TEXT "layer_types", "['linear_attention','full_attention','linear_attention',4]", BAD, "got integer 4"},
    {TEXT "layer_types", "['full_attention']", BAD, "got array of 1"},
    {TEXT "layer_types", NULL, BAD, "got nothing"},
    {TEXT "layer_types", "'full_attention'", BAD, "got string"},
    {TEXT "mlp_layer_types", NULL, BAD, "got nothing"},
    {TEXT "mlp_layer_types", "['moe','moe','moe','dense']", OTHER, "[3]: expected \"moe\", got string \"dense\""},
    {TEXT "mlp_layer_types", "['moe','moe','moe']", BAD, "4 layers"},
    {TEXT "rotary_interleaved", "true", OTHER, "expected false, got boolean true"},
    {TEXT "rotary_interleaved", "0", BAD, "got integer 0"},
    {TEXT "rotary_interleaved", "null", BAD, "got null"},
    {TEXT "use_qk_norm", "false", OTHER, "expected true"},
    {TEXT "attn_output_gate", "false", OTHER, "expected true"},
    {TEXT "attn_output_gate", "null", BAD, "got null"},
    {TEXT "layernorm_zero_centered_gamma", NULL, BAD, "expected true, got nothing"},
    {TEXT "layernorm_zero_centered_gamma", "false", OTHER, "expected true"},
    {TEXT "shared_expert_gate", "false", OTHER, "expected true"},
    {TEXT "num_attention_heads", "3", BAD, "a multiple of num_key_value_heads, 2"},
    {TEXT "linear_num_value_heads", "3", BAD, "a multiple of linear_num_key_heads, 2"},
    {TEXT "num_experts_per_tok", "9", BAD, "at most num_experts, 8"},
    {TEXT "shared_expert_intermediate_size", "0", BAD, "from 1"},
    {TEXT "linear_conv_kernel_dim", "3", OTHER, "expected 4, got integer 3"},
    {TEXT "hidden_size", "192", BAD, "expected"},
    {TEXT "moe_intermediate_size", "64", BAD, "a multiple of 128"},
    {TEXT "hidden_size", "2147483647", OTHER, "a width of at most"},
    {TEXT "linear_key_head_dim", "1000000000", OTHER, "a width of at most"},
    {TEXT "rms_norm_eps", "0", BAD, "above 0"},
    {TEXT "rms_norm_eps", "-1e-6", BAD, "above 0"},
    {TEXT "rms_norm_eps", "'1e-6'", BAD, "got string"},
    {TEXT "rms_norm_eps", "true", BAD, "got boolean"},
    {TEXT "rms_norm_eps", NULL, BAD, "got nothing"},
    {TEXT "rope_parameters", NULL, BAD, "got nothing"},
    {TEXT "rope_parameters", "10000", BAD, "got integer"},
    {ROPE "rope_type", "'yarn'", OTHER, "expected \"default\", got string \"yarn\""},
    {ROPE "type", "'linear'", OTHER, "\"default\""},
    {ROPE "mrope_section", "[11,11,10]", OTHER, "no such field"},
    {ROPE "mrope_section", "null", OTHER, "no such field"},
    {ROPE "rope_theta", NULL, BAD, "got nothing"},
    {ROPE "rope_theta", "0", BAD, "above 0"},
    {ROPE "rope_theta", "'1e7'", BAD, "got string"},
    {ROPE "partial_rotary_factor", "0", BAD, "at most 1"},
    {ROPE "partial_rotary_factor", "1.01", BAD, "at most 1"},
    {ROPE "partial_rotary_factor", "null", BAD, "got null"},
    {ROPE "partial_rotary_factor", "0.01", BAD, "even number of dimensions above 0 (not 0)"},
    {ROPE "partial_rotary_factor", "0.0625001", BAD, "rope_parameters' own value"},
    {ROPE "partial_rotary_factor", "0.05", BAD, "(not 3)"},
    {TEXT "rope_theta", "10000", BAD, "rope_parameters' own value, 10000000"},
    {TEXT "rope_theta", "'1e7'", BAD, "got string"},
    {TEXT "partial_rotary_factor", "0.5", BAD, "rope_parameters' own value, 0.25"},
    {TEXT "rope_scaling", "{'rope_type':'default'}", BAD, "what rope_parameters says"},
    {TEXT "rope_scaling", "{'rope_theta':1,'rope_type':'default','partial_rotary_factor':0.25}", BAD, "what rope_parameters says"},
    {TEXT "rope_scaling", "1", BAD, "expected an object"},
    {TEXT "tie_word_embeddings", "true", OTHER, "expected false"},
    {TEXT "hidden_act", "'gelu'", OTHER, "\"silu\""},
    {TEXT "hidden_act", "null", BAD, "got null"},
    {TEXT "norm_topk_prob", "false", OTHER, "expected true"},
    {TEXT "output_gate_type", "'sigmoid'", OTHER, "\"silu\" or \"swish\""},
    {TEXT "mamba_ssm_dtype", "'bfloat16'", OTHER, "\"float32\""},
    {TEXT "attention_bias", "true", OTHER, "expected false"},
    {TEXT "attention_bias", "null", BAD, "got null"},
    {TEXT "tower_layer_count", "13", BAD, "shared_enrichment_layers + num_codebooks - 1, 11"},
    {TEXT "tower_layer_count", "'11'", BAD, "got string"},
    {TEXT "tower_layer_count", "null", BAD, "got null"},
    /* audio_decoder_config */
    {TOWER "model_type", "'x'", OTHER, "fish_qwen3_audio_decoder"},
    {TOWER "decoder_type", "'x'", OTHER, "codebook_mtp_shared"},
    {TOWER "decoder_type", NULL, BAD, "got nothing"},
    {TOWER "text_dim", "128", BAD, "the same as dim, 256"},
    {TOWER "n_head", "8", BAD, "the same as text_config.num_attention_heads, 4"},
    {TOWER "n_head", "5", BAD, "a multiple of n_local_heads, 2"},
    {TOWER "n_local_heads", "4", BAD, "the same as text_config.num_key_value_heads, 2"},
    {TOWER "head_dim", "32", BAD, "the same as text_config.head_dim, 64"},
    {TOWER "n_layer", "3", BAD, "the same as shared_enrichment_layers, 2"},
    {TOWER "num_codebooks", "1", BAD, "from 2"},
    {TOWER "num_codebooks", "33", OTHER, "at most 32"},
    {TOWER "max_seq_len", "10", BAD, "num_codebooks + 1, 11"},
    {TOWER "norm_eps", "null", BAD, "got null"},
    {TOWER "rope_base", "-1", BAD, "above 0"},
    {TOWER "rotary_percent", "1.5", BAD, "at most 1"},
    {TOWER "rotary_percent", NULL, BAD, "got nothing"},
    {TOWER "rotary_percent", "0.05", BAD, "even number"},
    {TOWER "attention_output_gate", NULL, BAD, "expected true, got nothing"},
    {TOWER "attention_output_gate", "false", OTHER, "expected true"},
    {TOWER "layernorm_zero_centered_gamma", NULL, BAD, "expected true, got nothing"},
    {TOWER "layernorm_zero_centered_gamma", "1", BAD, "got integer"},
    {TOWER "vq_feature_scope", "'semantic'", OTHER, "all_vq"},
    {TOWER "vq_feature_scope", "null", BAD, "got null"},
    {TOWER "vq_feature_placement", "'x'", OTHER, "\"backbone_partial\" or \"mtp_shared_pre\""},
    {TOWER "vq_feature_placement", NULL, BAD, "got nothing"},
    {TOWER "vq_feature_placement", "'mtp_shared_pre'", BAD, "vq_backbone_codebooks: expected 0"},
    {TOWER "vq_backbone_codebooks", "0", BAD, "from 1 to 9"},
    {TOWER "vq_backbone_codebooks", "10", BAD, "from 1 to 9"},
    {TOWER "vq_backbone_codebooks", NULL, BAD, "from 1 to 9"},
    {TOWER "vq_backbone_codebooks", "null", BAD, "got null"},
    {TOWER "mtp_spec", "[]", BAD, "expected an object"},
    {TOWER "mtp_spec", "false", BAD, "expected an object"},
    {TOWER "mtp_spec.attention_variant", "'sliding'", OTHER, "full_attention"},
    {TOWER "mtp_spec.num_experts", "0", OTHER, "no such field"},
    {TOWER "mtp_spec.num_experts_per_tok", "null", OTHER, "no such field"},
    {TOWER "mtp_spec.moe_anything", "null", OTHER, "no such field"},
    {TOWER "use_moe", "true", OTHER, "expected false"},
    {TOWER "use_moe", "0", BAD, "got integer"},
    {TOWER "mtp_use_swa", "true", OTHER, "expected false"},
    {TOWER "attention_qkv_bias", "true", OTHER, "expected false"},
    {TOWER "attention_o_bias", "true", OTHER, "expected false"},
    {TOWER "window_size", "128", OTHER, "no such field, or null"},
    {TOWER "window_attn_skip_freq", "0", OTHER, "no such field, or null"},
    {TOWER "window_rotary_base", "false", OTHER, "no such field, or null"},
    {TOWER "dropout", "0.1", OTHER, "the number 0"},
    {TOWER "dropout", "null", BAD, "got null"},
    {TOWER "dropout", "false", BAD, "got boolean"},
    {TOWER "vocab_size", "65", BAD, "expected"},
    /* quantization_config */
    {"quantization_config", "'fp8'", BAD, "expected an object"},
    {"quantization_config", "{}", BAD, "expected \"bsgemm-moe\", got nothing"},
    {QUANT "quant_method", "'drama3-int4'", OTHER, "4-bit checkpoints are not supported, got string \"drama3-int4\""},
    {QUANT "quant_method", "'fp8'", OTHER, "\"bsgemm-moe\""},
    {QUANT "activation_scheme", "'static'", OTHER, "\"dynamic\""},
    {QUANT "activation_scheme", NULL, BAD, "got nothing"},
    {QUANT "weight_block_size", "[128,64]", OTHER, "[128, 128]"},
    {QUANT "weight_block_size", "[128]", OTHER, "[128, 128]"},
    {QUANT "weight_block_size", "[128,128,128]", OTHER, "[128, 128]"},
    {QUANT "weight_block_size", "[128.0,128]", OTHER, "[128, 128]"},
    {QUANT "weight_block_size", "[0,0]", OTHER, "[128, 128]"},
    {QUANT "weight_block_size", "null", BAD, "got null"},
    {QUANT "weight_block_size", NULL, BAD, "got nothing"},
};

/* The field that a message must name: usually the one that was changed. */
static const char *field_at_fault(const struct refusal *refusal)
{
    if (strstr(refusal->part, "vq_backbone_codebooks: ") != NULL) return "vq_backbone_codebooks";
    if (strcmp(refusal->path, TEXT "num_hidden_layers") == 0) return "layer_types";
    if (strcmp(refusal->path, TEXT "hidden_size") == 0 && refusal->status == BAD) return "audio_decoder_config.dim";
    if (strcmp(refusal->path, TOWER "vocab_size") == 0) return "semantic_end_token_id";
    if (strcmp(refusal->path, ROPE "partial_rotary_factor") == 0) return "partial_rotary_factor";
    if (strcmp(refusal->path, "quantization_config") == 0) return "quantization_config";
    return refusal->path;
}

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        expect(0, refusals[i].path, refusals[i].value, refusals[i].status, field_at_fault(&refusals[i]), refusals[i].part);
}

static void test_refused_when_saved_again(void **state)
{
    (void)state;
    static const char interval[] = "text_config.full_attention_interval";
    expect(1, interval, NULL, BAD, interval, "got nothing");
    expect(1, interval, "0", BAD, interval, "from 1");
    expect(1, interval, "5", BAD, interval, "from 1 to num_hidden_layers, 4");
    expect(1, interval, "2.0", BAD, interval, "got number");
    expect(1, "text_config.attn_output_gate", "false", OTHER, "attn_output_gate", "expected true");
}

/* Every size is required and takes an integer of 32 bits, nothing else. */
static void test_sizes_are_integers(void **state)
{
    (void)state;
    static const char *const sizes[] = {
        TEXT "num_hidden_layers",
        TEXT "hidden_size",
        TEXT "num_attention_heads",
        TEXT "num_key_value_heads",
        TEXT "head_dim",
        TEXT "vocab_size",
        TEXT "max_position_embeddings",
        TEXT "num_experts",
        TEXT "num_experts_per_tok",
        TEXT "moe_intermediate_size",
        TEXT "linear_conv_kernel_dim",
        TEXT "linear_num_key_heads",
        TEXT "linear_key_head_dim",
        TEXT "linear_num_value_heads",
        TEXT "linear_value_head_dim",
        TEXT "shared_expert_intermediate_size",
        TOWER "dim",
        TOWER "text_dim",
        TOWER "n_head",
        TOWER "n_local_heads",
        TOWER "head_dim",
        TOWER "n_layer",
        TOWER "shared_enrichment_layers",
        TOWER "intermediate_size",
        TOWER "num_codebooks",
        TOWER "vocab_size",
        TOWER "max_seq_len",
        "semantic_start_token_id",
        "semantic_end_token_id",
        "eos_token_id",
    };
    static const char *const wrong[][2] = {{NULL, "got nothing"},
                                           {"null", "got null"},
                                           {"'4'", "got string \"4\""},
                                           {"true", "got boolean true"},
                                           {"4.0", "got number 4"},
                                           {"[4]", "got array of 1"},
                                           {"{}", "got object"},
                                           {"-1", "got integer -1"},
                                           {"2147483648", "got integer 2147483648"},
                                           {"-9223372036854775808", "got integer -9223372036854775808"}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) expect(0, sizes[i], wrong[k][0], BAD, sizes[i], wrong[k][1]);
}

/* ---- the text itself --------------------------------------------------------------------------------------------------------- */

static void expect_text(const char *text, thespis_status status, const char *part)
{
    struct th_config config;
    thespis_error error;
    assert_int_equal(th_config_parse(text, strlen(text), "config.json", &config, &error), status);
    if (strstr(error.message, part) == NULL) fail_msg("expected '%s' in '%s'", part, error.message);
}

static void test_texts(void **state)
{
    (void)state;
    expect_text("", BAD, "config.json: not valid JSON");
    expect_text("[]", BAD, "expected an object, got array");
    expect_text("null", BAD, "expected an object, got null");
    expect_text("{\"model_type\":\"fish_omni\",\"model_type\":\"fish_omni\"}", BAD, "duplicate");
    expect_text("{\"text_config\":{\"a\":{\"b\":1,\"b\":1}}}", BAD, "duplicate");
    expect_text("{\"a\":NaN}", BAD, "not valid JSON");
    expect_text("{\"a\":Infinity}", BAD, "not valid JSON");
    expect_text("{\"a\":1e999}", BAD, "not valid JSON");
    expect_text("{\"a\":99999999999999999999}", BAD, "not valid JSON");
    expect_text("{} {}", BAD, "not valid JSON");
    expect_text("{\"a\":\"\xC3\"}", BAD, "not valid JSON");
    expect_text("{\"model_type\":\"\\u001b[31mfish\"}", OTHER, "got string \"?[31mfish\"");
}

static void test_cut_anywhere(void **state)
{
    (void)state;
    struct th_config config;
    thespis_error error;
    json_t *json = base_config(0);
    char *text = json_dumps(json, 0);
    size_t bytes = strlen(text);
    for (size_t keep = 0; keep < bytes; keep++)
        assert_int_equal(th_config_parse(text, keep, "config.json", &config, &error), THESPIS_FORMAT);
    free(text);
    json_decref(json);
}

static void test_files(void **state)
{
    (void)state;
    struct th_config config;
    thespis_error error;
    assert_int_equal(th_config_read(TEST_SOURCE_DIR "/models/stage/config.json", &config, &error), THESPIS_OK);
    assert_int_equal(config.backbone.layers, 8);
    assert_int_equal(config.backbone.interval, 2);
    assert_int_equal(config.tower.codebooks, 8);
    assert_int_equal(th_config_read(TEST_SOURCE_DIR "/models", &config, &error), THESPIS_IO);
    assert_int_equal(th_config_read("/nonexistent/config.json", &config, &error), THESPIS_IO);
    assert_non_null(strstr(error.message, "/nonexistent/config.json"));
#ifdef TH_FAULTS
    th_memory_fail_from(1);
    thespis_status status = th_config_read(TEST_SOURCE_DIR "/models/stage/config.json", &config, &error);
    th_memory_fail_from(0);
    assert_int_equal(status, THESPIS_MEMORY);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_form),
        cmocka_unit_test(test_form_saved_again),
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_consequences),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_refused_when_saved_again),
        cmocka_unit_test(test_sizes_are_integers),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_cut_anywhere),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
