/* Driver and codec threads around a backend made of a script, so that each can be held at the moment that matters: what a request
 * comes to is the same whichever thread was ahead. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "engine/engine.h"

#define STAGE TEST_SOURCE_DIR "/models/stage"
#define LANES 3
#define STREAMS 8
#define MOST_WINDOWS 256

/* What a lane says: `frames` frames, then end of speech. Codes are SILENT or LOUD; loudness is all the codec's script knows. */
enum { SILENT = 1, LOUD = 2 };

struct th_codec_stream {
    int number;
};

struct fake {
    struct th_backend base;
    thespis_engine *engine;
    struct th_backend *real;
    int frames, code;
    int drawn[LANES]; /* since begin */
    int feeds, steps;
    int fail_feed, fail_step; /* the feed or step of this number fails; 0: none */
    int fail_after_cut;       /* it waits until the request is cut off before it fails */
    sigset_t signals;         /* blocked on the thread that steps */

    pthread_mutex_t mutex; /* for all below */
    pthread_cond_t changed;
    int hold_step, in_step;
    int windows_allowed; /* the codec waits before it decodes more */
    int codec_waits;
    int streams;
    struct th_codec_stream stream[STREAMS];
    int fail_window;                         /* the codec fails at its window of this number; 0: none */
    int windows[MOST_WINDOWS], window_count; /* streams in the order in which their windows were decoded */
};

static struct fake fake;

static void pause_ms(long ms)
{
    struct timespec pause = {0, ms * 1000000};
    nanosleep(&pause, NULL);
}

static void set(int *what, int value)
{
    pthread_mutex_lock(&fake.mutex);
    *what = value;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.mutex);
}

static void await(const int *what)
{
    pthread_mutex_lock(&fake.mutex);
    while (!*what) pthread_cond_wait(&fake.changed, &fake.mutex);
    pthread_mutex_unlock(&fake.mutex);
}

/* ---- the backend ------------------------------------------------------------------------------------------------------------- */

static thespis_status begin(struct th_backend *backend, int lane, const struct th_sampling *sampling, thespis_error *error)
{
    (void)backend, (void)sampling, (void)error;
    fake.drawn[lane] = 0;
    return THESPIS_OK;
}

static void await_cut(void)
{
    struct thespis_engine *e = fake.engine;
    if (!fake.fail_after_cut) return;
    pthread_mutex_lock(&e->mutex);
    while (!e->requests->cut) pthread_cond_wait(&e->requests->changed, &e->mutex);
    pthread_mutex_unlock(&e->mutex);
}

static thespis_status feed(struct th_backend *backend, int lane, const int32_t *rows, int n, thespis_error *error)
{
    (void)backend, (void)lane, (void)rows, (void)n;
    if (++fake.feeds != fake.fail_feed) return THESPIS_OK;
    await_cut();
    return th_fail(error, THESPIS_DEVICE, "the script fails here");
}

static thespis_status step(struct th_backend *backend, struct th_step *steps, int n, thespis_error *error)
{
    (void)backend;
    const struct th_config *config = &fake.engine->parts.model->config;
    pthread_sigmask(SIG_BLOCK, NULL, &fake.signals);
    pthread_mutex_lock(&fake.mutex);
    fake.in_step = 1;
    pthread_cond_broadcast(&fake.changed);
    while (fake.hold_step) pthread_cond_wait(&fake.changed, &fake.mutex);
    pthread_mutex_unlock(&fake.mutex);
    if (++fake.steps == fake.fail_step) {
        await_cut();
        return th_fail(error, THESPIS_DEVICE, "the script fails here");
    }
    for (int i = 0; i < n; i++) {
        int over = fake.drawn[steps[i].lane]++ == fake.frames;
        for (int k = 1; k < config->frame_width; k++) steps[i].frame[k] = over ? 0 : fake.code;
        /* The main token goes on, so that no loop is seen. */
        steps[i].frame[0] = over ? config->eos : config->semantic_start + 1 + fake.drawn[steps[i].lane] % 100;
    }
    return THESPIS_OK;
}

static thespis_status codec_open(struct th_backend *backend, struct th_codec_stream **stream, thespis_error *error)
{
    (void)backend, (void)error;
    *stream = &fake.stream[fake.streams];
    (*stream)->number = fake.streams++;
    return THESPIS_OK;
}

