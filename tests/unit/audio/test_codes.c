/* test_codes.c - files of codes: each form that is taken, each that is refused, and why. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "audio/codes.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/npy.h"

static char folder[] = "/tmp/thespis-codes-XXXXXX";
static char name[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(name, sizeof name, "%s/codes.npy", mkdtemp(folder) == NULL ? "" : folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(name);
    return rmdir(folder);
}

/* A .npy file made by hand, since th_npy_write does not write everything that must be refused. Returns its bytes. */
static size_t npy(uint8_t *out, const char *dictionary, const void *data, size_t bytes)
{
    size_t n = strlen(dictionary);
    memcpy(out, "\x93NUMPY\1\0", 8);
    out[8] = (uint8_t)(n & 255);
    out[9] = (uint8_t)(n >> 8);
    memcpy(out + 10, dictionary, n);
    memcpy(out + 10 + n, data, bytes);
    return 10 + n + bytes;
}

static void expect(const void *bytes, size_t count)
{
    struct th_codes codes;
    thespis_error error;
    static const int32_t wanted[] = {0, 1, 2, 3, 4, 4095};
    assert_true(th_codes_is(bytes, count));
    if (th_codes_parse(bytes, count, "x", 2, 4096, &codes, &error) != THESPIS_OK) fail_msg("%s", error.message);
    assert_int_equal(codes.codebooks, 2);
    assert_int_equal(codes.frames, 3);
    assert_memory_equal(codes.codes, wanted, sizeof wanted);
    th_free(codes.codes);
}

static void refuse(const void *bytes, size_t count, thespis_status status, const char *words)
{
    struct th_codes codes;
    thespis_error error;
    assert_int_equal(th_codes_parse(bytes, count, "x", 2, 4096, &codes, &error), status);
    assert_null(codes.codes);
    assert_int_equal(codes.frames, 0);
    if (strstr(error.message, words) == NULL) fail_msg("'%s' not in '%s'", words, error.message);
}

static void json_forms(void **state)
{
    static const char *const good[] = {"[[0,1,2],[3,4,4095]]", " \n\t[[0,1,2],\r\n[3,4,4095]] ",
                                       "{\"vq_codes\": [[0,1,2],[3,4,4095]]}",
                                       "{\"text\": \"hi\", \"vq_codes\": [[0,1,2],[3,4,4095]], \"more\": {}}"};
    static const struct {
        const char *text, *words;
    } bad[] = {{"[[0,1,2],[3,4]]", "codebook 1 has 2 codes, codebook 0 has 3"},
               {"[[],[]]", "no frames"},
               {"[]", "array of 0, must be an array of 2"},
               {"[1,2]", "codebook 0 is integer"},
               {"[[1],[2],[3]]", "array of 3"},
               {"[[0,1],[0,true]]", "frame 1 is boolean"},
               {"[[0,1],[0,1.0]]", "frame 1 is number"},
               {"[[0,1],[0,null]]", "null"},
               {"[[0,1],[0,\"1\"]]", "string"},
               {"[[0,1],{}]", "codebook 1 is object"},
               {"[[0,4096],[0,1]]", "code 4096 of codebook 0, frame 1 must be 0 to 4095"},
               {"[[0,-1],[0,1]]", "code -1"},
               {"[[0,9223372036854775807],[0,1]]", "code 9223372036854775807"},
               {"[[0,9223372036854775808],[0,1]]", "not valid JSON"},
               {"{\"codes\": [[1],[2]]}", "without vq_codes"},
               {"{\"vq_codes\": 5}", "codes are integer"},
               {"[[1],[2]] x", "not valid JSON"},
               {"[[1],[2]", "not valid JSON"},
               {"{\"vq_codes\": [[1],[2]], \"vq_codes\": [[1],[2]]}", "not valid JSON"},
               {"5", "neither"},
               {"", "neither"}};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) expect(good[i], strlen(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) refuse(bad[i].text, strlen(bad[i].text), THESPIS_FORMAT, bad[i].words);
    char *deep = test_malloc(100000);
    memset(deep, '[', 100000);
    refuse(deep, 100000, THESPIS_FORMAT, "not valid JSON");
    test_free(deep);
}

static void npy_types(void **state)
{
    uint8_t file[512];
    static const int64_t i8[] = {0, 1, 2, 3, 4, 4095};
    static const int32_t i4[] = {0, 1, 2, 3, 4, 4095};
    static const int16_t i2[] = {0, 1, 2, 3, 4, 4095};
    static const int64_t fortran[] = {0, 3, 1, 4, 2, 4095};
    static const uint8_t u1[] = {0, 1, 2, 3, 4, 5};
    (void)state;
    expect(file, npy(file, "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 3), }\n", i8, sizeof i8));
    expect(file, npy(file, "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }\n", i4, sizeof i4));
    expect(file, npy(file, "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }\n", i2, sizeof i2));
    expect(file, npy(file, "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3), }\n", i2, sizeof i2));
    expect(file, npy(file, "{'descr': '<i8', 'fortran_order': False, 'shape': (1, 2, 3), }\n", i8, sizeof i8));
    expect(file, npy(file, "{'descr': '<i8', 'fortran_order': True, 'shape': (2, 3), }\n", fortran, sizeof fortran));
    expect(file, npy(file, "{'descr': '<i8', 'fortran_order': True, 'shape': (1, 2, 3), }\n", fortran, sizeof fortran));
    struct th_codes codes;
    size_t n = npy(file, "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }\n", u1, sizeof u1);
    assert_int_equal(th_codes_parse(file, n, "x", 2, 4096, &codes, NULL), THESPIS_OK);
    assert_int_equal(codes.codes[5], 5);
    th_free(codes.codes);
}

