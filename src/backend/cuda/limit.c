/* limit.c - what a frame of one lane must read, and how fast this device reads. */
#include "backend/cuda/bound.h"
#include "backend/cuda/cuda.h"

#define ROUNDS 5

static double packed(const struct th_cuda_matrix *matrix)
{
    return 2.0 * matrix->rows * matrix->cols;
}

static double layer_bytes(const struct th_cuda *cuda, const struct th_cuda_layer *layer)
{
    const struct th_backbone_config *b = &cuda->model->config.backbone;
    return packed(&layer->in) + packed(&layer->out) + packed(&layer->moe_in) + packed(&layer->shared_down) +
           (double)b->top_k * (double)(layer->experts.gate_up_bytes + layer->experts.down_bytes);
}

/* Weights once, the caches of `rows` rows once, DeltaNet's states read and written. */
static double frame_bytes(const struct th_cuda *cuda, int rows)
{
    const struct th_config *config = &cuda->model->config;
    const struct th_cuda_weights *w = &cuda->weights;
    double bytes = packed(&w->candidates);
    for (int i = 0; i < config->backbone.layers; i++) bytes += layer_bytes(cuda, &w->layers[i]);
    for (int t = 0; t < cuda->tower_layers; t++) {
        const struct th_cuda_tower_layer *layer = &w->tower[t];
        bytes += packed(&layer->eh) + packed(&layer->wqkv) + packed(&layer->wo) + packed(&layer->w13) + packed(&layer->w2);
    }
    for (int r = 0; r < config->tower.residual_layers; r++) bytes += packed(&w->heads[r]);
    bytes += 4.0 * rows * cuda->attention_layers * config->backbone.kv_heads * config->backbone.head_dim;
    bytes += 4.0 * rows * cuda->tower_layers * config->tower.kv_heads * config->tower.head_dim;
    return bytes + 2.0 * (double)cuda->delta_layers * (double)cuda->layout.delta_bytes;
}

static thespis_status time_reads(struct th_cuda *cuda, cudaEvent_t begin, cudaEvent_t end, uint32_t *sum, double *best,
                                 thespis_error *error)
{
    const size_t most = (size_t)8 << 30, bytes = (cuda->weights.bytes < most ? cuda->weights.bytes : most) / 16 * 16;
    for (int round = 0; round < ROUNDS; round++) {
        float milliseconds;
        TH_CUDA(cudaEventRecord(begin, cuda->stream), "measuring reads", error);
        TH_CUDA(th_cuda_read_all(&cuda->launch, cuda->weights.memory, bytes, cuda->processors * 4, sum), "measuring reads", error);
        TH_CUDA(cudaEventRecord(end, cuda->stream), "measuring reads", error);
        TH_CUDA(cudaEventSynchronize(end), "measuring reads", error);
        TH_CUDA(cudaEventElapsedTime(&milliseconds, begin, end), "measuring reads", error);
        double rate = (double)bytes / ((double)milliseconds * 1e-3);
        if (milliseconds > 0 && rate > *best) *best = rate;
    }
    return THESPIS_OK;
}

thespis_status th_cuda_bound(struct th_backend *backend, int rows, struct th_backend_bound *bound, thespis_error *error)
{
    struct th_cuda *cuda = th_cuda_of(backend);
    cudaEvent_t begin = NULL, end = NULL;
    uint32_t *sum = NULL;
    *bound = (struct th_backend_bound){0};
    if (cuda->model == NULL)
        return th_fail(error, THESPIS_UNSUPPORTED, "a bound needs a language model, and only a codec was opened");
    TH_TRY(th_cuda_enter(cuda, error));
    thespis_status status = th_cuda_status(cudaEventCreate(&begin), "measuring reads", error);
    if (status == THESPIS_OK) status = th_cuda_status(cudaEventCreate(&end), "measuring reads", error);
    if (status == THESPIS_OK) status = th_cuda_status(cudaMalloc((void **)&sum, 256), "measuring reads", error);
    if (status == THESPIS_OK) status = time_reads(cuda, begin, end, sum, &bound->read_bytes, error);
    cudaFree(sum);
    if (begin != NULL) cudaEventDestroy(begin);
    if (end != NULL) cudaEventDestroy(end);
    bound->frame_bytes = frame_bytes(cuda, rows);
    return th_cuda_leave(cuda, status);
}
