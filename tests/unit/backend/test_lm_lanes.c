/* test_lm_lanes.c - the promise on the shipped checkpoint: a lane's bytes depend on what the lane was given alone, not on pieces,
 * threads, neighbours, instruction sets or what ran before. And what misuse is told. test_cuda_lanes.c runs the same on CUDA. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"

#ifdef TEST_CUDA_LANES
#define ROWS 21 /* an emulated device is slow */
#else
#define ROWS 37
#endif
#define SHORT 8 /* rows for the slow portable kernels */
#define FRAMES 4
#define MAX_WIDTH 33

static struct th_model *model;

/* Rows as of a prompt: some text, frames of a voice, text. */
static void make_rows(int32_t *rows, int n, uint32_t seed)
{
    const struct th_config *config = &model->config;
    for (int i = 0; i < n; i++) {
        int32_t *row = rows + i * config->frame_width;
        memset(row, 0, (size_t)config->frame_width * sizeof *row);
        seed = seed * 1664525u + 1013904223u;
        row[0] = (int32_t)(seed >> 8) % 200;
        if (i % 19 < 6) continue;
        for (int j = 1; j < config->frame_width; j++) {
            seed = seed * 1664525u + 1013904223u;
            row[j] = (int32_t)((seed >> 8) % (uint32_t)config->tower.codebook_size);
        }
        row[0] = config->semantic_start + row[1];
    }
}

static struct th_backend *open_backend(int threads, thespis_isa isa, thespis_precision precision)
{
    struct th_backend_options options = {.precision = precision, .isa = isa, .threads = threads, .act_quant = 1};
    struct th_backend *backend;
    thespis_error error;
#ifdef TEST_CUDA_LANES
    options.precision = THESPIS_PRECISION_BF16;
    assert_int_equal(th_cuda_backend_open(model, NULL, &options, &backend, &error), THESPIS_OK);
#else
    assert_int_equal(th_cpu_backend_open(model, NULL, &options, &backend, &error), THESPIS_OK);
#endif
    return backend;
}

static struct th_sampling sampling_of(uint64_t seed)
{
    return (struct th_sampling){.temperature = 1.0f, .top_p = 0.9f, .top_k = TH_TOP_K_UNLIMITED, .seed = seed};
}

/* What a lane did: its frames, and a digest of every value that passed a probe, by row. */
struct record {
    int32_t frames[FRAMES][MAX_WIDTH];
    uint64_t rows[ROWS + FRAMES]; /* sums over names, layers and values that do not depend on the order of the calls */
};

static uint64_t digest(const char *name, int layer, const float *values, int cols)
{
    uint64_t hash = 1469598103934665603u + (uint64_t)layer;
    for (; *name; name++) hash = (hash ^ (uint64_t)(unsigned char)*name) * 1099511628211u;
    for (int i = 0; i < cols; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], 4);
        hash = (hash ^ bits) * 1099511628211u;
    }
    return hash;
}

static void record_probe(void *context, int lane, const char *name, int layer, int row0, int rows, int cols, const float *values)
{
    struct record *records = context;
    for (int r = 0; r < rows; r++) {
        assert_in_range(row0 + r, 0, ROWS + FRAMES - 1);
        records[lane].rows[row0 + r] += digest(name, layer, values + r * cols, cols);
    }
}

static void feed(struct th_backend *backend, int lane, const int32_t *rows, int n, int piece)
{
    thespis_error error;
    for (int i = 0; i < n; i += piece)
        assert_int_equal(
            backend->ops->feed(backend, lane, rows + i * model->config.frame_width, n - i < piece ? n - i : piece, &error),
            THESPIS_OK);
}

static void step(struct th_backend *backend, int lane, int32_t *frame)
{
    thespis_error error;
    struct th_step one = {.lane = lane, .frame = frame};
    assert_int_equal(backend->ops->step(backend, &one, 1, &error), THESPIS_OK);
}

