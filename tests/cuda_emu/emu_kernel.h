/* emu_kernel.h - the language of kernels in C++17 for the emulator: qualifiers, vectors, intrinsics, warp operations, launching.
 * launch.cuh includes it instead of the toolkit's. */
#ifndef THESPIS_CUDA_EMU_KERNEL_H
#define THESPIS_CUDA_EMU_KERNEL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <tuple>

#include "cuda_emu/emu.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#undef __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __restrict__ __restrict

#define threadIdx th_emu_thread_index
#define blockIdx th_emu_block_index
#define blockDim th_emu_block_size
#define gridDim th_emu_grid_size
#define warpSize 32

/* ---- vectors ------------------------------------------------------------------------------------------------------------------
 */

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
#define TH_EMU_VECTOR2(name, type)                                                                                                 \
    struct alignas(2 * sizeof(type)) name {                                                                                        \
        type x, y;                                                                                                                 \
    };                                                                                                                             \
    static inline name make_##name(type x, type y)                                                                                 \
    {                                                                                                                              \
        return {x, y};                                                                                                             \
    }
#define TH_EMU_VECTOR4(name, type)                                                                                                 \
    struct alignas(4 * sizeof(type) < 16 ? 4 * sizeof(type) : 16) name {                                                           \
        type x, y, z, w;                                                                                                           \
    };                                                                                                                             \
    static inline name make_##name(type x, type y, type z, type w)                                                                 \
    {                                                                                                                              \
        return {x, y, z, w};                                                                                                       \
    }
TH_EMU_VECTOR2(uint2, unsigned)
TH_EMU_VECTOR2(int2, int)
TH_EMU_VECTOR2(float2, float)
TH_EMU_VECTOR2(double2, double)
TH_EMU_VECTOR2(ushort2, unsigned short)
TH_EMU_VECTOR2(uchar2, unsigned char)
TH_EMU_VECTOR2(ulonglong2, unsigned long long)
TH_EMU_VECTOR4(uint4, unsigned)
TH_EMU_VECTOR4(int4, int)
TH_EMU_VECTOR4(float4, float)
TH_EMU_VECTOR4(ushort4, unsigned short)
TH_EMU_VECTOR4(uchar4, unsigned char)

/* ---- arithmetic ----------------------------------------------------------------------------------------------------------------
 */

