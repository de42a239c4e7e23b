// experts.cu - the mixture of experts for few columns: each entry (column, slot) reads its expert's weights by itself. Two kernels:
// gate and up, whose blocks choose experts and quantise their input on the way; and down with everything after it.
#include "backend/cuda/experts_parts.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/route_row.cuh"

#define WARPS TH_EXPERT_WARPS
#define THREADS TH_EXPERT_THREADS

// ---- gate and up: a block has one row tile of one entry; its warps have the segments
// ---------------------------------------------

// Expert of the block's slot by the first warp; the block of tile 0 and slot 0 also writes the choice of its column.
template <int each> static __device__ __forceinline__ int choose_expert(const struct th_cuda_moe &m, int c, int slot, int lane)
{
    struct th_route_row<each> row;
    th_route_load(row, m.router + static_cast<size_t>(c) * static_cast<size_t>(m.router_stride), m.experts.count, lane);
    if (blockIdx.x == 0 && slot == 0) {
        float weight;
        const int expert = th_route_choose(row, m.experts.count, m.top_k, lane, &weight);
        if (lane < m.top_k) {
            m.chosen[c * m.top_k + lane] = expert;
            m.weights[c * m.top_k + lane] = weight;
        }
        return __shfl_sync(0xFFFFFFFFu, expert, 0);
    }
    int expert = -1;
    for (int s = 0; s <= slot; s++) expert = th_route_next(row);
    return expert < 0 ? slot : expert;
}

// Column 0's sums of a tile: [segments][16 rows].
static __device__ __forceinline__ void keep_column(float *sums, const float sum[4], int lane)
{
    if (lane % 4 != 0) return;
    sums[lane / 4] = sum[0];
    sums[lane / 4 + 8] = sum[2];
}
template <int segments> static __device__ __forceinline__ float add_column(const float *sums, int r)
{
    float sum = 0.0f;
#pragma unroll
    for (int s = 0; s < segments; s++) sum = __fadd_rn(sum, sums[s * 16 + r]);
    return sum;
}

// One segment of FP8: blocks from..to-1, two of them under way.
static __device__ __forceinline__ void code_segment(float sum[4], const unsigned char *tile, int from, int to, const uint8_t *codes,
                                                    const float *scales, const float *gate, const float *up, int lane)
{
    const uint4 none = make_uint4(0, 0, 0, 0);
    const bool mine = lane < 4; // column 0; the others are zeros
    for (int b = from; b < to; b += 2) {
        uint4 w[2][4];
        float g[2], u[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (b + i >= to) break;
            th_load_block(w[i], tile, b + i);
            g[i] = __ldg(gate + b + i);
            u[i] = __ldg(up + b + i);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (b + i >= to) break;
            const uint8_t *x = codes + (b + i) * 128 + lane * 16;
            float inner[4];
            th_block_product(inner, w[i], mine ? th_load_16(x) : none, mine ? th_load_16(x + 64) : none);
            const float scale = scales[b + i];
            th_enter_block(sum, inner, scale, scale, g[i], u[i]);
        }
    }
}

template <bool fp8, bool routed, int each>
static __global__ void __launch_bounds__(THREADS, 4) entry_pair(const struct th_cuda_moe m)
{
    const int segments = fp8 ? TH_CODE_SEGMENTS : TH_SEGMENTS;
    TH_DYNAMIC_SHARED(unsigned char, shared);
    __shared__ float sums[segments * 16];
    __shared__ int chosen;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int tile = static_cast<int>(blockIdx.x), entry = static_cast<int>(blockIdx.y), c = entry / m.top_k,
              slot = entry % m.top_k;
    const int hidden = m.experts.hidden;
    float *scales = reinterpret_cast<float *>(shared + hidden); // after the codes
    th_dependency_release();
    th_dependency_wait();
    if (m.count != nullptr && c >= __ldcg(m.count)) return;
    const size_t row = static_cast<size_t>(c) * static_cast<size_t>(hidden);
    if (warp == 0) {
        const int expert = routed ? choose_expert<each>(m, c, slot, lane) : __ldcg(m.chosen + entry);
        if (lane == 0) chosen = expert;
    }
    if (fp8) {
        const bool writes = tile == 0 && slot == 0;
        if (!routed || warp > 0)
            th_quantise_row(m.x + row, hidden, routed ? warp - 1 : warp, routed ? WARPS - 1 : WARPS, lane, shared, scales,
                            writes ? m.codes + row : nullptr, writes ? m.scales + row / 128 : nullptr);
    }
    __syncthreads();
    const int expert = chosen;
    if (fp8) {
        const int blocks = hidden / 128;
        const unsigned char *at = th_expert_tile(m.experts.gate_up, m.experts.gate_up_bytes, expert, tile, hidden / 64, lane);
        float sum[4] = {};
        code_segment(sum, at, warp * blocks / segments, (warp + 1) * blocks / segments, shared, scales,
                     th_pair_scales(m.experts, expert, 0, tile), th_pair_scales(m.experts, expert, 1, tile), lane);
        keep_column(sums + warp * 16, sum, lane);
    } else {
        const int steps = hidden / 32;
        const unsigned char *at = th_expert_tile(m.experts.gate_up, m.experts.gate_up_bytes, expert, tile, steps, lane);
        for (int s = 2 * warp; s < 2 * warp + 2; s++) {
            float sum[4] = {};
            for (int i = th_segment(s, steps); i < th_segment(s + 1, steps); i++)
                th_step_product(sum, at, i, lane < 4 ? th_load_shared_row(m.x + row + i * 32 + lane * 8) : make_uint4(0, 0, 0, 0));
            keep_column(sums + s * 16, sum, lane);
        }
    }
    __syncthreads();
    const int r = static_cast<int>(threadIdx.x);
    if (r >= 8) return;
    m.act[static_cast<size_t>(entry) * static_cast<size_t>(m.experts.inner) + static_cast<size_t>(tile * 8 + r)] =
        th_silu_pair(add_column<segments>(sums, r), add_column<segments>(sums, r + 8));
}

