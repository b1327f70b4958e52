/*
 * What a session does with a step: averaging, scaling, clipping, skipping, communicating. All numbers are worked out by
 * hand; the case or requirement each belongs to is named.
 */
#include "tests/unit/session_fixture.h"

#include "worker/safetensors.h"

#define TOKEN GACC__V1__WEIGHTING__WEIGHTING_TOKEN
#define MICROBATCH GACC__V1__WEIGHTING__WEIGHTING_MICROBATCH
#define SUM GACC__V1__WEIGHTING__WEIGHTING_SUM
#define FP16 GACC__V1__COMPUTE__COMPUTE_FP16
#define BF16 GACC__V1__COMPUTE__COMPUTE_BF16
#define FP64 GACC__V1__COMPUTE__COMPUTE_FP64
#define LINEAR GACC__V1__MODEL_TYPE__MODEL_LINEAR

/* --- averaging ----------------------------------------------------------------------------------------------- */

/* A3: w = 0, x = 1; micro-batch A has one target 2, B three targets −1. */
static const char *const one_against_three = "weight,x0,y0\n1,1,2\n0,1,0\n0,1,0\n1,1,-1\n1,1,-1\n1,1,-1\n";

static void a3(uint32_t ranks, uint32_t micro, Gacc__V1__Weighting weighting, double loss, double w)
{
    struct scenario scenario = {.csv = one_against_three,
                                .type = LINEAR,
                                .global = 6,
                                .micro = micro,
                                .ranks = ranks,
                                .weighting = weighting,
                                .lr = 0.1};
    struct play *play = play_well(&scenario);
    assert_near(play->attempts[1].loss, loss, 1e-7);
    for (uint32_t rank = 0; rank < ranks; rank++) assert_near(last_parameter(play, rank, 0), w, 1e-8);
    free(play);
}

static void token_weighting_is_the_mean_over_all_targets(void **state)
{
    (void)state;
    a3(1, 3, TOKEN, 0.875, -0.025);
    a3(2, 3, TOKEN, 0.875, -0.025);
}

static void one_big_batch_is_the_same_as_token_weighting(void **state)
{
    (void)state;
    a3(1, 6, TOKEN, 0.875, -0.025);
}

static void micro_batch_weighting_is_the_mean_of_means(void **state)
{
    (void)state;
    a3(1, 3, MICROBATCH, 1.25, 0.05);
    a3(2, 3, MICROBATCH, 1.25, 0.05);
}

/* A6: gradient −2 + 1 + 1 + 1 */
static void sum_weighting_divides_by_nothing(void **state)
{
    (void)state;
    a3(1, 3, SUM, 3.5, -0.1);
    a3(2, 3, SUM, 3.5, -0.1);
}

/* A5: weights 0.5 and 1.5 on gradients 8 and 4: (4 + 6) / 2 */
static void fractional_weights_weigh(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "weight,g0\n0.5,8\n1.5,4\n", .global = 2};
    for (scenario.micro = 1; scenario.micro <= 2; scenario.micro++) {
        struct play *play = play_well(&scenario);
        assert_near(last_parameter(play, 0, 0), -5, 0);
        assert_near(play->attempts[1].weight, 2, 0);
        free(play);
    }
}

/* Case 02-1, A4; the masked row would be infinite. */
static void a_micro_batch_without_weight_adds_nothing(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "weight,g0\n1,1\n1,2\n1,3\n0,inf\n0,7\n0,nan\n", .global = 6, .micro = 3};
    static const Gacc__V1__Weighting weightings[] = {TOKEN, MICROBATCH};
    for (size_t i = 0; i < 2; i++) {
        scenario.weighting = weightings[i];
        struct play *play = play_well(&scenario);
        assert_int_equal(play->attempts[1].verdict, APPLY);
        assert_int_equal(play->attempts[1].micro_batches, 1);
        assert_near(last_parameter(play, 0, 0), -2, 1e-6);
        free(play);
    }
}

static void a_masked_row_beside_others_is_skipped_not_multiplied(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "weight,g0\n1,4\n0,inf\n1,2\n0,nan\n", .global = 4, .micro = 2};
    struct play *play = play_well(&scenario);
    assert_int_equal(play->attempts[1].verdict, APPLY);
    assert_near(last_parameter(play, 0, 0), -3, 1e-6);
    free(play);
}

/* A4 */
static void an_empty_global_batch_makes_no_update_and_is_no_overflow(void **state)
{
    (void)state;
    struct scenario scenario = {
        .csv = "weight,g0\n0,5\n0,6\n1,2\n1,2\n", .global = 2, .ranks = 2, .scale = 4, .compute = FP16};
    struct play *play = play_well(&scenario);
    assert_int_equal(play->attempts[1].verdict, EMPTY);
    assert_int_equal(play->attempts[1].ranks[0].reduce_scatters, 1);
    assert_int_equal(play->attempts[1].ranks[0].all_gathers, 0);
    assert_near(play->attempts[1].ranks[1].parameters[0], 0, 0);
    assert_int_equal(play->attempts[2].verdict, APPLY);
    assert_near(play->attempts[2].scale, 4, 0);
    assert_near(last_parameter(play, 1, 0), -2, 0);
    free(play);
}

/* B4: K = 3, S = 8, g = 1, 2, 3: accumulated 16, unscaled 2. Without 1/K 6, divided twice 0.667. */
static void scale_and_average_meet_once(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1\n2\n3\n", .global = 3, .scale = 8};
    for (scenario.ranks = 1; scenario.ranks <= 3; scenario.ranks++) {
        struct play *play = play_well(&scenario);
        assert_near(play->attempts[1].norm_scaled, 16, 1e-5);
        assert_near(play->attempts[1].norm, 2, 1e-6);
        assert_near(last_parameter(play, 0, 0), -2, 1e-6);
        free(play);
    }
}

