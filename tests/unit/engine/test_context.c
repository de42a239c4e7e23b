/* Limits of a request, on a generated checkpoint: the last row of a context, the largest prompt with the most frames, the longest
 * recording; and the guard on speech that loops. What fits is spoken, one more is refused with the numbers. */
#include "unit/engine/made.h"

#include "engine/parts.h"

#define FOLDER MADE_FOLDER "/context"
#define LOOPING MADE_FOLDER "/looping"
#define SILENT MADE_FOLDER "/silent"
#define ROWS 16384
#define MOST_PROMPT 8192
#define MOST_FRAMES 2048

/* Gives a checkpoint a codec whose last convolution is all zeros. */
static void silence_codec(const char *folder)
{
    static const char *const last[] = {"decoder.model.6.conv.weight", "decoder.model.6.conv.bias"};
    char pth[600], path[600];
    struct th_safetensors file;
    long at[2];
    size_t bytes[2];
    thespis_error error;
    snprintf(pth, sizeof pth, "%s/codec.pth", folder);
    snprintf(path, sizeof path, "%s/codec.safetensors", folder);
    if (th_convert_codec(pth, path, &error) != THESPIS_OK) fail_msg("%s", error.message);
    if (th_safetensors_open(path, &file, &error) != THESPIS_OK) fail_msg("%s", error.message);
    for (int i = 0; i < 2; i++) {
        const struct th_tensor *tensor = th_safetensors_find(&file, last[i]);
        if (tensor == NULL) fail_msg("no tensor %s", last[i]);
        at[i] = (long)((const uint8_t *)tensor->data - file.map.data);
        bytes[i] = (size_t)tensor->bytes;
    }
    th_safetensors_close(&file);
    FILE *out = fopen(path, "r+b");
    assert_non_null(out);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fseek(out, at[i], SEEK_SET), 0);
        for (size_t n = 0; n < bytes[i]; n++) assert_int_equal(fputc(0, out), 0);
    }
    assert_int_equal(fclose(out), 0);
}

static int make(void **unused)
{
    (void)unused;
    made_endless("context", FOLDER);
    made_checkpoint("edges", "looping");
    made_fill_row(LOOPING, "lm_head.weight", NULL, 0);
    made_endless("silent", SILENT);
    silence_codec(SILENT);
    return 0;
}

static thespis_voice *made_up_voice(thespis_engine *engine, size_t frames)
{
    static int32_t codes[16 * MOST_PROMPT];
    thespis_engine_info info = {.size = sizeof info};
    thespis_voice *voice;
    thespis_error error;
    assert_int_equal(thespis_engine_get_info(engine, &info, &error), THESPIS_OK);
    for (size_t i = 0; i < (size_t)info.codebooks * frames; i++) codes[i] = (int32_t)(i * 37 % 251) % info.codebook_size;
    assert_int_equal(thespis_voice_new(engine, &voice, &error), THESPIS_OK);
    assert_int_equal(thespis_voice_add_codes(voice, codes, frames, "Borrowed words.", 15, &error), THESPIS_OK);
    return voice;
}

static void the_last_row_of_a_context(void **unused)
{
    (void)unused;
    thespis_engine_options o = made_options(FOLDER, 1, 200);
    thespis_engine *engine = made_open(&o);
    struct made_print filled, asked;
    thespis_request_options r = made_request("Fill it.", NULL, 1, 1);
    r.greedy = 1;
    int prompt = made_speak(engine, &r, &filled).prompt_rows;
    r.max_frames = 200 - prompt;
    thespis_outcome outcome = made_speak(engine, &r, &filled);
    assert_int_equal(outcome.frames, 200 - prompt);
    assert_int_equal(outcome.finish, THESPIS_FINISH_LENGTH);
    r.max_frames = 0; /* as many as fit are the same */
    assert_int_equal(made_speak(engine, &r, &asked).finish, THESPIS_FINISH_LENGTH);
    made_same(filled, asked, "max_frames 0");
    r.max_frames = 201 - prompt;
    made_refused(engine, &r, THESPIS_LIMIT, "make 201, the context has 200 rows");
    thespis_engine_close(engine);

    /* A prompt that leaves no row at all, and one that leaves one. */
    r.max_frames = 0;
    o.max_rows = prompt;
    engine = made_open(&o);
    made_refused(engine, &r, THESPIS_LIMIT, "leaves no room for a frame");
    thespis_engine_close(engine);
    o.max_rows = prompt + 1;
    engine = made_open(&o);
    assert_int_equal(made_speak(engine, &r, &asked).frames, 1);
    thespis_engine_close(engine);
}

