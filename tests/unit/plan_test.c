/* Which sequences make up a step and who runs them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "daemon/core/plan.h"
#include "tests/unit/histories.h"

static uint64_t steps_until_the_data_end(const struct plan_rules *rules, struct plan *last)
{
    struct plan_position position = {0};
    uint64_t steps = 0;
    while (plan_next(rules, 0, &position, last)) steps++;
    return steps;
}

/* A11: whole micro-batches are added; the size is B from ramp_steps on, and never leaves what is between. */
static void a_ramp_grows_by_whole_micro_batches_to_b(void **unused)
{
    (void)unused;
    static const uint32_t wanted[] = {3, 3, 5, 5, 7, 7, 9, 10, 10};
    struct plan_rules rules = {.sequences = 99, .global = 10, .micro = 2, .ranks = 1, .ramp_from = 3, .ramp_steps = 7};
    for (uint64_t i = 0; i < 9; i++) assert_int_equal(plan_sequences(&rules, i), wanted[i]);
    rules.global = 2147483647, rules.ramp_from = 1, rules.ramp_steps = 2147483647, rules.micro = 1;
    for (uint64_t i = 0; i < 2147483647; i += 214748364) assert_int_equal(plan_sequences(&rules, i), 1 + i - (i > 0));
    rules.global = 3, rules.ramp_from = 5; /* B was set below where it began */
    assert_int_equal(plan_sequences(&rules, 0), 3);
}

static void a_plan_that_was_issued_is_cut_anew(void **unused)
{
    (void)unused;
    struct plan_rules rules = {.sequences = 9, .global = 6, .micro = 2, .ranks = 1, .epochs = 2};
    struct plan plan = {.epoch = 1, .first = 2, .count = 5, .global = 6};
    struct plan_position position = {0};
    assert_true(plan_again(&rules, &position, &plan));
    assert_int_equal(plan.micro_batches, 3);
    assert_int_equal(position.epoch, 1);
    assert_int_equal(position.first, 7);
    rules.epochs = 1;
    assert_false(plan_again(&rules, &position, &plan));
}

/* Case 03-1: 5 micro-batches of one row, two to a window. */
static void a_short_tail_is_a_step_of_its_own_or_left_out(void **unused)
{
    (void)unused;
    struct plan_rules rules = {.sequences = 5, .global = 2, .micro = 1, .ranks = 1, .epochs = 1};
    struct plan last;
    assert_int_equal(steps_until_the_data_end(&rules, &last), 3);
    assert_int_equal(last.count, 1);
    assert_int_equal(last.micro_batches, 1);
    assert_int_equal(last.first, 4);
    rules.drop_tail = true;
    assert_int_equal(steps_until_the_data_end(&rules, &last), 2);
    assert_int_equal(last.count, 2);
}

/* Case 03-4: a window of 4 micro-batches over an epoch of 3. */
static void a_window_longer_than_the_epoch_is_one_step_or_none(void **unused)
{
    (void)unused;
    struct plan_rules rules = {.sequences = 3, .global = 4, .micro = 1, .ranks = 1, .epochs = 1};
    struct plan last;
    assert_int_equal(steps_until_the_data_end(&rules, &last), 1);
    assert_int_equal(last.count, 3);
    assert_int_equal(plan_steps_per_epoch(&rules), 1);
    rules.drop_tail = true;
    assert_int_equal(steps_until_the_data_end(&rules, &last), 0);
    assert_int_equal(plan_steps_per_epoch(&rules), 0);
}

/* Cases 05-1, 05-3, 05-5, 04-1. */
static void steps_per_epoch_round_up_and_drop_rounds_down(void **unused)
{
    (void)unused;
    struct plan last;
    struct plan_rules a = {.sequences = 148, .global = 8, .micro = 2, .ranks = 1, .epochs = 2};
    assert_int_equal(plan_steps_per_epoch(&a), 19);
    assert_int_equal(steps_until_the_data_end(&a, &last), 38);
    struct plan_rules b = {.sequences = 18, .global = 6, .micro = 1, .ranks = 1, .epochs = 200};
    assert_int_equal(plan_steps_per_epoch(&b), 3);
    assert_int_equal(steps_until_the_data_end(&b, &last), 600);
    struct plan_rules c = {.sequences = 9, .global = 4, .micro = 1, .ranks = 1, .epochs = 2};
    assert_int_equal(steps_until_the_data_end(&c, &last), 6);
    c.drop_tail = true;
    assert_int_equal(steps_until_the_data_end(&c, &last), 4);
    struct plan_rules d = {.sequences = 5, .global = 4, .micro = 1, .ranks = 2, .epochs = 1};
    assert_int_equal(steps_until_the_data_end(&d, &last), 2);
    uint32_t first, count;
    plan_share(&last, 2, 0, &first, &count);
    assert_int_equal(count, 1); /* the fifth row */
    plan_share(&last, 2, 1, &first, &count);
    assert_int_equal(count, 0);
}