template <typename T, typename F> static inline T th_emu_bits(F from)
{
    static_assert(sizeof(T) == sizeof(F), "same size");
    T to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float x)
{
    return th_emu_bits<unsigned>(x);
}
static inline int __float_as_int(float x)
{
    return th_emu_bits<int>(x);
}
static inline float __uint_as_float(unsigned x)
{
    return th_emu_bits<float>(x);
}
static inline float __int_as_float(int x)
{
    return th_emu_bits<float>(x);
}
static inline long long __double_as_longlong(double x)
{
    return th_emu_bits<long long>(x);
}
static inline double __longlong_as_double(long long x)
{
    return th_emu_bits<double>(x);
}
static inline float __fmul_rn(float x, float y)
{
    return x * y;
}
static inline float __fadd_rn(float x, float y)
{
    return x + y;
}
static inline float __fsub_rn(float x, float y)
{
    return x - y;
}
static inline float __fdiv_rn(float x, float y)
{
    return x / y;
}
static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
static inline float __frsqrt_rn(float x)
{
    return (float)(1.0 / sqrt((double)x));
}
static inline float __fmaf_rn(float x, float y, float z)
{
    return fmaf(x, y, z);
}
static inline double __dmul_rn(double x, double y)
{
    return x * y;
}
static inline double __dadd_rn(double x, double y)
{
    return x + y;
}
static inline double __dsub_rn(double x, double y)
{
    return x - y;
}
static inline double __ddiv_rn(double x, double y)
{
    return x / y;
}
static inline double __dsqrt_rn(double x)
{
    return sqrt(x);
}
static inline double __fma_rn(double x, double y, double z)
{
    return fma(x, y, z);
}
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline int __float2int_rn(float x)
{
    return (int)rintf(x);
}
static inline int __float2int_rz(float x)
{
    return (int)x;
}
static inline int __float2int_rd(float x)
{
    return (int)floorf(x);
}
static inline unsigned __float2uint_rn(float x)
{
    return (unsigned)rintf(x);
}
static inline float __int2float_rn(int x)
{
    return (float)x;
}
static inline float __uint2float_rn(unsigned x)
{
    return (float)x;
}
static inline float __double2float_rn(double x)
{
    return (float)x;
}
static inline long long __double2ll_rn(double x)
{
    return (long long)rint(x);
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}
static inline int __clzll(long long x)
{
    return x == 0 ? 64 : __builtin_clzll((unsigned long long)x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline unsigned __umulhi(unsigned x, unsigned y)
{
    return (unsigned)((uint64_t)x * y >> 32);
}
static inline int __mulhi(int x, int y)
{
    return (int)((int64_t)x * y >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y)
{
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
static inline unsigned __brev(unsigned x)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1u) << (31 - i);
    return r;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n)
{
    return (unsigned)(((uint64_t)high << 32 | low) << (n & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n)
{
    return (unsigned)(((uint64_t)high << 32 | low) >> (n & 31));
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned select)
{
    uint64_t both = (uint64_t)y << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) r |= (unsigned)(both >> (8 * (select >> (4 * i) & 7)) & 255u) << (8 * i);
    return r;
}
#define TH_EMU_MINMAX(type)                                                                                                        \
    static inline type min(type x, type y)                                                                                         \
    {                                                                                                                              \
        return y < x ? y : x;                                                                                                      \
    }                                                                                                                              \
    static inline type max(type x, type y)                                                                                         \
    {                                                                                                                              \
        return x < y ? y : x;                                                                                                      \
    }
TH_EMU_MINMAX(int)
TH_EMU_MINMAX(unsigned)
TH_EMU_MINMAX(long long)
TH_EMU_MINMAX(unsigned long long)
TH_EMU_MINMAX(long)
TH_EMU_MINMAX(unsigned long)
static inline float min(float x, float y)
{
    return fminf(x, y);
}
static inline float max(float x, float y)
{
    return fmaxf(x, y);
}
static inline double min(double x, double y)
{
    return fmin(x, y);
}
static inline double max(double x, double y)
{
    return fmax(x, y);
}

/* ---- memory --------------------------------------------------------------------------------------------------------------------
 */

template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldcs(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldca(const T *p)
{
    return *p;
}
template <typename T> static inline void __stcs(T *p, T v)
{
    *p = v;
}
template <typename T> static inline void __stcg(T *p, T v)
{
    *p = v;
}
static inline void __threadfence()
{
}
static inline void __threadfence_block()
{
}
static inline void __threadfence_system()
{
}
static inline void __nanosleep(unsigned)
{
}
#define TH_EMU_ATOMIC(name, expression)                                                                                            \
    template <typename T> static inline T name(T *p, T v)                                                                          \
    {                                                                                                                              \
        static_assert(static_cast<T>(1) / 2 == 0, "atomics on floats have no fixed order");                                        \
        T old = *p;                                                                                                                \
        *p = (expression);                                                                                                         \
        return old;                                                                                                                \
    }
TH_EMU_ATOMIC(atomicAdd, old + v)
TH_EMU_ATOMIC(atomicSub, old - v)
TH_EMU_ATOMIC(atomicMax, old < v ? v : old)
TH_EMU_ATOMIC(atomicMin, v < old ? v : old)
TH_EMU_ATOMIC(atomicOr, old | v)
TH_EMU_ATOMIC(atomicXor, old ^ v)
TH_EMU_ATOMIC(atomicAnd, old &v)
TH_EMU_ATOMIC(atomicExch, v)
template <typename T> static inline T atomicCAS(T *p, T expected, T v)
{
    T old = *p;
    if (old == expected) *p = v;
    return old;
}

/* ---- meeting --------------------------------------------------------------------------------------------------------------------
 */

#define __syncthreads() th_emu_block_barrier(__FILE__, __LINE__)

enum { TH_EMU_SYNC = 1, TH_EMU_SHUFFLE, TH_EMU_UP, TH_EMU_DOWN, TH_EMU_XOR, TH_EMU_VOTE, TH_EMU_MATCH, TH_EMU_REDUCE, TH_EMU_MMA };

static inline void __syncwarp(unsigned mask = 0xFFFFFFFFu)
{
    th_emu_warp(mask, TH_EMU_SYNC, "", 0, nullptr);
}
template <typename T> static inline T th_emu_from(const unsigned char *slots, int lane)
{
    T value;
    memcpy(&value, slots + lane * TH_EMU_SLOT, sizeof value);
    return value;
}
template <typename T> static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32)
{
    const unsigned char *slots = th_emu_warp(mask, TH_EMU_SHUFFLE, &value, sizeof value, nullptr);
    int lane = th_emu_lane();
    return th_emu_from<T>(slots, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
    const unsigned char *slots = th_emu_warp(mask, TH_EMU_UP, &value, sizeof value, nullptr);
    int lane = th_emu_lane(), source = lane - (int)delta;
    return th_emu_from<T>(slots, source < (lane & ~(width - 1)) ? lane : source);
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
    const unsigned char *slots = th_emu_warp(mask, TH_EMU_DOWN, &value, sizeof value, nullptr);
    int lane = th_emu_lane(), source = lane + (int)delta;
    return th_emu_from<T>(slots, source > (lane | (width - 1)) ? lane : source);
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32)
{
    const unsigned char *slots = th_emu_warp(mask, TH_EMU_XOR, &value, sizeof value, nullptr);
    int lane = th_emu_lane(), source = lane ^ bits;
    return th_emu_from<T>(slots, source > (lane | (width - 1)) ? lane : source);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    const unsigned char *slots = th_emu_warp(mask, TH_EMU_VOTE, &predicate, sizeof predicate, nullptr);
    unsigned bits = 0;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && th_emu_from<int>(slots, lane) != 0) bits |= 1u << lane;
    return bits;
}
static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, !predicate) == 0;
}
template <typename T> static inline unsigned __match_any_sync(unsigned mask, T value)
{
    const unsigned char *slots = th_emu_warp(mask, TH_EMU_MATCH, &value, sizeof value, nullptr);
    unsigned bits = 0;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && th_emu_from<T>(slots, lane) == value) bits |= 1u << lane;
    return bits;
}
#define TH_EMU_REDUCTION(name, expression)                                                                                         \
    template <typename T> static inline T name(unsigned mask, T value)                                                             \
    {                                                                                                                              \
        static_assert(static_cast<T>(1) / 2 == 0, "only integers");                                                                \
        const unsigned char *slots = th_emu_warp(mask, TH_EMU_REDUCE, &value, sizeof value, nullptr);                              \
        T r = value;                                                                                                               \
        for (int lane = 0; lane < 32; lane++) {                                                                                    \
            if (!(mask >> lane & 1) || lane == th_emu_lane()) continue;                                                            \
            T v = th_emu_from<T>(slots, lane);                                                                                     \
            r = (expression);                                                                                                      \
        }                                                                                                                          \
        return r;                                                                                                                  \
    }
