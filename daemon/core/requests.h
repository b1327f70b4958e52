/*
 * What operators ask a running job for, and what becomes of it at the next boundary, pure. A boundary lies behind every
 * attempt, and before the first; whatever is asked for takes effect there, on all ranks alike. A job that is paused
 * stands at one.
 */
#ifndef GACC_REQUESTS_H
#define GACC_REQUESTS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/saving.h"

enum request {
    REQUEST_CHECKPOINT,
    REQUEST_STOP,   /* with a checkpoint: the same command goes on */
    REQUEST_FINISH, /* the job counts as done */
};

struct requests {
    bool finishing; /* the next boundary is the job's last */
};

/* Where the job is when somebody asks. */
struct moment {
    bool has_begun;                 /* a step of this start has been made or is under way */
    bool ends;                      /* the last decision is out, or the job has failed */
    bool has_stopped, has_finished; /* because it was asked to */
    bool is_saving;                 /* a checkpoint is under way */
};

enum answer {
    ANSWER_REFUSED,
    ANSWER_AT_BOUNDARY, /* when the next one is there */
    ANSWER_NOW,         /* it is known already */
    ANSWER_END,         /* now, and the job ends without another boundary */
};

/* What is asked for twice, of the same boundary, is granted once and answered twice. `saving` is the same job's. With
 * ANSWER_REFUSED *why is a static text. */
enum answer requests_take(struct requests *requests, struct saving *saving, enum request request,
                          const struct moment *moment, const char **why);

struct boundary {
    bool save, stop;
    bool more; /* the job goes on behind it, now or, after a stop, later */
};

/* Behind an attempt in order (no FAIL), `optimizer_steps` counting it; `more`: the job is not done with it. */
struct boundary requests_boundary(const struct requests *requests, struct saving *saving, bool applied,
                                  uint64_t optimizer_steps, bool more);

#endif
