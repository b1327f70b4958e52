/*
 * LayerNorm (Ba, Kiros and Hinton 2016) with the residual sum in the same pass. The variance is taken about the mean,
 * in a pass of its own: Σx² − mean² would lose what a large mean leaves of it.
 */
#include "kernels/cuda/instance.h"

namespace gpu
{

constexpr unsigned ROW_WARPS = 4;             /* rows of a block of the forward, one to a warp */
constexpr unsigned COLUMN_THREADS = 128;      /* of a block of the backward, which takes rows together */
constexpr unsigned ABREAST = 4;               /* so many at a time */
constexpr size_t SHARED_ROW_BYTES = 48 << 10; /* what a block may have without asking */
constexpr size_t MOST_PARTS = 512;            /* of the sums for dweight and dbias */

/* --- forward ------------------------------------------------------------------------------------------------------ */

template <class T> struct norm_forward {
    T *y, *sum;
    real<T> *mean, *rstd;
    const T *x, *residual, *weight, *bias;
    size_t rows, width;
    bool staged; /* a row fits into shared memory */
};

/* A warp to a row, N columns to a lane at a time. The row is kept in shared memory, where it fits. */
template <class T, unsigned N> __global__ void __launch_bounds__(ROW_WARPS *WARP) norm_forward_kernel(norm_forward<T> f)
{
    using W = real<T>;
    SHARED_DYNAMIC(T, staged_rows);
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const size_t row = blockIdx.x * static_cast<size_t>(ROW_WARPS) + warp, begin = row * f.width;
    if (row >= f.rows) return;
    T *stage = staged_rows + warp * f.width;
    const T *v = f.staged ? stage : (f.residual ? f.sum : f.x) + begin;
    const W inverse_width = 1 / static_cast<W>(f.width);
    W part = 0;
    for (size_t c = lane * N; c < f.width; c += WARP * N) {
        W a[N];
        load<N>(a, f.x + begin + c);
        if (f.residual) {
            W b[N];
            load<N>(b, f.residual + begin + c);
            for (unsigned i = 0; i < N; i++) a[i] = widen(narrow<T>(a[i] + b[i]));
            store<N>(f.sum + begin + c, a);
        }
        if (f.staged) store<N>(stage + c, a);
        for (unsigned i = 0; i < N; i++) part += a[i];
    }
    const W mean = warp_sum(part) * inverse_width;
    part = 0;
    for (size_t c = lane * N; c < f.width; c += WARP * N) {
        W a[N];
        load<N>(a, v + c);
        for (unsigned i = 0; i < N; i++) part += (a[i] - mean) * (a[i] - mean);
    }
    const W rstd = 1 / square_root(warp_sum(part) * inverse_width + static_cast<W>(1e-5));
    for (size_t c = lane * N; c < f.width; c += WARP * N) {
        W a[N], weight[N], bias[N];
        load<N>(a, v + c);
        load<N>(weight, f.weight + c);
        if (f.bias) load<N>(bias, f.bias + c);
        for (unsigned i = 0; i < N; i++) a[i] = (a[i] - mean) * rstd * weight[i] + (f.bias ? bias[i] : 0);
        store<N>(f.y + begin + c, a);
    }
    if (lane == 0) {
        f.mean[row] = mean;
        f.rstd[row] = rstd;
    }
}

template <class T>
static void layernorm_forward(struct kernels *kernels, compute *y, compute *sum, wide *mean, wide *rstd,
                              const compute *x, const compute *residual, const compute *weight, const compute *bias,
                              size_t rows, size_t width)
{
    struct cuda *cuda = cuda_enter(kernels);
    if (rows == 0 || width == 0) return;
    const size_t bytes = ROW_WARPS * width * sizeof(T);
    const norm_forward<T> f = {static_cast<T *>(y),
                               static_cast<T *>(sum),
                               static_cast<real<T> *>(mean),
                               static_cast<real<T> *>(rstd),
                               static_cast<const T *>(x),
                               static_cast<const T *>(residual),
                               static_cast<const T *>(weight),
                               static_cast<const T *>(bias),
                               rows,
                               width,
                               bytes <= SHARED_ROW_BYTES};
    const bool whole = width % lanes<T> == 0 && aligned(y) && aligned(sum) && aligned(x) && aligned(residual) &&
                       aligned(weight) && aligned(bias);
    start(cuda, "layernorm_forward", whole ? norm_forward_kernel<T, lanes<T>> : norm_forward_kernel<T, 1>,
          static_cast<unsigned>(ceiling<size_t>(rows, ROW_WARPS)), ROW_WARPS * WARP, f.staged ? bytes : 0, f);
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

template <class T> struct norm_backward {
    T *dx;
    const T *dresidual, *dy, *x;
    const real<T> *mean, *rstd;
    const T *weight;
    real<T> *parts; /* [parts][2][width]: what each block adds to dweight and dbias */
    size_t rows, width, rows_each;
    bool staged; /* such a sum fits into shared memory */
};

/* n = (x − mean)·rstd and dy of ABREAST rows in N columns; rows that are not there count as dy = 0. */
template <class T, unsigned N> struct columns_abreast {
    real<T> dy[ABREAST][N], n[ABREAST][N];

    __device__ columns_abreast(const norm_backward<T> &b, const real<T> (&mean)[ABREAST],
                               const real<T> (&rstd)[ABREAST], size_t row, unsigned rows, size_t column)
    {
#pragma unroll
        for (unsigned r = 0; r < ABREAST; r++) {
            if (r >= rows) {
                for (unsigned i = 0; i < N; i++) dy[r][i] = n[r][i] = 0;
                continue;
            }
            load<N>(dy[r], b.dy + (row + r) * b.width + column);
            load<N>(n[r], b.x + (row + r) * b.width + column);
            for (unsigned i = 0; i < N; i++) n[r][i] = (n[r][i] - mean[r]) * rstd[r];
        }
    }
};

/* With g = dy·weight: dx = rstd·(g − mean(g) − n·mean(g·n)), + dresidual; sums[0] += Σ dy·n, sums[1] += Σ dy over the
 * rows. A thread owns its columns of the sums. */
template <class T, unsigned N>
__device__ void rows_abreast(const norm_backward<T> &b, real<T> *sums, real<T> *part, size_t row, unsigned rows)
{
    using W = real<T>;
    W mean[ABREAST], rstd[ABREAST], mean_g[ABREAST], mean_gn[ABREAST];
#pragma unroll
    for (unsigned r = 0; r < ABREAST; r++) {
        mean[r] = r < rows ? b.mean[row + r] : 0;
        rstd[r] = r < rows ? b.rstd[row + r] : 0;
        mean_g[r] = mean_gn[r] = 0;
    }
    for (size_t c = threadIdx.x * N; c < b.width; c += COLUMN_THREADS * N) {
        const columns_abreast<T, N> v(b, mean, rstd, row, rows, c);
        W weight[N];
        load<N>(weight, b.weight + c);
#pragma unroll
        for (unsigned r = 0; r < ABREAST; r++) {
            for (unsigned i = 0; i < N; i++) {
                mean_g[r] += v.dy[r][i] * weight[i];
                mean_gn[r] += v.dy[r][i] * weight[i] * v.n[r][i];
            }
        }
    }
    const W inverse_width = 1 / static_cast<W>(b.width);
#pragma unroll
    for (unsigned r = 0; r < ABREAST; r++) {
        mean_g[r] = block_sum(mean_g[r], part) * inverse_width;
        mean_gn[r] = block_sum(mean_gn[r], part) * inverse_width;
    }
    for (size_t c = threadIdx.x * N; c < b.width; c += COLUMN_THREADS * N) {
        const columns_abreast<T, N> v(b, mean, rstd, row, rows, c);
        W weight[N], sum_dyn[N], sum_dy[N];
        load<N>(weight, b.weight + c);
        load<N>(sum_dyn, sums + c);
        load<N>(sum_dy, sums + b.width + c);
#pragma unroll
        for (unsigned r = 0; r < ABREAST; r++) {
            if (r >= rows) break;
            const size_t at = (row + r) * b.width + c;
            W dx[N];
            if (b.dresidual) load<N>(dx, b.dresidual + at);
            for (unsigned i = 0; i < N; i++) {
                const W own = rstd[r] * (v.dy[r][i] * weight[i] - mean_g[r] - v.n[r][i] * mean_gn[r]);
                dx[i] = b.dresidual ? dx[i] + own : own;
                sum_dyn[i] += v.dy[r][i] * v.n[r][i];
                sum_dy[i] += v.dy[r][i];
            }
            store<N>(b.dx + at, dx);
        }
        store<N>(sums + c, sum_dyn);
        store<N>(sums + b.width + c, sum_dy);
    }
}

template <class T, unsigned N>
__global__ void __launch_bounds__(COLUMN_THREADS) norm_backward_kernel(norm_backward<T> b)
{
    using W = real<T>;
    SHARED_DYNAMIC(W, staged_sums);
    SHARED(W, part, [WARP]);
    W *own = b.parts + blockIdx.x * 2 * b.width, *sums = b.staged ? staged_sums : own;
    for (size_t c = threadIdx.x * N; c < b.width; c += COLUMN_THREADS * N)
        for (unsigned i = 0; i < N; i++) sums[c + i] = sums[b.width + c + i] = 0;
    const size_t begin = blockIdx.x * b.rows_each, end = begin + b.rows_each < b.rows ? begin + b.rows_each : b.rows;
    for (size_t row = begin; row < end; row += ABREAST)
        rows_abreast<T, N>(b, sums, part, row, end - row < ABREAST ? static_cast<unsigned>(end - row) : ABREAST);
    if (!b.staged) return;
    for (size_t c = threadIdx.x * N; c < b.width; c += COLUMN_THREADS * N)
        for (unsigned i = 0; i < N; i++) own[c + i] = sums[c + i], own[b.width + c + i] = sums[b.width + c + i];
}

/* dweight and dbias += the blocks' sums, in their order. */
template <class W>
__global__ void __launch_bounds__(THREADS)
    norm_parts_kernel(W *dweight, W *dbias, const W *parts, size_t count, size_t width)
{
    const size_t c = blockIdx.x * static_cast<size_t>(THREADS) + threadIdx.x;
    if (c >= width) return;
    W weight = 0, bias = 0;
#pragma unroll 8
    for (size_t p = 0; p < count; p++) {
        weight += parts[p * 2 * width + c];
        bias += parts[(p * 2 + 1) * width + c];
    }
    if (dweight) dweight[c] += weight;
    if (dbias) dbias[c] += bias;
}

template <class T>
static void layernorm_backward(struct kernels *kernels, compute *dx, const compute *dresidual, wide *dweight,
                               wide *dbias, const compute *dy, const compute *x, const wide *mean, const wide *rstd,
                               const compute *weight, size_t rows, size_t width)
{
    using W = real<T>;
    struct cuda *cuda = cuda_enter(kernels);
    if (rows == 0 || width == 0) return;
    const size_t sums_bytes = 2 * width * sizeof(W), fit = CUDA_SCRATCH_BYTES / sums_bytes;
    const size_t most = fit < MOST_PARTS ? fit : MOST_PARTS;
    const size_t rows_each = ceiling(ceiling(rows, most), static_cast<size_t>(ABREAST)) * ABREAST;
    const size_t parts = ceiling(rows, rows_each);
    const norm_backward<T> b = {static_cast<T *>(dx),
                                static_cast<const T *>(dresidual),
                                static_cast<const T *>(dy),
                                static_cast<const T *>(x),
                                static_cast<const W *>(mean),
                                static_cast<const W *>(rstd),
                                static_cast<const T *>(weight),
                                static_cast<W *>(cuda->scratch),
                                rows,
                                width,
                                rows_each,
                                sums_bytes <= SHARED_ROW_BYTES - WARP * sizeof(W)};
    const bool whole =
        width % lanes<T> == 0 && aligned(dx) && aligned(dresidual) && aligned(dy) && aligned(x) && aligned(weight);
    start(cuda, "layernorm_backward", whole ? norm_backward_kernel<T, lanes<T>> : norm_backward_kernel<T, 1>,
          static_cast<unsigned>(parts), COLUMN_THREADS, b.staged ? sums_bytes : 0, b);
    if (!dweight && !dbias) return;
    start(cuda, "layernorm_backward", norm_parts_kernel<W>, static_cast<unsigned>(ceiling<size_t>(width, THREADS)),
          THREADS, 0, static_cast<W *>(dweight), static_cast<W *>(dbias), static_cast<const W *>(cuda->scratch), parts,
          width);
}

template <class T> void fill_norm(struct cuda *cuda)
{
    cuda->table.layernorm_forward = layernorm_forward<T>;
    cuda->table.layernorm_backward = layernorm_backward<T>;
}
FOR_EVERY_TYPE(fill_norm);

} // namespace gpu
