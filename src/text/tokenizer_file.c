/* tokenizer_file.c - reads tokenizer.json: everything it states is either followed or refused by name. */
#include "text/tokenizer_file.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "text/unicode.h"

#define MAX_FILE_BYTES ((size_t)256 << 20)
#define MAX_MERGES 0x7FFFFFFF

/* A key that must hold one value, or may be absent where `optional`. */
struct setting {
    const char *key;
    const char *wanted; /* "false", "null", "null or ''" or a string in quotes, "any" */
    int optional;
};

static int has_value(const json_t *value, const char *wanted)
{
    if (strcmp(wanted, "any") == 0) return 1;
    if (strcmp(wanted, "false") == 0) return json_is_false(value);
    if (strcmp(wanted, "null") == 0) return json_is_null(value);
    if (strcmp(wanted, "null or ''") == 0) return json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0);
    size_t length = strlen(wanted) - 2;
    return json_is_string(value) && json_string_length(value) == length &&
           memcmp(json_string_value(value), wanted + 1, length) == 0;
}

static thespis_status wrong_value(const char *where, const struct setting *s, const json_t *value, thespis_error *error)
{
    if (value == NULL) return th_fail(error, THESPIS_FORMAT, "%s.%s is missing; it must be %s", where, s->key, s->wanted);
    if (json_is_string(value))
        return th_fail(error, THESPIS_UNSUPPORTED, "%s.%s is '%.80s'; only %s is implemented", where, s->key,
                       json_string_value(value), s->wanted);
    if (json_is_boolean(value))
        return th_fail(error, THESPIS_UNSUPPORTED, "%s.%s is %s; only %s is implemented", where, s->key,
                       json_is_true(value) ? "true" : "false", s->wanted);
    return th_fail(error, THESPIS_UNSUPPORTED, "%s.%s is of kind %s; only %s is implemented", where, s->key, th_json_kind(value),
                   s->wanted);
}

/* Holds an object to a list of settings: each has its value and there is no other key. */
static thespis_status check_object(const json_t *object, const char *where, const struct setting *settings, size_t count,
                                   thespis_error *error)
{
    if (!json_is_object(object))
        return th_fail(error, THESPIS_FORMAT, "%s is of kind %s; it must be an object", where, th_json_kind(object));
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_object_get(object, settings[i].key);
        if (value == NULL && settings[i].optional) continue;
        if (value == NULL || !has_value(value, settings[i].wanted)) return wrong_value(where, &settings[i], value, error);
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        size_t i = 0;
        while (i < count && strcmp(settings[i].key, key) != 0) i++;
        if (i == count)
            return th_fail(error, THESPIS_UNSUPPORTED, "%s.%.80s is not a setting this tokenizer implements", where, key);
    }
    return THESPIS_OK;
}

#define CHECK(object, where, settings, error) check_object(object, where, settings, sizeof(settings) / sizeof *(settings), error)

static thespis_status read_normalizer(const json_t *value, struct th_tokenizer *tokenizer, thespis_error *error)
{
    static const struct setting sequence[] = {{"type", "'Sequence'", 0}, {"normalizers", "any", 0}};
    static const struct setting nfc[] = {{"type", "'NFC'", 0}};
    if (value == NULL || json_is_null(value)) return THESPIS_OK;
    const json_t *list = json_object_get(value, "normalizers");
    if (list != NULL) {
        TH_TRY(CHECK(value, "normalizer", sequence, error));
        if (!json_is_array(list) || json_array_size(list) != 1)
            return th_fail(error, THESPIS_UNSUPPORTED, "normalizer.normalizers must be a list of one NFC");
        value = json_array_get(list, 0);
    }
    tokenizer->nfc = 1;
    return CHECK(value, "normalizer", nfc, error);
}

