/* test_cuda_codec.c - the codec on a device (or the emulator): close to the CPU's samples and codes, the same bytes however a
 * stream is cut or shared, refusals, and failures of every call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "backend/cuda/codec.h"
#include "base/memory.h"
#include "unit/backend/codec_fixture.h"

#define FRAMES 9 /* more than the window of 5 */

static int32_t codes[FRAMES][FIX_BOOKS];
static float whole[FRAMES * TH_CODEC_FRAME], other[FRAMES * TH_CODEC_FRAME];

static void make_codes(void)
{
    for (int f = 0; f < FRAMES; f++)
        for (int i = 0; i < FIX_BOOKS; i++) codes[f][i] = (f * 7 + i * 5 + f * f) % 23;
}

static thespis_status open_device(const struct th_codec *codec, struct th_backend **backend, thespis_error *error)
{
    struct th_backend_options options = {.precision = THESPIS_PRECISION_BF16, .threads = 1, .act_quant = 1};
    return th_cuda_backend_open(NULL, codec, &options, backend, error);
}

/* Which form of its product the next codec takes: plain float32, or split in halves on tensor cores. */
static void take_form(int plain)
{
    assert_int_equal(setenv("THESPIS_CUDA_CODEC", plain ? "plain" : "split", 1), 0);
}

static struct th_backend *must_open(const struct th_codec *codec)
{
    struct th_backend *backend;
    thespis_error error = {0};
    if (open_device(codec, &backend, &error) != THESPIS_OK) fail_msg("%s", error.message);
    return backend;
}

/* Decodes in chunks of the sizes given, the last size repeated. */
static void decode(struct th_backend *backend, struct th_codec_stream *stream, const int32_t *from, int books, int frames,
                   const int *sizes, int count, float *samples)
{
    for (int f = 0, i = 0; f < frames; i++) {
        int n = sizes[i < count ? i : count - 1];
        if (n > frames - f) n = frames - f;
        assert_int_equal(backend->ops->codec_decode(backend, stream, from + f * books, n, samples + f * TH_CODEC_FRAME, NULL),
                         THESPIS_OK);
        f += n;
    }
}

static void decode_fresh(struct th_backend *backend, const int *sizes, int count, float *samples)
{
    struct th_codec_stream *stream;
    assert_int_equal(backend->ops->codec_open(backend, &stream, NULL), THESPIS_OK);
    decode(backend, stream, codes[0], FIX_BOOKS, FRAMES, sizes, count, samples);
    backend->ops->codec_close(backend, stream);
}

/* dB of `want` over the difference. */
static double snr(const float *want, const float *have, size_t n)
{
    double signal = 0, noise = 1e-300;
    for (size_t i = 0; i < n; i++) {
        double d = (double)have[i] - (double)want[i];
        signal += (double)want[i] * (double)want[i];
        noise += d * d;
    }
    return 10 * log10(signal / noise);
}

static void samples_as_on_the_cpu(void **state)
{
    (void)state;
    struct fixture *f = fix_make(1, 0);
    struct th_cpu cpu;
    struct th_codec_stream *stream;
    assert_int_equal(fix_open(&cpu, &f->codec, NULL, 1, NULL), THESPIS_OK);
    assert_int_equal(th_cpu_codec_open(&cpu.base, &stream, NULL), THESPIS_OK);
    assert_int_equal(th_cpu_codec_decode(&cpu.base, stream, codes[0], FRAMES, whole, NULL), THESPIS_OK);
    th_cpu_codec_close(&cpu.base, stream);
    for (int plain = 0; plain < 2; plain++) {
        take_form(plain);
        struct th_backend *backend = must_open(&f->codec);
        decode_fresh(backend, (int[]){FRAMES}, 1, other);
        double close = snr(whole, other, FRAMES * TH_CODEC_FRAME);
        printf("generated codec, %s: %.1f dB\n", plain ? "plain" : "split", close);
        assert_true(close >= 100);
        backend->ops->close(backend);
    }
    fix_close(&cpu);
    fix_drop(f);
}

