/* Activations and their slopes in a wide type; the formulas are those of reference/reference.c. */
#ifndef GACC_KERNELS_CUDA_ACTIVATION_H
#define GACC_KERNELS_CUDA_ACTIVATION_H

#include "kernels/cuda/instance.h"

namespace gpu
{

__device__ __forceinline__ float hyperbolic_tangent(float x)
{
    return tanhf(x);
}
__device__ __forceinline__ double hyperbolic_tangent(double x)
{
    return tanh(x);
}

/* Φ(x), small tails with their relative precision */
__device__ __forceinline__ float normal_cdf(float x)
{
    return 0.5f * erfcf(-0.70710678118654752440f * x);
}
__device__ __forceinline__ double normal_cdf(double x)
{
    return 0.5 * erfc(-0.70710678118654752440 * x);
}

/* ½(1 + tanh u) = 1/(1 + e^(−2u)) = e^(2u)/(1 + e^(2u)), which keep their relative precision where tanh is near −1;
 * u = √(2/π)·(x + 0.044715·x³) */
template <class W> __device__ __forceinline__ W gelu_tanh_gate(W x)
{
    const W u = static_cast<W>(0.79788456080286535588) * x * (1 + static_cast<W>(0.044715) * (x * x));
    const W e = exponential(u < 0 ? 2 * u : -2 * u);
    return (u < 0 ? e : 1) / (1 + e);
}

template <activation A, class W> __device__ __forceinline__ W activate(W x)
{
    if constexpr (A == ACTIVATE_RELU)
        return x < 0 ? 0 : x;
    else if constexpr (A == ACTIVATE_TANH)
        return hyperbolic_tangent(x);
    else if constexpr (A == ACTIVATE_GELU)
        return x * normal_cdf(x);
    else if constexpr (A == ACTIVATE_GELU_TANH)
        return x * gelu_tanh_gate(x);
    else
        return x;
}

template <activation A, class W> __device__ __forceinline__ W activation_slope(W x)
{
    if constexpr (A == ACTIVATE_RELU) {
        return x > 0 ? 1 : x <= 0 ? 0 : x;
    } else if constexpr (A == ACTIVATE_TANH) {
        const W t = hyperbolic_tangent(x);
        return 1 - t * t;
    } else if constexpr (A == ACTIVATE_GELU) {
        return normal_cdf(x) + x * (exponential(static_cast<W>(-0.5) * x * x) * static_cast<W>(0.39894228040143267794));
    } else if constexpr (A == ACTIVATE_GELU_TANH) {
        /* gate + x·gate·(1 − gate)·2·du/dx, multiplied in an order that cannot overflow for a finite x */
        const W gate = gelu_tanh_gate(x), t = x * (gate * (1 - gate));
        return gate + 2 * static_cast<W>(0.79788456080286535588) * (t + 3 * static_cast<W>(0.044715) * (x * (x * t)));
    } else {
        return 1;
    }
}

/* The second derivative. Multiplied in orders that cannot overflow for a finite x. */
template <activation A, class W> __device__ __forceinline__ W activation_curvature(W x)
{
    if constexpr (A == ACTIVATE_TANH) {
        const W t = hyperbolic_tangent(x);
        return -2 * t * (1 - t * t);
    } else if constexpr (A == ACTIVATE_GELU) { /* (2 − x²)·φ(x) */
        const W normal = exponential(static_cast<W>(-0.5) * x * x) * static_cast<W>(0.39894228040143267794);
        return 2 * normal - x * (x * normal);
    } else if constexpr (A == ACTIVATE_GELU_TANH) {
        /* of x·g, g = 1/(1 + e^(−2u)): 2g′ + x·g″, g′ = 2u′t and g″ = 2u″t + 4u′²t·(1 − 2g) with t = g·(1 − g) */
        const W k = static_cast<W>(0.79788456080286535588), cubic = static_cast<W>(3 * 0.044715);
        const W gate = gelu_tanh_gate(x), t = gate * (1 - gate);
        const W once = k * (t + cubic * (x * (x * t))), twice = k * (once + cubic * (x * (x * once)));
        return 4 * once + 4 * (x * (k * cubic * (x * t))) + 4 * (x * (twice * (1 - 2 * gate)));
    } else {
        return 0;
    }
}

/* f(the activation as a type); not for ACTIVATE_NONE */
template <class F> void with_activation(enum activation activation, F f)
{
    switch (activation) {
    case ACTIVATE_NONE:
        return;
    case ACTIVATE_RELU:
        return f(std::integral_constant<enum activation, ACTIVATE_RELU>{});
    case ACTIVATE_TANH:
        return f(std::integral_constant<enum activation, ACTIVATE_TANH>{});
    case ACTIVATE_GELU:
        return f(std::integral_constant<enum activation, ACTIVATE_GELU>{});
    case ACTIVATE_GELU_TANH:
        return f(std::integral_constant<enum activation, ACTIVATE_GELU_TANH>{});
    }
}

} // namespace gpu

#endif
