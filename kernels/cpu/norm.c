/*
 * LayerNorm (Ba, Kiros and Hinton 2016) with the residual sum in the same pass. The variance is taken about the mean,
 * in a pass of its own: Σx² − mean² would lose what a large mean leaves of it.
 */
#include <math.h>

#include "kernels/cpu/element.h"
#include "kernels/cpu/instance.h"

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

/* Rows whose sums are added up side by side: one alone would wait for each of its additions. */
#define ABREAST 4

static void moments_abreast(const element *const rows[ABREAST], size_t width, struct moments moments[ABREAST])
{
    real buffer[ABREAST][CHUNK], mean[ABREAST];
    real a = 0, b = 0, c = 0, d = 0;
    for (size_t at = 0; at < width; at += CHUNK) {
        const size_t n = smaller(CHUNK, width - at);
        const real *v0 = widen(buffer[0], rows[0] + at, n), *v1 = widen(buffer[1], rows[1] + at, n),
                   *v2 = widen(buffer[2], rows[2] + at, n), *v3 = widen(buffer[3], rows[3] + at, n);
        SIMD_SUM(a, b, c, d) for (size_t i = 0; i < n; i++) a += v0[i], b += v1[i], c += v2[i], d += v3[i];
    }
    const real sums[ABREAST] = {a, b, c, d};
    for (size_t r = 0; r < ABREAST; r++) mean[r] = sums[r] / (real)width;
    a = b = c = d = 0;
    for (size_t at = 0; at < width; at += CHUNK) {
        const size_t n = smaller(CHUNK, width - at);
        const real *v0 = widen(buffer[0], rows[0] + at, n), *v1 = widen(buffer[1], rows[1] + at, n),
                   *v2 = widen(buffer[2], rows[2] + at, n), *v3 = widen(buffer[3], rows[3] + at, n);
        SIMD_SUM(a, b, c, d) for (size_t i = 0; i < n; i++)
        {
            a += (v0[i] - mean[0]) * (v0[i] - mean[0]);
            b += (v1[i] - mean[1]) * (v1[i] - mean[1]);
            c += (v2[i] - mean[2]) * (v2[i] - mean[2]);
            d += (v3[i] - mean[3]) * (v3[i] - mean[3]);
        }
    }
    const real squares[ABREAST] = {a, b, c, d};
    for (size_t r = 0; r < ABREAST; r++)
        moments[r] = (struct moments){mean[r], 1 / sqrt_real(squares[r] / (real)width + (real)NORM_EPS)};
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
    for (size_t first = share.begin; first < share.end; first += ABREAST) {
        const size_t count = smaller(ABREAST, share.end - first);
        const element *rows[ABREAST];
        struct moments moments[ABREAST];
        for (size_t r = 0; r < ABREAST; r++) { /* too few: the last one again, so that every row is added up alike */
            const size_t at = (first + smaller(r, count - 1)) * f->width;
            if (f->residual && r < count) add_row(f->sum + at, f->x + at, f->residual + at, f->width);
            rows[r] = (f->residual ? f->sum : f->x) + at;
        }
        moments_abreast(rows, f->width, moments);
        for (size_t r = 0; r < count; r++) {
            normalise_row(f->y + (first + r) * f->width, rows[r], moments[r], f->weight, f->bias, f->width);
            f->mean[first + r] = moments[r].mean;
            f->rstd[first + r] = moments[r].rstd;
        }
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
        if (b->dweight) SIMD for (size_t i = 0; i < n; i++) b->dweight[c + i] += weight_sum[i];
        if (b->dbias) SIMD for (size_t i = 0; i < n; i++) b->dbias[c + i] += bias_sum[i];
    }
}

void cpu_layernorm_backward(struct kernels *kernels, compute *dx, const compute *dresidual, wide *dweight, wide *dbias,
                            const compute *dy, const compute *x, const wide *mean, const wide *rstd,
                            const compute *weight, size_t rows, size_t width)
{
    const struct backward b = {dx, dresidual, dweight, dbias, dy, x, mean, rstd, weight, rows, width};
    if (dweight || dbias) cpu_spread(kernels, backward_columns, &b, width, 16);
    cpu_spread(kernels, backward_rows, &b, width > 0 ? rows : 0, 8);
}
