/* resample.c - see resample.h.
 *
 * With o and n the two rates over their common divisor, output b*n + p is a dot product of the input around b*o + p*o/n with the
 * taps of phase p. Taps further than six zero crossings away are (all but) zero, so each phase keeps only its own short run of
 * them; the dense table of the definition would hold n * (2*width + o) numbers, two thousand million for 44,101 to 44,100 Hz. */
#include "audio/resample.h"

#include <math.h>
#include <string.h>

#include "audio/recording.h"
#include "base/memory.h"

#define ZERO_CROSSINGS 6
#define ROLLOFF 0.99

struct resampler {
    size_t in_step, out_step; /* o and n */
    double base;              /* ROLLOFF * min(o, n) */
    size_t width;             /* input samples that six zero crossings span */
    size_t taps;              /* 2 * width + 2: the run each phase keeps */
    size_t phases;            /* min(n, outputs) */
    float *table;             /* [phases][taps] */
    float *edge;              /* [taps]: input with zeros where it reaches over an end */
};

static size_t common_divisor(size_t a, size_t b)
{
    while (b != 0) {
        size_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static void set_rates(struct resampler *r, int in_rate, int out_rate)
{
    size_t divisor = common_divisor((size_t)in_rate, (size_t)out_rate);
    r->in_step = (size_t)in_rate / divisor;
    r->out_step = (size_t)out_rate / divisor;
    r->base = ROLLOFF * (double)(r->in_step < r->out_step ? r->in_step : r->out_step);
    r->width = (size_t)ceil(ZERO_CROSSINGS * (double)r->in_step / r->base);
    r->taps = 2 * r->width + 2;
}

/* One tap, rounded to fp32 after every step as the reference builds it on fp32 recordings: a kernel that is computed in double is
 * closer to the ideal filter, but 110 dB away from this one, and codec codes follow the samples. Sine and cosine are taken in
 * double and rounded once, so that they do not depend on how good a machine's sinf is. */
static float tap(const struct resampler *r, size_t phase, long offset)
{
    const float pi = (float)M_PI, scale = (float)(r->base / (double)r->in_step);
    float t = -(float)phase / (float)r->out_step + (float)offset / (float)r->in_step;
    t *= (float)r->base;
    if (t > ZERO_CROSSINGS) t = ZERO_CROSSINGS;
    if (t < -ZERO_CROSSINGS) t = -ZERO_CROSSINGS;
    float angle = t * pi / (float)ZERO_CROSSINGS / 2.0f;
    float window = (float)cos((double)angle);
    window *= window;
    t *= pi;
    float sinc = t == 0.0f ? 1.0f : (float)sin((double)t) / t;
    return sinc * (window * scale);
}

/* Input offset, from b*o, of the first tap that phase p keeps. */
static long first_offset(const struct resampler *r, size_t phase)
{
    return (long)(phase * r->in_step / r->out_step) - (long)r->width;
}

static void fill_table(struct resampler *r)
{
    for (size_t p = 0; p < r->phases; p++)
        for (size_t k = 0; k < r->taps; k++) r->table[p * r->taps + k] = tap(r, p, first_offset(r, p) + (long)k);
}

/* Products of floats are exact in double, so only the order of the additions counts: four running sums over an even count of taps.
 */
static float dot(const float *weights, const float *x, size_t taps)
{
    double sum[4] = {0, 0, 0, 0};
    size_t k = 0;
    for (; k + 4 <= taps; k += 4)
        for (size_t lane = 0; lane < 4; lane++) sum[lane] += (double)weights[k + lane] * (double)x[k + lane];
    for (size_t lane = 0; k < taps; k++, lane++) sum[lane] += (double)weights[k] * (double)x[k];
    return (float)((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static const float *with_zeros(const struct resampler *r, const float *in, size_t count, long start)
{
    for (size_t k = 0; k < r->taps; k++) {
        long at = start + (long)k;
        r->edge[k] = at >= 0 && (size_t)at < count ? in[at] : 0.0f;
    }
    return r->edge;
}

static void convolve(const struct resampler *r, const float *in, size_t count, float *out, size_t out_count)
{
    size_t block = 0, phase = 0; /* block is b*o */
    for (size_t j = 0; j < out_count; j++) {
        long start = (long)block + first_offset(r, phase);
        int inside = start >= 0 && (size_t)start + r->taps <= count;
        out[j] = dot(r->table + phase * r->taps, inside ? in + start : with_zeros(r, in, count, start), r->taps);
        if (++phase == r->out_step) {
            phase = 0;
            block += r->in_step;
        }
    }
}

size_t th_resample_length(size_t count, int in_rate, int out_rate)
{
    if (in_rate == out_rate || in_rate < 1 || out_rate < 1) return count;
    size_t divisor = common_divisor((size_t)in_rate, (size_t)out_rate);
    size_t o = (size_t)in_rate / divisor, n = (size_t)out_rate / divisor, available;
    /* The reference rounds the length to fp32 before its ceiling, and can cut no more than its convolution made. */
    float length = ceilf((float)((double)n * (double)count / (double)o));
    if (__builtin_mul_overflow(count / o + 1, n, &available)) available = SIZE_MAX;
    return (double)length < (double)available ? (size_t)length : available;
}

static thespis_status check(size_t count, int in_rate, int out_rate, thespis_error *error)
{
    int wrong = in_rate < TH_RATE_MIN || in_rate > TH_RATE_MAX ? in_rate : out_rate;
    if (wrong < TH_RATE_MIN || wrong > TH_RATE_MAX)
        return th_fail(error, THESPIS_INVALID, "sample rate is %d, must be %d to %d", wrong, TH_RATE_MIN, TH_RATE_MAX);
    /* Keeps count * (out / in) and every offset far inside 63 bits and exact in double. */
    if (count > (size_t)1 << 32) return th_fail(error, THESPIS_LIMIT, "%zu samples to resample, at most 2^32 are taken", count);
    return THESPIS_OK;
}

thespis_status th_resample(const float *in, size_t count, int in_rate, int out_rate, float **out, size_t *out_count,
                           thespis_error *error)
{
    *out = NULL;
    *out_count = 0;
    TH_TRY(check(count, in_rate, out_rate, error));
    size_t length = th_resample_length(count, in_rate, out_rate);
    thespis_status status = TH_ALLOC(out, length, "the resampled recording", error);
    if (status != THESPIS_OK) return status;
    *out_count = length;
    if (in_rate == out_rate) {
        if (count > 0) memcpy(*out, in, count * sizeof *in);
        return THESPIS_OK;
    }
    struct resampler r = {0};
    set_rates(&r, in_rate, out_rate);
    r.phases = length < r.out_step ? length : r.out_step;
    status = TH_ALLOC(&r.table, r.phases * r.taps, "the resampler's kernel", error);
    if (status == THESPIS_OK) status = TH_ALLOC(&r.edge, r.taps, "the resampler's edges", error);
    if (status == THESPIS_OK) {
        fill_table(&r);
        convolve(&r, in, count, *out, length);
    } else {
        th_free(*out);
        *out = NULL;
        *out_count = 0;
    }
    th_free(r.table);
    th_free(r.edge);
    return status;
}
