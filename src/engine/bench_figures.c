/* bench_figures.c - the named figures of `make gpu-check`: a device's frames a second, latencies, loading. Generation and prefill
 * are measured on the backend, what includes the codec through the public functions, as a caller sees it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "engine/bench.h"
#include "engine/parts.h"

#define MOST_LANES 64
#define FRAMES 200 /* of a run of one lane; fewer with more lanes */
#define REFERENCE_SECONDS 4
#define DECODE_ROUNDS 8

struct figures {
    struct th_parts parts;
    struct th_bench *bench;
    int context;
    int32_t *rows; /* [most rows of a prefill][W] */
    double load_begin, load_end;
    uint64_t load_bytes;
};

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void add(struct th_bench *bench, const char *name, const char *unit, double *values, int n, double bound)
{
    struct th_bench_row *row = &bench->row[bench->count++];
    qsort(values, (size_t)n, sizeof *values, by_size);
    *row = (struct th_bench_row){
        .unit = unit, .n = n, .median = values[n / 2], .min = values[0], .max = values[n - 1], .bound = bound};
    snprintf(row->name, sizeof row->name, "%s", name);
}

static void add_one(struct th_bench *bench, const char *name, const char *unit, double value, double bound)
{
    add(bench, name, unit, &value, 1, bound);
}

/* ---- the backend ---------------------------------------------------------------------------------------------------------------
 */

static thespis_status make_rows(struct figures *f, int count, thespis_error *error)
{
    const struct th_config *c = &f->parts.model->config;
    TH_TRY(TH_ALLOC(&f->rows, (size_t)count * (size_t)c->frame_width, "rows", error));
    uint32_t state = 1;
    for (int r = 0; r < count; r++) {
        int32_t *row = f->rows + (size_t)r * (size_t)c->frame_width;
        for (int k = 0; k < c->tower.codebooks; k++) {
            state = state * 1664525u + 1013904223u;
            row[1 + k] = (int32_t)((state >> 8) % (uint32_t)c->tower.codebook_size);
        }
        row[0] = c->semantic_start + row[1];
    }
    return THESPIS_OK;
}

static struct th_sampling sampling(int lane)
{
    return (struct th_sampling){1.0f, 0.9f, TH_TOP_K_UNLIMITED, (uint64_t)lane, 0, 0};
}

static thespis_status fill_lane(struct figures *f, int lane, int rows, thespis_error *error)
{
    const struct th_sampling s = sampling(lane);
    TH_TRY(f->parts.backend->ops->begin(f->parts.backend, lane, &s, error));
    return f->parts.backend->ops->feed(f->parts.backend, lane, f->rows, rows, error);
}

/* One frame of n lanes; a lane whose speech ends is told to go on. */
static thespis_status step_all(struct figures *f, struct th_step *steps, int32_t *frames, int n, thespis_error *error)
{
    const struct th_config *c = &f->parts.model->config;
    const struct th_backend_ops *ops = f->parts.backend->ops;
    for (int lane = 0; lane < n; lane++) steps[lane] = (struct th_step){.lane = lane, .frame = frames + lane * c->frame_width};
    TH_TRY(ops->step(f->parts.backend, steps, n, error));
    for (int lane = 0; lane < n; lane++) {
        if (steps[lane].status != THESPIS_OK) return th_fail(error, steps[lane].status, "%s", steps[lane].error.message);
        if (steps[lane].frame[0] != c->eos) continue;
        const struct th_sampling again = sampling(lane + 1000);
        TH_TRY(ops->resample(f->parts.backend, lane, &again, error));
    }
    return THESPIS_OK;
}

static thespis_status time_lanes(struct figures *f, int n, double *rate, thespis_error *error)
{
    struct th_step steps[MOST_LANES];
    int32_t frames[MOST_LANES * (1 + TH_MAX_CODEBOOKS)];
    const int count = n <= 8 ? FRAMES : FRAMES / 4;
    for (int lane = 0; lane < n; lane++) TH_TRY(fill_lane(f, lane, f->context, error));
    for (int i = 0; i < 3; i++) TH_TRY(step_all(f, steps, frames, n, error)); /* graphs are made now */
    double begin = th_now();
    for (int i = 0; i < count; i++) TH_TRY(step_all(f, steps, frames, n, error));
    *rate = (double)n * count / (th_now() - begin);
    return THESPIS_OK;
}

