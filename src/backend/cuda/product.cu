// product.cu - products of few columns: up to 8 (one lane to eight), and up to 32. A block has 16 rows; its eight warps have two
// segments of the inputs each. Weights are read once and lie packed, so each warp copies its own stretch into a ring in shared
// memory that nobody else reads: no meeting of warps until the sums are added. The ring is filled before the dependency wait; with
// a second and third block on a multiprocessor some 200 KB are under way there while the kernel before ends.
#include "backend/cuda/kernels.h"
#include "backend/cuda/norm.h"
#include "backend/cuda/product_parts.cuh"
#include "backend/cuda/rows.cuh"

#define WARPS 8
#define THREADS (WARPS * 32)
#ifndef RING
#define RING 8 // tiles of 1,024 bytes that a warp has under way
#endif
#ifndef FEW_BLOCKS
#define FEW_BLOCKS 3 // of a multiprocessor
#endif
#define RINGS (WARPS * SLICE)
#define SUM_ROW 20 // floats from column to column of a segment's sums in shared memory: 16, and no two lanes in one bank
#define GROUP_SUMS (8 * SUM_ROW)
#define SLICE (RING * 1024 < 5120 ? 5120 : RING * 1024) // bytes of a warp: its ring, or sums of 32 columns

// A warp's two segments, taken in turn: tile i of the walk is tile i / 2 of segment 2 * warp + i % 2, while both last.
struct walk {
    int first, second, count[2]; // first tiles (of the row of tiles), numbers of tiles
};
static __device__ __forceinline__ struct walk walk_of(int warp, int steps)
{
    struct walk w;
    w.first = th_segment(2 * warp, steps);
    w.second = th_segment(2 * warp + 1, steps);
    w.count[0] = w.second - w.first;
    w.count[1] = th_segment(2 * warp + 2, steps) - w.second;
    return w;
}
// The segments' lengths differ by one at most.
static __device__ __forceinline__ int walk_rounds(const struct walk &w)
{
    return max(w.count[0], w.count[1]);
}

// Starts the copies of round i of the walk into its slots of the ring. A round is one group of copies.
static __device__ __forceinline__ void copy_round(unsigned char *ring, const unsigned char *tiles, const struct walk &w, int i)
{
    unsigned char *slot = ring + i % (RING / 2) * 2048;
    if (i < w.count[0]) {
        th_copy_async(slot, tiles + static_cast<size_t>(w.first + i) * TH_TILE_BYTES);
        th_copy_async(slot + 512, tiles + static_cast<size_t>(w.first + i) * TH_TILE_BYTES + 512);
    }
    if (i < w.count[1]) {
        th_copy_async(slot + 1024, tiles + static_cast<size_t>(w.second + i) * TH_TILE_BYTES);
        th_copy_async(slot + 1536, tiles + static_cast<size_t>(w.second + i) * TH_TILE_BYTES + 512);
    }
    th_copy_commit();
}

// ---- up to 8 columns: inputs in shared memory, [columns][stride] ----------------------------------------------------------------

// The rows of `x` into shared memory as they are.
static __device__ __forceinline__ void stage_plain(const struct th_cuda_product &p, uint16_t *inputs, int stride)
{
    const int pieces = p.w.cols / 8;
    for (int c = 0; c < p.columns; c++)
        for (int i = static_cast<int>(threadIdx.x); i < pieces; i += THREADS)
            *reinterpret_cast<uint4 *>(inputs + c * stride + i * 8) =
                th_load_shared_row(p.x + static_cast<size_t>(c) * static_cast<size_t>(p.x_stride) + i * 8);
}

// Normed rows of n values: x [columns][x_stride] to inputs [columns][stride]; out [columns][out_stride] or NULL. warps: 8 x 8
// floats. Ends with the warps' sums in use: the caller meets before they are used again.
static __device__ __forceinline__ void stage_norm(const uint16_t *x, int x_stride, int n, int columns, const float *w, float eps,
                                                  uint16_t *inputs, int stride, float *warps, uint16_t *out, int out_stride)
{
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    for (int c = 0; c < columns; c++) {
        const float sum =
            th_warp_sum(th_copy_squares(x + static_cast<size_t>(c) * static_cast<size_t>(x_stride), n, inputs + c * stride));
        if (lane == 0) warps[c * WARPS + warp] = sum;
    }
    __syncthreads();
    for (int c = 0; c < columns; c++)
        th_norm_in_place(inputs + c * stride, n, th_norm_factor(warps + c * WARPS, n, eps), w,
                         out == nullptr ? nullptr : out + static_cast<size_t>(c) * static_cast<size_t>(out_stride));
}

