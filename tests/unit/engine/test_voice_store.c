/* Stored voices: names that cannot leave their folder, files that are whole or not there, and the same codes as from the recordings
 * themselves. */
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/safetensors.h"
#include "engine/engine.h"
#include "engine/voice_store.h"

#define STAGE TEST_SOURCE_DIR "/models/stage"
#define RATE 44100
#define WAV_HEAD 44

static thespis_engine *codec, *model; /* a codec alone stores, a model speaks */
static char root[] = "/tmp/thespis-voices-XXXXXX";
static int folders;

/* ---- what the tests share ---------------------------------------------------------------------------------------------------- */

struct wav {
    uint8_t bytes[WAV_HEAD + 2 * RATE * 2];
    size_t count;
};

static void put32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> (8 * i));
}

/* A buzz of another pitch for each seed, 16 bits, mono. */
static void make_wav(struct wav *wav, int seed, double seconds, int amplitude)
{
    uint32_t n = (uint32_t)(seconds * RATE);
    memset(wav, 0, sizeof *wav);
    memcpy(wav->bytes, "RIFF____WAVEfmt \x10\0\0\0\1\0\1\0", 24);
    put32(wav->bytes + 4, 36 + 2 * n);
    put32(wav->bytes + 24, RATE);
    put32(wav->bytes + 28, 2 * RATE);
    memcpy(wav->bytes + 32, "\2\0\x10\0data", 8);
    put32(wav->bytes + 40, 2 * n);
    for (uint32_t i = 0; i < n; i++) {
        int16_t sample = (int16_t)((int)(i % (100 + (uint32_t)seed * 17)) * amplitude / 100 - amplitude / 2);
        memcpy(wav->bytes + WAV_HEAD + 2 * (size_t)i, &sample, 2);
    }
    wav->count = WAV_HEAD + 2 * (size_t)n;
}

static struct wav first, second;

static struct th_voice_input input_of(const struct wav *wav, const char *transcript)
{
    return (struct th_voice_input){
        .bytes = wav->bytes, .count = wav->count, .transcript = transcript, .transcript_bytes = strlen(transcript)};
}

/* A store in a folder that is not there yet. */
static struct th_voice_store new_store(void)
{
    struct th_voice_store store;
    thespis_error error;
    char path[200];
    snprintf(path, sizeof path, "%s/%d/voices", root, folders++);
    assert_int_equal(th_voice_store_open(path, NULL, &store, &error), THESPIS_OK);
    return store;
}

static void add(const struct th_voice_store *store, const char *name, const struct wav *wav, const char *transcript, int replace)
{
    thespis_error error;
    struct th_voice_input input = input_of(wav, transcript);
    if (th_voice_store_add(store, codec, name, &input, 1, NULL, replace, NULL, &error) != THESPIS_OK) fail_msg("%s", error.message);
}

/* Files in a folder, ".lock" aside; -1: no folder. */
static int files_in(const char *folder)
{
    int count = 0;
    const struct dirent *item;
    DIR *dir = opendir(folder);
    if (dir == NULL) return -1;
    while ((item = readdir(dir)) != NULL) count += item->d_name[0] != '.';
    closedir(dir);
    return count;
}

static char *path_of(const struct th_voice_store *store, const char *name)
{
    char *path;
    int builtin;
    thespis_error error;
    assert_int_equal(th_voice_store_find(store, name, &path, &builtin, &error), THESPIS_OK);
    assert_non_null(path);
    return path;
}

static void assert_same_voice(const thespis_voice *a, const thespis_voice *b)
{
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++) {
        const struct th_prompt_reference *x = &a->references[i], *y = &b->references[i];
        assert_int_equal(x->frames, y->frames);
        assert_memory_equal(x->codes, y->codes, x->frames * (size_t)model->parts.codebooks * sizeof *x->codes);
        assert_int_equal(x->transcript_bytes, y->transcript_bytes);
        assert_memory_equal(x->transcript, y->transcript, x->transcript_bytes);
    }
}

static thespis_voice *load(const struct th_voice_store *store, const char *name)
{
    thespis_voice *voice;
    thespis_error error;
    if (th_voice_store_load(store, model, name, &voice, &error) != THESPIS_OK) fail_msg("%s", error.message);
    return voice;
}

static void assert_load_fails(const struct th_voice_store *store, const char *name, thespis_status status, const char *words)
{
    thespis_voice *voice = (thespis_voice *)1;
    thespis_error error = {0};
    assert_int_equal(th_voice_store_load(store, model, name, &voice, &error), status);
    assert_null(voice);
    if (strstr(error.message, words) == NULL) fail_msg("'%s' does not say '%s'", error.message, words);
}

