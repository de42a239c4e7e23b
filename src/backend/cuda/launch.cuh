/* launch.cuh - what a kernel file (.cu) includes first: launching, dependent launch, copies that run ahead, and the two matrix
 * instructions. With nvcc these are the hardware's; with a C++ compiler (TH_CUDA_EMU) the emulator of tests/cuda_emu runs the same
 * source, one block after another and the threads of a block as fibers.
 *
 * What both can do, and so what kernels may use: threadIdx, blockIdx, blockDim, gridDim; __shared__ arrays of fixed size and one
 * TH_DYNAMIC_SHARED; __syncthreads (all threads of the block at the same line; none may have returned before), __syncwarp, the
 * __shfl*_sync family, __ballot_sync, __any_sync, __all_sync, __reduce_*_sync on integers; atomics on integers; the intrinsics
 * listed in emu_kernel.h. No grid-wide waiting: in the emulator the next block starts when this one has ended. */
#ifndef THESPIS_BACKEND_CUDA_LAUNCH_CUH
#define THESPIS_BACKEND_CUDA_LAUNCH_CUH

#include "backend/cuda/runtime.h"

#ifdef TH_CUDA_EMU

#include "cuda_emu/emu_kernel.h"

#else /* nvcc */

/* The block's dynamic shared memory as an array of `type`, 128-byte aligned. Once in a kernel. */
#define TH_DYNAMIC_SHARED(type, name)                                                                                              \
    extern __shared__ __align__(128) unsigned char th_dynamic_shared[];                                                            \
    type *const name = reinterpret_cast<type *>(th_dynamic_shared)

/* Waits until the kernels before this one in the stream have ended and their writes are visible. Harmless without early launch. */
static __device__ __forceinline__ void th_dependency_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next kernel of the stream start, as far as there is room, once all blocks have said so. Its reads still wait for us. */
static __device__ __forceinline__ void th_dependency_release()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Sixteen bytes of weights that are read once: past the first level cache, first to leave the second. `p` is 16-byte aligned. */
static __device__ __forceinline__ uint4 th_load_stream(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* Sixteen bytes that are read again soon. */
static __device__ __forceinline__ uint4 th_load_16(const void *p)
{
    return *static_cast<const uint4 *>(p);
}

/* Starts a copy of 16 bytes from global to shared memory; both aligned to 16. */
static __device__ __forceinline__ void th_copy_async(void *shared, const void *global)
{
    unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

/* Ends a group of copies. */
static __device__ __forceinline__ void th_copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most `pending` of this thread's newest groups are still under way; other threads' copies need __syncthreads. */
template <int pending> static __device__ __forceinline__ void th_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/* c += a b over a warp: a 16 x 16 (rows x inputs) bf16, b 16 x 8 (inputs x columns) bf16, c f32. With g = lane / 4, q = lane % 4
 * a.x = row g, inputs 2q, 2q+1; a.y = row g+8, the same; a.z = row g, inputs 2q+8, 2q+9; a.w = row g+8, the same;
 * b0 = inputs 2q, 2q+1 of column g; b1 = inputs 2q+8, 2q+9; c[0], c[1] = row g, columns 2q, 2q+1; c[2], c[3] = row g+8. */
static __device__ __forceinline__ void th_mma_bf16(float c[4], uint4 a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/* The same with f16. */
static __device__ __forceinline__ void th_mma_f16(float c[4], uint4 a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint2 th_e4m3_bf16(uint32_t codes);
#if __CUDA_ARCH__ == 900
/* Four E4M3 codes as two pairs of f16, which holds every value of theirs. */
static __device__ __forceinline__ uint2 th_e4m3_f16(uint32_t codes)
{
    uint2 pairs;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high;}"
        : "=r"(pairs.x), "=r"(pairs.y)
        : "r"(codes));
    return pairs;
}
#endif

/* The same with a 16 x 32 and b 32 x 8 in E4M3: a.x = row g, inputs 4q..4q+3; a.y = row g+8; a.z = row g, inputs 4q+16..4q+19;
 * a.w = row g+8; b0 = inputs 4q..4q+3 of column g; b1 = inputs 4q+16..4q+19. Below sm_89 through bf16, on sm_90
 * through f16 (measured: 7 % more frames a second at one lane than with its own E4M3 instruction); both hold every E4M3 value:
 * there the inputs of one instruction are summed in two. */
static __device__ __forceinline__ void th_mma_e4m3(float c[4], uint4 a, uint32_t b0, uint32_t b1)
{
#if __CUDA_ARCH__ == 900
    uint2 x = th_e4m3_f16(a.x), y = th_e4m3_f16(a.y), p = th_e4m3_f16(b0);
    th_mma_f16(c, make_uint4(x.x, y.x, x.y, y.y), p.x, p.y);
    x = th_e4m3_f16(a.z), y = th_e4m3_f16(a.w), p = th_e4m3_f16(b1);
    th_mma_f16(c, make_uint4(x.x, y.x, x.y, y.y), p.x, p.y);
#elif __CUDA_ARCH__ >= 890
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
#else
    /* A thread's four inputs make the two pairs of a 16-wide step: a permutation of inputs that a and b share. */
    uint2 x = th_e4m3_bf16(a.x), y = th_e4m3_bf16(a.y), p = th_e4m3_bf16(b0);
    th_mma_bf16(c, make_uint4(x.x, y.x, x.y, y.y), p.x, p.y);
    x = th_e4m3_bf16(a.z), y = th_e4m3_bf16(a.w), p = th_e4m3_bf16(b1);
    th_mma_bf16(c, make_uint4(x.x, y.x, x.y, y.y), p.x, p.y);
#endif
}

/* Launches `kernel` on launch->stream; `shared` bytes of dynamic shared memory. Arguments are converted to the kernel's types. */
template <typename... P, typename... A>
static cudaError_t th_launch(const struct th_cuda_launch *launch, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                             A... arguments)
{
    if (shared > 49152)
        TH_CUDA_TRY(cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(shared)));
    cudaLaunchAttribute early;
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = launch->stream;
    config.attrs = &early;
    config.numAttrs = launch->early ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...);
}

#endif /* nvcc */

#include "backend/cuda/numbers.cuh"

#endif
