/* Attention and DeltaNet on the device: against float64, and a row's bytes the same whether it comes in a prompt, in pieces, or as
 * a frame among other lanes. */
#include "cuda_fixture.h"

#include "backend/cuda/forward.h"

enum { LANES = 3, MAX_ROWS = 200, MOST = 160 };

static double bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}
static double rounded(double x)
{
    return th_round_bf16((float)x);
}
static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* The pass of rows first.. of lane 1 (a prompt), or row `first` of every lane (frames), in both kinds of columns. */
static struct th_cuda_pass *make_pass(int sequential, int first, int n, int capacity)
{
    struct th_cuda_pass *pass = take(TH_CUDA_PASS_BYTES(capacity));
    *pass = (struct th_cuda_pass){.backbone_count = n, .tower_count = n, .capacity = capacity};
    for (int c = 0; c < n; c++)
        for (int kind = 0; kind < 2; kind++) {
            struct th_cuda_column *column = &pass->column[kind * capacity + c];
            column->lane = sequential ? 1 : c;
            column->position = sequential ? first + c : first;
        }
    struct th_cuda_pass *device = to_device(pass, TH_CUDA_PASS_BYTES(capacity));
    free(pass);
    return device;
}

/* Distance of y from want in steps of bf16 at its size, with a floor. */
static double steps_off(double y, double want, double floor)
{
    double size = fmax(fabs(want), floor);
    return fabs(y - want) / (size * 0x1p-8);
}

/* ---- attention ------------------------------------------------------------------------------------------------------------------
 */

struct heads {
    int heads, kv_heads, dim, pairs, tower;
};

struct attention_bench {
    struct heads shape;
    int stride, width;
    uint16_t *rows; /* host [MAX_ROWS][stride] */
    float *q_norm, *k_norm, *cosine, *sine;
    struct th_cuda_attention at;
};

static struct attention_bench make_attention(struct heads shape)
{
    struct attention_bench b = {.shape = shape};
    const int queries = 2 * shape.heads * shape.dim, keys = shape.kv_heads * shape.dim;
    b.stride = queries + 2 * keys;
    b.width = shape.heads * shape.dim;
    b.rows = bf16_noise(1, (size_t)MAX_ROWS * (size_t)b.stride, 3.0f);
    b.q_norm = float_noise(2, (size_t)shape.dim, 0.3f);
    b.k_norm = float_noise(3, (size_t)shape.dim, 0.3f);
    b.cosine = take((size_t)MAX_ROWS * (size_t)shape.pairs * 4);
    b.sine = take((size_t)MAX_ROWS * (size_t)shape.pairs * 4);
    for (int i = 0; i < MAX_ROWS * shape.pairs; i++) {
        double angle = i / shape.pairs * pow(1e4, -(double)(i % shape.pairs) / shape.pairs);
        b.cosine[i] = (float)cos(angle);
        b.sine[i] = (float)sin(angle);
    }
    const size_t cache = (size_t)MAX_ROWS * (size_t)keys * 2;
    b.at = (struct th_cuda_attention){.tower = shape.tower,
                                      .splits = (MAX_ROWS + TH_CUDA_SPLIT - 1) / TH_CUDA_SPLIT,
                                      .heads = shape.heads,
                                      .kv_heads = shape.kv_heads,
                                      .head_dim = shape.dim,
                                      .row_stride = b.stride,
                                      .query = 0,
                                      .gate = shape.tower ? queries / 2 : shape.dim,
                                      .head_stride = shape.tower ? shape.dim : 2 * shape.dim,
                                      .key = queries,
                                      .value = queries + keys,
                                      .q_norm = to_device(b.q_norm, (size_t)shape.dim * 4),
                                      .k_norm = to_device(b.k_norm, (size_t)shape.dim * 4),
                                      .eps = 1e-6f,
                                      .cosine = to_device(b.cosine, (size_t)MAX_ROWS * (size_t)shape.pairs * 4),
                                      .sine = to_device(b.sine, (size_t)MAX_ROWS * (size_t)shape.pairs * 4),
                                      .pairs = shape.pairs,
                                      .keys = to_device(NULL, LANES * 2 * cache),
                                      .lane_stride = 2 * cache};
    b.at.values = b.at.keys + cache / 2;
    const unsigned none[4 * 4] = {0};
    b.at.arrived = to_device(none, sizeof none);
    b.at.partial = to_device(NULL, th_cuda_attention_partial_bytes(4, 17, shape.heads, shape.dim));
    return b;
}

