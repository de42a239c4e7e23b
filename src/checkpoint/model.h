/* model.h - the language model's weights as typed views: exactly the tensors of docs/model.md, each once, each with its shape.
 *
 * Matrices are views into the mapped shards, [rows, cols] row-major, y = W x. Small vectors (norms, gates, biases, scales) are
 * owned copies in 32-bit floats. Norm weights are as stored: the reader adds the one where the model says 1 + w. */
#ifndef THESPIS_CHECKPOINT_MODEL_H
#define THESPIS_CHECKPOINT_MODEL_H

#include "checkpoint/config.h"
#include "checkpoint/safetensors.h"

/* bf16 [rows, cols]. */
struct th_matrix {
    const uint16_t *data;
    int rows, cols;
};

/* One expert's matrix: E4M3 codes with a scale for each 128 x 128 block, or bf16 without scales. */
struct th_expert_matrix {
    const uint8_t *codes; /* E4M3 [rows, cols], or NULL */
    const uint16_t *bf16; /* [rows, cols], or NULL */
    const float *scales;  /* [ceil(rows/128), ceil(cols/128)], multipliers; NULL for bf16 */
    int rows, cols;
};

struct th_expert {
    struct th_expert_matrix gate, up; /* [expert_inner, H] */
    struct th_expert_matrix down;     /* [H, expert_inner] */
};

struct th_moe_weights {
    struct th_matrix router;                 /* [experts, H] */
    struct th_expert *experts;               /* [experts] */
    struct th_matrix shared_gate, shared_up; /* [shared_inner, H] */
    struct th_matrix shared_down;            /* [H, shared_inner] */
    struct th_matrix shared_expert_gate;     /* [1, H] */
};

struct th_deltanet_weights {
    struct th_matrix qkv;  /* [2 * key_heads*key_dim + value_heads*value_dim, H]: q, k, v, head-major */
    struct th_matrix z;    /* [value_heads*value_dim, H] */
    struct th_matrix b, a; /* [value_heads, H] */
    const float *conv;     /* [channels of qkv][conv_width], tap 0 the oldest */
    const float *a_log;    /* [value_heads] */
    const float *dt_bias;  /* [value_heads], rounded to bf16 */
    const float *norm;     /* [value_dim], plain weight, no + 1 */
    struct th_matrix out;  /* [H, value_heads*value_dim] */
};

struct th_attention_weights {
    struct th_matrix q;           /* [heads * 2 * head_dim, H]: per head, query then gate */
    struct th_matrix k, v;        /* [kv_heads * head_dim, H] */
    struct th_matrix o;           /* [H, heads * head_dim] */
    const float *q_norm, *k_norm; /* [head_dim], 1 + w */
};

struct th_backbone_layer {
    const float *input_norm, *post_norm; /* [H], 1 + w */
    int is_full_attention;
    struct th_attention_weights attention; /* when is_full_attention */
    struct th_deltanet_weights deltanet;   /* otherwise */
    struct th_moe_weights moe;
};

struct th_tower_layer {
    struct th_matrix table;                              /* [codebook_size, H]: embedding of this layer's code */
    const float *enorm, *hnorm;                          /* [H], 1 + w */
    struct th_matrix eh;                                 /* [H, 2H]: embedding half first */
    const float *attention_norm, *ffn_norm, *final_norm; /* [H], 1 + w */
    struct th_matrix wqkv;        /* [(2*heads + 2*kv_heads) * head_dim, H]: queries | gates | keys | values */
    const float *q_norm, *k_norm; /* [head_dim], 1 + w */
    struct th_matrix wo;          /* [H, heads * head_dim] */
    struct th_matrix w1, w3;      /* [inner, H] */
    struct th_matrix w2;          /* [H, inner] */
};

struct th_model {
    struct th_config config;
    struct th_matrix embed;           /* [vocab, H] */
    struct th_matrix lm_head;         /* [>= highest candidate + 1, H] */
    const float *final_norm;          /* [H], 1 + w */
    struct th_backbone_layer *layers; /* [backbone.layers] */
    struct th_matrix code_embed;      /* [codebooks * codebook_size, H]; row c * codebook_size + code */
    struct th_tower_layer *tower;     /* [shared_layers + residual_layers] */
    struct th_matrix *heads;          /* [residual_layers]: [codebook_size, H] */

    char id[65]; /* SHA-256 (hex) of config.json, the shards' headers and the small arrays: names this checkpoint in caches */
    int holes;   /* large matrices are recipes: checkpoint/holes.h */
    uint64_t mapped_bytes, owned_bytes;
    struct th_safetensors *shards; /* owned */
    size_t shard_count;
    void **owned; /* owned small arrays */
    size_t owned_count;
};

/* Opens config.json and the shards of a folder: model.safetensors.index.json's weight_map, or model.safetensors, or every
 * *.safetensors but the codec's. *model is released with th_model_close. */
thespis_status th_model_open(const char *folder, struct th_model **model, thespis_error *error);
void th_model_close(struct th_model *model);

#endif
