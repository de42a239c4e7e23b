/* The promise under load: a request's samples are the same bytes alone, with 1, 3, 7 and 15 neighbours that come, leave, fail and
 * are cancelled at random frames, on any number of lanes, with any pieces of prompts, with a voice cold, warm or evicted. On the
 * shipped checkpoint and on a generated one. Schedules come from one seed; THESPIS_SCHEDULES says how many. */
#include "unit/engine/made.h"

#define STAGE TEST_SOURCE_DIR "/models/stage"
#define MADE MADE_FOLDER "/schedule"
#define KINDS 4
#define NEIGHBOURS 15
#define FRAMES 10

/* ThreadSanitizer makes a schedule take ten times as long. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SCHEDULES 10
#endif
#endif
#if !defined(SCHEDULES) && defined(__SANITIZE_THREAD__)
#define SCHEDULES 10
#endif
#ifndef SCHEDULES
#define SCHEDULES 24
#endif

/* The requests whose bytes are watched: plain, two speakers, cloned, and long enough to be cut. */
static const char *const texts[KINDS] = {
    "The bell rang twice.", "<|speaker:1|> Who is there? <|speaker:2|> Only me.", "This voice is borrowed.",
    "The first sentence is here. The second one follows it. A third comes after that. And a fourth ends it all, slowly."};

/* What the tests of one checkpoint begin with. */
struct stage {
    const char *folder;
    const char *failing; /* a text at which the network produces no numbers, or NULL */
    struct made_print alone[KINDS];
};

static uint64_t random_state;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

static thespis_engine *open_engine(const struct stage *s, int lanes, int prefill, int slots, int threads)
{
    thespis_engine_options o = made_options(s->folder, lanes, 320);
    o.prefill_rows = prefill;
    o.voice_slots = slots;
    o.threads = threads;
    return made_open(&o);
}

/* A voice of made-up codes: different numbers, different voice. */
static thespis_voice *make_voice(thespis_engine *engine, int number)
{
    thespis_engine_info info = {.size = sizeof info};
    thespis_voice *voice;
    thespis_error error;
    int32_t codes[16 * 20];
    assert_int_equal(thespis_engine_get_info(engine, &info, &error), THESPIS_OK);
    for (int i = 0; i < info.codebooks * 20; i++) codes[i] = (i * 37 + number * 101) % info.codebook_size;
    assert_int_equal(thespis_voice_new(engine, &voice, &error), THESPIS_OK);
    assert_int_equal(thespis_voice_add_codes(voice, codes, 20, "Borrowed words.", 15, &error), THESPIS_OK);
    return voice;
}

static thespis_request *start_kind(thespis_engine *engine, int kind, const thespis_voice *voice, int chunk)
{
    thespis_request_options o = made_request(texts[kind], kind == 2 ? voice : NULL, 40 + (uint64_t)kind, FRAMES);
    o.chunk_bytes = kind == 3 ? 60 : 0;
    o.first_chunk = o.chunk = chunk;
    return made_start(engine, &o);
}

static void assert_alone(const struct stage *s, int kind, struct made_print got, const char *when)
{
    if (got.hash != s->alone[kind].hash || got.count != s->alone[kind].count)
        fail_msg("%s, request %d %s: %zu samples with hash %016llx, alone %zu with %016llx", s->folder, kind, when, got.count,
                 (unsigned long long)got.hash, s->alone[kind].count, (unsigned long long)s->alone[kind].hash);
}

static void finish(const struct stage *s, int kind, thespis_request *request, const char *when)
{
    struct made_print got;
    thespis_error error;
    if (made_drain(request, &got, &error) != THESPIS_OK) fail_msg("%s", error.message);
    thespis_request_free(request);
    assert_alone(s, kind, got, when);
}

/* ---- schedules --------------------------------------------------------------------------------------------------------------- */

struct crowd {
    thespis_request *requests[NEIGHBOURS];
    int count, most;
};

/* One more neighbour, of any length; perhaps one that fails, and perhaps another is cancelled. */
static void join(const struct stage *s, thespis_engine *engine, const thespis_voice *voice, struct crowd *crowd)
{
    const char *text = s->failing != NULL && draw(6) == 0 ? s->failing : texts[draw(3)];
    thespis_request_options o = made_request(text, draw(3) == 0 ? voice : NULL, draw(1000), 1 + (int)draw(14));
    crowd->requests[crowd->count++] = made_start(engine, &o);
    if (draw(4) == 0) thespis_request_cancel(crowd->requests[draw((uint32_t)crowd->count)]);
}

/* One watched request among `most` neighbours, some before it, others while it speaks: it is read frame by frame, and between two
 * frames some join. Nobody reads the neighbours. */
