// codec_conv.cu - the codec's one product: a layer over rows that may overlap, in plain float32. See codec_kernels.h.
//
// A block makes BM outputs of BN rows. For each 16 inputs it holds the rows that all taps read (three such stretches in turn,
// filled ahead by asynchronous copies) and the weights of one tap (three in turn); a tap is the same stretch read some rows
// further. A thread keeps TM outputs of TN rows in registers: of a row it reads four inputs at a time. With S parts, S groups of
// threads each sum their part of the steps. The sums pass through shared memory, so that what follows (bias, residual, snake) reads
// and writes whole lines.
#include "backend/cuda/codec.cuh"
#include "backend/cuda/codec_kernels.h"
#include "backend/cuda/kernels.h"

namespace
{

constexpr int STEP = TH_CUDA_CODEC_STEP;
constexpr int PITCH = STEP + 4; // floats between rows: five times 16 bytes, so that eight rows lie in different banks
constexpr int STAGES = 3;

template <int TM, int TN, int TX, int S> struct shape {
    static constexpr int BM = 8 * TM, BN = TX * TN;
    static constexpr int GROUP = 8 * TX, THREADS = GROUP * S;
    static constexpr int OUT_PITCH = BM + 4;
    static constexpr int MOST_CONTEXT = S > 1 ? 8 : TH_CUDA_CODEC_CONTEXT;
    static constexpr __host__ __device__ int rows_floats(int context)
    {
        return (BN + context) * PITCH;
    }
    static constexpr __host__ __device__ int stage_floats(int context) // of a group
    {
        return STAGES * (rows_floats(context) + STEP * BM);
    }
    static constexpr __host__ __device__ size_t bytes(int context)
    {
        return sizeof(float) * S * (stage_floats(context) > BN * OUT_PITCH ? stage_floats(context) : BN * OUT_PITCH);
    }
};

// What a group of threads needs to fill and read its stages.
struct stage {
    const float *weight; // of the block's outputs
    float *rows, *weights;
    int thread, row0, context, last_row;
};

template <class Z> static __device__ __forceinline__ void load_weights(const stage &s, int step, int slot)
{
    const float *from = s.weight + static_cast<size_t>(step) * (STEP * Z::BM);
    float *to = s.weights + slot * (STEP * Z::BM);
    for (int i = s.thread; i < STEP * Z::BM / 4; i += Z::GROUP) th_copy_async(to + 4 * i, from + 4 * i);
}

// Rows past the last one repeat it: their sums are never stored.
template <class Z>
static __device__ __forceinline__ void load_rows(const stage &s, const th_cuda_conv_job &job, int chunk, int slot)
{
    float *to = s.rows + slot * Z::rows_floats(s.context);
    for (int i = s.thread; i < (Z::BN + s.context) * (STEP / 4); i += Z::GROUP) {
        const int r = i / (STEP / 4), part = i % (STEP / 4);
        const float *from = codec::row_at(job.in, job.past, min(s.row0 + r - s.context, s.last_row), s.context, job.conv.inputs);
        th_copy_async(to + r * PITCH + 4 * part, from + chunk * STEP + 4 * part);
    }
}

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
        for (int i = 0; i < TN; i++) in[i] = *reinterpret_cast<const float4 *>(x + i * (TX * PITCH) + 4 * four);
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

static __device__ __forceinline__ float gelu(float x)
{
    return __fmul_rn(__fmul_rn(x, 0.5f), __fadd_rn(1.0f, th_erf(__fmul_rn(x, 0x1.6a09e6p-1f))));
}

static __device__ __forceinline__ float finish(const th_cuda_conv_job &job, float y, int o, size_t at)
{
    if (job.conv.bias != nullptr) y = __fadd_rn(y, job.conv.bias[o]);
    switch (job.kind) {
    case TH_CUDA_CONV_GELU: return gelu(y);
    case TH_CUDA_CONV_BRANCH: return __fadd_rn(job.residual[at], __fmul_rn(job.gamma[o], y));
    case TH_CUDA_CONV_SUM: return __fadd_rn(job.residual[at], y);
    default: return y;
    }
}

// Four outputs from `o` of row `row`.
static __device__ __forceinline__ void store(const th_cuda_conv_job &job, float4 y, int row, int o)
{
    if (job.kind == TH_CUDA_CONV_GATED) {
        float2 gated = make_float2(__fmul_rn(th_silu(y.x), y.z), __fmul_rn(th_silu(y.y), y.w));
        *reinterpret_cast<float2 *>(job.out + (static_cast<size_t>(row) * job.conv.outputs + o) / 2) = gated;
        return;
    }
    const size_t at = static_cast<size_t>(row) * job.conv.outputs + o;
    y = make_float4(finish(job, y.x, o, at), finish(job, y.y, o + 1, at + 1), finish(job, y.z, o + 2, at + 2),
                    finish(job, y.w, o + 3, at + 3));
    if (job.out != nullptr) *reinterpret_cast<float4 *>(job.out + at) = y;
    if (job.snaked == nullptr) return;
    y = make_float4(codec::snake(y.x, job.alpha[o], job.inverse[o]), codec::snake(y.y, job.alpha[o + 1], job.inverse[o + 1]),
                    codec::snake(y.z, job.alpha[o + 2], job.inverse[o + 2]),
                    codec::snake(y.w, job.alpha[o + 3], job.inverse[o + 3]));
    *reinterpret_cast<float4 *>(job.snaked + at) = y;
}

// Sums of all groups, added in order, to where they belong.
template <class Z, int S>
static __device__ __forceinline__ void store_tile(const th_cuda_conv_job &job, const float *sums, int row0)
{
    const int rows = min(Z::BN, job.rows - row0), first = blockIdx.y * Z::BM;
    for (int i = threadIdx.x; i < rows * (Z::BM / 4); i += Z::THREADS) {
        const int r = i / (Z::BM / 4), o = 4 * (i % (Z::BM / 4));
        if (first + o >= job.conv.outputs) continue;
        const float *from = sums + r * Z::OUT_PITCH + o;
        float4 y = *reinterpret_cast<const float4 *>(from);
#pragma unroll
        for (int s = 1; s < S; s++) {
            const float4 part = *reinterpret_cast<const float4 *>(from + s * (Z::BN * Z::OUT_PITCH));
            y = make_float4(__fadd_rn(y.x, part.x), __fadd_rn(y.y, part.y), __fadd_rn(y.z, part.z), __fadd_rn(y.w, part.w));
        }
        store(job, y, row0 + r, first + o);
    }
}

template <int TM, int TN, int TX, int S>
__global__ void __launch_bounds__(8 * TX * S, TX == 16 ? 3 : 2) conv_rows(th_cuda_conv_job job)
{
    using Z = shape<TM, TN, TX, S>;
    TH_DYNAMIC_SHARED(float, shared);
    const int group = threadIdx.x / Z::GROUP, thread = threadIdx.x % Z::GROUP, tx = thread % TX, ty = thread / TX;
    const int taps = job.conv.taps, context = (taps - 1) * job.conv.step, steps = job.conv.inputs / STEP * taps;
    const int begin = static_cast<int>(static_cast<int64_t>(steps) * group / S);
    const int count = static_cast<int>(static_cast<int64_t>(steps) * (group + 1) / S) - begin;
    const int rounds = (steps + S - 1) / S, row0 = blockIdx.x * Z::BN;
    stage s;
    s.weight = job.conv.weight + static_cast<size_t>(blockIdx.y) * steps * (STEP * Z::BM);
    s.rows = shared + group * Z::stage_floats(context);
    s.weights = s.rows + STAGES * Z::rows_floats(context);
    s.thread = thread;
    s.row0 = row0;
    s.context = context;
    s.last_row = job.rows - 1;
    th_dependency_release();
    th_dependency_wait();

    auto fill = [&](int i) { // starts the copies for round i; one group of copies a round, though it be empty
        if (i < count) {
            const int step = begin + i, chunk = step / taps;
            load_weights<Z>(s, step, i % STAGES);
            if (step == chunk * taps || i == 0) load_rows<Z>(s, job, chunk, chunk % STAGES);
        }
        th_copy_commit();
    };
    float sums[TN][TM];
#pragma unroll
    for (int i = 0; i < TN; i++)
#pragma unroll
        for (int o = 0; o < TM; o++) sums[i][o] = 0.0f;
    fill(0);
    fill(1);
    for (int i = 0; i < rounds; i++) {
        th_copy_wait<1>();
        __syncthreads(); // round i is here, and round i - 1 was read by all: its place is free
        fill(i + 2);
        if (i < count) {
            const int step = begin + i, chunk = step / taps, tap = step - chunk * taps;
            const float *x = s.rows + chunk % STAGES * Z::rows_floats(context) + (tap * job.conv.step + tx) * PITCH;
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
    store_tile<Z, S>(job, shared, row0);
    if (context > 0)
        codec::keep_rows(job.in, job.past, job.kept, job.rows, context, job.conv.inputs,
                         (blockIdx.y * gridDim.x + blockIdx.x) * Z::THREADS + threadIdx.x, gridDim.x * gridDim.y * Z::THREADS);
}

template <int TM, int TN, int TX, int S>
static cudaError_t launch_shape(const struct th_cuda_launch *launch, const th_cuda_conv_job &job)
{
    using Z = shape<TM, TN, TX, S>;
    const int context = (job.conv.taps - 1) * job.conv.step;
    if (context > Z::MOST_CONTEXT) return cudaErrorInvalidValue;
    const dim3 grid(static_cast<unsigned>((job.rows + Z::BN - 1) / Z::BN),
                    static_cast<unsigned>((job.conv.outputs + Z::BM - 1) / Z::BM));
    return th_launch(launch, conv_rows<TM, TN, TX, S>, grid, dim3(Z::THREADS), Z::bytes(context), job);
}

// Few rows in many small blocks, many rows in large ones.
template <int TM> static cudaError_t launch_tall(const struct th_cuda_launch *launch, const th_cuda_conv_job &job, int processors)
{
    const int64_t tiles = (job.conv.outputs + 8 * TM - 1) / (8 * TM), blocks = (job.rows + 127) / 128 * tiles;
    if (blocks < processors) return launch_shape<TM, 2, 16, 1>(launch, job);
    return launch_shape<TM, 8, 16, 1>(launch, job);
}

} // namespace

cudaError_t th_cuda_codec_conv(const struct th_cuda_launch *launch, const struct th_cuda_conv_job *job, int processors)
{
    const struct th_cuda_conv *conv = &job->conv;
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
TH_CUDA_KERNELS(codec_conv) = {REGISTERED(4, 1, 8, 4),   REGISTERED(4, 4, 8, 4),  REGISTERED(4, 8, 8, 4),  REGISTERED(4, 2, 16, 1),
                               REGISTERED(4, 8, 16, 1),  REGISTERED(8, 2, 16, 1), REGISTERED(8, 8, 16, 1), REGISTERED(12, 2, 16, 1),
                               REGISTERED(12, 8, 16, 1), TH_CUDA_KERNELS_END};
