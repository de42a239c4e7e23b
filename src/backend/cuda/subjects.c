/* subjects.c - what the contract is checked on: products in every form, norms, quantisation, experts. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/contract.h"
#include "backend/cuda/experts.h"
#include "backend/cuda/norm.h"
#include "backend/cuda/pack.h"
#include "backend/cuda/product.h"
#include "base/memory.h"

#define EPS 1e-6f

/* A subject's device memory and host copies of its weights. */
struct own {
    int kind; /* of the product's output; unused elsewhere */
    int rows;
    uint16_t *weights; /* host [rows][cols] */
    float *norm;       /* host [cols]; NULL: none */
    void *memory[16];  /* device */
    int count;
    struct th_cuda_product product;
    struct th_cuda_moe moe;
    uint16_t *x; /* device [most][cols] */
    void *out;   /* device */
};

uint16_t th_subject_value(uint32_t seed, size_t i)
{
    uint64_t h = ((uint64_t)seed << 32 | 0x9E3779B9u) + i * UINT64_C(0x9E3779B97F4A7C15);
    h = (h ^ h >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    h = (h ^ h >> 27) * UINT64_C(0x94D049BB133111EB);
    float value = (float)((double)(h >> 40) / 8388608.0 - 1.0);
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)(bits >> 16);
}

static float widen(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

/* ---- device memory --------------------------------------------------------------------------------------------------------------
 */

static thespis_status take(struct own *own, size_t bytes, void *out, thespis_error *error)
{
    void *at;
    TH_CUDA(cudaMalloc(&at, bytes), "the contract", error);
    own->memory[own->count++] = at;
    memcpy(out, &at, sizeof at);
    TH_CUDA(cudaMemset(at, 0, bytes), "the contract", error);
    return THESPIS_OK;
}

static thespis_status send(const void *from, void *to, size_t bytes, thespis_error *error)
{
    TH_CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "the contract", error);
    return THESPIS_OK;
}

/* bf16 weights, random, scaled to keep sums near 1; packed. */
static thespis_status make_matrix(const struct th_cuda_launch *launch, struct own *own, int rows, int cols, uint32_t seed,
                                  struct th_cuda_matrix *matrix, uint16_t **host, thespis_error *error)
{
    const size_t count = (size_t)rows * (size_t)cols, padded = (size_t)th_cuda_padded_rows(rows) * (size_t)cols * 2;
    void *plain, *tiles;
    TH_TRY(TH_ALLOC(host, count, "weights", error));
    for (size_t i = 0; i < count; i++) (*host)[i] = th_subject_value(seed, i);
    TH_TRY(take(own, count * 2, &plain, error));
    TH_TRY(take(own, padded, &tiles, error));
    TH_TRY(send(*host, plain, count * 2, error));
    TH_CUDA(th_cuda_pack(launch, plain, tiles, (size_t)cols * 2, 0, rows, th_cuda_padded_rows(rows), TH_CUDA_ROWS_ALL),
            "packing weights", error);
    *matrix = (struct th_cuda_matrix){tiles, th_cuda_padded_rows(rows), cols};
    return THESPIS_OK;
}

/* ---- products ------------------------------------------------------------------------------------------------------------------
 */

