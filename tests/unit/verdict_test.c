/* One verdict from all ranks' reports. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "daemon/core/verdict.h"
#include "tests/unit/histories.h"

#define NAN64 ((double)NAN)
#define INF64 ((double)INFINITY)

static struct verdict judge(const struct rank_report *reports, uint32_t ranks, enum loss_weighting weighting,
                            double clip)
{
    struct verdict verdict;
    verdict_of(reports, ranks, weighting, clip, INF64, &verdict);
    return verdict;
}

static void near(double got, double wanted, double absolute)
{
    if (!(fabs(got - wanted) <= absolute)) fail_msg("%.17g, not %.17g", got, wanted);
}

/* A3: one weight 0, x = 1, ℓ = ½(w−y)²; A has one target 2, B has three targets −1. */
static void the_loss_follows_the_weighting(void **unused)
{
    (void)unused;
    const struct rank_report by_token[] = {{.finite = true, .loss_sum = 2, .weight = 1, .micro_batches = 1},
                                           {.finite = true, .loss_sum = 1.5, .weight = 3, .micro_batches = 1}};
    const struct rank_report by_micro_batch[] = {{.finite = true, .loss_sum = 2, .weight = 1, .micro_batches = 1},
                                                 {.finite = true, .loss_sum = 0.5, .weight = 3, .micro_batches = 1}};
    assert_true(judge(by_token, 2, WEIGHT_BY_TOKEN, 0).loss == 0.875);
    assert_true(judge(by_micro_batch, 2, WEIGHT_BY_MICRO_BATCH, 0).loss == 1.25);
    assert_true(judge(by_token, 2, WEIGHT_SUM, 0).loss == 3.5);
    const struct rank_report together = {.finite = true, .loss_sum = 2.5, .weight = 4, .micro_batches = 2};
    assert_true(judge(&together, 1, WEIGHT_BY_MICRO_BATCH, 0).loss == 1.25);
}

/* Cases 01-1 and 25-1, two ranks. */
static void counts_are_added_over_ranks_before_dividing(void **unused)
{
    (void)unused;
    const struct rank_report uneven[] = {{.finite = true, .loss_sum = 3, .weight = 3, .micro_batches = 1},
                                         {.finite = true, .loss_sum = 5, .weight = 1, .micro_batches = 1}};
    assert_true(judge(uneven, 2, WEIGHT_BY_TOKEN, 0).loss == 2); /* case 01-2 */
    const struct rank_report bias2 = {
        .finite = true, .loss_sum = 3 * 1.386294 + 0.287682, .weight = 4, .micro_batches = 2};
    near(judge(&bias2, 1, WEIGHT_BY_TOKEN, 0).loss, 1.111641, 1e-6);
    const struct rank_report four = {.finite = true, .loss_sum = 4 + 2 + 1 + 1, .weight = 4, .micro_batches = 4};
    assert_true(judge(&four, 1, WEIGHT_BY_TOKEN, 0).loss == 2);
}

/* Case 02-1. */
static void a_rank_without_labels_adds_nothing(void **unused)
{
    (void)unused;
    const struct rank_report reports[] = {
        {.finite = true, .loss_sum = 6, .weight = 3, .micro_batches = 1, .sum_squares = 1, .sum_squares_scaled = 1},
        {.finite = true}};
    struct verdict verdict = judge(reports, 2, WEIGHT_BY_TOKEN, 0);
    assert_int_equal(verdict.kind, VERDICT_IS_APPLY);
    assert_true(verdict.loss == 2);
    assert_int_equal(verdict.micro_batches, 1);
    assert_true(judge(reports, 2, WEIGHT_BY_MICRO_BATCH, 0).loss == 6);
}

/* A4. */
static void no_weight_at_all_is_empty_and_has_no_loss(void **unused)
{
    (void)unused;
    const struct rank_report reports[] = {{.finite = true}, {.finite = true}};
    struct verdict verdict = judge(reports, 2, WEIGHT_BY_TOKEN, 1);
    assert_int_equal(verdict.kind, VERDICT_IS_EMPTY);
    assert_true(isnan(verdict.loss));
    assert_true(isnan(verdict.clip_coefficient));
}

static void counts_beyond_fp32_stay_exact(void **unused)
{
    (void)unused;
    const struct rank_report reports[] = {{.finite = true, .weight = 16777216, .micro_batches = 1},
                                          {.finite = true, .weight = 1, .micro_batches = 1}};
    assert_true(judge(reports, 2, WEIGHT_BY_TOKEN, 0).weight == 16777217); /* case 31-4 */
}

