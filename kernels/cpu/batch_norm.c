/*
 * BatchNorm (Ioffe and Szegedy 2015), cut where statistics are known: what the rows at hand add to the statistics of
 * their set, and what is done once those are known. Sums are over channels side by side, in double.
 */
#include <math.h>

#include "kernels/cpu/element.h"
#include "kernels/cpu/instance.h"

struct batch {
    element *out;
    double *sums; /* [2][channels] */
    real *dweight, *dbias;
    const element *dy, *x, *weight, *bias;
    const real *mean, *rstd;
    const double *row_weight, *given; /* sums that a backward is given, or NULL */
    double count;
    struct norm_shape shape;
};

static bool is_masked(const struct batch *b, size_t item)
{
    return b->row_weight && b->row_weight[item / b->shape.positions] == 0;
}

/* --- sums over rows, spread over channels: the same order whatever the number of threads ------------------------- */

/* Σ x, then Σ (x − mean)², of `n` channels from c on. */
static void moments_of_run(const struct batch *b, size_t c, size_t n)
{
    const size_t items = b->shape.rows * b->shape.positions;
    double *mean = b->sums + c, *squares = b->sums + b->shape.channels + c, sum[CHUNK] = {0};
    real buffer[CHUNK];
    size_t count = 0;
    for (size_t item = 0; item < items; item++) {
        if (is_masked(b, item)) continue;
        const real *v = widen(buffer, b->x + item * b->shape.channels + c, n);
        SIMD for (size_t i = 0; i < n; i++) sum[i] += (double)v[i];
        count++;
    }
    for (size_t i = 0; i < n; i++) mean[i] = count ? sum[i] / (double)count : 0;
    memset(squares, 0, n * sizeof *squares);
    for (size_t item = 0; item < items; item++) {
        if (is_masked(b, item)) continue;
        const real *v = widen(buffer, b->x + item * b->shape.channels + c, n);
        SIMD for (size_t i = 0; i < n; i++) squares[i] += ((double)v[i] - mean[i]) * ((double)v[i] - mean[i]);
    }
}

static void moments_of_channels(const void *arguments, struct cpu_share share)
{
    for (size_t c = share.begin; c < share.end; c += CHUNK) moments_of_run(arguments, c, smaller(CHUNK, share.end - c));
}

void cpu_batchnorm_moments(struct kernels *kernels, double *moments, const compute *x, const double *row_weight,
                           struct norm_shape shape)
{
    const struct batch b = {.sums = moments, .x = x, .row_weight = row_weight, .shape = shape};
    cpu_spread(kernels, moments_of_channels, &b, shape.channels, 16);
}

void cpu_batchnorm_settle(struct kernels *kernels, wide *mean, wide *rstd, double *all, double before,
                          const double *moments, double count, size_t channels)
{
    (void)kernels;
    const double *set_mean = moments, *set_squares = moments + channels, both = before + count;
    for (size_t c = 0; c < channels; c++) {
        ((real *)mean)[c] = (real)set_mean[c];
        ((real *)rstd)[c] = (real)(1 / sqrt(set_squares[c] / count + NORM_EPS));
    }
    for (size_t c = 0; c < channels && count > 0; c++) {
        const double apart = set_mean[c] - all[c];
        all[c] += apart * (count / both);
        all[channels + c] += set_squares[c] + apart * apart * (before * count / both);
    }
}

/* Σ dy and Σ dy·n, n = (x − mean)·rstd. */
static void sums_of_run(const struct batch *b, size_t c, size_t n)
{
    const size_t items = b->shape.rows * b->shape.positions;
    double *sum_dy = b->sums + c, *sum_dyn = b->sums + b->shape.channels + c;
    real dy_buffer[CHUNK], x_buffer[CHUNK];
    memset(sum_dy, 0, n * sizeof *sum_dy);
    memset(sum_dyn, 0, n * sizeof *sum_dyn);
    for (size_t item = 0; item < items; item++) {
        if (is_masked(b, item)) continue;
        const size_t at = item * b->shape.channels + c;
        const real *d = widen(dy_buffer, b->dy + at, n), *v = widen(x_buffer, b->x + at, n);
        SIMD for (size_t i = 0; i < n; i++)
        {
            sum_dy[i] += (double)d[i];
            sum_dyn[i] += (double)(d[i] * ((v[i] - b->mean[c + i]) * b->rstd[c + i]));
        }
    }
    if (b->dbias) SIMD for (size_t i = 0; i < n; i++) b->dbias[c + i] += (real)sum_dy[i];
    if (b->dweight) SIMD for (size_t i = 0; i < n; i++) b->dweight[c + i] += (real)sum_dyn[i];
}

