/* rounding.c - floats to bf16 and to E4M3, to nearest with ties to even. */
#include <string.h>

#include "make_checkpoint.h"

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

uint16_t th_round_bf16(float value)
{
    uint32_t bits = bits_of(value);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float th_widen_bf16(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

/* E4M3: 1 sign, 4 exponent bits with bias 7, 3 fraction bits. From 2^-6 up a code is the float's exponent and top fraction bits,
 * rebiased; below, codes are multiples of 2^-9, which adding 2^14 rounds to (a float there has steps of exactly 2^-9). */
static inline uint8_t round_one(float value)
{
    uint32_t bits = bits_of(value), sign = bits >> 24 & 0x80u;
    uint32_t size = bits & 0x7fffffffu;
    if (size > 0x43e00000u) size = 0x43e00000u; /* 448 */
    uint32_t normal = (size + 0x7ffffu + (size >> 20 & 1u)) >> 20;
    uint32_t small = bits_of(float_of(size) + 16384.0f) & 0xfu;
    uint32_t code = size < 0x3c800000u ? small : normal - (120u << 3);
    return (uint8_t)(sign | code);
}

void th_round_e4m3(const float *values, size_t count, uint8_t *codes)
{
    for (size_t i = 0; i < count; i++) codes[i] = round_one(values[i]);
}
