/* test_lm_kernels.c - the language model's kernels: against sums in double, every instruction set against the portable one byte for
 * byte, many columns against one, any cut of the rows against the whole. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/lm.h"
#include "backend/cpu/simd.h"

#define MOST 4096

static uint32_t state = 1;

static float uniform(void) /* -1..1 */
{
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)state * 0x1p-31f;
}

static void fill(float *x, int n, float scale)
{
    for (int i = 0; i < n; i++) x[i] = uniform() * scale;
}

static uint16_t to_bf16(float value)
{
    uint32_t bits;
    value = th_round_bf16(value);
    memcpy(&bits, &value, 4);
    return (uint16_t)(bits >> 16);
}

static double e4m3(uint8_t code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double size = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);
    return code & 0x80 ? -size : size;
}

/* The portable table and those this processor can run. */
static const struct th_lm_kernels *tables[2] = {&th_lm_kernels_portable};
static int table_count = 1;

static int find_tables(void **unused)
{
    (void)unused;
#ifdef TH_HAVE_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) /* every such processor has F16C */
        tables[table_count++] = &th_lm_kernels_avx2;
#endif
    return 0;
}

struct sizes {
    int rows, inner, columns;
};
static const struct sizes product_sizes[] = {{1, 1, 1},   {1, 16, 2},   {3, 15, 4},   {5, 17, 3},   {4, 128, 1}, {9, 129, 7},
                                             {8, 255, 5}, {130, 40, 2}, {17, 300, 6}, {2, 256, 13}, {6, 64, 50}, {33, 144, 3}};

struct weights {
    uint16_t bf16[MOST * 2];
    uint8_t codes[MOST * 2];
    float scales[64], x[MOST], x_scales[256], y[MOST], want[MOST];
};

static struct th_product product_of(struct weights *w, struct sizes size, int quantised, int round)
{
    struct th_product product = {.rows = size.rows,
                                 .inner = size.inner,
                                 .columns = size.columns,
                                 .x = w->x,
                                 .x_stride = size.inner,
                                 .y = w->y,
                                 .y_stride = size.rows + 1,
                                 .round = round};
    if (!quantised) {
        product.bf16 = w->bf16;
        return product;
    }
    product.codes = w->codes;
    product.scales = w->scales;
    product.x_scales = quantised > 1 ? w->x_scales : NULL;
    return product;
}

static double reference(const struct th_product *p, int r, int c)
{
    double sum = 0;
    int blocks = (p->inner + 127) / 128;
    for (int k = 0; k < p->inner; k++) {
        size_t at = (size_t)r * (size_t)p->inner + (size_t)k;
        double x = p->x[(size_t)c * (size_t)p->x_stride + (size_t)k], w;
        if (p->bf16 != NULL)
            w = th_bf16_to_float(p->bf16[at]);
        else
            w = e4m3(p->codes[at]) * p->scales[r / 128 * blocks + k / 128] * (p->x_scales ? p->x_scales[c * blocks + k / 128] : 1);
        sum += w * x;
    }
    return sum;
}

static void make_weights(struct weights *w)
{
    for (int i = 0; i < MOST * 2; i++) {
        w->bf16[i] = to_bf16(uniform());
        w->codes[i] = (uint8_t)(state >> 13);
        if ((w->codes[i] & 0x7F) == 0x7F) w->codes[i] = 0x7E;
        uniform();
    }
    fill(w->x, MOST, 1.0f);
    fill(w->scales, 64, 0.01f);
    fill(w->x_scales, 256, 0.01f);
}

static void product_is_the_sum(void **unused)
{
    (void)unused;
    struct weights *w = malloc(sizeof *w);
    assert_non_null(w);
    make_weights(w);
    for (size_t i = 0; i < sizeof product_sizes / sizeof *product_sizes; i++)
        for (int quantised = 0; quantised < 3; quantised++)
            for (int t = 0; t < table_count; t++) {
                struct th_product product = product_of(w, product_sizes[i], quantised, 0);
                tables[t]->product(&product, 0, product.rows);
                for (int c = 0; c < product.columns; c++)
                    for (int r = 0; r < product.rows; r++) {
                        double want = reference(&product, r, c), got = w->y[c * product.y_stride + r];
                        double size = quantised ? 448 * 0.01 * (quantised > 1 ? 0.01 : 1) : 1;
                        assert_true(fabs(got - want) <= 1e-6 * size * product.inner);
                    }
            }
    free(w);
}