static void one_schedule(const struct stage *s, thespis_engine *engine, const thespis_voice *voice, int kind, int most)
{
    struct crowd crowd = {.most = most};
    int before = (int)draw((uint32_t)most + 1), by_frame = draw(3) > 0;
    while (crowd.count < before) join(s, engine, voice, &crowd);
    thespis_request *watched = start_kind(engine, kind, voice, by_frame);
    struct made_print got = made_print_begin();
    float samples[THESPIS_FRAME_SAMPLES];
    thespis_error error;
    size_t count;
    do {
        for (uint32_t n = draw(4); n > 0 && crowd.count < most; n--) join(s, engine, voice, &crowd);
        if (thespis_request_read(watched, samples, THESPIS_FRAME_SAMPLES, &count, &error) != THESPIS_OK)
            fail_msg("%s", error.message);
        made_print_add(&got, samples, count);
    } while (count > 0);
    thespis_request_free(watched);
    assert_alone(s, kind, got, "among neighbours");
    for (int i = 0; i < crowd.count; i++) thespis_request_free(crowd.requests[i]);
}

static void random_schedules(void **state)
{
    static const int neighbours[] = {0, 1, 3, 7, 15}, lanes[] = {1, 2, 4, 16}, pieces[] = {1, 7, 64, 500};
    const struct stage *s = *state;
    int schedules = getenv("THESPIS_SCHEDULES") != NULL ? atoi(getenv("THESPIS_SCHEDULES")) : SCHEDULES;
    random_state = 20261130;
    for (int done = 0; done < schedules;) {
        thespis_engine *engine = open_engine(s, lanes[draw(4)], pieces[draw(4)], (int)draw(3), 1 + (int)draw(2));
        thespis_voice *voice = make_voice(engine, 0);
        for (int i = 0; i < 6 && done < schedules; i++, done++)
            one_schedule(s, engine, voice, (int)draw(KINDS), neighbours[draw(5)]);
        thespis_voice_free(voice);
        thespis_engine_close(engine);
    }
}

/* Every number of neighbours that is promised, on more lanes than one and fewer than needed. */
static void so_many_neighbours(void **state)
{
    static const int neighbours[] = {1, 3, 7, 15};
    const struct stage *s = *state;
    random_state = 7;
    thespis_engine *engine = open_engine(s, 8, 7, 1, 2);
    thespis_voice *voice = make_voice(engine, 0);
    for (int i = 0; i < 4; i++) one_schedule(s, engine, voice, i, neighbours[i]);
    thespis_voice_free(voice);
    thespis_engine_close(engine);
}

/* ---- pieces, threads, slots, engines ----------------------------------------------------------------------------------------- */

static void pieces_and_threads(void **state)
{
    static const int pieces[] = {1, 7, 64, 4096};
    const struct stage *s = *state;
    for (int i = 0; i < 4; i++) {
        thespis_engine *engine = open_engine(s, 2, pieces[i], 1, 1 + i % 2);
        thespis_voice *voice = make_voice(engine, 0);
        for (int kind = 0; kind < KINDS; kind++) finish(s, kind, start_kind(engine, kind, voice, 0), "with other pieces");
        thespis_voice_free(voice);
        thespis_engine_close(engine);
    }
}

/* Cold, warm, after eviction by another voice, and warm again. */
static void a_voice_cold_warm_and_evicted(void **state)
{
    const struct stage *s = *state;
    thespis_engine *engine = open_engine(s, 1, 64, 1, 2);
    thespis_voice *voice = make_voice(engine, 0), *other = make_voice(engine, 1);
    static const int warm[] = {0, 1, 1, 0, 1};
    for (int i = 0; i < 5; i++) {
        struct made_print got;
        thespis_request_options o = made_request("Out of the way.", other, 1, 2);
        if (i == 3) made_speak(engine, &o, &got);
        o = made_request(texts[2], voice, 42, FRAMES);
        thespis_outcome outcome = made_speak(engine, &o, &got);
        assert_alone(s, 2, got, "with a voice cold or warm");
        assert_int_equal(outcome.cached_rows > 0, warm[i]);
    }
    thespis_voice_free(voice);
    thespis_voice_free(other);
    thespis_engine_close(engine);
}

