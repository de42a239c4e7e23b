/* test_sampler.c - noise against known values, the worked draw, the selection's rules against a plain full sort, the rules of a
 * frame, and refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "sampler/sampler.h"
#include "sampler/smath.h"

#define FULL 4097

static void philox_known_answers(void **state)
{
    (void)state;
    static const uint32_t cases[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD},
        {0, 0, 0, 1, 1, 0, 0x127BEE41, 0x1E047488, 0x48842B20, 0x0A393496}, /* seed 1, step 1, row 0, stream 0, index 0 */
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        th_philox(cases[i], cases[i] + 4, out);
        assert_memory_equal(out, cases[i] + 6, sizeof out);
    }
}

static void noise_known_values(void **state)
{
    (void)state;
    static const struct {
        uint64_t seed, step;
        uint32_t row, stream, index, bits;
    } cases[] = {
        {0, 1, 0, 0, 0, 0x3FDC41A0},
        {1, 1, 0, 0, 0, 0x40283581},
        {1, 1, 0, 0, 1, 0x402E543B},
        {1, 1, 0, 0, 4096, 0x3ED77CEE},
        {1, 1, 0, 1, 0, 0x3F7D2E30},
        {1, 1, 0, 2, 0, 0x3F55758C},
        {1, 1, 0, 10, 4095, 0x3F697B3E},
        {1, 2, 0, 0, 0, 0x3FD68F3A},
        {1, 1, 1, 0, 0, 0x3E6EB1FF},
        {42, 1500, 0, 3, 604, 0x3F533B6C},
        {0x123456789abcdef, 7, 0, 0, 2048, 0x3F1C43CB},
        {0x7fffffffffffffff, 2048, 0, 10, 1023, 0x3F7905A4},
        {1, 4294967297, 0, 0, 0, 0x3FBB5F5D},
        {1, 4294967296, 0, 0, 0, 0x3EEAE0CA},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float noise = th_noise(cases[i].seed, cases[i].step, cases[i].row, cases[i].stream, cases[i].index);
        uint32_t bits;
        memcpy(&bits, &noise, sizeof bits);
        assert_int_equal(bits, cases[i].bits);
    }
}

static void log_and_exp_are_within_half_an_ulp(void **state)
{
    (void)state;
    assert_true(th_smath_exp(0) == 1.0f);
    assert_true(th_smath_exp(-INFINITY) == 0.0f && th_smath_exp(-88) == 0.0f && th_smath_exp(-87.3f) > 0);
    assert_true(-th_smath_log(0x1p-24f) == 16.6355323334f && -th_smath_log(1 - 0x1p-24f) == 5.96046466e-08f);
    /* Every 61st of the 2^23 uniforms, and as many exponents; double functions of any C library are good to 1e-15. */
    for (uint32_t i = 0; i < 1u << 23; i += 61) {
        float u = ((float)i + 0.5f) * 0x1p-23f, x = -90.0f * u;
        double l = log((double)u), e = exp((double)x);
        float got = th_smath_log(u), weight = th_smath_exp(x);
        assert_true(fabs((double)got - l) <= fabs(l) * 0x1.0001p-24);
        if (x > -87.3f) assert_true(fabs((double)weight - e) <= e * 0x1.0001p-24);
    }
}

/* The draw as a description: sort everything, one pass over the ranks. */
struct pair {
    float score;
    int index;
};
static int by_rank(const void *left, const void *right)
{
    const struct pair *a = left, *b = right;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return a->index - b->index;
}

