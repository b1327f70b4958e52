/*
 * What kernels add up in the course of a step, in the backend's memory, and the host's copy of it, read once: the check
 * of the own shard, a check per trained tensor (blame), and the loss sum of every micro-batch.
 */
#ifndef GACC_RESULTS_H
#define GACC_RESULTS_H

#include "kernels/kernels.h"
#include "proto/error.h"

/* What the host knows of a loss sum: it is in the unit of the micro-batch's weights. */
struct loss_unit {
    int exponent;      /* the unit is 2^exponent */
    double weight_sum; /* n_k */
};

struct results {
    struct kernels *kernels;
    size_t tensors;
    uint32_t room; /* losses */
    void *device;  /* check [1], tensor checks [tensors], loss [1], losses [room] */
    void *host;    /* the same as of the last results_read; `device` where memory is the host's */
    struct loss_unit *units;
    uint32_t losses; /* that were kept */
};

/* To be closed before the kernels are. */
int results_open(struct results *results, struct kernels *kernels, size_t tensors, struct error *error);
/* All zero, and no loss is kept; room for `losses`. */
int results_begin(struct results *results, uint32_t losses, struct error *error);
void results_close(struct results *results);

/* In the backend's memory, for kernels to add to. */
struct gradient_check *results_check(const struct results *results);
struct gradient_check *results_tensor_check(const struct results *results, size_t tensor);
double *results_loss(const struct results *results); /* of the micro-batch at hand */

/* Puts the loss of the micro-batch at hand with those of the others and makes it zero again. At most as often as
 * results_begin made room. */
void results_keep_loss(struct results *results, struct loss_unit unit);

/* Waits for all that was asked of the kernels; then the host's copy is good. */
int results_read(struct results *results, struct error *error);
struct gradient_check results_check_read(const struct results *results);
struct gradient_check results_tensor_check_read(const struct results *results, size_t tensor);
/* Σ of the kept losses, as such; with means each of them divided by its weight. In order, in a range that no weight
 * leaves. */
long double results_loss_sum(const struct results *results, bool means);

#endif
