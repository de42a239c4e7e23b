/* test_codec_encode.c - encoding: the third-party codec's codes, and the same codes whatever the blocks, threads and instruction
 * set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/npy.h"
#include "unit/backend/codec_fixture.h"

#define FRAMES 11
#define SAMPLES (10 * TH_CODEC_FRAME + 77)

static float signal[FRAMES * TH_CODEC_FRAME]; /* SAMPLES, then zeros */
static int32_t codes[FRAMES][FIX_BOOKS], other[FRAMES][FIX_BOOKS];

static void make_signal(void)
{
    for (int i = 0; i < SAMPLES; i++)
        signal[i] = 0.4f * sinf(0.05f * (float)i + 3.0f * sinf(0.0007f * (float)i)) + 0.1f * sinf(1.3f * (float)i);
}

static void blocks_do_not_show(void **state)
{
    (void)state;
    struct fixture *f = fix_make(0, 1);
    struct th_cpu cpu;
    assert_int_equal(fix_open(&cpu, &f->codec, NULL, 1, NULL), THESPIS_OK);
    cpu.codec_part->encode_frames = FRAMES;
    assert_int_equal(th_cpu_codec_encode(&cpu.base, signal, SAMPLES, codes[0], NULL, NULL, NULL), THESPIS_OK);
    int changes = 0;
    for (int t = 0; t < FRAMES; t++)
        for (int i = 0; i < FIX_BOOKS; i++) {
            assert_in_range(codes[t][i], 0, i == 0 ? 39 : 22);
            changes += t > 0 && codes[t][i] != codes[t - 1][i];
        }
    assert_true(changes > 5); /* the codes say something */
    static const int sizes[] = {1, 2, 3, 7, 100};
    for (int i = 0; i < 5; i++) {
        cpu.codec_part->encode_frames = sizes[i];
        memset(other, -1, sizeof other);
        assert_int_equal(th_cpu_codec_encode(&cpu.base, signal, SAMPLES, other[0], NULL, NULL, NULL), THESPIS_OK);
        assert_memory_equal(codes, other, sizeof codes);
    }
    fix_close(&cpu);
    fix_drop(f);
}

static void threads_and_sets_do_not_show(void **state)
{
    (void)state;
    struct fixture *f = fix_make(1, 1);
    const struct th_codec_kernels *sets[4];
    int count = fix_sets(sets);
    for (int i = 0; i < count; i++)
        for (int threads = 1; threads <= 2; threads++) {
            struct th_cpu cpu;
            int first = i == 0 && threads == 1;
            assert_int_equal(fix_open(&cpu, &f->codec, sets[i], threads, NULL), THESPIS_OK);
            assert_int_equal(th_cpu_codec_encode(&cpu.base, signal, SAMPLES, first ? codes[0] : other[0], NULL, NULL, NULL),
                             THESPIS_OK);
            if (!first) assert_memory_equal(codes, other, sizeof codes);
            fix_close(&cpu);
        }
    fix_drop(f);
}

struct seen {
    int calls;
    uint64_t done, total;
};

static void count_progress(void *context, const char *job, uint64_t done, uint64_t total)
{
    struct seen *seen = context;
    assert_string_equal(job, "encode");
    assert_true(done > seen->done && done <= total);
    *seen = (struct seen){seen->calls + 1, done, total};
}

/* A short recording is one padded with zeros to whole frames, and its codes are its own only: the past decides. */
static void lengths_and_progress(void **state)
{
    (void)state;
    struct fixture *f = fix_make(0, 1);
    struct th_cpu cpu;
    assert_int_equal(fix_open(&cpu, &f->codec, NULL, 1, NULL), THESPIS_OK);
    cpu.codec_part->encode_frames = 4;
    struct seen seen = {0, 0, 0};
    assert_int_equal(th_cpu_codec_encode(&cpu.base, signal, SAMPLES, codes[0], count_progress, &seen, NULL), THESPIS_OK);
    assert_int_equal(seen.calls, 3);
    assert_true(seen.done == FRAMES && seen.total == FRAMES);
    assert_int_equal(th_cpu_codec_encode(&cpu.base, signal, sizeof signal / sizeof *signal, other[0], NULL, NULL, NULL),
                     THESPIS_OK);
    assert_memory_equal(codes, other, sizeof codes);
    static const size_t lengths[] = {1, TH_CODEC_FRAME - 1, TH_CODEC_FRAME, TH_CODEC_FRAME + 1};
    for (int i = 0; i < 4; i++) {
        memset(other, -1, sizeof other);
        assert_int_equal(th_cpu_codec_encode(&cpu.base, signal, lengths[i], other[0], NULL, NULL, NULL), THESPIS_OK);
        int frames = i < 3 ? 1 : 2;
        if (lengths[i] >= TH_CODEC_FRAME) assert_memory_equal(codes[0], other[0], sizeof codes[0]);
        assert_in_range(other[frames - 1][0], 0, 39);
        assert_int_equal(other[frames][0], -1);
    }
    fix_close(&cpu);
    fix_drop(f);
}

