/*
 * Two jobs, key by key: what a job that goes on from a checkpoint may change, must not change, and changes only where
 * --set says so.
 */
#ifndef GACC_JOB_COMPARE_H
#define GACC_JOB_COMPARE_H

#include <stdbool.h>

#include "daemon/job/job.h"

/* The row of a further one of a list of optimizers, as one value. The first one's keys are compared like those of a job
 * that has no other; what makes a list the same training is compared as optimizer.match. */
#define FURTHER "optimizer.1"

enum change_rule {
    CHANGE_TAKEN,   /* what the job says now holds from here on */
    CHANGE_REFUSED, /* it would not be the same training any more */
    CHANGE_KEPT,    /* the optimizer goes on as it was, unless --set names the key */
};

struct job_change {
    const char *row; /* the manual's path, or FURTHER */
    char *key;       /* its path in the file of the job as it is now */
    enum change_rule rule;
    char *was, *now; /* as the job file has them; NULL: the job does not have this key */
};

struct job_changes {
    struct job_change *each;
    size_t count;
};

/* What differs, in the order of the manual, job.name and job.output left out. The sets are those of the command line
 * that made `now`. 70: out of memory. */
int job_compare(struct job_changes *changes, const Gacc__V1__JobSpec *was, const Gacc__V1__JobSpec *now,
                const struct job_overrides *overrides, struct error *error);
/* 78 naming what must not differ, if anything does. */
int job_changes_check(const struct job_changes *changes, struct error *error);
/* Puts what is kept into `now`, with a new digest. */
int job_changes_keep(const struct job_changes *changes, const Gacc__V1__JobSpec *was, Gacc__V1__JobSpec *now,
                     struct error *error);
void job_changes_free(struct job_changes *changes);

/* Whether the sets name the key (by its path in the file), a section around it or a part of it; of the learning rates
 * any of them. */
bool job_is_named(const struct job_overrides *overrides, const char *path);
/* The key's value as the job file would have it; free() it. NULL: the job does not have it, or memory is short. */
char *job_value_text(const Gacc__V1__JobSpec *job, const char *path);

#endif
