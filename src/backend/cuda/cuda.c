/* cuda.c - opening the CUDA backend: which device, its weights, its parts. */
#include "backend/cuda/cuda.h"

#include <stdio.h>

#include "base/memory.h"

thespis_status th_cuda_enter(struct th_cuda *cuda, thespis_error *error)
{
    if (cuda->lost)
        return th_fail(error, THESPIS_DEVICE, "%s failed before and does nothing any more: open the engine again", cuda->name);
    TH_CUDA(cudaSetDevice(cuda->device), "choosing the device", error);
    return THESPIS_OK;
}

thespis_status th_cuda_leave(struct th_cuda *cuda, thespis_status status)
{
    if (status != THESPIS_DEVICE || cuda->stream == NULL) return status;
    cudaError_t code = cudaStreamQuery(cuda->stream);
    if (code != cudaSuccess && code != cudaErrorNotReady) cuda->lost = 1;
    return status;
}

static void close_cuda(struct th_backend *backend)
{
    if (backend == NULL) return;
    struct th_cuda *cuda = th_cuda_of(backend);
    cudaSetDevice(cuda->device);
    th_cuda_lanes_release(cuda);
    th_cuda_codec_release(cuda);
    th_cuda_unload(cuda);
    if (cuda->stream != NULL) cudaStreamDestroy(cuda->stream);
    th_free(cuda);
}

static void set_probe(struct th_backend *backend, th_probe probe, void *context)
{
    struct th_cuda *cuda = th_cuda_of(backend);
    cuda->probe = probe;
    cuda->probe_context = context;
}

static void memory(const struct th_backend *backend, struct th_backend_memory *memory)
{
    const struct th_cuda *cuda = (const struct th_cuda *)backend;
    *memory = (struct th_backend_memory){.weights = cuda->weights.bytes, .codec = th_cuda_codec_bytes(cuda)};
    memory->lanes = (uint64_t)cuda->lane_count * cuda->layout.stride;
    if (cuda->lane_count > 0) memory->work = th_cuda_forward_bytes(cuda, cuda->lane_count, cuda->max_rows);
}

static const char *device(const struct th_backend *backend)
{
    return ((const struct th_cuda *)backend)->name;
}

static const struct th_backend_ops cuda_ops = {
    .name = "cuda",
    .close = close_cuda,
    .lanes = th_cuda_lanes,
    .begin = th_cuda_begin,
    .feed = th_cuda_feed,
    .step = th_cuda_step,
    .copy = th_cuda_copy,
    .resample = th_cuda_resample,
    .rows = th_cuda_rows,
    .codec_open = th_cuda_codec_open,
    .codec_close = th_cuda_codec_close,
    .codec_reset = th_cuda_codec_reset,
    .codec_decode = th_cuda_codec_decode,
    .codec_encode = th_cuda_codec_encode,
    .probe = set_probe,
    .layer = th_cuda_layer,
    .head = th_cuda_head,
    .memory = memory,
    .device = device,
    .bound = th_cuda_bound,
};

/* ---- the device ----------------------------------------------------------------------------------------------------------------
 */

#define LEAST_CAPABILITY 80

static thespis_status check_device(int number, struct cudaDeviceProp *properties, thespis_error *error)
{
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess || count == 0) {
        cudaGetLastError();
        return th_fail(error, THESPIS_UNSUPPORTED, "no CUDA device: %s",
                       code != cudaSuccess ? cudaGetErrorString(code) : "there is none");
    }
    if (number < 0 || number >= count)
        return th_fail(error, THESPIS_INVALID, "device is %d, there are %d CUDA devices (0 to %d)", number, count, count - 1);
    TH_CUDA(cudaGetDeviceProperties(properties, number), "the device", error);
    if (10 * properties->major + properties->minor < LEAST_CAPABILITY)
        return th_fail(error, THESPIS_UNSUPPORTED, "device %d, %s, has compute capability %d.%d, the CUDA backend needs 8.0",
                       number, properties->name, properties->major, properties->minor);
    return THESPIS_OK;
}

