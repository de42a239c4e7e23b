/* lm_deltanet.c - Gated DeltaNet between its products: the causal convolution, the gates, and the recurrence, row by row. */
#include "backend/cpu/kernels/lm_parts.h"

void TH_NAME(th_lm_convolve)(const float *const *inputs, const float *taps, int width, int taps_stride, int n, int bf16, float *y)
{
    for (int i = 0; i < n; i += 16) {
        v16 sum = v16_zero();
        for (int j = 0; j < width; j++)
            sum =
                v16_fma(v16_load_upto(taps + (size_t)j * (size_t)taps_stride + i, n - i), v16_load_upto(inputs[j] + i, n - i), sum);
        v16_store_upto(y + i, v16_round_if(v16_silu(sum), bf16), n - i);
    }
}

/* log(1 + e^x), or x where that is the same in 32 bits */
static v16 softplus(v16 x)
{
    v16 soft = v16_log(v16_add(v16_set1(1.0f), v16_exp(v16_min(x, v16_set1(20.0f)))));
    return v16_select(v16_less(v16_set1(20.0f), x), x, soft);
}

void TH_NAME(th_lm_delta_gates)(const float *a, const float *b, const float *a_log, const float *dt_bias, int n, int round_beta,
                                float *decay, float *beta)
{
    for (int i = 0; i < n; i += 16) {
        v16 step = softplus(v16_add(v16_load_upto(a + i, n - i), v16_load_upto(dt_bias + i, n - i)));
        v16 g = v16_mul(v16_sub(v16_zero(), v16_exp(v16_load_upto(a_log + i, n - i))), step);
        v16_store_upto(decay + i, v16_exp(g), n - i);
        v16_store_upto(beta + i, v16_round_if(v16_sigmoid(v16_load_upto(b + i, n - i)), round_beta), n - i);
    }
}

/* Thirty-two outputs of one row: S = decay S; d = beta (v - S^T k); S = S + k d^T; o = S^T q. Sums over key dims run from 0 on. */
static void delta_tile(float *state, const float *key, const float *query, int key_dim, float decay, float beta, const float *value,
                       int left, int bf16, float *out)
{
    v16 fade = v16_set1(decay), low = v16_zero(), high = v16_zero();
    for (int m = 0; m < key_dim; m++) {
        float *row = state + (size_t)m * TH_DELTA_TILE;
        v16 a = v16_mul(v16_load(row), fade), b = v16_mul(v16_load(row + 16), fade), k = v16_set1(key[m]);
        v16_store(row, a);
        v16_store(row + 16, b);
        low = v16_fma(a, k, low);
        high = v16_fma(b, k, high);
    }
    v16 v_low = v16_load_upto(value, left), v_high = left > 16 ? v16_load_upto(value + 16, left - 16) : v16_zero();
    v16 d_low = v16_mul(v16_sub(v_low, low), v16_set1(beta)), d_high = v16_mul(v16_sub(v_high, high), v16_set1(beta));
    low = high = v16_zero();
    for (int m = 0; m < key_dim; m++) {
        float *row = state + (size_t)m * TH_DELTA_TILE;
        v16 k = v16_set1(key[m]), q = v16_set1(query[m]);
        v16 a = v16_fma(k, d_low, v16_load(row)), b = v16_fma(k, d_high, v16_load(row + 16));
        v16_store(row, a);
        v16_store(row + 16, b);
        low = v16_fma(a, q, low);
        high = v16_fma(b, q, high);
    }
    v16_store_upto(out, v16_round_if(low, bf16), left);
    if (left > 16) v16_store_upto(out + 16, v16_round_if(high, bf16), left - 16);
}

void TH_NAME(th_lm_delta)(const struct th_delta *delta)
{
    for (int row = 0; row < delta->rows; row++) {
        size_t at = (size_t)row * (size_t)delta->stride, gate = (size_t)row * (size_t)delta->gate_stride;
        float *out = delta->out + (size_t)row * (size_t)delta->out_stride;
        float *state = delta->state;
        for (int n = 0; n < delta->value_dim; n += TH_DELTA_TILE, state += (size_t)delta->key_dim * TH_DELTA_TILE)
            delta_tile(state, delta->key + at, delta->query + at, delta->key_dim, delta->decay[gate], delta->beta[gate],
                       delta->value + at + n, delta->value_dim - n, delta->bf16, out + n);
    }
}
