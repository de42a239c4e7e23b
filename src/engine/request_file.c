/* request_file.c - see request_file.h. */
#include "engine/request_file.h"

#include <stdio.h>
#include <string.h>

#include "audio/codes.h"
#include "base/file.h"
#include "base/memory.h"
#include "sampler/sampler.h"

#define MOST_BYTES ((size_t)16 << 20)

/* Where files named in the JSON lie. */
struct place {
    const char *path;
    int codebooks, codebook_size;
};

static thespis_status text_field(const json_t *object, const char *key, const char *where, const char **text, size_t *bytes,
                                 thespis_error *error)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value))
        return th_fail(error, THESPIS_FORMAT, "%s%s: expected a string, got %s", where, key, th_json_kind(value));
    *text = json_string_value(value);
    *bytes = json_string_length(value);
    return THESPIS_OK;
}

/* The codes of a .npy beside the JSON; *codes is owned by the caller. */
static thespis_status codes_field(const json_t *object, const char *where, const struct place *place, const int32_t **codes,
                                  size_t *frames, thespis_error *error)
{
    const char *name = NULL;
    size_t bytes;
    TH_TRY(text_field(object, "codes", where, &name, &bytes, error));
    if (strncmp(name, "random:", 7) == 0)
        return th_fail(error, THESPIS_UNSUPPORTED, "%scodes: '%s' needs NumPy's generator; give a .npy file", where, name);
    const char *slash = strrchr(place->path, '/');
    char *path, *folder = th_copy_string(place->path, slash != NULL ? (size_t)(slash - place->path) + 1 : 0);
    if (folder == NULL) return th_fail_memory(error, "a path", strlen(place->path));
    thespis_status status = th_path_join(name[0] == '/' ? "" : folder, name, &path, error);
    th_free(folder);
    if (status != THESPIS_OK) return status;
    struct th_codes read;
    status = th_codes_read(path, place->codebooks, place->codebook_size, &read, error);
    th_free(path);
    if (status != THESPIS_OK) return status;
    *codes = read.codes;
    *frames = read.frames;
    return THESPIS_OK;
}

static thespis_status list_field(const json_t *root, const char *key, size_t *count, const json_t **list, thespis_error *error)
{
    *list = json_object_get(root, key);
    *count = 0;
    if (*list == NULL || json_is_null(*list)) return THESPIS_OK;
    if (!json_is_array(*list)) return th_fail(error, THESPIS_FORMAT, "%s: expected an array, got %s", key, th_json_kind(*list));
    *count = json_array_size(*list);
    return THESPIS_OK;
}

static thespis_status read_references(struct th_request_file *file, const struct place *place, thespis_error *error)
{
    const json_t *list;
    size_t count;
    TH_TRY(list_field(file->root, "references", &count, &list, error));
    TH_TRY(TH_ALLOC(&file->references, count, "references", error));
    file->prompt.references = file->references;
    for (size_t i = 0; i < count; i++) {
        char where[40];
        snprintf(where, sizeof where, "references.%zu.", i);
        struct th_prompt_reference *r = &file->references[i];
        const json_t *item = json_array_get(list, i);
        TH_TRY(text_field(item, "transcript", where, &r->transcript, &r->transcript_bytes, error));
        TH_TRY(codes_field(item, where, place, &r->codes, &r->frames, error));
        file->prompt.reference_count = i + 1;
    }
    return THESPIS_OK;
}

static thespis_status read_history(struct th_request_file *file, const struct place *place, thespis_error *error)
{
    const json_t *list;
    size_t count;
    TH_TRY(list_field(file->root, "history", &count, &list, error));
    TH_TRY(TH_ALLOC(&file->history, count, "history turns", error));
    file->prompt.history = file->history;
    for (size_t i = 0; i < count; i++) {
        char where[40];
        snprintf(where, sizeof where, "history.%zu.", i);
        struct th_prompt_turn *t = &file->history[i];
        const json_t *item = json_array_get(list, i);
        TH_TRY(text_field(item, "text", where, &t->text, &t->text_bytes, error));
        TH_TRY(codes_field(item, where, place, &t->codes, &t->frames, error));
        file->prompt.history_count = i + 1;
    }
    return THESPIS_OK;
}

static thespis_status integer_field(const json_t *root, const char *key, int64_t low, int64_t high, int64_t absent, int64_t *out,
                                    thespis_error *error)
{
    const json_t *value = json_object_get(root, key);
    *out = absent;
    if (value == NULL || json_is_null(value)) return THESPIS_OK;
    if (!json_is_integer(value)) return th_fail(error, THESPIS_FORMAT, "%s: expected an integer, got %s", key, th_json_kind(value));
    *out = json_integer_value(value);
    if (*out < low || *out > high)
        return th_fail(error, THESPIS_INVALID, "%s is %lld, must be %lld to %lld", key, (long long)*out, (long long)low,
                       (long long)high);
    return THESPIS_OK;
}

static thespis_status number_field(const json_t *root, const char *key, double low, double high, double absent, float *out,
                                   thespis_error *error)
{
    const json_t *value = json_object_get(root, key);
    *out = (float)absent;
    if (value == NULL || json_is_null(value)) return THESPIS_OK;
    if (!json_is_number(value)) return th_fail(error, THESPIS_FORMAT, "%s: expected a number, got %s", key, th_json_kind(value));
    double number = json_number_value(value);
    if (!(number >= low && number <= high))
        return th_fail(error, THESPIS_INVALID, "%s is %g, must be %g to %g", key, number, low, high);
    *out = (float)number;
    return THESPIS_OK;
}

static thespis_status read_settings(struct th_request_file *file, thespis_error *error)
{
    int64_t seed, top_k, max_frames;
    TH_TRY(text_field(file->root, "text", "", &file->prompt.text, &file->prompt.text_bytes, error));
    TH_TRY(integer_field(file->root, "seed", 0, INT64_MAX, 1, &seed, error));
    TH_TRY(integer_field(file->root, "top_k", 1, INT32_MAX, TH_TOP_K_UNLIMITED, &top_k, error));
    TH_TRY(integer_field(file->root, "max_frames", 1, 16384, 0, &max_frames, error));
    TH_TRY(number_field(file->root, "temperature", 0, 5, 1.0, &file->temperature, error));
    TH_TRY(number_field(file->root, "top_p", 1e-6, 1, 0.9, &file->top_p, error));
    file->seed = (uint64_t)seed;
    file->top_k = (int32_t)top_k;
    file->max_frames = (int)max_frames;
    return THESPIS_OK;
}

thespis_status th_request_file_read(const char *path, int codebooks, int codebook_size, struct th_request_file *file,
                                    thespis_error *error)
{
    struct place place = {path, codebooks, codebook_size};
    memset(file, 0, sizeof *file);
    TH_TRY(th_json_read(path, MOST_BYTES, &file->root, error));
    thespis_status status = read_settings(file, error);
    if (status == THESPIS_OK) status = read_references(file, &place, error);
    if (status == THESPIS_OK) status = read_history(file, &place, error);
    if (status != THESPIS_OK) {
        th_error_prefix(error, "%s: ", path);
        th_request_file_free(file);
    }
    return status;
}

void th_request_file_free(struct th_request_file *file)
{
    for (size_t i = 0; i < file->prompt.reference_count; i++) th_free((void *)file->references[i].codes);
    for (size_t i = 0; i < file->prompt.history_count; i++) th_free((void *)file->history[i].codes);
    th_free(file->references);
    th_free(file->history);
    json_decref(file->root);
    memset(file, 0, sizeof *file);
}
