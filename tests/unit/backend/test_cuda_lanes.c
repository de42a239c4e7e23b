/* test_cuda_lanes.c - the promise of test_lm_lanes.c, kept by the CUDA backend; and what is CUDA's alone: steps through graphs are
 * the steps of single kernels. */
#define TEST_CUDA_LANES 1
#include "test_lm_lanes.c"
