/* What the conductor decides from step to step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "tests/unit/conductor_world.h"
#include "tests/unit/histories.h"

#define ATTEMPTS_MOST 512

static const struct twist overflow_on_1 = {.rank = 1, .nonfinite = true, .tensor = "h.3.mlp.c_fc.weight"};
static const struct twist overflow_on_0 = {.rank = 0, .nonfinite = true, .tensor = "weight"};

/* Cases 10-1, 12-1, B3. */
static void an_overflow_on_one_rank_skips_on_all_and_halves_the_scale_once(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP16);
    start(&w);
    static const double used[] = {8, 8, 16, 8, 8, 16};
    for (int attempt = 0; attempt < 6; attempt++) {
        assert_false(w.over);
        assert_true(w.window.scale == used[attempt]);
        const struct step_record *record = step(&w, attempt == 2 ? &overflow_on_1 : NULL);
        assert_true(record->loss_scale == used[attempt]);
        if (attempt != 2) {
            assert_int_equal(w.verdict, GACC__V1__VERDICT__VERDICT_APPLY);
            assert_true(record->grad_norm == 5 && record->grad_norm_scaled == 5 * used[attempt]);
            continue;
        }
        assert_int_equal(w.verdict, GACC__V1__VERDICT__VERDICT_SKIP);
        assert_string_equal(record->reason, "overflow");
        assert_int_equal(record->blame_rank, 1);
        assert_string_equal(record->blame->tensor, "h.3.mlp.c_fc.weight");
        assert_int_equal(record->growth_tracker, 0);
        assert_int_equal(record->counters.skipped_steps, 1);
        assert_int_equal(record->counters.optimizer_steps, 2);
        assert_int_equal(w.record_count, 1); /* the scale explains it: no event */
    }
    assert_true(w.over);
    assert_true(w.records[0].step.loss_scale_next == 16);
    assert_int_equal(w.records[0].step.growth_tracker, 1);
    assert_int_equal(w.records[0].step.counters.scheduler_steps, 5);
    finish(&w, 0);
}

/* Case 08-1. */
static void the_schedule_does_not_move_on_a_skip(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP16);
    w.schedule.warmup = 3;
    start(&w);
    static const double used[] = {0.25, 0.5, 0.5, 0.75, 1};
    for (int attempt = 0; attempt < 5; attempt++) {
        assert_true(w.window.lr == used[attempt]);
        assert_true(step(&w, attempt == 1 ? &overflow_on_1 : NULL)->lr == used[attempt]);
    }
    assert_int_equal(w.window.optimizer_steps, 4);
    step(&w, NULL);
    finish(&w, 0);
}

static void the_schedule_is_as_long_as_the_job_unless_told(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 1, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.schedule.type = GACC__V1__SCHEDULE_TYPE__SCHEDULE_LINEAR;
    w.section.steps = 0;
    w.section.epochs = 2;
    w.sequences = 16; /* 4 steps an epoch: case 08-4's eight */
    start(&w);
    for (int i = 0; i < 8; i++) {
        assert_true(w.window.lr == 1 - i / 8.0);
        step(&w, NULL);
    }
    finish(&w, 0);
}

static bool second_batch(uint64_t epoch, uint64_t position)
{
    (void)epoch;
    return position >= 4 && position < 8;
}

/* A4. */
static void a_step_without_weight_changes_nothing_but_the_count(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP16);
    w.scale.interval = 2;
    w.schedule.warmup = 3;
    w.weightless = second_batch;
    w.section.steps = 2;
    start(&w);
    step(&w, NULL);
    assert_true(w.window.weight == 0);
    assert_int_equal(w.window.micro_batches, 0);
    const struct step_record *record = step(&w, NULL);
    assert_int_equal(w.verdict, GACC__V1__VERDICT__VERDICT_EMPTY);
    assert_int_equal(record->verdict, VERDICT_IS_EMPTY);
    assert_false(record->has_loss);
    assert_int_equal(record->counters.empty_steps, 1);
    assert_int_equal(record->counters.optimizer_steps, 1);
    assert_int_equal(record->growth_tracker, 1);
    assert_true(record->loss_scale == 8 && record->loss_scale_next == 8);
    assert_int_equal(record->counters.tokens_seen, 8);
    assert_true(w.window.lr == 0.5);
    record = step(&w, NULL);
    assert_true(record->loss_scale_next == 16); /* the second finite step */
    finish(&w, 0);
}

