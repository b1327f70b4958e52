/*
 * GroupNorm (Wu and He 2018): the channels of each group of each row over all positions. Variances are taken about the
 * mean, in a pass of its own, and sums over a row are added up in double, run by run.
 */
#include <math.h>

#include "kernels/cpu/element.h"
#include "kernels/cpu/instance.h"

struct forward {
    element *y;
    real *mean, *rstd;
    const element *x, *weight, *bias;
    struct norm_shape shape;
};

struct backward {
    element *dx;
    real *dweight, *dbias;
    const element *dy, *x;
    const real *mean, *rstd;
    const element *weight;
    struct norm_shape shape;
};

/* Where a group's channels begin, of a row and position. */
static size_t run_at(const struct norm_shape *shape, size_t set, size_t position)
{
    const size_t row = set / shape->groups, group = set % shape->groups;
    return (row * shape->positions + position) * shape->channels + group * (shape->channels / shape->groups);
}

/* Σ (x − from) or, squared, Σ (x − from)², of one set. */
static double sum_of_set(const element *x, const struct norm_shape *shape, size_t set, double from, bool squared)
{
    const size_t width = shape->channels / shape->groups;
    const real about = (real)from;
    real buffer[CHUNK];
    double sum = 0;
    for (size_t p = 0; p < shape->positions; p++) {
        const element *run = x + run_at(shape, set, p);
        for (size_t c = 0; c < width; c += CHUNK) {
            const size_t n = smaller(CHUNK, width - c);
            const real *v = widen(buffer, run + c, n);
            real part = 0;
            if (squared)
                SIMD_SUM(part) for (size_t i = 0; i < n; i++) part += (v[i] - about) * (v[i] - about);
            else
                SIMD_SUM(part) for (size_t i = 0; i < n; i++) part += v[i] - about;
            sum += (double)part;
        }
    }
    return sum;
}

static void forward_sets(const void *arguments, struct cpu_share share)
{
    const struct forward *f = arguments;
    const struct norm_shape *shape = &f->shape;
    const size_t width = shape->channels / shape->groups;
    const double count = (double)(width * shape->positions);
    real x_buffer[CHUNK], weight_buffer[CHUNK], bias_buffer[CHUNK];
    for (size_t set = share.begin; set < share.end; set++) {
        const real mean = (real)(sum_of_set(f->x, shape, set, 0, false) / count);
        const double variance = sum_of_set(f->x, shape, set, (double)mean, true) / count;
        const real rstd = (real)(1 / sqrt(variance + NORM_EPS));
        const size_t first = set % shape->groups * width;
        for (size_t p = 0; p < shape->positions; p++) {
            const size_t at = run_at(shape, set, p);
            for (size_t c = 0; c < width; c += CHUNK) {
                const size_t n = smaller(CHUNK, width - c);
                const real *v = widen(x_buffer, f->x + at + c, n), *w = widen(weight_buffer, f->weight + first + c, n);
                const real *b = f->bias ? widen(bias_buffer, f->bias + first + c, n) : NULL;
                real *out = place(x_buffer, f->y + at + c);
                for (size_t i = 0; i < n; i++) out[i] = (v[i] - mean) * rstd * w[i] + (b ? b[i] : 0);
                narrow(f->y + at + c, out, n);
            }
        }
        f->mean[set] = mean;
        f->rstd[set] = rstd;
    }
}

void cpu_groupnorm_forward(struct kernels *kernels, compute *y, wide *mean, wide *rstd, const compute *x,
                           const compute *weight, const compute *bias, struct norm_shape shape)
{
    const struct forward f = {y, mean, rstd, x, weight, bias, shape};
    cpu_spread(kernels, forward_sets, &f, shape.rows * shape.groups, 8);
}