static thespis_status run_product(const struct th_subject *s, int n, const uint16_t *x, float *y, thespis_error *error)
{
    struct own *own = s->own;
    const size_t out_bytes = (size_t)n * (size_t)own->product.output[0].stride * (own->kind == TH_CUDA_FLOAT ? 4 : 2);
    uint16_t *half;
    own->product.columns = n;
    TH_TRY(send(x, own->x, (size_t)n * (size_t)s->cols * 2, error));
    TH_CUDA(cudaMemset(own->out, 0, out_bytes), "the contract", error); /* a residual adds to zero */
    TH_CUDA(cudaDeviceSynchronize(), "the contract", error);            /* the launch is on a stream of its own */
    TH_CUDA(th_cuda_product(s->launch, &own->product), s->name, error);
    TH_CUDA(cudaStreamSynchronize(s->launch->stream), s->name, error);
    if (own->kind == TH_CUDA_FLOAT) {
        TH_CUDA(cudaMemcpy(y, own->out, out_bytes, cudaMemcpyDeviceToHost), s->name, error);
        return THESPIS_OK;
    }
    TH_TRY(TH_ALLOC(&half, (size_t)n * (size_t)s->width, "results", error));
    cudaError_t code = cudaMemcpy(half, own->out, out_bytes, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < (size_t)n * (size_t)s->width; i++) y[i] = widen(half[i]);
    th_free(half);
    return th_cuda_status(code, s->name, error);
}

/* The input of the product in float64: as it is, or normed. */
static double input_at(const struct th_subject *s, const uint16_t *x, double factor, int k)
{
    const struct own *own = s->own;
    return own->norm == NULL ? (double)widen(x[k]) : (double)widen(x[k]) * factor * (1.0 + (double)own->norm[k]);
}

static void reference_product(const struct th_subject *s, const uint16_t *x, double *y, double *slack)
{
    const struct own *own = s->own;
    const int cols = s->cols, inner = own->rows / 2;
    double squares = 0;
    for (int k = 0; k < cols; k++) squares += (double)widen(x[k]) * (double)widen(x[k]);
    const double factor = 1.0 / sqrt(squares / cols + (double)EPS);
    /* of a normed input's rounding, and of sums in 32 bits that a tensor core may cut off */
    const double loss = own->norm != NULL ? 0x1p-8 : 0x1p-16;
    for (int r = 0; r < s->width; r++) {
        double sum[2] = {0, 0}, size[2] = {0, 0};
        for (int half = 0; half < (own->kind == TH_CUDA_SILU ? 2 : 1); half++) {
            /* interleaved pairs: tile t has rows 8t.. of gate and then of up */
            const int row = own->kind == TH_CUDA_SILU ? r / 8 * 16 + r % 8 + 8 * half : r;
            for (int k = 0; k < cols; k++) {
                const double part = (double)widen(own->weights[(size_t)row * (size_t)cols + (size_t)k]) * input_at(s, x, factor, k);
                sum[half] += part;
                size[half] += fabs(part);
            }
        }
        if (own->kind == TH_CUDA_SILU) {
            const double gate = sum[0], open = gate / (1.0 + exp(-gate));
            y[r] = open * sum[1];
            slack[r] = fabs(y[r]) * 0x1p-6 + (fabs(sum[1]) + 1) * (size[0] * loss + fabs(gate) * 0x1p-8) * 1.2 +
                       (fabs(open) + 0.1) * (size[1] * loss + fabs(sum[1]) * 0x1p-8) + 1e-6;
        } else {
            y[r] = sum[0];
            slack[r] = size[0] * loss + (own->kind == TH_CUDA_FLOAT ? 0 : fabs(sum[0]) * 0x1p-8) + 1e-7;
        }
    }
    (void)inner;
}