/* ---- names ------------------------------------------------------------------------------------------------------------------- */

static void bad_names_are_refused(void **state)
{
    static const struct {
        const char *name;
        size_t bytes;
    } bad[] = {{"", 0},      {" ", 1},      {".", 1},           {"..", 2},   {"../../etc/passwd", 16}, {"a/b", 3},
               {"a\\b", 3},  {"%2e%2e", 6}, {"a\nb", 3},        {"a\0b", 3}, {"default", 7},           {"Default ", 8},
               {"_-_", 3},   {"a:b", 3},    {"ann\xC3\xA4", 5}, {"~a", 2},   {"a.safetensors", 13},    {"/", 1},
               {"a\x7F", 2}, {"*", 1}};
    char key[256], longest[300];
    thespis_error error;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memset(key, 'x', sizeof key);
        assert_int_equal(th_voice_name_check(bad[i].name, bad[i].bytes, key, &error), THESPIS_INVALID);
        assert_string_equal(key, "");
        assert_true(strlen(error.message) > 10 && strchr(error.message, '\n') == NULL);
    }
    memset(longest, 'a', sizeof longest);
    assert_int_equal(th_voice_name_check(longest, 256, key, &error), THESPIS_INVALID);
    assert_int_equal(th_voice_name_check(longest, 255, key, &error), THESPIS_OK);
    assert_int_equal(strlen(key), 255);
}

static void good_names_lose_case_and_outer_blanks(void **state)
{
    static const char *const good[][2] = {
        {"Anna", "anna"}, {"  Mr. X_2-b \t", "mr. x_2-b"}, {"CON", "con"}, {"7", "7"}, {".hidden", ".hidden"},
        {"..a", "..a"},   {"a.0.wav", "a.0.wav"}};
    char key[256];
    thespis_error error;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(th_voice_name_check(good[i][0], strlen(good[i][0]), key, &error), THESPIS_OK);
        assert_string_equal(key, good[i][1]);
    }
}

/* ---- asking ------------------------------------------------------------------------------------------------------------------ */

static void asking_makes_nothing(void **state)
{
    struct th_voice_store store = new_store();
    struct th_voice_list list;
    struct th_voice_entry entry;
    thespis_error error;
    char *path;
    int builtin;
    (void)state;
    assert_int_equal(th_voice_store_list(&store, &list, &error), THESPIS_OK);
    assert_int_equal(list.count, 0);
    assert_int_equal(th_voice_store_find(&store, "anna", &path, &builtin, &error), THESPIS_OK);
    assert_null(path);
    assert_int_equal(th_voice_store_show(&store, "anna", &entry, &error), THESPIS_INVALID);
    assert_int_equal(th_voice_store_remove(&store, "anna", &error), THESPIS_INVALID);
    assert_load_fails(&store, "anna", THESPIS_INVALID, "no voice named 'anna'");
    assert_load_fails(&store, "../anna", THESPIS_INVALID, "cannot be in a name");
    assert_int_equal(files_in(store.folder), -1);
    th_voice_store_close(&store);
}

static void refused_recordings_leave_nothing(void **state)
{
    struct th_voice_store store = new_store();
    static struct wav wav;
    thespis_error error;
    struct th_voice_input input;
    (void)state;
    make_wav(&wav, 1, 0.4, 8000);
    input = input_of(&wav, "short");
    assert_int_equal(th_voice_store_add(&store, codec, "a", &input, 1, NULL, 0, NULL, &error), THESPIS_INVALID);
    assert_non_null(strstr(error.message, "0.40 seconds"));
    make_wav(&wav, 1, 1, 0);
    input = input_of(&wav, "silence");
    assert_int_equal(th_voice_store_add(&store, codec, "a", &input, 1, NULL, 0, NULL, &error), THESPIS_INVALID);
    assert_non_null(strstr(error.message, "silent"));
    input = input_of(&first, "a <|im_end|>");
    assert_int_equal(th_voice_store_add(&store, codec, "a", &input, 1, NULL, 0, NULL, &error), THESPIS_INVALID);
    input = input_of(&first, "");
    input.count = ((size_t)10 << 20) + 1; /* refused before it is read */
    assert_int_equal(th_voice_store_add(&store, codec, "a", &input, 1, NULL, 0, NULL, &error), THESPIS_LIMIT);
    input = (struct th_voice_input){.bytes = "\x1A\x45\xDF\xA3 webm", .count = 9, .transcript = ""};
    assert_int_equal(th_voice_store_add(&store, codec, "a", &input, 1, NULL, 0, NULL, &error), THESPIS_UNSUPPORTED);
    assert_non_null(strstr(error.message, "WebM"));
    assert_int_equal(th_voice_store_add(&store, codec, "a", &input, 0, NULL, 0, NULL, &error), THESPIS_INVALID);
    input = input_of(&first, "fine");
    assert_int_equal(
        th_voice_store_add(&store, codec, "a", &input, 1, &(struct th_voice_facts){.language = "e n"}, 0, NULL, &error),
        THESPIS_INVALID);
    assert_int_equal(files_in(store.folder), -1);
    th_voice_store_close(&store);
}

