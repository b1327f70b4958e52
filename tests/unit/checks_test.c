/* The checks on a job that is right, and on one into which a mistake was planted: what they measure and what they say.
 */
#include "daemon/verify/checks.h"
#include "daemon/verify/definition.h"
#include "tests/unit/trial_jobs.h"

/* Ten equal rows: the gradient of whatever part of them is (3, 4). */
static const char *const equal = "weight,g0,g1\n1,3,4\n1,3,4\n1,3,4\n1,3,4\n1,3,4\n1,3,4\n1,3,4\n1,3,4\n1,3,4\n1,3,4\n";

static struct check check_of(const struct scenario *scenario, enum check_index index, const struct faults *faults)
{
    struct trial_job *job = trial_job(scenario);
    job->play.job.precision->reduce = GACC__V1__REDUCE__REDUCE_BF16; /* so that there is something to check */
    struct suite sound, faulty;
    struct error error;
    struct check check;
    if (suite_open(&sound, &job->play.job, NULL, NULL, 9, &error)) fail_msg("%s", error.text);
    suite_open_faulty(&faulty, &sound, faults, DECISION_FAITHFUL);
    check_run(index, &faulty, &check);
    suite_close(&faulty);
    suite_close(&sound);
    trial_job_free(job);
    return check;
}

static struct scenario nine_equal_rows(void)
{
    return (struct scenario){.csv = equal, .size = 2, .global = 8, .micro = 2, .lr = 0.5, .initial = {1, 2}};
}

static void the_last_micro_batch_of_the_probe_is_short(void **state)
{
    (void)state;
    const struct scenario scenario = nine_equal_rows();
    struct trial_job *job = trial_job(&scenario);
    struct suite suite;
    struct error error;
    assert_int_equal(suite_open(&suite, &job->play.job, NULL, NULL, 0, &error), 0);
    assert_int_equal(suite.probe.sequences, 9); /* 4·b·N and one more */
    assert_int_equal(suite.probe.micro, 2);
    const struct variant two = variant_split(&suite, GACC__V1__COMPUTE__COMPUTE_FP32, 2);
    assert_int_equal(variant_micro_batches(&two), 5);
    assert_int_equal(variant_per_rank(&suite, &two), 3);
    suite_close(&suite);
    assert_int_equal(suite_open(&suite, &job->play.job, NULL, NULL, 8, &error), 0);
    assert_int_equal(suite.probe.micro, 3); /* 2 divides 8 */
    suite_close(&suite);
    assert_int_equal(suite_open(&suite, &job->play.job, NULL, NULL, 11, &error), -STATUS_USAGE);
    trial_job_free(job);
}

static void a_right_job_passes_every_check(void **state)
{
    (void)state;
    const struct scenario scenario = nine_equal_rows();
    for (enum check_index i = 0; i < CHECKS; i++) {
        struct check check = check_of(&scenario, i, &(struct faults){0});
        if (!check.pass && !check.skipped)
            fail_msg("%s: %g of %g: %s", check.name, check.measured, check.allowed, check.note);
        const bool has_none = i == CHECK_FP32_MPI || i == CHECK_BF16_ACCUMULATOR || i == CHECK_RECOMPUTE ||
                              i == CHECK_RUNNING_STATISTICS; /* a few numbers show no accumulator */
        if (check.skipped && !has_none) fail_msg("%s: %s", check.name, check.note);
    }
}

/* Five micro-batches of the same mean. */
static void a_missing_division_is_named(void **state)
{
    (void)state;
    const struct scenario scenario = nine_equal_rows();
    const struct check check =
        check_of(&scenario, CHECK_FP32_ACCUMULATED, &(struct faults){.plant = PLANT_NOT_DIVIDED_BY_K});
    assert_false(check.pass);
    assert_near(check.ratio, 5, 1e-6);
    assert_near(check.measured, 4, 1e-6);
    assert_near(check.cosine, 1, 1e-12);
    assert_string_equal(check.note, "not divided by K (K = 5)");
}

/* The last row alone differs, by a thousandth: (3 + 1e-3/9, 4) as the token mean, (3 + 1e-3/5, 4) as the mean of five
 * means, 8.9e-5 apart of 5. The ratio of norms is off by 1e-5: no factor shows, the error does. */