static thespis_status make_product(const struct th_cuda_launch *launch, struct th_subject *s, struct own *own, int kind, int rows,
                                   int cols, int normed, thespis_error *error)
{
    static const char *const kinds[] = {"store", "residual", "silu", "float"};
    const size_t most = TH_CONTRACT_MOST_COLUMNS;
    const int width = kind == TH_CUDA_SILU ? rows / 2 : rows;
    uint16_t *scratch;
    float *norm = NULL;
    snprintf(s->name, sizeof s->name, "product %s%s %d x %d", kinds[kind], normed ? " of a norm" : "", rows, cols);
    *s = (struct th_subject){.cols = cols,
                             .width = width,
                             .most_columns = TH_CONTRACT_MOST_COLUMNS,
                             .launch = launch,
                             .run = run_product,
                             .reference = reference_product,
                             .own = own};
    snprintf(s->name, sizeof s->name, "product %s%s %d x %d", kinds[kind], normed ? " of a norm" : "", rows, cols);
    own->kind = kind;
    own->rows = rows;
    TH_TRY(make_matrix(launch, own, rows, cols, 77, &own->product.w, &own->weights, error));
    TH_TRY(take(own, most * (size_t)cols * 2, &own->x, error));
    TH_TRY(take(own, most * (size_t)width * 4, &own->out, error));
    TH_TRY(take(own, most * (size_t)cols * 2, &scratch, error));
    if (normed) {
        TH_TRY(TH_ALLOC(&own->norm, (size_t)cols, "a norm", error));
        for (int k = 0; k < cols; k++) own->norm[k] = 0.5f * widen(th_subject_value(5, (size_t)k));
        TH_TRY(take(own, (size_t)cols * 4, &norm, error));
        TH_TRY(send(own->norm, norm, (size_t)cols * 4, error));
    }
    own->product.input = normed ? TH_CUDA_NORM : TH_CUDA_PLAIN;
    own->product.x = own->x;
    own->product.x_stride = cols;
    own->product.norm = norm;
    own->product.eps = EPS;
    own->product.normed = scratch;
    own->product.outputs = 1;
    own->product.output[0] = (struct th_cuda_output){kind, rows, own->out, width};
    return THESPIS_OK;
}

/* ---- norms and quantisation
 * ------------------------------------------------------------------------------------------------------ */

static thespis_status run_norm(const struct th_subject *s, int n, const uint16_t *x, float *y, thespis_error *error)
{
    struct own *own = s->own;
    const size_t count = (size_t)n * (size_t)s->cols;
    uint16_t *half;
    TH_TRY(send(x, own->x, count * 2, error));
    TH_CUDA(th_cuda_norm(s->launch, own->x, s->cols, own->memory[2], EPS, s->cols, n, own->out, s->cols), s->name, error);
    TH_CUDA(cudaStreamSynchronize(s->launch->stream), s->name, error);
    TH_TRY(TH_ALLOC(&half, count, "results", error));
    cudaError_t code = cudaMemcpy(half, own->out, count * 2, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < count; i++) y[i] = widen(half[i]);
    th_free(half);
    return th_cuda_status(code, s->name, error);
}

static void reference_norm(const struct th_subject *s, const uint16_t *x, double *y, double *slack)
{
    double squares = 0;
    for (int k = 0; k < s->cols; k++) squares += (double)widen(x[k]) * (double)widen(x[k]);
    const double factor = 1.0 / sqrt(squares / s->cols + (double)EPS);
    for (int k = 0; k < s->cols; k++) {
        y[k] = input_at(s, x, factor, k);
        slack[k] = fabs(y[k]) * 0x1.01p-8 + 1e-30;
    }
}

static thespis_status make_norm(const struct th_cuda_launch *launch, struct th_subject *s, struct own *own, int cols,
                                thespis_error *error)
{
    const size_t most = TH_CONTRACT_MOST_COLUMNS;
    float *norm;
    *s = (struct th_subject){.cols = cols,
                             .width = cols,
                             .most_columns = TH_CONTRACT_MOST_COLUMNS,
                             .launch = launch,
                             .run = run_norm,
                             .reference = reference_norm,
                             .own = own};
    snprintf(s->name, sizeof s->name, "norm of %d", cols);
    TH_TRY(take(own, most * (size_t)cols * 2, &own->x, error));
    TH_TRY(take(own, most * (size_t)cols * 2, &own->out, error));
    TH_TRY(take(own, (size_t)cols * 4, &norm, error)); /* memory[2] */
    TH_TRY(TH_ALLOC(&own->norm, (size_t)cols, "a norm", error));
    for (int k = 0; k < cols; k++) own->norm[k] = 0.5f * widen(th_subject_value(5, (size_t)k));
    return send(own->norm, norm, (size_t)cols * 4, error);
}

