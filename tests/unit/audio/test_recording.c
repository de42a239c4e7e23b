/* test_recording.c - recordings of every kind, made here with libsndfile: read back, limited, refused, broken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <sndfile.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "audio/recording.h"
#include "audio/resample.h"
#include "audio/wav.h"
#include "base/file.h"
#include "base/memory.h"

/* libsndfile 1.2.0 keeps libvorbis' 6 KB of an Ogg file whose headers are broken: not ours to free. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:vorbis_info_init";
}

static char folder[] = "/tmp/thespis-recording-XXXXXX";
static char name[64];

static int make_folder(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(name, sizeof name, "%s/x.wav", folder); /* content decides, not this name */
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(name);
    return rmdir(folder);
}

/* A tone of two partials, a different one for each channel. */
static float tone(size_t frame, int channel, int rate)
{
    double t = (double)frame / rate;
    return (float)(0.4 * sin(2 * M_PI * (220 + 110 * channel) * t) + 0.1 * sin(2 * M_PI * 1000 * t));
}

static void write_file(int format, int rate, int channels, size_t frames)
{
    SF_INFO info = {.samplerate = rate, .channels = channels, .format = format};
    SNDFILE *file = sf_open(name, SFM_WRITE, &info);
    if (file == NULL) fail_msg("%s", sf_strerror(NULL));
    float block[1024 * 3];
    for (size_t i = 0; i < frames;) {
        size_t n = frames - i < 1024 ? frames - i : 1024;
        for (size_t k = 0; k < n; k++)
            for (int c = 0; c < channels; c++) block[k * (size_t)channels + (size_t)c] = tone(i + k, c, rate);
        assert_int_equal(sf_writef_float(file, block, (sf_count_t)n), n);
        i += n;
    }
    assert_int_equal(sf_close(file), 0);
}

/* Signal to noise in dB against the mean of the tones at the file's rate, resampled here; `shift` samples are skipped in `got`. */
static double likeness(const struct th_recording *got, int rate, int channels, size_t frames, size_t shift)
{
    float *mean = test_calloc(frames, sizeof *mean), *wanted;
    size_t count;
    for (size_t i = 0; i < frames; i++) {
        for (int c = 0; c < channels; c++) mean[i] += tone(i, c, rate);
        mean[i] /= (float)channels;
    }
    assert_int_equal(th_resample(mean, frames, rate, 44100, &wanted, &count, NULL), THESPIS_OK);
    double signal = 0, noise = 1e-30;
    for (size_t i = 1000; i + 3000 < count && i + shift < got->count; i++) {
        double d = (double)wanted[i] - (double)got->samples[i + shift];
        signal += (double)wanted[i] * (double)wanted[i];
        noise += d * d;
    }
    th_free(wanted);
    test_free(mean);
    return 10 * log10(signal / noise);
}

static void kinds_read_back(void **state)
{
    static const struct {
        int format, rate, channels;
        const char *container;
        double db;
    } kinds[] = {
        {SF_FORMAT_WAV | SF_FORMAT_PCM_16, 44100, 1, "WAV", 80},        {SF_FORMAT_WAV | SF_FORMAT_FLOAT, 48000, 2, "WAV", 130},
        {SF_FORMAT_WAV | SF_FORMAT_PCM_24, 16000, 3, "WAV", 120},       {SF_FORMAT_WAV | SF_FORMAT_ULAW, 8000, 1, "WAV", 30},
        {SF_FORMAT_WAV | SF_FORMAT_ALAW, 8000, 1, "WAV", 30},           {SF_FORMAT_WAV | SF_FORMAT_IMA_ADPCM, 22050, 1, "WAV", 20},
        {SF_FORMAT_WAV | SF_FORMAT_MS_ADPCM, 22050, 2, "WAV", 20},      {SF_FORMAT_FLAC | SF_FORMAT_PCM_24, 48000, 2, "FLAC", 120},
        {SF_FORMAT_OGG | SF_FORMAT_VORBIS, 44100, 2, "Ogg Vorbis", 20}, {SF_FORMAT_AIFF | SF_FORMAT_PCM_16, 22050, 1, "AIFF", 80},
        {SF_FORMAT_AU | SF_FORMAT_PCM_16, 32000, 1, "AU", 80},          {SF_FORMAT_CAF | SF_FORMAT_PCM_16, 96000, 1, "CAF", 80},
        {SF_FORMAT_W64 | SF_FORMAT_PCM_16, 44100, 1, "W64", 80},        {SF_FORMAT_RF64 | SF_FORMAT_PCM_16, 44100, 1, "WAV", 80}};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct th_recording r;
        thespis_error error;
        int rate = kinds[i].rate, channels = kinds[i].channels;
        write_file(kinds[i].format, rate, channels, (size_t)rate);
        if (th_recording_read_file(name, 2, &r, &error) != THESPIS_OK) fail_msg("%s", error.message);
        double db = likeness(&r, rate, channels, (size_t)rate, 0);
        print_message("%-10s %6d Hz, %d channels: %zu samples, %.1f dB\n", r.container, rate, channels, r.count, db);
        assert_string_equal(r.container, kinds[i].container);
        assert_int_equal(r.source_rate, rate);
        assert_int_equal(r.source_channels, channels);
        assert_true(r.count >= 44100 && r.count < 46000); /* block codecs may round up */
        assert_true(db >= kinds[i].db);
        th_recording_free(&r);
    }
}

