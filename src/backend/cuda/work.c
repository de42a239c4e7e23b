/* work.c - the language model's work space: sizes, allocation, rope tables, and how kernels of a pass follow each other. */
#include <math.h>
#include <string.h>

#include "backend/cuda/experts.h"
#include "backend/cuda/lm.h"
#include "base/memory.h"

/* ---- the one stretch of device memory ------------------------------------------------------------------------------------------
 */

/* Hands out consecutive parts of `base`, or only counts them while base is NULL. */
struct layout {
    unsigned char *base;
    size_t used;
};

static void *take(struct layout *layout, size_t a, size_t b, size_t size)
{
    void *at = layout->base != NULL ? layout->base + layout->used : NULL;
    layout->used += (a * b * size + 255) / 256 * 256;
    return at;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static int aligned(int n)
{
    return (n + 7) / 8 * 8;
}

static void lay_rope(struct layout *layout, int rotary_dim, int max_rows, struct th_cuda_rope *rope)
{
    rope->pairs = rotary_dim / 2;
    rope->cosine = take(layout, (size_t)max_rows, (size_t)rope->pairs, sizeof(float));
    rope->sine = take(layout, (size_t)max_rows, (size_t)rope->pairs, sizeof(float));
}

static void lay_streams(struct layout *layout, const struct th_config *config, size_t c, struct th_cuda_forward *f)
{
    const size_t h = (size_t)config->backbone.hidden;
    f->stream = take(layout, c, h, 2);
    f->final = take(layout, c, h, 2);
    f->handed = take(layout, c, h, 2);
    f->label = take(layout, c * (size_t)(config->tower.shared_layers + 1), h, 2);
    f->tower[0] = take(layout, c, h, 2);
    f->tower[1] = take(layout, c, h, 2);
    f->branch = take(layout, c, h, 2);
    int most = config->candidates > config->tower.codebook_size ? config->candidates : config->tower.codebook_size;
    f->logit_stride = aligned(most);
    f->logits = take(layout, c, (size_t)f->logit_stride, 2);
}

/* A space for c columns. */
static void lay_space(struct layout *layout, const struct th_cuda *cuda, size_t c, struct th_cuda_forward *f,
                      struct th_cuda_space *space)
{
    const struct th_backbone_config *b = &cuda->model->config.backbone;
    const struct th_tower_config *t = &cuda->model->config.tower;
    const int heads = b->heads > t->heads ? b->heads : t->heads, kv = b->kv_heads > t->kv_heads ? b->kv_heads : t->kv_heads;
    const int dim = b->head_dim > t->head_dim ? b->head_dim : t->head_dim;
    const int attention = (2 * heads + 2 * kv) * dim, values = b->value_heads * b->value_dim;
    const int delta = cuda->channels + values + 2 * b->value_heads;
    f->row_stride = aligned(attention > delta ? attention : delta);
    space->normed = take(layout, c, 2 * (size_t)b->hidden, 2);
    space->rows = take(layout, c, (size_t)f->row_stride, 2);
    space->attended = take(layout, c, larger((size_t)heads * (size_t)dim, (size_t)values), 2);
    space->inner = take(layout, c, larger((size_t)t->inner, (size_t)b->shared_inner), 2);
    space->partial = take(layout, 1, th_cuda_attention_partial_bytes(f->steps, f->splits, heads, dim), 1);
    space->arrived = take(layout, (size_t)f->steps, (size_t)kv, sizeof(unsigned));
}

static void lay_delta(struct layout *layout, const struct th_backbone_config *b, size_t c, struct th_cuda_forward *f)
{
    f->scratch = take(layout, 1, th_cuda_deltanet_scratch_bytes((int)c, b->key_heads, b->value_heads, b->value_dim), 1);
}

static void lay_moe(struct layout *layout, const struct th_config *config, size_t c, struct th_cuda_forward *f)
{
    const struct th_backbone_config *b = &config->backbone;
    const size_t h = (size_t)b->hidden, entries = c * (size_t)b->top_k;
    f->router_stride = aligned(b->experts);
    f->router = take(layout, c, (size_t)f->router_stride, 2);
    f->shared_open = take(layout, c, 1, sizeof(float));
    f->chosen = take(layout, entries, 1, sizeof(int32_t));
    f->weights = take(layout, entries, 1, sizeof(float));
    f->codes = take(layout, c, h, 1);
    f->scales = take(layout, c, (h + TH_EXPERT_BLOCK - 1) / TH_EXPERT_BLOCK, sizeof(float));
    f->act = take(layout, entries, (size_t)b->expert_inner, 2);
    f->parts = take(layout, entries, h, 2);
    f->shared = take(layout, c, h, 2);
    f->groups = take(layout, th_cuda_groups_ints(b->experts, (int)entries), 1, sizeof(int32_t));
}

/* Sets sizes, and pointers if base is not NULL; returns the bytes of device memory. */
static size_t lay_out(const struct th_cuda *cuda, int lanes, int max_rows, void *base, struct th_cuda_forward *f)
{
    const struct th_config *config = &cuda->model->config;
    struct layout layout = {base, 0};
    f->steps = lanes < TH_CUDA_STEP_COLUMNS ? lanes : TH_CUDA_STEP_COLUMNS;
    while (f->steps & (f->steps - 1)) f->steps += f->steps & -f->steps; /* buckets are powers of two */
    f->capacity = max_rows < TH_CUDA_PIECE ? max_rows : TH_CUDA_PIECE;
    if (f->capacity < f->steps) f->capacity = f->steps;
    f->splits = (max_rows + TH_CUDA_SPLIT - 1) / TH_CUDA_SPLIT;
    lay_rope(&layout, config->backbone.rotary_dim, max_rows, &f->backbone_rope);
    lay_rope(&layout, config->tower.rotary_dim, max_rows, &f->tower_rope);
    f->pass = take(&layout, 1, TH_CUDA_PASS_BYTES(f->capacity), 1);
    f->drawn = take(&layout, (size_t)f->steps, 1, sizeof(struct th_cuda_drawn));
    lay_streams(&layout, config, (size_t)f->capacity, f);
    lay_space(&layout, cuda, (size_t)f->capacity, f, &f->space[0]);
    lay_space(&layout, cuda, (size_t)f->steps, f, &f->space[1]);
    lay_delta(&layout, &config->backbone, (size_t)f->capacity, f);
    lay_moe(&layout, config, (size_t)f->capacity, f);
    return layout.used;
}

uint64_t th_cuda_forward_bytes(const struct th_cuda *cuda, int lanes, int max_rows)
{
    struct th_cuda_forward sizes;
    return lay_out(cuda, lanes, max_rows, NULL, &sizes);
}

/* ---- rope ----------------------------------------------------------------------------------------------------------------------
 */

/* As the CPU backend makes them. */
static thespis_status fill_rope(const struct th_cuda_rope *rope, int rotary_dim, double theta, int max_rows, thespis_error *error)
{
    const size_t count = (size_t)max_rows * (size_t)rope->pairs;
    float *tables;
    TH_TRY(TH_ALLOC(&tables, 2 * count, "rotary tables", error));
    for (int i = 0; i < rope->pairs; i++) {
        float frequency = 1.0f / (float)pow(theta, (float)(2 * i) / (float)rotary_dim);
        for (int row = 0; row < max_rows; row++) {
            float angle = (float)row * frequency;
            size_t at = (size_t)row * (size_t)rope->pairs + (size_t)i;
            tables[at] = (float)cos(angle);
            tables[count + at] = (float)sin(angle);
        }
    }
    cudaError_t code = cudaMemcpy(rope->cosine, tables, count * sizeof(float), cudaMemcpyHostToDevice);
    if (code == cudaSuccess) code = cudaMemcpy(rope->sine, tables + count, count * sizeof(float), cudaMemcpyHostToDevice);
    th_free(tables);
    return th_cuda_status(code, "rotary tables", error);
}

/* ---- open and close
 * -------------------------------------------------------------------------------------------------------------- */

thespis_status th_cuda_forward_open(struct th_cuda *cuda, thespis_error *error)
{
    const struct th_config *config = &cuda->model->config;
    TH_TRY(TH_ALLOC(&cuda->forward, 1, "work space", error));
    struct th_cuda_forward *f = cuda->forward;
    size_t bytes = lay_out(cuda, cuda->lane_count, cuda->max_rows, NULL, f);
    TH_CUDA(cudaMalloc(&f->memory, bytes), "work space", error);
    TH_CUDA(cudaMemsetAsync(f->memory, 0, bytes, cuda->stream), "work space", error); /* columns beyond the last hold numbers */
    lay_out(cuda, cuda->lane_count, cuda->max_rows, f->memory, f);
    TH_CUDA(cudaHostAlloc((void **)&f->host_pass, TH_CUDA_PASS_BYTES(f->capacity), cudaHostAllocDefault), "columns", error);
    TH_CUDA(cudaHostAlloc((void **)&f->host_drawn, (size_t)f->steps * sizeof *f->drawn, cudaHostAllocDefault), "drawn frames",
            error);
    memset(f->host_pass, 0, TH_CUDA_PASS_BYTES(f->capacity));
    TH_TRY(fill_rope(&f->backbone_rope, config->backbone.rotary_dim, config->backbone.rope_theta, cuda->max_rows, error));
    TH_TRY(fill_rope(&f->tower_rope, config->tower.rotary_dim, config->tower.rope_theta, cuda->max_rows, error));
    int least, greatest;
    TH_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest), "a stream", error);
    TH_CUDA(cudaStreamCreateWithPriority(&f->beside, cudaStreamNonBlocking, least), "a stream", error);
    TH_CUDA(cudaEventCreateWithFlags(&f->parted, cudaEventDisableTiming), "an event", error);
    TH_CUDA(cudaEventCreateWithFlags(&f->joined, cudaEventDisableTiming), "an event", error);
    f->space[0].launch.stream = cuda->stream;
    f->space[1].launch.stream = f->beside;
    th_cuda_go_on(cuda, &f->space[0], 1);
    return th_cuda_graphs_prepare(cuda, error);
}

