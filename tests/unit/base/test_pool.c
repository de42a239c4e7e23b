/* test_pool.c - the thread pool: every item once, pieces within the grain, several callers at once. Made to run under TSan too. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/pool.h"

#define ITEMS 5000

struct work {
    int seen[ITEMS]; /* plain on purpose: TSan would see two threads at one item */
    int grain;
    atomic_int too_big;
};

static void mark(void *context, int begin, int end)
{
    struct work *w = context;
    if (end - begin > w->grain || begin >= end) atomic_fetch_add(&w->too_big, 1);
    for (int i = begin; i < end; i++) w->seen[i]++;
}

static void check(struct th_pool *pool, struct work *w, int count, int grain)
{
    memset(w->seen, 0, sizeof w->seen);
    w->grain = grain < 1 ? 1 : grain;
    th_pool_run(pool, count, grain, mark, w);
    for (int i = 0; i < ITEMS; i++)
        if (w->seen[i] != (i < count)) fail_msg("item %d was done %d times (count %d, grain %d)", i, w->seen[i], count, grain);
    assert_int_equal(atomic_load(&w->too_big), 0);
}

static void every_item_once(void **state)
{
    static const int counts[] = {0, -5, 1, 2, 3, 16, 17, 1000, ITEMS}, grains[] = {0, -1, 1, 3, 16, 999, ITEMS, INT_MAX};
    struct work *w = test_calloc(1, sizeof *w);
    (void)state;
    for (int threads = 1; threads < 6; threads++) {
        struct th_pool *pool;
        assert_int_equal(th_pool_open(threads, &pool, NULL), THESPIS_OK);
        assert_int_equal(th_pool_threads(pool), threads);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (size_t g = 0; g < sizeof grains / sizeof *grains; g++) check(pool, w, counts[c], grains[g]);
        th_pool_close(pool);
    }
    test_free(w);
}

static void count_calls(void *context, int begin, int end)
{
    atomic_llong *total = context;
    atomic_fetch_add(total, (long long)end - begin);
}

/* Every thread adds a grain past the end: with 32 bits the counter would come round to items long done. */
static void huge_counts(void **state)
{
    static const int shapes[][2] = {{INT_MAX, INT_MAX - 1}, {INT_MAX, INT_MAX / 2}, {INT_MAX, 1 << 29}, {INT_MAX - 7, 1 << 30}};
    struct th_pool *pool;
    (void)state;
    assert_int_equal(th_pool_open(4, &pool, NULL), THESPIS_OK);
    for (int round = 0; round < 200; round++) {
        const int *shape = shapes[round % 4];
        atomic_llong total = 0;
        th_pool_run(pool, shape[0], shape[1], count_calls, &total);
        assert_int_equal(atomic_load(&total), shape[0]);
    }
    th_pool_close(pool);
}

struct caller {
    struct th_pool *pool;
    int rounds;
    int wrong;
};

static void *call(void *argument)
{
    struct caller *c = argument;
    struct work *w = th_alloc(1, sizeof *w);
    for (int round = 0; round < c->rounds && w != NULL; round++) {
        int count = 1 + (round * 37) % 600;
        memset(w->seen, 0, (size_t)count * sizeof *w->seen);
        w->grain = 1 + round % 7;
        th_pool_run(c->pool, count, w->grain, mark, w);
        for (int i = 0; i < count; i++) c->wrong += w->seen[i] != 1;
        if (round % 50 == 0) usleep(300); /* lets workers fall asleep now and then */
    }
    c->wrong += w == NULL || atomic_load(&w->too_big) != 0;
    th_free(w);
    return NULL;
}

static void many_callers(void **state)
{
    (void)state;
    for (int threads = 1; threads < 5; threads++) {
        struct th_pool *pool;
        struct caller callers[4];
        pthread_t ids[4];
        assert_int_equal(th_pool_open(threads, &pool, NULL), THESPIS_OK);
        for (int i = 0; i < 4; i++) {
            callers[i] = (struct caller){.pool = pool, .rounds = 400};
            assert_int_equal(pthread_create(&ids[i], NULL, call, &callers[i]), 0);
        }
        for (int i = 0; i < 4; i++) {
            pthread_join(ids[i], NULL);
            assert_int_equal(callers[i].wrong, 0);
        }
        th_pool_close(pool);
    }
}

/* A worker's mask, told by its first piece; the caller's pieces count too. */
static void look_at_signals(void *context, int begin, int end)
{
    atomic_int *blocked = context;
    sigset_t mask;
    (void)begin, (void)end;
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    atomic_fetch_add(blocked, sigismember(&mask, SIGINT) && sigismember(&mask, SIGPROF) && !sigismember(&mask, SIGSEGV));
    usleep(1000);
}

/* The host's handlers run on the host's threads. */
static void workers_take_no_signals(void **state)
{
    struct th_pool *pool;
    atomic_int blocked;
    sigset_t mine;
    (void)state;
    atomic_init(&blocked, 0);
    assert_int_equal(th_pool_open(3, &pool, NULL), THESPIS_OK);
    for (int round = 0; round < 100 && atomic_load(&blocked) == 0; round++) th_pool_run(pool, 12, 1, look_at_signals, &blocked);
    assert_in_range(atomic_load(&blocked), 1, 11); /* the caller did at least one */
    pthread_sigmask(SIG_BLOCK, NULL, &mine);
    assert_false(sigismember(&mine, SIGINT));
    th_pool_close(pool);
}

static void open_and_close(void **state)
{
    struct th_pool *pool;
    thespis_error error;
    (void)state;
    for (int round = 0; round < 50; round++) {
        assert_int_equal(th_pool_open(1 + round % 4, &pool, NULL), THESPIS_OK);
        th_pool_close(pool);
    }
    th_pool_close(NULL);
    assert_int_equal(th_pool_open(0, &pool, &error), THESPIS_INVALID);
    assert_null(pool);
    assert_int_equal(th_pool_open(1025, &pool, &error), THESPIS_INVALID);
    assert_true(th_processor_count() >= 1);
#ifdef TH_FAULTS
    for (long n = 1; n <= 2; n++) {
        th_memory_fail_from(n);
        assert_int_equal(th_pool_open(3, &pool, &error), THESPIS_MEMORY);
        th_memory_fail_from(0);
        assert_null(pool);
    }
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_item_once), cmocka_unit_test(huge_counts),
                                       cmocka_unit_test(many_callers), cmocka_unit_test(workers_take_no_signals),
                                       cmocka_unit_test(open_and_close)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
