/* test_wav_read.c - the WAV reader: golden files of each encoding built byte by byte, open and lying sizes, broken files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "audio/wav.h"
#include "base/memory.h"

/* A file being built. */
struct file {
    uint8_t at[4096];
    size_t used;
};

static void put(struct file *f, uint64_t value, int size)
{
    for (int i = 0; i < size; i++) f->at[f->used++] = (uint8_t)(value >> 8 * i);
}

static void put_bytes(struct file *f, const void *bytes, size_t count)
{
    memcpy(f->at + f->used, bytes, count);
    f->used += count;
}

static void begin(struct file *f, const char *form)
{
    f->used = 0;
    put_bytes(f, form, 4);
    put(f, 0xFFFFFFFF, 4);
    put_bytes(f, "WAVE", 4);
}

static void chunk(struct file *f, const char *id, uint32_t declared, const void *bytes, size_t count)
{
    put_bytes(f, id, 4);
    put(f, declared, 4);
    put_bytes(f, bytes, count);
    if (declared % 2 == 1 && declared == count) put(f, 0, 1);
}

static void fmt(struct file *f, int tag, int channels, int rate, int bits)
{
    int align = channels * ((bits + 7) / 8);
    put_bytes(f, "fmt ", 4);
    put(f, 16, 4);
    put(f, (uint64_t)tag, 2);
    put(f, (uint64_t)channels, 2);
    put(f, (uint64_t)rate, 4);
    put(f, (uint64_t)rate * (uint64_t)align, 4);
    put(f, (uint64_t)align, 2);
    put(f, (uint64_t)bits, 2);
}

static void fmt_extensible(struct file *f, int tag, int channels, int bits, int valid, uint8_t last)
{
    static const uint8_t tail[13] = {0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xAA, 0, 0x38, 0x9B};
    size_t size_at = f->used + 4;
    fmt(f, 0xFFFE, channels, 8000, bits);
    f->at[size_at] = 40;
    put(f, 22, 2);
    put(f, (uint64_t)valid, 2);
    put(f, 0, 4);
    put(f, (uint64_t)tag, 2);
    put_bytes(f, tail, sizeof tail);
    put(f, last, 1);
}

/* Parses a copy of exactly the file's size, so that ASan sees a read past its end. */
static thespis_status parse(const struct file *f, double max_seconds, struct th_wav *wav, thespis_error *error)
{
    uint8_t *copy = test_malloc(f->used + 1);
    memcpy(copy + 1, f->at, f->used); /* nothing is aligned */
    thespis_status status = th_wav_parse(copy + 1, f->used, "x.wav", max_seconds, wav, error);
    if (status != THESPIS_OK) assert_null(wav->samples);
    test_free(copy);
    return status;
}

static void expect(const struct file *f, int channels, size_t frames, const float *wanted)
{
    struct th_wav wav;
    thespis_error error;
    if (parse(f, 0, &wav, &error) != THESPIS_OK) fail_msg("%s", error.message);
    assert_int_equal(wav.channels, channels);
    assert_int_equal(wav.frames, frames);
    assert_memory_equal(wav.samples, wanted, frames * (size_t)channels * sizeof(float));
    th_free(wav.samples);
}

static void refuse(const struct file *f, thespis_status wanted, const char *words)
{
    struct th_wav wav;
    thespis_error error;
    assert_int_equal(parse(f, 0, &wav, &error), wanted);
    assert_int_equal(error.status, wanted);
    if (strstr(error.message, words) == NULL) fail_msg("'%s' not in '%s'", words, error.message);
    assert_non_null(strstr(error.message, "x.wav"));
}