/* Cases 13-1, 13-8, 06-1, 06-6. */
static void the_norm_is_over_all_shards_in_fp64(void **unused)
{
    (void)unused;
    const struct rank_report shards[] = {
        {.finite = true, .weight = 1, .micro_batches = 1, .sum_squares = 9, .sum_squares_scaled = 9 * 64},
        {.finite = true, .weight = 1, .micro_batches = 1, .sum_squares = 16, .sum_squares_scaled = 16 * 64}};
    struct verdict verdict = judge(shards, 2, WEIGHT_BY_TOKEN, 1);
    assert_true(verdict.grad_norm == 5);
    assert_true(verdict.grad_norm_scaled == 40); /* S = 8 */
    near(verdict.clip_coefficient, 0.2, 1e-6);
    near(verdict.grad_norm_clipped, 1, 1e-6);

    const struct rank_report bf16_would_lose_one[] = {
        {.finite = true, .weight = 1, .micro_batches = 1, .sum_squares = 256, .sum_squares_scaled = 256},
        {.finite = true, .weight = 1, .micro_batches = 1, .sum_squares = 1, .sum_squares_scaled = 1}};
    near(judge(bf16_would_lose_one, 2, WEIGHT_BY_TOKEN, 0).grad_norm, 16.031220, 1e-6);

    double scale = 65536, square = 25e28; /* g = (3e14, 4e14): the scaled squares leave fp32 */
    const struct rank_report large = {.finite = true,
                                      .weight = 1,
                                      .micro_batches = 1,
                                      .sum_squares = square,
                                      .sum_squares_scaled = square * scale * scale};
    verdict = judge(&large, 1, WEIGHT_BY_TOKEN, 1);
    assert_int_equal(verdict.kind, VERDICT_IS_APPLY);
    near(verdict.grad_norm, 5e14, 1);
    near(verdict.clip_coefficient * 3e14, 0.6, 1e-6);
}

static void a_norm_below_the_limit_is_left_alone(void **unused)
{
    (void)unused;
    const struct rank_report report = {
        .finite = true, .weight = 1, .micro_batches = 1, .sum_squares = 0.25, .sum_squares_scaled = 0.25};
    assert_true(judge(&report, 1, WEIGHT_BY_TOKEN, 1).clip_coefficient == 1);
    assert_true(judge(&report, 1, WEIGHT_BY_TOKEN, 0).clip_coefficient == 1);
    assert_true(judge(&report, 1, WEIGHT_BY_TOKEN, 0.25).clip_coefficient == 0.25 / (0.5 + 1e-6));
}

/* Cases 12-1 and 07-1, 07-6. */
static void one_non_finite_rank_skips_for_all_and_leaves_no_norm(void **unused)
{
    (void)unused;
    const struct rank_report reports[] = {
        {.finite = true, .weight = 1, .micro_batches = 1, .sum_squares = 1, .sum_squares_scaled = 1},
        {.finite = false, .weight = 1, .micro_batches = 1, .sum_squares = INF64, .sum_squares_scaled = INF64}};
    struct verdict verdict = judge(reports, 2, WEIGHT_BY_TOKEN, 1);
    assert_int_equal(verdict.kind, VERDICT_IS_SKIP);
    assert_int_equal(verdict.nonfinite_rank, 1);
    assert_false(verdict.norm_overflows);
    assert_true(isnan(verdict.grad_norm) && isnan(verdict.grad_norm_scaled) && isnan(verdict.grad_norm_clipped));
    assert_true(isnan(verdict.clip_coefficient));
}

static void finite_shards_whose_sum_is_not_skip_without_a_culprit(void **unused)
{
    (void)unused;
    const struct rank_report reports[] = {
        {.finite = true, .weight = 1, .micro_batches = 1, .sum_squares = 1e308, .sum_squares_scaled = 1e308},
        {.finite = true, .weight = 1, .micro_batches = 1, .sum_squares = 1e308, .sum_squares_scaled = 1e308}};
    struct verdict verdict = judge(reports, 2, WEIGHT_BY_TOKEN, 0);
    assert_int_equal(verdict.kind, VERDICT_IS_SKIP);
    assert_int_equal(verdict.nonfinite_rank, 2);
    assert_true(verdict.norm_overflows);
    struct rank_report huge = reports[0];
    huge.sum_squares = INF64;
    assert_true(judge(&huge, 1, WEIGHT_BY_TOKEN, 0).norm_overflows);
    assert_false(judge(reports, 1, WEIGHT_BY_TOKEN, 0).norm_overflows);
}

/* AdamW's second moment in fp32 holds squares up to 1.8e19². */
static void a_norm_beyond_what_the_optimizer_takes_is_skipped_unless_it_is_clipped(void **unused)
{
    (void)unused;
    const double most = 1e19;
    const struct rank_report reports[] = {
        {.finite = true, .weight = 1, .micro_batches = 1, .sum_squares = 0.5e38, .sum_squares_scaled = 0.5e38},
        {.finite = true, .weight = 1, .micro_batches = 1, .sum_squares = 0.51e38, .sum_squares_scaled = 0.51e38}};
    struct verdict verdict;
    verdict_of(reports, 2, WEIGHT_BY_TOKEN, 0, most, &verdict);
    assert_int_equal(verdict.kind, VERDICT_IS_SKIP);
    assert_int_equal(verdict.nonfinite_rank, 2);
    assert_true(verdict.norm_overflows);
    assert_true(isnan(verdict.grad_norm) && isnan(verdict.clip_coefficient));
    verdict_of(reports, 2, WEIGHT_BY_TOKEN, 1, most, &verdict);
    assert_int_equal(verdict.kind, VERDICT_IS_APPLY);
    assert_true(verdict.grad_norm > most);
    near(verdict.grad_norm_clipped, 1, 1e-12);
    verdict_of(reports, 1, WEIGHT_BY_TOKEN, 0, most, &verdict);
    assert_int_equal(verdict.kind, VERDICT_IS_APPLY);
}

