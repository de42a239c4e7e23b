/* codec_rows.c - what works on [time][width] rows: linear layers, norms, depthwise convolution, snake, codebook lookup and search.
 */
#include "backend/cpu/kernels/codec.h"

#ifdef TH_ISA_portable /* plain loops over sixteen lanes: more copies would only cost compile time */
#define ALWAYS_INLINE static
#define UNROLL
#else
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")
#endif
#define SLAB 48 /* rows whose sums an item of `linear` holds at a time */

/* Dot products of `o` weight rows with `t` time rows, sums[t * 16 + o]. o and t are constants wherever this is expanded. Every tile
 * shape adds the products of one pair of rows in the same order. */
ALWAYS_INLINE void dot_tile(const float *weight, const float *in, size_t in_stride, int inputs, int t, int o, float *sums)
{
    v16 acc[6];
    UNROLL
    for (int i = 0; i < t * o; i++) acc[i] = v16_zero();
    int k = 0;
    for (; k + 16 <= inputs; k += 16) {
        v16 x[3];
        UNROLL
        for (int i = 0; i < t; i++) x[i] = v16_load(in + (size_t)i * in_stride + k);
        UNROLL
        for (int j = 0; j < o; j++) {
            v16 w = v16_load(weight + (size_t)j * (size_t)inputs + k);
            UNROLL
            for (int i = 0; i < t; i++) acc[i * o + j] = v16_fma(w, x[i], acc[i * o + j]);
        }
    }
    if (k < inputs) {
        UNROLL
        for (int j = 0; j < o; j++) {
            v16 w = v16_load_part(weight + (size_t)j * (size_t)inputs + k, inputs - k);
            UNROLL
            for (int i = 0; i < t; i++)
                acc[i * o + j] = v16_fma(w, v16_load_part(in + (size_t)i * in_stride + k, inputs - k), acc[i * o + j]);
        }
    }
    UNROLL
    for (int i = 0; i < t; i++) UNROLL
    for (int j = 0; j < o; j++) sums[i * 16 + j] = v16_sum(acc[i * o + j]);
}

/* sums[t][o] for `rows` time rows and up to 16 outputs, in tiles of six sums. */
static void dot_block(const float *weight, const float *in, size_t in_stride, int inputs, int rows, int outputs, float *sums)
{
    const size_t row = (size_t)inputs;
    int t = 0;
    if (rows >= 3)
        for (int o = 0; o < outputs; o += 2) /* weights outside: two of them stay in the nearest cache */
            for (t = 0; t + 3 <= rows; t += 3) {
                if (o + 2 <= outputs)
                    dot_tile(weight + (size_t)o * row, in + (size_t)t * in_stride, in_stride, inputs, 3, 2, sums + t * 16 + o);
                else
                    dot_tile(weight + (size_t)o * row, in + (size_t)t * in_stride, in_stride, inputs, 3, 1, sums + t * 16 + o);
            }
    for (; t < rows; t++) {
        int o = 0;
        for (; o + 6 <= outputs; o += 6)
            dot_tile(weight + (size_t)o * row, in + (size_t)t * in_stride, in_stride, inputs, 1, 6, sums + t * 16 + o);
        for (; o < outputs; o++)
            dot_tile(weight + (size_t)o * row, in + (size_t)t * in_stride, in_stride, inputs, 1, 1, sums + t * 16 + o);
    }
}

static v16 gelu(v16 x)
{
    v16 bell = v16_add(v16_set1(1.0f), v16_erf(v16_mul(x, v16_set1(0x1.6a09e6p-1f))));
    return v16_mul(v16_mul(x, v16_set1(0.5f)), bell);
}

static v16 finish_linear(const struct th_linear_job *job, v16 value, const float *gate, const float *out, int o, int n)
{
    if (job->bias != NULL) value = v16_add(value, th_load(job->bias + o, n));
    switch (job->kind) {
    case TH_LINEAR_GELU: return gelu(value);
    case TH_LINEAR_GATED: return v16_mul(v16_silu(value), v16_load(gate));
    case TH_LINEAR_ADD: return v16_add(th_load(out, n), v16_mul(th_load(job->gamma + o, n), value));
    default: return value;
    }
}

