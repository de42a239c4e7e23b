/* attention.cu - grouped-query attention with an output gate (docs/model.md, "Full attention layer"), for the backbone and the
 * tower. A cache is cut in splits of 64 rows, counted from row 0. Within a split, scores come from the matrix instruction (rows of
 * the cache times the query heads of one key head), sums over rows run row by row; splits are combined in order:
 *     m' = max(m, m_s); l = l exp(m - m') + l_s exp(m_s - m'); o likewise; at the end o / l.
 * Frames of several lanes run one block a split; the last of them to end combines, or, where splits are many, a second kernel does.
 * A prompt's rows, whose splits are many and whose blocks are plenty, run through their splits in one block each: the same
 * operations in the same order. */
#include "backend/cuda/forward.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace
{

/* Eight warps work on the eight query heads; a ninth places the row's own key and value. */
enum { GROUP = 8, WORKERS = 256, THREADS = 288, WARPS = THREADS / 32, ROWS = TH_CUDA_SPLIT, MERGED = 32, FOLDED = 16 };
static_assert(ROWS == 64 && WORKERS == 32 * GROUP, "four row tiles, two warps each");

/* What a block holds in shared memory. Rows of keys and queries are 32 values longer than a head, so that a warp's 16-byte loads of
 * eight rows meet all banks. */
template <int dim> struct __align__(16) th_tile
{
    enum { STRIDE = dim + 32 };
    uint16_t keys[ROWS * STRIDE];
    uint16_t values[ROWS * dim];
    uint16_t queries[GROUP * STRIDE];
    float work[WARPS * dim];
    float scores[2][ROWS * GROUP]; /* of the two halves of a head; then [0] holds the weights of values */
    float most[GROUP], sum[GROUP]; /* of the split */
    float all_most[GROUP], all_sum[GROUP];
    float keep[GROUP][MERGED], enter[GROUP][MERGED]; /* factors of what was summed before and of a split */
    float2 sums[GROUP][MERGED];
    int last;
};

__device__ __forceinline__ const th_cuda_column *column_of(const th_cuda_pass *pass, int tower, int i)
{
    return &pass->column[(tower ? pass->capacity : 0) + i];
}

__device__ __forceinline__ int count_of(const th_cuda_pass *pass, int tower)
{
    return tower ? pass->tower_count : pass->backbone_count;
}

__device__ __forceinline__ uint16_t *in_lane(uint16_t *base, const th_cuda_column *column, size_t stride)
{
    return reinterpret_cast<uint16_t *>(reinterpret_cast<char *>(base) + static_cast<size_t>(column->lane) * stride);
}

/* What the norm and the rotation of one head need beside its values; read before those are there. */
template <int dim> struct th_turn {
    enum { OWN = dim / 32, PAIRS = dim / 64 > 0 ? dim / 64 : 1 };
    float weight[OWN], cosine[PAIRS], sine[PAIRS];

    __device__ __forceinline__ void load(const struct th_cuda_attention &at, const float *weights, int position)
    {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const size_t row = static_cast<size_t>(position) * static_cast<size_t>(at.pairs);
#pragma unroll
        for (int i = 0; i < OWN; i++) weight[i] = weights[lane * OWN + i];
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
            if (lane + 32 * i < at.pairs) {
                cosine[i] = at.cosine[row + static_cast<size_t>(lane + 32 * i)];
                sine[i] = at.sine[row + static_cast<size_t>(lane + 32 * i)];
            }
    }
};

/* A lane's neighbouring values. */
template <int own> __device__ __forceinline__ void load_own(const uint16_t *from, float (&x)[own])
{
    if constexpr (own == 8) {
        uint4 v = th_load_16(from);
        const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[2 * i] = th_bf16_low(pairs[i]);
            x[2 * i + 1] = th_bf16_high(pairs[i]);
        }
    } else if constexpr (own == 1) {
        x[0] = th_bf16_float(*from);
    } else {
#pragma unroll
        for (int i = 0; i < own / 2; i++) {
            uint32_t pair = reinterpret_cast<const uint32_t *>(from)[i];
            x[2 * i] = th_bf16_low(pair);
            x[2 * i + 1] = th_bf16_high(pair);
        }
    }
}

