/*
 * Matrix products without cuBLASLt: for shapes and addresses that it has none for, and for operands of two types.
 * Column-major, as cuBLAS has it: a[m,k]·b[k,n], a block to SIDE×SIDE of it, four to a thread, the terms in their
 * order.
 */
#ifndef GACC_KERNELS_CUDA_PRODUCT_H
#define GACC_KERNELS_CUDA_PRODUCT_H

#include "kernels/cuda/instance.h"

namespace gpu
{

constexpr unsigned SIDE = 32, COLUMNS_EACH = SIDE * SIDE / THREADS;

template <class T> struct operand {
    const T *at;
    size_t stride; /* from column to column of what lies in memory */
    bool transposed;

    __device__ real<T> element(size_t row, size_t column) const
    {
        return widen(transposed ? at[row * stride + column] : at[column * stride + row]);
    }
};

/* Of shared memory. a [term][row], b [column][term]. */
template <class W> struct product_tiles {
    W a[SIDE][SIDE + 1], b[SIDE][SIDE + 1];
};

/* Blocks for all of a product [m,n]. */
inline unsigned product_blocks(size_t m, size_t n)
{
    return static_cast<unsigned>(ceiling<size_t>(m, SIDE) * ceiling<size_t>(n, SIDE));
}

/* Where a block's part of it begins, and its threads' elements, which are of one row and COLUMNS_EACH columns. */
struct product_place {
    size_t row, column;
};

__device__ inline product_place block_place(size_t m)
{
    const size_t across = ceiling<size_t>(m, SIDE);
    return {blockIdx.x % across * SIDE, blockIdx.x / across * SIDE};
}

__device__ inline product_place thread_place(product_place block)
{
    return {block.row + threadIdx.x % SIDE, block.column + threadIdx.x / SIDE * COLUMNS_EACH};
}

/* sum += the thread's elements of a·b; called by whole blocks of THREADS. Neighbouring threads read what lies side by
 * side in memory. */
template <class W, class A, class B>
__device__ void add_product(W (&sum)[COLUMNS_EACH], product_place block, const operand<A> &a, const operand<B> &b,
                            size_t m, size_t n, size_t k, product_tiles<W> &tiles)
{
    const unsigned x = threadIdx.x % SIDE, y = threadIdx.x / SIDE * COLUMNS_EACH;
    for (size_t first = 0; first < k; first += SIDE) {
        for (unsigned i = 0; i < COLUMNS_EACH; i++) {
            const unsigned other = y + i;
            const unsigned a_row = a.transposed ? other : x, a_term = a.transposed ? x : other;
            const unsigned b_column = b.transposed ? x : other, b_term = b.transposed ? other : x;
            const size_t row = block.row + a_row, column = block.column + b_column;
            tiles.a[a_term][a_row] = row < m && first + a_term < k ? a.element(row, first + a_term) : 0;
            tiles.b[b_column][b_term] = column < n && first + b_term < k ? b.element(first + b_term, column) : 0;
        }
        __syncthreads();
        for (unsigned term = 0; term < SIDE; term++)
            for (unsigned i = 0; i < COLUMNS_EACH; i++) sum[i] += tiles.a[term][x] * tiles.b[y + i][term];
        __syncthreads();
    }
}

} // namespace gpu

#endif