static void codec_close(struct th_backend *backend, struct th_codec_stream *stream)
{
    (void)backend, (void)stream;
}

static thespis_status codec_decode(struct th_backend *backend, struct th_codec_stream *stream, const int32_t *codes, int frames,
                                   float *samples, thespis_error *error)
{
    (void)backend;
    pthread_mutex_lock(&fake.mutex);
    while (fake.window_count >= fake.windows_allowed) {
        fake.codec_waits = 1;
        pthread_cond_broadcast(&fake.changed);
        pthread_cond_wait(&fake.changed, &fake.mutex);
    }
    fake.codec_waits = 0;
    fake.windows[fake.window_count++] = stream->number;
    int fails = fake.window_count == fake.fail_window;
    pthread_mutex_unlock(&fake.mutex);
    if (fails) return th_fail(error, THESPIS_DEVICE, "the script fails here");
    for (int i = 0; i < frames * THESPIS_FRAME_SAMPLES; i++) samples[i] = codes[0] == SILENT ? 0.0f : 0.5f;
    return THESPIS_OK;
}

static const struct th_backend_ops ops = {
    .begin = begin, .feed = feed, .step = step, .codec_open = codec_open, .codec_close = codec_close, .codec_decode = codec_decode};

/* ---- an engine around it -------------------------------------------------------------------------------------------------------
 */

/* The shipped checkpoint's tokenizer and shapes; its backend waits aside. */
static int open_engine(void **state)
{
    (void)state;
    thespis_engine_options o;
    thespis_error error;
    fake.base.ops = &ops;
    pthread_mutex_init(&fake.mutex, NULL);
    pthread_cond_init(&fake.changed, NULL);
    thespis_engine_options_init(&o);
    o.backend = THESPIS_BACKEND_CPU;
    o.checkpoint = STAGE;
    o.threads = 1;
    o.lanes = LANES;
    o.voice_slots = 0;
    o.prefill_rows = o.max_rows = 2048;
    if (thespis_engine_open(&o, &fake.engine, &error) != THESPIS_OK) fail_msg("%s", error.message);
    fake.real = fake.engine->parts.backend;
    fake.engine->parts.backend = &fake.base;
    return 0;
}

/* A new script for the next test; the engine is idle. */
static int new_script(void **state)
{
    (void)state;
    pthread_mutex_lock(&fake.mutex);
    fake.feeds = fake.steps = fake.fail_feed = fake.fail_step = fake.fail_after_cut = fake.fail_window = 0;
    fake.hold_step = fake.in_step = fake.codec_waits = 0;
    fake.windows_allowed = MOST_WINDOWS;
    fake.streams = fake.window_count = 0;
    pthread_mutex_unlock(&fake.mutex);
    return 0;
}

static int close_engine(void **state)
{
    (void)state;
    fake.engine->parts.backend = fake.real;
    thespis_engine_close(fake.engine);
    pthread_cond_destroy(&fake.changed);
    pthread_mutex_destroy(&fake.mutex);
    return 0;
}

/* Windows of `window` frames; 0: as they grow. */
static thespis_request *start(int chunks, int window, int guard)
{
    static const char text[] = "The first sentence is here, and it is not short. The second one is not short, either.";
    thespis_request_options o;
    thespis_request *request;
    thespis_error error;
    thespis_request_options_init(&o);
    o.text = text;
    o.text_bytes = chunks > 1 ? sizeof text - 1 : 48;
    o.granularity = chunks > 1 ? THESPIS_GRANULARITY_SENTENCE : THESPIS_GRANULARITY_NONE;
    o.chunk_bytes = 60;
    o.first_chunk = o.chunk = window;
    o.guard = guard;
    if (thespis_request_start(fake.engine, &o, &request, &error) != THESPIS_OK) fail_msg("%s", error.message);
    return request;
}

static thespis_status read_all(thespis_request *request, size_t *total)
{
    static float samples[4 * THESPIS_FRAME_SAMPLES];
    thespis_error error;
    size_t count;
    *total = 0;
    for (;;) {
        thespis_status status = thespis_request_read(request, samples, sizeof samples / sizeof *samples, &count, &error);
        if (status != THESPIS_OK || count == 0) return status;
        *total += count;
    }
}