/* Case 03-1: averages 1, 1, 1. */
static void a_short_last_window_is_weighted_by_what_it_holds(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1\n1\n1\n1\n1\n", .global = 2, .initial = {1}, .lr = 0.1};
    struct play *play = play_well(&scenario);
    assert_int_equal(play->count, 3);
    assert_near(play->attempts[3].weight, 1, 0);
    assert_near(last_parameter(play, 0, 0), 0.7, 1e-6);
    free(play);
}

/* B = 3 in micro-batches of 2 and 1, twice in the epoch: 1, 2, 3 | 5, 6, 10. */
static void a_short_micro_batch_does_not_reach_into_the_next_window(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1\n2\n3\n5\n6\n10\n", .global = 3, .micro = 2};
    struct play *play = play_well(&scenario);
    assert_near(play->attempts[1].weight, 3, 0);
    assert_near(play->attempts[1].norm, 2, 1e-6);
    assert_near(play->attempts[2].norm, 7, 1e-6);
    free(play);
}

/* Case 03-4 */
static void an_epoch_shorter_than_the_window_is_one_update(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1\n2\n6\n", .global = 4};
    struct play *play = play_well(&scenario);
    assert_int_equal(play->count, 1);
    assert_near(last_parameter(play, 0, 0), -3, 1e-6);
    free(play);
}

/* Case 03-6 */
static void two_ranks_of_two_micro_batches_step_once_and_alike(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1\n5\n2\n8\n", .global = 4, .ranks = 2};
    struct play *play = play_well(&scenario);
    assert_int_equal(play->count, 1);
    for (uint32_t rank = 0; rank < 2; rank++) assert_near(last_parameter(play, rank, 0), -4, 0);
    free(play);
}

/* Case 04-1: the last window leaves rank 1 without a micro-batch. */
static void a_rank_without_micro_batches_takes_part(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n2\n4\n1\n3\n6\n", .global = 4, .ranks = 2};
    struct play *play = play_well(&scenario);
    assert_int_equal(play->count, 2);
    assert_near(play->attempts[1].norm, 2.5, 1e-6);
    assert_near(play->attempts[2].norm, 6, 1e-6);
    for (uint32_t rank = 0; rank < 2; rank++) assert_near(last_parameter(play, rank, 0), -8.5, 1e-6);
    free(play);
}

/* W, S and the lr belong to the window: here all three change from step to step. */
static double halving(uint64_t applied)
{
    return ldexp(1, -(int)applied);
}

static void each_step_uses_the_weight_of_its_own_window(void **state)
{
    (void)state;
    struct scenario scenario = {
        .csv = "weight,g0\n1,2\n3,2\n1,3\n0,9\n0.25,4\n0.25,8\n", .global = 2, .schedule = halving};
    struct play *play = play_well(&scenario);
    assert_near(play->attempts[1].norm, 2, 1e-6);
    assert_near(play->attempts[2].norm, 3, 1e-6);
    assert_near(play->attempts[3].norm, 6, 1e-6);
    assert_near(last_parameter(play, 0, 0), -(2 + 1.5 + 1.5), 1e-6);
    free(play);
}

/* --- scale, clip, update ------------------------------------------------------------------------------------- */

/* C3: S = 8, accumulated 16, limit 1: an update from gradient 1, not 1/8. */
static void clipping_works_on_the_unscaled_gradient(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1\n2\n3\n", .global = 3, .scale = 8, .clip = 1};
    struct play *play = play_well(&scenario);
    assert_near(play->attempts[1].norm_scaled, 16, 1e-5);
    assert_near(last_parameter(play, 0, 0), -1, 1e-6);
    free(play);
}

/* Case 06-1; C2: norms before and after unscale differ by exactly S. */
static void two_norms_differ_by_exactly_the_scale(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0,g1\n3,4\n", .size = 2, .scale = 1024, .clip = 1};
    for (scenario.ranks = 1; scenario.ranks <= 2; scenario.ranks++) {
        struct play *play = play_well(&scenario);
        assert_near(play->attempts[1].norm, 5, 0);
        assert_near(play->attempts[1].norm_scaled, 5120, 0);
        for (uint32_t rank = 0; rank < scenario.ranks; rank++) {
            assert_near(last_parameter(play, rank, 0), -0.6, 1e-6);
            assert_near(last_parameter(play, rank, 1), -0.8, 1e-6);
        }
        free(play);
    }
}

/* Case 06-4 */
static void unscaling_happens_once_for_all_micro_batches(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n4\n2\n", .global = 2, .scale = 8};
    struct play *play = play_well(&scenario);
    assert_near(last_parameter(play, 0, 0), -3, 0);
    free(play);
}

/* Case 06-6: the scaled squares are beyond fp32. */
static void a_norm_whose_squares_exceed_fp32_is_no_overflow(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0,g1\n3e14,4e14\n", .size = 2, .scale = 65536, .clip = 1};
    struct play *play = play_well(&scenario);
    assert_int_equal(play->attempts[1].verdict, APPLY);
    assert_near(play->attempts[1].norm, 5e14, 1e8);
    assert_near(last_parameter(play, 0, 0), -0.6, 1e-6);
    assert_near(last_parameter(play, 0, 1), -0.8, 1e-6);
    free(play);
}

/* Case 13-1 */
static void the_norm_is_one_over_all_shards(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0,g1\n6,0\n0,8\n", .size = 2, .global = 2, .ranks = 2, .clip = 1};
    struct play *play = play_well(&scenario);
    assert_near(play->attempts[1].norm, 5, 0);
    assert_near(play->attempts[1].coefficient, 0.2, 1e-6);
    for (uint32_t rank = 0; rank < 2; rank++) assert_near(last_parameter(play, rank, 1), -0.8, 1e-6);
    free(play);
}

/* The S that unscales is the one the window was scaled with: the coordinator grows it with every decision. */
static void a_growth_step_applies_the_whole_gradient(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1\n2\n4\n", .scale = 16, .growth = 2, .compute = FP16};
    struct play *play = play_well(&scenario);
    for (uint64_t attempt = 1; attempt <= 3; attempt++) {
        assert_near(play->attempts[attempt].scale, ldexp(8, (int)attempt), 0);
        assert_near(play->attempts[attempt].norm, ldexp(0.5, (int)attempt), 0);
        assert_near(play->attempts[attempt].ranks[0].parameters[0], 1 - ldexp(1, (int)attempt), 0);
    }
    free(play);
}

