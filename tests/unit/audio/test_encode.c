/* Audio going out: each format decoded back by its own library, whole and streamed, cut in every way. */
#include <math.h>
#include <setjmp.h>
#include <sndfile.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "audio/encode.h"
#include "audio/mono.h"
#include "audio/rate.h"
#include "audio/wav.h"
#include "base/memory.h"

#define COUNT (2048 * 37 + 11) /* 1.7 s, no whole number of anybody's blocks */
static float sound[COUNT];

/* Vowel-like: a gliding tone with harmonics under a slow envelope, peaks of 0.8. */
static int make_sound(void **state)
{
    (void)state;
    double phase = 0;
    for (int i = 0; i < COUNT; i++) {
        double t = i / 44100.0, f = 140 + 60 * sin(3 * t);
        phase += 2 * M_PI * f / 44100;
        double x = sin(phase) + 0.5 * sin(3 * phase + 1) + 0.25 * sin(11 * phase);
        sound[i] = (float)(0.45 * x * (0.55 + 0.45 * sin(9 * t)));
    }
    return 0;
}

/* Writes of `piece` samples; 0: of sizes that change all the time. */
static void encode(const struct th_encoder_options *options, const float *samples, size_t count, size_t piece, struct th_bytes *out)
{
    struct th_encoder *e;
    thespis_error error;
    if (th_encoder_open(options, &e, &error) != THESPIS_OK) fail_msg("%s", error.message);
    uint32_t state = 12345;
    for (size_t done = 0; done < count;) {
        state = state * 1664525u + 1013904223u;
        size_t n = piece > 0 ? piece : state >> 8 & 8191;
        if (n > count - done) n = count - done;
        assert_int_equal(th_encoder_write(e, samples + done, n, out, &error), THESPIS_OK);
        done += n;
    }
    assert_int_equal(th_encoder_finish(e, out, &error), THESPIS_OK);
    assert_int_equal(th_encoder_finish(e, out, &error), THESPIS_INVALID);
    assert_int_equal(th_encoder_write(e, samples, 1, out, &error), THESPIS_INVALID);
    th_encoder_close(e);
}

/* ---- decoding back ------------------------------------------------------------------------------------------------------------
 */

struct reader {
    const uint8_t *bytes;
    sf_count_t count, at;
};

static sf_count_t reader_length(void *context)
{
    return ((struct reader *)context)->count;
}

static sf_count_t reader_seek(sf_count_t offset, int whence, void *context)
{
    struct reader *r = context;
    r->at = offset + (whence == SEEK_CUR ? r->at : whence == SEEK_END ? r->count : 0);
    return r->at;
}

static sf_count_t reader_read(void *to, sf_count_t count, void *context)
{
    struct reader *r = context;
    if (count > r->count - r->at) count = r->count - r->at;
    memcpy(to, r->bytes + r->at, (size_t)count);
    r->at += count;
    return count;
}

static sf_count_t reader_tell(void *context)
{
    return ((struct reader *)context)->at;
}

/* Everything there is, through libsndfile; the caller frees. */
static float *decode(const struct th_bytes *bytes, size_t *count, int *rate)
{
    SF_VIRTUAL_IO io = {reader_length, reader_seek, reader_read, NULL, reader_tell};
    struct reader r = {bytes->at, (sf_count_t)bytes->count, 0};
    SF_INFO info = {0};
    SNDFILE *file = sf_open_virtual(&io, SFM_READ, &info, &r);
    if (file == NULL) fail_msg("%s", sf_strerror(NULL));
    assert_int_equal(info.channels, 1);
    *rate = info.samplerate;
    size_t room = 48000 * 10;
    float *samples = th_alloc(room, sizeof *samples);
    *count = (size_t)sf_read_float(file, samples, (sf_count_t)room);
    assert_true(*count < room);
    sf_close(file);
    return samples;
}

static float *decode_mp3(const struct th_bytes *bytes, size_t *count, int *rate)
{
    struct th_mono mono = {.name = "mp3"};
    thespis_error error;
    if (th_mp3_decode(bytes->at, bytes->count, &mono, &error) != THESPIS_OK) fail_msg("%s", error.message);
    *rate = mono.rate;
    *count = mono.count;
    return mono.samples;
}

