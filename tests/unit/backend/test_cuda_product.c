/* Products: against a float64 reference, and the same bytes for a column whatever stands beside it. */
#include "cuda_fixture.h"

#include "backend/cuda/norm.h"
#include "backend/cuda/product.h"

/* product_wide.cu, which th_cuda_product takes for large products alone. */
cudaError_t th_cuda_product_wide(const struct th_cuda_launch *launch, const struct th_cuda_product *product);
static int only_wide;

enum { STORED = 40, PAIRED = 48, SINGLE = 1, ADDED = 24 }; /* rows of the four outputs below */
enum { ROWS = 48 + 48 + 16 + 32 };                         /* packed */

/* A matrix of four parts: stored, silu (24 gate, 24 up), a single float, residual. */
struct problem {
    int cols, columns;
    uint16_t *rows[4]; /* host, as the parts were given; part 1: gate, then up */
    struct th_cuda_matrix w;
    uint16_t *x, *old; /* host [columns][cols], [columns][ADDED] */
};

static const int part_rows[4] = {STORED, PAIRED, SINGLE, ADDED};

static struct problem make(int cols, int columns, uint32_t seed)
{
    struct problem p = {.cols = cols, .columns = columns};
    uint16_t *tiles = take((size_t)ROWS * (size_t)cols * 2), *at = tiles;
    for (int i = 0; i < 4; i++) {
        size_t n = (size_t)part_rows[i] * (size_t)cols;
        p.rows[i] = bf16_noise(seed + (uint32_t)i, n, 0.3f);
        uint16_t *ordered = take(n * 2);
        for (int r = 0; r < part_rows[i]; r++) {
            int from = i == 1 ? r % 16 / 8 * (PAIRED / 2) + r / 16 * 8 + r % 8 : r;
            memcpy(ordered + (size_t)r * (size_t)cols, p.rows[i] + (size_t)from * (size_t)cols, (size_t)cols * 2);
        }
        pack_bf16(at, ordered, part_rows[i], cols);
        at += (size_t)th_cuda_padded_rows(part_rows[i]) * (size_t)cols;
        free(ordered);
    }
    p.w = (struct th_cuda_matrix){to_device(tiles, (size_t)ROWS * (size_t)cols * 2), ROWS, cols};
    free(tiles);
    p.x = bf16_noise(seed + 9, (size_t)columns * (size_t)cols, 2.0f);
    p.old = bf16_noise(seed + 10, (size_t)columns * ADDED, 5.0f);
    return p;
}
static void unmake(struct problem *p)
{
    for (int i = 0; i < 4; i++) free(p->rows[i]);
    release((void *)(uintptr_t)p->w.tiles);
    free(p->x);
    free(p->old);
}

struct results {
    uint16_t *stored, *paired, *added; /* [columns][STORED], [columns][PAIRED / 2], [columns][ADDED] */
    float *single;                     /* [columns] */
    uint16_t *normed;
};
static void forget(struct results *r)
{
    free(r->stored);
    free(r->paired);
    free(r->added);
    free(r->single);
    free(r->normed);
}

/* Columns first..first+columns-1 of the problem. norms: [2][cols] weights, or NULL. */
static struct results run(const struct problem *p, int first, int columns, int input, const float *norms)
{
    size_t n = (size_t)columns, cols = (size_t)p->cols;
    uint16_t *x = to_device(p->x + (size_t)first * cols, n * cols * 2);
    uint16_t *stored = to_device(NULL, n * STORED * 2), *paired = to_device(NULL, n * PAIRED),
             *normed = to_device(NULL, n * cols * 2);
    uint16_t *added = to_device(p->old + (size_t)first * ADDED, n * ADDED * 2), *handed = to_device(NULL, n * cols * 2);
    float *single = to_device(NULL, n * 4), *weights = norms != NULL ? to_device(norms, cols * 4) : NULL;
    struct th_cuda_product product = {.w = p->w,
                                      .columns = columns,
                                      .input = input,
                                      .x = x,
                                      .x_stride = p->cols,
                                      .norm = weights,
                                      .eps = 1e-6f,
                                      .normed = normed,
                                      .first = handed,
                                      .outputs = 4,
                                      .output = {{TH_CUDA_STORE, STORED, stored, STORED},
                                                 {TH_CUDA_SILU, PAIRED, paired, PAIRED / 2},
                                                 {TH_CUDA_FLOAT, SINGLE, single, 1},
                                                 {TH_CUDA_RESIDUAL, ADDED, added, ADDED}}};
    if (input == TH_CUDA_JOIN) { /* both halves of a row of x; the second normed twice */
        product.x2 = x + cols / 2;
        product.x2_stride = p->cols;
        product.norm2 = weights + cols / 2;
        product.first2 = weights + cols / 4;
    }
    assert_int_equal(only_wide ? th_cuda_product_wide(&launch, &product) : th_cuda_product(&launch, &product), cudaSuccess);
    struct results r = {from_device(stored, n * STORED * 2), from_device(paired, n * PAIRED), from_device(added, n * ADDED * 2),
                        from_device(single, n * 4), input == TH_CUDA_PLAIN ? NULL : from_device(normed, n * cols * 2)};
    void *all[] = {x, stored, paired, normed, added, handed, single};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) release(all[i]);
    if (weights != NULL) release(weights);
    return r;
}

