/* Warnings over the last 200 steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "daemon/core/warnings.h"
#include "tests/unit/histories.h"

static const struct warnings_step applied = {.applied = true};
static const struct warnings_step skipped = {.skipped = true};

static uint32_t feed(struct warnings *warnings, const struct warnings_step *step, int times)
{
    uint32_t given = 0;
    while (times-- > 0) given |= warnings_update(warnings, step);
    return given;
}

static void the_eleventh_skip_in_200_is_too_many(void **unused)
{
    (void)unused;
    struct warnings warnings = {0};
    assert_int_equal(feed(&warnings, &applied, 100), 0);
    assert_int_equal(feed(&warnings, &skipped, 10), 0);
    assert_int_equal(feed(&warnings, &applied, 90), 0);
    assert_int_equal(feed(&warnings, &skipped, 1), 1 << WARNING_SKIP_RATE);
}

static void old_skips_are_forgotten(void **unused)
{
    (void)unused;
    struct warnings warnings = {0};
    feed(&warnings, &skipped, 10);
    feed(&warnings, &applied, 200);
    assert_int_equal(feed(&warnings, &skipped, 10), 0);
}

static void a_lasting_fault_is_told_every_200_steps(void **unused)
{
    (void)unused;
    struct warnings warnings = {0};
    const struct warnings_step at_minimum = {.applied = true, .at_minimum = true};
    int told = 0;
    for (int step = 0; step < 1000; step++) told += warnings_update(&warnings, &at_minimum) != 0;
    assert_int_equal(told, 5);
}

static void more_than_three_backoffs_per_growth_are_a_saw_tooth(void **unused)
{
    (void)unused;
    struct warnings warnings = {0};
    const struct warnings_step grew = {.applied = true, .grew = true}, fell = {.applied = true, .backed_off = true};
    assert_int_equal(feed(&warnings, &fell, 8), 0); /* looking for its level */
    feed(&warnings, &applied, 200);
    assert_int_equal(feed(&warnings, &grew, 1), 0);
    assert_int_equal(feed(&warnings, &fell, 3), 0);
    assert_int_equal(feed(&warnings, &fell, 1), 1 << WARNING_SCALE_SAW_TOOTH);
}

static void clipping_that_always_or_never_binds_is_told_after_200_updates(void **unused)
{
    (void)unused;
    const struct warnings_step bound = {.applied = true, .clips = true, .clipped = true};
    const struct warnings_step free = {.applied = true, .clips = true};
    struct warnings warnings = {0};
    assert_int_equal(feed(&warnings, &bound, 199), 0);
    assert_int_equal(feed(&warnings, &bound, 1), 1 << WARNING_CLIP_ALWAYS);
    warnings = (struct warnings){0};
    assert_int_equal(feed(&warnings, &free, 199), 0);
    assert_int_equal(feed(&warnings, &free, 1), 1 << WARNING_CLIP_NEVER);
    warnings = (struct warnings){0};
    feed(&warnings, &bound, 190);
    assert_int_equal(feed(&warnings, &free, 10), 0); /* 95 % exactly */
    warnings = (struct warnings){0};
    assert_int_equal(feed(&warnings, &applied, 300), 0); /* no limit, nothing to tell */
}

static void any_history_warns_only_on_what_its_last_200_steps_hold(void **unused)
{
    (void)unused;
    uint64_t random = 6;
    for (int history = 0; history < HISTORIES / 20; history++) {
        struct warnings warnings = {0};
        double rate = (double)random_between(&random, 0, 100) / 1000;
        bool skips[600];
        int last = -WARNINGS_WINDOW;
        for (int step = 0; step < 600; step++) {
            skips[step] = random_chance(&random, rate);
            int count = 0;
            for (int i = step < 200 ? 0 : step - 199; i <= step; i++) count += skips[i];
            bool told = warnings_update(&warnings, skips[step] ? &skipped : &applied) & 1 << WARNING_SKIP_RATE;
            assert_int_equal(told, count > 10 && step - last >= WARNINGS_WINDOW);
            if (told) last = step;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_eleventh_skip_in_200_is_too_many),
        cmocka_unit_test(old_skips_are_forgotten),
        cmocka_unit_test(a_lasting_fault_is_told_every_200_steps),
        cmocka_unit_test(more_than_three_backoffs_per_growth_are_a_saw_tooth),
        cmocka_unit_test(clipping_that_always_or_never_binds_is_told_after_200_updates),
        cmocka_unit_test(any_history_warns_only_on_what_its_last_200_steps_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
