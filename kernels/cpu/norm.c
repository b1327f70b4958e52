/*
 * LayerNorm (Ba, Kiros and Hinton 2016) with the residual sum in the same pass. The variance is taken about the mean,
 * in a pass of its own: Σx² − mean² would lose what a large mean leaves of it.
 */
#include <math.h>

#include "kernels/cpu/element.h"
#include "kernels/cpu/instance.h"

#define LAYERNORM_EPS ((real)1e-5)

struct moments {
    real mean, rstd;
};

struct forward {
    element *y, *sum;
    real *mean, *rstd;
    const element *x, *residual, *weight, *bias;
    size_t width;
};

struct backward {
    element *dx;
    const element *dresidual;
    real *dweight, *dbias;
    const element *dy, *x;
    const real *mean, *rstd;
    const element *weight;
    size_t rows, width;
};

static real sqrt_real(real x)
{
    return (real)sqrt((double)x);
}

/* sum = x + residual, rounded */
static void add_row(element *sum, const element *x, const element *residual, size_t width)
{
    real x_buffer[CHUNK], residual_buffer[CHUNK];
    for (size_t c = 0; c < width; c += CHUNK) {
        const size_t n = smaller(CHUNK, width - c);
        const real *a = widen(x_buffer, x + c, n), *b = widen(residual_buffer, residual + c, n);
        real *out = place(x_buffer, sum + c);
        SIMD for (size_t i = 0; i < n; i++) out[i] = a[i] + b[i];
        narrow(sum + c, out, n);
    }
}

static struct moments row_moments(const element *x, size_t width)
{
    real buffer[CHUNK], sum = 0, squares = 0;
    for (size_t c = 0; c < width; c += CHUNK) {
        const size_t n = smaller(CHUNK, width - c);
        const real *v = widen(buffer, x + c, n);
        SIMD_SUM(sum) for (size_t i = 0; i < n; i++) sum += v[i];
    }
    const real mean = sum / (real)width;
    for (size_t c = 0; c < width; c += CHUNK) {
        const size_t n = smaller(CHUNK, width - c);
        const real *v = widen(buffer, x + c, n);
        SIMD_SUM(squares) for (size_t i = 0; i < n; i++) squares += (v[i] - mean) * (v[i] - mean);
    }
    return (struct moments){mean, 1 / sqrt_real(squares / (real)width + LAYERNORM_EPS)};
}

static void normalise_row(element *y, const element *x, struct moments m, const element *weight, const element *bias,
                          size_t width)
{
    real x_buffer[CHUNK], weight_buffer[CHUNK], bias_buffer[CHUNK];
    for (size_t c = 0; c < width; c += CHUNK) {
        const size_t n = smaller(CHUNK, width - c);
        const real *v = widen(x_buffer, x + c, n), *w = widen(weight_buffer, weight + c, n);
        real *out = place(x_buffer, y + c);
        if (bias) {
            const real *b = widen(bias_buffer, bias + c, n);
            SIMD for (size_t i = 0; i < n; i++) out[i] = (v[i] - m.mean) * m.rstd * w[i] + b[i];
        } else {
            SIMD for (size_t i = 0; i < n; i++) out[i] = (v[i] - m.mean) * m.rstd * w[i];
        }
        narrow(y + c, out, n);
    }
}

static void forward_rows(const void *arguments, struct cpu_share share)
{
    const struct forward *f = arguments;
    for (size_t r = share.begin; r < share.end; r++) {
        const size_t at = r * f->width;
        const element *row = f->x + at;
        if (f->residual) {
            add_row(f->sum + at, row, f->residual + at, f->width);
            row = f->sum + at;
        }
        const struct moments m = row_moments(row, f->width);
        normalise_row(f->y + at, row, m, f->weight, f->bias, f->width);
        f->mean[r] = m.mean;
        f->rstd[r] = m.rstd;
    }
}

void cpu_layernorm_forward(struct kernels *kernels, compute *y, compute *sum, wide *mean, wide *rstd, const compute *x,
                           const compute *residual, const compute *weight, const compute *bias, size_t rows,
                           size_t width)
{
    const struct forward f = {y, sum, mean, rstd, x, residual, weight, bias, width};
    cpu_spread(kernels, forward_rows, &f, width > 0 ? rows : 0, 8);
}

