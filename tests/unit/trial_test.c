/* What a trial leaves behind, and what each fault changes in it. Numbers are worked out by hand. */
#include <unistd.h>

#include "daemon/verify/control_local.h"
#include "tests/unit/fake_device.h"
#include "tests/unit/trial_jobs.h"

/* --- what a trial tells -------------------------------------------------------------------------------------- */

/* W = 8: (1·8 + 3·4 + 2·1 + 2·1)/8 = 3 and (8 − 4 + 2)/8 = 0.75 */
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
            assert_int_equal(trial.memory.parameters, 8);
            trial_free(&trial);
        }
}

static int no_comm(const struct device *device, struct comm **out, struct comm *host, struct kernels *kernels,
                   uint64_t parameters, struct error *error)
{
    (void)device, (void)out, (void)host, (void)kernels, (void)parameters;
    return error_set(error, STATUS_INTERNAL, "a transport between threads of one process");
}

/* The reference, which is what a device is judged by, never runs on it. */
static void a_trial_on_a_device_tells_the_same_and_the_reference_is_not_on_it(void **state)
{
    (void)state;
    struct scenario scenario = {
        .csv = weighted, .size = 2, .global = 5, .micro = 2, .lr = 0.5, .initial = {1, 2}, .compute = FP64};
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        struct fake_device device = fake_device();
        device.device.open_comm = no_comm;
        struct trial on_cpu = try_job(&scenario, (struct trial_spec){.ranks = ranks, .steps = 3});
        struct trial on_device =
            try_job(&scenario, (struct trial_spec){.ranks = ranks, .steps = 3, .device = &device.device});
        const unsigned waits = device.waits;
        assert_true(waits > 0);
        assert_memory_equal(on_device.steps, on_cpu.steps, sizeof on_cpu.steps);
        assert_memory_equal(on_device.gradient, on_cpu.gradient, 2 * sizeof(double));
        assert_memory_equal(on_device.after, on_cpu.after, 2 * sizeof(double));
        trial_free(&on_cpu);
        trial_free(&on_device);
        struct trial reference = try_job(
            &scenario, (struct trial_spec){.ranks = ranks, .steps = 3, .reference = true, .device = &device.device});
        assert_int_equal(device.waits, waits);
        trial_free(&reference);
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

/* Two micro-batches each of two ranks: sums 3, 7 | 11, 14; means 1.5, 3.5 | 5.5, 14. W = 7, M' = 4, the
 * mean is 35/7 = 5. */
static const struct scenario of_seven = {.csv = "g0\n1\n2\n3\n4\n5\n6\n14\n", .global = 7, .micro = 2};

static void a_step_is_told_as_the_log_tells_it(void **state)
{
    (void)state;
    struct scenario scenario = of_seven;
    scenario.compute = FP16;
    scenario.scale = 8;
    scenario.clip = 1;
    scenario.size = 2;
    scenario.csv = "g0,g1\n1,0\n2,0\n3,0\n4,0\n5,0\n6,0\n14,0\n";
    struct trial trial = try_job(&scenario, (struct trial_spec){.ranks = 2, .steps = 2});
    const struct trial_step *step = &trial.steps[1];
    assert_int_equal(trial.step_count, 2);
    assert_int_equal(step->verdict, VERDICT_IS_APPLY);
    assert_near(step->weight, 7, 0);
    assert_near(step->lr, 1, 0);
    assert_near(step->loss_scale, 8, 0);
    assert_near(step->loss_scale_next, 8, 0);
    assert_int_equal(step->growth_tracker, 2);
    assert_near(step->grad_norm_scaled, 40, 0.05);
    assert_near(step->grad_norm, 5, 0.01);
    assert_near(step->clip_coefficient, 0.2, 1e-3);
    assert_near(step->grad_norm_clipped, 1, 1e-5);
    assert_int_equal(step->optimizer_steps, 2);
    assert_int_equal(step->scheduler_steps, 2);
    assert_int_equal(step->skipped_steps, 0);
    assert_int_equal(step->reduce_scatters, 1);
    assert_int_equal(step->all_gathers, 1);
    assert_int_equal(step->control_collectives, 0);
    assert_int_equal(step->reduce_scatter_bytes, 4); /* the other rank's element, fp32 */
    assert_int_equal(step->all_gather_bytes, 2);     /* the own one, fp16 */
    assert_true(step->bytes_changed > 0);
    assert_true(step->gradients_cleared);
    assert_near(trial.after[0], -2, 1e-3);
    trial_free(&trial);
}

static void end_soon(struct play *play)
{
    play->job_section.epochs = 1;
    play->evaluation.every = 1; /* of a validation set that is not there */
}

static void a_trial_has_its_steps_however_short_the_job(void **state)
{
    (void)state;
    struct scenario scenario = of_seven;
    scenario.adjust = end_soon;
    struct trial trial = try_job(&scenario, (struct trial_spec){.ranks = 2, .steps = TRIAL_STEPS_MAX});
    assert_int_equal(trial.step_count, TRIAL_STEPS_MAX);
    assert_near(trial.after[0], -5.0 * TRIAL_STEPS_MAX, 1e-4);
    trial_free(&trial);
}

static void the_same_trial_gives_the_same_bits(void **state)
{
    (void)state;
    struct scenario scenario = of_seven;
    scenario.adamw = true;
    struct trial_spec spec = {.ranks = 3, .steps = 3};
    struct trial one = try_job(&scenario, spec), other = try_job(&scenario, spec);
    assert_memory_equal(one.gradient, other.gradient, sizeof(double));
    assert_memory_equal(one.after, other.after, sizeof(double));
    assert_memory_equal(one.steps, other.steps, sizeof one.steps);
    trial_free(&one);
    trial_free(&other);
}

/* In fp32 1 − 10¹⁰/3 is −10¹⁰/3. */
static void a_reversed_batch_is_added_up_from_its_end(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n1e10\n-1e10\n3\n", .global = 3};
    struct trial forward = try_job(&scenario, (struct trial_spec){0});
    struct trial reversed = try_job(&scenario, (struct trial_spec){.reversed = true});
    assert_near(forward.gradient[0], 1, 1e-6);
    assert_near(reversed.gradient[0], 0, 0);
    trial_free(&forward);
    trial_free(&reversed);
    scenario = of_seven;
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        reversed = try_job(&scenario, (struct trial_spec){.ranks = ranks, .reversed = true});
        assert_near(reversed.gradient[0], 5, 2e-6);
        trial_free(&reversed);
    }
}

