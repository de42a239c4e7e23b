/* Routing, grouping, quantisation and the mixture of experts: against the CPU's kernels and a float64 reference, and the same bytes
 * in every form. */
#include "cuda_fixture.h"

#include "backend/cpu/kernels/lm.h"
#include "backend/cuda/experts.h"
#include "backend/cuda/norm.h"

extern const struct th_lm_kernels th_lm_kernels_portable;

/* ---- quantisation, routing, grouping: to the bit --------------------------------------------------------------------------------
 */

static float e4m3(uint8_t code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double size = exponent == 0 ? mantissa / 512.0 : ldexp(1 + mantissa / 8.0, exponent - 7);
    return (float)(code & 128 ? -size : size);
}

static void quantised_as_on_the_cpu(void **state)
{
    (void)state;
    enum { N = 2304, COLUMNS = 5 };
    uint16_t *x = bf16_noise(1, N * COLUMNS, 1.0f);
    for (int i = 0; i < N * COLUMNS; i++)
        x[i] = bits_of(th_bf16_to_float(x[i]) * ldexpf(1.0f, (int)(noise(2, (size_t)i) * 20) + (i / 128 % 7 - 3) * 10));
    memset(x + 256, 0, 256); /* a group of zeros */
    uint16_t *dx = to_device(x, N * COLUMNS * 2);
    uint8_t *dcodes = to_device(NULL, N * COLUMNS);
    float *dscales = to_device(NULL, N / 128 * COLUMNS * 4);
    assert_int_equal(th_cuda_quantise(&launch, dx, N, COLUMNS, dcodes, dscales), cudaSuccess);
    uint8_t *codes = from_device(dcodes, N * COLUMNS);
    float *scales = from_device(dscales, N / 128 * COLUMNS * 4), *values = take(N * 4), *wide = take(N * 4), expected[N / 128];
    for (int c = 0; c < COLUMNS; c++) {
        for (int i = 0; i < N; i++) wide[i] = th_bf16_to_float(x[c * N + i]);
        th_lm_kernels_portable.quantise(wide, N, values, expected);
        assert_memory_equal(scales + c * (N / 128), expected, sizeof expected);
        for (int i = 0; i < N; i++) assert_float_equal(e4m3(codes[c * N + i]), values[i], 0);
    }
    release(dx);
    release(dcodes);
    release(dscales);
    free(x);
    free(codes);
    free(scales);
    free(values);
    free(wide);
}

static void check_route(int experts, int top_k, int stride, const uint16_t *logits, int columns, const int32_t *chosen,
                        const float *weights)
{
    float *wide = take((size_t)experts * 4), *scratch = take((size_t)experts * 4), w[8];
    int ids[8];
    for (int c = 0; c < columns; c++) {
        for (int e = 0; e < experts; e++) wide[e] = th_bf16_to_float(logits[c * stride + e]);
        th_lm_kernels_portable.route(wide, experts, top_k, scratch, ids, w);
        for (int s = 0; s < top_k; s++) assert_int_equal(chosen[c * top_k + s], ids[s]);
        if (isnan(w[0]))
            assert_true(isnan(weights[c * top_k]));
        else
            assert_memory_equal(weights + c * top_k, w, (size_t)top_k * 4);
    }
    free(wide);
    free(scratch);
}
static void routed_as_on_the_cpu(void **state)
{
    (void)state;
    const int shapes[][2] = {{4, 4}, {8, 4}, {13, 5}, {32, 8}, {256, 8}, {512, 8}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int experts = shapes[i][0], top_k = shapes[i][1], columns = 37, stride = experts + 24;
        uint16_t *logits = bf16_noise((uint32_t)i, (size_t)(columns * stride), 6.0f);
        for (int c = 0; c < columns; c++)
            for (int e = 0; e < experts; e++) { /* ties, both zeros, infinities, NaN here and there, a whole row of NaN */
                uint16_t *at = logits + c * stride + e;
                if (c % 3 == 1) *at = bits_of(rintf(th_bf16_to_float(*at)));
                if (c == 9 && e % 5 == 0) *at = e % 2 ? 0x8000 : 0;
                if (c == 10 && e == 3) *at = 0x7F80;
                if (c == 11 && e > 1) *at = 0xFF80;
                if ((c == 12 && e == 2) || c == 13) *at = 0x7FC0;
            }
        uint16_t *dlogits = to_device(logits, (size_t)(columns * stride) * 2);
        int32_t *dchosen = to_device(NULL, (size_t)(columns * top_k) * 4);
        float *dweights = to_device(NULL, (size_t)(columns * top_k) * 4);
        assert_int_equal(th_cuda_route(&launch, dlogits, stride, experts, top_k, columns, NULL, dchosen, dweights), cudaSuccess);
        int32_t *chosen = from_device(dchosen, (size_t)(columns * top_k) * 4);
        float *weights = from_device(dweights, (size_t)(columns * top_k) * 4);
        check_route(experts, top_k, stride, logits, columns, chosen, weights);
        release(dlogits);
        release(dchosen);
        release(dweights);
        free(logits);
        free(chosen);
        free(weights);
    }
}