static void cuts_do_not_show(void **state)
{
    (void)state;
    struct fixture *f = fix_make(1, 0);
    static const int cuts[][3] = {{1, 1, 1}, {4, 32, 32}, {7, 2, 2}};
    for (int plain = 0; plain < 2; plain++) {
        take_form(plain);
        struct th_backend *backend = must_open(&f->codec);
        decode_fresh(backend, (int[]){FRAMES}, 1, whole);
        for (int i = 0; i < 3; i++) {
            decode_fresh(backend, cuts[i], 3, other);
            assert_memory_equal(whole, other, sizeof whole);
        }
        backend->ops->close(backend);
    }
    fix_drop(f);
}

/* Long enough that positions come round in the ring, which holds the window and the frames of the longest call. */
static void ring_comes_round(void **state)
{
    (void)state;
    enum { N = 2 * TH_CUDA_CODEC_FRAMES + 17 };
    int32_t *drawn = malloc(sizeof(int32_t) * N * FIX_BOOKS);
    float *samples[3];
    assert_non_null(drawn);
    for (int i = 0; i < N * FIX_BOOKS; i++) drawn[i] = i * 7919 % 23;
    for (int i = 0; i < 3; i++) assert_non_null(samples[i] = malloc(sizeof(float) * N * TH_CODEC_FRAME));
    struct fixture *f = fix_make(1, 0);
    struct th_cpu cpu;
    struct th_codec_stream *stream;
    assert_int_equal(fix_open(&cpu, &f->codec, NULL, 1, NULL), THESPIS_OK);
    const struct th_backend_ops ops = {.codec_decode = th_cpu_codec_decode};
    cpu.base.ops = &ops;
    assert_int_equal(th_cpu_codec_open(&cpu.base, &stream, NULL), THESPIS_OK);
    decode(&cpu.base, stream, drawn, FIX_BOOKS, N, (int[]){64}, 1, samples[0]);
    th_cpu_codec_close(&cpu.base, stream);
    fix_close(&cpu);
    take_form(1); /* the ring is the same in both */
    struct th_backend *backend = must_open(&f->codec);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(backend->ops->codec_open(backend, &stream, NULL), THESPIS_OK);
        decode(backend, stream, drawn, FIX_BOOKS, N, i == 1 ? (int[]){64, 64, 17} : (int[]){3, 50, 31}, 3, samples[i]);
        backend->ops->codec_close(backend, stream);
    }
    backend->ops->close(backend);
    assert_memory_equal(samples[1], samples[2], sizeof(float) * N * TH_CODEC_FRAME);
    for (int part = 0; part < 2; part++) { /* the second half alone, too */
        size_t from = part * (size_t)(N / 2) * TH_CODEC_FRAME, count = (size_t)(N / 2) * TH_CODEC_FRAME;
        assert_true(snr(samples[0] + from, samples[1] + from, count) >= 100);
    }
    for (int i = 0; i < 3; i++) free(samples[i]);
    free(drawn);
    fix_drop(f);
}

static void streams_do_not_meet(void **state)
{
    (void)state;
    take_form(0);
    struct fixture *f = fix_make(1, 0);
    struct th_backend *backend = must_open(&f->codec);
    const struct th_backend_ops *ops = backend->ops;
    struct th_codec_stream *a, *b;
    assert_int_equal(ops->codec_open(backend, &a, NULL), THESPIS_OK);
    assert_int_equal(ops->codec_open(backend, &b, NULL), THESPIS_OK);
    decode_fresh(backend, (int[]){FRAMES}, 1, whole);
    float *back = calloc(FRAMES, TH_CODEC_FRAME * sizeof(float));
    assert_non_null(back);
    for (int i = 0; i < FRAMES; i++) { /* b decodes the frames in reverse order between those of a */
        assert_int_equal(ops->codec_decode(backend, a, codes[i], 1, other + i * TH_CODEC_FRAME, NULL), THESPIS_OK);
        assert_int_equal(ops->codec_decode(backend, b, codes[FRAMES - 1 - i], 1, back + i * TH_CODEC_FRAME, NULL), THESPIS_OK);
    }
    assert_memory_equal(whole, other, sizeof whole);
    assert_memory_not_equal(whole, back, sizeof whole);
    ops->codec_reset(backend, b);
    decode(backend, b, codes[0], FIX_BOOKS, FRAMES, (int[]){3}, 1, other);
    assert_memory_equal(whole, other, sizeof whole);
    free(back);
    ops->codec_close(backend, a);
    ops->codec_close(backend, b);
    ops->close(backend);
    fix_drop(f);
}

