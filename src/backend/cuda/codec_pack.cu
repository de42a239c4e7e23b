// codec_pack.cu - a layer's weights from the checkpoint's order into the order of codec_conv.cu.
#include "backend/cuda/codec.cuh"
#include "backend/cuda/codec_kernels.h"
#include "backend/cuda/kernels.h"

namespace
{

constexpr int THREADS = 256, STEP = TH_CUDA_CODEC_STEP;

// The weight of (row, input, tap); 0 where the layer was only made wider.
static __device__ __forceinline__ float weight_of(const th_cuda_pack_job &job, int row, int input, int tap)
{
    if (job.kind == TH_CUDA_PACK_GATED) {
        const int from = row / 4 * 2 + row % 2;
        const float *source = row % 4 < 2 ? job.source : job.second;
        return from < job.out && input < job.in ? source[static_cast<size_t>(from) * job.in + input] : 0.0f;
    }
    int k = tap, out = row, in = input;
    if (job.kind == TH_CUDA_PACK_TRANSPOSED) {
        out = row % job.out_width;
        k = row / job.out_width + (job.conv.taps - 1 - tap) * job.stride;
    } else if (job.kind == TH_CUDA_PACK_STRIDED) {
        in = input % job.in_width;
        k = tap * job.stride + input / job.in_width;
    }
    if (out >= job.out || in >= job.in || k >= job.kernel) return 0.0f;
    const size_t pair =
        job.kind == TH_CUDA_PACK_TRANSPOSED ? static_cast<size_t>(in) * job.out + out : static_cast<size_t>(out) * job.in + in;
    return job.source[pair * job.kernel + k];
}

// Word i of a step that is split in halves: see th_cuda_conv.scale and codec_split.cu. The scale is a power of two, so dividing by
// it is exact.
static __device__ __forceinline__ uint32_t split_word(const th_cuda_pack_job &job, int i, int row0, int input0, int tap)
{
    const int lane = i % 128 / 4, row = row0 + i / 256 * 16 + lane / 4 + i % 2 * 8, input = input0 + lane % 4 * 4 + i % 4 / 2 * 2;
    uint32_t word = 0;
    for (int half = 0; half < 2; half++) {
        float v = row < job.conv.outputs ? __fdiv_rn(weight_of(job, row, input + half, tap), job.conv.scale[row]) : 0.0f;
        if (i % 256 >= 128) v = __fsub_rn(v, th_f16_float(th_float_f16(v)));
        word |= static_cast<uint32_t>(th_float_f16(v)) << (16 * half);
    }
    return word;
}

// A block: one step of one tile, 16 inputs of a tap.
__global__ void __launch_bounds__(THREADS) pack_codec(th_cuda_pack_job job, float *to)
{
    th_dependency_release();
    th_dependency_wait();
    const int chunk = blockIdx.x / job.conv.taps, tap = blockIdx.x % job.conv.taps, tile = job.conv.tile;
    to += (static_cast<size_t>(blockIdx.y) * gridDim.x + blockIdx.x) * STEP * tile;
    for (int i = threadIdx.x; i < STEP * tile; i += THREADS)
        to[i] = job.conv.scale != nullptr ? __uint_as_float(split_word(job, i, blockIdx.y * tile, chunk * STEP, tap))
                                          : weight_of(job, blockIdx.y * tile + i % tile, chunk * STEP + i / tile, tap);
}

} // namespace

cudaError_t th_cuda_codec_pack(const struct th_cuda_launch *launch, const struct th_cuda_pack_job *job)
{
    const struct th_cuda_conv *conv = &job->conv;
    const dim3 grid(static_cast<unsigned>(conv->inputs / STEP * conv->taps),
                    static_cast<unsigned>((conv->outputs + conv->tile - 1) / conv->tile));
    return th_launch(launch, pack_codec, grid, dim3(THREADS), 0, *job, const_cast<float *>(conv->weight));
}

TH_CUDA_KERNELS(codec_pack) = {TH_CUDA_KERNEL(THREADS, 0, pack_codec), TH_CUDA_KERNELS_END};
