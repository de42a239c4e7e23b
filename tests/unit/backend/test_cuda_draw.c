/* The device's draws against src/sampler, to the bit: every setting, close calls settled by either way. */
#include "cuda_fixture.h"

#include "backend/cuda/forward.h"
#include "sampler/sampler.h"

enum { COLUMNS = 24, W = 11, EOS = 290, START = 300 };

struct bench {
    struct th_cuda_pass *pass;   /* host */
    struct th_cuda_drawn *drawn; /* host, what came back */
    uint16_t *logits;            /* host [COLUMNS][count] */
    struct th_draw_scratch scratch;
    int count;
};

static struct bench make(int count)
{
    struct bench b = {.pass = take(TH_CUDA_PASS_BYTES(COLUMNS)), .count = count};
    b.logits = take((size_t)COLUMNS * (size_t)count * 2);
    assert_int_equal(th_draw_scratch_open(count, &b.scratch, NULL), THESPIS_OK);
    b.pass->tower_count = b.pass->capacity = COLUMNS;
    return b;
}
static void unmake(struct bench *b)
{
    free(b->pass);
    free(b->logits);
    free(b->drawn);
    th_draw_scratch_close(&b->scratch);
}
static struct th_cuda_column *column_at(const struct bench *b, int i)
{
    return &b->pass->column[COLUMNS + i];
}

/* Runs one head for all columns; the pass comes back with what was drawn. */
static void draw(struct bench *b, int head, int eos, int slow)
{
    struct th_cuda_draw at = {.columns = COLUMNS,
                              .head = head,
                              .count = b->count,
                              .width = W,
                              .eos = eos,
                              .semantic_start = START,
                              .codebook_size = head == 0 ? b->count - 1 : b->count,
                              .stride = b->count,
                              .slow = slow};
    at.pass = to_device(b->pass, TH_CUDA_PASS_BYTES(COLUMNS));
    at.logits = to_device(b->logits, (size_t)COLUMNS * (size_t)b->count * 2);
    if (b->drawn == NULL) b->drawn = take(COLUMNS * sizeof *b->drawn);
    at.drawn = to_device(b->drawn, COLUMNS * sizeof *at.drawn);
    at.result = to_device(NULL, COLUMNS * sizeof *at.drawn);
    assert_int_equal(th_cuda_draw(&launch, &at), cudaSuccess);
    free(b->drawn);
    b->drawn = from_device(at.result, COLUMNS * sizeof *at.drawn);
    struct th_cuda_pass *after = from_device(at.pass, TH_CUDA_PASS_BYTES(COLUMNS));
    memcpy(b->pass, after, TH_CUDA_PASS_BYTES(COLUMNS));
    free(after);
    release(at.pass);
    release((void *)(uintptr_t)at.logits);
    release(at.drawn);
    release(at.result);
}

static float logit_of(const struct bench *b, int i, int k)
{
    uint32_t bits = (uint32_t)b->logits[(size_t)i * (size_t)b->count + (size_t)k] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static float *logits_of(const struct bench *b, int i)
{
    float *x = take((size_t)b->count * 4);
    for (int k = 0; k < b->count; k++) x[k] = logit_of(b, i, k);
    return x;
}

/* Settings and logits of column i: peaks and plains, ties by the coarse grid of bf16, windows that hold what is drawn. */
static struct th_sampler settle(struct bench *b, int i, uint32_t seed)
{
    static const float temperatures[] = {1.0f, 0.7f, 1.3f, 0.0f, 0.2f, 2.5f};
    static const float top_ps[] = {0.9f, 0.8f, 1.0f, 0.95f, 0.3f, 0.999f, 0.05f};
    static const int top_ks[] = {TH_TOP_K_UNLIMITED, 30, TH_TOP_K_UNLIMITED, 32, 33, 200, 1, 5000};
    static const float scales[] = {1.0f, 8.0f, 0.05f, 3.0f, 0.0f, 20.0f};
    uint32_t r = seed * 31u + (uint32_t)i;
    struct th_sampling sampling = {.temperature = temperatures[r % 6],
                                   .top_p = top_ps[r / 2 % 7],
                                   .top_k = top_ks[r / 3 % 8],
                                   .seed = (uint64_t)r * UINT64_C(0x9E3779B97F4A7C15) >> 1,
                                   .row = r % 3,
                                   .greedy = r % 13 == 0};
    struct th_sampler sampler;
    th_sampler_begin(&sampler, &sampling);
    sampler.step = r % 5 == 0 ? UINT64_C(4294967296) + r : r % 100;
    for (int k = 0; k < b->count; k++)
        b->logits[(size_t)i * (size_t)b->count + (size_t)k] =
            bits_of(noise(r, (size_t)k) * scales[r / 5 % 6] - (k % 7 == 0 ? 1.0f : 0));
    for (int k = 0; k < TH_RAS_WINDOW; k++) sampler.window[k] = START + (int)((r + (uint32_t)k * 3) % 64);
    return sampler;
}
static void describe(const struct th_sampler *sampler, uint64_t step, struct th_cuda_column *column)
{
    column->top_k = sampler->settings.top_k;
    column->greedy = sampler->settings.greedy;
    column->temperature = sampler->settings.temperature;
    column->top_p = sampler->settings.top_p;
    column->row = sampler->settings.row;
    column->seed = sampler->settings.seed;
    column->step = step;
    memcpy(column->window, sampler->window, sizeof column->window);
}

static void mains(int count, int eos, uint32_t seed, int slow)
{
    struct bench b = make(count);
    struct th_sampler samplers[COLUMNS];
    const struct th_main_head head = {.candidates = count, .eos = eos, .semantic_start = START};
    for (int i = 0; i < COLUMNS; i++) {
        samplers[i] = settle(&b, i, seed);
        describe(&samplers[i], samplers[i].step + 1, column_at(&b, i));
    }
    draw(&b, 0, eos, slow);
    for (int i = 0; i < COLUMNS; i++) {
        float *logits = logits_of(&b, i);
        int32_t token;
        assert_int_equal(th_sampler_main(&samplers[i], &head, logits, &b.scratch, &token, NULL, NULL), THESPIS_OK);
        assert_int_equal(b.drawn[i].failed, TH_CUDA_DRAWN);
        if (token != b.drawn[i].frame[0])
            print_error("count %d seed %d column %d: %d for %d\n", count, (int)seed, i, b.drawn[i].frame[0], token);
        assert_int_equal(b.drawn[i].frame[0], token);
        int code = token == eos ? 0 : token - START;
        assert_int_equal(b.drawn[i].frame[1], code < 0 ? 0 : code >= count - 1 ? count - 2 : code);
        for (int k = 2; k < W; k++) assert_int_equal(b.drawn[i].frame[k], 0);
        free(logits);
    }
    unmake(&b);
}

static void main_tokens(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 6; seed++) {
        mains(4097, EOS, seed, 0);
        mains(513, 5000, seed, 0);
    }
    mains(1025, EOS, 7, 0);
    mains(33, EOS, 8, 0);
    mains(5, EOS, 9, 0);
    mains(6001, EOS, 10, 0);
}

