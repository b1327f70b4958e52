/* The loss scale, the clip, and steps that overflow. */
#include "daemon/verify/checks.h"
#include "daemon/verify/checks_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define LOWER_SCALES 4 /* each a margin below the one before */

/* ---- the loss scale and the clip ---- */

/* A job in fp16 at a scale at which the probe does not overflow. False: the check is settled, or there is an error. */
static bool scaled(struct suite *suite, struct check *check, struct variant *variant, int *result, struct error *error)
{
    *variant = variant_split(suite, FP16, suite_ranks(suite));
    *result = yardstick_scale(suite, &variant->loss_scale, error);
    if (*result || check_is_beyond_fp16(suite, variant->loss_scale, check)) return false;
    *result = yardstick_rate(suite, &variant->rate, error);
    return *result == 0;
}

int check_norms_and_scale(struct suite *suite, struct check *check, struct error *error)
{
    struct variant variant;
    int result;
    if (!scaled(suite, check, &variant, &result, error)) return result;
    const struct trial *trial = suite_applied(suite, &variant, 0, error);
    if (!trial) return -(int)error->status;
    const struct trial_step *step = &trial->steps[0];
    const double ratio = step->grad_norm_scaled / step->grad_norm;
    if (step->grad_norm == 0) return check_skip(check, "the gradient of the probe is zero");
    check_judge(check, fabs(ratio / step->loss_scale - 1), EXACT);
    check_say(check, "norm before unscaling / after it = %.9g; S = %.9g", ratio, step->loss_scale);
    return 0;
}

bool checks_scaled(struct suite *suite, struct variant *variant, const char **why)
{
    struct check unused = {0};
    struct error error;
    int result;
    *why = "the probe overflows in fp16 at every loss scale";
    if (!scaled(suite, &unused, variant, &result, &error)) return false;
    variant->steps = 3;
    variant->interval = 1;
    variant->clip = variant->rate > 0 ? MOVED / variant->rate : 1;
    return true;
}

/* Steps at the same S in both. A forward knows no S: the loss of the step behind them is the same to the bit, however
 * coarse the gradients are. */
static uint64_t steps_before_growth(const struct trial *growing, const struct trial *steady)
{
    uint64_t step = 0;
    while (step < steady->step_count && growing->steps[step].loss_scale == steady->steps[step].loss_scale) step++;
    return step;
}

/* S doubles from step to step (by deepspeed's rules from the second on), and the updates are none the smaller. Steps
 * that overflow on the way are made at a lower S, as a job would. */
int check_growth(struct suite *suite, struct check *check, struct error *error)
{
    struct variant growing, steady;
    int result;
    if (!scaled(suite, check, &growing, &result, error)) return result;
    growing.steps = 3;
    steady = growing;
    growing.interval = 1;
    const double first = growing.loss_scale;
    double floor;
    if ((result = yardstick_floor(suite, FP16, growing.loss_scale, &floor, error))) return result;
    const struct trial *a = NULL, *b = NULL;
    for (int i = 0; i < LOWER_SCALES && !a; i++) {
        growing.loss_scale = steady.loss_scale = first / pow(SCALE_MARGIN, i);
        b = suite_applied(suite, &steady, 0, error);
        a = b ? suite_applied(suite, &growing, 0, error) : NULL;
        if (!a && error->status != STATUS_NUMERICS) return -(int)error->status;
    }
    if (!b) return check_skip(check, "three steps so far leave fp16 at every S: %s", error->text);
    if (!a) return -(int)error->status; /* those at a steady S do not */
    const double update = trial_update_norm(b);
    for (uint64_t i = 0; i < b->step_count; i++)
        if (update == 0 || b->steps[i].grad_norm == 0) return check_skip(check, "the gradient of the probe is zero");
    if (!(a->steps[2].loss_scale > a->steps[0].loss_scale))
        return check_skip(check, "the job's loss scale does not grow in three steps");
    check_judge(check, measure_distance(a->after, b->after, b->parameters) / update, FLOORS * floor);
    check->floor = floor;
    check->ratio = trial_update_norm(a) / update;
    check_say(check, "three steps while S grows from %g to %g, against three at %g", a->steps[0].loss_scale,
              a->steps[2].loss_scale, b->steps[0].loss_scale);
    const uint64_t behind = steps_before_growth(a, b);
    if (a->steps[behind].loss != b->steps[behind].loss) {
        check->pass = false;
        check_say(check,
                  "the step at S = %g behind which S grows is another than where it does not: then the loss is "
                  "%.17g, not %.17g",
                  b->steps[0].loss_scale, a->steps[behind].loss, b->steps[behind].loss);
    }
    return 0;
}

