/* test_npy.c - .npy files: what NumPy writes is read, item by item; everything else is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/npy.h"

/* A file of the given version around a header and items. Returns its bytes. */
static size_t build(uint8_t *out, int major, const char *header, const void *data, size_t bytes)
{
    size_t n = strlen(header), at = major == 1 ? 10 : 12;
    memset(out, 0, at);
    memcpy(out, "\x93NUMPY", 6);
    out[6] = (uint8_t)major;
    out[8] = (uint8_t)(n & 255);
    out[9] = (uint8_t)(n >> 8);
    memcpy(out + at, header, n);
    if (bytes > 0) memcpy(out + at + n, data, bytes);
    return at + n + bytes;
}

static thespis_status parse(const uint8_t *file, size_t count, struct th_npy *array, thespis_error *error)
{
    uint8_t *exact = test_malloc(count + 1); /* one byte off, so that nothing is aligned and ASan sees the end */
    memcpy(exact + 1, file, count);
    thespis_status status = th_npy_parse(exact + 1, count, "a.npy", array, error);
    test_free(exact);
    if (status != THESPIS_OK) assert_null(array->data);
    return status;
}

static void refuse(const char *header, size_t bytes, thespis_status wanted, const char *words)
{
    static const uint8_t zeros[128];
    uint8_t file[1024];
    struct th_npy array;
    thespis_error error;
    assert_int_equal(parse(file, build(file, 1, header, zeros, bytes), &array, &error), wanted);
    if (strstr(error.message, words) == NULL) fail_msg("'%s' not in '%s'", words, error.message);
    assert_non_null(strstr(error.message, "a.npy"));
}

static void types(void **state)
{
    static const float f4[] = {1.5f, -2};
    static const double f8[] = {1.5, -2};
    static const int64_t i8[] = {-5, INT64_MAX};
    static const uint64_t u8[] = {7, UINT64_MAX};
    static const struct {
        const char *descr;
        const void *data;
        size_t bytes;
        double first, second;
    } cases[] = {{"<f4", f4, 8, 1.5, -2},
                 {"<f8", f8, 16, 1.5, -2},
                 {"<i8", i8, 16, -5, 9223372036854775807.0},
                 {"<u8", u8, 16, 7, 18446744073709551615.0},
                 {"<i4", "\xFB\xFF\xFF\xFF\x07\0\0\0", 8, -5, 7},
                 {"<u4", "\xFB\xFF\xFF\xFF\x07\0\0\0", 8, 4294967291.0, 7},
                 {"<i2", "\xFB\xFF\x07\0", 4, -5, 7},
                 {"<u2", "\xFB\xFF\x07\0", 4, 65531, 7},
                 {"|i1", "\xFB\x07", 2, -5, 7},
                 {"|u1", "\xFB\x07", 2, 251, 7},
                 {"|b1", "\0\1", 2, 0, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int major = 1; major <= 3; major++) {
            char header[128];
            uint8_t file[256];
            struct th_npy a;
            thespis_error error;
            snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (2,), }   \n", cases[i].descr);
            if (parse(file, build(file, major, header, cases[i].data, cases[i].bytes), &a, &error) != THESPIS_OK)
                fail_msg("%s", error.message);
            assert_int_equal(a.kind, cases[i].descr[1]);
            assert_int_equal(a.item_size, cases[i].descr[2] - '0');
            assert_int_equal(a.rank, 1);
            assert_int_equal(a.count, 2);
            assert_true(th_npy_float(&a, 0) == cases[i].first && th_npy_float(&a, 1) == cases[i].second);
            if (a.kind != 'f' && i != 3) assert_int_equal(th_npy_int(&a, 0), (int64_t)cases[i].first);
            th_npy_free(&a);
        }
    }
    double odd[] = {NAN, 1e300, -1e300};
    uint8_t file[256];
    struct th_npy a;
    size_t n = build(file, 1, "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }", odd, sizeof odd);
    assert_int_equal(parse(file, n, &a, NULL), THESPIS_OK);
    assert_int_equal(th_npy_int(&a, 0), 0);
    assert_int_equal(th_npy_int(&a, 1), INT64_MAX);
    assert_int_equal(th_npy_int(&a, 2), INT64_MIN);
    th_npy_free(&a);
}

