/*
 * What the checks share: the probe batch, the trials that were run on it, and the faults that are planted in all of
 * them (none for the job's own checks). A trial is asked for by its variant and kept for the next check that wants it.
 */
#ifndef GACC_SUITE_H
#define GACC_SUITE_H

#include <stdint.h>

#include "daemon/verify/trial.h"

/* The batch that every check runs on: the first `sequences` of the job's order, in micro-batches of `micro`, the last
 * of which is shorter where that is possible. */
struct probe {
    uint32_t sequences, micro;
    uint64_t available; /* sequences of the train set */
};

/* What trials said once and checks ask for often; 0: not yet known. */
struct yardsticks {
    double floor[4];   /* by Gacc__V1__Compute: relative error of a gradient that only rounding and order explain */
    double rate;       /* the SGD learning rate at which one step moves the parameters by a tenth of their norm */
    double loss_scale; /* a sixteenth of the largest tried at which the probe does not overflow */
};

/* Variant of the job for one trial. All zero but compute and the sizes: plain SGD, constant lr, no clip, no dropout.
 * Adapters begin where the first of their matrices has a gradient, too. */
struct variant {
    double rate, clip, dropout; /* dropout < 0: the job's own */
    double loss_scale;          /* fp16 */
    double shift;               /* the initial parameters are moved so far along the gradient of the probe in fp64 */
    double stir;                /* before that each by up to so much, this way or that */
    uint64_t train;             /* every epoch is so many sequences, those with which the first begins; 0: all */
    uint64_t steps;
    uint64_t rounded;                                /* 0 or 1: gradients travel as bf16 */
    uint64_t retries;                                /* 0: an overflow is skipped; else it passes at a lower S */
    uint64_t keeps_activations;                      /* 0 or 1: whatever the job says of recompute */
    uint64_t keeps_groups;                           /* 0 or 1: ratios of lr, and decays, as the job has them */
    uint64_t bits;                                   /* of the initial parameters' significands; 0: all */
    uint32_t compute;                                /* Gacc__V1__Compute */
    uint32_t sequences, micro, ranks;                /* ranks: RANKS_OF_LAUNCHER or threads */
    uint32_t warmup, interval;                       /* interval 0: the scale does not grow */
    uint32_t adamw, reference, reversed, self_check; /* 0 or 1 */
    uint32_t overflow_at_step, overflow_micro_batch; /* an event, no fault; step 0: never; the micro-batch is global */
};
#define RANKS_OF_LAUNCHER 0

#define SUITE_TRIALS 12

struct suite {
    const Gacc__V1__JobSpec *job; /* borrowed */
    struct comm *launcher;        /* NULL unless started by mpirun with more than one rank; borrowed */
    const struct device *device;  /* NULL: the CPU; borrowed */
    struct faults faults;
    enum decision_fault decision_fault;
    struct probe probe;
    struct yardsticks yardsticks;
    struct {
        struct variant variant;
        struct trial trial;
        uint64_t used; /* 0: empty */
    } trials[SUITE_TRIALS];
    uint64_t clock;
};

/* Chooses the probe: `sequences` of them, 0: four micro-batches of the job for every rank and one sequence more, fewer
 * where that many would take too long or more memory than the job itself. Errors are the job's; then there is nothing
 * to close. */
int suite_open(struct suite *suite, const Gacc__V1__JobSpec *job, struct comm *launcher, const struct device *device,
               uint64_t sequences, struct error *error);
/* The same probe for trials with faults, by threads only; its yardsticks are measured anew. */
void suite_open_faulty(struct suite *suite, const struct suite *sound, const struct faults *faults,
                       enum decision_fault decision_fault);
void suite_close(struct suite *suite);

/* One trial as the variant says. Valid until SUITE_TRIALS others were asked for. NULL with *error. */
const struct trial *suite_trial(struct suite *suite, const struct variant *variant, struct error *error);

/* The probe as one micro-batch of one rank, or as the probe's micro-batches over some ranks; one step. */
struct variant variant_whole(const struct suite *suite, Gacc__V1__Compute type);
struct variant variant_split(const struct suite *suite, Gacc__V1__Compute type, uint32_t ranks);

/* Micro-batches of a step, and those of the rank that runs most. */
uint32_t variant_micro_batches(const struct variant *variant);
uint32_t variant_per_rank(const struct suite *suite, const struct variant *variant);
uint32_t variant_ranks(const struct suite *suite, const struct variant *variant);

#endif
