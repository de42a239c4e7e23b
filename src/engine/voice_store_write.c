/* voice_store_write.c - adding and removing stored voices; see voice_store.h.
 *
 * Encoding takes long and needs no lock. Then, under the lock: recordings are written under names that hold their hash, so that
 * none replaces one that the stored voice still uses; the rename of the voice file makes the voice; recordings that it no longer
 * uses go last. Whoever is stopped in between leaves the old voice or the new one, and at worst a recording that nobody uses. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "audio/codes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "engine/engine.h"
#include "engine/voice.h"
#include "engine/voice_stem.h"
#include "engine/voice_store.h"
#include "text/unicode.h"

#define LOCK_SECONDS 10.0
#define LANGUAGE_MAX 35 /* bytes of a tag, as RFC 5646 advises */

/* ---- the folder -------------------------------------------------------------------------------------------------------------- */

static thespis_status make_folder(const char *path, thespis_error *error)
{
    char *copy = th_copy_string(path, strlen(path));
    struct stat about;
    if (copy == NULL) return th_fail_memory(error, "a path", strlen(path));
    for (char *at = copy; *at != '\0'; at++) {
        if (at == copy || *at != '/') continue;
        *at = '\0';
        mkdir(copy, 0777); /* what is there stays; what cannot be made shows at the last */
        *at = '/';
    }
    thespis_status status = THESPIS_OK;
    if (mkdir(copy, 0777) != 0 && errno != EEXIST) status = th_fail_errno(error, "cannot make the folder '%s'", path);
    if (status == THESPIS_OK && (stat(copy, &about) != 0 || !S_ISDIR(about.st_mode)))
        status = th_fail(error, THESPIS_IO, "'%s' is not a folder", path);
    th_free(copy);
    return status;
}

static thespis_status wait_for_lock(int fd, const char *folder, thespis_error *error)
{
    double give_up = th_now() + LOCK_SECONDS;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EINTR) continue;
        if (errno != EWOULDBLOCK) return th_fail_errno(error, "cannot lock '%s/.lock'", folder);
        if (th_now() > give_up)
            return th_fail(error, THESPIS_BUSY, "'%s' has been locked for %.0f seconds by another process", folder, LOCK_SECONDS);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return THESPIS_OK;
}