static void each_encoding(void **state)
{
    struct file f;
    (void)state;
    static const float wanted[] = {0, -1, 0.5f, 0.9921875f};
    begin(&f, "RIFF");
    fmt(&f, 1, 1, 8000, 8);
    chunk(&f, "data", 4, "\x80\x00\xC0\xFF", 4);
    expect(&f, 1, 4, wanted);

    static const float s16[] = {32767 / 32768.0f, -1, 1 / 32768.0f, -1 / 32768.0f};
    begin(&f, "RIFF");
    fmt(&f, 1, 2, 8000, 16);
    chunk(&f, "data", 8, "\xFF\x7F\x00\x80\x01\x00\xFF\xFF", 8);
    expect(&f, 2, 2, s16);

    static const float s24[] = {8388607 / 8388608.0f, -1, 1 / 8388608.0f, -1 / 8388608.0f};
    begin(&f, "RIFF");
    fmt(&f, 1, 1, 8000, 24);
    chunk(&f, "data", 12, "\xFF\xFF\x7F\x00\x00\x80\x01\x00\x00\xFF\xFF\xFF", 12);
    expect(&f, 1, 4, s24);

    static const float s32[] = {1, -1, 0.5f};
    begin(&f, "RIFF");
    fmt(&f, 1, 1, 8000, 32);
    chunk(&f, "data", 12, "\xFF\xFF\xFF\x7F\x00\x00\x00\x80\x00\x00\x00\x40", 12);
    expect(&f, 1, 3, s32);

    static const float f32[] = {0.1f, -3.5f};
    begin(&f, "RIFF");
    fmt(&f, 3, 1, 8000, 32);
    chunk(&f, "data", 8, f32, 8);
    expect(&f, 1, 2, f32);

    static const double f64[] = {0.1, -3.5};
    begin(&f, "RIFF");
    fmt(&f, 3, 1, 8000, 64);
    chunk(&f, "data", 16, f64, 16);
    expect(&f, 1, 2, f32);

    static const float s20[] = {0.5f};
    begin(&f, "RIFF");
    fmt(&f, 1, 1, 8000, 20);
    chunk(&f, "data", 3, "\x00\x00\x40", 3);
    expect(&f, 1, 1, s20);
}

static void extensible(void **state)
{
    struct file f;
    static const float wanted[] = {0.5f, -1}, f32[] = {0.25f};
    (void)state;
    begin(&f, "RIFF");
    fmt_extensible(&f, 1, 2, 24, 20, 0x71);
    chunk(&f, "data", 6, "\x00\x00\x40\x00\x00\x80", 6);
    expect(&f, 2, 1, wanted);
    begin(&f, "RIFF");
    fmt_extensible(&f, 3, 1, 32, 32, 0x71);
    chunk(&f, "data", 4, f32, 4);
    expect(&f, 1, 1, f32);
    begin(&f, "RIFF");
    fmt_extensible(&f, 1, 1, 16, 16, 0x72);
    chunk(&f, "data", 4, "\0\0\0\0", 4);
    refuse(&f, THESPIS_UNSUPPORTED, "unknown extensible");
    begin(&f, "RIFF");
    fmt_extensible(&f, 1, 1, 16, 24, 0x71);
    chunk(&f, "data", 4, "\0\0\0\0", 4);
    refuse(&f, THESPIS_FORMAT, "24 valid bits");
    begin(&f, "RIFF");
    fmt(&f, 0xFFFE, 1, 8000, 16);
    chunk(&f, "data", 4, "\0\0\0\0", 4);
    refuse(&f, THESPIS_FORMAT, "40 are needed");
}

static const float two[] = {0.5f, -0.5f};
#define TWO "\x00\x40\x00\xC0"

/* A file whose data chunk declares `declared` bytes and that ends after `there` of TWO. */
static void with_size(struct file *f, uint32_t declared, size_t there)
{
    begin(f, "RIFF");
    fmt(f, 1, 1, 8000, 16);
    chunk(f, "data", declared, TWO, there);
}

static void open_sizes(void **state)
{
    static const uint32_t sizes[] = {0, 0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000, 0x80000000, 100, 4, 5};
    struct file f;
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        with_size(&f, sizes[i], 4);
        expect(&f, 1, 2, two);
    }
    with_size(&f, 0xFFFFFFFF, 3); /* a cut last frame is dropped */
    expect(&f, 1, 1, two);
    with_size(&f, 3, 4);
    expect(&f, 1, 1, two);
    with_size(&f, 0, 0);
    refuse(&f, THESPIS_FORMAT, "no audio");
    with_size(&f, 4, 1);
    refuse(&f, THESPIS_FORMAT, "no audio");
}