/* Lane 0 alone, a prompt in pieces and some frames. Says whether speech went on to the last of them. */
static int run_alone(struct th_backend *backend, uint32_t rows_seed, int n, uint64_t seed, int piece, struct record *record)
{
    thespis_error error;
    int32_t rows[ROWS * MAX_WIDTH];
    make_rows(rows, n, rows_seed);
    memset(record, 0, sizeof *record);
    struct th_sampling sampling = sampling_of(seed);
    backend->ops->probe(backend, record_probe, record);
    assert_int_equal(backend->ops->begin(backend, 0, &sampling, &error), THESPIS_OK);
    feed(backend, 0, rows, n, piece);
    int drawn = 0;
    while (drawn < FRAMES && (drawn == 0 || record->frames[drawn - 1][0] != model->config.eos))
        step(backend, 0, record->frames[drawn++]);
    backend->ops->probe(backend, NULL, NULL);
    return record->frames[FRAMES - 1][0] != model->config.eos && drawn == FRAMES;
}

/* The first seed from which no end of speech is drawn early, and what it gives. */
static uint64_t run_lively(struct th_backend *backend, uint32_t rows_seed, int n, struct record *record)
{
    uint64_t seed = 1;
    while (!run_alone(backend, rows_seed, n, seed, n, record)) assert_in_range(++seed, 1, 50);
    return seed;
}

static struct th_backend *open_lanes(int threads, thespis_isa isa, int lanes)
{
    thespis_error error;
    struct th_backend *backend = open_backend(threads, isa, THESPIS_PRECISION_F32);
    assert_int_equal(backend->ops->lanes(backend, lanes, ROWS + FRAMES + 1, &error), THESPIS_OK);
    return backend;
}

static void pieces_do_not_show(void **unused)
{
    (void)unused;
    struct record whole, pieces;
    struct th_backend *backend = open_lanes(1, THESPIS_ISA_AUTO, 1);
    uint64_t seed = run_lively(backend, 5, ROWS, &whole);
    for (int piece = 1; piece <= 7; piece += piece == 1 ? 1 : 5) {
        run_alone(backend, 5, ROWS, seed, piece, &pieces); /* begin makes the lane new */
        assert_memory_equal(&whole, &pieces, sizeof whole);
    }
    backend->ops->close(backend);
}

#ifndef TEST_CUDA_LANES
static void threads_do_not_show(void **unused)
{
    (void)unused;
    struct record one, two;
    struct th_backend *backend = open_lanes(1, THESPIS_ISA_AUTO, 1);
    uint64_t seed = run_lively(backend, 6, ROWS, &one);
    backend->ops->close(backend);
    backend = open_lanes(2, THESPIS_ISA_AUTO, 1);
    run_alone(backend, 6, ROWS, seed, 16, &two);
    backend->ops->close(backend);
    assert_memory_equal(&one, &two, sizeof one);
}

static void instruction_sets_do_not_show(void **unused)
{
    (void)unused;
    for (int precision = 0; precision < 2; precision++) {
        struct record best, portable;
        thespis_error error;
        struct th_backend *backend = open_backend(2, THESPIS_ISA_AUTO, (thespis_precision)precision);
        assert_int_equal(backend->ops->lanes(backend, 1, ROWS + FRAMES, &error), THESPIS_OK);
        uint64_t seed = run_lively(backend, 7, SHORT, &best);
        backend->ops->close(backend);
        backend = open_backend(2, THESPIS_ISA_PORTABLE, (thespis_precision)precision);
        assert_string_equal(backend->ops->device(backend), "portable");
        assert_int_equal(backend->ops->lanes(backend, 1, ROWS + FRAMES, &error), THESPIS_OK);
        run_alone(backend, 7, SHORT, seed, SHORT, &portable);
        backend->ops->close(backend);
        assert_memory_equal(&best, &portable, sizeof best);
    }
}

#endif

#define LANES 3

