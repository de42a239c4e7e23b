/* embed.cu - rows in: the backbone's embedding mix, the hidden that the tower takes over, and what each tower layer adds to it
 * (docs/model.md, "Row input" and "Tower layer"). A block is one column, a thread every THREADS-th pair of channels. */
#include "backend/cuda/forward.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace
{

enum { THREADS = 256 };

__device__ __forceinline__ int clamp_code(int code, int size)
{
    return code < 0 ? 0 : code >= size ? size - 1 : code;
}

__device__ __forceinline__ uint32_t load_pair(const uint16_t *row, int pair)
{
    return reinterpret_cast<const uint32_t *>(row)[pair];
}

/* Channels 2 pair, 2 pair + 1 of the sum over codes first..last of the frame, rounded; 32-bit sums in the order of the books. */
__device__ float2 sum_codes(const uint16_t *code_embed, const int32_t *frame, int first, int last, int size, int width, int pair)
{
    float2 sum = make_float2(0.0f, 0.0f);
    for (int book = first; book <= last; book++) {
        size_t row = static_cast<size_t>(book) * static_cast<size_t>(size) + static_cast<size_t>(clamp_code(frame[1 + book], size));
        uint32_t codes = load_pair(code_embed + row * static_cast<size_t>(width), pair);
        sum.x = __fadd_rn(sum.x, th_bf16_low(codes));
        sum.y = __fadd_rn(sum.y, th_bf16_high(codes));
    }
    return make_float2(th_round_bf16(sum.x), th_round_bf16(sum.y));
}

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
    bool speech = frame[0] >= at.semantic_start && frame[0] <= at.semantic_end;
    const uint16_t *token = at.embed + static_cast<size_t>(frame[0]) * static_cast<size_t>(at.width);
    uint32_t *out = reinterpret_cast<uint32_t *>(at.stream + static_cast<size_t>(column) * static_cast<size_t>(at.width));
    for (int pair = static_cast<int>(threadIdx.x); pair < at.width / 2; pair += THREADS) {
        uint32_t value = load_pair(token, pair);
        if (speech) {
            float2 codes = sum_codes(at.code_embed, frame, 1, at.books, at.codebook_size, at.width, pair);
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

/* The label's embedding plus the extra input, two channels. */
__device__ uint32_t label_pair(const struct th_cuda_label &at, const th_cuda_column *column, int pair)
{
    uint32_t value = 0;
    if (column->label[0] >= at.semantic_start && column->label[0] <= at.semantic_end) {
        int code = clamp_code(column->label[1 + at.book], at.table_rows);
        value = load_pair(at.table + static_cast<size_t>(code) * static_cast<size_t>(at.width), pair);
    }
    if (at.first == 0) return value;
    float2 extra = make_float2(0.0f, 0.0f);
    if (column->input[0] >= at.semantic_start && column->input[0] <= at.semantic_end)
        extra = sum_codes(at.code_embed, column->input, at.first, at.codebooks - 1, at.codebook_size, at.width, pair);
    return th_float_bf16_pair(__fadd_rn(th_bf16_low(value), extra.x), __fadd_rn(th_bf16_high(value), extra.y));
}

__global__ void __launch_bounds__(THREADS) label_kernel(const struct th_cuda_label at)
{
    th_dependency_release();
    th_dependency_wait();
    int i = static_cast<int>(blockIdx.x);
    if (i >= at.pass->tower_count) return;
    const th_cuda_column *column = &at.pass->column[at.pass->capacity + i];
    uint32_t *out = reinterpret_cast<uint32_t *>(at.out + static_cast<size_t>(i) * static_cast<size_t>(at.width));
    for (int pair = static_cast<int>(threadIdx.x); pair < at.width / 2; pair += THREADS) out[pair] = label_pair(at, column, pair);
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

extern "C" cudaError_t th_cuda_label(const struct th_cuda_launch *launch, const struct th_cuda_label *label)
{
    return th_launch(launch, label_kernel, dim3(static_cast<unsigned>(label->columns)), dim3(THREADS), 0, *label);
}

TH_CUDA_KERNELS(embed) = {TH_CUDA_KERNEL(THREADS, 0, embed_kernel), TH_CUDA_KERNEL(THREADS, 0, hand_kernel),
                          TH_CUDA_KERNEL(THREADS, 0, label_kernel), TH_CUDA_KERNELS_END};