/* Rows fed and the first frame drawn, less an ordinary frame's time: feeding alone may return before the device is done. */
static thespis_status time_prefill(struct figures *f, int rows, double frame_ms, double *ms, thespis_error *error)
{
    struct th_step step[1];
    int32_t frame[1 + TH_MAX_CODEBOOKS];
    double begin = th_now();
    TH_TRY(fill_lane(f, 0, rows, error));
    TH_TRY(step_all(f, step, frame, 1, error));
    *ms = (th_now() - begin) * 1e3 - frame_ms;
    return THESPIS_OK;
}

static thespis_status bench_lanes(struct figures *f, double *frame_ms, thespis_error *error)
{
    static const int counts[] = {1, 8, 32, 64};
    struct th_backend_bound bound = {0};
    double rates[TH_BENCH_RUNS];
    if (f->parts.backend->ops->bound != NULL) TH_TRY(f->parts.backend->ops->bound(f->parts.backend, f->context, &bound, error));
    for (int i = 0; i < 4; i++) {
        char name[40];
        snprintf(name, sizeof name, i == 0 ? "one_lane_fps" : "lanes_%d_fps", counts[i]);
        for (int k = 0; k < TH_BENCH_RUNS; k++) TH_TRY(time_lanes(f, counts[i], &rates[k], error));
        add(f->bench, name, "frames/s", rates, TH_BENCH_RUNS,
            i == 0 && bound.read_bytes > 0 ? bound.read_bytes / bound.frame_bytes : NAN);
        if (i > 0) continue;
        *frame_ms = 1e3 / rates[TH_BENCH_RUNS / 2];
        if (bound.read_bytes <= 0) continue;
        add_one(f->bench, "read_tb_s", "TB/s", bound.read_bytes * 1e-12, NAN);
        add_one(f->bench, "frame_gb", "GB", bound.frame_bytes * 1e-9, NAN);
        add_one(f->bench, "bound_share", "of 1", rates[TH_BENCH_RUNS / 2] * bound.frame_bytes / bound.read_bytes, 1.0);
    }
    return THESPIS_OK;
}

static thespis_status bench_prefill(struct figures *f, double frame_ms, thespis_error *error)
{
    static const int counts[] = {46, 168, 1024};
    double ms[TH_BENCH_RUNS];
    for (int i = 0; i < 3; i++) {
        char name[40];
        double first;
        if (counts[i] + 8 > f->parts.max_rows) continue;
        snprintf(name, sizeof name, "prefill_%d_ms", counts[i]);
        TH_TRY(time_prefill(f, counts[i], frame_ms, &first, error));
        for (int k = 0; k < TH_BENCH_RUNS; k++) TH_TRY(time_prefill(f, counts[i], frame_ms, &ms[k], error));
        add(f->bench, name, "ms", ms, TH_BENCH_RUNS, NAN);
    }
    return THESPIS_OK;
}

static thespis_status bench_decode(struct figures *f, float *samples, thespis_error *error)
{
    struct th_backend *backend = f->parts.backend;
    const double seconds = (double)DECODE_ROUNDS * TH_DECODE_MAX_FRAMES * THESPIS_FRAME_SAMPLES / THESPIS_SAMPLE_RATE;
    int32_t codes[TH_DECODE_MAX_FRAMES * TH_CODEC_MAX_BOOKS];
    double rates[TH_BENCH_RUNS];
    struct th_codec_stream *stream;
    for (int i = 0; i < TH_DECODE_MAX_FRAMES * f->parts.codebooks; i++) codes[i] = i * 7919 % 512;
    TH_TRY(backend->ops->codec_open(backend, &stream, error));
    thespis_status status = backend->ops->codec_decode(backend, stream, codes, TH_DECODE_MAX_FRAMES, samples, error);
    for (int i = 0; i < TH_BENCH_RUNS && status == THESPIS_OK; i++) {
        double begin = th_now();
        for (int k = 0; k < DECODE_ROUNDS && status == THESPIS_OK; k++)
            status = backend->ops->codec_decode(backend, stream, codes, TH_DECODE_MAX_FRAMES, samples, error);
        rates[i] = seconds / (th_now() - begin);
    }
    backend->ops->codec_close(backend, stream);
    if (status == THESPIS_OK) add(f->bench, "codec_decode_x_realtime", "x real time", rates, TH_BENCH_RUNS, NAN);
    return status;
}

/* A recording that nothing can have remembered: `round` changes it. */
static void make_recording(float *samples, size_t count, int round)
{
    uint32_t state = 12345u + (uint32_t)round;
    float low = 0;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        low = 0.95f * low + 0.05f * ((float)(state >> 8) / 8388608.0f - 1.0f);
        samples[i] = low + 0.2f * sinf((float)i * 0.02f);
    }
}