static void grouped_in_order(void **state)
{
    (void)state;
    const int shapes[][3] = {{4, 4, 1}, {13, 5, 3}, {256, 8, 64}, {512, 8, 9}, {256, 8, 1024}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int experts = shapes[i][0], top_k = shapes[i][1], columns = shapes[i][2];
        for (int part = 0; part < 2; part++) { /* all columns, or all but two by a count on the device */
            const int used = part && columns > 2 ? columns - 2 : columns, entries = used * top_k;
            int32_t *chosen = take((size_t)(columns * top_k) * 4);
            for (int k = 0; k < columns * top_k; k++) chosen[k] = (int)((noise(7, (size_t)k) + 1) * 0.4999f * (float)experts);
            int32_t *dchosen = to_device(chosen, (size_t)(columns * top_k) * 4), *dcount = to_device(&used, 4);
            size_t ints = th_cuda_groups_ints(experts, columns * top_k);
            int32_t *memory = to_device(NULL, ints * 4);
            struct th_cuda_groups groups = th_cuda_groups_in(memory, experts);
            assert_int_equal(th_cuda_group(&launch, dchosen, experts, top_k, columns, part ? dcount : NULL, &groups), cudaSuccess);
            int32_t *host = from_device(memory, ints * 4);
            struct th_cuda_groups got = th_cuda_groups_in(host, experts);
            int at = 0, active = 0;
            for (int e = 0; e < experts; e++) {
                assert_int_equal(got.first[e], at);
                for (int k = 0; k < entries; k++)
                    if (chosen[k] == e) assert_int_equal(got.entry[at++], k);
                if (at > got.first[e]) assert_int_equal(got.active[active++], e);
            }
            assert_int_equal(got.first[experts], entries);
            assert_int_equal(*got.active_count, active);
            release(dchosen);
            release(dcount);
            release(memory);
            free(chosen);
            free(host);
        }
    }
}

/* ---- the mixture
 * --------------------------------------------------------------------------------------------------------------------
 */

struct problem {
    int experts, top_k, hidden, inner, shared_inner, fp8, columns;
    float *weights[3];  /* host values of gate, up [experts][inner][hidden], down [experts][hidden][inner], scales in them */
    float *shared_down; /* [hidden][shared_inner] */
    uint16_t *x, *router, *act; /* [columns][hidden], [experts], [shared_inner] */
    uint16_t *stream;           /* [columns][hidden] */
    float *open;                /* [columns] */
    struct th_cuda_experts packed;
    struct th_cuda_matrix packed_shared;
};

