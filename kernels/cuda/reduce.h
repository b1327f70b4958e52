/*
 * Gradients that travel as bf16 between GPUs: what is sent is rounded, what arrives is added in fp32, in rank order. On
 * a stream of the caller's.
 */
#ifndef GACC_KERNELS_CUDA_REDUCE_H
#define GACC_KERNELS_CUDA_REDUCE_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* out[n] bf16 = in[n], rounded to nearest even. */
cudaError_t cuda_round_bf16(cudaStream_t stream, void *out, const float *in, size_t n);
/* sum[n] = Σ over the ranks, in rank order and in fp32: of `rank` its own[n], of every other received[other·part …],
 * bf16. sum may not be own. */
cudaError_t cuda_sum_rounded(cudaStream_t stream, float *sum, const float *own, const void *received, uint32_t rank,
                             uint32_t ranks, size_t part, size_t n);

#ifdef __cplusplus
}
#endif

#endif
