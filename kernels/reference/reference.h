/* The parts of the reference backend that have a file of their own. Signatures as in struct kernel_table. */
#ifndef GACC_KERNELS_REFERENCE_H
#define GACC_KERNELS_REFERENCE_H

#include "kernels/kernels.h"

void reference_attention_forward(struct kernels *, compute *out, wide *lse, const compute *qkv,
                                 const struct dropout *dropout, struct attention_shape shape);
void reference_attention_backward(struct kernels *, compute *dqkv, const compute *dout, const compute *out,
                                  const wide *lse, const compute *qkv, const struct dropout *dropout,
                                  struct attention_shape shape);

#endif
