/* voice_file.c - see voice_file.h. */
#include "engine/voice_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "audio/mono.h"
#include "base/memory.h"
#include "checkpoint/safetensors.h"
#include "text/unicode.h"
#include "text/validate.h"

#define KEY_BYTES 48 /* "reference.15.transcript" and a zero, with room */

void th_voice_file_free(struct th_voice_file *file)
{
    for (size_t i = 0; file->references != NULL && i < file->count; i++) {
        th_free(file->references[i].transcript);
        th_free(file->references[i].codes);
    }
    th_free(file->references);
    th_free(file->language);
    th_free(file->description);
    th_free(file->consent);
    memset(file, 0, sizeof *file);
}

size_t th_voice_file_frames(const struct th_voice_file *file)
{
    size_t frames = 0;
    for (size_t i = 0; i < file->count; i++) frames += file->references[i].frames;
    return frames;
}

thespis_status th_voice_blame_file(thespis_status status, thespis_error *error)
{
    if (status != THESPIS_INVALID && status != THESPIS_LIMIT) return status;
    if (error != NULL) error->status = THESPIS_FORMAT;
    return THESPIS_FORMAT;
}

/* ---- recordings beside it ---------------------------------------------------------------------------------------------------- */

const char *th_voice_suffix(const void *bytes, size_t count)
{
    static const struct {
        const char mark[5], *suffix;
    } marks[] = {{"RIFF", "wav"},  {"RIFX", "wav"}, {"RF64", "wav"}, {"fLaC", "flac"}, {"OggS", "ogg"},
                 {"FORM", "aiff"}, {".snd", "au"},  {"caff", "caf"}, {"riff", "w64"}};
    for (size_t i = 0; i < sizeof marks / sizeof *marks && count >= 4; i++)
        if (memcmp(bytes, marks[i].mark, 4) == 0) return marks[i].suffix;
    return th_mp3_is(bytes, count) ? "mp3" : "audio";
}

int th_voice_is_suffix(const char *text)
{
    static const char *const suffixes[] = {"wav", "flac", "ogg", "mp3", "aiff", "au", "caf", "w64", "audio"};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (strcmp(text, suffixes[i]) == 0) return 1;
    return 0;
}

thespis_status th_voice_recording_path(const char *path, const struct th_voice_reference *reference, size_t index, char **out,
                                       thespis_error *error)
{
    size_t n = strlen(path), ending = strlen(TH_VOICE_ENDING);
    if (n > ending && strcmp(path + n - ending, TH_VOICE_ENDING) == 0) n -= ending;
    size_t room = n + sizeof reference->suffix + TH_VOICE_HASH_DIGITS + 24;
    TH_TRY(TH_ALLOC(out, room, "a path", error));
    snprintf(*out, room, "%.*s.%zu.%.*s.%s", (int)n, path, index, TH_VOICE_HASH_DIGITS, reference->sha256, reference->suffix);
    return THESPIS_OK;
}

/* ---- reading ----------------------------------------------------------------------------------------------------------------- */

/* The string under `key`, or NULL. */
static const char *find(const struct th_safetensors *st, const char *key, size_t *bytes)
{
    const json_t *value = json_object_get(st->metadata, key);
    *bytes = json_string_length(value);
    return json_string_value(value);
}

static int is_hash(const char *text, size_t bytes)
{
    return text != NULL && bytes == 64 && strspn(text, "0123456789abcdef") == 64;
}

static thespis_status read_fact(const struct th_safetensors *st, const char *key, char **out, thespis_error *error)
{
    size_t bytes;
    const char *text = find(st, key, &bytes);
    if (text == NULL) return THESPIS_OK;
    if (bytes > TH_VOICE_FACT_MAX)
        return th_fail(error, THESPIS_FORMAT, "'%s': %s has %zu bytes, at most %d are allowed", st->path, key, bytes,
                       TH_VOICE_FACT_MAX);
    if (th_utf8_check(text, bytes, NULL) != THESPIS_OK)
        return th_fail(error, THESPIS_FORMAT, "'%s': %s is not text", st->path, key);
    *out = th_copy_string(text, bytes);
    return *out != NULL ? THESPIS_OK : th_fail_memory(error, key, bytes);
}

static thespis_status read_created(const struct th_safetensors *st, int64_t *created, thespis_error *error)
{
    size_t bytes;
    const char *text = find(st, "created", &bytes);
    if (text == NULL || bytes == 0 || bytes > 12 || strspn(text, "0123456789") != bytes)
        return th_fail(error, THESPIS_FORMAT, "'%s': created is '%.40s', must be seconds since 1970", st->path,
                       text != NULL ? text : "absent");
    *created = strtoll(text, NULL, 10);
    return THESPIS_OK;
}

