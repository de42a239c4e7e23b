// Kernels of test_cuda_emulator.c: each operation that launch.cuh promises, with results that can be computed by hand.
#include "backend/cuda/launch.cuh"

// y[i] = sum over the block of x, through shared memory and two barriers, plus the warp's sum by shuffles.
static __global__ void sums(const float *x, float *y)
{
    __shared__ float parts[128];
    TH_DYNAMIC_SHARED(float, copy);
    th_dependency_release();
    th_dependency_wait();
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    parts[threadIdx.x] = x[i];
    if (threadIdx.x % 4 == 0) th_copy_async(copy + threadIdx.x, x + i);
    th_copy_commit();
    th_copy_wait<0>();
    __syncthreads();
    float sum = 0;
    for (unsigned t = 0; t < blockDim.x; t++) sum += parts[t] + copy[t];
    __syncthreads();
    float warp = x[i];
    for (int step = 16; step > 0; step /= 2) warp += __shfl_xor_sync(0xFFFFFFFFu, warp, step);
    y[i] = sum * 1000.0f + warp;
}

static __global__ void products(const uint16_t *a, const uint16_t *b, float *c, const uint8_t *a8, const uint8_t *b8, float *c8)
{
    const int lane = static_cast<int>(threadIdx.x), g = lane / 4, q = lane % 4;
    const uint32_t *wide = reinterpret_cast<const uint32_t *>(a), *columns = reinterpret_cast<const uint32_t *>(b);
    float sum[4] = {};
    th_mma_bf16(sum, make_uint4(wide[g * 8 + q], wide[(g + 8) * 8 + q], wide[g * 8 + q + 4], wide[(g + 8) * 8 + q + 4]),
                columns[g * 8 + q], columns[g * 8 + q + 4]);
    for (int i = 0; i < 4; i++) c[(g + i / 2 * 8) * 8 + 2 * q + i % 2] = sum[i];
    wide = reinterpret_cast<const uint32_t *>(a8), columns = reinterpret_cast<const uint32_t *>(b8);
    float sum8[4] = {};
    th_mma_e4m3(sum8, make_uint4(wide[g * 8 + q], wide[(g + 8) * 8 + q], wide[g * 8 + q + 4], wide[(g + 8) * 8 + q + 4]),
                columns[g * 8 + q], columns[g * 8 + q + 4]);
    for (int i = 0; i < 4; i++) c8[(g + i / 2 * 8) * 8 + 2 * q + i % 2] = sum8[i];
}

// exp log sin tanh erf sigmoid silu, bf16 and E4M3 rounding of each x: y [9][n]
static __global__ void functions(const float *x, float *y, int n)
{
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) return;
    y[i] = th_exp(x[i]);
    y[n + i] = th_log(x[i]);
    y[2 * n + i] = th_sin(x[i]);
    y[3 * n + i] = th_tanh(x[i]);
    y[4 * n + i] = th_erf(x[i]);
    y[5 * n + i] = th_sigmoid(x[i]);
    y[6 * n + i] = th_silu(x[i]);
    y[7 * n + i] = th_round_bf16(x[i]);
    y[8 * n + i] = th_e4m3_float(th_float_e4m3(x[i]));
}

// Mistakes: 0 a thread leaves before a barrier; 1 two barriers; 2 a warp operation without all of its mask.
static __global__ void mistakes(int kind, float *y)
{
    if (kind == 0 && threadIdx.x == 5) return;
    if (kind == 1 && threadIdx.x < 32) {
        __syncthreads();
    } else if (kind < 2) {
        __syncthreads();
    }
    if (kind == 2 && threadIdx.x != 3) y[threadIdx.x] = __shfl_sync(0xFFFFFFFFu, 1.0f, 0);
}

extern "C" cudaError_t test_sums(const struct th_cuda_launch *launch, const float *x, float *y, int blocks, int threads)
{
    return th_launch(launch, sums, dim3(blocks), dim3(threads), threads * sizeof(float), x, y);
}
extern "C" cudaError_t test_products(const struct th_cuda_launch *launch, const uint16_t *a, const uint16_t *b, float *c,
                                     const uint8_t *a8, const uint8_t *b8, float *c8)
{
    return th_launch(launch, products, dim3(1), dim3(32), 0, a, b, c, a8, b8, c8);
}
extern "C" cudaError_t test_functions(const struct th_cuda_launch *launch, const float *x, float *y, int n)
{
    return th_launch(launch, functions, dim3((n + 127) / 128), dim3(128), 0, x, y, n);
}
extern "C" cudaError_t test_mistakes(const struct th_cuda_launch *launch, int kind, float *y)
{
    return th_launch(launch, mistakes, dim3(1), dim3(64), 0, kind, y);
}
