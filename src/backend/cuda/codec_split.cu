// codec_split.cu - the codec's product on tensor cores, as exact as float32. See codec_kernels.h and codec_conv.cuh.
//
// A weight and an input are each the sum of two halves of 11 bits, high and low; of the four products of their parts the least, low
// times low, is left out: it is 2^-22 of the whole. Matrix instructions cut off what does not fit their sums, so each sum of 16
// inputs begins at zero, its small products first, and is added to the total by an ordinary float32 addition.
//
// A group of four inputs lies as 16 bytes (high pair, high pair, low pair, low pair), so a thread's part of both operands is one
// load: it holds inputs 4q..4q+3 where the instruction's order has 2q, 2q+1, 2q+8, 2q+9, in weights and rows alike.
#include "backend/cuda/codec_conv.cuh"
#include "backend/cuda/kernels.h"

namespace
{

using codec::STAGES;
using codec::STEP;

// Four warps, two by two: MT tiles of 16 outputs and NT of 8 rows each. Rows need no room between them: two make 128 bytes.
template <int MT, int NT> using shape = codec::block_shape<32 * MT, 16 * NT, 128, 1, STEP, TH_CUDA_CODEC_CONTEXT>;

// sums += 16 inputs of one tap. x: this thread's part of its first row, w: of its first 16 outputs.
template <int MT, int NT> static __device__ __forceinline__ void multiply(float (&sums)[MT][NT][4], const uint4 *x, const uint4 *w)
{
    uint4 high[MT], low[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) {
        high[m] = w[m * 64];
        low[m] = w[m * 64 + 32];
    }
#pragma unroll
    for (int n = 0; n < NT; n += 2) {
        const uint4 in[2] = {x[n * 8 * (STEP / 4)], x[(n + 1) * 8 * (STEP / 4)]};
        float part[MT][2][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int r = 0; r < 4; r++) part[m][i][r] = 0.0f;
                th_mma_f16(part[m][i], low[m], in[i].x, in[i].y);
            }
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 2; i++) th_mma_f16(part[m][i], high[m], in[i].z, in[i].w);
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 2; i++) th_mma_f16(part[m][i], high[m], in[i].x, in[i].y);
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int r = 0; r < 4; r++) sums[m][n + i][r] = __fadd_rn(sums[m][n + i][r], part[m][i][r]);
    }
}

template <int MT, int NT> __global__ void __launch_bounds__(128, 2) split_rows(th_cuda_conv_job job)
{
    using Z = shape<MT, NT>;
    TH_DYNAMIC_SHARED(float, shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int first_tile = warp / 2 * MT, first_row = warp % 2 * (8 * NT); // of this warp
    const int taps = job.conv.taps, context = (taps - 1) * job.conv.step, steps = job.conv.inputs / STEP * taps;
    const codec::stage s = codec::make_stage<Z>(job, shared, 0, context);
    th_dependency_release();
    th_dependency_wait();
    float sums[MT][NT][4];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int r = 0; r < 4; r++) sums[m][n][r] = 0.0f;
    codec::fill<Z>(s, job, 0, steps, 0);
    codec::fill<Z>(s, job, 0, steps, 1);
    for (int i = 0; i < steps; i++) {
        th_copy_wait<1>();
        __syncthreads(); // round i is here, and round i - 1 was read by all: its place is free
        codec::fill<Z>(s, job, 0, steps, i + 2);
        const int chunk = i / taps, tap = i - chunk * taps;
        const float *x = s.rows + chunk % STAGES * Z::rows_floats(context) + (tap * job.conv.step + first_row + g) * STEP + 4 * q;
        const float *w = s.weights + i % STAGES * (STEP * Z::BM) + first_tile * (16 * STEP) + 4 * lane;
        multiply<MT, NT>(sums, reinterpret_cast<const uint4 *>(x), reinterpret_cast<const uint4 *>(w));
    }
    th_copy_wait<0>();
    __syncthreads();
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int r = 0; r < 4; r++)
                shared[(first_row + 8 * n + 2 * q + r % 2) * Z::OUT_PITCH + (first_tile + m) * 16 + g + r / 2 * 8] = sums[m][n][r];
    __syncthreads();
    codec::store_tile<Z>(job, shared);
    codec::keep_context<Z>(job, context);
}

template <int MT> static cudaError_t launch_tall(const struct th_cuda_launch *launch, const th_cuda_conv_job &job, int processors)
{
    const int columns = codec::columns_for(job, 32 * MT, processors);
    if (columns == 32) return codec::launch_conv<shape<MT, 2>>(launch, split_rows<MT, 2>, job);
    if (columns == 64) return codec::launch_conv<shape<MT, 4>>(launch, split_rows<MT, 4>, job);
    return codec::launch_conv<shape<MT, 8>>(launch, split_rows<MT, 8>, job);
}

} // namespace

cudaError_t th_cuda_codec_conv_split(const struct th_cuda_launch *launch, const struct th_cuda_conv_job *job, int processors)
{
    const struct th_cuda_conv *conv = &job->conv;
    if (job->rows < 1 || conv->inputs % STEP != 0 || conv->outputs % 16 != 0 || conv->split != 1) return cudaErrorInvalidValue;
    switch (conv->tile) {
    case 32: return launch_tall<1>(launch, *job, processors);
    case 64: return launch_tall<2>(launch, *job, processors);
    case 96: return launch_tall<3>(launch, *job, processors);
    default: return cudaErrorInvalidValue;
    }
}

#define REGISTERED(MT, NT) TH_CUDA_KERNEL(128, (shape<MT, NT>::bytes(TH_CUDA_CODEC_CONTEXT)), split_rows<MT, NT>)
TH_CUDA_KERNELS(codec_split) = {REGISTERED(1, 2), REGISTERED(1, 4), REGISTERED(1, 8), REGISTERED(2, 2), REGISTERED(2, 4),
                                REGISTERED(2, 8), REGISTERED(3, 2), REGISTERED(3, 4), REGISTERED(3, 8), TH_CUDA_KERNELS_END};
