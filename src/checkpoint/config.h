/* config.h - the numbers of config.json, checked (docs/model.md says what is allowed and why). */
#ifndef THESPIS_CHECKPOINT_CONFIG_H
#define THESPIS_CHECKPOINT_CONFIG_H

#include "base/error.h"

#define TH_MAX_CODEBOOKS 32
#define TH_EXPERT_BLOCK 128 /* rows and columns that share one FP8 scale; inputs that share one activation scale */

enum th_expert_format { TH_EXPERTS_BF16, TH_EXPERTS_FP8 };

/* The Qwen3.5-MoE network that scores the main token. */
struct th_backbone_config {
    int hidden; /* H, width of the residual stream */
    int layers; /* layer i is full attention iff (i + 1) % interval == 0, otherwise Gated DeltaNet */
    int interval;
    int vocab;
    int heads, kv_heads, head_dim; /* full attention; heads % kv_heads == 0 */
    int rotary_dim;                /* even, <= head_dim: dims 0..rotary_dim-1 rotate, pairs (i, i + rotary_dim/2) */
    double rope_theta;
    int key_heads, key_dim;     /* DeltaNet */
    int value_heads, value_dim; /* value head j reads key head j / (value_heads / key_heads) */
    int conv_width;             /* taps of the causal convolution: 4 */
    int experts, top_k;
    int expert_inner;
    int shared_inner;
    double norm_eps;
    int max_positions;
};

/* The layers that draw codes 1..codebooks-1. Geometry of heads is the backbone's. */
struct th_tower_config {
    int hidden; /* == backbone.hidden */
    int heads, kv_heads, head_dim;
    int rotary_dim; /* pairs (2i, 2i + 1) of the first rotary_dim dims */
    double rope_theta;
    int shared_layers;   /* all take code 0 of the label */
    int residual_layers; /* codebooks - 1; residual layer r takes code r, its head draws code r + 1 */
    int inner;           /* SwiGLU */
    int codebooks;
    int codebook_size;      /* entries of each, and of the semantic band */
    int backbone_codebooks; /* B: codes 1..B enter the backbone's row, B+1..codebooks-1 the tower's first layer */
    double norm_eps;
};

struct th_config {
    struct th_backbone_config backbone;
    struct th_tower_config tower;
    enum th_expert_format expert_format;
    int eos;            /* token id of end of speech */
    int semantic_start; /* band of main tokens, both ends included; semantic_end - semantic_start + 1 == codebook_size */
    int semantic_end;
    int frame_width; /* W = 1 + codebooks: main token, code 0, ... */
    int candidates;  /* codebook_size + 1 */
};

/* Reads and checks a config.json. Refusals name the field, the value and what is allowed. */
thespis_status th_config_read(const char *path, struct th_config *config, thespis_error *error);
thespis_status th_config_parse(const char *text, size_t bytes, const char *name, struct th_config *config, thespis_error *error);

static inline int th_config_is_full_attention(const struct th_config *config, int layer)
{
    return (layer + 1) % config->backbone.interval == 0;
}
static inline int th_config_is_semantic(const struct th_config *config, int main_token)
{
    return main_token >= config->semantic_start && main_token <= config->semantic_end;
}
/* Candidates of the main draw are eos and the band, ascending by token id. */
static inline int th_config_candidate_token(const struct th_config *config, int candidate)
{
    if (config->eos < config->semantic_start) return candidate == 0 ? config->eos : config->semantic_start + candidate - 1;
    return candidate == config->candidates - 1 ? config->eos : config->semantic_start + candidate;
}

#endif