/* Codes times scales. */
static thespis_status run_quantise(const struct th_subject *s, int n, const uint16_t *x, float *y, thespis_error *error)
{
    struct own *own = s->own;
    const size_t count = (size_t)n * (size_t)s->cols;
    uint8_t *codes;
    float *scales;
    TH_TRY(send(x, own->x, count * 2, error));
    TH_CUDA(th_cuda_quantise(s->launch, own->x, s->cols, n, own->out, own->memory[2]), s->name, error);
    TH_CUDA(cudaStreamSynchronize(s->launch->stream), s->name, error);
    TH_TRY(TH_ALLOC(&codes, count + count / 32, "results", error)); /* codes, then scales */
    scales = (float *)(void *)(codes + count);
    cudaError_t code = cudaMemcpy(codes, own->out, count, cudaMemcpyDeviceToHost);
    if (code == cudaSuccess) code = cudaMemcpy(scales, own->memory[2], count / 32, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < count; i++) {
        const int exponent = codes[i] >> 3 & 15, mantissa = codes[i] & 7;
        const float size = exponent == 0 ? (float)mantissa * 0x1p-9f : ldexpf(1.0f + (float)mantissa / 8.0f, exponent - 7);
        y[i] = (codes[i] & 128 ? -size : size) * scales[i / 128];
        if (!isfinite(scales[i / 128])) y[i] = NAN; /* the whole group counts as NaN */
    }
    th_free(codes);
    return th_cuda_status(code, s->name, error);
}

static void reference_quantise(const struct th_subject *s, const uint16_t *x, double *y, double *slack)
{
    for (int first = 0; first < s->cols; first += 128) {
        double most = 1e-10;
        int finite = 1;
        for (int k = first; k < first + 128; k++) {
            most = fmax(most, fabs((double)widen(x[k])));
            finite = finite && isfinite(widen(x[k]));
        }
        for (int k = first; k < first + 128; k++) {
            y[k] = finite ? (double)widen(x[k]) : (double)NAN;
            slack[k] = fmax(fabs(y[k]) * 0x1.02p-4, most / 448.0 * 0x1.02p-10); /* half a step of three bits, or of 2^-9 */
        }
    }
}

static thespis_status make_quantise(const struct th_cuda_launch *launch, struct th_subject *s, struct own *own, int cols,
                                    thespis_error *error)
{
    const size_t most = TH_CONTRACT_MOST_COLUMNS;
    void *scales;
    *s = (struct th_subject){.cols = cols,
                             .width = cols,
                             .most_columns = TH_CONTRACT_MOST_COLUMNS,
                             .launch = launch,
                             .run = run_quantise,
                             .reference = reference_quantise,
                             .own = own};
    snprintf(s->name, sizeof s->name, "quantise %d", cols);
    TH_TRY(take(own, most * (size_t)cols * 2, &own->x, error));
    TH_TRY(take(own, most * (size_t)cols, &own->out, error));
    return take(own, most * (size_t)cols / 32, &scales, error); /* memory[2] */
}

/* ---- experts -------------------------------------------------------------------------------------------------------------------
 */

enum { EXPERTS = 11, TOP_K = 3, HIDDEN = 256, INNER = 128, SHARED = 64 };

