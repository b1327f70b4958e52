/*
 * What every kernel is written against: CUDA's headers, launching, shared memory, element types, 16-byte accesses and
 * sums in a fixed order. A .cu file names no CUDA extension but those of this header and no instruction but through
 * mma_tile.h, so that it is C++ once the few names that only nvcc knows are given: elsewhere "sim_device.h" gives them.
 */
#ifndef GACC_KERNELS_CUDA_GPU_H
#define GACC_KERNELS_CUDA_GPU_H

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifdef __CUDACC__
/* SHARED(float, part, [32]): an array of the block's shared memory. */
#define SHARED(type, name, dimensions) __shared__ type name dimensions
/* SHARED_DYNAMIC(float, row): the shared memory that the launch asked for; one such name to a kernel. */
#define SHARED_DYNAMIC(type, name)                                  \
    extern __shared__ __align__(16) unsigned char dynamic_shared[]; \
    type *const name = reinterpret_cast<type *>(dynamic_shared)

template <class... P> inline void launch_note(void (*)(P...))
{
}
#else
#include "sim_device.h"
#endif

namespace gpu
{

/* --- launching --------------------------------------------------------------------------------------------------- */

template <class... P, size_t... I>
cudaError_t launch_tuple(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                         std::tuple<P...> &arguments, std::index_sequence<I...>)
{
    void *addresses[] = {&std::get<I>(arguments)...};
    launch_note(kernel);
    return cudaLaunchKernel(reinterpret_cast<const void *>(kernel), grid, block, addresses, shared_bytes, stream);
}

/* The one way to start a kernel. Arguments are converted to the parameters' types first. */
template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                   const A &...arguments)
{
    std::tuple<P...> values{static_cast<P>(arguments)...};
    return launch_tuple(kernel, grid, block, shared_bytes, stream, values, std::index_sequence_for<P...>{});
}

/* --- element types ----------------------------------------------------------------------------------------------- */

using bf16 = __nv_bfloat16;
using fp16 = __half;

template <class T> struct real_of {
    using type = float;
};
template <> struct real_of<double> {
    using type = double;
};
/* The wide type of compute type T. */
template <class T> using real = typename real_of<T>::type;

/* Elements of a 16-byte access. */
template <class T> constexpr unsigned lanes = 16 / static_cast<unsigned>(sizeof(T));

__device__ __forceinline__ float widen(bf16 x)
{
    return __bfloat162float(x);
}
__device__ __forceinline__ float widen(fp16 x)
{
    return __half2float(x);
}
__device__ __forceinline__ float widen(float x)
{
    return x;
}
__device__ __forceinline__ double widen(double x)
{
    return x;
}

/* Rounds once, to nearest even. */
template <class T> __device__ __forceinline__ T narrow(real<T> x)
{
    if constexpr (std::is_same_v<T, bf16>)
        return __float2bfloat16(x);
    else if constexpr (std::is_same_v<T, fp16>)
        return __float2half(x);
    else
        return x;
}

/* --- memory access ----------------------------------------------------------------------------------------------- */

/* One 16-byte access; the address must be a multiple of 16. */
template <class T> __device__ __forceinline__ void vload(T (&to)[lanes<T>], const T *from)
{
#ifdef __CUDACC__
    const uint4 bits = *reinterpret_cast<const uint4 *>(from);
    memcpy(&to, &bits, sizeof bits);
#else
    sim_check_alignment(from, 16);
    memcpy(static_cast<void *>(&to), from, 16);
#endif
}

template <class T> __device__ __forceinline__ void vstore(T *to, const T (&from)[lanes<T>])
{
#ifdef __CUDACC__
    uint4 bits;
    memcpy(&bits, &from, sizeof bits);
    *reinterpret_cast<uint4 *>(to) = bits;
#else
    sim_check_alignment(to, 16);
    memcpy(static_cast<void *>(to), &from, 16);
#endif
}

