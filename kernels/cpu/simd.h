/*
 * Marks on loops. Files that are compiled per instruction set are compiled with -fopenmp-simd; elsewhere the marks are
 * nothing.
 */
#ifndef GACC_KERNELS_CPU_SIMD_H
#define GACC_KERNELS_CPU_SIMD_H

#ifdef GACC_INSTANCE
/* The loop that follows has no dependence between iterations; buffers may be the same, never shifted. */
#define SIMD _Pragma("omp simd")
/* The loop that follows adds up its arguments, in an order that is fixed when it is compiled. */
#define SIMD_SUM(...) PRAGMA(omp simd reduction(+ : __VA_ARGS__))
#define PRAGMA(...) _Pragma(#__VA_ARGS__)
#else
#define SIMD
#define SIMD_SUM(...)
#endif

#endif
