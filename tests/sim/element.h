/* Numbers in device memory, by a type that is known when they are used. */
#ifndef SIM_ELEMENT_H
#define SIM_ELEMENT_H

#include <cstddef>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace sim
{

inline float widened(float x)
{
    return x;
}
inline double widened(double x)
{
    return x;
}
inline float widened(__half x)
{
    return __half2float(x);
}
inline float widened(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

/* Rounded once to T, to nearest even. */
template <typename T> T narrowed(float x)
{
    return T(x);
}
template <> inline __half narrowed<__half>(float x)
{
    return __float2half(x);
}
template <> inline __nv_bfloat16 narrowed<__nv_bfloat16>(float x)
{
    return __float2bfloat16(x);
}
template <typename T> T narrowed(double x)
{
    return narrowed<T>(float(x));
}
template <> inline double narrowed<double>(double x)
{
    return x;
}

} // namespace sim

#endif