static void refusals_name_the_fault(void **state)
{
    (void)state;
    struct fixture *f = fix_make(1, 0), *g = fix_make(0, 1);
    struct th_backend *backend = must_open(&f->codec);
    const struct th_backend_ops *ops = backend->ops;
    struct th_codec_stream *stream;
    thespis_error error;
    int32_t frame[FIX_BOOKS] = {0, -1, 0}, code;
    assert_int_equal(ops->codec_open(backend, &stream, NULL), THESPIS_OK);
    assert_int_equal(ops->codec_decode(backend, stream, frame, 1, other, &error), THESPIS_INVALID);
    assert_non_null(strstr(error.message, "codebook 1"));
    assert_int_equal(ops->codec_decode(backend, stream, codes[0], 0, other, &error), THESPIS_INVALID);
    assert_int_equal(ops->codec_decode(backend, stream, codes[0], TH_DECODE_MAX_FRAMES + 1, other, &error), THESPIS_INVALID);
    /* A refusal leaves the stream as it was; codes past a book's end are its last. */
    int32_t above[FIX_BOOKS] = {40, 1000, 23}, last[FIX_BOOKS] = {39, 22, 22};
    assert_int_equal(ops->codec_decode(backend, stream, above, 1, whole, NULL), THESPIS_OK);
    ops->codec_reset(backend, stream);
    assert_int_equal(ops->codec_decode(backend, stream, last, 1, other, NULL), THESPIS_OK);
    assert_memory_equal(whole, other, TH_CODEC_FRAME * sizeof(float));
    ((struct th_cuda_codec_stream *)(void *)stream)->position = TH_CUDA_CODEC_POSITIONS - 1;
    assert_int_equal(ops->codec_decode(backend, stream, codes[0], 2, other, &error), THESPIS_LIMIT);
    assert_int_equal(ops->codec_encode(backend, whole, 1, &code, NULL, NULL, &error), THESPIS_UNSUPPORTED);
    assert_non_null(strstr(error.message, "encoder"));
    ops->codec_close(backend, stream);
    ops->close(backend);
    backend = must_open(&g->codec);
    assert_int_equal(backend->ops->codec_open(backend, &stream, &error), THESPIS_UNSUPPORTED);
    assert_non_null(strstr(error.message, "decoder"));
    whole[0] = NAN;
    assert_int_equal(backend->ops->codec_encode(backend, whole, 1, &code, NULL, NULL, &error), THESPIS_INVALID);
    assert_int_equal(backend->ops->codec_encode(backend, whole, 0, &code, NULL, NULL, &error), THESPIS_INVALID);
    backend->ops->close(backend);
    f->codec.decoder.blocks[1].units[2].dilated.dilation = 99;
    assert_int_equal(open_device(&f->codec, &backend, &error), THESPIS_UNSUPPORTED);
    assert_non_null(strstr(error.message, "594 columns"));
    fix_drop(f);
    fix_drop(g);
}

/* ---- encoding -----------------------------------------------------------------------------------------------------------------
 */

enum { LONG = TH_CUDA_CODEC_FRAMES + 8, SHORT = 10 }; /* a whole block and a piece, both rings come round */

/* Some voice-like noise. */
static void make_recording(float *samples, size_t count)
{
    uint32_t seed = 3;
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        double t = (double)i / 44100;
        samples[i] = (float)(0.3 * sin(700 * t + 3 * sin(9 * t)) + 0.2 * sin(2900 * t)) * (float)(0.6 + 0.4 * sin(21 * t)) +
                     0.05f * ((float)(seed >> 8) / 8388608.0f - 1.0f);
    }
}

static int equal_codes(const int32_t *a, const int32_t *b, size_t count)
{
    int equal = 0;
    for (size_t i = 0; i < count; i++) equal += a[i] == b[i];
    return equal;
}

