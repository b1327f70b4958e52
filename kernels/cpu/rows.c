/*
 * What comes from the data in double: its rounding to the compute type, and the loss that is linear in it.
 */
#include <math.h>

#include "kernels/cpu/element.h"
#include "kernels/cpu/instance.h"

#if !ELEMENT_IS_REAL
/* A double cannot go through fp32 to fp16 or bf16 by rounding to nearest twice: the first rounding may make the tie
 * that the second one breaks the wrong way. Rounding to odd the first time (truncated towards zero, the last bit set
 * when anything was lost) keeps what the second needs to know (Boldo and Melquiond 2008, "Emulation of FMA and
 * correctly rounded sums"): it is right whenever the wider type has two bits more. */
static float round_to_odd(double value)
{
    const float nearest = (float)value;
    if (isinf(nearest) || isnan(nearest) || (double)nearest == value) return nearest;
    uint32_t bits = float_bits(nearest);
    if (fabs((double)nearest) > fabs(value)) bits--; /* the magnitude below: sign and magnitude order alike */
    return bits_float(bits | 1);
}
#endif

static void cast_row(element *out, const double *x, size_t n)
{
#if ELEMENT_IS_REAL
    for (size_t i = 0; i < n; i++) out[i] = (element)x[i];
#else
    real buffer[CHUNK];
    for (size_t at = 0; at < n; at += CHUNK) {
        const size_t count = smaller(CHUNK, n - at);
        for (size_t i = 0; i < count; i++) buffer[i] = round_to_odd(x[at + i]);
        narrow(out + at, buffer, count);
    }
#endif
}

struct cast_rows {
    element *out;
    const double *x, *weight;
    size_t columns;
};

static void cast_rows_share(const void *arguments, struct cpu_share share)
{
    const struct cast_rows *rows = arguments;
    for (size_t row = share.begin; row < share.end; row++) {
        element *out = rows->out + row * rows->columns;
        if (rows->weight[row] == 0)
            memset(out, 0, rows->columns * sizeof *out);
        else
            cast_row(out, rows->x + row * rows->columns, rows->columns);
    }
}

void cpu_cast_rows(struct kernels *kernels, compute *out, const double *x, const double *weight, size_t rows,
                   size_t columns)
{
    const struct cast_rows cast = {out, x, weight, columns};
    cpu_spread(kernels, cast_rows_share, &cast, rows, columns < CHUNK ? CHUNK / (columns + 1) + 1 : 1);
}

void cpu_linear_loss(struct kernels *kernels, const double *x, const double *weight, const compute *w, size_t rows,
                     size_t columns, double *loss_sum)
{
    (void)kernels;
    const element *narrow_w = w;
    real buffer[CHUNK];
    for (size_t row = 0; row < rows; row++) {
        double loss = 0;
        if (weight[row] == 0) continue;
        for (size_t at = 0; at < columns; at += CHUNK) {
            const size_t n = smaller(CHUNK, columns - at);
            const real *wide_w = widen(buffer, narrow_w + at, n);
            for (size_t i = 0; i < n; i++) loss += x[row * columns + at + i] * (double)wide_w[i];
        }
        *loss_sum += weight[row] * loss;
    }
}
