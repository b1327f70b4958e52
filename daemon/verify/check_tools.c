#include "daemon/verify/checks_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#define ADAMW_OUTSIDE 1e-3 /* 99.9 % within */
#define SCALE_TRIES 16
#define SCALE_STEP 4

/* ---- what a check says ---- */

void check_say(struct check *check, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(check->note, sizeof check->note, format, arguments);
    va_end(arguments);
}

/* The check does not apply; the reason is in the note. */
int check_skip(struct check *check, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(check->note, sizeof check->note, format, arguments);
    va_end(arguments);
    check->skipped = true;
    check->measured = check->allowed = (double)NAN;
    return 0;
}

void check_judge(struct check *check, double measured, double allowed)
{
    check->measured = measured;
    check->allowed = allowed;
    check->pass = measured <= allowed; /* NaN does not pass */
}

/* One of several expectations: the check measures how many are not met, and says the first. */
void check_expect(struct check *check, bool met, const char *format, ...)
{
    if (!met && check->measured == 0) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(check->note, sizeof check->note, format, arguments);
        va_end(arguments);
    }
    check_judge(check, (check->measured > 0 ? check->measured : 0) + !met, 0);
}

bool is_near(double a, double b, double relative)
{
    return fabs(a - b) <= relative * fabs(b);
}

/* ---- trials ---- */

bool suite_is_by_ranks(const struct suite *suite)
{
    const Gacc__V1__ModelSection *model = suite->job->model;
    return model->norm == GACC__V1__NORM__NORM_BATCH && model->norm_stats == GACC__V1__NORM_STATS__NORM_STATS_SYNC;
}

#define MICRO_BATCH_NORM(by_row)                                                            \
    "BatchNorm over micro-batches: the step depends on the cut. model.norm " by_row ", or " \
    "model.norm_stats window, gives the equivalence back"

const char *suite_is_by_micro_batch(const struct suite *suite)
{
    const Gacc__V1__ModelSection *model = suite->job->model;
    if (suite->job->batch->weighting == GACC__V1__WEIGHTING__WEIGHTING_MICROBATCH)
        return "weighting microbatch: the cut into micro-batches is part of the definition of the loss";
    if (model->norm == GACC__V1__NORM__NORM_BATCH &&
        (suite_is_by_ranks(suite) || model->norm_stats == GACC__V1__NORM_STATS__NORM_STATS_MICRO))
        return model->type == GACC__V1__MODEL_TYPE__MODEL_CNN ? MICRO_BATCH_NORM("group")
                                                              : MICRO_BATCH_NORM("group or layer");
    return NULL;
}

/* What splits are held against: one pass over the whole batch; under microbatch weighting, where the cut is part of the
 * definition, the same micro-batches on one rank. */
struct variant variant_undivided(const struct suite *suite, Gacc__V1__Compute type)
{
    return suite_is_by_micro_batch(suite) ? variant_split(suite, type, 1) : variant_whole(suite, type);
}

/* A trial all of whose steps from `first` on are applied. */
const struct trial *suite_applied(struct suite *suite, const struct variant *variant, uint64_t first,
                                  struct error *error)
{
    const struct trial *trial = suite_trial(suite, variant, error);
    if (!trial) return NULL;
    if (trial->step_count < variant->steps) {
        error_set(error, STATUS_NUMERICS, "%" PRIu64 " of %" PRIu64 " steps were made", trial->step_count,
                  variant->steps);
        return NULL;
    }
    for (uint64_t i = first; i < trial->step_count; i++) {
        const enum verdict_kind verdict = trial->steps[i].verdict;
        if (verdict == VERDICT_IS_APPLY) continue;
        const bool is_all = i == 0 && variant->sequences >= suite->probe.sequences; /* which has to have some */
        if (verdict == VERDICT_IS_EMPTY && !is_all)
            error_set(error, STATUS_REFUSED, "no sequence of step %" PRIu64 " has weight", i + 1);
        else
            error_set(error, STATUS_NUMERICS, "step %" PRIu64 " is not applied: %s", i + 1,
                      verdict == VERDICT_IS_EMPTY ? "no sequence has weight" : "its gradient is not finite");
        return NULL;
    }
    return trial;
}

double trial_update_norm(const struct trial *trial)
{
    return measure_distance(trial->after, trial->before, trial->parameters);
}

/* ---- yardsticks ---- */

int suite_distance(struct suite *suite, const struct variant *variant, const struct variant *right, double *most,
                   struct error *error)
{
    const struct trial *a = suite_applied(suite, variant, 0, error);
    const struct trial *b = a ? suite_applied(suite, right, 0, error) : NULL;
    if (!b) return -(int)error->status;
    *most = fmax(*most, measure_compare(a->gradient, b->gradient, b->parameters).error);
    return 0;
}

/* The largest of three distances that only rounding explains: of the whole batch from itself in reverse order, which is
 * the same sum added up otherwise; of the whole from the whole in fp64; of the split from the same split in fp64 (sums
 * of micro-batches may be larger than the sum of all). A fault of accumulation is on both sides of each. */