static void codes_as_on_the_cpu(void **state)
{
    (void)state;
    const size_t count = (size_t)LONG * TH_CODEC_FRAME - 700, values = (size_t)LONG * FIX_BOOKS;
    float *samples = malloc((size_t)LONG * TH_CODEC_FRAME * sizeof *samples);
    int32_t *want = malloc(values * sizeof *want), *have = malloc(values * sizeof *have);
    assert_true(samples != NULL && want != NULL && have != NULL);
    make_recording(samples, count);
    struct fixture *f = fix_make(0, 1);
    struct th_cpu cpu;
    assert_int_equal(fix_open(&cpu, &f->codec, NULL, 1, NULL), THESPIS_OK);
    assert_int_equal(th_cpu_codec_encode(&cpu.base, samples, count, want, NULL, NULL, NULL), THESPIS_OK);
    fix_close(&cpu);
    for (int plain = 0; plain < 2; plain++) {
        take_form(plain);
        struct th_backend *backend = must_open(&f->codec);
        /* A prefix has the same codes, since nothing looks ahead: enough of it for the form that takes long in the emulator. */
        size_t taken = plain ? count : SHORT * TH_CODEC_FRAME, codes_taken = plain ? values : SHORT * FIX_BOOKS;
        assert_int_equal(backend->ops->codec_encode(backend, samples, taken, have, NULL, NULL, NULL), THESPIS_OK);
        int equal = equal_codes(want, have, codes_taken);
        printf("generated codec, %s: %d of %zu codes equal\n", plain ? "plain" : "split", equal, codes_taken);
        assert_true(equal * 1000.0 >= 995.0 * (double)codes_taken);
        int32_t prefix[5 * FIX_BOOKS];
        assert_int_equal(backend->ops->codec_encode(backend, samples, 5 * TH_CODEC_FRAME, prefix, NULL, NULL, NULL), THESPIS_OK);
        assert_memory_equal(prefix, have, sizeof prefix);
        backend->ops->close(backend);
    }
    fix_drop(f);
    free(samples);
    free(want);
    free(have);
}

/* ---- the shipped codec --------------------------------------------------------------------------------------------------------
 */

static void shipped_codec(void **state)
{
    (void)state;
    enum { N = 6 };
    struct th_codec *codec;
    thespis_error error = {0};
    if (th_codec_open(TEST_SOURCE_DIR "/models/stage/codec.pth", TH_CODEC_BOTH, &codec, &error) != THESPIS_OK)
        fail_msg("%s", error.message);
    const int books = codec->books, count = N * books;
    int32_t drawn[N * TH_CODEC_MAX_BOOKS], want[N * TH_CODEC_MAX_BOOKS], have[N * TH_CODEC_MAX_BOOKS];
    for (int i = 0; i < count; i++) drawn[i] = i * 7919 % codec->book[i % books].entries;
    static float one[N * TH_CODEC_FRAME], two[N * TH_CODEC_FRAME];
    struct th_cpu cpu;
    struct th_codec_stream *stream;
    assert_int_equal(fix_open(&cpu, codec, NULL, 1, NULL), THESPIS_OK);
    assert_int_equal(th_cpu_codec_open(&cpu.base, &stream, NULL), THESPIS_OK);
    assert_int_equal(th_cpu_codec_decode(&cpu.base, stream, drawn, N, one, NULL), THESPIS_OK);
    th_cpu_codec_close(&cpu.base, stream);
    assert_int_equal(th_cpu_codec_encode(&cpu.base, one, N * TH_CODEC_FRAME, want, NULL, NULL, NULL), THESPIS_OK);
    fix_close(&cpu);
    for (int plain = 0; plain < 2; plain++) {
        take_form(plain);
        struct th_backend *backend = must_open(codec);
        assert_int_equal(backend->ops->codec_open(backend, &stream, NULL), THESPIS_OK);
        decode(backend, stream, drawn, books, N, (int[]){2, 4}, 2, two);
        backend->ops->codec_close(backend, stream);
        assert_int_equal(backend->ops->codec_encode(backend, one, N * TH_CODEC_FRAME, have, NULL, NULL, NULL), THESPIS_OK);
        const double close = snr(one, two, N * TH_CODEC_FRAME);
        const int equal = equal_codes(want, have, (size_t)count);
        printf("shipped codec, %s: %.1f dB, %d of %d codes equal\n", plain ? "plain" : "split", close, equal, count);
        assert_true(close >= 100);
        assert_int_equal(equal, count);
        backend->ops->close(backend);
    }
    th_codec_close(codec);
}

/* ---- failures -----------------------------------------------------------------------------------------------------------------
 */

#ifdef TH_CUDA_EMU