/* --- a small transformer ------------------------------------------------------------------------------------- */

static const char *const text = "to be or not to be, that is the question: whether it is nobler";

static void make_gpt(struct play *play)
{
    play->model.type = GACC__V1__MODEL_TYPE__MODEL_GPT;
    play->model.layers = 1;
    play->model.heads = 2;
    play->model.width = 8;
    play->model.context = 6;
    play->model.vocab = 128;
    play->model.bias = play->model.tie = true;
    play->model.activation = GACC__V1__ACTIVATION__ACTIVATION_GELU;
    play->model.init_std = 0.2;
    play->model.pad_vocab = 1;
    play->model.n_init_values = 0;
    play->data.format = GACC__V1__DATA_FORMAT__FORMAT_BYTES;
}

static void make_gpt_with_dropout(struct play *play)
{
    make_gpt(play);
    play->model.dropout = 0.5;
}

static double distance(const struct trial *one, const struct trial *other)
{
    double difference = 0, size = 0;
    for (uint64_t i = 0; i < one->parameters; i++) {
        difference += pow(one->gradient[i] - other->gradient[i], 2);
        size += pow(one->gradient[i], 2);
    }
    return sqrt(difference / size);
}

/* And round otherwise: they are not the same kernels. */
static void the_reference_kernels_agree_in_fp64(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = text, .global = 5, .micro = 2, .compute = FP64, .adjust = make_gpt};
    struct trial reference = try_job(&scenario, (struct trial_spec){.reference = true});
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        struct trial trial = try_job(&scenario, (struct trial_spec){.ranks = ranks});
        double difference = distance(&reference, &trial);
        if (!(difference > 0 && difference < 1e-12)) fail_msg("differ by %g", difference);
        trial_free(&trial);
    }
    trial_free(&reference);
}

