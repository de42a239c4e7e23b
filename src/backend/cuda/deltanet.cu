/* deltanet.cu - Gated DeltaNet between its products (docs/model.md, "Gated DeltaNet layer"): causal convolution, gates, the
 * recurrence row by row, gated norm. Frames take one kernel, a block a value head with its state in registers; a prompt takes
 * three, so that only the recurrence itself runs row after row. Both do the same operations in the same order:
 *
 *     convolution     fused steps from the oldest tap
 *     length          a lane of 32 sums every 32nd square, then a butterfly
 *     S^T k, S^T q    eight threads share a value channel, each with dim / 8 key channels as four running sums (index mod 4),
 *                     (s0 + s1) + (s2 + s3), then a butterfly over the eight
 *
 * The state of a value head, in 16-byte pieces of four key channels: piece j of lane l of warp w at (w * dim/32 + j) * 32 + l holds
 * value channel 4w + l % 4, key channels (l / 4) * dim/8 + 4j .. + 3. */
#include "backend/cuda/forward.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace
{

enum { TAPS = 4, CHUNK = 8, RECUR_THREADS = 256 };

struct th_delta_shape {
    int channels, key_width, value_width;
};
__device__ __forceinline__ th_delta_shape shape_of(const struct th_cuda_deltanet &at, int dim)
{
    th_delta_shape shape;
    shape.key_width = at.key_heads * dim;
    shape.value_width = at.value_heads * dim;
    shape.channels = 2 * shape.key_width + shape.value_width;
    return shape;
}

template <typename T> __device__ __forceinline__ T *in_lane(T *base, int lane, size_t stride)
{
    return reinterpret_cast<T *>(reinterpret_cast<char *>(base) + static_cast<size_t>(lane) * stride);
}

/* ---- one row ------------------------------------------------------------------------------------------------------------------
 */

/* silu of the convolution, rounded; inputs oldest first */
__device__ __forceinline__ float convolve(float4 taps, float x0, float x1, float x2, float x3)
{
    return th_round_bf16(th_silu(fmaf(taps.w, x3, fmaf(taps.z, x2, fmaf(taps.y, x1, fmaf(taps.x, x0, 0.0f))))));
}

/* One warp: 1 / factor of unit length of x [dim], by y = x / length * scale. */
template <int dim> __device__ __forceinline__ float sum_of_squares(const float (&x)[dim / 32])
{
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < dim / 32; i++) sum = fmaf(x[i], x[i], sum);
    for (int bits = 16; bits > 0; bits >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, bits));
    return sum;
}

/* One warp: x [dim] in memory becomes its unit vector times scale, written through `place`. */
template <int dim, typename F> __device__ __forceinline__ void unit(const float *x, float scale, F place)
{
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float own[dim / 32];
#pragma unroll
    for (int i = 0; i < dim / 32; i++) own[i] = x[lane + 32 * i];
    float length = __fsqrt_rn(__fadd_rn(sum_of_squares<dim>(own), 1e-6f));
#pragma unroll
    for (int i = 0; i < dim / 32; i++) place(lane + 32 * i, __fmul_rn(__fdiv_rn(own[i], length), scale));
}

__device__ __forceinline__ float2 gates(float a, float b, float a_log, float dt_bias)
{
    float x = __fadd_rn(a, dt_bias), step = x;
    if (!(x > 20.0f)) step = th_log(__fadd_rn(1.0f, th_exp(x)));
    float g = __fmul_rn(-th_exp(a_log), step);
    return make_float2(th_exp(g), th_round_bf16(th_sigmoid(b)));
}

