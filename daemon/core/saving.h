/*
 * When a checkpoint is made, and when a job that was asked to stop does so, pure. Both happen at the boundary behind a
 * step, on all ranks alike; a second checkpoint never begins before the first has ended.
 */
#ifndef GACC_SAVING_H
#define GACC_SAVING_H

#include <stdbool.h>
#include <stdint.h>

#define SAVING_FAILURES_MOST 2 /* in a row: then the job ends */

struct saving {
    uint64_t every; /* applied optimizer steps; 0: never by itself */
    bool asked;     /* for one checkpoint, at the next boundary */
    bool stopping;  /* asked to stop, with a checkpoint */
    uint32_t failures_in_a_row;
};

struct saving_decision {
    bool save, stop;
};

/* Whether a checkpoint may be due behind the step that comes after `optimizer_steps` applied ones, whatever its verdict
 * is: its decision waits while another is under way. */
bool saving_may_be_due(const struct saving *saving, uint64_t optimizer_steps);
/* Behind a step in order (no FAIL), `optimizer_steps` counting it. `more`: the job is not done with it; one that is
 * done does not stop. What was asked for is granted. */
struct saving_decision saving_decide(struct saving *saving, bool applied, uint64_t optimizer_steps, bool more);
/* A checkpoint has ended. True when enough of them have failed in a row to end the job. */
bool saving_ended(struct saving *saving, bool good);

#endif