/* One warp: out = rotated norm of a head, as bf16; `work` [dim] is the warp's. */
template <int dim>
__device__ void norm_rotate(const struct th_cuda_attention &at, const uint16_t *raw, const th_turn<dim> &turn, float *work,
                            uint16_t *out)
{
    const int lane = static_cast<int>(threadIdx.x) % 32, own = dim / 32;
    float x[own], squares = 0.0f;
    load_own<own>(raw + lane * own, x);
#pragma unroll
    for (int i = 0; i < own; i++) squares = fmaf(x[i], x[i], squares);
    for (int bits = 16; bits > 0; bits >>= 1) squares = __fadd_rn(squares, __shfl_xor_sync(0xFFFFFFFFu, squares, bits));
    float factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, static_cast<float>(dim)), at.eps)));
#pragma unroll
    for (int i = 0; i < own; i++)
        work[lane * own + i] = th_round_bf16(__fmul_rn(__fmul_rn(x[i], factor), __fadd_rn(1.0f, turn.weight[i])));
    __syncwarp();
#pragma unroll
    for (int k = 0; k < th_turn<dim>::PAIRS; k++) {
        const int i = lane + 32 * k;
        if (i >= at.pairs) continue;
        float *a = at.tower ? &work[2 * i] : &work[i], *b = at.tower ? &work[2 * i + 1] : &work[i + at.pairs];
        float turned = __fsub_rn(__fmul_rn(*a, turn.cosine[k]), __fmul_rn(*b, turn.sine[k]));
        *b = __fadd_rn(__fmul_rn(*b, turn.cosine[k]), __fmul_rn(*a, turn.sine[k]));
        *a = turned;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < own; i++) out[lane * own + i] = th_float_bf16(work[lane * own + i]);
    __syncwarp();
}

/* Starts copies of the split's rows first..first+count-1 into the tile. */
template <int dim>
__device__ void fetch(const struct th_cuda_attention &at, const uint16_t *keys, const uint16_t *values, int first, int count,
                      th_tile<dim> *tile)
{
    const int chunks = dim / 8;
    const size_t stride = static_cast<size_t>(at.kv_heads) * dim;
    for (int i = static_cast<int>(threadIdx.x); i < count * chunks; i += THREADS) {
        int row = i / chunks, chunk = i % chunks;
        size_t from = static_cast<size_t>(first + row) * stride + static_cast<size_t>(chunk * 8);
        th_copy_async(tile->keys + row * th_tile<dim>::STRIDE + chunk * 8, keys + from);
        th_copy_async(tile->values + row * dim + chunk * 8, values + from);
    }
    th_copy_commit();
}

/* scores[half] = keys x queries over that half of the head. K is permuted alike in both: a thread's eight inputs of 32 make the
 * pairs of two instructions. */
template <int dim> __device__ void score(th_tile<dim> *tile)
{
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int rows = warp % 4 * 16, half = warp / 4, group = lane / 4, quarter = lane % 4, steps = dim / 32;
    if (half > 1) return;
    const int begin = half == 0 ? 0 : (steps + 1) / 2, end = half == 0 ? (steps + 1) / 2 : steps;
    float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int step = begin; step < end; step++) {
        int k = step * 32 + quarter * 8;
        uint4 top = th_load_16(tile->keys + (rows + group) * th_tile<dim>::STRIDE + k);
        uint4 low = th_load_16(tile->keys + (rows + group + 8) * th_tile<dim>::STRIDE + k);
        uint4 query = th_load_16(tile->queries + group * th_tile<dim>::STRIDE + k);
        th_mma_bf16(c, make_uint4(top.x, low.x, top.y, low.y), query.x, query.y);
        th_mma_bf16(c, make_uint4(top.z, low.z, top.w, low.w), query.z, query.w);
    }
    float *out = tile->scores[half] + (rows + group) * GROUP + 2 * quarter;
    out[0] = c[0];
    out[1] = c[1];
    out[8 * GROUP] = c[2];
    out[8 * GROUP + 1] = c[3];
}

