// codec_rows.cu - what the codec does row by row: norms, the depthwise convolution, codebooks. A block does one row, its sums a
// tree in each warp over values that lie 256 apart, then the warps in order. See codec_kernels.h.
#include "backend/cuda/codec.cuh"
#include "backend/cuda/codec_kernels.h"
#include "backend/cuda/kernels.h"

namespace
{

constexpr int THREADS = 256, WARPS = THREADS / 32;

__global__ void __launch_bounds__(THREADS) rms_rows(th_cuda_rms_job job)
{
    __shared__ float scratch[WARPS];
    th_dependency_release();
    th_dependency_wait();
    const size_t at = static_cast<size_t>(blockIdx.x) * job.width;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < job.width; c += THREADS) sum = fmaf(job.in[at + c], job.in[at + c], sum);
    sum = codec::block_sum<WARPS>(sum, scratch);
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, static_cast<float>(job.width)), 1e-5f)));
    for (int c = threadIdx.x; c < job.width; c += THREADS) {
        float y = __fmul_rn(job.weight[c], __fmul_rn(job.in[at + c], scale));
        if (job.alpha != nullptr) y = codec::snake(y, job.alpha[c], job.inverse[c]);
        job.out[at + c] = y;
    }
}

__global__ void __launch_bounds__(THREADS) depthwise_rows(th_cuda_depthwise_job job)
{
    __shared__ float scratch[WARPS];
    TH_DYNAMIC_SHARED(float, row); // [width]: the convolution's row
    th_dependency_release();
    th_dependency_wait();
    const int t = blockIdx.x, context = job.taps - 1;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < job.width; c += THREADS) {
        float y = job.bias[c];
        for (int k = 0; k < job.taps; k++)
            y = fmaf(job.weight[k * job.width + c], codec::row_at(job.in, job.past, t + k - context, context, job.width)[c], y);
        row[c] = y; // read again by this thread alone
        sum = __fadd_rn(sum, y);
    }
    const float mean = __fdiv_rn(codec::block_sum<WARPS>(sum, scratch), static_cast<float>(job.width));
    float squares = 0.0f;
    for (int c = threadIdx.x; c < job.width; c += THREADS) {
        const float d = __fsub_rn(row[c], mean);
        squares = fmaf(d, d, squares);
    }
    squares = codec::block_sum<WARPS>(squares, scratch);
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, static_cast<float>(job.width)), 1e-6f)));
    float *out = job.out + static_cast<size_t>(t) * job.width;
    for (int c = threadIdx.x; c < job.width; c += THREADS)
        out[c] = __fadd_rn(__fmul_rn(job.norm_weight[c], __fmul_rn(__fsub_rn(row[c], mean), scale)), job.norm_bias[c]);
    codec::keep_rows(job.in, job.past, job.kept, job.rows, context, job.width, blockIdx.x * THREADS + threadIdx.x,
                     gridDim.x * THREADS);
}

// out_bias + out_weight e of one latent column.
static __device__ __forceinline__ float project(const th_cuda_book &book, const float *e, int vector, int latent, int c)
{
    float sum = book.out_bias[c];
    for (int k = 0; k < vector; k++) sum = fmaf(e[k], book.out_weight[k * latent + c], sum);
    return sum;
}

__global__ void __launch_bounds__(THREADS) lookup_rows(th_cuda_lookup_job job)
{
    th_dependency_release();
    th_dependency_wait();
    const int32_t *codes = job.codes + static_cast<size_t>(blockIdx.x) * job.books;
    for (int c = threadIdx.x; c < job.latent; c += THREADS) {
        float first = 0.0f, rest = 0.0f;
        for (int i = 0; i < job.books; i++) {
            const float *e = job.book[i].codebook + static_cast<size_t>(codes[i]) * job.vector;
            const float q = project(job.book[i], e, job.vector, job.latent, c);
            if (i == 0)
                first = q;
            else
                rest = i == 1 ? q : __fadd_rn(rest, q);
        }
        job.out[static_cast<size_t>(blockIdx.x) * job.latent + c] = __fadd_rn(first, rest);
    }
}

// What a block shares while it searches.
struct search {
    float e[TH_CUDA_CODEC_WIDTH], twice[TH_CUDA_CODEC_WIDTH]; // the projected residual; twice its unit vector
    float square, distance[THREADS];
    int place[THREADS];
};

