/* The cache of codes: what goes in comes out under equal keys alone, the oldest leaves first, and the limit holds. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "engine/code_cache.h"

#define BOOKS 10
#define FRAMES 20

static struct th_code_cache *open_cache(size_t limit)
{
    struct th_code_cache *cache;
    thespis_error error;
    assert_int_equal(th_code_cache_open(limit, &cache, &error), THESPIS_OK);
    return cache;
}

static void key_of(int number, char key[65])
{
    th_code_cache_key("codec", &number, sizeof number, key);
}

/* Codes that tell their number. */
static void put(struct th_code_cache *cache, int number)
{
    int32_t codes[BOOKS * FRAMES];
    char key[65];
    for (int i = 0; i < BOOKS * FRAMES; i++) codes[i] = number * 1000 + i;
    key_of(number, key);
    th_code_cache_put(cache, key, codes, BOOKS, FRAMES);
}

static int has(struct th_code_cache *cache, int number)
{
    int32_t *codes;
    size_t frames;
    thespis_error error;
    char key[65];
    key_of(number, key);
    assert_int_equal(th_code_cache_get(cache, key, &codes, &frames, &error), THESPIS_OK);
    if (codes == NULL) return 0;
    assert_int_equal(frames, FRAMES);
    for (int i = 0; i < BOOKS * FRAMES; i++) assert_int_equal(codes[i], number * 1000 + i);
    th_free(codes);
    return 1;
}

static void keys_tell_codecs_and_bytes_apart(void **state)
{
    char a[65], b[65], c[65], d[65];
    (void)state;
    th_code_cache_key("one", "xyz", 3, a);
    th_code_cache_key("one", "xyz", 3, b);
    th_code_cache_key("two", "xyz", 3, c);
    th_code_cache_key("onex", "yz", 2, d);
    assert_string_equal(a, b);
    assert_string_not_equal(a, c);
    assert_string_not_equal(a, d);
}

static void the_least_recently_used_leaves_first(void **state)
{
    struct th_code_cache_stats stats;
    (void)state;
    struct th_code_cache *cache = open_cache(4 * (BOOKS * FRAMES * sizeof(int32_t) + 200));
    for (int i = 0; i < 4; i++) put(cache, i);
    assert_true(has(cache, 0));
    put(cache, 4);
    put(cache, 5);
    assert_true(has(cache, 0));
    assert_false(has(cache, 1));
    assert_false(has(cache, 2));
    assert_true(has(cache, 3) && has(cache, 4) && has(cache, 5));
    th_code_cache_get_stats(cache, &stats);
    assert_int_equal(stats.entries, 4);
    assert_int_equal(stats.hits, 5);
    assert_int_equal(stats.misses, 2);
    th_code_cache_close(cache);
}

static void the_limit_holds(void **state)
{
    struct th_code_cache_stats stats;
    (void)state;
    struct th_code_cache *cache = open_cache(10000);
    for (int i = 0; i < 100; i++) {
        put(cache, i);
        put(cache, i); /* again: not twice */
        th_code_cache_get_stats(cache, &stats);
        assert_true(stats.bytes <= 10000 && stats.entries > 0);
    }
    assert_true(stats.entries >= 8);
    th_code_cache_close(cache);
    cache = open_cache(0);
    put(cache, 1);
    assert_false(has(cache, 1));
    th_code_cache_close(cache);
    cache = open_cache(BOOKS * FRAMES * sizeof(int32_t)); /* no room for what keeps it */
    put(cache, 1);
    assert_false(has(cache, 1));
    th_code_cache_close(cache);
    th_code_cache_close(NULL);
}

static void *hammer(void *context)
{
    for (int i = 0; i < 2000; i++) {
        put(context, i % 13);
        has(context, (i * 7) % 13);
    }
    return NULL;
}

static void threads_share_it(void **state)
{
    pthread_t threads[4];
    struct th_code_cache_stats stats;
    (void)state;
    struct th_code_cache *cache = open_cache(8000);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, hammer, cache), 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    th_code_cache_get_stats(cache, &stats);
    assert_true(stats.bytes <= 8000);
    assert_int_equal(stats.hits + stats.misses, 8000);
    th_code_cache_close(cache);
}

static void short_memory_only_forgets(void **state)
{
    int32_t *codes;
    size_t frames;
    char key[65];
    thespis_error error;
    (void)state;
#ifndef TH_FAULTS
    skip();
#endif
    struct th_code_cache *cache = open_cache(100000);
    for (long n = 1; n <= 2; n++) {
        th_memory_fail_from(n);
        put(cache, 1);
        th_memory_fail_from(0);
        assert_false(has(cache, 1));
    }
    put(cache, 1);
    key_of(1, key);
    th_memory_fail_from(1);
    assert_int_equal(th_code_cache_get(cache, key, &codes, &frames, &error), THESPIS_MEMORY);
    th_memory_fail_from(0);
    assert_null(codes);
    assert_true(has(cache, 1));
    th_code_cache_close(cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_tell_codecs_and_bytes_apart),
        cmocka_unit_test(the_least_recently_used_leaves_first),
        cmocka_unit_test(the_limit_holds),
        cmocka_unit_test(threads_share_it),
        cmocka_unit_test(short_memory_only_forgets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