/* One warp a head: the split's largest score, its weights and their sum. */
template <int dim> __device__ void weigh(th_tile<dim> *tile, int count)
{
    const int head = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    if (head >= GROUP) return;
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(dim)));
    float *first = tile->scores[0] + head, *second = tile->scores[1] + head;
    float s[2], most = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = lane + 32 * i;
        s[i] = row < count ? __fmul_rn(__fadd_rn(first[row * GROUP], second[row * GROUP]), scale) : -INFINITY;
        most = s[i] > most ? s[i] : most;
    }
    for (int bits = 16; bits > 0; bits >>= 1) {
        float other = __shfl_xor_sync(0xFFFFFFFFu, most, bits);
        most = other > most ? other : most;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = lane + 32 * i;
        float weight = row < count ? th_exp(__fsub_rn(s[i], most)) : 0.0f;
        first[row * GROUP] = weight;
        sum = __fadd_rn(sum, weight);
    }
    for (int bits = 16; bits > 0; bits >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, bits));
    if (lane != 0) return;
    tile->most[head] = most;
    tile->sum[head] = sum;
}

/* The factors that bring two sums under one largest score, and the new sum of weights. */
struct th_merge {
    float most, sum, keep, enter;
};
__device__ __forceinline__ th_merge merge(float all_most, float all_sum, float most, float sum)
{
    th_merge to;
    to.most = most > all_most ? most : all_most;
    to.keep = th_exp(__fsub_rn(all_most, to.most));
    to.enter = th_exp(__fsub_rn(most, to.most));
    to.sum = fmaf(sum, to.enter, __fmul_rn(all_sum, to.keep));
    return to;
}
__device__ __forceinline__ float merge_value(float all, float split, float keep, float enter)
{
    return fmaf(split, enter, __fmul_rn(all, keep));
}

/* A thread's part of the output: two channels of `heads` heads. */
template <int dim> struct th_part {
    enum { PAIRS = dim / 2, GROUPS = WORKERS / PAIRS < GROUP ? WORKERS / PAIRS : GROUP, HEADS = GROUP / GROUPS };
    static __device__ __forceinline__ int channel()
    {
        return static_cast<int>(threadIdx.x) % PAIRS * 2;
    }
    static __device__ __forceinline__ int head()
    {
        return static_cast<int>(threadIdx.x) / PAIRS * HEADS;
    }
};

/* o = sum over the split's rows of weight * value. */
template <int dim> __device__ void gather(const th_tile<dim> *tile, int count, float (&o)[th_part<dim>::HEADS][2])
{
    const int channel = th_part<dim>::channel(), head = th_part<dim>::head();
#pragma unroll
    for (int h = 0; h < th_part<dim>::HEADS; h++) o[h][0] = o[h][1] = 0.0f;
    if (head >= GROUP) return;
#pragma unroll 8
    for (int row = 0; row < count; row++) {
        uint32_t pair = *reinterpret_cast<const uint32_t *>(tile->values + row * dim + channel);
        float low = th_bf16_low(pair), high = th_bf16_high(pair), weight[th_part<dim>::HEADS];
        const float *weights = tile->scores[0] + row * GROUP + head;
        if constexpr (th_part<dim>::HEADS == 4) {
            float4 four = *reinterpret_cast<const float4 *>(weights);
            weight[0] = four.x, weight[1] = four.y, weight[2] = four.z, weight[3] = four.w;
        } else {
#pragma unroll
            for (int h = 0; h < th_part<dim>::HEADS; h++) weight[h] = weights[h];
        }
#pragma unroll
        for (int h = 0; h < th_part<dim>::HEADS; h++) {
            o[h][0] = fmaf(weight[h], low, o[h][0]);
            o[h][1] = fmaf(weight[h], high, o[h][1]);
        }
    }
}

