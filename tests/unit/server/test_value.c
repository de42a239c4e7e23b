/* Bodies as trees: JSON and MessagePack, good, damaged and hostile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/value.h"

typedef thespis_status (*reader)(const char *bytes, size_t count, struct th_tree *tree, struct th_fault *fault);

static void refused(reader read, const char *bytes, size_t count, const char *words)
{
    struct th_tree tree;
    struct th_fault fault;
    char *exact = malloc(count > 0 ? count : 1); /* a byte too far is seen by the sanitizer */
    assert_non_null(exact);
    memcpy(exact, bytes, count);
    assert_int_not_equal(read(exact, count, &tree, &fault), THESPIS_OK);
    assert_int_equal(fault.http, 400);
    if (strstr(fault.message, words) == NULL) fail_msg("'%s' does not say '%s'", fault.message, words);
    th_tree_free(&tree);
    free(exact);
}

#define REFUSED(read, bytes, words) refused(read, bytes, sizeof(bytes) - 1, words)

static void json_is_strict(void **unused)
{
    (void)unused;
    REFUSED(th_tree_json, "", "must be valid JSON");
    REFUSED(th_tree_json, "[]", "must be a JSON object");
    REFUSED(th_tree_json, "7", "must be a JSON object");
    REFUSED(th_tree_json, "{} {}", "must be valid JSON");
    REFUSED(th_tree_json, "{\"a\":1,\"a\":2}", "duplicate");
    REFUSED(th_tree_json, "{\"a\":Infinity}", "must be valid JSON");
    REFUSED(th_tree_json, "{\"a\":01}", "must be valid JSON");
    REFUSED(th_tree_json, "{\"a\":\"\xFF\"}", "must be valid JSON");
    REFUSED(th_tree_json, "{\"a\":\"\\u0000\"}", "line 1");
    REFUSED(th_tree_json, "{\"a\":\0 1}", "byte 5 is U+0000");
    REFUSED(th_tree_json, "{\"a\":1e999}", "must be valid JSON");
    REFUSED(th_tree_json, "{\"a\":99999999999999999999}", "must be valid JSON");
    REFUSED(th_tree_json, "{\"a\":\"\\\0\"}", "U+0000");
}

static void json_is_bounded(void **unused)
{
    (void)unused;
    size_t count = 3000000;
    char *bytes = malloc(count);
    assert_non_null(bytes);
    memset(bytes, '[', count);
    refused(th_tree_json, bytes, count, "nested more than 16");
    memset(bytes, ',', count);
    bytes[0] = '[';
    refused(th_tree_json, bytes, count, "more than 1000000 values");
    free(bytes);
}

static void numbers_keep_their_bits(void **unused)
{
    (void)unused;
    struct th_tree tree;
    struct th_fault fault;
    const char text[] = "{\"a\":9007199254740993,\"b\":[1.5,true,null,\"x\"],\"c\":{\"d\":-1}}";
    assert_int_equal(th_tree_json(text, sizeof text - 1, &tree, &fault), THESPIS_OK);
    const struct th_value *a = th_value_find(&tree.root, "a"), *b = th_value_find(&tree.root, "b"),
                          *c = th_value_find(&tree.root, "c");
    assert_true(a->kind == TH_INTEGER && a->integer == 9007199254740993);
    assert_true(b->kind == TH_LIST && b->count == 4 && b->items[0].number == 1.5 && b->items[2].kind == TH_NOTHING);
    assert_true(c->kind == TH_MAP && th_value_find(c, "d")->integer == -1 && th_value_find(c, "e") == NULL);
    th_tree_free(&tree);
}

/* One of every kind of MessagePack that is taken. */
static const char good[] = "\xDE\x00\x09"
                           "\xA1"
                           "a\xCF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"
                           "\xA1"
                           "b\xD3\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE"
                           "\xA1"
                           "c\xCA\x3F\xC0\x00\x00"
                           "\xA1"
                           "d\xCB\x3F\xF8\x00\x00\x00\x00\x00\x00"
                           "\xA1"
                           "e\xC4\x02\x00\x01"
                           "\xA1"
                           "f\xD9\x01x"
                           "\xA1"
                           "g\x93\xC0\xC2\xC3"
                           "\xA1"
                           "h\xDC\x00\x01\xE0"
                           "\xA1"
                           "i\x80";