static void dropout_by_row_depends_on_the_split_and_by_sequence_does_not(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = text, .global = 6, .adjust = make_gpt_with_dropout};
    for (int planted = 0; planted <= 1; planted++) {
        struct trial_spec spec = {.faults.plant = planted ? PLANT_DROPOUT_BY_ROW : PLANT_NOTHING};
        scenario.micro = 6;
        struct trial whole = try_job(&scenario, spec);
        scenario.micro = 2;
        struct trial cut = try_job(&scenario, spec);
        double difference = distance(&whole, &cut);
        if (planted ? !(difference > 0.01) : !(difference < 1e-5)) fail_msg("differ by %g", difference);
        trial_free(&whole);
        trial_free(&cut);
    }
}

/* --- overflow ------------------------------------------------------------------------------------------------ */

/* w = 0, x = 1: the gradient is −y. */
static const char *const six_rows = "x0,y0\n1,1\n1,2\n1,3\n1,4\n1,5\n1,9\n";

static void an_overflow_anywhere_is_skipped_by_all_and_nothing_changes(void **state)
{
    (void)state;
    static const Gacc__V1__Compute computes[] = {FP16, GACC__V1__COMPUTE__COMPUTE_BF16, GACC__V1__COMPUTE__COMPUTE_FP32,
                                                 FP64};
    struct scenario scenario = {
        .csv = six_rows, .type = LINEAR, .global = 6, .micro = 1, .scale = 8, .adamw = true, .lr = 0.1};
    for (size_t i = 0; i < sizeof computes / sizeof *computes; i++)
        for (uint32_t micro_batch = 0; micro_batch < 6; micro_batch++) {
            scenario.compute = computes[i];
            struct trial_spec spec = {
                .ranks = 3, .steps = 3, .faults.overflow_at = {.step = 2, .micro_batch = micro_batch}};
            struct trial trial = try_job(&scenario, spec);
            bool scaled = computes[i] == FP16;
            assert_int_equal(trial.steps[0].verdict, VERDICT_IS_APPLY);
            assert_int_equal(trial.steps[1].verdict, VERDICT_IS_SKIP);
            assert_int_equal(trial.steps[2].verdict, VERDICT_IS_APPLY);
            assert_int_equal(trial.steps[1].bytes_changed, 0);
            assert_int_equal(trial.steps[1].all_gathers, 0);
            assert_true(trial.steps[1].gradients_cleared);
            assert_near(trial.steps[1].loss_scale, scaled ? 8 : 1, 0);
            assert_near(trial.steps[1].loss_scale_next, scaled ? 4 : 1, 0);
            assert_near(trial.steps[2].loss_scale, scaled ? 4 : 1, 0);
            assert_int_equal(trial.steps[2].optimizer_steps, 2);
            assert_int_equal(trial.steps[2].skipped_steps, 1);
            assert_int_equal(trial.steps[2].scheduler_steps, 2);
            assert_true(trial.steps[2].bytes_changed > 0);
            assert_true(isnan(trial.steps[1].grad_norm) && isnan(trial.steps[1].clip_coefficient));
            trial_free(&trial);
        }
}

/* --- plants -------------------------------------------------------------------------------------------------- */

static void each_wrong_average_is_as_wrong_as_it_says(void **state)
{
    (void)state;
    static const struct {
        enum plant plant;
        double gradient;
    } wrong[] = {
        {PLANT_NOTHING, 5},
        {PLANT_SUM_FOR_MEAN, 35},
        {PLANT_NOT_DIVIDED_BY_K, 24.5},
        {PLANT_DIVIDED_BY_K_TWICE, 1.25},
        {PLANT_DIVIDED_BY_N_TWICE, 2.5},
        {PLANT_RANK_MEANS, (10.0 / 4 + 25.0 / 3) / 2},
        {PLANT_MICRO_BATCH_MEANS, 6.125},
        {PLANT_LAST_MICRO_BATCH_LOST, 2}, /* without 7 and 14 */
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct trial trial = try_job(&of_seven, (struct trial_spec){.ranks = 2, .faults.plant = wrong[i].plant});
        assert_near(trial.gradient[0], wrong[i].gradient, 1e-5);
        assert_near(trial.after[0], -wrong[i].gradient, 1e-5);
        assert_near(trial.steps[0].weight, 7, 0);
        trial_free(&trial);
    }
}

