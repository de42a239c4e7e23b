/* noise.c - counted random numbers: a Philox block for each (seed, step, row, stream, candidate), so that no draw depends on
 * another. */
#include "sampler/sampler.h"
#include "sampler/smath.h"

#define PHILOX_ROUNDS 10

void th_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t a = UINT64_C(0xD2511F53) * c0, b = UINT64_C(0xCD9E8D57) * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += UINT32_C(0x9E3779B9);
        k1 += UINT32_C(0xBB67AE85);
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

float th_noise(uint64_t seed, uint64_t step, uint32_t row, uint32_t stream, uint32_t index)
{
    uint32_t counter[4] = {index, row, stream, (uint32_t)step};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32) ^ (uint32_t)(step >> 32)};
    uint32_t block[4];
    th_philox(counter, key, block);
    /* 23 bits and a half: exact in float, and neither 0 nor 1 can come out, so that the noise is finite and above 0. */
    float uniform = ((float)(block[0] >> 9) + 0.5f) * 0x1p-23f;
    return -th_smath_log(uniform);
}