// e = in_bias + in_weight residual, a warp a value; then its unit vector, by every thread alike.
static __device__ __forceinline__ void project_in(const th_cuda_book &book, const float *residual, int vector, int latent,
                                                  search *s)
{
    for (int k = threadIdx.x / 32; k < vector; k += WARPS) {
        float sum = 0.0f;
        for (int c = threadIdx.x % 32; c < latent; c += 32) sum = fmaf(book.in_weight[k * latent + c], residual[c], sum);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
        if (threadIdx.x % 32 == 0) s->e[k] = __fadd_rn(sum, book.in_bias[k]);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        float square = 0.0f, unit_square = 0.0f;
        for (int k = 0; k < vector; k++) square = __fadd_rn(square, __fmul_rn(s->e[k], s->e[k]));
        float length = __fsqrt_rn(square);
        if (!(length > 1e-12f)) length = 1e-12f;
        for (int k = 0; k < vector; k++) {
            const float unit = __fdiv_rn(s->e[k], length);
            unit_square = __fadd_rn(unit_square, __fmul_rn(unit, unit));
            s->twice[k] = __fadd_rn(unit, unit);
        }
        s->square = unit_square;
    }
    __syncthreads();
}

// The row with the least (|e|^2 - 2 e.c) + |c|^2; the lowest of equals. All threads get it.
static __device__ __forceinline__ int nearest(const th_cuda_book &book, int vector, search *s)
{
    float best = __uint_as_float(0x7F800000u);
    int place = 0;
    for (int i = threadIdx.x; i < book.entries; i += THREADS) {
        float dot = 0.0f;
        for (int k = 0; k < vector; k++) dot = fmaf(s->twice[k], book.unit[static_cast<size_t>(k) * book.entries + i], dot);
        const float distance = __fadd_rn(__fsub_rn(s->square, dot), book.unit_square[i]);
        if (distance < best) best = distance, place = i;
    }
    s->distance[threadIdx.x] = best;
    s->place[threadIdx.x] = place;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (static_cast<int>(threadIdx.x) >= half) continue;
        const float other = s->distance[threadIdx.x + half];
        const int at = s->place[threadIdx.x + half];
        if (other < s->distance[threadIdx.x] || (other == s->distance[threadIdx.x] && at < s->place[threadIdx.x])) {
            s->distance[threadIdx.x] = other;
            s->place[threadIdx.x] = at;
        }
    }
    __syncthreads();
    return s->place[0];
}

__global__ void __launch_bounds__(THREADS) search_rows(th_cuda_search_job job)
{
    __shared__ search s;
    TH_DYNAMIC_SHARED(float, residual); // [latent]
    th_dependency_release();
    th_dependency_wait();
    for (int c = threadIdx.x; c < job.latent; c += THREADS) residual[c] = job.in[static_cast<size_t>(blockIdx.x) * job.latent + c];
    __syncthreads();
    for (int i = 0; i < job.books; i++) {
        const th_cuda_book book = job.book[i];
        project_in(book, residual, job.vector, job.latent, &s);
        const int code = nearest(book, job.vector, &s);
        if (static_cast<int>(threadIdx.x) < job.vector) { // e becomes e + (row - e): the reference's straight-through form
            const float row = book.codebook[static_cast<size_t>(code) * job.vector + threadIdx.x];
            s.e[threadIdx.x] = __fadd_rn(s.e[threadIdx.x], __fsub_rn(row, s.e[threadIdx.x]));
        }
        if (threadIdx.x == 0) job.codes[static_cast<size_t>(blockIdx.x) * job.books + i] = code;
        __syncthreads();
        for (int c = threadIdx.x; c < job.latent; c += THREADS)
            residual[c] = __fsub_rn(residual[c], project(book, s.e, job.vector, job.latent, c));
        __syncthreads();
    }
}

} // namespace

cudaError_t th_cuda_codec_rms(const struct th_cuda_launch *launch, const struct th_cuda_rms_job *job)
{
    return th_launch(launch, rms_rows, dim3(static_cast<unsigned>(job->rows)), dim3(THREADS), 0, *job);
}

cudaError_t th_cuda_codec_depthwise(const struct th_cuda_launch *launch, const struct th_cuda_depthwise_job *job)
{
    return th_launch(launch, depthwise_rows, dim3(static_cast<unsigned>(job->rows)), dim3(THREADS),
                     sizeof(float) * static_cast<size_t>(job->width), *job);
}

cudaError_t th_cuda_codec_lookup(const struct th_cuda_launch *launch, const struct th_cuda_lookup_job *job)
{
    return th_launch(launch, lookup_rows, dim3(static_cast<unsigned>(job->frames)), dim3(THREADS), 0, *job);
}

cudaError_t th_cuda_codec_search(const struct th_cuda_launch *launch, const struct th_cuda_search_job *job)
{
    return th_launch(launch, search_rows, dim3(static_cast<unsigned>(job->frames)), dim3(THREADS),
                     sizeof(float) * static_cast<size_t>(job->latent), *job);
}

TH_CUDA_KERNELS(codec_rows) = {TH_CUDA_KERNEL(THREADS, 0, rms_rows),
                               TH_CUDA_KERNEL(THREADS, sizeof(float) * TH_CUDA_CODEC_LATENT, depthwise_rows),
                               TH_CUDA_KERNEL(THREADS, 0, lookup_rows),
                               TH_CUDA_KERNEL(THREADS, sizeof(float) * TH_CUDA_CODEC_LATENT, search_rows), TH_CUDA_KERNELS_END};