static void a_skip_halves_the_scale_of_the_next_window_only(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\ninf\n2\n2\n", .scale = 16, .compute = FP16};
    struct play *play = play_well(&scenario);
    assert_near(play->attempts[1].scale, 16, 0);
    assert_near(play->attempts[2].scale, 8, 0);
    assert_near(play->attempts[2].norm_scaled, 16, 0);
    assert_near(last_parameter(play, 0, 0), -4, 0);
    free(play);
}

/* C1: gradients 3 (weight) and 4 (bias) lie in different groups. */
static void one_norm_covers_all_groups(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "x0,y0\n0.75,-4\n", .type = LINEAR, .bias = true, .clip = 1};
    for (scenario.ranks = 1; scenario.ranks <= 2; scenario.ranks++) {
        struct play *play = play_well(&scenario);
        assert_near(play->attempts[1].norm, 5, 0);
        assert_near(last_parameter(play, 0, 0), -0.6, 1e-6);
        assert_near(last_parameter(play, 0, 1), -0.8, 1e-6);
        free(play);
    }
}

/* Case 15-1: the gradient is 0, for 1·1 + 1 = 2. */
static void decay_spares_biases(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "x0,y0\n1,2\n",
                                .type = LINEAR,
                                .bias = true,
                                .initial = {1},
                                .initial_bias = 1,
                                .adamw = true,
                                .lr = 0.1,
                                .weight_decay = 0.5};
    struct play *play = play_well(&scenario);
    assert_near(last_parameter(play, 0, 0), 0.95, 1e-7);
    assert_near(last_parameter(play, 0, 1), 1, 0);
    free(play);
}

/* G2: the bias follows the schedule (lr 1, then 0.5) at a quarter of the lr. Targets keep both gradients at −1. */
static void a_group_has_its_own_lr_and_follows_the_schedule(void **state)
{
    (void)state;
    Gacc__V1__ParameterGroup group = GACC__V1__PARAMETER_GROUP__INIT;
    group.match = (char *)(uintptr_t) "b*";
    group.lr = 0.25;
    group.weight_decay = -1;
    struct scenario scenario = {
        .csv = "x0,y0\n1,1\n1,2.25\n", .type = LINEAR, .bias = true, .schedule = halving, .group = &group};
    struct play *play = play_well(&scenario);
    assert_near(last_parameter(play, 0, 0), 1.5, 0);
    assert_near(last_parameter(play, 0, 1), 0.375, 0);
    free(play);
}

/* Case 15-4 */
static void adamw_decays_decoupled(void **state)
{
    (void)state;
    struct scenario scenario = {
        .csv = "g0\n0.3\n-0.3\n", .initial = {2}, .adamw = true, .lr = 0.1, .weight_decay = 0.1, .compute = FP64};
    struct play *play = play_well(&scenario);
    assert_near(last_parameter(play, 0, 0), 1.866463, 5e-7);
    free(play);
}

/* G1: v = 1, then 0.9 + 1; w = −0.1·(1 + 1.9) */
static void sgd_keeps_its_momentum_in_the_shard(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0,g1,g2\n1,1,1\n1,1,1\n", .size = 3, .momentum = 0.9, .lr = 0.1};
    for (scenario.ranks = 1; scenario.ranks <= 2; scenario.ranks++) {
        struct play *play = play_well(&scenario);
        for (uint64_t i = 0; i < 3; i++) assert_near(last_parameter(play, scenario.ranks - 1, i), -0.29, 1e-7);
        free(play);
    }
}

/* Case 08-1: 0.25, (skip), 0.5, 0.75, 1. */
static double warm_up_of_four(uint64_t applied)
{
    return applied < 4 ? 0.25 * (double)(applied + 1) : 1;
}

static void a_skip_does_not_advance_the_schedule(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1\ninf\n1\n1\n1\n", .initial = {10}, .schedule = warm_up_of_four};
    struct play *play = play_well(&scenario);
    assert_near(last_parameter(play, 0, 0), 7.5, 0);
    assert_int_equal(play->optimizer_steps, 4);
    free(play);
}

/* --- skips --------------------------------------------------------------------------------------------------- */

/* Case 11-1, B6 */
static void a_skip_moves_nothing(void **state)
{
    (void)state;
    struct scenario scenario = {
        .csv = "g0\ninf\n0.5\n", .initial = {1}, .adamw = true, .lr = 0.1, .weight_decay = 0.1, .scale = 2};
    struct play *play = play_well(&scenario);
    assert_int_equal(play->attempts[1].verdict, SKIP);
    assert_true(play->attempts[1].ranks[0].parameters[0] == 1);
    assert_int_equal(play->attempts[1].ranks[0].all_gathers, 0);
    assert_int_equal(play->attempts[2].verdict, APPLY);
    assert_near(last_parameter(play, 0, 0), 0.89, 1e-7);
    assert_near(play->ends[0].m[0], 0.05, 1e-8);
    free(play);
}

/* B6, E2: what the overflow left in the buffer must not reach the next step. */
static void gradients_are_cleared_on_success_and_on_skip(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1\ninf\n2\n"};
    struct play *play = play_well(&scenario);
    for (uint64_t attempt = 1; attempt <= 3; attempt++)
        assert_near(play->attempts[attempt].ranks[0].gradient_after, 0, 0);
    assert_int_equal(play->attempts[3].verdict, APPLY);
    assert_near(last_parameter(play, 0, 0), -3, 0);
    free(play);
}

