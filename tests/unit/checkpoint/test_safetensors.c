/* test_safetensors.c - the reader against well-formed and many malformed files, the writer against the reader. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/memory.h"
#include "checkpoint/safetensors.h"
#include "unit/checkpoint/scratch.h"

#define FILE_NAME "file.safetensors"

static thespis_status open_file(struct th_safetensors *file, thespis_error *error)
{
    char path[SCRATCH_PATH];
    scratch_path(path, FILE_NAME);
    memset(error, 0, sizeof *error);
    return th_safetensors_open(path, file, error);
}

/* The file must be refused with a sentence that holds `part`. */
static void expect_refused(const char *part)
{
    struct th_safetensors file;
    thespis_error error;
    thespis_status status = open_file(&file, &error);
    if (status != THESPIS_FORMAT || strstr(error.message, part) == NULL || strstr(error.message, FILE_NAME) == NULL)
        fail_msg("expected a format error with '%s', got %s: '%s'", part, thespis_status_name(status), error.message);
    assert_int_equal(error.status, THESPIS_FORMAT);
    assert_null(file.path);
    assert_null(file.tensors);
}

/* ---- malformed --------------------------------------------------------------------------------------------------------------- */

struct malformed {
    const char *header;
    size_t data_bytes;
    const char *part; /* of the message */
};

#define ONE(dtype, shape, offsets) "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const struct malformed malformed[] = {
    /* types */
    {ONE("\"X9\"", "[4]", "[0,4]"), 4, "dtype 'X9' is not known"},
    {ONE("\"f32\"", "[1]", "[0,4]"), 4, "dtype 'f32' is not known"},
    {ONE("\"\"", "[1]", "[0,4]"), 4, "dtype '' is not known"},
    {ONE("7", "[1]", "[0,4]"), 4, "dtype must be a string, got integer"},
    {ONE("null", "[1]", "[0,4]"), 4, "dtype must be a string, got null"},
    {"{\"t\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype must be a string, got nothing"},
    /* a bad type beside a good tensor is found too */
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"unused\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":["
     "2,4]}}",
     4, "tensor 'unused': dtype 'F4'"},
    /* shapes */
    {ONE("\"F32\"", "[1000,1000]", "[0,4]"), 4, "span 4 bytes, but shape and dtype F32 make 4000000"},
    {ONE("\"F32\"", "[2]", "[0,4]"), 4, "span 4 bytes, but shape and dtype F32 make 8"},
    {ONE("\"F32\"", "[]", "[0,8]"), 8, "span 8 bytes, but shape and dtype F32 make 4"},
    {ONE("\"F32\"", "[0]", "[0,4]"), 4, "make 0"},
    {ONE("\"F32\"", "[-1]", "[0,4]"), 4, "shape[0] must be an integer from 0, got a negative integer"},
    {ONE("\"F32\"", "[1.0]", "[0,4]"), 4, "shape[0] must be an integer from 0, got number"},
    {ONE("\"F32\"", "[1,\"1\"]", "[0,4]"), 4, "shape[1] must be an integer from 0, got string"},
    {ONE("\"F32\"", "[true]", "[0,4]"), 4, "got boolean"},
    {ONE("\"F32\"", "1", "[0,4]"), 4, "shape must be an array, got integer"},
    {ONE("\"F32\"", "{}", "[0,4]"), 4, "shape must be an array, got object"},
    {ONE("\"F32\"", "[1,1,1,1,1]", "[0,4]"), 4, "shape has 5 sizes, at most 4"},
    {ONE("\"F32\"", "[4611686018427387905]", "[0,4]"), 4, "more bytes than any file"},
    {ONE("\"F32\"", "[4294967296,4294967296,4294967296]", "[0,4]"), 4, "more bytes than any file"},
    {ONE("\"U8\"", "[4294967296,4294967297]", "[0,4]"), 4, "more bytes than any file"},
    {ONE("\"F32\"", "[9223372036854775808]", "[0,4]"), 4, "not valid JSON"},
    {"{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "shape must be an array, got nothing"},
    /* offsets */
    {ONE("\"U8\"", "[4]", "[0,5]"), 4, "end at 5, past the 4 bytes"},
    {ONE("\"U8\"", "[4]", "[4,8]"), 4, "past the 4 bytes"},
    {ONE("\"U8\"", "[4]", "[9223372036854775803,9223372036854775807]"), 4, "past the 4 bytes"},
    {ONE("\"U8\"", "[4]", "[4,0]"), 4, "[4, 0] are not in order"},
    {ONE("\"U8\"", "[4]", "[-4,0]"), 4, "[-4, 0] are not in order"},
    {ONE("\"U8\"", "[4]", "[0]"), 4, "data_offsets must be two integers"},
    {ONE("\"U8\"", "[4]", "[0,4,4]"), 4, "data_offsets must be two integers"},
    {ONE("\"U8\"", "[4]", "[0.0,4]"), 4, "data_offsets must be two integers"},
    {ONE("\"U8\"", "[4]", "[0,\"4\"]"), 4, "data_offsets must be two integers"},
    {ONE("\"U8\"", "[4]", "4"), 4, "data_offsets must be two integers"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[4]}}", 4, "data_offsets must be two integers"},
    /* cover */
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}"
     "}",
     6, "tensor 'b': its data overlaps that of 'a'"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}"
     "}",
     4, "overlaps"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}"
     "}",
     4, "overlaps"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]}"
     "}",
     5, "tensor 'b': 1 bytes before its data belong to no tensor"},
    {ONE("\"U8\"", "[4]", "[1,5]"), 5, "1 bytes before its data"},
    {ONE("\"U8\"", "[4]", "[0,4]"), 6, "2 trailing bytes belong to no tensor"},
    {"{}", 1, "1 trailing bytes"},
    /* entries and names */
    {"{\"t\":[]}", 0, "tensor 't': must be an object, got array"},
    {"{\"t\":null}", 0, "must be an object, got null"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":1}}", 1, "key 'more' is not known"},
    {"{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "empty name"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}"
     "}",
     2, "duplicate"},
    {"{\"t\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "duplicate"},
    {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "not valid JSON"},
    {"{\"\xFF\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "not valid JSON"},
    /* metadata */
    {"{\"__metadata__\":[]}", 0, "__metadata__ must be an object, got array"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__ 'a' must be a string, got integer"},
    {"{\"__metadata__\":{\"a\":{}}}", 0, "must be a string, got object"},
    /* JSON */
    {"{", 0, "does not begin with '{'"},
    {"{ ", 0, "not valid JSON"},
    {"[]", 0, "does not begin with '{'"},
    {" {}", 0, "does not begin with '{'"},
    {"{}x", 0, "not valid JSON"},
    {"{\"t\":NaN}", 0, "not valid JSON"},
};

static void test_malformed_headers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        size_t bytes = strlen(malformed[i].header);
        char header[512];
        /* Blanks keep 8-byte alignment, so that alignment is not what is refused; short broken ones stay as they are. */
        size_t padded = bytes < 8 ? bytes : (bytes + 7) / 8 * 8;
        memset(header, ' ', sizeof header);
        memcpy(header, malformed[i].header, bytes);
        scratch_safetensors(FILE_NAME, padded, header, padded, NULL, malformed[i].data_bytes);
        expect_refused(malformed[i].part);
    }
}

