/*
 * Doubles into the compute type, rounded once.
 */
#ifndef GACC_ROUNDING_H
#define GACC_ROUNDING_H

#include <stddef.h>

#include "kernels/kernels.h"

/* out[n] = in[n] to the nearest number of the kernels' compute type, ties to even. */
void rounding_from_double(struct kernels *kernels, compute *out, const double *in, size_t n);

#endif