/* Case 12-1, B3: one of four micro-batches on one of two ranks; S halves once. */
static void an_overflow_on_one_rank_skips_on_all(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0,g1\n1,1\n1,1\n1,1\n1,inf\n1,1\n1,1\n1,1\n1,1\n",
                                .size = 2,
                                .global = 4,
                                .ranks = 2,
                                .scale = 8,
                                .compute = FP16};
    struct play *play = play_well(&scenario);
    assert_int_equal(play->attempts[1].verdict, SKIP);
    assert_int_equal(play->attempts[2].verdict, APPLY);
    assert_near(play->attempts[2].scale, 4, 0);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_near(play->attempts[1].ranks[rank].parameters[0], 0, 0);
        assert_near(last_parameter(play, rank, 0), -1, 0);
    }
    free(play);
}

/* Case 07-1, C4: no scaler. */
static void without_a_scaler_a_nonfinite_gradient_changes_no_weight(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0,g1\n1,inf\n1,nan\n", .size = 2, .clip = 1, .compute = BF16};
    struct play *play = play_well(&scenario);
    for (uint64_t attempt = 1; attempt <= 2; attempt++) {
        assert_int_equal(play->attempts[attempt].verdict, SKIP);
        assert_near(play->attempts[attempt].ranks[0].parameters[0], 0, 0);
        assert_near(play->attempts[attempt].ranks[0].parameters[1], 0, 0);
    }
    free(play);
}

/* F1, interfaces: in fp16, 20000 at S = 4 is inf; at S = 2 it is not. */
static void a_scaled_gradient_beyond_fp16_overflows(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n20000\n20000\n", .scale = 4, .compute = FP16};
    struct play *play = play_well(&scenario);
    assert_int_equal(play->attempts[1].verdict, SKIP);
    assert_int_equal(play->attempts[2].verdict, APPLY);
    assert_near(last_parameter(play, 0, 0), -20000, 0);
    free(play);
}

/* B8: rank 1 holds micro-batches 2 and 3 (rows 4…7); row 6 is the one. */
static void a_skip_names_tensor_micro_batch_and_sequences(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1\n1\n1\n1\n1\n1\ninf\n1\n", .global = 8, .micro = 2, .ranks = 2};
    struct play *play = play_well(&scenario);
    assert_int_equal(play->attempts[1].verdict, SKIP);
    const struct rank_attempt *well = &play->attempts[1].ranks[0], *culprit = &play->attempts[1].ranks[1];
    assert_string_equal(well->tensor, "");
    assert_string_equal(culprit->tensor, "weight");
    assert_int_equal(culprit->micro_batch, 3);
    assert_int_equal(culprit->sequence_count, 2);
    assert_int_equal(culprit->sequences[0], 6);
    assert_int_equal(culprit->sequences[1], 7);
    assert_non_null(strstr(culprit->file, "train.csv"));
    free(play);
}

/* The decision that ends the job by numerics, in place of the skip of step 2. */
static void fail_at_2(struct play *play, Gacc__V1__Decision *decision)
{
    static Gacc__V1__Failure failure = GACC__V1__FAILURE__INIT;
    if (play->attempts[2].verdict != SKIP) return;
    failure.status = STATUS_NUMERICS;
    failure.text = (char *)(uintptr_t) "step 2: not finite";
    decision->verdict = FAIL;
    decision->failure = &failure;
    decision->next = NULL;
    decision->plan = NULL;
}

/* g = inf in micro-batch 1 of step 2, which rank 1 runs: the farewell can name it only if the failing step does. */
static void a_step_that_ends_the_job_by_numerics_names_its_culprit(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1\n1\n1\ninf\n", .global = 2, .ranks = 2, .tamper = fail_at_2};
    struct play *play = play_run(&scenario);
    const struct rank_attempt *well = &play->attempts[2].ranks[0], *culprit = &play->attempts[2].ranks[1];
    assert_string_equal(well->tensor, "");
    assert_string_equal(culprit->tensor, "weight");
    assert_int_equal(culprit->micro_batch, 1);
    assert_int_equal(culprit->sequences[0], 3);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(play->ends[rank].result, -STATUS_NUMERICS);
        assert_string_equal(play->ends[rank].error.text, "step 2: not finite");
        assert_near(play->attempts[2].ranks[rank].parameters[0], -1, 0);
    }
    free(play);
}

/* An overflow of the accumulated sum has no single micro-batch: 2e38 twice. */
static void an_overflow_of_the_sum_names_the_tensor_alone(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n2e38\n2e38\n", .global = 2, .weighting = SUM};
    struct play *play = play_well(&scenario);
    assert_int_equal(play->attempts[1].verdict, SKIP);
    assert_string_equal(play->attempts[1].ranks[0].tensor, "weight");
    assert_int_equal(play->attempts[1].ranks[0].micro_batch, -1);
    free(play);
}

/* The ranks' sum overflows, neither rank's own part does: nobody is named. */
static void an_overflow_between_ranks_has_no_culprit(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n2e38\n2e38\n", .global = 2, .ranks = 2, .weighting = SUM};
    struct play *play = play_well(&scenario);
    assert_int_equal(play->attempts[1].verdict, SKIP);
    for (uint32_t rank = 0; rank < 2; rank++) assert_string_equal(play->attempts[1].ranks[rank].tensor, "");
    free(play);
}

/* --- precision ----------------------------------------------------------------------------------------------- */

/* Case 30-1: in bf16 a sum of ones would stick at 256. */
static void accumulation_is_wide_at_any_compute_type(void **state)
{
    (void)state;
    char csv[3 + 512 * 2 + 1] = "g0\n";
    for (size_t i = 0; i < 512; i++) strcat(csv, "1\n");
    struct scenario scenario = {.csv = csv, .global = 512, .weighting = SUM, .compute = BF16};
    struct play *play = play_well(&scenario);
    assert_near(play->attempts[1].norm, 512, 0);
    free(play);
}

/* Case 30-4: 100 updates of −0.0005 from 1. */
static void masters_keep_what_the_compute_type_cannot_hold(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1\n", .initial = {1}, .epochs = 100, .lr = 0.0005, .compute = BF16};
    struct play *play = play_well(&scenario);
    assert_near(play->ends[0].master[0], 0.95, 1e-5);
    assert_near(last_parameter(play, 0, 0), 0.94921875, 0);
    free(play);
}

