/* GroupNorm (Wu and He 2018) and BatchNorm (Ioffe and Szegedy 2015), element by element. */
#include <math.h>

#include "kernels/reference/reference.h"

static size_t element_at(struct norm_shape shape, size_t row, size_t position, size_t channel)
{
    return (row * shape.positions + position) * shape.channels + channel;
}

/* --- GroupNorm --------------------------------------------------------------------------------------------------- */

static void forward_group(double *y, double *mean_out, double *rstd_out, const double *x, const double *weight,
                          const double *bias, struct norm_shape shape, size_t row, size_t group)
{
    const size_t width = shape.channels / shape.groups, first = group * width;
    const double count = (double)(width * shape.positions);
    double mean = 0, variance = 0;
    for (size_t p = 0; p < shape.positions; p++)
        for (size_t c = first; c < first + width; c++) mean += x[element_at(shape, row, p, c)] / count;
    for (size_t p = 0; p < shape.positions; p++)
        for (size_t c = first; c < first + width; c++)
            variance += pow(x[element_at(shape, row, p, c)] - mean, 2) / count;
    const double rstd = 1 / sqrt(variance + NORM_EPS);
    for (size_t p = 0; p < shape.positions; p++)
        for (size_t c = first; c < first + width; c++) {
            const size_t at = element_at(shape, row, p, c);
            y[at] = (x[at] - mean) * rstd * weight[c] + (bias ? bias[c] : 0);
        }
    *mean_out = mean;
    *rstd_out = rstd;
}

void reference_groupnorm_forward(struct kernels *kernels, compute *y, wide *mean, wide *rstd, const compute *x,
                                 const compute *weight, const compute *bias, struct norm_shape shape)
{
    (void)kernels;
    for (size_t row = 0; row < shape.rows; row++)
        for (size_t group = 0; group < shape.groups; group++) {
            const size_t set = row * shape.groups + group;
            forward_group(y, (double *)mean + set, (double *)rstd + set, x, weight, bias, shape, row, group);
        }
}

/* With n = (x − mean)·rstd and g = dy·weight: dx = rstd·(g − mean(g) − n·mean(g·n)). */
static void backward_group(double *dx, double *dweight, double *dbias, const double *dy, const double *x, double mean,
                           double rstd, const double *weight, struct norm_shape shape, size_t row, size_t group)
{
    const size_t width = shape.channels / shape.groups, first = group * width;
    const double count = (double)(width * shape.positions);
    double mean_g = 0, mean_gn = 0;
    for (size_t p = 0; p < shape.positions; p++)
        for (size_t c = first; c < first + width; c++) {
            const size_t at = element_at(shape, row, p, c);
            const double n = (x[at] - mean) * rstd;
            mean_g += dy[at] * weight[c] / count;
            mean_gn += dy[at] * weight[c] * n / count;
            if (dweight) dweight[c] += dy[at] * n;
            if (dbias) dbias[c] += dy[at];
        }
    for (size_t p = 0; p < shape.positions; p++)
        for (size_t c = first; c < first + width; c++) {
            const size_t at = element_at(shape, row, p, c);
            dx[at] = rstd * (dy[at] * weight[c] - mean_g - (x[at] - mean) * rstd * mean_gn);
        }
}

void reference_groupnorm_backward(struct kernels *kernels, compute *dx, wide *dweight, wide *dbias, const compute *dy,
                                  const compute *x, const wide *mean, const wide *rstd, const compute *weight,
                                  struct norm_shape shape)
{
    (void)kernels;
    for (size_t row = 0; row < shape.rows; row++)
        for (size_t group = 0; group < shape.groups; group++) {
            const size_t set = row * shape.groups + group;
            backward_group(dx, dweight, dbias, dy, x, ((const double *)mean)[set], ((const double *)rstd)[set], weight,
                           shape, row, group);
        }
}

/* --- BatchNorm --------------------------------------------------------------------------------------------------- */

static bool is_there(const double *row_weight, size_t row)
{
    return !row_weight || row_weight[row] != 0;
}