/* 8,192 rows of prompt and 2,048 frames are the most that one request may have; each alone, since both together take long. */
static void the_largest_request(void **unused)
{
    (void)unused;
    thespis_engine_options o = made_options(FOLDER, 1, ROWS);
    o.voice_slots = 0;
    thespis_engine *engine = made_open(&o);
    thespis_voice *voice = made_up_voice(engine, 100);
    struct made_print print;
    thespis_request_options r = made_request("Go on.", voice, 1, 1);
    r.greedy = 1;
    int other_rows = made_speak(engine, &r, &print).prompt_rows - 100;
    thespis_voice_free(voice);

    r.voice = voice = made_up_voice(engine, (size_t)(MOST_PROMPT + 1 - other_rows));
    made_refused(engine, &r, THESPIS_LIMIT, "the prompt has 8193 rows, at most 8192");
    thespis_voice_free(voice);

    r.voice = voice = made_up_voice(engine, (size_t)(MOST_PROMPT - other_rows));
    r.max_frames = MOST_FRAMES + 1;
    made_refused(engine, &r, THESPIS_INVALID, "max_frames is 2049");
    r.max_frames = 4;
    if (getenv("THESPIS_LONG") != NULL) assert_int_equal(made_speak(engine, &r, &print).prompt_rows, MOST_PROMPT);
    r.voice = NULL;
    r.max_frames = MOST_FRAMES;
    assert_int_equal(made_speak(engine, &r, &print).frames, MOST_FRAMES);
    thespis_voice_free(voice);
    thespis_engine_close(engine);

    o.max_rows = ROWS + 1;
    thespis_error error;
    assert_int_equal(thespis_engine_open(&o, &engine, &error), THESPIS_INVALID);
    assert_non_null(strstr(error.message, "16384"));
}

/* A lane takes its last row, of 16,384 with THESPIS_LONG set (minutes) and otherwise of 1,500, fed or drawn, and then no more. */
static void the_last_row_of_the_longest_lane(void **unused)
{
    (void)unused;
    thespis_engine_options o = made_options(FOLDER, 1, getenv("THESPIS_LONG") != NULL ? ROWS : 1500);
    const int most = o.max_rows;
    struct th_parts parts;
    thespis_error error;
    if (th_parts_open(&o, 0, &parts, &error) != THESPIS_OK) fail_msg("%s", error.message);
    struct th_backend *backend = parts.backend;
    int width = 1 + parts.codebooks;
    int32_t *rows = calloc((size_t)most * (size_t)width, sizeof *rows), frame[1 + 16];
    assert_non_null(rows);
    for (int i = 0; i < most; i++) {
        for (int k = 1; k < width; k++) rows[i * width + k] = (i * 7 + k * 31) % parts.codebook_size;
        rows[i * width] = parts.shape.semantic_start + rows[i * width + 1];
    }
    struct th_sampling sampling = {1.0f, 0.9f, TH_TOP_K_UNLIMITED, 1, 0, 1};
    assert_int_equal(backend->ops->begin(backend, 0, &sampling, &error), THESPIS_OK);
    assert_int_equal(backend->ops->feed(backend, 0, rows, most - 2, &error), THESPIS_OK);
    assert_int_equal(backend->ops->feed(backend, 0, rows, 3, &error), THESPIS_LIMIT);
    assert_int_equal(backend->ops->rows(backend, 0), most - 2);
    for (int i = 0; i < 3; i++) {
        struct th_step step = {.lane = 0, .frame = frame};
        thespis_status status = backend->ops->step(backend, &step, 1, &error);
        if (i < 2 && (status != THESPIS_OK || step.status != THESPIS_OK)) fail_msg("row %d: %s", most - 2 + i, step.error.message);
        if (i == 2) assert_true(status == THESPIS_LIMIT || step.status == THESPIS_LIMIT);
    }
    assert_int_equal(backend->ops->rows(backend, 0), most);
    free(rows);
    th_parts_close(&parts);
}

