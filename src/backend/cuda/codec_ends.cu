// codec_ends.cu - where the codec meets samples: the encoder's first convolution and the decoder's last.
#include "backend/cuda/codec.cuh"
#include "backend/cuda/codec_kernels.h"
#include "backend/cuda/kernels.h"

namespace
{

constexpr int THREADS = 128, STEP = TH_CUDA_CODEC_STEP;

// A thread: four channels of one row.
__global__ void __launch_bounds__(THREADS) first_rows(th_cuda_first_job job)
{
    th_dependency_release();
    th_dependency_wait();
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    const int t = static_cast<int>(4 * i / job.width), c = static_cast<int>(4 * i % job.width), context = job.taps - 1;
    if (t < job.rows) {
        float y[4], snaked[4];
        for (int j = 0; j < 4; j++) {
            y[j] = job.bias[c + j];
            for (int k = 0; k < job.taps; k++)
                y[j] = fmaf(job.weight[k * job.width + c + j], *codec::row_at(job.in, job.past, t + k - context, context, 1), y[j]);
            snaked[j] = codec::snake(y[j], job.alpha[c + j], job.inverse[c + j]);
        }
        const float4 four = make_float4(snaked[0], snaked[1], snaked[2], snaked[3]);
        *reinterpret_cast<float4 *>(job.out + 4 * i) = make_float4(y[0], y[1], y[2], y[3]);
        if (job.split)
            *reinterpret_cast<uint4 *>(job.snaked + 4 * i) = codec::split(four);
        else
            *reinterpret_cast<float4 *>(job.snaked + 4 * i) = four;
    }
    if (blockIdx.x == 0) codec::keep_rows(job.in, job.past, job.kept, job.rows, context, 1, threadIdx.x, THREADS);
}

// A block: 128 samples, a thread each; 16 inputs of all their rows at a time in shared memory.
__global__ void __launch_bounds__(THREADS) last_rows(th_cuda_last_job job)
{
    __shared__ float rows[(THREADS + TH_CUDA_CODEC_LAST_TAPS - 1) * (STEP + 1)];
    th_dependency_release();
    th_dependency_wait();
    const int row0 = blockIdx.x * THREADS, t = row0 + static_cast<int>(threadIdx.x), context = job.taps - 1;
    float y = job.bias[0];
    for (int c = 0; c < job.width; c += STEP) {
        __syncthreads();
        for (int i = threadIdx.x; i < (THREADS + context) * STEP; i += THREADS) {
            const int r = min(row0 + i / STEP - context, job.rows - 1);
            rows[i / STEP * (STEP + 1) + i % STEP] = codec::row_at(job.in, job.past, r, context, job.width)[c + i % STEP];
        }
        __syncthreads();
        for (int k = 0; k < job.taps; k++)
#pragma unroll
            for (int j = 0; j < STEP; j++) y = fmaf(job.weight[k * job.width + c + j], rows[(threadIdx.x + k) * (STEP + 1) + j], y);
    }
    if (t < job.rows) job.out[t] = th_tanh(y);
    codec::keep_rows(job.in, job.past, job.kept, job.rows, context, job.width, blockIdx.x * THREADS + threadIdx.x,
                     gridDim.x * THREADS);
}

} // namespace

cudaError_t th_cuda_codec_first(const struct th_cuda_launch *launch, const struct th_cuda_first_job *job)
{
    const int64_t values = static_cast<int64_t>(job->rows) * job->width / 4;
    return th_launch(launch, first_rows, dim3(static_cast<unsigned>((values + THREADS - 1) / THREADS)), dim3(THREADS), 0, *job);
}

cudaError_t th_cuda_codec_last(const struct th_cuda_launch *launch, const struct th_cuda_last_job *job)
{
    if (job->taps > TH_CUDA_CODEC_LAST_TAPS || job->width % STEP != 0) return cudaErrorInvalidValue;
    return th_launch(launch, last_rows, dim3(static_cast<unsigned>((job->rows + THREADS - 1) / THREADS)), dim3(THREADS), 0, *job);
}

TH_CUDA_KERNELS(codec_ends) = {TH_CUDA_KERNEL(THREADS, 0, first_rows), TH_CUDA_KERNEL(THREADS, 0, last_rows), TH_CUDA_KERNELS_END};