/* The exact sum and the sum of sizes, of which the error is a part. */
static double dot(const uint16_t *w, const uint16_t *x, int n, double *size)
{
    double sum = 0;
    *size = 0;
    for (int k = 0; k < n; k++) {
        double product = (double)th_bf16_to_float(w[k]) * (double)th_bf16_to_float(x[k]);
        sum += product;
        *size += fabs(product);
    }
    return sum;
}

/* A chain of n additions in 24 bits (the instruction's own may be shorter by some) is off by n * 2^-24 of the sum of sizes at the
 * very most; a segment of 4,096 inputs has 16 instructions, and 16 segments follow: 2^-20 leaves a factor of eight over their
 * rounding. And half a step of bf16 where it was rounded. */
static void close_to(double y, double sum, double size, int rounded, const char *what, int c, int r)
{
    double bound = size * 0x1p-20 + (rounded ? fabs(sum) * 0x1p-8 : 0) + 1e-30;
    if (!(fabs(y - sum) <= bound)) fail_msg("%s, column %d, row %d: %.9g, must be %.9g within %.3g", what, c, r, y, sum, bound);
}

static double bf16(uint16_t bits)
{
    return (double)th_bf16_to_float(bits);
}

static void check_column(const struct problem *p, const struct results *y, const uint16_t *x, int c)
{
    double size, other;
    for (int r = 0; r < STORED; r++) {
        double sum = dot(p->rows[0] + (size_t)r * (size_t)p->cols, x, p->cols, &size);
        close_to(bf16(y->stored[c * STORED + r]), sum, size, 1, "store", c, r);
    }
    for (int r = 0; r < PAIRED / 2; r++) {
        double gate = dot(p->rows[1] + (size_t)r * (size_t)p->cols, x, p->cols, &size);
        double up = dot(p->rows[1] + (size_t)(r + PAIRED / 2) * (size_t)p->cols, x, p->cols, &other);
        double silu = gate / (1 + exp(-gate)), value = silu * up;
        /* both factors were rounded to bf16 first; silu's slope is below 1.1 */
        double gate_error = fabs(gate) * 0x1p-8 + size * 0x1p-20, up_error = fabs(up) * 0x1p-8 + other * 0x1p-20;
        double bound = 1.1 * gate_error * (fabs(up) + up_error) + fabs(silu) * up_error + fabs(value) * 0x1p-8 + 1e-30;
        double got = bf16(y->paired[c * (PAIRED / 2) + r]);
        if (!(fabs(got - value) <= bound))
            fail_msg("silu, column %d, row %d: %.9g, must be %.9g within %.3g", c, r, got, value, bound);
    }
    double sum = dot(p->rows[2], x, p->cols, &size);
    close_to(y->single[c], sum, size, 0, "float", c, 0);
    for (int r = 0; r < ADDED; r++) {
        sum = dot(p->rows[3] + (size_t)r * (size_t)p->cols, x, p->cols, &size);
        double old = bf16(p->old[c * ADDED + r]);
        close_to(bf16(y->added[c * ADDED + r]), old + sum, size + fabs(sum) * 0x1p12, 1, "residual", c, r);
    }
}

static const int all_cols[] = {32, 96, 256, 384, 448, 1056, 2048};

