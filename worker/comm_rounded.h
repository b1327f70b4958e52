/*
 * Gradients that travel as bf16 (precision.reduce: bf16): half the bytes, and still sums in fp32 where they are owned.
 * What is sent is rounded; a rank's own part is not, so one rank alone rounds nothing.
 */
#ifndef GACC_COMM_ROUNDED_H
#define GACC_COMM_ROUNDED_H

#include <stdint.h>

/* What x arrives as. */
float rounded_value(float x);
/* out[n] = in[n], rounded to nearest even; NaN stays NaN, what is beyond bf16's range becomes infinite. */
void rounded_from_floats(uint16_t *out, const float *in, uint64_t n);
/* sum[n] = Σ over the ranks, in rank order and in fp32: of `rank` its own[n], of every other received[other·n …]. */
void rounded_sum(float *sum, const float *own, const uint16_t *received, uint32_t rank, uint32_t ranks, uint64_t n);

#endif
