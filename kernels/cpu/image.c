/*
 * Patches of images, which make a convolution a product, and pooling. Both are spread over rows: a row is one thread's.
 */
#include <math.h>

#include "kernels/cpu/element.h"
#include "kernels/cpu/instance.h"

struct image {
    struct image_shape shape;
    enum pooling pooling;
    element *out;
    const element *in, *x;
};

static real value_of(const element *in)
{
    real buffer[1];
    return *widen(buffer, in, 1);
}

static void store(element *out, real value)
{
    narrow(out, &value, 1);
}

/* Where an element of a row's image is, counted from the row's first. */
static size_t element_at(const struct image_shape *s, size_t line, size_t column, size_t channel)
{
    return s->channels_first ? (channel * s->height + line) * s->width + column
                             : (line * s->width + column) * s->channels + channel;
}

static size_t row_elements(const struct image_shape *s)
{
    return s->height * s->width * s->channels;
}

static size_t patch_elements(const struct image_shape *s)
{
    return s->channels * s->window_height * s->window_width;
}

/* --- patches ----------------------------------------------------------------------------------------------------- */

static void take_patch(const struct image_shape *s, element *out, const element *x, size_t down, size_t across)
{
    for (size_t channel = 0; channel < s->channels; channel++)
        for (size_t line = 0; line < s->window_height; line++)
            for (size_t column = 0; column < s->window_width; column++, out++) {
                /* beyond the first line or column they wrap to something larger than any image */
                const size_t y = down * s->stride + line - s->padding, z = across * s->stride + column - s->padding;
                const bool is_there = y < s->height && z < s->width;
                *out = is_there ? x[element_at(s, y, z, channel)] : (element)0;
            }
}

static void take_rows(const void *arguments, struct cpu_share share)
{
    const struct image *image = arguments;
    const struct image_shape *s = &image->shape;
    const size_t places = image_places_down(s) * image_places_across(s);
    for (size_t row = share.begin; row < share.end; row++)
        for (size_t place = 0; place < places; place++)
            take_patch(s, image->out + (row * places + place) * patch_elements(s), image->in + row * row_elements(s),
                       place / image_places_across(s), place % image_places_across(s));
}

void cpu_patches_forward(struct kernels *kernels, compute *out, const compute *x, struct image_shape shape)
{
    const struct image image = {.shape = shape, .out = out, .in = x};
    cpu_spread(kernels, take_rows, &image, shape.rows, 1);
}

/* The sum over the windows that an element of the image is under, in their order. */
static real sum_over_windows(const struct image_shape *s, const element *patches, size_t y, size_t x, size_t channel)
{
    real sum = 0;
    for (size_t line = 0; line < s->window_height; line++) {
        const size_t down = y + s->padding - line; /* times stride; wraps where no window is */
        if (down % s->stride || down / s->stride >= image_places_down(s)) continue;
        for (size_t column = 0; column < s->window_width; column++) {
            const size_t across = x + s->padding - column;
            if (across % s->stride || across / s->stride >= image_places_across(s)) continue;
            const size_t place = down / s->stride * image_places_across(s) + across / s->stride;
            sum += value_of(patches + place * patch_elements(s) +
                            (channel * s->window_height + line) * s->window_width + column);
        }
    }
    return sum;
}

static void put_back_rows(const void *arguments, struct cpu_share share)
{
    const struct image *image = arguments;
    const struct image_shape *s = &image->shape;
    const size_t patches = image_places_down(s) * image_places_across(s) * patch_elements(s);
    for (size_t row = share.begin; row < share.end; row++)
        for (size_t y = 0; y < s->height; y++)
            for (size_t x = 0; x < s->width; x++)
                for (size_t channel = 0; channel < s->channels; channel++)
                    store(image->out + row * row_elements(s) + element_at(s, y, x, channel),
                          sum_over_windows(s, image->in + row * patches, y, x, channel));
}

