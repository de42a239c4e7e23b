// route_row.cuh - the router's choice for one column, by one warp: a kernel of route.cu and the prologue of experts.cu.
#ifndef THESPIS_BACKEND_CUDA_ROUTE_ROW_CUH
#define THESPIS_BACKEND_CUDA_ROUTE_ROW_CUH

#include "backend/cuda/launch.cuh"
#include "backend/cuda/route.h"

// Logits of a column: lane l has experts l, l + 32, ... `each` of them.
template <int each> struct th_route_row {
    float logit[each];
    uint32_t key[each]; // rising with the logit, falling with the expert's id; 0: none, or chosen already
};

// Rises with the logit (bf16, upper half of its bits); both zeros alike; 0 for NaN, otherwise above 0.
static __device__ __forceinline__ uint32_t th_route_order(float logit)
{
    if (logit != logit) return 0;
    const uint32_t bits = __float_as_uint(__fadd_rn(logit, 0.0f)) >> 16;
    return bits & 0x8000u ? 0xFFFFu - bits : bits | 0x8000u;
}

template <int each>
static __device__ __forceinline__ void th_route_load(struct th_route_row<each> &row, const uint16_t *logits, int experts, int lane)
{
#pragma unroll
    for (int k = 0; k < each; k++) {
        const int id = lane + 32 * k;
        row.logit[k] = id < experts ? th_bf16_float(__ldcg(logits + id)) : __uint_as_float(0xFF800000u);
    }
#pragma unroll
    for (int k = 0; k < each; k++) {
        const int id = lane + 32 * k;
        row.key[k] = id < experts && row.logit[k] == row.logit[k]
                         ? th_route_order(row.logit[k]) << 16 | (0xFFFFu - static_cast<uint32_t>(id))
                         : 0;
    }
}

// The best expert that is left, in all lanes, and no longer left; -1 when there is none.
template <int each> static __device__ __forceinline__ int th_route_next(struct th_route_row<each> &row)
{
    uint32_t best = 0;
#pragma unroll
    for (int k = 0; k < each; k++) best = max(best, row.key[k]);
    best = __reduce_max_sync(0xFFFFFFFFu, best);
    if (best == 0) return -1;
#pragma unroll
    for (int k = 0; k < each; k++)
        if (row.key[k] == best) row.key[k] = 0;
    return static_cast<int>(0xFFFFu - (best & 0xFFFFu));
}

// exp(logit - largest) of this lane's experts, and their sum over all: as the CPU adds, sixteen running sums (id mod 16) and a
// tree.
template <int each>
static __device__ __forceinline__ float th_route_powers(const struct th_route_row<each> &row, int experts, int lane,
                                                        float power[each])
{
    float most = __uint_as_float(0xFF800000u);
#pragma unroll
    for (int k = 0; k < each; k++) most = row.logit[k] > most ? row.logit[k] : most;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        const float other = __shfl_xor_sync(0xFFFFFFFFu, most, distance);
        most = other > most ? other : most;
    }
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < each; k++) {
        power[k] = lane + 32 * k < experts ? th_exp(__fsub_rn(row.logit[k], most)) : 0.0f;
        const float other = __shfl_xor_sync(0xFFFFFFFFu, power[k], 16);
        sum = __fadd_rn(__fadd_rn(sum, lane < 16 ? power[k] : other), lane < 16 ? other : power[k]);
    }
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, distance));
    return sum;
}

// Lane s < top_k gets slot s's expert and weight; others expert 0 and weight 0.
template <int each>
static __device__ __forceinline__ int th_route_choose(struct th_route_row<each> &row, int experts, int top_k, int lane,
                                                      float *weight)
{
    float power[each];
    const float sum = th_route_powers(row, experts, lane, power);
    int mine = 0;
    float chosen = 0.0f, total = 0.0f;
    for (int slot = 0; slot < top_k; slot++) {
        int expert = th_route_next(row);
        if (expert < 0) expert = slot; // a row of NaN stays one
        float value = 0.0f;
#pragma unroll
        for (int k = 0; k < each; k++)
            if (k == expert / 32) value = power[k];
        value = __fdiv_rn(__shfl_sync(0xFFFFFFFFu, value, expert % 32), sum);
        total = __fadd_rn(total, value);
        if (lane == slot) {
            mine = expert;
            chosen = value;
        }
    }
    *weight = lane < top_k ? __fdiv_rn(chosen, total) : 0.0f;
    return mine;
}

#endif
