/* test_cuda_parity.c - the CUDA backend against the CPU backend's bf16, a layer at a time from the CPU's inputs, then end to end
 * over forced frames. Limits are those of docs/parity.md ("local" and "picks"): another order of sums leaves most values bit-equal,
 * a wrong rounding or a wrong index moves them all. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"

enum { ROWS = 72, FRAMES = 4, MOST_LAYERS = 32, WIDTH = 33, MOST_K = 8 };

#define FOLDER TEST_BINARY_DIR "/cuda-parity"

static struct th_model *model;

/* What the CPU's prompt looked like: values of every layer, [ROWS][cols]. */
struct seen {
    int hidden, experts, top_k;
    float *embed, *final, *backbone[MOST_LAYERS], *tower[MOST_LAYERS], *router[MOST_LAYERS], *chosen[MOST_LAYERS];
};

static void *take(size_t bytes)
{
    void *p = calloc(1, bytes);
    assert_non_null(p);
    return p;
}

static void keep(float **to, int row0, int rows, int cols, const float *values)
{
    if (*to == NULL) *to = take((size_t)ROWS * (size_t)cols * sizeof(float));
    for (int r = 0; r < rows && row0 + r < ROWS; r++)
        memcpy(*to + (size_t)(row0 + r) * (size_t)cols, values + (size_t)r * (size_t)cols, (size_t)cols * sizeof(float));
}

static void see(void *context, int lane, const char *name, int layer, int row0, int rows, int cols, const float *values)
{
    struct seen *s = context;
    (void)lane;
    if (strcmp(name, "embed") == 0) keep(&s->embed, row0, rows, cols, values);
    if (strcmp(name, "backbone_layer") == 0) keep(&s->backbone[layer], row0, rows, cols, values);
    if (strcmp(name, "backbone_final") == 0) keep(&s->final, row0, rows, cols, values);
    if (strcmp(name, "tower_layer") == 0) keep(&s->tower[layer], row0, rows, cols, values);
    if (strcmp(name, "moe_router") == 0) keep(&s->router[layer], row0, rows, cols, values);
    if (strcmp(name, "moe_experts") == 0) keep(&s->chosen[layer], row0, rows, cols, values);
}

static void forget(struct seen *s)
{
    free(s->embed);
    free(s->final);
    for (int i = 0; i < MOST_LAYERS; i++) {
        free(s->backbone[i]);
        free(s->tower[i]);
        free(s->router[i]);
        free(s->chosen[i]);
    }
}

static void make_rows(int32_t *rows, int n)
{
    const struct th_config *config = &model->config;
    uint32_t seed = 11;
    for (int i = 0; i < n; i++) {
        int32_t *row = rows + i * config->frame_width;
        memset(row, 0, (size_t)config->frame_width * sizeof *row);
        seed = seed * 1664525u + 1013904223u;
        row[0] = (int32_t)(seed >> 8) % 200;
        if (i % 23 < 9) continue;
        for (int j = 1; j < config->frame_width; j++) {
            seed = seed * 1664525u + 1013904223u;
            row[j] = (int32_t)((seed >> 8) % (uint32_t)config->tower.codebook_size);
        }
        row[0] = config->semantic_start + row[1];
    }
}

static struct th_backend *open_one(int cuda)
{
    struct th_backend_options options = {.precision = THESPIS_PRECISION_BF16, .threads = 2, .act_quant = 1};
    struct th_backend *backend;
    thespis_error error;
    thespis_status status = cuda ? th_cuda_backend_open(model, NULL, &options, &backend, &error)
                                 : th_cpu_backend_open(model, NULL, &options, &backend, &error);
    if (status != THESPIS_OK) fail_msg("%s", error.message);
    if (backend->ops->lanes(backend, 1, ROWS + FRAMES + 1, &error) != THESPIS_OK) fail_msg("%s", error.message);
    return backend;
}

static void begin(struct th_backend *backend)
{
    thespis_error error;
    struct th_sampling sampling = {.temperature = 1.0f, .top_p = 0.9f, .top_k = TH_TOP_K_UNLIMITED, .seed = 1};
    if (backend->ops->begin(backend, 0, &sampling, &error) != THESPIS_OK) fail_msg("%s", error.message);
}