void TH_NAME(th_codec_linear)(void *context, int begin, int end)
{
    const struct th_linear_job *job = context;
    float sums[SLAB * 16] = {0}, gates[SLAB * 16] = {0};
    for (int item = begin; item < end; item++) {
        const int o = item * 16, n = job->outputs - o < 16 ? job->outputs - o : 16;
        const size_t at = (size_t)o * (size_t)job->inputs;
        for (int t0 = 0; t0 < job->rows; t0 += SLAB) {
            const int rows = job->rows - t0 < SLAB ? job->rows - t0 : SLAB;
            const float *in = job->in + (size_t)t0 * job->in_stride;
            dot_block(job->weight + at, in, job->in_stride, job->inputs, rows, n, sums);
            if (job->kind == TH_LINEAR_GATED) dot_block(job->weight2 + at, in, job->in_stride, job->inputs, rows, n, gates);
            for (int t = 0; t < rows; t++) {
                float *out = job->out + (size_t)(t0 + t) * (size_t)job->outputs + (size_t)o;
                th_store(out, finish_linear(job, v16_load(sums + t * 16), gates + t * 16, out, o, n), n);
            }
        }
    }
}

static float row_sum(const float *x, int width)
{
    v16 sum = v16_zero();
    int k = 0;
    for (; k + 16 <= width; k += 16) sum = v16_add(sum, v16_load(x + k));
    if (k < width) sum = v16_add(sum, th_load(x + k, width - k));
    return v16_sum(sum);
}

/* sum of (x - mean)^2 */
static float row_squares(const float *x, float mean, int width)
{
    v16 sum = v16_zero(), m = v16_set1(mean);
    int k = 0;
    for (; k + 16 <= width; k += 16) {
        v16 d = v16_sub(v16_load(x + k), m);
        sum = v16_fma(d, d, sum);
    }
    for (float lanes[16]; k < width; k = width) {
        for (int i = 0; i < 16; i++) lanes[i] = k + i < width ? x[k + i] : mean;
        v16 d = v16_sub(v16_load(lanes), m);
        sum = v16_fma(d, d, sum);
    }
    return v16_sum(sum);
}

void TH_NAME(th_codec_norm)(void *context, int begin, int end)
{
    const struct th_norm_job *job = context;
    for (int t = begin; t < end; t++) {
        const float *x = job->in + (size_t)t * (size_t)job->width;
        float *y = job->out + (size_t)t * (size_t)job->width;
        float mean = job->kind == TH_NORM_LAYER ? row_sum(x, job->width) / (float)job->width : 0.0f;
        float scale = 1.0f / sqrtf(row_squares(x, mean, job->width) / (float)job->width + job->eps);
        for (int k = 0; k < job->width; k += 16) {
            int n = job->width - k < 16 ? job->width - k : 16;
            v16 value = v16_mul(v16_sub(th_load(x + k, n), v16_set1(mean)), v16_set1(scale));
            value = v16_mul(th_load(job->weight + k, n), value);
            if (job->bias != NULL) value = v16_add(value, th_load(job->bias + k, n));
            th_store(y + k, value, n);
        }
    }
}

void TH_NAME(th_codec_depthwise)(void *context, int begin, int end)
{
    const struct th_depthwise_job *job = context;
    const size_t width = (size_t)job->width;
    for (int t = begin; t < end; t++) {
        for (int c = 0; c < job->width; c += 16) {
            int n = job->width - c < 16 ? job->width - c : 16;
            v16 sum = th_load(job->bias + c, n);
            for (int k = 0; k < job->kernel; k++)
                sum = v16_fma(th_load(job->weight + (size_t)k * width + (size_t)c, n),
                              th_load(job->in + (size_t)(t + k) * width + (size_t)c, n), sum);
            th_store(job->out + (size_t)t * width + (size_t)c, sum, n);
        }
    }
}

void TH_NAME(th_codec_snake_rows)(void *context, int begin, int end)
{
    const struct th_snake_rows_job *job = context;
    for (int t = begin; t < end; t++) {
        size_t row = (size_t)t * (size_t)job->width;
        for (int c = 0; c < job->width; c += 16) {
            int n = job->width - c < 16 ? job->width - c : 16;
            v16 value = th_snake(th_load(job->in + row + (size_t)c, n), th_load(job->alpha + c, n), th_load(job->inverse + c, n));
            th_store(job->out + row + (size_t)c, value, n);
        }
    }
}