/* (1 + 2·3)/3, and the masked 8 beside it */
static void padding_that_counts_adds_to_the_gradient(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "weight,g0\n1,1\n0,8\n2,3\n", .global = 3, .micro = 3};
    for (scenario.micro = 2; scenario.micro <= 3; scenario.micro++) {
        struct trial trial = try_job(&scenario, (struct trial_spec){.faults.plant = PLANT_PADDING_COUNTED});
        assert_near(trial.gradient[0], 5, 1e-6);
        trial_free(&trial);
        trial = try_job(&scenario, (struct trial_spec){0});
        assert_near(trial.gradient[0], 7.0 / 3, 1e-6);
        trial_free(&trial);
    }
}

/* 2048 + 1, between which fp16 has no number */
static void a_rounded_accumulator_loses_what_fp16_cannot_hold(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "g0\n4096\n2\n", .global = 2, .compute = FP16, .scale = 1};
    struct trial trial = try_job(&scenario, (struct trial_spec){0});
    assert_near(trial.gradient[0], 2049, 0);
    trial_free(&trial);
    trial = try_job(&scenario, (struct trial_spec){.faults.plant = PLANT_ACCUMULATOR_ROUNDED});
    assert_near(trial.gradient[0], 2048, 0);
    trial_free(&trial);
}

static void a_reduction_per_micro_batch_shows_in_the_count_alone(void **state)
{
    (void)state;
    struct scenario scenario = of_seven;
    scenario.micro = 3; /* two micro-batches of rank 0, one of rank 1 */
    struct trial trial =
        try_job(&scenario, (struct trial_spec){.ranks = 2, .faults.plant = PLANT_REDUCED_PER_MICRO_BATCH});
    assert_near(trial.gradient[0], 5, 1e-5);
    assert_int_equal(trial.steps[0].reduce_scatters, 3);
    trial_free(&trial);
}

/* 5, then 5 more on top of it */
static void gradients_that_are_kept_are_added_to(void **state)
{
    (void)state;
    struct trial_spec spec = {.ranks = 2, .steps = 2, .faults.plant = PLANT_GRADIENTS_KEPT};
    struct trial trial = try_job(&of_seven, spec);
    assert_near(trial.gradient[0], 5, 1e-5);
    assert_near(trial.after[0], -15, 1e-5);
    assert_false(trial.steps[0].gradients_cleared);
    trial_free(&trial);
    struct scenario two = {.csv = "g0\n2\n"}; /* three of whose four bytes are 0 */
    trial = try_job(&two, (struct trial_spec){.faults.plant = PLANT_GRADIENTS_KEPT});
    assert_false(trial.steps[0].gradients_cleared);
    trial_free(&trial);
}

/* S = 8, gradient 5 */
static void the_update_shows_how_often_it_was_unscaled(void **state)
{
    (void)state;
    static const struct {
        enum plant plant;
        double after;
    } wrong[] = {{PLANT_NOTHING, -5}, {PLANT_NOT_UNSCALED, -40}, {PLANT_UNSCALED_TWICE, -0.625}};
    struct scenario scenario = of_seven;
    scenario.compute = FP16;
    scenario.scale = 8;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct trial trial = try_job(&scenario, (struct trial_spec){.ranks = 2, .faults.plant = wrong[i].plant});
        assert_near(trial.gradient[0], 5, 0.01);
        assert_near(trial.after[0] / wrong[i].after, 1, 1e-3);
        assert_near(trial.steps[0].grad_norm, 5, 0.01);
        trial_free(&trial);
    }
}

/* The second element has no part in the micro-batch that overflows. */
static const char *const half_overflows = "g0,g1\n1,0\n3,4\n";