static void neighbours_do_not_show(void **unused)
{
    (void)unused;
    static struct record alone[LANES], together[LANES];
    thespis_error error;
    struct th_backend *backend = open_lanes(2, THESPIS_ISA_AUTO, LANES);
    uint64_t seeds[LANES];
    for (int lane = 0; lane < LANES; lane++) seeds[lane] = run_lively(backend, 10 + (uint32_t)lane, ROWS, &alone[lane]);
    memset(together, 0, sizeof together);
    backend->ops->probe(backend, record_probe, together);
    int32_t rows[ROWS * MAX_WIDTH];
    for (int lane = LANES - 1; lane >= 0; lane--) {
        struct th_sampling sampling = sampling_of(seeds[lane]);
        make_rows(rows, ROWS, 10 + (uint32_t)lane);
        assert_int_equal(backend->ops->begin(backend, lane, &sampling, &error), THESPIS_OK);
        feed(backend, lane, rows, ROWS, 11);
    }
    step(backend, 1, together[1].frames[0]); /* lane 1 goes ahead */
    for (int i = 0; i < FRAMES; i++) {
        struct th_step steps[LANES];
        int n = 0;
        for (int lane = LANES - 1; lane >= 0; lane--) {
            int frame = lane == 1 ? i + 1 : i;
            if (frame < FRAMES) steps[n++] = (struct th_step){.lane = lane, .frame = together[lane].frames[frame]};
        }
        assert_int_equal(backend->ops->step(backend, steps, n, &error), THESPIS_OK);
        for (int j = 0; j < n; j++) assert_int_equal(steps[j].status, THESPIS_OK);
    }
    assert_memory_equal(alone, together, sizeof alone);
    backend->ops->close(backend);
}

static void a_copy_goes_on_like_the_lane(void **unused)
{
    (void)unused;
    static struct record whole;
    thespis_error error;
    int32_t rows[ROWS * MAX_WIDTH], frame[MAX_WIDTH];
    struct th_backend *backend = open_lanes(2, THESPIS_ISA_AUTO, 2);
    struct th_sampling other = sampling_of(77), sampling = sampling_of(run_lively(backend, 20, ROWS, &whole));
    make_rows(rows, ROWS, 20);
    assert_int_equal(backend->ops->begin(backend, 1, &other, &error), THESPIS_OK);
    feed(backend, 1, rows, ROWS - 8, 5);
    assert_int_equal(backend->ops->copy(backend, 1, 0, &error), THESPIS_OK);
    step(backend, 1, frame); /* the original goes another way */
    assert_int_equal(backend->ops->resample(backend, 0, &sampling, &error), THESPIS_OK);
    feed(backend, 0, rows + (ROWS - 8) * model->config.frame_width, 8, 8);
    assert_int_equal(backend->ops->rows(backend, 0), ROWS);
    for (int i = 0; i < FRAMES; i++) {
        step(backend, 0, frame);
        assert_memory_equal(frame, whole.frames[i], (size_t)model->config.frame_width * sizeof *frame);
    }
    assert_int_equal(backend->ops->rows(backend, 0), ROWS + FRAMES);
    backend->ops->close(backend);
}

/* Drawn frames fed as rows of a prompt give the same as frames that were drawn: last rows, pending tower row and all. */
static void frames_fed_are_frames_drawn(void **unused)
{
    (void)unused;
    static struct record drawn, fed;
    thespis_error error;
    const int width = model->config.frame_width;
    int32_t rows[(ROWS + 2) * MAX_WIDTH];
    struct th_backend *backend = open_lanes(1, THESPIS_ISA_AUTO, 1);
    struct th_sampling sampling = sampling_of(run_lively(backend, 30, ROWS, &drawn));
    make_rows(rows, ROWS, 30);
    for (int i = 0; i < 2; i++) memcpy(rows + (ROWS + i) * width, drawn.frames[i], (size_t)width * sizeof *rows);
    for (int split = 1; split >= 0; split--) { /* split: one frame forced, the other fed after it */
        memset(&fed, 0, sizeof fed);
        backend->ops->probe(backend, record_probe, &fed);
        assert_int_equal(backend->ops->begin(backend, 0, &sampling, &error), THESPIS_OK);
        feed(backend, 0, rows, ROWS + (split ? 0 : 2), ROWS + 2);
        if (split) {
            struct th_step one = {.lane = 0, .forced = drawn.frames[0], .frame = fed.frames[0]};
            assert_int_equal(backend->ops->step(backend, &one, 1, &error), THESPIS_OK);
            assert_memory_equal(fed.frames[0], drawn.frames[0], (size_t)width * sizeof *rows);
            feed(backend, 0, rows + (ROWS + 1) * width, 1, 1);
        }
        for (int i = 2; i < FRAMES; i++) {
            struct th_step one = {.lane = 0, .forced = drawn.frames[i], .frame = fed.frames[i]};
            assert_int_equal(backend->ops->step(backend, &one, 1, &error), THESPIS_OK);
        }
        for (int row = ROWS + 1; row < ROWS + FRAMES - 1; row++) assert_true(fed.rows[row] == drawn.rows[row]);
        backend->ops->probe(backend, NULL, NULL);
    }
    backend->ops->close(backend);
}

