/* The loss-scale machine: profiles keep the trajectories of the programs they are named after (O = overflow, F =
 * finite). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "daemon/core/loss_scale.h"
#include "tests/unit/histories.h"

#define STOP (-1)
#define LENGTH 7

struct trajectory {
    const char *sequence;
    float initial;
    uint32_t interval, hysteresis;
    float minimum;
    enum loss_scale_profile profile;
    bool consecutive;
    float after[LENGTH]; /* the scale after each step's update */
};

#define ALL_BUT_DEEPSPEED(sequence, initial, interval, minimum, ...)                 \
    {sequence, initial, interval, 1, minimum, LOSS_SCALE_TORCH, false, __VA_ARGS__}, \
    {                                                                                \
        sequence, initial, interval, 1, minimum, LOSS_SCALE_APEX, false, __VA_ARGS__ \
    }

static const struct trajectory trajectories[] = {
    ALL_BUT_DEEPSPEED("FFFFFFF", 256, 2, 0, {256, 512, 512, 1024, 1024, 2048, 2048}),
    {"FFFFFFF", 256, 2, 2, 1, LOSS_SCALE_MEGATRON, false, {256, 512, 512, 1024, 1024, 2048, 2048}},
    {"FFFFFFF", 256, 2, 2, 1, LOSS_SCALE_DEEPSPEED, false, {256, 256, 512, 512, 1024, 1024, 2048}},
    {"FFFFFFF", 256, 2, 2, 1, LOSS_SCALE_DEEPSPEED, true, {256, 256, 512, 512, 1024, 1024, 2048}},
    {"FFFFFFF", 256, 2, 1, 1, LOSS_SCALE_DEEPSPEED_FUSED, false, {256, 256, 512, 512, 1024, 1024, 2048}},

    ALL_BUT_DEEPSPEED("OOFFFO", 256, 2, 0, {128, 64, 64, 128, 128, 64}),
    {"OOFFFO", 256, 2, 1, 1, LOSS_SCALE_MEGATRON, false, {128, 64, 64, 128, 128, 64}},
    {"OOFFFO", 256, 2, 1, 1, LOSS_SCALE_DEEPSPEED, false, {128, 64, 64, 64, 128, 64}},
    {"OOFFFO", 256, 2, 1, 1, LOSS_SCALE_DEEPSPEED, true, {128, 64, 64, 64, 128, 64}},
    {"OOFFFO", 256, 2, 1, 1, LOSS_SCALE_DEEPSPEED_FUSED, false, {128, 64, 64, 64, 128, 64}},

    ALL_BUT_DEEPSPEED("OFOFOF", 256, 3, 0, {128, 128, 64, 64, 32, 32}),
    {"OFOFOF", 256, 3, 2, 1, LOSS_SCALE_MEGATRON, false, {256, 256, 128, 128, 64, 64}},
    {"OFOFOF", 256, 3, 2, 1, LOSS_SCALE_DEEPSPEED, false, {256, 256, 128, 128, 64, 64}},
    {"OFOFOF", 256, 3, 2, 1, LOSS_SCALE_DEEPSPEED, true, {256, 256, 256, 256, 256, 256}},
    {"OFOFOF", 256, 3, 1, 1, LOSS_SCALE_DEEPSPEED_FUSED, false, {128, 128, 64, 64, 32, 32}},

    ALL_BUT_DEEPSPEED("OFFFFOO", 256, 3, 0, {128, 128, 128, 256, 256, 128, 64}),
    {"OFFFFOO", 256, 3, 2, 1, LOSS_SCALE_MEGATRON, false, {256, 256, 256, 512, 512, 512, 256}},
    {"OFFFFOO", 256, 3, 2, 1, LOSS_SCALE_DEEPSPEED, false, {256, 256, 256, 256, 512, 512, 256}},
    {"OFFFFOO", 256, 3, 2, 1, LOSS_SCALE_DEEPSPEED, true, {256, 256, 256, 256, 512, 512, 256}},
    {"OFFFFOO", 256, 3, 1, 1, LOSS_SCALE_DEEPSPEED_FUSED, false, {128, 128, 128, 128, 256, 128, 64}},

    ALL_BUT_DEEPSPEED("OOOOOO", 4, 2, 0, {2, 1, 0.5F, 0.25F, 0.125F, 0.0625F}),
    {"OOOOOO", 4, 2, 1, 1, LOSS_SCALE_MEGATRON, false, {2, 1, 1, 1, 1, 1}},
    {"OOO", 4, 2, 1, 1, LOSS_SCALE_DEEPSPEED, false, {2, 1, STOP}},
    {"OOO", 4, 2, 1, 1, LOSS_SCALE_DEEPSPEED, true, {2, 1, STOP}},
    {"OOOOOO", 4, 2, 1, 1, LOSS_SCALE_DEEPSPEED_FUSED, false, {2, 1, 1, 1, 1, 1}},
};

