/* lm_attention.c - softmax(q k) v of one row over the rows before it, in blocks of positions counted from row 0 and combined in
 * order: the same sums whether the row came in a prompt or alone. */
#include "backend/cpu/kernels/lm_parts.h"

static float dot(const float *a, const float *b, int n)
{
    v16 sums = v16_zero();
    for (int i = 0; i < n; i += 16) sums = v16_fma(v16_load_upto(a + i, n - i), v16_load_upto(b + i, n - i), sums);
    return v16_sum(sums);
}

/* out = out * keep + sum over the block's rows of p[row] * value[row], rows in order. */
static void gather_values(const struct th_attend *at, int first, int count, const float *p, float keep, float *out)
{
    const float *values = at->values + (size_t)first * (size_t)at->stride;
    int i = 0;
    for (; i + 32 <= at->head_dim; i += 32) {
        v16 low = v16_mul(v16_load(out + i), v16_set1(keep)), high = v16_mul(v16_load(out + i + 16), v16_set1(keep));
        for (int row = 0; row < count; row++) {
            const float *value = values + (size_t)row * (size_t)at->stride + i;
            low = v16_fma(v16_set1(p[row]), v16_load(value), low);
            high = v16_fma(v16_set1(p[row]), v16_load(value + 16), high);
        }
        v16_store(out + i, low);
        v16_store(out + i + 16, high);
    }
    for (; i < at->head_dim; i += 16) {
        int left = at->head_dim - i;
        v16 sum = v16_mul(v16_load_upto(out + i, left), v16_set1(keep));
        for (int row = 0; row < count; row++)
            sum = v16_fma(v16_set1(p[row]), v16_load_upto(values + (size_t)row * (size_t)at->stride + i, left), sum);
        v16_store_upto(out + i, sum, left);
    }
}

/* One block of one head: raises *most, and scales what was summed under the old one. */
static void attend_block(const struct th_attend *at, const float *query, int first, int count, float *most, float *sum, float *out)
{
    float p[TH_ATTENTION_BLOCK];
    float largest = *most;
    for (int row = 0; row < count; row++) {
        p[row] = dot(query, at->keys + (size_t)(first + row) * (size_t)at->stride, at->head_dim) * at->scale;
        largest = p[row] > largest ? p[row] : largest;
    }
    v16 sums = v16_zero();
    for (int i = 0; i < count; i += 16) {
        v16_store_upto(p + i, v16_exp(v16_sub(v16_load_upto(p + i, count - i), v16_set1(largest))), count - i);
        sums = v16_add(sums, v16_load_upto(p + i, count - i));
    }
    float keep = first == 0 ? 0.0f : th_exp1(*most - largest);
    *sum = fmaf(*sum, keep, v16_sum(sums));
    *most = largest;
    gather_values(at, first, count, p, keep, out);
}

void TH_NAME(th_lm_attend)(const struct th_attend *at, int bf16)
{
    for (int head = 0; head < at->group; head++) {
        const float *query = at->query + (size_t)head * (size_t)at->head_dim;
        float *out = at->out + (size_t)head * (size_t)at->head_dim;
        float most = -INFINITY, sum = 0.0f;
        for (int i = 0; i < at->head_dim; i++) out[i] = 0.0f;
        for (int first = 0; first < at->rows; first += TH_ATTENTION_BLOCK) {
            int left = at->rows - first;
            attend_block(at, query, first, left < TH_ATTENTION_BLOCK ? left : TH_ATTENTION_BLOCK, &most, &sum, out);
        }
        for (int i = 0; i < at->head_dim; i += 16) {
            int left = at->head_dim - i;
            v16_store_upto(out + i, v16_round_if(v16_div(v16_load_upto(out + i, left), v16_set1(sum)), bf16), left);
        }
    }
}
