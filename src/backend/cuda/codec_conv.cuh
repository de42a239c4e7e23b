// codec_conv.cuh - what the two forms of the codec's product share: codec_conv.cu computes in plain float32, codec_split.cu on
// tensor cores. Both make BM outputs of BN rows in a block. For each 16 inputs they hold the rows that all taps read (three such
// stretches in turn, filled ahead by asynchronous copies) and the weights of one tap (three in turn); a tap is the same stretch
// read some rows further. The sums pass through shared memory, so that what follows (bias, residual, snake) reads and writes whole
// lines.
#ifndef THESPIS_BACKEND_CUDA_CODEC_CONV_CUH
#define THESPIS_BACKEND_CUDA_CODEC_CONV_CUH

#include "backend/cuda/codec.cuh"
#include "backend/cuda/codec_kernels.h"

namespace codec
{

constexpr int STEP = TH_CUDA_CODEC_STEP;
constexpr int STAGES = 3;

// A block: S groups of GROUP threads, of which each sums a part of the steps. PITCH: floats between rows in shared memory.
template <int M, int N, int G, int S, int P, int C> struct block_shape {
    static constexpr int BM = M, BN = N, GROUP = G, THREADS = G * S, PARTS = S, PITCH = P;
    static constexpr int OUT_PITCH = M + 4;
    static constexpr int MOST_CONTEXT = C; // rows
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
        const float *from = row_at(job.in, job.past, min(s.row0 + r - s.context, s.last_row), s.context, job.conv.inputs);
        th_copy_async(to + r * Z::PITCH + 4 * part, from + chunk * STEP + 4 * part);
    }
}

// Starts the copies for round i of a group's `count` steps from `begin`; one group of copies a round, though it be empty.
template <class Z>
static __device__ __forceinline__ void fill(const stage &s, const th_cuda_conv_job &job, int begin, int count, int i)
{
    if (i < count) {
        const int step = begin + i, chunk = step / job.conv.taps;
        load_weights<Z>(s, step, i % STAGES);
        if (step == chunk * job.conv.taps || i == 0) load_rows<Z>(s, job, chunk, chunk % STAGES);
    }
    th_copy_commit();
}

template <class Z>
static __device__ __forceinline__ stage make_stage(const th_cuda_conv_job &job, float *shared, int group, int context)
{
    stage s;
    s.weight = job.conv.weight + static_cast<size_t>(blockIdx.y) * (job.conv.inputs / STEP * job.conv.taps) * (STEP * Z::BM);
    s.rows = shared + group * Z::stage_floats(context);
    s.weights = s.rows + STAGES * Z::rows_floats(context);
    s.thread = threadIdx.x % Z::GROUP;
    s.row0 = blockIdx.x * Z::BN;
    s.context = context;
    s.last_row = job.rows - 1;
    return s;
}

template <class Z> static __device__ __forceinline__ void keep_context(const th_cuda_conv_job &job, int context)
{
    if (context > 0)
        keep_rows(job.in, job.past, job.kept, job.rows, context, job.conv.inputs,
                  (blockIdx.y * gridDim.x + blockIdx.x) * Z::THREADS + threadIdx.x, gridDim.x * gridDim.y * Z::THREADS);
}

static __device__ __forceinline__ float gelu(float x)
{
    return __fmul_rn(__fmul_rn(x, 0.5f), __fadd_rn(1.0f, th_erf(__fmul_rn(x, 0x1.6a09e6p-1f))));
}

static __device__ __forceinline__ float finish(const th_cuda_conv_job &job, float y, int o, size_t at)
{
    if (job.conv.scale != nullptr) y = __fmul_rn(y, job.conv.scale[o]);
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
    y = make_float4(snake(y.x, job.alpha[o], job.inverse[o]), snake(y.y, job.alpha[o + 1], job.inverse[o + 1]),
                    snake(y.z, job.alpha[o + 2], job.inverse[o + 2]), snake(y.w, job.alpha[o + 3], job.inverse[o + 3]));
    if (job.split)
        *reinterpret_cast<uint4 *>(job.snaked + at) = split(y);
    else
        *reinterpret_cast<float4 *>(job.snaked + at) = y;
}

// Sums of all groups, added in order, to where they belong.
template <class Z> static __device__ __forceinline__ void store_tile(const th_cuda_conv_job &job, const float *sums)
{
    const int row0 = blockIdx.x * Z::BN;
    const int rows = min(Z::BN, job.rows - row0), first = blockIdx.y * Z::BM;
    for (int i = threadIdx.x; i < rows * (Z::BM / 4); i += Z::THREADS) {
        const int r = i / (Z::BM / 4), o = 4 * (i % (Z::BM / 4));
        if (first + o >= job.conv.outputs) continue;
        const float *from = sums + r * Z::OUT_PITCH + o;
        float4 y = *reinterpret_cast<const float4 *>(from);
#pragma unroll
        for (int s = 1; s < Z::PARTS; s++) {
            const float4 part = *reinterpret_cast<const float4 *>(from + s * (Z::BN * Z::OUT_PITCH));
            y = make_float4(__fadd_rn(y.x, part.x), __fadd_rn(y.y, part.y), __fadd_rn(y.z, part.z), __fadd_rn(y.w, part.w));
        }
        store(job, y, row0 + r, first + o);
    }
}

// Rows of a block: few rows in many small blocks, many rows in large ones. 1.5 blocks a multiprocessor keep it busy.
static inline int columns_for(const th_cuda_conv_job &job, int tile, int processors)
{
    const int64_t tiles = (job.conv.outputs + tile - 1) / tile;
    for (int columns = 128; columns > 32; columns /= 2)
        if ((job.rows + columns - 1) / columns * tiles * 2 >= 3 * static_cast<int64_t>(processors)) return columns;
    return 32;
}

template <class Z>
static cudaError_t launch_conv(const struct th_cuda_launch *launch, void (*kernel)(th_cuda_conv_job), const th_cuda_conv_job &job)
{
    const int context = (job.conv.taps - 1) * job.conv.step;
    if (context > Z::MOST_CONTEXT) return cudaErrorInvalidValue;
    const dim3 grid(static_cast<unsigned>((job.rows + Z::BN - 1) / Z::BN),
                    static_cast<unsigned>((job.conv.outputs + Z::BM - 1) / Z::BM));
    return th_launch(launch, kernel, grid, dim3(Z::THREADS), Z::bytes(context), job);
}

} // namespace codec

#endif
