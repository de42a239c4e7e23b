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

// ---- gate and up: a block has a row tile of an expert, its warps the segments, eight columns a group
// -----------------------------

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

template <int groups>
static __device__ __forceinline__ void code_segment(float sum[groups][4], const struct th_cuda_moe &m, const unsigned char *tile,
                                                    const float *gate, const float *up, const int column[groups], int warp,
                                                    int lane)
{
    const int hidden = m.experts.hidden, blocks = hidden / 128;
    const int from = warp * blocks / TH_CODE_SEGMENTS, to = (warp + 1) * blocks / TH_CODE_SEGMENTS, q = lane % 4;
    for (int b = from; b < to; b++) {
        uint4 w[4];
        th_load_block(w, tile, b);
        const float g = __ldg(gate + b), u = __ldg(up + b);
#pragma unroll
        for (int t = 0; t < groups; t++) {
            const size_t row = static_cast<size_t>(column[t]) * static_cast<size_t>(hidden);
            const uint8_t *x = m.codes + row + b * 128 + q * 16;
            const float scale = __ldcg(m.scales + row / 128 + b);
            float inner[4];
            th_block_product(inner, w, th_load_shared_row(x), th_load_shared_row(x + 64));
            th_enter_block(sum[t], inner, __shfl_sync(0xFFFFFFFFu, scale, 8 * q), __shfl_sync(0xFFFFFFFFu, scale, 8 * q + 4), g, u);
        }
    }
}

template <bool fp8, int groups>
static __global__ void __launch_bounds__(THREADS, 2) grouped_pair(const struct th_cuda_moe m, const struct th_cuda_groups list)
{
    const int segments = fp8 ? TH_CODE_SEGMENTS : TH_SEGMENTS;
    __shared__ float sums[segments][groups * 8 * SUM_ROW];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
              tile = static_cast<int>(blockIdx.x);
    const int hidden = m.experts.hidden, steps = hidden / (fp8 ? 64 : 32);
    th_dependency_release();
    th_dependency_wait();
    const struct group_range range = range_of(list);
    if (range.expert < 0) return;
    const unsigned char *at = th_expert_tile(m.experts.gate_up, m.experts.gate_up_bytes, range.expert, tile, steps, lane);
    for (int first = range.first; first < range.end; first += groups * 8) {
        int column[groups];
        find_columns<groups>(column, m, list, range, first, lane);
        if (fp8) {
            float sum[groups][4] = {};
            code_segment<groups>(sum, m, at, th_pair_scales(m.experts, range.expert, 0, tile),
                                 th_pair_scales(m.experts, range.expert, 1, tile), column, warp, lane);
#pragma unroll
            for (int t = 0; t < groups; t++) keep_columns(sums[warp] + t * 8 * SUM_ROW, sum[t], lane);
        } else {
            for (int s = 2 * warp; s < 2 * warp + 2; s++) {
                float sum[groups][4] = {};
                for (int i = th_segment(s, steps); i < th_segment(s + 1, steps); i++)
#pragma unroll
                    for (int t = 0; t < groups; t++)
                        th_step_product(sum[t], at, i,
                                        th_load_shared_row(m.x + static_cast<size_t>(column[t]) * static_cast<size_t>(hidden) +
                                                           i * 32 + lane % 4 * 8));
#pragma unroll
                for (int t = 0; t < groups; t++) keep_columns(sums[fp8 ? 0 : s] + t * 8 * SUM_ROW, sum[t], lane);
            }
        }
        __syncthreads();
        for (int i = static_cast<int>(threadIdx.x); i < groups * 64; i += THREADS) {
            const int r = i % 8, c = i / 8;
            if (first + c >= range.end) break;
            float g = 0.0f, u = 0.0f;
#pragma unroll
            for (int s = 0; s < segments; s++) {
                g = __fadd_rn(g, sums[s][c * SUM_ROW + r]);
                u = __fadd_rn(u, sums[s][c * SUM_ROW + r + 8]);
            }
            const int entry = __ldcg(list.entry + first + c);
            m.act[static_cast<size_t>(entry) * static_cast<size_t>(m.experts.inner) + static_cast<size_t>(tile * 8 + r)] =
                th_silu_pair(g, u);
        }
        __syncthreads();
    }
}

