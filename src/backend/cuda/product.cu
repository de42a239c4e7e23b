// product.cu - products of few columns: up to 8 (one lane to eight), and up to 32. A block has tiles of 16 rows; its eight warps
// have two segments of the inputs each. Weights are read once and lie packed, so each warp copies its own stretch into a ring in
// shared memory that nobody else reads: warps meet only to add their sums. The rings are filled before the dependency wait and are
// small enough that blocks of the next kernel find room beside them: its weights are under way while this one ends.
#include "backend/cuda/kernels.h"
#include "backend/cuda/norm.h"
#include "backend/cuda/product_parts.cuh"
#include "backend/cuda/rows.cuh"

#define WARPS 8
#define THREADS (WARPS * 32)
#define SUM_ROW 20 // floats from column to column of a segment's sums in shared memory: 16, and no two lanes in one bank
#define GROUP_SUMS (8 * SUM_ROW)
#ifndef BLOCKS_EACH
#define BLOCKS_EACH 2 // of a multiprocessor, when a product has more tiles than that
#endif
#ifndef SMALL_RING
#define SMALL_RING 4
#endif
#ifndef LARGE_RING
#define LARGE_RING 8
#endif

// A warp's two segments: `first` is the first tile of both together, in a row of tiles; numbers of tiles. Round i of a row of tiles
// is tile i of both segments, while they last.
struct walk {
    int first, count[2], rounds;
};
// equal > 0: every segment has that many tiles, and the loops are rolled out.
template <int equal> static __device__ __forceinline__ struct walk walk_of(int warp, int steps)
{
    if (equal > 0) return {2 * warp * equal, {equal, equal}, equal};
    const int first = th_segment(2 * warp, steps), second = th_segment(2 * warp + 1, steps), end = th_segment(2 * warp + 2, steps);
    return {first, {second - first, end - second}, max(second - first, end - second)};
}

// Starts the copies of round i of a row of tiles, of which `row` is the warp's first, into a slot of the ring.
static __device__ __forceinline__ void copy_round(unsigned char *slot, const unsigned char *row, const struct walk &w, int i)
{
    if (i < w.count[0]) {
        th_copy_async(slot, row + i * TH_TILE_BYTES);
        th_copy_async(slot + 512, row + i * TH_TILE_BYTES + 512);
    }
    if (i < w.count[1]) {
        th_copy_async(slot + 1024, row + (w.count[0] + i) * TH_TILE_BYTES);
        th_copy_async(slot + 1536, row + (w.count[0] + i) * TH_TILE_BYTES + 512);
    }
}

// ---- up to 8 columns: inputs in shared memory, [columns][stride] ----------------------------------------------------------------

// What a block of `few` multiplies: columns and inputs, known when it was compiled where they can be.
struct extent {
    int columns, cols, stride; // stride: elements from column to column in shared memory
};

// A norm of rows of n values: its weights, of which the first were loaded before the dependency wait.
struct row_norm {
    const float *w;
    struct th_norm_weights first;
    int n;
};
static __device__ __forceinline__ struct row_norm norm_of(const float *w, int n)
{
    struct row_norm norm = {w, {}, n};
    if (w != nullptr) norm.first = th_load_norm(w, n);
    return norm;
}

// The rows of x [columns][x_stride] to shared memory; squares: this thread's part of each row's sum (rows.cuh). All columns' loads
// are under way at once. most: 1, or 8 for up to 8 columns.
template <int most>
static __device__ __forceinline__ void copy_rows(const uint16_t *x, int x_stride, int n, const struct extent &e, uint16_t *inputs,
                                                 float squares[most])
{
#pragma unroll
    for (int c = 0; c < most; c++) squares[c] = 0.0f;
    for (int turn = 0; turn < n; turn += THREADS * 8) {
        const int i = turn + static_cast<int>(threadIdx.x) * 8;
        if (i >= n) break;
        uint4 v[most];
#pragma unroll
        for (int c = 0; c < most; c++)
            if (c < e.columns) v[c] = th_load_shared_row(x + static_cast<size_t>(c) * static_cast<size_t>(x_stride) + i);
#pragma unroll
        for (int c = 0; c < most; c++) {
            if (c >= e.columns) break;
            *reinterpret_cast<uint4 *>(inputs + c * e.stride + i) = v[c];
            squares[c] = th_add_eight_squares(v[c], squares[c]);
        }
    }
}