/* ---- errors of rows -------------------------------------------------------------------------------------------------------------
 */

struct errors {
    double worst, equal; /* share of bit-equal values */
    double row[ROWS];
    int rows, others; /* rows with other experts are left out */
};

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Row errors: |ours - want| over what the layer adds to its input, or over the output. */
static void add_row(struct errors *e, const float *ours, const float *want, const float *in, int n, size_t *equal)
{
    double off = 0, size = 0;
    for (int i = 0; i < n; i++) {
        double adds = (double)want[i] - (in != NULL ? (double)in[i] : 0), d = (double)ours[i] - (double)want[i];
        off += d * d;
        size += adds * adds;
        *equal += ours[i] == want[i];
    }
    double error = sqrt(off / (size + 1e-30));
    e->row[e->rows++] = error;
    e->worst = error > e->worst ? error : e->worst;
}

static double median(struct errors *e)
{
    qsort(e->row, (size_t)e->rows, sizeof *e->row, by_size);
    return e->row[e->rows / 2];
}

/* Steps of bf16 at the size of x. */
static double steps(double difference, double x)
{
    int exponent;
    frexp(x, &exponent);
    return difference / ldexp(1.0, exponent - 8);
}

/* Whether the experts are others than the CPU's; then the last chosen and the first left out must be close. */
static int chose_others(const struct seen *cpu, const struct seen *cuda, int layer, int row)
{
    const float *a = cpu->chosen[layer] + row * cpu->top_k, *b = cuda->chosen[layer] + row * cpu->top_k;
    const float *logits = cpu->router[layer] + row * cpu->experts;
    if (memcmp(a, b, (size_t)cpu->top_k * sizeof *a) == 0) return 0;
    for (int k = 0; k < cpu->top_k; k++)
        if (a[k] != b[k]) { /* the first slot that differs: its rivals are near */
            double x = (double)logits[(int)a[k]], y = (double)logits[(int)b[k]];
            assert_true(steps(fabs(x - y), fmax(fabs(x), fabs(y))) <= 2.0);
        }
    return 1;
}

/* ---- layers ---------------------------------------------------------------------------------------------------------------------
 */

struct summary {
    double worst, median, equal;
    int layers, others;
};

static void add_layer(struct summary *s, struct errors *e, size_t equal, size_t values, const char *what, int layer)
{
    double middle = median(e), share = (double)equal / (double)values;
    print_message("  %s %2d: worst row %.4f, median %.5f, equal %.3f, other experts %d\n", what, layer, e->worst, middle, share,
                  e->others);
    s->worst = e->worst > s->worst ? e->worst : s->worst;
    s->median += middle;
    s->equal += share;
    s->others += e->others;
    s->layers++;
}

static void backbone_layers(struct th_backend *cuda, const struct seen *cpu, struct summary *s)
{
    const int hidden = cpu->hidden;
    float *out = take((size_t)ROWS * (size_t)hidden * sizeof *out);
    for (int layer = 0; layer < model->config.backbone.layers; layer++) {
        const float *in = layer == 0 ? cpu->embed : cpu->backbone[layer - 1];
        struct seen ours = {0};
        struct errors e = {0};
        size_t equal = 0;
        thespis_error error;
        cuda->ops->probe(cuda, see, &ours);
        for (int first = 0; first < ROWS; first += ROWS / 2)
            if (cuda->ops->layer(cuda, 0, 0, layer, first, ROWS / 2, in + first * hidden, NULL, NULL, out + first * hidden,
                                 &error) != THESPIS_OK)
                fail_msg("%s", error.message);
        cuda->ops->probe(cuda, NULL, NULL);
        for (int row = 0; row < ROWS; row++)
            if (chose_others(cpu, &ours, layer, row))
                e.others++;
            else
                add_row(&e, out + row * hidden, cpu->backbone[layer] + row * hidden, in + row * hidden, hidden, &equal);
        add_layer(s, &e, equal, (size_t)e.rows * (size_t)hidden, "backbone", layer);
        forget(&ours);
    }
    free(out);
}