/* A thread's key channels of one value channel. */
template <int dim> struct th_delta_part {
    enum { KEYS = dim / 8, PIECES = KEYS / 4, STRIDE = KEYS + 4, PADDED = 8 * STRIDE, WARPS = dim / 4 };
    float4 s[PIECES];

    /* Where key channel i lies in a row of keys that eight threads read side by side. */
    static __device__ __forceinline__ int padded(int i)
    {
        return i / KEYS * STRIDE + i % KEYS;
    }
    __device__ __forceinline__ void load(const float *head, int warp, int lane)
    {
#pragma unroll
        for (int j = 0; j < PIECES; j++) s[j] = reinterpret_cast<const float4 *>(head)[(warp * PIECES + j) * 32 + lane];
    }
    __device__ __forceinline__ void store(float *head, int warp, int lane) const
    {
#pragma unroll
        for (int j = 0; j < PIECES; j++) reinterpret_cast<float4 *>(head)[(warp * PIECES + j) * 32 + lane] = s[j];
    }
    static __device__ __forceinline__ float over_keys(float4 sums)
    {
        float sum = __fadd_rn(__fadd_rn(sums.x, sums.y), __fadd_rn(sums.z, sums.w));
        for (int bits = 4; bits < 32; bits <<= 1) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, bits));
        return sum;
    }
    /* S = decay S; d = beta (v - S^T k); S = S + k d^T; returns S^T q. key and query: padded rows. */
    __device__ __forceinline__ float row(const float *key, const float *query, float value, float decay, float beta, int lane)
    {
        const float4 *k = reinterpret_cast<const float4 *>(key + lane / 4 * STRIDE);
        const float4 *q = reinterpret_cast<const float4 *>(query + lane / 4 * STRIDE);
        float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            s[j].x = __fmul_rn(s[j].x, decay);
            s[j].y = __fmul_rn(s[j].y, decay);
            s[j].z = __fmul_rn(s[j].z, decay);
            s[j].w = __fmul_rn(s[j].w, decay);
            sums.x = fmaf(s[j].x, k[j].x, sums.x);
            sums.y = fmaf(s[j].y, k[j].y, sums.y);
            sums.z = fmaf(s[j].z, k[j].z, sums.z);
            sums.w = fmaf(s[j].w, k[j].w, sums.w);
        }
        float d = __fmul_rn(__fsub_rn(value, over_keys(sums)), beta);
        sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            s[j].x = fmaf(k[j].x, d, s[j].x);
            s[j].y = fmaf(k[j].y, d, s[j].y);
            s[j].z = fmaf(k[j].z, d, s[j].z);
            s[j].w = fmaf(k[j].w, d, s[j].w);
            sums.x = fmaf(s[j].x, q[j].x, sums.x);
            sums.y = fmaf(s[j].y, q[j].y, sums.y);
            sums.z = fmaf(s[j].z, q[j].z, sums.z);
            sums.w = fmaf(s[j].w, q[j].w, sums.w);
        }
        return over_keys(sums);
    }
};

/* A lane's share of what the gated norm needs beside the recurrence's outputs: channels lane, lane + 32, ... */
template <int dim> struct th_delta_gate {
    float weight[dim / 32];
    uint16_t z[dim / 32];

    __device__ __forceinline__ void load_weight(const float *norm)
    {
#pragma unroll
        for (int i = 0; i < dim / 32; i++) weight[i] = norm[threadIdx.x % 32 + 32 * i];
    }
    __device__ __forceinline__ void load_z(const uint16_t *from)
    {
#pragma unroll
        for (int i = 0; i < dim / 32; i++) z[i] = from[threadIdx.x % 32 + 32 * i];
    }
    /* One warp: out = gated norm of o [dim], of which this lane has `own`. */
    __device__ __forceinline__ void norm(const float (&own)[dim / 32], float eps, uint16_t *out) const
    {
        float mean = __fdiv_rn(sum_of_squares<dim>(own), static_cast<float>(dim));
        float factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
#pragma unroll
        for (int i = 0; i < dim / 32; i++) {
            float normed = __fmul_rn(__fmul_rn(own[i], factor), weight[i]);
            out[threadIdx.x % 32 + 32 * i] = th_float_bf16(__fmul_rn(normed, th_silu(th_bf16_float(z[i]))));
        }
    }
};

