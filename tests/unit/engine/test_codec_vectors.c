/* test_codec_vectors.c - generated codecs against the third-party one (tools/oracle/make_vectors.py): a decode in chunks of any
 * size gives the same bytes and, at the chunks' seams and past what the codec looks back, the reference's samples; encoding gives
 * its codes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/npy.h"
#include "engine/parts.h"

#define VECTORS TEST_SOURCE_DIR "/tests/vectors/codec"
#define LEAST_SNR 100.0
#define FRAME THESPIS_FRAME_SAMPLES

static void load(const char *codec, const char *name, struct th_npy *array)
{
    char path[600];
    thespis_error error;
    snprintf(path, sizeof path, VECTORS "/%s/%s.npy", codec, name);
    if (th_npy_read(path, (size_t)1 << 24, array, &error) != THESPIS_OK) fail_msg("%s", error.message);
}

/* Makes the codec that codec.json names, and opens it alone. */
static void open_codec(const char *codec, struct th_parts *parts)
{
    char path[600], command[1800], name[64];
    thespis_error error;
    snprintf(path, sizeof path, VECTORS "/%s/codec.json", codec);
    json_error_t where;
    json_t *json = json_load_file(path, 0, &where);
    assert_non_null(json);
    snprintf(name, sizeof name, "%s", json_string_value(json_object_get(json, "codec")));
    long long seed = json_integer_value(json_object_get(json, "seed"));
    json_decref(json);
    snprintf(path, sizeof path, TEST_BINARY_DIR "/codecs/%s-%lld", name, seed);
    snprintf(command, sizeof command,
             "mkdir -p '" TEST_BINARY_DIR "/codecs' && '" TEST_BINARY_DIR
             "/make_checkpoint' --no-model --codec %s --seed %lld '%s' >/dev/null",
             name, seed, path);
    assert_int_equal(system(command), 0);
    strcat(path, "/codec.pth");
    thespis_engine_options options;
    thespis_engine_options_init(&options);
    options.codec = path;
    options.backend = THESPIS_BACKEND_CPU;
    if (th_parts_open(&options, TH_PARTS_NEED_CODEC, parts, &error) != THESPIS_OK) fail_msg("%s", error.message);
}

/* Decodes in chunks of `first`, then of `rest` frames. */
static void decode(struct th_parts *parts, const int32_t *codes, int frames, int first, int rest, float *samples)
{
    struct th_backend *backend = parts->backend;
    struct th_codec_stream *stream;
    thespis_error error;
    assert_int_equal(backend->ops->codec_open(backend, &stream, &error), THESPIS_OK);
    for (int done = 0, n = first; done < frames; done += n, n = rest) {
        if (n > frames - done) n = frames - done;
        thespis_status status = backend->ops->codec_decode(backend, stream, codes + (size_t)done * (size_t)parts->codebooks, n,
                                                           samples + (size_t)done * FRAME, &error);
        if (status != THESPIS_OK) fail_msg("%s", error.message);
    }
    backend->ops->codec_close(backend, stream);
}

/* Whether the samples of the kept frames are the reference's; returns the signal to noise ratio in dB. */
static double snr(const struct th_npy *kept, const struct th_npy *waveform, const float *samples)
{
    double signal = 0, noise = 0;
    for (int64_t i = 0; i < waveform->count; i++) {
        double want = th_npy_float(waveform, i);
        double got = (double)samples[th_npy_int(kept, i / FRAME) * FRAME + i % FRAME];
        signal += want * want;
        noise += (got - want) * (got - want);
    }
    return 10 * log10(signal / noise);
}

static void decoding(const char *codec)
{
    static const int chunks[][2] = {{64, 64}, {1, 1}, {4, 32}, {7, 5}};
    struct th_parts parts;
    struct th_npy frames, kept, waveform;
    open_codec(codec, &parts);
    load(codec, "frames", &frames);
    load(codec, "kept_frames", &kept);
    load(codec, "waveform", &waveform);
    assert_int_equal(frames.shape[0], parts.codebooks);
    assert_int_equal(waveform.count, kept.count * FRAME);
    int count = (int)frames.shape[1];
    int32_t *codes = th_alloc((size_t)frames.count, sizeof *codes);
    float *first = th_alloc((size_t)count * FRAME, sizeof *first), *again = th_alloc((size_t)count * FRAME, sizeof *again);
    assert_true(codes && first && again);
    for (int64_t i = 0; i < frames.count; i++)
        codes[i] = (int32_t)th_npy_int(&frames, i % parts.codebooks * count + i / parts.codebooks);
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
        decode(&parts, codes, count, chunks[c][0], chunks[c][1], c == 0 ? first : again);
        if (c > 0) assert_memory_equal(first, again, (size_t)count * FRAME * sizeof *first);
    }
    double ratio = snr(&kept, &waveform, first);
    print_message("%s: %.1f dB\n", codec, ratio);
    assert_true(ratio >= LEAST_SNR);
    th_free(codes);
    th_free(first);
    th_free(again);
    th_npy_free(&frames);
    th_npy_free(&kept);
    th_npy_free(&waveform);
    th_parts_close(&parts);
}

static void encoding(const char *codec)
{
    struct th_parts parts;
    struct th_npy recording, want;
    thespis_error error;
    open_codec(codec, &parts);
    load(codec, "recording", &recording);
    load(codec, "codes", &want);
    int64_t frames = (recording.count + FRAME - 1) / FRAME, equal = 0;
    assert_int_equal(want.shape[0], parts.codebooks);
    assert_int_equal(want.shape[1], frames);
    float *samples = th_alloc((size_t)recording.count, sizeof *samples);
    int32_t *codes = th_alloc((size_t)(frames * parts.codebooks), sizeof *codes);
    assert_true(samples && codes);
    for (int64_t i = 0; i < recording.count; i++) samples[i] = (float)th_npy_int(&recording, i) / 32768.0f;
    thespis_status status =
        parts.backend->ops->codec_encode(parts.backend, samples, (size_t)recording.count, codes, NULL, NULL, &error);
    if (status != THESPIS_OK) fail_msg("%s", error.message);
    for (int64_t b = 0; b < parts.codebooks; b++)
        for (int64_t f = 0; f < frames; f++) equal += codes[f * parts.codebooks + b] == th_npy_int(&want, b * frames + f);
    print_message("%s: %d of %d codes equal\n", codec, (int)equal, (int)want.count);
    assert_int_equal(equal, want.count);
    th_free(samples);
    th_free(codes);
    th_npy_free(&recording);
    th_npy_free(&want);
    th_parts_close(&parts);
}

static void decodes_as_the_reference(void **state)
{
    (void)state;
    decoding("tiny");
    decoding("wide-heads");
    decoding("odd");
}

static void encodes_as_the_reference(void **state)
{
    (void)state;
    encoding("tiny");
    encoding("wide-heads");
    encoding("odd");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(decodes_as_the_reference), cmocka_unit_test(encodes_as_the_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