__device__ __forceinline__ uint16_t gated(const struct th_cuda_attention &at, float o, float sum, uint16_t gate)
{
    float open = th_sigmoid(th_bf16_float(gate));
    if (at.tower) open = th_round_bf16(open);
    return th_float_bf16(__fmul_rn(th_round_bf16(__fdiv_rn(o, sum)), open));
}

/* Two channels of a head's output. */
template <int dim>
__device__ __forceinline__ void write_pair(const struct th_cuda_attention &at, int column, int head, int channel, float low,
                                           float high, float sum)
{
    const uint32_t gate =
        *reinterpret_cast<const uint32_t *>(at.rows + static_cast<size_t>(column) * static_cast<size_t>(at.row_stride) +
                                            static_cast<size_t>(at.gate + head * at.head_stride + channel));
    uint16_t *out =
        at.out + (static_cast<size_t>(column) * static_cast<size_t>(at.heads) + static_cast<size_t>(head)) * dim + channel;
    *reinterpret_cast<uint32_t *>(out) = static_cast<uint32_t>(gated(at, low, sum, static_cast<uint16_t>(gate))) |
                                         static_cast<uint32_t>(gated(at, high, sum, static_cast<uint16_t>(gate >> 16))) << 16;
}

/* The group's queries, into the tile. */
template <int dim>
__device__ void place_queries(const struct th_cuda_attention &at, const uint16_t *row, int kv, const th_turn<dim> &turn,
                              th_tile<dim> *tile)
{
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, group = at.heads / at.kv_heads;
    if (warp < group)
        norm_rotate<dim>(at, row + at.query + (kv * group + warp) * at.head_stride, turn, tile->work + warp * dim,
                         tile->queries + warp * th_tile<dim>::STRIDE);
    else if (warp < GROUP)
        for (int i = lane; i < dim; i += 32) tile->queries[warp * th_tile<dim>::STRIDE + i] = 0;
}

/* One warp: the row's own key and value, into row `own_row` of the tile and into the cache. */
template <int dim>
__device__ void place_own(const struct th_cuda_attention &at, const uint16_t *row, int kv, int position, const th_turn<dim> &turn,
                          int own_row, uint16_t *keys, uint16_t *values, th_tile<dim> *tile)
{
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const size_t to = static_cast<size_t>(position) * static_cast<size_t>(at.kv_heads) * dim;
    uint16_t *key = tile->keys + own_row * th_tile<dim>::STRIDE, value[dim / 32];
#pragma unroll
    for (int i = 0; i < dim / 32; i++) value[i] = row[at.value + kv * dim + lane + 32 * i];
    norm_rotate<dim>(at, row + at.key + kv * dim, turn, tile->work + warp * dim, key);
#pragma unroll
    for (int i = 0; i < dim / 32; i++) {
        const int n = lane + 32 * i;
        tile->values[own_row * dim + n] = value[i];
        values[to + static_cast<size_t>(n)] = value[i];
        keys[to + static_cast<size_t>(n)] = key[n];
    }
}

/* ---- frames -------------------------------------------------------------------------------------------------------------------
 */

/* Where a column's partial sums lie: o [columns][heads][splits][dim], then (most, sum) [columns][heads][splits]. */
__device__ __forceinline__ size_t partial_at(const struct th_cuda_attention &at, int column, int head, int split)
{
    return (static_cast<size_t>(column) * static_cast<size_t>(at.heads) + static_cast<size_t>(head)) *
               static_cast<size_t>(at.splits) +
           static_cast<size_t>(split);
}
template <int dim> __device__ __forceinline__ float2 *partial_sums(const struct th_cuda_attention &at)
{
    size_t values = static_cast<size_t>(at.columns) * static_cast<size_t>(at.heads) * static_cast<size_t>(at.splits) * dim;
    return reinterpret_cast<float2 *>(at.partial + values);
}

