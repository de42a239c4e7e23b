/* inspect.c - see inspect.h. */
#include "engine/inspect.h"

#include <stdio.h>
#include <string.h>

#include "audio/codes.h"
#include "base/file.h"
#include "base/memory.h"
#include "engine/parts.h"
#include "engine/takes.h"
#include "text/unicode.h"
#include "text/validate.h"

thespis_status th_convert_codec(const char *pth_path, const char *out_path, thespis_error *error)
{
    return th_codec_convert(pth_path, out_path, error);
}

/* ---- checkpoint -------------------------------------------------------------------------------------------------------------- */

static json_t *describe_backbone(const struct th_config *c)
{
    const struct th_backbone_config *b = &c->backbone;
    return json_pack("{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:s,s:i}", "layers", b->layers,
                     "full_attention_every", b->interval, "hidden", b->hidden, "vocab", b->vocab, "heads", b->heads, "kv_heads",
                     b->kv_heads, "head_dim", b->head_dim, "rotary_dim", b->rotary_dim, "rope_theta", b->rope_theta,
                     "deltanet_key_heads", b->key_heads, "deltanet_key_dim", b->key_dim, "deltanet_value_heads", b->value_heads,
                     "deltanet_value_dim", b->value_dim, "experts", b->experts, "experts_per_token", b->top_k, "expert_inner",
                     b->expert_inner, "shared_inner", b->shared_inner, "expert_format",
                     c->expert_format == TH_EXPERTS_FP8 ? "fp8 e4m3, 128 x 128 blocks" : "bf16", "max_positions", b->max_positions);
}

static json_t *describe_tower(const struct th_config *c)
{
    const struct th_tower_config *t = &c->tower;
    return json_pack("{s:i,s:i,s:i,s:i,s:i,s:i}", "shared_layers", t->shared_layers, "residual_layers", t->residual_layers, "inner",
                     t->inner, "codebooks", t->codebooks, "codebook_size", t->codebook_size, "codes_in_backbone",
                     t->backbone_codebooks);
}

static json_t *describe_codec(const struct th_codec *c)
{
    json_t *entries = json_array();
    for (int i = 0; i < c->books; i++) json_array_append_new(entries, json_integer(c->book_entries[i]));
    return json_pack("{s:s,s:i,s:i,s:o,s:i,s:i}", "id", c->id, "latent", c->latent, "codebooks", c->books, "entries", entries,
                     "post_layers", c->decoder.post.layers, "pre_layers", c->encoder.pre.layers);
}

