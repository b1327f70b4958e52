/*
 * Rounding and adding what travels between GPUs. A rank's part begins at any element, so accesses are of single ones;
 * both kernels take far less time than the link does for their bytes.
 */
#include "kernels/cuda/gpu.h"

#include "kernels/cuda/reduce.h"

namespace
{

using gpu::bf16;

constexpr unsigned THREADS = 256, BLOCKS = 1024;

dim3 grid_of(size_t n)
{
    const size_t blocks = gpu::ceiling<size_t>(n, THREADS);
    return dim3(static_cast<unsigned>(blocks < BLOCKS ? blocks : BLOCKS));
}

__global__ void round_bf16(bf16 *out, const float *in, size_t n)
{
    const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride)
        out[i] = gpu::narrow<bf16>(in[i]);
}

__global__ void sum_rounded(float *sum, const float *own, const bf16 *received, uint32_t rank, uint32_t ranks,
                            size_t part, size_t n)
{
    const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
        float all = 0;
        for (uint32_t other = 0; other < ranks; other++)
            all += other == rank ? own[i] : gpu::widen(received[other * part + i]);
        sum[i] = all;
    }
}

} // namespace

cudaError_t cuda_round_bf16(cudaStream_t stream, void *out, const float *in, size_t n)
{
    if (n == 0) return cudaSuccess;
    return gpu::launch(round_bf16, grid_of(n), dim3(THREADS), 0, stream, static_cast<bf16 *>(out), in, n);
}

cudaError_t cuda_sum_rounded(cudaStream_t stream, float *sum, const float *own, const void *received, uint32_t rank,
                             uint32_t ranks, size_t part, size_t n)
{
    if (n == 0) return cudaSuccess;
    return gpu::launch(sum_rounded, grid_of(n), dim3(THREADS), 0, stream, sum, own, static_cast<const bf16 *>(received),
                       rank, ranks, part, n);
}