static thespis_outcome outcome_of(const thespis_request *request)
{
    thespis_outcome outcome = {.size = sizeof outcome};
    assert_int_equal(thespis_request_get_outcome(request, &outcome, NULL), THESPIS_OK);
    return outcome;
}

/* All frames drawn, nothing decoded yet. */
static void await_drawn(const thespis_request *request)
{
    for (;;) {
        pthread_mutex_lock(&fake.engine->mutex);
        int drawn = request->phase == TH_DRAWN;
        pthread_mutex_unlock(&fake.engine->mutex);
        if (drawn) return;
        pause_ms(1);
    }
}

/* ---- cancelling -------------------------------------------------------------------------------------------------------------- */

static void *let_step_go(void *unused)
{
    pause_ms(50);
    set(&fake.hold_step, 0);
    return unused;
}

/* A reader that is told of the end may ask for the outcome: nothing of it may still be open. */
static void the_outcome_is_final_once_read_has_failed(void **state)
{
    (void)state;
    pthread_t thread;
    size_t total;
    fake.frames = 50;
    fake.code = LOUD;
    set(&fake.hold_step, 1);
    thespis_request *request = start(1, 0, 0);
    await(&fake.in_step);
    thespis_request_cancel(request);
    assert_int_equal(pthread_create(&thread, NULL, let_step_go, NULL), 0);
    assert_int_equal(read_all(request, &total), THESPIS_CANCELLED);
    thespis_outcome outcome = outcome_of(request);
    assert_int_equal(outcome.finish, THESPIS_FINISH_CANCELLED);
    assert_true(outcome.total_seconds > 0);
    assert_int_equal(read_all(request, &total), THESPIS_CANCELLED);
    pthread_join(thread, NULL);
    thespis_request_free(request);
}

/* The codec finds a silence to cut at in what nobody wants any more. */
static void cancelled_while_a_long_silence_is_decoded(void **state)
{
    (void)state;
    size_t total;
    fake.frames = 100;
    fake.code = SILENT;
    set(&fake.windows_allowed, 0);
    thespis_request *request = start(1, 64, 1);
    await_drawn(request);
    set(&fake.codec_waits, 0);
    set(&fake.windows_allowed, 1);
    await(&fake.codec_waits);
    thespis_request_cancel(request);
    set(&fake.windows_allowed, MOST_WINDOWS);
    assert_int_equal(read_all(request, &total), THESPIS_CANCELLED);
    assert_int_equal(outcome_of(request).finish, THESPIS_FINISH_CANCELLED);
    thespis_request_free(request);
}

/* ---- refusals --------------------------------------------------------------------------------------------------------------- */

/* Codes of another engine's voice may have another shape. */
static void what_cannot_be_read_is_refused(void **state)
{
    (void)state;
    struct thespis_voice foreign = {.engine = NULL};
    thespis_request_options o;
    thespis_request *request;
    thespis_error error;
    thespis_request_options_init(&o);
    o.text = "Hi.";
    o.text_bytes = 3;
    o.voice = &foreign;
    assert_int_equal(thespis_request_start(fake.engine, NULL, &request, &error), THESPIS_INVALID);
    assert_null(request);
    assert_non_null(strstr(error.message, "options is NULL"));
    assert_int_equal(thespis_request_start(fake.engine, &o, &request, &error), THESPIS_INVALID);
    assert_non_null(strstr(error.message, "another engine"));
    o.voice = NULL;
    o.history_count = 1;
    assert_int_equal(thespis_request_start(fake.engine, &o, &request, &error), THESPIS_INVALID);
    assert_non_null(strstr(error.message, "history is NULL"));
}

/* ---- the guard's cut --------------------------------------------------------------------------------------------------------- */

