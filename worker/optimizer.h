/*
 * A rank's share of the optimizer: moments for its shard, and the one fused pass that applies a step. Fused: unscale,
 * clip, decay and update meet in one sweep over the shard, so nothing between them can be done twice or in the wrong
 * order.
 */
#ifndef GACC_OPTIMIZER_H
#define GACC_OPTIMIZER_H

#include <stdint.h>

#include "kernels/kernels.h"
#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"
#include "worker/layout.h"

struct optimizer {
    struct update constants; /* kind, betas, eps, momentum; the rest belongs to a step */
    enum dtype wide_type;
    uint64_t elements;
    struct kernels *kernels; /* whose memory it is */
    void *arena;
    wide *m, *v; /* [elements], NULL where the kind needs none */
};

/* What one applied step brings. */
struct optimizer_step {
    double lr;      /* of the window */
    double unscale; /* clip coefficient / S */
    uint64_t t;     /* applied steps, this one counted */
};

/* To be closed before the kernels are. */
int optimizer_open(struct optimizer *optimizer, struct kernels *kernels, const Gacc__V1__OptimizerSection *spec,
                   enum dtype wide_type, uint64_t elements, struct error *error);
/* master, gradient: [elements], the rank's shard; runs: layout_runs of it. */
void optimizer_apply(struct optimizer *optimizer, const struct layout *layout, const struct run *runs, size_t run_count,
                     wide *master, const wide *gradient, const struct optimizer_step *step);
void optimizer_close(struct optimizer *optimizer);

#endif