// ---- down: a block has 16 rows of one column; each warp has a slot, and two segments of the shared expert
// ------------------------

// Bytes of a row's codes and scales in shared memory, a multiple of 16.
static __host__ __device__ __forceinline__ int code_row(int n)
{
    return (n + n / 32 + 15) / 16 * 16;
}

// The whole sum of a slot, in column 0.
static __device__ __forceinline__ void slot_codes(float sum[4], const struct th_cuda_moe &m, int expert, int tile,
                                                  const uint16_t *act, uint8_t *codes, float *scales, int lane)
{
    const int inner = m.experts.inner, blocks = inner / 128;
    const unsigned char *at = th_expert_tile(m.experts.down, m.experts.down_bytes, expert, tile, inner / 64, lane);
    const float *weights = th_down_scales(m.experts, expert, tile);
    const uint4 none = make_uint4(0, 0, 0, 0);
    for (int b = 0; b < blocks; b += 4) {
        uint4 w[4][4];
        float scale[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (b + i >= blocks) break;
            th_load_block(w[i], at, b + i);
            scale[i] = __ldg(weights + b + i);
        }
        if (b == 0) {
            th_quantise_row(act, inner, 0, 1, lane, codes, scales, nullptr, nullptr);
            __syncwarp();
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (b + i >= blocks) break;
            const uint8_t *x = codes + (b + i) * 128 + lane * 16;
            float part[4];
            th_block_product(part, w[i], lane < 4 ? th_load_16(x) : none, lane < 4 ? th_load_16(x + 64) : none);
            th_enter_block(sum, part, scales[b + i], scales[b + i], scale[i], scale[i]);
        }
    }
}

