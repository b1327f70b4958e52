/* How far a job has come: what the conductor must know beside the job itself to go on as if it had never ended. */
#ifndef GACC_PROGRESS_H
#define GACC_PROGRESS_H

#include "daemon/core/loss_scale.h"
#include "daemon/core/plan.h"
#include "daemon/core/warnings.h"
#include "daemon/observe/step_log.h"

struct progress {
    struct step_counters counters;
    uint32_t nonfinite_in_a_row;
    bool has_scaler;
    struct loss_scale scale;       /* `stop` is false: a job that ends with 76 saves nothing */
    struct plan_position position; /* where the next step's batch begins */
    bool has_plan;                 /* the next step's plan was issued … */
    struct plan plan;              /* … and is this one */
    uint64_t sequences_seen;       /* of all epochs */
    double epoch_weight;           /* of the current epoch so far */
    bool was_evaluated;            /* at evaluated_at optimizer steps, with validation_loss */
    uint64_t evaluated_at;
    bool has_loss, has_validation;
    double loss, validation_loss;
    uint64_t validation_optimizer_steps;
    struct warnings warnings;
    bool told_single_value;   /* a set of BatchNorm's with one value a channel, which the log says once */
    uint64_t train_sequences; /* the data's, of which a position is meant */
};

#endif
