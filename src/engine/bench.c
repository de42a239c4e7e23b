/* bench.c - see bench.h. Works on the backend directly: no threads of the engine, no queue. */
#include "engine/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "engine/parts.h"

#define STEPS 24         /* frames a run */
#define CODEC_FRAMES 64  /* of one decode run */
#define ENCODE_SECONDS 2 /* of one encode run */
#define MOST_LANES 8

struct bencher {
    struct th_parts parts;
    struct th_bench *bench;
    int context;
    int32_t *rows; /* [context][W]: made-up frames, as a reference's would be */
};

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Adds a row from the rates of TH_BENCH_RUNS runs. */
static void add(struct th_bench *bench, const char *unit, double *rates, const char *name, int number)
{
    struct th_bench_row *row = &bench->row[bench->count++];
    qsort(rates, TH_BENCH_RUNS, sizeof *rates, by_size);
    snprintf(row->name, sizeof row->name, name, number);
    row->unit = unit;
    row->n = TH_BENCH_RUNS;
    row->median = rates[TH_BENCH_RUNS / 2];
    row->min = rates[0];
    row->max = rates[TH_BENCH_RUNS - 1];
    row->bound = NAN;
}

void th_bench_note(struct th_bench *bench, const struct th_parts *parts)
{
    snprintf(bench->backend, sizeof bench->backend, "%s", parts->backend->ops->name);
    snprintf(bench->device, sizeof bench->device, "%s", parts->backend->ops->device(parts->backend));
    snprintf(bench->precision, sizeof bench->precision, "%s", parts->precision == THESPIS_PRECISION_BF16 ? "bf16" : "f32");
}

/* Rows that look like reference audio: semantic main tokens and codes from a small generator. */
static thespis_status make_rows(struct bencher *b, thespis_error *error)
{
    const struct th_config *c = &b->parts.model->config;
    TH_TRY(TH_ALLOC(&b->rows, (size_t)b->context * (size_t)c->frame_width, "rows", error));
    uint32_t state = 1;
    for (int r = 0; r < b->context; r++) {
        int32_t *row = b->rows + (size_t)r * (size_t)c->frame_width;
        for (int k = 0; k < c->tower.codebooks; k++) {
            state = state * 1664525u + 1013904223u;
            row[1 + k] = (int32_t)((state >> 8) % (uint32_t)c->tower.codebook_size);
        }
        row[0] = c->semantic_start + row[1];
    }
    return THESPIS_OK;
}

static thespis_status fill_lane(struct bencher *b, int lane, thespis_error *error)
{
    struct th_sampling sampling = {1.0f, 0.9f, TH_TOP_K_UNLIMITED, (uint64_t)lane, 0, 0};
    TH_TRY(b->parts.backend->ops->begin(b->parts.backend, lane, &sampling, error));
    return b->parts.backend->ops->feed(b->parts.backend, lane, b->rows, b->context, error);
}

/* STEPS frames of n lanes, drawn as in earnest. A lane whose speech ends is told to go on, so that all of them work to the end. */
static thespis_status run_steps(struct bencher *b, int n, double *rate, thespis_error *error)
{
    const struct th_config *c = &b->parts.model->config;
    struct th_backend *backend = b->parts.backend;
    struct th_step steps[MOST_LANES];
    int32_t frames[MOST_LANES * (1 + TH_MAX_CODEBOOKS)];
    for (int lane = 0; lane < n; lane++) TH_TRY(fill_lane(b, lane, error));
    double begin = th_now();
    for (int s = 0; s < STEPS; s++) {
        for (int lane = 0; lane < n; lane++) steps[lane] = (struct th_step){.lane = lane, .frame = frames + lane * c->frame_width};
        TH_TRY(backend->ops->step(backend, steps, n, error));
        for (int lane = 0; lane < n; lane++) {
            if (steps[lane].status != THESPIS_OK) return th_fail(error, steps[lane].status, "%s", steps[lane].error.message);
            if (steps[lane].frame[0] != c->eos) continue;
            struct th_sampling again = {1.0f, 0.9f, TH_TOP_K_UNLIMITED, (uint64_t)(lane + 100 * s), 0, 0};
            TH_TRY(backend->ops->resample(backend, lane, &again, error));
        }
    }
    *rate = (double)n * STEPS / (th_now() - begin);
    return THESPIS_OK;
}

