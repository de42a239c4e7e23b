// product_wide.cu - products of many columns: prompts, and steps of more than 32 lanes. A block has a rectangle of rows and
// columns; tiles of weights and stretches of inputs pass through shared memory, some stages ahead. A warp sums one segment
// (product.h) in `sum` and adds it to `total` at its end: the same operations in the same order as product.cu has.
#include "backend/cuda/kernels.h"
#include "backend/cuda/product_parts.cuh"

#define WARPS 8
#define THREADS (WARPS * 32)
#define STAGE_STEPS 2 // steps of 32 inputs that pass together

// A warp has rows tiles of 16 rows and groups of 8 columns; the block is down x across warps.
template <int rows, int groups, int down, int across> struct shape {
    static const int tiles = rows * down; // of 16 rows
    static const int columns = groups * across * 8;
    static const int weight_bytes = tiles * STAGE_STEPS * TH_TILE_BYTES;
    static const int stage_bytes = weight_bytes + columns * STAGE_STEPS * 64;
    static const int stages = stage_bytes <= 12288 ? 5 : stage_bytes <= 16384 ? 4 : 3;
};

// Sixteen bytes `piece` (0..7) of a column's 128 bytes in a stage; odd columns are turned by half, so that a warp's lanes meet all
// banks.
static __device__ __forceinline__ int input_at(int column, int piece)
{
    return column * (STAGE_STEPS * 64) + (piece ^ ((column & 1) << 2)) * 16;
}

template <typename S>
static __device__ __forceinline__ void copy_weights(unsigned char *to, const struct th_cuda_product &p, int tile, int step)
{
    const int steps = p.w.cols / 32, bytes = min(STAGE_STEPS, steps - step) * TH_TILE_BYTES, last = p.w.rows / 16 - 1;
    for (int i = static_cast<int>(threadIdx.x); i < S::weight_bytes / 16; i += THREADS) {
        const int t = i / (STAGE_STEPS * 64), at = i % (STAGE_STEPS * 64) * 16;
        if (at < bytes)
            th_copy_async(to + i * 16,
                          static_cast<const unsigned char *>(p.w.tiles) +
                              (static_cast<size_t>(min(tile + t, last)) * static_cast<size_t>(steps) + static_cast<size_t>(step)) *
                                  TH_TILE_BYTES +
                              at);
    }
}

// Columns past the end repeat the last.
template <typename S>
static __device__ __forceinline__ void copy_inputs(unsigned char *to, const struct th_cuda_product &p, int column, int step)
{
    const int pieces = min(STAGE_STEPS, p.w.cols / 32 - step) * 4;
    for (int i = static_cast<int>(threadIdx.x); i < S::columns * STAGE_STEPS * 4; i += THREADS) {
        const int c = i / (STAGE_STEPS * 4), piece = i % (STAGE_STEPS * 4);
        if (piece < pieces)
            th_copy_async(to + input_at(c, piece),
                          p.x + static_cast<size_t>(min(column + c, p.columns - 1)) * static_cast<size_t>(p.x_stride) + step * 32 +
                              piece * 8);
    }
}

template <int rows, int groups>
static __device__ __forceinline__ void multiply(float sum[rows][groups][4], const unsigned char *weights,
                                                const unsigned char *inputs, int column, int t, int lane)
{
    uint4 b[groups];
#pragma unroll
    for (int i = 0; i < groups; i++) b[i] = th_load_16(inputs + input_at(column + i * 8 + lane / 4, t * 4 + lane % 4));
#pragma unroll
    for (int r = 0; r < rows; r++) {
        const unsigned char *at = weights + (r * STAGE_STEPS + t) * TH_TILE_BYTES + lane * 16;
        const uint4 a0 = th_load_16(at), a1 = th_load_16(at + 512);
#pragma unroll
        for (int i = 0; i < groups; i++) th_mma_bf16(sum[r][i], a0, b[i].x, b[i].y);
#pragma unroll
        for (int i = 0; i < groups; i++) th_mma_bf16(sum[r][i], a1, b[i].z, b[i].w);
    }
}

template <int rows, int groups>
static __device__ __forceinline__ void end_segment(float total[rows][groups][4], float sum[rows][groups][4])
{
#pragma unroll
    for (int r = 0; r < rows; r++)
#pragma unroll
        for (int i = 0; i < groups; i++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                total[r][i][k] = __fadd_rn(total[r][i][k], sum[r][i][k]);
                sum[r][i][k] = 0.0f;
            }
}

// The end of the next segment that is not empty, after `edge`; *segment counts those passed.
static __device__ __forceinline__ int next_edge(int *segment, int edge, int steps)
{
    int end = edge;
    while (end == edge && *segment < TH_SEGMENTS) end = th_segment(++*segment, steps);
    return end;
}

