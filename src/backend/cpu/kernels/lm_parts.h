/* lm_parts.h - the kernels of one instruction set by name, and the two ways in which they write. */
#ifndef THESPIS_BACKEND_CPU_KERNELS_LM_PARTS_H
#define THESPIS_BACKEND_CPU_KERNELS_LM_PARTS_H

#include "backend/cpu/kernels/lm.h"
#include "backend/cpu/kernels/vmath.h"
#include "backend/cpu/simd.h"

void TH_NAME(th_lm_product)(const struct th_product *product, int begin, int end);
void TH_NAME(th_lm_norm)(const float *x, const float *w, float plus, float eps, int n, int bf16, float *y);
void TH_NAME(th_lm_add)(const float *x, const float *add, int n, int bf16, float *y);
void TH_NAME(th_lm_silu_mul)(const float *gate, const float *up, int n, int bf16, float *y);
void TH_NAME(th_lm_sigmoid_mul)(const float *x, const float *gate, int n, int bf16, int round_sigmoid, float *y);
void TH_NAME(th_lm_mix)(const float *down, const int *entries, const float *weights, int top_k, const float *shared, float open,
                        int n, int bf16, float *y);
void TH_NAME(th_lm_quantise)(const float *x, int n, float *values, float *scales);
void TH_NAME(th_lm_route)(const float *logits, int experts, int top_k, float *scratch, int *chosen, float *weights);
void TH_NAME(th_lm_attend)(const struct th_attend *attend, int bf16);
void TH_NAME(th_lm_convolve)(const float *const *inputs, const float *taps, int width, int taps_stride, int n, int bf16, float *y);
void TH_NAME(th_lm_unit)(const float *x, float scale, int n, float *y);
void TH_NAME(th_lm_delta_gates)(const float *a, const float *b, const float *a_log, const float *dt_bias, int n, int round_beta,
                                float *decay, float *beta);
void TH_NAME(th_lm_delta)(const struct th_delta *delta);
void TH_NAME(th_lm_gated_norm)(const float *x, const float *w, const float *z, float eps, int n, int bf16, float *y);
float TH_NAME(th_lm_sigmoid)(float x);

/* Nearest even bf16; infinities and NaN stay. */
static inline v16 v16_round_bf16(v16 x)
{
    v16i bits = v16_bits(x);
    v16i odd = v16i_and(v16i_shr(bits, 16), v16i_set1(1));
    v16i rounded = v16i_and(v16i_add(bits, v16i_add(odd, v16i_set1(0x7FFF))), v16i_set1((int32_t)0xFFFF0000u));
    return v16_select(v16_less(v16_abs(x), v16_set1(INFINITY)), v16_from_bits(rounded), x);
}

static inline v16 v16_round_if(v16 x, int bf16)
{
    return bf16 ? v16_round_bf16(x) : x;
}

static inline float th_round_if(float x, int bf16)
{
    return bf16 ? th_round_bf16(x) : x;
}

/* The sixteen floats from p on, of which n - i are left: zeros after the end. */
static inline v16 v16_load_upto(const float *p, int left)
{
    return left >= 16 ? v16_load(p) : v16_load_part(p, left);
}

static inline void v16_store_upto(float *p, v16 x, int left)
{
    if (left >= 16)
        v16_store(p, x);
    else
        v16_store_part(p, x, left);
}

#endif
