/*
 * exp, tanh and the normal distribution as straight-line code that compilers vectorise (fp32), or from libm (fp64).
 * Coefficients: minimax fits in the relative error, made for this file. NaN in, NaN out; infinities give the limits.
 * fp32 errors, held by tests: exp and tanh 2 ulp; Φ(x) 4·2^-24, and for x >= −10 relatively 40·2^-24 (that of x² in
 * e^(−x²/2)).
 */
#ifndef GACC_KERNELS_CPU_VECTOR_MATH_H
#define GACC_KERNELS_CPU_VECTOR_MATH_H

#include <math.h>

#include "kernels/cpu/half.h"

/* e^x for x <= 88: 2^n·e^r with n = round(x/ln 2), |r| <= ln 2 / 2. What would be below 2^-126 is 0. Kernels take it of
 * numbers that are not positive, but for rounding. The last comparison lets a NaN pass. */
static inline float exp_f32(float x)
{
    const float round_to_integer = 0x1.8p23f;
    const float shifted = x * 1.44269504f + round_to_integer; /* n stands in the lowest bits */
    const float n = shifted - round_to_integer;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f; /* ln 2 in two parts, n times the first is exact */
    float p = 1.38142198e-3f;
    p = p * r + 8.36889887e-3f;
    p = p * r + 4.16684058e-2f;
    p = p * r + 1.66665191e-1f;
    p = p * r + 4.99999933e-1f;
    p = p * (r * r) + r + 1.0f;
    const float scale = bits_float((float_bits(shifted) << 23) + float_bits(1.0f));
    return x < -87.33654f ? 0.0f : p * scale;
}

static inline float tanh_f32(float x)
{
    const float a = fabsf(x), z = x * x;
    float p = -5.70499041e-3f;
    p = p * z + 2.06390907e-2f;
    p = p * z - 5.37397163e-2f;
    p = p * z + 1.33314422e-1f;
    p = p * z - 3.33332819e-1f;
    const float near = x + x * (z * p);
    const float e = exp_f32(-2.0f * a);
    const float far = (1.0f - e) / (1.0f + e);
    return a < 0.625f ? near : copysignf(far, x);
}

/* Φ(−a)·e^(a²/2), a >= 0: a polynomial in 1/(1 + 0.27·a), the form of Abramowitz & Stegun 26.2.17. */
static inline float normal_tail_scaled_f32(float a)
{
    const float u = 1.0f / (1.0f + 0.27f * a);
    float p = 2.89611351e-2f;
    p = p * u - 1.26486025e-1f;
    p = p * u + 1.69786488e-1f;
    p = p * u - 6.92111306e-2f;
    p = p * u + 1.07825873e-1f;
    p = p * u + 7.20495107e-2f;
    p = p * u + 1.01810633e-1f;
    p = p * u + 1.07542871e-1f;
    p = p * u + 1.07720657e-1f;
    return p * u;
}

/* MATH_LOOP stands before loops over these functions: SIMD where there is something to vectorise. */
#if defined GACC_COMPUTE_FP64

#define MATH_LOOP

static inline double exp_real(double x)
{
    return exp(x);
}

static inline double absolute(double x)
{
    return fabs(x);
}

static inline double tanh_real(double x)
{
    return tanh(x);
}

/* Φ(x), given e^(−x²/2) */
static inline double normal_cdf(double x, double gauss)
{
    (void)gauss;
    return 0.5 * erfc(-x * M_SQRT1_2);
}

#else

#define MATH_LOOP SIMD

static inline float exp_real(float x)
{
    return exp_f32(x);
}

static inline float absolute(float x)
{
    return fabsf(x);
}

static inline float tanh_real(float x)
{
    return tanh_f32(x);
}

static inline float normal_cdf(float x, float gauss)
{
    const float tail = gauss * normal_tail_scaled_f32(fabsf(x));
    return x < 0.0f ? tail : 1.0f - tail;
}

#endif

#endif