static void tower_layers(struct th_backend *cuda, const struct seen *cpu, const int32_t *rows, struct summary *s)
{
    const int hidden = cpu->hidden, layers = model->config.tower.shared_layers + model->config.tower.residual_layers;
    float *out = take((size_t)ROWS * (size_t)hidden * sizeof *out);
    for (int t = 0; t < layers; t++) {
        const float *in = t == 0 ? cpu->final : cpu->tower[t - 1];
        struct errors e = {0};
        size_t equal = 0;
        thespis_error error;
        if (cuda->ops->layer(cuda, 0, 1, t, 0, ROWS - 1, in, rows, rows + model->config.frame_width, out, &error) != THESPIS_OK)
            fail_msg("%s", error.message);
        for (int row = 0; row < ROWS - 1; row++)
            add_row(&e, out + row * hidden, cpu->tower[t] + row * hidden, NULL, hidden, &equal);
        add_layer(s, &e, equal, (size_t)e.rows * (size_t)hidden, "tower", t);
    }
    free(out);
}

/* Final norm and heads: within a step of the row's largest value. */
static void heads(struct th_backend *cuda, struct th_backend *cpu_backend, const struct seen *cpu)
{
    const struct th_config *config = &model->config;
    const int last = config->backbone.layers - 1, n = 5;
    float *ours = take((size_t)n * (size_t)(config->candidates + cpu->hidden) * sizeof *ours);
    float *want = take((size_t)n * (size_t)(config->candidates + cpu->hidden) * sizeof *want);
    for (int part = 0; part < 2 + config->tower.residual_layers; part++) {
        const float *in = part == 0   ? cpu->backbone[last]
                          : part == 1 ? cpu->final
                                      : cpu->tower[config->tower.shared_layers + part - 2];
        const int width = part == 0 ? cpu->hidden : part == 1 ? config->candidates : config->tower.codebook_size;
        thespis_error error;
        assert_int_equal(cpu_backend->ops->head(cpu_backend, part, n, in, want, &error), THESPIS_OK);
        if (cuda->ops->head(cuda, part, n, in, ours, &error) != THESPIS_OK) fail_msg("%s", error.message);
        for (int row = 0; row < n; row++) {
            double most = 0, off = 0;
            for (int i = row * width; i < (row + 1) * width; i++) {
                most = fmax(most, fabs((double)want[i]));
                off = fmax(off, fabs((double)ours[i] - (double)want[i]));
            }
            assert_true(steps(off, most) <= 1.0);
        }
    }
    free(ours);
    free(want);
}

/* ---- picks ----------------------------------------------------------------------------------------------------------------------
 */

struct logits {
    float *main, *code[WIDTH]; /* [FRAMES][width] */
};
static void see_logits(void *context, int lane, const char *name, int layer, int row0, int rows, int cols, const float *values)
{
    struct logits *l = context;
    (void)lane, (void)rows;
    float **to = strcmp(name, "candidate_logits") == 0 ? &l->main : strcmp(name, "code_logits") == 0 ? &l->code[layer] : NULL;
    if (to == NULL) return;
    if (*to == NULL) *to = take((size_t)FRAMES * (size_t)cols * sizeof(float));
    memcpy(*to + (size_t)(row0 - ROWS + 1) * (size_t)cols, values, (size_t)cols * sizeof(float));
}

static void force(struct th_backend *backend, const int32_t *rows, struct logits *logits)
{
    thespis_error error;
    begin(backend);
    if (backend->ops->feed(backend, 0, rows, ROWS, &error) != THESPIS_OK) fail_msg("%s", error.message);
    backend->ops->probe(backend, see_logits, logits);
    for (int i = 0; i < FRAMES; i++) {
        int32_t frame[WIDTH];
        struct th_step step = {.lane = 0, .forced = rows + (9 + i) * model->config.frame_width, .frame = frame};
        if (backend->ops->step(backend, &step, 1, &error) != THESPIS_OK) fail_msg("%s", error.message);
    }
    backend->ops->probe(backend, NULL, NULL);
}

static int best_of(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++) best = x[i] > x[best] ? i : best;
    return best;
}

/* Whether both would pick the same; if not, the CUDA pick's distance behind the CPU's best is bounded. */
static int same_pick(const float *cpu, const float *cuda, int n)
{
    int want = best_of(cpu, n), have = best_of(cuda, n);
    if (want == have) return 1;
    assert_true(steps((double)cpu[want] - (double)cpu[have], fabs((double)cpu[want])) <= 32.0);
    return 0;
}