static bool always(uint64_t epoch, uint64_t position)
{
    (void)epoch;
    (void)position;
    return true;
}

static void an_epoch_without_any_weight_ends_the_job_with_65(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 1, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.weightless = always;
    w.sequences = 10; /* three steps */
    start(&w);
    step(&w, NULL);
    step(&w, NULL);
    assert_int_equal(w.verdict, GACC__V1__VERDICT__VERDICT_EMPTY);
    assert_false(w.over);
    const struct step_record *record = step(&w, NULL);
    assert_int_equal(w.verdict, GACC__V1__VERDICT__VERDICT_FAIL);
    assert_int_equal(record->counters.empty_steps, 3);
    struct end_record end;
    conductor_end(w.conductor, w.now, &end);
    assert_non_null(strstr(end.reason, "an epoch without any weight"));
    finish(&w, STATUS_DATA);
}

static bool after_the_first_epoch(uint64_t epoch, uint64_t position)
{
    (void)position;
    return epoch > 0;
}

static void each_epoch_needs_weight_of_its_own(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 1, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.weightless = after_the_first_epoch;
    w.sequences = 8;
    start(&w);
    for (int i = 0; i < 4; i++) {
        assert_false(w.over);
        step(&w, NULL);
    }
    finish(&w, STATUS_DATA);
}

/* Cases 03-1, 03-4, 04-1, 05-1, 05-5. */
static void a_job_by_epochs_ends_with_its_data(void **unused)
{
    (void)unused;
    static const struct {
        uint32_t ranks;
        uint64_t sequences, epochs;
        uint32_t global, micro;
        bool drop;
        uint64_t steps;
        double last_weight;
    } jobs[] = {
        {1, 5, 1, 2, 1, false, 3, 1}, {1, 5, 1, 2, 1, true, 2, 2},     {1, 3, 1, 4, 1, false, 1, 3},
        {2, 5, 1, 4, 1, false, 2, 1}, {1, 148, 2, 8, 2, false, 38, 4}, {1, 9, 2, 4, 1, false, 6, 1},
        {1, 9, 2, 4, 1, true, 4, 4},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        struct world w;
        make(&w, jobs[i].ranks, GACC__V1__COMPUTE__COMPUTE_FP32);
        w.section.steps = 0;
        w.section.epochs = jobs[i].epochs;
        w.sequences = jobs[i].sequences;
        w.batch.global = jobs[i].global;
        w.batch.micro = jobs[i].micro;
        w.batch.tail = jobs[i].drop ? GACC__V1__TAIL__TAIL_DROP : GACC__V1__TAIL__TAIL_FLUSH;
        start(&w);
        uint64_t steps = 0;
        while (!w.over) {
            step(&w, NULL);
            steps++;
        }
        assert_int_equal(steps, jobs[i].steps);
        assert_true(w.records[0].step.weight == jobs[i].last_weight);
        struct header_record header;
        conductor_header(w.conductor, &header);
        assert_int_equal(header.total_steps, jobs[i].steps); /* planned = done */
        finish(&w, 0);
    }
}

static void tokens_become_steps_rounded_up(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 1, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.section.steps = 0;
    w.section.tokens = 65;
    w.targets = 8; /* 32 targets a step */
    start(&w);
    for (int i = 0; i < 3; i++) {
        assert_false(w.over);
        step(&w, NULL);
    }
    assert_int_equal(w.records[0].step.counters.tokens_seen, 96);
    finish(&w, 0);
}

/* 10 sequences of 8 targets in batches of 4: epochs of 32, 32, 16; 150 are 80 + 32 + 32 + 6, so a sixth step is needed.
 */
