/* The kernels that a program has launched, with what cudaLaunchKernel must know of them. */
#ifndef SIM_KERNEL_H
#define SIM_KERNEL_H

#include "stream.h"

#include <cuda_runtime_api.h>

namespace sim
{

/* The device's limits: those of sm_90. */
const unsigned max_threads_per_block = 1024, threads_per_multiprocessor = 2048, blocks_per_multiprocessor = 32;
const unsigned multiprocessors = 132;
const size_t shared_per_block = 48 * 1024, shared_per_block_optin = 227 * 1024, shared_per_multiprocessor = 228 * 1024;

cudaError_t enqueue_kernel(stream &stream, const void *kernel, dim3 blocks, dim3 threads, void **arguments,
                           size_t shared_bytes);

/* Allow `kernel` dynamic shared memory of more than 48 KiB. It need not have been launched yet. */
cudaError_t allow_shared(const void *kernel, int bytes);
int allowed_shared(const void *kernel);

} // namespace sim

#endif
