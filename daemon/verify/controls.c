#include "daemon/verify/controls.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/verify/checks.h"

/* In which trial the fault does its damage: where it changes no bit there it is none in this job, for the reason given.
 */
typedef bool (*shows_in)(struct suite *suite, struct variant *variant, const char **why);

static const struct {
    const char *fault;
    struct faults faults;
    enum decision_fault decision;
    enum check_index first; /* the check that runs before the others: only to save time */
    shows_in shows_in;
    const char *harmless; /* why it may change nothing */
} controls[] = {
    {"sum taken for mean",
     {.plant = PLANT_SUM_FOR_MEAN},
     DECISION_FAITHFUL,
     CHECK_FP64_SLOPE,
     checks_plain,
     "the job's weighting is the sum"},
    {"not divided by K",
     {.plant = PLANT_NOT_DIVIDED_BY_K},
     DECISION_FAITHFUL,
     CHECK_FP32_ACCUMULATED,
     checks_plain,
     "the probe is a single micro-batch"},
    {"divided twice by K",
     {.plant = PLANT_DIVIDED_BY_K_TWICE},
     DECISION_FAITHFUL,
     CHECK_FP32_ACCUMULATED,
     checks_plain,
     "the probe is a single micro-batch"},
    {"averaged twice over ranks",
     {.plant = PLANT_DIVIDED_BY_N_TWICE},
     DECISION_FAITHFUL,
     CHECK_FP32_TWO_RANKS,
     checks_plain,
     "the trial is of one rank: a single micro-batch, or norm_stats sync"},
    {"mean of the ranks' means",
     {.plant = PLANT_RANK_MEANS},
     DECISION_FAITHFUL,
     CHECK_FP32_TWO_RANKS,
     checks_plain,
     "both ranks hold the same weight"},
    {"mean of the micro-batches' means",
     {.plant = PLANT_MICRO_BATCH_MEANS},
     DECISION_FAITHFUL,
     CHECK_FP32_ACCUMULATED,
     checks_plain,
     "the job's weighting is that, or every micro-batch holds the same weight"},
    {"masked targets counted",
     {.plant = PLANT_PADDING_COUNTED},
     DECISION_FAITHFUL,
     CHECK_FP64_LOSS,
     checks_plain,
     "no target of the probe is masked"},
    {"penalty in full in every micro-batch",
     {.plant = PLANT_PENALTY_IN_FULL},
     DECISION_FAITHFUL,
     CHECK_FP32_ACCUMULATED,
     checks_plain,
     "the model has no penalty, or the probe is a single micro-batch"},
    {"W of the step before",
     {0},
     DECISION_STALE_WEIGHT,
     CHECK_FP32_SHORT_BATCH,
     checks_short,
     "the job's weighting does not use W"},
    {"dropout keyed by the row",
     {.plant = PLANT_DROPOUT_BY_ROW},
     DECISION_FAITHFUL,
     CHECK_FP32_FOUR_SPLITS,
     checks_dropout,
     "nothing is dropped"},
    {"last micro-batch's gradient lost",
     {.plant = PLANT_LAST_MICRO_BATCH_LOST},
     DECISION_FAITHFUL,
     CHECK_FP32_ACCUMULATED,
     checks_plain,
     "the last micro-batch has no gradient"},
    {"gradients not cleared",
     {.plant = PLANT_GRADIENTS_KEPT},
     DECISION_FAITHFUL,
     CHECK_SCHEDULE,
     checks_plain,
     "there is no gradient"},
    {"accumulated in the compute type",
     {.plant = PLANT_ACCUMULATOR_ROUNDED},
     DECISION_FAITHFUL,
     CHECK_BF16_ACCUMULATOR,
     checks_rounded,
     "every partial sum of this batch is a bf16 number"},
    {"reduced in every micro-batch",
     {.plant = PLANT_REDUCED_PER_MICRO_BATCH},
     DECISION_FAITHFUL,
     CHECK_WINDOW_COLLECTIVES,
     checks_plain,
     ""},
    {"recomputed without dropout",
     {.plant = PLANT_RECOMPUTED_WITHOUT_DROPOUT},
     DECISION_FAITHFUL,
     CHECK_RECOMPUTE,
     checks_recomputed,
     "nothing is dropped, or the model has one block, which is not recomputed"},
    {"recomputed from the next block's input",
     {.plant = PLANT_RECOMPUTED_FROM_OUTPUT},
     DECISION_FAITHFUL,
     CHECK_RECOMPUTE,
     checks_recomputed,
     "the model has one block, which is not recomputed"},
    {"parameters written in a window",
     {.parameter_write_at_step = 1},
     DECISION_FAITHFUL,
     CHECK_WINDOW_FROZEN,
     checks_frozen,
     ""},
    {"update from scaled gradients",
     {.plant = PLANT_NOT_UNSCALED},
     DECISION_FAITHFUL,
     CHECK_FP16_STEP,
     checks_scaled,
     "S is 1"},
    {"unscaled twice", {.plant = PLANT_UNSCALED_TWICE}, DECISION_FAITHFUL, CHECK_FP16_STEP, checks_scaled, "S is 1"},
    {"clipped before unscale", {0}, DECISION_CLIPS_SCALED, CHECK_CLIP_ORDER, checks_scaled, "S is 1"},
    {"window stamped with the next S", {0}, DECISION_NEW_SCALE, CHECK_SCALE_GROWTH, checks_scaled, "S does not grow"},
    {"a skipped step is applied",
     {.plant = PLANT_SKIP_APPLIES},
     DECISION_FAITHFUL,
     CHECK_OVERFLOW_SKIPS,
     checks_overflow,
     ""},
    {"only the rank that overflowed skips",
     {.plant = PLANT_SKIPS_ALONE},
     DECISION_FAITHFUL,
     CHECK_OVERFLOW_SKIPS,
     checks_overflow,
     "an overflow reaches every rank's shard of this model, so each skips by itself"},
    {"a skip moves AdamW's count",
     {.plant = PLANT_SKIP_MOVES_T},
     DECISION_FAITHFUL,
     CHECK_OVERFLOW_NEXT_STEP,
     checks_overflow,
     ""},
    {"a skip moves the schedule", {0}, DECISION_SCHEDULE_ON_SKIP, CHECK_OVERFLOW_NEXT_STEP, checks_overflow, ""},
    {"S falls once for every rank",
     {0},
     DECISION_BACKS_OFF_PER_RANK,
     CHECK_OVERFLOW_SCALE,
     checks_overflow,
     "the trial is of one rank"},
};
const size_t controls_count = sizeof controls / sizeof *controls;
_Static_assert(sizeof controls / sizeof *controls <= CHECKS_MAX, "every control has a place in a verification");

