/* Losses and steps: what the loss is, that the gradient is its slope, and what a step makes of it. */
#include "daemon/verify/checks.h"
#include "daemon/verify/checks_internal.h"
#include "daemon/verify/definition.h"
#include "proto/optimizers.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define STIR 1e-3  /* of a parameter, to leave a kink */
#define SHIFT 1e-7 /* of the parameters' norm, for a central difference in fp64 */

static const struct tolerance allclose = {.absolute = ABSOLUTE, .relative = RELATIVE};

/* ---- steps ---- */

/* One step: the parameters that it leaves, as torch.allclose compares them. */
int check_sgd_step(struct suite *suite, struct check *check, struct error *error)
{
    struct variant variant = variant_split(suite, FP32, suite_ranks(suite)), right = variant_undivided(suite, FP32);
    int result = yardstick_rate(suite, &variant.rate, error);
    right.rate = variant.rate;
    const struct trial *a = result ? NULL : suite_applied(suite, &variant, 0, error);
    const struct trial *b = a ? suite_applied(suite, &right, 0, error) : NULL;
    if (!b) return -(int)error->status;
    check_judge(check, measure_closeness(a->after, b->after, b->parameters, &allclose).worst, 1);
    check_say(check, "largest |difference| / (1e-5 + 1e-4·|parameter|); lr %.3g", variant.rate);
    return 0;
}

/* The largest decay of any tensor: by how much of itself a parameter may shrink beside the step. */
static double largest_decay(const Gacc__V1__JobSpec *job)
{
    double most = 0;
    for (size_t o = 0; o < optimizer_count(job); o++) {
        const Gacc__V1__OptimizerSection *optimizer = optimizer_at(job, o);
        most = fmax(most, optimizer->weight_decay);
        for (size_t i = 0; i < optimizer->n_groups; i++) most = fmax(most, optimizer->groups[i]->weight_decay);
    }
    return most;
}

/* The first step of AdamW is w − lr·g/(|g| + eps), moments being corrected for their beginning, and the decay. */
static int first_adamw_step(const struct suite *suite, const struct trial *trial, double floor, double *outside,
                            struct error *error)
{
    const Gacc__V1__OptimizerSection *optimizer = suite->job->optimizer;
    const bool is_adamw = optimizer->type == GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_ADAMW;
    const double eps = is_adamw ? optimizer->eps : 1e-8; /* as suite.c has it */
    struct tolerance tolerance = check_adamw_tolerance(trial, floor);
    double *expected = malloc(trial->parameters * sizeof *expected);
    if (!expected) return error_set(error, STATUS_INTERNAL, "out of memory for a step");
    for (uint64_t i = 0; i < trial->parameters; i++)
        expected[i] = trial->before[i] - ADAMW_RATE * trial->gradient[i] / (fabs(trial->gradient[i]) + eps);
    tolerance.relative += ADAMW_RATE * largest_decay(suite->job);
    *outside = measure_closeness(trial->after, expected, trial->parameters, &tolerance).outside;
    free(expected);
    return 0;
}

/* True when the check is settled: a gradient so large is never applied by AdamW in fp32. */
static bool is_beyond_adamw(const struct suite *suite, const struct trial *trial, struct check *check)
{
    const double norm = measure_distance(trial->gradient, NULL, trial->parameters);
    if (trial->steps[0].verdict != VERDICT_IS_SKIP || !isfinite(norm)) return false;
    if (suite->job->optimizer->type == GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_ADAMW)
        check_say(check, "a gradient of norm %.3g is skipped: AdamW's second moment does not hold its square", norm);
    else
        check_skip(check, "a gradient of norm %.3g is beyond AdamW, which the job does not use", norm);
    return true;
}

int check_adamw_step(struct suite *suite, struct check *check, struct error *error)
{
    struct variant variant = variant_split(suite, FP32, suite_ranks(suite)), right = variant_undivided(suite, FP32);
    variant.adamw = right.adamw = 1;
    variant.rate = right.rate = ADAMW_RATE;
    double floor, outside = 0;
    int result = yardstick_floor(suite, FP32, 0, &floor, error);
    const struct trial *a = result ? NULL : suite_trial(suite, &variant, error);
    if (!a) return -(int)error->status;
    if (is_beyond_adamw(suite, a, check)) return 0;
    if (!(a = suite_applied(suite, &variant, 0, error))) return -(int)error->status;
    result = check_judge_adamw(suite, check, a, &right, floor, error);
    if (result || !check->pass) return result;
    if ((result = first_adamw_step(suite, a, floor, &outside, error))) return result;
    if (outside <= check->measured) return 0;
    check_judge(check, outside, check->allowed);
    check_say(check, "share that is not w − lr·g/(|g| + eps) within 1e-5 + 1e-4·|w|");
    return 0;
}