static void earlier_ranks_take_the_extra_micro_batches(void **unused)
{
    (void)unused;
    const struct plan plan = {.count = 14, .micro_batches = 7};
    static const uint32_t wanted[3][2] = {{0, 3}, {3, 2}, {5, 2}};
    for (uint32_t rank = 0; rank < 3; rank++) {
        uint32_t first, count;
        plan_share(&plan, 3, rank, &first, &count);
        assert_int_equal(first, wanted[rank][0]);
        assert_int_equal(count, wanted[rank][1]);
    }
}

static void without_sequences_there_is_no_plan(void **unused)
{
    (void)unused;
    struct plan_rules rules = {.global = 4, .micro = 2, .ranks = 1};
    struct plan last;
    assert_int_equal(steps_until_the_data_end(&rules, &last), 0);
    assert_int_equal(plan_steps_per_epoch(&rules), 0);
}

static void any_split_covers_each_epoch_once_and_in_order(void **unused)
{
    (void)unused;
    uint64_t random = 4;
    for (int history = 0; history < HISTORIES; history++) {
        struct plan_rules rules = {.sequences = random_between(&random, 1, 60),
                                   .global = (uint32_t)random_between(&random, 1, 20),
                                   .ranks = (uint32_t)random_between(&random, 1, 5),
                                   .drop_tail = random_chance(&random, 0.5),
                                   .epochs = random_between(&random, 1, 3)};
        rules.micro = (uint32_t)random_between(&random, 1, rules.global);
        struct plan_rules other = rules; /* the same job by another (b, K, N) */
        other.micro = (uint32_t)random_between(&random, 1, rules.global);
        other.ranks = (uint32_t)random_between(&random, 1, 5);

        struct plan_position position = {0}, other_position = {0};
        struct plan plan, other_plan;
        uint64_t epoch = 0, covered = 0, steps = 0;
        while (plan_next(&rules, 0, &position, &plan)) {
            assert_true(plan_next(&other, 0, &other_position, &other_plan));
            assert_int_equal(plan.epoch, other_plan.epoch);
            assert_int_equal(plan.first, other_plan.first);
            assert_int_equal(plan.count, other_plan.count);

            if (plan.epoch != epoch) {
                assert_int_equal(plan.epoch, epoch + 1);
                assert_int_equal(covered,
                                 rules.drop_tail ? rules.sequences - rules.sequences % rules.global : rules.sequences);
                epoch = plan.epoch;
                covered = 0;
            }
            assert_int_equal(plan.first, covered);
            assert_true(plan.count >= 1 && plan.count <= rules.global);
            if (rules.drop_tail) assert_int_equal(plan.count, rules.global);
            covered += plan.count;
            assert_true(covered <= rules.sequences);
            steps++;

            assert_true((uint64_t)plan.micro_batches * rules.micro >= plan.count);
            assert_true((uint64_t)(plan.micro_batches - 1) * rules.micro < plan.count);
            uint32_t next = 0, most = 0, least = UINT32_MAX;
            for (uint32_t rank = 0; rank < rules.ranks; rank++) {
                uint32_t first, count;
                plan_share(&plan, rules.ranks, rank, &first, &count);
                assert_int_equal(first, next);
                next += count;
                most = count > most ? count : most;
                least = count < least ? count : least;
            }
            assert_int_equal(next, plan.micro_batches);
            assert_true(most - least <= 1);
        }
        assert_false(plan_next(&other, 0, &other_position, &other_plan));
        assert_int_equal(steps, rules.epochs * plan_steps_per_epoch(&rules));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ramp_grows_by_whole_micro_batches_to_b),
        cmocka_unit_test(a_plan_that_was_issued_is_cut_anew),
        cmocka_unit_test(a_short_tail_is_a_step_of_its_own_or_left_out),
        cmocka_unit_test(a_window_longer_than_the_epoch_is_one_step_or_none),
        cmocka_unit_test(steps_per_epoch_round_up_and_drop_rounds_down),
        cmocka_unit_test(earlier_ranks_take_the_extra_micro_batches),
        cmocka_unit_test(without_sequences_there_is_no_plan),
        cmocka_unit_test(any_split_covers_each_epoch_once_and_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