/* The router's logits follow from the inputs, so that every column chooses its own. */
static thespis_status run_moe(const struct th_subject *s, int n, const uint16_t *x, float *y, thespis_error *error)
{
    struct own *own = s->own;
    struct th_cuda_moe *moe = &own->moe;
    const size_t count = (size_t)n * HIDDEN;
    uint16_t *half;
    moe->columns = n;
    TH_TRY(TH_ALLOC(&half, count + (size_t)n * 16, "results", error));
    for (int c = 0; c < n; c++)
        for (int e = 0; e < EXPERTS; e++) half[c * 16 + e] = x[c * HIDDEN + 7 * e];
    thespis_status status = send(half, (void *)(uintptr_t)moe->router, (size_t)n * 32, error);
    if (status == THESPIS_OK) status = send(x, own->x, count * 2, error);
    for (int c = 0; c < n; c++) memcpy(half + (size_t)c * SHARED, x + (size_t)c * HIDDEN, SHARED * sizeof *half);
    if (status == THESPIS_OK) status = send(half, (void *)(uintptr_t)moe->shared_act, (size_t)n * SHARED * 2, error);
    if (status == THESPIS_OK) status = th_cuda_status(th_cuda_moe(s->launch, moe), s->name, error);
    if (status == THESPIS_OK) status = th_cuda_status(cudaStreamSynchronize(s->launch->stream), s->name, error);
    if (status == THESPIS_OK)
        status = th_cuda_status(cudaMemcpy(half, own->out, count * 2, cudaMemcpyDeviceToHost), s->name, error);
    for (size_t i = 0; i < count; i++) y[i] = widen(half[i]);
    th_free(half);
    return status;
}

/* Random bytes are codes, without the two that are NaN; random bf16 otherwise: packing changes only their order, so none is done.
 */
static thespis_status random_weights(struct own *own, size_t bytes, int fp8, uint32_t seed, const void **out, thespis_error *error)
{
    uint8_t *host;
    void *device = NULL;
    TH_TRY(TH_ALLOC(&host, bytes, "weights", error));
    for (size_t i = 0; i < bytes / 2; i++) {
        const uint16_t value = th_subject_value(seed, i);
        if (fp8) {
            host[2 * i] = (uint8_t)((value >> 3 & 0x80) | (0x20 + value % 29));
            host[2 * i + 1] = (uint8_t)((value >> 2 & 0x80) | (0x20 + value / 7 % 29));
        } else {
            memcpy(host + 2 * i, &value, 2);
        }
    }
    thespis_status status = take(own, bytes, &device, error);
    if (status == THESPIS_OK) status = send(host, device, bytes, error);
    th_free(host);
    *out = device;
    return status;
}

static thespis_status make_moe_scales(struct own *own, size_t count, const float **out, thespis_error *error)
{
    float *host, *device = NULL;
    TH_TRY(TH_ALLOC(&host, count, "scales", error));
    for (size_t i = 0; i < count; i++) host[i] = 0.01f + 0.001f * (float)(i % 7);
    thespis_status status = take(own, count * sizeof(float), &device, error);
    if (status == THESPIS_OK) status = send(host, device, count * sizeof(float), error);
    th_free(host);
    *out = device;
    return status;
}

