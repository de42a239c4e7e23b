// cuda_products.cu - times the products of the drama-3 shape on a GPU, each alone and all those of a frame in a row, beside what
// pure reads reach in the same run. A program of its own: scripts below src/backend/cuda linked with the static runtime.
//
//     cuda_products [frames|kinds|prefill ...]      default: all three
//
// Every graph runs on weights of some gigabytes, so that nothing comes from the second level cache that a frame would not find
// there.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "backend/cuda/experts.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/norm.h"
#include "backend/cuda/product.h"

#define CHECK(call)                                                                                                                \
    do {                                                                                                                           \
        cudaError_t code_ = (call);                                                                                                \
        if (code_ != cudaSuccess) {                                                                                                \
            printf("line %d: %s\n", __LINE__, cudaGetErrorString(code_));                                                          \
            exit(1);                                                                                                               \
        }                                                                                                                          \
    } while (0)

enum { H = 2048, EXPERTS = 256, TOP_K = 8, INNER = 512, LAYERS = 40, MOST = 1024, EXPERT_LAYERS = 8 };
static const size_t weight_bytes = static_cast<size_t>(6) << 30;
static const size_t expert_bytes = static_cast<size_t>(EXPERTS) * 3 * INNER * H; // of a layer

// Bits of pseudo-random numbers: kind 0 bf16 of 2^-7..2^-6 with signs, 1 E4M3, 2 bf16 of up to +-2.
static __global__ void fill(uint32_t *p, size_t n, int kind, uint32_t seed)
{
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n;
         i += static_cast<size_t>(gridDim.x) * blockDim.x) {
        uint32_t h = static_cast<uint32_t>(i) * 2654435761u + seed;
        h = (h ^ h >> 15) * 2246822519u;
        h = (h ^ h >> 13) * 3266489917u;
        h ^= h >> 16;
        p[i] = kind == 1   ? (h & 0x8F8F8F8Fu) | 0x20202020u
               : kind == 0 ? (h & 0x807F807Fu) | 0x3C003C00u
                           : (h & 0x80FF80FFu) | 0x3F003F00u;
    }
}
static __global__ void fill_float(float *p, size_t n, float value)
{
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n;
         i += static_cast<size_t>(gridDim.x) * blockDim.x)
        p[i] = value;
}
static __global__ void __launch_bounds__(512) read_all(const uint4 *p, size_t n, uint32_t *out)
{
    uint32_t sum = 0;
    const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
    for (; i + 7 * step < n; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = th_load_stream(p + i + k * step);
#pragma unroll
        for (int k = 0; k < 8; k++) sum ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    if (sum == 0x12345678u) *out = sum;
}

// Device memory of everything.
static struct {
    unsigned char *weights;
    size_t used; // of them, in turn
    unsigned char *experts;
    float *scales, *norm, *open;
    uint16_t *stream, *normed, *wide, *act, *handed, *joined, *router, *expert_act, *parts, *shared, *logits;
    uint8_t *codes;
    float *x_scales, *weights_of_slots;
    int32_t *chosen, *groups;
    cudaStream_t stream_of_work;
    int expert_layer;
} d;

static void *take(size_t bytes, int kind)
{
    void *p;
    CHECK(cudaMalloc(&p, bytes));
    if (kind < 0)
        fill_float<<<1024, 256>>>(static_cast<float *>(p), bytes / 4, 0.01f);
    else
        fill<<<1024, 256>>>(static_cast<uint32_t *>(p), bytes / 4, kind, 7u + static_cast<uint32_t>(kind));
    return p;
}
static void make(void)
{
    d.weights = static_cast<unsigned char *>(take(weight_bytes, 0));
    d.experts = static_cast<unsigned char *>(take(expert_bytes * EXPERT_LAYERS, 1));
    d.scales = static_cast<float *>(take(sizeof(float) * EXPERTS * 3 * 4 * 16, -1));
    d.norm = static_cast<float *>(take(sizeof(float) * 8192, -1));
    d.open = static_cast<float *>(take(sizeof(float) * MOST, -1));
    d.stream = static_cast<uint16_t *>(take(2 * MOST * H, 2));
    d.normed = static_cast<uint16_t *>(take(2 * MOST * 8192, 2));
    d.wide = static_cast<uint16_t *>(take(2 * MOST * 12352, 2));
    d.act = static_cast<uint16_t *>(take(2 * MOST * 6144, 2));
    d.handed = static_cast<uint16_t *>(take(2 * MOST * H, 2));
    d.joined = static_cast<uint16_t *>(take(2 * MOST * 2 * H, 2));
    d.router = static_cast<uint16_t *>(take(2 * MOST * EXPERTS * LAYERS, 2));
    d.expert_act = static_cast<uint16_t *>(take(2 * MOST * TOP_K * INNER, 2));
    d.parts = static_cast<uint16_t *>(take(static_cast<size_t>(2) * MOST * TOP_K * H, 2));
    d.shared = static_cast<uint16_t *>(take(2 * MOST * H, 2));
    d.logits = static_cast<uint16_t *>(take(2 * MOST * 4112, 2));
    d.codes = static_cast<uint8_t *>(take(MOST * H, 1));
    d.x_scales = static_cast<float *>(take(sizeof(float) * MOST * H / 128, -1));
    d.weights_of_slots = static_cast<float *>(take(sizeof(float) * MOST * TOP_K, -1));
    d.chosen = static_cast<int32_t *>(take(sizeof(int32_t) * MOST * TOP_K, -1));
    d.groups = static_cast<int32_t *>(take(sizeof(int32_t) * th_cuda_groups_ints(EXPERTS, MOST * TOP_K), -1));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaStreamCreate(&d.stream_of_work));
}