/* Factors of splits first..first+count-1 of one head, whose sums lie in `sums`: a thread a split. all_most is the largest before.
 */
__device__ __forceinline__ void merge_factors(const float2 *sums, int split, float all_most, int any_before, float *keep,
                                              float *enter)
{
    float before = any_before ? all_most : sums[0].x;
    for (int i = any_before ? 0 : 1; i < split; i++) before = sums[i].x > before ? sums[i].x : before;
    if (!any_before && split == 0) { /* the first enters as it is */
        keep[0] = 0.0f;
        enter[0] = 1.0f;
        return;
    }
    th_merge to = merge(before, 0.0f, sums[split].x, 0.0f);
    keep[split] = to.keep;
    enter[split] = to.enter;
}

/* The last block of a column's key head to arrive adds up what all have left. */
template <int dim> __device__ void merge_all(const struct th_cuda_attention &at, int column, int kv, int splits, th_tile<dim> *tile)
{
    const int group = at.heads / at.kv_heads, channel = th_part<dim>::channel(), head = th_part<dim>::head();
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < group * splits; i += THREADS)
        tile->sums[i / splits][i % splits] =
            __ldcg(&partial_sums<dim>(at)[partial_at(at, column, kv * group + i / splits, i % splits)]);
    __syncthreads();
    for (int i = thread; i < group * splits; i += THREADS) {
        int h = i / splits;
        merge_factors(tile->sums[h], i % splits, 0.0f, 0, tile->keep[h], tile->enter[h]);
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < th_part<dim>::HEADS; h++) {
        if (head + h >= group) return;
        const int whole = kv * group + head + h;
        const float *values = at.partial + partial_at(at, column, whole, 0) * dim + channel;
        float2 o = __ldcg(reinterpret_cast<const float2 *>(values));
        float sum = tile->sums[head + h][0].y;
#pragma unroll 4
        for (int split = 1; split < splits; split++) {
            const float keep = tile->keep[head + h][split], enter = tile->enter[head + h][split];
            float2 next = __ldcg(reinterpret_cast<const float2 *>(values + static_cast<size_t>(split) * dim));
            o.x = merge_value(o.x, next.x, keep, enter);
            o.y = merge_value(o.y, next.y, keep, enter);
            sum = merge_value(sum, tile->sums[head + h][split].y, keep, enter);
        }
        write_pair<dim>(at, column, whole, channel, o.x, o.y, sum);
    }
}