static void a_skip_that_applies_changes_parameters(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = half_overflows, .size = 2, .global = 2, .compute = FP16, .scale = 8};
    struct trial_spec spec = {.ranks = 2,
                              .faults = {.plant = PLANT_SKIP_APPLIES, .overflow_at = {.step = 1, .micro_batch = 0}}};
    struct trial trial = try_job(&scenario, spec);
    assert_int_equal(trial.steps[0].verdict, VERDICT_IS_SKIP);
    assert_true(trial.steps[0].bytes_changed > 0);
    assert_true(!isfinite(trial.after[0]));
    assert_near(trial.after[1], -2, 1e-3);
    trial_free(&trial);
}

static void a_rank_that_skips_alone_leaves_the_others_their_update(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = half_overflows, .size = 2, .global = 2, .compute = FP16, .scale = 8};
    struct trial_spec spec = {.ranks = 2,
                              .faults = {.plant = PLANT_SKIPS_ALONE, .overflow_at = {.step = 1, .micro_batch = 0}}};
    struct trial trial = try_job(&scenario, spec);
    assert_int_equal(trial.steps[0].verdict, VERDICT_IS_SKIP);
    assert_true(trial.steps[0].bytes_changed > 0);
    assert_near(trial.after[0], 0, 0);
    assert_near(trial.after[1], -2, 1e-3);
    trial_free(&trial);
}

/* AdamW's first update is lr; with the correction of t = 2 it is lr·(0.1/0.19)/√(0.001/0.001999). */
static void a_skip_that_moves_t_weakens_the_correction(void **state)
{
    (void)state;
    struct scenario scenario = of_seven;
    scenario.adamw = true;
    struct trial_spec spec = {.ranks = 2, .steps = 2, .faults.overflow_at = {.step = 1, .micro_batch = 3}};
    struct trial trial = try_job(&scenario, spec);
    assert_near(trial.after[0], -1, 1e-6);
    trial_free(&trial);
    spec.faults.plant = PLANT_SKIP_MOVES_T;
    trial = try_job(&scenario, spec);
    assert_near(trial.after[0], -0.744136, 1e-5);
    trial_free(&trial);
}

/* One bit of one rank, in a step that makes no update. */
static void a_write_inside_the_window_shows_in_the_bytes(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "weight,g0\n1,1\n1,1\n0,1\n0,1\n", .global = 2, .initial = {3}};
    struct trial trial = try_job(&scenario, (struct trial_spec){.ranks = 2, .steps = 2});
    assert_int_equal(trial.steps[1].verdict, VERDICT_IS_EMPTY);
    assert_int_equal(trial.steps[1].bytes_changed, 0);
    trial_free(&trial);
    struct trial_spec spec = {.ranks = 2, .steps = 2, .faults = {.parameter_write_at_step = 2, .rank = 1}};
    trial = try_job(&scenario, spec);
    assert_int_equal(trial.steps[1].bytes_changed, 1);
    trial_free(&trial);
}

/* --- faults of whoever decides ------------------------------------------------------------------------------- */

static void clipping_scaled_gradients_clips_too_much(void **state)
{
    (void)state;
    struct scenario scenario = of_seven;
    scenario.compute = FP16;
    scenario.scale = 8;
    scenario.clip = 1;
    struct trial trial = try_job(&scenario, (struct trial_spec){.decision_fault = DECISION_CLIPS_SCALED});
    assert_near(trial.steps[0].clip_coefficient, 1.0 / 40, 1e-4);
    assert_near(trial.steps[0].grad_norm_clipped, 0.125, 1e-3);
    assert_near(trial.after[0], -0.125, 1e-3);
    trial_free(&trial);
}

/* 3 of W = 2, then 20/4; or 20/2 */
static void a_stale_weight_divides_by_the_step_before(void **state)
{
    (void)state;
    struct scenario scenario = {.csv = "weight,g0\n1,2\n1,4\n1,8\n3,4\n", .global = 2};
    struct trial trial = try_job(&scenario, (struct trial_spec){.ranks = 2, .steps = 2});
    assert_near(trial.after[0], -8, 1e-5);
    trial_free(&trial);
    struct trial_spec spec = {.ranks = 2, .steps = 2, .decision_fault = DECISION_STALE_WEIGHT};
    trial = try_job(&scenario, spec);
    assert_near(trial.after[0], -13, 1e-5);
    trial_free(&trial);
}

