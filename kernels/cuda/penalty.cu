/*
 * A critic's loss, and the penalty on the gradient of its output by its inputs, whose own gradient takes derivatives
 * twice: with d/dt at x + t·r, r = ∂P/∂(∂ŷ/∂x), what the penalty P adds to the gradient of the weights is d/dt of the
 * gradient of ŷ (kernels/cpu/penalty.c). The rows that are penalised are listed first, and every layer is then a
 * product of its weights with all of theirs at once, in the wide type: what cuBLASLt has none for, since weights are of
 * the compute type.
 */
#include "kernels/cuda/activation.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/product.h"

namespace gpu
{

/* --- the critic's loss -------------------------------------------------------------------------------------------- */

template <class T>
__global__ void __launch_bounds__(THREADS)
    critic_kernel(double *parts, T *gradient, const T *prediction, const double *target, const double *weight,
                  const real<T> *seed, size_t rows)
{
    SHARED(double, part, [WARP]);
    double loss = 0;
    for (size_t row = blockIdx.x * static_cast<size_t>(THREADS) + threadIdx.x; row < rows;
         row += static_cast<size_t>(gridDim.x) * THREADS) {
        const bool skipped = weight[row] == 0;
        if (!skipped) loss -= weight[row] * target[row] * static_cast<double>(widen(prediction[row]));
        if (seed) {
            const double slope = skipped ? 0 : -target[row] * static_cast<double>(seed[row]);
            gradient[row] = narrow<T>(static_cast<real<T>>(slope));
        }
    }
    loss = block_sum(loss, part);
    if (threadIdx.x == 0) parts[blockIdx.x] = loss;
}

template <class T>
static void critic_loss(struct kernels *kernels, compute *gradient, const compute *prediction, const double *target,
                        const double *weight, const wide *seed, size_t rows, double *loss_sum)
{
    struct cuda *cuda = cuda_enter(kernels);
    if (rows == 0) return;
    const unsigned blocks = loss_blocks(rows, THREADS);
    start(cuda, "critic_loss", critic_kernel<T>, blocks, THREADS, 0, static_cast<double *>(cuda->scratch),
          static_cast<T *>(gradient), static_cast<const T *>(prediction), target, weight,
          static_cast<const real<T> *>(seed), rows);
    add_loss_parts(cuda, "critic_loss", loss_sum, blocks);
}

/* --- rows that are penalised -------------------------------------------------------------------------------------- */

/* Of all rows those that are, in their order; both in the backend's memory. */
struct penalised {
    uint32_t *list; /* [*count] */
    uint32_t *count;
};

/* One block. */
__global__ void __launch_bounds__(THREADS)
    list_kernel(penalised penalised, const double *weight, const double *share, size_t rows)
{
    SHARED(unsigned, warp_count, [THREADS / WARP]);
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint32_t listed = 0;
    for (size_t begin = 0; begin < rows; begin += THREADS) {
        const size_t row = begin + threadIdx.x;
        const bool is = row < rows && weight[row] != 0 && share[row] != 0;
        const unsigned found = __ballot_sync(ALL_LANES, is);
        __syncthreads(); /* warp_count has been read */
        if (lane == 0) warp_count[warp] = static_cast<unsigned>(__popc(found));
        __syncthreads();
        for (unsigned w = 0; w < THREADS / WARP; w++) {
            if (w == warp && is)
                penalised.list[listed + static_cast<unsigned>(__popc(found & ((1u << lane) - 1)))] =
                    static_cast<uint32_t>(row);
            listed += warp_count[w];
        }
    }
    if (threadIdx.x == 0) *penalised.count = listed;
}

/* Their data, and what the derivatives of the output by itself are. */
template <class W>
__global__ void __launch_bounds__(THREADS)
    enter_kernel(W *x, W *delta, W *delta_dot, const double *data, penalised penalised, size_t inputs)
{
    const size_t first = blockIdx.x * static_cast<size_t>(THREADS) + threadIdx.x, count = *penalised.count;
    const size_t step = static_cast<size_t>(gridDim.x) * THREADS;
    for (size_t at = first; at < count * inputs; at += step)
        x[at] = static_cast<W>(data[penalised.list[at / inputs] * inputs + at % inputs]);
    for (size_t row = first; row < count; row += step) delta[row] = 1, delta_dot[row] = 0;
}

/* --- a layer: the product of its weights with something of every row ---------------------------------------------- */

/* All of [rows, in] or [rows, out]; a dot stands for d/dt. */
template <class W> struct layer_rows {
    W *x, *x_dot;         /* [in] what goes in */
    W *z, *z_dot;         /* [out] before the activation */
    W *above;             /* [out] ∂ŷ/∂(what comes out) */
    W *delta, *delta_dot; /* [out] ∂ŷ/∂z */
};

template <class W> struct slopes {
    W value, first, second; /* φ, φ′, φ″ */
};

template <activation A, class W> __device__ __forceinline__ slopes<W> slopes_of(W x)
{
    return {activate<A>(x), activation_slope<A>(x), activation_curvature<A>(x)};
}

template <class W> __device__ __forceinline__ slopes<W> slopes_of(enum activation activation, W x)
{
    switch (activation) {
    case ACTIVATE_RELU:
        return slopes_of<ACTIVATE_RELU>(x);
    case ACTIVATE_TANH:
        return slopes_of<ACTIVATE_TANH>(x);
    case ACTIVATE_GELU:
        return slopes_of<ACTIVATE_GELU>(x);
    case ACTIVATE_GELU_TANH:
        return slopes_of<ACTIVATE_GELU_TANH>(x);
    default:
        return {x, 1, 0};
    }
}

/* What becomes of an element of a product; `at` is its place in [rows, m], `column` that in its row. */

/* z, and what goes into the layer above (NULL: there is none). */
template <class T> struct to_output {
    real<T> *z, *x_above;
    const T *bias;
    enum activation activation;

    __device__ void take(size_t at, size_t column, real<T> sum) const
    {
        z[at] = bias ? sum + widen(bias[column]) : sum;
        if (x_above) x_above[at] = slopes_of(activation, z[at]).value;
    }
};

template <class T> struct to_output_dot {
    real<T> *z_dot, *x_dot_above;
    const real<T> *z;
    enum activation activation;

    __device__ void take(size_t at, size_t, real<T> sum) const
    {
        z_dot[at] = sum;
        if (x_dot_above) x_dot_above[at] = sum * slopes_of(activation, z[at]).first;
    }
};

template <class T> struct to_gradient {
    real<T> *gradient;

    __device__ void take(size_t at, size_t, real<T> sum) const
    {
        gradient[at] = sum;
    }
};

/* Of the layer below. */
template <class T> struct to_delta {
    layer_rows<real<T>> below;
    enum activation activation;

    __device__ void take(size_t at, size_t, real<T> sum) const
    {
        below.above[at] = sum;
        below.delta[at] = sum * slopes_of(activation, below.z[at]).first;
    }
};

template <class T> struct to_delta_dot {
    layer_rows<real<T>> below;
    enum activation activation;

    __device__ void take(size_t at, size_t, real<T> sum) const
    {
        const slopes<real<T>> slopes = slopes_of(activation, below.z[at]);
        below.delta_dot[at] = sum * slopes.first + below.above[at] * below.z_dot[at] * slopes.second;
    }
};

/* W or Wᵀ [m,k] times x [rows, k]. */
template <class T, class End>
__global__ void __launch_bounds__(THREADS)
    layer_kernel(End end, operand<T> weight, operand<real<T>> x, size_t m, size_t k, penalised penalised)
{
    SHARED(product_tiles<real<T>>, tiles, [1]);
    const product_place block = block_place(m), own = thread_place(block);
    const size_t rows = *penalised.count;
    real<T> sum[COLUMNS_EACH] = {};
    if (block.column >= rows) return;
    add_product(sum, block, weight, x, m, rows, k, tiles[0]);
    for (unsigned i = 0; i < COLUMNS_EACH; i++)
        if (own.row < m && own.column + i < rows) end.take((own.column + i) * m + own.row, own.row, sum[i]);
}

/* --- the layers' gradients ---------------------------------------------------------------------------------------- */

/* dweight [out,in] += Σ over the rows of delta_dot·x + delta·x_dot */
template <class W>
__global__ void __launch_bounds__(THREADS)
    weight_kernel(W *dweight, layer_rows<W> layer, size_t in, size_t out, penalised penalised)
{
    SHARED(product_tiles<W>, tiles, [1]);
    const product_place block = block_place(in), own = thread_place(block);
    const size_t rows = *penalised.count;
    W sum[COLUMNS_EACH] = {};
    add_product(sum, block, operand<W>{layer.x, in, false}, operand<W>{layer.delta_dot, out, true}, in, out, rows,
                tiles[0]);
    add_product(sum, block, operand<W>{layer.x_dot, in, false}, operand<W>{layer.delta, out, true}, in, out, rows,
                tiles[0]);
    for (unsigned i = 0; i < COLUMNS_EACH; i++)
        if (own.row < in && own.column + i < out) dweight[(own.column + i) * in + own.row] += sum[i];
}

/* dbias [out] += Σ over the rows of delta_dot. A block to WARP columns; each warp adds up every so many-th row. */
template <class W>
__global__ void __launch_bounds__(THREADS)
    critic_bias_kernel(W *dbias, const W *delta_dot, size_t out, penalised penalised)
{
    SHARED(W, sums, [THREADS / WARP][WARP]);
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const size_t column = blockIdx.x * static_cast<size_t>(WARP) + lane, rows = *penalised.count;
    W sum = 0;
    if (column < out)
        for (size_t row = warp; row < rows; row += THREADS / WARP) sum += delta_dot[row * out + column];
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= out) return;
    for (unsigned w = 1; w < THREADS / WARP; w++) sum += sums[w][lane];
    dbias[column] += sum;
}

