/* Requests end to end on the shipped checkpoint: one request's samples are the same bytes however it is run, and every way of going
 * wrong leaves the engine fit for the next one. */
#include "unit/engine/made.h"

#include <fenv.h>
#include <pthread.h>
#include <time.h>

#include "base/memory.h"

#define STAGE TEST_SOURCE_DIR "/models/stage"
#define FRAMES 14

struct run {
    const char *text;
    uint64_t seed;
    int max_frames, first_chunk, chunk;
    size_t capacity; /* samples a read */
    const thespis_voice *voice;
    const thespis_turn *history;
    size_t history_count;
};

struct sound {
    float samples[64 * THESPIS_FRAME_SAMPLES];
    size_t count;
    thespis_outcome outcome;
};

static const struct run plain = {.text = "The bell rang twice.", .seed = 3, .max_frames = FRAMES, .capacity = 5000};

static thespis_engine *open_engine(int threads, int lanes, int prefill, thespis_isa isa)
{
    thespis_engine_options o = made_options(STAGE, lanes, 512);
    o.threads = threads;
    o.prefill_rows = prefill;
    o.isa = isa;
    return made_open(&o);
}

static thespis_request *start(thespis_engine *engine, const struct run *run)
{
    thespis_request_options o = made_request(run->text, run->voice, run->seed, run->max_frames);
    o.first_chunk = run->first_chunk;
    o.chunk = run->chunk;
    o.history = run->history;
    o.history_count = run->history_count;
    return made_start(engine, &o);
}

static void finish(thespis_request *request, size_t capacity, struct sound *sound)
{
    thespis_error error;
    size_t count;
    sound->count = 0;
    do {
        size_t room = sizeof sound->samples / sizeof(float) - sound->count;
        if (thespis_request_read(request, sound->samples + sound->count, capacity < room ? capacity : room, &count, &error) !=
            THESPIS_OK)
            fail_msg("%s", error.message);
        sound->count += count;
    } while (count > 0);
    sound->outcome.size = sizeof sound->outcome;
    assert_int_equal(thespis_request_get_outcome(request, &sound->outcome, &error), THESPIS_OK);
    assert_int_equal(sound->count, (size_t)sound->outcome.frames * THESPIS_FRAME_SAMPLES);
}

static void speak(thespis_engine *engine, const struct run *run, struct sound *sound)
{
    thespis_request *request = start(engine, run);
    finish(request, run->capacity, sound);
    thespis_request_free(request);
}

static struct sound want, got; /* too large for the stack */

static void assert_same(const struct sound *a, const struct sound *b)
{
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->samples, b->samples, a->count * sizeof(float));
}

/* ---- the same bytes ---------------------------------------------------------------------------------------------------------- */

static void chunks_threads_pieces_and_isa_change_no_byte(void **state)
{
    static const struct {
        int threads, prefill, first, chunk;
        size_t capacity;
        thespis_isa isa;
    } ways[] = {{1, 64, 1, 1, 1, THESPIS_ISA_AUTO},     {2, 64, 4, 32, 2048, THESPIS_ISA_AUTO},
                {2, 7, 7, 5, 100, THESPIS_ISA_AUTO},    {1, 1, 64, 64, 100000, THESPIS_ISA_AUTO},
                {2, 500, 0, 0, 4097, THESPIS_ISA_AUTO}, {2, 64, 0, 0, 5000, THESPIS_ISA_PORTABLE}};
    (void)state;
    thespis_engine *engine = open_engine(2, 1, 64, THESPIS_ISA_AUTO);
    struct run run = plain;
    run.max_frames = 6; /* the portable kernels are slow without hardware for fused products */
    run.capacity = 777;
    speak(engine, &run, &want);
    thespis_engine_close(engine);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        engine = open_engine(ways[i].threads, 1, ways[i].prefill, ways[i].isa);
        run.first_chunk = ways[i].first;
        run.chunk = ways[i].chunk;
        run.capacity = ways[i].capacity;
        speak(engine, &run, &got);
        assert_same(&want, &got);
        thespis_engine_close(engine);
    }
}

