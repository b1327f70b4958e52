/*
 * A trial: a few optimizer steps of a variant of the job, with the real sessions and the real conductor, and neither a
 * socket nor a file. What it leaves behind is what checks compare. The ranks are threads of this process, or, with
 * `launcher`, the processes that mpirun started: then all of them call trial_run together, with equal specs, and all
 * get the same result.
 */
#ifndef GACC_TRIAL_H
#define GACC_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/verdict.h"
#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"
#include "worker/comm.h"
#include "worker/session.h"

#define TRIAL_STEPS_MAX 8

/* Faults of whoever decides, planted between the conductor and the sessions: the conductor itself has none. */
enum decision_fault {
    DECISION_FAITHFUL,
    DECISION_CLIPS_SCALED,       /* the coefficient comes from the norm before unscaling */
    DECISION_STALE_WEIGHT,       /* W of the step before */
    DECISION_NEW_SCALE,          /* the window is stamped with the scale after the update */
    DECISION_SCHEDULE_ON_SKIP,   /* the schedule moves on a skip, too */
    DECISION_BACKS_OFF_PER_RANK, /* S falls once for every rank of the job */
};

struct trial_spec {
    const Gacc__V1__JobSpec *job; /* the variant: batch, precision, optimizer as the trial wants them; borrowed */
    uint32_t ranks;               /* threads; ignored with launcher */
    struct comm *launcher;        /* NULL, or the communicator of mpirun's ranks; borrowed */
    const struct device *device;  /* NULL: the CPU; of the reference it always is; borrowed */
    uint64_t steps;               /* attempts, at most TRIAL_STEPS_MAX */
    bool reference;               /* kernels/reference; the job's precision must be fp64 */
    uint64_t train;               /* every epoch is so many sequences, those with which the first begins; 0: all */
    bool reversed;        /* the sequences of every global batch in reverse order: the same sum, added up otherwise */
    struct faults faults; /* worker/session.h */
    enum decision_fault decision_fault;
};

/* One attempt, as the log would have it (interfaces.md names the fields). Norms are NaN unless applied. */
struct trial_step {
    enum verdict_kind verdict;
    uint32_t retries;
    double loss, weight, lr;
    double loss_scale, loss_scale_next; /* 1 without a scaler */
    uint32_t growth_tracker;
    double grad_norm_scaled, grad_norm, grad_norm_clipped, clip_coefficient;
    uint64_t optimizer_steps, skipped_steps, scheduler_steps; /* after it */
    uint32_t reduce_scatters, all_gathers, control_collectives;
    uint64_t reduce_scatter_bytes, all_gather_bytes;
    uint64_t bytes_changed; /* of parameters, master parameters and moments, all ranks together */
    bool gradients_cleared; /* after it, on all ranks */
};

struct trial {
    uint64_t parameters; /* P, of the canonical index */
    uint64_t trained;    /* those of them that are not frozen */
    uint32_t buckets;    /* in which they are reduced and gathered: one on CPUs */
    uint64_t step_count;
    struct trial_step steps[TRIAL_STEPS_MAX];
    double *gradient;             /* [P] of the first attempt: reduced over the ranks, divided by the S of its window;
                                     0 where frozen */
    double *before;               /* [P] master parameters */
    double *after;                /* [P] master parameters after the last attempt; running statistics as before */
    double *running;              /* [P] running statistics after the last attempt; 0 elsewhere */
    struct session_memory memory; /* of rank 0 */
};

/* Refused: no step or more than TRIAL_STEPS_MAX (70); whatever the sessions or the conductor refuse. The attempts are
 * spec->steps, whatever the job says of its length and its evaluations; where the job ends by numerics before that, the
 * trial fails with 76. An error of one rank is everyone's. On an error *trial holds nothing. Re-entrant; leaves the
 * launcher as it was, its counts included. */
int trial_run(struct trial *trial, const struct trial_spec *spec, struct error *error);
void trial_free(struct trial *trial);

#endif
