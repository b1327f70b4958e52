/* A job's optimizers, in order: the first, whose lr the schedule moves, and those behind it, if there are several. */
#ifndef GACC_OPTIMIZERS_H
#define GACC_OPTIMIZERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/gacc/v1/job.pb-c.h"

static inline size_t optimizer_count(const Gacc__V1__JobSpec *job)
{
    return 1 + job->n_further_optimizers;
}

static inline Gacc__V1__OptimizerSection *optimizer_at(const Gacc__V1__JobSpec *job, size_t index)
{
    return index == 0 ? job->optimizer : job->further_optimizers[index - 1];
}

/* Whether the job has them as a list, in which each has a name and a pattern. */
static inline bool optimizers_are_list(const Gacc__V1__JobSpec *job)
{
    return *job->optimizer->match != '\0';
}

/* Whether a group is frozen in the step that follows so many applied ones; its three numbers are those of the job. */
static inline bool group_is_frozen(bool frozen, uint64_t until, uint64_t from, uint64_t optimizer_steps)
{
    return frozen || optimizer_steps < until || (from > 0 && optimizer_steps >= from);
}

/* The job as one whose only optimizer that is: shallow, to be read only. */
static inline Gacc__V1__JobSpec optimizer_alone(const Gacc__V1__JobSpec *job, size_t index)
{
    Gacc__V1__JobSpec view = *job;
    view.optimizer = optimizer_at(job, index);
    view.n_further_optimizers = 0;
    return view;
}

#endif
