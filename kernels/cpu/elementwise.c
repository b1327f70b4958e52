/*
 * Sums, activations and dropout, element by element.
 */
#include "kernels/cpu/activation.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/instance.h"

static void add_run(element *out, const element *a, const element *b, size_t begin, size_t end)
{
    real a_buffer[CHUNK], b_buffer[CHUNK];
    for (size_t at = begin; at < end; at += CHUNK) {
        const size_t n = smaller(CHUNK, end - at);
        const real *x = widen(a_buffer, a + at, n), *y = widen(b_buffer, b + at, n);
        real *sum = place(a_buffer, out + at);
        SIMD for (size_t i = 0; i < n; i++) sum[i] = x[i] + y[i];
        narrow(out + at, sum, n);
    }
}

void cpu_add(struct kernels *kernels, compute *out, const compute *a, const compute *b, size_t n)
{
    CPU_PARALLEL(kernels, n, CHUNK, add_run(out, a, b, begin, end));
}

static void forward_run(element *y, const element *x, enum activation activation, size_t begin, size_t end)
{
    real buffer[CHUNK];
    for (size_t at = begin; at < end; at += CHUNK) {
        const size_t n = smaller(CHUNK, end - at);
        const real *in = widen(buffer, x + at, n);
        real *out = place(buffer, y + at);
        activate_run(out, in, activation, n);
        narrow(y + at, out, n);
    }
}

void cpu_activation_forward(struct kernels *kernels, compute *y, const compute *x, enum activation activation, size_t n)
{
    CPU_PARALLEL(kernels, n, CHUNK, forward_run(y, x, activation, begin, end));
}

static void backward_run(element *dx, const element *dy, const element *x, enum activation activation, size_t begin,
                         size_t end)
{
    real dy_buffer[CHUNK], x_buffer[CHUNK];
    for (size_t at = begin; at < end; at += CHUNK) {
        const size_t n = smaller(CHUNK, end - at);
        const real *in = widen(dy_buffer, dy + at, n);
        real *out = place(dy_buffer, dx + at);
        activation_slope_run(out, in, widen(x_buffer, x + at, n), activation, n);
        narrow(dx + at, out, n);
    }
}

void cpu_activation_backward(struct kernels *kernels, compute *dx, const compute *dy, const compute *x,
                             enum activation activation, size_t n)
{
    CPU_PARALLEL(kernels, n, CHUNK, backward_run(dx, dy, x, activation, begin, end));
}

/* Rows of CHUNK elements; the last of a sequence may be short. */
static void dropout_rows(element *out, const element *x, const struct dropout *dropout, size_t elements, size_t begin,
                         size_t end)
{
    real x_buffer[CHUNK], factor[CHUNK];
    const size_t rows_per_sequence = (elements + CHUNK - 1) / CHUNK;
    for (size_t row = begin; row < end; row++) {
        const size_t sequence = row / rows_per_sequence, first = row % rows_per_sequence * CHUNK;
        const size_t n = smaller(CHUNK, elements - first), at = sequence * elements + first;
        const real *in = widen(x_buffer, x + at, n);
        real *kept = place(x_buffer, out + at);
        dropout_factors(factor, dropout, dropout->sequence[sequence], first, n);
        SIMD for (size_t i = 0; i < n; i++) kept[i] = factor[i] == 0 ? 0 : in[i] * factor[i];
        narrow(out + at, kept, n);
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
    const size_t rows = batch * ((elements + CHUNK - 1) / CHUNK);
    CPU_PARALLEL(kernels, rows, 1, dropout_rows(out, x, dropout, elements, begin, end));
}