/* With n = (x − mean)·rstd and g = dy·weight: dx = rstd·(g − mean(g) − n·mean(g·n)). */
static void backward_sets(const void *arguments, struct cpu_share share)
{
    const struct backward *b = arguments;
    const struct norm_shape *shape = &b->shape;
    const size_t width = shape->channels / shape->groups;
    const double count = (double)(width * shape->positions);
    real dy_buffer[CHUNK], x_buffer[CHUNK], weight_buffer[CHUNK];
    for (size_t set = share.begin; set < share.end; set++) {
        const real mean = b->mean[set], rstd = b->rstd[set];
        const element *weight = b->weight + set % shape->groups * width;
        double sum_g = 0, sum_gn = 0;
        real mean_g = 0, mean_gn = 0;
        for (int pass = 0; pass < 2; pass++) {
            for (size_t p = 0; p < shape->positions; p++) {
                const size_t at = run_at(shape, set, p);
                for (size_t c = 0; c < width; c += CHUNK) {
                    const size_t n = smaller(CHUNK, width - c);
                    const real *d = widen(dy_buffer, b->dy + at + c, n), *v = widen(x_buffer, b->x + at + c, n),
                               *w = widen(weight_buffer, weight + c, n);
                    real g = 0, gn = 0;
                    if (pass == 0) {
                        SIMD_SUM(g, gn) for (size_t i = 0; i < n; i++)
                        {
                            g += d[i] * w[i];
                            gn += d[i] * w[i] * ((v[i] - mean) * rstd);
                        }
                        sum_g += (double)g;
                        sum_gn += (double)gn;
                        continue;
                    }
                    real *out = place(dy_buffer, b->dx + at + c);
                    SIMD for (size_t i = 0; i < n; i++) out[i] =
                        rstd * (d[i] * w[i] - mean_g - (v[i] - mean) * rstd * mean_gn);
                    narrow(b->dx + at + c, out, n);
                }
            }
            mean_g = (real)(sum_g / count);
            mean_gn = (real)(sum_gn / count);
        }
    }
}

/* Sums over rows and positions, spread over groups: the same order whatever the number of threads. */
static void backward_groups(const void *arguments, struct cpu_share share)
{
    const struct backward *b = arguments;
    const struct norm_shape *shape = &b->shape;
    const size_t width = shape->channels / shape->groups;
    real dy_buffer[CHUNK], x_buffer[CHUNK], weight_sum[CHUNK], bias_sum[CHUNK];
    for (size_t group = share.begin; group < share.end; group++)
        for (size_t c = 0; c < width; c += CHUNK) {
            const size_t n = smaller(CHUNK, width - c), channel = group * width + c;
            memset(weight_sum, 0, n * sizeof *weight_sum);
            memset(bias_sum, 0, n * sizeof *bias_sum);
            for (size_t r = 0; r < shape->rows; r++) {
                const size_t set = r * shape->groups + group;
                const real mean = b->mean[set], rstd = b->rstd[set];
                for (size_t p = 0; p < shape->positions; p++) {
                    const size_t at = run_at(shape, set, p) + c;
                    const real *d = widen(dy_buffer, b->dy + at, n), *v = widen(x_buffer, b->x + at, n);
                    SIMD for (size_t i = 0; i < n; i++)
                    {
                        weight_sum[i] += d[i] * ((v[i] - mean) * rstd);
                        bias_sum[i] += d[i];
                    }
                }
            }
            if (b->dweight) SIMD for (size_t i = 0; i < n; i++) b->dweight[channel + i] += weight_sum[i];
            if (b->dbias) SIMD for (size_t i = 0; i < n; i++) b->dbias[channel + i] += bias_sum[i];
        }
}

void cpu_groupnorm_backward(struct kernels *kernels, compute *dx, wide *dweight, wide *dbias, const compute *dy,
                            const compute *x, const wide *mean, const wide *rstd, const compute *weight,
                            struct norm_shape shape)
{
    const struct backward b = {dx, dweight, dbias, dy, x, mean, rstd, weight, shape};
    if (dweight || dbias) cpu_spread(kernels, backward_groups, &b, shape.groups, 1);
    cpu_spread(kernels, backward_sets, &b, shape.rows * shape.groups, 8);
}