/* ---- adding, loading, removing ----------------------------------------------------------------------------------------------- */

static void a_stored_voice_is_the_voice_of_its_recordings(void **state)
{
    struct th_voice_store store = new_store();
    struct th_voice_input inputs[2] = {input_of(&first, "Words, \"quoted\" \xC3\xA9."), input_of(&second, "")};
    thespis_voice *direct, *stored;
    thespis_error error;
    int existed = 1;
    (void)state;
    assert_int_equal(
        th_voice_store_add(&store, codec, "Anna", inputs, 2, &(struct th_voice_facts){"en", "calm", "yes"}, 0, &existed, &error),
        THESPIS_OK);
    assert_false(existed);
    assert_int_equal(thespis_voice_new(model, &direct, &error), THESPIS_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(thespis_voice_add_bytes(direct, inputs[i].bytes, inputs[i].count, inputs[i].transcript,
                                                 inputs[i].transcript_bytes, &error),
                         THESPIS_OK);
    stored = load(&store, "aNNA");
    assert_same_voice(direct, stored);
    thespis_voice_free(stored);
    thespis_voice_free(direct);
    struct th_voice_entry entry;
    assert_int_equal(th_voice_store_show(&store, "anna", &entry, &error), THESPIS_OK);
    assert_string_equal(entry.file.language, "en");
    assert_string_equal(entry.file.description, "calm");
    assert_string_equal(entry.file.consent, "yes");
    assert_int_equal(entry.file.count, 2);
    assert_int_equal(entry.file.references[0].frames, (first.count - WAV_HEAD + 4095) / 4096);
    /* The recordings are kept as they came. */
    char *path, *bytes;
    size_t count;
    assert_int_equal(th_voice_recording_path(entry.path, &entry.file.references[1], 1, &path, &error), THESPIS_OK);
    assert_int_equal(th_file_read(path, 1 << 24, &bytes, &count, &error), THESPIS_OK);
    assert_int_equal(count, second.count);
    assert_memory_equal(bytes, second.bytes, count);
    th_free(bytes);
    th_free(path);
    th_voice_entry_free(&entry);
    assert_int_equal(files_in(store.folder), 3);
    assert_int_equal(th_voice_store_remove(&store, "ANNA", &error), THESPIS_OK);
    assert_int_equal(files_in(store.folder), 0);
    th_voice_store_close(&store);
}

static void a_voice_is_replaced_only_when_asked(void **state)
{
    struct th_voice_store store = new_store();
    thespis_error error;
    int existed = 0;
    (void)state;
    add(&store, "anna", &first, "old words", 0);
    struct th_voice_input input = input_of(&second, "new words");
    assert_int_equal(th_voice_store_add(&store, codec, "ANNA", &input, 1, NULL, 0, &existed, &error), THESPIS_INVALID);
    assert_true(existed);
    assert_non_null(strstr(error.message, "already"));
    add(&store, "Anna", &first, "corrected words", 1); /* equal bytes: the new words count */
    thespis_voice *voice = load(&store, "anna");
    assert_string_equal(voice->references[0].transcript, "corrected words");
    thespis_voice_free(voice);
    add(&store, "Anna", &second, "new words", 1);
    assert_int_equal(files_in(store.folder), 2); /* the first recording is gone */
    th_voice_store_close(&store);
}

static void codes_become_a_voice_without_a_recording(void **state)
{
    struct th_voice_store store = new_store();
    char json[4000] = "[";
    thespis_error error;
    (void)state;
    for (int b = 0; b < codec->parts.codebooks; b++) sprintf(json + strlen(json), "%s[%d,2,3]", b > 0 ? "," : "", b);
    strcat(json, "]");
    struct th_voice_input input = {.bytes = json, .count = strlen(json), .transcript = "", .transcript_bytes = 0};
    assert_int_equal(th_voice_store_add(&store, codec, "codes", &input, 1, NULL, 0, NULL, &error), THESPIS_OK);
    assert_int_equal(files_in(store.folder), 1);
    thespis_voice *voice = load(&store, "codes");
    assert_int_equal(voice->references[0].frames, 3);
    assert_int_equal(voice->references[0].codes[3], 1);
    thespis_voice_free(voice);
    th_voice_store_close(&store);
}

static void long_names_and_near_ones_do_not_meet(void **state)
{
    struct th_voice_store store = new_store();
    struct th_voice_list list;
    thespis_error error;
    char a[256], b[256];
    (void)state;
    memset(a, 'a', sizeof a);
    a[255] = '\0';
    memcpy(b, a, sizeof b);
    b[254] = 'b';
    add(&store, a, &first, "a", 0);
    add(&store, b, &second, "b", 0);
    add(&store, "x", &first, "x", 0);
    add(&store, "x.0", &second, "x.0", 0);
    add(&store, "x.0.wav", &second, "x.0.wav", 0);
    assert_int_equal(th_voice_store_list(&store, &list, &error), THESPIS_OK);
    assert_int_equal(list.count, 5);
    assert_string_equal(list.entries[0].name, a);
    assert_string_equal(list.entries[1].name, b);
    assert_string_equal(list.entries[2].name, "x");
    th_voice_list_free(&list);
    assert_int_equal(th_voice_store_remove(&store, "x", &error), THESPIS_OK);
    assert_int_equal(files_in(store.folder), 8);
    assert_int_equal(th_voice_store_remove(&store, "x.0", &error), THESPIS_OK);
    assert_int_equal(files_in(store.folder), 6);
    thespis_voice *voice = load(&store, b);
    assert_string_equal(voice->references[0].transcript, "b");
    thespis_voice_free(voice);
    th_voice_store_close(&store);
}

static void built_in_voices_come_second_and_stay(void **state)
{
    struct th_voice_store store = new_store(), shipped;
    struct th_voice_list list;
    thespis_error error;
    char checkpoint[200], folder[220];
    (void)state;
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint", root);
    snprintf(folder, sizeof folder, "%s/voices", checkpoint);
    assert_int_equal(th_voice_store_open(folder, NULL, &shipped, &error), THESPIS_OK);
    add(&shipped, "narrator", &first, "shipped", 0);
    add(&shipped, "other", &first, "shipped", 0);
    store.builtin = shipped.folder;
    thespis_voice *voice = load(&store, "narrator");
    assert_string_equal(voice->references[0].transcript, "shipped");
    thespis_voice_free(voice);
    assert_int_equal(th_voice_store_remove(&store, "narrator", &error), THESPIS_INVALID);
    assert_non_null(strstr(error.message, "built in"));
    assert_int_equal(files_in(store.folder), -1);
    add(&store, "narrator", &second, "own", 0);
    voice = load(&store, "narrator");
    assert_string_equal(voice->references[0].transcript, "own");
    thespis_voice_free(voice);
    assert_int_equal(th_voice_store_list(&store, &list, &error), THESPIS_OK);
    assert_int_equal(list.count, 2);
    assert_false(list.entries[0].builtin);
    assert_true(list.entries[1].builtin);
    th_voice_list_free(&list);
    store.builtin = NULL;
    th_voice_store_close(&store);
    th_voice_store_close(&shipped);
}

/* ---- another codec ----------------------------------------------------------------------------------------------------------- */

/* Claims that another codec made the codes, and spoils them, so that only the recording can bring them back. */
static void make_foreign(const char *path)
{
    struct th_voice_file file;
    thespis_error error;
    assert_int_equal(th_voice_file_read(path, 1, &file, &error), THESPIS_OK);
    memset(file.codec_id, 'a', 64);
    file.references[0].codes[0] ^= 1;
    assert_int_equal(th_voice_file_write(path, &file, &error), THESPIS_OK);
    th_voice_file_free(&file);
}

static void another_codecs_voice_is_encoded_again(void **state)
{
    struct th_voice_store store = new_store();
    (void)state;
    add(&store, "anna", &first, "words", 0);
    thespis_voice *before = load(&store, "anna");
    char *path = path_of(&store, "anna"), *recording;
    make_foreign(path);
    thespis_voice *after = load(&store, "anna");
    assert_same_voice(before, after);
    thespis_voice_free(before);
    thespis_voice_free(after);

    struct th_voice_file file;
    thespis_error error;
    assert_int_equal(th_voice_file_read(path, 0, &file, &error), THESPIS_OK);
    assert_int_equal(th_voice_recording_path(path, &file.references[0], 0, &recording, &error), THESPIS_OK);
    FILE *out = fopen(recording, "ab");
    fputc('x', out);
    fclose(out);
    assert_load_fails(&store, "anna", THESPIS_FORMAT, "SHA-256");
    unlink(recording);
    assert_load_fails(&store, "anna", THESPIS_IO, "another codec made its codes");
    assert_load_fails(&store, "anna", THESPIS_IO, "voice 'anna'");
    th_free(recording);
    th_voice_file_free(&file);
    th_free(path);
    th_voice_store_close(&store);
}

/* ---- damaged files ----------------------------------------------------------------------------------------------------------- */

/* One voice file that differs from a good one in one thing. */
struct damage {
    const char *key, *value; /* metadata; value NULL: removed */
    const char *tensor;      /* name of the first tensor; NULL: the right one */
    enum th_dtype dtype;
    int64_t books, frames;
    int16_t code;
    const char *words;
};

static void write_damaged(const char *path, const struct damage *d)
{
    int16_t codes[4096] = {0};
    char id[65];
    thespis_error error;
    memset(id, 'b', 64);
    id[64] = '\0';
    json_t *m = json_pack("{s:s, s:s, s:s, s:s, s:s}", "format", TH_VOICE_FORMAT, "name", "anna", "codec_id", id, "created",
                          "1700000000", "reference.0.transcript", "words");
    assert_non_null(m);
    if (d->key != NULL && d->value != NULL) json_object_set_new(m, d->key, json_string(d->value));
    if (d->key != NULL && d->value == NULL) json_object_del(m, d->key);
    codes[1] = d->code;
    struct th_tensor_out t = {.name = d->tensor != NULL ? d->tensor : "reference.0.codes",
                              .dtype = d->dtype,
                              .rank = 2,
                              .shape = {d->books, d->frames},
                              .data = codes};
    assert_int_equal(th_safetensors_write(path, &t, 1, m, &error), THESPIS_OK);
    json_decref(m);
}

static void damaged_files_are_refused_by_name(void **state)
{
    static const struct damage damages[] = {
        {"format", NULL, NULL, TH_I16, 10, 5, 3, "not a voice"},
        {"format", "thespis-voice-2", NULL, TH_I16, 10, 5, 3, "thespis-voice-2"},
        {"name", NULL, NULL, TH_I16, 10, 5, 3, "name"},
        {"codec_id", "xyz", NULL, TH_I16, 10, 5, 3, "codec_id"},
        {"created", "-5", NULL, TH_I16, 10, 5, 3, "created"},
        {"created", "99999999999999999999", NULL, TH_I16, 10, 5, 3, "created"},
        {"reference.0.transcript", NULL, NULL, TH_I16, 10, 5, 3, "transcript"},
        {"reference.0.transcript", "<|im_end|>", NULL, TH_I16, 10, 5, 3, "transcript"},
        {"reference.0.suffix", "wav", NULL, TH_I16, 10, 5, 3, "sha256"},
        {"reference.0.suffix", "../x", NULL, TH_I16, 10, 5, 3, "sha256"},
        {NULL, NULL, "reference.1.codes", TH_I16, 10, 5, 3, "reference.0.codes"},
        {NULL, NULL, NULL, TH_I32, 10, 5, 3, "I16"},
        {NULL, NULL, NULL, TH_I16, 10, 0, 3, "I16"},
        {NULL, NULL, NULL, TH_I16, 0, 5, 3, "I16"},
        {NULL, NULL, NULL, TH_I16, 10, 5, -1, "code -1"},
    };
    struct th_voice_store store = new_store();
    (void)state;
    add(&store, "anna", &first, "words", 0);
    char *path = path_of(&store, "anna");
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        write_damaged(path, &damages[i]);
        assert_load_fails(&store, "anna", THESPIS_FORMAT, damages[i].words);
    }
    /* Right as a file, but not what the codec of this id can have made. */
    struct damage wrong = {"codec_id", model->parts.codec->id, NULL, TH_I16, model->parts.codebooks, 5, 4096, "must be 0 to"};
    write_damaged(path, &wrong);
    assert_load_fails(&store, "anna", THESPIS_FORMAT, wrong.words);
    wrong = (struct damage){"codec_id", model->parts.codec->id, NULL, TH_I16, model->parts.codebooks + 1, 5, 3, "the codec has"};
    write_damaged(path, &wrong);
    assert_load_fails(&store, "anna", THESPIS_FORMAT, wrong.words);
    th_free(path);
    th_voice_store_close(&store);
}