void cpu_patches_backward(struct kernels *kernels, compute *dx, const compute *dout, struct image_shape shape)
{
    const struct image image = {.shape = shape, .out = dx, .in = dout};
    cpu_spread(kernels, put_back_rows, &image, shape.rows, 1);
}

/* --- pooling ----------------------------------------------------------------------------------------------------- */

/* The first of the largest under a window, in x. */
static size_t largest_at(const struct image_shape *s, const element *x, size_t down, size_t across, size_t channel)
{
    size_t best = element_at(s, down * s->stride, across * s->stride, channel);
    for (size_t line = 0; line < s->window_height; line++)
        for (size_t column = 0; column < s->window_width; column++) {
            const size_t at = element_at(s, down * s->stride + line, across * s->stride + column, channel);
            const real value = value_of(x + at);
            if (value > value_of(x + best) || isnan(value)) best = at;
        }
    return best;
}

static real average_at(const struct image_shape *s, const element *x, size_t down, size_t across, size_t channel)
{
    real sum = 0;
    for (size_t line = 0; line < s->window_height; line++)
        for (size_t column = 0; column < s->window_width; column++)
            sum += value_of(x + element_at(s, down * s->stride + line, across * s->stride + column, channel));
    return sum / (real)(s->window_height * s->window_width);
}

static void pool_rows(const void *arguments, struct cpu_share share)
{
    const struct image *image = arguments;
    const struct image_shape *s = &image->shape;
    const size_t places = image_places_down(s) * image_places_across(s);
    for (size_t row = share.begin; row < share.end; row++)
        for (size_t place = 0; place < places; place++)
            for (size_t channel = 0; channel < s->channels; channel++) {
                const size_t down = place / image_places_across(s), across = place % image_places_across(s);
                const element *x = image->in + row * row_elements(s);
                element *y = image->out + (row * places + place) * s->channels + channel;
                if (image->pooling == POOL_MAX)
                    *y = x[largest_at(s, x, down, across, channel)];
                else
                    store(y, average_at(s, x, down, across, channel));
            }
}

void cpu_pool_forward(struct kernels *kernels, compute *y, const compute *x, enum pooling pooling,
                      struct image_shape shape)
{
    const struct image image = {.shape = shape, .pooling = pooling, .out = y, .in = x};
    cpu_spread(kernels, pool_rows, &image, shape.rows, 1);
}

/* Windows do not overlap where stride is their size; where they do, a sum is rounded once for each. */
static void unpool_rows(const void *arguments, struct cpu_share share)
{
    const struct image *image = arguments;
    const struct image_shape *s = &image->shape;
    const size_t places = image_places_down(s) * image_places_across(s);
    const real part = 1 / (real)(s->window_height * s->window_width);
    for (size_t row = share.begin; row < share.end; row++) {
        element *dx = image->out + row * row_elements(s);
        memset(dx, 0, row_elements(s) * sizeof *dx);
        for (size_t place = 0; place < places; place++)
            for (size_t channel = 0; channel < s->channels; channel++) {
                const size_t down = place / image_places_across(s), across = place % image_places_across(s);
                const real dy = value_of(image->in + (row * places + place) * s->channels + channel);
                if (image->pooling == POOL_MAX) {
                    element *at = dx + largest_at(s, image->x + row * row_elements(s), down, across, channel);
                    store(at, value_of(at) + dy);
                    continue;
                }
                for (size_t line = 0; line < s->window_height; line++)
                    for (size_t column = 0; column < s->window_width; column++) {
                        element *at = dx + element_at(s, down * s->stride + line, across * s->stride + column, channel);
                        store(at, value_of(at) + dy * part);
                    }
            }
    }
}

void cpu_pool_backward(struct kernels *kernels, compute *dx, const compute *dy, const compute *x, enum pooling pooling,
                       struct image_shape shape)
{
    const struct image image = {.shape = shape, .pooling = pooling, .out = dx, .in = dy, .x = x};
    cpu_spread(kernels, unpool_rows, &image, shape.rows, 1);
}
