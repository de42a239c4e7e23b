/* runtime.c - failures of the runtime as ours. */
#include "backend/cuda/runtime.h"

thespis_status th_cuda_status(cudaError_t code, const char *what, thespis_error *error)
{
    if (code == cudaSuccess) return THESPIS_OK;
    cudaGetLastError(); /* a failed call must not be found by the next one's check; faults of the device stay all the same */
    if (code == cudaErrorMemoryAllocation) return th_fail(error, THESPIS_MEMORY, "%s: the device is out of memory", what);
    return th_fail(error, THESPIS_DEVICE, "%s: %s (%s)", what, cudaGetErrorString(code), cudaGetErrorName(code));
}