static void put(unsigned char *at, uint32_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) at[i] = (unsigned char)(value >> (8 * i));
}

/* A WAV of 8,000 Hz in memory, freed by the caller. */
static unsigned char *make_wav(uint32_t samples, size_t *bytes)
{
    unsigned char *wav = calloc(1, 44 + 2 * (size_t)samples);
    assert_non_null(wav);
    memcpy(wav, "RIFF....WAVEfmt ", 16);
    memcpy(wav + 36, "data", 4);
    put(wav + 4, 36 + 2 * samples, 4);
    put(wav + 16, 16, 4);
    put(wav + 20, 1, 2);
    put(wav + 22, 1, 2);
    put(wav + 24, 8000, 4);
    put(wav + 28, 16000, 4);
    put(wav + 32, 2, 2);
    put(wav + 34, 16, 2);
    put(wav + 40, 2 * samples, 4);
    for (uint32_t i = 0; i < samples; i++) put(wav + 44 + 2 * (size_t)i, i * i % 9001, 2);
    *bytes = 44 + 2 * (size_t)samples;
    return wav;
}

static void a_reference_of_sixty_seconds(void **unused)
{
    (void)unused;
    enum { MOST = 60 * THESPIS_SAMPLE_RATE }; /* 2,646,000 */
    thespis_engine_options o = made_options(FOLDER, 1, 2048);
    thespis_engine *engine = made_open(&o);
    thespis_error error;
    thespis_voice *voice;
    float *samples = calloc(MOST + 1, sizeof *samples);
    assert_non_null(samples);
    for (int i = 0; i <= MOST; i++) samples[i] = (float)(i % 201 - 100) / 200.0f;
    assert_int_equal(thespis_voice_new(engine, &voice, &error), THESPIS_OK);
    assert_int_equal(thespis_voice_add_samples(voice, samples, MOST + 1, "One more.", 9, &error), THESPIS_LIMIT);
    assert_non_null(strstr(error.message, "at most 60"));
    if (thespis_voice_add_samples(voice, samples, MOST, "Sixty.", 6, &error) != THESPIS_OK) fail_msg("%s", error.message);
    free(samples);
    struct made_print print;
    thespis_request_options r = made_request("And on it goes.", voice, 1, 2);
    r.greedy = 1;
    assert_in_range(made_speak(engine, &r, &print).prompt_rows, 1292 + 40, 1292 + 200); /* 1,292 frames and the words */
    thespis_voice_free(voice);

    size_t bytes;
    unsigned char *wav = make_wav(480800, &bytes);
    assert_int_equal(thespis_voice_new(engine, &voice, &error), THESPIS_OK);
    assert_int_equal(thespis_voice_add_bytes(voice, wav, bytes, "60.1 s.", 7, &error), THESPIS_LIMIT);
    assert_non_null(strstr(error.message, "60.1"));
    free(wav);
    wav = make_wav(480000, &bytes);
    if (thespis_voice_add_bytes(voice, wav, bytes, "60 s.", 5, &error) != THESPIS_OK) fail_msg("%s", error.message);
    free(wav);
    thespis_voice_free(voice);
    thespis_engine_close(engine);
}

/* A model that knows one main token only loops, greedy as it is. The guard ends it after four seconds, always at the same frame,
 * and changes nothing before. */