static void an_error_that_is_no_noise_fails_though_the_ratio_is_right(void **state)
{
    (void)state;
    struct scenario scenario = nine_equal_rows();
    scenario.csv = "weight,g0,g1\n1,3,4\n1,3,4\n1,3,4\n1,3,4\n1,3,4\n1,3,4\n1,3,4\n1,3,4\n1,3.001,4\n";
    const struct check check =
        check_of(&scenario, CHECK_FP32_ACCUMULATED, &(struct faults){.plant = PLANT_MICRO_BATCH_MEANS});
    assert_near(check.measured, 8.89e-5 / 5, 1e-6);
    assert_near(check.ratio, 1, 1e-3);
    assert_false(check.pass);
}

static void a_second_division_is_named(void **state)
{
    (void)state;
    const struct scenario scenario = nine_equal_rows();
    const struct check twice =
        check_of(&scenario, CHECK_FP32_ACCUMULATED, &(struct faults){.plant = PLANT_DIVIDED_BY_K_TWICE});
    assert_near(twice.ratio, 0.2, 1e-7);
    assert_string_equal(twice.note, "divided twice by K (K = 5)");
    const struct check ranks =
        check_of(&scenario, CHECK_FP32_TWO_RANKS, &(struct faults){.plant = PLANT_DIVIDED_BY_N_TWICE});
    assert_near(ranks.ratio, 0.5, 1e-7);
    assert_non_null(strstr(ranks.note, "averaged twice over ranks (N = 2)"));
}

/* W = 9. */
static void a_sum_for_the_mean_is_told_by_the_slope(void **state)
{
    (void)state;
    const struct scenario scenario = nine_equal_rows();
    const struct check check = check_of(&scenario, CHECK_FP64_SLOPE, &(struct faults){.plant = PLANT_SUM_FOR_MEAN});
    assert_false(check.pass);
    assert_near(check.ratio, 9, 1e-6);
    assert_string_equal(check.note, "sum taken for mean (W = 9)");
}

static void a_trial_that_cannot_be_run_fails_the_check(void **state)
{
    (void)state;
    const struct scenario scenario = nine_equal_rows();
    const struct check check = check_of(&scenario, CHECK_WINDOW_FROZEN, &(struct faults){.parameter_write_at_step = 1});
    assert_false(check.pass || check.skipped);
    assert_true(isinf(check.measured));
    assert_non_null(strstr(check.note, "weight"));
}

/* w = 2, ℓ = g·w of each row: 2, 6, 10, 14 with weights 1, 0, 3, 4. In micro-batches of two: sums 2 and 30 + 56 = 86,
 * weights 1 and 7. */
static void the_definition_of_each_weighting(void **state)
{
    (void)state;
    static const struct {
        Gacc__V1__Weighting weighting;
        double loss;
    } list[] = {
        {GACC__V1__WEIGHTING__WEIGHTING_TOKEN, 88.0 / 8},
        {GACC__V1__WEIGHTING__WEIGHTING_MICROBATCH, (2.0 / 1 + 86.0 / 7) / 2},
        {GACC__V1__WEIGHTING__WEIGHTING_SUM, 88},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const struct scenario scenario = {.csv = "weight,g0\n1,1\n0,3\n3,5\n4,7\n",
                                          .size = 1,
                                          .global = 4,
                                          .micro = 2,
                                          .weighting = list[i].weighting};
        struct trial_job *job = trial_job(&scenario);
        struct error error;
        double loss;
        assert_int_equal(definition_loss(&job->play.job, (double[]){2}, 4, 2, &loss, &error), 0);
        assert_near(loss, list[i].loss, 1e-12);
        trial_job_free(job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_micro_batch_of_the_probe_is_short),
        cmocka_unit_test(a_right_job_passes_every_check),
        cmocka_unit_test(a_missing_division_is_named),
        cmocka_unit_test(an_error_that_is_no_noise_fails_though_the_ratio_is_right),
        cmocka_unit_test(a_second_division_is_named),
        cmocka_unit_test(a_sum_for_the_mean_is_told_by_the_slope),
        cmocka_unit_test(a_trial_that_cannot_be_run_fails_the_check),
        cmocka_unit_test(the_definition_of_each_weighting),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