static void grow_at_once(struct play *play)
{
    play->precision.loss_scale->interval = 1;
}

/* S grows from 8 to 16. */
static void the_scale_after_the_update_halves_it(void **state)
{
    (void)state;
    struct scenario scenario = of_seven;
    scenario.compute = FP16;
    scenario.scale = 8;
    scenario.adjust = grow_at_once;
    struct trial trial = try_job(&scenario, (struct trial_spec){.decision_fault = DECISION_NEW_SCALE});
    assert_near(trial.after[0], -2.5, 0.01);
    assert_near(trial.steps[0].clip_coefficient, 1, 0);
    assert_near(trial.steps[0].loss_scale_next, 16, 0);
    trial_free(&trial);
}

static void warm_up(struct play *play)
{
    play->schedule.warmup = 4;
}

static void a_schedule_that_moves_on_a_skip_is_a_step_ahead(void **state)
{
    (void)state;
    struct scenario scenario = of_seven;
    scenario.adjust = warm_up;
    struct trial_spec spec = {.ranks = 2, .steps = 3};
    struct trial undisturbed = try_job(&scenario, spec);
    spec.faults.overflow_at.step = 1;
    struct trial skipped = try_job(&scenario, spec);
    spec.decision_fault = DECISION_SCHEDULE_ON_SKIP;
    struct trial wrong = try_job(&scenario, spec);
    const double *rates[] = {&undisturbed.steps[0].lr, &undisturbed.steps[1].lr};
    assert_true(*rates[1] > *rates[0]);
    assert_near(skipped.steps[1].lr, *rates[0], 0);
    assert_near(wrong.steps[1].lr, *rates[1], 0);
    assert_int_equal(skipped.steps[2].scheduler_steps, 2);
    assert_int_equal(wrong.steps[2].scheduler_steps, 3);
    trial_free(&undisturbed);
    trial_free(&skipped);
    trial_free(&wrong);
}

static void a_scale_that_falls_for_every_rank_falls_too_far(void **state)
{
    (void)state;
    struct scenario scenario = of_seven;
    scenario.compute = FP16;
    scenario.scale = 64;
    struct trial_spec spec = {
        .ranks = 3, .steps = 2, .faults.overflow_at.step = 1, .decision_fault = DECISION_BACKS_OFF_PER_RANK};
    struct trial trial = try_job(&scenario, spec);
    assert_near(trial.steps[0].loss_scale_next, 8, 0);
    assert_near(trial.steps[1].loss_scale, 8, 0);
    assert_near(trial.steps[1].loss_scale_next, 8, 0);
    assert_near(trial.after[0], -5, 0.01);
    trial_free(&trial);
}

/* --- trials that cannot be run ------------------------------------------------------------------------------- */

static void expect_error(const struct scenario *scenario, struct trial_spec spec, enum status status, const char *words)
{
    struct trial_job *job = trial_job(scenario);
    struct trial trial = {.parameters = 1};
    struct error error;
    spec.job = &job->play.job;
    assert_int_equal(trial_run(&trial, &spec, &error), -(int)status);
    assert_int_equal(error.status, status);
    if (!strstr(error.text, words)) fail_msg("\"%s\" lacks \"%s\"", error.text, words);
    assert_true(trial.parameters == 0 && !trial.gradient && !trial.before && !trial.after);
    trial_job_free(job);
}

static void lose_data(struct play *play)
{
    unlink(play->train);
}

static void a_session_that_cannot_open_ends_the_trial(void **state)
{
    (void)state;
    struct scenario scenario = of_seven;
    scenario.adjust = lose_data;
    for (uint32_t ranks = 1; ranks <= 3; ranks++)
        expect_error(&scenario, (struct trial_spec){.ranks = ranks, .steps = 1}, STATUS_MISSING, "train.csv");
}

static void the_reference_is_for_fp64_alone(void **state)
{
    (void)state;
    expect_error(&of_seven, (struct trial_spec){.ranks = 2, .steps = 1, .reference = true}, STATUS_INTERNAL,
                 "the reference kernels are for fp64, not fp32");
}

