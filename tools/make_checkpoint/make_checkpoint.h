/* make_checkpoint.h - what the files of this tool share: shapes, recipes of tensors, and the streams that write them.
 *
 * A checkpoint is a list of recipes. A recipe says how one tensor's values follow from the seed, a name and an index, so any part
 * of any tensor can be made at any time by any thread, and the same seed gives the same bytes. */
#ifndef THESPIS_MAKE_CHECKPOINT_H
#define THESPIS_MAKE_CHECKPOINT_H

#include <jansson.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"
#include "base/pool.h"
#include "checkpoint/holes.h"
#include "checkpoint/safetensors.h"

#define TH_RECIPE_NAME 128
#define TH_SCALE_BLOCK 128 /* rows and columns of a matrix that share one FP8 scale */

/* ---- presets.c --------------------------------------------------------------------------------------------------------------- */

/* The codec's widths, under the names the oracle's codec_sizes.json gives them. */
struct th_codec_sizes {
    int encoder_dim, decoder_dim;
    int latent; /* input_dim: 16 * encoder_dim */
    int books;  /* residual codebooks, the semantic one not counted */
    int entries, semantic_entries, code_width;
    int encoder_layers, quantizer_layers, inner, window;
};

enum th_regex { TH_REGEX_QWEN2, TH_REGEX_QWEN3_5 };

struct th_preset {
    const char *name, *about;
    int hidden, layers, interval;
    int heads, kv_heads, head_dim;
    int key_heads, key_dim, value_heads, value_dim;
    int experts, top_k, expert_inner, shared_inner;
    int band, codebooks, backbone_codebooks; /* entries of a codebook; all of them; B, 0 selects mtp_shared_pre */
    int tower_shared, tower_inner;
    double rope_theta, rotary_factor;
    int merges;      /* of the tokenizer */
    int first_added; /* id of the first added token: the text vocabulary is filled up to it; 0: right behind the text vocabulary */
    int first_band;  /* id of <|semantic:0|>, reached with reserved tokens; 0: right behind the tokens before it */
    int vocab;       /* 0: the tokenizer's size rounded up, with rows to spare */
    int eos_after_band;
    int a_log_f32, gated_norm_f32, scales_bf16;
    enum th_regex regex;
    int shards;
    uint64_t total_bytes; /* what the tensors must sum up to as published, or 0 */
    const char *codec;    /* name in the codecs' table */
};

struct th_codec_preset {
    const char *name, *about;
    struct th_codec_sizes sizes;
    int extra_keys; /* rotary tables and masks that loaders must ignore: 1 one pair of small ones, 2 all of full size */
};

const struct th_preset *th_preset_at(size_t index);             /* NULL behind the last */
const struct th_codec_preset *th_codec_preset_at(size_t index); /* NULL behind the last */
const struct th_preset *th_preset_find(const char *name);
const struct th_codec_preset *th_codec_preset_find(const char *name);

/* ---- random.c ---------------------------------------------------------------------------------------------------------------- */

/* Values first, first + 1, ... of the stream that seed and name select. */
uint64_t th_random_key(uint64_t seed, const char *name);
void th_random_normals(uint64_t key, uint64_t first, size_t count, float *out);  /* mean 0, deviation 1, within +-5.2 */
void th_random_uniforms(uint64_t key, uint64_t first, size_t count, float *out); /* [0, 1) */

/* ---- rounding.c -------------------------------------------------------------------------------------------------------------- */

/* To nearest, ties to even; values are finite. */
uint16_t th_round_bf16(float value);
float th_widen_bf16(uint16_t bits);
/* E4M3 without infinities; clamps at +-448. */
void th_round_e4m3(const float *values, size_t count, uint8_t *codes);

/* ---- recipe.c ---------------------------------------------------------------------------------------------------------------- */

enum th_rule {
    TH_RULE_NORMAL,      /* a + b * normal */
    TH_RULE_UNIFORM,     /* a + (b - a) * uniform, times factor */
    TH_RULE_LOG_UNIFORM, /* ln of a uniform value in [a, b) */
    TH_RULE_E4M3,        /* codes of b * normal under the block scales */
    TH_RULE_SCALE,       /* the block scales of the same matrix: amax / 448 */
    TH_RULE_ZERO,
    TH_RULE_LOWER_TRIANGLE /* 1 where column <= row */
};

/* Which matrices lie behind one another in a tensor, and whose names seed them. */
enum th_stack { TH_STACK_NONE, TH_STACK_GATE_UP, TH_STACK_DOWN };

struct th_recipe {
    char name[TH_RECIPE_NAME];   /* in the file */
    char source[TH_RECIPE_NAME]; /* what seeds the values; with a stack, the prefix of the experts' names */
    enum th_dtype dtype;
    int rank;
    int64_t shape[TH_TENSOR_MAX_RANK];
    uint64_t bytes;
    enum th_rule rule;
    enum th_stack stack;
    float a, b, factor;
    int64_t rows, cols; /* of one matrix (slice) of the tensor, as quantised: for scales those of the matrix they scale */
    int64_t slices;
    int64_t loud_row; /* this row is doubled (end of speech, so that some requests end by themselves); -1: none */
    int scale_bf16;   /* TH_RULE_E4M3: the scales in the file are bf16 */
};