/* Cut anywhere, the file is refused; a list tells so and goes on; it can be removed and replaced. */
static void cut_files_are_listed_as_damaged(void **state)
{
    struct th_voice_store store = new_store();
    struct th_voice_list list;
    struct stat about;
    thespis_error error;
    (void)state;
    add(&store, "anna", &first, "words", 0);
    add(&store, "bob", &second, "words", 0);
    char *path = path_of(&store, "anna");
    assert_int_equal(stat(path, &about), 0);
    for (off_t n = about.st_size - 1; n >= 0; n -= n > 64 ? 37 : 1) {
        assert_int_equal(truncate(path, n), 0);
        assert_int_equal(th_voice_store_list(&store, &list, &error), THESPIS_OK);
        assert_int_equal(list.count, 2);
        assert_int_equal(list.entries[0].problem.status, THESPIS_FORMAT);
        assert_int_equal(list.entries[1].problem.status, THESPIS_OK);
        th_voice_list_free(&list);
    }
    assert_load_fails(&store, "anna", THESPIS_FORMAT, "anna.safetensors");
    add(&store, "anna", &second, "words", 1);
    thespis_voice_free(load(&store, "anna"));
    assert_int_equal(files_in(store.folder), 4);
    assert_int_equal(truncate(path, 10), 0);
    assert_int_equal(th_voice_store_remove(&store, "anna", &error), THESPIS_OK);
    assert_int_equal(files_in(store.folder), 2);
    th_free(path);
    th_voice_store_close(&store);
}