static void picks(struct th_backend *cuda, struct th_backend *cpu_backend, const int32_t *rows)
{
    const struct th_config *config = &model->config;
    struct logits cpu = {0}, ours = {0};
    force(cpu_backend, rows, &cpu);
    force(cuda, rows, &ours);
    int same = 0, all = 0;
    for (int i = 0; i < FRAMES; i++) {
        same += same_pick(cpu.main + i * config->candidates, ours.main + i * config->candidates, config->candidates);
        all++;
        for (int r = 0; r < config->tower.residual_layers; r++, all++)
            same += same_pick(cpu.code[r] + i * config->tower.codebook_size, ours.code[r] + i * config->tower.codebook_size,
                              config->tower.codebook_size);
    }
    print_message("  %d of %d picks equal\n", same, all);
    assert_true(same >= (all * 85) / 100); /* 94 % of thousands; these are few */
    free(cpu.main);
    free(ours.main);
    for (int r = 0; r < config->tower.residual_layers; r++) {
        free(cpu.code[r]);
        free(ours.code[r]);
    }
}

/* ---- a checkpoint
 * ---------------------------------------------------------------------------------------------------------------- */

static void compare(const char *folder)
{
    thespis_error error;
    if (th_model_open(folder, &model, &error) != THESPIS_OK) fail_msg("%s", error.message);
    int32_t rows[ROWS * WIDTH];
    make_rows(rows, ROWS);
    struct th_backend *cpu_backend = open_one(0), *cuda = open_one(1);
    struct seen cpu = {
        .hidden = model->config.backbone.hidden, .experts = model->config.backbone.experts, .top_k = model->config.backbone.top_k};
    struct summary backbone = {0}, tower = {0};
    print_message("%s\n", folder);
    cpu_backend->ops->probe(cpu_backend, see, &cpu);
    begin(cpu_backend);
    if (cpu_backend->ops->feed(cpu_backend, 0, rows, ROWS, &error) != THESPIS_OK) fail_msg("%s", error.message);
    cpu_backend->ops->probe(cpu_backend, NULL, NULL);
    begin(cuda);
    backbone_layers(cuda, &cpu, &backbone);
    tower_layers(cuda, &cpu, rows, &tower);
    heads(cuda, cpu_backend, &cpu);
    picks(cuda, cpu_backend, rows);
    assert_true(backbone.worst <= 0.12);
    assert_true(backbone.median / backbone.layers <= 0.0015);
    assert_true(backbone.equal / backbone.layers >= 0.80);
    assert_true(tower.worst <= 0.01);
    assert_true(tower.median / tower.layers <= 0.0022);
    assert_true(tower.equal / tower.layers >= 0.75);
    assert_true(backbone.others <= 1 + ROWS * backbone.layers / 100);
    forget(&cpu);
    cuda->ops->close(cuda);
    cpu_backend->ops->close(cpu_backend);
    th_model_close(model);
}

static void made(const char *preset)
{
    char command[1000], folder[300];
    snprintf(folder, sizeof folder, FOLDER "/%s", preset);
    snprintf(command, sizeof command,
             "mkdir -p '" FOLDER "' && { test -d '%s' || '" TEST_BINARY_DIR
             "/make_checkpoint' --preset %s --seed 3 '%s'; } >/dev/null",
             folder, preset, folder);
    assert_int_equal(system(command), 0);
    compare(folder);
}

static void stage(void **state)
{
    (void)state;
    compare(TEST_SOURCE_DIR "/models/stage");
}
static void tiny(void **state)
{
    (void)state;
    made("tiny");
}
static void wide_heads(void **state)
{
    (void)state;
    made("wide-heads");
}
static void real_heads(void **state)
{
    (void)state;
    made("real-heads");
}
static void edges(void **state)
{
    (void)state;
    made("edges");
}
static void small_one(void **state)
{
    (void)state;
    made("small");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stage),      cmocka_unit_test(tiny),  cmocka_unit_test(wide_heads),
                                       cmocka_unit_test(real_heads), cmocka_unit_test(edges), cmocka_unit_test(small_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
