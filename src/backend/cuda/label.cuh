// label.cuh - embeddings of codes, two channels at a time: for the rows that come in (embed.cu) and for the label that a draw has
// just filled in (draw.cu).
#ifndef THESPIS_BACKEND_CUDA_LABEL_CUH
#define THESPIS_BACKEND_CUDA_LABEL_CUH

#include "backend/cuda/forward.h"
#include "backend/cuda/launch.cuh"

static __device__ __forceinline__ int th_clamp_code(int code, int size)
{
    return code < 0 ? 0 : code >= size ? size - 1 : code;
}

static __device__ __forceinline__ uint32_t th_load_pair(const uint16_t *row, int pair)
{
    return reinterpret_cast<const uint32_t *>(row)[pair];
}

/* Channels 2 pair, 2 pair + 1 of the sum over codes first..last of the frame, rounded; 32-bit sums in the order of the books. */
static __device__ __forceinline__ float2 th_sum_codes(const uint16_t *code_embed, const int32_t *frame, int first, int last,
                                                      int size, int width, int pair)
{
    float2 sum = make_float2(0.0f, 0.0f);
    for (int book = first; book <= last; book++) {
        size_t row =
            static_cast<size_t>(book) * static_cast<size_t>(size) + static_cast<size_t>(th_clamp_code(frame[1 + book], size));
        uint32_t codes = th_load_pair(code_embed + row * static_cast<size_t>(width), pair);
        sum.x = __fadd_rn(sum.x, th_bf16_low(codes));
        sum.y = __fadd_rn(sum.y, th_bf16_high(codes));
    }
    return make_float2(th_round_bf16(sum.x), th_round_bf16(sum.y));
}

/* The label's embedding plus the extra input, two channels. */
static __device__ __forceinline__ uint32_t th_label_pair(const struct th_cuda_label &at, const uint16_t *table, int first,
                                                         const th_cuda_column *column, int pair)
{
    uint32_t value = 0;
    if (column->label[0] >= at.semantic_start && column->label[0] <= at.semantic_end) {
        int code = th_clamp_code(column->label[1 + at.book], at.table_rows);
        value = th_load_pair(table + static_cast<size_t>(code) * static_cast<size_t>(at.width), pair);
    }
    if (first == 0) return value;
    float2 extra = make_float2(0.0f, 0.0f);
    if (column->input[0] >= at.semantic_start && column->input[0] <= at.semantic_end)
        extra = th_sum_codes(at.code_embed, column->input, first, at.codebooks - 1, at.codebook_size, at.width, pair);
    return th_float_bf16_pair(__fadd_rn(th_bf16_low(value), extra.x), __fadd_rn(th_bf16_high(value), extra.y));
}

#endif