/* On the lane that another left by being cancelled, or by failing. */
static void after_one_that_did_not_end_well(void **state)
{
    const struct stage *s = *state;
    thespis_engine *engine = open_engine(s, 1, 64, 1, 2);
    for (int i = 0; i < 2; i++) {
        if (i == 1 && s->failing == NULL) break;
        thespis_request_options o = made_request(i == 0 ? texts[3] : s->failing, NULL, 1, 100);
        thespis_request *other = made_start(engine, &o), *waiting = start_kind(engine, 0, NULL, 0);
        struct made_print got;
        thespis_error error;
        if (i == 0) thespis_request_cancel(other);
        assert_int_equal(made_drain(other, &got, &error), i == 0 ? THESPIS_CANCELLED : THESPIS_NUMERIC);
        finish(s, 0, waiting, "after one that did not end well");
        thespis_request_free(other);
        finish(s, 1, start_kind(engine, 1, NULL, 0), "after one that did not end well");
    }
    thespis_engine_close(engine);
}

static void two_engines_in_one_process(void **state)
{
    const struct stage *s = *state;
    thespis_engine *a = open_engine(s, 2, 64, 0, 1), *b = open_engine(s, 2, 7, 0, 1);
    thespis_request *first = start_kind(a, 0, NULL, 0), *second = start_kind(b, 1, NULL, 0), *third = start_kind(a, 3, NULL, 0);
    finish(s, 1, second, "in a second engine");
    finish(s, 3, third, "beside a second engine");
    finish(s, 0, first, "beside a second engine");
    thespis_engine_close(a);
    thespis_engine_close(b);
}

/* The chunks of a long text lie one after another in the audio, and each has its outcome. */
static void chunks_tile_the_audio(void **state)
{
    const struct stage *s = *state;
    thespis_engine *engine = open_engine(s, 1, 64, 1, 2);
    thespis_request *request = start_kind(engine, 3, NULL, 0);
    struct made_print got;
    thespis_error error;
    assert_int_equal(made_drain(request, &got, &error), THESPIS_OK);
    thespis_outcome outcome = {.size = sizeof outcome};
    assert_int_equal(thespis_request_get_outcome(request, &outcome, &error), THESPIS_OK);
    assert_true(outcome.chunks >= 2);
    assert_int_equal(outcome.chunks_done, outcome.chunks);
    int at = 0;
    size_t source = 0;
    for (int i = 0; i < outcome.chunks; i++) {
        thespis_chunk_info chunk = {.size = sizeof chunk};
        assert_int_equal(thespis_request_get_chunk(request, i, &chunk, &error), THESPIS_OK);
        assert_int_equal(chunk.first_frame, at);
        assert_true(chunk.finish == THESPIS_FINISH_STOP || chunk.finish == THESPIS_FINISH_LENGTH);
        assert_true(chunk.source_begin >= source && chunk.source_end > chunk.source_begin);
        source = chunk.source_end;
        at += chunk.frames;
    }
    assert_int_equal(at, outcome.frames);
    assert_int_equal(got.count, (size_t)at * THESPIS_FRAME_SAMPLES);
    thespis_request_free(request);
    thespis_engine_close(engine);
}

/* ---- the two checkpoints ----------------------------------------------------------------------------------------------------- */

static void measure_alone(struct stage *s)
{
    for (int kind = 0; kind < KINDS; kind++) {
        thespis_engine *engine = open_engine(s, 1, 64, 0, 1);
        thespis_voice *voice = make_voice(engine, 0);
        thespis_request *request = start_kind(engine, kind, voice, 0);
        thespis_error error;
        if (made_drain(request, &s->alone[kind], &error) != THESPIS_OK) fail_msg("%s", error.message);
        assert_true(s->alone[kind].count > 0);
        thespis_request_free(request);
        thespis_voice_free(voice);
        thespis_engine_close(engine);
    }
}

static int shipped(void **state)
{
    static struct stage stage = {.folder = STAGE};
    measure_alone(&stage);
    *state = &stage;
    return 0;
}

static int generated(void **state)
{
    static struct stage stage = {.folder = MADE, .failing = "<|speaker:0|>Z."};
    made_endless("schedule", MADE);
    made_fill_row(MADE, "model.language_model.embed_tokens.weight", "Z", 0x7FC0); /* only a text with this token is harmed */
    measure_alone(&stage);
    *state = &stage;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(chunks_tile_the_audio),
                                       cmocka_unit_test(pieces_and_threads),
                                       cmocka_unit_test(a_voice_cold_warm_and_evicted),
                                       cmocka_unit_test(after_one_that_did_not_end_well),
                                       cmocka_unit_test(two_engines_in_one_process),
                                       cmocka_unit_test(so_many_neighbours),
                                       cmocka_unit_test(random_schedules)};
    int failed = cmocka_run_group_tests_name("shipped", tests, shipped, NULL);
    return failed + cmocka_run_group_tests_name("generated", tests, generated, NULL);
}
