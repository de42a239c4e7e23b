/* test_resample.c - the resampler against torchaudio's own output (tools/audio/make_vectors.py) and against its definition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "audio/recording.h"
#include "audio/resample.h"
#include "base/memory.h"
#include "base/npy.h"

#define VECTORS TEST_SOURCE_DIR "/tests/vectors/audio/"

static void read_vector(int rate, const char *which, struct th_npy *array)
{
    char path[512];
    thespis_error error;
    snprintf(path, sizeof path, VECTORS "resample_%d_%s.npy", rate, which);
    if (th_npy_read(path, 1 << 20, array, &error) != THESPIS_OK) fail_msg("%s", error.message);
    assert_int_equal(array->kind, 'f');
    assert_int_equal(array->item_size, 4);
}

static double decibels(const float *wanted, const float *got, size_t count)
{
    double signal = 0, noise = 1e-30;
    for (size_t i = 0; i < count; i++) {
        double d = (double)wanted[i] - (double)got[i];
        signal += (double)wanted[i] * (double)wanted[i];
        noise += d * d;
    }
    return 10 * log10(signal / noise);
}

static void equals_torchaudio(void **state)
{
    static const int rates[] = {8000, 11025, 16000, 22050, 24000, 32000, 48000, 96000};
    (void)state;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        struct th_npy in, wanted;
        float *out;
        size_t count;
        read_vector(rates[i], "in", &in);
        read_vector(rates[i], "out", &wanted);
        assert_int_equal(th_resample(in.data, (size_t)in.count, rates[i], 44100, &out, &count, NULL), THESPIS_OK);
        assert_int_equal(count, wanted.count);
        double db = decibels(wanted.data, out, count);
        print_message("%6d Hz to 44100: %.1f dB\n", rates[i], db);
        assert_true(db >= 135);
        th_free(out);
        th_npy_free(&in);
        th_npy_free(&wanted);
    }
}

static void lengths_equal(void **state)
{
    struct th_npy table;
    (void)state;
    assert_int_equal(th_npy_read(VECTORS "resample_lengths.npy", 1 << 20, &table, NULL), THESPIS_OK);
    int differs_from_exact = 0;
    for (int64_t i = 0; i < table.shape[0]; i++) {
        int64_t rate = th_npy_int(&table, 3 * i), count = th_npy_int(&table, 3 * i + 1), wanted = th_npy_int(&table, 3 * i + 2);
        assert_int_equal(th_resample_length((size_t)count, (int)rate, 44100), wanted);
        differs_from_exact += wanted != (count * 44100 + rate - 1) / rate;
    }
    assert_true(differs_from_exact > 0); /* the table does hold lengths that fp32 rounds away */
    th_npy_free(&table);
}

/* The definition as a plain double sum over all input, for rates whose dense kernel nobody could build. */
static double defined(const float *in, size_t count, int in_rate, int out_rate, size_t j)
{
    double sum = 0, base = 0.99 * (in_rate < out_rate ? in_rate : out_rate);
    for (size_t i = 0; i < count; i++) {
        double t = ((double)i / in_rate - (double)j / out_rate) * base;
        if (fabs(t) >= 6) continue;
        double window = cos(t * M_PI / 12), x = M_PI * t;
        sum += (double)in[i] * window * window * (t == 0 ? 1 : sin(x) / x) * base / in_rate;
    }
    return sum;
}

static void awkward_rates(void **state)
{
    static const int rates[] = {44101, 44099, 1000, 12345, 767999, 768000};
    float in[3000];
    uint32_t bits = 7;
    (void)state;
    for (size_t i = 0; i < 3000; i++) {
        bits = bits * 1664525u + 1013904223u;
        in[i] = (float)(bits >> 8) / 8388608.0f - 1.0f;
    }
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        size_t count, given = rates[i] == 1000 ? 60 : 3000;
        float *out;
        assert_int_equal(th_resample(in, given, rates[i], 44100, &out, &count, NULL), THESPIS_OK);
        double signal = 0, noise = 1e-30;
        for (size_t j = 0; j < count; j++) {
            double wanted = defined(in, given, rates[i], 44100, j);
            signal += wanted * wanted;
            noise += (wanted - (double)out[j]) * (wanted - (double)out[j]);
        }
        double db = 10 * log10(signal / noise);
        print_message("%6d Hz against the definition in double: %.1f dB\n", rates[i], db);
        /* Positions in fp32, as the reference has them, cost what they cost: most where the ratio of the rates is of large numbers.
         */
        assert_true(db >= (rates[i] == 1000 ? 100 : 70));
        th_free(out);
    }
}

static void pieces_and_refusals(void **state)
{
    float in[4] = {0.5f, -0.25f, 1.5f, 0}, *out;
    size_t count;
    thespis_error error;
    (void)state;
    assert_int_equal(th_resample(in, 4, 44100, 44100, &out, &count, NULL), THESPIS_OK);
    assert_int_equal(count, 4);
    assert_memory_equal(out, in, sizeof in);
    th_free(out);
    assert_int_equal(th_resample(in, 0, 8000, 44100, &out, &count, NULL), THESPIS_OK);
    assert_int_equal(count, 0);
    th_free(out);
    assert_int_equal(th_resample(in, 1, 768000, 44100, &out, &count, NULL), THESPIS_OK);
    assert_int_equal(count, 1);
    th_free(out);
    static const int wrong[] = {999, 768001, 0, -44100, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(th_resample(in, 4, wrong[i], 44100, &out, &count, &error), THESPIS_INVALID);
        assert_null(out);
        assert_int_equal(th_resample(in, 4, 44100, wrong[i], &out, &count, &error), THESPIS_INVALID);
    }
    assert_int_equal(th_resample(in, SIZE_MAX / 8, 8000, 44100, &out, &count, &error), THESPIS_LIMIT);
}

static void same_bytes_twice(void **state)
{
    struct th_npy in;
    float *a, *b;
    size_t count_a, count_b;
    (void)state;
    read_vector(48000, "in", &in);
    assert_int_equal(th_resample(in.data, (size_t)in.count, 48000, 44100, &a, &count_a, NULL), THESPIS_OK);
    assert_int_equal(th_resample(in.data, (size_t)in.count, 48000, 44100, &b, &count_b, NULL), THESPIS_OK);
    assert_int_equal(count_a, count_b);
    assert_memory_equal(a, b, count_a * sizeof *a);
    th_free(a);
    th_free(b);
    th_npy_free(&in);
}

#ifdef TH_FAULTS
static void every_allocation_may_fail(void **state)
{
    float in[100] = {0}, *out;
    size_t count;
    thespis_error error;
    (void)state;
    for (long n = 1;; n++) {
        th_memory_fail_from(n);
        thespis_status status = th_resample(in, 100, 8000, 44100, &out, &count, &error);
        th_memory_fail_from(0);
        if (status == THESPIS_OK) {
            assert_true(n > 3);
            th_free(out);
            break;
        }
        assert_int_equal(status, THESPIS_MEMORY);
        assert_null(out);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_torchaudio),         cmocka_unit_test(lengths_equal),       cmocka_unit_test(awkward_rates),
        cmocka_unit_test(same_bytes_twice),          cmocka_unit_test(pieces_and_refusals),
#ifdef TH_FAULTS
        cmocka_unit_test(every_allocation_may_fail),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
