/* embed.cu - rows in: the backbone's embedding mix, the hidden that the tower takes over, and what each tower layer adds to it
 * (docs/model.md, "Row input" and "Tower layer"). A block is one column, a thread every THREADS-th pair of channels. */
#include "backend/cuda/forward.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/label.cuh"
#include "backend/cuda/launch.cuh"

namespace
{

enum { THREADS = 256 };

__device__ __forceinline__ float mix(float token, float codes, float scale)
{
    return __fmul_rn(th_round_bf16(__fadd_rn(token, codes)), scale);
}

__global__ void __launch_bounds__(THREADS) embed_kernel(const struct th_cuda_embed at)
{
    th_dependency_release();
    th_dependency_wait();
    int column = static_cast<int>(blockIdx.x);
    if (column >= at.pass->backbone_count) return;
    const int32_t *frame = at.pass->column[column].input;
    if (at.drawn != nullptr) {
        frame = at.pass->column[at.pass->capacity + column].label;
        if (frame[0] == at.eos || (at.drawn[column].failed != TH_CUDA_DRAWN && at.drawn[column].head <= at.books)) {
            if (threadIdx.x == 0) at.pass->column[column].position = -1;
            return;
        }
    }
    bool speech = frame[0] >= at.semantic_start && frame[0] <= at.semantic_end;
    const uint16_t *token = at.embed + static_cast<size_t>(frame[0]) * static_cast<size_t>(at.width);
    uint32_t *out = reinterpret_cast<uint32_t *>(at.stream + static_cast<size_t>(column) * static_cast<size_t>(at.width));
    for (int pair = static_cast<int>(threadIdx.x); pair < at.width / 2; pair += THREADS) {
        uint32_t value = th_load_pair(token, pair);
        if (speech) {
            float2 codes = th_sum_codes(at.code_embed, frame, 1, at.books, at.codebook_size, at.width, pair);
            value = th_float_bf16_pair(mix(th_bf16_low(value), codes.x, at.scale), mix(th_bf16_high(value), codes.y, at.scale));
        }
        out[pair] = value;
    }
}

__global__ void __launch_bounds__(THREADS) hand_kernel(const struct th_cuda_hand at)
{
    th_dependency_release();
    th_dependency_wait();
    int i = static_cast<int>(blockIdx.x);
    if (i >= at.pass->tower_count) return;
    const th_cuda_column *column = &at.pass->column[at.pass->capacity + i];
    char *kept = reinterpret_cast<char *>(at.lane_hidden) + static_cast<size_t>(column->lane) * at.lane_stride;
    uint32_t *lane = reinterpret_cast<uint32_t *>(kept);
    int source = column->source, keep = column->keep;
    const uint32_t *from =
        source < 0 ? lane
                   : reinterpret_cast<const uint32_t *>(at.final + static_cast<size_t>(source) * static_cast<size_t>(at.width));
    uint32_t *to = reinterpret_cast<uint32_t *>(at.handed + static_cast<size_t>(i) * static_cast<size_t>(at.width));
    for (int pair = static_cast<int>(threadIdx.x); pair < at.width / 2; pair += THREADS) {
        uint32_t value = from[pair];
        to[pair] = value;
        if (keep) lane[pair] = value;
    }
}

__global__ void __launch_bounds__(THREADS) keep_kernel(const struct th_cuda_hand at)
{
    th_dependency_release();
    th_dependency_wait();
    int column = static_cast<int>(blockIdx.x);
    if (column >= at.pass->backbone_count || at.pass->column[column].position < 0) return;
    char *kept = reinterpret_cast<char *>(at.lane_hidden) + static_cast<size_t>(at.pass->column[column].lane) * at.lane_stride;
    const uint32_t *from =
        reinterpret_cast<const uint32_t *>(at.final + static_cast<size_t>(column) * static_cast<size_t>(at.width));
    for (int pair = static_cast<int>(threadIdx.x); pair < at.width / 2; pair += THREADS)
        reinterpret_cast<uint32_t *>(kept)[pair] = from[pair];
}

__global__ void __launch_bounds__(THREADS) label_kernel(const struct th_cuda_label at)
{
    th_dependency_release();
    th_dependency_wait();
    int i = static_cast<int>(blockIdx.x);
    if (i >= at.pass->tower_count) return;
    const th_cuda_column *column = &at.pass->column[at.pass->capacity + i];
    uint32_t *out = reinterpret_cast<uint32_t *>(at.out + static_cast<size_t>(i) * static_cast<size_t>(at.width));
    for (int pair = static_cast<int>(threadIdx.x); pair < at.width / 2; pair += THREADS)
        out[pair] = th_label_pair(at, at.table, at.first, column, pair);
}

} // namespace

extern "C" cudaError_t th_cuda_embed(const struct th_cuda_launch *launch, const struct th_cuda_embed *embed)
{
    return th_launch(launch, embed_kernel, dim3(static_cast<unsigned>(embed->columns)), dim3(THREADS), 0, *embed);
}

extern "C" cudaError_t th_cuda_hand(const struct th_cuda_launch *launch, const struct th_cuda_hand *hand)
{
    return th_launch(launch, hand_kernel, dim3(static_cast<unsigned>(hand->columns)), dim3(THREADS), 0, *hand);
}

extern "C" cudaError_t th_cuda_keep(const struct th_cuda_launch *launch, const struct th_cuda_hand *hand)
{
    return th_launch(launch, keep_kernel, dim3(static_cast<unsigned>(hand->columns)), dim3(THREADS), 0, *hand);
}

extern "C" cudaError_t th_cuda_label(const struct th_cuda_launch *launch, const struct th_cuda_label *label)
{
    return th_launch(launch, label_kernel, dim3(static_cast<unsigned>(label->columns)), dim3(THREADS), 0, *label);
}

TH_CUDA_KERNELS(embed) = {TH_CUDA_KERNEL(THREADS, 0, embed_kernel), TH_CUDA_KERNEL(THREADS, 0, hand_kernel),
                          TH_CUDA_KERNEL(THREADS, 0, keep_kernel), TH_CUDA_KERNEL(THREADS, 0, label_kernel), TH_CUDA_KERNELS_END};