static void the_guard_ends_a_loop(void **unused)
{
    (void)unused;
    struct made_print guarded, again, plain;
    thespis_engine_options o = made_options(LOOPING, 1, 512);
    thespis_engine *engine = made_open(&o);
    thespis_request_options r = made_request("Again and again.", NULL, 1, 300);
    r.greedy = 1;
    thespis_outcome without = made_speak(engine, &r, &plain);
    assert_int_equal(without.finish, THESPIS_FINISH_LENGTH);
    assert_int_equal(without.frames, 300);
    r.guard = 1;
    thespis_outcome with = made_speak(engine, &r, &guarded);
    assert_int_equal(with.finish, THESPIS_FINISH_LOOP);
    assert_in_range(with.frames, 87, 97);
    thespis_engine_close(engine);

    o.threads = 1;
    o.prefill_rows = 7;
    engine = made_open(&o);
    r.first_chunk = 1;
    r.chunk = 5;
    assert_int_equal(made_speak(engine, &r, &again).finish, THESPIS_FINISH_LOOP);
    made_same(guarded, again, "guarded with other windows");
    r.guard = 0;
    r.max_frames = with.frames;
    made_speak(engine, &r, &again);
    made_same(guarded, again, "what the guard left");
    thespis_engine_close(engine);
}

/* A codec that is silent whatever it is told. The guard ends the request after three seconds of it, whatever the windows and
 * however far the driver is ahead. */
static void the_guard_ends_a_silence(void **unused)
{
    static const int chunks[][2] = {{0, 0}, {1, 1}, {7, 5}, {64, 64}};
    (void)unused;
    struct made_print plain, got;
    thespis_engine_options o = made_options(SILENT, 1, 512);
    thespis_request_options r = made_request("Nobody hears this. Nor this.", NULL, 1, 200);
    r.greedy = 1;
    r.granularity = THESPIS_GRANULARITY_SENTENCE;
    for (int i = 0; i < 4; i++) {
        o.threads = 1 + i % 2;
        thespis_engine *engine = made_open(&o);
        if (i == 0) {
            thespis_outcome all = made_speak(engine, &r, &plain);
            assert_int_equal(all.frames, 400);
            assert_int_equal(all.finish, THESPIS_FINISH_LENGTH);
        }
        r.guard = 1;
        r.first_chunk = chunks[i][0];
        r.chunk = chunks[i][1];
        thespis_outcome outcome = made_speak(engine, &r, &got);
        assert_int_equal(outcome.finish, THESPIS_FINISH_SILENCE);
        assert_int_equal(outcome.frames, 65);
        assert_int_equal(outcome.chunks_done, 1);
        thespis_engine_close(engine);
    }
}

/* Without a limit on frames, a later chunk hears the earlier ones only where they leave it room enough to be spoken: in a context
 * of 200 rows its prompt would fit with them, its speech perhaps not. */
static void history_leaves_room_to_speak(void **unused)
{
    (void)unused;
    static const int contexts[] = {1000, 160};
    struct made_print print;
    int rows[2][2]; /* of both prompts: with and without history, in a large and a small context */
    for (int i = 0; i < 2; i++) {
        thespis_engine_options o = made_options(TEST_SOURCE_DIR "/models/stage", 1, contexts[i]);
        thespis_engine *engine = made_open(&o);
        thespis_request_options r = made_request("The bell rang twice. Who is there?", NULL, 1, 0);
        r.granularity = THESPIS_GRANULARITY_SENTENCE;
        for (int alone = 0; alone < 2; alone++) {
            r.no_history = alone;
            rows[i][alone] = made_speak(engine, &r, &print).prompt_rows;
        }
        thespis_engine_close(engine);
    }
    assert_in_range(rows[0][0], rows[0][1] + 20, 160);
    assert_int_equal(rows[1][0], rows[0][1]);
    assert_int_equal(rows[1][1], rows[0][1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_row_of_a_context),    cmocka_unit_test(the_guard_ends_a_loop),
        cmocka_unit_test(the_guard_ends_a_silence),     cmocka_unit_test(history_leaves_room_to_speak),
        cmocka_unit_test(a_reference_of_sixty_seconds), cmocka_unit_test(the_last_row_of_the_longest_lane),
        cmocka_unit_test(the_largest_request)};
    return cmocka_run_group_tests(tests, make, NULL);
}
