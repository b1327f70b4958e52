/*
 * A rank's share of the optimizers: moments for its shard, and the one fused pass that applies a step. Fused: unscale,
 * clip, decay and update meet in one sweep over the shard, so nothing between them can be done twice or in the wrong
 * order. Which optimizer, with what numbers, is a run's group's to say.
 */
#ifndef GACC_OPTIMIZER_H
#define GACC_OPTIMIZER_H

#include <stdint.h>

#include "kernels/kernels.h"
#include "proto/error.h"
#include "worker/layout.h"

struct optimizer {
    enum dtype wide_type;
    struct kernels *kernels; /* whose memory it is */
    void *arena;
    struct moments_at count; /* elements of m and v */
    wide *m, *v;             /* NULL: no run needs it */
};

/* What one applied step brings. */
struct optimizer_step {
    double lr;      /* of the window */
    double unscale; /* clip coefficient / S */
    uint64_t t;     /* applied steps, this one counted */
};

/* `count`: layout_moments of the rank. To be closed before the kernels are. */
int optimizer_open(struct optimizer *optimizer, struct kernels *kernels, enum dtype wide_type, struct moments_at count,
                   struct error *error);
/* master, gradient: the rank's shard; runs: layout_runs of it. */
void optimizer_apply(struct optimizer *optimizer, const struct layout *layout, const struct run *runs, size_t run_count,
                     wide *master, const wide *gradient, const struct optimizer_step *step);
void optimizer_close(struct optimizer *optimizer);

#endif
