/*
 * A double cannot go through fp32 to fp16 or bf16 by rounding to nearest twice: the first rounding may make the tie
 * that the second one breaks the wrong way. Rounding to odd the first time keeps what the second needs to know (Boldo
 * and Melquiond 2008, "Emulation of FMA and correctly rounded sums"): it is right whenever the wider type has two bits
 * more.
 */
#include "worker/rounding.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Truncated towards zero, the last bit set when anything was lost. */
static float round_to_odd(double value)
{
    float nearest = (float)value;
    if (isinf(nearest) || isnan(nearest) || (double)nearest == value) return nearest;
    uint32_t bits;
    memcpy(&bits, &nearest, sizeof bits);
    if (fabs((double)nearest) > fabs(value)) bits--; /* the magnitude below: sign and magnitude order alike */
    bits |= 1;
    memcpy(&nearest, &bits, sizeof nearest);
    return nearest;
}

void rounding_from_double(struct kernels *kernels, compute *out, const double *in, size_t n)
{
    enum { CHUNK = 256 };
    float chunk[CHUNK];
    if (kernels->compute_type == DTYPE_FP64) {
        memcpy(out, in, n * sizeof *in);
        return;
    }
    for (size_t begin = 0; begin < n; begin += CHUNK) {
        size_t count = n - begin < CHUNK ? n - begin : CHUNK;
        for (size_t i = 0; i < count; i++)
            chunk[i] = kernels->compute_type == DTYPE_FP32 ? (float)in[begin + i] : round_to_odd(in[begin + i]);
        kernels->table->cast(kernels, (char *)out + begin * dtype_size(kernels->compute_type), chunk, count);
    }
}