static thespis_status bench_lanes(struct bencher *b, thespis_error *error)
{
    double rates[TH_BENCH_RUNS];
    for (int n = 1; n <= MOST_LANES; n *= 2) {
        for (int i = 0; i < TH_BENCH_RUNS; i++) TH_TRY(run_steps(b, n, &rates[i], error));
        add(b->bench, "frames/s", rates, "generate, %d lanes", n);
    }
    return THESPIS_OK;
}

static thespis_status bench_prefill(struct bencher *b, thespis_error *error)
{
    double rates[TH_BENCH_RUNS];
    for (int i = 0; i < TH_BENCH_RUNS; i++) {
        double begin = th_now();
        TH_TRY(fill_lane(b, 0, error));
        rates[i] = b->context / (th_now() - begin);
    }
    add(b->bench, "rows/s", rates, "prefill of %d rows", b->context);
    return THESPIS_OK;
}

static thespis_status bench_decode(struct bencher *b, float *samples, thespis_error *error)
{
    struct th_backend *backend = b->parts.backend;
    double rates[TH_BENCH_RUNS], seconds = (double)CODEC_FRAMES * THESPIS_FRAME_SAMPLES / THESPIS_SAMPLE_RATE;
    int32_t codes[CODEC_FRAMES * TH_CODEC_MAX_BOOKS];
    struct th_codec_stream *stream;
    for (int i = 0; i < CODEC_FRAMES * b->parts.codebooks; i++) codes[i] = i * 7919 % 512;
    TH_TRY(backend->ops->codec_open(backend, &stream, error));
    thespis_status status = THESPIS_OK;
    for (int i = 0; i < TH_BENCH_RUNS && status == THESPIS_OK; i++) {
        double begin = th_now();
        status = backend->ops->codec_decode(backend, stream, codes, CODEC_FRAMES, samples, error);
        rates[i] = seconds / (th_now() - begin);
    }
    backend->ops->codec_close(backend, stream);
    if (status == THESPIS_OK) add(b->bench, "x real time", rates, "codec decode, %d frames", CODEC_FRAMES);
    return status;
}

static thespis_status bench_encode(struct bencher *b, const float *samples, thespis_error *error)
{
    double rates[TH_BENCH_RUNS];
    int32_t codes[(ENCODE_SECONDS * 22 + 1) * TH_CODEC_MAX_BOOKS];
    for (int i = 0; i < TH_BENCH_RUNS; i++) {
        double begin = th_now();
        TH_TRY(b->parts.backend->ops->codec_encode(b->parts.backend, samples, ENCODE_SECONDS * THESPIS_SAMPLE_RATE, codes, NULL,
                                                   NULL, error));
        rates[i] = ENCODE_SECONDS / (th_now() - begin);
    }
    add(b->bench, "x real time", rates, "codec encode, %d s", ENCODE_SECONDS);
    return THESPIS_OK;
}

static thespis_status bench_codec(struct bencher *b, thespis_error *error)
{
    float *samples;
    TH_TRY(TH_ALLOC(&samples, (size_t)CODEC_FRAMES * THESPIS_FRAME_SAMPLES, "samples", error));
    thespis_status status = bench_decode(b, samples, error);
    if (status == THESPIS_OK) status = bench_encode(b, samples, error);
    th_free(samples);
    return status;
}

thespis_status th_bench_run(const thespis_engine_options *options, int context, struct th_bench *bench, thespis_error *error)
{
    struct bencher b = {.bench = bench, .context = context};
    thespis_engine_options with = *options;
    with.lanes = MOST_LANES;
    with.voice_slots = 0;
    with.max_rows = context + STEPS + 1;
    memset(bench, 0, sizeof *bench);
    TH_TRY(th_parts_open(&with, TH_PARTS_NEED_CODEC, &b.parts, error));
    th_bench_note(bench, &b.parts);
    thespis_status status = THESPIS_OK;
    if (b.parts.model != NULL) {
        status = make_rows(&b, error);
        if (status == THESPIS_OK) status = bench_lanes(&b, error);
        if (status == THESPIS_OK) status = bench_prefill(&b, error);
    }
    if (status == THESPIS_OK) status = bench_codec(&b, error);
    th_free(b.rows);
    th_parts_close(&b.parts);
    return status;
}
