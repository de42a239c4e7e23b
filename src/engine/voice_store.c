/* voice_store.c - finding, listing and loading stored voices; see voice_store.h. voice_store_write.c adds and removes them. */
#include "engine/voice_store.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "engine/engine.h"
#include "engine/voice.h"
#include "engine/voice_stem.h"

/* ---- where ------------------------------------------------------------------------------------------------------------------- */

thespis_status th_voice_default_folder(char **folder, thespis_error *error)
{
    const char *own = getenv("THESPIS_VOICES"), *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    if (own != NULL && own[0] != '\0') {
        *folder = th_copy_string(own, strlen(own));
        return *folder != NULL ? THESPIS_OK : th_fail_memory(error, "a path", strlen(own));
    }
    /* The XDG specification tells to ignore relative paths. */
    if (data != NULL && data[0] == '/') return th_path_join(data, "thespis/voices", folder, error);
    if (home != NULL && home[0] != '\0') return th_path_join(home, ".local/share/thespis/voices", folder, error);
    return th_fail(error, THESPIS_INVALID, "no folder for voices: neither THESPIS_VOICES nor XDG_DATA_HOME nor HOME is set");
}

thespis_status th_voice_store_open(const char *folder, const char *checkpoint, struct th_voice_store *store, thespis_error *error)
{
    memset(store, 0, sizeof *store);
    thespis_status status = THESPIS_OK;
    if (folder == NULL) {
        status = th_voice_default_folder(&store->folder, error);
    } else if (folder[0] == '\0') {
        status = th_fail(error, THESPIS_INVALID, "the folder for voices has no name");
    } else {
        store->folder = th_copy_string(folder, strlen(folder));
        if (store->folder == NULL) status = th_fail_memory(error, "a path", strlen(folder));
    }
    if (status == THESPIS_OK && checkpoint != NULL) status = th_path_join(checkpoint, "voices", &store->builtin, error);
    if (status != THESPIS_OK) th_voice_store_close(store);
    return status;
}

void th_voice_store_close(struct th_voice_store *store)
{
    th_free(store->folder);
    th_free(store->builtin);
    memset(store, 0, sizeof *store);
}

/* ---- names ------------------------------------------------------------------------------------------------------------------- */

static int is_letter_or_digit(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

/* White space as it comes from command lines and forms. */
static int is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static int ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

thespis_status th_voice_name_check(const char *name, size_t bytes, char key[TH_VOICE_NAME_MAX + 1], thespis_error *error)
{
    int spoken = 0;
    while (bytes > 0 && is_blank(name[0])) name++, bytes--;
    while (bytes > 0 && is_blank(name[bytes - 1])) bytes--;
    key[0] = '\0';
    if (bytes == 0)
        return th_fail(error, THESPIS_INVALID, "a voice needs a name: 1 to %d letters, digits, _ . - or blanks", TH_VOICE_NAME_MAX);
    if (bytes > TH_VOICE_NAME_MAX)
        return th_fail(error, THESPIS_INVALID, "the voice's name has %zu bytes, at most %d are allowed", bytes, TH_VOICE_NAME_MAX);
    for (size_t i = 0; i < bytes; i++) {
        char c = name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] - 'A' + 'a') : name[i];
        if (!is_letter_or_digit(c) && (c == '\0' || strchr("_. -", c) == NULL)) {
            key[0] = '\0';
            return th_fail(error, THESPIS_INVALID,
                           "voice '%.*s': byte %zu (0x%02X) cannot be in a name; A-Z a-z 0-9 _ . - and blanks can", (int)bytes,
                           name, i, (unsigned char)c);
        }
        spoken |= is_letter_or_digit(c);
        key[i] = c;
    }
    key[bytes] = '\0';
    const char *reason = !spoken                         ? "must hold a letter or a digit"
                         : strcmp(key, "default") == 0   ? "is reserved for the model's own choice"
                         : ends_in(key, TH_VOICE_ENDING) ? "would name a file, not a voice: leave out " TH_VOICE_ENDING
                                                         : NULL;
    if (reason == NULL) return THESPIS_OK;
    th_fail(error, THESPIS_INVALID, "the voice's name '%s' %s", key, reason);
    key[0] = '\0';
    return THESPIS_INVALID;
}

void th_voice_stem(const char *key, char stem[TH_VOICE_STEM_MAX + 1])
{
    size_t bytes = strlen(key);
    if (bytes <= TH_VOICE_STEM_MAX) {
        memcpy(stem, key, bytes + 1);
        return;
    }
    struct th_sha256 hash;
    th_sha256_begin(&hash);
    th_sha256_add(&hash, key, bytes);
    stem[0] = '~'; /* no name has one */
    th_sha256_end(&hash, stem + 1);
}

thespis_status th_voice_path(const char *folder, const char *key, char **path, thespis_error *error)
{
    char file[TH_VOICE_STEM_MAX + sizeof TH_VOICE_ENDING];
    th_voice_stem(key, file);
    strcat(file, TH_VOICE_ENDING);
    return th_path_join(folder, file, path, error);
}