// The warps' sums of every column into sums [columns][8].
template <int most>
static __device__ __forceinline__ void keep_squares(const struct extent &e, const float squares[most], float *sums)
{
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int c = 0; c < most; c++) {
        if (c >= e.columns) break;
        const float sum = th_warp_sum(squares[c]);
        if (lane == 0) sums[c * WARPS + warp] = sum;
    }
}

// This thread's values become the norm's; out [columns][out_stride] or NULL. After a meeting.
static __device__ __forceinline__ void norm_rows(const struct extent &e, const struct row_norm &norm, float eps, uint16_t *inputs,
                                                 const float *sums, uint16_t *out, int out_stride)
{
    for (int c = 0; c < e.columns; c++)
        th_norm_in_place(inputs + c * e.stride, norm.n, th_norm_factor(sums + c * WARPS, norm.n, eps), norm.w, norm.first,
                         out == nullptr ? nullptr : out + static_cast<size_t>(c) * static_cast<size_t>(out_stride));
}

// norms: of NORM; of JOIN's first half, of its second half, and before the latter. sums: [3][8 columns][8].
template <int input, int most>
static __device__ __forceinline__ void stage(const struct th_cuda_product &p, const struct extent &e,
                                             const struct row_norm norms[3], uint16_t *inputs, float *sums)
{
    uint16_t *out = blockIdx.x == 0 ? p.normed : nullptr;
    float squares[most], second[most];
    if (input == TH_CUDA_PLAIN) {
        copy_rows<most>(p.x, p.x_stride, e.cols, e, inputs, squares);
    } else if (input == TH_CUDA_NORM) {
        copy_rows<most>(p.x, p.x_stride, e.cols, e, inputs, squares);
        keep_squares<most>(e, squares, sums);
        __syncthreads();
        norm_rows(e, norms[0], p.eps, inputs, sums, out, e.cols);
    } else {
        const int half = e.cols / 2;
        uint16_t *right = inputs + half, *right_out = out == nullptr ? nullptr : out + half;
        float *right_sums = sums + 8 * WARPS, *last_sums = sums + 16 * WARPS;
        copy_rows<most>(p.x, p.x_stride, half, e, inputs, squares);
        copy_rows<most>(p.x2, p.x2_stride, half, e, right, second);
        keep_squares<most>(e, squares, sums);
        keep_squares<most>(e, second, right_sums);
        __syncthreads();
        if (p.first2 != nullptr) { // a thread sees only values of its own between the two norms
            norm_rows(e, norms[2], p.eps, right, right_sums, blockIdx.x == 0 ? p.first : nullptr, half);
#pragma unroll
            for (int c = 0; c < most; c++)
                if (c < e.columns) second[c] = th_row_squares(right + c * e.stride, half);
            keep_squares<most>(e, second, last_sums);
            __syncthreads();
            right_sums = last_sums;
        }
        norm_rows(e, norms[1], p.eps, right, right_sums, right_out, e.cols);
        norm_rows(e, norms[0], p.eps, inputs, sums, out, e.cols);
    }
    __syncthreads();
}

// A tile in the ring times a column's 32 inputs.
static __device__ __forceinline__ void multiply(float sum[4], const unsigned char *slot, uint4 b)
{
    th_mma_bf16(sum, th_load_16(slot), b.x, b.y);
    th_mma_bf16(sum, th_load_16(slot + 512), b.z, b.w);
}

// A segment's sums of up to eight columns: [8 columns][SUM_ROW].
static __device__ __forceinline__ void keep_sums(float *sums, const float sum[4], int g, int q)
{
    float *at = sums + 2 * q * SUM_ROW + g;
    at[0] = sum[0];
    at[SUM_ROW] = sum[1];
    at[8] = sum[2];
    at[SUM_ROW + 8] = sum[3];
}

// Sums of one value, `distance` apart, added in order.
static __device__ __forceinline__ float add_segments(const float *sums, int distance)
{
    float sum = 0.0f;
#pragma unroll
    for (int s = 0; s < TH_SEGMENTS; s++) sum = __fadd_rn(sum, sums[s * distance]);
    return sum;
}

// Where round `round` of a row of tiles lies when rounds run on into the rows after it: *round becomes the one in that row.
static __device__ __forceinline__ int rows_later(int *round, int rounds)
{
    int later = 0;
    for (; *round >= rounds; *round -= rounds) later++;
    return later;
}

