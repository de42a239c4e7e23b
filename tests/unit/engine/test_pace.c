/* Who gets the next lane: groups take turns, and live requests are not given more lanes than keep ahead of play-out. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/memory.h"
#include "engine/engine.h"

#define FRAME ((double)THESPIS_FRAME_SAMPLES / THESPIS_SAMPLE_RATE)

/* An engine of lanes and a list of requests, with no threads. */
struct stage {
    struct thespis_engine engine;
    struct thespis_request request[16];
};

static struct stage *stage(int lanes, int requests)
{
    struct stage *s = th_alloc(1, sizeof *s);
    assert_non_null(s);
    s->engine.lanes = lanes;
    s->engine.requests = requests > 0 ? &s->request[0] : NULL;
    for (int i = 0; i < requests; i++) {
        s->request[i].phase = TH_WAITING;
        s->request[i].next = i + 1 < requests ? &s->request[i + 1] : NULL;
    }
    s->engine.waiting = requests;
    return s;
}

static void seat(struct stage *s, int request, int lane)
{
    s->engine.lane[lane] = &s->request[request];
    s->request[request].phase = TH_GENERATE;
    s->engine.waiting--;
}

static int next_of(struct stage *s)
{
    struct thespis_request *r = th_pace_next(&s->engine);
    return r == NULL ? -1 : (int)(r - s->request);
}

static void oldest_first(void **unused)
{
    (void)unused;
    struct stage *s = stage(4, 3);
    assert_int_equal(next_of(s), 0);
    seat(s, 0, 0);
    assert_int_equal(next_of(s), 1);
    seat(s, 1, 1);
    seat(s, 2, 2);
    assert_int_equal(next_of(s), -1);
    th_free(s);
}

/* One client has put six in line before another's first: they share the lanes. */
static void groups_share(void **unused)
{
    (void)unused;
    struct stage *s = stage(4, 8);
    for (int i = 0; i < 8; i++) s->request[i].group = i < 6 ? 7 : 9;
    static const int order[] = {0, 6, 1, 7};
    for (int lane = 0; lane < 4; lane++) {
        int next = next_of(s);
        assert_int_equal(next, order[lane]);
        seat(s, next, lane);
    }
    /* The other's first has ended: the next lane is not its by right, for it has one still and nobody else of it waits. */
    s->engine.lane[1] = NULL;
    s->request[6].phase = TH_DRAWN;
    assert_int_equal(next_of(s), 2);
    th_free(s);
}

/* The engine has made `rate` frames a second for a while. */
static void speed(struct th_pace *pace, double rate)
{
    double now = 100;
    for (int i = 0; i < 100; i++) {
        th_pace_begin(pace, now);
        now += 10 / rate;
        th_pace_end(pace, 10, now);
        now += 7; /* idle time does not count */
    }
}

static void live_ones_keep_ahead(void **unused)
{
    (void)unused;
    struct stage *s = stage(8, 8);
    for (int i = 0; i < 8; i++) s->request[i].live = 1;
    assert_int_equal(next_of(s), 0); /* one always fits, however slow */
    seat(s, 0, 0);
    assert_int_equal(next_of(s), -1); /* how fast the engine is is not known yet */
    speed(&s->engine.pace, 2.5 / FRAME);
    assert_int_equal(next_of(s), -1); /* the first has nothing in hand yet */
    s->request[0].decoded = 200;
    s->request[0].first_audio = th_now() - 100 * FRAME;
    assert_int_equal(next_of(s), 1);
    seat(s, 1, 1);
    assert_int_equal(next_of(s), -1);
    assert_int_equal(th_pace_room(&s->engine), 0);
    speed(&s->engine.pace, 3.5 / FRAME);
    assert_int_equal(th_pace_room(&s->engine), 1);
    assert_int_equal(next_of(s), -1); /* the second has nothing in hand yet */
    s->request[1].decoded = 100;
    s->request[1].first_audio = th_now() - 100 * FRAME;
    assert_int_equal(next_of(s), -1);
    s->request[1].decoded = 110;
    assert_int_equal(next_of(s), 2);
    s->request[1].decoded = 0;
    speed(&s->engine.pace, 30 / FRAME);
    assert_int_equal(next_of(s), 2); /* so fast that it does not matter */
    th_free(s);
}

/* A reader that takes nothing lets its audio grow old: others are let in all the same. */
static void slow_readers_shut_nobody_out(void **unused)
{
    (void)unused;
    struct stage *s = stage(8, 2);
    s->request[0].live = s->request[1].live = 1;
    seat(s, 0, 0);
    speed(&s->engine.pace, 2.5 / FRAME);
    s->request[0].decoded = 128;
    s->request[0].first_audio = th_now() - 1000 * FRAME;
    assert_int_equal(next_of(s), -1);
    s->request[0].ring_count = (size_t)100 * THESPIS_FRAME_SAMPLES;
    assert_int_equal(next_of(s), 1);
    assert_true(th_pace_lead(&s->request[0], th_now()) > 4);
    th_free(s);
}

/* Whole files may take longer than they sound; beside a stream they may not. */
static void files_may_be_slow(void **unused)
{
    (void)unused;
    struct stage *s = stage(8, 4);
    speed(&s->engine.pace, 0.5 / FRAME);
    seat(s, 0, 0);
    assert_int_equal(next_of(s), 1);
    assert_int_equal(th_pace_room(&s->engine), 7);
    s->request[1].live = 1;
    assert_int_equal(next_of(s), -1);
    s->request[1].live = 0;
    s->request[0].live = 1;
    assert_int_equal(next_of(s), -1);
    assert_int_equal(th_pace_room(&s->engine), 0);
    th_free(s);
}

/* Two threads that work at the same time make what they make in that time, not in twice of it. */
static void time_counts_once(void **unused)
{
    (void)unused;
    struct th_pace pace = {0};
    assert_true(th_pace_fits(&pace, 1));
    assert_false(th_pace_fits(&pace, 2));
    th_pace_begin(&pace, 10);
    th_pace_begin(&pace, 10.5);
    th_pace_end(&pace, 60, 11);
    th_pace_end(&pace, 0, 11.5);
    assert_true(pace.frames_per_second > 0);
    th_pace_begin(&pace, 20);
    th_pace_end(&pace, 30, 20.5);
    assert_true(fabs(pace.frames_per_second - 60) < 25);
    speed(&pace, 200);
    assert_true(fabs(pace.frames_per_second - 200) < 1);
    speed(&pace, 50);
    assert_true(fabs(pace.frames_per_second - 50) < 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(oldest_first),         cmocka_unit_test(groups_share),
                                       cmocka_unit_test(live_ones_keep_ahead), cmocka_unit_test(slow_readers_shut_nobody_out),
                                       cmocka_unit_test(files_may_be_slow),    cmocka_unit_test(time_counts_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