static void chunks_around(void **state)
{
    struct file f;
    (void)state;
    begin(&f, "RIFF"); /* odd chunks are padded, before and after */
    chunk(&f, "LIST", 3, "abc", 3);
    fmt(&f, 1, 1, 8000, 16);
    chunk(&f, "zzzz", 5, "abcde", 5);
    chunk(&f, "data", 4, TWO, 4);
    chunk(&f, "LIST", 400, "cut", 3);
    expect(&f, 1, 2, two);
    begin(&f, "RIFF"); /* data before fmt */
    chunk(&f, "data", 4, TWO, 4);
    fmt(&f, 1, 1, 8000, 16);
    expect(&f, 1, 2, two);
    with_size(&f, 0, 0); /* the first data chunk that is not empty */
    chunk(&f, "data", 4, TWO, 4);
    chunk(&f, "data", 2, "\1\1", 2);
    expect(&f, 1, 2, two);
    begin(&f, "RIFF"); /* the first fmt counts */
    fmt(&f, 1, 1, 8000, 16);
    fmt(&f, 1, 2, 8000, 8);
    chunk(&f, "data", 4, TWO, 4);
    expect(&f, 1, 2, two);
}

static void wide_files(void **state)
{
    struct file f;
    uint8_t ds64[28] = {0};
    (void)state;
    for (int form = 0; form < 2; form++) {
        ds64[8] = 4;
        begin(&f, form ? "BW64" : "RF64");
        chunk(&f, "ds64", 28, ds64, 28);
        fmt(&f, 1, 1, 8000, 16);
        chunk(&f, "data", 0xFFFFFFFF, TWO "junk", 8);
        expect(&f, 1, 2, two);
        memset(ds64 + 8, 0xFF, 8);
        begin(&f, form ? "BW64" : "RF64");
        chunk(&f, "ds64", 28, ds64, 28);
        fmt(&f, 1, 1, 8000, 16);
        chunk(&f, "data", 0xFFFFFFFF, TWO, 4);
        expect(&f, 1, 2, two);
        memset(ds64, 0, sizeof ds64);
    }
    begin(&f, "RF64");
    chunk(&f, "ds64", 28, ds64, 10);
    refuse(&f, THESPIS_FORMAT, "ds64");
}

static void refusals(void **state)
{
    struct file f;
    static const struct {
        int tag, channels, rate, bits;
        thespis_status status;
        const char *words;
    } wrong[] = {{1, 0, 8000, 16, THESPIS_FORMAT, "0 channels"},
                 {1, 65, 8000, 16, THESPIS_FORMAT, "65 channels"},
                 {1, 1, 999, 16, THESPIS_FORMAT, "999"},
                 {1, 1, 768001, 16, THESPIS_FORMAT, "768001"},
                 {1, 1, 0, 16, THESPIS_FORMAT, "rate is 0"},
                 {1, 1, 8000, 0, THESPIS_UNSUPPORTED, "0-bit"},
                 {1, 1, 8000, 64, THESPIS_UNSUPPORTED, "64-bit"},
                 {3, 1, 8000, 16, THESPIS_UNSUPPORTED, "16-bit float"},
                 {6, 1, 8000, 8, THESPIS_UNSUPPORTED, "A-law"},
                 {7, 1, 8000, 8, THESPIS_UNSUPPORTED, "mu-law"},
                 {2, 1, 8000, 4, THESPIS_UNSUPPORTED, "Microsoft ADPCM"},
                 {0x11, 1, 8000, 4, THESPIS_UNSUPPORTED, "IMA ADPCM"},
                 {0x55, 1, 8000, 0, THESPIS_UNSUPPORTED, "MP3"},
                 {0x1234, 1, 8000, 16, THESPIS_UNSUPPORTED, "0x1234"}};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        begin(&f, "RIFF");
        fmt(&f, wrong[i].tag, wrong[i].channels, wrong[i].rate, wrong[i].bits);
        chunk(&f, "data", 4, TWO, 4);
        refuse(&f, wrong[i].status, wrong[i].words);
    }
    with_size(&f, 4, 4);
    f.at[32] = 4;
    refuse(&f, THESPIS_FORMAT, "block align is 4, must be 2");
    with_size(&f, 4, 4);
    memcpy(f.at, "RIFX", 4);
    refuse(&f, THESPIS_FORMAT, "RIFX");
    begin(&f, "RIFF");
    refuse(&f, THESPIS_FORMAT, "without a fmt");
    fmt(&f, 1, 1, 8000, 16);
    refuse(&f, THESPIS_FORMAT, "without a data");
}

