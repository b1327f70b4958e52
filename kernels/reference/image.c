/* Patches of images and pooling, place by place. */
#include <math.h>
#include <string.h>

#include "kernels/reference/reference.h"

/* One element under the window at one place. */
struct under {
    size_t row, down, across, channel, line, column;
};

/* Where it is in x; false: in the padding. */
static bool find(const struct image_shape *shape, struct under at, size_t *index)
{
    const size_t y = at.down * shape->stride + at.line, x = at.across * shape->stride + at.column;
    if (y < shape->padding || y - shape->padding >= shape->height) return false;
    if (x < shape->padding || x - shape->padding >= shape->width) return false;
    const size_t line = y - shape->padding, column = x - shape->padding;
    *index = shape->channels_first
                 ? ((at.row * shape->channels + at.channel) * shape->height + line) * shape->width + column
                 : ((at.row * shape->height + line) * shape->width + column) * shape->channels + at.channel;
    return true;
}

/* Calls `visit` for all of them, in the order of the patches. */
static void for_each(const struct image_shape *shape, void (*visit)(void *context, struct under at), void *context)
{
    struct under at;
    for (at.row = 0; at.row < shape->rows; at.row++)
        for (at.down = 0; at.down < image_places_down(shape); at.down++)
            for (at.across = 0; at.across < image_places_across(shape); at.across++)
                for (at.channel = 0; at.channel < shape->channels; at.channel++)
                    for (at.line = 0; at.line < shape->window_height; at.line++)
                        for (at.column = 0; at.column < shape->window_width; at.column++) visit(context, at);
}

struct visit {
    struct image_shape shape;
    double *out;
    const double *in, *x;
    enum pooling pooling;
    size_t next;    /* element of the patches */
    size_t largest; /* of the window at hand, in x */
};

static void take(void *context, struct under at)
{
    struct visit *visit = context;
    size_t index;
    visit->out[visit->next++] = find(&visit->shape, at, &index) ? visit->in[index] : 0;
}

static void put_back(void *context, struct under at)
{
    struct visit *visit = context;
    size_t index;
    if (find(&visit->shape, at, &index)) visit->out[index] += visit->in[visit->next];
    visit->next++;
}

void reference_patches_forward(struct kernels *kernels, compute *out, const compute *x, struct image_shape shape)
{
    (void)kernels;
    for_each(&shape, take, &(struct visit){.shape = shape, .out = out, .in = x});
}

void reference_patches_backward(struct kernels *kernels, compute *dx, const compute *dout, struct image_shape shape)
{
    (void)kernels;
    memset(dx, 0, shape.rows * shape.height * shape.width * shape.channels * sizeof(double));
    for_each(&shape, put_back, &(struct visit){.shape = shape, .out = dx, .in = dout});
}

/* --- pooling ----------------------------------------------------------------------------------------------------- */

static size_t output_at(const struct image_shape *shape, struct under at)
{
    const size_t place = (at.row * image_places_down(shape) + at.down) * image_places_across(shape) + at.across;
    return place * shape->channels + at.channel;
}

static double share(const struct image_shape *shape)
{
    return 1 / (double)(shape->window_height * shape->window_width);
}

static void pool(void *context, struct under at)
{
    struct visit *visit = context;
    size_t index = 0;
    find(&visit->shape, at, &index);
    double *y = &visit->out[output_at(&visit->shape, at)];
    const bool is_first = at.line == 0 && at.column == 0;
    if (visit->pooling == POOL_AVERAGE)
        *y = (is_first ? 0 : *y) + visit->in[index] * share(&visit->shape);
    else if (is_first || visit->in[index] > *y || isnan(visit->in[index]))
        *y = visit->in[index];
}

static void unpool(void *context, struct under at)
{
    struct visit *visit = context;
    size_t index = 0;
    find(&visit->shape, at, &index);
    const double dy = visit->in[output_at(&visit->shape, at)];
    if (visit->pooling == POOL_AVERAGE) {
        visit->out[index] += dy * share(&visit->shape);
        return;
    }
    const bool is_first = at.line == 0 && at.column == 0;
    const bool is_last = at.line == visit->shape.window_height - 1 && at.column == visit->shape.window_width - 1;
    if (is_first || visit->x[index] > visit->x[visit->largest] || isnan(visit->x[index])) visit->largest = index;
    if (is_last) visit->out[visit->largest] += dy;
}

void reference_pool_forward(struct kernels *kernels, compute *y, const compute *x, enum pooling pooling,
                            struct image_shape shape)
{
    (void)kernels;
    for_each(&shape, pool, &(struct visit){.shape = shape, .out = y, .in = x, .pooling = pooling});
}

void reference_pool_backward(struct kernels *kernels, compute *dx, const compute *dy, const compute *x,
                             enum pooling pooling, struct image_shape shape)
{
    (void)kernels;
    memset(dx, 0, shape.rows * shape.height * shape.width * shape.channels * sizeof(double));
    for_each(&shape, unpool, &(struct visit){.shape = shape, .out = dx, .in = dy, .x = x, .pooling = pooling});
}