static thespis_status bench_encode(struct figures *f, float *samples, thespis_error *error)
{
    const size_t count = (size_t)REFERENCE_SECONDS * THESPIS_SAMPLE_RATE;
    int32_t codes[(REFERENCE_SECONDS * 22 + 1) * TH_CODEC_MAX_BOOKS];
    double rates[TH_BENCH_RUNS];
    make_recording(samples, count, 0);
    for (int i = -1; i < TH_BENCH_RUNS; i++) {
        double begin = th_now();
        TH_TRY(f->parts.backend->ops->codec_encode(f->parts.backend, samples, count, codes, NULL, NULL, error));
        if (i >= 0) rates[i] = REFERENCE_SECONDS / (th_now() - begin);
    }
    add(f->bench, "codec_encode_x_realtime", "x real time", rates, TH_BENCH_RUNS, NAN);
    return THESPIS_OK;
}

static thespis_status bench_codec(struct figures *f, thespis_error *error)
{
    float *samples;
    TH_TRY(TH_ALLOC(&samples, (size_t)REFERENCE_SECONDS * THESPIS_SAMPLE_RATE, "samples", error));
    thespis_status status = bench_decode(f, samples, error);
    if (status == THESPIS_OK) status = bench_encode(f, samples, error);
    th_free(samples);
    return status;
}

static void note_load(void *context, const char *job, uint64_t done, uint64_t total)
{
    struct figures *f = context;
    if (strcmp(job, "load") != 0) return;
    f->load_end = th_now();
    f->load_bytes = total;
    (void)done;
}

/* The most memory that this process had at once, mapped files included. */
static double peak_gib(void)
{
    char line[200];
    double kib = NAN;
    FILE *in = fopen("/proc/self/status", "r");
    while (in != NULL && fgets(line, sizeof line, in) != NULL)
        if (strncmp(line, "VmHWM:", 6) == 0) kib = atof(line + 6);
    if (in != NULL) fclose(in);
    return kib / 1048576.0;
}

static void add_load(struct figures *f)
{
    if (f->load_bytes == 0 || (f->parts.model != NULL && f->parts.model->holes)) return; /* recipes are made, not loaded */
    add_one(f->bench, "load_gib_s", "GiB/s", (double)f->load_bytes / 1073741824.0 / (f->load_end - f->load_begin), NAN);
    add_one(f->bench, "host_rss_gib", "GiB", peak_gib(), 2.0);
}

static thespis_status bench_backend(const thespis_engine_options *options, int context, struct th_bench *bench,
                                    thespis_error *error)
{
    struct figures f = {.bench = bench, .context = context};
    thespis_engine_options with = *options;
    with.lanes = MOST_LANES;
    with.voice_slots = 0;
    with.max_rows = 2048;
    with.progress = note_load;
    with.progress_context = &f;
    f.load_begin = th_now();
    double frame_ms = 0;
    thespis_status status = th_parts_open(&with, TH_PARTS_NEED_CODEC, &f.parts, error);
    if (status == THESPIS_OK && f.parts.model == NULL) status = th_fail(error, THESPIS_INVALID, "figures need a checkpoint");
    if (status == THESPIS_OK) th_bench_note(bench, &f.parts);
    if (status == THESPIS_OK) add_load(&f);
    if (status == THESPIS_OK) status = make_rows(&f, context > 1024 ? context : 1024, error);
    if (status == THESPIS_OK) status = bench_lanes(&f, &frame_ms, error);
    if (status == THESPIS_OK) status = bench_prefill(&f, frame_ms, error);
    if (status == THESPIS_OK) status = bench_codec(&f, error);
    th_free(f.rows);
    th_parts_close(&f.parts);
    return status;
}

/* ---- the whole engine ----------------------------------------------------------------------------------------------------------
 */

static const char text[] =
    "The stage is set, the lights go down, and every word of the evening is spoken live, for the people who came.";

/* Speaks once: milliseconds to the first samples, frames, and seconds until the last sample. */
struct spoken {
    double first_ms, seconds;
    int frames;
};

