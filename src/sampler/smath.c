/* smath.c - the sampler's logarithm. */
#include "sampler/smath.h"

/* x = m 2^e with m in [sqrt 1/2, sqrt 2), so that x just below 1 has e = 0 and keeps its relative accuracy. With s = (m - 1) / (m +
 * 1), ln m = 2 (s + s^3/3 + s^5/5 + ...); |s| <= 0.172, so that the term after s^21 is below 1e-17 of the first. */
float th_smath_log(float x)
{
    double d = x;
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    uint64_t offset = bits - UINT64_C(0x3fe6a09e667f3bcd); /* sqrt 1/2 */
    int64_t e = (int64_t)offset >> 52;
    bits = (offset & UINT64_C(0xfffffffffffff)) + UINT64_C(0x3fe6a09e667f3bcd);
    double m;
    memcpy(&m, &bits, sizeof m);
    double f = m - 1.0, s = f / (m + 1.0), z = s * s;
    double p = 1.0 / 21;
    for (int odd = 19; odd >= 3; odd -= 2) p = p * z + 1.0 / odd;
    double series = 2.0 * s + 2.0 * s * (z * p);
    return (float)((double)e * 0x1.62e42feep-1 + ((double)e * 0x1.a39ef35793c76p-33 + series));
}
