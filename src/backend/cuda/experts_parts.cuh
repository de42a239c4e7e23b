// experts_parts.cuh - what both forms of the experts share: products of one row tile, order of sums as in experts.h.
#ifndef THESPIS_BACKEND_CUDA_EXPERTS_PARTS_CUH
#define THESPIS_BACKEND_CUDA_EXPERTS_PARTS_CUH

#include "backend/cuda/experts.h"
#include "backend/cuda/product_parts.cuh"
#include "backend/cuda/rows.cuh"

#define TH_EXPERT_WARPS 8
#define TH_EXPERT_THREADS (TH_EXPERT_WARPS * 32)
#define TH_CODE_SEGMENTS 8 // of FP8's gate and up, counted in blocks of 128

// Where this lane's bytes of row tile `tile` begin.
static __device__ __forceinline__ const unsigned char *th_expert_tile(const void *tiles, size_t expert_bytes, int expert, int tile,
                                                                      int tile_count, int lane)
{
    return static_cast<const unsigned char *>(tiles) + static_cast<size_t>(expert) * expert_bytes +
           static_cast<size_t>(tile) * static_cast<size_t>(tile_count) * TH_TILE_BYTES + lane * 16;
}

// ---- FP8: a block is 128 inputs, two tiles, four steps --------------------------------------------------------------------------

static __device__ __forceinline__ void th_load_block(uint4 w[4], const unsigned char *tile, int block)
{
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = th_load_stream(tile + static_cast<size_t>(block) * (2 * TH_TILE_BYTES) + i * 512);
}

// x0, x1: this lane's sixteen codes of its column in both tiles.
static __device__ __forceinline__ void th_block_product(float inner[4], const uint4 w[4], uint4 x0, uint4 x1)
{
    inner[0] = inner[1] = inner[2] = inner[3] = 0.0f;
    th_mma_e4m3(inner, w[0], x0.x, x0.y);
    th_mma_e4m3(inner, w[1], x0.z, x0.w);
    th_mma_e4m3(inner, w[2], x1.x, x1.y);
    th_mma_e4m3(inner, w[3], x1.z, x1.w);
}

// x0, x1: scales of the lane's two columns; w0, w1: of its two rows.
static __device__ __forceinline__ void th_enter_block(float sum[4], const float inner[4], float x0, float x1, float w0, float w1)
{
    sum[0] = fmaf(inner[0], __fmul_rn(x0, w0), sum[0]);
    sum[1] = fmaf(inner[1], __fmul_rn(x1, w0), sum[1]);
    sum[2] = fmaf(inner[2], __fmul_rn(x0, w1), sum[2]);
    sum[3] = fmaf(inner[3], __fmul_rn(x1, w1), sum[3]);
}

// Scales of row tile `tile` of gate (part 0) or up (1): [inputs / 128].
static __device__ __forceinline__ const float *th_pair_scales(const struct th_cuda_experts &x, int expert, int part, int tile)
{
    const int rows = (x.inner + 127) / 128, cols = (x.hidden + 127) / 128;
    return x.gate_up_scales + static_cast<size_t>((expert * 2 + part) * rows + tile * 8 / 128) * static_cast<size_t>(cols);
}
static __device__ __forceinline__ const float *th_down_scales(const struct th_cuda_experts &x, int expert, int tile)
{
    const int rows = (x.hidden + 127) / 128, cols = (x.inner + 127) / 128;
    return x.down_scales + static_cast<size_t>(expert * rows + tile * 16 / 128) * static_cast<size_t>(cols);
}

// Codes and scales (in shared memory) of a row of n bf16 values: units of 256 values first, first + step, ... by whole warps.
// The codes and scales also go to global memory unless it is NULL.
static __device__ __forceinline__ void th_quantise_row(const uint16_t *x, int n, int first, int step, int lane, uint8_t *codes,
                                                       float *scales, uint8_t *codes_out, float *scales_out)
{
    for (int unit = first; unit * 256 < n; unit += step) {
        const int i = unit * 256 + lane * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (i < n) v = th_load_shared_row(x + i);
        float scale;
        const uint2 eight = th_quantise_eight(v, &scale);
        if (i >= n) continue;
        *reinterpret_cast<uint2 *>(codes + i) = eight;
        if (codes_out != nullptr) *reinterpret_cast<uint2 *>(codes_out + i) = eight;
        if (i % 128 != 0) continue;
        scales[i / 128] = scale;
        if (scales_out != nullptr) scales_out[i / 128] = scale;
    }
}

// ---- bf16: steps of 32 inputs
// ----------------------------------------------------------------------------------------------------

static __device__ __forceinline__ void th_step_product(float sum[4], const unsigned char *tile, int step, uint4 x)
{
    const unsigned char *at = tile + static_cast<size_t>(step) * TH_TILE_BYTES;
    const uint4 a0 = th_load_stream(at), a1 = th_load_stream(at + 512);
    th_mma_bf16(sum, a0, x.x, x.y);
    th_mma_bf16(sum, a1, x.z, x.w);
}

// ---- results
// -----------------------------------------------------------------------------------------------------------------------

static __device__ __forceinline__ uint16_t th_silu_pair(float gate, float up)
{
    return th_float_bf16(__fmul_rn(th_silu(th_round_bf16(gate)), th_round_bf16(up)));
}

// The branch's value from the slots' rounded parts, summed, and the shared expert's; and the stream.
static __device__ __forceinline__ void th_write_mixed(const struct th_cuda_moe &m, int c, int row, float routed, float shared,
                                                      float open)
{
    const float rest = __fmul_rn(open, th_round_bf16(shared));
    const float y = th_round_bf16(__fadd_rn(th_round_bf16(routed), rest));
    const size_t at = static_cast<size_t>(c) * static_cast<size_t>(m.experts.hidden) + static_cast<size_t>(row);
    if (m.branch != nullptr) m.branch[at] = th_float_bf16(y);
    if (m.stream != nullptr) m.stream[at] = th_float_bf16(__fadd_rn(th_bf16_float(__ldcg(m.stream + at)), y));
}

// experts_grouped.cu: more than TH_CUDA_ENTRY_COLUMNS columns.
extern "C" cudaError_t th_cuda_moe_grouped(const struct th_cuda_launch *launch, const struct th_cuda_moe *moe);

#endif