/* ---- finding ----------------------------------------------------------------------------------------------------------------- */

static thespis_status find_in(const char *folder, const char *key, char **path, thespis_error *error)
{
    TH_TRY(th_voice_path(folder, key, path, error));
    if (th_path_exists(*path)) return THESPIS_OK;
    th_free(*path);
    *path = NULL;
    return THESPIS_OK;
}

thespis_status th_voice_store_find(const struct th_voice_store *store, const char *name, char **path, int *builtin,
                                   thespis_error *error)
{
    char key[TH_VOICE_NAME_MAX + 1];
    *path = NULL;
    *builtin = 0;
    TH_TRY(th_voice_name_check(name, strlen(name), key, error));
    TH_TRY(find_in(store->folder, key, path, error));
    if (*path != NULL || store->builtin == NULL) return THESPIS_OK;
    TH_TRY(find_in(store->builtin, key, path, error));
    *builtin = *path != NULL;
    return THESPIS_OK;
}

static thespis_status find_or_fail(const struct th_voice_store *store, const char *name, char **path, int *builtin,
                                   thespis_error *error)
{
    TH_TRY(th_voice_store_find(store, name, path, builtin, error));
    return *path != NULL ? THESPIS_OK : th_voice_unknown(name, error);
}

thespis_status th_voice_unknown(const char *name, thespis_error *error)
{
    return th_fail(error, THESPIS_INVALID, "there is no voice named '%s': thespis voice list names those there are", name);
}

thespis_status th_voice_store_show(const struct th_voice_store *store, const char *name, struct th_voice_entry *entry,
                                   thespis_error *error)
{
    memset(entry, 0, sizeof *entry);
    TH_TRY(find_or_fail(store, name, &entry->path, &entry->builtin, error));
    thespis_status status = th_voice_name_check(name, strlen(name), entry->name, error);
    if (status == THESPIS_OK) status = th_voice_file_read(entry->path, 0, &entry->file, error);
    if (status != THESPIS_OK) th_voice_entry_free(entry);
    return status;
}

void th_voice_entry_free(struct th_voice_entry *entry)
{
    th_free(entry->path);
    th_voice_file_free(&entry->file);
    memset(entry, 0, sizeof *entry);
}

/* ---- listing ----------------------------------------------------------------------------------------------------------------- */

static int is_listed(const struct th_voice_list *list, const char *name)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->entries[i].name, name) == 0) return 1;
    return 0;
}

/* The name of a voice file called `file`, if it is one: its stem, or for a hashed one what it says inside. */
static int name_of(const char *file, const struct th_voice_file *voice, char name[TH_VOICE_NAME_MAX + 1])
{
    size_t bytes = strlen(file);
    char stem[TH_VOICE_STEM_MAX + 1], again[TH_VOICE_STEM_MAX + 1];
    if (!ends_in(file, TH_VOICE_ENDING) || bytes - strlen(TH_VOICE_ENDING) > TH_VOICE_STEM_MAX) return 0;
    bytes -= strlen(TH_VOICE_ENDING);
    memcpy(stem, file, bytes);
    stem[bytes] = '\0';
    const char *from = stem[0] == '~' ? voice->name : stem;
    if (th_voice_name_check(from, strlen(from), name, NULL) != THESPIS_OK) return 0;
    th_voice_stem(name, again);
    return strcmp(stem, again) == 0;
}

static thespis_status list_one(const char *folder, const char *file, int builtin, struct th_voice_list *list, thespis_error *error)
{
    struct th_voice_entry entry = {.builtin = builtin};
    if (!ends_in(file, TH_VOICE_ENDING)) return THESPIS_OK;
    TH_TRY(th_path_join(folder, file, &entry.path, error));
    thespis_status status = th_voice_file_read(entry.path, 0, &entry.file, &entry.problem);
    if (status == THESPIS_OK) entry.problem.status = THESPIS_OK;
    if (status == THESPIS_MEMORY && error != NULL) *error = entry.problem;
    int gone = status == THESPIS_IO && !th_path_exists(entry.path); /* removed since the folder was read */
    if (status == THESPIS_MEMORY || gone || !name_of(file, &entry.file, entry.name) || is_listed(list, entry.name)) {
        th_voice_entry_free(&entry);
        return status == THESPIS_MEMORY ? status : THESPIS_OK;
    }
    if (list->count == list->capacity) {
        size_t room = list->capacity + list->capacity / 2 + 16;
        struct th_voice_entry *grown = th_realloc(list->entries, list->count, room, sizeof *grown);
        if (grown == NULL) {
            th_voice_entry_free(&entry);
            return th_fail_memory(error, "a list of voices", room * sizeof *grown);
        }
        list->entries = grown;
        list->capacity = room;
    }
    list->entries[list->count++] = entry;
    return THESPIS_OK;
}

