// route.cu - the router's choice of every column, and the grouping of entries by expert.
#include "backend/cuda/kernels.h"
#include "backend/cuda/route_row.cuh"

#define ROUTE_WARPS 4
#define GROUP_WARPS 32

// A warp a column.
template <int each>
static __global__ void __launch_bounds__(ROUTE_WARPS * 32) route(const uint16_t *logits, int stride, int experts, int top_k,
                                                                 int columns, const int32_t *count, int32_t *chosen, float *weights)
{
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int c = static_cast<int>(blockIdx.x) * ROUTE_WARPS + static_cast<int>(threadIdx.x) / 32;
    th_dependency_release();
    th_dependency_wait();
    if (c >= columns) return;
    float weight = 0.0f;
    int expert = 0;
    if (count == nullptr || c < __ldcg(count)) {
        struct th_route_row<each> row;
        th_route_load(row, logits + static_cast<size_t>(c) * static_cast<size_t>(stride), experts, lane);
        expert = th_route_choose(row, experts, top_k, lane, &weight);
    }
    if (lane >= top_k) return;
    chosen[c * top_k + lane] = expert;
    weights[c * top_k + lane] = weight;
}

// One block. A warp counts a stretch of entries; the stretches' counts give every warp its first place of each expert, and the
// entries of a warp are placed in order: no order of execution shows.
static __global__ void __launch_bounds__(GROUP_WARPS * 32)
    group(const int32_t *chosen, int experts, int top_k, int columns, const int32_t *count, const struct th_cuda_groups groups)
{
    __shared__ uint16_t counts[GROUP_WARPS][TH_CUDA_MOST_EXPERTS];
    __shared__ int first[TH_CUDA_MOST_EXPERTS + 1], active[TH_CUDA_MOST_EXPERTS + 1];
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    th_dependency_release();
    for (int e = lane; e < experts; e += 32) counts[warp][e] = 0;
    __syncwarp();
    th_dependency_wait();
    const int entries = (count == nullptr ? columns : min(columns, __ldcg(count))) * top_k;
    const int stretch = (entries + GROUP_WARPS * 32 - 1) / (GROUP_WARPS * 32) * 32;
    const int from = warp * stretch, to = min(entries, from + stretch);
    for (int i = from + lane; i - lane < to; i += 32) {
        const int expert = i < to ? __ldcg(chosen + i) : -1;
        const unsigned same = __match_any_sync(0xFFFFFFFFu, expert);
        if (expert >= 0 && (same & ((1u << lane) - 1)) == 0)
            counts[warp][expert] = static_cast<uint16_t>(counts[warp][expert] + __popc(same));
        __syncwarp();
    }
    __syncthreads();
    for (int e = thread; e < experts; e += GROUP_WARPS * 32) { // counts become places inside the expert
        int sum = 0;
        for (int w = 0; w < GROUP_WARPS; w++) {
            const int n = counts[w][e];
            counts[w][e] = static_cast<uint16_t>(sum);
            sum += n;
        }
        first[e + 1] = sum;
    }
    __syncthreads();
    if (warp == 0) { // running sums of entries and of experts that have some, 32 experts at a time
        int entries_before = 0, active_before = 0;
        for (int e = lane; e - lane < experts; e += 32) {
            int n = e < experts ? first[e + 1] : 0, some = n > 0;
            for (int distance = 1; distance < 32; distance *= 2) {
                const int n_below = __shfl_up_sync(0xFFFFFFFFu, n, distance),
                          some_below = __shfl_up_sync(0xFFFFFFFFu, some, distance);
                if (lane >= distance) {
                    n += n_below;
                    some += some_below;
                }
            }
            __syncwarp();
            if (e < experts) {
                first[e + 1] = entries_before + n;
                active[e + 1] = active_before + some;
            }
            entries_before += __shfl_sync(0xFFFFFFFFu, n, 31);
            active_before += __shfl_sync(0xFFFFFFFFu, some, 31);
        }
        if (lane == 0) first[0] = active[0] = 0;
    }
    __syncthreads();
    for (int e = thread; e < experts; e += GROUP_WARPS * 32) {
        groups.first[e] = first[e];
        if (active[e + 1] > active[e]) groups.active[active[e]] = e;
    }
    if (thread == 0) {
        groups.first[experts] = first[experts];
        *groups.active_count = active[experts];
    }
    for (int i = from + lane; i - lane < to; i += 32) {
        const int expert = i < to ? __ldcg(chosen + i) : -1;
        const unsigned same = __match_any_sync(0xFFFFFFFFu, expert);
        const int before = __popc(same & ((1u << lane) - 1));
        if (expert >= 0) groups.entry[first[expert] + counts[warp][expert] + before] = i;
        __syncwarp();
        if (expert >= 0 && before == 0) counts[warp][expert] = static_cast<uint16_t>(counts[warp][expert] + __popc(same));
        __syncwarp();
    }
}

extern "C" cudaError_t th_cuda_route(const struct th_cuda_launch *launch, const uint16_t *logits, int stride, int experts,
                                     int top_k, int columns, const int32_t *count, int32_t *chosen, float *weights)
{
    const dim3 grid((columns + ROUTE_WARPS - 1) / ROUTE_WARPS), block(ROUTE_WARPS * 32);
    return experts <= 256
               ? th_launch(launch, route<8>, grid, block, 0, logits, stride, experts, top_k, columns, count, chosen, weights)
               : th_launch(launch, route<16>, grid, block, 0, logits, stride, experts, top_k, columns, count, chosen, weights);
}

extern "C" cudaError_t th_cuda_group(const struct th_cuda_launch *launch, const int32_t *chosen, int experts, int top_k,
                                     int columns, const int32_t *count, const struct th_cuda_groups *groups)
{
    return th_launch(launch, group, dim3(1), dim3(GROUP_WARPS * 32), 0, chosen, experts, top_k, columns, count, *groups);
}

TH_CUDA_KERNELS(route) = {TH_CUDA_KERNEL(ROUTE_WARPS * 32, 0, route<8>), TH_CUDA_KERNEL(ROUTE_WARPS * 32, 0, route<16>),
                          TH_CUDA_KERNEL(GROUP_WARPS * 32, 0, group), TH_CUDA_KERNELS_END};
