/* The rules were read off, or run on, the programs that the profiles are named after. O = overflow, F = a finite step.
 */
#include "daemon/core/loss_scale.h"

#include <math.h>
#include <stddef.h>

/* Skips in a row at a scale that cannot fall: by then the fault is in the model or the data, not in the scale. */
#define STOP_AFTER 20

static const struct loss_scale_rules defaults[] = {
    /* torch.cuda.amp.GradScaler. O: back off, tracker 0. F: tracker + 1; at the interval grow, tracker 0. No floor of
       its own. */
    [LOSS_SCALE_TORCH] = {.initial = 65536.0F, .growth = 2, .backoff = 0.5, .interval = 2000, .hysteresis = 1},
    /* apex.amp: as torch, at most 2^24. */
    [LOSS_SCALE_APEX] =
        {.initial = 65536.0F, .growth = 2, .backoff = 0.5, .interval = 2000, .hysteresis = 1, .maximum = 16777216.0F},
    /* Megatron-LM's DynamicGradScaler. O: growth tracker 0, hysteresis tracker - 1, and back off on each O while that
     * is not above 0. F: as torch; a growth, and nothing else, restores the hysteresis. */
    [LOSS_SCALE_MEGATRON] =
        {.initial = 4294967296.0F, .growth = 2, .backoff = 0.5, .interval = 1000, .hysteresis = 2, .minimum = 1},
    /* DeepSpeed's DynamicLossScaler (ZeRO). O: back off when the hysteresis count is down to 1, and stop when already
     * at the minimum; else count - 1. A decrease does not restore the count, a growth does; with consecutive_hysteresis
     * every F does instead. F: grows on the F that has a whole multiple of the interval between it and the last O, so
     * the first growth takes interval + 1. */
    [LOSS_SCALE_DEEPSPEED] = {.initial = 65536.0F,
                              .growth = 2,
                              .backoff = 0.5,
                              .interval = 1000,
                              .hysteresis = 2,
                              .minimum = 1,
                              .stop_at_minimum = true},
    /* DeepSpeed's FP16_Optimizer without ZeRO: no hysteresis, stays at the minimum. */
    [LOSS_SCALE_DEEPSPEED_FUSED] =
        {.initial = 65536.0F, .growth = 2, .backoff = 0.5, .interval = 1000, .hysteresis = 1, .minimum = 1},
};

void loss_scale_rules_default(struct loss_scale_rules *rules, enum loss_scale_profile profile)
{
    *rules = defaults[profile];
    rules->profile = profile;
    rules->stop_after = STOP_AFTER;
}

static bool usable(float scale)
{
    return scale > 0 && isfinite(scale) && isfinite(1.0F / scale);
}

const char *loss_scale_rules_check(const struct loss_scale_rules *rules)
{
    bool deepspeed = rules->profile == LOSS_SCALE_DEEPSPEED;
    if (!usable(rules->initial)) return "initial: must be positive and finite in fp32, and so must its reciprocal";
    if (!(rules->growth > 1) || !isfinite(rules->growth)) return "growth: must be above 1 and finite";
    if (!(rules->backoff > 0 && rules->backoff < 1)) return "backoff: must lie between 0 and 1";
    if (rules->interval == 0) return "interval: must be at least 1";
    if (rules->hysteresis == 0) return "hysteresis: must be at least 1";
    if (rules->hysteresis > 1 && !deepspeed && rules->profile != LOSS_SCALE_MEGATRON)
        return "hysteresis: only the profiles megatron and deepspeed have it";
    if (rules->consecutive_hysteresis && !deepspeed) return "consecutive_hysteresis: only the profile deepspeed has it";
    if (rules->minimum != 0 && !usable(rules->minimum)) return "minimum: must be positive and finite in fp32";
    if (rules->maximum != 0 && !usable(rules->maximum)) return "maximum: must be positive and finite in fp32";
    if (rules->initial < rules->minimum) return "initial: is below minimum";
    if (rules->maximum != 0 && rules->initial > rules->maximum) return "initial: is above maximum";
    return NULL;
}

