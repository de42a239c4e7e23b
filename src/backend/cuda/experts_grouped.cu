// experts_grouped.cu - the mixture of experts for many columns: entries are grouped by expert, so that an expert's weights are read
// once for all of its columns. Sums as in experts.cu, column by column.
#include "backend/cuda/experts_parts.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/norm.h"

#define WARPS TH_EXPERT_WARPS
#define THREADS TH_EXPERT_THREADS
#define SUM_ROW 20 // floats from column to column: 16, and no two lanes in one bank

// The entries of a block's expert.
struct group_range {
    int expert, first, end;
};
static __device__ __forceinline__ struct group_range range_of(const struct th_cuda_groups &groups)
{
    struct group_range range = {-1, 0, 0};
    if (static_cast<int>(blockIdx.y) >= __ldcg(groups.active_count)) return range;
    range.expert = __ldcg(groups.active + blockIdx.y);
    range.first = __ldcg(groups.first + range.expert);
    range.end = __ldcg(groups.first + range.expert + 1);
    return range;
}

static __device__ __forceinline__ void keep_columns(float *sums, const float sum[4], int lane)
{
    float *at = sums + lane % 4 * 2 * SUM_ROW + lane / 4;
    at[0] = sum[0];
    at[SUM_ROW] = sum[1];
    at[8] = sum[2];
    at[SUM_ROW + 8] = sum[3];
}

// ---- gate and up: a block has row tiles of an expert, its warps the segments, eight columns a group
// ------------------------------

// The lane's columns of the turn that begins at entry place `first`: column lane / 4 of each group; places past the end repeat the
// last.
template <int groups>
static __device__ __forceinline__ void find_columns(int column[groups], const struct th_cuda_moe &m,
                                                    const struct th_cuda_groups &list, const struct group_range &range, int first,
                                                    int lane)
{
#pragma unroll
    for (int t = 0; t < groups; t++) column[t] = __ldcg(list.entry + min(first + t * 8 + lane / 4, range.end - 1)) / m.top_k;
}

// What becomes of a turn's sums [segments][groups * 8 columns][SUM_ROW] of row tile `tile`.
template <int segments>
static __device__ __forceinline__ void write_acts(const struct th_cuda_moe &m, const struct th_cuda_groups &list,
                                                  const struct group_range &range, int first, int columns, const float *sums,
                                                  int tile)
{
    for (int i = static_cast<int>(threadIdx.x); i < columns * 8; i += THREADS) {
        const int r = i % 8, c = i / 8;
        if (first + c >= range.end) break;
        float g = 0.0f, u = 0.0f;
#pragma unroll
        for (int s = 0; s < segments; s++) {
            const float *at = sums + (s * columns + c) * SUM_ROW + r;
            g = __fadd_rn(g, at[0]);
            u = __fadd_rn(u, at[8]);
        }
        const int entry = __ldcg(list.entry + first + c);
        m.act[static_cast<size_t>(entry) * static_cast<size_t>(m.experts.inner) + static_cast<size_t>(tile * 8 + r)] =
            th_silu_pair(g, u);
    }
}

#define PAIR_TILES 2
#define PAIR_BLOCKS 2 // of 128 inputs that lie in shared memory
#define PAIR_SLICE (PAIR_TILES * PAIR_BLOCKS * 2 * TH_TILE_BYTES)

// Blocks from..to-1 (PAIR_BLOCKS at most) of both tiles into this lane's part of its warp's slice, where nobody else looks.
static __device__ __forceinline__ void copy_pair(unsigned char *mine, const unsigned char *tile, size_t tile_bytes, int from,
                                                 int to)
{
#pragma unroll
    for (int i = 0; i < PAIR_BLOCKS; i++) {
        if (from + i >= to) break;
#pragma unroll
        for (int k = 0; k < PAIR_TILES * 4; k++)
            th_copy_async(mine + (i * PAIR_TILES * 4 + k) * 512,
                          tile + k / 4 * tile_bytes + static_cast<size_t>(from + i) * (2 * TH_TILE_BYTES) + k % 4 * 512);
    }
    th_copy_commit();
}