// ---- what is launched
// ----------------------------------------------------------------------------------------------------------------

static int early = 1;
static size_t counted; // bytes of weights of the launches since it was cleared

static struct th_cuda_matrix matrix(int rows, int cols)
{
    const size_t bytes = static_cast<size_t>(rows) * static_cast<size_t>(cols) * 2;
    if (d.used + bytes > weight_bytes) d.used = 0;
    struct th_cuda_matrix w = {d.weights + d.used, rows, cols};
    d.used += bytes;
    counted += bytes;
    return w;
}

static void product(int rows, int cols, int columns, int input, const uint16_t *x, int kind, uint16_t *out, int out_rows)
{
    const struct th_cuda_launch launch = {d.stream_of_work, early};
    struct th_cuda_product p = {};
    p.w = matrix(rows, cols);
    p.columns = columns;
    p.input = input;
    p.x = x;
    p.x_stride = input == TH_CUDA_JOIN ? cols / 2 : cols;
    p.x2 = d.stream;
    p.x2_stride = H;
    p.norm = p.norm2 = p.first2 = d.norm;
    p.eps = 1e-6f;
    p.normed = d.normed;
    p.first = d.handed;
    p.outputs = 1;
    p.output[0] = {kind, out_rows, out, kind == TH_CUDA_SILU ? out_rows / 2 : out_rows};
    if (rows == 1296) { // router | shared gate and up | gate of the shared expert
        p.outputs = 3;
        p.output[0] = {TH_CUDA_STORE, EXPERTS, out, EXPERTS};
        p.output[1] = {TH_CUDA_SILU, 2 * INNER, d.act, INNER};
        p.output[2] = {TH_CUDA_FLOAT, 1, d.open, 1};
    }
    CHECK(th_cuda_product(&launch, &p));
}

static void moe(int columns, const uint16_t *router)
{
    const struct th_cuda_launch launch = {d.stream_of_work, early};
    unsigned char *at = d.experts + static_cast<size_t>(d.expert_layer++ % EXPERT_LAYERS) * expert_bytes;
    struct th_cuda_moe m = {};
    m.experts = {
        1, EXPERTS, INNER, H, at, at + expert_bytes / 3 * 2, 2 * INNER * H, INNER * H, d.scales, d.scales + EXPERTS * 2 * 4 * 16};
    m.shared_down = matrix(H, INNER);
    m.columns = columns;
    m.top_k = TOP_K;
    m.x = d.normed;
    m.router = router;
    m.router_stride = EXPERTS;
    m.shared_act = d.act;
    m.shared_open = d.open;
    m.chosen = d.chosen;
    m.weights = d.weights_of_slots;
    m.codes = d.codes;
    m.scales = d.x_scales;
    m.act = d.expert_act;
    m.parts = d.parts;
    m.shared = d.shared;
    m.groups = d.groups;
    m.stream = d.stream;
    CHECK(th_cuda_moe(&launch, &m));
    double some = 1; // share of experts that columns of independent choices touch
    for (int i = 0; i < columns; i++) some *= 1 - static_cast<double>(TOP_K) / EXPERTS;
    counted += static_cast<size_t>((1 - some) * static_cast<double>(expert_bytes));
}