static void a_short_last_batch_counts_for_the_tokens_it_holds(void **unused)
{
    (void)unused;
    static const struct {
        bool drop;
        uint64_t tokens, steps, seen;
    } rows[] = {{false, 150, 6, 160}, {false, 144, 5, 144}, {false, 81, 4, 112}, {false, 80, 3, 80},
                {false, 65, 3, 80},   {true, 150, 5, 160},  {true, 128, 4, 128}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct world w;
        make(&w, 1, GACC__V1__COMPUTE__COMPUTE_FP32);
        w.section.steps = 0;
        w.section.tokens = rows[i].tokens;
        w.batch.tail = rows[i].drop ? GACC__V1__TAIL__TAIL_DROP : GACC__V1__TAIL__TAIL_FLUSH;
        w.targets = 8;
        w.sequences = 10;
        start(&w);
        uint64_t steps = 0;
        for (; !w.over; steps++) step(&w, NULL);
        assert_int_equal(steps, rows[i].steps);
        assert_int_equal(w.records[0].step.counters.tokens_seen, rows[i].seen);
        finish(&w, 0);
    }
}

static void skipped_attempts_come_on_top_of_the_steps(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP16);
    w.section.steps = 1;
    start(&w);
    step(&w, &overflow_on_1);
    assert_false(w.over);
    step(&w, &overflow_on_1);
    assert_false(w.over);
    assert_int_equal(step(&w, NULL)->counters.step, 3);
    finish(&w, 0);
}

/* C4, cases 07-1, 11-5. */
static void without_a_scaler_three_non_finite_steps_in_a_row_end_the_job_with_76(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_BF16);
    start(&w);
    step(&w, &overflow_on_1);
    assert_int_equal(w.records[1].type, RECORD_EVENT);
    assert_string_equal(w.records[1].event.event, "nonfinite");
    assert_non_null(strstr(w.records[1].event.text, "rank 1, tensor h.3.mlp.c_fc.weight"));
    step(&w, &overflow_on_1);
    step(&w, NULL); /* in a row: begins anew */
    step(&w, &overflow_on_1);
    const struct step_record *record = step(&w, &overflow_on_1);
    assert_int_equal(w.verdict, GACC__V1__VERDICT__VERDICT_SKIP);
    assert_false(record->has_scaler);
    assert_string_equal(record->reason, "nonfinite");
    record = step(&w, &overflow_on_0);
    assert_int_equal(w.verdict, GACC__V1__VERDICT__VERDICT_FAIL);
    assert_int_equal(record->verdict, VERDICT_IS_FAIL);
    assert_int_equal(record->counters.skipped_steps, 5);
    assert_int_equal(record->counters.optimizer_steps, 1);
    struct end_record end;
    conductor_end(w.conductor, w.now, &end);
    assert_string_equal(end.reason, "step 6: the gradient was not finite in 3 steps in a row "
                                    "(precision.nonfinite_stop_after): rank 0, tensor weight, micro-batch 3, step 6");
    finish(&w, STATUS_NUMERICS);
}

/* Case 10-3; ranks that leave on a FAIL without a word about their step. */
static void permanent_overflow_lies_at_the_minimum_and_ends_with_76(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP16);
    w.scale.initial = 16;
    w.scale.minimum = 1;
    w.scale.stop_after = 3;
    start(&w);
    static const double used[] = {16, 8, 4, 2, 1, 1, 1};
    for (int attempt = 0; attempt < 6; attempt++) {
        assert_true(w.window.scale == used[attempt]);
        step(&w, &overflow_on_1);
        assert_false(w.over);
        bool told = w.record_count == 2 && strcmp(w.records[1].event.event, "scale_at_minimum") == 0;
        assert_int_equal(told, attempt == 3); /* B8, once */
    }
    report_all(&w, &overflow_on_1);
    assert_int_equal(w.verdict, GACC__V1__VERDICT__VERDICT_FAIL);
    struct end_record end;
    conductor_end(w.conductor, w.now, &end);
    assert_string_equal(end.reason,
                        "step 7: the gradient is still not finite at loss scale 1, which can fall no further "
                        "(3 in a row there): rank 1, tensor h.3.mlp.c_fc.weight, micro-batch 3, step 6");
    struct error error = {0};
    for (uint32_t r = 0; r < 2; r++) {
        Gacc__V1__Finished finished = GACC__V1__FINISHED__INIT;
        take(conductor_finished(w.conductor, r, &finished, w.now, &error), r == 1, &error);
    }
    drain(&w);
    assert_int_equal(w.record_count, 1);
    assert_int_equal(w.records[0].step.verdict, VERDICT_IS_FAIL);
    assert_int_equal(w.records[0].step.counters.skipped_steps, 7);
    conductor_close(w.conductor);
}

