/*
 * The check of a shard's gradient and the fused optimizer step. Both are passes over wide numbers, so there is one set
 * of them for fp32 and one for fp64.
 */
#include "kernels/cuda/elementwise.h"

namespace gpu
{

/* --- check -------------------------------------------------------------------------------------------------------- */

constexpr unsigned MOST_CHECK_BLOCKS = 1024; /* of so many sums, however large the device is */

template <unsigned N, class W>
__device__ void check_elements(gradient_check &sums, const W *gradient, double inverse_scale)
{
    W g[N];
    load<N>(g, gradient);
    for (unsigned i = 0; i < N; i++) {
        const double scaled = static_cast<double>(g[i]), unscaled = scaled * inverse_scale;
        sums.nonfinite += g[i] - g[i] == 0 ? 0 : 1;
        sums.sum_squares_scaled += scaled * scaled;
        sums.sum_squares += unscaled * unscaled;
    }
}

/* Thread 0 gets the block's sums. */
__device__ inline gradient_check block_check(const gradient_check &own, double *part)
{
    gradient_check all;
    all.nonfinite = static_cast<uint64_t>(block_sum(static_cast<double>(own.nonfinite), part));
    all.sum_squares_scaled = block_sum(own.sum_squares_scaled, part);
    all.sum_squares = block_sum(own.sum_squares, part);
    return all;
}

template <class W>
__global__ void __launch_bounds__(THREADS)
    check_kernel(gradient_check *parts, const W *gradient, struct runs runs, double inverse_scale)
{
    SHARED(double, part, [WARP]);
    constexpr unsigned N = lanes<W>;
    const size_t first = blockIdx.x * static_cast<size_t>(THREADS) + threadIdx.x;
    const size_t step = static_cast<size_t>(gridDim.x) * THREADS, inside = runs.units * N;
    gradient_check own = {0, 0, 0};
#pragma unroll 4
    for (size_t unit = first; unit < runs.units; unit += step)
        check_elements<N>(own, gradient + runs.head + unit * N, inverse_scale);
    for (size_t single = first; single < runs.n - inside; single += step)
        check_elements<1>(own, gradient + (single < runs.head ? single : single + inside), inverse_scale);
    const gradient_check all = block_check(own, part);
    if (threadIdx.x == 0) parts[blockIdx.x] = all;
}

__global__ void __launch_bounds__(THREADS)
    check_parts_kernel(gradient_check *into, const gradient_check *parts, unsigned count)
{
    SHARED(double, part, [WARP]);
    gradient_check own = {0, 0, 0};
    for (unsigned i = threadIdx.x; i < count; i += THREADS) {
        own.nonfinite += parts[i].nonfinite;
        own.sum_squares_scaled += parts[i].sum_squares_scaled;
        own.sum_squares += parts[i].sum_squares;
    }
    const gradient_check all = block_check(own, part);
    if (threadIdx.x != 0) return;
    into->nonfinite += all.nonfinite;
    into->sum_squares_scaled += all.sum_squares_scaled;
    into->sum_squares += all.sum_squares;
}

template <class W>
static void check(struct kernels *kernels, struct gradient_check *into, const wide *gradient, size_t n,
                  double inverse_scale)
{
    struct cuda *cuda = cuda_enter(kernels);
    if (n == 0) return;
    const W *g = static_cast<const W *>(gradient);
    gradient_check *parts = static_cast<gradient_check *>(cuda->scratch);
    const size_t wanted = ceiling<size_t>(n, THREADS * lanes<W>);
    const unsigned blocks = wanted < MOST_CHECK_BLOCKS ? static_cast<unsigned>(wanted) : MOST_CHECK_BLOCKS;
    start(cuda, "check", check_kernel<W>, blocks, THREADS, 0, parts, g, cut<lanes<W>>(n, g), inverse_scale);
    start(cuda, "check", check_parts_kernel, 1, THREADS, 0, into, parts, blocks);
}

/* --- update ------------------------------------------------------------------------------------------------------- */

/* The gradient times `unscale`, the product formed in double. */
template <class W> __device__ W unscaled(W gradient, double unscale)
{
    return static_cast<W>(static_cast<double>(gradient) * unscale);
}

/* w −= (lr/(1−β1^t))·m / (√v/√(1−β2^t) + eps): m̂ and v̂ with their constants drawn out. */
template <class W> struct adamw_elements {
    static constexpr unsigned width = lanes<W>;
    W *w, *m, *v;
    const W *gradient;
    W decay, eps, beta1, rest1, beta2, rest2, step, correction;
    double unscale;

    template <unsigned N> __device__ void run(size_t at) const
    {
        W weight[N], first[N], second[N], g[N];
        load<N>(weight, w + at);
        load<N>(first, m + at);
        load<N>(second, v + at);
        load<N>(g, gradient + at);
        for (unsigned i = 0; i < N; i++) {
            const W gi = unscaled(g[i], unscale), decayed = weight[i] - decay * weight[i];
            first[i] = beta1 * first[i] + rest1 * gi;
            second[i] = beta2 * second[i] + rest2 * gi * gi;
            weight[i] = decayed - step * first[i] / (square_root(second[i]) * correction + eps);
        }
        store<N>(w + at, weight);
        store<N>(m + at, first);
        store<N>(v + at, second);
    }
};

template <class W> struct sgd_elements {
    static constexpr unsigned width = lanes<W>;
    W *w, *m; /* m NULL: no momentum */
    const W *gradient;
    W lr, decay, momentum;
    double unscale;
    bool first; /* applied step: m = g */

    template <unsigned N> __device__ void run(size_t at) const
    {
        W weight[N], moment[N], g[N];
        load<N>(weight, w + at);
        load<N>(g, gradient + at);
        if (m) load<N>(moment, m + at);
        for (unsigned i = 0; i < N; i++) {
            const W gi = unscaled(g[i], unscale) + decay * weight[i];
            if (m) moment[i] = first ? gi : momentum * moment[i] + gi;
            weight[i] -= lr * (m ? moment[i] : gi);
        }
        store<N>(w + at, weight);
        if (m) store<N>(m + at, moment);
    }
};

template <class W>
static void update(struct kernels *kernels, wide *master, wide *m, wide *v, const wide *gradient, size_t n,
                   const struct update *u)
{
    struct cuda *cuda = cuda_enter(kernels);
    const double t = static_cast<double>(u->t);
    W *w = static_cast<W *>(master);
    const W *g = static_cast<const W *>(gradient);
    if (u->kind == OPTIMIZER_KIND_ADAMW) {
        const adamw_elements<W> pass = {w,
                                        static_cast<W *>(m),
                                        static_cast<W *>(v),
                                        g,
                                        static_cast<W>(u->lr * u->weight_decay),
                                        static_cast<W>(u->eps),
                                        static_cast<W>(u->beta1),
                                        static_cast<W>(1 - u->beta1),
                                        static_cast<W>(u->beta2),
                                        static_cast<W>(1 - u->beta2),
                                        static_cast<W>(u->lr / (1 - pow(u->beta1, t))),
                                        static_cast<W>(1 / sqrt(1 - pow(u->beta2, t))),
                                        u->unscale};
        start_elements(cuda, "update", pass, n, pass.w, pass.m, pass.v, pass.gradient);
    } else {
        const sgd_elements<W> pass = {w,
                                      u->momentum != 0 ? static_cast<W *>(m) : nullptr,
                                      g,
                                      static_cast<W>(u->lr),
                                      static_cast<W>(u->weight_decay),
                                      static_cast<W>(u->momentum),
                                      u->unscale,
                                      u->t == 1};
        start_elements(cuda, "update", pass, n, pass.w, pass.m ? pass.m : pass.w, pass.gradient);
    }
}

template <class T> void fill_update(struct cuda *cuda)
{
    cuda->table.check = check<real<T>>;
    cuda->table.update = update<real<T>>;
}
FOR_EVERY_TYPE(fill_update);

} // namespace gpu