static int plain_draw(const struct th_draw *draw, const float *logits, int count, int *kept)
{
    static struct pair order[FULL];
    static float probability[FULL];
    float temperature = fmaxf(draw->temperature, 1e-5f), largest = -INFINITY;
    for (int i = 0; i < count; i++) {
        order[i] = (struct pair){logits[i] / temperature, i};
        largest = fmaxf(largest, order[i].score);
    }
    double sum = 0;
    for (int i = 0; i < count; i++) sum += (double)th_smath_exp(order[i].score - largest);
    qsort(order, (size_t)count, sizeof *order, by_rank);
    float through = 0;
    for (int r = 0; r < count; r++) {
        probability[r] = th_smath_exp(order[r].score - largest) / (float)sum;
        if (r < 32) through += probability[r];
    }
    int in_double = draw->top_k > 32 && !(through > draw->top_p);
    double total = 0;
    float before = 0, best = -1;
    int index = -1;
    *kept = 0;
    for (int r = 0; r < count; r++) {
        total = in_double ? total + (double)probability[r] : (double)(before + probability[r]);
        float cut = draw->crossing == TH_KEEP_CROSSING ? before : (float)total;
        before = (float)total;
        if (r > 0 && (r >= draw->top_k || (draw->top_p < 1 && cut > draw->top_p))) break;
        (*kept)++;
        int i = order[r].index;
        float value =
            th_smath_exp(order[r].score - largest) / th_noise(draw->seed, draw->step, draw->row, draw->stream, (uint32_t)i);
        if (value > best) {
            best = value;
            index = i;
        }
    }
    return index;
}

static float random_normal(uint64_t *random)
{
    float sum = -6;
    for (int i = 0; i < 12; i++) {
        *random = *random * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(*random >> 40) * 0x1p-24f;
    }
    return sum;
}

static void selection_equals_a_full_sort(void **state)
{
    (void)state;
    static const int counts[] = {1, 2, 7, 31, 32, 33, 64, 1025, FULL};
    static const int caps[] = {1, 2, 5, 30, 31, 32, 33, 200, 4096, 4097, TH_TOP_K_UNLIMITED};
    static const float cuts[] = {1e-6f, 0.1f, 0.5f, 0.8f, 0.9f, 0.95f, 0.999f, 1.0f};
    static const float temperatures[] = {0, 0.7f, 1, 1.3f, 50};
    struct th_draw_scratch scratch;
    assert_int_equal(th_draw_scratch_open(FULL, &scratch, NULL), THESPIS_OK);
    static float logits[FULL];
    uint64_t random = 1;
    for (int trial = 0; trial < 4000; trial++) {
        int count = counts[trial % 9];
        float width = trial % 3 ? 2.0f : 0.25f;
        for (int i = 0; i < count; i++) {
            float x = random_normal(&random) * width;
            logits[i] = trial % 2 ? x : rintf(x * 4) / 4; /* half of the trials are full of ties, zeros of both signs among them */
            if (trial % 7 == 0 && i % 5 == 0) logits[i] = -INFINITY;
            if (trial % 7 == 0 && i == count - 1) logits[i] = 0;
        }
        struct th_draw draw = {.temperature = temperatures[(random >> 33) % 5],
                               .top_k = caps[(random >> 37) % 11],
                               .top_p = cuts[(random >> 41) % 8],
                               .crossing = trial & 1 ? TH_KEEP_CROSSING : TH_EXCLUDE_CROSSING,
                               .seed = random,
                               .step = (uint64_t)trial + 1,
                               .stream = (uint32_t)trial % 11};
        if (count == FULL && trial % 5) continue;
        int index, kept, expected;
        struct th_draw_report report;
        assert_int_equal(th_draw_index(&draw, logits, count, &scratch, &index, &report, NULL), THESPIS_OK);
        expected = plain_draw(&draw, logits, count, &kept);
        assert_int_equal(index, expected);
        assert_int_equal(report.kept, kept);
        assert_true(report.margin >= 1);
    }
    th_draw_scratch_close(&scratch);
}

