/*
 * [rows, positions, channels] channel by channel: what is summed over the items (a row's position each), and what is
 * done to every element by numbers of its channel. A thread has N channels side by side and every so-manieth item, so
 * that a warp reads what lies together.
 *
 * Sums are in double and in an order that shapes alone decide: of a thread's items, of a block's threads, and of the
 * blocks, each of which has a run of items, by a second kernel. Rows of weight 0 are not read.
 */
#ifndef GACC_KERNELS_CUDA_CHANNELS_H
#define GACC_KERNELS_CUDA_CHANNELS_H

#include "kernels/cuda/instance.h"

namespace gpu
{

template <unsigned N> constexpr unsigned items_abreast = N < 8 ? 4 : 2; /* that a thread reads before it adds them up */
constexpr unsigned ACROSS = WARP;                                       /* threads side by side, at most */
constexpr size_t SUM_BLOCKS = 1024;                                     /* as many as keep a large device busy */
constexpr unsigned PARTS_DOWN = 8, PARTS_ACROSS = WARP;                 /* of the second kernel */

struct channel_layout {
    size_t positions, channels, items;
    unsigned across, down; /* threads of a block: side by side, and one below the other */
    size_t tiles;          /* blocks side by side */
    size_t items_each;     /* of a block that sums */
};

inline channel_layout channel_layout_of(const struct norm_shape &shape, unsigned columns)
{
    const size_t pieces = ceiling<size_t>(shape.channels, columns);
    const unsigned across = static_cast<unsigned>(pieces < ACROSS ? pieces : ACROSS);
    return {shape.positions, shape.channels,   shape.rows * shape.positions,
            across,          THREADS / across, ceiling<size_t>(pieces, across),
            size_t(0)};
}

/* The row of one item after the other, `step` items apart. */
struct row_walk {
    size_t positions, rows_step, positions_step, row, position;

    __device__ row_walk(size_t of_row, size_t item, size_t step)
        : positions(of_row), rows_step(step / of_row), positions_step(step % of_row), row(item / of_row),
          position(item % of_row)
    {
    }
    __device__ void next()
    {
        row += rows_step;
        position += positions_step;
        if (position < positions) return;
        position -= positions;
        row++;
    }
};

/* --- sums ---------------------------------------------------------------------------------------------------------
 *
 * Terms says of what: its `lane<N>` is what a thread keeps of its channels, reads an item with, and adds items up by;
 * `join` adds one thread's or block's sums to another's; `finish` takes what has come together of a channel. */

/* Two sums of each of N channels, over `count` items. */
template <unsigned N> struct channel_pair {
    double count = 0, first[N] = {}, second[N] = {};
};

/* [parts][2][channels], then [parts] counts. */
struct channel_parts {
    double *memory;
    size_t parts, channels;