static thespis_status make_moe(const struct th_cuda_launch *launch, struct th_subject *s, struct own *own, int fp8,
                               thespis_error *error)
{
    const size_t most = TH_CONTRACT_MOST_COLUMNS, item = fp8 ? 1 : 2, entries = most * TOP_K;
    struct th_cuda_moe *m = &own->moe;
    struct th_cuda_experts *e = &m->experts;
    unsigned char *space;
    *s = (struct th_subject){
        .cols = HIDDEN, .width = HIDDEN, .most_columns = TH_CONTRACT_MOST_COLUMNS, .launch = launch, .run = run_moe, .own = own};
    snprintf(s->name, sizeof s->name, "experts %s", fp8 ? "fp8" : "bf16");
    *e = (struct th_cuda_experts){.fp8 = fp8,
                                  .count = EXPERTS,
                                  .inner = INNER,
                                  .hidden = HIDDEN,
                                  .gate_up_bytes = 2 * INNER * HIDDEN * item,
                                  .down_bytes = INNER * HIDDEN * item};
    TH_TRY(random_weights(own, EXPERTS * e->gate_up_bytes, fp8, 41, &e->gate_up, error));
    TH_TRY(random_weights(own, EXPERTS * e->down_bytes, fp8, 42, &e->down, error));
    TH_TRY(make_moe_scales(own, EXPERTS * 2 * (INNER / 128) * (HIDDEN / 128), &e->gate_up_scales, error));
    TH_TRY(make_moe_scales(own, EXPERTS * (INNER / 128) * (HIDDEN / 128), &e->down_scales, error));
    TH_TRY(make_matrix(launch, own, HIDDEN, SHARED, 43, &m->shared_down, &own->weights, error));
    TH_TRY(take(own, most * HIDDEN * 2, &own->x, error));
    TH_TRY(take(own, most * HIDDEN * 2, &own->out, error));
    /* everything else in one stretch */
    const size_t sizes[] = {most * 32,
                            most * SHARED * 2,
                            most * 4,
                            entries * 4,
                            entries * 4,
                            most * HIDDEN,
                            most * HIDDEN / 32,
                            entries * INNER * 2,
                            entries * HIDDEN * 2,
                            most * HIDDEN * 2,
                            th_cuda_groups_ints(EXPERTS, (int)entries) * 4};
    void *at[11];
    size_t used = 0;
    for (int i = 0; i < 11; i++) used += (sizes[i] + 255) / 256 * 256;
    TH_TRY(take(own, used, &space, error));
    for (int i = 0; i < 11; i++) {
        at[i] = space;
        space += (sizes[i] + 255) / 256 * 256;
    }
    m->top_k = TOP_K, m->x = own->x, m->router = at[0], m->router_stride = 16, m->shared_act = at[1], m->shared_open = at[2];
    m->chosen = at[3], m->weights = at[4], m->codes = at[5], m->scales = at[6], m->act = at[7], m->parts = at[8], m->shared = at[9];
    m->groups = at[10], m->branch = own->out;
    return THESPIS_OK;
}

/* ---- the list ------------------------------------------------------------------------------------------------------------------
 */

static const struct {
    int what; /* 0 product, 1 norm, 2 quantise, 3 experts */
    int kind, rows, cols, normed;
} list[] = {
    {0, TH_CUDA_STORE, 16, 32, 0},
    {0, TH_CUDA_STORE, 5, 96, 0},
    {0, TH_CUDA_STORE, 49, 2080, 0},
    {0, TH_CUDA_FLOAT, 33, 512, 0},
    {0, TH_CUDA_RESIDUAL, 48, 544, 0},
    {0, TH_CUDA_SILU, 48, 288, 0},
    {0, TH_CUDA_STORE, 40, 512, 1},
    {0, TH_CUDA_SILU, 32, 256, 1},
    {1, 0, 0, 32, 0},
    {1, 0, 0, 2048, 0},
    {1, 0, 0, 2056, 0},
    {2, 0, 0, 128, 0},
    {2, 0, 0, 2048, 0},
    {3, 1, 0, 0, 0},
    {3, 0, 0, 0, 0},
};

thespis_status th_subject_make(size_t number, const struct th_cuda_launch *launch, struct th_subject *subject, int *there,
                               thespis_error *error)
{
    struct own *own;
    *there = number < sizeof list / sizeof *list;
    if (!*there) return THESPIS_OK;
    TH_TRY(TH_ALLOC(&own, 1, "a subject of the contract", error));
    subject->own = own;
    switch (list[number].what) {
    case 0:
        return make_product(launch, subject, own, list[number].kind, list[number].rows, list[number].cols, list[number].normed,
                            error);
    case 1: return make_norm(launch, subject, own, list[number].cols, error);
    case 2: return make_quantise(launch, subject, own, list[number].cols, error);
    default: return make_moe(launch, subject, own, list[number].kind, error);
    }
}

void th_subject_free(struct th_subject *subject)
{
    struct own *own = subject->own;
    if (own == NULL) return;
    for (int i = 0; i < own->count; i++) cudaFree(own->memory[i]);
    th_free(own->weights);
    th_free(own->norm);
    th_free(own);
    subject->own = NULL;
}
