// fill.cu - see fill.h. The arithmetic is that of tools/make_checkpoint's random.c and recipe.c, operation by operation.
#include "backend/cuda/fill.h"

#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace
{

constexpr int block_size = 128; // rows and columns that share a scale

__device__ __forceinline__ uint64_t mix(uint64_t key, uint64_t counter)
{
    const uint64_t x = key + counter * 0xa0761d6478bd642full, y = x ^ 0xe7037ed1a0b428dbull;
    return __umul64hi(x, y) ^ (x * y);
}

__device__ __forceinline__ float normal(uint64_t key, uint64_t i)
{
    const uint64_t bits = mix(key, i);
    const uint64_t pairs = (bits & 0x0000ffff0000ffffull) + (bits >> 16 & 0x0000ffff0000ffffull);
    const int sum = static_cast<int>((pairs & 0xffffffffu) + (pairs >> 32)) - 131070;
    const float x = __fmul_rn(static_cast<float>(sum), 2.6429002e-05f), s = __fmul_rn(x, x);
    const float inner = __fadd_rn(-0.004086598f, __fmul_rn(s, 0.000491257f));
    return __fmul_rn(x, __fadd_rn(0.95498339f, __fmul_rn(s, __fadd_rn(0.02280802f, __fmul_rn(s, inner)))));
}

__global__ void fill_normal(uint16_t *to, unsigned long long first, unsigned long long count, uint64_t key, float a, float b,
                            long long loud_row, long long cols)
{
    th_dependency_wait();
    const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long i = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x; i < count; i += stride) {
        float value = __fadd_rn(a, __fmul_rn(b, normal(key, first + i)));
        if (loud_row >= 0 && static_cast<long long>((first + i) / cols) == loud_row) value = __fmul_rn(value, 2.0f);
        to[i] = th_float_bf16(value);
    }
}

// A block: one block of the matrix; the largest magnitude of all of it first.
__global__ void fill_e4m3(unsigned char *to, int first_row, int count, int rows, int cols, uint64_t key, float b, int scale_bf16)
{
    __shared__ unsigned largest_bits[8];
    th_dependency_wait();
    const int row0 = (first_row / block_size + static_cast<int>(blockIdx.y)) * block_size, col0 = blockIdx.x * block_size;
    const int height = min(block_size, rows - row0), width = min(block_size, cols - col0), warp = threadIdx.x / 32;
    unsigned largest = 0; // magnitudes order like their bits
    for (int i = threadIdx.x; i < height * width; i += blockDim.x) {
        const uint64_t at = static_cast<uint64_t>(row0 + i / width) * cols + col0 + i % width;
        largest = max(largest, __float_as_uint(__fmul_rn(normal(key, at), b)) & 0x7FFFFFFFu);
    }
    largest = __reduce_max_sync(0xFFFFFFFFu, largest);
    if (threadIdx.x % 32 == 0) largest_bits[warp] = largest;
    __syncthreads();
    for (int w = 0; w < 8; w++) largest = max(largest, largest_bits[w]);
    float scale = __fdiv_rn(__uint_as_float(largest), 448.0f);
    if (scale_bf16) scale = th_round_bf16(scale);
    for (int i = threadIdx.x; i < height * width; i += blockDim.x) {
        const int row = row0 + i / width, col = col0 + i % width;
        if (row < first_row || row >= first_row + count) continue;
        const float value = __fmul_rn(normal(key, static_cast<uint64_t>(row) * cols + col), b);
        to[static_cast<size_t>(row - first_row) * cols + col] = th_float_e4m3(__fdiv_rn(value, scale));
    }
}

} // namespace

cudaError_t th_cuda_fill_normal(const struct th_cuda_launch *launch, void *to, size_t first, size_t count, uint64_t key, float a,
                                float b, long long loud_row, long long cols)
{
    const size_t blocks = (count + 1023) / 1024;
    return th_launch(launch, fill_normal, dim3(static_cast<unsigned>(blocks < 4096 ? blocks : 4096)), dim3(256), 0,
                     static_cast<uint16_t *>(to), first, count, key, a, b, loud_row, cols);
}

cudaError_t th_cuda_fill_e4m3(const struct th_cuda_launch *launch, void *to, int first_row, int count, int rows, int cols,
                              uint64_t key, float b, int scale_bf16)
{
    const int blocks = (first_row + count + block_size - 1) / block_size - first_row / block_size;
    const dim3 grid(static_cast<unsigned>((cols + block_size - 1) / block_size), static_cast<unsigned>(blocks));
    return th_launch(launch, fill_e4m3, grid, dim3(256), 0, static_cast<unsigned char *>(to), first_row, count, rows, cols, key, b,
                     scale_bf16);
}

TH_CUDA_KERNELS(fill) = {TH_CUDA_KERNEL(256, 0, fill_normal), TH_CUDA_KERNEL(256, 0, fill_e4m3), TH_CUDA_KERNELS_END};
