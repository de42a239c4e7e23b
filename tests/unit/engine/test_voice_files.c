/* Files of stored voices are whole or not there: of another codec, damaged, cut, left over, written by many at a time or with
 * failing memory. */
#include "unit/engine/voices.h"

#include <pthread.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_codecs_voice_is_encoded_again),
        cmocka_unit_test(damaged_files_are_refused_by_name),
        cmocka_unit_test(cut_files_are_listed_as_damaged),
        cmocka_unit_test(mutated_files_are_read_or_refused),
        cmocka_unit_test(leftovers_do_no_harm),
        cmocka_unit_test(every_failing_allocation_is_told),
        cmocka_unit_test(crowds_do_not_mix_voices_up),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
