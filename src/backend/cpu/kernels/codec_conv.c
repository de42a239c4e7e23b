/* codec_conv.c - convolutions over [channel][time] signals: sixteen columns wide, up to six outputs high in registers, weights
 * broadcast; and the small kernels that move signals. */
#include "backend/cpu/kernels/codec.h"

#ifdef TH_ISA_portable
#define SUMS static
#define UNROLL
#else
#define SUMS static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* One group of m rows: partial[r][0..columns) = bias + sums. m and taps are constants wherever this is expanded (taps 0: read at
 * run time), so that the sums stay in registers. */
SUMS void group_sums(const struct th_conv_job *job, const float *weight, const float *bias, const float *in, int columns, int m,
                     int taps, float *partial, int tile)
{
    const struct th_packed_conv *conv = job->conv;
    if (taps == 0) taps = conv->taps;
    const size_t stride = job->in_stride, step = (size_t)conv->step;
    for (int first = 0; first < conv->in; first += conv->block) {
        int channels = conv->in - first < conv->block ? conv->in - first : conv->block;
        for (int t = 0; t < columns; t += 16) {
            const float *w = weight + (size_t)first * (size_t)(taps * m);
            const float *x = in + (size_t)first * stride + (size_t)t;
            v16 sum[TH_CONV_GROUP];
            UNROLL
            for (int i = 0; i < m; i++) sum[i] = first == 0 ? v16_set1(bias[i]) : v16_zero();
            for (int c = 0; c < channels; c++, x += stride) {
                UNROLL
                for (int k = 0; k < taps; k++, w += m) {
                    v16 column = v16_load(x + (size_t)k * step);
                    UNROLL
                    for (int i = 0; i < m; i++) sum[i] = v16_fma(v16_set1(w[i]), column, sum[i]);
                }
            }
            UNROLL
            for (int i = 0; i < m; i++) {
                float *p = partial + (size_t)i * (size_t)tile + (size_t)t;
                v16_store(p, first == 0 ? sum[i] : v16_add(v16_load(p), sum[i]));
            }
        }
    }
}

#ifdef TH_ISA_portable /* plain loops over sixteen lanes: more copies would only cost compile time */

static void group(int m, const struct th_conv_job *job, const float *weight, const float *bias, const float *in, int columns,
                  float *partial, int tile)
{
    group_sums(job, weight, bias, in, columns, m, 0, partial, tile);
}

#else

#define GROUP_BY_TAPS(m)                                                                                                           \
    static __attribute__((noinline)) void group_##m(const struct th_conv_job *job, const float *weight, const float *bias,         \
                                                    const float *in, int columns, float *partial, int tile)                        \
    {                                                                                                                              \
        switch (job->conv->taps) {                                                                                                 \
        case 1: group_sums(job, weight, bias, in, columns, m, 1, partial, tile); break;                                            \
        case 2: group_sums(job, weight, bias, in, columns, m, 2, partial, tile); break;                                            \
        case 7: group_sums(job, weight, bias, in, columns, m, 7, partial, tile); break;                                            \
        default: group_sums(job, weight, bias, in, columns, m, 0, partial, tile); break;                                           \
        }                                                                                                                          \
    }
GROUP_BY_TAPS(1)
GROUP_BY_TAPS(2)
GROUP_BY_TAPS(3)
GROUP_BY_TAPS(4)
GROUP_BY_TAPS(5)
GROUP_BY_TAPS(6)

static void group(int m, const struct th_conv_job *job, const float *weight, const float *bias, const float *in, int columns,
                  float *partial, int tile)
{
    switch (m) {
    case 1: group_1(job, weight, bias, in, columns, partial, tile); break;
    case 2: group_2(job, weight, bias, in, columns, partial, tile); break;
    case 3: group_3(job, weight, bias, in, columns, partial, tile); break;
    case 4: group_4(job, weight, bias, in, columns, partial, tile); break;
    case 5: group_5(job, weight, bias, in, columns, partial, tile); break;
    default: group_6(job, weight, bias, in, columns, partial, tile); break;
    }
}

#endif

/* Adds the residual and stores one output's columns at..at+count-1, rounded up to 16. */
static void finish_row(const struct th_conv_job *job, int output, size_t at, const float *sums, int count)
{
    size_t row = (size_t)output * job->stride + at;
    v16 alpha = v16_zero(), inverse = v16_zero();
    if (job->snake != NULL) {
        alpha = v16_set1(job->alpha[output]);
        inverse = v16_set1(job->inverse[output]);
    }
    for (int t = 0; t < count; t += 16) {
        v16 value = v16_load(sums + t);
        if (job->residual != NULL) value = v16_add(v16_load(job->residual + row + t), value);
        if (job->out != NULL) v16_store(job->out + row + t, value);
        if (job->snake != NULL) v16_store(job->snake + row + t, th_snake(value, alpha, inverse));
    }
}

