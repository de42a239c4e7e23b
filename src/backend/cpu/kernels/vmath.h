/* vmath.h - exp, log, sin, tanh, erf, sigmoid and silu, sixteen at a time, written with simd.h alone: the same bytes for every
 * instruction set. Errors are at most 2 ulp over the whole range (sigmoid 2.5; silu 3 above -87, below it some denormal steps);
 * bounds are tested in tests/unit/backend/test_vmath.c. Denormals are kept, NaN stays NaN, infinities give the limits (silu(-inf)
 * is NaN: -inf * 0). Coefficients: tools/oracle/fit_vmath.py. */
#ifndef THESPIS_BACKEND_CPU_KERNELS_VMATH_H
#define THESPIS_BACKEND_CPU_KERNELS_VMATH_H

#include "backend/cpu/simd.h"

/* c0 + c1 x + ... + cn x^n by Horner's rule in fused steps */
#define TH_POLY(x, coefficients) th_poly((x), (coefficients), (int)(sizeof(coefficients) / sizeof(*(coefficients))))
static inline v16 th_poly(v16 x, const float *c, int n)
{
    v16 sum = v16_set1(c[n - 1]);
    for (int i = n - 2; i >= 0; i--) sum = v16_fma(sum, x, v16_set1(c[i]));
    return sum;
}

/* 2^n for whole n in -126..127 */
static inline v16 th_power_of_two(v16 n)
{
    return v16_from_bits(v16i_shl(v16i_add(v16_to_int(n), v16i_set1(127)), 23));
}

/* e^x = 2^n e^r with |r| <= log(2)/2. The scale goes on in two halves, so that results down to the least denormal are rounded once.
 */
static inline v16 v16_exp(v16 x)
{
    static const float tail[] = {0x1p-1f, 0x1.55549p-3f, 0x1.5554cep-5f, 0x1.123abep-7f, 0x1.6d6a8ap-10f}; /* (e^r - 1 - r) / r^2 */
    x = v16_min(v16_set1(89.0f), v16_max(v16_set1(-104.5f), x)); /* this order of arguments keeps NaN */
    v16 n = v16_round(v16_mul(x, v16_set1(0x1.715476p+0f)));
    v16 r = v16_fnma(n, v16_set1(0x1.62e43p-1f), x); /* exact: the difference has few bits */
    r = v16_fnma(n, v16_set1(-0x1.05c61p-29f), r);
    v16 value = v16_add(v16_set1(1.0f), v16_fma(v16_mul(r, r), TH_POLY(r, tail), r));
    v16 half = v16_round(v16_mul(n, v16_set1(0.5f)));
    return v16_mul(v16_mul(value, th_power_of_two(half)), th_power_of_two(v16_sub(n, half)));
}

/* log x = e log 2 + log(1 + f) with 1 + f in [sqrt(1/2), sqrt(2)). 0 gives -inf, negative numbers NaN. */
static inline v16 v16_log(v16 x)
{
    static const float tail[] = {
        0x1.555548p-2f,  -0x1.000008p-2f, 0x1.99a47ap-3f, -0x1.555b9p-3f, 0x1.233acp-3f,
        -0x1.fc3d26p-4f, 0x1.e6df82p-4f,  -0x1.dda1bp-4f, 0x1.13c372p-4f}; /* (log(1+f) - f + f^2/2) / f^3 */
    v16 small = v16_less(x, v16_set1(0x1p-126f));
    v16 scaled = v16_select(small, v16_mul(x, v16_set1(0x1p24f)), x);
    v16i bits = v16i_add(v16_bits(scaled), v16i_set1(0x3F800000 - 0x3F3504F3));
    v16 e = v16_from_int(v16i_sub(v16i_shr(bits, 23), v16i_set1(127)));
    e = v16_sub(e, v16_select(small, v16_set1(24.0f), v16_zero()));
    v16 f = v16_sub(v16_from_bits(v16i_add(v16i_and(bits, v16i_set1(0x007FFFFF)), v16i_set1(0x3F3504F3))), v16_set1(1.0f));
    v16 square = v16_mul(f, f);
    v16 rest = v16_fma(v16_mul(square, f), TH_POLY(f, tail), v16_mul(e, v16_set1(-0x1.bd0106p-13f)));
    rest = v16_fma(square, v16_set1(-0.5f), rest);
    v16 value =
        v16_fma(e, v16_set1(0x1.63p-1f), v16_add(f, rest));        /* 0x1.63p-1 + -0x1.bd0106p-13 = log 2; e * 0x1.63p-1 is exact */
    value = v16_select(v16_less(x, v16_set1(INFINITY)), value, x); /* +inf and NaN are their own logarithms */
    value = v16_select(v16_less(v16_zero(), v16_abs(x)), value,
                       v16_select(v16_less(v16_abs(x), v16_set1(1.0f)), v16_set1(-INFINITY), x));
    return v16_select(v16_less(x, v16_zero()), v16_set1(NAN), value);
}