/* Bytes changed at random: read well, or refused as a file; the sanitizers watch. */
static void mutated_files_are_read_or_refused(void **state)
{
    struct th_voice_store store = new_store();
    thespis_error error;
    uint32_t random = 12345;
    char *path, *bytes;
    size_t count;
    int refused = 0;
    (void)state;
    add(&store, "anna", &first, "words", 0);
    path = path_of(&store, "anna");
    assert_int_equal(th_file_read(path, 1 << 20, &bytes, &count, &error), THESPIS_OK);
    for (int i = 0; i < 3000; i++) {
        struct th_voice_file file;
        FILE *out = fopen(path, "wb");
        size_t places[3];
        char before[3];
        for (int k = 0; k < 3; k++) {
            random = random * 1664525u + 1013904223u;
            places[k] = (random >> 8) % count;
            before[k] = bytes[places[k]];
            bytes[places[k]] = (char)(i % 3 == 0 ? "0{}[],:\"\\u-9"[random % 12] : (int)(random >> 24));
        }
        assert_int_equal(fwrite(bytes, 1, count, out), count);
        assert_int_equal(fclose(out), 0);
        thespis_status status = th_voice_file_read(path, 1, &file, &error);
        assert_true(status == THESPIS_OK || status == THESPIS_FORMAT);
        refused += status != THESPIS_OK;
        if (status == THESPIS_OK) th_voice_file_free(&file);
        for (int k = 2; k >= 0; k--) bytes[places[k]] = before[k];
    }
    assert_true(refused > 1000);
    th_free(bytes);
    th_free(path);
    th_voice_store_close(&store);
}