enum kind { QKV_DELTA, QKV, OUT, MOE_IN, MOE, CANDIDATES, EH, WQKV, W13, W2, HEAD, KINDS };
static const char *const names[KINDS] = {"in, DeltaNet 12352x2048 norm",
                                         "in, attention 9216x2048 norm",
                                         "out 2048x4096 add",
                                         "router, shared 1296x2048 norm",
                                         "experts and shared down",
                                         "candidates 4112x2048 norm",
                                         "eh 2048x4096 three norms",
                                         "wqkv 9216x2048 norm",
                                         "w1, w3 12288x2048 norm silu",
                                         "w2 2048x6144 add",
                                         "head 4096x2048 norm"};
static void one(int kind, int columns, int turn)
{
    switch (kind) {
    case QKV_DELTA: product(12352, H, columns, TH_CUDA_NORM, d.stream, TH_CUDA_STORE, d.wide, 12352); break;
    case QKV:
    case WQKV: product(9216, H, columns, TH_CUDA_NORM, d.stream, TH_CUDA_STORE, d.wide, 9216); break;
    case OUT: product(H, 2 * H, columns, TH_CUDA_PLAIN, d.wide, TH_CUDA_RESIDUAL, d.stream, H); break;
    case MOE_IN:
        product(1296, H, columns, TH_CUDA_NORM, d.stream, TH_CUDA_STORE, d.router + static_cast<size_t>(turn) * MOST * EXPERTS,
                EXPERTS);
        break;
    case MOE: moe(columns, d.router + static_cast<size_t>(turn) * MOST * EXPERTS); break;
    case CANDIDATES: product(4112, H, columns, TH_CUDA_NORM, d.stream, TH_CUDA_STORE, d.logits, 4097); break;
    case EH: product(H, 2 * H, columns, TH_CUDA_JOIN, d.joined, TH_CUDA_STORE, d.parts, H); break;
    case W13: product(12288, H, columns, TH_CUDA_NORM, d.stream, TH_CUDA_SILU, d.act, 12288); break;
    case W2: product(H, 6144, columns, TH_CUDA_PLAIN, d.act, TH_CUDA_RESIDUAL, d.stream, H); break;
    case HEAD: product(4096, H, columns, TH_CUDA_NORM, d.stream, TH_CUDA_STORE, d.logits, 4096); break;
    }
}
static const int per_frame[KINDS] = {30, 10, 53, 40, 40, 1, 13, 13, 13, 13, 9};

static void frame(int columns, int heads)
{
    for (int l = 0; l < LAYERS; l++) {
        one(l % 4 == 3 ? QKV : QKV_DELTA, columns, l);
        one(OUT, columns, l);
        one(MOE_IN, columns, l);
        one(MOE, columns, l);
    }
    if (heads) one(CANDIDATES, columns, 0);
    for (int t = 0; t < 13; t++) {
        one(EH, columns, t);
        one(WQKV, columns, t);
        one(OUT, columns, t);
        one(W13, columns, t);
        one(W2, columns, t);
        if (heads && t >= 4) one(HEAD, columns, t);
    }
}

