/*
 * The loss-scale state machine: one per job, pure. (state, finite?) → state. Profiles reproduce the rules of four
 * programs exactly, so that a migrated run keeps its trajectory; the rules stand in loss_scale.c beside each profile.
 */
#ifndef GACC_LOSS_SCALE_H
#define GACC_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

enum loss_scale_profile {
    LOSS_SCALE_TORCH,
    LOSS_SCALE_APEX,
    LOSS_SCALE_MEGATRON,
    LOSS_SCALE_DEEPSPEED,
    LOSS_SCALE_DEEPSPEED_FUSED,
};

struct loss_scale_rules {
    enum loss_scale_profile profile;
    bool is_static; /* the scale never moves */
    float initial;
    double growth, backoff;
    uint32_t interval;   /* finite steps before a growth */
    uint32_t hysteresis; /* megatron, deepspeed; else 1 */
    bool consecutive_hysteresis;
    float minimum, maximum; /* 0: none */
    bool stop_at_minimum;   /* an overflow at the minimum stops at once; false: clamp */
    uint32_t stop_after;    /* skips in a row at a scale that can fall no further, then stop; 0: never */
    uint32_t retries;       /* of a window that overflowed, before it is skipped; 0: it is skipped at once */
};

struct loss_scale {
    float scale; /* S of the next window; fp32, products are formed in double */
    uint32_t growth_tracker;
    uint32_t hysteresis_tracker;
    uint32_t skips_at_minimum; /* in a row */
    bool stop;                 /* the job ends with 76 */
};

/* The profile's defaults for every field. */
void loss_scale_rules_default(struct loss_scale_rules *rules, enum loss_scale_profile profile);
/* NULL when the rules can be used, else what is wrong with them (a static text that begins with the key below
 * precision.loss_scale). */
const char *loss_scale_rules_check(const struct loss_scale_rules *rules);
void loss_scale_init(struct loss_scale *state, const struct loss_scale_rules *rules);
/* A state that was kept, under rules that may have changed since: trackers they would not reach are cut. */
void loss_scale_restore(struct loss_scale *state, const struct loss_scale_rules *rules, const struct loss_scale *kept);
/* After a step with a verdict APPLY (finite) or SKIP (not finite). EMPTY steps do not come here. */
void loss_scale_update(struct loss_scale *state, const struct loss_scale_rules *rules, bool finite);
/* After a window that was not finite and was run again `tried` times already: true where it is to be run once more,
 * with the state as an overflow leaves it. False, and nothing has changed, where that would not lower the scale. */
bool loss_scale_retry(struct loss_scale *state, const struct loss_scale_rules *rules, uint32_t tried);
/* The next overflow cannot lower the scale: it is static, at its minimum, or where 1/S would leave fp32. */
bool loss_scale_at_minimum(const struct loss_scale *state, const struct loss_scale_rules *rules);

#endif
