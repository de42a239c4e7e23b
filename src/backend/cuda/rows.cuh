// rows.cuh - what is done to a row of activations before a product: RMS norm and quantisation, by a block of TH_ROW_THREADS. The
// kernels of norm.cu and the prologues of product.cu and experts.cu share these functions, so that bytes do not depend on who runs
// them.
#ifndef THESPIS_BACKEND_CUDA_ROWS_CUH
#define THESPIS_BACKEND_CUDA_ROWS_CUH

#include "backend/cuda/launch.cuh"

#define TH_ROW_THREADS 256
#define TH_ROW_WARPS (TH_ROW_THREADS / 32)

// Sixteen bytes that another kernel wrote: from the second level cache, which all multiprocessors share.
static __device__ __forceinline__ uint4 th_load_shared_row(const void *p)
{
    return __ldcg(static_cast<const uint4 *>(p));
}

static __device__ __forceinline__ float th_add_squares(uint32_t pair, float sum)
{
    const float low = th_bf16_low(pair), high = th_bf16_high(pair);
    return fmaf(high, high, fmaf(low, low, sum));
}

// The sum of 32 lanes, in all of them: distances 16, 8, 4, 2, 1.
static __device__ __forceinline__ float th_warp_sum(float sum)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, distance));
    return sum;
}

static __device__ __forceinline__ float th_add_eight_squares(uint4 v, float sum)
{
    return th_add_squares(v.w, th_add_squares(v.z, th_add_squares(v.y, th_add_squares(v.x, sum))));
}

// This thread's part of the sum of squares of a row of n values in shared memory.
static __device__ __forceinline__ float th_row_squares(const uint16_t *x, int n)
{
    float sum = 0.0f;
    for (int i = static_cast<int>(threadIdx.x) * 8; i < n; i += TH_ROW_THREADS * 8)
        sum = th_add_eight_squares(*reinterpret_cast<const uint4 *>(x + i), sum);
    return sum;
}

// 1 / sqrt(sum / n + eps) from the warps' sums, added in order.
static __device__ __forceinline__ float th_norm_factor(const float *warps, int n, float eps)
{
    float sum = warps[0];
#pragma unroll
    for (int i = 1; i < TH_ROW_WARPS; i++) sum = __fadd_rn(sum, warps[i]);
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, static_cast<float>(n)), eps)));
}

static __device__ __forceinline__ uint32_t th_norm_pair(uint32_t pair, float factor, float w0, float w1)
{
    return th_float_bf16_pair(__fmul_rn(__fmul_rn(th_bf16_low(pair), factor), __fadd_rn(1.0f, w0)),
                              __fmul_rn(__fmul_rn(th_bf16_high(pair), factor), __fadd_rn(1.0f, w1)));
}
// Eight weights of a norm. They come from far away, so whoever waits for its input loads the first ones before.
struct th_norm_weights {
    float4 a, b;
};
static __device__ __forceinline__ struct th_norm_weights th_load_norm(const float *w, int n)
{
    const int first = static_cast<int>(threadIdx.x) * 8;
    struct th_norm_weights loaded = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
    if (first < n) loaded = {*reinterpret_cast<const float4 *>(w + first), *reinterpret_cast<const float4 *>(w + first + 4)};
    return loaded;
}
static __device__ __forceinline__ uint4 th_norm_eight(uint4 v, float factor, const struct th_norm_weights &w)
{
    return make_uint4(th_norm_pair(v.x, factor, w.a.x, w.a.y), th_norm_pair(v.y, factor, w.a.z, w.a.w),
                      th_norm_pair(v.z, factor, w.b.x, w.b.y), th_norm_pair(v.w, factor, w.b.z, w.b.w));
}

// This thread's values of a row in shared memory become the norm's, and go to `out` unless it is NULL. first: th_load_norm.
static __device__ __forceinline__ void th_norm_in_place(uint16_t *row, int n, float factor, const float *w,
                                                        const struct th_norm_weights &first, uint16_t *out)
{
    for (int turn = 0; turn < n; turn += TH_ROW_THREADS * 8) {
        const int i = turn + static_cast<int>(threadIdx.x) * 8;
        if (i >= n) break;
        const uint4 v =
            th_norm_eight(*reinterpret_cast<const uint4 *>(row + i), factor, turn == 0 ? first : th_load_norm(w + turn, n - turn));
        *reinterpret_cast<uint4 *>(row + i) = v;
        if (out != nullptr) *reinterpret_cast<uint4 *>(out + i) = v;
    }
}

// ---- quantisation: sixteen neighbouring lanes hold the 128 values of a group, eight each ----------------------------------------

static __device__ __forceinline__ uint32_t th_size_max(uint32_t pair, uint32_t most)
{
    return max(max((pair << 16) & 0x7FFFFFFFu, pair & 0x7FFF0000u), most);
}

// max(|x|, 1e-10) of the group, as bits: NaN is above infinity is above numbers.
static __device__ __forceinline__ float th_group_most(uint4 v)
{
    uint32_t most = th_size_max(v.w, th_size_max(v.z, th_size_max(v.y, th_size_max(v.x, __float_as_uint(1e-10f)))));
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2) most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, distance));
    return __uint_as_float(most);
}

static __device__ __forceinline__ uint32_t th_e4m3_four(uint32_t x, uint32_t y, float inverse)
{
    return static_cast<uint32_t>(th_float_e4m3(__fmul_rn(th_bf16_low(x), inverse))) |
           static_cast<uint32_t>(th_float_e4m3(__fmul_rn(th_bf16_high(x), inverse))) << 8 |
           static_cast<uint32_t>(th_float_e4m3(__fmul_rn(th_bf16_low(y), inverse))) << 16 |
           static_cast<uint32_t>(th_float_e4m3(__fmul_rn(th_bf16_high(y), inverse))) << 24;
}

// Codes of this lane's eight values, and the group's scale. All 32 lanes must come here.
static __device__ __forceinline__ uint2 th_quantise_eight(uint4 v, float *scale)
{
    const float most = th_group_most(v), inverse = __fmul_rn(__fdiv_rn(1.0f, most), 448.0f); // two roundings, as the CPU does it
    *scale = __fmul_rn(most, 1.0f / 448.0f);
    return make_uint2(th_e4m3_four(v.x, v.y, inverse), th_e4m3_four(v.z, v.w, inverse));
}

#endif