static void worked_draw(void **state)
{
    (void)state;
    static const float logits[6] = {1.0f, 3.0f, 2.5f, 3.0f, -1.0f, 0.5f};
    static const struct {
        float top_p;
        int32_t top_k;
        enum th_crossing crossing;
        uint32_t stream;
        int kept, index;
        double margin;
    } cases[] = {
        {0.9f, 30, TH_KEEP_CROSSING, 0, 3, 3, 8.114455 / 0.424108},
        {0.8f, 30, TH_KEEP_CROSSING, 0, 3, 3, 8.114455 / 0.424108},
        {0.9f, 2, TH_KEEP_CROSSING, 0, 2, 3, 8.114455 / 0.367122},
        {0.9f, 30, TH_EXCLUDE_CROSSING, 2, 2, 1, 8.313418 / 4.084765},
        {0.8f, 30, TH_EXCLUDE_CROSSING, 2, 2, 1, 8.313418 / 4.084765},
    };
    struct th_draw_scratch scratch;
    assert_int_equal(th_draw_scratch_open(6, &scratch, NULL), THESPIS_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct th_draw draw = {.temperature = 1,
                               .top_k = cases[i].top_k,
                               .top_p = cases[i].top_p,
                               .crossing = cases[i].crossing,
                               .seed = 1,
                               .step = 1,
                               .stream = cases[i].stream};
        int index;
        struct th_draw_report report;
        assert_int_equal(th_draw_index(&draw, logits, 6, &scratch, &index, &report, NULL), THESPIS_OK);
        assert_int_equal(index, cases[i].index);
        assert_int_equal(report.kept, cases[i].kept);
        assert_true(fabs((double)report.margin / cases[i].margin - 1) < 1e-4);
    }
    th_draw_scratch_close(&scratch);
}

static void greedy_takes_the_lowest_index_of_the_largest(void **state)
{
    (void)state;
    static const float logits[5] = {-2.0f, -0.0f, 0.0f, -1.0f, 0.0f};
    struct th_draw draw = {.greedy = 1};
    int index;
    struct th_draw_report report;
    assert_int_equal(th_draw_index(&draw, logits, 5, NULL, &index, &report, NULL), THESPIS_OK);
    assert_int_equal(index, 1);
    assert_int_equal(report.kept, 1);
}

static void refused(const struct th_draw *draw, const float *logits, int count, struct th_draw_scratch *scratch,
                    thespis_status status, const char *words)
{
    int index;
    thespis_error error = {0};
    assert_int_equal(th_draw_index(draw, logits, count, scratch, &index, NULL, &error), status);
    if (!strstr(error.message, words)) fail_msg("'%s' lacks '%s'", error.message, words);
}

static void refusals(void **state)
{
    (void)state;
    struct th_draw_scratch scratch;
    assert_int_equal(th_draw_scratch_open(0, &scratch, NULL), THESPIS_INVALID);
    assert_int_equal(th_draw_scratch_open(3, &scratch, NULL), THESPIS_OK);
    struct th_draw draw = {.temperature = 1, .top_k = 30, .top_p = 0.9f}, greedy = {.greedy = 1};
    const float nan_logits[3] = {1, NAN, 2}, inf_logits[3] = {1, 2, INFINITY}, none[3] = {-INFINITY, -INFINITY, -INFINITY},
                huge[3] = {1, 1e36f, 2}, fine[3] = {1, 2, 3}, low[3] = {1, -1e36f, -INFINITY};
    refused(&draw, nan_logits, 3, &scratch, THESPIS_NUMERIC, "non_finite_logits: logit 1 of 3 is NaN");
    refused(&draw, inf_logits, 3, &scratch, THESPIS_NUMERIC, "non_finite_logits: logit 2 of 3 is inf");
    refused(&draw, none, 3, &scratch, THESPIS_NUMERIC, "non_finite_logits: all 3");
    refused(&greedy, nan_logits, 3, &scratch, THESPIS_NUMERIC, "NaN");
    refused(&greedy, none, 3, &scratch, THESPIS_NUMERIC, "all 3");
    refused(&draw, fine, 4, &scratch, THESPIS_INVALID, "4 candidates");
    refused(&draw, fine, 0, &scratch, THESPIS_INVALID, "0 candidates");
    draw.temperature = 0;
    refused(&draw, huge, 3, &scratch, THESPIS_NUMERIC, "overflows");
    int index;
    assert_int_equal(th_draw_index(&draw, low, 3, &scratch, &index, NULL, NULL), THESPIS_OK);
    assert_int_equal(index, 0);
    draw = (struct th_draw){.temperature = -1, .top_k = 30, .top_p = 0.9f};
    refused(&draw, fine, 3, &scratch, THESPIS_INVALID, "temperature -1");
    draw = (struct th_draw){.temperature = 1, .top_k = 0, .top_p = 0.9f};
    refused(&draw, fine, 3, &scratch, THESPIS_INVALID, "top_k 0");
    draw = (struct th_draw){.temperature = 1, .top_k = 1, .top_p = NAN};
    refused(&draw, fine, 3, &scratch, THESPIS_INVALID, "top_p");
    th_draw_scratch_close(&scratch);
#ifdef TH_FAULTS
    for (long n = 1; n <= 2; n++) {
        th_memory_fail_from(n);
        assert_int_equal(th_draw_scratch_open(3, &scratch, NULL), THESPIS_MEMORY);
        th_memory_fail_from(0);
        assert_null(scratch.weight);
    }
#endif
}

