/* What operators ask the conductor for takes effect at a boundary, on all ranks alike. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "tests/unit/conductor_world.h"

static void a_checkpoint_is_made_behind_the_step_under_way(void **unused)
{
    (void)unused;
    struct world w;
    const char *name;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    open_conductor(&w);
    call_for(&w, REQUEST_CHECKPOINT, ANSWER_AT_BOUNDARY, NULL); /* before anybody has joined: behind the first */
    check_status(&w, "starting", "checkpoint");
    begin(&w);
    assert_string_equal(w.saves, "");
    step(&w, NULL);
    assert_string_equal(w.saves, "step-00000001");
    check_boundary(&w, 1, 1);
    check_status(&w, "training", NULL);
    step(&w, NULL);
    call_for(&w, REQUEST_CHECKPOINT, ANSWER_NOW, NULL); /* the one under way */
    assert_int_equal(conductor_progress(w.conductor, &name)->counters.step, 1);
    assert_string_equal(name, "step-00000001");
    conductor_saved(w.conductor, NULL);
    call_for(&w, REQUEST_CHECKPOINT, ANSWER_AT_BOUNDARY, NULL);
    step(&w, NULL);
    assert_string_equal(w.saves, "step-00000003");
    conductor_close(w.conductor);
}

static void a_stop_ends_with_75_and_says_who(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    call_for(&w, REQUEST_STOP, ANSWER_AT_BOUNDARY, NULL);
    call_for(&w, REQUEST_STOP, ANSWER_AT_BOUNDARY, NULL);
    call_for(&w, REQUEST_FINISH, ANSWER_REFUSED, "asked to stop behind a checkpoint already");
    check_status(&w, "stopping", "stop");
    step(&w, NULL);
    assert_true(w.over && w.stops);
    call_for(&w, REQUEST_STOP, ANSWER_NOW, NULL);
    check_boundary(&w, 1, 1);
    conductor_saved(w.conductor, NULL);
    conductor_settle(w.conductor);
    struct end_record end;
    conductor_end(w.conductor, w.now, &end);
    assert_string_equal(end.reason, "uid 1 (jo), pid 2: asked to stop: checkpoint step-00000001 is complete, the same "
                                    "command goes on from it");
    call_for(&w, REQUEST_CHECKPOINT, ANSWER_REFUSED, "the job is ending");
    finish(&w, STATUS_AGAIN);
}

static void a_finish_ends_as_after_the_last_step(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.evaluation.every = 3;
    start(&w);
    step(&w, NULL);
    call_for(&w, REQUEST_FINISH, ANSWER_AT_BOUNDARY, NULL);
    check_status(&w, "finishing", "stop --finish");
    step(&w, NULL);
    assert_true(w.over && !w.stops && w.evaluate);
    assert_string_equal(w.saves, "");
    call_for(&w, REQUEST_FINISH, ANSWER_NOW, NULL);
    call_for(&w, REQUEST_STOP, ANSWER_REFUSED, "the job is ending");
    finish(&w, 0);
}

static void a_stop_before_the_first_step_is_the_end(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    open_conductor(&w);
    call_for(&w, REQUEST_FINISH, ANSWER_REFUSED, "before the first step");
    call_for(&w, REQUEST_STOP, ANSWER_END, NULL);
    const Gacc__V1__Farewell *farewell = conductor_farewell(w.conductor, 0);
    assert_int_equal(farewell->failure->status, STATUS_AGAIN);
    assert_string_equal(farewell->failure->text, "uid 1 (jo), pid 2: asked to stop before the first step");
    conductor_close(w.conductor);
}

