/*
 * How the kernels of one compute type reach the device, and the table that the worker calls them by.
 */
#ifndef GACC_KERNELS_CUDA_INSTANCE_H
#define GACC_KERNELS_CUDA_INSTANCE_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gpu.h"

namespace gpu
{

constexpr unsigned THREADS = 256; /* of a block, where a kernel has no reason for another number */

/* Start a kernel on the backend's stream; a launch that fails is remembered under `name`. */
template <class... P, class... A>
void start(struct cuda *cuda, const char *name, void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared_bytes,
           const A &...arguments)
{
    cuda_note(cuda, launch(kernel, grid, dim3(threads), shared_bytes, cuda->stream, arguments...), name);
}

/* Blocks for `count` pieces of work, one to a thread, as many as keep every multiprocessor busy; for kernels whose
 * results do not depend on it. */
inline unsigned blocks_for(const struct cuda *cuda, size_t count, unsigned threads)
{
    const size_t most = static_cast<size_t>(cuda->multiprocessors) * 16, blocks = ceiling<size_t>(count, threads);
    return static_cast<unsigned>(blocks < most ? blocks : most);
}

/* Each file of kernels enters those of compute type T in the backend's table. */
template <class T> void fill_elementwise(struct cuda *cuda);
template <class T> void fill_embedding(struct cuda *cuda);
template <class T> void fill_norm(struct cuda *cuda);
template <class T> void fill_group_norm(struct cuda *cuda);
template <class T> void fill_batch_norm(struct cuda *cuda);
template <class T> void fill_attention(struct cuda *cuda);
template <class T> void fill_loss(struct cuda *cuda);
template <class T> void fill_image(struct cuda *cuda);
template <class T> void fill_linear(struct cuda *cuda);
template <class T> void fill_penalty(struct cuda *cuda);
template <class T> void fill_update(struct cuda *cuda);

#define FOR_EVERY_TYPE(fill)                  \
    template void fill<float>(struct cuda *); \
    template void fill<bf16>(struct cuda *);  \
    template void fill<fp16>(struct cuda *);  \
    template void fill<double>(struct cuda *)

} // namespace gpu

#endif
