/* random.c - a counter-based generator: value i of a stream depends on the stream's key and i alone.
 *
 * Only integer operations, additions, multiplications and a few roundings to float: every compiler and machine gives the same bits.
 */
#include "make_checkpoint.h"

#define STEP 0xa0761d6478bd642full
#define FOLD 0xe7037ed1a0b428dbull

static inline uint64_t mix(uint64_t key, uint64_t counter)
{
    uint64_t x = key + counter * STEP;
    unsigned __int128 product = (unsigned __int128)x * (x ^ FOLD);
    return (uint64_t)(product >> 64) ^ (uint64_t)product;
}

uint64_t th_random_key(uint64_t seed, const char *name)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    for (const unsigned char *c = (const unsigned char *)name; *c != 0; c++) hash = (hash ^ *c) * 0x100000001b3ull;
    return mix(mix(hash, seed), hash ^ 0x9e3779b97f4a7c15ull);
}

/* The sum of four 16-bit integers is nearly normal; an odd polynomial (least squares against the normal quantiles, weighted by
 * density) bends its tails to where a normal's are. Deviation 0.99995, kurtosis 3.0006, largest value 5.16. */
static inline float bend(int32_t sum)
{
    float x = (float)sum * 2.6429002e-05f; /* sqrt(3) / 65536 */
    float s = x * x;
    return x * (0.95498339f + s * (0.02280802f + s * (-0.004086598f + s * 0.000491257f)));
}

void th_random_normals(uint64_t key, uint64_t first, size_t count, float *out)
{
    int32_t sums[256];
    for (size_t done = 0; done < count; done += 256) {
        size_t n = count - done < 256 ? count - done : 256;
        for (size_t i = 0; i < n; i++) {
            uint64_t bits = mix(key, first + done + i);
            uint64_t pairs = (bits & 0x0000ffff0000ffffull) + (bits >> 16 & 0x0000ffff0000ffffull);
            sums[i] = (int32_t)((pairs & 0xffffffffu) + (pairs >> 32)) - 131070;
        }
        for (size_t i = 0; i < n; i++) out[done + i] = bend(sums[i]);
    }
}

void th_random_uniforms(uint64_t key, uint64_t first, size_t count, float *out)
{
    for (size_t i = 0; i < count; i++) out[i] = (float)(mix(key, first + i) >> 40) * (1.0f / 16777216.0f);
}