/* In dB, of `heard` against `meant`, at the best of the shifts 0..most. */
static double likeness(const float *meant, size_t count, const float *heard, size_t heard_count, int most, int *shift)
{
    double best = -100;
    for (int s = 0; s <= most; s++) {
        double signal = 0, noise = 1e-20;
        for (size_t i = 0; i < count && i + (size_t)s < heard_count; i++) {
            double d = (double)heard[i + (size_t)s] - meant[i];
            signal += (double)meant[i] * meant[i];
            noise += d * d;
        }
        double db = 10 * log10(signal / noise);
        if (db > best) {
            best = db;
            *shift = s;
        }
    }
    return best;
}

/* ---- tests --------------------------------------------------------------------------------------------------------------------
 */

static void test_same_bytes_however_cut(void **state)
{
    (void)state;
    static const int rates[] = {0, 8000, 16000, 24000, 44100, 48000};
    size_t formats;
    const struct th_audio_format *format = th_audio_formats(&formats);
    for (size_t f = 0; f < formats; f++)
        for (size_t r = 0; r < sizeof rates / sizeof *rates; r++)
            for (int streamed = 0; streamed < 2; streamed++) {
                struct th_encoder_options o = {format[f].name, rates[r], 0, streamed};
                if (strcmp(o.format, "opus") == 0 && rates[r] != 0 && rates[r] != 48000) continue;
                struct th_bytes one = {0}, many = {0}, odd = {0};
                encode(&o, sound, COUNT, COUNT, &one);
                encode(&o, sound, COUNT, 601, &many);
                encode(&o, sound, COUNT, 0, &odd);
                assert_true(one.count > 1000);
                assert_int_equal(one.count, many.count);
                assert_memory_equal(one.at, many.at, one.count);
                assert_int_equal(one.count, odd.count);
                assert_memory_equal(one.at, odd.at, one.count);
                th_bytes_free(&one);
                th_bytes_free(&many);
                th_bytes_free(&odd);
            }
}