/* Codes without NaN, or bf16 values; and what they stand for once multiplied by their block's scale. */
static float *expert_values(const struct problem *p, uint32_t seed, int rows, int cols, uint8_t **codes, uint16_t **bf16,
                            float **scales)
{
    const size_t each = (size_t)rows * (size_t)cols, n = (size_t)p->experts * each;
    const int high = (rows + 127) / 128, wide = (cols + 127) / 128;
    float *values = take(n * 4);
    *codes = take(n);
    *bf16 = p->fp8 ? NULL : bf16_noise(seed, n, 0.1f);
    *scales = float_noise(seed + 1, (size_t)(p->experts * high * wide), 0.001f);
    for (size_t i = 0; i < n; i++) {
        size_t e = i / each, row = i % each / (size_t)cols, col = i % (size_t)cols;
        (*codes)[i] = (uint8_t)((noise(seed, i) + 1) * 127.99f);
        if (((*codes)[i] & 127) == 127) (*codes)[i] = 1;
        values[i] = p->fp8 ? e4m3((*codes)[i]) * (*scales)[(e * (size_t)high + row / 128) * (size_t)wide + col / 128]
                           : th_bf16_to_float((*bf16)[i]);
    }
    return values;
}

/* Rows of two parts interleaved, or of one; packed, at `to`. */
static void pack_expert(const struct problem *p, unsigned char *to, const void *first, const void *second, int rows, int cols)
{
    const size_t row_bytes = (size_t)cols * (p->fp8 ? 1 : 2);
    const int total = second != NULL ? 2 * rows : rows;
    unsigned char *ordered = take((size_t)total * row_bytes);
    for (int part = 0; part < (second != NULL ? 2 : 1); part++)
        for (int r = 0; r < rows; r++)
            memcpy(ordered + (size_t)(second != NULL ? pair_row(r, part) : r) * row_bytes,
                   (const unsigned char *)(part ? second : first) + (size_t)r * row_bytes, row_bytes);
    if (p->fp8)
        pack_e4m3(to, ordered, total, cols);
    else
        pack_bf16((uint16_t *)(void *)to, (const uint16_t *)(const void *)ordered, total, cols);
    free(ordered);
}

static void pack_experts(struct problem *p)
{
    const int I = p->inner, H = p->hidden, high = (I + 127) / 128, wide = (H + 127) / 128;
    const size_t element = p->fp8 ? 1 : 2, each = (size_t)I * (size_t)H * element, blocks = (size_t)(high * wide);
    uint8_t *codes[3];
    uint16_t *bf16[3];
    float *scales[3];
    for (int i = 0; i < 3; i++)
        p->weights[i] = expert_values(p, 100 + (uint32_t)i, i < 2 ? I : H, i < 2 ? H : I, &codes[i], &bf16[i], &scales[i]);
    unsigned char *pair = take((size_t)p->experts * 2 * each), *down = take((size_t)p->experts * each);
    float *pair_scales = take((size_t)p->experts * 2 * blocks * 4);
    for (size_t e = 0; e < (size_t)p->experts; e++) {
        const unsigned char *from[3];
        for (int i = 0; i < 3; i++) from[i] = (p->fp8 ? codes[i] : (unsigned char *)bf16[i]) + e * each;
        pack_expert(p, pair + e * 2 * each, from[0], from[1], I, H);
        pack_expert(p, down + e * each, from[2], NULL, H, I);
        for (size_t i = 0; i < 2; i++) memcpy(pair_scales + (e * 2 + i) * blocks, scales[i] + e * blocks, blocks * 4);
    }
    p->packed = (struct th_cuda_experts){.fp8 = p->fp8,
                                         .count = p->experts,
                                         .inner = I,
                                         .hidden = H,
                                         .gate_up = to_device(pair, (size_t)p->experts * 2 * each),
                                         .down = to_device(down, (size_t)p->experts * each),
                                         .gate_up_bytes = 2 * each,
                                         .down_bytes = each,
                                         .gate_up_scales = to_device(pair_scales, (size_t)p->experts * 2 * blocks * 4),
                                         .down_scales = to_device(scales[2], (size_t)p->experts * blocks * 4)};
    for (int i = 0; i < 3; i++) {
        free(codes[i]);
        free(bf16[i]);
        free(scales[i]);
    }
    free(pair);
    free(down);
    free(pair_scales);
}