/* Three different requests one after another equal three fresh engines. */
static void an_engine_keeps_nothing_from_request_to_request(void **state)
{
    static const char *const texts[] = {"One.", "<|speaker:2|> And now the second, longer one.", "[sighs] Three?"};
    (void)state;
    thespis_engine *engine = open_engine(2, 1, 64, THESPIS_ISA_AUTO);
    for (int i = 0; i < 3; i++) {
        struct run run = plain;
        run.text = texts[i];
        run.seed = (uint64_t)i;
        speak(engine, &run, &got);
        thespis_engine *fresh = open_engine(2, 1, 64, THESPIS_ISA_AUTO);
        speak(fresh, &run, &want);
        thespis_engine_close(fresh);
        assert_same(&want, &got);
    }
    thespis_engine_close(engine);
}

/* Neighbours on other lanes, and more requests than lanes. */
static void neighbours_change_no_byte(void **state)
{
    (void)state;
    thespis_engine *engine = open_engine(2, 3, 5, THESPIS_ISA_AUTO);
    speak(engine, &plain, &want);
    thespis_request *others[5];
    for (int i = 0; i < 5; i++) {
        struct run run = plain;
        run.text = i % 2 ? "Somebody else speaks meanwhile." : "Noise.";
        run.seed = 100 + (uint64_t)i;
        run.max_frames = 3 + 4 * i;
        others[i] = start(engine, &run);
        if (i == 1) {
            thespis_request *mine = start(engine, &plain);
            thespis_request_cancel(others[0]);
            finish(mine, 3000, &got);
            thespis_request_free(mine);
            assert_same(&want, &got);
        }
    }
    for (int i = 0; i < 5; i++) thespis_request_free(others[i]);
    thespis_engine_close(engine);
}

static void the_seed_decides(void **state)
{
    (void)state;
    thespis_engine *engine = open_engine(2, 1, 64, THESPIS_ISA_AUTO);
    struct run run = plain;
    run.seed = THESPIS_SEED_RANDOM;
    speak(engine, &run, &want);
    uint64_t drawn = want.outcome.seed;
    assert_true(drawn <= INT64_MAX);
    run.seed = drawn;
    speak(engine, &run, &got);
    assert_same(&want, &got);
    run.seed = drawn ^ 1;
    speak(engine, &run, &got);
    assert_true(got.count != want.count || memcmp(got.samples, want.samples, got.count * sizeof(float)) != 0);
    thespis_engine_close(engine);
}

/* The codec's part on a thread that rounds upward: the bytes are those of any other, and it rounds upward after. */
static void the_callers_rounding_changes_no_byte(void **state)
{
    (void)state;
    thespis_error error;
    int32_t *codes[2];
    size_t frames[2];
    static float samples[2][3 * THESPIS_FRAME_SAMPLES];
    thespis_engine *engine = open_engine(1, 1, 64, THESPIS_ISA_AUTO);
    for (int i = 0; i < 3 * THESPIS_FRAME_SAMPLES; i++) want.samples[i] = (float)(i % 173 - 86) / 300;
    for (int i = 0; i < 2; i++) {
        thespis_decoder *decoder;
        if (i == 1) {
            thespis_engine_close(engine);
            fesetround(FE_UPWARD);
            engine = open_engine(1, 1, 64, THESPIS_ISA_AUTO);
        }
        assert_int_equal(thespis_encode_samples(engine, want.samples, 3 * THESPIS_FRAME_SAMPLES, &codes[i], &frames[i], &error),
                         THESPIS_OK);
        assert_int_equal(thespis_decoder_new(engine, &decoder, &error), THESPIS_OK);
        assert_int_equal(thespis_decoder_push(decoder, codes[0], 3, 0, 3, samples[i], &error), THESPIS_OK);
        thespis_decoder_free(decoder);
    }
    int rounds = fegetround();
    fesetround(FE_TONEAREST);
    assert_int_equal(rounds, FE_UPWARD);
    assert_memory_equal(codes[0], codes[1], 3 * sizeof **codes);
    assert_memory_equal(samples[0], samples[1], sizeof samples[0]);
    thespis_codes_free(codes[0]);
    thespis_codes_free(codes[1]);
    thespis_engine_close(engine);
}

