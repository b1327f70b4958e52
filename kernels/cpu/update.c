/*
 * What happens to parameters and gradients: rounding to the compute type, accumulation, the check of a shard and the
 * fused optimizer step.
 */
#include <math.h>

#include "kernels/cpu/element.h"
#include "kernels/cpu/instance.h"

#define RUN 4096 /* elements per unit of work */

static void cast_run(element *out, const real *in, size_t begin, size_t end)
{
    narrow(out + begin, in + begin, end - begin);
}

void cpu_cast(struct kernels *kernels, compute *out, const wide *in, size_t n)
{
    CPU_PARALLEL(kernels, n, RUN, cast_run(out, in, begin, end));
}

static void accumulate_run(real *into, const element *addend, size_t begin, size_t end)
{
    real buffer[CHUNK];
    for (size_t at = begin; at < end; at += CHUNK) {
        const size_t n = smaller(CHUNK, end - at);
        const real *x = widen(buffer, addend + at, n);
        SIMD for (size_t i = 0; i < n; i++) into[at + i] += x[i];
    }
}

void cpu_accumulate(struct kernels *kernels, wide *into, const compute *addend, size_t n)
{
    CPU_PARALLEL(kernels, n, RUN, accumulate_run(into, addend, begin, end));
}

/* --- check ------------------------------------------------------------------------------------------------------- */

static void check_run(struct gradient_check *sums, const real *gradient, double inverse_scale, size_t begin, size_t end)
{
    double scaled = 0, unscaled = 0;
    real invalid = 0; /* 0, or NaN once an element is not finite */
    for (size_t at = begin; at < end; at += RUN) {
        const size_t n = smaller(RUN, end - at);
        double part_scaled = 0, part_unscaled = 0;
        SIMD_SUM(part_scaled, part_unscaled, invalid) for (size_t i = 0; i < n; i++)
        {
            const double g = (double)gradient[at + i], u = g * inverse_scale;
            part_scaled += g * g;
            part_unscaled += u * u;
            invalid += gradient[at + i] * 0;
        }
        scaled += part_scaled;
        unscaled += part_unscaled;
    }
    *sums = (struct gradient_check){invalid == 0, scaled, unscaled};
}

struct gradient_check cpu_check(struct kernels *kernels, const wide *gradient, size_t n, double inverse_scale)
{
    struct gradient_check all = {.finite = true};
    for (int t = 0; t < kernels->threads; t++) *(struct gradient_check *)cpu_scratch(kernels, t) = all;
    CPU_PARALLEL(kernels, n, RUN, check_run(cpu_scratch(kernels, thread), gradient, inverse_scale, begin, end));
    for (int t = 0; t < kernels->threads; t++) {
        const struct gradient_check *part = cpu_scratch(kernels, t);
        all.finite = all.finite && part->finite;
        all.sum_squares_scaled += part->sum_squares_scaled;
        all.sum_squares += part->sum_squares;
    }
    return all;
}

/* --- update ------------------------------------------------------------------------------------------------------ */

static real root(real x)
{
#if defined GACC_COMPUTE_FP64
    return sqrt(x);
#else
    return sqrtf(x);
#endif
}

/* w −= (lr/(1−β1^t))·m / (√v/√(1−β2^t) + eps): m̂ and v̂ with their constants drawn out. */
static void adamw_run(real *w, real *m, real *v, const real *gradient, const struct update *u, size_t begin, size_t end)
{
    const real decay = (real)(u->lr * u->weight_decay), eps = (real)u->eps;
    const real beta1 = (real)u->beta1, rest1 = (real)(1 - u->beta1), beta2 = (real)u->beta2,
               rest2 = (real)(1 - u->beta2);
    const real step = (real)(u->lr / (1 - pow(u->beta1, (double)u->t)));
    const real correction = (real)(1 / sqrt(1 - pow(u->beta2, (double)u->t)));
    const double unscale = u->unscale;
    SIMD for (size_t i = begin; i < end; i++)
    {
        const real g = (real)((double)gradient[i] * unscale);
        const real decayed = w[i] - decay * w[i];
        m[i] = beta1 * m[i] + rest1 * g;
        v[i] = beta2 * v[i] + rest2 * g * g;
        w[i] = decayed - step * m[i] / (root(v[i]) * correction + eps);
    }
}

static void sgd_run(real *w, real *m, const real *gradient, const struct update *u, size_t begin, size_t end)
{
    const real lr = (real)u->lr, decay = (real)u->weight_decay, momentum = (real)u->momentum;
    const double unscale = u->unscale;
    if (u->momentum == 0) {
        SIMD for (size_t i = begin; i < end; i++) w[i] -= lr * ((real)((double)gradient[i] * unscale) + decay * w[i]);
        return;
    }
    const bool first = u->t == 1;
    SIMD for (size_t i = begin; i < end; i++)
    {
        const real g = (real)((double)gradient[i] * unscale) + decay * w[i];
        m[i] = first ? g : momentum * m[i] + g;
        w[i] -= lr * m[i];
    }
}

void cpu_update(struct kernels *kernels, wide *master, wide *m, wide *v, const wide *gradient, size_t n,
                const struct update *update)
{
    if (update->kind == OPTIMIZER_KIND_ADAMW)
        CPU_PARALLEL(kernels, n, RUN, adamw_run(master, m, v, gradient, update, begin, end));
    else
        CPU_PARALLEL(kernels, n, RUN, sgd_run(master, m, gradient, update, begin, end));
}