static struct problem make(int experts, int top_k, int hidden, int inner, int shared_inner, int fp8, int columns)
{
    struct problem p = {experts, top_k, hidden, inner, shared_inner, fp8, columns, {0}, 0, 0, 0, 0, 0, 0, {0}, {0, 0, 0}};
    const size_t n = (size_t)columns, H = (size_t)hidden, S = (size_t)shared_inner;
    pack_experts(&p);
    uint16_t *shared = bf16_noise(31, H * S, 0.1f), *tiles = take(H * S * 2);
    pack_bf16(tiles, shared, hidden, shared_inner);
    p.packed_shared = (struct th_cuda_matrix){to_device(tiles, H * S * 2), hidden, shared_inner};
    p.shared_down = take(H * S * 4);
    for (size_t i = 0; i < H * S; i++) p.shared_down[i] = th_bf16_to_float(shared[i]);
    free(shared);
    free(tiles);
    p.x = bf16_noise(32, n * H, 2.0f);
    p.router = bf16_noise(33, n * (size_t)experts, 2.0f);
    p.act = bf16_noise(34, n * S, 1.0f);
    p.stream = bf16_noise(35, n * H, 1.0f);
    p.open = float_noise(36, n, 2.0f);
    return p;
}
static void unmake(struct problem *p)
{
    const void *device[] = {p->packed.gate_up, p->packed.down, p->packed.gate_up_scales, p->packed.down_scales,
                            p->packed_shared.tiles};
    void *host[] = {p->weights[0], p->weights[1], p->weights[2], p->shared_down, p->x, p->router, p->act, p->stream, p->open};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) release((void *)(uintptr_t)device[i]);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
}

struct results {
    uint16_t *stream, *branch; /* [columns][hidden] */
    int32_t *chosen;
    float *weights;
};
static void forget(struct results *r)
{
    free(r->stream);
    free(r->branch);
    free(r->chosen);
    free(r->weights);
}

/* Columns first..first+n-1 of the problem, of which `used` are counted on the device (0: no count). */
static struct results run(const struct problem *p, int first, int columns, int used)
{
    const size_t n = (size_t)columns, H = (size_t)p->hidden, I = (size_t)p->inner, S = (size_t)p->shared_inner, at = (size_t)first;
    const size_t entries = n * (size_t)p->top_k, E = (size_t)p->experts;
    int32_t *count = to_device(&used, 4);
    struct th_cuda_moe m = {.experts = p->packed,
                            .shared_down = p->packed_shared,
                            .columns = columns,
                            .top_k = p->top_k,
                            .count = used > 0 ? count : NULL,
                            .x = to_device(p->x + at * H, n * H * 2),
                            .router = to_device(p->router + at * E, n * E * 2),
                            .router_stride = p->experts,
                            .shared_act = to_device(p->act + at * S, n * S * 2),
                            .shared_open = to_device(p->open + at, n * 4),
                            .chosen = to_device(NULL, entries * 4),
                            .weights = to_device(NULL, entries * 4),
                            .codes = to_device(NULL, n * H),
                            .scales = to_device(NULL, n * (H / 128 + 1) * 4),
                            .act = to_device(NULL, entries * I * 2),
                            .parts = to_device(NULL, entries * H * 2),
                            .shared = to_device(NULL, n * H * 2),
                            .groups = to_device(NULL, th_cuda_groups_ints(p->experts, (int)entries) * 4),
                            .stream = to_device(p->stream + at * H, n * H * 2),
                            .branch = to_device(NULL, n * H * 2)};
    assert_int_equal(th_cuda_moe(&launch, &m), cudaSuccess);
    struct results r = {from_device(m.stream, n * H * 2), from_device(m.branch, n * H * 2), from_device(m.chosen, entries * 4),
                        from_device(m.weights, entries * 4)};
    const void *all[] = {m.x,   m.router, m.shared_act, m.shared_open, m.chosen, m.weights, m.codes, m.scales,
                         m.act, m.parts,  m.shared,     m.groups,      m.stream, m.branch,  count};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) release((void *)(uintptr_t)all[i]);
    return r;
}