__device__ __forceinline__ float2 gates_of(const struct th_cuda_deltanet &at, const uint16_t *row, const th_delta_shape &shape,
                                           int head)
{
    const uint16_t *b = row + shape.channels + shape.value_width, *a = b + at.value_heads;
    return gates(th_bf16_float(a[head]), th_bf16_float(b[head]), at.a_log[head], at.dt_bias[head]);
}

/* ---- frames -------------------------------------------------------------------------------------------------------------------
 */

template <int dim> struct __align__(16) th_delta_row
{
    float raw[2][dim]; /* query, key after the convolution */
    float query[th_delta_part<dim>::PADDED], key[th_delta_part<dim>::PADDED];
    float value[dim], out[dim];
    float2 gates;
};

/* Grid: value heads, columns. The block's state is read before the products that make its inputs have ended: it was last written
 * in an earlier pass. */
template <int dim> __global__ void __launch_bounds__(dim * 8) frame_kernel(const struct th_cuda_deltanet at)
{
    __shared__ th_delta_row<dim> mine;
    const int head = static_cast<int>(blockIdx.x), column = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
    const int warp = thread / 32, lane = thread % 32;
    th_dependency_release();
    const bool listed = column < at.pass->backbone_count;
    const th_cuda_column *of = &at.pass->column[listed ? column : 0];
    const th_delta_shape shape = shape_of(at, dim);
    const int ratio = at.value_heads / at.key_heads, key_head = head / ratio, position = of->position;
    const bool there = listed && position >= 0;
    const int part = thread / dim; /* query, key, value; threads from 3 dim on have no channel */
    const int channel =
        part < 2 ? part * shape.key_width + key_head * dim + thread % dim : 2 * shape.key_width + head * dim + thread % dim;
    float *state = in_lane(at.delta, of->lane, at.lane_stride) + static_cast<size_t>(head) * (dim * dim);
    uint16_t *ring = in_lane(at.ring, of->lane, at.lane_stride);
    th_delta_part<dim> own;
    th_delta_gate<dim> gate = {};
    float before[TAPS - 1] = {0.0f, 0.0f, 0.0f};
    float4 taps = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (there) {
        own.load(state, warp, lane);
        if (warp == 0) gate.load_weight(at.norm);
        if (part < 3) {
            taps = reinterpret_cast<const float4 *>(at.conv)[channel];
#pragma unroll
            for (int j = 0; j < TAPS - 1; j++) /* slots of rows position-3.. */
                before[j] = th_bf16_float(ring[static_cast<size_t>((position + 1 + j) % TAPS) * shape.channels + channel]);
        }
    }
    th_dependency_wait();
    if (!there) return;
    const uint16_t *row = at.rows + static_cast<size_t>(column) * static_cast<size_t>(at.row_stride);
    if (warp == 0) gate.load_z(row + shape.channels + head * dim);
    if (part < 3) {
        uint16_t x = row[channel];
        float y = convolve(taps, before[0], before[1], before[2], th_bf16_float(x));
        (part < 2 ? mine.raw[part] : mine.value)[thread % dim] = y;
        if (part == 2 || head % ratio == 0) ring[static_cast<size_t>(position % TAPS) * shape.channels + channel] = x;
    }
    if (thread == dim * 8 - 1) mine.gates = gates_of(at, row, shape, head);
    __syncthreads();
    if (warp < 2) {
        float *to = warp == 0 ? mine.query : mine.key;
        unit<dim>(mine.raw[warp], warp == 0 ? __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(dim))) : 1.0f,
                  [to](int i, float y) { to[th_delta_part<dim>::padded(i)] = y; });
    }
    __syncthreads();
    const int n = warp * 4 + lane % 4;
    float o = own.row(mine.key, mine.query, mine.value[n], mine.gates.x, mine.gates.y, lane);
    own.store(state, warp, lane);
    if (lane < 4) mine.out[n] = th_round_bf16(o);
    __syncthreads();
    if (warp > 0) return;
    float outputs[dim / 32];