static void the_first_failing_rank_decides_before_anything_else(void **unused)
{
    (void)unused;
    const struct rank_report reports[] = {{.finite = false}, {.status = 66}, {.status = 65}};
    struct verdict verdict = judge(reports, 3, WEIGHT_BY_TOKEN, 0);
    assert_int_equal(verdict.kind, VERDICT_IS_FAIL);
    assert_int_equal(verdict.fail_status, 66);
    assert_int_equal(verdict.fail_rank, 1);
}

static void a_non_finite_loss_with_finite_gradients_applies(void **unused)
{
    (void)unused;
    const struct rank_report report = {
        .finite = true, .loss_sum = NAN64, .weight = 1, .micro_batches = 1, .sum_squares = 1, .sum_squares_scaled = 1};
    struct verdict verdict = judge(&report, 1, WEIGHT_BY_TOKEN, 0);
    assert_int_equal(verdict.kind, VERDICT_IS_APPLY);
    assert_true(isnan(verdict.loss));
}

static void any_reports_give_one_verdict_that_bounds_the_norm(void **unused)
{
    (void)unused;
    uint64_t random = 5;
    for (int history = 0; history < HISTORIES; history++) {
        struct rank_report reports[8];
        memset(reports, 0, sizeof reports);
        uint32_t ranks = (uint32_t)random_between(&random, 1, 8);
        bool failed = false, finite = true;
        double weight = 0, clip = random_chance(&random, 0.3) ? 0 : (double)random_between(&random, 1, 100) / 10;
        for (uint32_t rank = 0; rank < ranks; rank++) {
            struct rank_report *report = &reports[rank];
            report->status = random_chance(&random, 0.02) ? 65 : 0;
            report->finite = !random_chance(&random, 0.05);
            report->micro_batches = (uint32_t)random_between(&random, 0, 1);
            report->weight = report->micro_batches * (double)random_between(&random, 1, 9);
            report->loss_sum = report->weight * 2;
            report->sum_squares = (double)random_between(&random, 0, 1000) / 7;
            report->sum_squares_scaled = report->sum_squares * 65536 * 65536;
            failed |= report->status != 0;
            finite &= report->finite;
            weight += report->weight;
        }
        struct verdict verdict = judge(reports, ranks, WEIGHT_BY_TOKEN, clip);
        assert_int_equal(verdict.kind, failed        ? VERDICT_IS_FAIL
                                       : weight == 0 ? VERDICT_IS_EMPTY
                                       : !finite     ? VERDICT_IS_SKIP
                                                     : VERDICT_IS_APPLY);
        assert_true(verdict.weight == weight);
        if (verdict.kind != VERDICT_IS_APPLY) {
            assert_true(isnan(verdict.clip_coefficient));
            continue;
        }
        assert_true(verdict.loss == 2);
        assert_true(verdict.clip_coefficient > 0 && verdict.clip_coefficient <= 1);
        if (clip > 0) assert_true(verdict.grad_norm_clipped <= clip);
        near(verdict.grad_norm_scaled, verdict.grad_norm * 65536, 1e-9 * verdict.grad_norm_scaled);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_loss_follows_the_weighting),
        cmocka_unit_test(counts_are_added_over_ranks_before_dividing),
        cmocka_unit_test(a_rank_without_labels_adds_nothing),
        cmocka_unit_test(no_weight_at_all_is_empty_and_has_no_loss),
        cmocka_unit_test(counts_beyond_fp32_stay_exact),
        cmocka_unit_test(the_norm_is_over_all_shards_in_fp64),
        cmocka_unit_test(a_norm_below_the_limit_is_left_alone),
        cmocka_unit_test(one_non_finite_rank_skips_for_all_and_leaves_no_norm),
        cmocka_unit_test(finite_shards_whose_sum_is_not_skip_without_a_culprit),
        cmocka_unit_test(a_norm_beyond_what_the_optimizer_takes_is_skipped_unless_it_is_clipped),
        cmocka_unit_test(the_first_failing_rank_decides_before_anything_else),
        cmocka_unit_test(a_non_finite_loss_with_finite_gradients_applies),
        cmocka_unit_test(any_reports_give_one_verdict_that_bounds_the_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