// ring: tiles of 1,024 bytes that a warp has under way. one: a single column. A block has the row tiles blockIdx.x + k gridDim.x.
template <int input, int equal, int ring, bool one>
static __global__ void __launch_bounds__(THREADS, input == TH_CUDA_JOIN || !one ? 2 : 4)
    few(const struct th_cuda_product p, int stride)
{
    constexpr int ahead = ring / 2, each = one ? 16 : GROUP_SUMS; // rounds under way; floats of a segment
    TH_DYNAMIC_SHARED(unsigned char, shared);
    __shared__ float squares[input == TH_CUDA_JOIN ? 3 : 1][8 * WARPS];
    float *const sums = reinterpret_cast<float *>(shared + WARPS * ring * 1024); // [2][segments][each]
    uint16_t *const inputs = reinterpret_cast<uint16_t *>(sums + 2 * TH_SEGMENTS * each);
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, g = lane / 4, q = lane % 4;
    const int steps = equal > 0 ? equal * TH_SEGMENTS : p.w.cols / 32, tiles = p.w.rows / 16, blocks = static_cast<int>(gridDim.x);
    const struct extent e = {one ? 1 : p.columns, steps * 32, one ? steps * 32 : stride};
    const struct walk w = walk_of<equal>(warp, steps);
    const size_t row_bytes = static_cast<size_t>(steps) * TH_TILE_BYTES, row_step = row_bytes * gridDim.x;
    const unsigned char *row =
        static_cast<const unsigned char *>(p.w.tiles) + row_bytes * blockIdx.x + (w.first * TH_TILE_BYTES + lane * 16);
    unsigned char *const mine = shared + warp * ring * 1024 + lane * 16;
    int tile = static_cast<int>(blockIdx.x);
#pragma unroll
    for (int i = 0; i < ahead; i++) {
        int round = i;
        const int later = w.rounds > 0 ? rows_later(&round, w.rounds) : 0;
        if (tile + later * blocks < tiles) copy_round(mine + i * 2048, row + later * row_step, w, round);
        th_copy_commit();
    }
    th_dependency_release();
    struct row_norm norms[3];
    if (input == TH_CUDA_NORM) norms[0] = norm_of(p.norm, e.cols);
    if (input == TH_CUDA_JOIN) {
        norms[0] = norm_of(p.norm, e.cols / 2);
        norms[1] = norm_of(p.norm2, e.cols / 2);
        norms[2] = norm_of(p.first2, e.cols / 2);
    }
    th_dependency_wait();
    stage<input, one ? 1 : 8>(p, e, norms, inputs, squares[0]);

    // Threads 0..16*columns-1 write: row thread % 16 of column thread / 16.
    const int r = thread % 16, c = thread / 16;
    const uint16_t *x = inputs + g * e.stride + w.first * 32 + q * 8;
    const bool in_use = one ? lane < 4 : g < e.columns;
    int slot = 0;
    for (int turn = 0; tile < tiles; tile += blocks, row += row_step, turn++) {
        struct th_tile_output out = {};
        float old = 0.0f, sum[2][4] = {};
        if (c < e.columns) {
            out = th_find_output(p, tile);
            old = th_old_output(out, c, r);
        }
#pragma unroll(equal > 0 ? equal : 1)
        for (int i = 0; i < w.rounds; i++) {
            th_copy_wait<ahead - 1>();
            if (equal > 0 && equal % ahead == 0) slot = i % ahead;
            unsigned char *at = mine + slot * 2048;
            const uint4 none = make_uint4(0, 0, 0, 0);
            const uint4 b0 = in_use && i < w.count[0] ? th_load_16(x + i * 32) : none;
            const uint4 b1 = in_use && i < w.count[1] ? th_load_16(x + (w.count[0] + i) * 32) : none;
            if (i < w.count[0]) multiply(sum[0], at, b0);
            if (i < w.count[1]) multiply(sum[1], at + 1024, b1);
            int round = i + ahead;
            const int later = rows_later(&round, w.rounds);
            if (tile + later * blocks < tiles) copy_round(at, row + later * row_step, w, round);
            th_copy_commit();
            slot = slot + 1 == ahead ? 0 : slot + 1;
        }
        float *const here = sums + turn % 2 * TH_SEGMENTS * each;
        if (!one) {
            keep_sums(here + 2 * warp * each, sum[0], g, q);
            keep_sums(here + (2 * warp + 1) * each, sum[1], g, q);
        } else if (q == 0) {
            here[2 * warp * 16 + g] = sum[0][0];
            here[2 * warp * 16 + g + 8] = sum[0][2];
            here[(2 * warp + 1) * 16 + g] = sum[1][0];
            here[(2 * warp + 1) * 16 + g + 8] = sum[1][2];
        }
        __syncthreads(); // and once all have come here, nobody reads the other half of `sums` any more
        if (c >= e.columns || (out.to.kind == TH_CUDA_SILU && r >= 8)) continue;
        const float *at = here + c * SUM_ROW + r;
        th_write_output(out, c, r, add_segments(at, each), out.to.kind == TH_CUDA_SILU ? add_segments(at + 8, each) : 0.0f, old);
    }
}