void th_cuda_forward_close(struct th_cuda *cuda)
{
    struct th_cuda_forward *f = cuda->forward;
    if (f == NULL) return;
    if (cuda->stream != NULL) cudaStreamSynchronize(cuda->stream);
    th_cuda_graphs_release(f);
    if (f->beside != NULL) cudaStreamDestroy(f->beside);
    if (f->parted != NULL) cudaEventDestroy(f->parted);
    if (f->joined != NULL) cudaEventDestroy(f->joined);
    cudaFree(f->memory);
    cudaFreeHost(f->host_pass);
    cudaFreeHost(f->host_drawn);
    th_free(f);
    cuda->forward = NULL;
}

/* ---- a pass
 * ---------------------------------------------------------------------------------------------------------------------- */

void th_cuda_go_on(struct th_cuda *cuda, struct th_cuda_space *space, int late)
{
    cuda->forward->at = space;
    space->late = late;
}

const struct th_cuda_launch *th_cuda_next(struct th_cuda *cuda)
{
    struct th_cuda_space *space = cuda->forward->at;
    space->launch.early = space->late > 0 ? 0 : cuda->launch.early;
    space->late -= space->late > 0;
    return &space->launch;
}

thespis_status th_cuda_upload_pass(struct th_cuda *cuda, int columns, thespis_error *error)
{
    struct th_cuda_forward *f = cuda->forward;
    th_cuda_go_on(cuda, &f->space[0], 1);
    TH_CUDA(cudaMemcpyAsync(f->pass, f->host_pass, TH_CUDA_PASS_BYTES(columns), cudaMemcpyHostToDevice, cuda->stream),
            "columns of a pass", error);
    return THESPIS_OK;
}