static void a_paused_job_goes_on_as_if_it_had_not_been(void **unused)
{
    (void)unused;
    struct world w, other;
    make(&w, 3, GACC__V1__COMPUTE__COMPUTE_FP16);
    make(&other, 3, GACC__V1__COMPUTE__COMPUTE_FP16);
    w.schedule.warmup = other.schedule.warmup = 4;
    open_conductor(&w);
    start(&other);
    call_for(&w, REQUEST_PAUSE, ANSWER_AT_BOUNDARY, NULL);
    begin(&w); /* before the first step, too */
    while (!w.over) {
        assert_true(w.held);
        stand(&w);
        assert_false(conductor_is_due(w.conductor));
        check_status(&w, "paused", NULL);
        call_for(&w, REQUEST_PAUSE, ANSWER_NOW, NULL);
        w.now += 1000;
        call_for(&w, REQUEST_RESUME, ANSWER_AT_BOUNDARY, NULL);
        assert_true(conductor_is_due(w.conductor));
        decide(&w);
        assert_int_equal(w.verdict, GACC__V1__VERDICT__VERDICT_UNSPECIFIED);
        assert_memory_equal(&w.plan, &other.plan, sizeof w.plan);
        assert_memory_equal(&w.window, &other.window, sizeof w.window);
        call_for(&w, REQUEST_PAUSE, ANSWER_AT_BOUNDARY, NULL);
        const struct step_record *one = step(&w, NULL), *same = step(&other, NULL);
        assert_memory_equal(&one->counters, &same->counters, sizeof one->counters);
        assert_true(one->loss == same->loss && one->lr == same->lr && one->loss_scale_next == same->loss_scale_next);
        assert_true(one->seconds.since_last_step == 0.5); /* and not a thousand */
    }
    finish(&w, 0);
    finish(&other, 0);
}

static void a_pause_that_was_asked_for_can_be_taken_back(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    call_for(&w, REQUEST_RESUME, ANSWER_REFUSED, "the job is not paused");
    call_for(&w, REQUEST_PAUSE, ANSWER_AT_BOUNDARY, NULL);
    call_for(&w, REQUEST_RESUME, ANSWER_AT_BOUNDARY, NULL);
    step(&w, NULL);
    assert_false(w.held);
    conductor_close(w.conductor);
}

static void a_paused_job_saves_once_and_stops(void **unused)
{
    (void)unused;
    struct world w;
    const char *name;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    call_for(&w, REQUEST_PAUSE, ANSWER_AT_BOUNDARY, NULL);
    step(&w, NULL);
    call_for(&w, REQUEST_CHECKPOINT, ANSWER_AT_BOUNDARY, NULL); /* as soon as the ranks stand */
    stand(&w);
    assert_true(conductor_is_due(w.conductor));
    decide(&w);
    assert_string_equal(w.saves, "step-00000001");
    assert_true(w.held);
    check_boundary(&w, 1, 1);
    stand(&w);
    call_for(&w, REQUEST_CHECKPOINT, ANSWER_NOW, NULL); /* under way … */
    assert_false(conductor_is_due(w.conductor));
    conductor_saved(w.conductor, NULL);
    call_for(&w, REQUEST_CHECKPOINT, ANSWER_NOW, NULL); /* … and complete */
    conductor_progress(w.conductor, &name);
    assert_string_equal(name, "step-00000001");
    assert_false(conductor_is_due(w.conductor));
    Gacc__V1__Interrupted usr1 = GACC__V1__INTERRUPTED__INIT;
    struct error error = {0};
    usr1.signal = (char *)"SIGUSR1";
    take(conductor_interrupted(w.conductor, "rank 1", &usr1, &error), 0, &error);
    assert_true(conductor_is_due(w.conductor));
    decide(&w);
    assert_string_equal(w.saves, ""); /* the state is on disk already */
    stand(&w);
    call_for(&w, REQUEST_STOP, ANSWER_AT_BOUNDARY, NULL);
    call_for(&w, REQUEST_PAUSE, ANSWER_REFUSED, "asked to stop");
    decide(&w);
    assert_true(w.over && w.stops);
    assert_string_equal(w.saves, "");
    conductor_settle(w.conductor);
    finish(&w, STATUS_AGAIN);
}

static void a_signal_stops_a_paused_job_behind_a_checkpoint(void **unused)
{
    (void)unused;
    struct world w;
    struct error error = {0};
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    call_for(&w, REQUEST_PAUSE, ANSWER_AT_BOUNDARY, NULL);
    step(&w, NULL);
    stand(&w);
    Gacc__V1__Interrupted term = GACC__V1__INTERRUPTED__INIT;
    term.signal = (char *)"SIGTERM";
    term.times = 1;
    take(conductor_interrupted(w.conductor, "rank 1", &term, &error), 0, &error);
    assert_true(conductor_is_due(w.conductor));
    decide(&w);
    assert_true(w.over && w.stops);
    assert_string_equal(w.saves, "step-00000001");
    conductor_saved(w.conductor, NULL);
    conductor_settle(w.conductor);
    finish(&w, STATUS_AGAIN);
}