static void test_header_length(void **state)
{
    (void)state;
    scratch_safetensors(FILE_NAME, UINT64_MAX, "{}", 2, NULL, 0);
    expect_refused("header length 18446744073709551615 does not fit");
    scratch_safetensors(FILE_NAME, UINT64_MAX - 7, "{}", 2, NULL, 0);
    expect_refused("does not fit in a file of 10 bytes");
    scratch_safetensors(FILE_NAME, 3, "{}", 2, NULL, 0);
    expect_refused("does not fit");
    scratch_safetensors(FILE_NAME, 0, "", 0, NULL, 0);
    expect_refused("does not begin with '{'");
    scratch_safetensors(FILE_NAME, 1, "{}", 2, NULL, 0);
    expect_refused("does not begin with '{'");
    for (size_t bytes = 0; bytes < 8; bytes++) {
        FILE *file = scratch_create(FILE_NAME);
        scratch_bytes(file, "\2\0\0\0\0\0\0\0", bytes);
        scratch_close(file);
        expect_refused("the header's length alone takes 8");
    }
}

/* The limit holds before the header is looked at: the file is mostly a hole. */
static void test_header_above_the_limit(void **state)
{
    (void)state;
    char path[SCRATCH_PATH];
    scratch_safetensors(FILE_NAME, 100000001, "{}", 2, NULL, 0);
    scratch_path(path, FILE_NAME);
    assert_int_equal(truncate(path, 100000100), 0);
    expect_refused("header length 100000001 is above the limit");
}

static void test_misaligned(void **state)
{
    (void)state;
    static const char header[] = ONE("\"F32\"", "[1]", "[0,4]") " ";
    size_t bytes = sizeof header - 1;
    for (size_t pad = 0; pad < 4; pad++) {
        char padded[128];
        memset(padded, ' ', sizeof padded);
        memcpy(padded, header, bytes);
        scratch_safetensors(FILE_NAME, bytes + pad, padded, bytes + pad, NULL, 4);
        if ((bytes + pad) % 4 != 0) {
            expect_refused("tensor 't': its data is misaligned: F32 must start at a multiple of 4");
            continue;
        }
        struct th_safetensors file;
        thespis_error error;
        assert_int_equal(open_file(&file, &error), THESPIS_OK);
        th_safetensors_close(&file);
    }
}

