/* The table that gacc_cuda.so exports. */
#include "kernels/cuda/cuda.h"
#include "worker/comm_nccl.h"

__attribute__((visibility("default"))) const struct cuda_module gacc_cuda_module = {
    .abi = CUDA_MODULE_ABI,
    .device_count = cuda_device_count,
    .device_info = cuda_device_describe,
    .kernels_open = cuda_kernels_open,
    .comm_open = comm_open_nccl,
};
