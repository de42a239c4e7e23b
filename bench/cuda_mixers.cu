// cuda_mixers.cu - times what lies between the products on a GPU, at the drama-3 shape: DeltaNet, attention, the draws, rows in. Each
// line is one kind, launched as often as a frame (or a prompt) does, in one graph; microseconds a layer. A program of its own, linked
// with the objects of src/backend/cuda and the static runtime.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "backend/cuda/forward.h"
#include "backend/cuda/launch.cuh"

#define CHECK(call)                                                                                                                \
    do {                                                                                                                           \
        cudaError_t code_ = (call);                                                                                                \
        if (code_ != cudaSuccess) {                                                                                                \
            printf("line %d: %s\n", __LINE__, cudaGetErrorString(code_));                                                          \
            exit(1);                                                                                                               \
        }                                                                                                                          \
    } while (0)

enum { H = 2048, MOST = 1024, LANES = 64, MAX_ROWS = 4096, STRIDE = 12416, LAYERS = 10 };

static __global__ void fill(uint16_t *p, size_t n, float scale)
{
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n;
         i += static_cast<size_t>(gridDim.x) * blockDim.x) {
        uint32_t h = static_cast<uint32_t>(i) * 2654435761u;
        h = (h ^ h >> 15) * 2246822519u;
        h = (h ^ h >> 13) * 3266489917u;
        p[i] = th_float_bf16((static_cast<float>(h >> 8) * 0x1p-23f - 1.0f) * scale);
    }
}
static __global__ void fill_float(float *p, size_t n, float value)
{
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n;
         i += static_cast<size_t>(gridDim.x) * blockDim.x)
        p[i] = value;
}

static cudaStream_t stream;
static const int early = 1;

static uint16_t *halves(size_t n, float scale)
{
    uint16_t *p;
    CHECK(cudaMalloc(&p, n * 2));
    fill<<<1024, 256>>>(p, n, scale);
    return p;
}
static float *floats(size_t n, float value)
{
    float *p;
    CHECK(cudaMalloc(&p, n * 4));
    fill_float<<<1024, 256>>>(p, n, value);
    return p;
}

// Columns of `count` lanes at `position`, or rows from there on of lane 0.
static struct th_cuda_pass *make_pass(int count, int position, int sequential)
{
    struct th_cuda_pass *host = static_cast<struct th_cuda_pass *>(calloc(1, TH_CUDA_PASS_BYTES(count))), *device;
    host->backbone_count = host->tower_count = host->capacity = count;
    for (int i = 0; i < 2 * count; i++) {
        struct th_cuda_column *column = &host->column[i];
        column->lane = sequential ? 0 : i % count;
        column->position = sequential ? i % count : position;
        column->source = i % count;
        column->top_k = TH_TOP_K_UNLIMITED;
        column->temperature = 1.0f;
        column->top_p = 0.9f;
        column->seed = 5;
        column->step = 3;
        column->input[0] = column->label[0] = 400;
    }
    CHECK(cudaMalloc(&device, TH_CUDA_PASS_BYTES(count)));
    CHECK(cudaMemcpy(device, host, TH_CUDA_PASS_BYTES(count), cudaMemcpyHostToDevice));
    free(host);
    return device;
}

template <typename F> static void measure(const char *name, int columns, int launches, F launch)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float best = 1e9f;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; i++) CHECK(launch(i));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (int round = 0; round < 6; round++) {
        float ms;
        CHECK(cudaEventRecord(begin, stream));
        for (int i = 0; i < 5; i++) CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        best = ms / 5 < best ? ms / 5 : best;
    }
    printf("%-34s %4d columns: %8.2f us each\n", name, columns, static_cast<double>(best) * 1000 / launches);
    fflush(stdout);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
}