static void unmake_attention(struct attention_bench *b)
{
    release((void *)(uintptr_t)b->at.q_norm);
    release((void *)(uintptr_t)b->at.k_norm);
    release((void *)(uintptr_t)b->at.cosine);
    release((void *)(uintptr_t)b->at.sine);
    release(b->at.keys);
    release(b->at.partial);
    release(b->at.arrived);
    free(b->rows);
    free(b->q_norm);
    free(b->k_norm);
    free(b->cosine);
    free(b->sine);
}

/* Rows first..first+n-1 of lane 1 as a prompt, or row `first` of every lane; out [n][width], to be freed. */
static uint16_t *attend(struct attention_bench *b, int sequential, int first, int n)
{
    const int columns = sequential ? n : 4; /* a bucket with room */
    const size_t bytes = (size_t)columns * (size_t)b->stride * 2;
    uint16_t *rows = take(bytes);
    for (int c = 0; c < n; c++)
        for (int i = 0; i < b->stride; i++) /* lanes 0 and 2 hold other numbers */
            rows[(size_t)c * (size_t)b->stride + (size_t)i] =
                sequential || c == 1 ? b->rows[(size_t)(first + (sequential ? c : 0)) * (size_t)b->stride + (size_t)i]
                                     : bits_of(noise(40 + (uint32_t)c, (size_t)i) * 5);
    struct th_cuda_pass *pass = make_pass(sequential, first, n, columns);
    struct th_cuda_attention at = b->at;
    at.pass = pass;
    at.sequential = sequential;
    at.columns = columns;
    if (first % 2) at.splits = 17; /* then they are combined by a kernel of its own */
    at.rows = to_device(rows, bytes);
    at.out = to_device(NULL, (size_t)columns * (size_t)b->width * 2);
    assert_int_equal(th_cuda_attention(&launch, &at), cudaSuccess);
    uint16_t *out = from_device(at.out, (size_t)columns * (size_t)b->width * 2);
    release(pass);
    release((void *)(uintptr_t)at.rows);
    release(at.out);
    free(rows);
    return out;
}

/* Norm and rotation of a head in float64 with the model's roundings. */
static void turn(const struct attention_bench *b, const uint16_t *raw, const float *w, int row, double *out)
{
    const int dim = b->shape.dim, pairs = b->shape.pairs;
    double squares = 0;
    for (int i = 0; i < dim; i++) squares += bf16(raw[i]) * bf16(raw[i]);
    for (int i = 0; i < dim; i++) out[i] = rounded(bf16(raw[i]) / sqrt(squares / dim + 1e-6) * (1.0 + (double)w[i]));
    for (int i = 0; i < pairs; i++) {
        int x = b->shape.tower ? 2 * i : i, y = b->shape.tower ? 2 * i + 1 : i + pairs;
        double c = b->cosine[row * pairs + i], s = b->sine[row * pairs + i], first = out[x], second = out[y];
        out[x] = rounded(first * c - second * s);
        out[y] = rounded(second * c + first * s);
    }
}