static struct loss_scale_rules rules_of(enum loss_scale_profile profile)
{
    struct loss_scale_rules rules;
    loss_scale_rules_default(&rules, profile);
    return rules;
}

static void every_profile_keeps_its_trajectories(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof trajectories / sizeof *trajectories; i++) {
        const struct trajectory *t = &trajectories[i];
        struct loss_scale_rules rules = rules_of(t->profile);
        rules.initial = t->initial;
        rules.interval = t->interval;
        rules.hysteresis = t->hysteresis;
        rules.minimum = t->minimum;
        rules.consecutive_hysteresis = t->consecutive;
        assert_null(loss_scale_rules_check(&rules));
        struct loss_scale state;
        loss_scale_init(&state, &rules);
        for (size_t step = 0; t->sequence[step] != '\0'; step++) {
            loss_scale_update(&state, &rules, t->sequence[step] == 'F');
            float got = state.stop ? STOP : state.scale;
            if (got != t->after[step])
                fail_msg("%s, profile %d, step %zu: %g, not %g", t->sequence, (int)t->profile, step + 1, (double)got,
                         (double)t->after[step]);
        }
    }
}

static void defaults_are_those_of_the_programs(void **unused)
{
    (void)unused;
    static const struct loss_scale_rules wanted[] = {
        {LOSS_SCALE_TORCH, false, 65536, 2, 0.5, 2000, 1, false, 0, 0, false, 20, 0},
        {LOSS_SCALE_APEX, false, 65536, 2, 0.5, 2000, 1, false, 0, 16777216, false, 20, 0},
        {LOSS_SCALE_MEGATRON, false, 4294967296.0F, 2, 0.5, 1000, 2, false, 1, 0, false, 20, 0},
        {LOSS_SCALE_DEEPSPEED, false, 65536, 2, 0.5, 1000, 2, false, 1, 0, true, 20, 0},
        {LOSS_SCALE_DEEPSPEED_FUSED, false, 65536, 2, 0.5, 1000, 1, false, 1, 0, false, 20, 0},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        struct loss_scale_rules rules = rules_of(wanted[i].profile);
        assert_int_equal(rules.profile, wanted[i].profile);
        assert_int_equal(rules.is_static, wanted[i].is_static);
        assert_true(rules.initial == wanted[i].initial && rules.growth == wanted[i].growth);
        assert_true(rules.backoff == wanted[i].backoff && rules.minimum == wanted[i].minimum);
        assert_true(rules.maximum == wanted[i].maximum);
        assert_int_equal(rules.interval, wanted[i].interval);
        assert_int_equal(rules.hysteresis, wanted[i].hysteresis);
        assert_int_equal(rules.stop_at_minimum, wanted[i].stop_at_minimum);
        assert_int_equal(rules.stop_after, wanted[i].stop_after);
        assert_null(loss_scale_rules_check(&rules));
    }
}

/* Case 10-1. */
static void an_overflow_halves_the_scale_and_zeroes_the_tracker(void **unused)
{
    (void)unused;
    struct loss_scale_rules rules = rules_of(LOSS_SCALE_TORCH);
    rules.initial = 8;
    rules.interval = 2;
    struct loss_scale state;
    loss_scale_init(&state, &rules);
    static const float used[] = {8, 8, 16, 8, 8, 16};
    for (int attempt = 0; attempt < 6; attempt++) {
        assert_true(state.scale == used[attempt]);
        loss_scale_update(&state, &rules, attempt != 2);
        if (attempt == 2) assert_int_equal(state.growth_tracker, 0);
    }
    assert_true(state.scale == 16);
    assert_int_equal(state.growth_tracker, 1);
}