static void stop_at_once(struct play *play)
{
    play->precision.nonfinite_stop_after = 1;
}

static void numerics_that_end_a_job_end_its_trial(void **state)
{
    (void)state;
    struct scenario scenario = of_seven;
    scenario.adjust = stop_at_once;
    expect_error(&scenario, (struct trial_spec){.ranks = 2, .steps = 3, .faults.overflow_at.step = 2}, STATUS_NUMERICS,
                 "step 2: ");
}

static void too_many_steps_or_none_are_refused(void **state)
{
    (void)state;
    expect_error(&of_seven, (struct trial_spec){.ranks = 1, .steps = TRIAL_STEPS_MAX + 1}, STATUS_INTERNAL, "9 steps");
    expect_error(&of_seven, (struct trial_spec){.ranks = 1}, STATUS_INTERNAL, "0 steps");
    expect_error(&of_seven, (struct trial_spec){.steps = 1}, STATUS_INTERNAL, "0 ranks");
}

static void bad_data_on_one_rank_ends_the_trial_on_all(void **state)
{
    (void)state;
    struct trial_spec spec = {.ranks = 3, .steps = 3, .faults = {.data_error_at_step = 2, .rank = 1}};
    expect_error(&of_seven, spec, STATUS_DATA, "rank 1: ");
}

/* The others are in a collective call that it does not come to. */
static void a_rank_that_goes_astray_leaves_nobody_waiting(void **state)
{
    (void)state;
    struct trial_spec spec = {.ranks = 3, .steps = 3, .faults = {.memory_lost_at_step = 2, .rank = 2}};
    expect_error(&of_seven, spec, STATUS_INTERNAL, "rank 2: out of memory, as planted");
    spec.ranks = 1;
    spec.faults.rank = 0;
    expect_error(&of_seven, spec, STATUS_INTERNAL, "out of memory, as planted");
    spec = (struct trial_spec){.ranks = 3, .steps = 3, .faults = {.reduction_missed_at_step = 2, .rank = 1}};
    expect_error(
        &of_seven, spec, STATUS_INTERNAL,
        "rank 1 calls a broadcast where rank 0 calls a reduction: all ranks must make the same collective calls");
    spec.ranks = 2; /* no majority */
    spec.faults.rank = 0;
    expect_error(&of_seven, spec, STATUS_INTERNAL, "rank 1 calls a reduction where rank 0 calls a broadcast");
}

static void a_window_that_is_written_into_fails_the_self_check(void **state)
{
    (void)state;
    struct trial_spec spec = {
        .ranks = 2, .steps = 2, .faults = {.parameter_write_at_step = 2, .rank = 1, .self_check = true}};
    struct scenario scenario = of_seven;
    scenario.micro = 4;
    expect_error(&scenario, spec, STATUS_INTERNAL, "tensor weight changed inside the accumulation window");
}

/* --- ranks that do not go together --------------------------------------------------------------------------- */

struct party {
    struct comm *comm;
    const struct trial_spec *spec;
    bool failed, speaks;
    int result;
    struct error error;
};

static void *meet_others(void *argument)
{
    struct party *party = argument;
    struct control_local local;
    struct trial_step steps[1];
    struct error why;
    error_set(&why, STATUS_DATA, "is not what it should be");
    int result = control_local_open(&local, party->spec, party->spec->job, party->comm, steps, &party->error);
    Gacc__V1__Hello hello = GACC__V1__HELLO__INIT;
    Gacc__V1__Welcome *welcome = NULL;
    if (!result && party->speaks) {
        result = local.control.hello(&local.control, &hello, &welcome, &party->error);
        why = party->error;
        result = control_local_agree(&local, result, &why, &party->error);
    } else if (!result) {
        result = control_local_agree(&local, party->failed ? -(int)STATUS_DATA : 0, &why, &party->error);
    }
    party->result = result;
    control_local_close(&local);
    return NULL;
}