static void a_set_of_one_row_is_told_once(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    step(&w, NULL);
    assert_int_equal(w.record_count, 1);
    w.single_value = true;
    step(&w, NULL);
    assert_int_equal(w.record_count, 2);
    assert_string_equal(w.records[1].event.event, "single_row");
    assert_int_equal(w.records[1].event.step, 2);
    step(&w, NULL);
    assert_int_equal(w.record_count, 1);
    conductor_close(w.conductor);
}

static void an_overflow_of_the_sum_has_no_culprit_and_says_so(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP16);
    start(&w);
    const struct twist nobody = {.rank = 1, .nonfinite = true};
    assert_null(step(&w, &nobody)->blame);
    assert_int_equal(w.record_count, 2);
    assert_string_equal(w.records[1].event.event, "sum_overflow");
    conductor_close(w.conductor);
}

/* Case 26-5. */
static void evaluation_comes_at_multiples_and_once_after_the_last_step(void **unused)
{
    (void)unused;
    static const struct {
        uint64_t steps;
        const char *evaluates; /* per attempt; the second is skipped */
    } jobs[] = {{5, "..x.xx"}, {6, "..x.x.x"}, {1, "x"}};
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        struct world w;
        make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP16);
        w.section.steps = jobs[i].steps;
        w.evaluation.every = 2;
        start(&w);
        size_t attempt = 0;
        for (; !w.over; attempt++) {
            step(&w, attempt == 1 ? &overflow_on_1 : NULL);
            assert_int_equal(w.evaluate, jobs[i].evaluates[attempt] == 'x');
            assert_int_equal(w.record_count, w.evaluate ? 2 : 1);
            if (!w.evaluate) continue;
            assert_int_equal(w.records[1].type, RECORD_EVAL);
            assert_true(w.records[1].eval.loss == 3);
            assert_true(w.records[1].eval.weight == 3);
            assert_int_equal(w.records[1].eval.sequences, 10);
        }
        assert_int_equal(attempt, strlen(jobs[i].evaluates));
        assert_true(conductor_status(w.conductor, w.now)->has_validation);
        finish(&w, 0);
    }
}

static void a_skip_at_the_end_of_the_data_does_not_evaluate_again(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP16);
    w.section.steps = 0;
    w.section.epochs = 1;
    w.sequences = 12;
    w.evaluation.every = 2;
    start(&w);
    step(&w, NULL);
    step(&w, NULL);
    assert_true(w.evaluate);
    step(&w, &overflow_on_1);
    assert_true(w.over);
    assert_false(w.evaluate);
    finish(&w, 0);
}

static void an_evaluation_that_a_rank_could_not_make_leaves_no_record(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.evaluation.every = 1;
    w.mute = 1;
    start(&w);
    step(&w, NULL);
    assert_true(w.evaluate);
    assert_int_equal(w.record_count, 1);
    conductor_close(w.conductor);
}

static void of_several_culprits_the_lowest_rank_is_told(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP16);
    start(&w);
    for (uint32_t first = 0; first < 2; first++) {
        uint64_t number = w.plan.step;
        report_all(&w, &overflow_on_1);
        struct error error = {0};
        for (uint32_t i = 0; i < 2; i++) {
            Gacc__V1__StepDone done = GACC__V1__STEP_DONE__INIT;
            Gacc__V1__Blame blame = GACC__V1__BLAME__INIT;
            uint32_t rank = first ^ i;
            done.step = number;
            blame.tensor = (char *)(rank == 0 ? "low" : "high");
            done.blame = &blame;
            take(conductor_step_done(w.conductor, rank, &done, w.now, &error), i == 1, &error);
        }
        drain(&w);
        assert_int_equal(w.records[0].step.blame_rank, 0);
        assert_string_equal(w.records[0].step.blame->tensor, "low");
    }
    conductor_close(w.conductor);
}

