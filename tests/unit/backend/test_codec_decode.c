/* test_codec_decode.c - decoding: against the third-party codec's samples, and the same bytes however a stream is cut or shared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/npy.h"
#include "unit/backend/codec_fixture.h"

#define FRAMES 14 /* the window is 5: the ring wraps twice */

static int32_t codes[FRAMES][FIX_BOOKS];
static float whole[FRAMES * TH_CODEC_FRAME], other[FRAMES * TH_CODEC_FRAME];

static void make_codes(void)
{
    for (int f = 0; f < FRAMES; f++)
        for (int i = 0; i < FIX_BOOKS; i++) codes[f][i] = (f * 7 + i * 5 + f * f) % 23;
}

/* Decodes in chunks of the sizes given, the last size repeated. */
static void decode(struct th_cpu *cpu, struct th_codec_stream *stream, const int *sizes, int count, float *samples)
{
    for (int f = 0, i = 0; f < FRAMES; i++) {
        int n = sizes[i < count ? i : count - 1];
        if (n > FRAMES - f) n = FRAMES - f;
        assert_int_equal(th_cpu_codec_decode(&cpu->base, stream, codes[f], n, samples + f * TH_CODEC_FRAME, NULL), THESPIS_OK);
        f += n;
    }
}

static void decode_fresh(struct th_cpu *cpu, const int *sizes, int count, float *samples)
{
    struct th_codec_stream *stream;
    assert_int_equal(th_cpu_codec_open(&cpu->base, &stream, NULL), THESPIS_OK);
    decode(cpu, stream, sizes, count, samples);
    th_cpu_codec_close(&cpu->base, stream);
}

static void cuts_do_not_show(void **state)
{
    (void)state;
    struct fixture *f = fix_make(1, 0);
    struct th_cpu cpu;
    assert_int_equal(fix_open(&cpu, &f->codec, NULL, 1, NULL), THESPIS_OK);
    decode_fresh(&cpu, (int[]){FRAMES}, 1, whole);
    float least = 1, most = -1;
    for (int i = 0; i < FRAMES * TH_CODEC_FRAME; i++) {
        assert_true(isfinite(whole[i]));
        least = whole[i] < least ? whole[i] : least;
        most = whole[i] > most ? whole[i] : most;
    }
    assert_true(most - least > 0.01f); /* something to compare */
    static const int cuts[][3] = {{1, 1, 1}, {4, 32, 32}, {7, 5, 2}, {1, 3, 8}};
    for (int i = 0; i < 4; i++) {
        decode_fresh(&cpu, cuts[i], 3, other);
        assert_memory_equal(whole, other, sizeof whole);
    }
    cpu.codec_part->work.piece = 1; /* frames that the convolutions take at a time */
    decode_fresh(&cpu, (int[]){FRAMES}, 1, other);
    assert_memory_equal(whole, other, sizeof whole);
    fix_close(&cpu);
    fix_drop(f);
}

static void streams_do_not_meet(void **state)
{
    (void)state;
    struct fixture *f = fix_make(1, 0);
    struct th_cpu cpu;
    assert_int_equal(fix_open(&cpu, &f->codec, NULL, 1, NULL), THESPIS_OK);
    struct th_codec_stream *a, *b;
    assert_int_equal(th_cpu_codec_open(&cpu.base, &a, NULL), THESPIS_OK);
    assert_int_equal(th_cpu_codec_open(&cpu.base, &b, NULL), THESPIS_OK);
    decode_fresh(&cpu, (int[]){FRAMES}, 1, whole);
    float *back = calloc(FRAMES, TH_CODEC_FRAME * sizeof(float));
    assert_non_null(back);
    for (int i = 0; i < FRAMES; i++) { /* b decodes the frames in reverse order between those of a */
        assert_int_equal(th_cpu_codec_decode(&cpu.base, a, codes[i], 1, other + i * TH_CODEC_FRAME, NULL), THESPIS_OK);
        assert_int_equal(th_cpu_codec_decode(&cpu.base, b, codes[FRAMES - 1 - i], 1, back + i * TH_CODEC_FRAME, NULL), THESPIS_OK);
    }
    assert_memory_equal(whole, other, sizeof whole);
    assert_memory_not_equal(whole, back, sizeof whole);
    th_cpu_codec_reset(&cpu.base, b);
    decode(&cpu, b, (int[]){3}, 1, other);
    assert_memory_equal(whole, other, sizeof whole);
    free(back);
    th_cpu_codec_close(&cpu.base, a);
    th_cpu_codec_close(&cpu.base, b);
    fix_close(&cpu);
    fix_drop(f);
}

