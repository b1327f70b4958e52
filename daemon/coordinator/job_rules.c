#include "daemon/coordinator/job_rules.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>

#include "daemon/job/job.h"
#include "proto/optimizers.h"

/* The job's enumerations in the words of core. */
static const enum schedule_type schedules[] = {
    [GACC__V1__SCHEDULE_TYPE__SCHEDULE_CONSTANT] = SCHEDULE_RULE_CONSTANT,
    [GACC__V1__SCHEDULE_TYPE__SCHEDULE_LINEAR] = SCHEDULE_RULE_LINEAR,
    [GACC__V1__SCHEDULE_TYPE__SCHEDULE_COSINE] = SCHEDULE_RULE_COSINE,
    [GACC__V1__SCHEDULE_TYPE__SCHEDULE_WSD] = SCHEDULE_RULE_WSD,
};
static const enum loss_weighting weightings[] = {
    [GACC__V1__WEIGHTING__WEIGHTING_TOKEN] = WEIGHT_BY_TOKEN,
    [GACC__V1__WEIGHTING__WEIGHTING_MICROBATCH] = WEIGHT_BY_MICRO_BATCH,
    [GACC__V1__WEIGHTING__WEIGHTING_SUM] = WEIGHT_SUM,
};

#define KNOWN(table, value) ((size_t)(value) < sizeof(table) / sizeof *(table))

static int scale_rules(struct loss_scale_rules *rules, const Gacc__V1__LossScaleSection *section, struct error *error)
{
    if (!section) return error_set(error, STATUS_INTERNAL, "precision.loss_scale: is missing from a job in fp16");
    job_loss_scale_rules(section, rules);
    const char *why = loss_scale_rules_check(rules);
    return why ? error_set(error, STATUS_JOB, "precision.loss_scale.%s", why) : 0;
}

/* No element is larger than the norm, and a second moment no larger than the largest square that went into it: below
 * these the update is of numbers. Squares of fp32 numbers are small beside the largest double. */
static struct norm_limit norm_limit(const Gacc__V1__JobSpec *job)
{
    if (job->precision->compute == GACC__V1__COMPUTE__COMPUTE_FP64)
        return (struct norm_limit){(double)INFINITY, "the sum of their squares overflows fp64"};
    for (size_t i = 0; i < optimizer_count(job); i++)
        if (optimizer_at(job, i)->type == GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_ADAMW)
            return (struct norm_limit){sqrt((double)FLT_MAX),
                                       "the square of its norm does not fit AdamW's second moment in fp32"};
    return (struct norm_limit){(double)FLT_MAX, "its norm does not fit fp32"};
}

int job_rules_from_job(struct job_rules *rules, const Gacc__V1__JobSpec *job, uint32_t ranks, struct error *error)
{
    if (!job->job || !job->batch || !job->precision || !job->optimizer || !job->schedule || !job->evaluation)
        return error_set(error, STATUS_INTERNAL, "the job lacks a section");
    if (ranks == 0 || job->batch->global == 0 || job->batch->micro == 0 || !KNOWN(schedules, job->schedule->type) ||
        !KNOWN(weightings, job->batch->weighting))
        return error_set(error, STATUS_INTERNAL, "the job is not a whole one");
    *rules = (struct job_rules){
        .plan = {.global = job->batch->global,
                 .micro = job->batch->micro,
                 .ranks = ranks,
                 .drop_tail = job->batch->tail == GACC__V1__TAIL__TAIL_DROP,
                 .epochs = job->job->epochs,
                 .ramp_from = job->batch->ramp_from,
                 .ramp_steps = job->batch->ramp_steps},
        .schedule = {.type = schedules[job->schedule->type],
                     .lr = job->optimizer->lr,
                     .minimum = job->schedule->minimum,
                     .warmup = job->schedule->warmup,
                     .total = job->schedule->total,
                     .decay = job->schedule->decay},
        .has_scaler = job->precision->compute == GACC__V1__COMPUTE__COMPUTE_FP16,
        .nonfinite_stop_after = job->precision->nonfinite_stop_after,
        .weighting = weightings[job->batch->weighting],
        .clip_norm = job->optimizer->clip_norm,
        .norm = norm_limit(job),
        .evaluate_every = job->evaluation->every,
    };
    if (job->batch->lr_scaling == GACC__V1__LR_SCALING__LR_SCALING_LINEAR) {
        rules->lr_written = job->optimizer->lr_written;
        rules->lr_base = job->batch->base_sequences;
    }
    if (job->checkpoint) {
        rules->save_every = job->checkpoint->every;
        rules->save_waits = !job->checkpoint->async;
        rules->retention = (struct retention){job->checkpoint->keep, job->checkpoint->keep_every};
    }
    return rules->has_scaler ? scale_rules(&rules->scale, job->precision->loss_scale, error) : 0;
}