static thespis_status list_folder(const char *folder, int builtin, struct th_voice_list *list, thespis_error *error)
{
    DIR *dir = opendir(folder);
    if (dir == NULL && (errno == ENOENT || (builtin && errno == ENOTDIR))) return THESPIS_OK;
    if (dir == NULL) return th_fail_errno(error, "cannot look into '%s'", folder);
    thespis_status status = THESPIS_OK;
    while (status == THESPIS_OK) {
        errno = 0;
        const struct dirent *item = readdir(dir);
        if (item == NULL && errno != 0) status = th_fail_errno(error, "cannot look into '%s'", folder);
        if (item == NULL) break;
        status = list_one(folder, item->d_name, builtin, list, error);
    }
    closedir(dir);
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct th_voice_entry *)a)->name, ((const struct th_voice_entry *)b)->name);
}

thespis_status th_voice_store_list(const struct th_voice_store *store, struct th_voice_list *list, thespis_error *error)
{
    memset(list, 0, sizeof *list);
    thespis_status status = list_folder(store->folder, 0, list, error);
    if (status == THESPIS_OK && store->builtin != NULL) status = list_folder(store->builtin, 1, list, error);
    if (status != THESPIS_OK) {
        th_voice_list_free(list);
        return status;
    }
    if (list->count > 0) qsort(list->entries, list->count, sizeof *list->entries, by_name);
    return THESPIS_OK;
}

void th_voice_list_free(struct th_voice_list *list)
{
    for (size_t i = 0; i < list->count; i++) th_voice_entry_free(&list->entries[i]);
    th_free(list->entries);
    memset(list, 0, sizeof *list);
}

/* ---- loading ----------------------------------------------------------------------------------------------------------------- */

static thespis_status check_recording(const char *path, const char *bytes, size_t count, const struct th_voice_reference *r,
                                      thespis_error *error)
{
    char hex[65];
    struct th_sha256 hash;
    th_sha256_begin(&hash);
    th_sha256_add(&hash, bytes, count);
    th_sha256_end(&hash, hex);
    if (strcmp(hex, r->sha256) == 0) return THESPIS_OK;
    return th_fail(error, THESPIS_FORMAT, "'%s' is not the recording the voice was made from (its SHA-256 differs)", path);
}

/* Reference `index`, made by another codec, from its recording. */
static thespis_status encode_again(const char *path, const struct th_voice_reference *r, size_t index, thespis_voice *voice,
                                   thespis_error *error)
{
    char *recording, *bytes;
    size_t count;
    if (r->suffix[0] == '\0')
        return th_fail(error, THESPIS_UNSUPPORTED,
                       "another codec made its codes, and no recording of reference %zu is kept: add the voice again", index);
    TH_TRY(th_voice_recording_path(path, r, index, &recording, error));
    thespis_status status = th_file_read(recording, TH_VOICE_MAX_FILE, &bytes, &count, error);
    if (status == THESPIS_IO) th_error_prefix(error, "another codec made its codes, and the recording is needed: ");
    if (status == THESPIS_OK) status = check_recording(recording, bytes, count, r, error);
    if (status == THESPIS_OK)
        status = th_voice_add_recording(voice, bytes, count, recording, 0, r->transcript, r->transcript_bytes, error);
    th_free(bytes);
    th_free(recording);
    return status;
}

static thespis_status fill(const char *path, const struct th_voice_file *file, thespis_voice *voice, thespis_error *error)
{
    const struct th_parts *p = &voice->engine->parts;
    int ours = strcmp(file->codec_id, p->codec->id) == 0;
    if (ours && file->books != p->codebooks)
        return th_fail(error, THESPIS_FORMAT, "codes of %d codebooks, the codec has %d", file->books, p->codebooks);
    thespis_status status = THESPIS_OK;
    for (size_t i = 0; i < file->count && status == THESPIS_OK; i++) {
        const struct th_voice_reference *r = &file->references[i];
        status = ours ? thespis_voice_add_codes(voice, r->codes, r->frames, r->transcript, r->transcript_bytes, error)
                      : encode_again(path, r, i, voice, error);
    }
    return th_voice_blame_file(status, error);
}

thespis_status th_voice_load_file(const char *path, thespis_engine *engine, thespis_voice **voice, thespis_error *error)
{
    struct th_voice_file file;
    *voice = NULL;
    TH_TRY(th_voice_file_read(path, 1, &file, error));
    thespis_status status = thespis_voice_new(engine, voice, error);
    if (status == THESPIS_OK) {
        status = fill(path, &file, *voice, error);
        if (status != THESPIS_OK) th_error_prefix(error, "voice '%.80s': ", file.name);
    }
    th_voice_file_free(&file);
    if (status == THESPIS_OK) return THESPIS_OK;
    thespis_voice_free(*voice);
    *voice = NULL;
    return status;
}

thespis_status th_voice_store_load(const struct th_voice_store *store, thespis_engine *engine, const char *name,
                                   thespis_voice **voice, thespis_error *error)
{
    char *path;
    int builtin;
    *voice = NULL;
    TH_TRY(find_or_fail(store, name, &path, &builtin, error));
    thespis_status status = th_voice_load_file(path, engine, voice, error);
    th_free(path);
    return status;
}