/* --- the penalty -------------------------------------------------------------------------------------------------- */

/* A warp to a row: its loss, and gradient = ∂P/∂gradient. Where the norm is 0 it has no derivative: none is taken, and
 * the gradient, which is 0, stays. */
template <class W>
__global__ void __launch_bounds__(THREADS)
    norm_kernel(double *parts, W *gradient, penalised penalised, const double *weight, const double *share,
                const W *seed, double lambda, size_t inputs)
{
    SHARED(double, warp_loss, [LOSS_WARPS]);
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const size_t rows = *penalised.count;
    double loss = 0;
    for (size_t at = blockIdx.x * static_cast<size_t>(LOSS_WARPS) + warp; at < rows;
         at += static_cast<size_t>(gridDim.x) * LOSS_WARPS) {
        W *own = gradient + at * inputs;
        const size_t row = penalised.list[at];
        double squares = 0;
        for (size_t i = lane; i < inputs; i += WARP)
            squares += static_cast<double>(own[i]) * static_cast<double>(own[i]);
        const double norm = sqrt(warp_sum(squares)), excess = norm - 1;
        loss += weight[row] * share[row] * lambda * excess * excess;
        if (!seed || norm == 0) continue;
        const double factor = static_cast<double>(seed[row]) * share[row] * lambda * 2 * excess / norm;
        for (size_t i = lane; i < inputs; i += WARP) own[i] = static_cast<W>(factor * static_cast<double>(own[i]));
    }
    leave_loss(loss, warp_loss, parts + blockIdx.x);
}