/* A prompt that goes on after frames were drawn is one that held them: the row before the new ones gets its tower row then. */
static void prompts_go_on_after_frames(void **unused)
{
    (void)unused;
    thespis_error error;
    const int width = model->config.frame_width, first = 9, more = 3;
    int32_t rows[ROWS * MAX_WIDTH], all[ROWS * MAX_WIDTH], frames[2][MAX_WIDTH];
    struct th_backend *backend = open_lanes(2, THESPIS_ISA_AUTO, 2);
    struct th_sampling sampling = sampling_of(3);
    make_rows(rows, ROWS, 70);
    memcpy(all, rows, sizeof all);
    assert_int_equal(backend->ops->begin(backend, 0, &sampling, &error), THESPIS_OK);
    feed(backend, 0, rows, first, first);
    for (int i = 0; i < 2; i++) { /* rows 9 and 10 are speech: forced here, fed below */
        struct th_step one = {.lane = 0, .forced = rows + (first + i) * width, .frame = frames[0]};
        assert_int_equal(backend->ops->step(backend, &one, 1, &error), THESPIS_OK);
    }
    feed(backend, 0, rows + (first + 2) * width, more, more);
    assert_int_equal(backend->ops->begin(backend, 1, &sampling, &error), THESPIS_OK);
    feed(backend, 1, all, first + 2 + more, first + 2 + more);
    for (int i = 0; i < 2; i++) {
        for (int lane = 0; lane < 2; lane++) step(backend, lane, frames[lane]);
        assert_memory_equal(frames[0], frames[1], (size_t)width * sizeof(int32_t));
    }
    backend->ops->close(backend);
}

static void speech_ends_once(void **unused)
{
    (void)unused;
    thespis_error error;
    int32_t rows[ROWS * MAX_WIDTH], eos[MAX_WIDTH] = {0}, frame[MAX_WIDTH], other[MAX_WIDTH];
    struct th_backend *backend = open_lanes(1, THESPIS_ISA_AUTO, 2);
    make_rows(rows, ROWS, 40);
    eos[0] = model->config.eos;
    struct th_sampling sampling = sampling_of(1);
    assert_int_equal(backend->ops->begin(backend, 0, &sampling, &error), THESPIS_OK);
    feed(backend, 0, rows, ROWS, ROWS);
    struct th_step one = {.lane = 0, .forced = eos, .frame = frame};
    assert_int_equal(backend->ops->step(backend, &one, 1, &error), THESPIS_OK);
    assert_int_equal(frame[0], model->config.eos);
    assert_int_equal(backend->ops->rows(backend, 0), ROWS); /* end of speech is no row */
    assert_int_equal(backend->ops->step(backend, &one, 1, &error), THESPIS_INVALID);
    assert_non_null(strstr(error.message, "end of speech"));
    static struct record after[2];
    backend->ops->probe(backend, record_probe, after);
    feed(backend, 0, rows, 2, 2); /* the next turn's text */
    one.forced = NULL;
    assert_int_equal(backend->ops->step(backend, &one, 1, &error), THESPIS_OK);
    backend->ops->probe(backend, NULL, NULL);
    assert_int_equal(backend->ops->begin(backend, 1, &sampling, &error), THESPIS_OK);
    feed(backend, 1, rows, ROWS, ROWS);
    backend->ops->probe(backend, record_probe, after);
    feed(backend, 1, rows, 2, 2);
    step(backend, 1, other); /* the end left no trace but in the window of main tokens */
    backend->ops->probe(backend, NULL, NULL);
    assert_memory_equal(after[0].rows, after[1].rows, sizeof after[0].rows);
    assert_memory_equal(frame, other, (size_t)model->config.frame_width * sizeof *frame);
    backend->ops->close(backend);
}

