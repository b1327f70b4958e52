/*
 * BatchNorm (Ioffe and Szegedy 2015), cut where statistics are known: what the rows at hand add to the statistics of
 * their set, and what is done once those are known.
 */
#include "kernels/cuda/channels.h"
#include "kernels/cuda/moments.h"

namespace gpu
{

static bool is_empty(const struct norm_shape &shape)
{
    return shape.rows == 0 || shape.positions == 0 || shape.channels == 0;
}

template <class T, class... P> static bool is_whole(const struct norm_shape &shape, const P *...arrays)
{
    return shape.channels % lanes<T> == 0 && (aligned(arrays) && ...);
}

/* --- sums ----------------------------------------------------------------------------------------------------------
 */

/* Mean and Σ (x − mean)², those of the items that are read together about their own mean. */
template <class T> struct moments_terms {
    const T *x;
    const double *row_weight;
    double *moments; /* [2][channels] */
    size_t channels;

    template <unsigned N> struct item {
        real<T> x[N];
    };
    template <unsigned N> struct lane {
        const T *x;
        __device__ lane(const moments_terms &terms, size_t) : x(terms.x)
        {
        }
        __device__ void read(item<N> &to, size_t at, size_t) const
        {
            load<N>(to.x, x + at);
        }
    };

    template <unsigned N>
    static __device__ void add(channel_pair<N> &sum, const item<N> (&items)[items_abreast<N>],
                               const bool (&there)[items_abreast<N>])
    {
        unsigned count = 0;
#pragma unroll
        for (unsigned u = 0; u < items_abreast<N>; u++) count += there[u];
        if (count == 0) return;
        const double n = count, inverse = count == items_abreast<N> ? 1.0 / items_abreast<N> : 1 / n;
        const moments_share share(sum.count, n);
        for (unsigned i = 0; i < N; i++) {
            double mean = 0, squares = 0;
#pragma unroll
            for (unsigned u = 0; u < items_abreast<N>; u++)
                if (there[u]) mean += static_cast<double>(items[u].x[i]);
            mean *= inverse;
#pragma unroll
            for (unsigned u = 0; u < items_abreast<N>; u++) {
                const double apart = there[u] ? static_cast<double>(items[u].x[i]) - mean : 0;
                squares += apart * apart;
            }
            share.join(sum.first[i], sum.second[i], mean, squares);
        }
        sum.count += n;
    }
    template <unsigned N> static __device__ void join(channel_pair<N> &into, const channel_pair<N> &other)
    {
        if (other.count == 0) return;
        const moments_share share(into.count, other.count);
        for (unsigned i = 0; i < N; i++) share.join(into.first[i], into.second[i], other.first[i], other.second[i]);
        into.count += other.count;
    }
    __device__ void finish(size_t channel, double mean, double squares) const
    {
        moments[channel] = mean;
        moments[channels + channel] = squares;
    }
};

template <class T>
static void batchnorm_moments(struct kernels *kernels, double *moments, const compute *x, const double *row_weight,
                              struct norm_shape shape)
{
    struct cuda *cuda = cuda_enter(kernels);
    if (is_empty(shape)) {
        cuda_note(cuda, cudaMemsetAsync(moments, 0, 2 * shape.channels * sizeof *moments, cuda->stream),
                  "batchnorm_moments");
        return;
    }
    const moments_terms<T> terms = {static_cast<const T *>(x), row_weight, moments, shape.channels};
    channel_sums<T>(cuda, "batchnorm_moments", terms, shape, is_whole<T>(shape, x));
}

/* A thread to a channel. */
template <class W>
__global__ void __launch_bounds__(THREADS)
    settle_kernel(W *mean, W *rstd, double *all, double before, const double *moments, double count, size_t channels)
{
    const size_t c = blockIdx.x * static_cast<size_t>(THREADS) + threadIdx.x;
    if (c >= channels) return;
    const double set_mean = moments[c], squares = moments[channels + c];
    mean[c] = static_cast<W>(set_mean);
    rstd[c] = static_cast<W>(1 / square_root(squares / count + NORM_EPS));
    if (count > 0) moments_share(before, count).join(all[c], all[channels + c], set_mean, squares);
}

template <class T>
static void batchnorm_settle(struct kernels *kernels, wide *mean, wide *rstd, double *all, double before,
                             const double *moments, double count, size_t channels)
{
    using W = real<T>;
    struct cuda *cuda = cuda_enter(kernels);
    if (channels == 0) return;
    start(cuda, "batchnorm_settle", settle_kernel<W>, static_cast<unsigned>(ceiling<size_t>(channels, THREADS)),
          THREADS, 0, static_cast<W *>(mean), static_cast<W *>(rstd), all, before, moments, count, channels);
}

template <class T> struct batch_sums : gradient_sums<T> {
    using W = real<T>;
    template <unsigned N> using item = typename gradient_sums<T>::template item<N>;

    const T *dy, *x;
    const W *mean, *rstd;
    const double *row_weight;
    double *sums; /* [2][channels] */
    W *dweight, *dbias;
    size_t channels;

    template <unsigned N> struct lane {
        const T *dy, *x;
        W mean[N], rstd[N];
        __device__ lane(const batch_sums &terms, size_t channel) : dy(terms.dy), x(terms.x)
        {
            for (unsigned i = 0; i < N; i++) mean[i] = terms.mean[channel + i], rstd[i] = terms.rstd[channel + i];
        }
        __device__ void read(item<N> &to, size_t at, size_t) const
        {
            load<N>(to.dy, dy + at);
            load<N>(to.dyn, x + at);
            for (unsigned i = 0; i < N; i++) to.dyn[i] = to.dy[i] * ((to.dyn[i] - mean[i]) * rstd[i]);
        }
    };

    __device__ void finish(size_t channel, double sum_dy, double sum_dyn) const
    {
        sums[channel] = sum_dy;
        sums[channels + channel] = sum_dyn;
        if (dbias) dbias[channel] += static_cast<W>(sum_dy);
        if (dweight) dweight[channel] += static_cast<W>(sum_dyn);
    }
};

template <class T>
static void batchnorm_sums(struct kernels *kernels, double *sums, wide *dweight, wide *dbias, const compute *dy,
                           const compute *x, const wide *mean, const wide *rstd, const double *row_weight,
                           struct norm_shape shape)
{
    using W = real<T>;
    struct cuda *cuda = cuda_enter(kernels);
    if (is_empty(shape)) {
        cuda_note(cuda, cudaMemsetAsync(sums, 0, 2 * shape.channels * sizeof *sums, cuda->stream), "batchnorm_sums");
        return;
    }
    batch_sums<T> terms;
    terms.dy = static_cast<const T *>(dy);
    terms.x = static_cast<const T *>(x);
    terms.mean = static_cast<const W *>(mean);
    terms.rstd = static_cast<const W *>(rstd);
    terms.row_weight = row_weight;
    terms.sums = sums;
    terms.dweight = static_cast<W *>(dweight);
    terms.dbias = static_cast<W *>(dbias);
    terms.channels = shape.channels;
    channel_sums<T>(cuda, "batchnorm_sums", terms, shape, is_whole<T>(shape, dy, x));
}

/* --- what is done with them --------------------------------------------------------------------------------------- */

template <class T> struct batch_forward {
    using W = real<T>;
    T *y;
    const T *x;
    const W *mean, *rstd;
    const T *weight, *bias;

    template <unsigned N> struct lane {
        T *y;
        const T *x;
        W mean[N], rstd[N], weight[N], bias[N];
        __device__ lane(const batch_forward &f, size_t channel) : y(f.y), x(f.x)
        {
            load<N>(weight, f.weight + channel);
            if (f.bias) load<N>(bias, f.bias + channel);
            for (unsigned i = 0; i < N; i++) {
                mean[i] = f.mean[channel + i];
                rstd[i] = f.rstd[channel + i];
                if (!f.bias) bias[i] = 0;
            }
        }
        __device__ void run(size_t at, size_t) const
        {
            W v[N];
            load<N>(v, x + at);
            for (unsigned i = 0; i < N; i++) v[i] = (v[i] - mean[i]) * rstd[i] * weight[i] + bias[i];
            store<N>(y + at, v);
        }
    };
};

template <class T>
static void batchnorm_forward(struct kernels *kernels, compute *y, const compute *x, const wide *mean, const wide *rstd,
                              const compute *weight, const compute *bias, struct norm_shape shape)
{
    using W = real<T>;
    struct cuda *cuda = cuda_enter(kernels);
    if (is_empty(shape)) return;
    const batch_forward<T> f = {
        static_cast<T *>(y),          static_cast<const T *>(x),      static_cast<const W *>(mean),
        static_cast<const W *>(rstd), static_cast<const T *>(weight), static_cast<const T *>(bias)};
    channel_items<T>(cuda, "batchnorm_forward", f, shape, is_whole<T>(shape, y, x, weight, bias));
}

/* dx = rstd·w·(dy − mean(dy) − n·mean(dy·n)), the means being those of the whole set. */
template <class T> struct batch_backward {
    using W = real<T>;
    T *dx;
    const T *dy, *x;
    const W *mean, *rstd;
    const T *weight;
    const double *sums; /* [2][channels], or NULL */
    double count;
    const double *row_weight;
    size_t channels;

    template <unsigned N> struct lane {
        const batch_backward &pass;
        W mean[N], rstd[N], weight[N], mean_dy[N], mean_dyn[N];
        __device__ lane(const batch_backward &b, size_t channel) : pass(b)
        {
            load<N>(weight, b.weight + channel);
            for (unsigned i = 0; i < N; i++) {
                const double *sum = b.sums ? b.sums + channel + i : nullptr;
                mean[i] = b.mean[channel + i];
                rstd[i] = b.rstd[channel + i];
                mean_dy[i] = sum ? static_cast<W>(sum[0] / b.count) : 0;
                mean_dyn[i] = sum ? static_cast<W>(sum[b.channels] / b.count) : 0;
            }
        }
        __device__ void run(size_t at, size_t row) const
        {
            W d[N], v[N];
            if (pass.row_weight && pass.row_weight[row] == 0) {
                for (unsigned i = 0; i < N; i++) d[i] = 0;
            } else {
                load<N>(d, pass.dy + at);
                load<N>(v, pass.x + at);
                for (unsigned i = 0; i < N; i++)
                    d[i] = rstd[i] * weight[i] * (d[i] - mean_dy[i] - (v[i] - mean[i]) * rstd[i] * mean_dyn[i]);
            }
            store<N>(pass.dx + at, d);
        }
    };
};

template <class T>
static void batchnorm_backward(struct kernels *kernels, compute *dx, const compute *dy, const compute *x,
                               const wide *mean, const wide *rstd, const compute *weight, const double *sums,
                               double count, const double *row_weight, struct norm_shape shape)
{
    using W = real<T>;
    struct cuda *cuda = cuda_enter(kernels);
    if (is_empty(shape)) return;
    const batch_backward<T> b = {static_cast<T *>(dx),
                                 static_cast<const T *>(dy),
                                 static_cast<const T *>(x),
                                 static_cast<const W *>(mean),
                                 static_cast<const W *>(rstd),
                                 static_cast<const T *>(weight),
                                 sums,
                                 count,
                                 row_weight,
                                 shape.channels};
    channel_items<T>(cuda, "batchnorm_backward", b, shape, is_whole<T>(shape, dx, dy, x, weight));
}

template <class T> void fill_batch_norm(struct cuda *cuda)
{
    cuda->table.batchnorm_moments = batchnorm_moments<T>;
    cuda->table.batchnorm_settle = batchnorm_settle<T>;
    cuda->table.batchnorm_forward = batchnorm_forward<T>;
    cuda->table.batchnorm_sums = batchnorm_sums<T>;
    cuda->table.batchnorm_backward = batchnorm_backward<T>;
}
FOR_EVERY_TYPE(fill_batch_norm);

} // namespace gpu