/* sin of a finite |x| >= 2^-6 * 2^23 by exact reduction: x * 2/pi modulo 4 from those 96 bits of 2/pi that matter. */
static inline double th_sin_reduced(double t, unsigned quadrant)
{
    double s = t * t;
    double sine = t + t * s * (-1.0 / 6 + s * (1.0 / 120 + s * (-1.0 / 5040 + s * (1.0 / 362880 - s * (1.0 / 39916800)))));
    double cosine =
        1.0 + s * (-1.0 / 2 + s * (1.0 / 24 + s * (-1.0 / 720 + s * (1.0 / 40320 + s * (-1.0 / 3628800 + s / 479001600)))));
    double value = quadrant & 1 ? cosine : sine;
    return quadrant & 2 ? -value : value;
}
static inline float th_sin_far(float x)
{
    static const uint32_t two_over_pi[] = {
        0,           0xA2F9836Eu, 0x4E441529u, 0xFC2757D1u, 0xF534DDC0u,
        0xDB629599u, 0x3C439041u, 0xFE5163ABu, 0xDEBBC561u}; /* after a word of zeros: its binary places in order */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    unsigned biased = bits >> 23 & 255;
    if (biased == 255) return NAN;
    uint64_t mantissa = (bits & 0x7FFFFFu) | 0x800000u;
    unsigned place = biased - 150 - 2 + 32, word = place / 32, shift = place % 32; /* places of weight 4 and more drop out */
    uint64_t window[3];
    for (unsigned i = 0; i < 3; i++) {
        uint64_t pair = (uint64_t)two_over_pi[word + i] << 32 | two_over_pi[word + i + 1];
        window[i] = (pair << shift) >> 32;
    }
    uint64_t low = mantissa * window[2], middle = mantissa * window[1] + (low >> 32), high = mantissa * window[0] + (middle >> 32);
    uint64_t turn = high << 32 | (middle & 0xFFFFFFFFu); /* quadrants in units of 2^-62 */
    unsigned quadrant = (unsigned)((turn + (UINT64_C(1) << 61)) >> 62);
    uint64_t part = turn - ((uint64_t)quadrant << 62);
    double t = part >> 63 ? -(double)(UINT64_MAX - part + 1) : (double)part;
    float value = (float)th_sin_reduced(t * 0x1.921fb54442d18p-62, quadrant);
    return bits >> 31 ? -value : value;
}

/* sin of |x| < 2^17: r = x - n pi in three fused steps, the first of them exact; a degree 11 polynomial in r. */
static inline v16 th_sin_near(v16 x)
{
    static const float tail[] = {-0x1.555556p-3f, 0x1.111136p-7f, -0x1.a023e4p-13f, 0x1.72d496p-19f, -0x1.b70bc6p-26f};
    v16 n = v16_round(v16_mul(x, v16_set1(0x1.45f306p-2f)));
    v16 r = v16_fnma(n, v16_set1(0x1.921fb6p+1f), x);
    r = v16_fnma(n, v16_set1(-0x1.777a5cp-24f), r);
    r = v16_fnma(n, v16_set1(-0x1.ee59dap-49f), r);
    v16 square = v16_mul(r, r);
    v16 value = v16_fma(v16_mul(square, r), TH_POLY(square, tail), r);
    return v16_from_bits(v16i_xor(v16_bits(value), v16i_shl(v16_to_int(n), 31))); /* odd n turns the sign */
}
static inline v16 v16_sin(v16 x)
{
    v16 near = v16_less(v16_abs(x), v16_set1(0x1p17f));
    v16 value = th_sin_near(x);
    if (v16_all(near)) return value;
    float in[16], out[16];
    v16_store(in, x);
    v16_store(out, value);
    for (int i = 0; i < 16; i++)
        if (!(fabsf(in[i]) < 0x1p17f)) out[i] = th_sin_far(in[i]);
    return v16_load(out);
}

