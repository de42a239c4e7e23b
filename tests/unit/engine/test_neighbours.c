/* Requests side by side on a generated checkpoint: one that fails, for want of memory or by numbers that are none, leaves the
 * others their bytes; sixteen voices bound by their tags; a voice's prompt in any pieces. */
#include "unit/engine/made.h"

#include "base/memory.h"

#define FOLDER MADE_FOLDER "/neighbours"
#define SPOILT MADE_FOLDER "/spoilt"
#define SPEAKERS THESPIS_MAX_SPEAKERS

/* ---- a failing neighbour ----------------------------------------------------------------------------------------------------- */

static void numbers_that_are_none(void **unused)
{
    (void)unused;
    /* Only a text with this token is harmed. */
    made_endless("spoilt", SPOILT);
    made_fill_row(SPOILT, "model.language_model.embed_tokens.weight", "Z", 0x7FC0);
    struct made_print want[2], got;
    thespis_error error;
    thespis_engine_options o = made_options(SPOILT, 1, 512);
    thespis_request_options good[2] = {made_request("The bell rang twice.", NULL, 5, 60),
                                       made_request("Who is there?", NULL, 6, 20)},
                            bad = made_request("<|speaker:0|>Z.", NULL, 7, 60);
    good[0].greedy = good[1].greedy = 1; /* never ends by itself */
    thespis_engine *engine = made_open(&o);
    for (int i = 0; i < 2; i++) made_speak(engine, &good[i], &want[i]);
    thespis_engine_close(engine);

    o.lanes = 2;
    engine = made_open(&o);
    thespis_request *first = made_start(engine, &good[0]), *failing = made_start(engine, &bad);
    thespis_outcome outcome = {.size = sizeof outcome};
    assert_int_equal(made_drain(failing, &got, &error), THESPIS_NUMERIC);
    assert_int_equal(made_drain(failing, &got, &error), THESPIS_NUMERIC); /* again and again */
    assert_int_equal(thespis_request_get_outcome(failing, &outcome, &error), THESPIS_OK);
    assert_int_equal(outcome.finish, THESPIS_FINISH_ERROR);
    made_speak(engine, &good[1], &got); /* on the lane that failed */
    made_same(want[1], got, "after a failure");
    assert_int_equal(made_drain(first, &got, &error), THESPIS_OK);
    made_same(want[0], got, "beside a failure");
    thespis_request_free(failing);
    thespis_request_free(first);
    thespis_engine_close(engine);
}

#ifdef TH_FAULTS
/* Memory ends while one lane speaks and another begins: the first has what it needs, the second fails alone. */
static void memory_that_ends(void **unused)
{
    (void)unused;
    struct made_print want[2], got;
    thespis_error error;
    thespis_engine_options o = made_options(FOLDER, 2, 1024);
    thespis_request_options r[2] = {made_request("The bell rang twice.", NULL, 5, 150),
                                    made_request("Who is there? It is only me. I have come again, as always.", NULL, 6, 20)};
    r[0].greedy = r[1].greedy = 1;
    r[1].granularity = THESPIS_GRANULARITY_SENTENCE;
    thespis_engine *engine = made_open(&o);
    for (int i = 0; i < 2; i++) made_speak(engine, &r[i], &want[i]);
    for (int again = 0; again < 2; again++) {
        float sample;
        size_t count;
        thespis_request *first = made_start(engine, &r[0]);
        assert_int_equal(thespis_request_read(first, &sample, 1, &count, &error), THESPIS_OK);
        assert_int_equal(count, 1);
        thespis_request *failing = made_start(engine, &r[1]);
        th_memory_fail_from(1 + again);
        thespis_status status = made_drain(failing, &got, &error);
        th_memory_fail_from(0);
        assert_int_equal(status, THESPIS_MEMORY);
        thespis_request_free(failing);
        made_speak(engine, &r[1], &got);
        made_same(want[1], got, "after memory came back");
        assert_int_equal(made_drain(first, &got, &error), THESPIS_OK);
        assert_int_equal(got.count + 1, want[0].count);
        thespis_request_free(first);
        made_speak(engine, &r[0], &got);
        made_same(want[0], got, "after a neighbour's memory ended");
    }
    thespis_engine_close(engine);
}
#endif

/* ---- many voices ------------------------------------------------------------------------------------------------------------- */

static size_t transcript_of(int speaker, char text[64])
{
    return (size_t)snprintf(text, 64, "<|speaker:%d|> I am number %d.", speaker, speaker);
}

/* Recording of a speaker: a tone of its own, and a length of its own. */
static size_t record(int speaker, float samples[20000])
{
    size_t count = 2048 * (3 + (size_t)speaker % 4) + 17 * (size_t)speaker;
    for (size_t i = 0; i < count; i++) samples[i] = (float)((int)(i * (size_t)(speaker + 2)) % 301 - 150) / 400.0f;
    return count;
}

/* Rows of the prompt that a voice makes with a text; the voice of `count` speakers is told by its rows alone. */
static int rows_with(thespis_engine *engine, const thespis_voice *voice)
{
    struct made_print print;
    thespis_request_options r = made_request("Who speaks?", voice, 1, 1);
    return made_speak(engine, &r, &print).prompt_rows;
}