/* MP3 and Opus may begin a little later than they were written, depending on the decoder. */
static void delayed_kinds(void **state)
{
    static const struct {
        int format, rate;
        const char *container;
    } kinds[] = {{SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 44100, "MP3"}, {SF_FORMAT_OGG | SF_FORMAT_OPUS, 48000, "Ogg Opus"}};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct th_recording r;
        thespis_error error;
        double best = 0;
        write_file(kinds[i].format, kinds[i].rate, 1, (size_t)kinds[i].rate);
        if (th_recording_read_file(name, 2, &r, &error) != THESPIS_OK) fail_msg("%s", error.message);
        assert_string_equal(r.container, kinds[i].container);
        for (size_t shift = 0; shift < 2400; shift++) {
            if (shift > 8 && shift % 8 != 1 && best > 15) continue;
            double db = likeness(&r, kinds[i].rate, 1, 12000, shift);
            if (db > best) best = db;
            if (best > 15) break;
        }
        print_message("%-10s %zu samples, %.1f dB\n", r.container, r.count, best);
        assert_true(best > 15);
        assert_true(r.count >= 44000 && r.count < 48000);
        th_recording_free(&r);
    }
}

/* libsndfile's own reading of the same file, sample for sample; and once more behind an ID3 tag. */
static void mp3_equals_libsndfile(void **state)
{
    struct th_recording r;
    char *bytes;
    size_t count;
    static const char tag[20] = "ID3\4\0\0\0\0\0\12";
    (void)state;
    write_file(SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 44100, 1, 50000);
    SF_INFO info = {0};
    SNDFILE *file = sf_open(name, SFM_READ, &info);
    assert_non_null(file);
    float *wanted = test_calloc(60000, sizeof *wanted);
    sf_count_t frames = sf_readf_float(file, wanted, 60000);
    sf_close(file);
    assert_int_equal(th_file_read(name, 1 << 20, &bytes, &count, NULL), THESPIS_OK);
    char *tagged = test_malloc(count + sizeof tag);
    memcpy(tagged, tag, sizeof tag);
    memcpy(tagged + sizeof tag, bytes, count);
    for (int with_tag = 0; with_tag < 2; with_tag++) {
        thespis_error error;
        if (th_recording_read_bytes(with_tag ? tagged : bytes, with_tag ? count + sizeof tag : count, "x", 60, &r, &error) !=
            THESPIS_OK)
            fail_msg("%s", error.message);
        assert_int_equal(r.count, frames);
        assert_memory_equal(r.samples, wanted, r.count * sizeof *wanted);
        th_recording_free(&r);
    }
    /* Cut in the middle, as downloads are, it is as long as what is there. */
    assert_int_equal(th_recording_read_bytes(bytes, count / 2, "x", 60, &r, NULL), THESPIS_OK);
    assert_true(r.count > 15000 && r.count < 30000);
    th_recording_free(&r);
    test_free(tagged);
    test_free(wanted);
    th_free(bytes);
}

static void long_mp3_is_refused(void **state)
{
    struct th_recording r;
    struct rusage before, after;
    thespis_error error;
    (void)state;
    /* Ten minutes of it hold 106 MB of samples, and few bytes of file. */
    write_file(SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 16000, 1, 600 * 16000);
    getrusage(RUSAGE_SELF, &before);
    assert_int_equal(th_recording_read_file(name, 5, &r, &error), THESPIS_LIMIT);
    getrusage(RUSAGE_SELF, &after);
    assert_null(r.samples);
    assert_non_null(strstr(error.message, "at most 5 are taken"));
    print_message("refusing took %ld KiB\n", after.ru_maxrss - before.ru_maxrss);
    assert_true(after.ru_maxrss - before.ru_maxrss < 24 * 1024);
}

