/* test_error.c - messages: whole sentences that fit, are valid UTF-8 and steer no terminal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "base/error.h"

static void plain(void **state)
{
    thespis_error error;
    (void)state;
    assert_int_equal(th_fail(&error, THESPIS_FORMAT, "x is %d, must be %s", 5, "six"), THESPIS_FORMAT);
    assert_int_equal(error.status, THESPIS_FORMAT);
    assert_string_equal(error.message, "x is 5, must be six");
    assert_int_equal(th_fail(NULL, THESPIS_IO, "%s", "nobody asks"), THESPIS_IO);
    assert_int_equal(th_fail_memory(&error, "a thing", 12), THESPIS_MEMORY);
    assert_string_equal(error.message, "out of memory for a thing (12 bytes)");
    th_error_prefix(&error, "references.%d: ", 1);
    assert_string_equal(error.message, "references.1: out of memory for a thing (12 bytes)");
    assert_int_equal(error.status, THESPIS_MEMORY);
    th_error_prefix(NULL, "nobody");
}

static void cleaned(void **state)
{
    static const struct {
        const char *from, *to;
    } pairs[] = {{"a\x1B[31m\n\t\x7F", "a?[31m???"},
                 {"gr\xC3\xBC\xC3\x9F \xE2\x82\xAC \xF0\x9F\x98\x80", "gr\xC3\xBC\xC3\x9F \xE2\x82\xAC \xF0\x9F\x98\x80"},
                 {"\xC2\x9B"
                  "31m",
                  "??31m"},                        /* CSI as one character */
                 {"\x9B\xFF\xC0\x80 x", "???? x"}, /* stray, never legal, overlong */
                 {"\xED\xA0\x80.", "???."},        /* a surrogate */
                 {"\xF4\x90\x80\x80.", "????."},   /* past the last code point */
                 {"ab\xE2\x82", "ab"},             /* cut by the end */
                 {"\x80", "?"},
                 {"", ""}};
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        thespis_error error;
        th_fail(&error, THESPIS_INVALID, "%s", pairs[i].from);
        assert_string_equal(error.message, pairs[i].to);
    }
}

static void long_ones(void **state)
{
    thespis_error error;
    char path[3000];
    (void)state;
    memset(path, 'p', sizeof path);
    path[sizeof path - 1] = '\0';
    th_fail(&error, THESPIS_INVALID, "%s", path);
    assert_int_equal(strlen(error.message), sizeof error.message - 1);
    errno = ENOENT;
    assert_int_equal(th_fail_errno(&error, "cannot open '%s'", path), THESPIS_IO);
    assert_int_equal(strlen(error.message), sizeof error.message - 1);
    assert_non_null(strstr(error.message, strerror(ENOENT))); /* the reason survives a long path */
    th_error_prefix(&error, "%s", path);
    assert_int_equal(strlen(error.message), sizeof error.message - 1);
    for (size_t i = 0; i + 2 < sizeof path; i += 2) memcpy(path + i, "\xC3\xBC", 2);
    for (int shift = 0; shift < 2; shift++) { /* one of the two cuts inside a character */
        th_fail(&error, THESPIS_INVALID, "%s%s", shift ? "x" : "", path);
        size_t n = strlen(error.message);
        assert_true(n >= sizeof error.message - 2);
        assert_null(strchr(error.message, '?'));
        assert_int_equal((uint8_t)error.message[n - 1], 0xBC);
    }
}

static void errno_named(void **state)
{
    thespis_error error;
    (void)state;
    errno = EACCES;
    th_fail_errno(&error, "cannot open '%s'", "x");
    assert_string_equal(error.message, "cannot open 'x': Permission denied");
    errno = EACCES;
    assert_int_equal(th_fail_errno(NULL, "x"), THESPIS_IO);
}

static void names(void **state)
{
    (void)state;
    assert_string_equal(thespis_status_name(THESPIS_OK), "ok");
    assert_string_equal(thespis_status_name(THESPIS_DEVICE), "device");
    assert_string_equal(thespis_status_name((thespis_status)99), "unknown");
    assert_string_equal(thespis_status_name((thespis_status)-1), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(plain), cmocka_unit_test(cleaned), cmocka_unit_test(long_ones),
                                       cmocka_unit_test(errno_named), cmocka_unit_test(names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
