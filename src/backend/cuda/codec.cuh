// codec.cuh - what the codec's kernel files share.
#ifndef THESPIS_BACKEND_CUDA_CODEC_CUH
#define THESPIS_BACKEND_CUDA_CODEC_CUH

#include "backend/cuda/launch.cuh"

namespace codec
{

// x + sin(alpha x)^2 / (alpha + 1e-9)
static __device__ __forceinline__ float snake(float x, float alpha, float inverse)
{
    const float s = th_sin(__fmul_rn(alpha, x));
    return fmaf(inverse, __fmul_rn(s, s), x);
}

// Four values as their high halves, two in a word, and what is missing of them, rounded once more. Halves end at 65504: what is
// larger is taken for that.
static __device__ __forceinline__ uint4 split(float4 x)
{
    const float in[4] = {x.x, x.y, x.z, x.w};
    uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float v = fabsf(in[i]) > 65504.0f ? th_with_sign(65504.0f, in[i]) : in[i]; // a NaN stays one
        high[i] = th_float_f16(v);
        low[i] = th_float_f16(__fsub_rn(v, th_f16_float(static_cast<uint16_t>(high[i]))));
    }
    return make_uint4(high[0] | high[1] << 16, high[2] | high[3] << 16, low[0] | low[1] << 16, low[2] | low[3] << 16);
}

// Row `row` of the rows before (row < 0) and those of this window; `context` rows are there before.
static __device__ __forceinline__ const float *row_at(const float *in, const float *past, int row, int context, int width)
{
    return row < 0 ? past + static_cast<size_t>(row + context) * width : in + static_cast<size_t>(row) * width;
}

// The last `context` rows, older ones included, to `kept`. All threads of all blocks do a part: thread `index` of `threads`.
static __device__ __forceinline__ void keep_rows(const float *in, const float *past, float *kept, int rows, int context, int width,
                                                 int index, int threads)
{
    for (int i = index; i < context * width; i += threads) {
        const int row = i / width;
        kept[i] = row_at(in, past, rows - context + row, context, width)[i - row * width];
    }
}

// The sum over a block of 32 * warps threads: a tree in each warp, then the warps in order. `scratch`: shared, [warps].
template <int warps> static __device__ __forceinline__ float block_sum(float value, float *scratch)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = scratch[0];
#pragma unroll
    for (int i = 1; i < warps; i++) sum += scratch[i];
    return sum;
}

} // namespace codec

#endif