// Those blocks times the turn's columns, once the copies have arrived.
template <int groups>
static __device__ __forceinline__ void multiply_pair(float sum[PAIR_TILES][groups][4], const struct th_cuda_moe &m,
                                                     const unsigned char *mine, int from, int to, const float *gate,
                                                     const float *up, const int column[groups], int lane)
{
    const int q = lane % 4;
    uint4 x[PAIR_BLOCKS][groups][2];
    float scale[PAIR_BLOCKS][groups];
#pragma unroll
    for (int i = 0; i < PAIR_BLOCKS; i++) {
        if (from + i >= to) break;
#pragma unroll
        for (int t = 0; t < groups; t++) {
            const size_t row = static_cast<size_t>(column[t]) * static_cast<size_t>(m.experts.hidden);
            const uint8_t *at = m.codes + row + (from + i) * 128 + q * 16;
            x[i][t][0] = th_load_shared_row(at);
            x[i][t][1] = th_load_shared_row(at + 64);
            scale[i][t] = __ldcg(m.scales + row / 128 + from + i);
        }
    }
    th_copy_wait<0>();
#pragma unroll
    for (int i = 0; i < PAIR_BLOCKS; i++) {
        if (from + i >= to) break;
        const float g = __ldg(gate + from + i), u = __ldg(up + from + i);
#pragma unroll
        for (int tile = 0; tile < PAIR_TILES; tile++) {
            uint4 w[4];
#pragma unroll
            for (int k = 0; k < 4; k++) w[k] = th_load_16(mine + ((i * PAIR_TILES + tile) * 4 + k) * 512);
#pragma unroll
            for (int t = 0; t < groups; t++) {
                float inner[4];
                th_block_product(inner, w, x[i][t][0], x[i][t][1]);
                th_enter_block(sum[tile][t], inner, __shfl_sync(0xFFFFFFFFu, scale[i][t], 8 * q),
                               __shfl_sync(0xFFFFFFFFu, scale[i][t], 8 * q + 4), g, u);
            }
        }
    }
}

// FP8. Weights stay in shared memory over all turns if a segment has no more than PAIR_BLOCKS.
template <int groups>
static __global__ void __launch_bounds__(THREADS, groups == 1 ? 3 : 2)
    code_pair(const struct th_cuda_moe m, const struct th_cuda_groups list)
{
    constexpr int each = groups * 8 * SUM_ROW;
    TH_DYNAMIC_SHARED(unsigned char, shared); // slices, sums [PAIR_TILES][segments][each]
    float *const sums = reinterpret_cast<float *>(shared + WARPS * PAIR_SLICE);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int tile = static_cast<int>(blockIdx.x) * PAIR_TILES, tiles = m.experts.inner / 8, hidden = m.experts.hidden;
    const int blocks = hidden / 128, from = warp * blocks / TH_CODE_SEGMENTS, to = (warp + 1) * blocks / TH_CODE_SEGMENTS;
    unsigned char *const mine = shared + warp * PAIR_SLICE + lane * 16;
    th_dependency_release();
    th_dependency_wait();
    const struct group_range range = range_of(list);
    if (range.expert < 0) return;
    const unsigned char *at = th_expert_tile(m.experts.gate_up, m.experts.gate_up_bytes, range.expert, tile, hidden / 64, lane);
    const size_t tile_bytes = tile + 1 < tiles ? static_cast<size_t>(hidden / 64) * TH_TILE_BYTES : 0; // an odd last tile twice
    const float *gate = th_pair_scales(m.experts, range.expert, 0, tile), *up = th_pair_scales(m.experts, range.expert, 1, tile);
    const bool whole = to - from <= PAIR_BLOCKS;
    if (whole) copy_pair(mine, at, tile_bytes, from, to);
    for (int first = range.first; first < range.end; first += groups * 8) {
        int column[groups];
        find_columns<groups>(column, m, list, range, first, lane);
        float sum[PAIR_TILES][groups][4] = {};
        for (int b = from; b < to; b += PAIR_BLOCKS) {
            if (!whole) copy_pair(mine, at, tile_bytes, b, to);
            multiply_pair<groups>(sum, m, mine, b, to, gate, up, column, lane);
        }
#pragma unroll
        for (int i = 0; i < PAIR_TILES; i++)
#pragma unroll
            for (int t = 0; t < groups; t++)
                keep_columns(sums + (i * TH_CODE_SEGMENTS + warp) * each + t * 8 * SUM_ROW, sum[i][t], lane);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PAIR_TILES; i++)
            if (tile + i < tiles)
                write_acts<TH_CODE_SEGMENTS>(m, list, range, first, groups * 8, sums + i * TH_CODE_SEGMENTS * each, tile + i);
        __syncthreads();
    }
}

