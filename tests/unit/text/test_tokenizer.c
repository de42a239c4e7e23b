/* test_tokenizer.c - what tokenizer.json may say, the rules of pieces and normalisation by example, and hostile lengths. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "text/scan.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

#define MARKS TEST_SOURCE_DIR "/tests/vectors/text/marks.json"

static thespis_error error;

/* Opens the text as a tokenizer file. */
static thespis_status open_text(const char *text, struct th_tokenizer **tokenizer)
{
    char path[] = "/tmp/thespis-tokenizer-XXXXXX";
    int fd = mkstemp(path);
    size_t bytes = strlen(text);
    *tokenizer = NULL;
    if (fd < 0 || write(fd, text, bytes) != (ssize_t)bytes) fail_msg("cannot write %s", path);
    close(fd);
    memset(&error, 0, sizeof error);
    thespis_status status = th_tokenizer_open(path, tokenizer, &error);
    unlink(path);
    return status;
}

/* The marks tokenizer with the value at a path of keys ("model.dropout", "added_tokens.0.id") replaced; NULL removes it. */
static thespis_status open_changed(const char *path, const char *value, struct th_tokenizer **tokenizer)
{
    json_t *root, *at;
    char keys[128], *rest = keys;
    assert_int_equal(th_json_read(MARKS, 1 << 20, &root, &error), THESPIS_OK);
    snprintf(keys, sizeof keys, "%s", path);
    at = root;
    char *key = strsep(&rest, ".");
    for (; rest != NULL; key = strsep(&rest, "."))
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
    json_t *fresh = value == NULL ? NULL : json_loads(value, JSON_DECODE_ANY, NULL);
    if (json_is_array(at))
        json_array_set_new(at, (size_t)atoi(key), fresh);
    else if (fresh != NULL)
        json_object_set_new(at, key, fresh);
    else
        json_object_del(at, key);
    char *text = json_dumps(root, 0);
    thespis_status status = open_text(text, tokenizer);
    free(text);
    json_decref(root);
    return status;
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value, *message; /* message NULL: accepted */
    } cases[] = {
        {"version", "\"2.0\"", "tokenizer.version is '2.0'"},
        {"version", NULL, "tokenizer.version is missing"},
        {"truncation", "{}", "tokenizer.truncation"},
        {"padding", "{}", "tokenizer.padding"},
        {"surprise", "1", "tokenizer.surprise"},
        {"decoder", "{\"type\":\"Fuse\"}", NULL},
        {"normalizer", "null", NULL},
        {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}", NULL},
        {"normalizer", "{\"type\":\"NFKC\"}", "normalizer.type is 'NFKC'"},
        {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"NFC\"}]}", "normalizer.normalizers"},
        {"normalizer", "[]", "normalizer is of kind array"},
        {"pre_tokenizer", "null", "pre_tokenizer is of kind null"},
        {"pre_tokenizer", NULL, "tokenizer.pre_tokenizer is missing"},
        {"pre_tokenizer.pretokenizers", "[]", "pre_tokenizer.pretokenizers must be"},
        {"pre_tokenizer.pretokenizers.0.behavior", "\"Removed\"", "pretokenizers[0].behavior is 'Removed'"},
        {"pre_tokenizer.pretokenizers.0.invert", "true", "pretokenizers[0].invert is true"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"String\":\" \"}", "pattern.Regex is missing"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"\\\\s+\"", "split pattern"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "7", "split pattern"},
        {"pre_tokenizer.pretokenizers.1.add_prefix_space", "true", "pretokenizers[1].add_prefix_space is true"},
        {"pre_tokenizer.pretokenizers.1.use_regex", "true", "pretokenizers[1].use_regex is true"},
        {"pre_tokenizer.pretokenizers.1.use_regex", NULL, "pretokenizers[1].use_regex is missing"},
        {"post_processor", "null", NULL},
        {"post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[]}", "post_processor.type is 'TemplateProcessing'"},
        {"model.type", "\"WordPiece\"", "model.type is 'WordPiece'"},
        {"model.dropout", "0.1", "model.dropout is of kind number"},
        {"model.unk_token", "\"<unk>\"", "model.unk_token is '<unk>'"},
        {"model.continuing_subword_prefix", "\"\"", NULL},
        {"model.continuing_subword_prefix", "\"##\"", "model.continuing_subword_prefix is '##'"},
        {"model.end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix"},
        {"model.fuse_unk", "true", "model.fuse_unk is true"},
        {"model.byte_fallback", "true", "model.byte_fallback is true"},
        {"model.ignore_merges", "1", "model.ignore_merges is of kind integer"},
        {"model.surprise", "1", "model.surprise"},
        {"model.vocab", "[]", "model.vocab is of kind array"},
        {"model.vocab", "{}", "no entry for byte 0x00"},
        {"model.vocab.!", NULL, "no entry for byte 0x21"},
        {"model.vocab.a", "\"5\"", "the id of 'a'"},
        {"model.vocab.a", "-1", "the id of 'a'"},
        {"model.vocab.a", "16777216", "the id of 'a'"},
        {"model.vocab.a", "3", "gives id 3 to two entries"},
        {"model.merges", "{}", "model.merges is of kind object"},
        {"model.merges", "[]", NULL},
        {"model.merges.0", "[\"a\"]", "model.merges[0] must be a pair"},
        {"model.merges.0", "[\"a\",7]", "model.merges[0] must be a pair"},
        {"model.merges.0", "[\"a\",\"q@q\"]", "model.merges[0]: the right side"},
        {"model.merges.0", "[\"@\",\"@\"]", "model.merges[0]: the result"},
        {"model.merges.1", "\"a b\"", "model.merges[1] is of kind string"},
        {"model.merges", "[\"a  b\"]", "one space"},
        {"model.merges", "[\"ab\"]", "one space"},
        {"added_tokens", "{}", "added_tokens is of kind object"},
        {"added_tokens.0.single_word", "true", "token 0: added_tokens.single_word is true"},
        {"added_tokens.0.lstrip", "0", "added_tokens[0].lstrip must be true or false"},
        {"added_tokens.0.content", "\"\"", "added_tokens[0].content"},
        {"added_tokens.0.id", "5", "has id 5"},
        {"added_tokens.0.id", "-5", "added_tokens[0].id"},
        {"added_tokens.1.content", "\"<|endoftext|>\"", "stand for the same text"},
        {"added_tokens.0.special", NULL, "added_tokens.special is missing"},
        {"added_tokens.0.surprise", "1", "added_tokens.surprise"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct th_tokenizer *tokenizer;
        thespis_status status = open_changed(cases[i].path, cases[i].value, &tokenizer);
        if (cases[i].message == NULL && status != THESPIS_OK) fail_msg("case %zu: %s", i, error.message);
        if (cases[i].message != NULL && (status == THESPIS_OK || strstr(error.message, cases[i].message) == NULL))
            fail_msg("case %zu (%s): '%s' does not say '%s'", i, cases[i].path, error.message, cases[i].message);
        th_tokenizer_close(tokenizer);
    }
}