/* Cut anywhere, a file is refused. */
static void test_truncated(void **state)
{
    (void)state;
    static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}";
    size_t bytes = sizeof header - 1;
    char path[SCRATCH_PATH];
    scratch_path(path, FILE_NAME);
    for (size_t keep = 0; keep < 8 + bytes + 3; keep++) {
        struct th_safetensors file;
        thespis_error error;
        scratch_safetensors(FILE_NAME, bytes, header, bytes, "abc", 3);
        assert_int_equal(truncate(path, (off_t)keep), 0);
        assert_int_equal(open_file(&file, &error), THESPIS_FORMAT);
    }
}

static void test_files_that_are_none(void **state)
{
    (void)state;
    struct th_safetensors file;
    thespis_error error;
    assert_int_equal(th_safetensors_open("/nonexistent/x", &file, &error), THESPIS_IO);
    assert_int_equal(th_safetensors_open(scratch_folder, &file, &error), THESPIS_IO);
    assert_int_equal(th_safetensors_open("/dev/null", &file, &error), THESPIS_IO);
    assert_null(file.path);
}

/* ---- well-formed ------------------------------------------------------------------------------------------------------------- */

static void test_reads_what_is_there(void **state)
{
    (void)state;
    static const char header[] =
        "{\"z\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[0,4]},\"__metadata__\":{\"format\":\"pt\"},"
        "\"a\":{\"data_offsets\":[4,6],\"shape\":[2],\"dtype\":\"F8_E4M3\"},"
        "\"m\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[6,7]},"
        "\"none\":{\"dtype\":\"F32\",\"shape\":[4,0],\"data_offsets\":[4,4]}}";
    char padded[512];
    size_t bytes = (sizeof header - 1 + 7) / 8 * 8;
    memset(padded, ' ', sizeof padded);
    memcpy(padded, header, sizeof header - 1);
    scratch_safetensors(FILE_NAME, bytes, padded, bytes, "\1\2\3\4\5\6\7", 7);
    struct th_safetensors file;
    thespis_error error;
    assert_int_equal(open_file(&file, &error), THESPIS_OK);
    assert_int_equal(file.count, 4);
    const char *names[] = {"a", "m", "none", "z"};
    for (size_t i = 0; i < 4; i++) assert_string_equal(file.tensors[i].name, names[i]);
    const struct th_tensor *z = th_safetensors_find(&file, "z"), *m = th_safetensors_find(&file, "m");
    assert_int_equal(z->dtype, TH_BF16);
    assert_int_equal(z->rank, 2);
    assert_int_equal(z->shape[1], 2);
    assert_memory_equal(z->data, "\1\2\3\4", 4);
    assert_int_equal(m->rank, 0);
    assert_memory_equal(m->data, "\7", 1);
    assert_int_equal(th_safetensors_find(&file, "a")->dtype, TH_E4M3);
    assert_int_equal(th_safetensors_find(&file, "none")->bytes, 0);
    assert_null(th_safetensors_find(&file, "absent"));
    assert_string_equal(json_string_value(json_object_get(file.metadata, "format")), "pt");
    th_safetensors_close(&file);
}

static void test_reads_an_empty_file_of_tensors(void **state)
{
    (void)state;
    struct th_safetensors file;
    thespis_error error;
    scratch_safetensors(FILE_NAME, 2, "{}", 2, NULL, 0);
    assert_int_equal(open_file(&file, &error), THESPIS_OK);
    assert_int_equal(file.count, 0);
    assert_null(file.metadata);
    assert_null(th_safetensors_find(&file, "t"));
    th_safetensors_close(&file);
}

/* ---- writer ------------------------------------------------------------------------------------------------------------------ */