// A thread's two columns and two rows of a 16 x 8 part.
static __device__ __forceinline__ void write_part(const struct th_cuda_product &p, const struct th_tile_output &out,
                                                  const float v[4], int column, int g)
{
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const int c = column + k;
        if (c >= p.columns) continue;
        if (out.to.kind == TH_CUDA_SILU) {
            th_write_output(out, c, g, v[k], v[2 + k], 0.0f);
        } else {
            th_write_output(out, c, g, v[k], 0.0f, th_old_output(out, c, g));
            th_write_output(out, c, g + 8, v[2 + k], 0.0f, th_old_output(out, c, g + 8));
        }
    }
}

// grid: x blocks of columns, y blocks of rows: blocks that share weights run at the same time.
template <int rows, int groups, int down, int across>
static __global__ void __launch_bounds__(THREADS, rows *groups > 8 ? 1 : 2) wide(const struct th_cuda_product p)
{
    using S = shape<rows, groups, down, across>;
    TH_DYNAMIC_SHARED(unsigned char, shared);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int tile = static_cast<int>(blockIdx.y) * S::tiles, column = static_cast<int>(blockIdx.x) * S::columns;
    const int my_tile = warp % down * rows, my_column = warp / down * groups * 8;
    const int steps = p.w.cols / 32, turns = (steps + STAGE_STEPS - 1) / STAGE_STEPS;
#pragma unroll
    for (int i = 0; i < S::stages - 1; i++)
        if (i < turns) copy_weights<S>(shared + i * S::stage_bytes, p, tile, i * STAGE_STEPS);
    th_dependency_release();
    th_dependency_wait();
#pragma unroll
    for (int i = 0; i < S::stages - 1; i++) {
        if (i < turns) copy_inputs<S>(shared + i * S::stage_bytes + S::weight_bytes, p, column, i * STAGE_STEPS);
        th_copy_commit();
    }
    float sum[rows][groups][4] = {}, total[rows][groups][4] = {};
    int segment = 0, edge = next_edge(&segment, 0, steps);
    for (int turn = 0; turn < turns; turn++) {
        th_copy_wait<S::stages - 2>();
        __syncthreads(); // this stage is there for all, and nobody reads the one before it any more
        const int ahead = turn + S::stages - 1;
        if (ahead < turns) {
            unsigned char *to = shared + ahead % S::stages * S::stage_bytes;
            copy_weights<S>(to, p, tile, ahead * STAGE_STEPS);
            copy_inputs<S>(to + S::weight_bytes, p, column, ahead * STAGE_STEPS);
        }
        th_copy_commit();
        const unsigned char *stage = shared + turn % S::stages * S::stage_bytes;
#pragma unroll
        for (int t = 0; t < STAGE_STEPS; t++) {
            const int step = turn * STAGE_STEPS + t;
            if (step >= steps) break;
            multiply<rows, groups>(sum, stage + my_tile * STAGE_STEPS * TH_TILE_BYTES, stage + S::weight_bytes, my_column, t, lane);
            if (step + 1 != edge) continue;
            end_segment<rows, groups>(total, sum);
            edge = next_edge(&segment, edge, steps);
        }
    }
#pragma unroll
    for (int r = 0; r < rows; r++) {
        if (tile + my_tile + r >= p.w.rows / 16) break;
        const struct th_tile_output out = th_find_output(p, tile + my_tile + r);
#pragma unroll
        for (int i = 0; i < groups; i++) write_part(p, out, total[r][i], column + my_column + i * 8 + lane % 4 * 2, lane / 4);
    }
}

template <int rows, int groups, int down, int across>
static cudaError_t launch_wide(const struct th_cuda_launch *launch, const struct th_cuda_product *p)
{
    using S = shape<rows, groups, down, across>;
    static_assert(down * across == WARPS, "a block's warps");
    const int tiles = p->w.rows / 16;
    const dim3 grid((p->columns + S::columns - 1) / S::columns, (tiles + S::tiles - 1) / S::tiles);
    return th_launch(launch, wide<rows, groups, down, across>, grid, dim3(THREADS), S::stages * S::stage_bytes, *p);
}

extern "C" cudaError_t th_cuda_product_wide(const struct th_cuda_launch *launch, const struct th_cuda_product *p)
{
    if (p->columns <= 64) return launch_wide<2, 2, 2, 4>(launch, p); // 64 rows x 64 columns
    const int large = (p->w.rows + 127) / 128 * ((p->columns + 127) / 128);
    if (p->columns <= 256 || large < 96) return launch_wide<4, 2, 2, 4>(launch, p); // 128 x 64
    return launch_wide<4, 4, 2, 4>(launch, p);                                      // 128 x 128
}

TH_CUDA_KERNELS(product_wide) = {TH_CUDA_KERNEL(THREADS, 73728, wide<4, 2, 2, 4>), TH_CUDA_KERNEL(THREADS, 65536, wide<2, 2, 2, 4>),
                                 TH_CUDA_KERNEL(THREADS, 98304, wide<4, 4, 2, 4>), TH_CUDA_KERNELS_END};
