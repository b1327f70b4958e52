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

static void forward_rows(element *y, element *sum, real *mean, real *rstd, const element *x, const element *residual,
                         const element *weight, const element *bias, size_t width, size_t begin, size_t end)
{
    for (size_t r = begin; r < end; r++) {
        const element *row = x + r * width;
        if (residual) {
            add_row(sum + r * width, row, residual + r * width, width);
            row = sum + r * width;
        }
        const struct moments m = row_moments(row, width);
        normalise_row(y + r * width, row, m, weight, bias, width);
        mean[r] = m.mean;
        rstd[r] = m.rstd;
    }
}

void cpu_layernorm_forward(struct kernels *kernels, compute *y, compute *sum, wide *mean, wide *rstd, const compute *x,
                           const compute *residual, const compute *weight, const compute *bias, size_t rows,
                           size_t width)
{
    if (width == 0) return;
    CPU_PARALLEL(kernels, rows, 8, forward_rows(y, sum, mean, rstd, x, residual, weight, bias, width, begin, end));
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

static void backward_rows(element *dx, const element *dresidual, const element *dy, const element *x, const real *mean,
                          const real *rstd, const element *weight, size_t width, size_t begin, size_t end)
{
    for (size_t r = begin; r < end; r++) {
        const struct moments m = {mean[r], rstd[r]};
        backward_row(dx + r * width, dresidual ? dresidual + r * width : NULL, dy + r * width, x + r * width, m, weight,
                     width);
    }
}

/* Sums over rows, spread over columns: the same order whatever the number of threads. */
static void backward_columns(real *dweight, real *dbias, const element *dy, const element *x, const real *mean,
                             const real *rstd, size_t rows, size_t width, size_t begin, size_t end)
{
    real dy_buffer[CHUNK], x_buffer[CHUNK], weight_sum[CHUNK], bias_sum[CHUNK];
    for (size_t c = begin; c < end; c += CHUNK) {
        const size_t n = smaller(CHUNK, end - c);
        memset(weight_sum, 0, n * sizeof *weight_sum);
        memset(bias_sum, 0, n * sizeof *bias_sum);
        for (size_t r = 0; r < rows; r++) {
            const real *d = widen(dy_buffer, dy + r * width + c, n), *v = widen(x_buffer, x + r * width + c, n);
            const struct moments m = {mean[r], rstd[r]};
            SIMD for (size_t i = 0; i < n; i++)
            {
                weight_sum[i] += d[i] * ((v[i] - m.mean) * m.rstd);
                bias_sum[i] += d[i];
            }
        }
        SIMD for (size_t i = 0; i < n; i++) dweight[c + i] += weight_sum[i];
        if (!dbias) continue;
        SIMD for (size_t i = 0; i < n; i++) dbias[c + i] += bias_sum[i];
    }
}

void cpu_layernorm_backward(struct kernels *kernels, compute *dx, const compute *dresidual, wide *dweight, wide *dbias,
                            const compute *dy, const compute *x, const wide *mean, const wide *rstd,
                            const compute *weight, size_t rows, size_t width)
{
    CPU_PARALLEL(kernels, width, 16, backward_columns(dweight, dbias, dy, x, mean, rstd, rows, width, begin, end));
    CPU_PARALLEL(kernels, rows, 8, backward_rows(dx, dresidual, dy, x, mean, rstd, weight, width, begin, end));
}