static void npy_refused(void **state)
{
    static const struct {
        const char *dictionary;
        size_t bytes;
        thespis_status status;
        const char *words;
    } bad[] = {{"{'descr': '>i8', 'fortran_order': False, 'shape': (2, 3), }", 48, THESPIS_UNSUPPORTED, "big-endian"},
               {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 24, THESPIS_FORMAT, "floats"},
               {"{'descr': '|b1', 'fortran_order': False, 'shape': (2, 3), }", 6, THESPIS_FORMAT, "booleans"},
               {"{'descr': '<i8', 'fortran_order': False, 'shape': (3, 2), }", 48, THESPIS_FORMAT, "transpose them to (2, frames)"},
               {"{'descr': '<i8', 'fortran_order': False, 'shape': (6,), }", 48, THESPIS_FORMAT, "1 dimensions"},
               {"{'descr': '<i8', 'fortran_order': False, 'shape': (2, 1, 3), }", 48, THESPIS_FORMAT, "3 dimensions"},
               {"{'descr': '<i8', 'fortran_order': False, 'shape': (6, 1), }", 48, THESPIS_FORMAT, "6 codebooks"},
               {"{'descr': '<i8', 'fortran_order': False, 'shape': (2, 0), }", 0, THESPIS_FORMAT, "no frames"},
               {"{'descr': '<i8', 'fortran_order': False, 'shape': (2, 3), }", 40, THESPIS_FORMAT, "needs 48 bytes"}};
    static const uint8_t zeros[64];
    uint8_t file[512];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuse(file, npy(file, bad[i].dictionary, zeros, bad[i].bytes), bad[i].status, bad[i].words);
    uint64_t huge[6] = {UINT64_MAX};
    refuse(file, npy(file, "{'descr': '<u8', 'fortran_order': False, 'shape': (2, 3), }", huge, 48), THESPIS_FORMAT,
           "code 9223372036854775807");
}

static void written_and_read(void **state)
{
    static const int32_t given[] = {0, 1, 2, 3, 4, 4095};
    struct th_codes codes;
    struct th_npy array;
    thespis_error error;
    (void)state;
    assert_int_equal(th_codes_write(name, given, 2, 3, &error), THESPIS_OK);
    assert_int_equal(th_codes_read(name, 2, 4096, &codes, &error), THESPIS_OK);
    assert_int_equal(codes.frames, 3);
    assert_memory_equal(codes.codes, given, sizeof given);
    th_free(codes.codes);
    assert_int_equal(th_npy_read(name, 4096, &array, &error), THESPIS_OK);
    assert_int_equal(array.kind, 'i');
    assert_int_equal(array.item_size, 8);
    th_npy_free(&array);
    assert_int_equal(th_codes_read(name, 3, 4096, &codes, &error), THESPIS_FORMAT);
    assert_int_equal(th_codes_read(name, 2, 4095, &codes, &error), THESPIS_FORMAT);
    assert_int_equal(th_codes_read(folder, 2, 4096, &codes, &error), THESPIS_IO);
    assert_int_equal(th_codes_read("/nonexistent", 2, 4096, &codes, &error), THESPIS_IO);
    assert_int_equal(th_codes_write("/dev/full", given, 2, 3, &error), THESPIS_IO);
}

static void broken_files(void **state)
{
    static const int64_t i8[] = {0, 1, 2, 3, 4, 4095};
    static const char json[] = "{\"vq_codes\": [[0,1,2],[3,4,4095]]}";
    uint8_t file[512];
    uint64_t seed = 99;
    (void)state;
    for (int round = 0; round < 20000; round++) {
        struct th_codes codes;
        thespis_error error;
        size_t n = npy(file, "{'descr': '<i8', 'fortran_order': True, 'shape': (2, 3), }\n", i8, sizeof i8);
        if (round % 2) {
            n = sizeof json - 1;
            memcpy(file, json, n);
        }
        if (round / 2 < (int)n) {
            n = (size_t)round / 2;
        } else {
            for (int flips = 1 + round % 3; flips > 0; flips--) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                file[(seed >> 33) % n] ^= (uint8_t)(1u << ((seed >> 20) & 7));
            }
        }
        uint8_t *exact = test_malloc(n + 1);
        memcpy(exact + 1, file, n);
        if (th_codes_parse(exact + 1, n, "x", 2, 4096, &codes, &error) != THESPIS_OK) assert_null(codes.codes);
        th_free(codes.codes);
        test_free(exact);
    }
}

#ifdef TH_FAULTS
static void allocations_may_fail(void **state)
{
    static const int32_t given[] = {0, 1, 2, 3, 4, 5};
    (void)state;
    for (long n = 1, done = 0; !done; n++) {
        struct th_codes codes = {0};
        thespis_error error;
        unlink(name);
        th_memory_fail_from(n);
        thespis_status status = th_codes_write(name, given, 2, 3, &error);
        if (status == THESPIS_OK) status = th_codes_read(name, 2, 4096, &codes, &error);
        th_memory_fail_from(0);
        done = status == THESPIS_OK;
        if (!done) assert_int_equal(status, THESPIS_MEMORY);
        th_free(codes.codes);
        assert_true(n < 20);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_forms),           cmocka_unit_test(npy_types),    cmocka_unit_test(npy_refused),
        cmocka_unit_test(written_and_read),     cmocka_unit_test(broken_files),
#ifdef TH_FAULTS
        cmocka_unit_test(allocations_may_fail),
#endif
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