static bool is_same(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* Whether two trials are the same in all that is compared anywhere. */
static bool are_alike(const struct trial *a, const struct trial *b)
{
    const size_t bytes = a->parameters * sizeof(double);
    if (a->parameters != b->parameters || a->step_count != b->step_count) return false;
    if (memcmp(a->gradient, b->gradient, bytes) || memcmp(a->after, b->after, bytes)) return false;
    for (uint64_t i = 0; i < a->step_count; i++) {
        const struct trial_step *x = &a->steps[i], *y = &b->steps[i];
        if (x->verdict != y->verdict || x->reduce_scatters != y->reduce_scatters || x->lr != y->lr ||
            x->bytes_changed != y->bytes_changed || x->gradients_cleared != y->gradients_cleared ||
            x->loss_scale != y->loss_scale || x->scheduler_steps != y->scheduler_steps ||
            !is_same(x->grad_norm, y->grad_norm) || !is_same(x->grad_norm_scaled, y->grad_norm_scaled))
            return false;
    }
    return true;
}

/* True: the fault changes nothing, and *why says so. */
static bool is_harmless(size_t index, struct suite *sound, struct suite *faulty, const char **why)
{
    struct variant variant;
    struct error unused;
    if (!controls[index].shows_in(sound, &variant, why)) return true;
    *why = controls[index].harmless;
    const struct trial *without = suite_trial(sound, &variant, &unused);
    const struct trial *with = without ? suite_trial(faulty, &variant, &unused) : NULL;
    return with && are_alike(with, without);
}

static void catch (enum check_index index, struct suite *faulty, struct planted *planted)
{
    struct check check;
    check_run(index, faulty, &check);
    planted->pass = !check.skipped && !check.pass;
    if (!planted->pass) return;
    planted->caught_by = check.name;
    memcpy(planted->note, check.note, sizeof planted->note);
}

/* The check that is there for such a fault may have nothing to look at in these data. */
static void excuse(enum check_index index, struct suite *sound, struct planted *planted)
{
    struct check check;
    check_run(index, sound, &check);
    planted->skipped = check.skipped;
    if (planted->skipped) memcpy(planted->note, check.note, sizeof planted->note);
}

void control_run(size_t index, struct suite *sound, struct planted *planted)
{
    struct suite faulty;
    const char *why = "";
    *planted = (struct planted){.fault = controls[index].fault};
    suite_open_faulty(&faulty, sound, &controls[index].faults, controls[index].decision);
    planted->skipped = is_harmless(index, sound, &faulty, &why);
    if (planted->skipped) snprintf(planted->note, sizeof planted->note, "%s", why);
    if (!planted->skipped) catch (controls[index].first, &faulty, planted);
    for (enum check_index i = 0; i < CHECKS && !planted->skipped && !planted->pass; i++) catch (i, &faulty, planted);
    if (!planted->skipped && !planted->pass) excuse(controls[index].first, sound, planted);
    suite_close(&faulty);
}