int check_clip(struct suite *suite, struct check *check, struct error *error)
{
    struct variant variant;
    int result;
    if (!scaled(suite, check, &variant, &result, error)) return result;
    const struct trial *trial = suite_applied(suite, &variant, 0, error);
    if (!trial) return -(int)error->status;
    const double norm = trial->steps[0].grad_norm;
    if (norm == 0) return check_skip(check, "the gradient of the probe is zero");
    variant.clip = norm / 2;
    if (!(trial = suite_applied(suite, &variant, 0, error))) return -(int)error->status;
    const struct trial_step *step = &trial->steps[0];
    const double coefficient = variant.clip / (norm + CLIP_EPSILON), update = trial_update_norm(trial);
    check_expect(check, is_near(step->clip_coefficient, coefficient, EXACT), "coefficient %.9g, not %.9g",
                 step->clip_coefficient, coefficient);
    check_expect(check, step->grad_norm_clipped <= variant.clip * (1 + EXACT), "norm %.9g after the clip to %.9g",
                 step->grad_norm_clipped, variant.clip);
    check_expect(check, is_near(update, variant.rate * coefficient * norm, FP32_RATIO),
                 "the update's norm is %.3g of lr · coefficient · norm (S = %g)",
                 update / (variant.rate * coefficient * norm), step->loss_scale);
    if (check->pass) check_say(check, "norm %.6g clipped to %.6g", norm, step->grad_norm_clipped);
    return 0;
}

/* ---- overflow ---- */

/* AdamW on the same batch twice; its gradient overflows the first time, in the last
 * micro-batch (of the last rank) that has weight. NULL: the check is settled, or there is an error. */
static const struct trial *overflown(struct suite *suite, struct check *check, struct variant *variant, int *result,
                                     struct error *error)
{
    const struct trial *trial = NULL;
    if (!scaled(suite, check, variant, result, error)) return NULL;
    variant->rate = ADAMW_RATE * (WARMUP + 1);
    variant->adamw = 1;
    variant->steps = 2;
    variant->warmup = WARMUP;
    variant->dropout = 0;
    variant->overflow_at_step = 1;
    variant->train = variant->sequences;
    for (uint32_t m = variant_micro_batches(variant); m-- > 0;) {
        variant->overflow_micro_batch = m;
        if (!(trial = suite_trial(suite, variant, error))) break;
        if (trial->steps[0].verdict == VERDICT_IS_SKIP) break;
    }
    if (trial && trial->step_count != 2) {
        error_set(error, STATUS_NUMERICS, "the job ends with the step that overflowed");
        trial = NULL;
    }
    if (!trial) *result = -(int)error->status;
    return trial;
}

bool checks_overflow(struct suite *suite, struct variant *variant, const char **why)
{
    struct check unused = {0};
    struct error error;
    int result;
    *why = "no overflow could be made";
    return overflown(suite, &unused, variant, &result, &error) != NULL;
}

int check_overflow_skips(struct suite *suite, struct check *check, struct error *error)
{
    struct variant variant;
    int result;
    const struct trial *trial = overflown(suite, check, &variant, &result, error);
    if (!trial) return result;
    const struct trial_step *step = &trial->steps[0];
    check_expect(check, step->verdict == VERDICT_IS_SKIP, "the step is not skipped");
    check_expect(check, step->bytes_changed == 0, "%" PRIu64 " bytes of parameters or moments changed",
                 step->bytes_changed);
    check_expect(check, step->gradients_cleared, "gradients are not cleared");
    check_expect(check, step->optimizer_steps == 0 && step->skipped_steps == 1,
                 "%" PRIu64 " steps applied, %" PRIu64 " skipped", step->optimizer_steps, step->skipped_steps);
    check_expect(check, step->all_gathers == 0, "parameters are gathered");
    if (check->pass)
        check_say(check, "in micro-batch %" PRIu32 " of 0 … %" PRIu32 ": all ranks skip, 0 bytes change",
                  variant.overflow_micro_batch, variant_micro_batches(&variant) - 1);
    return 0;
}