/* What a writer that was killed leaves is no voice and does not stay for ever. */
static void leftovers_do_no_harm(void **state)
{
    struct th_voice_store store = new_store();
    struct th_voice_list list;
    thespis_error error;
    (void)state;
    add(&store, "bob", &first, "words", 0);
    static const char *const names[] = {"anna.safetensors.part", "anna.0.12345678.wav", "anna.0.12345678.wav.part",
                                        "Upper.safetensors",     "~0123.safetensors",   "notes.txt"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path;
        assert_int_equal(th_path_join(store.folder, names[i], &path, &error), THESPIS_OK);
        fclose(fopen(path, "wb"));
        th_free(path);
    }
    assert_int_equal(th_voice_store_list(&store, &list, &error), THESPIS_OK);
    assert_int_equal(list.count, 1);
    th_voice_list_free(&list);
    add(&store, "anna", &second, "words", 0);
    assert_int_equal(files_in(store.folder), 2 + 2 + 4); /* the orphan and the voice's part are gone */
    th_voice_store_close(&store);
}

/* ---- failures and crowds ----------------------------------------------------------------------------------------------------- */

static thespis_status work(const struct th_voice_store *store, int step, thespis_error *error)
{
    struct th_voice_input inputs[2] = {input_of(&first, "one"), input_of(&second, "two")};
    struct th_voice_facts facts = {"en", "about", "yes"};
    struct th_voice_list list;
    struct th_voice_entry entry;
    thespis_voice *voice;
    thespis_status status;
    switch (step) {
    case 0: return th_voice_store_add(store, model, "anna", inputs, 2, &facts, 0, NULL, error);
    case 1: return th_voice_store_add(store, model, "anna", inputs, 1, &facts, 1, NULL, error);
    case 2:
        status = th_voice_store_load(store, model, "anna", &voice, error);
        thespis_voice_free(voice);
        return status;
    case 3:
        status = th_voice_store_list(store, &list, error);
        if (status == THESPIS_OK) th_voice_list_free(&list);
        return status;
    case 4:
        status = th_voice_store_show(store, "anna", &entry, error);
        if (status == THESPIS_OK) th_voice_entry_free(&entry);
        return status;
    default: return th_voice_store_remove(store, "anna", error);
    }
}

