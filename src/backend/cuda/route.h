/* route.h - the router's choice and the grouping of its entries by expert. An entry is a (column, slot) pair, number column * top_k
 * + slot. */
#ifndef THESPIS_BACKEND_CUDA_ROUTE_H
#define THESPIS_BACKEND_CUDA_ROUTE_H

#include "backend/cuda/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TH_CUDA_MOST_EXPERTS 512
#define TH_CUDA_MOST_TOP_K 8

/* logits bf16 [columns][stride], of which `experts` are read. chosen [columns][top_k] in order of falling logit, ties to the lowest
 * id; weights [columns][top_k] = softmax, divided by the sum of the chosen in slot order. A row of NaN chooses 0..top_k-1 and gets
 * weights of NaN. count: device memory, the columns in use (others get expert 0 and weight 0), or NULL: all. */
cudaError_t th_cuda_route(const struct th_cuda_launch *launch, const uint16_t *logits, int stride, int experts, int top_k,
                          int columns, const int32_t *count, int32_t *chosen, float *weights);

/* Entries grouped by expert. In one block of int32 device memory of th_cuda_groups_ints(experts, entries). */
struct th_cuda_groups {
    int32_t *active_count; /* [1]: experts that have entries */
    int32_t *active;       /* [experts]: their ids, rising */
    int32_t *first;        /* [experts + 1]: entries of expert e are first[e]..first[e+1]-1 of `entry` */
    int32_t *entry;        /* [columns * top_k]: entry numbers, rising within an expert */
};

static inline size_t th_cuda_groups_ints(int experts, int entries)
{
    return (size_t)experts * 2 + 8 + (size_t)entries;
}
static inline struct th_cuda_groups th_cuda_groups_in(int32_t *memory, int experts)
{
    struct th_cuda_groups groups = {memory, memory + 4, memory + 4 + experts, memory + 4 + experts + experts + 1};
    return groups;
}

/* Groups the entries of columns 0..min(columns, *count)-1. */
cudaError_t th_cuda_group(const struct th_cuda_launch *launch, const int32_t *chosen, int experts, int top_k, int columns,
                          const int32_t *count, const struct th_cuda_groups *groups);

#ifdef __cplusplus
}
#endif

#endif