/* Everything once; the first status that is not OK. */
static thespis_status use(const struct th_codec *codec, thespis_error *error)
{
    struct th_backend *backend;
    struct th_codec_stream *stream = NULL;
    int32_t back[FIX_BOOKS];
    TH_TRY(open_device(codec, &backend, error));
    thespis_status status = backend->ops->codec_open(backend, &stream, error);
    if (status == THESPIS_OK) status = backend->ops->codec_decode(backend, stream, codes[0], 1, other, error);
    if (status == THESPIS_OK) status = backend->ops->codec_encode(backend, whole, 100, back, NULL, NULL, error);
    backend->ops->codec_close(backend, stream);
    backend->ops->close(backend);
    return status;
}

/* Calls of the runtime that fail end in an error, with nothing left behind. Every call at first, then some: the vectors of weights
 * are many. */
static void failing_calls(void **state)
{
    (void)state;
    struct fixture *f = fix_make(1, 1);
    thespis_error error;
    memset(whole, 0, sizeof whole);
    assert_int_equal(use(&f->codec, &error), THESPIS_OK);
    const size_t before = th_emu_used();
    long n = 1, failed = 0;
    for (;; n += n < 40 ? 1 : 7, failed++) {
        th_emu_fail_from(n, n % 2 ? cudaErrorMemoryAllocation : cudaErrorLaunchFailure);
        error.message[0] = '\0';
        thespis_status status = use(&f->codec, &error);
        th_emu_fail_from(0, cudaSuccess);
        if (status == THESPIS_OK) break;
        assert_true(error.message[0] != '\0');
        if (th_emu_used() != before) fail_msg("call %ld: %zu bytes left, %zu before: %s", n, th_emu_used(), before, error.message);
    }
    assert_true(failed > 50);
    fix_drop(f);
}

/* A window that failed leaves its stream as it was. */
static void failed_window_is_no_window(void **state)
{
    (void)state;
    struct fixture *f = fix_make(1, 0);
    struct th_backend *backend = must_open(&f->codec);
    struct th_codec_stream *stream;
    decode_fresh(backend, (int[]){FRAMES}, 1, whole);
    assert_int_equal(backend->ops->codec_open(backend, &stream, NULL), THESPIS_OK);
    for (int i = 0; i + 2 <= FRAMES; i += 2) {
        th_emu_fail_from(2 + i / 2 % 3, cudaErrorMemoryAllocation); /* codes to the device, samples back, waiting */
        assert_int_not_equal(backend->ops->codec_decode(backend, stream, codes[i], 2, other + i * TH_CODEC_FRAME, NULL),
                             THESPIS_OK);
        th_emu_fail_from(0, cudaSuccess);
        assert_int_equal(backend->ops->codec_decode(backend, stream, codes[i], 2, other + i * TH_CODEC_FRAME, NULL), THESPIS_OK);
    }
    assert_memory_equal(whole, other, FRAMES / 2 * 2 * TH_CODEC_FRAME * sizeof(float));
    backend->ops->codec_close(backend, stream);
    backend->ops->close(backend);
    fix_drop(f);
}

#endif

#ifdef TH_FAULTS
static void short_of_memory(void **state)
{
    (void)state;
    struct fixture *f = fix_make(1, 1);
    thespis_error error;
    long n = 1;
    for (;; n++) {
        struct th_backend *backend;
        struct th_codec_stream *stream = NULL;
        th_memory_fail_from(n);
        thespis_status status = open_device(&f->codec, &backend, &error);
        if (status == THESPIS_OK) {
            status = backend->ops->codec_open(backend, &stream, &error);
            th_memory_fail_from(0);
            backend->ops->codec_close(backend, stream);
            backend->ops->close(backend);
        }
        th_memory_fail_from(0);
        if (status == THESPIS_OK) break;
        assert_int_equal(status, THESPIS_MEMORY);
    }
    assert_true(n >= 4);
    fix_drop(f);
}
#endif

int main(void)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("no CUDA device\n");
        return 77;
    }
    make_codes();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_as_on_the_cpu),   cmocka_unit_test(cuts_do_not_show),
        cmocka_unit_test(ring_comes_round),        cmocka_unit_test(streams_do_not_meet),
        cmocka_unit_test(refusals_name_the_fault), cmocka_unit_test(codes_as_on_the_cpu),
        cmocka_unit_test(shipped_codec),
#ifdef TH_CUDA_EMU
        cmocka_unit_test(failing_calls),           cmocka_unit_test(failed_window_is_no_window),
#endif
#ifdef TH_FAULTS
        cmocka_unit_test(short_of_memory),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
