/* test_json.c - JSON is read strictly, and errors say where. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/json.h"

static void refused(void **state)
{
    static const char *const bad[] = {
        "",         "{",           "[1,]",    "{\"a\":1,\"a\":2}",      "[1] 2", "nul",    "[01]", "'a'", "[NaN]",
        "\"\xFF\"", "\"\\ud800\"", "[1e999]", "[99999999999999999999]", "{a:1}", "// x\n1"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *root = (json_t *)&bad;
        thespis_error error;
        assert_int_equal(th_json_parse(bad[i], strlen(bad[i]), "config.json", &root, &error), THESPIS_FORMAT);
        assert_null(root);
        assert_non_null(strstr(error.message, "config.json: not valid JSON at line"));
    }
    static const char zero[] = "1\0"; /* which Jansson alone would overlook */
    json_t *root;
    assert_int_equal(th_json_parse(zero, 2, "x", &root, NULL), THESPIS_FORMAT);
}

static void where(void **state)
{
    json_t *root;
    thespis_error error;
    (void)state;
    assert_int_equal(th_json_parse("{\n \"a\": x\n}", 11, "f", &root, &error), THESPIS_FORMAT);
    assert_non_null(strstr(error.message, "line 2"));
}

static void kinds(void **state)
{
    static const char *const pairs[][2] = {{"{}", "object"},  {"[]", "array"},     {"\"a\"", "string"},  {"1", "integer"},
                                           {"1.0", "number"}, {"true", "boolean"}, {"false", "boolean"}, {"null", "null"}};
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        json_t *root;
        assert_int_equal(th_json_parse(pairs[i][0], strlen(pairs[i][0]), "x", &root, NULL), THESPIS_OK);
        assert_string_equal(th_json_kind(root), pairs[i][1]);
        json_decref(root);
    }
    assert_string_equal(th_json_kind(NULL), "nothing");
}

static void files(void **state)
{
    json_t *root = (json_t *)&state;
    thespis_error error;
    (void)state;
    assert_int_equal(th_json_read("/nonexistent.json", 100, &root, &error), THESPIS_IO);
    assert_null(root);
    assert_int_equal(th_json_read(TEST_SOURCE_DIR, 100, &root, &error), THESPIS_IO);
    assert_int_equal(th_json_read(TEST_SOURCE_DIR "/CMakeLists.txt", 10, &root, &error), THESPIS_LIMIT);
    assert_int_equal(th_json_read(TEST_SOURCE_DIR "/CMakeLists.txt", 1 << 20, &root, &error), THESPIS_FORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(refused), cmocka_unit_test(where), cmocka_unit_test(kinds),
                                       cmocka_unit_test(files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