#pragma unroll
    for (int i = 0; i < dim / 32; i++) outputs[i] = mine.out[lane + 32 * i];
    gate.norm(outputs, at.eps,
              at.out + static_cast<size_t>(column) * static_cast<size_t>(shape.value_width) + static_cast<size_t>(head * dim));
}

/* ---- prompts ------------------------------------------------------------------------------------------------------------------
 */

/* Scratch: mixed f32 [columns][channels] (queries and keys of unit length, values), then (decay, beta) [columns][value_heads]. */
__device__ __forceinline__ float2 *scratch_gates(const struct th_cuda_deltanet &at, int channels)
{
    return reinterpret_cast<float2 *>(at.scratch + static_cast<size_t>(at.columns) * static_cast<size_t>(channels));
}

/* Grid: heads of queries, keys, values; columns. A thread a channel. */
template <int dim> __global__ void __launch_bounds__(dim) mix_kernel(const struct th_cuda_deltanet at)
{
    __shared__ float raw[dim];
    th_dependency_release();
    th_dependency_wait();
    const int part = static_cast<int>(blockIdx.x), column = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
    if (column >= at.pass->backbone_count) return;
    const th_cuda_column *of = &at.pass->column[column];
    const th_delta_shape shape = shape_of(at, dim);
    const int channel = part * dim + thread;
    const uint16_t *ring = in_lane(at.ring, of->lane, at.lane_stride) + channel;
    const uint16_t *row = at.rows + static_cast<size_t>(column) * static_cast<size_t>(at.row_stride);
    float x[TAPS];
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
        int back = TAPS - 1 - j; /* rows before this one: in this pass, or in the ring */
        x[j] = th_bf16_float(back <= column ? row[channel - back * at.row_stride]
                                            : ring[static_cast<size_t>((of->position + 1 + j) % TAPS) * shape.channels]);
    }
    float4 taps = reinterpret_cast<const float4 *>(at.conv)[channel];
    float y = convolve(taps, x[0], x[1], x[2], x[3]);
    float *to = at.scratch + static_cast<size_t>(column) * static_cast<size_t>(shape.channels) + part * dim;
    if (part >= 2 * at.key_heads) {
        to[thread] = y;
        const int head = part - 2 * at.key_heads;
        if (thread == 0)
            scratch_gates(
                at, shape.channels)[static_cast<size_t>(column) * static_cast<size_t>(at.value_heads) + static_cast<size_t>(head)] =
                gates_of(at, row, shape, head);
        return;
    }
    raw[thread] = y;
    __syncthreads();
    if (thread < 32)
        unit<dim>(raw, part < at.key_heads ? __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(dim))) : 1.0f,
                  [to](int i, float value) { to[i] = value; });
}

/* Rows first.. of a chunk for the block's 32 value channels. */
template <int dim> struct __align__(16) th_delta_chunk
{
    float query[CHUNK][th_delta_part<dim>::PADDED], key[CHUNK][th_delta_part<dim>::PADDED];
    float value[CHUNK][32];
    float2 gates[CHUNK];
};