/* x with the sign of s */
static inline v16 th_with_sign(v16 x, v16 s)
{
    return v16_from_bits(v16i_or(v16_bits(v16_abs(x)), v16i_and(v16_bits(s), v16i_set1((int32_t)0x80000000u))));
}

/* A polynomial near 0, elsewhere 1 - 2 / (e^2|x| + 1). */
static inline v16 v16_tanh(v16 x)
{
    static const float tail[] = {-0x1.555548p-2f, 0x1.110c6ap-3f, -0x1.b90916p-5f, 0x1.583596p-6f, -0x1.954296p-8f};
    v16 square = v16_mul(x, x), size = v16_abs(x);
    v16 near = v16_fma(v16_mul(square, x), TH_POLY(square, tail), x);
    v16 power = v16_exp(v16_add(size, size));
    v16 far = v16_sub(v16_set1(1.0f), v16_div(v16_set1(2.0f), v16_add(power, v16_set1(1.0f))));
    return v16_select(v16_less(size, v16_set1(0.55f)), near, th_with_sign(far, x));
}

/* A polynomial near 0, elsewhere 1 - e^-p(|x|), p a polynomial for -log(erfc). */
static inline v16 v16_erf(v16 x)
{
    static const float near_tail[] = {0x1.06eba8p-3f, -0x1.812740p-2f,  0x1.ce2d66p-4f, -0x1.b80164p-6f,
                                      0x1.544dc2p-8f, -0x1.a63096p-11f, 0x1.4ff6e4p-14f};
    static const float far_tail[] = {0x1.074538p-3f, 0x1.4571aep-1f,   0x1.af1942p-4f,   -0x1.7343f0p-6f,
                                     0x1.7f0050p-9f, -0x1.88c84cp-15f, -0x1.82aadap-15f, 0x1.4e14e2p-18f};
    v16 size = v16_abs(x), square = v16_mul(x, x);
    v16 near = v16_fma(x, TH_POLY(square, near_tail), x);
    v16 a = v16_min(v16_set1(4.0f), size); /* erf(4) rounds to 1; keeps NaN */
    v16 power = v16_exp(v16_sub(v16_zero(), v16_fma(a, TH_POLY(a, far_tail), a)));
    v16 far = th_with_sign(v16_sub(v16_set1(1.0f), power), x);
    return v16_select(v16_less(size, v16_set1(0.92f)), near, far);
}

/* 1 / (1 + e^-x); e^x / (1 + e^x) for negative x, so that it decays down to denormals. */
static inline v16 v16_sigmoid(v16 x)
{
    v16 power = v16_exp(v16_sub(v16_zero(), v16_abs(x)));
    v16 value = v16_div(v16_select(v16_less(x, v16_zero()), power, v16_set1(1.0f)), v16_add(v16_set1(1.0f), power));
    return value;
}

static inline v16 v16_silu(v16 x)
{
    return v16_mul(x, v16_sigmoid(x));
}

/* The same functions of one float: lane 0, so that a value does not depend on which form computed it. */
#define TH_ONE_LANE(name)                                                                                                          \
    static inline float th_##name##1(float x)                                                                                      \
    {                                                                                                                              \
        float lanes[16];                                                                                                           \
        v16_store(lanes, v16_##name(v16_set1(x)));                                                                                 \
        return lanes[0];                                                                                                           \
    }
TH_ONE_LANE(exp)
TH_ONE_LANE(log)
TH_ONE_LANE(sin)
TH_ONE_LANE(tanh)
TH_ONE_LANE(erf)
TH_ONE_LANE(sigmoid)
TH_ONE_LANE(silu)

#endif