static void refusals_name_the_fault(void **state)
{
    (void)state;
    struct fixture *f = fix_make(0, 1);
    struct th_cpu cpu;
    thespis_error error;
    assert_int_equal(fix_open(&cpu, &f->codec, NULL, 1, NULL), THESPIS_OK);
    assert_int_equal(th_cpu_codec_encode(&cpu.base, signal, 0, other[0], NULL, NULL, &error), THESPIS_INVALID);
    float spoiled[3] = {0, 1, NAN};
    assert_int_equal(th_cpu_codec_encode(&cpu.base, spoiled, 3, other[0], NULL, NULL, &error), THESPIS_INVALID);
    assert_non_null(strstr(error.message, "sample 2"));
    size_t long_one = (size_t)TH_CODEC_POSITIONS / 4 * TH_CODEC_FRAME + 1; /* refused before a sample is read */
    assert_int_equal(th_cpu_codec_encode(&cpu.base, signal, long_one, other[0], NULL, NULL, &error), THESPIS_LIMIT);
    fix_close(&cpu);
    f->codec.encoder.blocks[1].conv.stride = 3;
    assert_int_equal(fix_open(&cpu, &f->codec, NULL, 1, &error), THESPIS_UNSUPPORTED);
    fix_drop(f);
}

static void equals_the_reference(void **state)
{
    (void)state;
    struct th_codec *codec;
    struct th_npy wave, truth;
    struct th_cpu cpu;
    assert_int_equal(th_codec_open(TEST_SOURCE_DIR "/models/stage/codec.pth", TH_CODEC_ENCODE, &codec, NULL), THESPIS_OK);
    assert_int_equal(th_npy_read(TEST_SOURCE_DIR "/tests/vectors/codec/stage/signal.npy", 1 << 22, &wave, NULL), THESPIS_OK);
    assert_int_equal(th_npy_read(TEST_SOURCE_DIR "/tests/vectors/codec/stage/encoded.npy", 1 << 22, &truth, NULL), THESPIS_OK);
    assert_int_equal(fix_open(&cpu, codec, NULL, 2, NULL), THESPIS_OK);
    assert_int_equal(truth.count, (wave.count + TH_CODEC_FRAME - 1) / TH_CODEC_FRAME * codec->books);
    int32_t *out = calloc((size_t)truth.count, sizeof *out);
    assert_non_null(out);
    assert_int_equal(th_cpu_codec_encode(&cpu.base, wave.data, (size_t)wave.count, out, NULL, NULL, NULL), THESPIS_OK);
    for (int64_t i = 0; i < truth.count; i++) assert_int_equal(out[i], th_npy_int(&truth, i));
    free(out);
    fix_close(&cpu);
    th_npy_free(&wave);
    th_npy_free(&truth);
    th_codec_close(codec);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
#ifdef TH_FAULTS
    struct fixture *f = fix_make(0, 1);
    struct th_cpu cpu;
    assert_int_equal(fix_open(&cpu, &f->codec, NULL, 1, NULL), THESPIS_OK);
    for (long n = 1;; n++) {
        th_memory_fail_from(n);
        thespis_status status = th_cpu_codec_encode(&cpu.base, signal, 5, other[0], NULL, NULL, NULL);
        th_memory_fail_from(0);
        if (status == THESPIS_OK) break;
        assert_int_equal(status, THESPIS_MEMORY);
        assert_true(n < 100);
    }
    fix_close(&cpu);
    fix_drop(f);
#else
    skip();
#endif
}

int main(void)
{
    make_signal();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_do_not_show),   cmocka_unit_test(threads_and_sets_do_not_show),
        cmocka_unit_test(lengths_and_progress), cmocka_unit_test(refusals_name_the_fault),
        cmocka_unit_test(equals_the_reference), cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