// ---- 32 columns a block (8, 16): each warp reads its inputs from the cache
// -----------------------------------------------------------------

// The inputs of a step: column g of each group of eight. Columns past the end repeat the last.
template <int groups> static __device__ __forceinline__ void load_inputs(uint4 b[groups], const uint16_t *const x[groups], int step)
{
#pragma unroll
    for (int t = 0; t < groups; t++) b[t] = th_load_shared_row(x[t] + step * 32);
}

#define SOME_RING 8
#define SOME_SLICE (SOME_RING * 1024) // bytes of a warp: its ring, or its segments' sums

template <int groups> static __global__ void __launch_bounds__(THREADS, 2) some(const struct th_cuda_product p)
{
    static_assert(2 * groups * GROUP_SUMS * 4 <= SOME_SLICE, "sums fit the ring");
    constexpr int ahead = SOME_RING / 2;
    TH_DYNAMIC_SHARED(unsigned char, shared);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, q = lane % 4;
    const int steps = p.w.cols / 32, column = static_cast<int>(blockIdx.y) * groups * 8;
    const struct walk w = walk_of<0>(warp, steps);
    const unsigned char *row = static_cast<const unsigned char *>(p.w.tiles) +
                               static_cast<size_t>(blockIdx.x) * static_cast<size_t>(steps) * TH_TILE_BYTES +
                               (w.first * TH_TILE_BYTES + lane * 16);
    unsigned char *const mine = shared + warp * SOME_SLICE + lane * 16;
#pragma unroll
    for (int i = 0; i < ahead; i++) {
        copy_round(mine + i * 2048, row, w, i);
        th_copy_commit();
    }
    th_dependency_release();
    const struct th_tile_output out = th_find_output(p, static_cast<int>(blockIdx.x));
    th_dependency_wait();

    const uint16_t *x[groups];
#pragma unroll
    for (int t = 0; t < groups; t++)
        x[t] = p.x + static_cast<size_t>(min(column + t * 8 + g, p.columns - 1)) * static_cast<size_t>(p.x_stride) + w.first * 32 +
               q * 8;
    float sum[2][groups][4] = {};
    uint4 b[2][groups];
    if (w.count[0] > 0) load_inputs<groups>(b[0], x, 0);
    if (w.count[1] > 0) load_inputs<groups>(b[1], x, w.count[0]);
    for (int i = 0; i < w.rounds; i++) {
        th_copy_wait<ahead - 1>();
        unsigned char *at = mine + i % ahead * 2048;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (i >= w.count[half]) continue;
            const uint4 a0 = th_load_16(at + half * 1024), a1 = th_load_16(at + half * 1024 + 512);
#pragma unroll
            for (int t = 0; t < groups; t++) {
                th_mma_bf16(sum[half][t], a0, b[half][t].x, b[half][t].y);
                th_mma_bf16(sum[half][t], a1, b[half][t].z, b[half][t].w);
            }
            if (i + 1 < w.count[half]) load_inputs<groups>(b[half], x, half * w.count[0] + i + 1);
        }
        copy_round(at, row, w, i + ahead);
        th_copy_commit();
    }
    __syncwarp(); // the warp's ring becomes its sums: [2 segments][groups][8 columns][SUM_ROW]
    float *const sums = reinterpret_cast<float *>(shared);
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int t = 0; t < groups; t++)
            keep_sums(sums + warp * (SOME_SLICE / 4) + (half * groups + t) * GROUP_SUMS, sum[half][t], g, q);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < 16 * min(groups * 8, p.columns - column); i += THREADS) {
        const int r = i % 16, c = i / 16;
        if (out.to.kind == TH_CUDA_SILU && r >= 8) continue;
        float value = 0.0f, up = 0.0f;
#pragma unroll
        for (int s = 0; s < TH_SEGMENTS; s++) {
            const float *at = sums + s / 2 * (SOME_SLICE / 4) + s % 2 * groups * GROUP_SUMS + c * SUM_ROW + r;
            value = __fadd_rn(value, at[0]);
            if (out.to.kind == TH_CUDA_SILU) up = __fadd_rn(up, at[8]);
        }
        th_write_output(out, column + c, r, value, up, th_old_output(out, column + c, r));
    }
}