static __global__ void __launch_bounds__(THREADS, 2) bf16_pair(const struct th_cuda_moe m, const struct th_cuda_groups list)
{
    __shared__ float sums[TH_SEGMENTS * 8 * SUM_ROW];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
              tile = static_cast<int>(blockIdx.x);
    const int hidden = m.experts.hidden, steps = hidden / 32;
    th_dependency_release();
    th_dependency_wait();
    const struct group_range range = range_of(list);
    if (range.expert < 0) return;
    const unsigned char *at = th_expert_tile(m.experts.gate_up, m.experts.gate_up_bytes, range.expert, tile, steps, lane);
    for (int first = range.first; first < range.end; first += 8) {
        int column[1];
        find_columns<1>(column, m, list, range, first, lane);
        const uint16_t *x = m.x + static_cast<size_t>(column[0]) * static_cast<size_t>(hidden) + lane % 4 * 8;
        for (int s = 2 * warp; s < 2 * warp + 2; s++) {
            float sum[4] = {};
            for (int i = th_segment(s, steps); i < th_segment(s + 1, steps); i++)
                th_step_product(sum, at, i, th_load_shared_row(x + i * 32));
            keep_columns(sums + s * 8 * SUM_ROW, sum, lane);
        }
        __syncthreads();
        write_acts<TH_SEGMENTS>(m, list, range, first, 8, sums, tile);
        __syncthreads();
    }
}

// ---- down: a block has 128 rows of an expert, a warp a row tile; eight columns a group
// -------------------------------------------

// This lane's two columns of a group whose first entry place is `first`.
static __device__ __forceinline__ void write_parts(const struct th_cuda_moe &m, const struct th_cuda_groups &list,
                                                   const struct group_range &range, const float sum[4], int first, int row, int q)
{
#pragma unroll
    for (int k = 0; k < 2; k++) {
        if (first + 2 * q + k >= range.end) break;
        const int entry = __ldcg(list.entry + first + 2 * q + k);
        const float weight = __ldcg(m.weights + entry);
        uint16_t *to = m.parts + static_cast<size_t>(entry) * static_cast<size_t>(m.experts.hidden) + static_cast<size_t>(row);
        to[0] = th_float_bf16(__fmul_rn(weight, sum[k]));
        to[8] = th_float_bf16(__fmul_rn(weight, sum[2 + k]));
    }
}

#define GROUPS_OF_DOWN(groups) ((groups) == 1 ? 1 : 4)
#define DOWN_BLOCKS 4 // of 128 inputs that lie in shared memory
#define DOWN_SLICE (DOWN_BLOCKS * 2 * TH_TILE_BYTES)

static __device__ __forceinline__ void copy_down(unsigned char *mine, const unsigned char *tile, int from, int to)
{
#pragma unroll
    for (int i = 0; i < DOWN_BLOCKS; i++) {
        if (from + i >= to) break;
#pragma unroll
        for (int k = 0; k < 4; k++)
            th_copy_async(mine + (i * 4 + k) * 512, tile + static_cast<size_t>(from + i) * (2 * TH_TILE_BYTES) + k * 512);
    }
    th_copy_commit();
}