template <int dim>
__device__ void fetch_chunk(const struct th_cuda_deltanet &at, const th_delta_shape &shape, int head, int channel, int first,
                            int count, th_delta_chunk<dim> *chunk)
{
    typedef th_delta_part<dim> part;
    const int key_head = head / (at.value_heads / at.key_heads), pieces = dim / 4, thread = static_cast<int>(threadIdx.x);
    const float *mixed = at.scratch + static_cast<size_t>(first) * static_cast<size_t>(shape.channels);
    for (int i = thread; i < count * pieces; i += RECUR_THREADS) {
        int row = i / pieces, piece = i % pieces * 4;
        const float *from = mixed + static_cast<size_t>(row) * static_cast<size_t>(shape.channels) + key_head * dim + piece;
        th_copy_async(&chunk->query[row][part::padded(piece)], from);
        th_copy_async(&chunk->key[row][part::padded(piece)], from + shape.key_width);
    }
    for (int i = thread; i < count * 8; i += RECUR_THREADS)
        th_copy_async(&chunk->value[i / 8][i % 8 * 4], mixed + static_cast<size_t>(i / 8) * static_cast<size_t>(shape.channels) +
                                                           2 * shape.key_width + head * dim + channel + i % 8 * 4);
    if (thread < count)
        chunk->gates[thread] = scratch_gates(
            at,
            shape.channels)[static_cast<size_t>(first + thread) * static_cast<size_t>(at.value_heads) + static_cast<size_t>(head)];
    th_copy_commit();
}

/* The convolution's inputs of the pass's last rows go to the ring: the value head's, and its key head's if it is the first. */
template <int dim>
__device__ void keep_inputs(const struct th_cuda_deltanet &at, const th_delta_shape &shape, int head, int columns, int position,
                            uint16_t *ring)
{
    const int ratio = at.value_heads / at.key_heads, key = head / ratio * dim;
    for (int i = static_cast<int>(threadIdx.x); i < TAPS * 3 * dim; i += RECUR_THREADS) {
        int column = columns - 1 - i / (3 * dim), part = i % (3 * dim) / dim, n = i % dim;
        if (column < 0 || (part < 2 && head % ratio != 0)) continue;
        int channel = part < 2 ? part * shape.key_width + key + n : 2 * shape.key_width + head * dim + n;
        ring[static_cast<size_t>((position + column) % TAPS) * shape.channels + channel] =
            at.rows[static_cast<size_t>(column) * static_cast<size_t>(at.row_stride) + channel];
    }
}

/* Grid: value heads, dim / 32 parts of 32 value channels each. */
template <int dim> __global__ void __launch_bounds__(RECUR_THREADS) recur_kernel(const struct th_cuda_deltanet at)
{
    __shared__ th_delta_chunk<dim> chunks[2];
    const int head = static_cast<int>(blockIdx.x), part = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
    const int warp = thread / 32, lane = thread % 32, n = warp * 4 + lane % 4;
    th_dependency_release();
    const th_delta_shape shape = shape_of(at, dim);
    const int columns = at.pass->backbone_count, number = at.pass->column[0].lane, position = at.pass->column[0].position;
    float *state = in_lane(at.delta, number, at.lane_stride) + static_cast<size_t>(head) * (dim * dim);
    th_dependency_wait();
    if (columns == 0) return;
    th_delta_part<dim> own;
    own.load(state, part * 8 + warp, lane);
    fetch_chunk<dim>(at, shape, head, part * 32, 0, min(columns, static_cast<int>(CHUNK)), &chunks[0]);
    for (int first = 0, turn = 0; first < columns; first += CHUNK, turn ^= 1) {
        const int count = min(columns - first, static_cast<int>(CHUNK)), next = first + CHUNK;
        if (next < columns)
            fetch_chunk<dim>(at, shape, head, part * 32, next, min(columns - next, static_cast<int>(CHUNK)), &chunks[turn ^ 1]);
        else
            th_copy_commit();
        th_copy_wait<1>();
        __syncthreads();
        const th_delta_chunk<dim> &chunk = chunks[turn];
        for (int row = 0; row < count; row++) {
            float o = own.row(chunk.key[row], chunk.query[row], chunk.value[row][n], chunk.gates[row].x, chunk.gates[row].y, lane);
            if (lane < 4)
                at.out[static_cast<size_t>(first + row) * static_cast<size_t>(shape.value_width) +
                       static_cast<size_t>(head * dim + part * 32 + n)] = th_float_bf16(o);
        }
        __syncthreads();
    }
    own.store(state, part * 8 + warp, lane);
    if (part == 0) keep_inputs<dim>(at, shape, head, columns, position, in_lane(at.ring, number, at.lane_stride));
}

