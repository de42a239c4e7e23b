/* Windows of frames: how a stream is cut, never what it says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/engine.h"

static void default_windows_grow(void **state)
{
    static const int want[] = {4, 6, 10, 12, 32, 64, 64, 64};
    (void)state;
    for (int i = 0; i < 8; i++) assert_int_equal(th_window_frames(0, 0, i), want[i]);
}

static void first_and_cap(void **state)
{
    (void)state;
    assert_int_equal(th_window_frames(1, 1, 0), 1);
    assert_int_equal(th_window_frames(1, 1, 9), 1);
    assert_int_equal(th_window_frames(7, 5, 0), 7);
    assert_int_equal(th_window_frames(7, 5, 1), 5);
    assert_int_equal(th_window_frames(0, 8, 1), 6);
    assert_int_equal(th_window_frames(0, 8, 4), 8);
    assert_int_equal(th_window_frames(64, 64, 5), 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(default_windows_grow), cmocka_unit_test(first_and_cap)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
