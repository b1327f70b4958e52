/*
 * What the checks are made of, for the files that are the checks: checks.c (the table), checks_gradients.c,
 * checks_steps.c, checks_groups.c, checks_norms.c, checks_scale.c (loss scale, clip, overflow), checks_window.c, and
 * check_tools.c (how they judge, and with what yardsticks).
 */
#ifndef GACC_CHECKS_INTERNAL_H
#define GACC_CHECKS_INTERNAL_H

#include "daemon/verify/check.h"
#include "daemon/verify/measure.h"
#include "daemon/verify/suite.h"

#define FP32 GACC__V1__COMPUTE__COMPUTE_FP32
#define BF16 GACC__V1__COMPUTE__COMPUTE_BF16
#define FP16 GACC__V1__COMPUTE__COMPUTE_FP16
#define FP64 GACC__V1__COMPUTE__COMPUTE_FP64

/* Two results that each lie within the floor of the truth lie within twice the floor of each other; and the floor is
 * one draw of a random quantity, so twice that. A wrong factor is off by a third or more, which is thousands of floors.
 */
#define FLOORS 4.0

/* The tolerances of the sources: torch.allclose(atol 1e-5, rtol 1e-4) in fp32; half precision within 5 % and without a
 * systematic factor; fp64 within 1e-12 of the norm. A norm in fp32 is right to 1e-3. */
#define ABSOLUTE 1e-5
#define RELATIVE 1e-4
#define HALF 0.05
#define FP64_ERROR 1e-12
#define FP32_RATIO 1e-3

#define ADAMW_RATE 1e-3
#define WARMUP 3        /* lr of the first steps: 1/4, 2/4, 3/4 */
#define MOVED 0.1       /* of the parameters' norm, by one SGD step */
#define SCALE_MARGIN 16 /* other batches have larger gradients, and the scale grows */
#define EXACT 1e-6      /* numbers that are worked out in fp64 from the same fp32 ones */

/* A check runs trials and fills in the rest of *check. Negative: a trial could not be run, or a step that has to be
 * applied was not; *error says why. */
typedef int check_function(struct suite *suite, struct check *check, struct error *error);
check_function check_accumulated;
check_function check_over_two_ranks;
check_function check_over_three_ranks;
check_function check_over_mpi;
check_function check_sgd_step;
check_function check_adamw_step;
check_function check_four_splits;
check_function check_short_batch;
check_function check_fp64_accumulated;
check_function check_loss_by_definition;
check_function check_slope;
check_function check_fp64_reference;
check_function check_fp32_reference;
check_function check_bf16_accumulated;
check_function check_bf16_reference;
check_function check_bf16_accumulator;
check_function check_bf16_reduce;
check_function check_fp16_accumulated;
check_function check_fp16_reference;
check_function check_fp16_step;
check_function check_norms_and_scale;
check_function check_growth;
check_function check_clip;
check_function check_overflow_skips;
check_function check_overflow_backs_off_once;
check_function check_step_after_overflow;
check_function check_retry;
check_function check_schedule_counts;
check_function check_groups;
check_function check_running_statistics;
check_function check_frozen_window;
check_function check_collectives;
check_function check_memory;
check_function check_recompute;

/* --- check_tools.c: what a check says ------------------------------------------------------------------------ */

__attribute__((format(printf, 2, 3))) void check_say(struct check *check, const char *format, ...);
/* The check does not apply; the reason goes into the note. Returns 0. */
__attribute__((format(printf, 2, 3))) int check_skip(struct check *check, const char *format, ...);
void check_judge(struct check *check, double measured, double allowed);
/* One of several expectations: the check measures how many are not met, and says the first. */
__attribute__((format(printf, 3, 4))) void check_expect(struct check *check, bool met, const char *format, ...);
/* allclose, without the elements whose gradient is nothing but noise: there AdamW follows the sign of the noise. */
struct tolerance check_adamw_tolerance(const struct trial *right, double floor);
/* Parameters after one AdamW step, by the share outside of allclose; `right` is right, floor that of its gradient. */
int check_judge_adamw(struct suite *suite, struct check *check, const struct trial *trial, const struct variant *right,
                      double floor, struct error *error);
/* True when the check is settled: fp16 holds the gradients of the probe at no scale. */
bool check_is_beyond_fp16(const struct suite *suite, double scale, struct check *check);
bool is_near(double a, double b, double relative);

/* --- check_tools.c: trials ----------------------------------------------------------------------------------- */

/* As suite_trial; all steps from `first` on (0: all) must be applied. */
const struct trial *suite_applied(struct suite *suite, const struct variant *variant, uint64_t first,
                                  struct error *error);
/* NULL, or why the cut into micro-batches is part of the job's definition. */
const char *suite_is_by_micro_batch(const struct suite *suite);
/* What a micro-batch gives depends on those of the other ranks. */
bool suite_is_by_ranks(const struct suite *suite);
/* Two ranks, or one where there is a single micro-batch. */
uint32_t suite_ranks(const struct suite *suite);
/* What splits are held against: one pass over the whole batch; under microbatch weighting, where the cut is part of the
 * definition, the same micro-batches on one rank. */
struct variant variant_undivided(const struct suite *suite, Gacc__V1__Compute type);
double trial_update_norm(const struct trial *trial);

/* --- check_tools.c: yardsticks, worked out when first asked for ---------------------------------------------- */

/* Raises *most to the relative error of one gradient against the other. */
int suite_distance(struct suite *suite, const struct variant *variant, const struct variant *right, double *most,
                   struct error *error);
int yardstick_floor(struct suite *suite, Gacc__V1__Compute type, double loss_scale, double *floor, struct error *error);
int yardstick_rate(struct suite *suite, double *rate, struct error *error);
/* 0: the probe overflows at every scale. */
int yardstick_scale(struct suite *suite, double *scale, struct error *error);

#endif