static void the_record_tells_what_the_ranks_measured(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 3, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.batch.global = 13;
    w.batch.micro = 2; /* M = 7 */
    w.targets = 8;
    w.optimizer.clip_norm = 1;
    start(&w);
    const Gacc__V1__Status *before = conductor_status(w.conductor, w.now);
    assert_true(isnan(before->loss) && isnan(before->eta_seconds)); /* not 0: not known yet */
    assert_true(w.window.weight == 104 && w.window.micro_batches == 7 && w.window.scale == 1);
    w.now += 2;
    const struct step_record *record = step(&w, NULL);
    assert_true(w.coefficient == 1 / (5 + 1e-6));
    assert_true(record->clip_coefficient == w.coefficient);
    assert_true(record->loss == 2 && record->weight == 104);
    assert_int_equal(record->micro_batches, 7);
    assert_int_equal(record->tokens, 104);
    assert_int_equal(record->reduce_scatters, 1);
    assert_int_equal(record->reduce_scatter_bytes, 102);
    assert_int_equal(record->all_gathers, 1);
    static const uint32_t shares[] = {3, 2, 2};
    assert_memory_equal(record->accumulate, shares, sizeof shares);
    assert_true(record->seconds.step == 0.75 && record->seconds.compute == 0.5);
    assert_true(record->seconds.since_last_step == 2.5);
    w.reductions = 3;
    assert_int_equal(step(&w, NULL)->reduce_scatters, 3);
    w.reductions = 1;
    record = step(&w, NULL);
    assert_int_equal(record->reduce_scatters, 1);
    assert_int_equal(record->reduce_scatter_bytes, 102);
    assert_true(record->seconds.since_last_step == 0.5);

    const Gacc__V1__Status *status = conductor_status(w.conductor, w.now + 1);
    assert_string_equal(status->phase, "training");
    assert_int_equal(status->optimizer_steps, 3);
    assert_int_equal(status->total_steps, 5);
    assert_true(fabs(status->eta_seconds - 2 * 2.12) < 1e-9); /* 2.5 s, then smoothed with 0.5 s twice */
    assert_true(fabs(status->tokens_per_second - 104 / 2.12) < 1e-9);
    assert_int_equal(status->n_ranks, 3);
    assert_true(status->ranks[2]->seconds_since_heard == 1);
    assert_int_equal(status->ranks[2]->pid, 1002);
    conductor_close(w.conductor);
}

static void more_than_ten_skips_in_200_steps_are_an_event(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP16);
    w.scale.initial = 65536;
    start(&w);
    for (int i = 0; i < 10; i++) {
        step(&w, &overflow_on_1);
        assert_int_equal(w.record_count, 1);
    }
    step(&w, &overflow_on_1);
    assert_int_equal(w.record_count, 2);
    assert_string_equal(w.records[1].event.event, "skip_rate");
    conductor_close(w.conductor);
}

static bool sparse(uint64_t epoch, uint64_t position)
{
    return (epoch * 31 + position * 7) % 3 != 0;
}

/* Whatever happens to the steps: windows match what ranks run, counters add up, each sequence is planned once, S is
 * shared and moves only with verdicts, the job ends exactly when its steps are applied. */
