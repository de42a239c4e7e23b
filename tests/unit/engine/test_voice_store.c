/* Stored voices: names that cannot leave their folder, and the same codes as from the recordings themselves. */
#include "unit/engine/voices.h"

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
        cmocka_unit_test(equal_bytes_are_encoded_once_and_words_are_not_kept),
        cmocka_unit_test(folders_come_from_the_environment),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