static void product_does_not_depend_on_its_cut(void **unused)
{
    (void)unused;
    struct weights *w = malloc(sizeof *w);
    assert_non_null(w);
    make_weights(w);
    for (size_t i = 0; i < sizeof product_sizes / sizeof *product_sizes; i++)
        for (int quantised = 0; quantised < 3; quantised++)
            for (int round = 0; round < 2; round++) {
                struct th_product product = product_of(w, product_sizes[i], quantised, round);
                const size_t bytes = (size_t)product.columns * (size_t)product.y_stride * sizeof(float);
                memset(w->y, 0, sizeof w->y);
                tables[0]->product(&product, 0, product.rows);
                memcpy(w->want, w->y, bytes);
                for (int t = 0; t < table_count; t++) {
                    memset(w->y, 0, sizeof w->y);
                    for (int r = 0; r < product.rows; r += 3)
                        tables[t]->product(&product, r, r + 3 < product.rows ? r + 3 : product.rows);
                    assert_memory_equal(w->y, w->want, bytes);
                    memset(w->y, 0, sizeof w->y);
                    for (int c = 0; c < product.columns; c++) { /* a column at a time, named by x_rows */
                        struct th_product one = product;
                        one.columns = 1;
                        one.x_rows = &c;
                        one.y = w->y + c * product.y_stride;
                        tables[t]->product(&one, 0, one.rows);
                    }
                    assert_memory_equal(w->y, w->want, bytes);
                }
            }
    free(w);
}

static void rows_agree_between_instruction_sets(void **unused)
{
    (void)unused;
    static float x[MOST], w[MOST], z[MOST], want[MOST], got[MOST];
    fill(x, MOST, 3.0f);
    fill(w, MOST, 0.3f);
    fill(z, MOST, 9.0f);
    for (int n = 1; n < 300; n += n < 40 ? 1 : 37)
        for (int bf16 = 0; bf16 < 2; bf16++)
            for (int t = 0; t < table_count; t++)
                for (int which = 0; which < 7; which++) {
                    float *y = t == 0 ? want + which * 512 : got + which * 512;
                    const struct th_lm_kernels *k = tables[t];
                    if (which == 0) k->norm(x, w, 1.0f, 1e-6f, n, bf16, y);
                    if (which == 1) k->add(x, z, n, bf16, y);
                    if (which == 2) k->silu_mul(z, x, n, bf16, y);
                    if (which == 3) k->sigmoid_mul(x, z, n, bf16, bf16, y);
                    if (which == 4) k->unit(x, 0.125f, n, y);
                    if (which == 5) k->gated_norm(x, w, z, 1e-6f, n, bf16, y);
                    if (which == 6) k->delta_gates(x, z, w, w + 512, n < 256 ? n : 256, bf16, y, y + 256);
                    if (t > 0) assert_memory_equal(y, want + which * 512, (size_t)(n < 256 ? n : 256) * sizeof(float));
                }
}

static void norm_adds_one_where_asked(void **unused)
{
    (void)unused;
    const float x[4] = {1, -2, 3, -4}, w[4] = {0.5f, 0, -0.5f, 1};
    float y[4];
    double root = 1 / sqrt(7.5 + 1e-6);
    for (int t = 0; t < table_count; t++)
        for (int plus = 0; plus < 2; plus++) {
            tables[t]->norm(x, w, (float)plus, 1e-6f, 4, 0, y);
            for (int i = 0; i < 4; i++) assert_true(fabs(y[i] - x[i] * root * ((double)w[i] + plus)) < 1e-6);
            tables[t]->gated_norm(x, w, x, 1e-6f, 4, 0, y);
            for (int i = 0; i < 4; i++) assert_true(fabs(y[i] - x[i] * root * w[i] * x[i] / (1 + exp(-x[i]))) < 1e-6);
        }
}

static void rounding_keeps_infinities_and_nan(void **unused)
{
    (void)unused;
    float x[20] = {0}, zero[20] = {0}, y[20];
    x[0] = INFINITY, x[1] = -INFINITY, x[2] = NAN, x[3] = 1.0f + 0x1p-8f, x[4] = 1.0f + 0x1.8p-7f, x[5] = 3.4e38f;
    uint32_t ugly = 0x7FFFFFFFu;
    memcpy(&x[6], &ugly, 4);
    for (int t = 0; t < table_count; t++) {
        tables[t]->add(x, zero, 20, 1, y);
        assert_true(y[0] == INFINITY && y[1] == -INFINITY && isnan(y[2]) && isnan(y[6]));
        assert_true(y[3] == 1.0f); /* ties to even */
        assert_true(y[4] == 1.0f + 0x1p-6f);
        assert_true(isinf(y[5]));
    }
}