/* ---- voices and history ------------------------------------------------------------------------------------------------------ */

static void a_voice_from_samples_or_codes_is_one_voice(void **state)
{
    (void)state;
    thespis_error error;
    thespis_engine *engine = open_engine(2, 1, 64, THESPIS_ISA_AUTO);
    speak(engine, &plain, &want); /* its own audio serves as a recording */
    int32_t *codes;
    size_t frames;
    assert_int_equal(thespis_encode_samples(engine, want.samples, want.count, &codes, &frames, &error), THESPIS_OK);
    assert_int_equal(frames, (size_t)want.outcome.frames);
    thespis_voice *voices[2];
    for (int i = 0; i < 2; i++) assert_int_equal(thespis_voice_new(engine, &voices[i], &error), THESPIS_OK);
    assert_int_equal(thespis_voice_add_samples(voices[0], want.samples, want.count, "The bell rang.", 14, &error), THESPIS_OK);
    assert_int_equal(thespis_voice_add_codes(voices[1], codes, frames, "The bell rang.", 14, &error), THESPIS_OK);
    struct run run = plain;
    run.voice = voices[0];
    speak(engine, &run, &want);
    run.voice = voices[1];
    speak(engine, &run, &got);
    assert_same(&want, &got);
    run.voice = NULL;
    speak(engine, &run, &got);
    assert_true(got.count != want.count || memcmp(got.samples, want.samples, got.count * sizeof(float)) != 0);
    thespis_codes_free(codes);
    thespis_voice_free(voices[0]);
    thespis_voice_free(voices[1]);
    thespis_engine_close(engine);
}

static void history_from_a_finished_request(void **state)
{
    (void)state;
    thespis_error error;
    thespis_engine *engine = open_engine(2, 1, 64, THESPIS_ISA_AUTO);
    thespis_request *first = start(engine, &plain);
    finish(first, 8000, &want);
    thespis_turn turn = {plain.text, strlen(plain.text), NULL, 0};
    assert_int_equal(thespis_request_get_codes(first, &turn.codes, &turn.frames, &error), THESPIS_OK);
    assert_int_equal(turn.frames, (size_t)want.outcome.frames);
    struct run run = plain;
    run.history = &turn;
    run.history_count = 1;
    speak(engine, &run, &got);
    assert_int_equal(got.outcome.prompt_rows, 2 * want.outcome.prompt_rows - 11 + want.outcome.frames + 2);
    thespis_request_free(first);
    thespis_engine_close(engine);
}

/* ---- going wrong ------------------------------------------------------------------------------------------------------------- */

static void refusals_name_what_is_wrong(void **state)
{
    (void)state;
    thespis_engine *engine = open_engine(1, 1, 64, THESPIS_ISA_AUTO);
    static const struct {
        const char *text, *word;
        float temperature, top_p;
        int32_t top_k;
        int max_frames;
        thespis_status status;
    } bad[] = {{"", "nothing to speak", 1, 0.9f, 1, 0, THESPIS_INVALID},
               {"...", "nothing to speak", 1, 0.9f, 1, 0, THESPIS_INVALID},
               {"\xF0\x9F\x98\x80", "nothing to speak", 1, 0.9f, 1, 0, THESPIS_INVALID},
               {"a\xC0\xAF", "UTF-8", 1, 0.9f, 1, 0, THESPIS_INVALID},
               {"hi <|im_end|>", "<|im_end|>", 1, 0.9f, 1, 0, THESPIS_INVALID},
               {"hi <|speaker:16|>", "speaker", 1, 0.9f, 1, 0, THESPIS_INVALID},
               {"hi", "temperature", -1, 0.9f, 1, 0, THESPIS_INVALID},
               {"hi", "top_p", 1, 0, 1, 0, THESPIS_INVALID},
               {"hi", "top_k", 1, 1, 0, 0, THESPIS_INVALID},
               {"hi", "max_frames", 1, 1, 1, 2049, THESPIS_INVALID},
               {"hi", "max_rows", 1, 1, 1, 511, THESPIS_LIMIT}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        thespis_request_options o = made_request(bad[i].text, NULL, 1, bad[i].max_frames);
        o.temperature = bad[i].temperature;
        o.top_p = bad[i].top_p;
        o.top_k = bad[i].top_k;
        made_refused(engine, &o, bad[i].status, bad[i].word);
    }
    speak(engine, &plain, &got);
    thespis_engine_close(engine);
}