// FP8: hidden is a multiple of 128. Weights stay in shared memory over all turns if they are no more than DOWN_BLOCKS.
template <int groups>
static __global__ void __launch_bounds__(THREADS, 2) code_down(const struct th_cuda_moe m, const struct th_cuda_groups list)
{
    TH_DYNAMIC_SHARED(unsigned char, shared); // slices, codes [groups * 8][inner + 64], scales [groups * 8][inner / 128]
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, q = lane % 4;
    const int tile = static_cast<int>(blockIdx.x) * WARPS + warp, inner = m.experts.inner, stride = inner + 64,
              blocks = inner / 128;
    unsigned char *const mine = shared + warp * DOWN_SLICE + lane * 16;
    uint8_t *const codes = shared + WARPS * DOWN_SLICE;
    float *const scales = reinterpret_cast<float *>(codes + groups * 8 * stride);
    th_dependency_release();
    th_dependency_wait();
    const struct group_range range = range_of(list);
    if (range.expert < 0) return;
    const unsigned char *at = th_expert_tile(m.experts.down, m.experts.down_bytes, range.expert, tile, inner / 64, lane);
    const float *weights = th_down_scales(m.experts, range.expert, tile);
    const bool whole = blocks <= DOWN_BLOCKS;
    if (whole) copy_down(mine, at, 0, blocks);
    for (int first = range.first; first < range.end; first += groups * 8) {
        __syncthreads(); // the turn before is done with the codes
#pragma unroll
        for (int t = 0; t < groups; t++) { // warp w quantises column w of each group
            const int c = t * 8 + warp;
            if (first + c >= range.end) break; // what lies there is not used
            const int entry = __ldcg(list.entry + first + c);
            th_quantise_row(m.act + static_cast<size_t>(entry) * static_cast<size_t>(inner), inner, 0, 1, lane, codes + c * stride,
                            scales + c * blocks, nullptr, nullptr);
        }
        __syncthreads();
        float sum[groups][4] = {};
        for (int b = 0; b < blocks; b += DOWN_BLOCKS) {
            if (!whole) copy_down(mine, at, b, blocks);
            th_copy_wait<0>();
#pragma unroll
            for (int i = 0; i < DOWN_BLOCKS; i++) {
                if (b + i >= blocks) break;
                const float scale = __ldg(weights + b + i);
                uint4 w[4];
#pragma unroll
                for (int k = 0; k < 4; k++) w[k] = th_load_16(mine + (i * 4 + k) * 512);
#pragma unroll
                for (int t = 0; t < groups; t++) {
                    if (first + t * 8 >= range.end) break;
                    const uint8_t *x = codes + (t * 8 + g) * stride + (b + i) * 128 + q * 16;
                    const float *two = scales + (t * 8 + 2 * q) * blocks + b + i;
                    float part[4];
                    th_block_product(part, w, th_load_16(x), th_load_16(x + 64));
                    th_enter_block(sum[t], part, two[0], two[blocks], scale, scale);
                }
            }
        }
#pragma unroll
        for (int t = 0; t < groups; t++) write_parts(m, list, range, sum[t], first + t * 8, tile * 16 + g, q);
    }
}

static __global__ void __launch_bounds__(THREADS, 2) bf16_down(const struct th_cuda_moe m, const struct th_cuda_groups list)
{
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, q = lane % 4;
    const int tile = static_cast<int>(blockIdx.x) * WARPS + warp, inner = m.experts.inner;
    th_dependency_release();
    th_dependency_wait();
    const struct group_range range = range_of(list);
    if (range.expert < 0 || tile >= m.experts.hidden / 16) return;
    const unsigned char *at = th_expert_tile(m.experts.down, m.experts.down_bytes, range.expert, tile, inner / 32, lane);
    for (int first = range.first; first < range.end; first += 8) {
        const int entry = __ldcg(list.entry + min(first + g, range.end - 1));
        const uint16_t *x = m.act + static_cast<size_t>(entry) * static_cast<size_t>(inner) + q * 8;
        float sum[4] = {};
        for (int i = 0; i < inner / 32; i++) th_step_product(sum, at, i, th_load_shared_row(x + i * 32));
        write_parts(m, list, range, sum, first, tile * 16 + g, q);
    }
}

// ---- sums of slots
// --------------------------------------------------------------------------------------------------------------------

// Two rows a thread.
static __global__ void __launch_bounds__(THREADS) combine(const struct th_cuda_moe m)
{
    const int c = static_cast<int>(blockIdx.y), row = (static_cast<int>(blockIdx.x) * THREADS + static_cast<int>(threadIdx.x)) * 2;
    const size_t hidden = static_cast<size_t>(m.experts.hidden);
    th_dependency_release();
    th_dependency_wait();
    if (row >= m.experts.hidden || (m.count != nullptr && c >= __ldcg(m.count))) return;
    const uint16_t *parts = m.parts + static_cast<size_t>(c * m.top_k) * hidden + static_cast<size_t>(row);
    uint32_t pairs[TH_CUDA_MOST_TOP_K];
#pragma unroll
    for (int s = 0; s < TH_CUDA_MOST_TOP_K; s++)
        pairs[s] = s < m.top_k ? __ldcg(reinterpret_cast<const uint32_t *>(parts + static_cast<size_t>(s) * hidden)) : 0;
    const uint32_t shared =
        __ldcg(reinterpret_cast<const uint32_t *>(m.shared + static_cast<size_t>(c) * hidden + static_cast<size_t>(row)));
    const float open = th_sigmoid(__ldcg(m.shared_open + c));
    float low = 0.0f, high = 0.0f;
#pragma unroll
    for (int s = 0; s < TH_CUDA_MOST_TOP_K; s++) {
        if (s >= m.top_k) break;
        low = __fadd_rn(low, th_bf16_low(pairs[s]));
        high = __fadd_rn(high, th_bf16_high(pairs[s]));
    }
    th_write_mixed(m, c, row, low, th_bf16_low(shared), open);
    th_write_mixed(m, c, row + 1, high, th_bf16_high(shared), open);
}

