/*
 * A linear layer of a model, and the low-rank adapter that it may have beside its weight (Hu et al. 2021, "LoRA"):
 *
 *     y = activate(x·W + bias + alpha/rank · (drop(x)·Aᵀ)·Bᵀ)
 *
 * Where a model has adapters they alone are trained. Nothing of an adapter is kept from forward to backward: what it
 * makes of x is rank numbers a row and is worked out again, so that it is the same whether a stage recomputes or not.
 */
#ifndef GACC_LINEAR_H
#define GACC_LINEAR_H

#include "worker/models/models.h"

struct linear {
    const struct tensor *weight, *bias; /* bias NULL: it has none */
    enum weight_layout layout;
    size_t stride;              /* as of linear_shape */
    const struct tensor *a, *b; /* [rank, in], [out, rank]; NULL: it has no adapter */
    double factor, dropout;     /* alpha/rank, p: the adapter's */
    uint32_t site;              /* of the dropout */
    size_t stage;               /* of the model */
};

/* Of a weight [in, out] or [out, in] in the model's table, for the stage that is built; it keeps its address. It may
 * become adapted. */
void linear_offer(struct linear *linear, struct model *model);

/* Adapters for the offered layers that the job's patterns match, once all stages are there: their tensors stand behind
 * all others, which are then fixed. 78: a pattern that matches none. */
int linear_adapt(struct model *model, struct error *error);

/* What a stage that runs such layers, one at a time, needs besides; rows of x. */
size_t linear_scratch_bytes(const struct linear *linear, size_t rows, enum dtype compute_type);

/* x [rows, in] → y [rows, out]; `pre` as of the kernel. */
void linear_forward(const struct pass *pass, const struct linear *linear, compute *y, compute *pre, const compute *x,
                    size_t rows, enum activation activation, void *scratch);
/* Adds to the gradients of what is trained. dx is the gradient of x, or, with an activation, of pre where
 * x = activate(pre): then x_or_pre is pre, and may be x afterwards. dx NULL: nobody wants it; without an activation it
 * may lie where x does. */
void linear_backward(const struct pass *pass, const struct linear *linear, compute *dx, const compute *dy,
                     compute *x_or_pre, size_t rows, enum activation activation, void *scratch);

#endif