// ---- choice of form
// ---------------------------------------------------------------------------------------------------------------

// What every architecture gives a block is 99 KB, with what it takes without being asked.
#ifndef FEW_SHARED
#define FEW_SHARED (99 * 1024 - 1024)
#endif
static int few_stride(const struct th_cuda_product *p)
{
    return p->w.cols + (p->columns > 1 ? 32 : 0); // no two columns of a pair in the same banks
}
static size_t few_shared(const struct th_cuda_product *p, int ring)
{
    const size_t sums = 2 * TH_SEGMENTS * sizeof(float) * (p->columns > 1 ? GROUP_SUMS : 16);
    return static_cast<size_t>(WARPS * ring) * 1024 + sums +
           static_cast<size_t>(p->columns) * static_cast<size_t>(few_stride(p)) * sizeof(uint16_t);
}
static bool few_fits(const struct th_cuda_product *p)
{
    return p->columns <= 8 && few_shared(p, SMALL_RING) <= FEW_SHARED;
}

template <int input, int equal, int ring>
static cudaError_t launch_ring(const struct th_cuda_launch *launch, const struct th_cuda_product *p, int blocks)
{
    const dim3 grid(blocks), block(THREADS);
    const size_t shared = few_shared(p, ring);
    return p->columns == 1 ? th_launch(launch, few<input, equal, ring, true>, grid, block, shared, *p, few_stride(p))
                           : th_launch(launch, few<input, equal, ring, false>, grid, block, shared, *p, few_stride(p));
}

