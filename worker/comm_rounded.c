#include "worker/comm_rounded.h"

#include "kernels/cpu/half.h"

float rounded_value(float x)
{
    return bf16_to_fp32(fp32_to_bf16(x));
}

void rounded_from_floats(uint16_t *out, const float *in, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) out[i] = fp32_to_bf16(in[i]);
}

void rounded_sum(float *sum, const float *own, const uint16_t *received, uint32_t rank, uint32_t ranks, uint64_t n)
{
    memset(sum, 0, n * sizeof *sum);
    for (uint32_t other = 0; other < ranks; other++) {
        const uint16_t *part = received + other * n;
        if (other == rank)
            for (uint64_t i = 0; i < n; i++) sum[i] += own[i];
        else
            for (uint64_t i = 0; i < n; i++) sum[i] += bf16_to_fp32(part[i]);
    }
}
