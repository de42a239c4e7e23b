/* test_text_vectors.c - ids and prompt rows against committed vectors of the reference implementation. With arguments it is the C
 * side of tools/text/check_tokenizer.py and check_prompt.py: test_text_vectors tokens TOKENIZER IN OUT    IN: strings (u32 bytes,
 * then the bytes); OUT: u32 count, then i32 ids, for each test_text_vectors prompt TOKENIZER IN OUT    IN: requests, one JSON
 * object a line; OUT: u32 rows, u32 width, then i32 rows */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

#define VECTORS TEST_SOURCE_DIR "/tests/vectors/text/"
#define MAX_BYTES ((size_t)1 << 31)

/* ---- requests as JSON ---- */

struct request {
    struct th_prompt prompt;
    struct th_prompt_shape shape;
    struct th_prompt_reference references[16];
    struct th_prompt_turn history[16];
};

static int32_t *read_codes(const json_t *codes, size_t *frames)
{
    size_t books = json_array_size(codes);
    *frames = json_array_size(json_array_get(codes, 0));
    int32_t *data = th_alloc(books * *frames, sizeof *data);
    for (size_t k = 0; data != NULL && k < books; k++)
        for (size_t f = 0; f < *frames; f++)
            data[k * *frames + f] = (int32_t)json_integer_value(json_array_get(json_array_get(codes, k), f));
    return data;
}

static int shape_number(const json_t *line, const char *key)
{
    return (int)json_integer_value(json_object_get(line, key));
}

static void read_request(const json_t *line, struct request *r)
{
    memset(r, 0, sizeof *r);
    const json_t *text = json_object_get(line, "text"), *list = json_object_get(line, "references");
    r->shape = (struct th_prompt_shape){shape_number(line, "codebooks"), shape_number(line, "codebook_size"),
                                        shape_number(line, "semantic_start")};
    r->prompt = (struct th_prompt){.references = r->references, .history = r->history};
    r->prompt.text = json_string_value(text);
    r->prompt.text_bytes = json_string_length(text);
    for (size_t i = 0; i < json_array_size(list) && i < 16; i++, r->prompt.reference_count++) {
        const json_t *item = json_array_get(list, i), *transcript = json_object_get(item, "text");
        struct th_prompt_reference *reference = &r->references[i];
        reference->transcript = json_string_value(transcript);
        reference->transcript_bytes = json_string_length(transcript);
        reference->codes = read_codes(json_object_get(item, "codes"), &reference->frames);
    }
    list = json_object_get(line, "history");
    for (size_t i = 0; i < json_array_size(list) && i < 16; i++, r->prompt.history_count++) {
        const json_t *item = json_array_get(list, i), *said = json_object_get(item, "text");
        struct th_prompt_turn *turn = &r->history[i];
        turn->text = json_string_value(said);
        turn->text_bytes = json_string_length(said);
        turn->codes = read_codes(json_object_get(item, "codes"), &turn->frames);
    }
}

static void free_request(struct request *r)
{
    for (size_t i = 0; i < r->prompt.reference_count; i++) th_free((void *)r->references[i].codes);
    for (size_t i = 0; i < r->prompt.history_count; i++) th_free((void *)r->history[i].codes);
}

/* ---- the C side of the scripts ---- */

static int put32(FILE *out, uint32_t value)
{
    return fwrite(&value, sizeof value, 1, out) == 1;
}

static int complain(const char *what)
{
    fprintf(stderr, "%s\n", what);
    return 1;
}

static int pipe_tokens(const struct th_tokenizer *tokenizer, const char *in, size_t bytes, FILE *out)
{
    struct th_ids ids = {0};
    thespis_error error;
    int ok = 1;
    for (size_t at = 0; ok && at + 4 <= bytes;) {
        uint32_t length;
        memcpy(&length, in + at, 4);
        at += 4;
        ids.count = 0;
        if (length > bytes - at) return complain("the input ends inside a string");
        if (th_tokenizer_encode(tokenizer, in + at, length, &ids, &error) != THESPIS_OK) return complain(error.message);
        ok = put32(out, (uint32_t)ids.count) && fwrite(ids.data, 4, ids.count, out) == ids.count;
        at += length;
    }
    th_free(ids.data);
    return ok ? 0 : complain("cannot write");
}