// Milliseconds of a graph of what `work` launches, median of `runs` after one that is not counted.
template <typename F> static float timed(F work, int runs)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    counted = 0;
    CHECK(cudaStreamBeginCapture(d.stream_of_work, cudaStreamCaptureModeGlobal));
    work();
    CHECK(cudaStreamEndCapture(d.stream_of_work, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    float ms[32];
    for (int i = 0; i < runs + 1; i++) {
        CHECK(cudaEventRecord(from, d.stream_of_work));
        CHECK(cudaGraphLaunch(exec, d.stream_of_work));
        CHECK(cudaEventRecord(to, d.stream_of_work));
        CHECK(cudaEventSynchronize(to));
        if (i > 0) CHECK(cudaEventElapsedTime(&ms[i - 1], from, to));
    }
    for (int i = 0; i < runs; i++)
        for (int k = i + 1; k < runs; k++)
            if (ms[k] < ms[i]) {
                const float swap = ms[i];
                ms[i] = ms[k];
                ms[k] = swap;
            }
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaEventDestroy(from));
    CHECK(cudaEventDestroy(to));
    return ms[runs / 2];
}

static double bound; // bytes per second that pure reads reach
static void measure_bound(void)
{
    uint32_t *out;
    CHECK(cudaMalloc(&out, 4));
    for (int blocks = 132; blocks <= 132 * 4; blocks *= 2) {
        const float ms = timed(
            [&] {
                read_all<<<blocks, 512, 0, d.stream_of_work>>>(reinterpret_cast<const uint4 *>(d.weights), weight_bytes / 16, out);
            },
            5);
        const double rate = static_cast<double>(weight_bytes) / (static_cast<double>(ms) * 1e-3);
        if (rate > bound) bound = rate;
    }
    printf("pure reads: %.3f TB/s\n", bound * 1e-12);
}

static void kinds(int columns)
{
    float sum = 0;
    double bytes_of_frame = 0;
    printf("-- each product alone, %d columns: us, TB/s of weights, share of reads\n", columns);
    for (int kind = 0; kind < KINDS; kind++) {
        const int turns = LAYERS;
        const float ms = timed(
            [&] {
                for (int i = 0; i < turns; i++) one(kind, columns, i);
            },
            5);
        const double each = static_cast<double>(counted) / turns, us = static_cast<double>(ms) * 1e3 / turns;
        printf("%-32s %8.2f us  %6.3f TB/s  %3.0f %%   bytes alone %6.2f us\n", names[kind], us, each / us * 1e-6,
               each / us * 1e8 / bound, each / bound * 1e6);
        sum += static_cast<float>(us) * static_cast<float>(per_frame[kind]);
        bytes_of_frame += each * per_frame[kind];
    }
    printf("sum of a frame's products: %.3f ms (%.0f columns/s), bytes alone %.3f ms\n", static_cast<double>(sum) * 1e-3,
           columns / (static_cast<double>(sum) * 1e-6), bytes_of_frame / bound * 1e3);
}

static void frames(int columns)
{
    for (early = 0; early < 2; early++) {
        const float ms = timed([&] { frame(columns, 1); }, 9);
        printf("frame, %2d columns, early %d: %.3f ms = %.0f columns/s, %.3f TB/s, %.0f %% of reads (%.3f ms)\n", columns, early,
               static_cast<double>(ms), columns / (static_cast<double>(ms) * 1e-3),
               static_cast<double>(counted) / static_cast<double>(ms) * 1e-9,
               static_cast<double>(counted) / static_cast<double>(ms) * 1e5 / bound, static_cast<double>(counted) / bound * 1e3);
    }
    early = 1;
}

static void prefill(int columns)
{
    const float ms = timed([&] { frame(columns, 0); }, 3);
    printf("prefill of %d rows, products alone: %.2f ms, %.0f TFLOP/s\n", columns, static_cast<double>(ms),
           2.0 * columns * 3.3e9 / (static_cast<double>(ms) * 1e-3) * 1e-12);
    kinds(columns);
}

static bool wanted(int argc, char **argv, const char *name)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0) return true;
    return argc < 2;
}

int main(int argc, char **argv)
{
    static const int few[] = {1, 8, 32, 64}, many[] = {46, 168, 1024};
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    printf("%s, %d multiprocessors\n", properties.name, properties.multiProcessorCount);
    make();
    measure_bound();
    if (wanted(argc, argv, "frames"))
        for (int columns : few) frames(columns);
    if (wanted(argc, argv, "kinds"))
        for (int columns : few) kinds(columns);
    if (wanted(argc, argv, "prefill"))
        for (int columns : many) prefill(columns);
    CHECK(cudaDeviceSynchronize());
    return 0;
}