TH_EMU_REDUCTION(__reduce_add_sync, r + v)
TH_EMU_REDUCTION(__reduce_min_sync, v < r ? v : r)
TH_EMU_REDUCTION(__reduce_max_sync, r < v ? v : r)
TH_EMU_REDUCTION(__reduce_or_sync, r | v)
TH_EMU_REDUCTION(__reduce_and_sync, r &v)

/* ---- what launch.cuh adds
 * -------------------------------------------------------------------------------------------------------- */

#define TH_DYNAMIC_SHARED(type, name) type *const name = static_cast<type *>(th_emu_dynamic_shared)

static inline void th_dependency_wait()
{
}
static inline void th_dependency_release()
{
}
static inline uint4 th_load_stream(const void *p)
{
    return *static_cast<const uint4 *>(p);
}
static inline uint4 th_load_16(const void *p)
{
    return *static_cast<const uint4 *>(p);
}
static inline void th_copy_async(void *shared, const void *global)
{
    *static_cast<uint4 *>(shared) = *static_cast<const uint4 *>(global);
}
static inline void th_copy_commit()
{
}
template <int pending> static inline void th_copy_wait()
{
}

static inline void th_emu_mma(float c[4], uint4 a, uint32_t b0, uint32_t b1, int kind, void (*finish)(unsigned char *))
{
    struct {
        float c[4];
        uint32_t a[4], b[2];
    } in = {{c[0], c[1], c[2], c[3]}, {a.x, a.y, a.z, a.w}, {b0, b1}};
    const unsigned char *slots = th_emu_warp(0xFFFFFFFFu, kind, &in, sizeof in, finish);
    memcpy(c, slots + th_emu_lane() * TH_EMU_SLOT, 16);
}
static inline void th_mma_bf16(float c[4], uint4 a, uint32_t b0, uint32_t b1)
{
    th_emu_mma(c, a, b0, b1, TH_EMU_MMA, th_emu_finish_bf16);
}
static inline void th_mma_e4m3(float c[4], uint4 a, uint32_t b0, uint32_t b1)
{
    th_emu_mma(c, a, b0, b1, TH_EMU_MMA + 1, th_emu_finish_e4m3);
}
static inline void th_mma_f16(float c[4], uint4 a, uint32_t b0, uint32_t b1)
{
    th_emu_mma(c, a, b0, b1, TH_EMU_MMA + 2, th_emu_finish_f16);
}

template <typename... P> struct th_emu_call {
    void (*kernel)(P...);
    std::tuple<P...> arguments;
    static void run(const void *call)
    {
        const th_emu_call *self = static_cast<const th_emu_call *>(call);
        std::apply(self->kernel, self->arguments);
    }
};

template <typename... P, typename... A>
static inline cudaError_t th_emu_launch(const char *text, const struct th_cuda_launch *launch, void (*kernel)(P...), dim3 grid,
                                        dim3 block, size_t shared, A... arguments)
{
    th_emu_call<P...> call{kernel, std::tuple<P...>(static_cast<P>(arguments)...)};
    th_emu_kernel k = {text, th_emu_call<P...>::run, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared};
    return th_emu_submit(launch->stream, &k, &call, sizeof call);
}
#define th_launch(...) th_emu_launch(#__VA_ARGS__, __VA_ARGS__)

#endif