// A large ring where a multiprocessor has one block, and room.
template <int input, int equal>
static cudaError_t launch_few_of(const struct th_cuda_launch *launch, const struct th_cuda_product *p)
{
    int device, processors;
    TH_CUDA_TRY(cudaGetDevice(&device));
    TH_CUDA_TRY(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    const int tiles = p->w.rows / 16, most = processors * BLOCKS_EACH;
    if (tiles <= processors && few_shared(p, LARGE_RING) <= FEW_SHARED)
        return launch_ring<input, equal, LARGE_RING>(launch, p, tiles);
    return launch_ring<input, equal, SMALL_RING>(launch, p, tiles < most ? tiles : most);
}

// 2,048, 4,096 and 6,144 inputs are those of the published model.
static cudaError_t launch_few(const struct th_cuda_launch *launch, const struct th_cuda_product *p)
{
    const int cols = p->w.cols;
    if (p->input == TH_CUDA_NORM)
        return cols == 2048 ? launch_few_of<TH_CUDA_NORM, 4>(launch, p) : launch_few_of<TH_CUDA_NORM, 0>(launch, p);
    if (p->input == TH_CUDA_JOIN)
        return cols == 4096 ? launch_few_of<TH_CUDA_JOIN, 8>(launch, p) : launch_few_of<TH_CUDA_JOIN, 0>(launch, p);
    if (cols == 2048) return launch_few_of<TH_CUDA_PLAIN, 4>(launch, p);
    if (cols == 4096) return launch_few_of<TH_CUDA_PLAIN, 8>(launch, p);
    if (cols == 6144) return launch_few_of<TH_CUDA_PLAIN, 12>(launch, p);
    return launch_few_of<TH_CUDA_PLAIN, 0>(launch, p);
}

template <int groups> static cudaError_t launch_some(const struct th_cuda_launch *launch, const struct th_cuda_product *p)
{
    const dim3 grid(p->w.rows / 16, (p->columns + groups * 8 - 1) / (groups * 8));
    return th_launch(launch, some<groups>, grid, dim3(THREADS), WARPS * SOME_SLICE, *p);
}

static cudaError_t plain(const struct th_cuda_launch *launch, const struct th_cuda_product *p)
{
    if (few_fits(p)) return launch_few(launch, p);
    if (p->columns <= 8) return launch_some<1>(launch, p);
    if (p->columns <= 16) return launch_some<2>(launch, p);
    // A product of few rows has too few rectangles for product_wide.cu to fill a device; blocks that share weights run side by
    // side.
    if (p->columns <= 32 || (p->columns <= 256 && p->w.rows <= 4112)) return launch_some<4>(launch, p);
    return th_cuda_product_wide(launch, p);
}

// Norms as kernels of their own, then the plain product.
static cudaError_t normed_first(const struct th_cuda_launch *launch, const struct th_cuda_product *p)
{
    struct th_cuda_product next = *p;
    const int cols = p->w.cols, half = cols / 2;
    if (p->input == TH_CUDA_NORM) {
        TH_CUDA_TRY(th_cuda_norm(launch, p->x, p->x_stride, p->norm, p->eps, cols, p->columns, p->normed, cols));
    } else {
        const uint16_t *second = p->x2;
        int second_stride = p->x2_stride;
        TH_CUDA_TRY(th_cuda_norm(launch, p->x, p->x_stride, p->norm, p->eps, half, p->columns, p->normed, cols));
        if (p->first2 != nullptr) {
            TH_CUDA_TRY(th_cuda_norm(launch, second, second_stride, p->first2, p->eps, half, p->columns, p->first, half));
            second = p->first;
            second_stride = half;
        }
        TH_CUDA_TRY(th_cuda_norm(launch, second, second_stride, p->norm2, p->eps, half, p->columns, p->normed + half, cols));
    }
    next.input = TH_CUDA_PLAIN;
    next.x = p->normed;
    next.x_stride = cols;
    return plain(launch, &next);
}

extern "C" cudaError_t th_cuda_product(const struct th_cuda_launch *launch, const struct th_cuda_product *product)
{
    if (product->columns <= 0) return cudaSuccess;
    if (product->input == TH_CUDA_PLAIN) return plain(launch, product);
    if (!few_fits(product)) return normed_first(launch, product);
    return launch_few(launch, product);
}

TH_CUDA_KERNELS(product) = {TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_NORM, 4, SMALL_RING, true>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_NORM, 4, SMALL_RING, false>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_NORM, 4, LARGE_RING, true>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_NORM, 4, LARGE_RING, false>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_NORM, 0, SMALL_RING, true>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_NORM, 0, SMALL_RING, false>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_NORM, 0, LARGE_RING, true>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_NORM, 0, LARGE_RING, false>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_JOIN, 8, SMALL_RING, true>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_JOIN, 8, SMALL_RING, false>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_JOIN, 8, LARGE_RING, true>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_JOIN, 8, LARGE_RING, false>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_JOIN, 0, SMALL_RING, true>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_JOIN, 0, SMALL_RING, false>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_JOIN, 0, LARGE_RING, true>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_JOIN, 0, LARGE_RING, false>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_PLAIN, 4, SMALL_RING, true>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_PLAIN, 4, SMALL_RING, false>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_PLAIN, 4, LARGE_RING, true>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_PLAIN, 4, LARGE_RING, false>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_PLAIN, 8, SMALL_RING, true>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_PLAIN, 8, SMALL_RING, false>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_PLAIN, 8, LARGE_RING, true>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_PLAIN, 8, LARGE_RING, false>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_PLAIN, 12, SMALL_RING, true>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_PLAIN, 12, SMALL_RING, false>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_PLAIN, 12, LARGE_RING, true>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_PLAIN, 12, LARGE_RING, false>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_PLAIN, 0, SMALL_RING, true>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_PLAIN, 0, SMALL_RING, false>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_PLAIN, 0, LARGE_RING, true>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_PLAIN, 0, LARGE_RING, false>),
                            TH_CUDA_KERNEL(THREADS, WARPS *SOME_SLICE, some<1>),
                            TH_CUDA_KERNEL(THREADS, WARPS *SOME_SLICE, some<2>),
                            TH_CUDA_KERNEL(THREADS, WARPS *SOME_SLICE, some<4>),
                            TH_CUDA_KERNELS_END};
