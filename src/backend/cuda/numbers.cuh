/* numbers.cuh - the formats of numbers and the functions of kernels. bf16 is a uint16_t, E4M3 a uint8_t; exp, log, sin, tanh, erf,
 * sigmoid and silu have the coefficients and the order of fused steps of backend/cpu/kernels/vmath.h, so that both backends round
 * alike. Operations that must not be contracted are written with the __f*_rn intrinsics. Included by launch.cuh. */
#ifndef THESPIS_BACKEND_CUDA_NUMBERS_CUH
#define THESPIS_BACKEND_CUDA_NUMBERS_CUH

#include "backend/cuda/launch.cuh"

/* ---- bf16 -------------------------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ float th_bf16_float(uint16_t bits)
{
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}
/* The lower and the upper half of a pair; the first value of a pair in memory is the lower half. */
static __device__ __forceinline__ float th_bf16_low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}
static __device__ __forceinline__ float th_bf16_high(uint32_t pair)
{
    return __uint_as_float(pair & 0xFFFF0000u);
}

/* Nearest, ties to even; NaN stays a NaN. */
static __device__ __forceinline__ uint16_t th_float_bf16(float value)
{
#if !defined(TH_CUDA_EMU) && __CUDA_ARCH__ >= 800
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;
    return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
#endif
}
static __device__ __forceinline__ uint32_t th_float_bf16_pair(float low, float high)
{
#if !defined(TH_CUDA_EMU) && __CUDA_ARCH__ >= 800
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return static_cast<uint32_t>(th_float_bf16(high)) << 16 | th_float_bf16(low);
#endif
}
static __device__ __forceinline__ float th_round_bf16(float value)
{
    return th_bf16_float(th_float_bf16(value));
}