/* Two elements of 16 bits, the first in the lower half; the address must be a multiple of 4. */
template <class T> __device__ __forceinline__ void vstore_pair(T *to, uint32_t pair)
{
#ifdef __CUDACC__
    *reinterpret_cast<uint32_t *>(to) = pair;
#else
    sim_check_alignment(to, sizeof pair);
    memcpy(static_cast<void *>(to), &pair, sizeof pair);
#endif
}

/* N elements as wide: one alone, or a multiple of lanes<T> at a multiple of 16 bytes. */
template <unsigned N, class T> __device__ __forceinline__ void load(real<T> (&to)[N], const T *from)
{
    if constexpr (N == 1) {
        to[0] = widen(*from);
    } else {
        static_assert(N % lanes<T> == 0, "whole accesses");
#pragma unroll
        for (unsigned i = 0; i < N; i += lanes<T>) {
            T raw[lanes<T>];
            vload(raw, from + i);
#pragma unroll
            for (unsigned l = 0; l < lanes<T>; l++) to[i + l] = widen(raw[l]);
        }
    }
}

template <unsigned N, class T> __device__ __forceinline__ void store(T *to, const real<T> (&from)[N])
{
    if constexpr (N == 1) {
        *to = narrow<T>(from[0]);
    } else {
        static_assert(N % lanes<T> == 0, "whole accesses");
#pragma unroll
        for (unsigned i = 0; i < N; i += lanes<T>) {
            T raw[lanes<T>];
#pragma unroll
            for (unsigned l = 0; l < lanes<T>; l++) raw[l] = narrow<T>(from[i + l]);
            vstore(to + i, raw);
        }
    }
}

/* n elements cut into `head` single ones, `units` of some width that lie at multiples of 16 bytes in every array, and
 * single ones again. */
struct runs {
    size_t n, head, units;
};

inline bool aligned(const void *pointer)
{
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

/* Arrays that are not out of step with each other are aligned together after at most width − 1 elements. */
template <unsigned WIDTH, class... T> runs cut(size_t n, const T *...arrays)
{
    for (size_t head = 0; head < WIDTH && head < n; head++)
        if ((aligned(arrays + head) && ...)) return {n, head, (n - head) / WIDTH};
    return {n, n, 0};
}

/* --- sums in a fixed order --------------------------------------------------------------------------------------- */

constexpr unsigned WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

/* Every lane gets the sum. */
template <class W> __device__ __forceinline__ W warp_sum(W x)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
    return x;
}

template <class W> __device__ __forceinline__ W warp_max(W x)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        const W other = __shfl_xor_sync(ALL_LANES, x, distance);
        x = other > x ? other : x;
    }
    return x;
}

/* Every thread of a block of whole warps gets the sum; `part` is [WARP] of shared memory. */
template <class W> __device__ __forceinline__ W block_sum(W x, W *part)
{
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = warp_sum(x);
    __syncthreads(); /* part has been read by those who used it before */
    if (lane == 0) part[warp] = x;
    __syncthreads();
    return warp_sum(lane < warps ? part[lane] : static_cast<W>(0));
}

template <class W> __device__ __forceinline__ W block_max(W x, W *part)
{
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = warp_max(x);
    __syncthreads();
    if (lane == 0) part[warp] = x;
    __syncthreads();
    return warp_max(part[lane < warps ? lane : 0]);
}

/* --- mathematics in either wide type ----------------------------------------------------------------------------- */

__device__ __forceinline__ float exponential(float x)
{
    return expf(x);
}
__device__ __forceinline__ double exponential(double x)
{
    return exp(x);
}
__device__ __forceinline__ float logarithm(float x)
{
    return logf(x);
}
__device__ __forceinline__ double logarithm(double x)
{
    return log(x);
}
__device__ __forceinline__ float square_root(float x)
{
    return sqrtf(x);
}
__device__ __forceinline__ double square_root(double x)
{
    return sqrt(x);
}
template <class W> __device__ __forceinline__ W larger(W a, W b)
{
    return b > a ? b : a; /* a NaN in b is passed over */
}
template <class W> constexpr W lowest = -static_cast<W>(INFINITY);

template <class N> __host__ __device__ constexpr N ceiling(N count, N unit)
{
    return (count + unit - 1) / unit;
}

} // namespace gpu

#endif
