/* The job as the pure decisions of daemon/core take it: JobSpec in, rules out. */
#ifndef GACC_JOB_RULES_H
#define GACC_JOB_RULES_H

#include "daemon/core/loss_scale.h"
#include "daemon/core/plan.h"
#include "daemon/core/retention.h"
#include "daemon/core/schedule.h"
#include "daemon/core/verdict.h"
#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"

struct job_rules {
    struct plan_rules plan;
    struct schedule schedule;
    double lr_written; /* with lr_base; else 0 */
    uint32_t lr_base;  /* the schedule's lr is lr_written · B / lr_base; 0: it does not depend on B */
    bool has_scaler;
    struct loss_scale_rules scale;
    uint32_t nonfinite_stop_after; /* without a scaler; 0: never */
    enum loss_weighting weighting;
    double clip_norm;
    struct norm_limit {
        double most;       /* clipped norm that the optimizer's numbers can take; infinite: what fp64 holds */
        const char *words; /* what is the matter with a larger one */
    } norm;
    uint64_t evaluate_every;
    uint64_t save_every;
    bool save_waits; /* training waits for each checkpoint */
    struct retention retention;
    uint64_t tokens_per_sequence; /* targets, masked ones included */
    uint64_t total_steps;         /* applied ones; of a job by epochs, attempts */
};

/* What the job alone says. Refuses what no job file can say with 70, rules of the loss scale that cannot work with 78.
 */
int job_rules_from_job(struct job_rules *rules, const Gacc__V1__JobSpec *job, uint32_t ranks, struct error *error);
/* The schedule of a window whose global batch is this. */
struct schedule job_rules_schedule(const struct job_rules *rules, uint32_t global);
/* Adds what the data say: the number of steps, and the schedule's length by default. Too few sequences:
 * 65. A schedule longer than the job: 78. */
int job_rules_add_data(struct job_rules *rules, const Gacc__V1__JobSpec *job, uint64_t train_sequences,
                       uint64_t validation_sequences, uint64_t targets_per_sequence, struct error *error);

#endif