int check_fp16_step(struct suite *suite, struct check *check, struct error *error)
{
    struct variant variant = variant_split(suite, FP16, suite_ranks(suite)), right = variant_undivided(suite, FP32);
    int result = yardstick_scale(suite, &variant.loss_scale, error);
    if (result || check_is_beyond_fp16(suite, variant.loss_scale, check)) return result;
    result = yardstick_rate(suite, &variant.rate, error);
    right.rate = variant.rate;
    const struct trial *a = result ? NULL : suite_applied(suite, &variant, 0, error);
    const struct trial *b = a ? suite_applied(suite, &right, 0, error) : NULL;
    if (!b) return -(int)error->status;
    check_judge(check, measure_median_relative(a->after, b->after, b->parameters, 1e-6), HALF);
    check_say(check, "median relative difference of the parameters from fp32's");
    return 0;
}

int check_loss_by_definition(struct suite *suite, struct check *check, struct error *error)
{
    struct variant variant = variant_split(suite, FP64, suite_ranks(suite));
    variant.dropout = 0;
    const struct trial *trial = suite_applied(suite, &variant, 0, error);
    double loss;
    if (!trial) return -(int)error->status;
    if (suite->job->model->norm == GACC__V1__NORM__NORM_BATCH &&
        suite->job->model->norm_stats == GACC__V1__NORM_STATS__NORM_STATS_WINDOW &&
        suite->job->batch->weighting == GACC__V1__WEIGHTING__WEIGHTING_MICROBATCH)
        return check_skip(check, "BatchNorm takes the window together, and the mean is by micro-batch");
    int result = definition_loss(suite->job, trial->before, variant.sequences, variant.micro, &loss, error);
    if (result) return result;
    const double logged = trial->steps[0].loss;
    check_judge(check, loss == 0 ? fabs(logged) : fabs(logged / loss - 1), FP64_ERROR);
    check_say(check, "loss %.15g, by definition %.15g", logged, loss);
    return 0;
}

/* (L(w + h·d) − L(w − h·d)) / 2h is ‖g‖ in the direction d of g. The loss is added up from what the model says, the
 * gradient from seeds that were scaled and averaged: a factor in one that is not in the other shows. */
static int slope_at(struct suite *suite, struct check *check, const struct variant *centre, struct error *error)
{
    struct variant above = *centre, below = *centre;
    const struct trial *trial = suite_applied(suite, centre, 0, error);
    if (!trial) return -(int)error->status;
    const double norm = measure_distance(trial->before, NULL, trial->parameters);
    const double gradient = measure_distance(trial->gradient, NULL, trial->parameters);
    if (gradient == 0) return check_skip(check, "the gradient of the probe is zero");
    above.shift = SHIFT * (norm > 0 ? norm : 1);
    below.shift = -above.shift;
    const double weight = trial->steps[0].weight;
    if (!(trial = suite_applied(suite, &above, 0, error))) return -(int)error->status;
    const double high = trial->steps[0].loss;
    if (!(trial = suite_applied(suite, &below, 0, error))) return -(int)error->status;
    const double measured = (high - trial->steps[0].loss) / (2 * above.shift);
    check_judge(check, fabs(gradient / measured - 1), FP32_RATIO);
    check->ratio = gradient / measured;
    const struct suspects suspects = {
        .ratio = check->ratio,
        .cosine = 1,
        .allowed_ratio = FP32_RATIO,
        .micro_batches = variant_micro_batches(centre),
        .per_rank = variant_per_rank(suite, centre),
        .ranks = centre->ranks,
        .micro = centre->micro,
        .weight = weight,
    };
    if (!check->pass) diagnosis_of(&suspects, check->note, sizeof check->note);
    return 0;
}

/* Initial parameters may lie on a kink, such as relu's behind a norm of a channel that is the same in every row: there
 * the loss has one slope above and another below. Beside it has but one. */