int yardstick_floor(struct suite *suite, Gacc__V1__Compute type, double loss_scale, double *floor, struct error *error)
{
    double *known = &suite->yardsticks.floor[type], most = type == FP64 ? 0x1p-53 : 0x1p-24;
    struct variant whole = variant_undivided(suite, type), reversed = variant_whole(suite, type);
    struct variant straight = variant_whole(suite, type), split = variant_split(suite, type, 1);
    whole.loss_scale = reversed.loss_scale = straight.loss_scale = split.loss_scale = loss_scale;
    reversed.reversed = 1;
    int result = *known > 0 ? 0 : suite_distance(suite, &reversed, &straight, &most, error);
    if (*known == 0 && type != FP64) {
        const struct variant exact_whole = variant_undivided(suite, FP64), exact_split = variant_split(suite, FP64, 1);
        if (!result) result = suite_distance(suite, &whole, &exact_whole, &most, error);
        if (!result) result = suite_distance(suite, &split, &exact_split, &most, error);
    }
    if (result) return result;
    if (*known == 0) *known = most;
    *floor = *known;
    return 0;
}

int yardstick_rate(struct suite *suite, double *rate, struct error *error)
{
    if (suite->yardsticks.rate == 0) {
        const struct variant variant = variant_undivided(suite, FP32);
        const struct trial *trial = suite_applied(suite, &variant, 0, error);
        if (!trial) return -(int)error->status;
        const double norm = measure_distance(trial->before, NULL, trial->parameters);
        const double gradient = measure_distance(trial->gradient, NULL, trial->parameters);
        suite->yardsticks.rate = gradient > 0 ? MOVED * (norm > 0 ? norm : 1) / gradient : 1;
    }
    *rate = suite->yardsticks.rate;
    return 0;
}

/* From the job's initial scale down to one that does not overflow, as the job itself would. 0: there is none. */
int yardstick_scale(struct suite *suite, double *scale, struct error *error)
{
    const Gacc__V1__LossScaleSection *section = suite->job->precision->loss_scale;
    double next = section ? section->initial : 65536;
    for (int i = 0; i < SCALE_TRIES && suite->yardsticks.loss_scale == 0; i++, next /= SCALE_STEP) {
        struct variant variant = variant_undivided(suite, FP16);
        variant.loss_scale = next;
        const struct trial *trial = suite_trial(suite, &variant, error);
        if (!trial) return -(int)error->status;
        if (trial->steps[0].verdict == VERDICT_IS_APPLY) suite->yardsticks.loss_scale = next / SCALE_MARGIN;
    }
    *scale = suite->yardsticks.loss_scale;
    return 0;
}

/* True when the check is settled: fp16 holds the probe's gradients at no scale. */
bool check_is_beyond_fp16(const struct suite *suite, double scale, struct check *check)
{
    if (scale > 0) return false;
    if (suite->job->precision->compute == FP16)
        check_say(check, "overflows in fp16 at every loss scale");
    else
        check_skip(check, "overflows in fp16 at every loss scale, and the job does not compute in it");
    return true;
}

/* Two ranks, or one where there is a single micro-batch. */
uint32_t suite_ranks(const struct suite *suite)
{
    return suite->probe.sequences > suite->probe.micro && !suite_is_by_ranks(suite) ? 2 : 1;
}

/* Where a gradient is nothing but noise AdamW follows the sign of the noise: such elements are left out. */
struct tolerance check_adamw_tolerance(const struct trial *right, double floor)
{
    const double norm = measure_distance(right->gradient, NULL, right->parameters);
    return (struct tolerance){.absolute = ABSOLUTE,
                              .relative = RELATIVE,
                              .signal = right->gradient,
                              .noise = FLOORS * floor * norm / sqrt((double)right->parameters)};
}

/* Some gradients are 0 but for rounding, which may be far above that of the others: biases before BatchNorm. */
int check_judge_adamw(struct suite *suite, struct check *check, const struct trial *a, const struct variant *right,
                      double floor, struct error *error)
{
    struct variant exactly = *right;
    exactly.compute = FP64;
    exactly.adamw = 0;
    exactly.rate = exactly.loss_scale = 0;
    const struct trial *b = suite_applied(suite, right, 0, error);
    const struct trial *exact = b ? suite_applied(suite, &exactly, 0, error) : NULL;
    if (!exact) return -(int)error->status;
    struct tolerance tolerance = check_adamw_tolerance(b, floor);
    tolerance.other = a->gradient;
    tolerance.exact = exact->gradient;
    const struct closeness found = measure_closeness(a->after, b->after, b->parameters, &tolerance);
    check_judge(check, found.outside, ADAMW_OUTSIDE);
    check_say(check, "share outside 1e-5 + 1e-4·|parameter|; %zu gradients of nothing but noise left out",
              found.left_out);
    return 0;
}