/* Case 10-3. */
static void permanent_overflow_lies_at_the_minimum_and_then_stops(void **unused)
{
    (void)unused;
    struct loss_scale_rules rules = rules_of(LOSS_SCALE_TORCH);
    rules.initial = 16;
    rules.minimum = 1;
    struct loss_scale state;
    loss_scale_init(&state, &rules);
    static const float used[] = {16, 8, 4, 2, 1, 1, 1};
    for (uint32_t attempt = 1; attempt <= 24; attempt++) {
        assert_true(state.scale == (attempt <= 7 ? used[attempt - 1] : 1));
        assert_false(state.stop);
        loss_scale_update(&state, &rules, false);
    }
    assert_true(state.stop); /* 4 overflows down to 1, then 20 there */
}

static void a_finite_step_restarts_the_count_of_skips_at_the_minimum(void **unused)
{
    (void)unused;
    struct loss_scale_rules rules = rules_of(LOSS_SCALE_TORCH);
    rules.initial = rules.minimum = 1;
    struct loss_scale state;
    loss_scale_init(&state, &rules);
    for (int i = 0; i < 19; i++) loss_scale_update(&state, &rules, false);
    loss_scale_update(&state, &rules, true);
    for (int i = 0; i < 19; i++) loss_scale_update(&state, &rules, false);
    assert_false(state.stop);
    loss_scale_update(&state, &rules, false);
    assert_true(state.stop);
}

/* Case 10-5, B9: 112 doublings of 65536 would be infinite. */
static void growth_stops_before_infinity(void **unused)
{
    (void)unused;
    for (int profile = LOSS_SCALE_TORCH; profile <= LOSS_SCALE_DEEPSPEED_FUSED; profile++) {
        struct loss_scale_rules rules = rules_of((enum loss_scale_profile)profile);
        rules.initial = 65536;
        rules.interval = 1;
        struct loss_scale state;
        loss_scale_init(&state, &rules);
        for (int step = 0; step < 150; step++) loss_scale_update(&state, &rules, true);
        assert_true(state.scale == (profile == LOSS_SCALE_APEX ? 0x1p24F : 0x1p127F));
    }
}

static void backoff_stops_where_the_reciprocal_leaves_fp32(void **unused)
{
    (void)unused;
    struct loss_scale_rules rules = rules_of(LOSS_SCALE_TORCH);
    rules.stop_after = 0;
    struct loss_scale state;
    loss_scale_init(&state, &rules);
    for (int step = 0; step < 300; step++) loss_scale_update(&state, &rules, false);
    assert_true(state.scale == 0x1p-127F);
    assert_true(loss_scale_at_minimum(&state, &rules));
    assert_false(state.stop);
}

static void a_static_scale_never_moves_and_still_stops(void **unused)
{
    (void)unused;
    struct loss_scale_rules rules = rules_of(LOSS_SCALE_TORCH);
    rules.is_static = true;
    rules.initial = 128;
    struct loss_scale state;
    loss_scale_init(&state, &rules);
    for (int step = 0; step < 5000; step++) loss_scale_update(&state, &rules, true);
    for (int step = 0; step < 20; step++) {
        assert_false(state.stop);
        loss_scale_update(&state, &rules, false);
        assert_true(state.scale == 128);
    }
    assert_true(state.stop);
}

static void an_interval_shortened_below_the_tracker_still_grows(void **unused)
{
    (void)unused;
    struct loss_scale_rules rules = rules_of(LOSS_SCALE_TORCH);
    struct loss_scale state;
    loss_scale_init(&state, &rules);
    for (int step = 0; step < 10; step++) loss_scale_update(&state, &rules, true);
    rules.interval = 5;
    loss_scale_update(&state, &rules, true);
    assert_true(state.scale == 131072);
    assert_int_equal(state.growth_tracker, 0);
}