static void msgpack_of_every_kind(void **unused)
{
    (void)unused;
    struct th_tree tree;
    struct th_fault fault;
    assert_int_equal(th_tree_msgpack(good, sizeof good - 1, &tree, &fault), THESPIS_OK);
    const struct th_value *root = &tree.root;
    assert_true(th_value_find(root, "a")->huge);
    assert_true(th_value_find(root, "b")->integer == -2);
    assert_true(th_value_find(root, "c")->number == 1.5 && th_value_find(root, "d")->number == 1.5);
    assert_true(th_value_find(root, "e")->kind == TH_BINARY && th_value_find(root, "e")->count == 2);
    assert_true(th_value_find(root, "f")->text[0] == 'x');
    assert_true(th_value_find(root, "g")->items[2].boolean == 1);
    assert_true(th_value_find(root, "h")->items[0].integer == -32);
    assert_true(th_value_find(root, "i")->kind == TH_MAP && th_value_find(root, "i")->count == 0);
    th_tree_free(&tree);
}

static void msgpack_is_checked(void **unused)
{
    (void)unused;
    REFUSED(th_tree_msgpack, "", "cut off");
    REFUSED(th_tree_msgpack, "\xC0", "must be a map");
    REFUSED(th_tree_msgpack, "\x80\xC0", "1 bytes after its end");
    REFUSED(th_tree_msgpack, "\x81\x01\x02", "keys in MessagePack must be strings");
    REFUSED(th_tree_msgpack,
            "\x81\xA1"
            "a\xC1",
            "0xC1");
    REFUSED(th_tree_msgpack,
            "\x81\xA1"
            "a\xD4\x01\x02",
            "extension");
    REFUSED(th_tree_msgpack,
            "\x81\xA1"
            "a\xC9\x00\x00\x00\x01\x05\x00",
            "extension");
    REFUSED(th_tree_msgpack,
            "\x81\xA1"
            "a\xDD\xFF\xFF\xFF\xFF",
            "cut off");
    REFUSED(th_tree_msgpack, "\xDF\x7F\xFF\xFF\xFF", "cut off");
    REFUSED(th_tree_msgpack,
            "\x81\xA1"
            "a\xC6\xFF\xFF\xFF\xFF",
            "cut off");
    char deep[64];
    memset(deep, 0x91, sizeof deep);
    refused(th_tree_msgpack, deep, sizeof deep, "nested more than 16");
}

static void every_cut_is_refused(void **unused)
{
    (void)unused;
    for (size_t n = 0; n < sizeof good - 1; n++) refused(th_tree_msgpack, good, n, "");
    const char json[] = "{\"a\":[1,2.5,\"x\\n\"],\"b\":{\"c\":null}}";
    for (size_t n = 0; n < sizeof json - 1; n++) refused(th_tree_json, json, n, "");
}

/* Whatever the bytes: an answer, nothing read beyond them, nothing kept. */
static void damaged_bytes(void **unused)
{
    (void)unused;
    uint32_t random = 1;
    char *bytes = malloc(sizeof good - 1);
    assert_non_null(bytes);
    for (int i = 0; i < 20000; i++) {
        struct th_tree tree;
        struct th_fault fault;
        memcpy(bytes, good, sizeof good - 1);
        for (int k = 0; k < 3; k++) {
            random = random * 1664525u + 1013904223u;
            bytes[random % (sizeof good - 1)] = (char)(random >> 24);
        }
        th_tree_msgpack(bytes, sizeof good - 1, &tree, &fault);
        th_tree_free(&tree);
        th_tree_json(bytes, sizeof good - 1, &tree, &fault);
        th_tree_free(&tree);
    }
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_is_strict),        cmocka_unit_test(json_is_bounded),    cmocka_unit_test(numbers_keep_their_bits),
        cmocka_unit_test(msgpack_of_every_kind), cmocka_unit_test(msgpack_is_checked), cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(damaged_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
