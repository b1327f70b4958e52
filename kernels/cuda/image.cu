/*
 * Patches of images, which make a convolution a product, and pooling. What a thread writes is its own, 16 bytes of it
 * where they lie so: a gradient is gathered from the windows that an element is under, in their order, and rounded
 * once.
 */
#include "kernels/cuda/elementwise.h"

namespace gpu
{

/* A number that indices are divided by, at most 2^17: as a product, since a division of 64 bits is a call, whose
 * registers would spill. Rounded up, 2^64/length is too large by less than length/2^64 of itself, so that the quotient
 * of an index below 2^47 is exact. */
struct side {
    uint32_t length;
    uint64_t inverse; /* 2^64/length */

    explicit side(size_t length_) : length(static_cast<uint32_t>(length_)), inverse(UINT64_MAX / length_ + 1)
    {
    }
    __host__ __device__ operator uint32_t() const
    {
        return length;
    }
};

/* The last digit of an index, which loses it, where that goes up to `base`. */
__device__ inline uint32_t take_digit(size_t &index, side base)
{
    const size_t rest = base.length > 1 ? __umul64hi(index, base.inverse) : index;
    const uint32_t digit = static_cast<uint32_t>(index - rest * base.length);
    index = rest;
    return digit;
}

/* The shape, and what follows from it. */
struct images {
    size_t rows;
    side channels, height, width, window_height, window_width;
    side down, across; /* places below and beside each other */
    uint32_t stride, padding;
    bool channels_first;
    size_t window, patch; /* elements under a window, of one channel and of all */

    explicit images(const image_shape &shape)
        : rows(shape.rows), channels(shape.channels), height(shape.height), width(shape.width),
          window_height(shape.window_height), window_width(shape.window_width), down(image_places_down(&shape)),
          across(image_places_across(&shape)), stride(static_cast<uint32_t>(shape.stride)),
          padding(static_cast<uint32_t>(shape.padding)), channels_first(shape.channels_first),
          window(shape.window_height * shape.window_width), patch(shape.channels * window)
    {
    }