static void every_failing_allocation_is_told(void **state)
{
    static const int files_before[] = {0, 3, 2, 2, 2, 2}, files_after[] = {3, 2, 2, 2, 2, 0};
    struct th_voice_store store = new_store();
    thespis_error error;
    (void)state;
#ifndef TH_FAULTS
    skip();
#endif
    for (int step = 0; step < 6; step++) {
        thespis_status status = THESPIS_MEMORY;
        for (long n = 1; status != THESPIS_OK; n++) {
            assert_true(n < 2000);
            th_memory_fail_from(n);
            status = work(&store, step, &error);
            th_memory_fail_from(0);
            if (status == THESPIS_OK) break;
            assert_int_equal(status, THESPIS_MEMORY);
            int files = files_in(store.folder);
            assert_int_equal(files < 0 ? 0 : files, files_before[step]);
            if (step > 0) thespis_voice_free(load(&store, "anna"));
        }
        assert_int_equal(files_in(store.folder), files_after[step]);
    }
    th_voice_store_close(&store);
}

struct crowd {
    const struct th_voice_store *store;
    int number;
};

/* Adds, replaces, lists, loads and removes the same voice; only "exists" and "unknown" may go wrong. */
static void *jostle(void *context)
{
    const struct crowd *c = context;
    struct th_voice_input input = input_of(c->number % 2 ? &first : &second, c->number % 2 ? "first" : "second");
    thespis_error error;
    long bad = 0;
    for (int i = 0; i < 25; i++) {
        thespis_voice *voice;
        struct th_voice_list list;
        thespis_status status = th_voice_store_add(c->store, model, "anna", &input, 1, NULL, i % 3 != 0, NULL, &error);
        bad += status != THESPIS_OK && strstr(error.message, "already") == NULL;
        status = th_voice_store_load(c->store, model, "anna", &voice, &error);
        bad += status != THESPIS_OK && strstr(error.message, "no voice named") == NULL && status != THESPIS_IO;
        if (status == THESPIS_OK) { /* the words belong to the codes */
            size_t want = strcmp(voice->references[0].transcript, "first") == 0 ? first.count : second.count;
            bad += voice->references[0].frames != (want - WAV_HEAD + 4095) / 4096;
        }
        thespis_voice_free(voice);
        bad += th_voice_store_list(c->store, &list, &error) != THESPIS_OK;
        th_voice_list_free(&list);
        if (i % 5 == 4) th_voice_store_remove(c->store, "anna", &error);
    }
    return (void *)bad;
}

