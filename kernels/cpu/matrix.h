/*
 * Matrix products of `real` by BLAS, and panels of compute-type matrices widened for it. Always one BLAS thread: the
 * kernels spread their own work, so that what follows a product happens while its result is in the cache.
 */
#ifndef GACC_KERNELS_CPU_MATRIX_H
#define GACC_KERNELS_CPU_MATRIX_H

#include <cblas.h>
#include <stdbool.h>

#include "kernels/cpu/element.h"

struct matrix {
    const real *at;
    size_t stride; /* elements from row to row */
};

/* The rows × columns panel at `in` as real: itself, or widened into `panel`. */
static inline struct matrix widen_panel(real *panel, const element *in, size_t stride, size_t rows, size_t columns)
{
    if (ELEMENT_IS_REAL) return (struct matrix){widen(panel, in, columns), stride};
    for (size_t r = 0; r < rows; r++) widen(panel + r * columns, in + r * stride, columns);
    return (struct matrix){panel, columns};
}

enum product_order { PRODUCT_NN, PRODUCT_NT, PRODUCT_TN };

/* c[m,n] = beta·c + alpha·op(a)·op(b), k terms each; beta 0 does not read c. */
static inline void product(enum product_order order, size_t m, size_t n, size_t k, real alpha, struct matrix a,
                           struct matrix b, real beta, real *c, size_t stride)
{
    const enum CBLAS_TRANSPOSE ta = order == PRODUCT_TN ? CblasTrans : CblasNoTrans;
    const enum CBLAS_TRANSPOSE tb = order == PRODUCT_NT ? CblasTrans : CblasNoTrans;
#if defined GACC_COMPUTE_FP64
    cblas_dgemm(CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, alpha, a.at, (int)a.stride, b.at, (int)b.stride, beta, c,
                (int)stride);
#else
    cblas_sgemm(CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, alpha, a.at, (int)a.stride, b.at, (int)b.stride, beta, c,
                (int)stride);
#endif
}

#endif
