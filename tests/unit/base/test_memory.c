/* test_memory.c - checked allocation and the hook that makes it fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/memory.h"

static void zeroed_and_aligned(void **state)
{
    (void)state;
    for (size_t n = 0; n < 300; n += 7) {
        uint8_t *block = th_alloc(n, 3);
        assert_non_null(block);
        assert_int_equal((uintptr_t)block % 64, 0);
        for (size_t i = 0; i < 3 * n; i++) assert_int_equal(block[i], 0);
        memset(block, 0xAA, 3 * n);
        th_free(block);
    }
    th_free(NULL);
}

static void sizes_that_overflow(void **state)
{
    void *out = &out;
    thespis_error error;
    char *keep = th_alloc(4, 1);
    (void)state;
    assert_null(th_alloc(SIZE_MAX, 2));
    assert_null(th_alloc(SIZE_MAX, 1));
    assert_null(th_alloc(SIZE_MAX / 2, 1));
    assert_null(th_alloc((size_t)1 << 32, (size_t)1 << 32));
    assert_null(th_realloc(keep, 4, SIZE_MAX, 8));
    assert_null(th_copy_string("x", SIZE_MAX));
    assert_int_equal(th_alloc_array(&out, SIZE_MAX, 8, "planets", &error), THESPIS_MEMORY);
    assert_null(out);
    assert_non_null(strstr(error.message, "planets"));
    th_free(keep);
}

static void grown_and_shrunk(void **state)
{
    uint32_t *block = th_realloc(NULL, 0, 10, sizeof *block);
    (void)state;
    for (uint32_t i = 0; i < 10; i++) block[i] = i;
    block = th_realloc(block, 10, 1000, sizeof *block);
    assert_int_equal((uintptr_t)block % 64, 0);
    for (uint32_t i = 0; i < 10; i++) assert_int_equal(block[i], i);
    block = th_realloc(block, 1000, 5, sizeof *block);
    for (uint32_t i = 0; i < 5; i++) assert_int_equal(block[i], i);
    th_free(block);
    char *text = th_copy_string("hello", 3);
    assert_string_equal(text, "hel");
    th_free(text);
    text = th_copy_string(NULL, 0);
    assert_string_equal(text, "");
    th_free(text);
}

#ifdef TH_FAULTS
static void fails_from(void **state)
{
    (void)state;
    for (long n = 1; n < 5; n++) {
        th_memory_fail_from(n);
        for (long i = 1; i < 8; i++) {
            void *block = i % 2 ? th_alloc(1, 1) : th_realloc(NULL, 0, 1, 1);
            assert_int_equal(block == NULL, i >= n); /* that one and all after it */
            th_free(block);
        }
        th_memory_fail_from(0);
        void *block = th_alloc(1, 1);
        assert_non_null(block);
        th_free(block);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(zeroed_and_aligned), cmocka_unit_test(sizes_that_overflow),
                                       cmocka_unit_test(grown_and_shrunk),
#ifdef TH_FAULTS
                                       cmocka_unit_test(fails_from)
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