static void reference_head(const struct attention_bench *b, int row, int head, double *out)
{
    const int dim = b->shape.dim, kv = head / (b->shape.heads / b->shape.kv_heads);
    double query[256], key[256], p[MAX_ROWS], most = -1e300, sum = 0;
    const uint16_t *own = b->rows + (size_t)row * (size_t)b->stride;
    turn(b, own + b->at.query + head * b->at.head_stride, b->q_norm, row, query);
    for (int r = 0; r <= row; r++) {
        turn(b, b->rows + (size_t)r * (size_t)b->stride + b->at.key + kv * dim, b->k_norm, r, key);
        p[r] = 0;
        for (int i = 0; i < dim; i++) p[r] += query[i] * key[i] / sqrt(dim);
        most = fmax(most, p[r]);
    }
    for (int r = 0; r <= row; r++) sum += p[r] = exp(p[r] - most);
    for (int i = 0; i < dim; i++) {
        double o = 0;
        for (int r = 0; r <= row; r++)
            o += p[r] / sum * bf16(b->rows[(size_t)r * (size_t)b->stride + (size_t)(b->at.value + kv * dim + i)]);
        double open = sigmoid(bf16(own[b->at.gate + head * b->at.head_stride + i]));
        out[i] = rounded(o) * (b->shape.tower ? rounded(open) : open);
    }
}

static void check_attention(struct heads shape)
{
    struct attention_bench b = make_attention(shape);
    uint16_t *whole = attend(&b, 1, 0, MOST);
    double worst = 0, out[256];
    const int some[] = {0, 1, 63, 64, 65, 130, MOST - 1};
    for (int k = 0; k < 7; k++)
        for (int head = 0; head < shape.heads; head++) {
            reference_head(&b, some[k], head, out);
            for (int i = 0; i < shape.dim; i++)
                worst = fmax(worst, steps_off(bf16(whole[(size_t)some[k] * (size_t)b.width + (size_t)(head * shape.dim + i)]),
                                              out[i], 0.02));
        }
    print_message("heads %d of %d: %.2f steps of bf16\n", shape.heads, shape.dim, worst);
    assert_true(worst < 3.0); /* a rounding of o and of the product; keys may round the other way */
    size_t bytes = (size_t)b.width * 2;
    static const int pieces[] = {1, 7, 64, 65};
    for (int k = 0; k < 4; k++)
        for (int first = 0; first < MOST; first += pieces[k]) {
            int n = MOST - first < pieces[k] ? MOST - first : pieces[k];
            uint16_t *part = attend(&b, 1, first, n);
            assert_memory_equal(part, whole + (size_t)first * (size_t)b.width, (size_t)n * bytes);
            free(part);
        }
    for (int row = 0; row < MOST; row += row < 3 || (row > 60 && row < 66) ? 1 : 0) { /* frames need all rows before them */
        uint16_t *frames = attend(&b, 0, row, LANES);
        assert_memory_equal(frames + b.width, whole + (size_t)row * (size_t)b.width, bytes);
        free(frames);
        if (!(row < 3 || (row > 60 && row < 66))) row += row < 60 ? 1 : 13;
    }
    free(whole);
    unmake_attention(&b);
}

static void attention(void **state)
{
    (void)state;
    check_attention((struct heads){4, 2, 64, 8, 0});
    check_attention((struct heads){8, 1, 256, 32, 0});
    check_attention((struct heads){2, 1, 256, 32, 1});
    check_attention((struct heads){4, 4, 32, 16, 1});
    check_attention((struct heads){6, 2, 128, 16, 0});
}

/* ---- DeltaNet -------------------------------------------------------------------------------------------------------------------
 */

struct delta_bench {
    int key_heads, value_heads, dim, channels, values, stride;
    uint16_t *rows;                       /* host [MAX_ROWS][stride] */
    float *conv, *a_log, *dt_bias, *norm; /* host */
    struct th_cuda_deltanet at;
    size_t state_bytes;
};