static thespis_status read_pre_tokenizer(const json_t *value, struct th_tokenizer *tokenizer, thespis_error *error)
{
    static const struct setting sequence[] = {{"type", "'Sequence'", 0}, {"pretokenizers", "any", 0}};
    static const struct setting split[] = {
        {"type", "'Split'", 0}, {"pattern", "any", 0}, {"behavior", "'Isolated'", 0}, {"invert", "false", 0}};
    static const struct setting pattern[] = {{"Regex", "any", 0}};
    static const struct setting bytes[] = {
        {"type", "'ByteLevel'", 0}, {"add_prefix_space", "false", 0}, {"trim_offsets", "any", 1}, {"use_regex", "false", 0}};
    TH_TRY(CHECK(value, "pre_tokenizer", sequence, error));
    const json_t *list = json_object_get(value, "pretokenizers");
    if (!json_is_array(list) || json_array_size(list) != 2)
        return th_fail(error, THESPIS_UNSUPPORTED, "pre_tokenizer.pretokenizers must be a list of two: Split, then ByteLevel");
    TH_TRY(CHECK(json_array_get(list, 0), "pre_tokenizer.pretokenizers[0]", split, error));
    TH_TRY(CHECK(json_array_get(list, 1), "pre_tokenizer.pretokenizers[1]", bytes, error));
    const json_t *given = json_object_get(json_array_get(list, 0), "pattern");
    TH_TRY(CHECK(given, "pre_tokenizer.pretokenizers[0].pattern", pattern, error));
    const json_t *regex = json_object_get(given, "Regex");
    if (json_is_string(regex)) tokenizer->pattern = th_pattern_find(json_string_value(regex), json_string_length(regex));
    if (!json_is_string(regex) || tokenizer->pattern == TH_PATTERN_UNKNOWN)
        return th_fail(error, THESPIS_UNSUPPORTED,
                       "pre_tokenizer's split pattern is neither the one of Qwen2 and Qwen3 nor the one of "
                       "Qwen3.5; no other is implemented");
    return THESPIS_OK;
}

static thespis_status read_post_processor(const json_t *value, thespis_error *error)
{
    static const struct setting bytes[] = {
        {"type", "'ByteLevel'", 0}, {"add_prefix_space", "any", 1}, {"trim_offsets", "any", 1}, {"use_regex", "any", 1}};
    if (value == NULL || json_is_null(value)) return THESPIS_OK;
    return CHECK(value, "post_processor", bytes, error);
}

static thespis_status add_entries(json_t *vocab, struct th_tokenizer *tokenizer, thespis_error *error)
{
    const char *key;
    size_t length;
    json_t *value;
    json_object_keylen_foreach(vocab, key, length, value)
    {
        if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > TH_MAX_TOKEN_ID)
            return th_fail(error, THESPIS_FORMAT, "model.vocab: the id of '%.60s' must be an integer in 0..%d", key,
                           TH_MAX_TOKEN_ID);
        TH_TRY(th_vocab_add(&tokenizer->vocab, key, length, (int32_t)json_integer_value(value), error));
    }
    return th_vocab_end(&tokenizer->vocab, error);
}

static thespis_status read_vocab(json_t *vocab, struct th_tokenizer *tokenizer, thespis_error *error)
{
    if (!json_is_object(vocab))
        return th_fail(error, THESPIS_FORMAT, "model.vocab is of kind %s; it must be an object", th_json_kind(vocab));
    size_t bytes = 0, length;
    const char *key;
    json_t *value;
    json_object_keylen_foreach(vocab, key, length, value) bytes += length;
    TH_TRY(th_vocab_begin(&tokenizer->vocab, json_object_size(vocab), bytes, error));
    return add_entries(vocab, tokenizer, error);
}

/* "left right", split at its one space. */
static thespis_status merge_of_string(struct th_vocab *vocab, uint32_t rank, const json_t *merge, thespis_error *error)
{
    const char *text = json_string_value(merge);
    size_t length = json_string_length(merge);
    const char *space = memchr(text, ' ', length);
    if (space == NULL || memchr(space + 1, ' ', length - (size_t)(space + 1 - text)) != NULL || strncmp(text, "#version", 8) == 0)
        return th_fail(error, THESPIS_FORMAT, "model.merges[%u] is '%.80s'; it must be two symbols with one space between", rank,
                       text);
    size_t left = (size_t)(space - text);
    return th_vocab_add_merge(vocab, rank, text, left, space + 1, length - left - 1, error);
}

static thespis_status merge_of_pair(struct th_vocab *vocab, uint32_t rank, const json_t *merge, thespis_error *error)
{
    const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
    if (json_array_size(merge) != 2 || !json_is_string(left) || !json_is_string(right))
        return th_fail(error, THESPIS_FORMAT, "model.merges[%u] must be a pair of strings", rank);
    return th_vocab_add_merge(vocab, rank, json_string_value(left), json_string_length(left), json_string_value(right),
                              json_string_length(right), error);
}

