/* What the conductor does when a rank fails, is lost, or says what cannot be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "daemon/coordinator/job_rules.h"
#include "tests/unit/conductor_world.h"

/* Case 39-3, the decision. */
static void a_local_error_fails_the_step_on_all_ranks(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 3, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    step(&w, NULL);
    const struct twist unreadable = {.rank = 2, .failure = "train.bin: cannot read"};
    report_all(&w, &unreadable);
    assert_int_equal(w.verdict, GACC__V1__VERDICT__VERDICT_FAIL);
    done_all(&w, 2, NULL);
    assert_int_equal(w.records[0].step.verdict, VERDICT_IS_FAIL);
    assert_string_equal(w.records[0].step.reason, "failure");
    assert_int_equal(w.records[0].step.counters.optimizer_steps, 1);
    assert_int_equal(w.records[0].step.counters.tokens_seen, 4);
    struct end_record end;
    conductor_end(w.conductor, w.now, &end);
    assert_string_equal(end.reason, "rank 2: train.bin: cannot read");
    finish(&w, STATUS_DATA);
}

/* Case 12-4. */
static void a_rank_with_other_parameters_is_named_before_anything_is_made_of_the_step(void **unused)
{
    (void)unused;
    static const struct {
        uint32_t ranks, odd;
        const char *reason;
    } cases[] = {
        {2, 1, "rank 1: step 2: the parameters differ from those of rank 0 (control.self_check)"},
        {2, 0, "rank 1: step 2: the parameters differ from those of rank 0 (control.self_check)"}, /* who knows */
        {3, 0, "rank 0: step 2: the parameters differ from those of rank 1 (control.self_check)"},
        {3, 1, "rank 1: step 2: the parameters differ from those of rank 0 (control.self_check)"},
        {4, 3, "rank 3: step 2: the parameters differ from those of rank 0 (control.self_check)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct world w;
        make(&w, cases[i].ranks, GACC__V1__COMPUTE__COMPUTE_FP32);
        start(&w);
        step(&w, NULL);
        const struct twist other = {.rank = cases[i].odd, .parameters_checksum = 78};
        report_all(&w, &other);
        assert_int_equal(w.verdict, GACC__V1__VERDICT__VERDICT_FAIL);
        done_all(&w, 2, NULL);
        struct end_record end;
        conductor_end(w.conductor, w.now, &end);
        assert_string_equal(end.reason, cases[i].reason);
        assert_int_equal(w.records[0].step.counters.optimizer_steps, 1);
        finish(&w, STATUS_INTERNAL);
    }
}

/* Before the first step there is nothing to save; a launcher that is gone ends its ranks; nobody asks twice. */
static void an_interruption_that_leaves_no_time_ends_the_job_at_once(void **unused)
{
    (void)unused;
    static const struct {
        bool has_begun;
        const char *signal;
        uint32_t times;
        enum status status;
        const char *reason;
    } cases[] = {
        {false, "SIGTERM", 1, STATUS_AGAIN, "rank 1: interrupted by SIGTERM before the first step"},
        {false, "its launcher's end", 0, STATUS_INTERNAL,
         "rank 1: interrupted by its launcher's end before the first step"},
        {true, "SIGTERM", 2, STATUS_INTERNAL, "rank 1: interrupted by SIGTERM, a second time, at step 2"},
        {true, "its launcher's end", 0, STATUS_INTERNAL, "rank 1: interrupted by its launcher's end at step 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct world w;
        make(&w, 3, GACC__V1__COMPUTE__COMPUTE_FP32);
        struct error error = {0};
        if (cases[i].has_begun) {
            start(&w);
            step(&w, NULL);
        } else {
            open_conductor(&w);
        }
        Gacc__V1__Interrupted interrupted = GACC__V1__INTERRUPTED__INIT;
        interrupted.signal = (char *)cases[i].signal;
        interrupted.times = cases[i].times;
        assert_int_equal(conductor_interrupted(w.conductor, "rank 1", &interrupted, &error), -(int)cases[i].status);
        assert_string_equal(error.text, cases[i].reason);
        interrupted.signal = (char *)"SIGINT"; /* mpirun signals all */
        assert_int_equal(conductor_interrupted(w.conductor, "rank 2", &interrupted, &error), 0);
        struct end_record end;
        conductor_end(w.conductor, w.now, &end);
        assert_string_equal(end.reason, cases[i].reason);
        assert_int_equal(end.exit, cases[i].status);
        conductor_close(w.conductor);
    }
}

static void what_rank_0_said_itself_no_other_rank_repeats(void **unused)
{
    (void)unused;
    for (int said = 0; said < 2; said++) {
        struct world w;
        make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
        struct error error = {0}, words;
        open_conductor(&w);
        Gacc__V1__Hello hello = hello_of(&w, 1);
        take(conductor_hello(w.conductor, 1, &hello, w.now, &error), 0, &error);
        error_set(&words, STATUS_INTERNAL, "rank 0: too many open files");
        (said ? conductor_fail_said : conductor_fail)(w.conductor, &words);
        assert_true(conductor_lost(w.conductor, 0, "its process ended"));
        const Gacc__V1__Farewell *farewell = conductor_farewell(w.conductor, 1);
        assert_string_equal(farewell->failure->text, "rank 0: too many open files");
        assert_int_equal(farewell->print, !said);
        conductor_close(w.conductor);
    }
}

static void of_several_failing_ranks_the_lowest_is_told(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 3, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    struct error error = {0};
    static const uint32_t arrival[] = {1, 2, 0};
    for (int i = 0; i < 3; i++) {
        Gacc__V1__Report report = report_of(&w, arrival[i]);
        Gacc__V1__Failure failure = GACC__V1__FAILURE__INIT;
        failure.status = STATUS_IO + (arrival[i] == 1 ? 0U : 4U);
        failure.text = (char *)"bad";
        if (arrival[i] != 0) report.failure = &failure;
        take(conductor_report(w.conductor, arrival[i], &report, w.now, &error), i == 2, &error);
    }
    decide(&w);
    struct end_record end;
    conductor_end(w.conductor, w.now, &end);
    assert_string_equal(end.reason, "rank 1: bad");
    assert_int_equal(end.exit, STATUS_IO);
    conductor_close(w.conductor);
}

static void a_failure_before_the_first_step_ends_the_job_without_a_record(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 1, GACC__V1__COMPUTE__COMPUTE_FP32);
    struct error error = {0};
    open_conductor(&w);
    Gacc__V1__Hello hello = hello_of(&w, 0);
    take(conductor_hello(w.conductor, 0, &hello, w.now, &error), 1, &error);
    conductor_welcome(w.conductor, w.now);
    const struct twist unreadable = {.rank = 0, .failure = "no"};
    report_all(&w, &unreadable);
    drain(&w);
    assert_int_equal(w.record_count, 0);
    finish(&w, STATUS_DATA);
}

static void a_failure_of_the_coordinator_ends_the_job_with_the_next_decision(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    step(&w, NULL);
    struct error full;
    error_set(&full, STATUS_IO, "log.jsonl: cannot write");
    conductor_fail(w.conductor, &full);
    struct error later;
    error_set(&later, STATUS_INTERNAL, "a consequence");
    conductor_fail(w.conductor, &later);
    assert_int_equal(step(&w, NULL)->counters.optimizer_steps, 1);
    assert_int_equal(w.verdict, GACC__V1__VERDICT__VERDICT_FAIL);
    finish(&w, STATUS_IO);
}

static void a_result_that_cannot_be_written_fails_the_job_for_all(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.section.steps = 1;
    start(&w);
    step(&w, NULL);
    struct error error = {0};
    Gacc__V1__Finished finished = GACC__V1__FINISHED__INIT;
    take(conductor_finished(w.conductor, 0, &finished, w.now, &error), 0, &error);
    Gacc__V1__Failure failure = GACC__V1__FAILURE__INIT;
    failure.status = STATUS_IO;
    failure.text = (char *)"final/model.safetensors: no space";
    finished.failure = &failure;
    take(conductor_finished(w.conductor, 1, &finished, w.now, &error), 1, &error);
    assert_string_equal(conductor_farewell(w.conductor, 0)->failure->text, "rank 1: final/model.safetensors: no space");
    assert_true(conductor_farewell(w.conductor, 0)->print);
    assert_false(conductor_farewell(w.conductor, 1)->print);
    conductor_close(w.conductor);
}

/* Hellos that do not fit: status and a part of the text. */
static void ranks_that_do_not_fit_together_are_refused(void **unused)
{
    (void)unused;
    enum {
        DIGEST,
        RANKS,
        RANK,
        SEQUENCES,
        PARAMETERS,
        TARGETS,
        FAILURE,
        TWICE,
        TOO_FEW,
        NO_VALIDATION,
        EMPTY,
        WARM_UP
    };
    static const struct {
        int how, status;
        const char *text;
    } bad[] = {
        {DIGEST, STATUS_INTERNAL, "rank 1: runs another job"},
        {RANKS, STATUS_INTERNAL, "rank 1: says that it is rank 1 of 5, not of 2"},
        {RANK, STATUS_INTERNAL, "rank 1: says that it is rank 0 of 2"},
        {SEQUENCES, STATUS_DATA, "rank 1: has 999 train sequences, rank 0 has 1000"},
        {PARAMETERS, STATUS_DATA, "rank 1: has 78 parameters, rank 0 has 77"},
        {TARGETS, STATUS_DATA, "rank 1: has 2 targets per sequence"},
        {FAILURE, STATUS_MISSING, "rank 1: train.bin: cannot open"},
        {TWICE, STATUS_INTERNAL, "rank 0: a hello out of turn"},
        {TOO_FEW, STATUS_DATA, "3 sequences, fewer than batch.global: 4"},
        {NO_VALIDATION, STATUS_DATA, "data.validation: holds no sequence"},
        {EMPTY, STATUS_DATA, "data.train: holds no sequence"},
        {WARM_UP, STATUS_JOB, "schedule.warmup: 251 and schedule.decay 0 are more than the 250 steps that job.epochs"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct world w;
        make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
        int how = bad[i].how;
        if (how == TOO_FEW) w.batch.tail = GACC__V1__TAIL__TAIL_DROP;
        if (how == TOO_FEW || how == EMPTY) w.sequences = how == TOO_FEW ? 3 : 0;
        if (how == NO_VALIDATION) w.evaluation.every = 1;
        if (how == NO_VALIDATION) w.validation_sequences = 0;
        if (how == WARM_UP) w.section = (Gacc__V1__JobSection)GACC__V1__JOB_SECTION__INIT, w.section.epochs = 1;
        if (how == WARM_UP) w.schedule.type = GACC__V1__SCHEDULE_TYPE__SCHEDULE_COSINE, w.schedule.warmup = 251;
        open_conductor(&w);
        struct error error = {0};
        Gacc__V1__Hello hello = hello_of(&w, 0);
        take(conductor_hello(w.conductor, 0, &hello, w.now, &error), 0, &error);
        hello = hello_of(&w, 1);
        uint8_t other[] = {1, 2, 3, 5};
        Gacc__V1__Failure failure = GACC__V1__FAILURE__INIT;
        failure.status = STATUS_MISSING;
        failure.text = (char *)"train.bin: cannot open";
        if (how == DIGEST) hello.job_digest.data = other;
        if (how == RANKS) hello.ranks = 5;
        if (how == RANK) hello.rank = 0;
        if (how == SEQUENCES) hello.train_sequences--;
        if (how == PARAMETERS) hello.parameters++;
        if (how == TARGETS) hello.targets_per_sequence++;
        if (how == FAILURE) hello.failure = &failure;
        int result = conductor_hello(w.conductor, how == TWICE ? 0 : 1, &hello, w.now, &error);
        take(result, -bad[i].status, &error);
        if (!strstr(error.text, bad[i].text)) fail_msg("%s", error.text);
        assert_int_equal(conductor_farewell(w.conductor, 0)->failure->status, bad[i].status);
        assert_null(conductor_welcome(w.conductor, w.now));
        conductor_close(w.conductor);
    }
}

static void whoever_says_hello_to_a_failed_job_is_told_why(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    open_conductor(&w);
    struct error error = {0};
    Gacc__V1__Hello hello = hello_of(&w, 1);
    Gacc__V1__Failure failure = GACC__V1__FAILURE__INIT;
    failure.status = STATUS_MISSING;
    failure.text = (char *)"train.bin: cannot open";
    hello.failure = &failure;
    take(conductor_hello(w.conductor, 1, &hello, w.now, &error), -STATUS_MISSING, &error);
    assert_true(conductor_farewell(w.conductor, 1)->print); /* it may end all before rank 0 has joined */
    hello = hello_of(&w, 0);
    take(conductor_hello(w.conductor, 0, &hello, w.now, &error), -STATUS_MISSING, &error);
    assert_false(conductor_farewell(w.conductor, 0)->print);
    assert_string_equal(error.text, "rank 1: train.bin: cannot open");
    conductor_close(w.conductor);
}

/* Messages that cannot be: each breaks the job with 70, and nothing is taken after it. */
static void messages_out_of_turn_break_the_job(void **unused)
{
    (void)unused;
    enum {
        EARLY_REPORT,
        LATE_REPORT,
        REPORT_TWICE,
        WEIGHT_CHANGED,
        WEIGHT_NEGATIVE,
        WEIGHT_NAN,
        MICRO_BATCHES_CHANGED,
        MICRO_BATCHES_TOO_MANY,
        NEXT_WITHOUT_MICRO_BATCHES,
        DONE_EARLY,
        DONE_TWICE,
        DONE_OTHER_STEP,
        EVALUATION_UNASKED,
        REPORT_BEFORE_DONE,
        FINISHED_EARLY,
        RANK_UNKNOWN,
        HELLO_AGAIN,
        WAYS
    };
    for (int way = 0; way < WAYS; way++) {
        struct world w;
        make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
        start(&w);
        step(&w, NULL);
        struct error error = {0};
        Gacc__V1__Report report = report_of(&w, 0);
        Gacc__V1__StepDone done = GACC__V1__STEP_DONE__INIT;
        Gacc__V1__Evaluation evaluation = GACC__V1__EVALUATION__INIT;
        Gacc__V1__Finished finished = GACC__V1__FINISHED__INIT;
        Gacc__V1__Hello hello = hello_of(&w, 0);
        done.step = 2;
        int result = 0;
        if (way == EARLY_REPORT) report.step = 3;
        if (way == LATE_REPORT) report.step = 1;
        if (way == REPORT_TWICE) conductor_report(w.conductor, 0, &report, w.now, &error);
        if (way == WEIGHT_CHANGED) report.weight += 0.5;
        if (way == WEIGHT_NEGATIVE) report.next_weight = -1;
        if (way == WEIGHT_NEGATIVE) report.next_micro_batches = 0;
        if (way == WEIGHT_NAN) report.next_weight = (double)NAN;
        if (way == MICRO_BATCHES_CHANGED) report.micro_batches = 1;
        if (way == MICRO_BATCHES_TOO_MANY) report.next_micro_batches = 3;
        if (way == NEXT_WITHOUT_MICRO_BATCHES) report.next_micro_batches = 0;
        if (way <= NEXT_WITHOUT_MICRO_BATCHES) result = conductor_report(w.conductor, 0, &report, w.now, &error);
        if (way == DONE_EARLY) result = conductor_step_done(w.conductor, 0, &done, w.now, &error);
        if (way >= DONE_TWICE && way <= REPORT_BEFORE_DONE) {
            report_all(&w, NULL);
            if (way == DONE_TWICE) conductor_step_done(w.conductor, 0, &done, w.now, &error);
            if (way == DONE_OTHER_STEP) done.step = 1;
            if (way == EVALUATION_UNASKED) done.evaluation = &evaluation;
            report = report_of(&w, 0);
            result = way == REPORT_BEFORE_DONE ? conductor_report(w.conductor, 0, &report, w.now, &error)
                                               : conductor_step_done(w.conductor, 0, &done, w.now, &error);
        }
        if (way == FINISHED_EARLY) result = conductor_finished(w.conductor, 0, &finished, w.now, &error);
        if (way == RANK_UNKNOWN) result = conductor_report(w.conductor, 2, &report, w.now, &error);
        if (way == HELLO_AGAIN) result = conductor_hello(w.conductor, 0, &hello, w.now, &error);
        if (result != -STATUS_INTERNAL) fail_msg("way %d: %d %s", way, result, error.text);
        assert_non_null(strstr(error.text, way == RANK_UNKNOWN ? "rank 2: " : "rank 0: "));
        report = report_of(&w, 1);
        assert_int_equal(conductor_report(w.conductor, 1, &report, w.now, &error), 0);
        assert_null(conductor_decide(w.conductor, w.now));
        assert_int_equal(conductor_farewell(w.conductor, 1)->failure->status, STATUS_INTERNAL);
        conductor_close(w.conductor);
    }
}

/* Case 39-1, the decision. */
static void a_lost_rank_ends_the_job_and_the_lowest_survivor_prints(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 3, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    step(&w, NULL);
    report_all(&w, NULL);
    assert_true(conductor_lost(w.conductor, 0, "its process is gone"));
    assert_false(conductor_lost(w.conductor, 0, "twice"));
    assert_true(conductor_farewell(w.conductor, 1)->print);
    assert_false(conductor_farewell(w.conductor, 2)->print);
    assert_string_equal(conductor_farewell(w.conductor, 2)->failure->text, "rank 0: its process is gone");
    assert_int_equal(conductor_farewell(w.conductor, 2)->failure->status, STATUS_INTERNAL);
    drain(&w); /* the step that was decided is told */
    assert_int_equal(w.record_count, 1);
    assert_int_equal(w.records[0].step.counters.step, 2);
    assert_string_equal(conductor_status(w.conductor, w.now)->phase, "failing");
    conductor_close(w.conductor);
}

static void a_rank_that_leaves_after_its_farewell_is_not_lost(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 1, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.section.steps = 1;
    start(&w);
    step(&w, NULL);
    struct error error = {0};
    Gacc__V1__Finished finished = GACC__V1__FINISHED__INIT;
    take(conductor_finished(w.conductor, 0, &finished, w.now, &error), 1, &error);
    assert_false(conductor_lost(w.conductor, 0, "gone"));
    assert_null(conductor_farewell(w.conductor, 0)->failure);
    conductor_close(w.conductor);
}

static void finishing_without_the_last_step_done_is_refused(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 1, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.section.steps = 1;
    start(&w);
    report_all(&w, NULL);
    assert_true(w.over);
    struct error error = {0};
    Gacc__V1__Finished finished = GACC__V1__FINISHED__INIT;
    take(conductor_finished(w.conductor, 0, &finished, w.now, &error), -STATUS_INTERNAL, &error);
    conductor_close(w.conductor);
}

static void a_rank_that_gives_up_between_reports_says_why_for_all(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    struct error error = {0};
    Gacc__V1__Failure failure = GACC__V1__FAILURE__INIT;
    failure.status = STATUS_UNAVAILABLE;
    failure.text = (char *)"no route";
    Gacc__V1__Finished finished = GACC__V1__FINISHED__INIT;
    finished.failure = &failure;
    take(conductor_finished(w.conductor, 1, &finished, w.now, &error), -STATUS_UNAVAILABLE, &error);
    assert_string_equal(conductor_farewell(w.conductor, 0)->failure->text, "rank 1: no route");
    conductor_close(w.conductor);
}

/* Squares of fp32 numbers are AdamW's second moments. */
static void the_largest_norm_is_that_of_the_most_delicate_optimizer(void **unused)
{
    (void)unused;
    struct world w;
    struct job_rules rules;
    Gacc__V1__OptimizerSection adamw = GACC__V1__OPTIMIZER_SECTION__INIT, *further[] = {&adamw};
    make(&w, 1, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.optimizer.type = GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_SGD;
    assert_int_equal(job_rules_from_job(&rules, &w.job, 1, NULL), 0);
    assert_true(rules.norm.most == (double)FLT_MAX);
    adamw.type = GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_ADAMW;
    w.job.further_optimizers = further;
    w.job.n_further_optimizers = 1;
    assert_int_equal(job_rules_from_job(&rules, &w.job, 1, NULL), 0);
    assert_true(rules.norm.most == sqrt((double)FLT_MAX));
    w.precision.compute = GACC__V1__COMPUTE__COMPUTE_FP64;
    assert_int_equal(job_rules_from_job(&rules, &w.job, 1, NULL), 0);
    assert_true(isinf(rules.norm.most));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_local_error_fails_the_step_on_all_ranks),
        cmocka_unit_test(a_rank_with_other_parameters_is_named_before_anything_is_made_of_the_step),
        cmocka_unit_test(an_interruption_that_leaves_no_time_ends_the_job_at_once),
        cmocka_unit_test(the_largest_norm_is_that_of_the_most_delicate_optimizer),
        cmocka_unit_test(what_rank_0_said_itself_no_other_rank_repeats),
        cmocka_unit_test(of_several_failing_ranks_the_lowest_is_told),
        cmocka_unit_test(a_failure_before_the_first_step_ends_the_job_without_a_record),
        cmocka_unit_test(a_failure_of_the_coordinator_ends_the_job_with_the_next_decision),
        cmocka_unit_test(a_result_that_cannot_be_written_fails_the_job_for_all),
        cmocka_unit_test(ranks_that_do_not_fit_together_are_refused),
        cmocka_unit_test(whoever_says_hello_to_a_failed_job_is_told_why),
        cmocka_unit_test(messages_out_of_turn_break_the_job),
        cmocka_unit_test(a_lost_rank_ends_the_job_and_the_lowest_survivor_prints),
        cmocka_unit_test(a_rank_that_leaves_after_its_farewell_is_not_lost),
        cmocka_unit_test(finishing_without_the_last_step_done_is_refused),
        cmocka_unit_test(a_rank_that_gives_up_between_reports_says_why_for_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
