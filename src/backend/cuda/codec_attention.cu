// codec_attention.cu - attention over a window of past positions, with its rotation and its ring of keys and values.
#include "backend/cuda/codec.cuh"
#include "backend/cuda/codec_kernels.h"
#include "backend/cuda/kernels.h"

namespace
{

constexpr int HEAD = TH_CUDA_CODEC_HEAD, HALF = HEAD / 2;
constexpr int THREADS = 128, WARPS = THREADS / 32;

__global__ void __launch_bounds__(THREADS) angle_rows(th_cuda_angles_job job)
{
    th_dependency_release();
    th_dependency_wait();
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= job.rows * HALF) return;
    const float angle = __fmul_rn(static_cast<float>(job.position + i / HALF), job.frequency[i % HALF]);
    job.cosine[i] = th_round_bf16(static_cast<float>(cos(static_cast<double>(angle))));
    job.sine[i] = th_round_bf16(static_cast<float>(sin(static_cast<double>(angle))));
}

// Dimension d of a vector turned by the row's angles: neighbours are a pair, each product rounded, as in the reference.
static __device__ __forceinline__ float turned(const float *x, int d, const float *cosine, const float *sine)
{
    const float c = cosine[d / 2], s = sine[d / 2];
    if (d % 2 == 0) return __fsub_rn(__fmul_rn(x[d], c), __fmul_rn(x[d + 1], s));
    return __fadd_rn(__fmul_rn(x[d], c), __fmul_rn(x[d - 1], s));
}

// A block: a row's keys and values of all heads.
__global__ void __launch_bounds__(THREADS) keep_keys(th_cuda_attention_job job)
{
    th_dependency_release();
    th_dependency_wait();
    const int width = job.heads * HEAD, slot = static_cast<int>((job.position + blockIdx.x) % job.slots);
    const float *qkv = job.qkv + static_cast<size_t>(blockIdx.x) * 3 * width;
    const float *cosine = job.cosine + blockIdx.x * HALF, *sine = job.sine + blockIdx.x * HALF;
    for (int i = threadIdx.x; i < width; i += THREADS) {
        const int head = i / HEAD, d = i % HEAD;
        const size_t at = (static_cast<size_t>(head) * job.slots + slot) * HEAD + d;
        job.keys[at] = turned(qkv + width + head * HEAD, d, cosine, sine);
        job.values[at] = qkv[2 * width + i];
    }
}

// scores[j] of this thread's keys j = thread, thread + 128, ...; returns their maximum.
static __device__ __forceinline__ float score(const float *q, const float *keys, int first, int count, int slots, float *scores)
{
    float top = __uint_as_float(0xFF800000u);
    for (int j = threadIdx.x; j < count; j += THREADS) {
        int slot = first + j;
        if (slot >= slots) slot -= slots;
        const float4 *k = reinterpret_cast<const float4 *>(keys + static_cast<size_t>(slot) * HEAD);
        float sum = 0.0f;
#pragma unroll
        for (int d = 0; d < HEAD / 4; d++) {
            const float4 key = k[d], query = *reinterpret_cast<const float4 *>(q + 4 * d);
            sum = fmaf(key.w, query.w, fmaf(key.z, query.z, fmaf(key.y, query.y, fmaf(key.x, query.x, sum))));
        }
        scores[j] = __fmul_rn(sum, 0.125f);
        top = fmaxf(top, scores[j]);
    }
    return top;
}

static __device__ __forceinline__ float block_max(float value, float *scratch)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    return fmaxf(fmaxf(scratch[0], scratch[1]), fmaxf(scratch[2], scratch[3]));
}

// A block: one head of one row.
__global__ void __launch_bounds__(THREADS) attend(th_cuda_attention_job job)
{
    __align__(16) __shared__ float q[HEAD];
    __shared__ float scratch[WARPS], mixed[THREADS];
    TH_DYNAMIC_SHARED(float, scores); // [window]
    th_dependency_release();
    th_dependency_wait();
    const int row = blockIdx.x, head = blockIdx.y, width = job.heads * HEAD;
    const int64_t position = job.position + row;
    const int64_t from = position - job.window + 1 > 0 ? position - job.window + 1 : 0;
    const int count = static_cast<int>(position - from) + 1, first = static_cast<int>(from % job.slots);
    const float *keys = job.keys + static_cast<size_t>(head) * job.slots * HEAD;
    const float *values = job.values + static_cast<size_t>(head) * job.slots * HEAD;
    if (threadIdx.x < HEAD)
        q[threadIdx.x] = turned(job.qkv + static_cast<size_t>(row) * 3 * width + head * HEAD, threadIdx.x, job.cosine + row * HALF,
                                job.sine + row * HALF);
    __syncthreads();
    const float top = block_max(score(q, keys, first, count, job.slots, scores), scratch);
    float total = 0.0f;
    for (int j = threadIdx.x; j < count; j += THREADS) { // a thread's own scores
        scores[j] = th_exp(__fsub_rn(scores[j], top));
        total = __fadd_rn(total, scores[j]);
    }
    total = codec::block_sum<WARPS>(total, scratch); // its barriers show all scores to all threads
    const int d = threadIdx.x % HEAD, half = (count + 1) / 2, begin = threadIdx.x / HEAD * half;
    const int end = begin + half < count ? begin + half : count;
    float sum = 0.0f;
    for (int j = begin, slot = (first + begin) % job.slots; j < end; j++) {
        sum = fmaf(scores[j], values[static_cast<size_t>(slot) * HEAD + d], sum);
        if (++slot == job.slots) slot = 0;
    }
    mixed[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x < HEAD)
        job.out[static_cast<size_t>(row) * width + head * HEAD + d] = __fdiv_rn(__fadd_rn(sum, mixed[threadIdx.x + HEAD]), total);
}

} // namespace

cudaError_t th_cuda_codec_angles(const struct th_cuda_launch *launch, const struct th_cuda_angles_job *job)
{
    return th_launch(launch, angle_rows, dim3(static_cast<unsigned>((job->rows * HALF + THREADS - 1) / THREADS)), dim3(THREADS), 0,
                     *job);
}

cudaError_t th_cuda_codec_attention(const struct th_cuda_launch *launch, const struct th_cuda_attention_job *job)
{
    if (job->slots < job->window + job->rows - 1) return cudaErrorInvalidValue;
    const unsigned rows = static_cast<unsigned>(job->rows);
    TH_CUDA_TRY(th_launch(launch, keep_keys, dim3(rows), dim3(THREADS), 0, *job));
    return th_launch(launch, attend, dim3(rows, static_cast<unsigned>(job->heads)), dim3(THREADS),
                     sizeof(float) * static_cast<size_t>(job->window), *job);
}

TH_CUDA_KERNELS(codec_attention) = {TH_CUDA_KERNEL(THREADS, 0, angle_rows), TH_CUDA_KERNEL(THREADS, 0, keep_keys),
                                    TH_CUDA_KERNEL(THREADS, sizeof(float) * TH_CUDA_CODEC_WINDOW, attend), TH_CUDA_KERNELS_END};
