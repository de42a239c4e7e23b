// codec_conv.cu - the codec's product in plain float32. See codec_kernels.h and codec_conv.cuh. A thread keeps TM outputs of TN
// rows in registers; of a row it reads four inputs at a time.
#include "backend/cuda/codec_conv.cuh"
#include "backend/cuda/kernels.h"

namespace
{

using codec::STAGES;
using codec::STEP;

// Rows lie five times 16 bytes apart, so that eight of them lie in different banks.
template <int TM, int TN, int TX, int S>
using shape = codec::block_shape<8 * TM, TX * TN, 8 * TX, S, STEP + 4, (S > 1 ? 8 : TH_CUDA_CODEC_CONTEXT)>;

static __device__ __forceinline__ float element(const float4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// sums += 16 inputs of one tap. x: this thread's first row, w: its first output.
template <int TM, int TN, int TX>
static __device__ __forceinline__ void multiply(float (&sums)[TN][TM], const float *x, const float *w)
{
#pragma unroll
    for (int four = 0; four < STEP / 4; four++) {
        float4 in[TN];
#pragma unroll
        for (int i = 0; i < TN; i++) in[i] = *reinterpret_cast<const float4 *>(x + i * (TX * (STEP + 4)) + 4 * four);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float4 weight[TM / 4];
#pragma unroll
            for (int j = 0; j < TM / 4; j++) weight[j] = *reinterpret_cast<const float4 *>(w + (4 * four + e) * (8 * TM) + 4 * j);
#pragma unroll
            for (int i = 0; i < TN; i++)
#pragma unroll
                for (int o = 0; o < TM; o++) sums[i][o] = fmaf(element(weight[o / 4], o % 4), element(in[i], e), sums[i][o]);
        }
    }
}

template <int TM, int TN, int TX, int S>
__global__ void __launch_bounds__(8 * TX * S, TX == 16 ? 3 : 2) conv_rows(th_cuda_conv_job job)
{
    using Z = shape<TM, TN, TX, S>;
    TH_DYNAMIC_SHARED(float, shared);
    const int group = threadIdx.x / Z::GROUP, tx = threadIdx.x % TX, ty = threadIdx.x % Z::GROUP / TX;
    const int taps = job.conv.taps, context = (taps - 1) * job.conv.step, steps = job.conv.inputs / STEP * taps;
    const int begin = static_cast<int>(static_cast<int64_t>(steps) * group / S);
    const int count = static_cast<int>(static_cast<int64_t>(steps) * (group + 1) / S) - begin;
    const int rounds = (steps + S - 1) / S;
    const codec::stage s = codec::make_stage<Z>(job, shared, group, context);
    th_dependency_release();
    th_dependency_wait();
    float sums[TN][TM];
#pragma unroll
    for (int i = 0; i < TN; i++)
#pragma unroll
        for (int o = 0; o < TM; o++) sums[i][o] = 0.0f;
    codec::fill<Z>(s, job, begin, count, 0);
    codec::fill<Z>(s, job, begin, count, 1);
    for (int i = 0; i < rounds; i++) {
        th_copy_wait<1>();
        __syncthreads(); // round i is here, and round i - 1 was read by all: its place is free
        codec::fill<Z>(s, job, begin, count, i + 2);
        if (i < count) {
            const int step = begin + i, chunk = step / taps, tap = step - chunk * taps;
            const float *x = s.rows + chunk % STAGES * Z::rows_floats(context) + (tap * job.conv.step + tx) * Z::PITCH;
            multiply<TM, TN, TX>(sums, x, s.weights + i % STAGES * (STEP * Z::BM) + ty * TM);
        }
    }
    th_copy_wait<0>();
    __syncthreads();
    float *mine = shared + group * (Z::BN * Z::OUT_PITCH);
#pragma unroll
    for (int i = 0; i < TN; i++)
#pragma unroll
        for (int j = 0; j < TM / 4; j++)
            *reinterpret_cast<float4 *>(mine + (tx + i * TX) * Z::OUT_PITCH + ty * TM + 4 * j) =
                make_float4(sums[i][4 * j], sums[i][4 * j + 1], sums[i][4 * j + 2], sums[i][4 * j + 3]);
    __syncthreads();
    codec::store_tile<Z>(job, shared);
    codec::keep_context<Z>(job, context);
}

template <int TM, int TN, int TX, int S>
static cudaError_t launch_shape(const struct th_cuda_launch *launch, const th_cuda_conv_job &job)
{
    return codec::launch_conv<shape<TM, TN, TX, S>>(launch, conv_rows<TM, TN, TX, S>, job);
}

// Few rows in many small blocks, many rows in large ones.
template <int TM> static cudaError_t launch_tall(const struct th_cuda_launch *launch, const th_cuda_conv_job &job, int processors)
{
    const int columns = codec::columns_for(job, 8 * TM, processors);
    if (columns == 32) return launch_shape<TM, 2, 16, 1>(launch, job);
    if (columns == 64) return launch_shape<TM, 4, 16, 1>(launch, job);
    return launch_shape<TM, 8, 16, 1>(launch, job);
}

} // namespace

cudaError_t th_cuda_codec_conv(const struct th_cuda_launch *launch, const struct th_cuda_conv_job *job, int processors)
{
    const struct th_cuda_conv *conv = &job->conv;
    if (conv->scale != nullptr) return th_cuda_codec_conv_split(launch, job, processors);
    if (job->rows < 1 || conv->inputs % STEP != 0 || conv->outputs % 16 != 0) return cudaErrorInvalidValue;
    if (conv->split == TH_CUDA_CODEC_SPLIT && conv->tile == 32) {
        if (job->rows <= 8) return launch_shape<4, 1, 8, TH_CUDA_CODEC_SPLIT>(launch, *job);
        if (job->rows <= 32) return launch_shape<4, 4, 8, TH_CUDA_CODEC_SPLIT>(launch, *job);
        return launch_shape<4, 8, 8, TH_CUDA_CODEC_SPLIT>(launch, *job);
    }
    if (conv->split != 1) return cudaErrorInvalidValue;
    switch (conv->tile) {
    case 32: return launch_tall<4>(launch, *job, processors);
    case 64: return launch_tall<8>(launch, *job, processors);
    case 96: return launch_tall<12>(launch, *job, processors);
    default: return cudaErrorInvalidValue;
    }
}

#define REGISTERED(TM, TN, TX, S)                                                                                                  \
    TH_CUDA_KERNEL((shape<TM, TN, TX, S>::THREADS), (shape<TM, TN, TX, S>::bytes(shape<TM, TN, TX, S>::MOST_CONTEXT)),             \
                   conv_rows<TM, TN, TX, S>)
TH_CUDA_KERNELS(codec_conv) = {
    REGISTERED(4, 1, 8, 4),   REGISTERED(4, 4, 8, 4),   REGISTERED(4, 8, 8, 4),  REGISTERED(4, 2, 16, 1), REGISTERED(4, 4, 16, 1),
    REGISTERED(4, 8, 16, 1),  REGISTERED(8, 2, 16, 1),  REGISTERED(8, 4, 16, 1), REGISTERED(8, 8, 16, 1), REGISTERED(12, 2, 16, 1),
    REGISTERED(12, 4, 16, 1), REGISTERED(12, 8, 16, 1), TH_CUDA_KERNELS_END};