static void close_to_reference(void **state)
{
    (void)state;
    const int counts[] = {1, 3, 8, 9, 16, 31, 33, 64, 65, 130};
    for (size_t i = 0; i < sizeof all_cols / sizeof *all_cols; i++)
        for (size_t j = 0; j < sizeof counts / sizeof *counts; j++) {
            if (all_cols[i] > 448 && counts[j] > 33) continue; /* the emulator is slow */
            print_message("%d inputs, %d columns\n", all_cols[i], counts[j]);
            struct problem p = make(all_cols[i], counts[j], (uint32_t)(i * 100 + j));
            struct results y = run(&p, 0, counts[j], TH_CUDA_PLAIN, NULL);
            for (int c = 0; c < counts[j]; c++) check_column(&p, &y, p.x + (size_t)c * (size_t)p.cols, c);
            forget(&y);
            unmake(&p);
        }
}

static void same_results(const struct results *all, const struct results *part, int first, int n, size_t cols)
{
    size_t at = (size_t)first, count = (size_t)n;
    assert_memory_equal(all->stored + at * STORED, part->stored, count * STORED * 2);
    assert_memory_equal(all->paired + at * (PAIRED / 2), part->paired, count * PAIRED);
    assert_memory_equal(all->added + at * ADDED, part->added, count * ADDED * 2);
    assert_memory_equal(all->single + at, part->single, count * 4);
    if (all->normed != NULL) assert_memory_equal(all->normed + at * cols, part->normed, count * cols * 2);
}

/* Every form gives a column the same bytes: n columns together, and some of them alone, in eights, in more. */
static void same_bytes(int cols, int columns, int input)
{
    struct problem p = make(cols, columns, 77);
    float *norms = float_noise(5, (size_t)cols, 0.5f);
    struct results all = run(&p, 0, columns, input, norms);
    const int pieces[][2] = {{0, 1}, {columns - 1, 1}, {3, 5}, {1, 8}, {2, 16}, {0, 29}, {5, 64}, {7, 100}};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        if (pieces[i][0] + pieces[i][1] > columns) continue;
        struct results part = run(&p, pieces[i][0], pieces[i][1], input, norms);
        same_results(&all, &part, pieces[i][0], pieces[i][1], (size_t)cols);
        forget(&part);
    }
    if (input == TH_CUDA_PLAIN) {
        only_wide = 1;
        struct results wide = run(&p, 0, columns, input, norms);
        only_wide = 0;
        same_results(&all, &wide, 0, columns, (size_t)cols);
        forget(&wide);
    }
    forget(&all);
    free(norms);
    unmake(&p);
}
static void columns_do_not_matter(void **state)
{
    (void)state;
    const int columns[] = {8, 32, 64, 200};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        for (int input = TH_CUDA_PLAIN; input <= TH_CUDA_JOIN; input++) same_bytes(384, columns[i], input);
    same_bytes(1056, 40, TH_CUDA_NORM);
    same_bytes(4160, 9, TH_CUDA_JOIN);
    const int published[][2] = {{2048, TH_CUDA_NORM},  {2048, TH_CUDA_PLAIN}, {4096, TH_CUDA_JOIN},
                                {4096, TH_CUDA_PLAIN}, {6144, TH_CUDA_PLAIN}, {7168, TH_CUDA_PLAIN}};
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) same_bytes(published[i][0], 10, published[i][1]);
#ifndef TH_CUDA_EMU
    same_bytes(2048, 1024, TH_CUDA_NORM);
    same_bytes(6144, 1024, TH_CUDA_PLAIN);
#endif
}

/* The rectangles that large products choose by their columns: 64 x 64, 128 x 64, 128 x 128. */
static void large_forms(void **state)
{
    (void)state;
    enum { COLS = 96, ROWS_OF_LARGE = 16 * 8 * 50, MOST = 300 };
    const size_t rows = ROWS_OF_LARGE;
    uint16_t *w = bf16_noise(1, rows * COLS, 0.3f), *tiles = take(rows * COLS * 2), *x = bf16_noise(2, (size_t)MOST * COLS, 1.0f);
    pack_bf16(tiles, w, ROWS_OF_LARGE, COLS);
    void *dw = to_device(tiles, rows * COLS * 2);
    uint16_t *dx = to_device(x, (size_t)MOST * COLS * 2), *dy = to_device(NULL, (size_t)MOST * rows * 2);
    const int counts[] = {50, 150, MOST};
    for (size_t i = 0; i < 3; i++) {
        struct th_cuda_product product = {.w = {dw, ROWS_OF_LARGE, COLS},
                                          .columns = counts[i],
                                          .x = dx,
                                          .x_stride = COLS,
                                          .outputs = 1,
                                          .output = {{TH_CUDA_STORE, ROWS_OF_LARGE, dy, ROWS_OF_LARGE}}};
        assert_int_equal(th_cuda_product(&launch, &product), cudaSuccess);
        uint16_t *all = from_device(dy, (size_t)counts[i] * rows * 2);
        product.columns = 1;
        for (int c = 0; c < counts[i]; c += 37) {
            product.x = dx + c * COLS;
            assert_int_equal(th_cuda_product(&launch, &product), cudaSuccess);
            uint16_t *one = from_device(dy, rows * 2);
            assert_memory_equal(all + (size_t)c * rows, one, rows * 2);
            free(one);
        }
        free(all);
    }
    release(dw);
    release(dx);
    release(dy);
    free(w);
    free(tiles);
    free(x);
}

