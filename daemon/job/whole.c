/* Jobs that come as messages, not as text: what a job file could not have said is no job. */
#include <math.h>

#include "daemon/job/job.h"
#include "daemon/job/keys.h"
#include "daemon/job/values.h"

static bool has_sections(const Gacc__V1__JobSpec *job)
{
    return job->job && job->model && job->data && job->batch && job->precision && job->optimizer && job->schedule &&
           job->evaluation && job->control && job->checkpoint &&
           !job->precision->loss_scale == (job->precision->compute != GACC__V1__COMPUTE__COMPUTE_FP16);
}

/* The choices that decide which keys belong to the job; they belong to every job that has their section. */
static bool has_choices(const Gacc__V1__JobSpec *job)
{
    for (size_t i = 0; i < key_count; i++) {
        const void *base = keys[i].selects ? key_base(job, NULL, NULL, keys[i].section) : NULL;
        if (base && !value_is_legal(&keys[i], base)) return false;
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
    if (!has_sections(job) || !has_choices(job) || !has_values(job, NULL)) return false;
    for (size_t i = 0; i < job->optimizer->n_groups; i++)
        if (!has_values(job, job->optimizer->groups[i])) return false;
    return job->batch->global > 0 && isfinite(job->optimizer->lr);
}
