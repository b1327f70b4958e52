/* The mean of values and the squares of their distances from it, joined from parts (Chan, Golub and LeVeque 1979). */
#ifndef GACC_KERNELS_CUDA_MOMENTS_H
#define GACC_KERNELS_CUDA_MOMENTS_H

#include "kernels/cuda/gpu.h"

namespace gpu
{

/* As if `count` values of that mean and Σ (x − mean)² were among those of N others, which have their count together.
 * The caller counts them. */
struct moments_share {
    double part, cross; /* count/(count of both), and that times the count of what they join */

    __device__ moments_share(double into, double count) : part(count / (into + count)), cross(into * part)
    {
    }
    __device__ void join(double &mean, double &squares, double other_mean, double other_squares) const
    {
        const double apart = other_mean - mean;
        mean += apart * part;
        squares += other_squares + apart * apart * cross;
    }
};

} // namespace gpu

#endif