static thespis_status read_merges(const json_t *merges, struct th_vocab *vocab, thespis_error *error)
{
    if (!json_is_array(merges))
        return th_fail(error, THESPIS_FORMAT, "model.merges is of kind %s; it must be an array", th_json_kind(merges));
    size_t count = json_array_size(merges);
    if (count > MAX_MERGES)
        return th_fail(error, THESPIS_LIMIT, "model.merges has %zu entries; at most %d are read", count, MAX_MERGES);
    TH_TRY(th_vocab_begin_merges(vocab, count, error));
    int strings = json_is_string(json_array_get(merges, 0));
    for (size_t i = 0; i < count; i++) {
        const json_t *merge = json_array_get(merges, i);
        if (strings ? !json_is_string(merge) : !json_is_array(merge))
            return th_fail(error, THESPIS_FORMAT, "model.merges[%zu] is of kind %s; all must be strings or all pairs", i,
                           th_json_kind(merge));
        TH_TRY(strings ? merge_of_string(vocab, (uint32_t)i, merge, error) : merge_of_pair(vocab, (uint32_t)i, merge, error));
    }
    return THESPIS_OK;
}

static thespis_status read_model(const json_t *model, struct th_tokenizer *tokenizer, thespis_error *error)
{
    static const struct setting settings[] = {{"type", "'BPE'", 0},
                                              {"dropout", "null", 1},
                                              {"unk_token", "null", 1},
                                              {"continuing_subword_prefix", "null or ''", 1},
                                              {"end_of_word_suffix", "null or ''", 1},
                                              {"fuse_unk", "false", 1},
                                              {"byte_fallback", "false", 1},
                                              {"ignore_merges", "any", 1},
                                              {"vocab", "any", 0},
                                              {"merges", "any", 0}};
    TH_TRY(CHECK(model, "model", settings, error));
    const json_t *ignore = json_object_get(model, "ignore_merges");
    if (ignore != NULL && !json_is_boolean(ignore))
        return th_fail(error, THESPIS_FORMAT, "model.ignore_merges is of kind %s; it must be true or false", th_json_kind(ignore));
    tokenizer->ignore_merges = json_is_true(ignore);
    TH_TRY(read_vocab(json_object_get(model, "vocab"), tokenizer, error));
    return read_merges(json_object_get(model, "merges"), &tokenizer->vocab, error);
}

static thespis_status check_added(const json_t *value, size_t i, thespis_error *error)
{
    static const char *const flags[] = {"lstrip", "rstrip", "normalized", "special"};
    static const struct setting settings[] = {{"id", "any", 0},     {"content", "any", 0}, {"single_word", "false", 0},
                                              {"lstrip", "any", 0}, {"rstrip", "any", 0},  {"normalized", "any", 0},
                                              {"special", "any", 0}};
    thespis_status status = CHECK(value, "added_tokens", settings, error);
    if (status != THESPIS_OK) {
        th_error_prefix(error, "token %zu: ", i);
        return status;
    }
    const json_t *content = json_object_get(value, "content"), *id = json_object_get(value, "id");
    for (int f = 0; f < 4; f++)
        if (!json_is_boolean(json_object_get(value, flags[f])))
            return th_fail(error, THESPIS_FORMAT, "added_tokens[%zu].%s must be true or false", i, flags[f]);
    if (!json_is_string(content) || json_string_length(content) == 0 || json_string_length(content) > TH_MAX_ADDED_BYTES)
        return th_fail(error, THESPIS_FORMAT, "added_tokens[%zu].content must be a string of 1 to %d bytes", i, TH_MAX_ADDED_BYTES);
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > TH_MAX_TOKEN_ID)
        return th_fail(error, THESPIS_FORMAT, "added_tokens[%zu].id must be an integer in 0..%d", i, TH_MAX_TOKEN_ID);
    return THESPIS_OK;
}

/* The reference does not take a token's id from the file: a content that the vocabulary has keeps that id, any other gets the next
 * free one. A file that says otherwise would mean two things, so it is refused. */
static thespis_status check_added_id(const struct th_tokenizer *tokenizer, const struct th_added *token, size_t i, int32_t *next,
                                     thespis_error *error)
{
    char scratch[TH_MAX_ADDED_BYTES];
    int32_t expected = th_vocab_find_written(&tokenizer->vocab, token->content, token->bytes, scratch);
    if (expected < 0) expected = *next;
    if (token->id != expected)
        return th_fail(error, THESPIS_FORMAT, "added_tokens[%zu] '%.60s' has id %d; at its place in the file it must have %d", i,
                       token->content, token->id, expected);
    if (expected >= *next) *next = expected + 1;
    return THESPIS_OK;
}

