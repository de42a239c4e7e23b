/* simd.h - sixteen floats at a time: the one vocabulary in which every CPU kernel is written.
 *
 * A kernel source is compiled once for each instruction set (TH_ISA_avx2, TH_ISA_portable); every operation here is defined lane by
 * lane in IEEE single precision, so all of them give the same bytes. Reductions go through one fixed tree (v16_sum). */
#ifndef THESPIS_BACKEND_CPU_SIMD_H
#define THESPIS_BACKEND_CPU_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* TH_NAME(th_dot) is th_dot_avx2 or th_dot_portable. */
#define TH_PASTE_(a, b) a##_##b
#define TH_PASTE(a, b) TH_PASTE_(a, b)
#define TH_NAME(name) TH_PASTE(name, TH_ISA)

static inline float th_bf16_to_float(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

/* Round to nearest even; NaN stays NaN. */
static inline float th_round_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return value;
    bits = (bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF0000u;
    memcpy(&value, &bits, 4);
    return value;
}

/* clang-format off */
#ifdef TH_ISA_avx2
#include <immintrin.h>

typedef struct {
    __m256 a, b; /* lanes 0..7, 8..15 */
} v16;
typedef struct {
    __m256i a, b;
} v16i;

#define V16_EACH(expression_a, expression_b) ((v16){(expression_a), (expression_b)})

static inline v16 v16_set1(float x) { __m256 r = _mm256_set1_ps(x); return V16_EACH(r, r); }
static inline v16 v16_load(const float *p) { return V16_EACH(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
static inline void v16_store(float *p, v16 x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
static inline v16 v16_add(v16 x, v16 y) { return V16_EACH(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)); }
static inline v16 v16_sub(v16 x, v16 y) { return V16_EACH(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)); }
static inline v16 v16_mul(v16 x, v16 y) { return V16_EACH(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)); }
static inline v16 v16_div(v16 x, v16 y) { return V16_EACH(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)); }
static inline v16 v16_sqrt(v16 x) { return V16_EACH(_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)); }
/* x * y + z with one rounding */
static inline v16 v16_fma(v16 x, v16 y, v16 z) { return V16_EACH(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)); }
/* z - x * y with one rounding */
static inline v16 v16_fnma(v16 x, v16 y, v16 z) { return V16_EACH(_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)); }
/* x > y ? x : y, y when either is NaN */
static inline v16 v16_max(v16 x, v16 y) { return V16_EACH(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)); }
static inline v16 v16_min(v16 x, v16 y) { return V16_EACH(_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)); }
static inline v16 v16_abs(v16 x) { __m256 m = _mm256_set1_ps(-0.0f); return V16_EACH(_mm256_andnot_ps(m, x.a), _mm256_andnot_ps(m, x.b)); }
/* all bits set where x < y */
static inline v16 v16_less(v16 x, v16 y) { return V16_EACH(_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)); }
/* mask ? x : y */
static inline v16 v16_select(v16 mask, v16 x, v16 y) { return V16_EACH(_mm256_blendv_ps(y.a, x.a, mask.a), _mm256_blendv_ps(y.b, x.b, mask.b)); }
/* 1 when the mask is set in every lane */
static inline int v16_all(v16 mask) { return _mm256_movemask_ps(_mm256_and_ps(mask.a, mask.b)) == 255; }
/* nearest even integer, as a float */
static inline v16 v16_round(v16 x) { return V16_EACH(_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8)); }
static inline v16i v16_to_int(v16 x) { return (v16i){_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
static inline v16 v16_from_int(v16i x) { return V16_EACH(_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)); }
static inline v16i v16_bits(v16 x) { return (v16i){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
static inline v16 v16_from_bits(v16i x) { return V16_EACH(_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)); }
static inline v16i v16i_set1(int32_t x) { __m256i r = _mm256_set1_epi32(x); return (v16i){r, r}; }
static inline v16i v16i_add(v16i x, v16i y) { return (v16i){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
static inline v16i v16i_sub(v16i x, v16i y) { return (v16i){_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
static inline v16i v16i_and(v16i x, v16i y) { return (v16i){_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
static inline v16i v16i_or(v16i x, v16i y) { return (v16i){_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
static inline v16i v16i_xor(v16i x, v16i y) { return (v16i){_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
#define v16i_shl(x, n) ((v16i){_mm256_slli_epi32((x).a, (n)), _mm256_slli_epi32((x).b, (n))})
#define v16i_shr(x, n) ((v16i){_mm256_srli_epi32((x).a, (n)), _mm256_srli_epi32((x).b, (n))}) /* logical */
static inline v16 v16_load_bf16(const uint16_t *p)
{
    __m256i raw = _mm256_loadu_si256((const __m256i *)p);
    __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(raw)), high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(raw, 1));
    return V16_EACH(_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16)));
}
/* E4M3 values times 2^-8, exact: the code's bits are those of a half float with another bias. The two NaN codes count as 480. */
static inline v16 v16_load_e4m3_scaled(const uint8_t *p)
{
    __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
    __m256i half = _mm256_or_si256(sign, _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x7F)), 7));
    return V16_EACH(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)));
}
/* ((l0+l8)+(l4+l12)) + ((l2+l10)+(l6+l14)) for even lanes, likewise odd ones, then even + odd */
static inline float v16_sum(v16 x)
{
    __m256 eight = _mm256_add_ps(x.a, x.b);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
static inline float v16_maximum(v16 x)
{
    __m256 eight = _mm256_max_ps(x.a, x.b);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

#else /* portable */

typedef struct {
    float v[16];
} v16;
typedef struct {
    uint32_t v[16];
} v16i;

#define V16_MAP(type, expression)                                                                                                  \
    type r;                                                                                                                        \
    for (int i = 0; i < 16; i++) r.v[i] = (expression);                                                                            \
    return r

static inline uint32_t th_float_bits(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
static inline float th_bits_float(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }

static inline v16 v16_set1(float x) { V16_MAP(v16, x); }
static inline v16 v16_load(const float *p) { V16_MAP(v16, p[i]); }
static inline void v16_store(float *p, v16 x) { for (int i = 0; i < 16; i++) p[i] = x.v[i]; }
static inline v16 v16_add(v16 x, v16 y) { V16_MAP(v16, x.v[i] + y.v[i]); }
static inline v16 v16_sub(v16 x, v16 y) { V16_MAP(v16, x.v[i] - y.v[i]); }
static inline v16 v16_mul(v16 x, v16 y) { V16_MAP(v16, x.v[i] * y.v[i]); }
static inline v16 v16_div(v16 x, v16 y) { V16_MAP(v16, x.v[i] / y.v[i]); }
static inline v16 v16_sqrt(v16 x) { V16_MAP(v16, sqrtf(x.v[i])); }
static inline v16 v16_fma(v16 x, v16 y, v16 z) { V16_MAP(v16, fmaf(x.v[i], y.v[i], z.v[i])); }
static inline v16 v16_fnma(v16 x, v16 y, v16 z) { V16_MAP(v16, fmaf(-x.v[i], y.v[i], z.v[i])); }
static inline v16 v16_max(v16 x, v16 y) { V16_MAP(v16, x.v[i] > y.v[i] ? x.v[i] : y.v[i]); }
static inline v16 v16_min(v16 x, v16 y) { V16_MAP(v16, x.v[i] < y.v[i] ? x.v[i] : y.v[i]); }
static inline v16 v16_abs(v16 x) { V16_MAP(v16, fabsf(x.v[i])); }
static inline v16 v16_less(v16 x, v16 y) { V16_MAP(v16, th_bits_float(x.v[i] < y.v[i] ? 0xFFFFFFFFu : 0u)); }
static inline v16 v16_select(v16 mask, v16 x, v16 y) { V16_MAP(v16, th_float_bits(mask.v[i]) >> 31 ? x.v[i] : y.v[i]); }
static inline int v16_all(v16 mask)
{
    uint32_t all = 0xFFFFFFFFu;
    for (int i = 0; i < 16; i++) all &= th_float_bits(mask.v[i]);
    return (int)(all >> 31);
}
static inline v16 v16_round(v16 x) { V16_MAP(v16, rintf(x.v[i])); }
static inline v16i v16_to_int(v16 x) { V16_MAP(v16i, fabsf(x.v[i]) < 2147483648.0f ? (uint32_t)(int32_t)rintf(x.v[i]) : 0x80000000u); }
static inline v16 v16_from_int(v16i x) { V16_MAP(v16, (float)(int32_t)x.v[i]); }
static inline v16i v16_bits(v16 x) { V16_MAP(v16i, th_float_bits(x.v[i])); }
static inline v16 v16_from_bits(v16i x) { V16_MAP(v16, th_bits_float(x.v[i])); }
static inline v16i v16i_set1(int32_t x) { V16_MAP(v16i, (uint32_t)x); }
static inline v16i v16i_add(v16i x, v16i y) { V16_MAP(v16i, x.v[i] + y.v[i]); }
static inline v16i v16i_sub(v16i x, v16i y) { V16_MAP(v16i, x.v[i] - y.v[i]); }
static inline v16i v16i_and(v16i x, v16i y) { V16_MAP(v16i, x.v[i] & y.v[i]); }
static inline v16i v16i_or(v16i x, v16i y) { V16_MAP(v16i, x.v[i] | y.v[i]); }
static inline v16i v16i_xor(v16i x, v16i y) { V16_MAP(v16i, x.v[i] ^ y.v[i]); }
static inline v16i v16i_shl(v16i x, int n) { V16_MAP(v16i, x.v[i] << n); }
static inline v16i v16i_shr(v16i x, int n) { V16_MAP(v16i, x.v[i] >> n); }
static inline v16 v16_load_bf16(const uint16_t *p) { V16_MAP(v16, th_bf16_to_float(p[i])); }
static inline float th_e4m3_scaled(uint8_t code)
{
    uint32_t exponent = (code >> 3) & 15u, mantissa = code & 7u;
    float magnitude = exponent == 0 ? (float)mantissa * 0x1p-17f /* 2^-9 * 2^-8 */
                                    : th_bits_float(((exponent + 112u) << 23) | (mantissa << 20)); /* bias 7, times 2^-8 */
    return code & 0x80 ? -magnitude : magnitude;
}
static inline v16 v16_load_e4m3_scaled(const uint8_t *p) { V16_MAP(v16, th_e4m3_scaled(p[i])); }
static inline float v16_sum(v16 x)
{
    float e[8], f[4];
    for (int i = 0; i < 8; i++) e[i] = x.v[i] + x.v[i + 8];
    for (int i = 0; i < 4; i++) f[i] = e[i] + e[i + 4];
    return (f[0] + f[2]) + (f[1] + f[3]);
}
static inline float v16_maximum(v16 x)
{
    float m = x.v[0];
    for (int i = 1; i < 16; i++) m = m > x.v[i] ? m : x.v[i];
    return m;
}
#endif

/* clang-format on */

static inline v16 v16_zero(void)
{
    return v16_set1(0.0f);
}
/* n lanes (0..16) from p, zeros after them: a short end of a row counts as padded with zeros. */
static inline v16 v16_load_part(const float *p, int n)
{
    float t[16] = {0};
    for (int i = 0; i < n; i++) t[i] = p[i];
    return v16_load(t);
}
static inline void v16_store_part(float *p, v16 x, int n)
{
    float t[16];
    v16_store(t, x);
    for (int i = 0; i < n; i++) p[i] = t[i];
}
static inline v16 v16_load_bf16_part(const uint16_t *p, int n)
{
    uint16_t t[16] = {0};
    for (int i = 0; i < n; i++) t[i] = p[i];
    return v16_load_bf16(t);
}
static inline v16 v16_load_e4m3_scaled_part(const uint8_t *p, int n)
{
    uint8_t t[16] = {0};
    for (int i = 0; i < n; i++) t[i] = p[i];
    return v16_load_e4m3_scaled(t);
}

#endif