/* Grid: kv heads, splits, columns. With `fold` the combination is done by the block that ends last, counted in at.arrived. */
template <int dim, int fold> __global__ void __launch_bounds__(THREADS) split_kernel(const struct th_cuda_attention at)
{
    TH_DYNAMIC_SHARED(th_tile<dim>, tile);
    const int kv = static_cast<int>(blockIdx.x), split = static_cast<int>(blockIdx.y), column = static_cast<int>(blockIdx.z);
    const int group = at.heads / at.kv_heads, first = split * ROWS, thread = static_cast<int>(threadIdx.x);
    th_dependency_release();
    const bool there = column < count_of(at.pass, at.tower);
    const th_cuda_column *of = column_of(at.pass, at.tower, there ? column : 0);
    const int position = of->position;
    const bool busy = there && first <= position;
    uint16_t *keys = in_lane(at.keys, of, at.lane_stride) + kv * dim, *values = in_lane(at.values, of, at.lane_stride) + kv * dim;
    const int before = position - first < ROWS ? position - first : ROWS; /* rows of the split from earlier passes */
    th_turn<dim> turn;
    if (busy) {
        fetch<dim>(at, keys, values, first, before, tile);
        turn.load(at, thread < WORKERS ? at.q_norm : at.k_norm, position);
    }
    th_dependency_wait();
    if (!busy) return;
    const uint16_t *row = at.rows + static_cast<size_t>(column) * static_cast<size_t>(at.row_stride);
    if (thread < WORKERS)
        place_queries<dim>(at, row, kv, turn, tile);
    else if (before < ROWS)
        place_own<dim>(at, row, kv, position, turn, before, keys, values, tile);
    th_copy_wait<0>();
    __syncthreads();
    score<dim>(tile);
    __syncthreads();
    const int count = before < ROWS ? before + 1 : ROWS;
    weigh<dim>(tile, count);
    __syncthreads();
    float o[th_part<dim>::HEADS][2];
    gather<dim>(tile, count, o);
    const int channel = th_part<dim>::channel(), head = th_part<dim>::head(), splits = position / ROWS + 1;
    if (fold && splits == 1) {
#pragma unroll
        for (int h = 0; h < th_part<dim>::HEADS; h++)
            if (head + h < group)
                write_pair<dim>(at, column, kv * group + head + h, channel, o[h][0], o[h][1], tile->sum[head + h]);
        return;
    }
#pragma unroll
    for (int h = 0; h < th_part<dim>::HEADS; h++)
        if (head + h < group)
            __stcg(reinterpret_cast<float2 *>(at.partial + partial_at(at, column, kv * group + head + h, split) * dim + channel),
                   make_float2(o[h][0], o[h][1]));
    if (thread < group)
        __stcg(&partial_sums<dim>(at)[partial_at(at, column, kv * group + thread, split)],
               make_float2(tile->most[thread], tile->sum[thread]));
    if (!fold) return;
    __threadfence();
    __syncthreads();
    if (thread == 0) {
        unsigned *arrived = &at.arrived[column * at.kv_heads + kv];
        tile->last = atomicAdd(arrived, 1u) == static_cast<unsigned>(splits - 1);
        if (tile->last) *arrived = 0; /* for the next launch */
    }
    __syncthreads();
    if (!tile->last) return;
    __threadfence();
    merge_all<dim>(at, column, kv, splits, tile);
}

/* Grid: heads, columns; a thread a channel. */
template <int dim> __global__ void __launch_bounds__(dim) combine_kernel(const struct th_cuda_attention at)
{
    __shared__ float2 sums[MERGED];
    __shared__ float keep[MERGED], enter[MERGED];
    th_dependency_release();
    th_dependency_wait();
    const int head = static_cast<int>(blockIdx.x), column = static_cast<int>(blockIdx.y), i = static_cast<int>(threadIdx.x);
    if (column >= count_of(at.pass, at.tower)) return;
    const int position = column_of(at.pass, at.tower, column)->position, splits = position / ROWS + 1;
    if (position < 0) return;
    const size_t first = partial_at(at, column, head, 0);
    const float *values = at.partial + first * dim + i;
    float o = 0.0f, most = 0.0f, sum = 0.0f;
    for (int done = 0; done < splits; done += MERGED) {
        const int count = min(splits - done, static_cast<int>(MERGED));
        if (i < count) sums[i] = partial_sums<dim>(at)[first + static_cast<size_t>(done + i)];
        __syncthreads();
        if (i < count) merge_factors(sums, i, most, done > 0, keep, enter);
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < count; k++) {
            float next = values[static_cast<size_t>(done + k) * dim];
            if (done + k == 0) {
                o = next;
                most = sums[0].x;
                sum = sums[0].y;
                continue;
            }
            o = merge_value(o, next, keep[k], enter[k]);
            sum = merge_value(sum, sums[k].y, keep[k], enter[k]);
            most = sums[k].x > most ? sums[k].x : most;
        }
        __syncthreads();
    }
    uint16_t gate = at.rows[static_cast<size_t>(column) * static_cast<size_t>(at.row_stride) +
                            static_cast<size_t>(at.gate + head * at.head_stride + i)];
    at.out[(static_cast<size_t>(column) * static_cast<size_t>(at.heads) + static_cast<size_t>(head)) * dim +
           static_cast<size_t>(i)] = gated(at, o, sum, gate);
}

/* ---- prompts ------------------------------------------------------------------------------------------------------------------
 */

