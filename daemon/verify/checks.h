/*
 * The checks: a table of what is run on a suite's probe, what is measured, and what is allowed. Every tolerance is a
 * multiple of a noise floor that was measured on the same model, or a number of the requirements.
 */
#ifndef GACC_CHECKS_H
#define GACC_CHECKS_H

#include "daemon/verify/check.h"
#include "daemon/verify/suite.h"

/* In the order in which they run: what the search of a fault starts with comes first. */
enum check_index {
    CHECK_FP32_ACCUMULATED,
    CHECK_FP32_TWO_RANKS,
    CHECK_FP32_THREE_RANKS,
    CHECK_FP32_MPI,
    CHECK_FP32_SGD,
    CHECK_FP32_ADAMW,
    CHECK_FP32_FOUR_SPLITS,
    CHECK_FP32_SHORT_BATCH,
    CHECK_FP64_ACCUMULATED,
    CHECK_FP64_LOSS,
    CHECK_FP64_SLOPE,
    CHECK_FP64_REFERENCE,
    CHECK_FP32_REFERENCE,
    CHECK_BF16_ACCUMULATED,
    CHECK_BF16_REFERENCE,
    CHECK_BF16_ACCUMULATOR,
    CHECK_BF16_REDUCE,
    CHECK_FP16_ACCUMULATED,
    CHECK_FP16_REFERENCE,
    CHECK_FP16_STEP,
    CHECK_SCALE_NORMS,
    CHECK_SCALE_GROWTH,
    CHECK_CLIP_ORDER,
    CHECK_OVERFLOW_SKIPS,
    CHECK_OVERFLOW_SCALE,
    CHECK_OVERFLOW_NEXT_STEP,
    CHECK_OVERFLOW_RETRY,
    CHECK_SCHEDULE,
    CHECK_GROUPS,
    CHECK_RUNNING_STATISTICS,
    CHECK_WINDOW_FROZEN,
    CHECK_WINDOW_COLLECTIVES,
    CHECK_WINDOW_MEMORY,
    CHECK_RECOMPUTE,
    CHECKS,
};

/* Runs check `index` of the table. A trial that cannot be run fails the check, with its text in the note. */
void check_run(enum check_index index, struct suite *suite, struct check *check);

/* The trials in which faults show, as the checks have them; for controls.c. False: this job has none such; *why. */
bool checks_plain(struct suite *suite, struct variant *variant, const char **why);   /* fp32, two ranks */
bool checks_frozen(struct suite *suite, struct variant *variant, const char **why);  /* the same, watched */
bool checks_dropout(struct suite *suite, struct variant *variant, const char **why); /* … with dropout */
bool checks_short(struct suite *suite, struct variant *variant, const char **why);   /* a short batch between */
/* The job's own type, recomputing as the job does. */
bool checks_recomputed(struct suite *suite, struct variant *variant, const char **why);
bool checks_rounded(struct suite *suite, struct variant *variant, const char **why);  /* bf16, one sequence at a time */
bool checks_scaled(struct suite *suite, struct variant *variant, const char **why);   /* fp16, clipped, growing */
bool checks_overflow(struct suite *suite, struct variant *variant, const char **why); /* fp16, skipped, then applied */

#endif