/* Case 10-7. */
static void rules_that_cannot_work_are_refused_by_key(void **unused)
{
    (void)unused;
    static const struct {
        const char *key;
        size_t field;
        bool is_float;
        double value;
    } bad[] = {
#define BAD(key, value) \
    {#key, offsetof(struct loss_scale_rules, key), sizeof(((struct loss_scale_rules *)0)->key) == 4, value}
        BAD(initial, 0),
        BAD(initial, -1),
        BAD(initial, (double)NAN),
        BAD(initial, (double)INFINITY),
        BAD(initial, 0x1p-128),
        BAD(growth, 0.5),
        BAD(growth, 1),
        BAD(growth, (double)INFINITY),
        BAD(growth, (double)NAN),
        BAD(backoff, 2),
        BAD(backoff, 0),
        BAD(backoff, 1),
        BAD(backoff, (double)NAN),
        BAD(minimum, -1),
        BAD(minimum, (double)NAN),
        BAD(maximum, -1),
        BAD(maximum, (double)INFINITY),
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct loss_scale_rules rules = rules_of(LOSS_SCALE_TORCH);
        if (bad[i].is_float)
            *(float *)((char *)&rules + bad[i].field) = (float)bad[i].value;
        else
            *(double *)((char *)&rules + bad[i].field) = bad[i].value;
        const char *why = loss_scale_rules_check(&rules);
        assert_non_null(why);
        assert_int_equal(strncmp(why, bad[i].key, strlen(bad[i].key)), 0);
    }
    struct loss_scale_rules rules = rules_of(LOSS_SCALE_TORCH);
    rules.interval = 0;
    assert_non_null(strstr(loss_scale_rules_check(&rules), "interval"));
    rules = rules_of(LOSS_SCALE_TORCH);
    rules.hysteresis = 2;
    assert_non_null(strstr(loss_scale_rules_check(&rules), "hysteresis"));
    rules = rules_of(LOSS_SCALE_MEGATRON);
    rules.consecutive_hysteresis = true;
    assert_non_null(strstr(loss_scale_rules_check(&rules), "consecutive_hysteresis"));
    rules = rules_of(LOSS_SCALE_MEGATRON);
    rules.initial = 0.5F;
    assert_string_equal(loss_scale_rules_check(&rules), "initial: is below minimum");
    rules = rules_of(LOSS_SCALE_APEX);
    rules.initial = 0x1p25F;
    assert_string_equal(loss_scale_rules_check(&rules), "initial: is above maximum");
}

static struct loss_scale_rules random_rules(uint64_t *random)
{
    struct loss_scale_rules rules = rules_of((enum loss_scale_profile)random_between(random, 0, 4));
    rules.initial = ldexpf(1, (int)random_between(random, 0, 30));
    rules.growth = random_chance(random, 0.5) ? 2 : 1.5;
    rules.backoff = random_chance(random, 0.5) ? 0.5 : 0.75;
    rules.interval = (uint32_t)random_between(random, 1, 6);
    if (rules.hysteresis > 1) rules.hysteresis = (uint32_t)random_between(random, 1, 3);
    rules.consecutive_hysteresis = rules.profile == LOSS_SCALE_DEEPSPEED && random_chance(random, 0.5);
    rules.minimum = random_chance(random, 0.5) ? 0 : ldexpf(1, -(int)random_between(random, 0, 8));
    rules.maximum = random_chance(random, 0.5) ? 0 : rules.initial * 4;
    rules.is_static = random_chance(random, 0.1);
    assert_null(loss_scale_rules_check(&rules));
    return rules;
}

static void any_history_keeps_the_scale_usable_and_moves_it_one_notch_a_step(void **unused)
{
    (void)unused;
    uint64_t random = 1;
    for (int history = 0; history < HISTORIES; history++) {
        struct loss_scale_rules rules = random_rules(&random);
        struct loss_scale state;
        loss_scale_init(&state, &rules);
        uint32_t finite_in_a_row = 0;
        for (int step = 0; step < 60 && !state.stop; step++) {
            float before = state.scale;
            bool finite = random_chance(&random, 0.75);
            finite_in_a_row = finite ? finite_in_a_row + 1 : 0;
            loss_scale_update(&state, &rules, finite);
            assert_true(state.scale > 0 && isfinite(state.scale) && isfinite(1 / state.scale));
            assert_true(state.scale >= rules.minimum);
            assert_true(rules.maximum == 0 || state.scale <= rules.maximum);
            assert_true(state.hysteresis_tracker <= rules.hysteresis);
            if (rules.is_static) assert_true(state.scale == before);
            if (finite) {
                assert_true(state.scale >= before && (double)state.scale <= (double)before * rules.growth * 1.000001);
                if (state.scale > before) assert_true(finite_in_a_row >= rules.interval);
                assert_int_equal(state.skips_at_minimum, 0);
            } else {
                assert_true(state.scale <= before && (double)state.scale >= (double)before * rules.backoff * 0.999999);
                assert_int_equal(state.growth_tracker, 0);
                /* Without hysteresis each overflow backs off, unless the scale cannot fall. */
                if (rules.hysteresis == 1 && !rules.is_static && rules.minimum == 0) assert_true(state.scale < before);
            }
        }
    }
}

static void profiles_that_should_agree_do(void **unused)
{
    (void)unused;
    uint64_t random = 2;
    for (int history = 0; history < HISTORIES; history++) {
        struct loss_scale_rules rules[4] = {rules_of(LOSS_SCALE_TORCH), rules_of(LOSS_SCALE_MEGATRON),
                                            rules_of(LOSS_SCALE_DEEPSPEED), rules_of(LOSS_SCALE_DEEPSPEED_FUSED)};
        struct loss_scale state[4];
        for (int i = 0; i < 4; i++) {
            rules[i].initial = 1024;
            rules[i].interval = 3;
            rules[i].hysteresis = 1;
            rules[i].minimum = 0x1p-100F;
            loss_scale_init(&state[i], &rules[i]);
        }
        for (int step = 0; step < 60; step++) {
            bool finite = !random_chance(&random, 0.25);
            for (int i = 0; i < 4; i++) loss_scale_update(&state[i], &rules[i], finite);
            assert_true(state[0].scale == state[1].scale);
            assert_true(state[2].scale == state[3].scale);
        }
    }
}

static void a_retry_is_an_overflow_that_lowers_the_scale(void **unused)
{
    (void)unused;
    struct loss_scale_rules rules = rules_of(LOSS_SCALE_MEGATRON);
    rules.initial = 8;
    struct loss_scale state, overflowed;
    loss_scale_init(&state, &rules);
    assert_false(loss_scale_retry(&state, &rules, 0)); /* retries: 0 */
    rules.retries = 2;
    const struct loss_scale untouched = state;
    assert_false(loss_scale_retry(&state, &rules, 0)); /* the hysteresis holds it */
    assert_memory_equal(&state, &untouched, sizeof state);
    loss_scale_update(&state, &rules, false);
    for (uint32_t tried = 0; tried < 2; tried++) {
        overflowed = state;
        loss_scale_update(&overflowed, &rules, false);
        assert_true(loss_scale_retry(&state, &rules, tried));
        assert_memory_equal(&state, &overflowed, sizeof state);
    }
    assert_true(state.scale == 2);
    assert_false(loss_scale_retry(&state, &rules, 2));
    state.scale = rules.minimum;
    assert_false(loss_scale_retry(&state, &rules, 0));
    rules.is_static = true;
    state.scale = 8;
    assert_false(loss_scale_retry(&state, &rules, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_retry_is_an_overflow_that_lowers_the_scale),
        cmocka_unit_test(every_profile_keeps_its_trajectories),
        cmocka_unit_test(defaults_are_those_of_the_programs),
        cmocka_unit_test(an_overflow_halves_the_scale_and_zeroes_the_tracker),
        cmocka_unit_test(permanent_overflow_lies_at_the_minimum_and_then_stops),
        cmocka_unit_test(a_finite_step_restarts_the_count_of_skips_at_the_minimum),
        cmocka_unit_test(growth_stops_before_infinity),
        cmocka_unit_test(backoff_stops_where_the_reciprocal_leaves_fp32),
        cmocka_unit_test(a_static_scale_never_moves_and_still_stops),
        cmocka_unit_test(an_interval_shortened_below_the_tracker_still_grows),
        cmocka_unit_test(rules_that_cannot_work_are_refused_by_key),
        cmocka_unit_test(any_history_keeps_the_scale_usable_and_moves_it_one_notch_a_step),
        cmocka_unit_test(profiles_that_should_agree_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