static void not_numbers(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct file f;
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        float both[2] = {0.5f, bad[i]};
        begin(&f, "RIFF");
        fmt(&f, 3, 1, 8000, 32);
        chunk(&f, "data", 8, both, 8);
        refuse(&f, THESPIS_FORMAT, "not numbers");
    }
    double huge = 1e300;
    begin(&f, "RIFF");
    fmt(&f, 3, 1, 8000, 64);
    chunk(&f, "data", 8, &huge, 8);
    refuse(&f, THESPIS_FORMAT, "not numbers");
}

static void seconds(void **state)
{
    struct file f;
    struct th_wav wav;
    thespis_error error;
    uint8_t silence[2002] = {0};
    (void)state;
    for (int open = 0; open < 2; open++) {
        begin(&f, "RIFF");
        fmt(&f, 1, 1, 1000, 16);
        chunk(&f, "data", open ? 0xFFFFFFFF : 2000, silence, 2000);
        assert_int_equal(parse(&f, 1, &wav, &error), THESPIS_OK);
        th_free(wav.samples);
        begin(&f, "RIFF");
        fmt(&f, 1, 1, 1000, 16);
        chunk(&f, "data", open ? 0xFFFFFFFF : 2002, silence, 2002);
        assert_int_equal(parse(&f, 1, &wav, &error), THESPIS_LIMIT);
        assert_non_null(strstr(error.message, "at most 1 are taken"));
    }
}

static void sample_file(struct file *f)
{
    static const float values[] = {0.5f, -0.5f, 0.25f, 1};
    begin(f, "RIFF");
    chunk(f, "LIST", 3, "abc", 3);
    fmt_extensible(f, 3, 2, 32, 32, 0x71);
    chunk(f, "fact", 4, "\2\0\0\0", 4);
    chunk(f, "data", 16, values, 16);
    chunk(f, "id3 ", 4, "abcd", 4);
}

static void cut_anywhere(void **state)
{
    struct file f;
    struct th_wav wav;
    thespis_error error;
    (void)state;
    sample_file(&f);
    for (size_t whole = f.used; f.used > 0; f.used--) {
        thespis_status status = parse(&f, 0, &wav, &error);
        assert_true(status == THESPIS_OK || status == THESPIS_FORMAT);
        if (whole == f.used) assert_int_equal(status, THESPIS_OK);
        th_free(wav.samples);
    }
}

static void flipped_anywhere(void **state)
{
    uint64_t seed = 12345;
    (void)state;
    for (int round = 0; round < 20000; round++) {
        struct file f;
        struct th_wav wav;
        thespis_error error;
        sample_file(&f);
        for (int flips = 1 + round % 4; flips > 0; flips--) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            f.at[(seed >> 33) % f.used] ^= (uint8_t)(1u << ((seed >> 20) & 7));
        }
        thespis_status status = parse(&f, 60, &wav, &error);
        assert_true(status == THESPIS_OK || status == THESPIS_FORMAT || status == THESPIS_UNSUPPORTED || status == THESPIS_LIMIT);
        th_free(wav.samples);
    }
}

#ifdef TH_FAULTS
static void allocation_may_fail(void **state)
{
    struct file f;
    struct th_wav wav;
    thespis_error error;
    (void)state;
    sample_file(&f);
    th_memory_fail_from(1);
    thespis_status status = parse(&f, 0, &wav, &error);
    th_memory_fail_from(0);
    assert_int_equal(status, THESPIS_MEMORY);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_encoding),       cmocka_unit_test(extensible), cmocka_unit_test(open_sizes),
        cmocka_unit_test(chunks_around),       cmocka_unit_test(wide_files), cmocka_unit_test(refusals),
        cmocka_unit_test(not_numbers),         cmocka_unit_test(seconds),    cmocka_unit_test(cut_anywhere),
        cmocka_unit_test(flipped_anywhere),
#ifdef TH_FAULTS
        cmocka_unit_test(allocation_may_fail),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