static void test_broken_files(void **state)
{
    (void)state;
    struct th_tokenizer *tokenizer;
    assert_int_equal(th_tokenizer_open("/nonexistent/tokenizer.json", &tokenizer, &error), THESPIS_IO);
    assert_null(tokenizer);
    static const char *const texts[] = {"", "[]", "{", "7", "{\"version\":\"1.0\",\"version\":\"1.0\"}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(open_text(texts[i], &tokenizer), THESPIS_FORMAT);
        assert_null(tokenizer);
    }
}

/* Files with bytes changed, dropped or repeated are read or refused; the sanitizers watch. */
static void test_mutated_files(void **state)
{
    (void)state;
    char *data;
    size_t bytes, opened = 0;
    uint32_t random = 1;
    assert_int_equal(th_file_read(TEST_SOURCE_DIR "/tests/vectors/text/added.json", 1 << 20, &data, &bytes, &error), THESPIS_OK);
    char *text = th_alloc(bytes * 2 + 1, 1);
    for (int round = 0; round < 400; round++) {
        struct th_tokenizer *tokenizer;
        memcpy(text, data, bytes + 1);
        for (int change = 0; change <= round % 3; change++) {
            random = random * 1664525 + 1013904223;
            size_t at = (random >> 8) % (bytes - 40), from = (random >> 4) % (bytes - 40);
            if (round % 2 == 0)
                text[at] = "\"[]{},:0a9-\\"[random >> 28 < 13 ? random >> 28 : 0];
            else
                memmove(text + at, data + from, 1 + (random >> 27));
        }
        struct th_ids ids = {0};
        if (open_text(text, &tokenizer) == THESPIS_OK) {
            opened++;
            assert_int_equal(th_tokenizer_encode(tokenizer, "Hello, the [R]  world!", 22, &ids, &error), THESPIS_OK);
        }
        th_free(ids.data);
        th_tokenizer_close(tokenizer);
    }
    assert_true(opened < 390); /* most changes are refused */
    th_free(text);
    th_free(data);
}