/* Case 31-1 */
static void the_reduction_adds_in_fp32(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n30000\n30000\n30000\n30000\n",
                                .global = 4,
                                .ranks = 4,
                                .weighting = SUM,
                                .lr = 0.5,
                                .compute = FP16};
    struct play *play = play_well(&scenario);
    assert_int_equal(play->attempts[1].verdict, APPLY);
    assert_near(play->attempts[1].norm, 120000, 0);
    free(play);
}

/* --- communication, memory ----------------------------------------------------------------------------------- */

/* Case 14-1, D1–D3: K = 1 and K = 8; 7 parameters over 2 ranks, 4 + 3. */
static void collectives_do_not_depend_on_the_window(void **state)
{
    (void)state;
    char csv[1024] = "g0,g1,g2,g3,g4,g5,g6\n";
    for (size_t i = 0; i < 16; i++) strcat(csv, "1,1,1,1,1,1,1\n");
    for (uint32_t k = 1; k <= 8; k *= 8) {
        struct scenario scenario = {
            .csv = csv, .size = 7, .global = 2 * k, .ranks = 2, .compute = FP16, .stop_after = 1};
        struct play *play = play_well(&scenario);
        for (uint32_t rank = 0; rank < 2; rank++) {
            const struct rank_attempt *attempt = &play->attempts[1].ranks[rank];
            assert_int_equal(attempt->reduce_scatters, 1);
            assert_int_equal(attempt->all_gathers, 1);
            assert_int_equal(attempt->control, 0);
            assert_int_equal(attempt->reduce_scatter_bytes, (rank == 0 ? 3 : 4) * 4);
            assert_int_equal(attempt->all_gather_bytes, (rank == 0 ? 4 : 3) * 2);
        }
        free(play);
    }
}

static void counts_start_anew_with_every_step(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1\n1\n1\n"};
    struct play *play = play_well(&scenario);
    for (uint64_t attempt = 1; attempt <= 3; attempt++) {
        assert_int_equal(play->attempts[attempt].ranks[0].reduce_scatters, 1);
        assert_int_equal(play->attempts[attempt].ranks[0].all_gathers, 1);
        assert_int_equal(play->attempts[attempt].ranks[0].reduce_scatter_bytes, 0);
    }
    free(play);
}

/* L2 */
static void memory_depends_on_the_micro_batch_alone(void **state)
{
    (void)state;
    char csv[1024] = "x0,x1,y0\n";
    for (size_t i = 0; i < 32; i++) strcat(csv, "1,2,3\n");
    struct session_memory memories[2], foretold;
    for (uint32_t i = 0; i < 2; i++) {
        struct scenario scenario = {
            .csv = csv, .type = LINEAR, .size = 2, .global = i ? 32 : 2, .micro = 2, .adamw = true};
        struct play *play = play_well(&scenario);
        memories[i] = play->ends[0].memory;
        assert_int_equal(session_memory_of(&play->job, 1, &foretold, NULL), 0);
        free(play);
    }
    assert_memory_equal(&memories[0], &memories[1], sizeof memories[0]);
    assert_memory_equal(&memories[0], &foretold, sizeof foretold);
    assert_int_equal(memories[0].gradients, 2 * 4);
    assert_int_equal(memories[0].moments, 2 * 2 * 4);
    assert_true(memories[0].activations > 0);
    assert_int_equal(memories[0].batch, 2 * (8 + 8 + 4 + 2 * 8 + 8));
}

/* D4 */
static void masters_and_moments_are_sharded(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0,g1,g2,g3,g4,g5,g6\n1,2,3,4,5,6,7\n", .size = 7, .ranks = 3, .adamw = true};
    struct play *play = play_well(&scenario);
    static const uint64_t owned[] = {3, 3, 1};
    for (uint32_t rank = 0; rank < 3; rank++) {
        assert_int_equal(play->ends[rank].owned, owned[rank]);
        assert_int_equal(play->ends[rank].memory.moments, owned[rank] * 2 * 4);
        assert_int_equal(play->ends[rank].memory.shard, owned[rank] * 2 * 4);
        for (uint64_t i = 0; i < 7; i++) assert_near(last_parameter(play, rank, i), -1, 1e-6);
    }
    free(play);
}

/* --- states, self-check, errors ------------------------------------------------------------------------------ */

/* E1 */
static void the_states_of_a_step_are_told_in_order(void **state)
{
    (void)state;
#define STATE(name) GACC__V1__STATE__STATE_##name
    static const Gacc__V1__State expected[] = {
        STATE(ENTER_STEP),    STATE(MICRO_FORWARD),  STATE(MICRO_BACKWARD),
        STATE(MICRO_FORWARD), STATE(MICRO_BACKWARD), STATE(MAYBE_OVERFLOW_SIGNAL),
        STATE(REDUCE),        STATE(UNSCALE),        STATE(CLIP),
        STATE(STEP_OR_SKIP),  STATE(UPDATE_SCALE),   STATE(EXIT_STEP),
        STATE(EVALUATE),      STATE(FINISHED)};
    struct scenario scenario = {.csv = "g0\n1\n2\n", .validation = "g0\n1\n", .evaluate_every = 1, .global = 2};
    struct play *play = play_well(&scenario);
    assert_int_equal(play->ends[0].trace_count, sizeof expected / sizeof *expected);
    for (size_t i = 0; i < play->ends[0].trace_count; i++) assert_int_equal(play->ends[0].trace[i].state, expected[i]);
    free(play);
}

/* A9 */
static void a_parameter_that_changes_inside_a_window_is_found(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1\n2\n3\n4\n",
                                .global = 2,
                                .ranks = 2,
                                .faults = {.parameter_write_at_step = 2, .rank = 1, .self_check = true}};
    struct play *play = play_run(&scenario);
    assert_int_equal(play->attempts[1].verdict, APPLY);
    assert_int_equal(play->attempts[2].verdict, FAIL);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(play->ends[rank].result, -STATUS_INTERNAL);
        assert_string_equal(play->ends[rank].error.text,
                            "step 2: tensor weight changed inside the accumulation window");
    }
    free(play);
}