static void limits(void **state)
{
    static const int formats[] = {SF_FORMAT_WAV | SF_FORMAT_PCM_16, SF_FORMAT_WAV | SF_FORMAT_ULAW,
                                  SF_FORMAT_FLAC | SF_FORMAT_PCM_16};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct th_recording r;
        thespis_error error;
        write_file(formats[i], 8000, 1, 8000);
        assert_int_equal(th_recording_read_file(name, 1, &r, NULL), THESPIS_OK);
        assert_int_equal(r.count, 44100);
        th_recording_free(&r);
        assert_int_equal(th_recording_read_file(name, 0, &r, NULL), THESPIS_OK);
        th_recording_free(&r);
        write_file(formats[i], 8000, 1, 8001);
        assert_int_equal(th_recording_read_file(name, 1, &r, &error), THESPIS_LIMIT);
        assert_null(r.samples);
    }
}

static void mean_of_channels(void **state)
{
    /* fp32 sums in the order of the channels: big, small, -big leaves 0 here, not small. */
    static const uint8_t head[] = {'R', 'I', 'F', 'F', 0,  0, 0,   0,   'W', 'A',  'V',  'E', 'f', 'm',  't',
                                   ' ', 16,  0,   0,   0,  3, 0,   3,   0,   0x44, 0xAC, 0,   0,   0x30, 0x13,
                                   8,   0,   12,  0,   32, 0, 'd', 'a', 't', 'a',  24,   0,   0,   0};
    static const float frames[2][3] = {{1e8f, 1, -1e8f}, {0.5f, 0.25f, 0.75f}};
    uint8_t file[sizeof head + sizeof frames];
    struct th_recording r;
    (void)state;
    memcpy(file, head, sizeof head);
    memcpy(file + sizeof head, frames, sizeof frames);
    assert_int_equal(th_recording_read_bytes(file, sizeof file, "x", 0, &r, NULL), THESPIS_OK);
    assert_int_equal(r.count, 2);
    assert_true(r.samples[0] == 0 && r.samples[1] == 0.5f);
    th_recording_free(&r);
}

static void silence_is_allowed(void **state)
{
    struct th_sound_writer writer;
    struct th_recording r;
    float zeros[100] = {0};
    (void)state;
    assert_int_equal(th_sound_open(name, TH_SOUND_WAV16, 22050, &writer, NULL), THESPIS_OK);
    assert_int_equal(th_sound_write(&writer, zeros, 100, NULL), THESPIS_OK);
    assert_int_equal(th_sound_close(&writer, NULL), THESPIS_OK);
    assert_int_equal(th_recording_read_file(name, 60, &r, NULL), THESPIS_OK);
    assert_int_equal(r.count, 200);
    for (size_t i = 0; i < r.count; i++) assert_true(r.samples[i] == 0);
    th_recording_free(&r);
}

static void refuse(const void *bytes, size_t count, thespis_status wanted, const char *words)
{
    struct th_recording r;
    thespis_error error;
    assert_int_equal(th_recording_read_bytes(bytes, count, "voice", 60, &r, &error), wanted);
    assert_null(r.samples);
    if (strstr(error.message, words) == NULL) fail_msg("'%s' not in '%s'", words, error.message);
    assert_non_null(strstr(error.message, "voice"));
}

static void what_is_refused(void **state)
{
    uint8_t bytes[64] = {0};
    (void)state;
    refuse("", 0, THESPIS_FORMAT, "empty");
    refuse("R", 1, THESPIS_FORMAT, "not a recording");
    refuse("RIFF\0\0\0\0WAVE", 12, THESPIS_FORMAT, "without a fmt");
    refuse("RIFX\0\0\0\0WAVE", 12, THESPIS_FORMAT, "RIFX");
    refuse(bytes, sizeof bytes, THESPIS_FORMAT, "not a recording that can be read (64 bytes)");
    refuse("hello, this is text and no sound", 32, THESPIS_FORMAT, "not a recording");
    refuse("\x1A\x45\xDF\xA3 and more of it", 20, THESPIS_UNSUPPORTED, "looks like WebM");
    refuse("\0\0\0\x20"
           "ftypM4A and more",
           20, THESPIS_UNSUPPORTED, "looks like MP4");
    refuse("\x30\x26\xB2\x75\x8E\x66\xCF\x11 and more", 16, THESPIS_UNSUPPORTED, "looks like WMA");
    refuse("RIFF\0\0\0\0AVI LIST", 16, THESPIS_UNSUPPORTED, "looks like AVI");
    refuse("\xFF\xF1\x50\x80 adts adts", 14, THESPIS_UNSUPPORTED, "looks like an AAC");
    refuse("\x93NUMPY\1\0", 8, THESPIS_UNSUPPORTED, ".npy");
    refuse("<!DOCTYPE html>", 15, THESPIS_UNSUPPORTED, "HTML");
}