static void crowds_do_not_mix_voices_up(void **state)
{
    struct th_voice_store store = new_store();
    pthread_t threads[4];
    struct crowd crowds[4];
    (void)state;
    for (int i = 0; i < 4; i++) {
        crowds[i] = (struct crowd){&store, i};
        assert_int_equal(pthread_create(&threads[i], NULL, jostle, &crowds[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *bad;
        pthread_join(threads[i], &bad);
        assert_int_equal((long)bad, 0);
    }
    add(&store, "anna", &first, "last", 1);
    thespis_voice_free(load(&store, "anna"));
    assert_int_equal(files_in(store.folder), 2);
    th_voice_store_close(&store);
}

/* ---- the cache --------------------------------------------------------------------------------------------------------------- */

static void equal_bytes_are_encoded_once_and_words_are_not_kept(void **state)
{
    struct th_code_cache_stats before, after;
    thespis_voice *voice;
    thespis_error error;
    static struct wav wav;
    (void)state;
    make_wav(&wav, 9, 0.6, 5000);
    assert_int_equal(thespis_voice_new(model, &voice, &error), THESPIS_OK);
    th_code_cache_get_stats(model->code_cache, &before);
    assert_int_equal(thespis_voice_add_bytes(voice, wav.bytes, wav.count, "old", 3, &error), THESPIS_OK);
    assert_int_equal(thespis_voice_add_bytes(voice, wav.bytes, wav.count, "new", 3, &error), THESPIS_OK);
    th_code_cache_get_stats(model->code_cache, &after);
    assert_int_equal(after.hits - before.hits, 1);
    assert_int_equal(after.misses - before.misses, 1);
    const struct th_prompt_reference *r = voice->references;
    assert_string_equal(r[0].transcript, "old");
    assert_string_equal(r[1].transcript, "new");
    assert_int_equal(r[0].frames, r[1].frames);
    assert_memory_equal(r[0].codes, r[1].codes, r[0].frames * (size_t)model->parts.codebooks * sizeof *r[0].codes);
    /* Samples never go through the cache: the codes are what the codec says. */
    thespis_voice *plain;
    static float samples[2 * RATE];
    size_t count = (wav.count - WAV_HEAD) / 2;
    for (size_t i = 0; i < count; i++) {
        int16_t sample;
        memcpy(&sample, wav.bytes + WAV_HEAD + 2 * i, 2);
        samples[i] = (float)sample / 32768;
    }
    assert_int_equal(thespis_voice_new(model, &plain, &error), THESPIS_OK);
    assert_int_equal(thespis_voice_add_samples(plain, samples, count, "", 0, &error), THESPIS_OK);
    assert_memory_equal(r[1].codes, plain->references[0].codes, r[1].frames * (size_t)model->parts.codebooks * sizeof *r[0].codes);
    thespis_voice_free(plain);
    thespis_voice_free(voice);
}

static void folders_come_from_the_environment(void **state)
{
    char *folder;
    thespis_error error;
    (void)state;
    setenv("HOME", "/home/x", 1);
    setenv("XDG_DATA_HOME", "relative", 1);
    setenv("THESPIS_VOICES", "", 1);
    assert_int_equal(th_voice_default_folder(&folder, &error), THESPIS_OK);
    assert_string_equal(folder, "/home/x/.local/share/thespis/voices");
    th_free(folder);
    setenv("XDG_DATA_HOME", "/data", 1);
    assert_int_equal(th_voice_default_folder(&folder, &error), THESPIS_OK);
    assert_string_equal(folder, "/data/thespis/voices");
    th_free(folder);
    setenv("THESPIS_VOICES", "here", 1);
    assert_int_equal(th_voice_default_folder(&folder, &error), THESPIS_OK);
    assert_string_equal(folder, "here");
    th_free(folder);
    unsetenv("THESPIS_VOICES");
    unsetenv("XDG_DATA_HOME");
    unsetenv("HOME");
    assert_int_equal(th_voice_default_folder(&folder, &error), THESPIS_INVALID);
}

/* ---- before and after -------------------------------------------------------------------------------------------------------- */

static int set_up(void **state)
{
    thespis_engine_options o;
    thespis_error error;
    (void)state;
    if (mkdtemp(root) == NULL) return -1;
    make_wav(&first, 1, 0.55, 9000);
    make_wav(&second, 2, 0.75, 9000);
    thespis_engine_options_init(&o);
    o.threads = 1;
    o.max_rows = 256;
    o.checkpoint = STAGE;
    if (thespis_engine_open(&o, &model, &error) != THESPIS_OK) return -1;
    o.checkpoint = NULL;
    o.codec = STAGE "/codec.pth";
    return thespis_engine_open(&o, &codec, &error) == THESPIS_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    char command[100];
    (void)state;
    thespis_engine_close(codec);
    thespis_engine_close(model);
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_names_are_refused),
        cmocka_unit_test(good_names_lose_case_and_outer_blanks),
        cmocka_unit_test(asking_makes_nothing),
        cmocka_unit_test(refused_recordings_leave_nothing),
        cmocka_unit_test(a_stored_voice_is_the_voice_of_its_recordings),
        cmocka_unit_test(a_voice_is_replaced_only_when_asked),
        cmocka_unit_test(codes_become_a_voice_without_a_recording),
        cmocka_unit_test(long_names_and_near_ones_do_not_meet),
        cmocka_unit_test(built_in_voices_come_second_and_stay),
        cmocka_unit_test(another_codecs_voice_is_encoded_again),
        cmocka_unit_test(damaged_files_are_refused_by_name),
        cmocka_unit_test(cut_files_are_listed_as_damaged),
        cmocka_unit_test(mutated_files_are_read_or_refused),
        cmocka_unit_test(leftovers_do_no_harm),
        cmocka_unit_test(every_failing_allocation_is_told),
        cmocka_unit_test(crowds_do_not_mix_voices_up),
        cmocka_unit_test(equal_bytes_are_encoded_once_and_words_are_not_kept),
        cmocka_unit_test(folders_come_from_the_environment),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