struct th_recipes {
    struct th_recipe *items;
    size_t count, capacity;
    uint64_t bytes;
};

/* Appends a recipe with bytes, rows, cols and slices worked out from dtype and shape; the caller sets the rule. */
thespis_status th_recipes_add(struct th_recipes *list, const char *name, enum th_dtype dtype, int rank, const int64_t *shape,
                              struct th_recipe **added, thespis_error *error);
void th_recipes_free(struct th_recipes *list);

/* A part of a tensor that one thread makes: units begin..end-1 of one slice. A unit is an element, or for E4M3 and scales the rows
 * of one block. */
struct th_part {
    const struct th_recipe *recipe;
    int64_t slice, begin, end;
};
/* 1 when the tensor is large and of a kind that checkpoint/holes.h can say; *hole is filled. */
int th_recipe_hole(const struct th_recipe *recipe, uint64_t seed, struct th_hole *hole);
int64_t th_recipe_units(const struct th_recipe *recipe); /* of one slice */
size_t th_part_bytes(const struct th_part *part);
void th_part_make(const struct th_part *part, uint64_t seed, void *out);

/* ---- stream.c ---------------------------------------------------------------------------------------------------------------- */

/* Writes recipes one after the other while the next ones are being made. Memory is two buffers whatever the size. */
struct th_stream;
/* output NULL: everything is made and nothing is written. */
thespis_status th_stream_open(struct th_pool *pool, uint64_t seed, struct th_output *output, struct th_stream **stream,
                              thespis_error *error);
thespis_status th_stream_bytes(struct th_stream *stream, const void *data, size_t bytes, thespis_error *error);
/* The recipe of a tensor instead of its values, and a hole. */
thespis_status th_stream_hole(struct th_stream *stream, const struct th_recipe *recipe, thespis_error *error);
thespis_status th_stream_recipe(struct th_stream *stream, const struct th_recipe *recipe, thespis_error *error);
thespis_status th_stream_flush(struct th_stream *stream, thespis_error *error);
/* CRC-32 of all that was written since the last call. Flush first. */
uint32_t th_stream_take_crc(struct th_stream *stream);
uint64_t th_stream_position(const struct th_stream *stream);
void th_stream_close(struct th_stream *stream);

/* ---- what is written --------------------------------------------------------------------------------------------------------- */

enum th_scales { TH_SCALES_PRESET, TH_SCALES_F32, TH_SCALES_BF16 };

struct th_job {
    const struct th_preset *preset;      /* NULL with --no-model and no --preset */
    const struct th_codec_preset *codec; /* NULL with --no-codec */
    uint64_t seed;
    int stacked, bf16_experts;
    enum th_scales scales; /* of FP8 experts */
    int shards;            /* 0: the preset's */
    int dry_run;
    int holes; /* large matrices as recipes: checkpoint/holes.h */
    const char *folder;
    struct th_pool *pool;
    uint64_t bytes; /* of tensors, made so far */
};

struct th_vocabulary {
    int size; /* of the tokenizer */
    int eos, pad, semantic_start;
    int vocab; /* rows of embedding and head */
};

/* tokenizer.c: the ids a preset's tokenizer gives, and the file itself when `root` is not NULL. */
thespis_status th_tokenizer_make(const struct th_preset *preset, struct th_vocabulary *vocabulary, json_t **root,
                                 thespis_error *error);
/* merges.c: BPE over an embedded list of words. Symbols are in the byte alphabet's spelling (UTF-8). */
struct th_merges {
    int count;
    char (*left)[64], (*right)[64]; /* [count] */
};
thespis_status th_merges_train(int wanted, struct th_merges *merges, thespis_error *error);
void th_merges_free(struct th_merges *merges);
/* The UTF-8 spelling of a byte in the byte alphabet, at most 2 bytes and a zero. */
void th_byte_symbol(int byte, char symbol[4]);

/* config_json.c */
json_t *th_config_json(const struct th_job *job, const struct th_vocabulary *vocabulary);
/* tensors_model.c, tensors_codec.c */
thespis_status th_model_recipes(const struct th_job *job, const struct th_vocabulary *vocabulary, struct th_recipes *list,
                                thespis_error *error);
thespis_status th_codec_recipes(const struct th_codec_sizes *sizes, int extra_keys, struct th_recipes *list, thespis_error *error);
/* shards.c: the shards and their index. pth_writer.c: codec.pth and codec_sizes.json. */
thespis_status th_shards_write(struct th_job *job, struct th_recipes *list, thespis_error *error);
thespis_status th_pth_write(struct th_job *job, const struct th_recipes *list, thespis_error *error);
/* A JSON value as a file of the folder. Takes the reference. */
thespis_status th_write_json(const struct th_job *job, const char *name, json_t *root, thespis_error *error);

#endif