/* The codec thread cuts at the 65th silent frame, in the first of `chunks` chunks, while the driver is ahead by more or less. */
static void assert_cut(int chunks)
{
    size_t total;
    thespis_request *request = start(chunks, 0, 1);
    if (fake.windows_allowed == 0) {
        await_drawn(request);
        set(&fake.windows_allowed, MOST_WINDOWS);
    }
    assert_int_equal(read_all(request, &total), THESPIS_OK);
    assert_int_equal(total, TH_SILENT_FRAMES * THESPIS_FRAME_SAMPLES);
    thespis_outcome outcome = outcome_of(request);
    assert_int_equal(outcome.finish, THESPIS_FINISH_SILENCE);
    assert_int_equal(outcome.frames, TH_SILENT_FRAMES);
    assert_int_equal(outcome.chunks, chunks);
    assert_int_equal(outcome.chunks_done, 1);
    for (int i = 0; i < chunks; i++) {
        thespis_chunk_info chunk = {.size = sizeof chunk};
        assert_int_equal(thespis_request_get_chunk(request, i, &chunk, NULL), THESPIS_OK);
        assert_int_equal(chunk.finish, i == 0 ? THESPIS_FINISH_SILENCE : THESPIS_FINISH_NONE);
        assert_int_equal(chunk.first_frame, i == 0 ? 0 : -1);
        assert_int_equal(chunk.frames, i == 0 ? TH_SILENT_FRAMES : 0);
    }
    thespis_request_free(request);
}

static void cut_when_all_is_drawn(void **state)
{
    (void)state;
    fake.frames = 70;
    fake.code = SILENT;
    fake.windows_allowed = 0;
    assert_cut(2);
}

static void cut_where_the_chunk_ends(void **state)
{
    (void)state;
    fake.frames = TH_SILENT_FRAMES;
    fake.code = SILENT;
    fake.windows_allowed = 0;
    assert_cut(2);
}

static void cut_while_the_driver_draws(void **state)
{
    (void)state;
    fake.frames = 1000;
    fake.code = SILENT;
    assert_cut(2);
}

/* What fails on the driver's side after the cut is of no concern. */
static void cut_before_the_next_prompt_fails(void **state)
{
    (void)state;
    fake.frames = 128; /* windows of 4, 6, 10, 12, 32, 64 */
    fake.code = SILENT;
    fake.fail_feed = 3; /* each prompt is fed in two pieces */
    fake.fail_after_cut = 1;
    assert_cut(2);
}

static void cut_before_a_step_fails(void **state)
{
    (void)state;
    fake.frames = 1000;
    fake.code = SILENT;
    fake.fail_step = 140;
    fake.fail_after_cut = 1;
    assert_cut(1);
}

/* The same, with the codec far behind. */
static void cut_after_a_step_failed(void **state)
{
    (void)state;
    fake.frames = 1000;
    fake.code = SILENT;
    fake.fail_step = 140;
    fake.windows_allowed = 0;
    assert_cut(1);
}

/* ---- failures on the way ----------------------------------------------------------------------------------------------------- */

/* What was said before is read; then the failure is told, again and again. Ends the request. */
static void assert_fails_after(thespis_request *request, int frames)
{
    size_t total;
    assert_int_equal(read_all(request, &total), THESPIS_DEVICE);
    assert_int_equal(total, frames * THESPIS_FRAME_SAMPLES);
    assert_int_equal(read_all(request, &total), THESPIS_DEVICE);
    assert_int_equal(total, 0);
    assert_int_equal(outcome_of(request).finish, THESPIS_FINISH_ERROR);
    thespis_request_free(request);
}

static thespis_chunk_info chunk_of(const thespis_request *request, int index)
{
    thespis_chunk_info chunk = {.size = sizeof chunk};
    assert_int_equal(thespis_request_get_chunk(request, index, &chunk, NULL), THESPIS_OK);
    return chunk;
}

/* 200 frames are more than the ring holds: the failure is known long before all is read. */
static void a_later_prompt_fails(void **state)
{
    (void)state;
    fake.frames = 200;
    fake.code = LOUD;
    fake.fail_feed = 3;
    set(&fake.windows_allowed, 0);
    thespis_request *request = start(2, 0, 0);
    await_drawn(request);
    set(&fake.windows_allowed, MOST_WINDOWS);
    assert_int_equal(outcome_of(request).chunks_done, 1);
    assert_int_equal(chunk_of(request, 0).finish, THESPIS_FINISH_STOP);
    assert_int_equal(chunk_of(request, 1).first_frame, -1);
    assert_fails_after(request, 200);
}