/* A head of 9 candidates: eos below or above the band 100..107. */
static const struct th_main_head eos_below = {9, 7, 100}, eos_above = {9, 300, 100};

static void main_token_follows_candidate_order(void **state)
{
    (void)state;
    struct th_sampler sampler;
    th_sampler_begin(&sampler, &(struct th_sampling){.greedy = 1});
    for (int best = 0; best < 9; best++) {
        float logits[9] = {0};
        logits[best] = 1;
        int32_t token;
        assert_int_equal(th_sampler_main(&sampler, &eos_below, logits, NULL, &token, NULL, NULL), THESPIS_OK);
        assert_int_equal(token, best == 0 ? 7 : 99 + best);
        assert_int_equal(th_sampler_main(&sampler, &eos_above, logits, NULL, &token, NULL, NULL), THESPIS_OK);
        assert_int_equal(token, best == 8 ? 300 : 100 + best);
        assert_int_equal(sampler.step, 2 * best + 2);
        assert_int_equal(sampler.window[TH_RAS_WINDOW - 1], token);
        assert_int_equal(sampler.window[TH_RAS_WINDOW - 2], best == 0 ? 7 : 99 + best);
    }
}

/* Draws one main token and says what the two draws must have been. */
static void main_draw(struct th_sampler *sampler, const struct th_main_head *head, const float *logits,
                      struct th_draw_scratch *scratch, int *redrawn, int32_t *token)
{
    const struct th_sampling *settings = &sampler->settings;
    struct th_draw first = {.temperature = settings->temperature,
                            .top_k = settings->top_k,
                            .top_p = settings->top_p,
                            .seed = settings->seed,
                            .step = sampler->step + 1,
                            .row = settings->row};
    struct th_draw again = {
        .temperature = 1, .top_k = 30, .top_p = 0.95f, .seed = first.seed, .step = first.step, .row = first.row};
    again.stream = 1;
    int index, kept;
    index = plain_draw(&first, logits, 9, &kept);
    int below = head->eos < head->semantic_start, eos_index = below ? 0 : 8;
    *redrawn = 0;
    if (index != eos_index)
        for (int i = 0; i < TH_RAS_WINDOW; i++) *redrawn |= sampler->window[i] == 100 + index - below;
    if (*redrawn) index = plain_draw(&again, logits, 9, &kept);
    int32_t expected = index == eos_index ? head->eos : 100 + index - below;
    struct th_draw_report reports[2];
    assert_int_equal(th_sampler_main(sampler, head, logits, scratch, token, reports, NULL), THESPIS_OK);
    assert_int_equal(*token, expected);
    assert_int_equal(reports[1].kept > 0, *redrawn);
}