static thespis_status read_added_token(const json_t *value, size_t i, struct th_tokenizer *tokenizer, thespis_error *error)
{
    TH_TRY(check_added(value, i, error));
    const json_t *content = json_object_get(value, "content");
    struct th_added *token = &tokenizer->added[tokenizer->added_count++];
    token->id = (int32_t)json_integer_value(json_object_get(value, "id"));
    token->lstrip = json_is_true(json_object_get(value, "lstrip"));
    token->rstrip = json_is_true(json_object_get(value, "rstrip"));
    token->normalized = json_is_true(json_object_get(value, "normalized"));
    token->bytes = json_string_length(content);
    token->content = th_copy_string(json_string_value(content), token->bytes);
    if (token->content == NULL) return th_fail_memory(error, "an added token", token->bytes);
    if (token->normalized && tokenizer->nfc) return th_nfc(token->content, token->bytes, &token->match, &token->match_bytes, error);
    token->match_bytes = token->bytes;
    token->match = th_copy_string(token->content, token->bytes);
    return token->match != NULL ? THESPIS_OK : th_fail_memory(error, "an added token", token->bytes);
}

static thespis_status read_added(const json_t *list, struct th_tokenizer *tokenizer, thespis_error *error)
{
    if (list != NULL && !json_is_array(list))
        return th_fail(error, THESPIS_FORMAT, "added_tokens is of kind %s; it must be an array", th_json_kind(list));
    size_t count = json_array_size(list);
    int32_t next = (int32_t)tokenizer->vocab.count;
    TH_TRY(TH_ALLOC(&tokenizer->added, count, "the added tokens", error));
    for (size_t i = 0; i < count; i++) {
        TH_TRY(read_added_token(json_array_get(list, i), i, tokenizer, error));
        TH_TRY(check_added_id(tokenizer, &tokenizer->added[i], i, &next, error));
    }
    TH_TRY(th_added_set_open(tokenizer->added, count, 0, &tokenizer->raw, error));
    return th_added_set_open(tokenizer->added, count, 1, &tokenizer->normalized, error);
}

static int32_t highest_id(const struct th_tokenizer *tokenizer)
{
    int32_t highest = 0;
    for (size_t i = 0; i < tokenizer->vocab.count; i++)
        if (tokenizer->vocab.entries[i].id > highest) highest = tokenizer->vocab.entries[i].id;
    for (size_t i = 0; i < tokenizer->added_count; i++)
        if (tokenizer->added[i].id > highest) highest = tokenizer->added[i].id;
    return highest;
}

static thespis_status index_ids(struct th_tokenizer *tokenizer, thespis_error *error)
{
    tokenizer->size = highest_id(tokenizer) + 1;
    TH_TRY(TH_ALLOC(&tokenizer->by_id, (size_t)tokenizer->size, "the table of ids", error));
    for (int32_t i = 0; i < tokenizer->size; i++) tokenizer->by_id[i] = -1;
    for (size_t i = 0; i < tokenizer->vocab.count; i++) {
        int32_t *entry = &tokenizer->by_id[tokenizer->vocab.entries[i].id];
        if (*entry != -1)
            return th_fail(error, THESPIS_FORMAT, "model.vocab gives id %d to two entries", tokenizer->vocab.entries[i].id);
        *entry = (int32_t)i;
    }
    for (size_t i = 0; i < tokenizer->added_count; i++) tokenizer->by_id[tokenizer->added[i].id] = -2 - (int32_t)i;
    return THESPIS_OK;
}

static thespis_status read_root(const json_t *root, struct th_tokenizer *tokenizer, thespis_error *error)
{
    static const struct setting settings[] = {{"version", "'1.0'", 0},      {"truncation", "null", 1}, {"padding", "null", 1},
                                              {"added_tokens", "any", 1},   {"normalizer", "any", 1},  {"pre_tokenizer", "any", 0},
                                              {"post_processor", "any", 1}, {"decoder", "any", 1},     {"model", "any", 0}};
    TH_TRY(CHECK(root, "tokenizer", settings, error));
    TH_TRY(read_normalizer(json_object_get(root, "normalizer"), tokenizer, error));
    TH_TRY(read_pre_tokenizer(json_object_get(root, "pre_tokenizer"), tokenizer, error));
    TH_TRY(read_post_processor(json_object_get(root, "post_processor"), error));
    TH_TRY(read_model(json_object_get(root, "model"), tokenizer, error));
    TH_TRY(read_added(json_object_get(root, "added_tokens"), tokenizer, error));
    return index_ids(tokenizer, error);
}

thespis_status th_tokenizer_read(const char *path, struct th_tokenizer *tokenizer, thespis_error *error)
{
    json_t *root;
    TH_TRY(th_json_read(path, MAX_FILE_BYTES, &root, error));
    thespis_status status = read_root(root, tokenizer, error);
    json_decref(root);
#ifdef __GLIBC__
    malloc_trim(0); /* the parsed file was a hundred megabytes in small pieces, which would otherwise stay with the process */
#endif
    if (status != THESPIS_OK) th_error_prefix(error, "%s: ", path);
    return status;
}