static void threads_and_sets_do_not_show(void **state)
{
    (void)state;
    struct fixture *f = fix_make(1, 0);
    const struct th_codec_kernels *sets[4];
    int count = fix_sets(sets);
    for (int i = 0; i < count; i++)
        for (int threads = 1; threads <= 2; threads++) {
            struct th_cpu cpu;
            assert_int_equal(fix_open(&cpu, &f->codec, sets[i], threads, NULL), THESPIS_OK);
            decode_fresh(&cpu, (int[]){9}, 1, i == 0 && threads == 1 ? whole : other);
            if (i > 0 || threads > 1) assert_memory_equal(whole, other, sizeof whole);
            fix_close(&cpu);
        }
    fix_drop(f);
}

static void refusals_name_the_fault(void **state)
{
    (void)state;
    struct fixture *f = fix_make(1, 0), *g = fix_make(0, 1);
    struct th_cpu cpu;
    struct th_codec_stream *stream;
    thespis_error error;
    int32_t frame[FIX_BOOKS] = {0, -1, 0}, code;
    assert_int_equal(fix_open(&cpu, &f->codec, NULL, 1, NULL), THESPIS_OK);
    assert_int_equal(th_cpu_codec_open(&cpu.base, &stream, NULL), THESPIS_OK);
    assert_int_equal(th_cpu_codec_decode(&cpu.base, stream, frame, 1, other, &error), THESPIS_INVALID);
    assert_non_null(strstr(error.message, "codebook 1"));
    assert_int_equal(th_cpu_codec_decode(&cpu.base, stream, codes[0], 0, other, &error), THESPIS_INVALID);
    assert_int_equal(th_cpu_codec_decode(&cpu.base, stream, codes[0], TH_DECODE_MAX_FRAMES + 1, other, &error), THESPIS_INVALID);
    /* A refusal leaves the stream as it was; codes past a book's end are its last. */
    int32_t above[FIX_BOOKS] = {40, 1000, 23}, last[FIX_BOOKS] = {39, 22, 22};
    assert_int_equal(th_cpu_codec_decode(&cpu.base, stream, above, 1, whole, NULL), THESPIS_OK);
    th_cpu_codec_reset(&cpu.base, stream);
    assert_int_equal(th_cpu_codec_decode(&cpu.base, stream, last, 1, other, NULL), THESPIS_OK);
    assert_memory_equal(whole, other, TH_CODEC_FRAME * sizeof(float));
    stream->position = TH_CODEC_POSITIONS - 1;
    assert_int_equal(th_cpu_codec_decode(&cpu.base, stream, codes[0], 2, other, &error), THESPIS_LIMIT);
    assert_int_equal(th_cpu_codec_decode(&cpu.base, stream, codes[0], 1, other, &error), THESPIS_OK);
    assert_int_equal(th_cpu_codec_decode(&cpu.base, stream, codes[0], 1, other, &error), THESPIS_LIMIT);
    assert_int_equal(th_cpu_codec_encode(&cpu.base, whole, 1, &code, NULL, NULL, &error), THESPIS_UNSUPPORTED);
    assert_non_null(strstr(error.message, "encoder"));
    th_cpu_codec_close(&cpu.base, stream);
    fix_close(&cpu);
    assert_int_equal(fix_open(&cpu, &g->codec, NULL, 1, NULL), THESPIS_OK);
    assert_int_equal(th_cpu_codec_open(&cpu.base, &stream, &error), THESPIS_UNSUPPORTED);
    assert_non_null(strstr(error.message, "decoder"));
    fix_close(&cpu);
    assert_int_equal(fix_open(&cpu, NULL, NULL, 1, NULL), THESPIS_OK);
    assert_int_equal(th_cpu_codec_open(&cpu.base, &stream, &error), THESPIS_UNSUPPORTED);
    fix_close(&cpu);
    fix_drop(f);
    fix_drop(g);
}