thespis_status th_inspect_checkpoint(const char *folder, json_t **out, thespis_error *error)
{
    thespis_engine_options options;
    struct th_parts p;
    *out = NULL;
    thespis_engine_options_init(&options);
    options.checkpoint = folder;
    options.backend = THESPIS_BACKEND_CPU; /* looking needs no device */
    options.max_rows = 2;
    options.voice_slots = 0;
    TH_TRY(th_parts_open(&options, 0, &p, error));
    const struct th_config *c = &p.model->config;
    *out = json_pack("{s:s,s:s,s:o,s:o,s:i,s:i,s:i,s:i,s:I,s:I,s:o}", "checkpoint", folder, "id", p.model->id, "backbone",
                     describe_backbone(c), "tower", describe_tower(c), "eos", c->eos, "semantic_start", c->semantic_start,
                     "semantic_end", c->semantic_end, "tokenizer_ids", (int)th_tokenizer_size(p.tokenizer), "mapped_bytes",
                     (json_int_t)p.model->mapped_bytes, "shards", (json_int_t)p.model->shard_count, "codec",
                     p.codec != NULL ? describe_codec(p.codec) : json_null());
    th_parts_close(&p);
    return *out != NULL ? THESPIS_OK : th_fail_memory(error, "the report", 0);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------------------ */

static thespis_status open_tokenizer(const char *folder, struct th_tokenizer **tokenizer, thespis_error *error)
{
    char *path;
    TH_TRY(th_path_join(folder, "tokenizer.json", &path, error));
    thespis_status status = th_tokenizer_open(path, tokenizer, error);
    th_free(path);
    return status;
}

/* Bytes of a token as a string; bytes that are no UTF-8 of their own as \xNN. */
static json_t *content_of(const struct th_tokenizer *tokenizer, int32_t id)
{
    size_t n;
    const char *bytes = th_tokenizer_content(tokenizer, id, &n);
    if (bytes == NULL) return json_null();
    if (th_utf8_check(bytes, n, NULL) == THESPIS_OK) return json_stringn(bytes, n);
    char text[256];
    size_t used = 0;
    for (size_t i = 0; i < n && used + 5 < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "\\x%02X", (unsigned char)bytes[i]);
    return json_stringn(text, used);
}

thespis_status th_inspect_tokens(const char *folder, const char *text, size_t bytes, json_t **out, thespis_error *error)
{
    struct th_tokenizer *tokenizer;
    struct th_ids ids = {0};
    *out = NULL;
    TH_TRY(th_utf8_check(text, bytes, error));
    TH_TRY(open_tokenizer(folder, &tokenizer, error));
    thespis_status status = th_tokenizer_encode(tokenizer, text, bytes, &ids, error);
    if (status == THESPIS_OK) {
        json_t *numbers = json_array(), *contents = json_array();
        for (size_t i = 0; i < ids.count; i++) {
            json_array_append_new(numbers, json_integer(ids.data[i]));
            json_array_append_new(contents, content_of(tokenizer, ids.data[i]));
        }
        *out = json_pack("{s:o,s:o}", "ids", numbers, "tokens", contents);
        if (*out == NULL) status = th_fail_memory(error, "the report", 0);
    }
    th_free(ids.data);
    th_tokenizer_close(tokenizer);
    return status;
}

/* ---- prompt ------------------------------------------------------------------------------------------------------------------ */

static void add_segment(void *context, const struct th_prompt_segment *s)
{
    json_t *item = s->text != NULL
                       ? json_pack("{s:o,s:i,s:i}", "text", json_stringn(s->text, s->bytes), "first_row", (int)s->first_row, "rows",
                                   (int)s->rows)
                       : json_pack("{s:i,s:i,s:i}", "frames", (int)s->frames, "first_row", (int)s->first_row, "rows", (int)s->rows);
    json_array_append_new(context, item);
}

static json_t *rows_of(const struct th_rows *rows)
{
    json_t *all = json_array();
    for (size_t i = 0; i < rows->count; i++) {
        json_t *row = json_array();
        for (int c = 0; c < rows->width; c++)
            json_array_append_new(row, json_integer(rows->data[i * (size_t)rows->width + (size_t)c]));
        json_array_append_new(all, row);
    }
    return all;
}

static thespis_status describe_prompt(const struct th_tokenizer *tokenizer, const struct th_prompt_shape *shape,
                                      const struct th_prompt *prompt, json_t **out, thespis_error *error)
{
    struct th_rows rows = {0};
    TH_TRY(th_prompt_check_tokenizer(tokenizer, shape, error));
    TH_TRY(th_prompt_build(tokenizer, shape, prompt, &rows, error));
    json_t *segments = json_array();
    thespis_status status = th_prompt_walk(tokenizer, shape, prompt, add_segment, segments, error);
    if (status == THESPIS_OK)
        *out = json_pack("{s:i,s:i,s:o,s:o}", "row_count", (int)rows.count, "system_rows", (int)rows.system_count, "segments",
                         segments, "rows", rows_of(&rows));
    else
        json_decref(segments);
    th_rows_free(&rows);
    if (status == THESPIS_OK && *out == NULL) return th_fail_memory(error, "the report", 0);
    return status;
}

static thespis_status read_shape(const char *folder, struct th_prompt_shape *shape, thespis_error *error)
{
    char *path;
    struct th_config config;
    TH_TRY(th_path_join(folder, "config.json", &path, error));
    thespis_status status = th_config_read(path, &config, error);
    th_free(path);
    if (status == THESPIS_OK)
        *shape = (struct th_prompt_shape){config.tower.codebooks, config.tower.codebook_size, config.semantic_start};
    return status;
}

thespis_status th_inspect_prompt(const char *folder, const char *text, size_t bytes, const char *const *references,
                                 const char *const *transcripts, int reference_count, json_t **out, thespis_error *error)
{
    struct th_prompt_reference list[THESPIS_MAX_SPEAKERS];
    struct th_prompt prompt = {.references = list, .text = text, .text_bytes = bytes};
    struct th_prompt_shape shape;
    struct th_tokenizer *tokenizer = NULL;
    *out = NULL;
    if (reference_count > THESPIS_MAX_SPEAKERS)
        return th_fail(error, THESPIS_LIMIT, "%d references, at most %d are allowed", reference_count, THESPIS_MAX_SPEAKERS);
    TH_TRY(read_shape(folder, &shape, error));
    thespis_status status = open_tokenizer(folder, &tokenizer, error);
    for (int i = 0; i < reference_count && status == THESPIS_OK; i++) {
        struct th_codes codes;
        const char *transcript = transcripts[i] != NULL ? transcripts[i] : "";
        status = th_codes_read(references[i], shape.codebooks, shape.codebook_size, &codes, error);
        if (status != THESPIS_OK) break;
        list[prompt.reference_count++] = (struct th_prompt_reference){transcript, strlen(transcript), codes.codes, codes.frames};
    }
    if (status == THESPIS_OK) status = describe_prompt(tokenizer, &shape, &prompt, out, error);
    for (size_t i = 0; i < prompt.reference_count; i++) th_free((void *)list[i].codes);
    th_tokenizer_close(tokenizer);
    return status;
}

/* ---- chunks ------------------------------------------------------------------------------------------------------------------ */

thespis_status th_inspect_chunks(const char *text, size_t bytes, thespis_granularity granularity, int chunk_bytes, json_t **out,
                                 thespis_error *error)
{
    struct th_chunks chunks;
    *out = NULL;
    TH_TRY(th_validate_text(text, bytes, TH_TEXT_NEED_SPEAKABLE, NULL, error));
    TH_TRY(th_takes_cut(text, bytes, granularity, chunk_bytes, &chunks, error));
    json_t *list = json_array();
    for (size_t i = 0; i < chunks.count; i++) {
        const struct th_chunk *c = &chunks.items[i];
        json_array_append_new(list, json_pack("{s:o,s:I,s:i,s:I,s:I}", "text", json_stringn(c->text, c->bytes), "bytes",
                                              (json_int_t)c->bytes, "speakers", c->speakers, "source_begin",
                                              (json_int_t)c->source_begin, "source_end", (json_int_t)c->source_end));
    }
    *out = json_pack("{s:o}", "chunks", list);
    th_chunks_free(&chunks);
    return *out != NULL ? THESPIS_OK : th_fail_memory(error, "the report", 0);
}