struct schedule job_rules_schedule(const struct job_rules *rules, uint32_t global)
{
    struct schedule schedule = rules->schedule;
    if (rules->lr_base != 0) schedule.lr = rules->lr_written * ((double)global / (double)rules->lr_base);
    return schedule;
}

/* Until so many tokens are consumed: an epoch's short last batch counts for what it holds. */
static uint64_t steps_for_tokens(uint64_t tokens, const struct job_rules *rules)
{
    const struct plan_rules *plan = &rules->plan;
    uint64_t steps_per_epoch = plan_steps_per_epoch(plan);
    uint64_t sequences = plan->drop_tail ? steps_per_epoch * plan->global : plan->sequences;
    uint64_t per_epoch = sequences * rules->tokens_per_sequence, per_step = plan->global * rules->tokens_per_sequence;
    uint64_t rest = tokens % per_epoch;
    return tokens / per_epoch * steps_per_epoch + rest / per_step + (rest % per_step != 0);
}

static uint64_t total_steps(const Gacc__V1__JobSection *job, const struct job_rules *rules)
{
    if (job->epochs != 0) return job->epochs * plan_steps_per_epoch(&rules->plan);
    return job->steps != 0 ? job->steps : steps_for_tokens(job->tokens, rules);
}

int job_rules_add_data(struct job_rules *rules, const Gacc__V1__JobSpec *job, uint64_t train_sequences,
                       uint64_t validation_sequences, uint64_t targets_per_sequence, struct error *error)
{
    if (train_sequences == 0 || targets_per_sequence == 0)
        return error_set(error, STATUS_DATA, "data.train: holds no sequence");
    rules->plan.sequences = train_sequences;
    rules->tokens_per_sequence = targets_per_sequence;
    if (plan_steps_per_epoch(&rules->plan) == 0)
        return error_set(error, STATUS_DATA,
                         "data.train: holds %" PRIu64 " sequences, fewer than batch.global: %" PRIu32
                         ", and batch.tail: drop leaves out what is short",
                         train_sequences, rules->plan.global);
    if (rules->evaluate_every != 0 && validation_sequences == 0)
        return error_set(error, STATUS_DATA, "data.validation: holds no sequence, and evaluation.every asks for some");
    rules->total_steps = total_steps(job->job, rules);
    struct schedule *schedule = &rules->schedule;
    if (schedule->total != 0 || schedule->type == SCHEDULE_RULE_CONSTANT) return 0;
    schedule->total = rules->total_steps;
    if (schedule->warmup <= schedule->total && schedule->decay <= schedule->total - schedule->warmup) return 0;
    return error_set(error, STATUS_JOB,
                     "schedule.warmup: %" PRIu64 " and schedule.decay %" PRIu64 " are more than the %" PRIu64
                     " steps that job.%s makes of the data",
                     schedule->warmup, schedule->decay, schedule->total, job->job->epochs ? "epochs" : "tokens");
}
