/* The promise under load: a request's samples are the same bytes alone, with 1, 3, 7 and 15 neighbours that come, leave and are
 * cancelled at random, on any number of lanes, with any pieces of prompts, with a voice cold, warm or evicted. Schedules come from
 * one seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "thespis.h"

#define STAGE TEST_SOURCE_DIR "/models/stage"
#define KINDS 4
#define NEIGHBOURS 15
#define FRAMES 10

/* The requests whose bytes are watched: plain, two speakers, cloned, and long enough to be cut. */
static const char *const texts[KINDS] = {
    "The bell rang twice.", "<|speaker:1|> Who is there? <|speaker:2|> Only me.", "This voice is borrowed.",
    "The first sentence is here. The second one follows it. A third comes after that. And a fourth ends it all, slowly."};

static uint64_t state = 20261130;

static uint32_t draw(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static thespis_engine *open_engine(int lanes, int prefill, int slots, int threads)
{
    thespis_engine_options o;
    thespis_engine *engine;
    thespis_error error;
    thespis_engine_options_init(&o);
    o.checkpoint = STAGE;
    o.lanes = lanes;
    o.prefill_rows = prefill;
    o.voice_slots = slots;
    o.threads = threads;
    o.max_rows = 320;
    if (thespis_engine_open(&o, &engine, &error) != THESPIS_OK) fail_msg("%s", error.message);
    return engine;
}

/* A voice of made-up codes: different numbers, different voice. */
static thespis_voice *make_voice(thespis_engine *engine, int number)
{
    thespis_voice *voice;
    thespis_error error;
    int32_t codes[8 * 20];
    for (int i = 0; i < 8 * 20; i++) codes[i] = (i * 37 + number * 101) % 512;
    assert_int_equal(thespis_voice_new(engine, &voice, &error), THESPIS_OK);
    assert_int_equal(thespis_voice_add_codes(voice, codes, 20, "Borrowed words.", 15, &error), THESPIS_OK);
    return voice;
}

static thespis_request *start(thespis_engine *engine, const char *text, const thespis_voice *voice, uint64_t seed, int frames,
                              int chunk_bytes)
{
    thespis_request_options o;
    thespis_request *request;
    thespis_error error;
    thespis_request_options_init(&o);
    o.text = text;
    o.text_bytes = strlen(text);
    o.voice = voice;
    o.seed = seed;
    o.max_frames = frames;
    o.chunk_bytes = chunk_bytes;
    if (thespis_request_start(engine, &o, &request, &error) != THESPIS_OK) fail_msg("%s", error.message);
    return request;
}

/* FNV-1a over all samples, and their count. */
struct print {
    uint64_t hash;
    size_t count;
};

static struct print finish(thespis_request *request)
{
    struct print p = {14695981039346656037u, 0};
    float samples[3000];
    thespis_error error;
    size_t count;
    do {
        if (thespis_request_read(request, samples, 3000, &count, &error) != THESPIS_OK) fail_msg("%s", error.message);
        for (size_t i = 0; i < count * sizeof(float); i++) p.hash = (p.hash ^ ((const unsigned char *)samples)[i]) * 1099511628211u;
        p.count += count;
    } while (count > 0);
    thespis_request_free(request);
    return p;
}

static thespis_request *start_kind(thespis_engine *engine, int kind, const thespis_voice *voice)
{
    return start(engine, texts[kind], kind == 2 ? voice : NULL, 40 + (uint64_t)kind, FRAMES, kind == 3 ? 60 : 0);
}

static struct print alone[KINDS];

static void assert_alone(int kind, struct print got, const char *when)
{
    if (got.hash != alone[kind].hash || got.count != alone[kind].count)
        fail_msg("request %d %s: %zu samples with hash %016llx, alone %zu with %016llx", kind, when, got.count,
                 (unsigned long long)got.hash, alone[kind].count, (unsigned long long)alone[kind].hash);
}

static int measure_alone(void **unused)
{
    (void)unused;
    for (int kind = 0; kind < KINDS; kind++) {
        thespis_engine *engine = open_engine(1, 64, 0, 1);
        thespis_voice *voice = make_voice(engine, 0);
        alone[kind] = finish(start_kind(engine, kind, voice));
        assert_true(alone[kind].count > 0);
        thespis_voice_free(voice);
        thespis_engine_close(engine);
    }
    return 0;
}

/* One watched request among `count` neighbours, some before it, some after, some cancelled, one with a reader that stops. */
static void one_schedule(thespis_engine *engine, const thespis_voice *voice, int kind, int count)
{
    thespis_request *other[NEIGHBOURS], *watched = NULL;
    int at = (int)draw((uint32_t)count + 1);
    for (int i = 0; i <= count; i++) {
        if (i == at) watched = start_kind(engine, kind, voice);
        if (i == count) break;
        const char *text = texts[draw(3)];
        other[i] = start(engine, text, draw(3) == 0 ? voice : NULL, draw(1000), 1 + (int)draw(14), 0);
        if (draw(4) == 0) thespis_request_cancel(other[draw((uint32_t)i + 1)]);
    }
    assert_alone(kind, finish(watched), "among neighbours");
    for (int i = 0; i < count; i++) thespis_request_free(other[i]);
}

static void random_schedules(void **unused)
{
    static const int neighbours[] = {0, 1, 3, 7, 15}, lanes[] = {1, 2, 4, 16}, pieces[] = {1, 7, 64, 500};
    int schedules = getenv("THESPIS_SCHEDULES") != NULL ? atoi(getenv("THESPIS_SCHEDULES")) : 24;
    (void)unused;
    for (int done = 0; done < schedules;) {
        thespis_engine *engine = open_engine(lanes[draw(4)], pieces[draw(4)], (int)draw(3), 1 + (int)draw(2));
        thespis_voice *voice = make_voice(engine, 0);
        for (int i = 0; i < 6 && done < schedules; i++, done++) one_schedule(engine, voice, (int)draw(KINDS), neighbours[draw(5)]);
        thespis_voice_free(voice);
        thespis_engine_close(engine);
    }
}

/* Cold, warm, after eviction by other voices, and warm again. */
static void a_voice_cold_warm_and_evicted(void **unused)
{
    (void)unused;
    thespis_engine *engine = open_engine(1, 64, 1, 2);
    thespis_voice *voice = make_voice(engine, 0), *other = make_voice(engine, 1);
    thespis_outcome outcome = {.size = sizeof outcome};
    thespis_error error;
    static const int warm[] = {0, 1, 1, 0, 1};
    for (int i = 0; i < 5; i++) {
        if (i == 3) finish(start(engine, "Out of the way.", other, 1, 2, 0));
        thespis_request *request = start_kind(engine, 2, voice);
        float samples[1];
        size_t count;
        assert_int_equal(thespis_request_read(request, samples, 1, &count, &error), THESPIS_OK);
        assert_int_equal(thespis_request_get_outcome(request, &outcome, &error), THESPIS_OK);
        assert_int_equal(outcome.cached_rows > 0, warm[i]);
        thespis_request_free(request);
        assert_alone(2, finish(start_kind(engine, 2, voice)), "with a cached voice");
    }
    thespis_voice_free(voice);
    thespis_voice_free(other);
    thespis_engine_close(engine);
}

static void two_engines_in_one_process(void **unused)
{
    (void)unused;
    thespis_engine *a = open_engine(2, 64, 0, 1), *b = open_engine(2, 7, 0, 1);
    thespis_request *first = start_kind(a, 0, NULL), *second = start_kind(b, 1, NULL), *third = start_kind(a, 3, NULL);
    assert_alone(1, finish(second), "in a second engine");
    assert_alone(3, finish(third), "beside a second engine");
    assert_alone(0, finish(first), "beside a second engine");
    thespis_engine_close(a);
    thespis_engine_close(b);
}

/* The chunks of a long text lie one after another in the audio, and each has its outcome. */
static void chunks_tile_the_audio(void **unused)
{
    (void)unused;
    thespis_engine *engine = open_engine(1, 64, 1, 2);
    thespis_request *request = start_kind(engine, 3, NULL);
    thespis_error error;
    float samples[4096];
    size_t count, total = 0;
    do {
        assert_int_equal(thespis_request_read(request, samples, 4096, &count, &error), THESPIS_OK);
        total += count;
    } while (count > 0);
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
    assert_int_equal(total, (size_t)at * THESPIS_FRAME_SAMPLES);
    thespis_request_free(request);
    thespis_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(chunks_tile_the_audio), cmocka_unit_test(a_voice_cold_warm_and_evicted),
                                       cmocka_unit_test(two_engines_in_one_process), cmocka_unit_test(random_schedules)};
    return cmocka_run_group_tests(tests, measure_alone, NULL);
}