static double dot(const float *w, const float *x, int n)
{
    double sum = 0;
    for (int k = 0; k < n; k++) sum += (double)w[k] * (double)x[k];
    return sum;
}

/* One column in float64, rounded to bf16 where the model says; `size` gets the sum of sizes of what is added. */
static void reference(const struct problem *p, int c, const int32_t *chosen, const float *weights, double *y, double *size)
{
    const size_t H = (size_t)p->hidden, I = (size_t)p->inner, S = (size_t)p->shared_inner;
    float *x = take(H * 4), *act = take(I * 4), *shared = take(S * 4), scales[64];
    for (size_t i = 0; i < H; i++) x[i] = th_bf16_to_float(p->x[(size_t)c * H + i]);
    if (p->fp8) {
        th_lm_kernels_portable.quantise(x, p->hidden, x, scales);
        for (size_t i = 0; i < H; i++) x[i] *= scales[i / 128];
    }
    for (size_t i = 0; i < H; i++) y[i] = size[i] = 0;
    for (int s = 0; s < p->top_k; s++) {
        const size_t e = (size_t)chosen[s];
        for (size_t i = 0; i < I; i++) {
            double gate = th_round_bf16((float)dot(p->weights[0] + (e * I + i) * H, x, p->hidden));
            double up = th_round_bf16((float)dot(p->weights[1] + (e * I + i) * H, x, p->hidden));
            act[i] = th_round_bf16((float)(gate / (1 + exp(-gate)) * up));
        }
        if (p->fp8) {
            th_lm_kernels_portable.quantise(act, p->inner, act, scales);
            for (size_t i = 0; i < I; i++) act[i] *= scales[i / 128];
        }
        for (size_t i = 0; i < H; i++) {
            double part = (double)weights[s] * dot(p->weights[2] + (e * H + i) * I, act, p->inner);
            y[i] += part;
            for (size_t k = 0; k < I; k++)
                size[i] += fabs((double)weights[s] * (double)p->weights[2][(e * H + i) * I + k] * (double)act[k]);
        }
    }
    for (size_t i = 0; i < S; i++) shared[i] = th_bf16_to_float(p->act[(size_t)c * S + i]);
    for (size_t i = 0; i < H; i++) {
        double part = dot(p->shared_down + i * S, shared, p->shared_inner) / (1 + exp(-(double)p->open[c]));
        y[i] += part;
        size[i] += fabs(part);
    }
    free(x);
    free(act);
    free(shared);
}

/* Sums of another order can turn the rounding of a gate, an up or an act to the neighbouring bf16 or E4M3 value, so each product of
 * the down sum may be off by 2^-4 (one E4M3 step) in a few of its terms: 2^-7 of the sum of sizes bounds it, 2^-8 per rounded sum.
 */
static void close_to_reference(const struct problem *p, const struct results *r, int columns)
{
    const size_t H = (size_t)p->hidden;
    double *y = take(H * 8), *size = take(H * 8);
    for (int c = 0; c < columns; c++) {
        reference(p, c, r->chosen + c * p->top_k, r->weights + c * p->top_k, y, size);
        for (size_t i = 0; i < H; i++) {
            double branch = (double)th_bf16_to_float(r->branch[(size_t)c * H + i]), bound = size[i] * 0x1p-7 + fabs(y[i]) * 0x1p-7;
            if (!(fabs(branch - y[i]) <= bound))
                fail_msg("column %d, row %zu: %.9g, must be %.9g within %.3g", c, i, branch, y[i], bound);
            float stream = th_round_bf16(th_bf16_to_float(p->stream[(size_t)c * H + i]) + (float)branch);
            assert_float_equal(th_bf16_to_float(r->stream[(size_t)c * H + i]), stream, 0);
        }
    }
    free(y);
    free(size);
}