// A row in shared memory normed once more, in place.
static __device__ __forceinline__ void norm_again(int n, int columns, const float *w, float eps, uint16_t *inputs, int stride,
                                                  float *warps, uint16_t *out, int out_stride)
{
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    for (int c = 0; c < columns; c++) {
        const float sum = th_warp_sum(th_row_squares(inputs + c * stride, n));
        if (lane == 0) warps[c * WARPS + warp] = sum;
    }
    __syncthreads();
    for (int c = 0; c < columns; c++)
        th_norm_in_place(inputs + c * stride, n, th_norm_factor(warps + c * WARPS, n, eps), w,
                         out == nullptr ? nullptr : out + static_cast<size_t>(c) * static_cast<size_t>(out_stride));
}

template <int input>
static __device__ __forceinline__ void stage(const struct th_cuda_product &p, uint16_t *inputs, int stride, float *warps)
{
    uint16_t *out = blockIdx.x == 0 ? p.normed : nullptr;
    if (input == TH_CUDA_PLAIN) {
        stage_plain(p, inputs, stride);
    } else if (input == TH_CUDA_NORM) {
        stage_norm(p.x, p.x_stride, p.w.cols, p.columns, p.norm, p.eps, inputs, stride, warps, out, p.w.cols);
    } else {
        const int half = p.w.cols / 2;
        uint16_t *second = out == nullptr ? nullptr : out + half;
        stage_norm(p.x, p.x_stride, half, p.columns, p.norm, p.eps, inputs, stride, warps, out, p.w.cols);
        __syncthreads();
        if (p.first2 == nullptr) {
            stage_norm(p.x2, p.x2_stride, half, p.columns, p.norm2, p.eps, inputs + half, stride, warps, second, p.w.cols);
        } else {
            stage_norm(p.x2, p.x2_stride, half, p.columns, p.first2, p.eps, inputs + half, stride, warps,
                       blockIdx.x == 0 ? p.first : nullptr, half);
            __syncthreads();
            norm_again(half, p.columns, p.norm2, p.eps, inputs + half, stride, warps, second, p.w.cols);
        }
    }
    __syncthreads();
}

// A tile in the ring times a column's 32 inputs.
static __device__ __forceinline__ void multiply(float sum[4], const unsigned char *slot, uint4 b)
{
    th_mma_bf16(sum, th_load_16(slot), b.x, b.y);
    th_mma_bf16(sum, th_load_16(slot + 512), b.z, b.w);
}

// Where a segment's sums lie once its warp is done with its ring: [groups][8 columns][SUM_ROW] floats.
static __device__ __forceinline__ float *sums_of(unsigned char *shared, int segment, int groups)
{
    return reinterpret_cast<float *>(shared) + segment / 2 * (SLICE / 4) + segment % 2 * groups * GROUP_SUMS;
}

static __device__ __forceinline__ void keep_sums(float *sums, const float sum[4], int g, int q)
{
    float *at = sums + 2 * q * SUM_ROW + g;
    at[0] = sum[0];
    at[SUM_ROW] = sum[1];
    at[8] = sum[2];
    at[SUM_ROW + 8] = sum[3];
}

// The segments' sums of row r and column c, added in order.
static __device__ __forceinline__ float add_segments(unsigned char *shared, int groups, int c, int r)
{
    float sum = 0.0f;
#pragma unroll
    for (int s = 0; s < TH_SEGMENTS; s++) sum = __fadd_rn(sum, sums_of(shared, s, groups)[c * SUM_ROW + r]);
    return sum;
}