int main()
{
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const struct th_cuda_launch launch = {stream, early};
    const size_t delta_bytes = 32 * 128 * 128 * 4, ring_bytes = 4 * 8192 * 2, cache_bytes = MAX_ROWS * 512 * 2;
    const size_t lane = LAYERS * (delta_bytes + ring_bytes + 2 * cache_bytes) + 4096;
    char *state = reinterpret_cast<char *>(halves(lane * LANES / 2, 0.01f));
    uint16_t *rows = halves(static_cast<size_t>(MOST) * STRIDE, 1.0f), *out = halves(static_cast<size_t>(MOST) * 4096, 1.0f);
    uint16_t *logits = halves(LANES * 4104, 2.0f), *sharp = halves(LANES * 4104, 12.0f), *table = halves(4096 * H * 10, 1.0f);
    float *small = floats(8192 * 4, 0.3f), *cosine = floats(MAX_ROWS * 32, 0.6f);
    float *scratch = floats(th_cuda_deltanet_scratch_bytes(MOST, 16, 32, 128) / 4, 0.0f);
    float *partial = floats(th_cuda_attention_partial_bytes(LANES, 64, 16, 256) / 4, 0.0f);
    struct th_cuda_drawn *drawn;
    CHECK(cudaMalloc(&drawn, LANES * sizeof *drawn));
    const int counts[] = {1, 8, 32, 64}, positions[] = {200, 1000, 4000}, prompts[] = {46, 168, 1024};

    struct th_cuda_deltanet delta = {};
    delta.key_heads = 16;
    delta.value_heads = 32;
    delta.dim = 128;
    delta.rows = rows;
    delta.row_stride = STRIDE;
    delta.conv = delta.a_log = delta.dt_bias = delta.norm = small;
    delta.eps = 1e-6f;
    delta.lane_stride = lane;
    delta.scratch = scratch;
    delta.out = out;
    auto run_delta = [&](int i) {
        delta.delta = reinterpret_cast<float *>(state + (i % LAYERS) * delta_bytes);
        delta.ring = reinterpret_cast<uint16_t *>(state + LAYERS * delta_bytes + (i % LAYERS) * ring_bytes);
        return th_cuda_deltanet(&launch, &delta);
    };
    struct th_cuda_attention attention = {};
    attention.heads = 16;
    attention.kv_heads = 2;
    attention.head_dim = 256;
    attention.rows = rows;
    attention.row_stride = STRIDE;
    attention.gate = 256;
    attention.head_stride = 512;
    attention.key = 8192;
    attention.value = 8704;
    attention.q_norm = attention.k_norm = small;
    attention.eps = 1e-6f;
    attention.cosine = attention.sine = cosine;
    attention.pairs = 32;
    attention.lane_stride = lane;
    attention.partial = partial;
    attention.arrived = reinterpret_cast<unsigned *>(floats(LANES * 2, 0.0f));
    attention.out = out;
    auto run_attention = [&](int i) {
        attention.keys = reinterpret_cast<uint16_t *>(state + LAYERS * (delta_bytes + ring_bytes) + (i % LAYERS) * 2 * cache_bytes);
        attention.values = attention.keys + cache_bytes / 2;
        return th_cuda_attention(&launch, &attention);
    };
    for (int count : counts) {
        delta.pass = make_pass(count, 200, 0);
        delta.columns = count;
        measure("DeltaNet, frames", count, 30, run_delta);
    }
    for (int count : counts)
        for (int position : positions) {
            char name[64];
            snprintf(name, sizeof name, "attention, frames at row %d", position);
            attention.pass = make_pass(count, position, 0);
            attention.columns = count;
            attention.splits = position < 256 ? 4 : position < 1024 ? 16 : 64;
            measure(name, count, 23, run_attention);
        }
    for (int count : prompts) {
        delta.pass = attention.pass = make_pass(count, 0, 1);
        delta.columns = attention.columns = count;
        delta.sequential = attention.sequential = 1;
        measure("DeltaNet, a prompt", count, 30, run_delta);
        measure("attention, a prompt", count, 23, run_attention);
    }
    for (int count : counts)
        for (int kind = 0; kind < 3; kind++) {
            struct th_cuda_draw draw = {};
            draw.pass = make_pass(count, 200, 0);
            draw.columns = count;
            draw.head = kind < 2 ? 0 : 1;
            draw.count = kind < 2 ? 4097 : 4096;
            draw.width = 11;
            draw.eos = 290;
            draw.semantic_start = 300;
            draw.codebook_size = 4096;
            draw.logits = kind == 1 ? sharp : logits;
            draw.stride = 4104;
            draw.drawn = drawn;
            measure(kind == 0 ? "main draw, flat" : kind == 1 ? "main draw, sharp" : "code draw", count, 9,
                    [&](int) { return th_cuda_draw(&launch, &draw); });
        }
    struct th_cuda_label label = {};
    label.pass = make_pass(1, 200, 0);
    label.columns = 1;
    label.width = H;
    label.codebooks = 10;
    label.codebook_size = label.table_rows = 4096;
    label.semantic_start = 300;
    label.semantic_end = 4395;
    label.table = label.code_embed = table;
    label.out = out;
    measure("label", 1, 13, [&](int) { return th_cuda_label(&launch, &label); });
    struct th_cuda_embed embed = {};
    embed.pass = make_pass(1, 200, 0);
    embed.columns = 1;
    embed.width = H;
    embed.books = 1;
    embed.codebook_size = 4096;
    embed.semantic_start = 300;
    embed.semantic_end = 4395;
    embed.scale = 0.7f;
    embed.embed = embed.code_embed = table;
    embed.stream = out;
    measure("embed", 1, 13, [&](int) { return th_cuda_embed(&launch, &embed); });
    return 0;
}