static void sums_of_channels(const void *arguments, struct cpu_share share)
{
    for (size_t c = share.begin; c < share.end; c += CHUNK) sums_of_run(arguments, c, smaller(CHUNK, share.end - c));
}

void cpu_batchnorm_sums(struct kernels *kernels, double *sums, wide *dweight, wide *dbias, const compute *dy,
                        const compute *x, const wide *mean, const wide *rstd, const double *row_weight,
                        struct norm_shape shape)
{
    const struct batch b = {.sums = sums,
                            .dweight = dweight,
                            .dbias = dbias,
                            .dy = dy,
                            .x = x,
                            .mean = mean,
                            .rstd = rstd,
                            .row_weight = row_weight,
                            .shape = shape};
    cpu_spread(kernels, sums_of_channels, &b, shape.channels, 16);
}

/* --- what is done with them, spread over rows and positions ------------------------------------------------------ */

static void forward_items(const void *arguments, struct cpu_share share)
{
    const struct batch *b = arguments;
    const size_t channels = b->shape.channels;
    real x_buffer[CHUNK], weight_buffer[CHUNK], bias_buffer[CHUNK];
    for (size_t c = 0; c < channels; c += CHUNK) {
        const size_t n = smaller(CHUNK, channels - c);
        const real *w = widen(weight_buffer, b->weight + c, n);
        const real *bias = b->bias ? widen(bias_buffer, b->bias + c, n) : NULL;
        const real *mean = b->mean + c, *rstd = b->rstd + c;
        for (size_t item = share.begin; item < share.end; item++) {
            const size_t at = item * channels + c;
            const real *v = widen(x_buffer, b->x + at, n);
            real *out = place(x_buffer, b->out + at);
            if (bias)
                SIMD for (size_t i = 0; i < n; i++) out[i] = (v[i] - mean[i]) * rstd[i] * w[i] + bias[i];
            else
                SIMD for (size_t i = 0; i < n; i++) out[i] = (v[i] - mean[i]) * rstd[i] * w[i];
            narrow(b->out + at, out, n);
        }
    }
}

void cpu_batchnorm_forward(struct kernels *kernels, compute *y, const compute *x, const wide *mean, const wide *rstd,
                           const compute *weight, const compute *bias, struct norm_shape shape)
{
    const struct batch b = {
        .out = y, .x = x, .mean = mean, .rstd = rstd, .weight = weight, .bias = bias, .shape = shape};
    cpu_spread(kernels, forward_items, &b, shape.rows * shape.positions, 8);
}

/* dx = rstd·w·(dy − mean(dy) − n·mean(dy·n)), the means being those of the whole set. */
static void backward_items(const void *arguments, struct cpu_share share)
{
    const struct batch *b = arguments;
    const size_t channels = b->shape.channels;
    real dy_buffer[CHUNK], x_buffer[CHUNK], weight_buffer[CHUNK], mean_dy[CHUNK] = {0}, mean_dyn[CHUNK] = {0};
    for (size_t c = 0; c < channels; c += CHUNK) {
        const size_t n = smaller(CHUNK, channels - c);
        const real *w = widen(weight_buffer, b->weight + c, n);
        const real *mean = b->mean + c, *rstd = b->rstd + c;
        for (size_t i = 0; i < n && b->given; i++) {
            mean_dy[i] = (real)(b->given[c + i] / b->count);
            mean_dyn[i] = (real)(b->given[channels + c + i] / b->count);
        }
        for (size_t item = share.begin; item < share.end; item++) {
            const size_t at = item * channels + c;
            const real *d = widen(dy_buffer, b->dy + at, n), *v = widen(x_buffer, b->x + at, n);
            real *out = place(dy_buffer, b->out + at);
            if (is_masked(b, item))
                memset(out, 0, n * sizeof *out);
            else
                SIMD for (size_t i = 0; i < n; i++) out[i] =
                    rstd[i] * w[i] * (d[i] - mean_dy[i] - (v[i] - mean[i]) * rstd[i] * mean_dyn[i]);
            narrow(b->out + at, out, n);
        }
    }
}

void cpu_batchnorm_backward(struct kernels *kernels, compute *dx, const compute *dy, const compute *x, const wide *mean,
                            const wide *rstd, const compute *weight, const double *sums, double count,
                            const double *row_weight, struct norm_shape shape)
{
    const struct batch b = {.out = dx,
                            .dy = dy,
                            .x = x,
                            .weight = weight,
                            .mean = mean,
                            .rstd = rstd,
                            .row_weight = row_weight,
                            .given = sums,
                            .count = count,
                            .shape = shape};
    cpu_spread(kernels, backward_items, &b, shape.rows * shape.positions, 8);
}
