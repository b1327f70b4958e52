/* Small jobs for trials, said as session tests say them, with a loss scaler where fp16 wants one. */
#ifndef GACC_TEST_TRIAL_JOBS_H
#define GACC_TEST_TRIAL_JOBS_H

#include "daemon/verify/trial.h"
#include "tests/unit/session_fixture.h"

#define LINEAR GACC__V1__MODEL_TYPE__MODEL_LINEAR
#define FP16 GACC__V1__COMPUTE__COMPUTE_FP16
#define FP64 GACC__V1__COMPUTE__COMPUTE_FP64

struct trial_job {
    struct scenario scenario;
    struct play play; /* of which only the job is used */
    Gacc__V1__LossScaleSection scale;
};

/* Freed with trial_job_free. scenario.scale: S at first, 2^16 without. */
static inline struct trial_job *trial_job(const struct scenario *given)
{
    struct trial_job *job = calloc(1, sizeof *job);
    double first = given->scale > 0 ? given->scale : 65536;
    job->scenario = play_defaults(given);
    job->play.scenario = &job->scenario;
    play_fill_job(&job->play);
    gacc__v1__loss_scale_section__init(&job->scale);
    job->scale.initial = first;
    job->scale.growth = 2;
    job->scale.backoff = 0.5;
    job->scale.interval = 2000;
    job->scale.hysteresis = 1;
    job->scale.stop_after = 10;
    if (given->compute == FP16) job->play.precision.loss_scale = &job->scale;
    job->play.optimizer.clip_norm = given->clip;
    if (given->adjust) given->adjust(&job->play);
    return job;
}

static inline void trial_job_free(struct trial_job *job)
{
    free(job->play.train);
    free(job->play.validation);
    free(job);
}

/* The trial of a job; spec.job is filled in here. Fails the test when it cannot be run. */
static inline struct trial try_job(const struct scenario *scenario, struct trial_spec spec)
{
    struct trial_job *job = trial_job(scenario);
    struct trial trial;
    struct error error;
    spec.job = &job->play.job;
    if (!spec.ranks) spec.ranks = 1;
    if (!spec.steps) spec.steps = 1;
    if (trial_run(&trial, &spec, &error)) fail_msg("%s", error.text);
    trial_job_free(job);
    return trial;
}

#endif