static void sixteen_speakers(void **unused)
{
    (void)unused;
    static float samples[20000];
    thespis_engine_options o = made_options(FOLDER, 2, 2048);
    thespis_engine *engine = made_open(&o);
    thespis_error error;
    thespis_voice *recorded, *coded, *swapped;
    assert_int_equal(thespis_voice_new(engine, &recorded, &error), THESPIS_OK);
    assert_int_equal(thespis_voice_new(engine, &coded, &error), THESPIS_OK);
    assert_int_equal(thespis_voice_new(engine, &swapped, &error), THESPIS_OK);
    int rows = 0;
    for (int i = 0; i < SPEAKERS; i++) {
        char text[64], other[64], segment[160];
        int32_t *codes;
        json_int_t unused_id;
        size_t frames, bytes = transcript_of(i, text), count = record(i, samples),
                       other_bytes = transcript_of(SPEAKERS - 1 - i, other);
        assert_int_equal(thespis_encode_samples(engine, samples, count, &codes, &frames, &error), THESPIS_OK);
        assert_int_equal(thespis_voice_add_samples(recorded, samples, count, text, bytes, &error), THESPIS_OK);
        assert_int_equal(thespis_voice_add_codes(coded, codes, frames, text, bytes, &error), THESPIS_OK);
        assert_int_equal(thespis_voice_add_codes(swapped, codes, frames, other, other_bytes, &error), THESPIS_OK);
        thespis_codes_free(codes);
        /* Each reference adds its heading with its tag and words, and its frames. */
        int before = rows;
        rows = rows_with(engine, recorded);
        snprintf(segment, sizeof segment, "\n\n[Reference %d]\nText: %s\nSpeech: ", i + 1, text);
        if (i > 0) assert_int_equal(rows - before, made_tokens(FOLDER, segment, &unused_id) + (int)frames);
    }
    assert_int_equal(thespis_voice_add_samples(recorded, samples, 4096, "One more.", 9, &error), THESPIS_LIMIT);
    assert_non_null(strstr(error.message, "16"));

    char text[600] = "";
    for (int i = 0; i < SPEAKERS; i++) snprintf(text + strlen(text), 40, "<|speaker:%d|> My turn %d. ", i, i);
    struct made_print want, got;
    thespis_request_options r = made_request(text, recorded, 9, 4);
    thespis_outcome outcome = made_speak(engine, &r, &want);
    assert_int_equal(outcome.chunks, 6); /* at most three speakers each */
    assert_int_equal(outcome.chunks_done, 6);
    r.voice = coded;
    made_speak(engine, &r, &got);
    made_same(want, got, "codes for recordings");
    r.voice = swapped;
    made_speak(engine, &r, &got);
    assert_true(got.hash != want.hash);
    thespis_voice_free(recorded);
    thespis_voice_free(coded);
    thespis_voice_free(swapped);
    thespis_engine_close(engine);
}

static void a_voice_in_any_pieces(void **unused)
{
    (void)unused;
    static const int pieces[] = {1, 7, 64, 4096};
    struct made_print want = {0, 0}, got;
    for (int i = 0; i < 4; i++) {
        thespis_engine_options o = made_options(FOLDER, 1, 512);
        o.prefill_rows = pieces[i];
        thespis_engine *engine = made_open(&o);
        thespis_error error;
        thespis_voice *voice;
        int32_t codes[16 * 90];
        thespis_engine_info info = {.size = sizeof info};
        assert_int_equal(thespis_engine_get_info(engine, &info, &error), THESPIS_OK);
        for (int j = 0; j < info.codebooks * 90; j++) codes[j] = j * 37 % info.codebook_size;
        assert_int_equal(thespis_voice_new(engine, &voice, &error), THESPIS_OK);
        assert_int_equal(thespis_voice_add_codes(voice, codes, 90, "Borrowed words.", 15, &error), THESPIS_OK);
        thespis_request_options r = made_request("This voice is borrowed. So is this one.", voice, 4, 12);
        r.granularity = THESPIS_GRANULARITY_SENTENCE;
        for (int warm = 0; warm < 2; warm++) {
            thespis_outcome outcome = made_speak(engine, &r, i + warm == 0 ? &want : &got);
            assert_int_equal(outcome.chunks, 2);
            assert_true(outcome.cached_rows > 0); /* the second chunk's at least */
            if (i + warm > 0) made_same(want, got, "a prompt in pieces");
        }
        thespis_voice_free(voice);
        thespis_engine_close(engine);
    }
}

static int make(void **unused)
{
    (void)unused;
    made_endless("neighbours", FOLDER);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixteen_speakers),
        cmocka_unit_test(a_voice_in_any_pieces),
        cmocka_unit_test(numbers_that_are_none),
#ifdef TH_FAULTS
        cmocka_unit_test(memory_that_ends),
#endif
    };
    return cmocka_run_group_tests(tests, make, NULL);
}