static int pipe_request(const struct th_tokenizer *tokenizer, const char *line, size_t bytes, FILE *out)
{
    json_t *root;
    thespis_error error;
    struct request request;
    struct th_rows rows;
    if (th_json_parse(line, bytes, "request", &root, &error) != THESPIS_OK) return complain(error.message);
    read_request(root, &request);
    thespis_status status = th_prompt_build(tokenizer, &request.shape, &request.prompt, &rows, &error);
    free_request(&request);
    json_decref(root);
    if (status != THESPIS_OK) return complain(error.message);
    size_t cells = rows.count * (size_t)rows.width;
    int ok = put32(out, (uint32_t)rows.count) && put32(out, (uint32_t)rows.width) && fwrite(rows.data, 4, cells, out) == cells;
    th_rows_free(&rows);
    return ok ? 0 : complain("cannot write");
}

static int pipe_prompts(const struct th_tokenizer *tokenizer, const char *in, size_t bytes, FILE *out)
{
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(in + at, '\n', bytes - at);
        size_t length = end != NULL ? (size_t)(end - in) - at : bytes - at;
        if (pipe_request(tokenizer, in + at, length, out) != 0) return 1;
        at += length + 1;
    }
    return 0;
}

static int run_pipe(const char *mode, const char *tokenizer_path, const char *in_path, const char *out_path)
{
    struct th_tokenizer *tokenizer;
    thespis_error error;
    char *in;
    size_t bytes;
    if (th_tokenizer_open(tokenizer_path, &tokenizer, &error) != THESPIS_OK) return complain(error.message);
    if (th_file_read(in_path, MAX_BYTES, &in, &bytes, &error) != THESPIS_OK) return complain(error.message);
    FILE *out = fopen(out_path, "wb");
    if (out == NULL) return complain("cannot open the output");
    int failed = strcmp(mode, "tokens") == 0 ? pipe_tokens(tokenizer, in, bytes, out) : pipe_prompts(tokenizer, in, bytes, out);
    if (fclose(out) != 0) failed = complain("cannot close the output");
    th_free(in);
    th_tokenizer_close(tokenizer);
    return failed;
}

/* ---- committed vectors ---- */

static struct th_tokenizer *open_tokenizer(const char *name)
{
    char path[512];
    thespis_error error;
    struct th_tokenizer *tokenizer;
    snprintf(path, sizeof path, VECTORS "%s.json", name);
    if (th_tokenizer_open(path, &tokenizer, &error) != THESPIS_OK) fail_msg("%s", error.message);
    return tokenizer;
}

/* Compares every case of NAME.cases (u32 bytes, bytes, u32 count, i32 ids); returns how many there were. */
static size_t compare_cases(const char *name)
{
    char path[512], *data;
    size_t bytes, cases = 0;
    thespis_error error;
    struct th_tokenizer *tokenizer = open_tokenizer(name);
    struct th_ids ids = {0};
    snprintf(path, sizeof path, VECTORS "%s.cases", name);
    if (th_file_read(path, MAX_BYTES, &data, &bytes, &error) != THESPIS_OK) fail_msg("%s", error.message);
    for (size_t at = 0; at < bytes; cases++) {
        uint32_t length, count;
        memcpy(&length, data + at, 4);
        const char *text = data + at + 4;
        memcpy(&count, text + length, 4);
        ids.count = 0;
        assert_int_equal(th_tokenizer_encode(tokenizer, text, length, &ids, &error), THESPIS_OK);
        if (ids.count != count || memcmp(ids.data, text + length + 4, count * 4) != 0)
            fail_msg("%s, case %zu: other ids for '%.*s'", name, cases, (int)length, text);
        at += 8 + length + (size_t)count * 4;
    }
    th_free(ids.data);
    th_free(data);
    th_tokenizer_close(tokenizer);
    return cases;
}