static void a_step_of_a_later_chunk_fails(void **state)
{
    (void)state;
    fake.frames = 30;
    fake.code = LOUD;
    fake.fail_step = 31 + 11; /* 30 frames and their end, then ten */
    set(&fake.windows_allowed, 0);
    thespis_request *request = start(2, 0, 0);
    await_drawn(request);
    set(&fake.windows_allowed, MOST_WINDOWS);
    thespis_chunk_info second = chunk_of(request, 1);
    assert_int_equal(second.finish, THESPIS_FINISH_ERROR);
    assert_int_equal(second.first_frame, 30);
    assert_int_equal(second.frames, 10);
    assert_int_equal(outcome_of(request).chunks_done, 1);
    assert_fails_after(request, 40);
}

static void the_codec_fails(void **state)
{
    (void)state;
    fake.frames = 1000; /* it is still drawing */
    fake.code = LOUD;
    fake.fail_window = 3;
    assert_fails_after(start(1, 0, 0), 4 + 6);
}

/* Whoever cancels wants nothing of it any more. */
static void cancelled_after_it_failed(void **state)
{
    (void)state;
    size_t total;
    fake.frames = 30;
    fake.code = LOUD;
    fake.fail_step = 20;
    set(&fake.windows_allowed, 0);
    thespis_request *request = start(1, 0, 0);
    await_drawn(request);
    thespis_request_cancel(request);
    set(&fake.windows_allowed, MOST_WINDOWS);
    assert_int_equal(read_all(request, &total), THESPIS_DEVICE);
    assert_int_equal(total, 0);
    thespis_request_free(request);
}

/* ---- signals ----------------------------------------------------------------------------------------------------------------- */

static void signals_are_left_to_the_host(void **state)
{
    static const int left[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD, SIGALRM, SIGPIPE}, taken[] = {SIGSEGV, SIGBUS, SIGFPE};
    sigset_t mine;
    size_t total;
    (void)state;
    fake.frames = 1;
    fake.code = LOUD;
    thespis_request *request = start(1, 0, 0);
    assert_int_equal(read_all(request, &total), THESPIS_OK);
    thespis_request_free(request);
    pthread_sigmask(SIG_BLOCK, NULL, &mine);
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        assert_int_equal(sigismember(&fake.signals, left[i]), 1);
        assert_int_equal(sigismember(&mine, left[i]), 0);
    }
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) assert_int_equal(sigismember(&fake.signals, taken[i]), 0);
}

/* ---- who is decoded next ----------------------------------------------------------------------------------------------------- */

static void *reader(void *request)
{
    size_t total;
    return read_all(request, &total) == THESPIS_OK ? request : NULL;
}

/* Three readers as fast as the codec: the third has its turn before the others are through. */
static void nobody_waits_for_those_who_read_fast(void **state)
{
    (void)state;
    thespis_request *requests[LANES];
    pthread_t threads[LANES];
    void *result;
    fake.frames = 100;
    fake.code = LOUD;
    set(&fake.windows_allowed, 0);
    for (int i = 0; i < LANES; i++) requests[i] = start(1, 4, 0);
    for (int i = 0; i < LANES; i++) await_drawn(requests[i]);
    for (int i = 0; i < LANES; i++) assert_int_equal(pthread_create(&threads[i], NULL, reader, requests[i]), 0);
    for (int n = 1; n <= 75; n++) {
        set(&fake.windows_allowed, n);
        pause_ms(2); /* time to read what came */
    }
    for (int i = 0; i < LANES; i++) {
        pthread_join(threads[i], &result);
        assert_non_null(result);
        thespis_request_free(requests[i]);
    }
    for (int n = 0; n < LANES; n++)
        for (int m = 0; m < n; m++) assert_int_not_equal(fake.windows[n], fake.windows[m]);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, new_script)
    const struct CMUnitTest tests[] = {
        TEST(the_outcome_is_final_once_read_has_failed),
        TEST(cancelled_while_a_long_silence_is_decoded),
        TEST(what_cannot_be_read_is_refused),
        TEST(cut_when_all_is_drawn),
        TEST(cut_where_the_chunk_ends),
        TEST(cut_while_the_driver_draws),
        TEST(cut_before_the_next_prompt_fails),
        TEST(cut_before_a_step_fails),
        TEST(cut_after_a_step_failed),
        TEST(a_later_prompt_fails),
        TEST(a_step_of_a_later_chunk_fails),
        TEST(the_codec_fails),
        TEST(cancelled_after_it_failed),
        TEST(signals_are_left_to_the_host),
        TEST(nobody_waits_for_those_who_read_fast),
    };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