/* Keys and values of all the columns, before any of them is read. Grid: kv heads, columns; one warp. */
template <int dim> __global__ void __launch_bounds__(32) place_kernel(const struct th_cuda_attention at)
{
    __shared__ float work[dim];
    th_dependency_release();
    th_dependency_wait();
    const int kv = static_cast<int>(blockIdx.x), column = static_cast<int>(blockIdx.y);
    if (column >= count_of(at.pass, at.tower)) return;
    const th_cuda_column *of = column_of(at.pass, at.tower, column);
    const uint16_t *row = at.rows + static_cast<size_t>(column) * static_cast<size_t>(at.row_stride);
    const size_t to = static_cast<size_t>(of->position) * static_cast<size_t>(at.kv_heads) * dim + static_cast<size_t>(kv * dim);
    th_turn<dim> turn;
    turn.load(at, at.k_norm, of->position);
    norm_rotate<dim>(at, row + at.key + kv * dim, turn, work, in_lane(at.keys, of, at.lane_stride) + to);
    for (int i = static_cast<int>(threadIdx.x); i < dim; i += 32)
        in_lane(at.values, of, at.lane_stride)[to + static_cast<size_t>(i)] = row[at.value + kv * dim + i];
}

/* Grid: kv heads, columns. */
template <int dim> __global__ void __launch_bounds__(THREADS) prompt_kernel(const struct th_cuda_attention at)
{
    TH_DYNAMIC_SHARED(th_tile<dim>, tile);
    th_dependency_release();
    th_dependency_wait();
    const int kv = static_cast<int>(blockIdx.x), column = static_cast<int>(blockIdx.y), group = at.heads / at.kv_heads;
    if (column >= count_of(at.pass, at.tower)) return;
    const th_cuda_column *of = column_of(at.pass, at.tower, column);
    const int position = of->position, channel = th_part<dim>::channel(), head = th_part<dim>::head();
    uint16_t *keys = in_lane(at.keys, of, at.lane_stride) + kv * dim, *values = in_lane(at.values, of, at.lane_stride) + kv * dim;
    th_turn<dim> turn;
    turn.load(at, at.q_norm, position);
    place_queries<dim>(at, at.rows + static_cast<size_t>(column) * static_cast<size_t>(at.row_stride), kv, turn, tile);
    float all[th_part<dim>::HEADS][2], o[th_part<dim>::HEADS][2];
    for (int first = 0; first <= position; first += ROWS) {
        const int count = position + 1 - first < ROWS ? position + 1 - first : ROWS;
        fetch<dim>(at, keys, values, first, count, tile);
        th_copy_wait<0>();
        __syncthreads();
        score<dim>(tile);
        __syncthreads();
        weigh<dim>(tile, count);
        __syncthreads();
        if (threadIdx.x < GROUP) {
            const int h = static_cast<int>(threadIdx.x);
            th_merge to = {tile->most[h], tile->sum[h], 0.0f, 1.0f};
            if (first > 0) to = merge(tile->all_most[h], tile->all_sum[h], tile->most[h], tile->sum[h]);
            tile->all_most[h] = to.most;
            tile->all_sum[h] = to.sum;
            tile->keep[h][0] = to.keep;
            tile->enter[h][0] = to.enter;
        }
        gather<dim>(tile, count, o);
        __syncthreads();
#pragma unroll
        for (int h = 0; h < th_part<dim>::HEADS; h++)
            for (int i = 0; i < 2; i++)
                all[h][i] = first == 0 || head >= GROUP
                                ? o[h][i]
                                : merge_value(all[h][i], o[h][i], tile->keep[head + h][0], tile->enter[head + h][0]);
    }
    for (int h = 0; h < th_part<dim>::HEADS; h++) {
        if (head + h >= group) break;
        write_pair<dim>(at, column, kv * group + head + h, channel, all[h][0], all[h][1], tile->all_sum[head + h]);
    }
}