template <int groups>
static cudaError_t code_products(const struct th_cuda_launch *launch, const struct th_cuda_moe *m,
                                 const struct th_cuda_groups *list, int most)
{
    const struct th_cuda_experts *x = &m->experts;
    const dim3 pairs((x->inner / 8 + PAIR_TILES - 1) / PAIR_TILES, most), rows(x->hidden / 16 / WARPS, most), block(THREADS);
    const size_t sums = PAIR_TILES * TH_CODE_SEGMENTS * groups * 8 * SUM_ROW * sizeof(float);
    const size_t codes = static_cast<size_t>(GROUPS_OF_DOWN(groups) * 8 * (x->inner + 64 + x->inner / 128 * 4));
    TH_CUDA_TRY(th_launch(launch, code_pair<groups>, pairs, block, WARPS * PAIR_SLICE + sums, *m, *list));
    return th_launch(launch, code_down<GROUPS_OF_DOWN(groups)>, rows, block, WARPS * DOWN_SLICE + codes, *m, *list);
}

static cudaError_t bf16_products(const struct th_cuda_launch *launch, const struct th_cuda_moe *m,
                                 const struct th_cuda_groups *list, int most)
{
    const dim3 pairs(m->experts.inner / 8, most), rows((m->experts.hidden / 16 + WARPS - 1) / WARPS, most), block(THREADS);
    TH_CUDA_TRY(th_launch(launch, bf16_pair, pairs, block, 0, *m, *list));
    return th_launch(launch, bf16_down, rows, block, 0, *m, *list);
}

extern "C" cudaError_t th_cuda_moe_grouped(const struct th_cuda_launch *launch, const struct th_cuda_moe *m)
{
    const struct th_cuda_experts *x = &m->experts;
    const struct th_cuda_groups list = th_cuda_groups_in(m->groups, x->count);
    TH_CUDA_TRY(
        th_cuda_route(launch, m->router, m->router_stride, x->count, m->top_k, m->columns, m->count, m->chosen, m->weights));
    TH_CUDA_TRY(th_cuda_group(launch, m->chosen, x->count, m->top_k, m->columns, m->count, &list));
    if (x->fp8) TH_CUDA_TRY(th_cuda_quantise(launch, m->x, x->hidden, m->columns, m->codes, m->scales));
    const int entries = m->columns * m->top_k, most = entries < x->count ? entries : x->count;
    if (!x->fp8)
        TH_CUDA_TRY(bf16_products(launch, m, &list, most));
    else
        TH_CUDA_TRY(m->columns <= 64 ? code_products<1>(launch, m, &list, most) : code_products<2>(launch, m, &list, most));
    struct th_cuda_product down = {};
    down.w = m->shared_down;
    down.columns = m->columns;
    down.x = m->shared_act;
    down.x_stride = m->shared_down.cols;
    down.outputs = 1;
    down.output[0] = {TH_CUDA_STORE, x->hidden, m->shared, x->hidden};
    TH_CUDA_TRY(th_cuda_product(launch, &down));
    return th_launch(launch, combine, dim3((x->hidden / 2 + THREADS - 1) / THREADS, m->columns), dim3(THREADS), 0, *m);
}

TH_CUDA_KERNELS(experts_grouped) = {TH_CUDA_KERNEL(THREADS, 75776, code_pair<1>), TH_CUDA_KERNEL(THREADS, 86016, code_pair<2>),
                                    TH_CUDA_KERNEL(THREADS, 81920, code_down<1>), TH_CUDA_KERNEL(THREADS, 98304, code_down<4>),
                                    TH_CUDA_KERNEL(THREADS, 0, bf16_pair),        TH_CUDA_KERNEL(THREADS, 0, bf16_down),
                                    TH_CUDA_KERNEL(THREADS, 0, combine),          TH_CUDA_KERNELS_END};