static void repetition_is_drawn_again(void **state)
{
    (void)state;
    struct th_draw_scratch scratch;
    assert_int_equal(th_draw_scratch_open(9, &scratch, NULL), THESPIS_OK);
    uint64_t random = 7;
    int redraws = 0, kept_first = 0, ends = 0;
    for (int trial = 0; trial < 40; trial++) {
        struct th_sampler sampler;
        th_sampler_begin(&sampler, &(struct th_sampling){1.1f, 0.9f, TH_TOP_K_UNLIMITED, (uint64_t)trial, (uint32_t)trial % 3, 0});
        assert_int_equal(sampler.window[0], -1);
        for (int i = 0; i < trial; i++) th_sampler_see(&sampler, i % 2 ? 7 : 300); /* eos in the window must not matter */
        for (int frame = 0; frame < 20; frame++) {
            float logits[9];
            for (int i = 0; i < 9; i++) logits[i] = random_normal(&random) * 2;
            int redrawn;
            int32_t token;
            main_draw(&sampler, trial % 2 ? &eos_above : &eos_below, logits, &scratch, &redrawn, &token);
            redraws += redrawn;
            kept_first += !redrawn;
            ends += token == 7 || token == 300;
        }
    }
    assert_true(redraws > 50 && kept_first > 50 && ends > 20);
    th_draw_scratch_close(&scratch);
}

static void window_holds_sixteen_rows(void **state)
{
    (void)state;
    struct th_draw_scratch scratch;
    assert_int_equal(th_draw_scratch_open(9, &scratch, NULL), THESPIS_OK);
    float logits[9] = {0, 0, 50};
    for (int rows = 0; rows < 20; rows++) {
        struct th_sampler sampler;
        th_sampler_begin(&sampler, &(struct th_sampling){1, 0.9f, 30, 3, 0, 0});
        th_sampler_see(&sampler, 101);
        for (int i = 0; i < rows; i++) th_sampler_see(&sampler, 5);
        struct th_draw_report reports[2];
        int32_t token;
        assert_int_equal(th_sampler_main(&sampler, &eos_below, logits, &scratch, &token, reports, NULL), THESPIS_OK);
        assert_int_equal(token, 101); /* drawn again, it may repeat */
        assert_int_equal(reports[1].kept, rows < 16 ? 1 : 0);
    }
    th_draw_scratch_close(&scratch);
}

static void code_heads_have_their_own_rules(void **state)
{
    (void)state;
    enum { CODES = 128 };
    struct th_draw_scratch scratch;
    assert_int_equal(th_draw_scratch_open(CODES, &scratch, NULL), THESPIS_OK);
    uint64_t random = 11;
    for (int trial = 0; trial < 100; trial++) {
        float logits[CODES];
        for (int i = 0; i < CODES; i++) logits[i] = random_normal(&random);
        struct th_sampler sampler;
        int32_t cap = trial % 2 ? TH_TOP_K_UNLIMITED : 1 + trial % 40;
        th_sampler_begin(&sampler, &(struct th_sampling){0.8f, trial % 4 ? 0.7f : 1.0f, cap, 5, 2, 0});
        sampler.step = (uint64_t)trial;
        struct th_draw draw = {.temperature = 0.8f,
                               .top_k = cap < 30 ? cap : 30,
                               .top_p = trial % 4 ? 0.7f : 1.0f,
                               .crossing = TH_EXCLUDE_CROSSING,
                               .seed = 5,
                               .step = (uint64_t)trial,
                               .row = 2,
                               .stream = 2 + (uint32_t)trial % 9};
        int32_t code;
        int kept, expected = plain_draw(&draw, logits, CODES, &kept);
        struct th_draw_report report;
        assert_int_equal(th_sampler_code(&sampler, 1 + trial % 9, logits, CODES, &scratch, &code, &report, NULL), THESPIS_OK);
        assert_int_equal(code, expected);
        assert_int_equal(report.kept, kept);
    }
    th_draw_scratch_close(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(noise_known_values),
        cmocka_unit_test(log_and_exp_are_within_half_an_ulp),
        cmocka_unit_test(worked_draw),
        cmocka_unit_test(selection_equals_a_full_sort),
        cmocka_unit_test(greedy_takes_the_lowest_index_of_the_largest),
        cmocka_unit_test(refusals),
        cmocka_unit_test(main_token_follows_candidate_order),
        cmocka_unit_test(repetition_is_drawn_again),
        cmocka_unit_test(window_holds_sixteen_rows),
        cmocka_unit_test(code_heads_have_their_own_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