static float floats[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const struct th_tensor_out sample[] = {
    {"odd \"name\" \xC3\xA9", TH_U8, 1, {3}, floats}, {"wide", TH_F32, 2, {4, 4}, floats}, {"small", TH_F32, 1, {3}, floats},
    {"half", TH_BF16, 3, {1, 1, 1}, floats},          {"empty", TH_F64, 1, {0}, NULL},     {"scalar", TH_I64, 0, {0}, floats},
};
#define SAMPLES (sizeof sample / sizeof *sample)

static void test_writes_what_it_reads(void **state)
{
    (void)state;
    char path[SCRATCH_PATH];
    thespis_error error;
    struct th_safetensors file;
    json_t *metadata = json_pack("{s:s}", "format", "test");
    scratch_path(path, FILE_NAME);
    assert_int_equal(th_safetensors_write(path, sample, SAMPLES, metadata, &error), THESPIS_OK);
    json_decref(metadata);
    assert_int_equal(open_file(&file, &error), THESPIS_OK);
    assert_int_equal(file.count, SAMPLES);
    for (size_t i = 0; i < SAMPLES; i++) {
        const struct th_tensor *tensor = th_safetensors_find(&file, sample[i].name);
        assert_non_null(tensor);
        assert_int_equal(tensor->dtype, sample[i].dtype);
        assert_int_equal(tensor->rank, sample[i].rank);
        for (int k = 0; k < tensor->rank; k++) assert_int_equal(tensor->shape[k], sample[i].shape[k]);
        if (tensor->bytes > 0) assert_memory_equal(tensor->data, sample[i].data, tensor->bytes);
    }
    assert_int_equal((uintptr_t)th_safetensors_find(&file, "wide")->data % 64, 0);
    assert_string_equal(json_string_value(json_object_get(file.metadata, "format")), "test");
    th_safetensors_close(&file);
}

static void expect_not_written(const struct th_tensor_out *tensors, size_t count, const char *part)
{
    char path[SCRATCH_PATH];
    thespis_error error;
    scratch_empty();
    scratch_path(path, FILE_NAME);
    assert_int_equal(th_safetensors_write(path, tensors, count, NULL, &error), THESPIS_INVALID);
    if (strstr(error.message, part) == NULL) fail_msg("expected '%s' in '%s'", part, error.message);
    assert_int_not_equal(access(path, F_OK), 0);
}

static void test_writer_refuses(void **state)
{
    (void)state;
    const struct th_tensor_out twice[] = {{"a", TH_U8, 1, {1}, floats}, {"a", TH_U8, 1, {1}, floats}};
    const struct th_tensor_out negative = {"a", TH_U8, 1, {-1}, floats};
    const struct th_tensor_out huge = {"a", TH_F32, 2, {INT64_MAX, 2}, floats};
    const struct th_tensor_out deep = {"a", TH_F32, 5, {1, 1, 1, 1}, floats};
    const struct th_tensor_out unknown = {"a", (enum th_dtype)99, 1, {1}, floats};
    const struct th_tensor_out reserved = {"__metadata__", TH_U8, 1, {1}, floats};
    const struct th_tensor_out nameless = {"", TH_U8, 1, {1}, floats};
    const struct th_tensor_out latin1 = {"\xE9", TH_U8, 1, {1}, floats};
    expect_not_written(twice, 2, "taken");
    expect_not_written(&negative, 1, "negative or too large");
    expect_not_written(&huge, 1, "negative or too large");
    expect_not_written(&deep, 1, "rank 5");
    expect_not_written(&unknown, 1, "dtype 99");
    expect_not_written(&reserved, 1, "reserved");
    expect_not_written(&nameless, 1, "empty");
    expect_not_written(&latin1, 1, "UTF-8");
}

static void test_writer_reports_a_full_device(void **state)
{
    (void)state;
    thespis_error error;
    if (access("/dev/full", W_OK) != 0) skip();
    assert_int_equal(th_safetensors_write("/dev/full", sample, SAMPLES, NULL, &error), THESPIS_IO);
    assert_int_equal(th_safetensors_write("/nonexistent/x", sample, SAMPLES, NULL, &error), THESPIS_IO);
}

/* ---- short memory ------------------------------------------------------------------------------------------------------------ */

#ifdef TH_FAULTS
static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    char path[SCRATCH_PATH];
    thespis_error error;
    struct th_safetensors file;
    thespis_status status;
    scratch_path(path, FILE_NAME);
    long writes = 0, reads = 0;
    do {
        th_memory_fail_from(++writes);
        status = th_safetensors_write(path, sample, SAMPLES, NULL, &error);
        th_memory_fail_from(0);
        if (status != THESPIS_OK) assert_int_equal(status, THESPIS_MEMORY);
    } while (status != THESPIS_OK);
    do {
        th_memory_fail_from(++reads);
        status = th_safetensors_open(path, &file, &error);
        th_memory_fail_from(0);
        if (status != THESPIS_OK) assert_int_equal(status, THESPIS_MEMORY);
    } while (status != THESPIS_OK);
    th_safetensors_close(&file);
    assert_true(writes >= 3 && reads >= 3);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_malformed_headers),
        cmocka_unit_test(test_header_length),
        cmocka_unit_test(test_header_above_the_limit),
        cmocka_unit_test(test_misaligned),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_files_that_are_none),
        cmocka_unit_test(test_reads_what_is_there),
        cmocka_unit_test(test_reads_an_empty_file_of_tensors),
        cmocka_unit_test(test_writes_what_it_reads),
        cmocka_unit_test(test_writer_refuses),
        cmocka_unit_test(test_writer_reports_a_full_device),
#ifdef TH_FAULTS
        cmocka_unit_test(test_every_allocation_may_fail),
#endif
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