template <int input> static __global__ void __launch_bounds__(THREADS, FEW_BLOCKS) few(const struct th_cuda_product p, int stride)
{
    TH_DYNAMIC_SHARED(unsigned char, shared);
    __shared__ float warps[8 * WARPS]; // of norms
    uint16_t *inputs = reinterpret_cast<uint16_t *>(shared + RINGS);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, q = lane % 4;
    const int steps = p.w.cols / 32;
    const struct walk w = walk_of(warp, steps);
    const unsigned char *tiles = static_cast<const unsigned char *>(p.w.tiles) +
                                 static_cast<size_t>(blockIdx.x) * static_cast<size_t>(steps) * TH_TILE_BYTES + lane * 16;
    unsigned char *ring = shared + warp * SLICE + lane * 16;
#pragma unroll
    for (int i = 0; i < RING / 2; i++) copy_round(ring, tiles, w, i);
    th_dependency_release();
    if (threadIdx.x == 0) th_prefetch_share(p.next, p.next_bytes);
    const struct th_tile_output out = th_find_output(p, static_cast<int>(blockIdx.x));
    th_dependency_wait();
    // Threads 0..16*columns-1 write: row thread % 16 of column thread / 16.
    const int r = static_cast<int>(threadIdx.x) % 16, c = static_cast<int>(threadIdx.x) / 16;
    const float old = c < p.columns ? th_old_output(out, c, r) : 0.0f;
    stage<input>(p, inputs, stride, warps);

    const uint16_t *x = inputs + g * stride + q * 8;
    const int rounds = walk_rounds(w);
    const bool mine = g < p.columns;
    float sum[2][4] = {};
    for (int i = 0; i < rounds; i++) {
        th_copy_wait<RING / 2 - 1>();
        const unsigned char *slot = ring + i % (RING / 2) * 2048;
        const uint4 none = make_uint4(0, 0, 0, 0);
        const uint4 b0 = mine && i < w.count[0] ? th_load_16(x + (w.first + i) * 32) : none;
        const uint4 b1 = mine && i < w.count[1] ? th_load_16(x + (w.second + i) * 32) : none;
        if (i < w.count[0]) multiply(sum[0], slot, b0);
        if (i < w.count[1]) multiply(sum[1], slot + 1024, b1);
        copy_round(ring, tiles, w, i + RING / 2);
    }
    __syncwarp(); // the warp's ring becomes its sums
    keep_sums(sums_of(shared, 2 * warp, 1), sum[0], g, q);
    keep_sums(sums_of(shared, 2 * warp + 1, 1), sum[1], g, q);
    __syncthreads();
    if (c >= p.columns || (out.to.kind == TH_CUDA_SILU && r >= 8)) return;
    const float value = add_segments(shared, 1, c, r);
    const float up = out.to.kind == TH_CUDA_SILU ? add_segments(shared, 1, c, r + 8) : 0.0f;
    th_write_output(out, c, r, value, up, old);
}

// ---- up to 32 columns: each warp reads its inputs from the cache
// -----------------------------------------------------------------

// The inputs of a step: column g of each group of eight. Columns past the end repeat the last.
template <int groups> static __device__ __forceinline__ void load_inputs(uint4 b[groups], const uint16_t *const x[groups], int step)
{
#pragma unroll
    for (int t = 0; t < groups; t++) b[t] = th_load_shared_row(x[t] + step * 32);
}

