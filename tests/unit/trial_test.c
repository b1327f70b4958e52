/* What a trial leaves behind, and what each fault changes in it. Numbers are worked out by hand. */
#include "tests/unit/trial_jobs.h"

/* --- what a trial tells -------------------------------------------------------------------------------------- */

/* W = 6 + 2: (1·8 + 3·4 + 2·1 + 0 + 2·1)/8 = 3 and (8 + 0 − 4 + 0 + 2)/8 = 0.75 */
static const char *const weighted = "weight,g0,g1\n1,8,8\n3,4,0\n2,1,-2\n0,100,100\n2,1,1\n";

static void the_gradient_is_the_mean_on_any_number_of_ranks(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = weighted, .size = 2, .global = 5, .lr = 0.5, .initial = {1, 2}};
    for (scenario.micro = 1; scenario.micro <= 5; scenario.micro++)
        for (uint32_t ranks = 1; ranks <= 3; ranks++) {
            struct trial trial = try_job(&scenario, (struct trial_spec){.ranks = ranks});
            assert_int_equal(trial.parameters, 2);
            assert_int_equal(trial.step_count, 1);
            assert_near(trial.gradient[0], 3, 1e-6);
            assert_near(trial.gradient[1], 0.75, 1e-6);
            assert_near(trial.before[0], 1, 0);
            assert_near(trial.before[1], 2, 0);
            assert_near(trial.after[0], -0.5, 1e-6);
            assert_near(trial.after[1], 1.625, 1e-6);
            assert_near(trial.steps[0].weight, 8, 0);
            assert_int_equal(trial.steps[0].verdict, VERDICT_IS_APPLY);
            assert_true(trial.steps[0].gradients_cleared);
            assert_int_equal(trial.steps[0].reduce_scatters, 1);
            assert_int_equal(trial.steps[0].all_gathers, 1);
            assert_int_equal(trial.steps[0].control_collectives, 0);
            assert_true(trial.steps[0].bytes_changed > 0);
            trial_free(&trial);
        }
}

/* A3: w = 0, x = 1, targets 2 and three times −1. */
static const char *const one_against_three = "weight,x0,y0\n1,1,2\n0,1,0\n0,1,0\n1,1,-1\n1,1,-1\n1,1,-1\n";

static void a_linear_model_has_the_gradient_of_the_definition(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = one_against_three, .type = LINEAR, .global = 6, .micro = 3, .lr = 0.1};
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        struct trial trial = try_job(&scenario, (struct trial_spec){.ranks = ranks});
        assert_near(trial.gradient[0], 0.25, 1e-7);
        assert_near(trial.after[0], -0.025, 1e-8);
        assert_near(trial.steps[0].loss, 0.875, 1e-7);
        trial_free(&trial);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gradient_is_the_mean_on_any_number_of_ranks),
        cmocka_unit_test(a_linear_model_has_the_gradient_of_the_definition),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