static void same_results(const struct problem *p, const struct results *all, const struct results *part, int first, int n)
{
    const size_t H = (size_t)p->hidden, k = (size_t)p->top_k, at = (size_t)first, count = (size_t)n;
    assert_memory_equal(all->chosen + at * k, part->chosen, count * k * 4);
    assert_memory_equal(all->weights + at * k, part->weights, count * k * 4);
    assert_memory_equal(all->branch + at * H, part->branch, count * H * 2);
    assert_memory_equal(all->stream + at * H, part->stream, count * H * 2);
}

static void mixture(int experts, int top_k, int hidden, int inner, int shared_inner, int fp8, int columns)
{
    struct problem p = make(experts, top_k, hidden, inner, shared_inner, fp8, columns);
    struct results all = run(&p, 0, columns, 0);
    close_to_reference(&p, &all, columns < 12 ? columns : 12);
    const int pieces[][2] = {{0, 1}, {columns - 1, 1}, {3, 2}, {1, 8}, {2, 9}, {0, 31}, {5, 64}};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        if (pieces[i][0] + pieces[i][1] > columns) continue;
        struct results part = run(&p, pieces[i][0], pieces[i][1], 0);
        same_results(&p, &all, &part, pieces[i][0], pieces[i][1]);
        forget(&part);
    }
    for (int used = 1; used < columns; used += 6) { /* columns past the count do not disturb those before it */
        struct results part = run(&p, 0, columns, used);
        same_results(&p, &all, &part, 0, used);
        forget(&part);
    }
    forget(&all);
    unmake(&p);
}

static void mixtures_of_codes(void **state)
{
    (void)state;
    mixture(8, 4, 256, 128, 128, 1, 10);
    mixture(16, 8, 384, 128, 320, 1, 34);
    mixture(4, 4, 384, 256, 64, 1, 70);
    mixture(5, 3, 1152, 384, 96, 1, 3);
    mixture(3, 2, 2304, 640, 32, 1, 12); /* more blocks than lie in shared memory */
#ifndef TH_CUDA_EMU
    mixture(256, 8, 2048, 512, 512, 1, 70);
#endif
}
static void mixtures_of_bf16(void **state)
{
    (void)state;
    mixture(8, 4, 256, 128, 128, 0, 10);
    mixture(13, 5, 96, 32, 32, 0, 70);
    mixture(300, 8, 64, 64, 32, 0, 34);
}

/* NaN in a column's logits or input makes its results NaN, and leaves the others alone. */
static void classes_stay(void **state)
{
    (void)state;
    const int counts[] = {2, 8, 20};
    for (size_t i = 0; i < 3; i++)
        for (int kind = 0; kind < 4; kind++) {
            struct problem p = make(8, 4, 256, 128, 128, 1, counts[i]);
            struct results clean = run(&p, 0, counts[i], 0);
            const uint16_t bad = kind % 2 ? 0x7F80 : 0x7FC0;
            if (kind < 2)
                p.x[256 + 200] = bad;
            else
                p.act[128 + 20] = bad;
            struct results y = run(&p, 0, counts[i], 0);
            for (int r = 0; r < 256; r++) {
                float value = th_bf16_to_float(y.branch[256 + r]);
                assert_true(kind == 3 ? isinf(value) || p.shared_down[r * 128 + 20] == 0 : isnan(value));
            }
            assert_memory_equal(y.branch, clean.branch, 256 * 2);
            assert_memory_equal(y.branch + 512, clean.branch + 512, (size_t)(counts[i] - 2) * 256 * 2);
            forget(&clean);
            forget(&y);
            unmake(&p);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantised_as_on_the_cpu), cmocka_unit_test(routed_as_on_the_cpu), cmocka_unit_test(grouped_in_order),
        cmocka_unit_test(mixtures_of_codes),       cmocka_unit_test(mixtures_of_bf16),     cmocka_unit_test(classes_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
