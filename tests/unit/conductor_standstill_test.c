/* Ranks that wait for each other because they do not make the same collective calls: who is named, and when. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/conductor_world.h"

#define LIMIT 60.0

static void enter(struct world *w, uint32_t rank, uint64_t step, Gacc__V1__State state)
{
    Gacc__V1__StateChange change = GACC__V1__STATE_CHANGE__INIT;
    change.step = step;
    change.state = state;
    conductor_state(w->conductor, rank, &change, w->now);
}

static void report(struct world *w, uint32_t rank)
{
    struct error error = {0};
    const Gacc__V1__Report message = report_of(w, rank);
    take(conductor_report(w->conductor, rank, &message, w->now, &error), false, &error);
}

static void end_step(struct world *w, uint32_t rank, uint64_t step)
{
    struct error error = {0};
    Gacc__V1__StepDone done = GACC__V1__STEP_DONE__INIT;
    done.step = step;
    take(conductor_step_done(w->conductor, rank, &done, w->now, &error), false, &error);
}

static bool stands_still(struct world *w)
{
    return conductor_stands_still(w->conductor, w->now, 0, LIMIT);
}

static void assert_waits(struct world *w, const char *who, const char *where, unsigned ahead)
{
    struct end_record end;
    char reason[256];
    conductor_end(w->conductor, w->now, &end);
    assert_int_equal(end.exit, STATUS_INTERNAL);
    snprintf(
        reason, sizeof reason,
        "%s: has waited 60 s (control.timeout) in %s, which rank %u has left: they do not make the same collective "
        "calls",
        who, where, ahead);
    assert_string_equal(end.reason, reason);
    assert_true(conductor_farewell(w->conductor, 0)->print);
    conductor_close(w->conductor);
}

/* Two steps behind it. */
static void go(struct world *w)
{
    make(w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(w);
    step(w, NULL);
    step(w, NULL);
}

static void a_reduction_that_another_has_left_ends_the_job_at_the_limit(void **unused)
{
    (void)unused;
    struct world w;
    go(&w);
    enter(&w, 0, 3, GACC__V1__STATE__STATE_REDUCE);
    report(&w, 1);
    w.now += LIMIT - 1;
    assert_false(stands_still(&w));
    w.now += 1;
    assert_true(stands_still(&w));
    assert_waits(&w, "rank 0: step 3", "the reduction", 1);
}

/* On a GPU the host waits for it as UNSCALE. */
static void every_sign_of_progress_begins_the_wait_anew(void **unused)
{
    (void)unused;
    struct world w;
    go(&w);
    enter(&w, 1, 3, GACC__V1__STATE__STATE_REDUCE);
    report(&w, 0);
    w.now += LIMIT - 1;
    enter(&w, 1, 3, GACC__V1__STATE__STATE_UNSCALE);
    w.now += LIMIT - 1;
    enter(&w, 1, 3, GACC__V1__STATE__STATE_UNSCALE); /* nothing new */
    assert_false(stands_still(&w));
    w.now += 1;
    assert_false(conductor_stands_still(w.conductor, w.now, w.now - 1, LIMIT)); /* asleep until then */
    assert_true(stands_still(&w));
    assert_waits(&w, "rank 1: step 3", "the reduction", 0);
}

static void a_gathering_that_another_has_left_ends_it_too(void **unused)
{
    (void)unused;
    struct world w;
    go(&w);
    report_all(&w, NULL);
    enter(&w, 0, 3, GACC__V1__STATE__STATE_EXIT_STEP);
    end_step(&w, 1, 3);
    enter(&w, 1, 4, GACC__V1__STATE__STATE_REDUCE);
    w.now += LIMIT;
    assert_true(stands_still(&w));
    assert_waits(&w, "rank 0: step 3", "the gathering of parameters", 1);
}

static void the_last_steps_gathering_is_no_exception(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.section.steps = 1;
    start(&w);
    report_all(&w, NULL);
    assert_true(w.over);
    enter(&w, 1, 1, GACC__V1__STATE__STATE_EXIT_STEP);
    end_step(&w, 0, 1);
    w.now += LIMIT;
    assert_true(stands_still(&w));
    assert_waits(&w, "rank 1: step 1", "the gathering of parameters", 0);
}

static void so_does_one_that_another_has_left_for_a_pause(void **unused)
{
    (void)unused;
    struct world w;
    go(&w);
    call_for(&w, REQUEST_PAUSE, ANSWER_AT_BOUNDARY, NULL);
    report_all(&w, NULL);
    assert_true(w.held);
    enter(&w, 0, 3, GACC__V1__STATE__STATE_EXIT_STEP);
    end_step(&w, 1, 3);
    enter(&w, 1, 3, GACC__V1__STATE__STATE_PAUSED);
    report(&w, 1);
    w.now += LIMIT;
    assert_true(stands_still(&w));
    assert_waits(&w, "rank 0: step 3", "the gathering of parameters", 1);
}

/* Who computes, or waits together with all others, may do so for as long as it takes. */
static void whoever_may_still_move_is_left_alone(void **unused)
{
    (void)unused;
    static const struct {
        Gacc__V1__State states[2]; /* of step 3 */
        bool reported[2];
    } cases[] = {
        {{GACC__V1__STATE__STATE_MICRO_FORWARD, GACC__V1__STATE__STATE_REDUCE}, {false, false}},
        {{GACC__V1__STATE__STATE_MICRO_BACKWARD, GACC__V1__STATE__STATE_UNSCALE},
         {false, true}}, /* no shard of its own */
        {{GACC__V1__STATE__STATE_REDUCE, GACC__V1__STATE__STATE_REDUCE}, {false, false}},
        {{GACC__V1__STATE__STATE_STARTING, GACC__V1__STATE__STATE_UNSCALE}, {false, true}}, /* tells no states */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct world w;
        go(&w);
        for (uint32_t r = 0; r < 2; r++) {
            enter(&w, r, 3, cases[i].states[r]);
            if (cases[i].reported[r]) report(&w, r);
        }
        w.now += 1e6;
        assert_false(stands_still(&w));
        conductor_close(w.conductor);
    }
}

/* With async: false it writes in EXIT_STEP. */
static void a_rank_that_writes_its_part_of_a_checkpoint_is_left_alone(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.checkpoint.every = 1;
    start(&w);
    report_all(&w, NULL);
    assert_string_equal(w.saves, "step-00000001");
    enter(&w, 0, 1, GACC__V1__STATE__STATE_EXIT_STEP);
    end_step(&w, 1, 1);
    enter(&w, 1, 2, GACC__V1__STATE__STATE_REDUCE);
    w.now += 1e6;
    assert_false(stands_still(&w));
    conductor_saved(w.conductor, NULL);
    assert_true(stands_still(&w));
    conductor_close(w.conductor);
}

static void a_pause_may_be_as_long_as_it_likes(void **unused)
{
    (void)unused;
    struct world w;
    go(&w);
    call_for(&w, REQUEST_PAUSE, ANSWER_AT_BOUNDARY, NULL);
    step(&w, NULL);
    assert_true(w.held);
    enter(&w, 0, 3, GACC__V1__STATE__STATE_PAUSED);
    report(&w, 1);
    w.now += 1e6;
    assert_false(stands_still(&w));
    conductor_close(w.conductor);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reduction_that_another_has_left_ends_the_job_at_the_limit),
        cmocka_unit_test(every_sign_of_progress_begins_the_wait_anew),
        cmocka_unit_test(a_gathering_that_another_has_left_ends_it_too),
        cmocka_unit_test(the_last_steps_gathering_is_no_exception),
        cmocka_unit_test(so_does_one_that_another_has_left_for_a_pause),
        cmocka_unit_test(whoever_may_still_move_is_left_alone),
        cmocka_unit_test(a_rank_that_writes_its_part_of_a_checkpoint_is_left_alone),
        cmocka_unit_test(a_pause_may_be_as_long_as_it_likes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
