/* codec_attention.c - attention of one head over a window of past positions held in a ring of `window` slots. A row's own key is
 * written just before the row is answered: it takes the slot of the position that has left the window. */
#include "backend/cpu/kernels/codec.h"

#define HEAD 64

/* Adjacent pairs turn by the row's angles; each product is rounded, as in the reference. */
static void rotate(const float *x, const float *cosine, const float *sine, float *y)
{
    for (int m = 0; m < HEAD / 2; m++) {
        float a = x[2 * m], b = x[2 * m + 1];
        y[2 * m] = a * cosine[m] - b * sine[m];
        y[2 * m + 1] = b * cosine[m] + a * sine[m];
    }
}

/* Scores of keys first..position: scores[j - first], and their maximum. */
static float score(const float *q, const float *keys, int window, int64_t first, int count, float *scores)
{
    v16 q0 = v16_load(q), q1 = v16_load(q + 16), q2 = v16_load(q + 32), q3 = v16_load(q + 48);
    int slot = (int)(first % window);
    float top = -INFINITY;
    for (int j = 0; j < count; j++) {
        const float *k = keys + (size_t)slot * HEAD;
        v16 sum = v16_mul(q0, v16_load(k));
        sum = v16_fma(q1, v16_load(k + 16), sum);
        sum = v16_fma(q2, v16_load(k + 32), sum);
        sum = v16_fma(q3, v16_load(k + 48), sum);
        scores[j] = v16_sum(sum) * 0.125f;
        if (scores[j] > top) top = scores[j];
        if (++slot == window) slot = 0;
    }
    return top;
}

/* scores become e^(score - top); returns their sum. Lanes past `count` are scratch of the caller's rounding up to 16. */
static float weigh(float *scores, int count, float top)
{
    for (int j = count; j % 16 != 0; j++) scores[j] = -INFINITY;
    v16 sum = v16_zero();
    for (int j = 0; j < count; j += 16) {
        v16 weight = v16_exp(v16_sub(v16_load(scores + j), v16_set1(top)));
        v16_store(scores + j, weight);
        sum = v16_add(sum, weight);
    }
    return v16_sum(sum);
}

static void mix(const float *weights, float total, const float *values, int window, int64_t first, int count, float *out)
{
    v16 a = v16_zero(), b = a, c = a, d = a;
    int slot = (int)(first % window);
    for (int j = 0; j < count; j++) {
        const float *v = values + (size_t)slot * HEAD;
        v16 w = v16_set1(weights[j]);
        a = v16_fma(w, v16_load(v), a);
        b = v16_fma(w, v16_load(v + 16), b);
        c = v16_fma(w, v16_load(v + 32), c);
        d = v16_fma(w, v16_load(v + 48), d);
        if (++slot == window) slot = 0;
    }
    v16 scale = v16_set1(total);
    v16_store(out, v16_div(a, scale));
    v16_store(out + 16, v16_div(b, scale));
    v16_store(out + 32, v16_div(c, scale));
    v16_store(out + 48, v16_div(d, scale));
}

static void one_head(const struct th_attention_job *job, int head)
{
    const size_t dim = (size_t)job->heads * HEAD, at = (size_t)head * HEAD;
    float *keys = job->keys + at * (size_t)job->window, *values = job->values + at * (size_t)job->window;
    float *scores = job->scores + (size_t)head * (size_t)((job->window + 15) / 16 * 16);
    for (int row = 0; row < job->rows; row++) {
        const float *qkv = job->qkv + (size_t)row * 3 * dim + at;
        const float *cosine = job->cosine + (size_t)row * (HEAD / 2), *sine = job->sine + (size_t)row * (HEAD / 2);
        int64_t position = job->position + row, first = position - job->window + 1;
        if (first < 0) first = 0;
        size_t slot = (size_t)(position % job->window) * HEAD;
        float q[HEAD];
        rotate(qkv, cosine, sine, q);
        rotate(qkv + dim, cosine, sine, keys + slot);
        memcpy(values + slot, qkv + 2 * dim, HEAD * sizeof(float));
        int count = (int)(position - first + 1);
        float top = score(q, keys, job->window, first, count, scores);
        float total = weigh(scores, count, top);
        mix(scores, total, values, job->window, first, count, job->out + (size_t)row * dim + at);
    }
}

void TH_NAME(th_codec_attention)(void *context, int begin, int end)
{
    for (int head = begin; head < end; head++) one_head(context, head);
}