static void read_vector(const char *name, struct th_npy *array)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/vectors/codec/stage/%s.npy", TEST_SOURCE_DIR, name);
    assert_int_equal(th_npy_read(path, 1 << 22, array, NULL), THESPIS_OK);
}

static double decibels(const struct th_npy *truth, const float *values)
{
    double signal = 0, noise = 0;
    for (int64_t i = 0; i < truth->count; i++) {
        double right = th_npy_float(truth, i), off = (double)values[i] - right;
        signal += right * right;
        noise += off * off;
    }
    return 10 * log10(signal / noise);
}

/* Lookup and post transformer alone. */
static void compare_latents(struct th_cpu *cpu, struct th_codec_stream *stream, const struct th_npy *in)
{
    struct th_npy latents;
    struct th_cpu_codec *codec = cpu->codec_part;
    const int frames = (int)in->shape[0], books = codec->source->books;
    read_vector("stages", &latents);
    assert_int_equal(latents.count, frames * codec->source->latent);
    for (int i = 0; i < frames * books; i++) {
        int32_t code = (int32_t)th_npy_int(in, i), last = codec->books[i % books].entries - 1;
        codec->work.codes[i] = code > last ? last : code;
    }
    struct th_lookup_job job = {.books = codec->books,
                                .count = books,
                                .width = codec->source->code_width,
                                .latent = codec->source->latent,
                                .codes = codec->work.codes,
                                .out = codec->work.latent};
    codec->kernels->lookup(&job, 0, frames);
    th_codec_run_transformer(codec, &codec->source->decoder.post, &stream->post, &codec->work, codec->work.latent, frames, 0);
    double level = decibels(&latents, codec->work.latent);
    print_message("post transformer against the reference: %.1f dB\n", level);
    assert_true(level >= 115);
    th_npy_free(&latents);
}

static void equals_the_reference(void **state)
{
    (void)state;
    struct th_codec *codec;
    struct th_npy in, samples;
    struct th_cpu cpu;
    struct th_codec_stream *stream;
    assert_int_equal(th_codec_open(TEST_SOURCE_DIR "/models/stage/codec.pth", TH_CODEC_DECODE, &codec, NULL), THESPIS_OK);
    read_vector("codes", &in);
    read_vector("samples", &samples);
    assert_int_equal(fix_open(&cpu, codec, NULL, 2, NULL), THESPIS_OK);
    assert_int_equal(th_cpu_codec_open(&cpu.base, &stream, NULL), THESPIS_OK);
    int frames = (int)in.shape[0];
    assert_int_equal(samples.count, frames * TH_CODEC_FRAME);
    float *out = calloc((size_t)samples.count, sizeof(float));
    assert_non_null(out);
    assert_int_equal(th_cpu_codec_decode(&cpu.base, stream, in.data, frames, out, NULL), THESPIS_OK);
    double level = decibels(&samples, out);
    print_message("decode against the reference: %.1f dB\n", level);
    assert_true(level >= 110);
    th_cpu_codec_reset(&cpu.base, stream);
    compare_latents(&cpu, stream, &in);
    free(out);
    th_cpu_codec_close(&cpu.base, stream);
    fix_close(&cpu);
    th_npy_free(&in);
    th_npy_free(&samples);
    th_codec_close(codec);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
#ifdef TH_FAULTS
    struct fixture *f = fix_make(1, 1);
    for (long n = 1;; n++) {
        struct th_cpu cpu;
        struct th_codec_stream *stream = NULL;
        thespis_error error;
        th_memory_fail_from(n);
        thespis_status status = fix_open(&cpu, &f->codec, NULL, 1, &error);
        if (status == THESPIS_OK) {
            status = th_cpu_codec_open(&cpu.base, &stream, &error);
            th_cpu_codec_close(&cpu.base, stream);
            fix_close(&cpu);
        }
        th_memory_fail_from(0);
        if (status == THESPIS_OK) break;
        assert_int_equal(status, THESPIS_MEMORY);
        assert_true(n < 100);
    }
    fix_drop(f);
#else
    skip();
#endif
}

int main(void)
{
    make_codes();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_do_not_show),
        cmocka_unit_test(streams_do_not_meet),
        cmocka_unit_test(threads_and_sets_do_not_show),
        cmocka_unit_test(refusals_name_the_fault),
        cmocka_unit_test(equals_the_reference),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
