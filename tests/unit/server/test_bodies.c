/* test_bodies.c - request bodies as JSON and MessagePack: what is taken, what is refused and how that is said, and damage of every
 * kind from a fixed seed. Each body lies in memory of exactly its size, so that a sanitizer sees a byte read too far. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "server/ask.h"
#include "server/value.h"

typedef thespis_status (*tree_of)(const char *bytes, size_t count, struct th_tree *tree, struct th_fault *fault);

static struct th_fault fault;

/* Parses and, when that went well, reads as a request of both interfaces. */
static thespis_status read_body(tree_of parse, const void *bytes, size_t count, const struct th_fields *fields, struct th_ask *ask)
{
    char *exact = malloc(count > 0 ? count : 1);
    assert_non_null(exact);
    memcpy(exact, bytes, count);
    struct th_tree tree;
    memset(&fault, 0, sizeof fault);
    th_ask_init(ask);
    thespis_status status = parse(exact, count, &tree, &fault);
    if (status == THESPIS_OK) status = th_fields_read(fields, &tree.root, 0, "", ask, &fault);
    if (status != THESPIS_OK) {
        assert_true(fault.http >= 400 && fault.message[0] != '\0');
        json_t *told = th_fault_openai(&fault);
        assert_non_null(told); /* whatever was in the body, the answer is valid JSON */
        json_decref(told);
    }
    th_tree_free(&tree);
    free(exact);
    return status;
}

static void takes(tree_of parse, const char *bytes, size_t count)
{
    struct th_ask ask;
    if (read_body(parse, bytes, count, &th_openai_fields, &ask) != THESPIS_OK) fail_msg("%.100s: %s", bytes, fault.message);
}

static void refuses(tree_of parse, const char *bytes, size_t count, const char *param, const char *words)
{
    struct th_ask ask;
    if (read_body(parse, bytes, count, &th_openai_fields, &ask) == THESPIS_OK) fail_msg("%.100s was taken", bytes);
    if (strcmp(fault.param, param) != 0 || strstr(fault.message, words) == NULL)
        fail_msg("%.100s: '%s': %s", bytes, fault.param, fault.message);
}

#define JSON(text) th_tree_json, text, strlen(text)
#define PACK(text) th_tree_msgpack, text, sizeof(text) - 1

static void json_bodies(void **state)
{
    (void)state;
    takes(JSON("{\"input\":\"Hi.\"}"));
    takes(JSON(" {\"input\":\"Hi.\",\"seed\":9223372036854775807,\"temperature\":1,\"voice\":null}\n"));
    refuses(JSON(""), "", "JSON");
    refuses(JSON("{"), "", "JSON");
    refuses(JSON("[]"), "", "JSON object");
    refuses(JSON("7"), "", "JSON object");
    refuses(JSON("{\"input\":\"Hi.\"}x"), "", "JSON");
    refuses(JSON("{\"input\":\"Hi.\",\"input\":\"Ho.\"}"), "", "");
    refuses(JSON("{\"input\":\"a\\u0000b\"}"), "", "");
    refuses(JSON("{\"input\":\"\xff\"}"), "", "");
    refuses(JSON("{\"input\":\"\\ud800\"}"), "", "");
    refuses(JSON("{\"input\":\"Hi.\",\"temperature\":NaN}"), "", "JSON");
    refuses(JSON("{\"input\":\"Hi.\",\"temperature\":1e999}"), "", "");
    refuses(JSON("{\"input\":\"Hi.\",\"model\":7}"), "model", "not an integer");
    refuses(JSON("{\"input\":\"Hi.\",\"tone\":null}"), "tone", "unknown speech request field: tone");
    refuses(JSON("{\"input\":\"Hi.\",\"top_k\":30.0}"), "top_k", "not a number");
    refuses(JSON("{\"input\":\"Hi.\",\"top_k\":true}"), "top_k", "not a boolean");
    refuses(JSON("{\"input\":\"Hi.\",\"top_k\":0}"), "top_k", "0");
    refuses(JSON("{\"input\":\"Hi.\",\"top_p\":0}"), "top_p", "above");
    refuses(JSON("{\"input\":\"Hi.\",\"stream\":1}"), "stream", "");
    refuses(JSON("{\"input\":\"Hi.\",\"seed\":-1}"), "seed", "-1");
    refuses(JSON("{\"input\":\"Hi.\",\"temperature\":\"1.0\"}"), "temperature", "not a string");
    refuses(JSON("{\"input\":\"Hi.\",\"response_format\":\"midi\"}"), "response_format", "mp3");
}