/* With n = (x − mean)·rstd and g = dy·weight: dx = rstd·(g − mean(g) − n·mean(g·n)). */
static void backward_row(element *dx, const element *dresidual, const element *dy, const element *x, struct moments m,
                         const element *weight, size_t width)
{
    real dy_buffer[CHUNK], x_buffer[CHUNK], weight_buffer[CHUNK], residual_buffer[CHUNK];
    real sum_g = 0, sum_gn = 0;
    for (size_t c = 0; c < width; c += CHUNK) {
        const size_t n = smaller(CHUNK, width - c);
        const real *d = widen(dy_buffer, dy + c, n), *v = widen(x_buffer, x + c, n),
                   *w = widen(weight_buffer, weight + c, n);
        SIMD_SUM(sum_g, sum_gn) for (size_t i = 0; i < n; i++)
        {
            const real g = d[i] * w[i];
            sum_g += g;
            sum_gn += g * ((v[i] - m.mean) * m.rstd);
        }
    }
    const real mean_g = sum_g / (real)width, mean_gn = sum_gn / (real)width;
    for (size_t c = 0; c < width; c += CHUNK) {
        const size_t n = smaller(CHUNK, width - c);
        const real *d = widen(dy_buffer, dy + c, n), *v = widen(x_buffer, x + c, n),
                   *w = widen(weight_buffer, weight + c, n);
        real *out = place(dy_buffer, dx + c);
        if (dresidual) {
            const real *r = widen(residual_buffer, dresidual + c, n);
            SIMD for (size_t i = 0; i < n; i++) out[i] =
                r[i] + m.rstd * (d[i] * w[i] - mean_g - (v[i] - m.mean) * m.rstd * mean_gn);
        } else {
            SIMD for (size_t i = 0; i < n; i++) out[i] =
                m.rstd * (d[i] * w[i] - mean_g - (v[i] - m.mean) * m.rstd * mean_gn);
        }
        narrow(dx + c, out, n);
    }
}

static void backward_rows(const void *arguments, struct cpu_share share)
{
    const struct backward *b = arguments;
    for (size_t r = share.begin; r < share.end; r++) {
        const size_t at = r * b->width;
        const struct moments m = {b->mean[r], b->rstd[r]};
        const element *dresidual = b->dresidual ? b->dresidual + at : NULL;
        backward_row(b->dx + at, dresidual, b->dy + at, b->x + at, m, b->weight, b->width);
    }
}

/* Sums over rows, spread over columns: the same order whatever the number of threads. */
static void backward_columns(const void *arguments, struct cpu_share share)
{
    const struct backward *b = arguments;
    real dy_buffer[CHUNK], x_buffer[CHUNK], weight_sum[CHUNK], bias_sum[CHUNK];
    for (size_t c = share.begin; c < share.end; c += CHUNK) {
        const size_t n = smaller(CHUNK, share.end - c);
        memset(weight_sum, 0, n * sizeof *weight_sum);
        memset(bias_sum, 0, n * sizeof *bias_sum);
        for (size_t r = 0; r < b->rows; r++) {
            const size_t at = r * b->width + c;
            const real *d = widen(dy_buffer, b->dy + at, n), *v = widen(x_buffer, b->x + at, n);
            const struct moments m = {b->mean[r], b->rstd[r]};
            SIMD for (size_t i = 0; i < n; i++)
            {
                weight_sum[i] += d[i] * ((v[i] - m.mean) * m.rstd);
                bias_sum[i] += d[i];
            }
        }
        SIMD for (size_t i = 0; i < n; i++) b->dweight[c + i] += weight_sum[i];
        if (!b->dbias) continue;
        SIMD for (size_t i = 0; i < n; i++) b->dbias[c + i] += bias_sum[i];
    }
}

void cpu_layernorm_backward(struct kernels *kernels, compute *dx, const compute *dresidual, wide *dweight, wide *dbias,
                            const compute *dy, const compute *x, const wide *mean, const wide *rstd,
                            const compute *weight, size_t rows, size_t width)
{
    const struct backward b = {dx, dresidual, dweight, dbias, dy, x, mean, rstd, weight, rows, width};
    cpu_spread(kernels, backward_columns, &b, width, 16);
    cpu_spread(kernels, backward_rows, &b, width > 0 ? rows : 0, 8);
}