static void a_broken_lane_fails_alone(void **unused)
{
    (void)unused;
    static struct record alone;
    thespis_error error;
    int32_t rows[ROWS * MAX_WIDTH], frames[2][MAX_WIDTH];
    const uint16_t *embed = model->embed.data;
    const size_t width = (size_t)model->embed.cols, count = (size_t)model->embed.rows * width;
    uint16_t *broken = malloc(count * sizeof *broken);
    assert_non_null(broken);
    memcpy(broken, embed, count * sizeof *broken);
    broken[250 * width] = 0x7FC0; /* NaN, in the row of a token that make_rows does not use */
    model->embed.data = broken;
    struct th_backend *backend = open_lanes(2, THESPIS_ISA_AUTO, 2);
    struct th_sampling sampling = sampling_of(run_lively(backend, 60, ROWS, &alone));
    make_rows(rows, ROWS, 60);
    for (int lane = 0; lane < 2; lane++) {
        rows[0] = lane == 0 ? 250 : rows[0];
        if (lane == 1) make_rows(rows, ROWS, 60);
        assert_int_equal(backend->ops->begin(backend, lane, &sampling, &error), THESPIS_OK);
        feed(backend, lane, rows, ROWS, ROWS);
    }
    struct th_step steps[2] = {{.lane = 0, .frame = frames[0]}, {.lane = 1, .frame = frames[1]}};
    assert_int_equal(backend->ops->step(backend, steps, 2, &error), THESPIS_OK);
    assert_int_equal(steps[0].status, THESPIS_NUMERIC);
    assert_int_equal(steps[1].status, THESPIS_OK);
    assert_memory_equal(frames[1], alone.frames[0], (size_t)model->config.frame_width * sizeof(int32_t));
    assert_int_equal(backend->ops->step(backend, steps, 1, &error), THESPIS_NUMERIC); /* no lane could be stepped */
    assert_int_equal(backend->ops->begin(backend, 0, &sampling, &error), THESPIS_OK); /* and a new request is not harmed */
    feed(backend, 0, rows, ROWS, ROWS);
    step(backend, 0, frames[0]);
    assert_memory_equal(frames[0], alone.frames[0], (size_t)model->config.frame_width * sizeof(int32_t));
    backend->ops->close(backend);
    model->embed.data = embed;
    free(broken);
}

static void misuse_is_named(void **unused)
{
    (void)unused;
    thespis_error error;
    int32_t rows[(ROWS + FRAMES + 2) * MAX_WIDTH], frame[MAX_WIDTH];
    struct th_backend *backend = open_backend(1, THESPIS_ISA_AUTO, THESPIS_PRECISION_F32);
    struct th_sampling sampling = sampling_of(1);
    make_rows(rows, ROWS + FRAMES + 2, 50);
    assert_int_equal(backend->ops->begin(backend, 0, &sampling, &error), THESPIS_INVALID); /* no lanes yet */
    assert_int_equal(backend->ops->lanes(backend, 2, 1 << 20, &error), THESPIS_INVALID);
    assert_int_equal(backend->ops->lanes(backend, 2, 8, &error), THESPIS_OK);
    struct th_step steps[2] = {{.lane = 0, .frame = frame}, {.lane = 0, .frame = frame}};
    assert_int_equal(backend->ops->step(backend, steps, 1, &error), THESPIS_INVALID); /* not begun */
    assert_int_equal(backend->ops->begin(backend, 0, &sampling, &error), THESPIS_OK);
    feed(backend, 0, rows, 1, 1);
    assert_int_equal(backend->ops->step(backend, steps, 1, &error), THESPIS_INVALID);
    assert_non_null(strstr(error.message, "at least 2"));
    assert_int_equal(backend->ops->feed(backend, 0, rows, 8, &error), THESPIS_LIMIT);
    assert_non_null(strstr(error.message, "max_rows is 8"));
    assert_int_equal(backend->ops->rows(backend, 0), 1);
    rows[0] = model->config.backbone.vocab;
    assert_int_equal(backend->ops->feed(backend, 0, rows, 1, &error), THESPIS_INVALID);
    make_rows(rows, 7, 51);
    feed(backend, 0, rows, 6, 6);
    assert_int_equal(backend->ops->step(backend, steps, 2, &error), THESPIS_OK); /* the second names the lane again */
    assert_int_equal(steps[0].status, THESPIS_OK);
    assert_int_equal(steps[1].status, THESPIS_INVALID);
    assert_int_equal(backend->ops->step(backend, steps, 1, &error), THESPIS_LIMIT); /* 8 rows are there */
    assert_int_equal(backend->ops->feed(backend, 7, rows, 1, &error), THESPIS_INVALID);
    assert_int_equal(backend->ops->copy(backend, 1, 0, &error), THESPIS_INVALID);
    backend->ops->close(backend);
}

