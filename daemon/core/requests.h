/*
 * What operators ask a running job for, and what becomes of it at the next boundary, pure. A boundary lies behind every
 * attempt, and before the first; whatever is asked for takes effect there, on all ranks alike. A job that is paused is
 * held at one: for it the next boundary is the one where it stands.
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
    REQUEST_PAUSE,
    REQUEST_RESUME,
    REQUEST_SET, /* other values of what the job is made of; which, is the caller's to keep */
};

struct requests {
    bool finishing; /* the next boundary is the job's last */
    bool pausing;   /* the next one is held … */
    bool held;      /* … and is: the ranks stand between two steps … */
    bool resuming;  /* … and are to go on, once … */
    bool replans;   /* … they have the next step's plan anew */
};

/* Where the job is when somebody asks. */
struct moment {
    bool has_begun;                 /* a step of this start has been made or is under way */
    bool ends;                      /* the last decision is out, or the job has failed */
    bool has_stopped, has_finished; /* because it was asked to */
    bool is_saving;                 /* a checkpoint is under way */
    bool is_saved;                  /* where the job is held: a checkpoint of this state is complete */
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
    bool hold; /* nothing opens behind it yet */
    bool more; /* the job goes on behind it, now or, after a stop or a pause, later */
};

/* Behind an attempt in order (no FAIL), `optimizer_steps` counting it, or once more where the job is held (`applied` is
 * false then); `more`: the job is not done. `saving` NULL: there is nothing to save yet. */
struct boundary requests_boundary(struct requests *requests, struct saving *saving, bool applied,
                                  uint64_t optimizer_steps, bool more);
/* Whether a job that is held has something to do there; true for one that is not. */
bool requests_are_due(const struct requests *requests, const struct saving *saving, bool has_begun);

#endif