static void quantise_takes_the_nearest(void **unused)
{
    (void)unused;
    static float x[300], values[300];
    float scales[3];
    for (int round = 0; round < 30; round++) {
        fill(x, 300, ldexpf(1.0f, round - 20));
        if (round == 3) memset(x, 0, sizeof x);
        for (int i = 0; i < 300; i += 7) x[i] *= 0x1p-9f; /* the grid's fine end */
        for (int t = 0; t < table_count; t++) {
            tables[t]->quantise(x, 300, values, scales);
            for (int i = 0; i < 300; i++) {
                float most = 1e-10f;
                for (int j = i / 128 * 128; j < 300 && j < i / 128 * 128 + 128; j++) most = fmaxf(most, fabsf(x[j]));
                assert_true(scales[i / 128] == most * (1.0f / 448.0f));
                double scaled = x[i] * (448.0f / most), best = INFINITY;
                for (int code = 0; code < 256; code++)
                    if ((code & 0x7F) != 0x7F) best = fmin(best, fabs(e4m3((uint8_t)code) - scaled));
                assert_true(fabs(values[i] - scaled) == best);
            }
        }
    }
}

static void route_prefers_the_lower_id(void **unused)
{
    (void)unused;
    const float logits[7] = {1, 3, 2, 3, -1, 2, 3};
    float scratch[7], weights[5];
    int chosen[5];
    const int want[5] = {1, 3, 6, 2, 5};
    for (int t = 0; t < table_count; t++) {
        tables[t]->route(logits, 7, 5, scratch, chosen, weights);
        double sum = 3 + 2 * exp(-1.0);
        for (int i = 0; i < 5; i++) {
            assert_int_equal(chosen[i], want[i]);
            assert_true(fabs(weights[i] - (i < 3 ? 1 : exp(-1.0)) / sum) < 1e-6);
        }
        const float broken[3] = {NAN, NAN, NAN};
        tables[t]->route(broken, 3, 2, scratch, chosen, weights);
        for (int i = 0; i < 2; i++) assert_in_range(chosen[i], 0, 2);
    }
}

static void attention_is_softmax(void **unused)
{
    (void)unused;
    static float keys[200 * 80], values[200 * 80], query[2 * 40], out[2][2 * 40];
    fill(keys, 200 * 80, 1.0f);
    fill(values, 200 * 80, 1.0f);
    fill(query, 80, 4.0f);
    for (int rows = 1; rows < 200; rows += rows < 4 || (rows > 62 && rows < 66) ? 1 : 29)
        for (int dim = 3; dim <= 40; dim += 37) {
            struct th_attend attend = {query, keys, values, 80, rows, 2, dim, 0.3f, NULL};
            for (int t = 0; t < table_count; t++) {
                attend.out = out[t];
                tables[t]->attend(&attend, 0);
            }
            if (table_count > 1) assert_memory_equal(out[0], out[1], (size_t)(2 * dim) * sizeof(float));
            for (int i = 0; i < 2 * dim; i++) {
                double sum = 0, value = 0;
                for (int row = 0; row < rows; row++) {
                    double score = 0;
                    for (int j = 0; j < dim; j++) score += (double)query[i / dim * dim + j] * keys[row * 80 + j];
                    sum += exp(score * 0.3f);
                    value += exp(score * 0.3f) * values[row * 80 + i % dim];
                }
                assert_true(fabs(out[0][i] - value / sum) < 1e-5);
            }
        }
}

/* The recurrence in double, its state laid out plainly. */
static void plain_delta(const struct th_delta *d, double *plain, double *out)
{
    for (int t = 0; t < d->rows; t++)
        for (int n = 0; n < d->value_dim; n++) {
            double sum = 0, o = 0;
            for (int m = 0; m < d->key_dim; m++) {
                plain[m * d->value_dim + n] *= d->decay[t];
                sum += plain[m * d->value_dim + n] * d->key[t * d->stride + m];
            }
            double change = d->beta[t] * (d->value[t * d->stride + n] - sum);
            for (int m = 0; m < d->key_dim; m++) {
                plain[m * d->value_dim + n] += d->key[t * d->stride + m] * change;
                o += plain[m * d->value_dim + n] * d->query[t * d->stride + m];
            }
            out[t * d->value_dim + n] = o;
        }
}

