/*
 * The control side of a trial: no socket and no coordinator. Every rank has a conductor of its own, and all of them are
 * fed the same messages in the same order, so that all decide alike: each call broadcasts every rank's message to every
 * other, over a communicator that the sessions do not use.
 */
#ifndef GACC_CONTROL_LOCAL_H
#define GACC_CONTROL_LOCAL_H

#include "daemon/coordinator/conductor.h"
#include "daemon/coordinator/job_rules.h"
#include "daemon/verify/trial.h"
#include "worker/comm.h"
#include "worker/session.h"

struct control_local {
    struct control control;       /* first: a control is a control_local */
    struct comm *comm;            /* borrowed; its counts are nobody's */
    const Gacc__V1__JobSpec *job; /* borrowed */
    struct conductor *conductor;  /* NULL until opened */
    uint64_t attempts;            /* the job ends after so many */
    struct trial_step *steps;     /* [attempts], filled as they end; the caller's */
    uint64_t step_count;          /* of those that have ended */
    bool broken;                  /* the ranks are no longer in step: nothing can be exchanged */

    enum decision_fault fault;
    struct job_rules rules;    /* for the faults, complete after hello */
    double sum_squares_scaled; /* of the reports at hand, all ranks */
    double weight, scale;      /* W, S and M' of the window under way, as the conductor has them */
    uint32_t micro_batches;
    double backed_off; /* what S is multiplied by too much when it falls once for every rank */
    uint64_t skips;
};

/* On an error the ranks can still agree on it. */
int control_local_open(struct control_local *local, const struct trial_spec *spec, const Gacc__V1__JobSpec *job,
                       struct comm *comm, struct trial_step *steps, struct error *error);
void control_local_close(struct control_local *local);

/* Every rank says how its part went, `result` with *why when negative; an error of one is everyone's: the lowest
 * failing rank's, named unless all failed. Ranks that are still in another collective call are waited for, where the
 * roll (comm_roll.h) has them come. */
int control_local_agree(struct control_local *local, int result, const struct error *why, struct error *error);

#endif