static void test_letters_pattern(void **state)
{
    (void)state;
    assert_true(compare_cases("letters") >= 800);
}

static void test_marks_pattern(void **state)
{
    (void)state;
    assert_true(compare_cases("marks") >= 800);
}

static void test_normalized_added_tokens(void **state)
{
    (void)state;
    assert_true(compare_cases("added") >= 400);
}

static void test_ignore_merges(void **state)
{
    (void)state;
    assert_true(compare_cases("whole") >= 400);
}

/* Expected rows: an integer is a text row (ten zero codes), an array a whole row. */
static void compare_rows(const json_t *expected, const struct th_rows *rows, size_t line)
{
    assert_int_equal(json_array_size(expected), rows->count);
    for (size_t i = 0; i < rows->count; i++) {
        const json_t *row = json_array_get(expected, i);
        for (int k = 0; k < rows->width; k++) {
            const json_t *cell = json_is_array(row) ? json_array_get(row, (size_t)k) : k == 0 ? row : NULL;
            if (rows->data[i * (size_t)rows->width + (size_t)k] != json_integer_value(cell))
                fail_msg("prompt %zu, row %zu, column %d differs", line, i, k);
        }
    }
}

struct walk {
    size_t rows, segments;
};

static void count_segment(void *context, const struct th_prompt_segment *segment)
{
    struct walk *walk = context;
    assert_int_equal(segment->first_row, walk->rows);
    assert_int_equal(segment->frames, segment->text == NULL ? segment->rows : 0);
    walk->rows += segment->rows;
    walk->segments++;
}

static void compare_prompt(const struct th_tokenizer *tokenizer, const char *line, size_t bytes, size_t number)
{
    json_t *root;
    thespis_error error;
    struct request request;
    struct th_rows rows;
    struct walk walk = {0};
    assert_int_equal(th_json_parse(line, bytes, "prompts.jsonl", &root, &error), THESPIS_OK);
    read_request(root, &request);
    if (th_prompt_build(tokenizer, &request.shape, &request.prompt, &rows, &error) != THESPIS_OK) fail_msg("%s", error.message);
    compare_rows(json_object_get(root, "rows"), &rows, number);
    assert_int_equal(rows.system_count, shape_number(root, "system_count"));
    assert_int_equal(th_prompt_check_tokenizer(tokenizer, &request.shape, &error), THESPIS_OK);
    assert_int_equal(th_prompt_walk(tokenizer, &request.shape, &request.prompt, count_segment, &walk, &error), THESPIS_OK);
    assert_int_equal(walk.rows, rows.count);
    assert_int_equal(walk.segments, 7 + 2 * request.prompt.reference_count + 6 * request.prompt.history_count);
    th_rows_free(&rows);
    free_request(&request);
    json_decref(root);
}

static void test_prompt_rows(void **state)
{
    (void)state;
    char *data;
    size_t bytes, lines = 0;
    thespis_error error;
    struct th_tokenizer *tokenizer = open_tokenizer("marks");
    if (th_file_read(VECTORS "prompts.jsonl", MAX_BYTES, &data, &bytes, &error) != THESPIS_OK) fail_msg("%s", error.message);
    for (char *line = strtok(data, "\n"); line != NULL; line = strtok(NULL, "\n"))
        compare_prompt(tokenizer, line, strlen(line), lines++);
    assert_true(lines >= 40);
    th_free(data);
    th_tokenizer_close(tokenizer);
}

int main(int argc, char **argv)
{
    if (argc == 5) return run_pipe(argv[1], argv[2], argv[3], argv[4]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_letters_pattern),
        cmocka_unit_test(test_marks_pattern),
        cmocka_unit_test(test_normalized_added_tokens),
        cmocka_unit_test(test_ignore_merges),
        cmocka_unit_test(test_prompt_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