static void *cancel_soon(void *request)
{
    struct timespec pause = {0, 30000000};
    nanosleep(&pause, NULL);
    thespis_request_cancel(request);
    return NULL;
}

static void cancelling_frees_the_lane(void **state)
{
    (void)state;
    thespis_error error = {0};
    thespis_engine *engine = open_engine(2, 1, 64, THESPIS_ISA_AUTO);
    speak(engine, &plain, &want);
    struct run run = plain;
    run.max_frames = 300;
    thespis_request *request = start(engine, &run);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, request), 0);
    float samples[512];
    size_t count;
    thespis_status status;
    do status = thespis_request_read(request, samples, 512, &count, &error);
    while (status == THESPIS_OK && count > 0);
    pthread_join(thread, NULL);
    if (status == THESPIS_OK) fail_msg("a request of 300 frames was over before it was cancelled");
    assert_int_equal(status, THESPIS_CANCELLED);
    thespis_outcome outcome = {.size = sizeof outcome};
    assert_int_equal(thespis_request_get_outcome(request, &outcome, &error), THESPIS_OK);
    thespis_request_free(request);
    speak(engine, &plain, &got);
    assert_same(&want, &got);
    thespis_engine_close(engine);
}

/* Nobody reads: the engine stops at its bound, and freeing does not hang. */
static void a_reader_that_never_reads(void **state)
{
    (void)state;
    thespis_engine *engine = open_engine(2, 2, 64, THESPIS_ISA_AUTO);
    struct run run = plain;
    run.max_frames = 40;
    thespis_request *idle = start(engine, &run);
    speak(engine, &plain, &want);
    thespis_request_free(idle);
    thespis_engine_close(engine);
}

#ifdef TH_FAULTS
/* Every allocation of opening and speaking fails once: an error each time, never a crash or a leak, and a good run after. */
static void every_allocation_can_fail(void **state)
{
    (void)state;
    thespis_engine *engine = open_engine(1, 1, 64, THESPIS_ISA_AUTO);
    int failures = 0;
    for (long n = 1; n < 400; n++) {
        thespis_request_options o = made_request("Hi.", NULL, 1, 2);
        thespis_request *request;
        thespis_error error;
        th_memory_fail_from(n);
        thespis_status status = thespis_request_start(engine, &o, &request, &error);
        float samples[2048];
        size_t count = 0;
        while (status == THESPIS_OK && (status = thespis_request_read(request, samples, 2048, &count, &error)) == THESPIS_OK &&
               count > 0) {}
        th_memory_fail_from(0);
        thespis_request_free(request);
        if (status == THESPIS_OK) break;
        assert_int_equal(status, THESPIS_MEMORY);
        failures++;
    }
    assert_in_range(failures, 3, 398);
    thespis_engine_close(engine);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_threads_pieces_and_isa_change_no_byte),
        cmocka_unit_test(an_engine_keeps_nothing_from_request_to_request),
        cmocka_unit_test(neighbours_change_no_byte),
        cmocka_unit_test(the_seed_decides),
        cmocka_unit_test(the_callers_rounding_changes_no_byte),
        cmocka_unit_test(a_voice_from_samples_or_codes_is_one_voice),
        cmocka_unit_test(history_from_a_finished_request),
        cmocka_unit_test(refusals_name_what_is_wrong),
        cmocka_unit_test(cancelling_frees_the_lane),
        cmocka_unit_test(a_reader_that_never_reads),
#ifdef TH_FAULTS
        cmocka_unit_test(every_allocation_can_fail),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