static void msgpack_bodies(void **state)
{
    (void)state;
    struct th_ask ask;
    takes(PACK("\x81\xa5input\xa3Hi."));
    takes(PACK("\xde\x00\x01\xd9\x05input\xda\x00\x03Hi."));
    takes(PACK("\x82\xa5input\xa3Hi.\xa4seed\xd2\x00\x00\x00\x07"));
    takes(PACK("\x82\xa5input\xa3Hi.\xa4seed\xcf\x7f\xff\xff\xff\xff\xff\xff\xff"));
    takes(PACK("\x82\xa5input\xa3Hi.\xa5top_p\xca\x3f\x00\x00\x00"));
    takes(PACK("\x82\xa5input\xa3Hi.\xa5voice\xc0"));
    assert_int_equal(read_body(PACK("\x81\xa4text\xc4\x03Hi."), &th_fish_fields, &ask), THESPIS_OK); /* bytes for text */
    refuses(PACK(""), "", "");
    refuses(PACK("\x90"), "", "map");
    refuses(PACK("\xc1"), "", "");
    refuses(PACK("\x81\xa5input\xa3Hi.\x00"), "", "1 bytes after");
    refuses(PACK("\x81\xa5input\xd4\x01\x00"), "", "");                                          /* an extension */
    refuses(PACK("\x81\x07\xa3Hi."), "", "");                                                    /* a key that is no text */
    refuses(PACK("\x81\xa5input\xa5Hi."), "", "");                                               /* longer than what is left */
    refuses(PACK("\x81\xa5input\xdb\xff\xff\xff\xff"), "", "");                                  /* 4 GiB of text */
    refuses(PACK("\xdf\xff\xff\xff\xff"), "", "");                                               /* 4 G entries */
    refuses(PACK("\x81\xa5input\xdd\x7f\xff\xff\xff\xc0"), "", "");                              /* 2 G items */
    refuses(PACK("\x82\xa5input\xa1x\xa5input\xa1y"), "input", "twice");                         /* twice */
    refuses(PACK("\x82\xa5input\xa1x\xa4seed\xcf\xff\xff\xff\xff\xff\xff\xff\xff"), "seed", ""); /* beyond 63 bits */
    refuses(PACK("\x82\xa5input\xa1x\xa4seed\xff"), "seed", "-1");
    refuses(PACK("\x82\xa5input\xa1x\xa5top_p\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00"), "top_p", ""); /* NaN */
}

/* Lists in lists, thousands deep and without an end: refused before anything recurses or is sized by it. */
static void deep(void **state)
{
    (void)state;
    static char text[200000];
    memset(text, '[', sizeof text);
    refuses(th_tree_json, text, sizeof text, "", "");
    memcpy(text, "{\"input\":", 9);
    refuses(th_tree_json, text, sizeof text, "", "");
    memset(text, '\x91', sizeof text);
    refuses(th_tree_msgpack, text, sizeof text, "", "");
    memset(text, '\x81', sizeof text);
    refuses(th_tree_msgpack, text, sizeof text, "", "");
    static char wide[2200000];
    memset(wide, '0', sizeof wide);
    for (size_t i = 1; i < sizeof wide; i += 2) wide[i] = ',';
    memcpy(wide, "{\"references\":[", 15);
    wide[sizeof wide - 2] = ']';
    wide[sizeof wide - 1] = '}';
    refuses(th_tree_json, wide, sizeof wide, "", "");
}

/* ---- damage -------------------------------------------------------------------------------------------------------------------
 */

static uint32_t drawn = 1;

static uint32_t draw(uint32_t below)
{
    drawn = drawn * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)drawn * below >> 32);
}

