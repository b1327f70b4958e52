/* One pass over arrays of n elements each, by a functor that handles `width` of them, or one, from an index on. */
#ifndef GACC_KERNELS_CUDA_ELEMENTWISE_H
#define GACC_KERNELS_CUDA_ELEMENTWISE_H

#include "kernels/cuda/instance.h"

namespace gpu
{

template <class Pass> __device__ __forceinline__ void run_elements(const struct runs &runs, const Pass &pass)
{
    const size_t first = blockIdx.x * static_cast<size_t>(THREADS) + threadIdx.x;
    const size_t step = static_cast<size_t>(gridDim.x) * THREADS;
    const size_t inside = runs.units * Pass::width;
    for (size_t unit = first; unit < runs.units; unit += step)
        pass.template run<Pass::width>(runs.head + unit * Pass::width);
    for (size_t single = first; single < runs.n - inside; single += step)
        pass.template run<1>(single < runs.head ? single : single + inside);
}

template <class Pass> __global__ void __launch_bounds__(THREADS) elements_kernel(struct runs runs, Pass pass)
{
    run_elements(runs, pass);
}

/* `arrays` are those whose accesses must be aligned; `kernel` does run_elements. */
template <class Pass, class... T>
void start_elements_by(struct cuda *cuda, const char *name, void (*kernel)(struct runs, Pass), const Pass &pass,
                       size_t n, const T *...arrays)
{
    if (n == 0) return;
    const struct runs runs = cut<Pass::width>(n, arrays...);
    const size_t singles = runs.n - runs.units * Pass::width;
    start(cuda, name, kernel, blocks_for(cuda, runs.units > singles ? runs.units : singles, THREADS), THREADS, 0, runs,
          pass);
}

template <class Pass, class... T>
void start_elements(struct cuda *cuda, const char *name, const Pass &pass, size_t n, const T *...arrays)
{
    start_elements_by(cuda, name, elements_kernel<Pass>, pass, n, arrays...);
}

} // namespace gpu

#endif