/* Rank 1 of three has failed; the others agree with it, or speak to it. */
static void expect_all_to_hear(bool failed, bool speaks, int result, const char *words)
{
    struct trial_job *job = trial_job(&of_seven);
    struct trial_spec spec = {.job = &job->play.job, .ranks = 3, .steps = 1};
    struct comm *members[3];
    struct party parties[3];
    void *arguments[3];
    comm_threads_open(members, 3);
    for (uint32_t rank = 0; rank < 3; rank++) {
        parties[rank] = (struct party){
            .comm = members[rank], .spec = &spec, .failed = failed && rank == 1, .speaks = speaks && rank != 1};
        arguments[rank] = &parties[rank];
    }
    run_ranks(3, meet_others, arguments);
    for (uint32_t rank = 0; rank < 3; rank++) {
        assert_int_equal(parties[rank].result, result);
        if (result && !strstr(parties[rank].error.text, words)) fail_msg("%s", parties[rank].error.text);
    }
    comm_threads_close(members, 3);
    trial_job_free(job);
}

static void the_error_of_one_rank_is_everyones(void **state)
{
    (void)state;
    expect_all_to_hear(false, false, 0, "");
    expect_all_to_hear(true, false, -(int)STATUS_DATA, "rank 1: is not what it should be");
    expect_all_to_hear(true, true, -(int)STATUS_DATA, "rank 1: is not what it should be");
    expect_all_to_hear(false, true, -(int)STATUS_INTERNAL, "others with something else");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gradient_is_the_mean_on_any_number_of_ranks),
        cmocka_unit_test(a_trial_on_a_device_tells_the_same_and_the_reference_is_not_on_it),
        cmocka_unit_test(a_linear_model_has_the_gradient_of_the_definition),
        cmocka_unit_test(a_step_is_told_as_the_log_tells_it),
        cmocka_unit_test(a_trial_has_its_steps_however_short_the_job),
        cmocka_unit_test(the_same_trial_gives_the_same_bits),
        cmocka_unit_test(a_reversed_batch_is_added_up_from_its_end),
        cmocka_unit_test(the_reference_kernels_agree_in_fp64),
        cmocka_unit_test(dropout_by_row_depends_on_the_split_and_by_sequence_does_not),
        cmocka_unit_test(an_overflow_anywhere_is_skipped_by_all_and_nothing_changes),
        cmocka_unit_test(each_wrong_average_is_as_wrong_as_it_says),
        cmocka_unit_test(padding_that_counts_adds_to_the_gradient),
        cmocka_unit_test(a_rounded_accumulator_loses_what_fp16_cannot_hold),
        cmocka_unit_test(a_reduction_per_micro_batch_shows_in_the_count_alone),
        cmocka_unit_test(gradients_that_are_kept_are_added_to),
        cmocka_unit_test(the_update_shows_how_often_it_was_unscaled),
        cmocka_unit_test(a_skip_that_applies_changes_parameters),
        cmocka_unit_test(a_rank_that_skips_alone_leaves_the_others_their_update),
        cmocka_unit_test(a_skip_that_moves_t_weakens_the_correction),
        cmocka_unit_test(a_write_inside_the_window_shows_in_the_bytes),
        cmocka_unit_test(clipping_scaled_gradients_clips_too_much),
        cmocka_unit_test(a_stale_weight_divides_by_the_step_before),
        cmocka_unit_test(the_scale_after_the_update_halves_it),
        cmocka_unit_test(a_schedule_that_moves_on_a_skip_is_a_step_ahead),
        cmocka_unit_test(a_scale_that_falls_for_every_rank_falls_too_far),
        cmocka_unit_test(a_session_that_cannot_open_ends_the_trial),
        cmocka_unit_test(the_reference_is_for_fp64_alone),
        cmocka_unit_test(numerics_that_end_a_job_end_its_trial),
        cmocka_unit_test(too_many_steps_or_none_are_refused),
        cmocka_unit_test(bad_data_on_one_rank_ends_the_trial_on_all),
        cmocka_unit_test(a_rank_that_goes_astray_leaves_nobody_waiting),
        cmocka_unit_test(a_window_that_is_written_into_fails_the_self_check),
        cmocka_unit_test(the_error_of_one_rank_is_everyones),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
