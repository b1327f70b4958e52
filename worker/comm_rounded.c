#include "worker/comm_rounded.h"

#include <string.h>

static uint16_t from_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return (uint16_t)((bits >> 16) | 0x40); /* quiet, and no infinity when the lower half is cut off */
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static float to_float(uint16_t rounded)
{
    uint32_t bits = (uint32_t)rounded << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

float rounded_value(float x)
{
    return to_float(from_float(x));
}

void rounded_from_floats(uint16_t *out, const float *in, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) out[i] = from_float(in[i]);
}

void rounded_sum(float *sum, const float *own, const uint16_t *received, uint32_t rank, uint32_t ranks, uint64_t n)
{
    memset(sum, 0, n * sizeof *sum);
    for (uint32_t other = 0; other < ranks; other++) {
        const uint16_t *part = received + other * n;
        if (other == rank)
            for (uint64_t i = 0; i < n; i++) sum[i] += own[i];
        else
            for (uint64_t i = 0; i < n; i++) sum[i] += to_float(part[i]);
    }
}
