/* The learning-rate schedule counts applied steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

#include "daemon/core/schedule.h"
#include "tests/unit/histories.h"

static void near(double got, double wanted, double relative)
{
    if (!(fabs(got - wanted) <= relative * fabs(wanted))) fail_msg("%.17g, not %.17g", got, wanted);
}

/* Cases 09-1 and 09-3. */
static void cosine_reaches_the_minimum_and_stays_there(void **unused)
{
    (void)unused;
    const struct schedule cosine = {SCHEDULE_RULE_COSINE, 1e-3, 1e-4, 2, 10, 0};
    static const double wanted[] = {3.33333e-4, 6.66667e-4, 1e-3,       9.65746e-4, 8.68198e-4,
                                    7.22208e-4, 5.5e-4,     3.77792e-4, 2.31802e-4, 1.34254e-4,
                                    1e-4,       1e-4,       1e-4,       1e-4,       1e-4};
    for (uint64_t i = 0; i < sizeof wanted / sizeof *wanted; i++) near(schedule_lr(&cosine, i), wanted[i], 2e-6);
    assert_true(schedule_lr(&cosine, 10) == 1e-4);
}

/* Case 08-1: a skip does not count, so the caller asks for 0, 1, 1, 2, 3. */
static void warm_up_to_one_in_four_updates(void **unused)
{
    (void)unused;
    const struct schedule constant = {SCHEDULE_RULE_CONSTANT, 1, 0, 3, 100, 0};
    static const double wanted[] = {0.25, 0.5, 0.75, 1, 1};
    for (uint64_t i = 0; i < 5; i++) assert_true(schedule_lr(&constant, i) == wanted[i]);
}

/* Case 08-5. */
static void the_first_of_ten_warm_up_updates_has_a_tenth(void **unused)
{
    (void)unused;
    const struct schedule constant = {SCHEDULE_RULE_CONSTANT, 1, 0, 9, 100, 0};
    assert_true(schedule_lr(&constant, 0) == 0.1);
    assert_true(schedule_lr(&constant, 9) == 1);
}

/* Case 08-4. */
static void linear_falls_by_an_eighth_per_update(void **unused)
{
    (void)unused;
    const struct schedule linear = {SCHEDULE_RULE_LINEAR, 1, 0, 0, 8, 0};
    for (uint64_t i = 0; i <= 10; i++) assert_true(schedule_lr(&linear, i) == (i < 8 ? 1 - (double)i / 8 : 0));
}

static void wsd_holds_and_then_falls_in_its_last_part(void **unused)
{
    (void)unused;
    const struct schedule wsd = {SCHEDULE_RULE_WSD, 1, 0.2, 1, 10, 4};
    static const double wanted[] = {0.5, 1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.2};
    for (uint64_t i = 0; i < 12; i++) near(schedule_lr(&wsd, i), wanted[i], 1e-15);
}

static void a_constant_rate_has_no_minimum_and_no_end(void **unused)
{
    (void)unused;
    const struct schedule constant = {SCHEDULE_RULE_CONSTANT, 3e-4, 1e-5, 0, 10, 0};
    assert_true(schedule_lr(&constant, 0) == 3e-4);
    assert_true(schedule_lr(&constant, 1000000) == 3e-4);
}

static void any_schedule_rises_while_warming_then_never_rises_again(void **unused)
{
    (void)unused;
    uint64_t random = 3;
    for (int history = 0; history < HISTORIES; history++) {
        struct schedule s = {.type = (enum schedule_type)random_between(&random, 0, 3),
                             .lr = (double)random_between(&random, 1, 1000) * 1e-4,
                             .warmup = random_between(&random, 0, 20),
                             .total = random_between(&random, 1, 60),
                             .decay = random_between(&random, 0, 70)};
        s.minimum = s.lr * (double)random_between(&random, 0, 100) / 100;
        double last = 0;
        for (uint64_t i = 0; i < 80; i++) {
            double lr = schedule_lr(&s, i);
            if (i <= s.warmup && i < s.total) assert_true(i == s.warmup || lr > last);
            if (i > s.warmup) assert_true(lr <= last * (1 + 1e-15));
            assert_true(lr > 0 || s.minimum == 0);
            assert_true(lr <= s.lr * (1 + 1e-15));
            if (i >= s.warmup) assert_true(lr >= s.minimum * (1 - 1e-15));
            if (i >= s.warmup && i >= s.total) assert_true(lr == (s.type == SCHEDULE_RULE_CONSTANT ? s.lr : s.minimum));
            last = lr;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cosine_reaches_the_minimum_and_stays_there),
        cmocka_unit_test(warm_up_to_one_in_four_updates),
        cmocka_unit_test(the_first_of_ten_warm_up_updates_has_a_tenth),
        cmocka_unit_test(linear_falls_by_an_eighth_per_update),
        cmocka_unit_test(wsd_holds_and_then_falls_in_its_last_part),
        cmocka_unit_test(a_constant_rate_has_no_minimum_and_no_end),
        cmocka_unit_test(any_schedule_rises_while_warming_then_never_rises_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