    size_t elements() const
    {
        return rows * channels * height * width;
    }
    size_t places() const
    {
        return rows * down * across;
    }
};

/* One place of a window over an image. */
struct place {
    uint32_t row, down, across;
};

/* The index-th of all rows. */
__device__ inline place place_of(const images &s, size_t index)
{
    const uint32_t across = take_digit(index, s.across), down = take_digit(index, s.down);
    return {static_cast<uint32_t>(index), down, across};
}

__device__ inline size_t index_of(const images &s, place p)
{
    return (static_cast<size_t>(p.row) * s.down + p.down) * s.across + p.across;
}

__device__ inline void advance(const images &s, place &p)
{
    if (++p.across < s.across) return;
    p.across = 0;
    if (++p.down < s.down) return;
    p.down = 0;
    p.row++;
}

/* One element of an image. */
struct pixel {
    uint32_t row, line, column, channel;
};

__device__ inline pixel pixel_of(const images &s, size_t index)
{
    pixel p;
    if (!s.channels_first) p.channel = take_digit(index, s.channels);
    p.column = take_digit(index, s.width);
    p.line = take_digit(index, s.height);
    if (s.channels_first) p.channel = take_digit(index, s.channels);
    p.row = static_cast<uint32_t>(index);
    return p;
}

__device__ inline size_t index_of(const images &s, pixel p)
{
    const size_t row = p.row;
    if (s.channels_first) return ((row * s.channels + p.channel) * s.height + p.line) * s.width + p.column;
    return ((row * s.height + p.line) * s.width + p.column) * s.channels + p.channel;
}

__device__ inline void advance(const images &s, pixel &p)
{
    if (!s.channels_first && ++p.channel < s.channels) return;
    if (!s.channels_first) p.channel = 0;
    if (++p.column < s.width) return;
    p.column = 0;
    if (++p.line < s.height) return;
    p.line = 0;
    if (s.channels_first && ++p.channel < s.channels) return;
    if (s.channels_first) p.channel = 0;
    p.row++;
}

/* The element of a window at that place; before the first line or column it wraps to something larger than any image.
 */
__device__ inline pixel pixel_under(const images &s, place p, uint32_t line, uint32_t column, uint32_t channel)
{
    return {p.row, p.down * s.stride + line - s.padding, p.across * s.stride + column - s.padding, channel};
}

/* The places along one side whose window is over what lies at `at`. */
struct span {
    uint32_t begin, end;
};

__device__ inline span span_over(uint32_t at, uint32_t window, const images &s, uint32_t count)
{
    const uint32_t behind = at + s.padding + 1, end = (at + s.padding) / s.stride + 1;
    return {behind > window ? ceiling(behind - window, s.stride) : 0, end < count ? end : count};
}

/* Calls f(place, line and column of its window) for every window over that element, in order. */
template <class F> __device__ void for_windows_over(const images &s, pixel p, F f)
{
    const span down = span_over(p.line, s.window_height, s, s.down);
    const span across = span_over(p.column, s.window_width, s, s.across);
    for (uint32_t d = down.begin; d < down.end; d++)
        for (uint32_t a = across.begin; a < across.end; a++)
            f(place{p.row, d, a}, p.line + s.padding - d * s.stride, p.column + s.padding - a * s.stride);
}

/* With room for 128 registers to a thread: left to itself the compiler takes fewer, and spills. */
template <class Pass> __global__ void __launch_bounds__(THREADS, 2) image_kernel(struct runs runs, Pass pass)
{
    run_elements(runs, pass);
}

template <class Pass, class T>
static void start_image(struct kernels *kernels, const char *name, const Pass &pass, size_t n, const T *out)
{
    start_elements_by(cuda_enter(kernels), name, image_kernel<Pass>, pass, n, out);
}

/* --- patches ----------------------------------------------------------------------------------------------------- */

template <class T> struct take_patches {
    static constexpr unsigned width = lanes<T>;
    T *out;
    const T *x;
    images s;

    template <unsigned N> __device__ void run(size_t at) const
    {
        size_t index = at;
        uint32_t column = take_digit(index, s.window_width), line = take_digit(index, s.window_height);
        uint32_t channel = take_digit(index, s.channels);
        place p = place_of(s, index);
        real<T> v[N];
        for (unsigned i = 0; i < N; i++) {
            const pixel from = pixel_under(s, p, line, column, channel);
            v[i] = from.line < s.height && from.column < s.width ? widen(x[index_of(s, from)]) : 0;
            if (++column < s.window_width) continue;
            column = 0;
            if (++line < s.window_height) continue;
            line = 0;
            if (++channel < s.channels) continue;
            channel = 0;
            advance(s, p);
        }
        store<N>(out + at, v);
    }
};

template <class T>
static void patches_forward(struct kernels *kernels, compute *out, const compute *x, struct image_shape shape)
{
    const take_patches<T> pass = {static_cast<T *>(out), static_cast<const T *>(x), images(shape)};
    start_image(kernels, "patches_forward", pass, pass.s.places() * pass.s.patch, pass.out);
}

template <class T> struct put_patches_back {
    static constexpr unsigned width = lanes<T>;
    T *dx;
    const T *dout;
    images s;

    __device__ real<T> sum_over_windows(pixel p) const
    {
        real<T> sum = 0;
        for_windows_over(s, p, [&](place over, uint32_t line, uint32_t column) {
            const size_t inside = p.channel * s.window + line * s.window_width + column;
            sum += widen(dout[index_of(s, over) * s.patch + inside]);
        });
        return sum;
    }

    template <unsigned N> __device__ void run(size_t at) const
    {
        real<T> v[N];
        pixel p = pixel_of(s, at);
        for (unsigned i = 0; i < N; i++, advance(s, p)) v[i] = sum_over_windows(p);
        store<N>(dx + at, v);
    }
};

template <class T>
static void patches_backward(struct kernels *kernels, compute *dx, const compute *dout, struct image_shape shape)
{
    const put_patches_back<T> pass = {static_cast<T *>(dx), static_cast<const T *>(dout), images(shape)};
    start_image(kernels, "patches_backward", pass, pass.s.elements(), pass.dx);
}

/* --- pooling: N channels of a place or of a pixel at a time ------------------------------------------------------- */

/* Calls f(N channels, their number in the window) for what lies under a window, line by line, from its first element
 * on.
 */
template <unsigned N, class T, class F> __device__ void for_window(const images &s, const T *first, F f)
{
    uint32_t number = 0;
    for (uint32_t line = 0; line < s.window_height; line++, first += static_cast<size_t>(s.width) * s.channels) {
        const T *at = first;
        for (uint32_t column = 0; column < s.window_width; column++, at += s.channels) {
            real<T> v[N];
            load<N>(v, at);
            f(v, number++);
        }
    }
}

template <class T> __device__ const T *first_of_window(const images &s, const T *x, place p, uint32_t channel)
{
    return x + index_of(s, pixel_under(s, p, 0, 0, channel));
}

/* The first of the largest of each channel under a window. */
template <class T, unsigned N> struct largest_under {
    real<T> value[N] = {};
    uint32_t which[N] = {};

    __device__ largest_under(const images &s, const T *first)
    {
        for_window<N>(s, first, [&](const real<T>(&v)[N], uint32_t number) {
            for (unsigned i = 0; i < N; i++) {
                if (number > 0 && !(v[i] > value[i]) && v[i] == v[i]) continue;
                value[i] = v[i];
                which[i] = number;
            }
        });
    }
};

/* WIDTH: 1 where the channels are no multiple of a 16-byte access, or the arrays do not lie so. */
template <class T, unsigned WIDTH, pooling P> struct pool_elements {
    static constexpr unsigned width = WIDTH;
    T *y;
    const T *x;
    real<T> part; /* one of a window's elements */
    images s;

    template <unsigned N> __device__ void run(size_t at) const
    {
        size_t index = at;
        const uint32_t channel = take_digit(index, s.channels);
        const T *first = first_of_window(s, x, place_of(s, index), channel);
        if constexpr (P == POOL_MAX) {
            store<N>(y + at, largest_under<T, N>(s, first).value);
        } else {
            real<T> mean[N] = {};
            for_window<N>(s, first, [&](const real<T>(&v)[N], uint32_t) {
                for (unsigned i = 0; i < N; i++) mean[i] += v[i];
            });
            for (unsigned i = 0; i < N; i++) mean[i] *= part;
            store<N>(y + at, mean);
        }
    }
};

template <class T, unsigned WIDTH, pooling P> struct unpool_elements {
    static constexpr unsigned width = WIDTH;
    T *dx;
    const T *dy, *x;
    real<T> part;
    images s;

    template <unsigned N> __device__ void run(size_t at) const
    {
        const pixel p = pixel_of(s, at);
        real<T> sum[N] = {};
        for_windows_over(s, p, [&](place over, uint32_t line, uint32_t column) {
            real<T> v[N];
            if constexpr (P == POOL_MAX) {
                const largest_under<T, N> largest(s, first_of_window(s, x, over, p.channel));
                load<N>(v, dy + index_of(s, over) * s.channels + p.channel);
                for (unsigned i = 0; i < N; i++)
                    if (largest.which[i] == line * s.window_width + column) sum[i] += v[i];
            } else {
                load<N>(v, dy + index_of(s, over) * s.channels + p.channel);
                for (unsigned i = 0; i < N; i++) sum[i] += v[i] * part;
            }
        });
        store<N>(dx + at, sum);
    }
};

template <class T> real<T> part_of_window(const image_shape &shape)
{
    return 1 / static_cast<real<T>>(shape.window_height * shape.window_width);
}

/* f(the number of channels at a time, the kind), as types */
template <class T, class F> void with_channels(const image_shape &shape, enum pooling pooling, bool all_aligned, F f)
{
    const auto with_kind = [&](auto channels) {
        if (pooling == POOL_MAX)
            f(channels, std::integral_constant<enum pooling, POOL_MAX>{});
        else
            f(channels, std::integral_constant<enum pooling, POOL_AVERAGE>{});
    };
    if (all_aligned && shape.channels % lanes<T> == 0)
        with_kind(std::integral_constant<unsigned, lanes<T>>{});
    else
        with_kind(std::integral_constant<unsigned, 1>{});
}

template <class T>
static void pool_forward(struct kernels *kernels, compute *y, const compute *x, enum pooling pooling,
                         struct image_shape shape)
{
    with_channels<T>(shape, pooling, aligned(y) && aligned(x), [&](auto channels, auto kind) {
        const pool_elements<T, channels.value, kind.value> pass = {static_cast<T *>(y), static_cast<const T *>(x),
                                                                   part_of_window<T>(shape), images(shape)};
        start_image(kernels, "pool_forward", pass, pass.s.places() * shape.channels, pass.y);
    });
}

template <class T>
static void pool_backward(struct kernels *kernels, compute *dx, const compute *dy, const compute *x,
                          enum pooling pooling, struct image_shape shape)
{
    with_channels<T>(shape, pooling, aligned(dx) && aligned(dy) && aligned(x), [&](auto channels, auto kind) {
        const unpool_elements<T, channels.value, kind.value> pass = {static_cast<T *>(dx), static_cast<const T *>(dy),
                                                                     static_cast<const T *>(x),
                                                                     part_of_window<T>(shape), images(shape)};
        start_image(kernels, "pool_backward", pass, pass.s.elements(), pass.dx);
    });
}

template <class T> void fill_image(struct cuda *cuda)
{
    cuda->table.patches_forward = patches_forward<T>;
    cuda->table.patches_backward = patches_backward<T>;
    cuda->table.pool_forward = pool_forward<T>;
    cuda->table.pool_backward = pool_backward<T>;
}
FOR_EVERY_TYPE(fill_image);

} // namespace gpu
