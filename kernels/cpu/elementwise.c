/*
 * Sums, activations and dropout, element by element.
 */
#include "kernels/cpu/activation.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/instance.h"

struct add {
    element *out;
    const element *a, *b; /* a NULL: nothing is added to */
    real factor;
};

static void add_share(const void *arguments, struct cpu_share share)
{
    const struct add *add = arguments;
    real a_buffer[CHUNK], b_buffer[CHUNK];
    for (size_t at = share.begin; at < share.end; at += CHUNK) {
        const size_t n = smaller(CHUNK, share.end - at);
        const real *a = add->a ? widen(a_buffer, add->a + at, n) : NULL, *b = widen(b_buffer, add->b + at, n);
        real *sum = place(a_buffer, add->out + at);
        if (a)
            SIMD for (size_t i = 0; i < n; i++) sum[i] = a[i] + add->factor * b[i];
        else
            SIMD for (size_t i = 0; i < n; i++) sum[i] = add->factor * b[i];
        narrow(add->out + at, sum, n);
    }
}

void cpu_add(struct kernels *kernels, compute *out, const compute *a, double factor, const compute *b, size_t n)
{
    const struct add add = {out, a, b, (real)factor};
    cpu_spread(kernels, add_share, &add, n, CHUNK);
}

struct activation_pass {
    element *out;
    const element *x;
    const element *dy; /* backward */
    enum activation activation;
};

static void forward_share(const void *arguments, struct cpu_share share)
{
    const struct activation_pass *pass = arguments;
    real buffer[CHUNK];
    for (size_t at = share.begin; at < share.end; at += CHUNK) {
        const size_t n = smaller(CHUNK, share.end - at);
        const real *x = widen(buffer, pass->x + at, n);
        real *y = place(buffer, pass->out + at);
        activate_run(y, x, pass->activation, n);
        narrow(pass->out + at, y, n);
    }
}

void cpu_activation_forward(struct kernels *kernels, compute *y, const compute *x, enum activation activation, size_t n)
{
    const struct activation_pass pass = {y, x, NULL, activation};
    cpu_spread(kernels, forward_share, &pass, n, CHUNK);
}

static void backward_share(const void *arguments, struct cpu_share share)
{
    const struct activation_pass *pass = arguments;
    real dy_buffer[CHUNK], x_buffer[CHUNK];
    for (size_t at = share.begin; at < share.end; at += CHUNK) {
        const size_t n = smaller(CHUNK, share.end - at);
        const real *dy = widen(dy_buffer, pass->dy + at, n), *x = widen(x_buffer, pass->x + at, n);
        real *dx = place(dy_buffer, pass->out + at);
        activation_slope_run(dx, dy, x, pass->activation, n);
        narrow(pass->out + at, dx, n);
    }
}

void cpu_activation_backward(struct kernels *kernels, compute *dx, const compute *dy, const compute *x,
                             enum activation activation, size_t n)
{
    const struct activation_pass pass = {dx, x, dy, activation};
    cpu_spread(kernels, backward_share, &pass, n, CHUNK);
}

struct dropout_pass {
    element *out;
    const element *x;
    const struct dropout *dropout;
    size_t elements, runs; /* of a sequence; a run is CHUNK elements, the last may be short */
};

static void dropout_share(const void *arguments, struct cpu_share share)
{
    const struct dropout_pass *pass = arguments;
    real buffer[CHUNK], factor[CHUNK];
    for (size_t run = share.begin; run < share.end; run++) {
        const size_t sequence = run / pass->runs, first = run % pass->runs * CHUNK;
        const size_t n = smaller(CHUNK, pass->elements - first), at = sequence * pass->elements + first;
        const real *x = widen(buffer, pass->x + at, n);
        real *kept = place(buffer, pass->out + at);
        dropout_factors(factor, pass->dropout, pass->dropout->sequence[sequence], first, n);
        SIMD for (size_t i = 0; i < n; i++) kept[i] = factor[i] == 0 ? 0 : x[i] * factor[i];
        narrow(pass->out + at, kept, n);
    }
}

void cpu_dropout(struct kernels *kernels, compute *out, const compute *x, const struct dropout *dropout, size_t batch,
                 size_t elements)
{
    if (elements == 0) return;
    if (!dropout_draws(dropout)) {
        if (out != x) memmove(out, x, batch * elements * sizeof(element));
        return;
    }
    const struct dropout_pass pass = {out, x, dropout, elements, (elements + CHUNK - 1) / CHUNK};
    cpu_spread(kernels, dropout_share, &pass, batch * pass.runs, 1);
}