static thespis_status check_options(const struct th_backend_options *options, thespis_error *error)
{
    if (options->precision != THESPIS_PRECISION_BF16)
        return th_fail(error, THESPIS_UNSUPPORTED, "precision is f32, the CUDA backend has only bf16; backend cpu has both");
    if (!options->act_quant)
        return th_fail(error, THESPIS_UNSUPPORTED, "act_quant is 0, the CUDA backend always quantises; backend cpu has both");
    return THESPIS_OK;
}

thespis_status th_cuda_backend_fits(const struct th_model *model, const struct th_backend_options *options, thespis_error *error)
{
    struct cudaDeviceProp properties;
    TH_TRY(check_options(options, error));
    TH_TRY(check_device(options->device, &properties, error));
#ifdef TH_CUDA_EMU
    return th_fail(error, THESPIS_UNSUPPORTED, "the emulated device is for tests: name the backend cuda");
#endif
    return model != NULL ? th_cuda_supports(model, error) : THESPIS_OK;
}

static thespis_status take_device(struct th_cuda *cuda, thespis_error *error)
{
    struct cudaDeviceProp properties;
    int most_urgent, least_urgent, pageable = 0;
    TH_TRY(check_device(cuda->device, &properties, error));
    snprintf(cuda->name, sizeof cuda->name, "%s", properties.name);
    cuda->capability = 10 * properties.major + properties.minor;
    cuda->processors = properties.multiProcessorCount;
    TH_CUDA(cudaSetDevice(cuda->device), "choosing the device", error);
    TH_CUDA(cudaDeviceGetAttribute(&pageable, cudaDevAttrPageableMemoryAccess, cuda->device), "the device", error);
    cuda->unified = properties.integrated && pageable;
    TH_CUDA(cudaDeviceGetStreamPriorityRange(&least_urgent, &most_urgent), "the device", error);
    /* frames go before the codec's windows: those have time until play-out */
    TH_CUDA(cudaStreamCreateWithPriority(&cuda->stream, cudaStreamNonBlocking, most_urgent), "a stream", error);
#ifdef TH_CUDA_EMU
    const int early = 0;
#else
    const int early = cuda->capability >= 90;
#endif
    cuda->launch = (struct th_cuda_launch){.stream = cuda->stream, .early = early};
    return THESPIS_OK;
}

static void count_layers(struct th_cuda *cuda)
{
    const struct th_config *config = &cuda->model->config;
    const struct th_backbone_config *b = &config->backbone;
    for (int layer = 0; layer < b->layers; layer++)
        if (cuda->model->layers[layer].is_full_attention)
            cuda->attention_layers++;
        else
            cuda->delta_layers++;
    cuda->tower_layers = config->tower.shared_layers + config->tower.residual_layers;
    cuda->channels = 2 * b->key_heads * b->key_dim + b->value_heads * b->value_dim;
}

static thespis_status prepare(struct th_cuda *cuda, thespis_error *error)
{
    TH_TRY(check_options(&cuda->options, error));
    if (cuda->model != NULL) TH_TRY(th_cuda_supports(cuda->model, error));
    TH_TRY(take_device(cuda, error));
    if (cuda->model != NULL) {
        count_layers(cuda);
        TH_TRY(th_cuda_load(cuda, error));
    }
    return cuda->codec != NULL ? th_cuda_codec_prepare(cuda, error) : THESPIS_OK;
}

thespis_status th_cuda_backend_open(const struct th_model *model, const struct th_codec *codec,
                                    const struct th_backend_options *options, struct th_backend **backend, thespis_error *error)
{
    *backend = NULL;
    struct th_cuda *cuda;
    TH_TRY(TH_ALLOC(&cuda, 1, "the CUDA backend", error));
    cuda->base.ops = &cuda_ops;
    cuda->model = model;
    cuda->codec = codec;
    cuda->options = *options;
    cuda->device = options->device;
    thespis_status status = prepare(cuda, error);
    if (status != THESPIS_OK)
        close_cuda(&cuda->base);
    else
        *backend = &cuda->base;
    return status;
}
