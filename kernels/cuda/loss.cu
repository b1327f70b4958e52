/* Losses with their gradients; how they are added up: loss.h. */
#include "kernels/cuda/loss.h"

namespace gpu
{

constexpr unsigned CLASS_THREADS = 512;

unsigned loss_blocks(size_t rows, size_t rows_abreast)
{
    const size_t blocks = ceiling(rows, rows_abreast);
    return static_cast<unsigned>(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
}

__global__ void __launch_bounds__(THREADS) loss_parts_kernel(double *loss_sum, const double *parts, unsigned count)
{
    SHARED(double, part, [WARP]);
    double sum = 0;
    for (unsigned i = threadIdx.x; i < count; i += THREADS) sum += parts[i];
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) *loss_sum += sum;
}

void add_loss_parts(struct cuda *cuda, const char *name, double *loss_sum, unsigned count)
{
    start(cuda, name, loss_parts_kernel, 1, THREADS, 0, loss_sum, static_cast<const double *>(cuda->scratch), count);
}

/* --- cross-entropy ------------------------------------------------------------------------------------------------ */

template <class T> struct cross_entropy_rows {
    T *logits;
    const int32_t *target;
    const double *weight;
    const real<T> *seed; /* NULL: no gradient */
    size_t rows, repeat, classes, stride;
    double *parts;
};

/* Largest and Σe^(x − largest) of what was seen so far; poison turns NaN with the first value that is not finite. */
template <class W> struct online_sum {
    W largest = lowest<W>, sum = 0, poison = 0;

    template <unsigned N> __device__ void take(const W (&x)[N])
    {
        W top = largest;
        for (unsigned i = 0; i < N; i++) {
            top = larger(top, x[i]);
            poison += x[i] * 0;
        }
        if (top > largest) {
            sum *= exponential(largest - top);
            largest = top;
        }
        for (unsigned i = 0; i < N; i++) sum += exponential(x[i] - largest);
    }
};

/* Of a row: largest, and what has to be added to it for log-sum-exp; NaN when a logit was not finite. */
template <class W> struct log_sum {
    W largest;
    double log;
};

template <class T, unsigned N>
__device__ log_sum<real<T>> row_log_sum(const T *x, size_t classes, real<T> *part, double *double_part)
{
    using W = real<T>;
    online_sum<W> own;
    const size_t whole = classes / N * N;
#pragma unroll 2
    for (size_t c = threadIdx.x * N; c < whole; c += CLASS_THREADS * N) {
        W v[N];
        load<N>(v, x + c);
        own.take(v);
    }
    for (size_t c = whole + threadIdx.x; c < classes; c += CLASS_THREADS) {
        W v[1];
        load<1>(v, x + c);
        own.take(v);
    }
    const W largest = block_max(own.largest, part);
    const W scaled = own.sum == 0 ? 0 : own.sum * exponential(own.largest - largest);
    const double sum = block_sum(static_cast<double>(scaled), double_part);
    return {largest, log(sum) + static_cast<double>(block_sum(own.poison, part))};
}

/* (p − onehot)·seed in place, zeros behind the classes. */
template <class T, unsigned N>
__device__ void row_gradient(T *x, log_sum<real<T>> lse, size_t target, real<T> seed, size_t classes, size_t stride)
{
    using W = real<T>;
    const W inverse = static_cast<W>(exp(-lse.log));
    const auto gradient = [&](W v, size_t c) {
        if (c >= classes) return static_cast<W>(0);
        const W p = exponential(v - lse.largest) * inverse;
        return (c == target ? p - 1 : p) * seed;
    };
    const size_t whole = stride / N * N;
    for (size_t c = threadIdx.x * N; c < whole; c += CLASS_THREADS * N) {
        W v[N];
        load<N>(v, x + c);
        for (unsigned i = 0; i < N; i++) v[i] = gradient(v[i], c + static_cast<size_t>(i));
        store<N>(x + c, v);
    }
    for (size_t c = whole + threadIdx.x; c < stride; c += CLASS_THREADS) x[c] = narrow<T>(gradient(widen(x[c]), c));
}

/* A block to a row at a time. The second pass finds the row in the L2 cache. */
template <class T, unsigned N>
__global__ void __launch_bounds__(CLASS_THREADS) cross_entropy_kernel(cross_entropy_rows<T> ce)
{
    using W = real<T>;
    SHARED(W, part, [WARP]);
    SHARED(double, double_part, [WARP]);
    double loss = 0;
    for (size_t row = blockIdx.x; row < ce.rows; row += gridDim.x) {
        T *x = ce.logits + row * ce.stride;
        const double weight = ce.target[row] < 0 ? 0 : ce.weight[row / ce.repeat];
        if (weight == 0) {
            if (ce.seed)
                for (size_t c = threadIdx.x; c < ce.stride; c += CLASS_THREADS) x[c] = narrow<T>(0);
            continue;
        }
        const size_t target = static_cast<size_t>(ce.target[row]);
        const W at_target = widen(x[target]);
        const log_sum<W> lse = row_log_sum<T, N>(x, ce.classes, part, double_part);
        loss += weight * (lse.log + (static_cast<double>(lse.largest) - static_cast<double>(at_target)));
        /* every thread has read the target: they have met in the sums */
        if (ce.seed) row_gradient<T, N>(x, lse, target, ce.seed[row / ce.repeat], ce.classes, ce.stride);
    }
    if (threadIdx.x == 0) ce.parts[blockIdx.x] = loss;
}

template <class T>
static void cross_entropy(struct kernels *kernels, compute *logits, const int32_t *target, const double *weight,
                          const wide *seed, size_t rows, size_t repeat, size_t classes, size_t stride, double *loss_sum)
{
    struct cuda *cuda = cuda_enter(kernels);
    if (rows == 0) return;
    const cross_entropy_rows<T> ce = {static_cast<T *>(logits),
                                      target,
                                      weight,
                                      static_cast<const real<T> *>(seed),
                                      rows,
                                      repeat,
                                      classes,
                                      stride,
                                      static_cast<double *>(cuda->scratch)};
    const unsigned blocks = loss_blocks(rows, 1);
    const bool whole = stride % lanes<T> == 0 && aligned(logits);
    start(cuda, "cross_entropy", whole ? cross_entropy_kernel<T, lanes<T>> : cross_entropy_kernel<T, 1>, blocks,
          CLASS_THREADS, 0, ce);
    add_loss_parts(cuda, "cross_entropy", loss_sum, blocks);
}

/* --- squared error ------------------------------------------------------------------------------------------------ */

template <class T> struct squared_error_rows {
    T *gradient;
    const T *prediction;
    const double *target, *weight;
    const real<T> *seed; /* NULL: no gradient */
    double factor;
    size_t rows, outputs;
    double *parts;
};

/* A warp to a row. */
template <class T> __global__ void __launch_bounds__(THREADS) squared_error_kernel(squared_error_rows<T> se)
{
    SHARED(double, warp_loss, [LOSS_WARPS]);
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    double loss = 0;
    for (size_t row = blockIdx.x * static_cast<size_t>(LOSS_WARPS) + warp; row < se.rows;
         row += static_cast<size_t>(gridDim.x) * LOSS_WARPS) {
        const bool skipped = se.weight[row] == 0;
        const double slope = se.seed && !skipped ? 2 * se.factor * static_cast<double>(se.seed[row]) : 0;
        double squares = 0;
        for (size_t c = row * se.outputs + lane; c < (row + 1) * se.outputs; c += WARP) {
            const double error = skipped ? 0 : static_cast<double>(widen(se.prediction[c])) - se.target[c];
            squares += error * error;
            if (se.seed) se.gradient[c] = narrow<T>(static_cast<real<T>>(error * slope));
        }
        if (!skipped) loss += se.weight[row] * se.factor * warp_sum(squares);
    }
    leave_loss(loss, warp_loss, se.parts + blockIdx.x);
}

template <class T>
static void squared_error(struct kernels *kernels, compute *gradient, const compute *prediction, const double *target,
                          const double *weight, const wide *seed, double factor, size_t rows, size_t outputs,
                          double *loss_sum)
{
    struct cuda *cuda = cuda_enter(kernels);
    if (rows == 0) return;
    const squared_error_rows<T> se = {static_cast<T *>(gradient),
                                      static_cast<const T *>(prediction),
                                      target,
                                      weight,
                                      static_cast<const real<T> *>(seed),
                                      factor,
                                      rows,
                                      outputs,
                                      static_cast<double *>(cuda->scratch)};
    const unsigned blocks = loss_blocks(rows, LOSS_WARPS);
    start(cuda, "squared_error", squared_error_kernel<T>, blocks, THREADS, 0, se);
    add_loss_parts(cuda, "squared_error", loss_sum, blocks);
}

/* --- linear loss -------------------------------------------------------------------------------------------------- */

/* A warp to a row. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    linear_loss_kernel(double *parts, const double *x, const double *weight, const T *w, size_t rows, size_t columns)
{
    SHARED(double, warp_loss, [LOSS_WARPS]);
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    double loss = 0;
    for (size_t row = blockIdx.x * static_cast<size_t>(LOSS_WARPS) + warp; row < rows;
         row += static_cast<size_t>(gridDim.x) * LOSS_WARPS) {
        if (weight[row] == 0) continue;
        double sum = 0;
        for (size_t c = lane; c < columns; c += WARP) sum += x[row * columns + c] * static_cast<double>(widen(w[c]));
        loss += weight[row] * warp_sum(sum);
    }
    leave_loss(loss, warp_loss, parts + blockIdx.x);
}

template <class T>
static void linear_loss(struct kernels *kernels, const double *x, const double *weight, const compute *w, size_t rows,
                        size_t columns, double *loss_sum)
{
    struct cuda *cuda = cuda_enter(kernels);
    if (rows == 0) return;
    const unsigned blocks = loss_blocks(rows, LOSS_WARPS);
    start(cuda, "linear_loss", linear_loss_kernel<T>, blocks, THREADS, 0, static_cast<double *>(cuda->scratch), x,
          weight, static_cast<const T *>(w), rows, columns);
    add_loss_parts(cuda, "linear_loss", loss_sum, blocks);
}

template <class T> void fill_loss(struct cuda *cuda)
{
    cuda->table.cross_entropy = cross_entropy<T>;
    cuda->table.squared_error = squared_error<T>;
    cuda->table.linear_loss = linear_loss<T>;
}
FOR_EVERY_TYPE(fill_loss);

} // namespace gpu