int check_overflow_backs_off_once(struct suite *suite, struct check *check, struct error *error)
{
    struct variant variant;
    int result;
    const struct trial *trial = overflown(suite, check, &variant, &result, error);
    if (!trial) return result;
    const Gacc__V1__LossScaleSection *section = suite->job->precision->loss_scale;
    const double backoff = section && section->backoff > 0 && section->backoff < 1 ? section->backoff : 0.5;
    const double once = variant.loss_scale * backoff;
    const struct trial_step *step = trial->steps;
    const double used = step[1].grad_norm_scaled / step[1].grad_norm;
    check_expect(check, is_near(step[0].loss_scale_next, once, EXACT), "S falls from %g to %g", variant.loss_scale,
                 step[0].loss_scale_next);
    check_expect(check, is_near(step[1].loss_scale, once, EXACT), "S of the next step is %g, not %g",
                 step[1].loss_scale, once);
    check_expect(check, step[1].grad_norm == 0 || is_near(used, once, EXACT),
                 "the next step's gradients are scaled by %g, not by %g", used, once);
    if (check->pass) check_say(check, "S falls from %g to %g", variant.loss_scale, step[0].loss_scale_next);
    return 0;
}

/* Skipped, then applied: what the batch leaves that was never skipped. */
int check_step_after_overflow(struct suite *suite, struct check *check, struct error *error)
{
    struct variant variant, right;
    int result;
    double floor;
    const struct trial *a = overflown(suite, check, &variant, &result, error);
    if (!a) return result;
    const struct trial_step *step = a->steps;
    check_expect(check, step[1].verdict == VERDICT_IS_APPLY, "the next step is not applied");
    check_expect(check, step[1].optimizer_steps == 1, "%" PRIu64 " optimizer steps after it", step[1].optimizer_steps);
    check_expect(check, step[0].scheduler_steps == 0 && step[1].scheduler_steps == 1,
                 "the schedule counts %" PRIu64 " after the skip, %" PRIu64 " after the next step",
                 step[0].scheduler_steps, step[1].scheduler_steps);
    check_expect(check, is_near(step[1].lr, ADAMW_RATE, EXACT), "lr %g, not the first step's %g", step[1].lr,
                 ADAMW_RATE);
    if (check->pass) check_say(check, "counts and lr of a first step");
    if (!check->pass) return 0;
    right = variant;
    right.overflow_at_step = right.overflow_micro_batch = 0;
    right.steps = 1;
    if ((result = yardstick_floor(suite, FP16, variant.loss_scale, &floor, error))) return result;
    if (!(a = suite_applied(suite, &variant, 1, error))) return -(int)error->status;
    return check_judge_adamw(suite, check, a, &right, floor, error);
}

/* on_overflow: retry. The window that overflowed at S and passed at the lower one leaves what it leaves there at once.
 */
int check_retry(struct suite *suite, struct check *check, struct error *error)
{
    struct variant variant, right;
    int result;
    if (!overflown(suite, check, &variant, &result, error)) return result;
    variant.steps = 1;
    variant.retries = 1;
    const struct trial *a = suite_applied(suite, &variant, 0, error);
    if (!a) return -(int)error->status;
    const struct trial_step *step = a->steps;
    right = variant;
    right.retries = right.overflow_at_step = right.overflow_micro_batch = 0;
    right.loss_scale = step->loss_scale;
    const struct trial *b = suite_applied(suite, &right, 0, error);
    if (!b) return -(int)error->status;
    check_expect(check, step->retries == 1, "the window is run again %" PRIu32 " times", step->retries);
    check_expect(check, step->optimizer_steps == 1 && step->skipped_steps == 0,
                 "%" PRIu64 " steps applied, %" PRIu64 " skipped", step->optimizer_steps, step->skipped_steps);
    check_expect(check, memcmp(a->after, b->after, b->parameters * sizeof *b->after) == 0,
                 "the parameters are not those of a window at S = %g", step->loss_scale);
    if (check->pass)
        check_say(check, "at S = %g, and then at %g: to the last bit", variant.loss_scale, step->loss_scale);
    return 0;
}
