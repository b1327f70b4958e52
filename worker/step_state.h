/*
 * The state machine of one optimizer step. A rank is in one state at a time; every action of the session enters its
 * state first, so an action at the wrong moment (a second unscale, a clip before it, a decision before the last
 * micro-batch) is refused before it can touch anything.
 */
#ifndef GACC_STEP_STATE_H
#define GACC_STEP_STATE_H

#include <stdint.h>

#include "proto/error.h"
#include "proto/gacc/v1/workers.pb-c.h"

struct step_state {
    Gacc__V1__State state;
    uint64_t step;                   /* attempt */
    uint32_t micro_batches, current; /* of this rank in this step, and how many of them are done */
};

/* "Unscale", as messages name it. */
const char *step_state_name(Gacc__V1__State state);

/* In STARTING. */
void step_state_init(struct step_state *machine);

/* STARTING, EXIT_STEP, EVALUATE or PAUSED → ENTER_STEP. */
int step_state_begin(struct step_state *machine, uint64_t step, uint32_t micro_batches, struct error *error);
/* Refuses a transition that is not allowed, with 70 and a text that names both states. */
int step_state_enter(struct step_state *machine, Gacc__V1__State next, struct error *error);
/* The micro-batch at hand is done (after its backward), or left out for want of weight (instead of its forward). */
int step_state_micro_batch_done(struct step_state *machine, struct error *error);
/* A local error ends the window early: the micro-batches that are left will not run. */
void step_state_cut_short(struct step_state *machine);

#endif