// ---- down: a block has 128 rows of an expert, a warp a row tile; eight columns a turn
// ---------------------------------------------

static __device__ __forceinline__ void write_parts(const struct th_cuda_moe &m, const float sum[4], int entry, int k, int row)
{
    const float weight = __ldcg(m.weights + entry);
    uint16_t *to = m.parts + static_cast<size_t>(entry) * static_cast<size_t>(m.experts.hidden) + static_cast<size_t>(row);
    to[0] = th_float_bf16(__fmul_rn(weight, sum[k]));
    to[8] = th_float_bf16(__fmul_rn(weight, sum[2 + k]));
}

template <bool fp8>
static __global__ void __launch_bounds__(THREADS, 2) grouped_down(const struct th_cuda_moe m, const struct th_cuda_groups list)
{
    TH_DYNAMIC_SHARED(unsigned char, shared); // codes [8 columns][inner + 64], scales [8][inner / 128]
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, q = lane % 4;
    const int tile = static_cast<int>(blockIdx.x) * WARPS + warp, inner = m.experts.inner, stride = inner + 64,
              blocks = inner / 128;
    const bool working = tile < m.experts.hidden / 16;
    float *scales = reinterpret_cast<float *>(shared + 8 * stride);
    th_dependency_release();
    th_dependency_wait();
    const struct group_range range = range_of(list);
    if (range.expert < 0) return;
    const unsigned char *at =
        th_expert_tile(m.experts.down, m.experts.down_bytes, range.expert, working ? tile : 0, inner / (fp8 ? 64 : 32), lane);
    const float *weights = fp8 ? th_down_scales(m.experts, range.expert, working ? tile : 0) : nullptr;
    for (int first = range.first; first < range.end; first += 8) {
        float sum[4] = {};
        if (fp8) { // warp w quantises column w
            __syncthreads();
            const int entry = __ldcg(list.entry + min(first + warp, range.end - 1));
            th_quantise_row(m.act + static_cast<size_t>(entry) * static_cast<size_t>(inner), inner, 0, 1, lane,
                            shared + warp * stride, scales + warp * blocks, nullptr, nullptr);
            __syncthreads();
            for (int b = 0; b < blocks; b++) {
                uint4 w[4];
                th_load_block(w, at, b);
                const uint8_t *x = shared + g * stride + b * 128 + q * 16;
                const float scale = __ldg(weights + b);
                float part[4];
                th_block_product(part, w, th_load_16(x), th_load_16(x + 64));
                th_enter_block(sum, part, scales[2 * q * blocks + b], scales[(2 * q + 1) * blocks + b], scale, scale);
            }
        } else {
            const int entry = __ldcg(list.entry + min(first + g, range.end - 1));
            const uint16_t *x = m.act + static_cast<size_t>(entry) * static_cast<size_t>(inner) + q * 8;
            for (int i = 0; i < inner / 32; i++) th_step_product(sum, at, i, th_load_shared_row(x + i * 32));
        }
        if (!working) continue;
#pragma unroll
        for (int k = 0; k < 2; k++)
            if (first + 2 * q + k < range.end) write_parts(m, sum, __ldcg(list.entry + first + 2 * q + k), k, tile * 16 + g);
    }
}

// ---- sums of slots
// --------------------------------------------------------------------------------------------------------------------

