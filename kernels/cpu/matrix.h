/*
 * Matrix products of `real` by oneDNN and OpenBLAS, and panels of compute-type matrices widened for them. Always one
 * thread of theirs: the kernels spread their own work, so that what follows a product happens while its result is in
 * the cache.
 */
#ifndef GACC_KERNELS_CPU_MATRIX_H
#define GACC_KERNELS_CPU_MATRIX_H

#include <cblas.h>
#include <dnnl.h>
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

/* The same, always in the panel: contiguous rows are worth a copy to products that come back to them. */
static inline struct matrix pack_panel(real *panel, const element *in, size_t stride, size_t rows, size_t columns)
{
    for (size_t r = 0; r < rows; r++) {
        real *row = panel + r * columns;
        const real *values = widen(row, in + r * stride, columns);
        if (!ELEMENT_IS_REAL) continue;
        SIMD for (size_t c = 0; c < columns; c++) row[c] = values[c];
    }
    return (struct matrix){panel, columns};
}

typedef real real4 __attribute__((vector_size(4 * sizeof(real))));

/* The 4×4 square at `in`, transposed and multiplied. */
static inline void transpose_4x4(real *out, size_t stride, const real *in, size_t in_stride, real factor)
{
    real4 row[4];
    for (size_t r = 0; r < 4; r++) memcpy(&row[r], in + r * in_stride, sizeof *row);
    const real4 low01 = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
    const real4 high01 = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
    const real4 low23 = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
    const real4 high23 = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
    const real4 column[4] = {
        __builtin_shufflevector(low01, low23, 0, 1, 4, 5) * factor,
        __builtin_shufflevector(low01, low23, 2, 3, 6, 7) * factor,
        __builtin_shufflevector(high01, high23, 0, 1, 4, 5) * factor,
        __builtin_shufflevector(high01, high23, 2, 3, 6, 7) * factor,
    };
    for (size_t c = 0; c < 4; c++) memcpy(out + c * stride, &column[c], sizeof *column);
}

/* out[columns,rows] = factor·inᵀ; in [rows,columns]. */
static inline void transpose(real *out, size_t stride, struct matrix in, size_t rows, size_t columns, real factor)
{
    const size_t whole_rows = rows / 4 * 4, whole_columns = columns / 4 * 4;
    for (size_t c = 0; c < whole_columns; c += 4)
        for (size_t r = 0; r < whole_rows; r += 4)
            transpose_4x4(out + c * stride + r, stride, in.at + r * in.stride + c, in.stride, factor);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = r < whole_rows ? whole_columns : 0; c < columns; c++)
            out[c * stride + r] = in.at[r * in.stride + c] * factor;
}

enum product_order { PRODUCT_NN, PRODUCT_NT, PRODUCT_TN };

/* Which of the two multiplies is a matter of speed: oneDNN is up to a fifth faster on matrices that are not in the
 * cache (tests/bench/kernels), takes longer to get going, and has no double precision. */
#define PRODUCT_LARGE ((size_t)1 << 21) /* m·n·k */

/* c[m,n] = beta·c + alpha·op(a)·op(b), k terms each; beta 0 does not read c. */
static inline void product(enum product_order order, size_t m, size_t n, size_t k, real alpha, struct matrix a,
                           struct matrix b, real beta, real *c, size_t stride)
{
    const enum CBLAS_TRANSPOSE ta = order == PRODUCT_TN ? CblasTrans : CblasNoTrans;
    const enum CBLAS_TRANSPOSE tb = order == PRODUCT_NT ? CblasTrans : CblasNoTrans;
#if !defined GACC_COMPUTE_FP64
    if (m * n * k >= PRODUCT_LARGE) {
        dnnl_sgemm(order == PRODUCT_TN ? 'T' : 'N', order == PRODUCT_NT ? 'T' : 'N', (dnnl_dim_t)m, (dnnl_dim_t)n,
                   (dnnl_dim_t)k, alpha, a.at, (dnnl_dim_t)a.stride, b.at, (dnnl_dim_t)b.stride, beta, c,
                   (dnnl_dim_t)stride);
        return;
    }
#endif
#if defined GACC_COMPUTE_FP64
    cblas_dgemm(CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, alpha, a.at, (int)a.stride, b.at, (int)b.stride, beta, c,
                (int)stride);
#else
    cblas_sgemm(CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, alpha, a.at, (int)a.stride, b.at, (int)b.stride, beta, c,
                (int)stride);
#endif
}

#endif