/* out_bias + out_weight e for 16 latent columns */
static v16 project(const struct th_packed_book *book, const float *e, int width, int latent, int c, int n)
{
    v16 sum = th_load(book->out_bias + c, n);
    for (int k = 0; k < width; k++)
        sum = v16_fma(v16_set1(e[k]), th_load(book->out_weight + (size_t)k * (size_t)latent + (size_t)c, n), sum);
    return sum;
}

void TH_NAME(th_codec_lookup)(void *context, int begin, int end)
{
    const struct th_lookup_job *job = context;
    for (int t = begin; t < end; t++) {
        const int32_t *codes = job->codes + (size_t)t * (size_t)job->count;
        for (int c = 0; c < job->latent; c += 16) {
            int n = job->latent - c < 16 ? job->latent - c : 16;
            v16 first = v16_zero(), rest = v16_zero();
            for (int i = 0; i < job->count; i++) {
                const float *e = job->books[i].codebook + (size_t)codes[i] * (size_t)job->width;
                v16 q = project(&job->books[i], e, job->width, job->latent, c, n);
                if (i == 0)
                    first = q;
                else
                    rest = i == 1 ? q : v16_add(rest, q);
            }
            th_store(job->out + (size_t)t * (size_t)job->latent + (size_t)c, v16_add(first, rest), n);
        }
    }
}

/* The row with the least distance (|e|^2 - 2 e.c) + |c|^2 to the unit vector e; the lowest of equals. */
static int nearest(const struct th_packed_book *book, const float *e, int width)
{
    float square = 0.0f;
    for (int k = 0; k < width; k++) square += e[k] * e[k];
    v16 best = v16_set1(INFINITY), best_at = v16_zero(), at, sixteen = v16_set1(16.0f);
    static const float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    at = v16_load(lanes);
    for (int i = 0; i < book->padded; i += 16, at = v16_add(at, sixteen)) {
        v16 dot = v16_zero();
        for (int k = 0; k < width; k++)
            dot = v16_fma(v16_set1(e[k] + e[k]), v16_load(book->unit + (size_t)k * (size_t)book->padded + (size_t)i), dot);
        v16 distance = v16_add(v16_sub(v16_set1(square), dot), v16_load(book->unit_square + i));
        v16 nearer = v16_less(distance, best);
        best = v16_select(nearer, distance, best);
        best_at = v16_select(nearer, at, best_at);
    }
    float distances[16], places[16];
    v16_store(distances, best);
    v16_store(places, best_at);
    int winner = 0;
    for (int i = 1; i < 16; i++)
        if (distances[i] < distances[winner] || (distances[i] == distances[winner] && places[i] < places[winner])) winner = i;
    return (int)places[winner];
}

/* One book: finds the code of a residual and takes its projection off. */
static int32_t quantise_row(const struct th_packed_book *book, float *residual, int width, int latent)
{
    float e[TH_CODE_WIDTH_MAX], unit[TH_CODE_WIDTH_MAX], square = 0.0f;
    for (int k = 0; k < width; k++) {
        float sum[16];
        dot_block(book->in_weight + (size_t)k * (size_t)latent, residual, 0, latent, 1, 1, sum);
        e[k] = sum[0] + book->in_bias[k];
        square += e[k] * e[k];
    }
    float length = sqrtf(square);
    if (!(length > 1e-12f)) length = 1e-12f;
    for (int k = 0; k < width; k++) unit[k] = e[k] / length;
    int code = nearest(book, unit, width);
    const float *row = book->codebook + (size_t)code * (size_t)width;
    for (int k = 0; k < width; k++) e[k] = e[k] + (row[k] - e[k]); /* the reference's straight-through form */
    for (int c = 0; c < latent; c += 16) {
        int n = latent - c < 16 ? latent - c : 16;
        th_store(residual + c, v16_sub(th_load(residual + c, n), project(book, e, width, latent, c, n)), n);
    }
    return code;
}

void TH_NAME(th_codec_quantise)(void *context, int begin, int end)
{
    const struct th_quantise_job *job = context;
    for (int t = begin; t < end; t++)
        for (int i = 0; i < job->count; i++)
            job->codes[(size_t)t * (size_t)job->count + (size_t)i] =
                quantise_row(&job->books[i], job->residual + (size_t)t * (size_t)job->latent, job->width, job->latent);
}
