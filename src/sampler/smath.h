/* smath.h - exp and log of the sampler. Plain double operations in one order, rounded to float once, so that every machine and
 * every compiler that keeps IEEE rules gives the same bytes; the C library's functions differ from one machine to the next. */
#ifndef THESPIS_SAMPLER_SMATH_H
#define THESPIS_SAMPLER_SMATH_H

#include <stdint.h>
#include <string.h>

/* Below this exp would be a subnormal float. Such weights count as 0: whether a thread flushes subnormals then cannot show, and
 * beside the best candidate's weight of 1 they decide nothing. */
#define TH_SMATH_EXP_LOWEST (-87.33654022216797f)

/* e^x for x <= 0, within 1e-15 before the one rounding to float. Inline and without branches, so that loops over it vectorise.
 * x = k ln 2 + r with |r| <= ln 2 / 2; the series of e^r to r^12 leaves 2e-16. */
static inline float th_smath_exp(float x)
{
    const double shift = 0x1.8p52; /* adding it rounds to an integer, which then sits in the low bits of the sum */
    float clamped = x < TH_SMATH_EXP_LOWEST ? TH_SMATH_EXP_LOWEST : x;
    double t = (double)clamped * 0x1.71547652b82fep+0 + shift;
    double k = t - shift;
    double r = ((double)clamped - k * 0x1.62e42feep-1) - k * 0x1.a39ef35793c76p-33;
    double p = 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    uint64_t bits;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits + 1023) << 52; /* 2^k */
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    float result = (float)(p * scale);
    return x < TH_SMATH_EXP_LOWEST ? 0.0f : result;
}

/* ln x for a normal float x > 0, rounded to float once. */
float th_smath_log(float x);

#endif