/* *fd is closed to unlock. The lock file stays: removing it would let two holders each have a file of their own. */
static thespis_status lock_folder(const char *folder, int *fd, thespis_error *error)
{
    char *path;
    *fd = -1;
    TH_TRY(th_path_join(folder, ".lock", &path, error));
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    thespis_status status = *fd < 0 ? th_fail_errno(error, "cannot open '%s'", path) : wait_for_lock(*fd, folder, error);
    th_free(path);
    if (status != THESPIS_OK && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

static thespis_status count_voices(const char *folder, size_t *count, thespis_error *error)
{
    DIR *dir = opendir(folder);
    const struct dirent *item;
    size_t ending = strlen(TH_VOICE_ENDING);
    *count = 0;
    if (dir == NULL) return th_fail_errno(error, "cannot look into '%s'", folder);
    while ((item = readdir(dir)) != NULL) {
        size_t n = strlen(item->d_name);
        *count += n > ending && strcmp(item->d_name + n - ending, TH_VOICE_ENDING) == 0;
    }
    closedir(dir);
    return THESPIS_OK;
}

/* ---- what is to be stored ---------------------------------------------------------------------------------------------------- */

/* A voice on its way into the store. */
struct draft {
    struct th_voice_file file; /* owns all but the codes and transcripts, which are the voice's */
    thespis_voice *voice;
    struct {
        char *owned;       /* read from a path */
        const void *bytes; /* [count]: the recording to keep */
        size_t count;
    } kept[THESPIS_MAX_SPEAKERS];
};

static void draft_free(struct draft *d)
{
    for (size_t i = 0; i < THESPIS_MAX_SPEAKERS; i++) th_free(d->kept[i].owned);
    for (size_t i = 0; d->file.references != NULL && i < d->file.count; i++) {
        d->file.references[i].transcript = NULL;
        d->file.references[i].codes = NULL;
    }
    th_voice_file_free(&d->file);
    thespis_voice_free(d->voice);
}

static thespis_status copy_fact(const char *what, const char *text, char **out, thespis_error *error)
{
    if (text == NULL || text[0] == '\0') return THESPIS_OK;
    size_t bytes = strlen(text);
    if (bytes > TH_VOICE_FACT_MAX)
        return th_fail(error, THESPIS_INVALID, "%s has %zu bytes, at most %d are allowed", what, bytes, TH_VOICE_FACT_MAX);
    thespis_status status = th_utf8_check(text, bytes, error);
    if (status != THESPIS_OK) {
        th_error_prefix(error, "%s: ", what);
        return status;
    }
    *out = th_copy_string(text, bytes);
    return *out != NULL ? THESPIS_OK : th_fail_memory(error, what, bytes);
}

static thespis_status copy_facts(const struct th_voice_facts *facts, struct th_voice_file *file, thespis_error *error)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-";
    if (facts == NULL) return THESPIS_OK;
    if (facts->language != NULL && (strspn(facts->language, allowed) != strlen(facts->language) ||
                                    strlen(facts->language) > LANGUAGE_MAX || facts->language[0] == '-'))
        return th_fail(error, THESPIS_INVALID, "the language is '%.60s', must be a tag such as en, pt-BR or zh-Hant",
                       facts->language);
    TH_TRY(copy_fact("the language", facts->language, &file->language, error));
    TH_TRY(copy_fact("the description", facts->description, &file->description, error));
    return copy_fact("the consent", facts->consent, &file->consent, error);
}

static thespis_status add_codes(struct draft *d, const void *bytes, size_t count, const char *name,
                                const struct th_voice_input *input, thespis_error *error)
{
    const struct th_parts *p = &d->voice->engine->parts;
    struct th_codes codes;
    TH_TRY(th_codes_parse(bytes, count, name, p->codebooks, p->codebook_size, &codes, error));
    thespis_status status =
        thespis_voice_add_codes(d->voice, codes.codes, codes.frames, input->transcript, input->transcript_bytes, error);
    th_free(codes.codes);
    return status;
}

/* Encodes one input; a recording is also made ready to be kept. */
static thespis_status take_input(struct draft *d, size_t index, const struct th_voice_input *input, thespis_error *error)
{
    struct th_voice_reference *r = &d->file.references[index];
    const char *name = input->path != NULL ? input->path : "the recording";
    const void *bytes = input->bytes;
    size_t count = input->count;
    if (input->transcript_bytes > TH_VOICE_TRANSCRIPT_MAX)
        return th_fail(error, THESPIS_LIMIT, "references.%zu.transcript: %zu bytes, at most %d are allowed", index,
                       input->transcript_bytes, TH_VOICE_TRANSCRIPT_MAX);
    if (bytes == NULL) {
        TH_TRY(th_file_read(input->path, TH_VOICE_MAX_FILE, &d->kept[index].owned, &count, error));
        bytes = d->kept[index].owned;
    }
    if (count > TH_VOICE_MAX_FILE)
        return th_fail(error, THESPIS_LIMIT, "%s: %zu bytes, a recording of a voice has at most %zu", name, count,
                       TH_VOICE_MAX_FILE);
    if (th_codes_is(bytes, count)) return add_codes(d, bytes, count, name, input, error);
    TH_TRY(
        th_voice_add_recording(d->voice, bytes, count, name, TH_VOICE_TO_KEEP, input->transcript, input->transcript_bytes, error));
    struct th_sha256 hash;
    th_sha256_begin(&hash);
    th_sha256_add(&hash, bytes, count);
    th_sha256_end(&hash, r->sha256);
    snprintf(r->suffix, sizeof r->suffix, "%s", th_voice_suffix(bytes, count));
    d->kept[index].bytes = bytes;
    d->kept[index].count = count;
    return THESPIS_OK;
}

static thespis_status fill_draft(thespis_engine *engine, const char *key, const struct th_voice_input *inputs, size_t count,
                                 const struct th_voice_facts *facts, struct draft *d, thespis_error *error)
{
    struct th_voice_file *file = &d->file;
    if (count < 1 || count > THESPIS_MAX_SPEAKERS)
        return th_fail(error, THESPIS_INVALID, "%zu references, a voice has 1 to %d", count, THESPIS_MAX_SPEAKERS);
    TH_TRY(copy_facts(facts, file, error));
    TH_TRY(TH_ALLOC(&file->references, count, "references", error));
    file->count = count;
    TH_TRY(th_voice_new(engine, &d->voice, error));
    for (size_t i = 0; i < count; i++) TH_TRY(take_input(d, i, &inputs[i], error));
    for (size_t i = 0; i < count; i++) {
        const struct th_prompt_reference *from = &d->voice->references[i];
        file->references[i].transcript = (char *)from->transcript;
        file->references[i].transcript_bytes = from->transcript_bytes;
        file->references[i].codes = (int32_t *)from->codes;
        file->references[i].frames = from->frames;
    }
    if (th_voice_file_frames(file) > TH_MAX_PROMPT_ROWS)
        return th_fail(error, THESPIS_LIMIT, "%zu frames in all, at most %d rows fit a prompt: give fewer or shorter references",
                       th_voice_file_frames(file), TH_MAX_PROMPT_ROWS);
    memcpy(file->name, key, strlen(key) + 1);
    memcpy(file->codec_id, engine->parts.codec->id, sizeof file->codec_id);
    file->created = time(NULL);
    file->books = engine->parts.codebooks;
    return THESPIS_OK;
}

/* ---- under the lock ---------------------------------------------------------------------------------------------------------- */

/* Is `file` a recording of the voice with this stem: "STEM.I.HASH.SUFFIX"? *index and the digits of the hash are told. */
static int is_recording(const char *file, const char *stem, size_t *index, const char **hash)
{
    size_t n = strlen(stem);
    char *end;
    if (strncmp(file, stem, n) != 0 || file[n] != '.' || file[n + 1] < '0' || file[n + 1] > '9') return 0;
    *index = strtoul(file + n + 1, &end, 10);
    *hash = end + 1;
    return *index < THESPIS_MAX_SPEAKERS && *end == '.' && strspn(*hash, "0123456789abcdef") == TH_VOICE_HASH_DIGITS &&
           (*hash)[TH_VOICE_HASH_DIGITS] == '.' && th_voice_is_suffix(*hash + TH_VOICE_HASH_DIGITS + 1);
}

/* Removes the recordings under this voice's name that `keep` (NULL: none) does not use, also those that a process stopped in the
 * middle has left. What cannot be removed only takes room. */
static void sweep(const char *folder, const char *key, const struct th_voice_file *keep)
{
    char stem[TH_VOICE_STEM_MAX + 1];
    const struct dirent *item;
    const char *hash;
    size_t i;
    DIR *dir = opendir(folder);
    if (dir == NULL) return;
    th_voice_stem(key, stem);
    while ((item = readdir(dir)) != NULL) {
        if (!is_recording(item->d_name, stem, &i, &hash)) continue;
        if (keep != NULL && i < keep->count && strncmp(hash, keep->references[i].sha256, TH_VOICE_HASH_DIGITS) == 0 &&
            strcmp(hash + TH_VOICE_HASH_DIGITS + 1, keep->references[i].suffix) == 0)
            continue;
        unlinkat(dirfd(dir), item->d_name, 0);
    }
    closedir(dir);
}

static thespis_status write_recording(const char *path, const struct draft *d, size_t index, thespis_error *error)
{
    const struct th_voice_reference *r = &d->file.references[index];
    struct th_output output;
    char *recording;
    if (r->suffix[0] == '\0') return THESPIS_OK;
    TH_TRY(th_voice_recording_path(path, r, index, &recording, error));
    thespis_status status = th_output_open(recording, &output, error);
    th_free(recording);
    if (status != THESPIS_OK) return status;
    status = th_output_write(&output, d->kept[index].bytes, d->kept[index].count, error);
    if (status == THESPIS_OK) return th_output_commit(&output, error);
    th_output_discard(&output);
    return status;
}

static thespis_status write_draft(const char *folder, const char *path, const struct draft *d, int existed, thespis_error *error)
{
    struct th_voice_file old = {0};
    thespis_status status = THESPIS_OK;
    /* What a voice that cannot be read any more uses is unknown: until it is replaced nothing may go. */
    int readable = existed && th_voice_file_read(path, 0, &old, NULL) == THESPIS_OK;
    for (size_t i = 0; i < d->file.count && status == THESPIS_OK; i++) status = write_recording(path, d, i, error);
    if (status == THESPIS_OK) status = th_voice_file_write(path, &d->file, error);
    if (status == THESPIS_OK)
        sweep(folder, d->file.name, &d->file);
    else if (readable || !existed)
        sweep(folder, d->file.name, readable ? &old : NULL);
    th_voice_file_free(&old);
    return status;
}

static thespis_status exists_already(const char *key, thespis_error *error)
{
    return th_fail(error, THESPIS_INVALID, "there is a voice named '%s' already: --replace puts the new one in its place", key);
}

static thespis_status store_draft(const char *folder, const char *path, const struct draft *d, int replace, int *existed,
                                  thespis_error *error)
{
    int fd;
    size_t count;
    TH_TRY(make_folder(folder, error));
    TH_TRY(lock_folder(folder, &fd, error));
    *existed = th_path_exists(path);
    thespis_status status = *existed && !replace ? exists_already(d->file.name, error) : THESPIS_OK;
    if (status == THESPIS_OK && !*existed) {
        status = count_voices(folder, &count, error);
        if (status == THESPIS_OK && count >= TH_VOICE_STORE_MAX)
            status = th_fail(error, THESPIS_LIMIT, "'%s' holds %zu voices, at most %d are kept: remove some", folder, count,
                             TH_VOICE_STORE_MAX);
    }
    if (status == THESPIS_OK) status = write_draft(folder, path, d, *existed, error);
    close(fd);
    return status;
}

/* ---- add and remove ---------------------------------------------------------------------------------------------------------- */

thespis_status th_voice_store_add(const struct th_voice_store *store, thespis_engine *engine, const char *name,
                                  const struct th_voice_input *inputs, size_t count, const struct th_voice_facts *facts,
                                  int replace, int *existed, thespis_error *error)
{
    char key[TH_VOICE_NAME_MAX + 1], *path;
    int unused;
    struct draft d = {0};
    if (existed == NULL) existed = &unused;
    *existed = 0;
    TH_TRY(th_voice_name_check(name, strlen(name), key, error));
    TH_TRY(th_voice_path(store->folder, key, &path, error));
    *existed = th_path_exists(path);
    /* Asked before the work of encoding, and again under the lock. */
    thespis_status status = *existed && !replace ? exists_already(key, error) : THESPIS_OK;
    if (status == THESPIS_OK) status = fill_draft(engine, key, inputs, count, facts, &d, error);
    if (status == THESPIS_OK) status = store_draft(store->folder, path, &d, replace, existed, error);
    draft_free(&d);
    th_free(path);
    return status;
}

/* Under the lock. */
static thespis_status remove_voice(const char *folder, const char *path, const char *key, thespis_error *error)
{
    if (unlink(path) != 0) return errno == ENOENT ? th_voice_unknown(key, error) : th_fail_errno(error, "cannot remove '%s'", path);
    sweep(folder, key, NULL);
    return THESPIS_OK;
}

thespis_status th_voice_store_remove(const struct th_voice_store *store, const char *name, thespis_error *error)
{
    char key[TH_VOICE_NAME_MAX + 1], *path;
    int builtin, fd;
    TH_TRY(th_voice_name_check(name, strlen(name), key, error));
    TH_TRY(th_voice_store_find(store, name, &path, &builtin, error));
    thespis_status status = path == NULL ? th_voice_unknown(key, error)
                            : builtin
                                ? th_fail(error, THESPIS_INVALID, "voice '%s' is built in ('%s') and cannot be removed", key, path)
                                : THESPIS_OK;
    if (status == THESPIS_OK) status = lock_folder(store->folder, &fd, error);
    if (status == THESPIS_OK) {
        status = remove_voice(store->folder, path, key, error);
        close(fd);
    }
    th_free(path);
    return status;
}

/* ---- rename ------------------------------------------------------------------------------------------------------------------ */

/* A second name for each recording; those of the old name are swept afterwards. */
static thespis_status link_recordings(const char *from, const char *to, const struct th_voice_file *file, thespis_error *error)
{
    for (size_t i = 0; i < file->count; i++) {
        char *old, *new = NULL;
        if (file->references[i].suffix[0] == '\0') continue;
        TH_TRY(th_voice_recording_path(from, &file->references[i], i, &old, error));
        thespis_status status = th_voice_recording_path(to, &file->references[i], i, &new, error);
        if (status == THESPIS_OK && link(old, new) != 0 && errno != EEXIST && errno != ENOENT)
            status = th_fail_errno(error, "cannot link '%s'", new);
        th_free(new);
        th_free(old);
        TH_TRY(status);
    }
    return THESPIS_OK;
}

/* Under the lock: the new voice is whole before the old one goes. */
static thespis_status rename_voice(const char *folder, const char *from, const char *from_key, const char *to, const char *to_key,
                                   thespis_error *error)
{
    struct th_voice_file file;
    TH_TRY(th_voice_file_read(from, 1, &file, error));
    memcpy(file.name, to_key, strlen(to_key) + 1);
    thespis_status status = link_recordings(from, to, &file, error);
    if (status == THESPIS_OK) status = th_voice_file_write(to, &file, error);
    th_voice_file_free(&file);
    if (status == THESPIS_OK) return remove_voice(folder, from, from_key, error);
    sweep(folder, to_key, NULL);
    return status;
}

static thespis_status rename_locked(const char *folder, const char *from_key, const char *to_key, int *found, int *taken,
                                    thespis_error *error)
{
    char *from, *to = NULL;
    int fd;
    TH_TRY(th_voice_path(folder, from_key, &from, error));
    thespis_status status = th_voice_path(folder, to_key, &to, error);
    if (status == THESPIS_OK && !th_path_exists(from)) { /* the folder may not be there */
        *found = 0;
        status = th_voice_unknown(from_key, error);
    }
    if (status == THESPIS_OK) status = lock_folder(folder, &fd, error);
    if (status == THESPIS_OK) {
        *found = th_path_exists(from);
        *taken = th_path_exists(to);
        status = !*found  ? th_voice_unknown(from_key, error)
                 : *taken ? exists_already(to_key, error)
                          : rename_voice(folder, from, from_key, to, to_key, error);
        close(fd);
    }
    th_free(from);
    th_free(to);
    return status;
}

thespis_status th_voice_store_rename(const struct th_voice_store *store, const char *from, const char *to, int *found, int *taken,
                                     thespis_error *error)
{
    char from_key[TH_VOICE_NAME_MAX + 1], to_key[TH_VOICE_NAME_MAX + 1];
    *found = 1;
    *taken = 0;
    TH_TRY(th_voice_name_check(from, strlen(from), from_key, error));
    TH_TRY(th_voice_name_check(to, strlen(to), to_key, error));
    return rename_locked(store->folder, from_key, to_key, found, taken, error);
}
