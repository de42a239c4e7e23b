// norm.cu - rows.cuh as kernels: a block a column.
#include "backend/cuda/kernels.h"
#include "backend/cuda/norm.h"
#include "backend/cuda/rows.cuh"

static __global__ void __launch_bounds__(TH_ROW_THREADS)
    norm_rows(const uint16_t *x, int x_stride, const float *w, float eps, int n, uint16_t *y, int y_stride)
{
    __shared__ float warps[TH_ROW_WARPS];
    const uint16_t *from = x + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(x_stride);
    uint16_t *to = y + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(y_stride);
    th_dependency_release();
    const struct th_norm_weights loaded = th_load_norm(w, n);
    th_dependency_wait();
    // The values are read twice: a row that fits one turn comes from registers, longer ones from the cache.
    const int first = static_cast<int>(threadIdx.x) * 8;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (first < n) v = th_load_shared_row(from + first);
    float sum = th_add_eight_squares(v, 0.0f);
    for (int i = first + TH_ROW_THREADS * 8; i < n; i += TH_ROW_THREADS * 8)
        sum = th_add_eight_squares(th_load_shared_row(from + i), sum);
    sum = th_warp_sum(sum);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    const float factor = th_norm_factor(warps, n, eps);
    for (int i = first; i < n; i += TH_ROW_THREADS * 8) {
        if (i != first) v = th_load_shared_row(from + i);
        *reinterpret_cast<uint4 *>(to + i) =
            th_norm_eight(v, factor, i == first ? loaded : th_load_norm(w + i - first, n - i + first));
    }
}

static __global__ void __launch_bounds__(TH_ROW_THREADS) quantise_rows(const uint16_t *x, int n, uint8_t *codes, float *scales)
{
    const size_t row = static_cast<size_t>(blockIdx.x) * static_cast<size_t>(n);
    th_dependency_release();
    th_dependency_wait();
    for (int first = 0; first < n; first += TH_ROW_THREADS * 8) {
        const int i = first + static_cast<int>(threadIdx.x) * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (i < n) v = th_load_shared_row(x + row + i);
        float scale;
        const uint2 four = th_quantise_eight(v, &scale);
        if (i < n) *reinterpret_cast<uint2 *>(codes + row + i) = four;
        if (i < n && i % 128 == 0) scales[(row + i) / 128] = scale;
    }
}

extern "C" cudaError_t th_cuda_norm(const struct th_cuda_launch *launch, const uint16_t *x, int x_stride, const float *w, float eps,
                                    int n, int columns, uint16_t *y, int y_stride)
{
    return th_launch(launch, norm_rows, dim3(columns), dim3(TH_ROW_THREADS), 0, x, x_stride, w, eps, n, y, y_stride);
}

extern "C" cudaError_t th_cuda_quantise(const struct th_cuda_launch *launch, const uint16_t *x, int n, int columns, uint8_t *codes,
                                        float *scales)
{
    return th_launch(launch, quantise_rows, dim3(columns), dim3(TH_ROW_THREADS), 0, x, n, codes, scales);
}

TH_CUDA_KERNELS(norm) = {TH_CUDA_KERNEL(TH_ROW_THREADS, 0, norm_rows), TH_CUDA_KERNEL(TH_ROW_THREADS, 0, quantise_rows),
                         TH_CUDA_KERNELS_END};
