/* test_wav_write.c - WAV and PCM going out: exact sizes in files, open ones in pipes, RF64, and every way writing can fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "audio/wav.h"
#include "base/memory.h"

static char folder[] = "/tmp/thespis-wav-XXXXXX";
static char name[64], part[80];

static int make_folder(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(name, sizeof name, "%s/a.wav", folder);
    snprintf(part, sizeof part, "%s.part", name);
    signal(SIGPIPE, SIG_IGN);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(name);
    return rmdir(folder);
}

static thespis_status write_all(const char *path, enum th_sound_format format, const float *samples, size_t count,
                                thespis_error *error)
{
    struct th_sound_writer writer;
    thespis_status status = th_sound_open(path, format, 44100, &writer, error);
    if (status == THESPIS_OK) status = th_sound_write(&writer, samples, count, error);
    if (status == THESPIS_OK) return th_sound_close(&writer, error);
    th_sound_discard(&writer); /* allowed after a failure, does nothing then */
    return status;
}

static uint64_t number(const char *at, int size)
{
    uint64_t value = 0;
    for (int i = 0; i < size; i++) value |= (uint64_t)(uint8_t)at[i] << 8 * i;
    return value;
}

/* The file's bytes; freed by the caller. */
static char *content(size_t *bytes)
{
    char *data;
    thespis_error error;
    if (th_file_read(name, 1 << 24, &data, bytes, &error) != THESPIS_OK) fail_msg("%s", error.message);
    assert_int_equal(access(part, F_OK), -1);
    return data;
}

static void conversion(void **state)
{
    static const struct {
        float from;
        int to;
    } pairs[] = {{0, 0},
                 {1, 32767},
                 {-1, -32767},
                 {1.5f, 32767},
                 {-9, -32767},
                 {INFINITY, 32767},
                 {-INFINITY, -32767},
                 {NAN, 0},
                 {0.5f, 16384} /* 16383.5: to even */,
                 {-0.5f, -16384},
                 {1 / 32767.0f, 1},
                 {1e-30f, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) assert_int_equal(th_sample_to_s16(pairs[i].from), pairs[i].to);
}

static void exact_file(void **state)
{
    static const uint8_t golden[] = {'R', 'I', 'F', 'F', 40,  0,   0,   0,   'W',  'A',  'V', 'E', 'f',  'm',  't',  ' ',
                                     16,  0,   0,   0,   1,   0,   1,   0,   0x44, 0xAC, 0,   0,   0x88, 0x58, 1,    0,
                                     2,   0,   16,  0,   'd', 'a', 't', 'a', 4,    0,    0,   0,   0xFF, 0x7F, 0x01, 0x80};
    float samples[] = {1, -1};
    size_t bytes;
    (void)state;
    assert_int_equal(write_all(name, TH_SOUND_WAV16, samples, 2, NULL), THESPIS_OK);
    char *data = content(&bytes);
    assert_int_equal(bytes, sizeof golden);
    assert_memory_equal(data, golden, sizeof golden);
    th_free(data);
}

static void exact_sizes(void **state)
{
    static const size_t counts[] = {0, 1, 2047, 2048, 2049, 10000};
    static float samples[10000];
    (void)state;
    for (size_t i = 0; i < 10000; i++) samples[i] = (float)i / 10000;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        size_t bytes, n = counts[i];
        assert_int_equal(write_all(name, TH_SOUND_WAV16, samples, n, NULL), THESPIS_OK);
        char *data = content(&bytes);
        assert_int_equal(bytes, 44 + 2 * n);
        assert_int_equal(number(data + 4, 4), bytes - 8);
        assert_int_equal(number(data + 40, 4), 2 * n);
        th_free(data);
        assert_int_equal(write_all(name, TH_SOUND_PCM16, samples, n, NULL), THESPIS_OK);
        data = content(&bytes);
        assert_int_equal(bytes, 2 * n);
        for (size_t k = 0; k < n; k++) assert_int_equal((int16_t)number(data + 2 * k, 2), th_sample_to_s16(samples[k]));
        th_free(data);
        assert_int_equal(write_all(name, TH_SOUND_WAV32F, samples, n, NULL), THESPIS_OK);
        data = content(&bytes);
        assert_int_equal(bytes, 58 + 4 * n);
        assert_int_equal(number(data + 4, 4), bytes - 8);
        assert_memory_equal(data + 38, "fact\4\0\0\0", 8);
        assert_int_equal(number(data + 46, 4), n);
        assert_int_equal(number(data + 54, 4), 4 * n);
        assert_memory_equal(data + 58, samples, 4 * n);
        th_free(data);
    }
}

