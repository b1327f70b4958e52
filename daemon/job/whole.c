/* Jobs that come as messages, not as text: what a job file could not have said is no job. */
#include <math.h>

#include "daemon/job/job.h"
#include "daemon/job/keys.h"
#include "daemon/job/load.h"
#include "daemon/job/values.h"
#include "proto/optimizers.h"

static bool has_sections(const Gacc__V1__JobSpec *job)
{
    return job->job && job->model && job->data && job->batch && job->precision && job->optimizer && job->schedule &&
           job->evaluation && job->control && job->checkpoint &&
           !job->precision->loss_scale == (job->precision->compute != GACC__V1__COMPUTE__COMPUTE_FP16);
}

/* The choices that decide which keys belong to the job; they belong to every job that has their section. */
static bool has_choices(const Gacc__V1__JobSpec *job)
{
    for (enum selector selector = BY_NOTHING + 1; selector < SELECTORS; selector++) {
        const struct key *key = key_of_selector(selector);
        const void *base = key_base(job, NULL, NULL, key->section);
        if (base && !value_is_legal(key, base)) return false;
    }
    return true;
}

static bool has_values(const Gacc__V1__JobSpec *job, Gacc__V1__ParameterGroup *group)
{
    for (size_t i = 0; i < key_count; i++) {
        if ((keys[i].section == IN_GROUP) != (group != NULL) || !key_applies(&keys[i], job, NULL)) continue;
        const void *base = key_base(job, NULL, group, keys[i].section);
        if (base && !value_is_absent(&keys[i], base) && !value_is_legal(&keys[i], base)) return false;
    }
    return true;
}

bool job_is_whole(const Gacc__V1__JobSpec *job)
{
    if (!has_sections(job)) return false;
    for (size_t i = 0; i < optimizer_count(job); i++) {
        const Gacc__V1__JobSpec one = optimizer_alone(job, i);
        if (!has_choices(&one) || !has_values(&one, NULL) || !isfinite(one.optimizer->lr)) return false;
        for (size_t g = 0; g < one.optimizer->n_groups; g++)
            if (!has_values(&one, one.optimizer->groups[g])) return false;
    }
    return job->batch->global > 0 && job->n_further_optimizers < JOB_OPTIMIZERS_LIMIT;
}