/* ---- f16 --------------------------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ float th_f16_float(uint16_t bits)
{
#if !defined(TH_CUDA_EMU)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, exponent = bits >> 10 & 31u, mantissa = bits & 1023u;
    if (exponent == 31) return __uint_as_float(sign | 0x7F800000u | mantissa << 13);
    if (exponent > 0) return __uint_as_float(sign | (exponent + 112u) << 23 | mantissa << 13);
    const float small = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -small : small;
#endif
}

/* Nearest, ties to even; infinite from 65520 on. */
static __device__ __forceinline__ uint16_t th_float_f16(float value)
{
#if !defined(TH_CUDA_EMU)
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    const uint32_t bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u;
    uint32_t size = bits & 0x7FFFFFFFu;
    if (size > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
    if (size >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7C00u);
    if (size < 0x38800000u) /* below 2^-14 the grid is 2^-24 */
        return static_cast<uint16_t>(sign | static_cast<uint32_t>(rintf(__uint_as_float(size) * 0x1p24f)));
    size += 0xFFFu + (size >> 13 & 1u);
    return static_cast<uint16_t>(sign | ((size >> 13) - (112u << 10)));
#endif
}

/* ---- E4M3 -------------------------------------------------------------------------------------------------------------------- */

/* Exact. The two NaN codes count as 480, as in the CPU backend; checkpoints of sane quantisers hold none. */
static __device__ __forceinline__ float th_e4m3_float(uint8_t code)
{
    uint32_t exponent = (code >> 3) & 15u, mantissa = code & 7u;
    float magnitude =
        exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f : __uint_as_float(((exponent + 120u) << 23) | (mantissa << 20));
    return code & 0x80 ? -magnitude : magnitude;
}

/* Nearest, ties to even, saturated at 448; NaN gives the code 0x7F (which multiplies as NaN on a device). */
static __device__ __forceinline__ uint8_t th_float_e4m3(float value)
{
#if !defined(TH_CUDA_EMU) && __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return static_cast<uint8_t>(pair);
#else
    uint32_t bits = __float_as_uint(value), sign = bits >> 24 & 0x80u, size = bits & 0x7FFFFFFFu;
    if (size > 0x7F800000u) return 0x7F;
    if (size >= 0x43E00000u) return static_cast<uint8_t>(sign | 0x7Eu); /* 448 and more */
    if (size < 0x3C800000u)                                             /* below 2^-6 the grid is 2^-9 */
        return static_cast<uint8_t>(sign | static_cast<uint32_t>(rintf(__uint_as_float(size) * 512.0f)));
    size += 0x7FFFFu + (size >> 20 & 1u);
    return static_cast<uint8_t>(sign | ((size >> 20) - (120u << 3)));
#endif
}

/* Four codes as two pairs of bf16, exact. */
static __device__ __forceinline__ uint2 th_e4m3_bf16(uint32_t codes)
{
    uint2 pairs;
    pairs.x = th_float_bf16_pair(th_e4m3_float(codes & 255u), th_e4m3_float(codes >> 8 & 255u));
    pairs.y = th_float_bf16_pair(th_e4m3_float(codes >> 16 & 255u), th_e4m3_float(codes >> 24));
    return pairs;
}

/* ---- functions ----------------------------------------------------------------------------------------------------------------
 */

/* c0 + c1 x + ... + cn x^n by Horner's rule in fused steps. */
template <int n> static __device__ __forceinline__ float th_poly(float x, const float (&c)[n])
{
    float sum = c[n - 1];
#pragma unroll
    for (int i = n - 2; i >= 0; i--) sum = fmaf(sum, x, c[i]);
    return sum;
}

/* 2^n for whole n in -126..127 */
static __device__ __forceinline__ float th_power_of_two(float n)
{
    return __uint_as_float(static_cast<uint32_t>(static_cast<int>(n) + 127) << 23);
}

/* max and min keep a NaN in x, as v16_max and v16_min do with their second argument. */
static __device__ __forceinline__ float th_exp(float x)
{
    const float tail[] = {0x1p-1f, 0x1.55549p-3f, 0x1.5554cep-5f, 0x1.123abep-7f, 0x1.6d6a8ap-10f};
    if (x != x) return x;
    x = -104.5f > x ? -104.5f : x;
    x = 89.0f < x ? 89.0f : x;
    float n = rintf(__fmul_rn(x, 0x1.715476p+0f));
    float r = fmaf(-n, 0x1.62e43p-1f, x);
    r = fmaf(-n, -0x1.05c61p-29f, r);
    float value = __fadd_rn(1.0f, fmaf(__fmul_rn(r, r), th_poly(r, tail), r));
    float half = rintf(__fmul_rn(n, 0.5f));
    return __fmul_rn(__fmul_rn(value, th_power_of_two(half)), th_power_of_two(__fsub_rn(n, half)));
}

static __device__ __forceinline__ float th_log(float x)
{
    const float tail[] = {0x1.555548p-2f,  -0x1.000008p-2f, 0x1.99a47ap-3f, -0x1.555b9p-3f, 0x1.233acp-3f,
                          -0x1.fc3d26p-4f, 0x1.e6df82p-4f,  -0x1.dda1bp-4f, 0x1.13c372p-4f};
    if (x != x || x == __uint_as_float(0x7F800000u)) return x;
    if (x == 0.0f) return __uint_as_float(0xFF800000u);
    if (x < 0.0f) return __uint_as_float(0x7FC00000u);
    bool small = x < 0x1p-126f;
    float scaled = small ? __fmul_rn(x, 0x1p24f) : x;
    uint32_t bits = __float_as_uint(scaled) + (0x3F800000u - 0x3F3504F3u);
    float e = static_cast<float>(static_cast<int>(bits >> 23) - 127);
    e = __fsub_rn(e, small ? 24.0f : 0.0f);
    float f = __fsub_rn(__uint_as_float((bits & 0x007FFFFFu) + 0x3F3504F3u), 1.0f);
    float square = __fmul_rn(f, f);
    float rest = fmaf(__fmul_rn(square, f), th_poly(f, tail), __fmul_rn(e, -0x1.bd0106p-13f));
    rest = fmaf(square, -0.5f, rest);
    return fmaf(e, 0x1.63p-1f, __fadd_rn(f, rest));
}

static __device__ __forceinline__ float th_sigmoid(float x)
{
    float power = th_exp(-fabsf(x));
    return __fdiv_rn(x < 0.0f ? power : 1.0f, __fadd_rn(1.0f, power));
}

static __device__ __forceinline__ float th_silu(float x)
{
    return __fmul_rn(x, th_sigmoid(x));
}

/* x with the sign of s */
static __device__ __forceinline__ float th_with_sign(float x, float s)
{
    return __uint_as_float((__float_as_uint(x) & 0x7FFFFFFFu) | (__float_as_uint(s) & 0x80000000u));
}

static __device__ __forceinline__ float th_tanh(float x)
{
    const float tail[] = {-0x1.555548p-2f, 0x1.110c6ap-3f, -0x1.b90916p-5f, 0x1.583596p-6f, -0x1.954296p-8f};
    float square = __fmul_rn(x, x), size = fabsf(x);
    if (size < 0.55f) return fmaf(__fmul_rn(square, x), th_poly(square, tail), x);
    float power = th_exp(__fadd_rn(size, size));
    return th_with_sign(__fsub_rn(1.0f, __fdiv_rn(2.0f, __fadd_rn(power, 1.0f))), x);
}

static __device__ __forceinline__ float th_erf(float x)
{
    const float near_tail[] = {0x1.06eba8p-3f, -0x1.812740p-2f,  0x1.ce2d66p-4f, -0x1.b80164p-6f,
                               0x1.544dc2p-8f, -0x1.a63096p-11f, 0x1.4ff6e4p-14f};
    const float far_tail[] = {0x1.074538p-3f, 0x1.4571aep-1f,   0x1.af1942p-4f,   -0x1.7343f0p-6f,
                              0x1.7f0050p-9f, -0x1.88c84cp-15f, -0x1.82aadap-15f, 0x1.4e14e2p-18f};
    float size = fabsf(x), square = __fmul_rn(x, x);
    if (size < 0.92f) return fmaf(x, th_poly(square, near_tail), x);
    if (x != x) return x;
    float a = 4.0f < size ? 4.0f : size;
    float power = th_exp(-fmaf(a, th_poly(a, far_tail), a));
    return th_with_sign(__fsub_rn(1.0f, power), x);
}

/* sin of |x| < 2^17; beyond (no signal of a sane codec) th_sin_far of vmath.h has no twin here: the double function, rounded. */
static __device__ __forceinline__ float th_sin(float x)
{
    const float tail[] = {-0x1.555556p-3f, 0x1.111136p-7f, -0x1.a023e4p-13f, 0x1.72d496p-19f, -0x1.b70bc6p-26f};
    if (!(fabsf(x) < 0x1p17f)) return static_cast<float>(sin(static_cast<double>(x)));
    float n = rintf(__fmul_rn(x, 0x1.45f306p-2f));
    float r = fmaf(-n, 0x1.921fb6p+1f, x);
    r = fmaf(-n, -0x1.777a5cp-24f, r);
    r = fmaf(-n, -0x1.ee59dap-49f, r);
    float square = __fmul_rn(r, r);
    float value = fmaf(__fmul_rn(square, r), th_poly(square, tail), r);
    return __uint_as_float(__float_as_uint(value) ^ (static_cast<uint32_t>(static_cast<int>(n)) << 31));
}

#endif
