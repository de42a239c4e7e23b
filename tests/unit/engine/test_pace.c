/* Who gets the next lane: groups take turns, and live requests are not given more lanes than keep ahead of play-out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

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

static void rounds(struct th_pace *pace, int n, double seconds)
{
    for (int i = 0; i < 200; i++) th_pace_round(pace, n, seconds);
}

static void live_ones_keep_ahead(void **unused)
{
    (void)unused;
    struct stage *s = stage(8, 8);
    for (int i = 0; i < 8; i++) s->request[i].live = 1;
    assert_int_equal(next_of(s), 0); /* one always fits, however slow */
    seat(s, 0, 0);
    assert_int_equal(next_of(s), -1); /* nothing is known of one lane yet */
    rounds(&s->engine.pace, 1, 0.4 * FRAME);
    assert_int_equal(next_of(s), 1); /* two cost 0.8 at most */
    seat(s, 1, 1);
    assert_int_equal(next_of(s), -1); /* three might cost 1.2 */
    assert_int_equal(th_pace_room(&s->engine), 0);
    rounds(&s->engine.pace, 2, 0.5 * FRAME); /* it was less */
    assert_int_equal(next_of(s), 2);
    assert_int_equal(th_pace_room(&s->engine), 1);
    rounds(&s->engine.pace, 3, 1.5 * FRAME); /* once it was slow, but two say that it need not be */
    assert_int_equal(next_of(s), 2);
    rounds(&s->engine.pace, 2, 0.7 * FRAME);
    assert_int_equal(next_of(s), -1);
    th_free(s);
}

/* Whole files may take longer than they sound; beside a stream they may not. */
static void files_may_be_slow(void **unused)
{
    (void)unused;
    struct stage *s = stage(8, 4);
    rounds(&s->engine.pace, 1, 2 * FRAME);
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

static void a_mean_follows(void **unused)
{
    (void)unused;
    struct th_pace pace = {{0}};
    assert_true(th_pace_fits(&pace, 1));
    assert_false(th_pace_fits(&pace, 2));
    th_pace_round(&pace, 2, 10 * FRAME);
    assert_false(th_pace_fits(&pace, 2));
    rounds(&pace, 2, 0.1 * FRAME);
    assert_true(th_pace_fits(&pace, 2));
    assert_true(th_pace_fits(&pace, 18));
    assert_false(th_pace_fits(&pace, 20));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(oldest_first), cmocka_unit_test(groups_share),
                                       cmocka_unit_test(live_ones_keep_ahead), cmocka_unit_test(files_may_be_slow),
                                       cmocka_unit_test(a_mean_follows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