/* The plain loops that settle close calls give the same. */
static void close_calls(void **state)
{
    (void)state;
    mains(513, EOS, 3, 1);
    mains(2049, EOS, 4, 1);
}

static void codes(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 4; seed++) {
        struct bench b = make(seed % 2 ? 4096 : 64);
        struct th_sampler samplers[COLUMNS];
        for (int i = 0; i < COLUMNS; i++) {
            samplers[i] = settle(&b, i, seed + 20);
            describe(&samplers[i], samplers[i].step, column_at(&b, i));
            column_at(&b, i)->label[0] = START;
        }
        int j = 1 + (int)seed;
        draw(&b, j, EOS, 0);
        for (int i = 0; i < COLUMNS; i++) {
            float *logits = logits_of(&b, i);
            int32_t code;
            assert_int_equal(th_sampler_code(&samplers[i], j, logits, b.count, &b.scratch, &code, NULL, NULL), THESPIS_OK);
            assert_int_equal(b.drawn[i].frame[1 + j], code);
            free(logits);
        }
        unmake(&b);
    }
}

/* Failures are named and keep later draws away; forced frames and ended ones are left alone. */
static void refusals(void **state)
{
    (void)state;
    struct bench b = make(100);
    for (int i = 0; i < COLUMNS; i++) {
        struct th_sampler sampler = settle(&b, i, 0);
        sampler.settings.greedy = 0;
        describe(&sampler, 1, column_at(&b, i));
    }
    b.logits[0 * 100 + 70] = 0x7FC0; /* NaN */
    b.logits[1 * 100 + 20] = 0xFF80; /* -inf */
    b.logits[1 * 100 + 90] = 0x7F80;
    for (int k = 0; k < 100; k++) b.logits[2 * 100 + k] = 0x7F00;
    column_at(&b, 2)->temperature = 1e-5f;
    column_at(&b, 3)->forced = 1;
    for (int k = 0; k < W; k++) column_at(&b, 3)->label[k] = 300 + k;
    draw(&b, 0, EOS, 0);
    assert_int_equal(b.drawn[0].failed, TH_CUDA_NOT_FINITE);
    assert_int_equal(b.drawn[0].index, 70);
    assert_int_equal(b.drawn[1].failed, TH_CUDA_NOT_FINITE);
    assert_int_equal(b.drawn[1].index, 20);
    assert_true(isinf(b.drawn[1].value));
    assert_int_equal(b.drawn[2].failed, TH_CUDA_OVERFLOWS);
    assert_int_equal(b.drawn[2].index, 0);
    for (int k = 0; k < W; k++) assert_int_equal(b.drawn[3].frame[k], 300 + k);
    column_at(&b, 4)->label[0] = EOS;
    int32_t before[W];
    memcpy(before, column_at(&b, 4)->label, sizeof before);
    draw(&b, 2, EOS, 0);
    assert_int_equal(b.drawn[0].head, 0); /* the first failure stays */
    assert_int_equal(b.drawn[0].index, 70);
    assert_memory_equal(b.drawn[4].frame, before, sizeof before);
    assert_int_equal(b.drawn[3].frame[3], 303);
    unmake(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(main_tokens),
        cmocka_unit_test(close_calls),
        cmocka_unit_test(codes),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