void reference_batchnorm_moments(struct kernels *kernels, double *moments, const compute *x_, const double *row_weight,
                                 struct norm_shape shape)
{
    (void)kernels;
    const double *x = x_;
    double count = 0;
    for (size_t row = 0; row < shape.rows; row++) count += is_there(row_weight, row) ? (double)shape.positions : 0;
    for (size_t c = 0; c < shape.channels; c++) {
        double mean = 0, squares = 0;
        for (size_t row = 0; row < shape.rows; row++)
            for (size_t p = 0; p < shape.positions && is_there(row_weight, row); p++)
                mean += x[element_at(shape, row, p, c)] / count;
        for (size_t row = 0; row < shape.rows; row++)
            for (size_t p = 0; p < shape.positions && is_there(row_weight, row); p++)
                squares += pow(x[element_at(shape, row, p, c)] - mean, 2);
        moments[c] = mean;
        moments[shape.channels + c] = squares;
    }
}

void reference_batchnorm_settle(struct kernels *kernels, wide *mean, wide *rstd, double *all, double before,
                                const double *moments, double count, size_t channels)
{
    (void)kernels;
    for (size_t c = 0; c < channels; c++) {
        ((double *)mean)[c] = moments[c];
        ((double *)rstd)[c] = 1 / sqrt(moments[channels + c] / count + NORM_EPS);
        if (!(count > 0)) continue;
        const double joined = (before * all[c] + count * moments[c]) / (before + count);
        all[channels + c] +=
            moments[channels + c] + before * pow(all[c] - joined, 2) + count * pow(moments[c] - joined, 2);
        all[c] = joined;
    }
}

void reference_batchnorm_forward(struct kernels *kernels, compute *y, const compute *x, const wide *mean,
                                 const wide *rstd, const compute *weight, const compute *bias, struct norm_shape shape)
{
    (void)kernels;
    for (size_t i = 0; i < shape.rows * shape.positions * shape.channels; i++) {
        const size_t c = i % shape.channels;
        ((double *)y)[i] = (((const double *)x)[i] - ((const double *)mean)[c]) * ((const double *)rstd)[c] *
                               ((const double *)weight)[c] +
                           (bias ? ((const double *)bias)[c] : 0);
    }
}

void reference_batchnorm_sums(struct kernels *kernels, double *sums, wide *dweight, wide *dbias, const compute *dy_,
                              const compute *x_, const wide *mean, const wide *rstd, const double *row_weight,
                              struct norm_shape shape)
{
    (void)kernels;
    const double *dy = dy_, *x = x_;
    for (size_t c = 0; c < shape.channels; c++) {
        double sum_dy = 0, sum_dyn = 0;
        for (size_t row = 0; row < shape.rows; row++)
            for (size_t p = 0; p < shape.positions && is_there(row_weight, row); p++) {
                const size_t at = element_at(shape, row, p, c);
                sum_dy += dy[at];
                sum_dyn += dy[at] * (x[at] - ((const double *)mean)[c]) * ((const double *)rstd)[c];
            }
        sums[c] = sum_dy;
        sums[shape.channels + c] = sum_dyn;
        if (dbias) ((double *)dbias)[c] += sum_dy;
        if (dweight) ((double *)dweight)[c] += sum_dyn;
    }
}

/* dx = rstd·w·(dy − mean(dy) − n·mean(dy·n)), the means being those of the whole set. */
void reference_batchnorm_backward(struct kernels *kernels, compute *dx, const compute *dy_, const compute *x_,
                                  const wide *mean_, const wide *rstd_, const compute *weight_, const double *sums,
                                  double count, const double *row_weight, struct norm_shape shape)
{
    (void)kernels;
    const double *dy = dy_, *x = x_, *mean = mean_, *rstd = rstd_, *weight = weight_;
    for (size_t i = 0; i < shape.rows * shape.positions * shape.channels; i++) {
        const size_t c = i % shape.channels;
        const double mean_dy = sums ? sums[c] / count : 0, mean_dyn = sums ? sums[shape.channels + c] / count : 0;
        const double n = (x[i] - mean[c]) * rstd[c];
        ((double *)dx)[i] = is_there(row_weight, i / shape.channels / shape.positions)
                                ? rstd[c] * weight[c] * (dy[i] - mean_dy - n * mean_dyn)
                                : 0;
    }
}
