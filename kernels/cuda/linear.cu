/*
 * Fully connected layers: products by cuBLASLt, what comes with them by kernels of our own.
 *
 * The activation is not left to cuBLASLt: its GELU is the tanh form only and is taken of the sum before it is rounded,
 * while here y is the activation of the stored pre-activation, so that a backward can have it again with the same bits.
 * For the same reason a product that an activation's slope multiplies (linear_backward_input) is rounded to the compute
 * type in between: its result has two roundings, not one.
 */
#include "kernels/cuda/activation.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/product.h"

namespace gpu
{

static size_t row_stride(const struct linear_shape &shape)
{
    return shape.stride ? shape.stride : shape.out;
}

/* --- products ----------------------------------------------------------------------------------------------------- */

template <class T, class D>
__global__ void __launch_bounds__(THREADS) product_kernel(D *d, size_t d_stride, operand<T> a, operand<T> b,
                                                          const T *bias, size_t m, size_t n, size_t k, bool adds)
{
    SHARED(product_tiles<real<T>>, tiles, [1]);
    const product_place block = block_place(m), own = thread_place(block);
    real<T> sum[COLUMNS_EACH] = {};
    add_product(sum, block, a, b, m, n, k, tiles[0]);
    for (unsigned i = 0; i < COLUMNS_EACH; i++) {
        if (own.row >= m || own.column + i >= n) continue;
        D *out = d + (own.column + i) * d_stride + own.row;
        if (bias) sum[i] += widen(bias[own.row]);
        if (adds) sum[i] += widen(*out);
        *out = narrow<D>(sum[i]);
    }
}

template <class T, class D> static void start_product(struct cuda *cuda, const char *name, const struct cuda_product &p)
{
    const operand<T> a = {static_cast<const T *>(p.a), p.a_stride, p.a_transposed},
                     b = {static_cast<const T *>(p.b), p.b_stride, p.b_transposed};
    start(cuda, name, product_kernel<T, D>, product_blocks(p.m, p.n), THREADS, 0, static_cast<D *>(p.d), p.d_stride, a,
          b, static_cast<const T *>(p.bias), p.m, p.n, p.k, p.adds);
}

/* d[m,n] += bias[m] */
template <class T> struct add_bias {
    static constexpr unsigned width = 1;
    T *d;
    const T *bias;
    size_t m, stride;

    template <unsigned N> __device__ void run(size_t at) const
    {
        T *out = d + at / m * stride + at % m;
        *out = narrow<T>(widen(*out) + widen(bias[at % m]));
    }
};

template <class T> static void multiply(struct cuda *cuda, const char *name, struct cuda_product product)
{
    if (std::is_same_v<T, double> &&
        product.bias) { /* cuBLASLt adds none in fp64, where one rounding more is nothing */
        const add_bias<T> pass = {static_cast<T *>(product.d), static_cast<const T *>(product.bias), product.m,
                                  product.d_stride};
        product.bias = nullptr;
        multiply<T>(cuda, name, product);
        return start_elements(cuda, name, pass, product.m * product.n, pass.d);
    }
    if (cuda_products_run(cuda, &product)) return;
    if (product.wide)
        start_product<T, real<T>>(cuda, name, product);
    else
        start_product<T, T>(cuda, name, product);
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* Rows that are longer than what counts of them: element `at` of the dense [rows,columns] stands elsewhere. */
template <class T, activation A> struct activate_strided {
    static constexpr unsigned width = 1;
    T *y;
    const T *x;
    size_t columns, stride;

    template <unsigned N> __device__ void run(size_t at) const
    {
        const size_t place = at / columns * stride + at % columns;
        y[place] = narrow<T>(activate<A>(widen(x[place])));
    }
};

template <class T>
static void linear_forward(struct kernels *kernels, compute *y, compute *pre, const compute *x, const compute *w,
                           const compute *bias, struct linear_shape shape, enum activation activation)
{
    struct cuda *cuda = cuda_enter(kernels);
    if (shape.rows == 0 || shape.in == 0 || shape.out == 0) return;
    const size_t stride = row_stride(shape);
    const bool transposed = shape.layout == WEIGHT_OUT_IN;
    compute *product = activation != ACTIVATE_NONE && pre ? pre : y;
    struct cuda_product p = {};
    p.m = shape.out, p.n = shape.rows, p.k = shape.in;
    p.a = w, p.a_stride = transposed ? shape.in : shape.out, p.a_transposed = transposed;
    p.b = x, p.b_stride = shape.in;
    p.d = product, p.d_stride = stride;
    p.bias = bias;
    multiply<T>(cuda, "linear_forward", p);
    if (activation == ACTIVATE_NONE) return;
    if (stride == shape.out)
        return kernels->table->activation_forward(kernels, y, product, activation, shape.rows * shape.out);
    with_activation(activation, [&](auto chosen) {
        const activate_strided<T, chosen.value> pass = {static_cast<T *>(y), static_cast<const T *>(product), shape.out,
                                                        stride};
        start_elements(cuda, "linear_forward", pass, shape.rows * shape.out, pass.y);
    });
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* dx = dx·activate'(pre), activated = activate(pre), which may be pre */
template <class T, activation A> struct slope_and_activate {
    static constexpr unsigned width = lanes<T>;
    T *dx, *activated;
    const T *pre;

    template <unsigned N> __device__ void run(size_t at) const
    {
        real<T> gradient[N], x[N];
        load<N>(gradient, dx + at);
        load<N>(x, pre + at);
        for (unsigned i = 0; i < N; i++) {
            gradient[i] *= activation_slope<A>(x[i]);
            x[i] = activate<A>(x[i]);
        }
        store<N>(dx + at, gradient);
        store<N>(activated + at, x);
    }
};

template <class T>
static void linear_backward_input(struct kernels *kernels, compute *dx, compute *activated, const compute *dy,
                                  const compute *w, const compute *pre, struct linear_shape shape,
                                  enum activation activation)
{
    struct cuda *cuda = cuda_enter(kernels);
    if (shape.rows == 0 || shape.in == 0 || shape.out == 0) return;
    const size_t n = shape.rows * shape.in;
    const bool transposed = shape.layout == WEIGHT_IN_OUT;
    struct cuda_product p = {};
    p.m = shape.in, p.n = shape.rows, p.k = shape.out;
    p.a = w, p.a_stride = transposed ? shape.out : shape.in, p.a_transposed = transposed;
    p.b = dy, p.b_stride = row_stride(shape);
    p.d = dx, p.d_stride = shape.in;
    multiply<T>(cuda, "linear_backward_input", p);
    if (activation == ACTIVATE_NONE) return;
    if (!activated) return kernels->table->activation_backward(kernels, dx, dx, pre, activation, n);
    with_activation(activation, [&](auto chosen) {
        const slope_and_activate<T, chosen.value> pass = {static_cast<T *>(dx), static_cast<T *>(activated),
                                                          static_cast<const T *>(pre)};
        start_elements(cuda, "linear_backward_input", pass, n, pass.dx, pass.activated, pass.pre);
    });
}

/* A block adds up N·WARP columns over its rows; those of a warp are every BIAS_WARPS-th. */
constexpr unsigned BIAS_WARPS = THREADS / WARP;
constexpr size_t MOST_BIAS_PARTS = 64;

template <class T, unsigned N>
__global__ void __launch_bounds__(THREADS)
    bias_kernel(real<T> *parts, const T *dy, size_t rows, size_t columns, size_t stride, size_t rows_each)
{
    using W = real<T>;
    SHARED(W, sums, [BIAS_WARPS][WARP * N]);
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const size_t column = (blockIdx.x * static_cast<size_t>(WARP) + lane) * N;
    const size_t begin = blockIdx.y * rows_each, end = begin + rows_each < rows ? begin + rows_each : rows;
    W sum[N] = {};
    if (column < columns) {
#pragma unroll 4
        for (size_t row = begin + warp; row < end; row += BIAS_WARPS) {
            W v[N];
            load<N>(v, dy + row * stride + column);
            for (unsigned i = 0; i < N; i++) sum[i] += v[i];
        }
    }
    for (unsigned i = 0; i < N; i++) sums[warp][lane * N + static_cast<unsigned>(i)] = sum[i];
    __syncthreads();
    for (unsigned c = threadIdx.x; c < WARP * N; c += THREADS) {
        const size_t at = blockIdx.x * static_cast<size_t>(WARP * N) + c;
        if (at >= columns) continue;
        W total = 0;
        for (unsigned w = 0; w < BIAS_WARPS; w++) total += sums[w][c];
        parts[blockIdx.y * columns + at] = total;
    }
}

template <class W>
__global__ void __launch_bounds__(THREADS) bias_parts_kernel(W *dbias, const W *parts, size_t count, size_t columns)
{
    const size_t c = blockIdx.x * static_cast<size_t>(THREADS) + threadIdx.x;
    if (c >= columns) return;
    W sum = 0;
#pragma unroll 8
    for (size_t p = 0; p < count; p++) sum += parts[p * columns + c];
    dbias[c] += sum;
}

/* dbias[out] += the column sums of dy. */
template <class T> static void add_bias_gradient(struct cuda *cuda, wide *dbias, const T *dy, struct linear_shape shape)
{
    using W = real<T>;
    const size_t stride = row_stride(shape), fit = CUDA_SCRATCH_BYTES / (shape.out * sizeof(W));
    const size_t most = fit < MOST_BIAS_PARTS ? fit : MOST_BIAS_PARTS;
    const size_t rows_each = ceiling(ceiling(shape.rows, most), static_cast<size_t>(BIAS_WARPS)) * BIAS_WARPS;
    const size_t parts = ceiling(shape.rows, rows_each);
    W *sums = static_cast<W *>(cuda->scratch);
    const bool whole = shape.out % lanes<T> == 0 && stride % lanes<T> == 0 && aligned(dy);
    const dim3 grid(static_cast<unsigned>(ceiling<size_t>(shape.out, WARP * (whole ? lanes<T> : 1))),
                    static_cast<unsigned>(parts));
    start(cuda, "linear_backward_weight", whole ? bias_kernel<T, lanes<T>> : bias_kernel<T, 1>, grid, THREADS, 0, sums,
          dy, shape.rows, shape.out, stride, rows_each);
    start(cuda, "linear_backward_weight", bias_parts_kernel<W>,
          static_cast<unsigned>(ceiling<size_t>(shape.out, THREADS)), THREADS, 0, static_cast<W *>(dbias), sums, parts,
          shape.out);
}

template <class T>
static void linear_backward_weight(struct kernels *kernels, wide *dw, wide *dbias, const compute *dy, const compute *x,
                                   struct linear_shape shape)
{
    struct cuda *cuda = cuda_enter(kernels);
    if (shape.rows == 0 || shape.in == 0 || shape.out == 0) return;
    const bool dy_first = shape.layout == WEIGHT_IN_OUT; /* column-major: dw is [out,in] then, else [in,out] */
    const size_t stride = row_stride(shape);
    struct cuda_product p = {};
    p.m = dy_first ? shape.out : shape.in, p.n = dy_first ? shape.in : shape.out, p.k = shape.rows;
    p.a = dy_first ? dy : x, p.a_stride = dy_first ? stride : shape.in;
    p.b = dy_first ? x : dy, p.b_stride = dy_first ? shape.in : stride, p.b_transposed = true;
    p.d = dw, p.d_stride = p.m;
    p.wide = p.adds = true;
    if (dw) multiply<T>(cuda, "linear_backward_weight", p);
    if (dbias) add_bias_gradient(cuda, dbias, static_cast<const T *>(dy), shape);
}

template <class T> void fill_linear(struct cuda *cuda)
{
    cuda->table.linear_forward = linear_forward<T>;
    cuda->table.linear_backward_input = linear_backward_input<T>;
    cuda->table.linear_backward_weight = linear_backward_weight<T>;
}
FOR_EVERY_TYPE(fill_linear);

} // namespace gpu