template <bool fp8> static __global__ void __launch_bounds__(THREADS, 2) entry_down(const struct th_cuda_moe m)
{
    TH_DYNAMIC_SHARED(unsigned char, shared); // each warp: codes [inner], scales [inner / 128]
    __shared__ float parts[TH_CUDA_MOST_TOP_K * 16], sums[TH_SEGMENTS * 16];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int tile = static_cast<int>(blockIdx.x), c = static_cast<int>(blockIdx.y), inner = m.experts.inner;
    const int steps = m.shared_down.cols / 32,
              begin[3] = {th_segment(2 * warp, steps), th_segment(2 * warp + 1, steps), th_segment(2 * warp + 2, steps)};
    const unsigned char *down = static_cast<const unsigned char *>(m.shared_down.tiles) +
                                static_cast<size_t>(tile) * static_cast<size_t>(steps) * TH_TILE_BYTES + lane * 16;
    uint4 first[2][2]; // the first step of both segments, before anything else
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (begin[i] < begin[i + 1]) {
            first[i][0] = th_load_stream(down + static_cast<size_t>(begin[i]) * TH_TILE_BYTES);
            first[i][1] = th_load_stream(down + static_cast<size_t>(begin[i]) * TH_TILE_BYTES + 512);
        }
    th_dependency_release();
    th_dependency_wait();
    if (m.count != nullptr && c >= __ldcg(m.count)) return;
    if (warp < m.top_k) {
        const int entry = c * m.top_k + warp, expert = __ldcg(m.chosen + entry);
        const float weight = __ldcg(m.weights + entry);
        const uint16_t *act = m.act + static_cast<size_t>(entry) * static_cast<size_t>(inner);
        float sum[4] = {};
        if (fp8) {
            uint8_t *codes = shared + warp * code_row(inner);
            slot_codes(sum, m, expert, tile, act, codes, reinterpret_cast<float *>(codes + inner), lane);
        } else {
            const unsigned char *at = th_expert_tile(m.experts.down, m.experts.down_bytes, expert, tile, inner / 32, lane);
            for (int i = 0; i < inner / 32; i++)
                th_step_product(sum, at, i, lane < 4 ? th_load_shared_row(act + i * 32 + lane * 8) : make_uint4(0, 0, 0, 0));
        }
        if (lane % 4 == 0) {
            parts[warp * 16 + lane / 4] = th_round_bf16(__fmul_rn(weight, sum[0]));
            parts[warp * 16 + lane / 4 + 8] = th_round_bf16(__fmul_rn(weight, sum[2]));
        }
    }
    const uint16_t *x = m.shared_act + static_cast<size_t>(c) * static_cast<size_t>(m.shared_down.cols) + lane * 8;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum[4] = {};
        if (begin[i] < begin[i + 1]) {
            const uint4 b = lane < 4 ? th_load_shared_row(x + begin[i] * 32) : make_uint4(0, 0, 0, 0);
            th_mma_bf16(sum, first[i][0], b.x, b.y);
            th_mma_bf16(sum, first[i][1], b.z, b.w);
        }
        for (int k = begin[i] + 1; k < begin[i + 1]; k++)
            th_step_product(sum, down, k, lane < 4 ? th_load_shared_row(x + k * 32) : make_uint4(0, 0, 0, 0));
        keep_column(sums + (2 * warp + i) * 16, sum, lane);
    }
    __syncthreads();
    const int r = static_cast<int>(threadIdx.x);
    if (r >= 16) return;
    float routed = 0.0f;
    for (int s = 0; s < m.top_k; s++) routed = __fadd_rn(routed, parts[s * 16 + r]);
    th_write_mixed(m, c, tile * 16 + r, routed, add_column<TH_SEGMENTS>(sums, r), th_sigmoid(__ldcg(m.shared_open + c)));
}

// ---- launching
// ----------------------------------------------------------------------------------------------------------------------

template <bool fp8> static cudaError_t entries(const struct th_cuda_launch *launch, const struct th_cuda_moe *m)
{
    const struct th_cuda_experts *x = &m->experts;
    const dim3 pairs(x->inner / 8, m->columns * m->top_k), rows(x->hidden / 16, m->columns), block(THREADS);
    const size_t codes = fp8 ? static_cast<size_t>(x->hidden + x->hidden / 32) : 0;
    const size_t acts = fp8 ? static_cast<size_t>(WARPS * code_row(x->inner)) : 0;
    if (m->columns <= 2 && x->count <= 256) {
        TH_CUDA_TRY(th_launch(launch, entry_pair<fp8, true, 8>, pairs, block, codes, *m));
    } else {
        TH_CUDA_TRY(
            th_cuda_route(launch, m->router, m->router_stride, x->count, m->top_k, m->columns, m->count, m->chosen, m->weights));
        TH_CUDA_TRY(th_launch(launch, entry_pair<fp8, false, 1>, pairs, block, codes, *m));
    }
    return th_launch(launch, entry_down<fp8>, rows, block, acts, *m);
}

extern "C" cudaError_t th_cuda_moe(const struct th_cuda_launch *launch, const struct th_cuda_moe *moe)
{
    if (moe->columns <= 0) return cudaSuccess;
    if (moe->columns > TH_CUDA_ENTRY_COLUMNS) return th_cuda_moe_grouped(launch, moe);
    return moe->experts.fp8 ? entries<true>(launch, moe) : entries<false>(launch, moe);
}

TH_CUDA_KERNELS(experts) = {TH_CUDA_KERNEL(THREADS, 32768, entry_pair<true, true, 8>),
                            TH_CUDA_KERNEL(THREADS, 32768, entry_pair<true, false, 1>),
                            TH_CUDA_KERNEL(THREADS, 0, entry_pair<false, true, 8>),
                            TH_CUDA_KERNEL(THREADS, 0, entry_pair<false, false, 1>),
                            TH_CUDA_KERNEL(THREADS, 40960, entry_down<true>),
                            TH_CUDA_KERNEL(THREADS, 0, entry_down<false>),
                            TH_CUDA_KERNELS_END};