static struct delta_bench make_delta(int key_heads, int value_heads, int dim)
{
    struct delta_bench b = {.key_heads = key_heads, .value_heads = value_heads, .dim = dim};
    b.values = value_heads * dim;
    b.channels = 2 * key_heads * dim + b.values;
    b.stride = (b.channels + b.values + 2 * value_heads + 7) / 8 * 8;
    b.rows = bf16_noise(5, (size_t)MAX_ROWS * (size_t)b.stride, 2.0f);
    b.conv = float_noise(6, (size_t)b.channels * 4, 0.7f);
    b.a_log = float_noise(7, (size_t)value_heads, 1.0f);
    b.dt_bias = float_noise(8, (size_t)value_heads, 2.0f);
    b.norm = float_noise(9, (size_t)dim, 1.0f);
    const size_t delta = (size_t)value_heads * (size_t)(dim * dim) * 4, ring = (size_t)b.channels * 4 * 2;
    b.state_bytes = delta + ring;
    b.at = (struct th_cuda_deltanet){.key_heads = key_heads,
                                     .value_heads = value_heads,
                                     .dim = dim,
                                     .row_stride = b.stride,
                                     .conv = to_device(b.conv, (size_t)b.channels * 16),
                                     .a_log = to_device(b.a_log, (size_t)value_heads * 4),
                                     .dt_bias = to_device(b.dt_bias, (size_t)value_heads * 4),
                                     .norm = to_device(b.norm, (size_t)dim * 4),
                                     .eps = 1e-6f,
                                     .delta = to_device(NULL, LANES * b.state_bytes),
                                     .lane_stride = b.state_bytes,
                                     .scratch = to_device(NULL, th_cuda_deltanet_scratch_bytes(MOST, key_heads, value_heads, dim))};
    b.at.ring = (uint16_t *)(void *)((char *)b.at.delta + delta);
    return b;
}

static void forget(struct delta_bench *b)
{
    assert_int_equal(cudaMemset(b->at.delta, 0, LANES * b->state_bytes), cudaSuccess);
}

static void unmake_delta(struct delta_bench *b)
{
    release((void *)(uintptr_t)b->at.conv);
    release((void *)(uintptr_t)b->at.a_log);
    release((void *)(uintptr_t)b->at.dt_bias);
    release((void *)(uintptr_t)b->at.norm);
    release(b->at.delta);
    release(b->at.scratch);
    free(b->rows);
    free(b->conv);
    free(b->a_log);
    free(b->dt_bias);
    free(b->norm);
}

static uint16_t *recur(struct delta_bench *b, int sequential, int first, int n)
{
    const int columns = sequential ? n : 4;
    const size_t bytes = (size_t)columns * (size_t)b->stride * 2, width = (size_t)b->values * 2;
    uint16_t *rows = take(bytes);
    for (int c = 0; c < n; c++)
        for (int i = 0; i < b->stride; i++)
            rows[(size_t)c * (size_t)b->stride + (size_t)i] =
                sequential || c == 1 ? b->rows[(size_t)(first + (sequential ? c : 0)) * (size_t)b->stride + (size_t)i]
                                     : bits_of(noise(60 + (uint32_t)c, (size_t)i + (size_t)first) * 3);
    struct th_cuda_pass *pass = make_pass(sequential, first, n, columns);
    struct th_cuda_deltanet at = b->at;
    at.pass = pass;
    at.sequential = sequential;
    at.columns = columns;
    at.rows = to_device(rows, bytes);
    at.out = to_device(NULL, (size_t)columns * width);
    assert_int_equal(th_cuda_deltanet(&launch, &at), cudaSuccess);
    uint16_t *out = from_device(at.out, (size_t)columns * width);
    release(pass);
    release((void *)(uintptr_t)at.rows);
    release(at.out);
    free(rows);
    return out;
}

static double mixed(const struct delta_bench *b, int row, int channel)
{
    double s = 0;
    for (int j = 0; j < 4; j++)
        if (row - 3 + j >= 0)
            s += (double)b->conv[channel * 4 + j] * bf16(b->rows[(size_t)(row - 3 + j) * (size_t)b->stride + (size_t)channel]);
    return rounded(s * sigmoid(s));
}

