/*
 * Sums, activations, dropout, conversions: one pass over memory each. Work is cut into 16-byte accesses, with single
 * elements before and after where a run does not begin or end at one.
 */
#include "kernels/cuda/activation.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/random.h"

namespace gpu
{

template <class T> struct add_elements {
    static constexpr unsigned width = lanes<T>;
    T *out;
    const T *a, *b; /* a null: nothing is added to */
    real<T> factor;

    template <unsigned N> __device__ void run(size_t at) const
    {
        real<T> left[N] = {}, right[N];
        if (a) load<N>(left, a + at);
        load<N>(right, b + at);
        for (unsigned i = 0; i < N; i++) left[i] += factor * right[i];
        store<N>(out + at, left);
    }
};

template <class T>
static void add(struct kernels *kernels, compute *out, const compute *a, double factor, const compute *b, size_t n)
{
    const add_elements<T> pass = {static_cast<T *>(out), static_cast<const T *>(a), static_cast<const T *>(b),
                                  static_cast<real<T>>(factor)};
    if (pass.a)
        start_elements(cuda_enter(kernels), "add", pass, n, pass.out, pass.a, pass.b);
    else
        start_elements(cuda_enter(kernels), "add", pass, n, pass.out, pass.b);
}

/* --- activations -------------------------------------------------------------------------------------------------- */

template <class T, activation A> struct activate_elements {
    static constexpr unsigned width = lanes<T>;
    T *y;
    const T *x;

    template <unsigned N> __device__ void run(size_t at) const
    {
        real<T> v[N];
        load<N>(v, x + at);
        for (unsigned i = 0; i < N; i++) v[i] = activate<A>(v[i]);
        store<N>(y + at, v);
    }
};

template <class T, activation A> struct slope_elements {
    static constexpr unsigned width = lanes<T>;
    T *dx;
    const T *dy, *x;

    template <unsigned N> __device__ void run(size_t at) const
    {
        real<T> gradient[N], v[N];
        load<N>(gradient, dy + at);
        load<N>(v, x + at);
        for (unsigned i = 0; i < N; i++) gradient[i] *= activation_slope<A>(v[i]);
        store<N>(dx + at, gradient);
    }
};

template <class T>
static void activation_forward(struct kernels *kernels, compute *y, const compute *x, enum activation activation,
                               size_t n)
{
    if (activation == ACTIVATE_NONE) return kernels->table->copy(kernels, y, x, n * sizeof(T));
    with_activation(activation, [&](auto chosen) {
        const activate_elements<T, chosen.value> pass = {static_cast<T *>(y), static_cast<const T *>(x)};
        start_elements(cuda_enter(kernels), "activation_forward", pass, n, pass.y, pass.x);
    });
}

template <class T>
static void activation_backward(struct kernels *kernels, compute *dx, const compute *dy, const compute *x,
                                enum activation activation, size_t n)
{
    if (activation == ACTIVATE_NONE) return kernels->table->copy(kernels, dx, dy, n * sizeof(T));
    with_activation(activation, [&](auto chosen) {
        const slope_elements<T, chosen.value> pass = {static_cast<T *>(dx), static_cast<const T *>(dy),
                                                      static_cast<const T *>(x)};
        start_elements(cuda_enter(kernels), "activation_backward", pass, n, pass.dx, pass.dy, pass.x);
    });
}

/* --- dropout ------------------------------------------------------------------------------------------------------ */

constexpr unsigned DRAWN = 8; /* elements of a thread's turn: two draws */

/* x [batch,elements]; turns do not cross from one sequence to the next. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    drop_kernel(T *out, const T *x, drawing<real<T>> drawing, size_t batch, size_t elements, bool whole)
{
    const size_t turns = ceiling<size_t>(elements, DRAWN), step = static_cast<size_t>(gridDim.x) * THREADS;
    for (size_t turn = blockIdx.x * static_cast<size_t>(THREADS) + threadIdx.x; turn < batch * turns; turn += step) {
        const size_t b = turn / turns, first = turn % turns * DRAWN, at = b * elements + first;
        real<T> factor[DRAWN], v[DRAWN];
        const stream_of_bits bits(drawing, b);
        for (unsigned i = 0; i < DRAWN; i += 4) bits.factors(factor + i, (first + i) / 4);
        if (whole) {
            load<DRAWN>(v, x + at);
            for (unsigned i = 0; i < DRAWN; i++) v[i] = factor[i] == 0 ? 0 : v[i] * factor[i];
            store<DRAWN>(out + at, v);
        } else {
            for (unsigned i = 0; i < DRAWN; i++)
                if (first + i < elements) out[at + i] = narrow<T>(factor[i] == 0 ? 0 : widen(x[at + i]) * factor[i]);
        }
    }
}

template <class T>
static void drop(struct kernels *kernels, compute *out, const compute *x, const struct dropout *dropout, size_t batch,
                 size_t elements)
{
    struct cuda *cuda = cuda_enter(kernels);
    if (batch == 0 || elements == 0) return;
    if (!(dropout->p > 0)) return kernels->table->copy(kernels, out, x, batch * elements * sizeof(T));
    const bool whole = elements % DRAWN == 0 && aligned(out) && aligned(x);
    const size_t turns = batch * ceiling<size_t>(elements, DRAWN);
    start(cuda, "dropout", drop_kernel<T>, blocks_for(cuda, turns, THREADS), THREADS, 0, static_cast<T *>(out),
          static_cast<const T *>(x), drawing<real<T>>(dropout), batch, elements, whole);
}

/* --- conversions -------------------------------------------------------------------------------------------------- */

template <class T> struct cast_elements {
    static constexpr unsigned width = lanes<T>;
    T *out;
    const real<T> *in;

    template <unsigned N> __device__ void run(size_t at) const
    {
        real<T> v[N];
        load<N>(v, in + at);
        store<N>(out + at, v);
    }
};

template <class T> static void cast(struct kernels *kernels, compute *out, const wide *in, size_t n)
{
    if (std::is_same_v<T, real<T>>) return kernels->table->copy(kernels, out, in, n * sizeof(T));
    const cast_elements<T> pass = {static_cast<T *>(out), static_cast<const real<T> *>(in)};
    start_elements(cuda_enter(kernels), "cast", pass, n, pass.out, pass.in);
}

template <class T> struct accumulate_elements {
    static constexpr unsigned width = lanes<T>;
    real<T> *into;
    const T *addend;

    template <unsigned N> __device__ void run(size_t at) const
    {
        real<T> sum[N], v[N];
        load<N>(sum, into + at);
        load<N>(v, addend + at);
        for (unsigned i = 0; i < N; i++) sum[i] += v[i];
        store<N>(into + at, sum);
    }
};

template <class T> static void accumulate(struct kernels *kernels, wide *into, const compute *addend, size_t n)
{
    const accumulate_elements<T> pass = {static_cast<real<T> *>(into), static_cast<const T *>(addend)};
    start_elements(cuda_enter(kernels), "accumulate", pass, n, pass.into, pass.addend);
}

/* From double by one rounding. Two roundings to nearest would not do: the first may make the tie that the second breaks
 * the wrong way. Rounding to odd the first time keeps what the second needs to know (Boldo and Melquiond 2008,
 * "Emulation of FMA and correctly rounded sums"). */
template <class T> __device__ T narrow_double(double x)
{
    if constexpr (std::is_same_v<T, double>) {
        return x;
    } else {
        float nearest = static_cast<float>(x);
        if constexpr (!std::is_same_v<T, float>) {
            if (nearest - nearest == 0 && static_cast<double>(nearest) != x) { /* finite and not exact */
                uint32_t bits;
                memcpy(&bits, &nearest, sizeof bits);
                if (fabs(static_cast<double>(nearest)) > fabs(x)) bits--; /* sign and magnitude order alike */
                bits |= 1;
                memcpy(&nearest, &bits, sizeof nearest);
            }
        }
        return narrow<T>(nearest);
    }
}

template <class T> struct cast_row_elements {
    static constexpr unsigned width = 1;
    T *out;
    const double *x, *weight;
    size_t columns;

    template <unsigned N> __device__ void run(size_t at) const
    {
        out[at] = narrow_double<T>(weight[at / columns] == 0 ? 0 : x[at]);
    }
};

template <class T>
static void cast_rows(struct kernels *kernels, compute *out, const double *x, const double *weight, size_t rows,
                      size_t columns)
{
    const cast_row_elements<T> pass = {static_cast<T *>(out), x, weight, columns};
    start_elements(cuda_enter(kernels), "cast_rows", pass, rows * columns, pass.out);
}

template <class T> void fill_elementwise(struct cuda *cuda)
{
    cuda->table.add = add<T>;
    cuda->table.activation_forward = activation_forward<T>;
    cuda->table.activation_backward = activation_backward<T>;
    cuda->table.dropout = drop<T>;
    cuda->table.cast = cast<T>;
    cuda->table.cast_rows = cast_rows<T>;
    cuda->table.accumulate = accumulate<T>;
}
FOR_EVERY_TYPE(fill_elementwise);

} // namespace gpu
