/*
 * What happens to parameters and gradients: rounding to the compute type, accumulation, the check of a shard and the
 * fused optimizer step.
 */
#include <math.h>

#include "kernels/cpu/element.h"
#include "kernels/cpu/instance.h"

#define RUN 4096 /* elements per unit of work */

struct cast {
    element *out;
    const real *in;
};

static void cast_share(const void *arguments, struct cpu_share share)
{
    const struct cast *cast = arguments;
    narrow(cast->out + share.begin, cast->in + share.begin, share.end - share.begin);
}

void cpu_cast(struct kernels *kernels, compute *out, const wide *in, size_t n)
{
    const struct cast cast = {out, in};
    cpu_spread(kernels, cast_share, &cast, n, RUN);
}

struct accumulate {
    real *into;
    const element *addend;
};

static void accumulate_share(const void *arguments, struct cpu_share share)
{
    const struct accumulate *a = arguments;
    real buffer[CHUNK];
    for (size_t at = share.begin; at < share.end; at += CHUNK) {
        const size_t n = smaller(CHUNK, share.end - at);
        const real *x = widen(buffer, a->addend + at, n);
        SIMD for (size_t i = 0; i < n; i++) a->into[at + i] += x[i];
    }
}

void cpu_accumulate(struct kernels *kernels, wide *into, const compute *addend, size_t n)
{
    const struct accumulate a = {into, addend};
    cpu_spread(kernels, accumulate_share, &a, n, RUN);
}

/* --- check ------------------------------------------------------------------------------------------------------- */

struct check {
    const real *gradient;
    double inverse_scale;
};

/* Leaves its sums at the start of the scratch memory. */
static void check_share(const void *arguments, struct cpu_share share)
{
    const struct check *check = arguments;
    const double inverse_scale = check->inverse_scale;
    double scaled = 0, unscaled = 0;
    real invalid = 0; /* 0, or NaN once an element is not finite */
    for (size_t at = share.begin; at < share.end; at += RUN) {
        const size_t n = smaller(RUN, share.end - at);
        const real *gradient = check->gradient + at;
        double part_scaled = 0, part_unscaled = 0;
        SIMD_SUM(part_scaled, part_unscaled, invalid) for (size_t i = 0; i < n; i++)
        {
            const double g = (double)gradient[i], u = g * inverse_scale;
            part_scaled += g * g;
            part_unscaled += u * u;
            invalid += gradient[i] * 0;
        }
        scaled += part_scaled;
        unscaled += part_unscaled;
    }
    *(struct gradient_check *)share.scratch = (struct gradient_check){invalid != 0, scaled, unscaled};
}

void cpu_check(struct kernels *kernels, struct gradient_check *into, const wide *gradient, size_t n,
               double inverse_scale)
{
    const struct check check = {gradient, inverse_scale};
    struct gradient_check all = {0};
    for (int t = 0; t < kernels->threads; t++) *(struct gradient_check *)cpu_scratch(kernels, t) = all;
    cpu_spread(kernels, check_share, &check, n, RUN);
    for (int t = 0; t < kernels->threads; t++) {
        const struct gradient_check *part = cpu_scratch(kernels, t);
        all.nonfinite += part->nonfinite;
        all.sum_squares_scaled += part->sum_squares_scaled;
        all.sum_squares += part->sum_squares;
    }
    into->nonfinite += all.nonfinite;
    into->sum_squares_scaled += all.sum_squares_scaled;
    into->sum_squares += all.sum_squares;
}

/* --- update ------------------------------------------------------------------------------------------------------ */

struct update_pass {
    real *w, *m, *v;
    const real *gradient;
    const struct update *update;
};

static real root(real x)
{
#if defined GACC_COMPUTE_FP64
    return sqrt(x);
#else
    return sqrtf(x);
#endif
}

/* w −= (lr/(1−β1^t))·m / (√v/√(1−β2^t) + eps): m̂ and v̂ with their constants drawn out. */
static void adamw_share(const void *arguments, struct cpu_share share)
{
    const struct update_pass *pass = arguments;
    const struct update *u = pass->update;
    real *w = pass->w, *m = pass->m, *v = pass->v;
    const real *gradient = pass->gradient;
    const real decay = (real)(u->lr * u->weight_decay), eps = (real)u->eps;
    const real beta1 = (real)u->beta1, rest1 = (real)(1 - u->beta1), beta2 = (real)u->beta2,
               rest2 = (real)(1 - u->beta2);
    const real step = (real)(u->lr / (1 - pow(u->beta1, (double)u->t)));
    const real correction = (real)(1 / sqrt(1 - pow(u->beta2, (double)u->t)));
    const double unscale = u->unscale;
    SIMD for (size_t i = share.begin; i < share.end; i++)
    {
        const real g = (real)((double)gradient[i] * unscale);
        const real decayed = w[i] - decay * w[i];
        m[i] = beta1 * m[i] + rest1 * g;
        v[i] = beta2 * v[i] + rest2 * g * g;
        w[i] = decayed - step * m[i] / (root(v[i]) * correction + eps);
    }
}

static void sgd_share(const void *arguments, struct cpu_share share)
{
    const struct update_pass *pass = arguments;
    const struct update *u = pass->update;
    real *w = pass->w, *m = pass->m;
    const real *gradient = pass->gradient;
    const real lr = (real)u->lr, decay = (real)u->weight_decay, momentum = (real)u->momentum;
    const double unscale = u->unscale;
    if (u->momentum == 0) {
        SIMD for (size_t i = share.begin; i < share.end; i++) w[i] -=
            lr * ((real)((double)gradient[i] * unscale) + decay * w[i]);
        return;
    }
    const bool first = u->t == 1;
    SIMD for (size_t i = share.begin; i < share.end; i++)
    {
        const real g = (real)((double)gradient[i] * unscale) + decay * w[i];
        m[i] = first ? g : momentum * m[i] + g;
        w[i] -= lr * m[i];
    }
}

void cpu_update(struct kernels *kernels, wide *master, wide *m, wide *v, const wide *gradient, size_t n,
                const struct update *update)
{
    const struct update_pass pass = {master, m, v, gradient, update};
    cpu_spread(kernels, update->kind == OPTIMIZER_KIND_ADAMW ? adamw_share : sgd_share, &pass, n, RUN);
}
