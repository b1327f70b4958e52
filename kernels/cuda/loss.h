/*
 * How losses are added up: each row's is formed in double, a block adds up those of its rows and leaves the sum in
 * scratch memory, where they are added in the order of the blocks. How many blocks there are depends on the rows alone.
 */
#ifndef GACC_KERNELS_CUDA_LOSS_H
#define GACC_KERNELS_CUDA_LOSS_H

#include "kernels/cuda/instance.h"

namespace gpu
{

constexpr size_t MOST_BLOCKS = 4096; /* of a loss: 16 rows to each where there are many */
constexpr unsigned LOSS_WARPS = THREADS / WARP;

/* Blocks for rows of which each takes so many at a time. */
unsigned loss_blocks(size_t rows, size_t rows_abreast);
/* *loss_sum += what `count` blocks have left at the start of the scratch memory. */
void add_loss_parts(struct cuda *cuda, const char *name, double *loss_sum, unsigned count);

/* The sum of the warps' losses, by thread 0. */
__device__ inline void leave_loss(double loss, double *warp_loss, double *out)
{
    if (threadIdx.x % WARP == 0) warp_loss[threadIdx.x / WARP] = loss;
    __syncthreads();
    if (threadIdx.x != 0) return;
    double sum = 0;
    for (unsigned w = 0; w < LOSS_WARPS; w++) sum += warp_loss[w];
    *out = sum;
}

} // namespace gpu

#endif