/* Weaves the phases of one output into a line of time and finishes it. */
static __attribute__((noinline)) void finish_phases(const struct th_conv_job *job, int output, int t0, const float *partial,
                                                    int columns, int tile)
{
    const int phases = job->conv->phases;
    float line[TH_CONV_PARTIAL + 16];
    for (int j = 0; j < phases; j++) {
        const float *from = partial + (size_t)j * (size_t)tile;
        for (int t = 0; t < columns; t++) line[t * phases + j] = from[t];
    }
    int count = columns * phases;
    for (int i = count; i % 16 != 0; i++) line[i] = 0.0f;
    finish_row(job, output, (size_t)t0 * (size_t)phases, line, count);
}

static void one_item(const struct th_conv_job *job, int set, int t0)
{
    const struct th_packed_conv *conv = job->conv;
    float partial[TH_CONV_PARTIAL];
    const int columns = job->columns - t0 < job->tile ? job->columns - t0 : job->tile;
    const int begin = th_conv_set_begin(conv, set), outputs = th_conv_set_begin(conv, set + 1) - begin;
    const int rows = outputs * conv->phases, groups = th_conv_groups(rows);
    const float *weight = conv->weight + (size_t)begin * (size_t)conv->phases * (size_t)conv->in * (size_t)conv->taps;
    for (int g = 0; g < groups; g++) {
        int row = th_conv_group_begin(rows, g), m = th_conv_group_begin(rows, g + 1) - row;
        float bias[TH_CONV_GROUP];
        for (int i = 0; i < m; i++) bias[i] = conv->bias[begin + (row + i) / conv->phases];
        group(m, job, weight, bias, job->in + t0, columns, partial + (size_t)row * (size_t)job->tile, job->tile);
        weight += (size_t)m * (size_t)conv->in * (size_t)conv->taps;
    }
    for (int o = 0; o < outputs; o++) {
        const float *sums = partial + (size_t)(o * conv->phases) * (size_t)job->tile;
        if (conv->phases == 1)
            finish_row(job, begin + o, (size_t)t0, sums, columns);
        else
            finish_phases(job, begin + o, t0, sums, columns, job->tile);
    }
}

void TH_NAME(th_codec_conv)(void *context, int begin, int end)
{
    const struct th_conv_job *job = context;
    for (int item = begin; item < end; item++) one_item(job, item % job->conv->sets, item / job->conv->sets * job->tile);
}

void TH_NAME(th_codec_turn)(void *context, int begin, int end)
{
    const struct th_turn_job *job = context;
    for (int c = begin; c < end; c++) {
        float *row = job->out + (size_t)c * job->stride, *snake = job->snake + (size_t)c * job->stride;
        v16 alpha = v16_set1(job->alpha[c]), inverse = v16_set1(job->inverse[c]);
        for (int t = 0; t < job->columns; t++) row[t] = job->in[(size_t)t * (size_t)job->width + (size_t)c];
        for (int t = 0; t < job->columns; t += 16) v16_store(snake + t, th_snake(v16_load(row + t), alpha, inverse));
    }
}

void TH_NAME(th_codec_unturn)(void *context, int begin, int end)
{
    const struct th_unturn_job *job = context;
    for (int t = begin; t < end; t++)
        for (int c = 0; c < job->width; c++)
            job->out[(size_t)t * (size_t)job->width + (size_t)c] = job->in[(size_t)c * job->in_stride + (size_t)t];
}

void TH_NAME(th_codec_phases)(void *context, int begin, int end)
{
    const struct th_phases_job *job = context;
    for (int c = begin; c < end; c++) {
        const float *from = job->in + (size_t)c * job->in_stride;
        for (int j = 0; j < job->phases; j++) {
            float *to = job->out + ((size_t)c * (size_t)job->phases + (size_t)j) * job->out_stride;
            for (int t = 0; t < job->columns; t++) to[t] = from[(size_t)t * (size_t)job->phases + (size_t)j];
        }
    }
}

void TH_NAME(th_codec_tanh)(void *context, int begin, int end)
{
    const struct th_tanh_job *job = context;
    int last = end * 1024 < job->count ? end * 1024 : job->count;
    for (int i = begin * 1024; i < last; i += 16) {
        int n = last - i < 16 ? last - i : 16;
        th_store(job->out + i, v16_tanh(th_load(job->in + i, n)), n);
    }
}