static uint32_t u32(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void test_wav_sizes(void **state)
{
    (void)state;
    struct th_bytes whole = {0}, stream = {0}, pcm = {0};
    encode(&(struct th_encoder_options){.format = "wav"}, sound, COUNT, 4096, &whole);
    encode(&(struct th_encoder_options){.format = "wav", .streamed = 1}, sound, COUNT, 4096, &stream);
    encode(&(struct th_encoder_options){.format = "pcm"}, sound, COUNT, 4096, &pcm);
    assert_int_equal(pcm.count, 2 * COUNT);
    assert_int_equal(whole.count, 44 + 2 * COUNT);
    assert_int_equal(stream.count, 44 + 2 * COUNT);
    assert_int_equal(u32(whole.at + 4), whole.count - 8);
    assert_int_equal(u32(whole.at + 40), 2 * COUNT);
    assert_int_equal(u32(stream.at + 4), UINT32_MAX);
    assert_int_equal(u32(stream.at + 40), UINT32_MAX);
    assert_memory_equal(whole.at + 44, pcm.at, pcm.count);
    assert_memory_equal(stream.at + 44, pcm.at, pcm.count);
    th_bytes_free(&whole);
    th_bytes_free(&stream);
    th_bytes_free(&pcm);
}

static void test_conversion(void **state)
{
    (void)state;
    const float in[] = {0, 1, -1, 2, -2, NAN, INFINITY, -INFINITY, 0.5f / 32767, 1.5f / 32767, 2.5f / 32767, -0.5f / 32767};
    const int16_t out[] = {0, 32767, -32767, 32767, -32767, 0, 32767, -32767, 0, 2, 2, 0};
    struct th_bytes pcm = {0};
    encode(&(struct th_encoder_options){.format = "pcm"}, in, 12, 12, &pcm);
    assert_int_equal(pcm.count, sizeof out);
    assert_memory_equal(pcm.at, out, sizeof out);
    th_bytes_free(&pcm);
}

/* Whole and streamed, each rate: exactly the samples of pcm at that rate. */
static void test_lossless(void **state)
{
    (void)state;
    static const char *const names[] = {"wav", "flac"};
    static const int rates[] = {44100, 24000, 8000, 48000, 12345};
    for (int n = 0; n < 2; n++)
        for (int r = 0; r < 5; r++)
            for (int streamed = 0; streamed < 2; streamed++) {
                struct th_bytes bytes = {0}, pcm = {0};
                encode(&(struct th_encoder_options){"pcm", rates[r], 0, streamed}, sound, COUNT, 0, &pcm);
                encode(&(struct th_encoder_options){names[n], rates[r], 0, streamed}, sound, COUNT, 0, &bytes);
                size_t count;
                int rate;
                float *heard = decode(&bytes, &count, &rate);
                assert_int_equal(rate, rates[r]);
                assert_int_equal(count, th_rate_length(COUNT, 44100, rate));
                assert_int_equal(pcm.count, 2 * count);
                for (size_t i = 0; i < count; i++)
                    assert_int_equal((int)lrintf(heard[i] * 32768), (int16_t)(pcm.at[2 * i] | pcm.at[2 * i + 1] << 8));
                th_free(heard);
                th_bytes_free(&bytes);
                th_bytes_free(&pcm);
            }
}

/* STREAMINFO: bytes 18..25 hold the rate, channels, bits and 36 bits of total; then 16 of MD5. */
static void test_flac_header(void **state)
{
    (void)state;
    for (int streamed = 0; streamed < 2; streamed++) {
        struct th_bytes flac = {0};
        encode(&(struct th_encoder_options){.format = "flac", .streamed = streamed}, sound, COUNT, 4096, &flac);
        assert_memory_equal(flac.at, "fLaC", 4);
        uint64_t total = 0;
        for (int i = 21; i < 26; i++) total = total << 8 | flac.at[i];
        total &= ((uint64_t)1 << 36) - 1;
        assert_int_equal(total, streamed ? 0 : COUNT);
        static const uint8_t none[16];
        assert_int_equal(memcmp(flac.at + 26, none, 16) == 0, streamed);
        th_bytes_free(&flac);
    }
}

static void test_mp3(void **state)
{
    (void)state;
    static const struct {
        int rate, bitrate;
        double db;
    } cases[] = {{44100, 0, 55}, {44100, 64, 45}, {44100, 192, 55}, {24000, 64, 50},
                 {8000, 0, 50},  {8000, 128, 50}, {24000, 192, 55}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct th_bytes mp3 = {0}, again = {0}, pcm = {0};
        encode(&(struct th_encoder_options){"mp3", cases[c].rate, cases[c].bitrate, 0}, sound, COUNT, 0, &mp3);
        encode(&(struct th_encoder_options){"mp3", cases[c].rate, cases[c].bitrate, 1}, sound, COUNT, 0, &again);
        assert_int_equal(mp3.count, again.count);
        assert_memory_equal(mp3.at, again.at, mp3.count);
        encode(&(struct th_encoder_options){"pcm", cases[c].rate, 0, 0}, sound, COUNT, 0, &pcm);
        size_t count, meant_count = pcm.count / 2;
        int rate, shift = 0;
        float *heard = decode_mp3(&mp3, &count, &rate), *meant = th_alloc(meant_count, sizeof *meant);
        for (size_t i = 0; i < meant_count; i++) meant[i] = (float)(int16_t)(pcm.at[2 * i] | pcm.at[2 * i + 1] << 8) / 32768;
        assert_int_equal(rate, cases[c].rate);
        assert_true(count >= meant_count && count < meant_count + 4 * 1152);
        double db = likeness(meant, meant_count, heard, count, 2000, &shift);
        print_message("mp3 %d Hz %d kb/s: %zu bytes, %.1f dB, delay %d\n", rate, cases[c].bitrate, mp3.count, db, shift);
        assert_true(db > cases[c].db);
        th_free(heard);
        th_free(meant);
        th_bytes_free(&mp3);
        th_bytes_free(&again);
        th_bytes_free(&pcm);
    }
}

/* The pages of an Ogg stream: no page longer than 200 ms, one stream, granule of the end = pre-skip + samples at 48 kHz. */
static void check_pages(const struct th_bytes *opus, uint64_t samples)
{
    uint64_t last = 0, skip = 0;
    int page = 0, ended = 0;
    for (size_t at = 0; at < opus->count; page++) {
        const uint8_t *p = opus->at + at;
        assert_memory_equal(p, "OggS", 4);
        assert_int_equal(u32(p + 14), u32(opus->at + 14));
        uint64_t granule = u32(p + 6) | (uint64_t)u32(p + 10) << 32;
        size_t body = 0;
        for (int i = 0; i < p[26]; i++) body += p[27 + i];
        const uint8_t *packet = p + 27 + p[26];
        if (page == 0) {
            assert_memory_equal(packet, "OpusHead", 8);
            skip = packet[10] | (uint64_t)packet[11] << 8;
        } else if (page >= 2) {
            assert_true(granule - last <= 9600);
            last = granule;
        }
        ended = p[5] & 4;
        at += 27 + p[26] + body;
    }
    assert_true(ended);
    assert_int_equal(last, skip + samples);
}

static void test_opus(void **state)
{
    (void)state;
    static const int bitrates[] = {0, 24, 32, 48, TH_BITRATE_AUTO};
    struct th_bytes pcm = {0};
    encode(&(struct th_encoder_options){"pcm", 48000, 0, 0}, sound, COUNT, 0, &pcm);
    size_t meant_count = pcm.count / 2;
    float *meant = th_alloc(meant_count, sizeof *meant);
    for (size_t i = 0; i < meant_count; i++) meant[i] = (float)(int16_t)(pcm.at[2 * i] | pcm.at[2 * i + 1] << 8) / 32768;
    for (int b = 0; b < 5; b++) {
        struct th_bytes opus = {0};
        encode(&(struct th_encoder_options){"opus", 0, bitrates[b], 1}, sound, COUNT, 0, &opus);
        check_pages(&opus, meant_count);
        size_t count;
        int rate, shift = 0;
        float *heard = decode(&opus, &count, &rate);
        assert_int_equal(rate, 48000);
        assert_int_equal(count, meant_count);
        double db = likeness(meant, meant_count, heard, count, 200, &shift);
        print_message("opus %d kb/s: %zu bytes, %.1f dB, delay %d\n", bitrates[b], opus.count, db, shift);
        assert_int_equal(shift, 0);
        assert_true(db > 8);
        th_free(heard);
        th_bytes_free(&opus);
    }
    th_free(meant);
    th_bytes_free(&pcm);
}

/* ADTS: frames one behind the other, each of the rate asked for, as many as give all samples behind the encoder's delay. (No
 * library that reads AAC may be linked here; tests/long/test_clients.py has it decoded.) */
static void check_frames(const struct th_bytes *aac, int index, size_t samples, int bits_per_frame)
{
    size_t frames = 0;
    for (size_t at = 0; at < aac->count; frames++) {
        const uint8_t *p = aac->at + at;
        assert_true(at + 7 <= aac->count);
        assert_int_equal(p[0] << 4 | p[1] >> 4, 0xFFF);
        assert_int_equal(p[2] >> 6, 1);                   /* low complexity */
        assert_int_equal(p[2] >> 2 & 15, index);          /* of the rate */
        assert_int_equal((p[2] & 1) << 2 | p[3] >> 6, 1); /* channels */
        at += (size_t)((p[3] & 3) << 11 | p[4] << 3 | p[5] >> 5);
        assert_true(at <= aac->count);
    }
    assert_int_equal(frames, (samples + 1600 + 1023) / 1024);
    double bits = 8.0 * (double)aac->count / (double)frames;
    if (!(bits > 0.9 * bits_per_frame && bits < 1.1 * bits_per_frame)) fail_msg("%.0f bits a frame, not %d", bits, bits_per_frame);
}

static void test_aac(void **state)
{
    (void)state;
    static const struct {
        int rate, index, bitrate, got;
    } cases[] = {{0, 4, 0, 96},      {44100, 4, 64, 64}, {44100, 4, 160, 160}, {44100, 4, 320, 160}, {48000, 3, 128, 128},
                 {32000, 5, 96, 96}, {24000, 6, 96, 96}, {22050, 7, 48, 48},   {16000, 8, 0, 96},    {12000, 9, 0, 72},
                 {11025, 10, 0, 66}, {8000, 11, 0, 48},  {8000, 11, 16, 16}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct th_bytes whole = {0}, stream = {0};
        encode(&(struct th_encoder_options){"aac", cases[c].rate, cases[c].bitrate, 0}, sound, COUNT, 0, &whole);
        encode(&(struct th_encoder_options){"aac", cases[c].rate, cases[c].bitrate, 1}, sound, COUNT, 0, &stream);
        assert_int_equal(whole.count, stream.count);
        assert_memory_equal(whole.at, stream.at, whole.count);
        int rate = cases[c].rate != 0 ? cases[c].rate : 44100;
        print_message("aac %d Hz %d kb/s: %zu bytes\n", rate, cases[c].bitrate, whole.count);
        check_frames(&whole, cases[c].index, th_rate_length(COUNT, 44100, rate), cases[c].got * 1000 * 1024 / rate);
        th_bytes_free(&whole);
        th_bytes_free(&stream);
    }
}

/* The first burst of speech, four frames, already gives bytes to play. */
static void test_first_burst(void **state)
{
    (void)state;
    size_t formats;
    const struct th_audio_format *format = th_audio_formats(&formats);
    for (size_t f = 0; f < formats; f++) {
        struct th_encoder_options o = {format[f].name, 0, 0, 1};
        struct th_encoder *e;
        struct th_bytes out = {0};
        assert_int_equal(th_encoder_open(&o, &e, NULL), THESPIS_OK);
        assert_int_equal(th_encoder_write(e, NULL, 0, &out, NULL), THESPIS_OK);
        size_t header = out.count;
        assert_int_equal(th_encoder_write(e, sound, 4 * 2048, &out, NULL), THESPIS_OK);
        print_message("%s: header %zu, first burst %zu\n", format[f].name, header, out.count - header);
        assert_true(out.count > header + 200);
        th_encoder_close(e); /* in the middle */
        th_bytes_free(&out);
    }
}

/* Noise and steps at full scale, far from speech: encoders written for speech must stand them. */
static void test_loud(void **state)
{
    (void)state;
    enum { LOUD = 20000 };
    static float loud[LOUD];
    uint32_t noise = 1;
    for (int i = 0; i < LOUD; i++) {
        noise = noise * 1664525u + 1013904223u;
        loud[i] = i < LOUD / 2 ? (float)(int32_t)noise / 0x1p31f : i / 37 % 2 ? 1.0f : -1.0f;
    }
    size_t formats;
    const struct th_audio_format *format = th_audio_formats(&formats);
    static const int rates[] = {8000, 44100, 48000}, bitrates[] = {0, 16, 160};
    for (size_t f = 0; f < formats; f++)
        for (int r = 0; r < 3; r++)
            for (int b = 0; b < 3; b++) {
                struct th_encoder_options o = {format[f].name, rates[r], format[f].bitrate > 0 ? bitrates[b] : 0, 1};
                if (strcmp(o.format, "opus") == 0) o.sample_rate = 0;
                if (strcmp(o.format, "mp3") == 0 && o.bitrate == 16 && o.sample_rate != 8000) o.bitrate = 32;
                struct th_bytes out = {0};
                encode(&o, loud, LOUD, 0, &out);
                assert_true(out.count > 400);
                th_bytes_free(&out);
            }
}

static void test_silence_and_nothing(void **state)
{
    (void)state;
    size_t formats;
    const struct th_audio_format *format = th_audio_formats(&formats);
    for (size_t f = 0; f < formats; f++)
        for (int streamed = 0; streamed < 2; streamed++) {
            struct th_bytes out = {0};
            encode(&(struct th_encoder_options){format[f].name, 0, 0, streamed}, NULL, 0, 1, &out);
            if (strcmp(format[f].name, "wav") == 0) assert_int_equal(out.count, 44);
            if (strcmp(format[f].name, "pcm") == 0) assert_int_equal(out.count, 0);
            if (strcmp(format[f].name, "opus") == 0) check_pages(&out, 1);
            th_bytes_free(&out);
        }
}

static void refused(struct th_encoder_options o, thespis_status status, const char *words)
{
    struct th_encoder *e;
    thespis_error error;
    assert_int_equal(th_encoder_open(&o, &e, &error), status);
    assert_null(e);
    if (strstr(error.message, words) == NULL) fail_msg("'%s' does not say '%s'", error.message, words);
}

static void test_refusals(void **state)
{
    (void)state;
    refused((struct th_encoder_options){.format = "vorbis"}, THESPIS_UNSUPPORTED, "wav, pcm, mp3, opus, flac or aac");
    refused((struct th_encoder_options){.format = "MP3"}, THESPIS_UNSUPPORTED, "'MP3'");
    refused((struct th_encoder_options){"wav", 7999, 0, 0}, THESPIS_INVALID, "7999");
    refused((struct th_encoder_options){"wav", 48001, 0, 0}, THESPIS_INVALID, "48001");
    refused((struct th_encoder_options){"wav", 0, 64, 0}, THESPIS_INVALID, "bitrate");
    refused((struct th_encoder_options){"mp3", 12345, 0, 0}, THESPIS_INVALID, "44100");
    refused((struct th_encoder_options){"mp3", 0, 100, 0}, THESPIS_INVALID, "96");
    refused((struct th_encoder_options){"mp3", 0, -1, 0}, THESPIS_INVALID, "320");
    refused((struct th_encoder_options){"mp3", 8000, 60, 0}, THESPIS_INVALID, "56 and 64");
    refused((struct th_encoder_options){"mp3", 0, 321, 0}, THESPIS_INVALID, "320");
    refused((struct th_encoder_options){"aac", 12345, 0, 0}, THESPIS_INVALID, "44100");
    refused((struct th_encoder_options){"aac", 0, 15, 0}, THESPIS_INVALID, "16 to 160");
    refused((struct th_encoder_options){"opus", 24000, 0, 0}, THESPIS_INVALID, "48000");
    refused((struct th_encoder_options){"opus", 0, 600, 0}, THESPIS_INVALID, "600");
    refused((struct th_encoder_options){"opus", 0, 5, 0}, THESPIS_INVALID, "6 to 256");
    size_t formats;
    const struct th_audio_format *format = th_audio_formats(&formats);
    for (size_t f = 0; f < formats; f++) assert_non_null(strstr(th_audio_format_names(), format[f].name));
}

/* Libraries that speak up on standard error would spoil a server's log. */
static void test_quiet(void **state)
{
    (void)state;
    char name[] = "/tmp/thespis-quiet-XXXXXX";
    int to = mkstemp(name), kept = dup(2);
    assert_true(to >= 0 && kept >= 0);
    dup2(to, 2);
    size_t formats;
    const struct th_audio_format *format = th_audio_formats(&formats);
    for (size_t f = 0; f < formats; f++) {
        struct th_bytes out = {0};
        encode(&(struct th_encoder_options){format[f].name, 0, 0, 1}, sound, COUNT, 0, &out);
        th_bytes_free(&out);
    }
    struct th_encoder *e;
    struct th_encoder_options bad = {"mp3", 44100, 1000, 0};
    th_encoder_open(&bad, &e, NULL);
    dup2(kept, 2);
    close(kept);
    assert_int_equal(lseek(to, 0, SEEK_END), 0);
    close(to);
    unlink(name);
}

/* Each of our allocations fails once; nothing leaks (the sanitizer build looks) and the status says memory. */
static void test_no_memory(void **state)
{
    (void)state;
#ifdef TH_FAULTS
    size_t formats;
    const struct th_audio_format *format = th_audio_formats(&formats);
    for (size_t f = 0; f < formats; f++)
        for (int streamed = 0; streamed < 2; streamed++)
            for (long n = 1, ended = 0; !ended; n++) {
                struct th_encoder_options o = {format[f].name, strcmp(format[f].name, "opus") == 0 ? 0 : 24000, 0, streamed};
                struct th_encoder *e;
                struct th_bytes out = {0};
                thespis_error error;
                th_memory_fail_from(n);
                thespis_status status = th_encoder_open(&o, &e, &error);
                if (status == THESPIS_OK) status = th_encoder_write(e, sound, 9000, &out, &error);
                if (status == THESPIS_OK) status = th_encoder_finish(e, &out, &error);
                th_memory_fail_from(0);
                ended = status == THESPIS_OK;
                if (!ended) assert_int_equal(status, THESPIS_MEMORY);
                th_encoder_close(e);
                th_bytes_free(&out);
                assert_true(n < 1000);
            }
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes_however_cut),
        cmocka_unit_test(test_wav_sizes),
        cmocka_unit_test(test_conversion),
        cmocka_unit_test(test_lossless),
        cmocka_unit_test(test_flac_header),
        cmocka_unit_test(test_mp3),
        cmocka_unit_test(test_opus),
        cmocka_unit_test(test_aac),
        cmocka_unit_test(test_first_burst),
        cmocka_unit_test(test_loud),
        cmocka_unit_test(test_silence_and_nothing),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_quiet),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, make_sound, NULL);
}