template <int dim> cudaError_t launch_attention(const struct th_cuda_launch *launch, const struct th_cuda_attention &at)
{
    const unsigned kv = static_cast<unsigned>(at.kv_heads), columns = static_cast<unsigned>(at.columns);
    if (at.sequential) {
        TH_CUDA_TRY(th_launch(launch, place_kernel<dim>, dim3(kv, columns), dim3(32), 0, at));
        return th_launch(launch, prompt_kernel<dim>, dim3(kv, columns), dim3(THREADS), sizeof(th_tile<dim>), at);
    }
    const dim3 grid(kv, static_cast<unsigned>(at.splits), columns);
    if (at.splits <= FOLDED) return th_launch(launch, split_kernel<dim, 1>, grid, dim3(THREADS), sizeof(th_tile<dim>), at);
    TH_CUDA_TRY(th_launch(launch, split_kernel<dim, 0>, grid, dim3(THREADS), sizeof(th_tile<dim>), at));
    return th_launch(launch, combine_kernel<dim>, dim3(static_cast<unsigned>(at.heads), columns), dim3(dim), 0, at);
}

} // namespace

extern "C" size_t th_cuda_attention_partial_bytes(int columns, int splits, int heads, int head_dim)
{
    return static_cast<size_t>(columns) * static_cast<size_t>(splits) * static_cast<size_t>(heads) *
           static_cast<size_t>(head_dim + 2) * sizeof(float);
}

extern "C" cudaError_t th_cuda_attention(const struct th_cuda_launch *launch, const struct th_cuda_attention *attention)
{
    if (attention->heads % attention->kv_heads != 0 || attention->heads / attention->kv_heads > GROUP) return cudaErrorInvalidValue;
    switch (attention->head_dim) {
    case 32: return launch_attention<32>(launch, *attention);
    case 64: return launch_attention<64>(launch, *attention);
    case 128: return launch_attention<128>(launch, *attention);
    case 256: return launch_attention<256>(launch, *attention);
    default: return cudaErrorInvalidValue;
    }
}

// clang-format off: one a line
TH_CUDA_KERNELS(attention) = {TH_CUDA_KERNEL(THREADS, sizeof(th_tile<32>), split_kernel<32, 0>),
                              TH_CUDA_KERNEL(THREADS, sizeof(th_tile<32>), split_kernel<32, 1>),
                              TH_CUDA_KERNEL(32, 0, combine_kernel<32>),
                              TH_CUDA_KERNEL(32, 0, place_kernel<32>),
                              TH_CUDA_KERNEL(THREADS, sizeof(th_tile<32>), prompt_kernel<32>),
                              TH_CUDA_KERNEL(THREADS, sizeof(th_tile<64>), split_kernel<64, 0>),
                              TH_CUDA_KERNEL(THREADS, sizeof(th_tile<64>), split_kernel<64, 1>),
                              TH_CUDA_KERNEL(64, 0, combine_kernel<64>),
                              TH_CUDA_KERNEL(32, 0, place_kernel<64>),
                              TH_CUDA_KERNEL(THREADS, sizeof(th_tile<64>), prompt_kernel<64>),
                              TH_CUDA_KERNEL(THREADS, sizeof(th_tile<128>), split_kernel<128, 0>),
                              TH_CUDA_KERNEL(THREADS, sizeof(th_tile<128>), split_kernel<128, 1>),
                              TH_CUDA_KERNEL(128, 0, combine_kernel<128>),
                              TH_CUDA_KERNEL(32, 0, place_kernel<128>),
                              TH_CUDA_KERNEL(THREADS, sizeof(th_tile<128>), prompt_kernel<128>),
                              TH_CUDA_KERNEL(THREADS, sizeof(th_tile<256>), split_kernel<256, 0>),
                              TH_CUDA_KERNEL(THREADS, sizeof(th_tile<256>), split_kernel<256, 1>),
                              TH_CUDA_KERNEL(256, 0, combine_kernel<256>),
                              TH_CUDA_KERNEL(32, 0, place_kernel<256>),
                              TH_CUDA_KERNEL(THREADS, sizeof(th_tile<256>), prompt_kernel<256>),
                              TH_CUDA_KERNELS_END};