template <int groups> static __global__ void __launch_bounds__(THREADS, 2) some(const struct th_cuda_product p)
{
    TH_DYNAMIC_SHARED(unsigned char, shared);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, q = lane % 4;
    const int steps = p.w.cols / 32;
    const struct walk w = walk_of(warp, steps);
    const unsigned char *tiles = static_cast<const unsigned char *>(p.w.tiles) +
                                 static_cast<size_t>(blockIdx.x) * static_cast<size_t>(steps) * TH_TILE_BYTES + lane * 16;
    unsigned char *ring = shared + warp * SLICE + lane * 16;
#pragma unroll
    for (int i = 0; i < RING / 2; i++) copy_round(ring, tiles, w, i);
    th_dependency_release();
    if (threadIdx.x == 0) th_prefetch_share(p.next, p.next_bytes);
    const struct th_tile_output out = th_find_output(p, static_cast<int>(blockIdx.x));
    th_dependency_wait();

    const uint16_t *x[groups];
#pragma unroll
    for (int t = 0; t < groups; t++)
        x[t] = p.x + static_cast<size_t>(min(t * 8 + g, p.columns - 1)) * static_cast<size_t>(p.x_stride) + q * 8;
    const int rounds = walk_rounds(w);
    float sum[2][groups][4] = {};
    uint4 b[2][groups];
    if (w.count[0] > 0) load_inputs<groups>(b[0], x, w.first);
    if (w.count[1] > 0) load_inputs<groups>(b[1], x, w.second);
    for (int i = 0; i < rounds; i++) {
        th_copy_wait<RING / 2 - 1>();
        const unsigned char *slot = ring + i % (RING / 2) * 2048;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (i >= w.count[half]) continue;
            const uint4 a0 = th_load_16(slot + half * 1024), a1 = th_load_16(slot + half * 1024 + 512);
#pragma unroll
            for (int t = 0; t < groups; t++) {
                th_mma_bf16(sum[half][t], a0, b[half][t].x, b[half][t].y);
                th_mma_bf16(sum[half][t], a1, b[half][t].z, b[half][t].w);
            }
            if (i + 1 < w.count[half]) load_inputs<groups>(b[half], x, (half == 0 ? w.first : w.second) + i + 1);
        }
        copy_round(ring, tiles, w, i + RING / 2);
    }
    __syncwarp(); // the warp's ring becomes its sums
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int t = 0; t < groups; t++) keep_sums(sums_of(shared, 2 * warp + half, groups) + t * GROUP_SUMS, sum[half][t], g, q);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < 16 * p.columns; i += THREADS) {
        const int r = i % 16, c = i / 16;
        if (out.to.kind == TH_CUDA_SILU && r >= 8) continue;
        const float value = add_segments(shared, groups, c, r);
        const float up = out.to.kind == TH_CUDA_SILU ? add_segments(shared, groups, c, r + 8) : 0.0f;
        th_write_output(out, c, r, value, up, th_old_output(out, c, r));
    }
}

// ---- choice of form
// ---------------------------------------------------------------------------------------------------------------

// What every architecture gives a block is 99 KB; a block of `few` needs 64 and its columns.
#define FEW_SHARED (99 * 1024 - 512)
static int few_stride(const struct th_cuda_product *p)
{
    return p->w.cols + (p->columns > 1 ? 32 : 0); // no two columns of a pair in the same banks
}
static size_t few_shared(const struct th_cuda_product *p)
{
    return RINGS + static_cast<size_t>(p->columns) * static_cast<size_t>(few_stride(p)) * sizeof(uint16_t);
}
static bool few_fits(const struct th_cuda_product *p)
{
    return p->columns <= 8 && few_shared(p) <= FEW_SHARED;
}

template <int input> static cudaError_t launch_few(const struct th_cuda_launch *launch, const struct th_cuda_product *p)
{
    return th_launch(launch, few<input>, dim3(p->w.rows / 16), dim3(THREADS), few_shared(p), *p, few_stride(p));
}

template <int groups> static cudaError_t launch_some(const struct th_cuda_launch *launch, const struct th_cuda_product *p)
{
    static_assert(2 * groups * GROUP_SUMS <= SLICE / 4, "sums fit the ring");
    return th_launch(launch, some<groups>, dim3(p->w.rows / 16), dim3(THREADS), RINGS, *p);
}

static cudaError_t plain(const struct th_cuda_launch *launch, const struct th_cuda_product *p)
{
    if (few_fits(p)) return launch_few<TH_CUDA_PLAIN>(launch, p);
    if (p->columns <= 8) return launch_some<1>(launch, p);
    if (p->columns <= 16) return launch_some<2>(launch, p);
    if (p->columns <= 32) return launch_some<4>(launch, p);
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
    return product->input == TH_CUDA_NORM ? launch_few<TH_CUDA_NORM>(launch, product) : launch_few<TH_CUDA_JOIN>(launch, product);
}

TH_CUDA_KERNELS(product) = {TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_PLAIN>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_NORM>),
                            TH_CUDA_KERNEL(THREADS, FEW_SHARED, few<TH_CUDA_JOIN>),
                            TH_CUDA_KERNEL(THREADS, RINGS, some<1>),
                            TH_CUDA_KERNEL(THREADS, RINGS, some<2>),
                            TH_CUDA_KERNEL(THREADS, RINGS, some<4>),
                            TH_CUDA_KERNELS_END};