static void a_paused_job_finishes_and_fails_in_order(void **unused)
{
    (void)unused;
    for (int fails = 0; fails < 2; fails++) {
        struct world w;
        struct error why;
        make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
        start(&w);
        call_for(&w, REQUEST_PAUSE, ANSWER_AT_BOUNDARY, NULL);
        step(&w, NULL);
        stand(&w);
        error_set(&why, STATUS_IO, "log.jsonl: disk full");
        if (fails)
            conductor_fail(w.conductor, &why);
        else
            call_for(&w, REQUEST_FINISH, ANSWER_AT_BOUNDARY, NULL);
        assert_true(conductor_is_due(w.conductor));
        decide(&w);
        assert_true(w.over && !w.stops);
        finish(&w, fails ? STATUS_IO : 0);
    }
}

/* The last step's pause has nothing to hold. */
static void a_job_that_is_done_does_not_pause(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.section.steps = 1;
    start(&w);
    call_for(&w, REQUEST_PAUSE, ANSWER_AT_BOUNDARY, NULL);
    step(&w, NULL);
    assert_false(w.held);
    assert_false(conductor_will_pause(w.conductor) || conductor_is_paused(w.conductor));
    finish(&w, 0);
}

static void the_last_attempts_are_told(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP16);
    w.section.steps = 500;
    start(&w);
    const struct twist overflow = {.rank = 1, .nonfinite = true};
    for (int i = 1; i <= 130; i++) step(&w, i == 130 ? &overflow : NULL);
    const Gacc__V1__Status *status = conductor_status(w.conductor, w.now);
    assert_int_equal(status->n_last, 120);
    for (size_t i = 0; i < 120; i++) assert_int_equal(status->last[i]->step, i + 11);
    assert_int_equal(status->last[119]->verdict, GACC__V1__VERDICT__VERDICT_SKIP);
    assert_true(status->last[118]->grad_norm == 5 && status->last[118]->loss == 2);
    assert_true(status->last[119]->grad_norm != status->last[119]->grad_norm);
    assert_true(status->last[119]->seconds == 0.5); /* of the slowest rank */
    assert_true(status->ranks[0]->step_seconds == 0.5 && status->ranks[1]->step_seconds == 0.25); /* its own */
    assert_true(status->steps_per_second == 2);
    conductor_close(w.conductor);
}

static void a_ranks_state_is_as_old_as_its_last_change(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 1, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    Gacc__V1__StateChange change = GACC__V1__STATE_CHANGE__INIT;
    change.step = 1;
    change.state = GACC__V1__STATE__STATE_MICRO_FORWARD;
    conductor_state(w.conductor, 0, &change, 200);
    conductor_state(w.conductor, 0, &change, 201); /* a sign of life */
    const Gacc__V1__Status *status = conductor_status(w.conductor, 203);
    assert_true(status->ranks[0]->seconds_in_state == 3 && status->ranks[0]->seconds_since_heard == 2);
    change.micro_batch = 1;
    conductor_state(w.conductor, 0, &change, 203);
    assert_true(conductor_status(w.conductor, 204)->ranks[0]->seconds_in_state == 1);
    conductor_close(w.conductor);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checkpoint_is_made_behind_the_step_under_way),
        cmocka_unit_test(a_stop_ends_with_75_and_says_who),
        cmocka_unit_test(a_finish_ends_as_after_the_last_step),
        cmocka_unit_test(a_stop_before_the_first_step_is_the_end),
        cmocka_unit_test(a_paused_job_goes_on_as_if_it_had_not_been),
        cmocka_unit_test(a_pause_that_was_asked_for_can_be_taken_back),
        cmocka_unit_test(a_paused_job_saves_once_and_stops),
        cmocka_unit_test(a_signal_stops_a_paused_job_behind_a_checkpoint),
        cmocka_unit_test(a_paused_job_finishes_and_fails_in_order),
        cmocka_unit_test(a_job_that_is_done_does_not_pause),
        cmocka_unit_test(the_last_attempts_are_told),
        cmocka_unit_test(a_ranks_state_is_as_old_as_its_last_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