static void reads_back(void **state)
{
    float samples[5000];
    size_t bytes;
    struct th_wav wav;
    (void)state;
    for (int i = 0; i < 5000; i++) samples[i] = (float)sin(i * 0.1);
    assert_int_equal(write_all(name, TH_SOUND_WAV32F, samples, 5000, NULL), THESPIS_OK);
    char *data = content(&bytes);
    assert_int_equal(th_wav_parse(data, bytes, name, 0, &wav, NULL), THESPIS_OK);
    assert_int_equal(wav.frames, 5000);
    assert_int_equal(wav.rate, 44100);
    assert_memory_equal(wav.samples, samples, sizeof samples);
    th_free(wav.samples);
    th_free(data);
}

/* The limit of 4 GiB lowered, so that a small file has to become RF64; 1.2 MB so that moving takes several blocks. */
static void wide_file(void **state)
{
    enum { COUNT = 600000 };
    float *samples = test_calloc(COUNT, sizeof *samples);
    (void)state;
    for (size_t i = 0; i < COUNT; i++) samples[i] = (float)(i % 1000) / 1024;
    for (int f = 0; f < 2; f++) {
        enum th_sound_format format = f ? TH_SOUND_WAV32F : TH_SOUND_WAV16;
        struct th_sound_writer writer;
        struct th_wav wav;
        size_t bytes, head = f ? 94 : 80, item = f ? 4 : 2;
        assert_int_equal(th_sound_open(name, format, 44100, &writer, NULL), THESPIS_OK);
        writer.rf64_from = 1000;
        assert_int_equal(th_sound_write(&writer, samples, COUNT, NULL), THESPIS_OK);
        assert_int_equal(th_sound_close(&writer, NULL), THESPIS_OK);
        char *data = content(&bytes);
        assert_int_equal(bytes, head + item * COUNT);
        assert_memory_equal(data, "RF64\xFF\xFF\xFF\xFFWAVEds64\x1C\0\0\0", 20);
        assert_int_equal(number(data + 20, 8), bytes - 8);
        assert_int_equal(number(data + 28, 8), item * COUNT);
        assert_int_equal(number(data + 36, 8), COUNT);
        assert_int_equal(number(data + head - 4, 4), 0xFFFFFFFF);
        assert_int_equal(th_wav_parse(data, bytes, name, 0, &wav, NULL), THESPIS_OK);
        assert_int_equal(wav.frames, COUNT);
        for (size_t i = 0; i < COUNT; i++)
            if (wav.samples[i] != (f ? samples[i] : (float)th_sample_to_s16(samples[i]) / 32768)) fail_msg("sample %zu differs", i);
        th_free(wav.samples);
        th_free(data);
    }
    test_free(samples);
}

static void pipe_gets_open_sizes(void **state)
{
    char text[32];
    char data[64];
    int ends[2];
    float samples[] = {1, -1};
    (void)state;
    assert_int_equal(pipe(ends), 0);
    snprintf(text, sizeof text, "/dev/fd/%d", ends[1]);
    assert_int_equal(write_all(text, TH_SOUND_WAV16, samples, 2, NULL), THESPIS_OK);
    assert_int_equal(read(ends[0], data, sizeof data), 48);
    assert_memory_equal(data + 4, "\xFF\xFF\xFF\xFF", 4);
    assert_memory_equal(data + 40, "\xFF\xFF\xFF\xFF\xFF\x7F\x01\x80", 8);
    assert_int_equal(write_all(text, TH_SOUND_WAV32F, samples, 0, NULL), THESPIS_OK);
    assert_int_equal(read(ends[0], data, sizeof data), 58);
    assert_memory_equal(data + 46, "\xFF\xFF\xFF\xFF", 4);
    close(ends[0]);
    close(ends[1]);
}

