/* cuda_fixture.h - for tests of kernels: device memory, packed matrices, numbers that repeat. */
#ifndef THESPIS_TESTS_CUDA_FIXTURE_H
#define THESPIS_TESTS_CUDA_FIXTURE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/simd.h"
#include "backend/cuda/runtime.h"
#include "backend/cuda/weights.h"

static struct th_cuda_launch launch; /* the default stream, no early launch */

static inline void *take(size_t bytes)
{
    void *p = calloc(1, bytes > 0 ? bytes : 1);
    assert_non_null(p);
    return p;
}
static inline void *to_device(const void *from, size_t bytes)
{
    void *p;
    assert_int_equal(cudaMalloc(&p, bytes), cudaSuccess);
    if (from != NULL)
        assert_int_equal(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    else
        assert_int_equal(cudaMemset(p, 0x5A, bytes), cudaSuccess);
    return p;
}
/* A copy of device memory, to be freed. */
static inline void *from_device(const void *from, size_t bytes)
{
    void *p = take(bytes);
    assert_int_equal(cudaStreamSynchronize(launch.stream), cudaSuccess);
    assert_int_equal(cudaMemcpy(p, from, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    return p;
}
static inline void release(void *p)
{
    assert_int_equal(cudaFree(p), cudaSuccess);
}

/* Uniform in -1..1, by place. */
static inline float noise(uint32_t seed, size_t i)
{
    uint64_t h = ((uint64_t)seed << 32 | 0x9E3779B9u) + i * UINT64_C(0x9E3779B97F4A7C15);
    h = (h ^ h >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    h = (h ^ h >> 27) * UINT64_C(0x94D049BB133111EB);
    return (float)((double)(h >> 40) / 8388608.0 - 1.0);
}
static inline uint16_t bits_of(float value)
{
    uint32_t bits;
    float rounded = th_round_bf16(value);
    memcpy(&bits, &rounded, 4);
    return (uint16_t)(bits >> 16);
}
static inline uint16_t *bf16_noise(uint32_t seed, size_t n, float scale)
{
    uint16_t *x = take(n * 2);
    for (size_t i = 0; i < n; i++) x[i] = bits_of(noise(seed, i) * scale);
    return x;
}
static inline float *float_noise(uint32_t seed, size_t n, float scale)
{
    float *x = take(n * 4);
    for (size_t i = 0; i < n; i++) x[i] = noise(seed, i) * scale;
    return x;
}

/* weights.h, element by element: rows of w [rows][cols]; rows past the end are zeros. */
static inline void pack_bf16(uint16_t *tiles, const uint16_t *w, int rows, int cols)
{
    for (int row = 0; row < (rows + 15) / 16 * 16; row++)
        for (int k = 0; k < cols; k++) {
            size_t tile = (size_t)(row / 16) * (size_t)(cols / 32) + (size_t)(k / 32);
            int lane = row % 8 * 4 + k % 32 / 8, step = k % 8 / 4, pair = k % 4 / 2 * 2 + row % 16 / 8;
            tiles[tile * 512 + (size_t)(step * 256 + lane * 8 + pair * 2 + k % 2)] =
                row < rows ? w[(size_t)row * (size_t)cols + (size_t)k] : 0;
        }
}
static inline void pack_e4m3(uint8_t *tiles, const uint8_t *w, int rows, int cols)
{
    for (int row = 0; row < rows; row++)
        for (int k = 0; k < cols; k++) {
            size_t tile = (size_t)(row / 16) * (size_t)(cols / 64) + (size_t)(k / 64);
            int lane = row % 8 * 4 + k % 64 / 16, step = k % 16 / 8, four = k % 8 / 4 * 2 + row % 16 / 8;
            tiles[tile * 1024 + (size_t)(step * 512 + lane * 16 + four * 4 + k % 4)] = w[(size_t)row * (size_t)cols + (size_t)k];
        }
}
/* Row of the interleaved pair that holds row r of gate (part 0) or up (part 1). */
static inline int pair_row(int r, int part)
{
    return r / 8 * 16 + part * 8 + r % 8;
}

#endif
