/* config_json.c - config.json of a preset. */
#include "make_checkpoint.h"

static json_t *layer_types(const struct th_preset *p, int mlp)
{
    json_t *list = json_array();
    for (int i = 0; i < p->layers; i++) {
        const char *attention = (i + 1) % p->interval == 0 ? "full_attention" : "linear_attention";
        json_array_append_new(list, json_string(mlp ? "moe" : attention));
    }
    return list;
}

static void text_mixers(json_t *o, const struct th_preset *p)
{
    json_object_set_new(o, "num_attention_heads", json_integer(p->heads));
    json_object_set_new(o, "num_key_value_heads", json_integer(p->kv_heads));
    json_object_set_new(o, "head_dim", json_integer(p->head_dim));
    json_object_set_new(o, "rope_parameters",
                        json_pack("{s:s, s:f, s:f}", "rope_type", "default", "rope_theta", p->rope_theta, "partial_rotary_factor",
                                  p->rotary_factor));
    json_object_set_new(o, "rotary_interleaved", json_false());
    json_object_set_new(o, "use_qk_norm", json_true());
    json_object_set_new(o, "attn_output_gate", json_true());
    json_object_set_new(o, "layernorm_zero_centered_gamma", json_true());
    json_object_set_new(o, "linear_conv_kernel_dim", json_integer(4));
    json_object_set_new(o, "linear_key_head_dim", json_integer(p->key_dim));
    json_object_set_new(o, "linear_value_head_dim", json_integer(p->value_dim));
    json_object_set_new(o, "linear_num_key_heads", json_integer(p->key_heads));
    json_object_set_new(o, "linear_num_value_heads", json_integer(p->value_heads));
}

static json_t *text_config(const struct th_preset *p, const struct th_vocabulary *v)
{
    json_t *o = json_object();
    json_object_set_new(o, "model_type", json_string("fish_omni_text"));
    json_object_set_new(o, "vocab_size", json_integer(v->vocab));
    json_object_set_new(o, "hidden_size", json_integer(p->hidden));
    json_object_set_new(o, "num_hidden_layers", json_integer(p->layers));
    json_object_set_new(o, "layer_types", layer_types(p, 0));
    json_object_set_new(o, "mlp_layer_types", layer_types(p, 1));
    json_object_set_new(o, "hidden_act", json_string("silu"));
    json_object_set_new(o, "max_position_embeddings", json_integer(32768));
    json_object_set_new(o, "rms_norm_eps", json_real(1e-6));
    text_mixers(o, p);
    json_object_set_new(o, "num_experts", json_integer(p->experts));
    json_object_set_new(o, "num_experts_per_tok", json_integer(p->top_k));
    json_object_set_new(o, "moe_intermediate_size", json_integer(p->expert_inner));
    json_object_set_new(o, "shared_expert_intermediate_size", json_integer(p->shared_inner));
    json_object_set_new(o, "shared_expert_gate", json_true());
    json_object_set_new(o, "norm_topk_prob", json_true());
    json_object_set_new(o, "tie_word_embeddings", json_false());
    return o;
}

static json_t *decoder_config(const struct th_preset *p)
{
    json_t *o = json_object();
    json_object_set_new(o, "model_type", json_string("fish_qwen3_audio_decoder"));
    json_object_set_new(o, "decoder_type", json_string("codebook_mtp_shared"));
    json_object_set_new(o, "dim", json_integer(p->hidden));
    json_object_set_new(o, "text_dim", json_integer(p->hidden));
    json_object_set_new(o, "n_head", json_integer(p->heads));
    json_object_set_new(o, "n_local_heads", json_integer(p->kv_heads));
    json_object_set_new(o, "head_dim", json_integer(p->head_dim));
    json_object_set_new(o, "n_layer", json_integer(p->tower_shared));
    json_object_set_new(o, "shared_enrichment_layers", json_integer(p->tower_shared));
    json_object_set_new(o, "intermediate_size", json_integer(p->tower_inner));
    json_object_set_new(o, "norm_eps", json_real(1e-6));
    json_object_set_new(o, "num_codebooks", json_integer(p->codebooks));
    json_object_set_new(o, "vocab_size", json_integer(p->band));
    json_object_set_new(o, "max_seq_len", json_integer(p->codebooks + 1));
    json_object_set_new(o, "rope_base", json_real(p->rope_theta));
    json_object_set_new(o, "rotary_percent", json_real(p->rotary_factor));
    json_object_set_new(o, "rotary_interleaved", json_true());
    json_object_set_new(o, "attention_output_gate", json_true());
    json_object_set_new(o, "attention_qk_norm", json_true());
    json_object_set_new(o, "layernorm_zero_centered_gamma", json_true());
    json_object_set_new(o, "vq_feature_scope", json_string("all_vq"));
    json_object_set_new(o, "vq_feature_placement", json_string(p->backbone_codebooks > 0 ? "backbone_partial" : "mtp_shared_pre"));
    json_object_set_new(o, "vq_backbone_codebooks", json_integer(p->backbone_codebooks));
    json_object_set_new(o, "mtp_spec", json_pack("{s:s}", "attention_variant", "full_attention"));
    return o;
}

json_t *th_config_json(const struct th_job *job, const struct th_vocabulary *v)
{
    const struct th_preset *p = job->preset;
    json_t *o = json_object();
    json_object_set_new(o, "architectures", json_pack("[s]", "FishOmniModel"));
    json_object_set_new(o, "model_type", json_string("fish_omni"));
    json_object_set_new(o, "dtype", json_string("bfloat16"));
    json_object_set_new(o, "fish_schema_version", json_integer(1));
    json_object_set_new(o, "speech_template_version", json_string("reference-bracket-v1"));
    json_object_set_new(o, "eos_token_id", json_integer(v->eos));
    json_object_set_new(o, "pad_token_id", json_integer(v->pad));
    json_object_set_new(o, "semantic_start_token_id", json_integer(v->semantic_start));
    json_object_set_new(o, "semantic_end_token_id", json_integer(v->semantic_start + p->band - 1));
    json_object_set_new(o, "audio_encoder_config", json_null());
    json_object_set_new(o, "extra_samplable_token_ids", json_array());
    json_object_set_new(o, "tie_word_embeddings", json_false());
    if (!job->bf16_experts)
        json_object_set_new(o, "quantization_config",
                            json_pack("{s:s, s:s, s:[i, i]}", "quant_method", "bsgemm-moe", "activation_scheme", "dynamic",
                                      "weight_block_size", 128, 128));
    json_object_set_new(o, "text_config", text_config(p, v));
    json_object_set_new(o, "audio_decoder_config", decoder_config(p));
    return o;
}
