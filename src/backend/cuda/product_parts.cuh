// product_parts.cuh - what the forms of the product share: their argument, where a tile's rows go, and how a value is written.
#ifndef THESPIS_BACKEND_CUDA_PRODUCT_PARTS_CUH
#define THESPIS_BACKEND_CUDA_PRODUCT_PARTS_CUH

#include "backend/cuda/launch.cuh"
#include "backend/cuda/product.h"

#define TH_SEGMENTS 16 // pieces of the inputs that are summed apart (product.h)

// First step of a segment, of n steps in all.
static __host__ __device__ __forceinline__ int th_segment(int segment, int n)
{
    return segment * n / TH_SEGMENTS;
}

// The output that holds row tile `tile`, and the tile's number in it.
struct th_tile_output {
    struct th_cuda_output to;
    int tile;
};
static __device__ __forceinline__ struct th_tile_output th_find_output(const struct th_cuda_product &p, int tile)
{
    struct th_tile_output found = {p.output[0], tile};
    if (p.outputs == 1) return found;
#pragma unroll
    for (int i = 1; i < TH_CUDA_OUTPUTS; i++) {
        const int tiles = (p.output[i - 1].rows + 15) / 16;
        if (i >= p.outputs || tile < tiles) break;
        tile -= tiles;
        found.to = p.output[i];
        found.tile = tile;
    }
    return found;
}

// Value of row r (0..15) of the tile in column c. Silu: r < 8, with `up` that of row r + 8. `old`: what RESIDUAL adds to.
static __device__ __forceinline__ void th_write_output(const struct th_tile_output &out, int c, int r, float value, float up,
                                                       float old)
{
    const struct th_cuda_output &to = out.to;
    const size_t column = static_cast<size_t>(c) * static_cast<size_t>(to.stride);
    if (to.kind == TH_CUDA_SILU) {
        const int row = out.tile * 8 + r;
        if (row * 2 >= to.rows) return;
        static_cast<uint16_t *>(to.out)[column + row] = th_float_bf16(__fmul_rn(th_silu(th_round_bf16(value)), th_round_bf16(up)));
        return;
    }
    const int row = out.tile * 16 + r;
    if (row >= to.rows) return;
    if (to.kind == TH_CUDA_FLOAT)
        static_cast<float *>(to.out)[column + row] = value;
    else if (to.kind == TH_CUDA_STORE)
        static_cast<uint16_t *>(to.out)[column + row] = th_float_bf16(value);
    else
        static_cast<uint16_t *>(to.out)[column + row] = th_float_bf16(__fadd_rn(old, th_round_bf16(value)));
}

// What RESIDUAL adds to; zero for other kinds.
static __device__ __forceinline__ float th_old_output(const struct th_tile_output &out, int c, int r)
{
    const int row = out.tile * 16 + r;
    if (out.to.kind != TH_CUDA_RESIDUAL || row >= out.to.rows) return 0.0f;
    const uint16_t *at = static_cast<const uint16_t *>(out.to.out) + static_cast<size_t>(c) * static_cast<size_t>(out.to.stride);
    return th_bf16_float(__ldcg(at + row));
}

// product_wide.cu: TH_CUDA_PLAIN only.
extern "C" cudaError_t th_cuda_product_wide(const struct th_cuda_launch *launch, const struct th_cuda_product *product);

#endif