static size_t damage(char *body, size_t count, size_t room)
{
    static const char *const words[] = {"\xdf\xff\xff\xff\xff",
                                        "\xdd\x00\x10\x00\x00",
                                        "\xc6\xff\xff\xff\x00",
                                        "[[[[[[[[[[[[[[[[[",
                                        "\\u0000",
                                        "\\ud83d",
                                        "\"",
                                        "}",
                                        "e999",
                                        "99999999999999999999",
                                        "\xed\xa0\x80",
                                        "null",
                                        "\xcb\x7f\xf0"};
    for (uint32_t times = 1 + draw(4); times > 0; times--) {
        size_t at = draw((uint32_t)count + 1), n;
        const char *word = words[draw(sizeof words / sizeof *words)];
        switch (draw(6)) {
        case 0:
            if (at < count) body[at] ^= (char)(1 << draw(8));
            break;
        case 1:
            if (at < count) body[at] = (char)draw(256);
            break;
        case 2: count = at; break;
        case 3:
            n = strlen(word);
            if (count + n > room) break;
            memmove(body + at + n, body + at, count - at);
            memcpy(body + at, word, n);
            count += n;
            break;
        case 4:
            n = draw(8);
            if (at + n > count) break;
            memmove(body + at, body + at + n, count - at - n);
            count -= n;
            break;
        default:
            n = draw(40);
            if (at + n > count || count + n > room) break;
            memmove(body + at + n, body + at, count - at);
            count += n;
        }
    }
    return count;
}

static void damaged(tree_of parse, const char *whole, size_t count, const struct th_fields *fields, int times, int *taken)
{
    char body[1000];
    for (int i = 0; i < times; i++) {
        struct th_ask ask;
        memcpy(body, whole, count);
        size_t n = damage(body, count, sizeof body);
        *taken += read_body(parse, body, n, fields, &ask) == THESPIS_OK;
    }
}

static void damaged_bodies(void **state)
{
    (void)state;
    static const char json[] =
        "{\"input\":\"Hi <there>. \\u00e4\\ud83d\\ude00\",\"voice\":{\"id\":\"alloy\"},\"seed\":12345678901,"
        "\"top_p\":0.9,\"temperature\":1e0,\"stream\":true,\"response_format\":\"mp3\",\"max_new_tokens\":20,"
        "\"references\":[{\"data\":\"UklGRg==\",\"text\":\"x\",\"vq_codes\":[[1,2],[3,4]]}],\"ref_text\":null}";
    static const char pack[] = "\x88\xa4text\xa3Hi.\xa6"
                               "format\xa3mp3\xa5top_p\xcb\x3f\xe6\x66\x66\x66\x66\x66\x66\xaemax_new_tokens\xcd\x04\x00"
                               "\xacreference_id\xc0\xa9streaming\xc3\xa7prosody\x82\xa5speed\xca\x3f\x80\x00\x00\xa6volume\xfd"
                               "\xaareferences\x91\x82\xa5"
                               "audio\xc4\x04RIFF\xa4text\xa1x";
    int taken = 0;
    const char *often = getenv("THESPIS_DAMAGED");
    int times = often != NULL ? atoi(often) : 20000;
    damaged(th_tree_json, json, sizeof json - 1, &th_openai_fields, times, &taken);
    damaged(th_tree_msgpack, pack, sizeof pack - 1, &th_fish_fields, times, &taken);
    print_message("%d of %d damaged bodies were still good\n", taken, 2 * times);
    assert_true(taken > times / 50); /* damage that nothing survives would test the first byte alone */
}

/* Memory that runs out at each allocation of ours in turn. */
static void no_memory(void **state)
{
    (void)state;
#ifdef TH_FAULTS
    static const char json[] =
        "{\"input\":\"Hi.\",\"references\":[{\"data\":\"UklGRg==\",\"text\":\"x\"}],\"voice\":{\"id\":\"a\"}}";
    static const char pack[] = "\x82\xa5input\xa3Hi.\xaareferences\x91\x82\xa5"
                               "audio\xc4\x04RIFF\xa4text\xa1x";
    for (int which = 0; which < 2; which++)
        for (long n = 1, ended = 0; !ended; n++) {
            struct th_ask ask;
            th_memory_fail_from(n);
            ended = read_body(which ? th_tree_msgpack : th_tree_json, which ? pack : json,
                              which ? sizeof pack - 1 : sizeof json - 1, &th_openai_fields, &ask) == THESPIS_OK;
            th_memory_fail_from(0);
            if (!ended) assert_int_equal(fault.http, 503);
            assert_true(n < 200);
        }
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_bodies),    cmocka_unit_test(msgpack_bodies), cmocka_unit_test(deep),
        cmocka_unit_test(damaged_bodies), cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
