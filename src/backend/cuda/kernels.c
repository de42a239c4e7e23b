/* kernels.c - see kernels.h. */
#include "backend/cuda/kernels.h"

extern const struct th_cuda_kernel th_cuda_kernels_attention[];
extern const struct th_cuda_kernel th_cuda_kernels_codec_attention[];
extern const struct th_cuda_kernel th_cuda_kernels_codec_conv[];
extern const struct th_cuda_kernel th_cuda_kernels_codec_ends[];
extern const struct th_cuda_kernel th_cuda_kernels_codec_pack[];
extern const struct th_cuda_kernel th_cuda_kernels_codec_rows[];
extern const struct th_cuda_kernel th_cuda_kernels_codec_split[];
extern const struct th_cuda_kernel th_cuda_kernels_deltanet[];
extern const struct th_cuda_kernel th_cuda_kernels_draw[];
extern const struct th_cuda_kernel th_cuda_kernels_embed[];
extern const struct th_cuda_kernel th_cuda_kernels_experts[];
extern const struct th_cuda_kernel th_cuda_kernels_experts_grouped[];
extern const struct th_cuda_kernel th_cuda_kernels_bound[];
extern const struct th_cuda_kernel th_cuda_kernels_fill[];
extern const struct th_cuda_kernel th_cuda_kernels_norm[];
extern const struct th_cuda_kernel th_cuda_kernels_pack[];
extern const struct th_cuda_kernel th_cuda_kernels_product[];
extern const struct th_cuda_kernel th_cuda_kernels_product_wide[];
extern const struct th_cuda_kernel th_cuda_kernels_route[];

static const struct th_cuda_kernel *const lists[] = {
    th_cuda_kernels_attention,   th_cuda_kernels_codec_attention,
    th_cuda_kernels_codec_conv,  th_cuda_kernels_codec_ends,
    th_cuda_kernels_codec_pack,  th_cuda_kernels_codec_rows,
    th_cuda_kernels_codec_split, th_cuda_kernels_deltanet,
    th_cuda_kernels_draw,        th_cuda_kernels_embed,
    th_cuda_kernels_experts,     th_cuda_kernels_experts_grouped,
    th_cuda_kernels_bound,       th_cuda_kernels_fill,
    th_cuda_kernels_norm,        th_cuda_kernels_pack,
    th_cuda_kernels_product,     th_cuda_kernels_product_wide,
    th_cuda_kernels_route,
};

const struct th_cuda_kernel *th_cuda_kernel_list(size_t index)
{
    return index < sizeof lists / sizeof *lists ? lists[index] : NULL;
}

thespis_status th_cuda_check_kernel(const struct th_cuda_kernel *kernel, thespis_error *error)
{
    struct cudaFuncAttributes attributes;
    int device, most_shared;
    TH_CUDA(cudaGetDevice(&device), "the device", error);
    TH_CUDA(cudaDeviceGetAttribute(&most_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "the device's shared memory",
            error);
    TH_CUDA(cudaFuncGetAttributes(&attributes, kernel->function), kernel->name, error);
    if (kernel->threads > attributes.maxThreadsPerBlock)
        return th_fail(error, THESPIS_DEVICE, "kernel %s is launched with %d threads, this device can launch it with %d",
                       kernel->name, kernel->threads, attributes.maxThreadsPerBlock);
    if (kernel->shared + attributes.sharedSizeBytes > (size_t)most_shared)
        return th_fail(error, THESPIS_DEVICE, "kernel %s needs %zu bytes of shared memory, a block of this device has %d",
                       kernel->name, kernel->shared + attributes.sharedSizeBytes, most_shared);
    if (kernel->shared > 49152)
        TH_CUDA(cudaFuncSetAttribute(kernel->function, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)kernel->shared),
                kernel->name, error);
    return THESPIS_OK;
}