static void wrong_paths(void **state)
{
    struct th_recording r;
    thespis_error error;
    char fifo[64];
    (void)state;
    assert_int_equal(th_recording_read_file("/nonexistent.wav", 60, &r, &error), THESPIS_IO);
    assert_non_null(strstr(error.message, "/nonexistent.wav"));
    assert_int_equal(th_recording_read_file(folder, 60, &r, &error), THESPIS_IO);
    assert_non_null(strstr(error.message, "folder"));
    assert_int_equal(th_recording_read_file("/dev/zero", 60, &r, &error), THESPIS_IO);
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(th_recording_read_file(fifo, 60, &r, &error), THESPIS_IO); /* and does not wait for a writer */
    unlink(fifo);
    /* A sparse file of 2 GiB is refused by its size. */
    FILE *file = fopen(name, "wb");
    assert_non_null(file);
    assert_int_equal(ftruncate(fileno(file), (off_t)2 << 30), 0);
    fclose(file);
    assert_int_equal(th_recording_read_file(name, 60, &r, &error), THESPIS_LIMIT);
    file = fopen(name, "wb");
    fclose(file);
    assert_int_equal(th_recording_read_file(name, 60, &r, &error), THESPIS_FORMAT);
    assert_non_null(strstr(error.message, "empty"));
}

/* Cuts and flips bits of real files of each kind; whatever comes out, nothing may crash, hang or leak. */
static void broken_files(void **state)
{
    static const int formats[] = {SF_FORMAT_FLAC | SF_FORMAT_PCM_16, SF_FORMAT_OGG | SF_FORMAT_VORBIS,
                                  SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, SF_FORMAT_AIFF | SF_FORMAT_PCM_16,
                                  SF_FORMAT_WAV | SF_FORMAT_ULAW};
    uint64_t seed = 4242;
    (void)state;
    /* Nothing may reach standard error either: decoders like to talk about broken frames. */
    int said[2], loud = dup(STDERR_FILENO);
    char word;
    assert_int_equal(pipe2(said, O_NONBLOCK | O_CLOEXEC), 0);
    assert_true(loud >= 0 && dup2(said[1], STDERR_FILENO) >= 0);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        char *bytes;
        size_t count;
        write_file(formats[i], 16000, 1, 4000);
        assert_int_equal(th_file_read(name, 1 << 20, &bytes, &count, NULL), THESPIS_OK);
        for (int round = 0; round < 200; round++) {
            struct th_recording r;
            thespis_error error;
            size_t n = count;
            char *copy = test_malloc(count);
            memcpy(copy, bytes, count);
            for (int flips = round % 4; flips > 0; flips--) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                copy[(seed >> 33) % (flips == 1 ? 64 : count)] ^= (char)(1u << ((seed >> 20) & 7));
            }
            if (round % 4 == 0) n = count * (size_t)round / 200;
            if (th_recording_read_bytes(copy, n, "x", 60, &r, &error) != THESPIS_OK) assert_null(r.samples);
            for (size_t k = 0; k < r.count; k++) assert_true(isfinite(r.samples[k]));
            th_recording_free(&r);
            test_free(copy);
        }
        th_free(bytes);
    }
    dup2(loud, STDERR_FILENO);
    close(loud);
    assert_int_equal(read(said[0], &word, 1), -1);
    close(said[0]);
    close(said[1]);
}

#ifdef TH_FAULTS
static void allocations_may_fail(void **state)
{
    static const int formats[] = {SF_FORMAT_WAV | SF_FORMAT_PCM_16, SF_FORMAT_FLAC | SF_FORMAT_PCM_16,
                                  SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        write_file(formats[i], 16000, 2, 20000);
        for (long n = 1, done = 0; !done; n++) {
            struct th_recording r;
            thespis_error error;
            th_memory_fail_from(n);
            thespis_status status = th_recording_read_file(name, 60, &r, &error);
            th_memory_fail_from(0);
            done = status == THESPIS_OK;
            if (!done) assert_int_equal(status, THESPIS_MEMORY);
            if (!done) assert_null(r.samples);
            if (done) assert_true(n > 4);
            th_recording_free(&r);
        }
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_read_back),      cmocka_unit_test(delayed_kinds),   cmocka_unit_test(mp3_equals_libsndfile),
        cmocka_unit_test(long_mp3_is_refused),  cmocka_unit_test(limits),          cmocka_unit_test(mean_of_channels),
        cmocka_unit_test(silence_is_allowed),   cmocka_unit_test(what_is_refused), cmocka_unit_test(wrong_paths),
        cmocka_unit_test(broken_files),
#ifdef TH_FAULTS
        cmocka_unit_test(allocations_may_fail),
#endif
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