static void fortran_order(void **state)
{
    uint8_t file[256], items[24];
    struct th_npy a;
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++)
            for (int k = 0; k < 4; k++) items[i + 2 * j + 6 * k] = (uint8_t)(12 * i + 4 * j + k);
    assert_int_equal(
        parse(file, build(file, 1, "{'fortran_order': True, 'shape': (2, 3, 4), 'descr': '|u1'}", items, 24), &a, NULL),
        THESPIS_OK);
    for (int64_t i = 0; i < 24; i++) assert_int_equal(th_npy_int(&a, i), i);
    th_npy_free(&a);
    assert_int_equal(
        parse(file, build(file, 1, "{'descr': '<f4', 'fortran_order': True, 'shape': (0, 4611686018427387904, 9), }", NULL, 0), &a,
              NULL),
        THESPIS_OK);
    assert_int_equal(a.count, 0);
    th_npy_free(&a);
    assert_int_equal(parse(file, build(file, 1, "{'descr': '|u1', 'fortran_order': False, 'shape': ()}", "x", 1), &a, NULL),
                     THESPIS_OK);
    assert_int_equal(a.rank, 0);
    assert_int_equal(th_npy_int(&a, 0), 'x');
    th_npy_free(&a);
}

static void refusals(void **state)
{
    (void)state;
    refuse("{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", 4, THESPIS_UNSUPPORTED, "big-endian");
    refuse("{'descr': '<f2', 'fortran_order': False, 'shape': (1,), }", 2, THESPIS_UNSUPPORTED, "'<f2'");
    refuse("{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }", 8, THESPIS_UNSUPPORTED, "'<c8'");
    refuse("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", 8, THESPIS_UNSUPPORTED, "'|O'");
    refuse("{'descr': '<U5', 'fortran_order': False, 'shape': (1,), }", 20, THESPIS_UNSUPPORTED, "'<U5'");
    refuse("{'descr': '|i8', 'fortran_order': False, 'shape': (1,), }", 8, THESPIS_UNSUPPORTED, "'|i8'");
    refuse("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", 4, THESPIS_UNSUPPORTED, "records");
    refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }", 4, THESPIS_UNSUPPORTED, "dimensions");
    refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 4, THESPIS_FORMAT, "needs 8 bytes");
    refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", 5, THESPIS_FORMAT, "the file has 5");
    refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", 4, THESPIS_FORMAT, "more items");
    refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,), }", 4, THESPIS_FORMAT, "more items");
    refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", 4, THESPIS_FORMAT, "2^63");
    refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", 4, THESPIS_FORMAT, "a size");
    refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (1), }", 4, THESPIS_FORMAT, "tuple");
    refuse("{'descr': '<f4', 'fortran_order': False, 'shape': [1], }", 4, THESPIS_FORMAT, "'('");
    refuse("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,), }", 4, THESPIS_FORMAT, "True or False");
    refuse("{'descr': '<f4', 'shape': (1,), }", 4, THESPIS_FORMAT, "lacks");
    refuse("{'descr': '<f4', 'descr': '<f4', 'shape': (1,), }", 4, THESPIS_FORMAT, "twice");
    refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}", 4, THESPIS_FORMAT, "unknown key 'x'");
    refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x", 4, THESPIS_FORMAT, "the end");
    refuse("__import__('os').system('x')", 4, THESPIS_FORMAT, "'{'");
    refuse("", 0, THESPIS_FORMAT, "'{'");
    struct th_npy array;
    assert_int_equal(parse((const uint8_t *)"\x93NUMPY\4\0\0\0\0\0", 12, &array, NULL), THESPIS_UNSUPPORTED);
    assert_int_equal(parse((const uint8_t *)"\x93NUMPY\1\1\0\0\0\0", 12, &array, NULL), THESPIS_UNSUPPORTED);
    assert_int_equal(parse((const uint8_t *)"\x93NUMPY\1\0\xFF\xFF{}", 12, &array, NULL), THESPIS_FORMAT);
    assert_int_equal(parse((const uint8_t *)"\x93NUMPY\2\0\xFF\xFF\xFF\xFF", 12, &array, NULL), THESPIS_FORMAT);
    assert_int_equal(parse((const uint8_t *)"hello", 5, &array, NULL), THESPIS_FORMAT);
}