static void delta_is_the_recurrence(void **unused)
{
    (void)unused;
    enum { ROWS = 9, KEY = 20, STRIDE = 120 };
    static float mixed[ROWS * STRIDE], decay[ROWS], beta[ROWS], states[2][KEY * 64], out[2][ROWS * 64];
    for (int width = 16; width <= 52; width += 12) {
        fill(mixed, ROWS * STRIDE, 0.3f);
        for (int t = 0; t < ROWS; t++) decay[t] = 0.5f + 0.5f * fabsf(uniform()), beta[t] = fabsf(uniform());
        struct th_delta delta = {NULL, mixed, mixed + KEY, mixed + 2 * KEY, decay, beta,  NULL,
                                 ROWS, KEY,   width,       STRIDE,          1,     width, 0};
        for (int t = 0; t < table_count; t++) {
            memset(states[t], 0, sizeof states[t]);
            delta.state = states[t];
            delta.out = out[t];
            tables[t]->delta(&delta);
        }
        if (table_count > 1) {
            assert_memory_equal(out[0], out[1], (size_t)(ROWS * width) * sizeof(float));
            assert_memory_equal(states[0], states[1], sizeof states[0]);
        }
        double plain[KEY * 64] = {0}, want[ROWS * 64];
        plain_delta(&delta, plain, want);
        for (int i = 0; i < ROWS * width; i++) assert_true(fabs(out[0][i] - want[i]) < 1e-5);
    }
}

static void convolution_reads_the_oldest_first(void **unused)
{
    (void)unused;
    static float rows[4][21], taps[4 * 21], y[2][21];
    fill(&rows[0][0], 84, 1.0f);
    fill(taps, 84, 1.0f);
    const float *inputs[4] = {rows[0], rows[1], rows[2], rows[3]};
    for (int t = 0; t < table_count; t++) tables[t]->convolve(inputs, taps, 4, 21, 21, 0, y[t]);
    if (table_count > 1) assert_memory_equal(y[0], y[1], sizeof y[0]);
    for (int c = 0; c < 21; c++) {
        double sum = 0;
        for (int j = 0; j < 4; j++) sum += (double)taps[j * 21 + c] * rows[j][c];
        assert_true(fabs(y[0][c] - sum / (1 + exp(-sum))) < 1e-6);
    }
}

static void mix_weighs_in_slot_order(void **unused)
{
    (void)unused;
    static float down[5 * 19], shared[19], y[2][19];
    const int entries[3] = {4, 0, 2};
    const float weights[3] = {0.5f, 0.3f, 0.2f};
    fill(down, 95, 1.0f);
    fill(shared, 19, 1.0f);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        for (int t = 0; t < table_count; t++) tables[t]->mix(down, entries, weights, 3, shared, 0.25f, 19, bf16, y[t]);
        if (table_count > 1) assert_memory_equal(y[0], y[1], sizeof y[0]);
        for (int i = 0; i < 19; i++) {
            float routed = 0;
            for (int s = 0; s < 3; s++) {
                float part = down[entries[s] * 19 + i] * weights[s];
                routed += bf16 ? th_round_bf16(part) : part;
            }
            float all = (bf16 ? th_round_bf16(routed) : routed) + 0.25f * shared[i];
            assert_true(y[0][i] == (bf16 ? th_round_bf16(all) : all));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(product_is_the_sum),
        cmocka_unit_test(product_does_not_depend_on_its_cut),
        cmocka_unit_test(rows_agree_between_instruction_sets),
        cmocka_unit_test(norm_adds_one_where_asked),
        cmocka_unit_test(rounding_keeps_infinities_and_nan),
        cmocka_unit_test(quantise_takes_the_nearest),
        cmocka_unit_test(route_prefers_the_lower_id),
        cmocka_unit_test(attention_is_softmax),
        cmocka_unit_test(delta_is_the_recurrence),
        cmocka_unit_test(convolution_reads_the_oldest_first),
        cmocka_unit_test(mix_weighs_in_slot_order),
    };
    return cmocka_run_group_tests(tests, find_tables, NULL);
}