static thespis_status read_facts(const struct th_safetensors *st, struct th_voice_file *file, thespis_error *error)
{
    size_t bytes;
    const char *format = find(st, "format", &bytes);
    if (format == NULL || strcmp(format, TH_VOICE_FORMAT) != 0)
        return th_fail(error, THESPIS_FORMAT, "'%s' is not a voice: its format is '%.40s', must be '" TH_VOICE_FORMAT "'", st->path,
                       format != NULL ? format : "absent");
    const char *name = find(st, "name", &bytes);
    if (name == NULL || bytes == 0 || bytes > TH_VOICE_NAME_MAX || strlen(name) != bytes)
        return th_fail(error, THESPIS_FORMAT, "'%s': name must be a text of 1 to %d bytes", st->path, TH_VOICE_NAME_MAX);
    memcpy(file->name, name, bytes + 1);
    const char *codec = find(st, "codec_id", &bytes);
    if (!is_hash(codec, bytes))
        return th_fail(error, THESPIS_FORMAT, "'%s': codec_id is '%.80s', must be 64 hexadecimal digits", st->path,
                       codec != NULL ? codec : "absent");
    memcpy(file->codec_id, codec, sizeof file->codec_id);
    TH_TRY(read_created(st, &file->created, error));
    TH_TRY(read_fact(st, "language", &file->language, error));
    TH_TRY(read_fact(st, "description", &file->description, error));
    return read_fact(st, "consent", &file->consent, error);
}

static thespis_status read_codes(const struct th_safetensors *st, size_t index, int keep, struct th_voice_file *file,
                                 thespis_error *error)
{
    struct th_voice_reference *r = &file->references[index];
    char name[KEY_BYTES];
    snprintf(name, sizeof name, "reference.%zu.codes", index);
    const struct th_tensor *t = th_safetensors_find(st, name);
    if (t == NULL)
        return th_fail(error, THESPIS_FORMAT, "'%s': no tensor '%s' among its %zu: references are numbered from 0", st->path, name,
                       st->count);
    if (t->dtype != TH_I16 || t->rank != 2 || t->shape[0] < 1 || t->shape[1] < 1)
        return th_fail(error, THESPIS_FORMAT, "'%s': '%s' must be I16 of shape (codebooks, frames), neither of them 0", st->path,
                       name);
    if (index > 0 && t->shape[0] != file->books)
        return th_fail(error, THESPIS_FORMAT, "'%s': '%s' has %" PRId64 " codebooks, reference 0 has %d", st->path, name,
                       t->shape[0], file->books);
    if (t->shape[0] > INT32_MAX) return th_fail(error, THESPIS_FORMAT, "'%s': '%s' has too many codebooks", st->path, name);
    file->books = (int)t->shape[0];
    r->frames = (size_t)t->shape[1];
    const int16_t *codes = t->data;
    size_t count = t->bytes / sizeof *codes;
    for (size_t i = 0; i < count; i++)
        if (codes[i] < 0)
            return th_fail(error, THESPIS_FORMAT, "'%s': code %d of frame %zu, codebook %zu of '%s' must not be negative", st->path,
                           codes[i], i % r->frames, i / r->frames, name);
    if (!keep) return THESPIS_OK;
    TH_TRY(TH_ALLOC(&r->codes, count, "codes", error));
    for (size_t i = 0; i < count; i++) r->codes[i] = codes[i];
    return THESPIS_OK;
}

static thespis_status read_transcript(const struct th_safetensors *st, size_t index, struct th_voice_reference *r,
                                      thespis_error *error)
{
    char key[KEY_BYTES];
    snprintf(key, sizeof key, "reference.%zu.transcript", index);
    const char *text = find(st, key, &r->transcript_bytes);
    if (text == NULL || r->transcript_bytes > TH_VOICE_TRANSCRIPT_MAX)
        return th_fail(error, THESPIS_FORMAT, "'%s': %s must be a text of at most %d bytes", st->path, key,
                       TH_VOICE_TRANSCRIPT_MAX);
    thespis_status status = th_validate_text(text, r->transcript_bytes, TH_TEXT_ALLOW_BLANK, NULL, error);
    if (status != THESPIS_OK) {
        th_error_prefix(error, "'%s': %s: ", st->path, key);
        return th_voice_blame_file(status, error);
    }
    r->transcript = th_copy_string(text, r->transcript_bytes);
    return r->transcript != NULL ? THESPIS_OK : th_fail_memory(error, key, r->transcript_bytes);
}

static thespis_status read_recording(const struct th_safetensors *st, size_t index, struct th_voice_reference *r,
                                     thespis_error *error)
{
    char key[KEY_BYTES];
    size_t hash_bytes, suffix_bytes;
    snprintf(key, sizeof key, "reference.%zu.sha256", index);
    const char *hash = find(st, key, &hash_bytes);
    snprintf(key, sizeof key, "reference.%zu.suffix", index);
    const char *suffix = find(st, key, &suffix_bytes);
    if (hash == NULL && suffix == NULL) return THESPIS_OK;
    if (!is_hash(hash, hash_bytes) || suffix == NULL || !th_voice_is_suffix(suffix))
        return th_fail(error, THESPIS_FORMAT,
                       "'%s': sha256 and suffix of reference %zu must be 64 hexadecimal digits and wav, flac, ogg, mp3, ...",
                       st->path, index);
    memcpy(r->sha256, hash, sizeof r->sha256);
    snprintf(r->suffix, sizeof r->suffix, "%s", suffix);
    return THESPIS_OK;
}