static void check_norm(const uint16_t *x, const float *w, int n, const uint16_t *y)
{
    double squares = 0;
    for (int i = 0; i < n; i++) squares += bf16(x[i]) * bf16(x[i]);
    double factor = 1 / sqrt(squares / n + (double)1e-6f);
    for (int i = 0; i < n; i++) {
        double value = bf16(x[i]) * factor * (1 + (double)w[i]);
        if (!(fabs(bf16(y[i]) - value) <= fabs(value) * (0x1p-8 + 0x1p-18) + 1e-30))
            fail_msg("norm of %d, value %d: %.9g, must be %.9g", n, i, bf16(y[i]), value);
    }
}
static void norms(void **state)
{
    (void)state;
    const int sizes[] = {8, 64, 256, 384, 2048, 2056, 6144};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t n = (size_t)sizes[s];
        uint16_t *x = bf16_noise(3, 2 * n, 3.0f), *dx = to_device(x, 2 * n * 2), *dy = to_device(NULL, 2 * (n + 8) * 2);
        float *w = float_noise(4, n, 0.5f), *dw = to_device(w, n * 4);
        assert_int_equal(th_cuda_norm(&launch, dx, (int)n, dw, 1e-6f, (int)n, 2, dy, (int)n + 8), cudaSuccess);
        uint16_t *y = from_device(dy, 2 * (n + 8) * 2);
        for (size_t c = 0; c < 2; c++) check_norm(x + c * n, w, (int)n, y + c * (n + 8));
        release(dx);
        release(dy);
        release(dw);
        free(x);
        free(w);
        free(y);
    }
}

static int class_of(uint16_t bits)
{
    float value = th_bf16_to_float(bits);
    return isnan(value) ? 3 : isinf(value) ? (value > 0 ? 1 : 2) : 0;
}
/* One column holds NaN or an infinity: its outputs are NaN or infinite as arithmetic says, its neighbours' as if it were not there.
 */
static void classes_stay(void **state)
{
    (void)state;
    const int counts[] = {8, 24, 64, 70};
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t j = 0; j < 4; j++)
        for (int b = 0; b < 3; b++) {
            struct problem p = make(256, counts[j], 21);
            struct results clean = run(&p, 0, counts[j], TH_CUDA_PLAIN, NULL);
            p.x[5 * 256 + 77] = b == 0 ? 0x7FC0 : bits_of(bad[b]);
            struct results y = run(&p, 0, counts[j], TH_CUDA_PLAIN, NULL);
            for (int r = 0; r < STORED; r++) {
                float w = th_bf16_to_float(p.rows[0][r * 256 + 77]);
                int expected = b == 0 || w == 0 ? 3 : (w > 0) == (b == 1) ? 1 : 2;
                assert_int_equal(class_of(y.stored[5 * STORED + r]), expected);
            }
            assert_memory_equal(y.stored, clean.stored, 5 * STORED * 2);
            assert_memory_equal(y.stored + 6 * STORED, clean.stored + 6 * STORED, (size_t)(counts[j] - 6) * STORED * 2);
            assert_memory_equal(y.added + 6 * ADDED, clean.added + 6 * ADDED, (size_t)(counts[j] - 6) * ADDED * 2);
            forget(&clean);
            forget(&y);
            unmake(&p);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(close_to_reference), cmocka_unit_test(columns_do_not_matter),
        cmocka_unit_test(large_forms),        cmocka_unit_test(norms),
        cmocka_unit_test(classes_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