static thespis_status speak(thespis_engine *engine, const thespis_voice *voice, uint64_t seed, int frames, double begin,
                            struct spoken *spoken, thespis_error *error)
{
    static float samples[64 * THESPIS_FRAME_SAMPLES];
    thespis_request_options options;
    thespis_request *request;
    thespis_outcome outcome = {.size = sizeof outcome};
    size_t count;
    thespis_request_options_init(&options);
    options.text = text;
    options.text_bytes = strlen(text);
    options.voice = voice;
    options.seed = seed;
    options.max_frames = frames;
    TH_TRY(thespis_request_start(engine, &options, &request, error));
    thespis_status status = thespis_request_read(request, samples, 4 * THESPIS_FRAME_SAMPLES, &count, error);
    spoken->first_ms = (th_now() - begin) * 1e3;
    while (status == THESPIS_OK && count > 0)
        status = thespis_request_read(request, samples, 64 * THESPIS_FRAME_SAMPLES, &count, error);
    spoken->seconds = th_now() - begin;
    if (status == THESPIS_OK) status = thespis_request_get_outcome(request, &outcome, error);
    spoken->frames = status == THESPIS_OK ? outcome.frames : 0;
    thespis_request_free(request);
    return status == THESPIS_INVALID ? THESPIS_OK : status; /* generated weights that ended at once said nothing */
}

/* Seeds whose speech goes on for most of `frames`: generated weights end where they like. */
static thespis_status bench_end_to_end(thespis_engine *engine, struct th_bench *bench, thespis_error *error)
{
    double rates[TH_BENCH_RUNS], first[TH_BENCH_RUNS];
    int found = 0;
    for (uint64_t seed = 0; seed < 60 && found < TH_BENCH_RUNS; seed++) {
        struct spoken spoken;
        TH_TRY(speak(engine, NULL, seed, 400, th_now(), &spoken, error));
        if (seed == 0 || spoken.frames < 200) continue; /* the first one warms up */
        rates[found] = spoken.frames / spoken.seconds;
        first[found++] = spoken.first_ms;
    }
    if (found == 0) return THESPIS_OK;
    add(bench, "one_lane_end_to_end_fps", "frames/s", rates, found, NAN);
    add(bench, "first_audio_plain_ms", "ms", first, found, NAN);
    return THESPIS_OK;
}

/* A reference is encoded on the spot, then spoken after. */
static thespis_status clone_once(thespis_engine *engine, int round, const float *samples, struct spoken *spoken,
                                 thespis_error *error)
{
    static const char words[] = "A few words that somebody said.";
    thespis_voice *voice;
    double begin = th_now();
    TH_TRY(thespis_voice_new(engine, &voice, error));
    thespis_status status =
        thespis_voice_add_samples(voice, samples, (size_t)REFERENCE_SECONDS * THESPIS_SAMPLE_RATE, words, strlen(words), error);
    if (status == THESPIS_OK) status = speak(engine, voice, (uint64_t)round, 8, begin, spoken, error);
    thespis_voice_free(voice);
    return status;
}

static thespis_status bench_clone(thespis_engine *engine, struct th_bench *bench, thespis_error *error)
{
    const size_t count = (size_t)REFERENCE_SECONDS * THESPIS_SAMPLE_RATE;
    double first[TH_BENCH_RUNS];
    float *samples;
    TH_TRY(TH_ALLOC(&samples, count, "samples", error));
    thespis_status status = THESPIS_OK;
    int found = 0;
    for (int i = -1; i < 60 && found < TH_BENCH_RUNS && status == THESPIS_OK; i++) {
        struct spoken spoken;
        make_recording(samples, count, 10 + i);
        status = clone_once(engine, i + 2, samples, &spoken, error);
        if (i >= 0 && status == THESPIS_OK && spoken.frames >= 4) first[found++] = spoken.first_ms;
    }
    th_free(samples);
    if (status == THESPIS_OK && found > 0) add(bench, "first_audio_clone_ms", "ms", first, found, NAN);
    return status;
}

static thespis_status bench_engine(const thespis_engine_options *options, struct th_bench *bench, thespis_error *error)
{
    thespis_engine_options with = *options;
    thespis_engine *engine;
    thespis_engine_info info = {.size = sizeof info};
    with.lanes = 1;
    with.voice_slots = 0;
    with.max_rows = 4096;
    with.prefill_rows = 1024; /* nobody else is kept waiting */
    TH_TRY(thespis_engine_open(&with, &engine, error));
    thespis_status status = thespis_engine_get_info(engine, &info, error);
    if (status == THESPIS_OK) add_one(bench, "device_gb", "GB", (double)(info.lane_bytes + info.weight_bytes) * 1e-9, 42.0);
    if (status == THESPIS_OK) status = bench_end_to_end(engine, bench, error);
    if (status == THESPIS_OK) status = bench_clone(engine, bench, error);
    thespis_engine_close(engine);
    return status;
}

thespis_status th_bench_figures(const thespis_engine_options *options, int context, struct th_bench *bench, thespis_error *error)
{
    memset(bench, 0, sizeof *bench);
    TH_TRY(bench_backend(options, context, bench, error));
    return bench_engine(options, bench, error);
}