static void any_history_keeps_the_books(void **unused)
{
    (void)unused;
    uint64_t random = 7;
    for (int history = 0; history < HISTORIES; history++) {
        struct world w;
        bool fp16 = random_chance(&random, 0.5);
        make(&w, (uint32_t)random_between(&random, 1, RANKS_MOST),
             fp16 ? GACC__V1__COMPUTE__COMPUTE_FP16 : GACC__V1__COMPUTE__COMPUTE_FP32);
        w.section.steps = random_between(&random, 1, 6);
        w.sequences = random_between(&random, 8, 30);
        w.batch.micro = (uint32_t)random_between(&random, 1, 2);
        w.batch.global = w.batch.micro * (uint32_t)random_between(&random, w.ranks, 6);
        w.weightless = random_chance(&random, 0.5) ? sparse : NULL;
        w.evaluation.every = random_between(&random, 0, 3);
        w.precision.nonfinite_stop_after = 0;
        start(&w);
        uint64_t applied = 0, skipped = 0, empty = 0, attempts = 0, epoch = 0, at = 0;
        double scale = fp16 ? 8 : 1;
        while (!w.over && attempts < ATTEMPTS_MOST) {
            double weight = 0, part;
            uint32_t micro_batches = 0, count;
            for (uint32_t r = 0; r < w.ranks; r++) {
                weigh(&w, r, false, &part, &count);
                weight += part;
                micro_batches += count;
            }
            assert_true(w.window.weight == weight);
            assert_int_equal(w.window.micro_batches, micro_batches);
            assert_int_equal(w.window.optimizer_steps, applied);
            assert_true(w.window.scale == scale);
            bool same_epoch = w.plan.epoch == epoch;
            assert_true(same_epoch || (w.plan.epoch == epoch + 1 && at == w.sequences));
            assert_int_equal(w.plan.first, same_epoch ? at : 0);
            epoch = w.plan.epoch;
            at = w.plan.first + w.plan.count;
            assert_int_equal(w.next_plan.step, w.plan.step + 1); /* as long as steps may be skipped */

            struct twist twist = {.rank = (uint32_t)random_between(&random, 0, w.ranks - 1), .nonfinite = true};
            bool skip = random_chance(&random, 0.2);
            const struct step_record *record = step(&w, skip ? &twist : NULL);
            attempts++;
            if (weight == 0)
                empty++;
            else if (skip)
                skipped++;
            else
                applied++;
            assert_int_equal(record->verdict, weight == 0 ? VERDICT_IS_EMPTY
                                              : skip      ? VERDICT_IS_SKIP
                                                          : VERDICT_IS_APPLY);
            assert_int_equal(record->counters.step, attempts);
            assert_int_equal(record->counters.optimizer_steps, applied);
            assert_int_equal(record->counters.scheduler_steps, applied);
            assert_int_equal(record->counters.skipped_steps, skipped);
            assert_int_equal(record->counters.empty_steps, empty);
            if (weight > 0) assert_true(record->loss == 2);
            if (fp16) {
                if (record->verdict == VERDICT_IS_SKIP) assert_true(record->loss_scale_next == scale / 2);
                if (record->verdict == VERDICT_IS_EMPTY) assert_true(record->loss_scale_next == scale);
                if (record->verdict == VERDICT_IS_APPLY)
                    assert_true(record->loss_scale_next == scale || record->loss_scale_next == 2 * scale);
                scale = record->loss_scale_next;
            }
            assert_int_equal(w.over, applied == w.section.steps);
            if (w.evaluation.every)
                assert_int_equal(w.evaluate,
                                 record->verdict == VERDICT_IS_APPLY && (applied % w.evaluation.every == 0 || w.over));
        }
        finish(&w, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_overflow_on_one_rank_skips_on_all_and_halves_the_scale_once),
        cmocka_unit_test(the_schedule_does_not_move_on_a_skip),
        cmocka_unit_test(the_schedule_is_as_long_as_the_job_unless_told),
        cmocka_unit_test(a_step_without_weight_changes_nothing_but_the_count),
        cmocka_unit_test(an_epoch_without_any_weight_ends_the_job_with_65),
        cmocka_unit_test(each_epoch_needs_weight_of_its_own),
        cmocka_unit_test(a_job_by_epochs_ends_with_its_data),
        cmocka_unit_test(tokens_become_steps_rounded_up),
        cmocka_unit_test(a_short_last_batch_counts_for_the_tokens_it_holds),
        cmocka_unit_test(skipped_attempts_come_on_top_of_the_steps),
        cmocka_unit_test(without_a_scaler_three_non_finite_steps_in_a_row_end_the_job_with_76),
        cmocka_unit_test(permanent_overflow_lies_at_the_minimum_and_ends_with_76),
        cmocka_unit_test(an_overflow_of_the_sum_has_no_culprit_and_says_so),
        cmocka_unit_test(evaluation_comes_at_multiples_and_once_after_the_last_step),
        cmocka_unit_test(a_skip_at_the_end_of_the_data_does_not_evaluate_again),
        cmocka_unit_test(an_evaluation_that_a_rank_could_not_make_leaves_no_record),
        cmocka_unit_test(of_several_culprits_the_lowest_rank_is_told),
        cmocka_unit_test(the_record_tells_what_the_ranks_measured),
        cmocka_unit_test(more_than_ten_skips_in_200_steps_are_an_event),
        cmocka_unit_test(any_history_keeps_the_books),
        cmocka_unit_test(a_set_of_one_row_is_told_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
