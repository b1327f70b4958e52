/*
 * Losses with their gradients. Each row's loss is formed in double and summed in row order within a thread, then in
 * thread order.
 */
#include <math.h>

#include "kernels/cpu/element.h"
#include "kernels/cpu/instance.h"
#include "kernels/cpu/vector_math.h"

#define LANES 16

struct cross_entropy {
    element *logits;
    const int32_t *target;
    const double *weight;
    const real *seed;
    size_t repeat, classes, stride;
};

/* The largest of x[n], and 0, or NaN when one of them is not finite: an overflow is never hidden behind a probability
 * of 0. */
static real run_max(const real *x, size_t n, real largest, real *poison)
{
    real lane[LANES], invalid = 0;
    for (size_t l = 0; l < LANES; l++) lane[l] = largest;
    SIMD_SUM(invalid) for (size_t i = 0; i < n; i++) invalid += x[i] * 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        SIMD for (size_t l = 0; l < LANES; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    }
    for (; i < n; i++) lane[0] = x[i] > lane[0] ? x[i] : lane[0];
    for (size_t l = 0; l < LANES; l++) largest = lane[l] > largest ? lane[l] : largest;
    *poison += invalid;
    return largest;
}

struct log_sum {
    real max;
    double log; /* log-sum-exp = max + log */
};

static struct log_sum log_sum_exp(const element *x, size_t classes)
{
    real buffer[CHUNK], max = (real)-INFINITY, poison = 0;
    double sum = 0;
    for (size_t c = 0; c < classes; c += CHUNK) {
        const size_t n = smaller(CHUNK, classes - c);
        max = run_max(widen(buffer, x + c, n), n, max, &poison);
    }
    for (size_t c = 0; c < classes; c += CHUNK) {
        const size_t n = smaller(CHUNK, classes - c);
        const real *v = widen(buffer, x + c, n);
        real part = 0;
        SIMD_SUM(part) for (size_t i = 0; i < n; i++) part += exp_real(v[i] - max);
        sum += (double)part;
    }
    return (struct log_sum){max, log(sum) + (double)poison};
}

/* (p − onehot)·seed in place; p = e^(x − max)/sum. */
static void gradient_row(element *x, int32_t target, struct log_sum lse, real seed, size_t classes)
{
    real buffer[CHUNK];
    const real inverse = (real)exp(-lse.log);
    for (size_t c = 0; c < classes; c += CHUNK) {
        const size_t n = smaller(CHUNK, classes - c);
        const real *v = widen(buffer, x + c, n);
        real *out = place(buffer, x + c);
        const size_t hit = (size_t)target - c;
        const real at_target = hit < n ? (exp_real(v[hit] - lse.max) * inverse - 1) * seed : 0;
        SIMD for (size_t i = 0; i < n; i++) out[i] = exp_real(v[i] - lse.max) * inverse * seed;
        if (hit < n) out[hit] = at_target;
        narrow(x + c, out, n);
    }
}

static void cross_entropy_rows(const void *arguments, struct cpu_share share)
{
    const struct cross_entropy *ce = arguments;
    double sum = 0;
    for (size_t r = share.begin; r < share.end; r++) {
        element *x = ce->logits + r * ce->stride;
        const double weight = ce->target[r] < 0 ? 0 : ce->weight[r / ce->repeat];
        if (weight == 0) {
            if (ce->seed) memset(x, 0, ce->stride * sizeof *x);
            continue;
        }
        real target;
        target = *widen(&target, x + ce->target[r], 1);
        const struct log_sum lse = log_sum_exp(x, ce->classes);
        sum += weight * (lse.log + ((double)lse.max - (double)target));
        if (!ce->seed) continue;
        gradient_row(x, ce->target[r], lse, ce->seed[r / ce->repeat], ce->classes);
        memset(x + ce->classes, 0, (ce->stride - ce->classes) * sizeof *x);
    }
    *(double *)share.scratch = sum;
}

/* Spread the rows; each share leaves its sum at the start of its scratch memory, where they are added in thread order.
 */
static double sum_rows(struct kernels *kernels, cpu_task *task, const void *arguments, size_t rows, size_t unit)
{
    double sum = 0;
    for (int thread = 0; thread < kernels->threads; thread++) *(double *)cpu_scratch(kernels, thread) = 0;
    cpu_spread(kernels, task, arguments, rows, unit);
    for (int thread = 0; thread < kernels->threads; thread++) sum += *(double *)cpu_scratch(kernels, thread);
    return sum;
}

void cpu_cross_entropy(struct kernels *kernels, compute *logits, const int32_t *target, const double *weight,
                       const wide *seed, size_t rows, size_t repeat, size_t classes, size_t stride, double *loss_sum)
{
    const struct cross_entropy ce = {logits, target, weight, seed, repeat, classes, stride};
    *loss_sum += sum_rows(kernels, cross_entropy_rows, &ce, rows, 8);
}

struct squared_error {
    element *gradient;
    const element *prediction;
    const double *target, *weight;
    const real *seed;
    double factor;
    size_t outputs;
};

/* Σ(ŷ−y)², and the gradient 2·factor·(ŷ−y)·seed when there is a place for it. */
static double squared_error_row(element *gradient, const element *prediction, const double *target, double slope,
                                size_t outputs)
{
    real buffer[CHUNK];
    double sum = 0;
    for (size_t c = 0; c < outputs; c += CHUNK) {
        const size_t n = smaller(CHUNK, outputs - c);
        const real *v = widen(buffer, prediction + c, n);
        real *out = gradient ? place(buffer, gradient + c) : buffer;
        SIMD_SUM(sum) for (size_t i = 0; i < n; i++)
        {
            const double error = (double)v[i] - target[c + i];
            sum += error * error;
            out[i] = (real)(error * slope);
        }
        if (gradient) narrow(gradient + c, out, n);
    }
    return sum;
}

static void squared_error_rows(const void *arguments, struct cpu_share share)
{
    const struct squared_error *se = arguments;
    double sum = 0;
    for (size_t r = share.begin; r < share.end; r++) {
        const size_t at = r * se->outputs;
        element *gradient = se->seed ? se->gradient + at : NULL;
        if (se->weight[r] == 0) {
            if (gradient) memset(gradient, 0, se->outputs * sizeof *gradient);
            continue;
        }
        const double slope = gradient ? 2 * se->factor * (double)se->seed[r] : 0;
        const double squares = squared_error_row(gradient, se->prediction + at, se->target + at, slope, se->outputs);
        sum += se->weight[r] * se->factor * squares;
    }
    *(double *)share.scratch = sum;
}

void cpu_squared_error(struct kernels *kernels, compute *gradient, const compute *prediction, const double *target,
                       const double *weight, const wide *seed, double factor, size_t rows, size_t outputs,
                       double *loss_sum)
{
    const struct squared_error se = {gradient, prediction, target, weight, seed, factor, outputs};
    *loss_sum += sum_rows(kernels, squared_error_rows, &se, rows, 64);
}