static void closed_pipe(void **state)
{
    char fifo[64];
    struct th_sound_writer writer;
    thespis_error error;
    float samples[100] = {0};
    (void)state;
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    int reader = open(fifo, O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    assert_int_equal(th_sound_open(fifo, TH_SOUND_WAV16, 44100, &writer, NULL), THESPIS_OK);
    close(reader);
    assert_int_equal(th_sound_write(&writer, samples, 100, &error), THESPIS_IO);
    assert_non_null(strstr(error.message, strerror(EPIPE)));
    assert_int_equal(th_sound_write(&writer, samples, 100, &error), THESPIS_IO);
    assert_int_equal(th_sound_close(&writer, &error), THESPIS_IO);
    unlink(fifo);
}

static void full_disk(void **state)
{
    thespis_error error;
    float samples[10] = {0};
    (void)state;
    static const enum th_sound_format formats[] = {TH_SOUND_WAV16, TH_SOUND_WAV32F, TH_SOUND_PCM16};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(write_all("/dev/full", formats[i], samples, 10, &error), THESPIS_IO);
        assert_non_null(strstr(error.message, strerror(ENOSPC)));
    }
}

static void wrong_places(void **state)
{
    char text[128];
    thespis_error error;
    (void)state;
    assert_int_equal(write_all(folder, TH_SOUND_WAV16, NULL, 0, &error), THESPIS_IO);
    assert_non_null(strstr(error.message, "folder"));
    snprintf(text, sizeof text, "%s/none/a.wav", folder);
    assert_int_equal(write_all(text, TH_SOUND_WAV16, NULL, 0, &error), THESPIS_IO);
    assert_non_null(strstr(error.message, strerror(ENOENT)));
    assert_int_equal(write_all("", TH_SOUND_WAV16, NULL, 0, &error), THESPIS_INVALID);
    struct th_sound_writer writer;
    assert_int_equal(th_sound_open(name, TH_SOUND_WAV16, 0, &writer, &error), THESPIS_INVALID);
    th_sound_discard(&writer);
}

static void nothing_partial(void **state)
{
    struct th_sound_writer writer;
    float samples[3000] = {0};
    size_t bytes;
    (void)state;
    assert_int_equal(write_all(name, TH_SOUND_PCM16, samples, 5, NULL), THESPIS_OK);
    assert_int_equal(th_sound_open(name, TH_SOUND_WAV16, 44100, &writer, NULL), THESPIS_OK);
    assert_int_equal(th_sound_write(&writer, samples, 3000, NULL), THESPIS_OK);
    assert_int_equal(access(part, F_OK), 0);
    th_sound_discard(&writer);
    th_free(content(&bytes)); /* the old file is whole, the part is gone */
    assert_int_equal(bytes, 10);
}

#ifdef TH_FAULTS
static void allocations_may_fail(void **state)
{
    thespis_error error;
    float samples[100] = {0};
    (void)state;
    unlink(name);
    for (long n = 1;; n++) {
        struct th_sound_writer writer;
        th_memory_fail_from(n);
        thespis_status status = th_sound_open(name, TH_SOUND_WAV16, 44100, &writer, &error);
        writer.rf64_from = 10;
        if (status == THESPIS_OK) status = th_sound_write(&writer, samples, 100, &error);
        if (status == THESPIS_OK) status = th_sound_close(&writer, &error);
        th_memory_fail_from(0);
        assert_int_equal(access(part, F_OK), -1);
        assert_int_equal(access(name, F_OK), status == THESPIS_OK ? 0 : -1);
        if (status == THESPIS_OK) break;
        assert_int_equal(status, THESPIS_MEMORY);
        assert_true(n < 10);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversion),           cmocka_unit_test(exact_file), cmocka_unit_test(exact_sizes),
        cmocka_unit_test(reads_back),           cmocka_unit_test(wide_file),  cmocka_unit_test(pipe_gets_open_sizes),
        cmocka_unit_test(closed_pipe),          cmocka_unit_test(full_disk),  cmocka_unit_test(wrong_places),
        cmocka_unit_test(nothing_partial),
#ifdef TH_FAULTS
        cmocka_unit_test(allocations_may_fail),
#endif
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