/* Grid: value heads, columns; one warp. In place over the recurrence's outputs. */
template <int dim> __global__ void __launch_bounds__(32) norm_kernel(const struct th_cuda_deltanet at)
{
    th_dependency_release();
    th_dependency_wait();
    const int head = static_cast<int>(blockIdx.x), column = static_cast<int>(blockIdx.y);
    if (column >= at.pass->backbone_count) return;
    const th_delta_shape shape = shape_of(at, dim);
    uint16_t *out = at.out + static_cast<size_t>(column) * static_cast<size_t>(shape.value_width) + static_cast<size_t>(head * dim);
    th_delta_gate<dim> gate = {};
    gate.load_weight(at.norm);
    gate.load_z(at.rows + static_cast<size_t>(column) * static_cast<size_t>(at.row_stride) + shape.channels + head * dim);
    float own[dim / 32];
#pragma unroll
    for (int i = 0; i < dim / 32; i++) own[i] = th_bf16_float(out[threadIdx.x + 32 * i]);
    gate.norm(own, at.eps, out);
}

template <int dim> cudaError_t launch_deltanet(const struct th_cuda_launch *launch, const struct th_cuda_deltanet &at)
{
    const unsigned heads = static_cast<unsigned>(at.value_heads), columns = static_cast<unsigned>(at.columns);
    if (!at.sequential) return th_launch(launch, frame_kernel<dim>, dim3(heads, columns), dim3(dim * 8), 0, at);
    TH_CUDA_TRY(
        th_launch(launch, mix_kernel<dim>, dim3(heads + 2 * static_cast<unsigned>(at.key_heads), columns), dim3(dim), 0, at));
    TH_CUDA_TRY(th_launch(launch, recur_kernel<dim>, dim3(heads, dim / 32), dim3(RECUR_THREADS), 0, at));
    return th_launch(launch, norm_kernel<dim>, dim3(heads, columns), dim3(32), 0, at);
}

} // namespace

extern "C" size_t th_cuda_deltanet_scratch_bytes(int columns, int key_heads, int value_heads, int dim)
{
    size_t channels = static_cast<size_t>(2 * key_heads + value_heads) * static_cast<size_t>(dim);
    return static_cast<size_t>(columns) * (channels + 2 * static_cast<size_t>(value_heads)) * sizeof(float);
}

extern "C" cudaError_t th_cuda_deltanet(const struct th_cuda_launch *launch, const struct th_cuda_deltanet *deltanet)
{
    switch (deltanet->dim) {
    case 32: return launch_deltanet<32>(launch, *deltanet);
    case 64: return launch_deltanet<64>(launch, *deltanet);
    case 128: return launch_deltanet<128>(launch, *deltanet);
    default: return cudaErrorInvalidValue;
    }
}

TH_CUDA_KERNELS(deltanet) = {TH_CUDA_KERNEL(256, 0, frame_kernel<32>),
                             TH_CUDA_KERNEL(512, 0, frame_kernel<64>),
                             TH_CUDA_KERNEL(1024, 0, frame_kernel<128>),
                             TH_CUDA_KERNEL(32, 0, mix_kernel<32>),
                             TH_CUDA_KERNEL(64, 0, mix_kernel<64>),
                             TH_CUDA_KERNEL(128, 0, mix_kernel<128>),
                             TH_CUDA_KERNEL(RECUR_THREADS, 0, recur_kernel<32>),
                             TH_CUDA_KERNEL(RECUR_THREADS, 0, recur_kernel<64>),
                             TH_CUDA_KERNEL(RECUR_THREADS, 0, recur_kernel<128>),
                             TH_CUDA_KERNEL(32, 0, norm_kernel<32>),
                             TH_CUDA_KERNEL(32, 0, norm_kernel<64>),
                             TH_CUDA_KERNEL(32, 0, norm_kernel<128>),
                             TH_CUDA_KERNELS_END};