static thespis_status read_all(const struct th_safetensors *st, int keep, struct th_voice_file *file, thespis_error *error)
{
    TH_TRY(read_facts(st, file, error));
    if (st->count < 1 || st->count > THESPIS_MAX_SPEAKERS)
        return th_fail(error, THESPIS_FORMAT, "'%s' has %zu tensors, a voice has 1 to %d references", st->path, st->count,
                       THESPIS_MAX_SPEAKERS);
    TH_TRY(TH_ALLOC(&file->references, st->count, "references", error));
    file->count = st->count;
    for (size_t i = 0; i < file->count; i++) {
        TH_TRY(read_codes(st, i, keep, file, error));
        TH_TRY(read_transcript(st, i, &file->references[i], error));
        TH_TRY(read_recording(st, i, &file->references[i], error));
    }
    return THESPIS_OK;
}

thespis_status th_voice_file_read(const char *path, int keep_codes, struct th_voice_file *file, thespis_error *error)
{
    struct th_safetensors st;
    memset(file, 0, sizeof *file);
    TH_TRY(th_safetensors_open(path, &st, error));
    thespis_status status = read_all(&st, keep_codes, file, error);
    th_safetensors_close(&st);
    if (status != THESPIS_OK) th_voice_file_free(file);
    return status;
}

/* ---- writing ----------------------------------------------------------------------------------------------------------------- */

/* What th_safetensors_write needs, for all references. */
struct draft {
    json_t *metadata;
    struct th_tensor_out tensors[THESPIS_MAX_SPEAKERS];
    char names[THESPIS_MAX_SPEAKERS][KEY_BYTES];
    int16_t *codes[THESPIS_MAX_SPEAKERS]; /* [books][frames] */
};

static int put(json_t *object, const char *key, const char *text, size_t bytes)
{
    return json_object_set_new(object, key, json_stringn(text, bytes)) == 0;
}

static int put_if(json_t *object, const char *key, const char *text)
{
    return text == NULL || put(object, key, text, strlen(text));
}

static int describe(const struct th_voice_file *file, json_t *m)
{
    char created[24], key[KEY_BYTES];
    snprintf(created, sizeof created, "%" PRId64, file->created);
    int good = put_if(m, "format", TH_VOICE_FORMAT) && put_if(m, "name", file->name) && put_if(m, "codec_id", file->codec_id) &&
               put_if(m, "created", created) && put_if(m, "language", file->language) &&
               put_if(m, "description", file->description) && put_if(m, "consent", file->consent);
    for (size_t i = 0; i < file->count && good; i++) {
        const struct th_voice_reference *r = &file->references[i];
        snprintf(key, sizeof key, "reference.%zu.transcript", i);
        good = put(m, key, r->transcript, r->transcript_bytes);
        if (r->suffix[0] == '\0') continue;
        snprintf(key, sizeof key, "reference.%zu.sha256", i);
        good = good && put_if(m, key, r->sha256);
        snprintf(key, sizeof key, "reference.%zu.suffix", i);
        good = good && put_if(m, key, r->suffix);
    }
    return good;
}

static thespis_status lay_out(const struct th_voice_file *file, size_t index, struct draft *draft, thespis_error *error)
{
    const struct th_voice_reference *r = &file->references[index];
    size_t count;
    if (__builtin_mul_overflow((size_t)file->books, r->frames, &count))
        return th_fail(error, THESPIS_INVALID, "reference %zu has too many frames", index);
    TH_TRY(TH_ALLOC(&draft->codes[index], count, "codes", error));
    for (size_t i = 0; i < count; i++) {
        if (r->codes[i] < 0 || r->codes[i] > INT16_MAX)
            return th_fail(error, THESPIS_UNSUPPORTED, "code %d of reference %zu does not fit a voice file: 0 to %d do",
                           (int)r->codes[i], index, INT16_MAX);
        draft->codes[index][i] = (int16_t)r->codes[i];
    }
    snprintf(draft->names[index], KEY_BYTES, "reference.%zu.codes", index);
    draft->tensors[index] = (struct th_tensor_out){.name = draft->names[index],
                                                   .dtype = TH_I16,
                                                   .rank = 2,
                                                   .shape = {file->books, (int64_t)r->frames},
                                                   .data = draft->codes[index]};
    return THESPIS_OK;
}

thespis_status th_voice_file_write(const char *path, const struct th_voice_file *file, thespis_error *error)
{
    struct draft draft = {.metadata = json_object()};
    thespis_status status = THESPIS_OK;
    if (draft.metadata == NULL || !describe(file, draft.metadata))
        status = th_fail(error, THESPIS_MEMORY, "'%s': memory is short, or a text is not UTF-8", path);
    for (size_t i = 0; i < file->count && status == THESPIS_OK; i++) status = lay_out(file, i, &draft, error);
    if (status == THESPIS_OK) status = th_safetensors_write(path, draft.tensors, file->count, draft.metadata, error);
    for (size_t i = 0; i < THESPIS_MAX_SPEAKERS; i++) th_free(draft.codes[i]);
    json_decref(draft.metadata);
    return status;
}