static void expect_pieces(enum th_pattern pattern, const char *text, const char *const *pieces)
{
    size_t at = 0, bytes = strlen(text);
    for (; *pieces != NULL; pieces++) {
        size_t end = at < bytes ? th_scan_piece(pattern, text, bytes, at) : at;
        if (end - at != strlen(*pieces) || memcmp(text + at, *pieces, end - at) != 0)
            fail_msg("'%s' at %zu: '%.*s' instead of '%s'", text, at, (int)(end - at), text + at, *pieces);
        at = end;
    }
    assert_int_equal(at, bytes);
}

#define PIECES(pattern, text, ...) expect_pieces(pattern, text, (const char *const[]){__VA_ARGS__, NULL})

static void test_pieces(void **state)
{
    (void)state;
    enum th_pattern letters = TH_PATTERN_LETTERS, marks = TH_PATTERN_LETTERS_AND_MARKS;
    PIECES(marks, "  hello  world \n\n x", " ", " hello", " ", " world", " \n\n", " x");
    PIECES(marks, "a  b", "a", " ", " b");
    PIECES(marks, "x\xC2\xA0y", "x", "\xC2\xA0y");
    PIECES(marks, "[sighs] Fine.", "[sighs", "]", " Fine", ".");
    PIECES(marks, " 's", " '", "s");
    PIECES(marks, "x'\xC5\xBFt", "x", "'\xC5\xBF", "t");
    PIECES(marks, "'llama", "'ll", "ama");
    PIECES(marks, "12\xC2\xBD", "1", "2", "\xC2\xBD");
    PIECES(marks, "e\xCC\x81z", "e\xCC\x81z");
    PIECES(letters, "e\xCC\x81z", "e", "\xCC\x81z");
    PIECES(marks, "\xCC\x81", "\xCC\x81");
    PIECES(marks, "!?\r\n\n a", "!?\r\n\n", " a");
    PIECES(marks, " \t\tx   ", " \t", "\tx", "   ");
    PIECES(marks,
           "\xE1\xA0\x8E"
           "1",
           "\xE1\xA0\x8E", "1"); /* U+180E is no white space */
}

static void expect_nfc(const char *text, const char *wanted)
{
    char *out;
    size_t bytes;
    assert_int_equal(th_nfc(text, strlen(text), &out, &bytes, &error), THESPIS_OK);
    assert_string_equal(out, wanted);
    assert_int_equal(bytes, strlen(wanted));
    th_free(out);
}

static void test_nfc(void **state)
{
    (void)state;
    expect_nfc("", "");
    expect_nfc("plain \xC3\xA9", "plain \xC3\xA9");
    expect_nfc("e\xCC\x81", "\xC3\xA9");
    expect_nfc("a\xCC\x81\xCC\xA3", "\xE1\xBA\xA1\xCC\x81");            /* below goes before above */
    expect_nfc("\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81"); /* Hangul */
    expect_nfc("\xE2\x80\x80", "\xE2\x80\x82");                         /* singletons */
    expect_nfc("\xE2\x84\xAA\xE2\x84\xA6\xCD\xBE\xE1\xBF\xAF", "K\xCE\xA9;`");
    expect_nfc("\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC"); /* excluded from composition */
    /* U+0C3C came with Unicode 14: a starter that keeps its place and parts the marks around it. */
    expect_nfc("a\xCC\x81\xE0\xB0\xBC\xCC\xA3", "\xC3\xA1\xE0\xB0\xBC\xCC\xA3");
    /* U+11935 U+11930, composed since Unicode 13 */
    expect_nfc("\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0", "\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0");
}

