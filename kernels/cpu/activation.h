/*
 * Activations and their slopes over runs of `real`: used on their own and behind the products.
 */
#ifndef GACC_KERNELS_CPU_ACTIVATION_H
#define GACC_KERNELS_CPU_ACTIVATION_H

#include "kernels/cpu/element.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/kernels.h"

static inline real relu(real x)
{
    return x < 0 ? 0 : x;
}

static inline real relu_slope(real x)
{
    const real slope = x > 0 ? 1 : 0;
    return x == x ? slope : x;
}

static inline real tanh_slope(real x)
{
    const real t = tanh_real(x);
    return 1 - t * t;
}

static inline real gauss(real x)
{
    return exp_real((real)-0.5 * x * x);
}

static inline real gelu(real x)
{
    return x * normal_cdf(x, gauss(x));
}

static inline real gelu_slope(real x)
{
    const real g = gauss(x);
    return normal_cdf(x, g) + x * (g * (real)0.39894228040143267794);
}

#define GELU_TANH_SCALE ((real)0.79788456080286535588) /* √(2/π) */
#define GELU_TANH_CUBE ((real)0.044715)

/* ½(1 + tanh u) = 1/(1 + e^(−2u)) = e^(2u)/(1 + e^(2u)), which keep their relative precision where tanh is near −1 */
static inline real gelu_tanh_gate(real x)
{
    const real u = GELU_TANH_SCALE * x * (1 + GELU_TANH_CUBE * (x * x));
    const real e = exp_real((real)-2 * absolute(u));
    return (u < 0 ? e : 1) / (1 + e);
}

static inline real gelu_tanh(real x)
{
    return x * gelu_tanh_gate(x);
}

/* gate + x·gate·(1 − gate)·2·du/dx, multiplied in an order that cannot overflow for a finite x */
static inline real gelu_tanh_slope(real x)
{
    const real gate = gelu_tanh_gate(x);
    const real t = x * (gate * (1 - gate));
    return gate + 2 * GELU_TANH_SCALE * (t + 3 * GELU_TANH_CUBE * (x * (x * t)));
}

#define FOR_RUN(statement)                              \
    MATH_LOOP for (size_t i = 0; i < n; i++) statement; \
    break

/* y = activate(x); y may be x */
static inline void activate_run(real *y, const real *x, enum activation activation, size_t n)
{
    switch (activation) {
    case ACTIVATE_NONE:
        FOR_RUN(y[i] = x[i]);
    case ACTIVATE_RELU:
        FOR_RUN(y[i] = relu(x[i]));
    case ACTIVATE_TANH:
        FOR_RUN(y[i] = tanh_real(x[i]));
    case ACTIVATE_GELU:
        FOR_RUN(y[i] = gelu(x[i]));
    case ACTIVATE_GELU_TANH:
        FOR_RUN(y[i] = gelu_tanh(x[i]));
    }
}

/* dx = dy·activate'(x); dx may be dy */
static inline void activation_slope_run(real *dx, const real *dy, const real *x, enum activation activation, size_t n)
{
    switch (activation) {
    case ACTIVATE_NONE:
        FOR_RUN(dx[i] = dy[i]);
    case ACTIVATE_RELU:
        FOR_RUN(dx[i] = dy[i] * relu_slope(x[i]));
    case ACTIVATE_TANH:
        FOR_RUN(dx[i] = dy[i] * tanh_slope(x[i]));
    case ACTIVATE_GELU:
        FOR_RUN(dx[i] = dy[i] * gelu_slope(x[i]));
    case ACTIVATE_GELU_TANH:
        FOR_RUN(dx[i] = dy[i] * gelu_tanh_slope(x[i]));
    }
}

#define FOR_BOTH(slope, value)               \
    MATH_LOOP for (size_t i = 0; i < n; i++) \
    {                                        \
        const real at = x[i];                \
        dx[i] = dy[i] * slope(at);           \
        y[i] = value(at);                    \
    }                                        \
    break

/* Both of the above in one pass: dx = dy·activate'(x), y = activate(x); dx may be dy, y may be x */
static inline void activation_both_run(real *dx, real *y, const real *dy, const real *x, enum activation activation,
                                       size_t n)
{
    switch (activation) {
    case ACTIVATE_NONE:
        break;
    case ACTIVATE_RELU:
        FOR_BOTH(relu_slope, relu);
    case ACTIVATE_TANH:
        FOR_BOTH(tanh_slope, tanh_real);
    case ACTIVATE_GELU:
        FOR_BOTH(gelu_slope, gelu);
    case ACTIVATE_GELU_TANH:
        FOR_BOTH(gelu_tanh_slope, gelu_tanh);
    }
}

#endif