/* One call, as its kernels have it. */
template <class T> struct critic {
    using W = real<T>;
    struct cuda *cuda;
    const struct penalty *network;
    size_t rows;
    struct penalised penalised;
    layer_rows<W> layers[PENALTY_LAYERS];

    void lay_out(void *scratch)
    {
        penalised = {static_cast<uint32_t *>(scratch), static_cast<uint32_t *>(scratch) + rows};
        W *memory = static_cast<W *>(scratch) + 2 * rows;
        const auto take = [&](size_t width) {
            W *const taken = memory;
            memory += rows * width;
            return taken;
        };
        for (size_t l = 0; l < network->count; l++) {
            const size_t in = network->layers[l].in, out = network->layers[l].out;
            layers[l].x = take(in), layers[l].x_dot = take(in);
            layers[l].z = take(out), layers[l].z_dot = take(out), layers[l].above = take(out);
            layers[l].delta = take(out), layers[l].delta_dot = take(out);
        }
    }

    template <class End> void up(size_t l, const W *x, const End &end) const
    {
        const struct penalty_layer &layer = network->layers[l];
        start(cuda, "gradient_penalty", layer_kernel<T, End>, product_blocks(layer.out, rows), THREADS, 0, end,
              operand<T>{static_cast<const T *>(layer.weight), layer.in, true}, operand<W>{x, layer.in, false},
              layer.out, layer.in, penalised);
    }

    template <class End> void down(size_t l, const W *delta, const End &end) const
    {
        const struct penalty_layer &layer = network->layers[l];
        start(cuda, "gradient_penalty", layer_kernel<T, End>, product_blocks(layer.in, rows), THREADS, 0, end,
              operand<T>{static_cast<const T *>(layer.weight), layer.in, false}, operand<W>{delta, layer.out, false},
              layer.in, layer.out, penalised);
    }

    /* ∂ŷ/∂x, in what will be the first layer's x_dot; the values of the forward pass stay. */
    void gradient_of_output(const double *x, const double *weight, const double *share) const
    {
        const size_t last = network->count - 1, inputs = network->layers[0].in;
        start(cuda, "gradient_penalty", list_kernel, 1, THREADS, 0, penalised, weight, share, rows);
        start(cuda, "gradient_penalty", enter_kernel<W>, blocks_for(cuda, rows * inputs, THREADS), THREADS, 0,
              layers[0].x, layers[last].delta, layers[last].delta_dot, x, penalised, inputs);
        for (size_t l = 0; l <= last; l++)
            up(l, layers[l].x,
               to_output<T>{layers[l].z, l < last ? layers[l + 1].x : nullptr,
                            static_cast<const T *>(network->layers[l].bias), network->activation});
        for (size_t l = last; l > 0; l--) down(l, layers[l].delta, to_delta<T>{layers[l - 1], network->activation});
        down(0, layers[0].delta, to_gradient<T>{layers[0].x_dot});
    }

    /* The layers' gradients += d/dt of ∂ŷ/∂W at x + t·x_dot, x_dot being that of the first layer. */
    void add_second_derivative() const
    {
        const size_t last = network->count - 1;
        for (size_t l = 0; l < last; l++)
            up(l, layers[l].x_dot,
               to_output_dot<T>{layers[l].z_dot, layers[l + 1].x_dot, layers[l].z, network->activation});
        for (size_t l = last + 1; l-- > 0;) {
            const struct penalty_layer &layer = network->layers[l];
            if (layer.dweight)
                start(cuda, "gradient_penalty", weight_kernel<W>, product_blocks(layer.in, layer.out), THREADS, 0,
                      static_cast<W *>(layer.dweight), layers[l], layer.in, layer.out, penalised);
            if (layer.dbias)
                start(cuda, "gradient_penalty", critic_bias_kernel<W>,
                      static_cast<unsigned>(ceiling<size_t>(layer.out, WARP)), THREADS, 0,
                      static_cast<W *>(layer.dbias), layers[l].delta_dot, layer.out, penalised);
            if (l > 0) down(l, layers[l].delta_dot, to_delta_dot<T>{layers[l - 1], network->activation});
        }
    }
};

template <class T>
static void gradient_penalty(struct kernels *kernels, const struct penalty *penalty, const double *x,
                             const double *weight, const double *share, const wide *seed, size_t rows, double *loss_sum,
                             void *scratch)
{
    struct cuda *cuda = cuda_enter(kernels);
    if (rows == 0) return;
    critic<T> critic = {cuda, penalty, rows, {}, {}};
    critic.lay_out(scratch);
    critic.gradient_of_output(x, weight, share);
    const unsigned blocks = loss_blocks(rows, LOSS_WARPS);
    start(cuda, "gradient_penalty", norm_kernel<real<T>>, blocks, THREADS, 0, static_cast<double *>(cuda->scratch),
          critic.layers[0].x_dot, critic.penalised, weight, share, static_cast<const real<T> *>(seed), penalty->lambda,
          penalty->layers[0].in);
    add_loss_parts(cuda, "gradient_penalty", loss_sum, blocks);
    if (seed) critic.add_second_derivative();
}

template <class T> void fill_penalty(struct cuda *cuda)
{
    cuda->table.critic_loss = critic_loss<T>;
    cuda->table.gradient_penalty = gradient_penalty<T>;
}
FOR_EVERY_TYPE(fill_penalty);

} // namespace gpu