#ifdef TEST_CUDA_LANES
/* Unprobed steps run through graphs and a row ahead, and give the frames of probed ones, which do not: alone and together, in any
 * mixture. */
static void running_ahead_does_not_show(void **unused)
{
    (void)unused;
    static struct record alone[LANES];
    static int32_t frames[LANES][FRAMES][MAX_WIDTH];
    thespis_error error;
    int32_t rows[ROWS * MAX_WIDTH];
    struct th_backend *backend = open_lanes(2, THESPIS_ISA_AUTO, LANES);
    uint64_t seeds[LANES];
    for (int lane = 0; lane < LANES; lane++) seeds[lane] = run_lively(backend, 80 + (uint32_t)lane, SHORT, &alone[lane]);
    for (int lane = 0; lane < LANES; lane++) {
        struct th_sampling sampling = sampling_of(seeds[lane]);
        make_rows(rows, SHORT, 80 + (uint32_t)lane);
        assert_int_equal(backend->ops->begin(backend, lane, &sampling, &error), THESPIS_OK);
        feed(backend, lane, rows, SHORT, SHORT);
    }
    static struct record unheeded[LANES];
    for (int i = 0; i < FRAMES; i++) {
        struct th_step steps[LANES];
        backend->ops->probe(backend, i == 1 ? record_probe : NULL, unheeded);
        for (int lane = 0; lane < LANES; lane++) steps[lane] = (struct th_step){.lane = lane, .frame = frames[lane][i]};
        assert_int_equal(backend->ops->step(backend, steps, LANES, &error), THESPIS_OK);
    }
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < FRAMES; i++)
            assert_memory_equal(frames[lane][i], alone[lane].frames[i], (size_t)model->config.frame_width * sizeof(int32_t));
    backend->ops->close(backend);
}
#endif

#ifndef TEST_MODEL
#define TEST_MODEL TEST_SOURCE_DIR "/models/stage"
#endif

static int open_model(void **unused)
{
    (void)unused;
    thespis_error error;
    return th_model_open(TEST_MODEL, &model, &error) == THESPIS_OK ? 0 : -1;
}

static int close_model(void **unused)
{
    (void)unused;
    th_model_close(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifdef TEST_CUDA_LANES
        cmocka_unit_test(running_ahead_does_not_show),
#endif
        cmocka_unit_test(prompts_go_on_after_frames),
        cmocka_unit_test(pieces_do_not_show),
#ifndef TEST_CUDA_LANES
        cmocka_unit_test(threads_do_not_show),
        cmocka_unit_test(instruction_sets_do_not_show),
#endif
        cmocka_unit_test(neighbours_do_not_show),
        cmocka_unit_test(a_copy_goes_on_like_the_lane),
        cmocka_unit_test(frames_fed_are_frames_drawn),
        cmocka_unit_test(speech_ends_once),
        cmocka_unit_test(misuse_is_named),
        cmocka_unit_test(a_broken_lane_fails_alone),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