int check_slope(struct suite *suite, struct check *check, struct error *error)
{
    struct variant centre = variant_split(suite, FP64, suite_ranks(suite));
    const int result = slope_at(suite, check, &centre, error);
    if (result || check->pass || check->skipped) return result;
    centre.stir = STIR;
    return slope_at(suite, check, &centre, error);
}

bool checks_short(struct suite *suite, struct variant *variant, const char **why)
{
    const uint64_t available = suite->probe.available;
    *variant = variant_split(suite, FP32, suite_ranks(suite));
    *why = "the training data hold a single sequence";
    if (available < 2) return false;
    if (variant->sequences >= available) variant->sequences = (uint32_t)available - 1;
    if (variant->micro > variant->sequences) variant->micro = variant->sequences;
    if (variant_micro_batches(variant) < variant->ranks) variant->ranks = 1;
    uint64_t rest = variant->sequences / 3 > 0 ? variant->sequences / 3 : 1;
    if (rest > available - variant->sequences) rest = available - variant->sequences;
    variant->train = variant->sequences + rest;
    variant->steps = 3;
    variant->dropout = 0;
    return true;
}

/* A short batch between two times the same full one, lr 0: what is known of one batch must not weigh the next. */
int check_short_batch(struct suite *suite, struct check *check, struct error *error)
{
    const char *why;
    struct variant variant;
    if (!checks_short(suite, &variant, &why)) return check_skip(check, "%s", why);
    const struct trial *trial = suite_trial(suite, &variant, error);
    if (!trial) return -(int)error->status;
    const struct trial_step *steps = trial->steps;
    if (trial->step_count < 3 || steps[0].verdict != VERDICT_IS_APPLY || steps[2].verdict != VERDICT_IS_APPLY)
        return error_set(error, STATUS_NUMERICS,
                         "a step is not applied: its gradient is not finite, or it has no weight");
    if (steps[0].grad_norm == 0 && steps[2].grad_norm == 0)
        return check_skip(check, "the gradient of the probe is zero");
    double floor;
    int result = yardstick_floor(suite, FP32, 0, &floor, error);
    if (result) return result;
    check_judge(check, fabs(steps[2].grad_norm / steps[0].grad_norm - 1), FLOORS * floor);
    check_say(check, "norms of a batch of weight %g before and after one of %g", steps[0].weight, steps[1].weight);
    check->floor = floor;
    check->ratio = steps[2].grad_norm / steps[0].grad_norm;
    return 0;
}

int check_schedule_counts(struct suite *suite, struct check *check, struct error *error)
{
    struct variant variant = variant_split(suite, FP32, suite_ranks(suite)), right = variant_undivided(suite, FP32);
    variant.steps = right.steps = 2;
    variant.warmup = right.warmup = WARMUP;
    int result = yardstick_rate(suite, &variant.rate, error);
    right.rate = variant.rate /= 2; /* two steps with the lr of 1/4 and 2/4 */
    const struct trial *a = result ? NULL : suite_applied(suite, &variant, 0, error);
    if (!a) return -(int)error->status;
    for (uint32_t i = 0; i < 2; i++) {
        const struct trial_step *step = &a->steps[i];
        check_expect(check, step->optimizer_steps == i + 1, "%" PRIu64 " optimizer steps after %" PRIu32,
                     step->optimizer_steps, i + 1);
        check_expect(check, step->scheduler_steps == i + 1,
                     "%" PRIu64 " scheduler steps after %" PRIu32 " steps of %" PRIu32 " micro-batches",
                     step->scheduler_steps, i + 1, variant_micro_batches(&variant));
        check_expect(check, is_near(step->lr, variant.rate * (i + 1) / (WARMUP + 1), EXACT), "lr %g in step %" PRIu32,
                     step->lr, i + 1);
        check_expect(check, step->gradients_cleared, "gradients are not cleared after step %" PRIu32, i + 1);
    }
    const struct trial *b = suite_applied(suite, &right, 0, error);
    if (!b || !(a = suite_applied(suite, &variant, 0, error))) return -(int)error->status;
    const double worst = measure_closeness(a->after, b->after, b->parameters, &allclose).worst;
    check_expect(check, worst <= 1, "parameters after two steps differ: %.3g of what is allowed", worst);
    return 0;
}