void loss_scale_init(struct loss_scale *state, const struct loss_scale_rules *rules)
{
    *state = (struct loss_scale){.scale = rules->initial, .hysteresis_tracker = rules->hysteresis};
}

void loss_scale_restore(struct loss_scale *state, const struct loss_scale_rules *rules, const struct loss_scale *kept)
{
    *state = *kept;
    state->stop = false;
    if (rules->is_static) state->scale = rules->initial;
    if (state->scale < rules->minimum) state->scale = rules->minimum;
    if (rules->maximum != 0 && state->scale > rules->maximum) state->scale = rules->maximum;
    if (state->hysteresis_tracker > rules->hysteresis) state->hysteresis_tracker = rules->hysteresis;
}

static float backed_off(float scale, const struct loss_scale_rules *rules)
{
    float lower = (float)((double)scale * rules->backoff);
    if (lower < rules->minimum) lower = rules->minimum;
    return usable(lower) ? lower : scale;
}

static float grown(float scale, const struct loss_scale_rules *rules)
{
    float higher = (float)((double)scale * rules->growth);
    if (rules->maximum != 0 && higher > rules->maximum) higher = rules->maximum;
    return isfinite(higher) ? higher : scale;
}

bool loss_scale_at_minimum(const struct loss_scale *state, const struct loss_scale_rules *rules)
{
    return rules->is_static || !(backed_off(state->scale, rules) < state->scale);
}

static void overflowed(struct loss_scale *state, const struct loss_scale_rules *rules)
{
    bool at_minimum = loss_scale_at_minimum(state, rules);
    bool deepspeed = rules->profile == LOSS_SCALE_DEEPSPEED;
    /* torch, apex and deepspeed-fused have a hysteresis of 1, with which both ways of counting back off on every
     * overflow. */
    uint32_t held = deepspeed ? 1 : 0;
    if (!deepspeed && state->hysteresis_tracker > 0) state->hysteresis_tracker--;
    bool backs_off = state->hysteresis_tracker <= held;
    if (deepspeed && !backs_off) state->hysteresis_tracker--;

    state->growth_tracker = 0;
    if (backs_off && !rules->is_static) state->scale = backed_off(state->scale, rules);
    state->skips_at_minimum = at_minimum ? state->skips_at_minimum + 1 : 0;
    if (at_minimum && backs_off && rules->stop_at_minimum && !rules->is_static) state->stop = true;
    if (rules->stop_after != 0 && state->skips_at_minimum >= rules->stop_after) state->stop = true;
}

static void was_finite(struct loss_scale *state, const struct loss_scale_rules *rules)
{
    state->skips_at_minimum = 0;
    if (rules->is_static) return;
    if (rules->consecutive_hysteresis) state->hysteresis_tracker = rules->hysteresis;
    /* DeepSpeed does not count the step itself. */
    uint32_t uncounted = rules->profile == LOSS_SCALE_DEEPSPEED || rules->profile == LOSS_SCALE_DEEPSPEED_FUSED ? 1 : 0;
    /* >= and not ==: an interval shortened while the job runs must still grow. */
    if (state->growth_tracker++ < uncounted || state->growth_tracker - uncounted < rules->interval) return;
    state->scale = grown(state->scale, rules);
    state->growth_tracker = uncounted;
    state->hysteresis_tracker = rules->hysteresis;
}

void loss_scale_update(struct loss_scale *state, const struct loss_scale_rules *rules, bool finite)
{
    if (finite)
        was_finite(state, rules);
    else
        overflowed(state, rules);
}

bool loss_scale_retry(struct loss_scale *state, const struct loss_scale_rules *rules, uint32_t tried)
{
    struct loss_scale after = *state;
    if (tried >= rules->retries) return false;
    overflowed(&after, rules);
    if (after.stop || !(after.scale < state->scale)) return false;
    *state = after;
    return true;
}