static __global__ void __launch_bounds__(THREADS) combine(const struct th_cuda_moe m)
{
    const int c = static_cast<int>(blockIdx.y), row = static_cast<int>(blockIdx.x) * THREADS + static_cast<int>(threadIdx.x);
    const size_t hidden = static_cast<size_t>(m.experts.hidden);
    th_dependency_release();
    th_dependency_wait();
    if (row >= m.experts.hidden || (m.count != nullptr && c >= __ldcg(m.count))) return;
    const uint16_t *parts = m.parts + static_cast<size_t>(c * m.top_k) * hidden + static_cast<size_t>(row);
    float routed = 0.0f;
    for (int s = 0; s < m.top_k; s++) routed = __fadd_rn(routed, th_bf16_float(__ldcg(parts + static_cast<size_t>(s) * hidden)));
    const float shared = th_bf16_float(__ldcg(m.shared + static_cast<size_t>(c) * hidden + static_cast<size_t>(row)));
    th_write_mixed(m, c, row, routed, shared, th_sigmoid(__ldcg(m.shared_open + c)));
}

template <bool fp8>
static cudaError_t grouped_products(const struct th_cuda_launch *launch, const struct th_cuda_moe *m,
                                    const struct th_cuda_groups *list)
{
    const struct th_cuda_experts *x = &m->experts;
    const int entries = m->columns * m->top_k, most = entries < x->count ? entries : x->count, tiles = x->hidden / 16;
    const dim3 pairs(x->inner / 8, most), rows((tiles + WARPS - 1) / WARPS, most), block(THREADS);
    TH_CUDA_TRY(m->columns <= 64 ? th_launch(launch, grouped_pair<fp8, 1>, pairs, block, 0, *m, *list)
                                 : th_launch(launch, grouped_pair < fp8, fp8 ? 4 : 1 >, pairs, block, 0, *m, *list));
    const size_t codes = fp8 ? static_cast<size_t>(8 * (x->inner + 64) + 8 * (x->inner / 128) * 4) : 0;
    return th_launch(launch, grouped_down<fp8>, rows, block, codes, *m, *list);
}

extern "C" cudaError_t th_cuda_moe_grouped(const struct th_cuda_launch *launch, const struct th_cuda_moe *m)
{
    const struct th_cuda_experts *x = &m->experts;
    const struct th_cuda_groups list = th_cuda_groups_in(m->groups, x->count);
    TH_CUDA_TRY(
        th_cuda_route(launch, m->router, m->router_stride, x->count, m->top_k, m->columns, m->count, m->chosen, m->weights));
    TH_CUDA_TRY(th_cuda_group(launch, m->chosen, x->count, m->top_k, m->columns, m->count, &list));
    if (x->fp8) TH_CUDA_TRY(th_cuda_quantise(launch, m->x, x->hidden, m->columns, m->codes, m->scales));
    TH_CUDA_TRY(x->fp8 ? grouped_products<true>(launch, m, &list) : grouped_products<false>(launch, m, &list));
    struct th_cuda_product down = {};
    down.w = m->shared_down;
    down.columns = m->columns;
    down.x = m->shared_act;
    down.x_stride = m->shared_down.cols;
    down.outputs = 1;
    down.output[0] = {TH_CUDA_STORE, x->hidden, m->shared, x->hidden};
    TH_CUDA_TRY(th_cuda_product(launch, &down));
    return th_launch(launch, combine, dim3((x->hidden + THREADS - 1) / THREADS, m->columns), dim3(THREADS), 0, *m);
}

TH_CUDA_KERNELS(experts_grouped) = {TH_CUDA_KERNEL(THREADS, 0, grouped_pair<true, 1>),
                                    TH_CUDA_KERNEL(THREADS, 0, grouped_pair<true, 4>),
                                    TH_CUDA_KERNEL(THREADS, 0, grouped_pair<false, 1>),
                                    TH_CUDA_KERNEL(THREADS, 40960, grouped_down<true>),
                                    TH_CUDA_KERNEL(THREADS, 0, grouped_down<false>),
                                    TH_CUDA_KERNEL(THREADS, 0, combine),
                                    TH_CUDA_KERNELS_END};