static void test_lookups(void **state)
{
    (void)state;
    struct th_tokenizer *tokenizer;
    struct th_ids ids = {0};
    size_t bytes;
    assert_int_equal(th_tokenizer_open(MARKS, &tokenizer, &error), THESPIS_OK);
    int32_t first = th_tokenizer_id(tokenizer, "<|endoftext|>", 13), last = th_tokenizer_id(tokenizer, "<|semantic:31|>", 15);
    assert_int_equal(th_tokenizer_size(tokenizer), last + 1);
    assert_int_equal(last - first, 6 + 16 + 32 - 1);
    assert_string_equal(th_tokenizer_added(tokenizer, 0, &bytes), "<|endoftext|>");
    assert_int_equal(bytes, 13);
    assert_null(th_tokenizer_added(tokenizer, 54, &bytes));
    assert_memory_equal(th_tokenizer_content(tokenizer, last, &bytes), "<|semantic:31|>", 15);
    assert_null(th_tokenizer_content(tokenizer, last + 1, &bytes));
    assert_null(th_tokenizer_content(tokenizer, -1, &bytes));
    assert_int_equal(th_tokenizer_id(tokenizer, "<|semantic:32|>", 15), -1);
    /* Contents put together are the text again. */
    static const char text[] = "H\xC3\xA9llo,  w\xC3\xB6rld!\n\xE4\xBD\xA0<|speaker:2|>";
    char joined[sizeof text];
    size_t at = 0;
    assert_int_equal(th_tokenizer_encode(tokenizer, text, sizeof text - 1, &ids, &error), THESPIS_OK);
    for (size_t i = 0; i < ids.count; i++) {
        const char *content = th_tokenizer_content(tokenizer, ids.data[i], &bytes);
        assert_true(content != NULL && at + bytes < sizeof joined);
        memcpy(joined + at, content, bytes);
        at += bytes;
    }
    assert_int_equal(at, sizeof text - 1);
    assert_memory_equal(joined, text, at);
    th_free(ids.data);
    th_tokenizer_close(tokenizer);
}

/* A quarter of a megabyte of a hostile pattern must stay near linear: the limit is generous for sanitizers and slow machines, a
 * quadratic algorithm takes minutes. */
static void encode_repeated(const struct th_tokenizer *tokenizer, const char *unit)
{
    size_t length = strlen(unit), bytes = ((size_t)1 << 18) / length * length;
    char *text = th_alloc(bytes, 1);
    struct th_ids ids = {0};
    for (size_t i = 0; i < bytes; i++) text[i] = unit[i % length];
    double begin = th_now();
    assert_int_equal(th_tokenizer_encode(tokenizer, text, bytes, &ids, &error), THESPIS_OK);
    double seconds = th_now() - begin;
    print_message("'%s' x %zu: %zu ids, %.3f s\n", unit, bytes / length, ids.count, seconds);
    assert_true(seconds < 30);
    th_free(ids.data);
    th_free(text);
}

static void test_hostile_lengths(void **state)
{
    (void)state;
    static const char *const units[] = {
        "a", "e", "\xCC\x81\xCC\xA3", " ", " \n", "'", "<|speaker:", "<|speaker:1|>", "1", "\xE4\xBD\xA0", "t h"};
    static const char *const odd[] = {"  ", "[R] ", " [L]", " [B]", "[R]  "};
    struct th_tokenizer *tokenizer;
    assert_int_equal(th_tokenizer_open(MARKS, &tokenizer, &error), THESPIS_OK);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) encode_repeated(tokenizer, units[i]);
    th_tokenizer_close(tokenizer);
    assert_int_equal(th_tokenizer_open(TEST_SOURCE_DIR "/tests/vectors/text/added.json", &tokenizer, &error), THESPIS_OK);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) encode_repeated(tokenizer, odd[i]);
    th_tokenizer_close(tokenizer);
}

#ifdef TH_FAULTS
static thespis_status open_and_encode(void)
{
    static const char text[] = "Caf\xC3\xA9 e\xCC\x81! [R]   the <think>e\xCC\x81? \xF0\x9F\x98\x80";
    struct th_tokenizer *tokenizer;
    struct th_ids ids = {0};
    thespis_status status = th_tokenizer_open(TEST_SOURCE_DIR "/tests/vectors/text/added.json", &tokenizer, &error);
    if (status == THESPIS_OK) status = th_tokenizer_encode(tokenizer, text, sizeof text - 1, &ids, &error);
    th_free(ids.data);
    th_tokenizer_close(tokenizer);
    return status;
}

/* Each allocation fails in turn. */
static void test_allocation_failures(void **state)
{
    (void)state;
    thespis_status status = THESPIS_MEMORY;
    long n = 1;
    for (; status != THESPIS_OK && n < 10000; n++) {
        th_memory_fail_from(n);
        status = open_and_encode();
        th_memory_fail_from(0);
        if (status != THESPIS_OK) assert_int_equal(status, THESPIS_MEMORY);
    }
    assert_int_equal(status, THESPIS_OK);
    assert_true(n > 20);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_broken_files),
        cmocka_unit_test(test_mutated_files),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_nfc),
        cmocka_unit_test(test_lookups),
        cmocka_unit_test(test_hostile_lengths),
#ifdef TH_FAULTS
        cmocka_unit_test(test_allocation_failures),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