static void an_undisturbed_window_passes_the_self_check(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1\ninf\n3\n4\n", .global = 2, .ranks = 2, .faults = {.self_check = true}};
    free(play_well(&scenario));
}

static void check_every_second_step(struct play *play)
{
    static Gacc__V1__ControlSection control;
    gacc__v1__control_section__init(&control);
    control.self_check = 2;
    play->job.control = &control;
}

/* Between step 3 and step 4, where the window's own check begins too late to see it. */
static void flip_a_bit_on_rank_1(struct actor *actor, uint64_t step)
{
    if (actor->rank == 1 && step == 3) *(unsigned char *)actor->session->parameters ^= 1;
}

/* Case 12-4: the coordinator sees it in the reports (conductor_failures_test). */
static void a_job_may_have_its_parameters_compared(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n",
                                .global = 2,
                                .ranks = 2,
                                .adjust = check_every_second_step,
                                .after_step = flip_a_bit_on_rank_1};
    struct play *play = play_well(&scenario);
    assert_int_equal(play->count, 6);
    for (uint64_t step = 1; step <= 6; step++) {
        uint64_t sums[] = {play->attempts[step].ranks[0].parameters_checksum,
                           play->attempts[step].ranks[1].parameters_checksum};
        assert_int_equal(sums[0] != 0, step % 2 == 0);
        assert_int_equal(sums[0] != sums[1], step == 4); /* the gather behind it mends it */
    }
    assert_true(play->attempts[2].ranks[0].parameters_checksum != play->attempts[6].ranks[0].parameters_checksum);
    free(play);
    scenario.after_step = NULL;
    for (scenario.faults = (struct faults){.rank = 1, .parameter_write_at_step = 3};
         scenario.faults.parameter_write_at_step <= 4; scenario.faults.parameter_write_at_step++) {
        play = play_run(&scenario);
        if (scenario.faults.parameter_write_at_step == 4)
            assert_string_equal(play->ends[0].error.text,
                                "step 4: tensor weight changed inside the accumulation window");
        else
            assert_int_equal(play->ends[0].result, 0); /* nobody looks at step 3 */
        free(play);
    }
}

/* Case 39-3: the rank still enters the reduction; all ranks end in order with its text. */
static void a_data_error_on_one_rank_ends_all_in_order(void **state)
{
    (void)state;
    struct scenario scenario = {
        .csv = "g0\n1\n2\n3\n4\n5\n6\n", .global = 2, .ranks = 2, .faults = {.data_error_at_step = 3, .rank = 1}};
    struct play *play = play_run(&scenario);
    assert_int_equal(play->count, 3);
    assert_int_equal(play->attempts[3].verdict, FAIL);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(play->ends[rank].result, -STATUS_DATA);
        assert_non_null(strstr(play->ends[rank].error.text, "train.csv: byte "));
        assert_int_equal(play->attempts[3].ranks[rank].reduce_scatters, 1);
    }
    free(play);
}

/* --- decisions that cannot be followed ------------------------------------------------------------------------ */

static void refused(const struct scenario *scenario, const char *text)
{
    struct play *play = play_run(scenario);
    assert_int_equal(play->ends[0].result, -STATUS_INTERNAL);
    assert_string_equal(play->ends[0].error.text, text);
    free(play);
}

static void for_another_step(struct play *play, Gacc__V1__Decision *decision)
{
    if (play->count == 2) decision->step = 7;
}

static void apply_anyway(struct play *play, Gacc__V1__Decision *decision)
{
    (void)play;
    decision->verdict = APPLY;
}

static void without_the_plan(struct play *play, Gacc__V1__Decision *decision)
{
    if (play->count == 1) decision->plan = NULL;
}

static void beyond_the_data(struct play *play, Gacc__V1__Decision *decision)
{
    (void)play;
    if (decision->plan) decision->plan->first = 3;
}

static void for_more_ranks(struct play *play, Gacc__V1__Decision *decision)
{
    (void)play;
    if (decision->plan) decision->plan->n_shares = 0;
}

static void larger_micro_batches(struct play *play, Gacc__V1__Decision *decision)
{
    (void)play;
    if (decision->plan) decision->plan->micro = 2;
}

static void more_micro_batches(struct play *play, Gacc__V1__Decision *decision)
{
    (void)play;
    if (decision->plan) decision->plan->shares[0] = 2;
}

static void another_window(struct play *play, Gacc__V1__Decision *decision)
{
    (void)play;
    if (decision->next) decision->next->step++;
}