static void broken(void **state)
{
    static const char header[] = "{'descr': '<i4', 'fortran_order': True, 'shape': (2, 3), }\n";
    uint8_t file[512], items[24] = {1, 2, 3};
    struct th_npy array;
    thespis_error error;
    uint64_t seed = 3;
    (void)state;
    size_t whole = build(file, 1, header, items, sizeof items);
    for (size_t n = 0; n < whole; n++) assert_int_equal(parse(file, n, &array, &error), THESPIS_FORMAT);
    for (int round = 0; round < 20000; round++) {
        build(file, 1, header, items, sizeof items);
        for (int flips = 1 + round % 4; flips > 0; flips--) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            file[(seed >> 33) % whole] ^= (uint8_t)(1u << ((seed >> 20) & 7));
        }
        parse(file, whole, &array, &error);
        th_npy_free(&array);
    }
}

static void written(void **state)
{
    char folder[] = "/tmp/thespis-npy-XXXXXX", name[64];
    static const float values[] = {1, 2, 3, 4, 5, 6};
    static const int64_t shape[] = {2, 3}, huge[] = {INT64_MAX, 2};
    struct th_npy a;
    thespis_error error;
    char *data;
    size_t bytes;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(name, sizeof name, "%s/a.npy", folder);
    assert_int_equal(th_npy_write(name, "<f4", 2, shape, values, NULL), THESPIS_OK);
    assert_int_equal(th_npy_read(name, 1000, &a, NULL), THESPIS_OK);
    assert_int_equal(a.rank, 2);
    assert_memory_equal(a.data, values, sizeof values);
    th_npy_free(&a);
    assert_int_equal(th_npy_read(name, 100, &a, &error), THESPIS_LIMIT);
    /* Byte for byte what NumPy writes: 128 bytes of header, the shape as Python prints it. */
    assert_int_equal(th_file_read(name, 1000, &data, &bytes, NULL), THESPIS_OK);
    assert_int_equal(bytes, 128 + sizeof values);
    assert_memory_equal(data, "\x93NUMPY\1\0\x76\0{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }  ", 71);
    assert_int_equal(data[127], '\n');
    th_free(data);
    for (int rank = 0; rank <= 8; rank++) {
        static const int64_t ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
        assert_int_equal(th_npy_write(name, "|u1", rank, ones, "x", NULL), THESPIS_OK);
        assert_int_equal(th_npy_read(name, 1000, &a, NULL), THESPIS_OK);
        assert_int_equal(a.rank, rank);
        th_npy_free(&a);
    }
    assert_int_equal(th_npy_write(name, ">f4", 2, shape, values, &error), THESPIS_UNSUPPORTED);
    assert_int_equal(th_npy_write(name, "<f4", 9, shape, values, &error), THESPIS_INVALID);
    assert_int_equal(th_npy_write(name, "<f4", 2, huge, values, &error), THESPIS_INVALID);
    assert_int_equal(th_npy_write("/dev/full", "<f4", 2, shape, values, &error), THESPIS_IO);
    assert_int_equal(th_npy_write(folder, "<f4", 2, shape, values, &error), THESPIS_IO);
    assert_int_equal(th_npy_read("/nonexistent", 100, &a, &error), THESPIS_IO);
    assert_int_equal(th_npy_read(folder, 100, &a, &error), THESPIS_IO);
    unlink(name);
    rmdir(folder);
}

#ifdef TH_FAULTS
static void allocation_may_fail(void **state)
{
    uint8_t file[256];
    struct th_npy array;
    (void)state;
    size_t n = build(file, 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", "abcd", 4);
    th_memory_fail_from(1);
    thespis_status status = parse(file, n, &array, NULL);
    th_memory_fail_from(0);
    assert_int_equal(status, THESPIS_MEMORY);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types),
        cmocka_unit_test(fortran_order),
        cmocka_unit_test(refusals),
        cmocka_unit_test(broken),
        cmocka_unit_test(written),
#ifdef TH_FAULTS
        cmocka_unit_test(allocation_may_fail),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