/* One value head over rows 0..MOST-1 in float64; returns the worst difference from `got` in steps. */
static double reference_delta(const struct delta_bench *b, int head, const uint16_t *got)
{
    const int dim = b->dim, key_head = head / (b->value_heads / b->key_heads), keys = b->key_heads * dim;
    double *s = take((size_t)(dim * dim) * sizeof *s), worst = 0;
    for (int row = 0; row < MOST; row++) {
        double q[128], k[128], v[128], o[128], qq = 1e-6, kk = 1e-6, oo = 0;
        const uint16_t *own = b->rows + (size_t)row * (size_t)b->stride;
        for (int i = 0; i < dim; i++) {
            q[i] = mixed(b, row, key_head * dim + i);
            k[i] = mixed(b, row, keys + key_head * dim + i);
            v[i] = mixed(b, row, 2 * keys + head * dim + i);
            qq += q[i] * q[i];
            kk += k[i] * k[i];
        }
        double x = bf16(own[b->channels + b->values + b->value_heads + head]) + (double)b->dt_bias[head];
        double decay = exp(-exp((double)b->a_log[head]) * log1p(exp(x)));
        double beta = rounded(sigmoid(bf16(own[b->channels + b->values + head])));
        for (int n = 0; n < dim; n++) {
            double d = v[n];
            for (int m = 0; m < dim; m++) d -= (s[m * dim + n] *= decay) * k[m] / sqrt(kk);
            o[n] = 0;
            for (int m = 0; m < dim; m++) o[n] += (s[m * dim + n] += k[m] / sqrt(kk) * d * beta) * q[m] / sqrt(qq) / sqrt(dim);
            o[n] = rounded(o[n]);
            oo += o[n] * o[n];
        }
        for (int n = 0; n < dim; n++) {
            double z = bf16(own[b->channels + head * dim + n]);
            double want = o[n] / sqrt(oo / dim + 1e-6) * (double)b->norm[n] * z * sigmoid(z);
            worst = fmax(worst, steps_off(bf16(got[(size_t)row * (size_t)b->values + (size_t)(head * dim + n)]), want, 0.05));
        }
    }
    free(s);
    return worst;
}

static void check_delta(int key_heads, int value_heads, int dim)
{
    struct delta_bench b = make_delta(key_heads, value_heads, dim);
    forget(&b);
    uint16_t *whole = recur(&b, 1, 0, MOST);
    unsigned char *state = from_device((char *)b.at.delta + b.state_bytes, b.state_bytes); /* of lane 1 */
    double worst = 0;
    for (int head = 0; head < value_heads; head++) worst = fmax(worst, reference_delta(&b, head, whole));
    print_message("%d value heads of %d: %.2f steps of bf16\n", value_heads, dim, worst);
    assert_true(worst < 3.0);
    static const int pieces[] = {1, 3, 7, 64};
    for (int k = 0; k < 5; k++) { /* the last round: frames */
        forget(&b);
        for (int first = 0, n; first < MOST; first += n) {
            n = k == 4 ? 1 : MOST - first < pieces[k] ? MOST - first : pieces[k];
            uint16_t *part = recur(&b, k < 4, first, k == 4 ? LANES : n);
            assert_memory_equal(part + (k == 4 ? b.values : 0), whole + (size_t)first * (size_t)b.values,
                                (size_t)n * (size_t)b.values * 2);
            free(part);
        }
        unsigned char *after = from_device((char *)b.at.delta + b.state_bytes, b.state_bytes);
        assert_memory_equal(after, state, b.state_bytes);
        free(after);
    }
    free(whole);
    free(state);
    unmake_delta(&b);
}

static void deltanet(void **state)
{
    (void)state;
    check_delta(2, 4, 32);
    check_delta(2, 2, 64);
    check_delta(1, 2, 128);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(attention), cmocka_unit_test(deltanet)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