static void a_decision_that_cannot_be_followed_is_refused(void **state)
{
    (void)state;
    static const struct {
        void (*tamper)(struct play *, Gacc__V1__Decision *);
        const char *csv, *text;
    } rows[] = {
        {for_another_step, "g0\n1\n2\n3\n", "step 1: a decision for step 7 came"},
        {apply_anyway, "g0\ninf\n", "step 1: told to apply a gradient that is not usable"},
        {without_the_plan, "g0\n1\n2\n3\n", "the coordinator opens a window without a plan"},
        {beyond_the_data, "g0\n1\n2\n3\n", "step 2: positions 3…4 are not in a data set of 3"},
        {for_more_ranks, "g0\n1\n2\n3\n", "step 2: a plan for 0 ranks meets 1"},
        {larger_micro_batches, "g0\n1\n2\n3\n", "step 2: micro-batches of 2 sequences meet room for 1"},
        {more_micro_batches, "g0\n1\n2\n3\n", "step 2: the ranks' shares are 2 micro-batches of 1"},
        {another_window, "g0\n1\n2\n3\n", "the window of step 2 meets the plan of step 1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct scenario scenario = {.csv = rows[i].csv, .tamper = rows[i].tamper};
        refused(&scenario, rows[i].text);
    }
}

static void fail_at_once(struct play *play, Gacc__V1__Decision *decision)
{
    static Gacc__V1__Failure failure = GACC__V1__FAILURE__INIT;
    if (play->count != 1 || decision->step) return;
    failure.status = STATUS_JOB;
    failure.text = (char *)(uintptr_t) "rank 1 runs another job";
    decision->verdict = FAIL;
    decision->failure = &failure;
}

static void a_job_may_fail_before_its_first_step(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1\n", .tamper = fail_at_once};
    struct play *play = play_run(&scenario);
    assert_int_equal(play->ends[0].result, -STATUS_JOB);
    assert_string_equal(play->ends[0].error.text, "rank 1 runs another job");
    free(play);
}

/* --- evaluation, the written model --------------------------------------------------------------------------- */

/* Validation rows g = 1, 2, 3 (weights 1, 1, 2): Σ w·g·W after steps 2 and 4. */
static void the_validation_loss_is_split_over_ranks_and_summed(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1\n1\n1\n1\n",
                                .validation = "weight,g0\n1,1\n1,2\n2,3\n",
                                .evaluate_every = 2,
                                .lr = 0.5,
                                .compute = FP64};
    for (scenario.ranks = 1; scenario.ranks <= 3; scenario.ranks++) {
        struct play *play = play_well(&scenario);
        for (uint64_t attempt = 1; attempt <= 4; attempt++) {
            double loss = 0, weight = 0;
            for (uint32_t rank = 0; rank < scenario.ranks; rank++) {
                const struct rank_attempt *note = &play->attempts[attempt].ranks[rank];
                assert_int_equal(note->evaluated, attempt % 2 == 0);
                loss += note->evaluation_loss;
                weight += note->evaluation_weight;
            }
            if (attempt % 2) continue;
            assert_near(weight, 4, 0);
            assert_near(loss, -0.5 * (double)attempt * 9, 1e-12);
            assert_near(play->attempts[attempt].ranks[0].gradient_after, 0, 0);
        }
        free(play);
    }
}

static void only_the_first_validation_sequences_count(void **state)
{
    (void)state;
    struct scenario scenario = {
        .csv = "g0\n1\n", .validation = "g0\n1\n2\n100\n", .evaluate_every = 1, .evaluation_sequences = 2, .ranks = 2};
    struct play *play = play_well(&scenario);
    assert_near(play->attempts[1].ranks[0].evaluation_loss + play->attempts[1].ranks[1].evaluation_loss, -3, 1e-6);
    free(play);
}

static void the_model_is_one_file_whatever_the_ranks(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0,g1,g2,g3,g4\n1,2,3,4,5\n",
                                .size = 5,
                                .initial = {10, 10, 10, 10, 10},
                                .compute = BF16,
                                .export = "model.safetensors"};
    char first[512] = {0};
    size_t first_size = 0;
    for (scenario.ranks = 1; scenario.ranks <= 4; scenario.ranks++) {
        struct play *play = play_well(&scenario);
        struct safetensors *file;
        struct error error;
        if (safetensors_open(&file, play->export, &error)) fail_msg("%s", error.text);
        const struct safetensors_tensor *weight = safetensors_find(file, "weight");
        assert_non_null(weight);
        assert_int_equal(weight->type, SAFETENSORS_F32);
        assert_int_equal(weight->dimensions, 2);
        assert_int_equal(weight->shape[1], 5);
        double values[5];
        assert_int_equal(safetensors_read(file, weight, 0, 5, values, &error), 0);
        for (int i = 0; i < 5; i++) assert_near(values[i], 9 - i, 0);
        safetensors_close(file);
        char bytes[512];
        FILE *stream = fopen(play->export, "rb");
        size_t size = fread(bytes, 1, sizeof bytes, stream);
        fclose(stream);
        if (scenario.ranks == 1) {
            memcpy(first, bytes, size);
            first_size = size;
        }
        assert_int_equal(size, first_size);
        assert_memory_equal(bytes, first, size);
        free(play);
    }
}

static void a_model_that_cannot_be_written_fails_on_all_ranks(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0,g1\n1,2\n", .size = 2, .ranks = 2, .export = "missing/model.safetensors"};
    struct play *play = play_run(&scenario);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(play->ends[rank].result, 0);
        assert_int_equal(play->ends[rank].export_result, -STATUS_IO);
        assert_non_null(strstr(play->ends[rank].error.text, "missing/model.safetensors.tmp: No such file"));
    }
    free(play);
}

/* −3e38 − 3e38 is no fp32 number. */
static void a_model_that_is_not_finite_is_not_written(void **state)
{
    (void)state;
    struct scenario scenario = {
        .csv = "g0,g1,g2\n1,2,3e38\n", .size = 3, .initial = {1, 2, -3e38}, .export = "overflown.safetensors"};
    for (scenario.ranks = 1; scenario.ranks <= 3; scenario.ranks++) {
        struct play *play = play_run(&scenario);
        for (uint32_t rank = 0; rank < scenario.ranks; rank++) {
            assert_int_equal(play->ends[rank].result, 0);
            assert_int_equal(play->ends[rank].export_result, -STATUS_NUMERICS);
            assert_non_null(strstr(play->ends[rank].error.text,
                                   "overflown.safetensors: not written: tensor weight is not finite (element 2 of 3)"));
        }
        assert_int_equal(access(play->export, F_OK), -1);
        strcat(play->export, ".tmp");
        assert_int_equal(access(play->export, F_OK), -1);
        free(play);
    }
}

static void fail_evaluation_on_rank_1(struct actor *actor, uint64_t step)
{
    if (actor->rank == 1 && step == 2) error_set(&actor->session->failure, STATUS_IO, "val.bin: byte 12: gone");
}

