/*
 * The element types of one instance. Every file of this folder but cpu.c is compiled once per compute type and
 * instruction set, with GACC_COMPUTE_<TYPE> defined; it is written for `element` (the compute type) and `real` (the
 * wide type), and works on runs of at most CHUNK elements that are widened into a buffer, computed in `real`, and
 * narrowed once. Where both types are the same the buffers are not used and nothing is copied.
 */
#ifndef GACC_KERNELS_CPU_ELEMENT_H
#define GACC_KERNELS_CPU_ELEMENT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/half.h"

#if defined GACC_COMPUTE_FP64
typedef double real;
typedef double element;
#define COMPUTE_TYPE DTYPE_FP64
#define ELEMENT_IS_REAL 1
#elif defined GACC_COMPUTE_FP32
typedef float real;
typedef float element;
#define COMPUTE_TYPE DTYPE_FP32
#define ELEMENT_IS_REAL 1
#elif defined GACC_COMPUTE_BF16
typedef float real;
typedef uint16_t element;
#define COMPUTE_TYPE DTYPE_BF16
#define ELEMENT_IS_REAL 0
#define WIDEN widen_bf16
#define NARROW narrow_bf16
#elif defined GACC_COMPUTE_FP16
typedef float real;
typedef uint16_t element;
#define COMPUTE_TYPE DTYPE_FP16
#define ELEMENT_IS_REAL 0
#define WIDEN widen_fp16
#define NARROW narrow_fp16
#else
#error "no compute type chosen"
#endif

#define CHUNK 512

static inline size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

#if ELEMENT_IS_REAL

/* in[n] as real: `in` itself, or the buffer filled from it. */
static inline const real *widen(real *buffer, const element *in, size_t n)
{
    (void)buffer, (void)n;
    return in;
}

/* Where to put the real values that narrow() will store at `out`: `out` itself, or the buffer. */
static inline real *place(real *buffer, element *out)
{
    (void)buffer;
    return out;
}

static inline void narrow(element *out, const real *in, size_t n)
{
    if (out == in) return;
    SIMD for (size_t i = 0; i < n; i++) out[i] = in[i]; /* mostly short rows: a call would cost more than the copy */
}

#else

static inline const real *widen(real *buffer, const element *in, size_t n)
{
    WIDEN(buffer, in, n);
    return buffer;
}

static inline real *place(real *buffer, element *out)
{
    (void)out;
    return buffer;
}

static inline void narrow(element *out, const real *in, size_t n)
{
    NARROW(out, in, n);
}

#endif

/* Round to the compute type and back: what is stored is what is worked with. Gives the place of the rounded values. */
static inline const real *round_trip(element *stored, real *values, size_t n)
{
    narrow(stored, values, n);
    return widen(values, stored, n);
}

#endif
