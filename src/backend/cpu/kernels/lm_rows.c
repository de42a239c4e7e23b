/* lm_rows.c - what happens to one row between products: norms, gates, quantisation, routing. Sums over a row are sixteen running
 * sums (index mod 16) and v16_sum. */
#include "backend/cpu/kernels/lm_parts.h"

static float sum_of_squares(const float *x, int n)
{
    v16 sums = v16_zero();
    for (int i = 0; i < n; i += 16) {
        v16 value = v16_load_upto(x + i, n - i);
        sums = v16_fma(value, value, sums);
    }
    return v16_sum(sums);
}

static float inverse_root_mean(const float *x, float eps, int n)
{
    return 1.0f / sqrtf(sum_of_squares(x, n) / (float)n + eps);
}

void TH_NAME(th_lm_norm)(const float *x, const float *w, float plus, float eps, int n, int bf16, float *y)
{
    v16 factor = v16_set1(inverse_root_mean(x, eps, n)), one = v16_set1(plus);
    for (int i = 0; i < n; i += 16) {
        v16 value = v16_mul(v16_load_upto(x + i, n - i), factor);
        v16_store_upto(y + i, v16_round_if(v16_mul(value, v16_add(one, v16_load_upto(w + i, n - i))), bf16), n - i);
    }
}

void TH_NAME(th_lm_gated_norm)(const float *x, const float *w, const float *z, float eps, int n, int bf16, float *y)
{
    v16 factor = v16_set1(inverse_root_mean(x, eps, n));
    for (int i = 0; i < n; i += 16) {
        v16 value = v16_mul(v16_mul(v16_load_upto(x + i, n - i), factor), v16_load_upto(w + i, n - i));
        v16_store_upto(y + i, v16_round_if(v16_mul(value, v16_silu(v16_load_upto(z + i, n - i))), bf16), n - i);
    }
}

void TH_NAME(th_lm_unit)(const float *x, float scale, int n, float *y)
{
    v16 length = v16_set1(sqrtf(sum_of_squares(x, n) + 1e-6f)), factor = v16_set1(scale);
    for (int i = 0; i < n; i += 16) v16_store_upto(y + i, v16_mul(v16_div(v16_load_upto(x + i, n - i), length), factor), n - i);
}

void TH_NAME(th_lm_add)(const float *x, const float *add, int n, int bf16, float *y)
{
    for (int i = 0; i < n; i += 16)
        v16_store_upto(y + i, v16_round_if(v16_add(v16_load_upto(x + i, n - i), v16_load_upto(add + i, n - i)), bf16), n - i);
}

void TH_NAME(th_lm_silu_mul)(const float *gate, const float *up, int n, int bf16, float *y)
{
    for (int i = 0; i < n; i += 16) {
        v16 value = v16_mul(v16_silu(v16_load_upto(gate + i, n - i)), v16_load_upto(up + i, n - i));
        v16_store_upto(y + i, v16_round_if(value, bf16), n - i);
    }
}

void TH_NAME(th_lm_sigmoid_mul)(const float *x, const float *gate, int n, int bf16, int round_sigmoid, float *y)
{
    for (int i = 0; i < n; i += 16) {
        v16 open = v16_round_if(v16_sigmoid(v16_load_upto(gate + i, n - i)), round_sigmoid);
        v16_store_upto(y + i, v16_round_if(v16_mul(v16_load_upto(x + i, n - i), open), bf16), n - i);
    }
}

void TH_NAME(th_lm_mix)(const float *down, const int *entries, const float *weights, int top_k, const float *shared, float open,
                        int n, int bf16, float *y)
{
    v16 share = v16_set1(open);
    for (int i = 0; i < n; i += 16) {
        v16 routed = v16_zero();
        for (int slot = 0; slot < top_k; slot++) {
            v16 part = v16_load_upto(down + (size_t)entries[slot] * (size_t)n + i, n - i);
            routed = v16_add(routed, v16_round_if(v16_mul(part, v16_set1(weights[slot])), bf16));
        }
        v16 rest = v16_mul(share, v16_load_upto(shared + i, n - i));
        v16_store_upto(y + i, v16_round_if(v16_add(v16_round_if(routed, bf16), rest), bf16), n - i);
    }
}