/* Its report went out before: the error waits for the next one, or for the model to be written. */
static void an_error_of_an_evaluation_ends_all_ranks_in_order(void **state)
{
    (void)state;
    struct scenario scenario = {
        .csv = "g0\n1\n2\n3\n", .ranks = 2, .after_step = fail_evaluation_on_rank_1, .export = "late.safetensors"};
    for (scenario.stop_after = 2; scenario.stop_after <= 3; scenario.stop_after++) {
        struct play *play = play_run(&scenario);
        for (uint32_t rank = 0; rank < 2; rank++) {
            const struct rank_end *end = &play->ends[rank];
            assert_int_equal(scenario.stop_after == 2 ? end->export_result : end->result, -STATUS_IO);
            assert_string_equal(end->error.text,
                                scenario.stop_after == 2 ? "rank 1: val.bin: byte 12: gone" : "val.bin: byte 12: gone");
        }
        assert_int_equal(access(play->export, F_OK), -1);
        free(play);
    }
}

/* A step's seconds are those of its parts and a little more. */
static void times_add_up(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1\n1\n", .ranks = 2, .global = 2};
    struct play *play = play_well(&scenario);
    const Gacc__V1__Seconds *seconds = &play->attempts[1].ranks[0].seconds;
    double parts =
        seconds->data + seconds->compute + seconds->reduce + seconds->decision + seconds->update + seconds->gather;
    assert_true(parts > 0);
    assert_true(parts <= seconds->step);
    assert_true(seconds->step < 5);
    free(play);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(token_weighting_is_the_mean_over_all_targets),
        cmocka_unit_test(one_big_batch_is_the_same_as_token_weighting),
        cmocka_unit_test(micro_batch_weighting_is_the_mean_of_means),
        cmocka_unit_test(sum_weighting_divides_by_nothing),
        cmocka_unit_test(fractional_weights_weigh),
        cmocka_unit_test(a_micro_batch_without_weight_adds_nothing),
        cmocka_unit_test(a_masked_row_beside_others_is_skipped_not_multiplied),
        cmocka_unit_test(an_empty_global_batch_makes_no_update_and_is_no_overflow),
        cmocka_unit_test(scale_and_average_meet_once),
        cmocka_unit_test(a_short_last_window_is_weighted_by_what_it_holds),
        cmocka_unit_test(a_short_micro_batch_does_not_reach_into_the_next_window),
        cmocka_unit_test(an_epoch_shorter_than_the_window_is_one_update),
        cmocka_unit_test(two_ranks_of_two_micro_batches_step_once_and_alike),
        cmocka_unit_test(a_rank_without_micro_batches_takes_part),
        cmocka_unit_test(each_step_uses_the_weight_of_its_own_window),
        cmocka_unit_test(clipping_works_on_the_unscaled_gradient),
        cmocka_unit_test(two_norms_differ_by_exactly_the_scale),
        cmocka_unit_test(unscaling_happens_once_for_all_micro_batches),
        cmocka_unit_test(a_norm_whose_squares_exceed_fp32_is_no_overflow),
        cmocka_unit_test(the_norm_is_one_over_all_shards),
        cmocka_unit_test(a_growth_step_applies_the_whole_gradient),
        cmocka_unit_test(a_skip_halves_the_scale_of_the_next_window_only),
        cmocka_unit_test(one_norm_covers_all_groups),
        cmocka_unit_test(decay_spares_biases),
        cmocka_unit_test(a_group_has_its_own_lr_and_follows_the_schedule),
        cmocka_unit_test(adamw_decays_decoupled),
        cmocka_unit_test(sgd_keeps_its_momentum_in_the_shard),
        cmocka_unit_test(a_skip_does_not_advance_the_schedule),
        cmocka_unit_test(a_skip_moves_nothing),
        cmocka_unit_test(gradients_are_cleared_on_success_and_on_skip),
        cmocka_unit_test(an_overflow_on_one_rank_skips_on_all),
        cmocka_unit_test(without_a_scaler_a_nonfinite_gradient_changes_no_weight),
        cmocka_unit_test(a_scaled_gradient_beyond_fp16_overflows),
        cmocka_unit_test(a_skip_names_tensor_micro_batch_and_sequences),
        cmocka_unit_test(a_step_that_ends_the_job_by_numerics_names_its_culprit),
        cmocka_unit_test(an_overflow_of_the_sum_names_the_tensor_alone),
        cmocka_unit_test(an_overflow_between_ranks_has_no_culprit),
        cmocka_unit_test(accumulation_is_wide_at_any_compute_type),
        cmocka_unit_test(masters_keep_what_the_compute_type_cannot_hold),
        cmocka_unit_test(the_reduction_adds_in_fp32),
        cmocka_unit_test(collectives_do_not_depend_on_the_window),
        cmocka_unit_test(counts_start_anew_with_every_step),
        cmocka_unit_test(memory_depends_on_the_micro_batch_alone),
        cmocka_unit_test(masters_and_moments_are_sharded),
        cmocka_unit_test(the_states_of_a_step_are_told_in_order),
        cmocka_unit_test(a_parameter_that_changes_inside_a_window_is_found),
        cmocka_unit_test(an_undisturbed_window_passes_the_self_check),
        cmocka_unit_test(a_job_may_have_its_parameters_compared),
        cmocka_unit_test(a_data_error_on_one_rank_ends_all_in_order),
        cmocka_unit_test(a_decision_that_cannot_be_followed_is_refused),
        cmocka_unit_test(a_job_may_fail_before_its_first_step),
        cmocka_unit_test(the_validation_loss_is_split_over_ranks_and_summed),
        cmocka_unit_test(only_the_first_validation_sequences_count),
        cmocka_unit_test(the_model_is_one_file_whatever_the_ranks),
        cmocka_unit_test(a_model_that_cannot_be_written_fails_on_all_ranks),
        cmocka_unit_test(a_model_that_is_not_finite_is_not_written),
        cmocka_unit_test(an_error_of_an_evaluation_ends_all_ranks_in_order),
        cmocka_unit_test(times_add_up),
    };
    return cmocka_run_group_tests_name("session", tests, scratch_open, scratch_close);
}
