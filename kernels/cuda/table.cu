/* The kernels of each compute type, together. */
#include "kernels/cuda/instance.h"

namespace gpu
{

template <class T> static void fill(struct cuda *cuda)
{
    fill_elementwise<T>(cuda);
    fill_embedding<T>(cuda);
    fill_norm<T>(cuda);
    fill_group_norm<T>(cuda);
    fill_batch_norm<T>(cuda);
    fill_attention<T>(cuda);
    fill_loss<T>(cuda);
    fill_image<T>(cuda);
    fill_linear<T>(cuda);
    fill_penalty<T>(cuda);
    fill_update<T>(cuda);
}

} // namespace gpu

void cuda_fill_kernels(struct cuda *cuda)
{
    switch (cuda->head.compute_type) {
    case DTYPE_FP32:
        return gpu::fill<float>(cuda);
    case DTYPE_BF16:
        return gpu::fill<gpu::bf16>(cuda);
    case DTYPE_FP16:
        return gpu::fill<gpu::fp16>(cuda);
    case DTYPE_FP64:
        return gpu::fill<double>(cuda);
    }
}