float TH_NAME(th_lm_sigmoid)(float x)
{
    return th_sigmoid1(x);
}

/* Nearest E4M3 value, ties to even, saturated at 448. Below 2^-6 the grid is 2^-9; above, three bits of mantissa are kept. */
static v16 to_e4m3(v16 x)
{
    x = v16_min(v16_max(x, v16_set1(-448.0f)), v16_set1(448.0f));
    v16 fine = v16_mul(v16_round(v16_mul(x, v16_set1(512.0f))), v16_set1(1.0f / 512.0f));
    v16i bits = v16_bits(x);
    v16i odd = v16i_and(v16i_shr(bits, 20), v16i_set1(1));
    v16i coarse = v16i_and(v16i_add(bits, v16i_add(odd, v16i_set1(0x7FFFF))), v16i_set1((int32_t)0xFFF00000u));
    return v16_select(v16_less(v16_abs(x), v16_set1(0x1p-6f)), fine, v16_from_bits(coarse));
}

void TH_NAME(th_lm_quantise)(const float *x, int n, float *values, float *scales)
{
    for (int first = 0; first < n; first += 128) {
        int end = n - first < 128 ? n : first + 128;
        v16 largest = v16_set1(1e-10f);
        for (int i = first; i < end; i += 16) largest = v16_max(v16_abs(v16_load_upto(x + i, end - i)), largest);
        float most = v16_maximum(largest);
        v16 inverse = v16_set1(1.0f / most * 448.0f); /* two roundings, in this order, as the reference evaluates 448 / most */
        scales[first / 128] = most * (1.0f / 448.0f);
        for (int i = first; i < end; i += 16)
            v16_store_upto(values + i, to_e4m3(v16_mul(v16_load_upto(x + i, end - i), inverse)), end - i);
    }
}

/* exp(logit - largest) in scratch. Their sum cancels when the chosen ones are divided by their own. */
static void softmax(const float *logits, int n, float *scratch)
{
    float most = -INFINITY;
    for (int i = 0; i < n; i++) most = logits[i] > most ? logits[i] : most;
    v16 sums = v16_zero();
    for (int i = 0; i < n; i += 16) {
        v16 power = v16_exp(v16_sub(v16_load_upto(logits + i, n - i), v16_set1(most)));
        v16_store_upto(scratch + i, power, n - i);
        sums = v16_add(sums, v16_load_upto(scratch + i, n - i));
    }
    v16 sum = v16_set1(v16_sum(sums));
    for (int i = 0; i < n; i += 16) v16_store_upto(scratch + i, v16_div(v16_load_upto(scratch + i, n - i), sum), n - i);
}

/* The expert after `last` in the order of falling logits and rising ids; -1 when NaN leaves none. */
static int next_expert(const float *logits, int experts, int last)
{
    int best = -1;
    for (int i = 0; i < experts; i++) {
        int follows = last < 0 ? logits[i] == logits[i] : logits[i] < logits[last] || (logits[i] == logits[last] && i > last);
        if (follows && (best < 0 || logits[i] > logits[best])) best = i;
    }
    return best;
}

void TH_NAME(th_lm_route)(const float *logits, int experts, int top_k, float *scratch, int *chosen, float *weights)
{
    softmax(logits, experts, scratch);
    float sum = 0.0f;
    int last = -1;
    for (int slot = 0; slot < top_k; slot++) {
        int expert = next_expert(logits, experts, last);
        last = expert < 0 ? last : expert;
        chosen[slot] = expert < 0 ? slot : expert; /* a row of NaN stays one, whoever works on it */
        weights[slot] = scratch[chosen[slot]];
        sum += weights[slot];
    }
    for (int slot = 0; slot < top_k; slot++) weights[slot] /= sum;
}
