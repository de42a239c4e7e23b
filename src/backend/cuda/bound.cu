// bound.cu - see bound.h.
#include "backend/cuda/bound.h"

#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace
{

constexpr int ahead = 8; // loads of a thread under way at once

__global__ void read_all(const uint4 *from, unsigned long long count, uint32_t *sum)
{
    const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    uint32_t mix = 0;
    unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; i + (ahead - 1) * stride < count; i += ahead * stride) {
        uint4 v[ahead];
#pragma unroll
        for (int k = 0; k < ahead; k++) v[k] = th_load_stream(from + i + k * stride);
#pragma unroll
        for (int k = 0; k < ahead; k++) mix ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    for (; i < count; i += stride) {
        uint4 v = th_load_stream(from + i);
        mix ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    atomicXor(sum, mix);
}

} // namespace

cudaError_t th_cuda_read_all(const struct th_cuda_launch *launch, const void *from, size_t bytes, int blocks, uint32_t *sum)
{
    const struct th_cuda_launch late = {launch->stream, 0};
    return th_launch(&late, read_all, dim3(static_cast<unsigned>(blocks)), dim3(512), 0, static_cast<const uint4 *>(from),
                     bytes / 16, sum);
}

TH_CUDA_KERNELS(bound) = {TH_CUDA_KERNEL(512, 0, read_all), TH_CUDA_KERNELS_END};