    __device__ double *first(size_t part, size_t channel) const
    {
        return memory + part * 2 * channels + channel;
    }
    __device__ double *second(size_t part, size_t channel) const
    {
        return first(part, channel) + channels;
    }
    __device__ double *count(size_t part) const
    {
        return memory + parts * 2 * channels + part;
    }
};

template <class Terms, unsigned N>
__device__ channel_pair<N> items_sum(const Terms &terms, const channel_layout &l, size_t part, size_t channel,
                                     unsigned y)
{
    channel_pair<N> sum;
    const typename Terms::template lane<N> lane(terms, channel);
    const size_t begin = part * l.items_each, end = begin + l.items_each < l.items ? begin + l.items_each : l.items;
    if (begin + y >= end) return sum;
    row_walk walk(l.positions, begin + y, l.down);
    for (size_t item = begin + y; item < end; item += static_cast<size_t>(l.down) * items_abreast<N>) {
        typename Terms::template item<N> items[items_abreast<N>];
        bool there[items_abreast<N>];
#pragma unroll
        for (unsigned u = 0; u < items_abreast<N>; u++) {
            const size_t at = item + static_cast<size_t>(u) * l.down;
            there[u] = at < end && (!terms.row_weight || terms.row_weight[walk.row] != 0);
            if (there[u]) lane.read(items[u], at * l.channels + channel, walk.row);
            walk.next();
        }
        Terms::add(sum, items, there);
    }
    return sum;
}

/* The sums of `down` threads one below the other, whose states are `stride` apart, become the first one's. */
template <class Terms, unsigned N, unsigned SIZE>
__device__ void join_down(channel_pair<N> &sum, double (&first)[N][SIZE], double (&second)[N][SIZE],
                          double (&count)[SIZE], unsigned y, unsigned down, unsigned stride)
{
    const auto put = [&] {
        for (unsigned i = 0; i < N; i++) first[i][threadIdx.x] = sum.first[i], second[i][threadIdx.x] = sum.second[i];
        count[threadIdx.x] = sum.count;
    };
    unsigned distance = 1;
    while (distance < down) distance *= 2;
    put();
    for (distance /= 2; distance > 0; distance /= 2) {
        __syncthreads();
        if (y < distance && y + distance < down) {
            const unsigned from = threadIdx.x + distance * stride;
            channel_pair<N> other;
            for (unsigned i = 0; i < N; i++) other.first[i] = first[i][from], other.second[i] = second[i][from];
            other.count = count[from];
            Terms::join(sum, other);
            put();
        }
    }
}

template <class Terms, unsigned N>
__global__ void __launch_bounds__(THREADS)
    channel_sums_kernel(Terms terms, channel_layout l, channel_parts parts, bool alone)
{
    SHARED(double, first, [N][THREADS]);
    SHARED(double, second, [N][THREADS]);
    SHARED(double, count, [THREADS]);
    const unsigned x = threadIdx.x % l.across, y = threadIdx.x / l.across;
    const size_t part = blockIdx.x / l.tiles, channel = (blockIdx.x % l.tiles * l.across + x) * N;
    const bool has = y < l.down && channel < l.channels;
    channel_pair<N> sum;
    if (has) sum = items_sum<Terms, N>(terms, l, part, channel, y);
    join_down<Terms>(sum, first, second, count, y, l.down, l.across);
    if (!has || y > 0) return;
    for (unsigned i = 0; i < N; i++) {
        if (alone) {
            terms.finish(channel + i, sum.first[i], sum.second[i]);
        } else {
            *parts.first(part, channel + i) = sum.first[i];
            *parts.second(part, channel + i) = sum.second[i];
        }
    }
    if (!alone && channel == 0) *parts.count(part) = sum.count;
}

template <class Terms>
__global__ void __launch_bounds__(PARTS_ACROSS *PARTS_DOWN) channel_parts_kernel(Terms terms, channel_parts parts)
{
    constexpr unsigned SIZE = PARTS_ACROSS * PARTS_DOWN;
    SHARED(double, first, [1][SIZE]);
    SHARED(double, second, [1][SIZE]);
    SHARED(double, count, [SIZE]);
    const unsigned x = threadIdx.x % PARTS_ACROSS, y = threadIdx.x / PARTS_ACROSS;
    const size_t channel = blockIdx.x * static_cast<size_t>(PARTS_ACROSS) + x;
    const bool has = channel < parts.channels;
    channel_pair<1> sum;
    for (size_t part = y; part < parts.parts && has; part += PARTS_DOWN) {
        channel_pair<1> other;
        other.first[0] = *parts.first(part, channel);
        other.second[0] = *parts.second(part, channel);
        other.count = *parts.count(part);
        Terms::join(sum, other);
    }
    join_down<Terms>(sum, first, second, count, y, PARTS_DOWN, PARTS_ACROSS);
    if (has && y == 0) terms.finish(channel, sum.first[0], sum.second[0]);
}

template <unsigned N, class Terms>
void channel_sums_of(struct cuda *cuda, const char *name, const Terms &terms, const struct norm_shape &shape)
{
    channel_layout l = channel_layout_of(shape, N);
    const size_t fit = CUDA_SCRATCH_BYTES / sizeof(double) / (2 * l.channels + 1);
    const size_t useful = ceiling<size_t>(l.items, static_cast<size_t>(l.down) * items_abreast<N>);
    size_t parts = ceiling(SUM_BLOCKS, l.tiles);
    parts = parts < fit ? parts : fit;
    parts = parts < useful ? parts : useful;
    l.items_each = parts > 1 ? ceiling(l.items, parts) : l.items;
    parts = parts > 1 ? ceiling(l.items, l.items_each) : 1;
    const channel_parts of = {static_cast<double *>(cuda->scratch), parts, l.channels};
    start(cuda, name, channel_sums_kernel<Terms, N>, static_cast<unsigned>(l.tiles * parts), THREADS, 0, terms, l, of,
          parts == 1);
    if (parts == 1) return;
    start(cuda, name, channel_parts_kernel<Terms>, static_cast<unsigned>(ceiling<size_t>(l.channels, PARTS_ACROSS)),
          PARTS_ACROSS * PARTS_DOWN, 0, terms, of);
}

/* whole: N elements at a time lie at multiples of 16 bytes in every array of T, and N divides what must not be cut. */
template <class T, class Terms>
void channel_sums(struct cuda *cuda, const char *name, const Terms &terms, const struct norm_shape &shape, bool whole)
{
    if (whole)
        channel_sums_of<lanes<T>>(cuda, name, terms, shape);
    else
        channel_sums_of<1>(cuda, name, terms, shape);
}

/* Σ dy and Σ dy·n, as they are read. */
template <class T> struct gradient_sums {
    template <unsigned N> struct item {
        real<T> dy[N], dyn[N];
    };

    template <unsigned N>
    static __device__ void add(channel_pair<N> &sum, const item<N> (&items)[items_abreast<N>],
                               const bool (&there)[items_abreast<N>])
    {
#pragma unroll
        for (unsigned u = 0; u < items_abreast<N>; u++) {
            if (!there[u]) continue;
            for (unsigned i = 0; i < N; i++) {
                sum.first[i] += static_cast<double>(items[u].dy[i]);
                sum.second[i] += static_cast<double>(items[u].dyn[i]);
            }
        }
    }
    template <unsigned N> static __device__ void join(channel_pair<N> &into, const channel_pair<N> &other)
    {
        for (unsigned i = 0; i < N; i++) into.first[i] += other.first[i], into.second[i] += other.second[i];
    }
};

/* --- every element ------------------------------------------------------------------------------------------------ */

/* Pass::lane<N> is what a thread keeps of its channels; it runs an item of a row. */
template <class Pass, unsigned N>
__global__ void __launch_bounds__(THREADS) channel_items_kernel(Pass pass, channel_layout l)
{
    const unsigned x = threadIdx.x % l.across, y = threadIdx.x / l.across;
    const size_t channel = (blockIdx.x % l.tiles * l.across + x) * N, blocks = gridDim.x / l.tiles;
    const size_t first = blockIdx.x / l.tiles * l.down + y, step = blocks * l.down;
    if (y >= l.down || channel >= l.channels || first >= l.items) return;
    const typename Pass::template lane<N> lane(pass, channel);
    row_walk walk(l.positions, first, step);
    for (size_t item = first; item < l.items; item += step, walk.next())
        lane.run(item * l.channels + channel, walk.row);
}

template <unsigned N, class Pass>
void channel_items_of(struct cuda *cuda, const char *name, const Pass &pass, const struct norm_shape &shape)
{
    const channel_layout l = channel_layout_of(shape, N);
    const size_t most = ceiling<size_t>(static_cast<size_t>(cuda->multiprocessors) * 16, l.tiles);
    const size_t blocks = ceiling<size_t>(l.items, l.down);
    start(cuda, name, channel_items_kernel<Pass, N>, static_cast<unsigned>(l.tiles * (blocks < most ? blocks : most)),
          THREADS, 0, pass, l);
}

template <class T, class Pass>
void channel_items(struct cuda *cuda, const char *name, const Pass &pass, const struct norm_shape &shape, bool whole)
{
    if (whole)
        channel_items_of<lanes<T>>(cuda, name, pass, shape);
    else
        channel_items_of<1>(cuda, name, pass, shape);
}

} // namespace gpu

#endif
