/* The conductor asks for checkpoints, stops behind one, and goes on from one as if it had never ended. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "tests/unit/conductor_world.h"
#include "tests/unit/histories.h"

#define ATTEMPTS_MOST 400

static void ask(struct world *w, const char *who, const char *signal)
{
    struct error error = {0};
    Gacc__V1__Interrupted interrupted = GACC__V1__INTERRUPTED__INIT;
    interrupted.signal = (char *)signal;
    interrupted.times = 1;
    take(conductor_interrupted(w->conductor, who, &interrupted, &error), 0, &error);
}

static void ask_for_one(struct world *w)
{
    ask(w, "rank 0", "SIGUSR1");
}

static void failed(struct error *why)
{
    error_set(why, STATUS_IO, "rank 1: disk full");
}

static void usr1_saves_behind_the_step_under_way_and_goes_on(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    assert_false(conductor_awaits_checkpoint(w.conductor));
    ask_for_one(&w);
    ask(&w, "rank 1", "SIGUSR1"); /* mpirun tells all */
    assert_true(conductor_awaits_checkpoint(w.conductor));
    step(&w, NULL);
    assert_string_equal(w.saves, "step-00000001");
    assert_false(w.stops || w.over);
    ask(&w, "rank 0", "SIGUSR1"); /* late: it is told of the one under way */
    conductor_saved(w.conductor, NULL);
    step(&w, NULL);
    assert_string_equal(w.saves, "");
    ask_for_one(&w);
    step(&w, NULL);
    assert_string_equal(w.saves, "step-00000003");
    conductor_close(w.conductor);
}

static void a_checkpoint_behind_a_skip_has_a_name_of_its_own(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP16);
    w.checkpoint.every = 1;
    start(&w);
    step(&w, NULL);
    assert_string_equal(w.saves, "step-00000001");
    conductor_saved(w.conductor, NULL);
    ask_for_one(&w);
    const struct twist overflow = {.rank = 1, .nonfinite = true};
    step(&w, &overflow);
    assert_string_equal(w.saves, "step-00000001-attempt-00000002");
    conductor_close(w.conductor);
}

/* For every signal that asks so, whoever took it, however many did. */
static void a_signal_stops_the_job_behind_a_checkpoint_with_75(void **unused)
{
    (void)unused;
    static const char *const signals[] = {"SIGTERM", "SIGINT", "SIGHUP", "SIGUSR2"};
    for (size_t i = 0; i < 4; i++) {
        struct world w;
        char reason[128];
        make(&w, 3, GACC__V1__COMPUTE__COMPUTE_FP32);
        start(&w);
        step(&w, NULL);
        for (int times = 0; times < 2; times++) ask(&w, times ? "rank 1" : "rank 2", signals[i]);
        step(&w, NULL);
        assert_true(w.stops && w.over);
        assert_string_equal(w.saves, "step-00000002");
        conductor_saved(w.conductor, NULL);
        conductor_settle(w.conductor);
        struct end_record end;
        conductor_end(w.conductor, w.now, &end);
        snprintf(reason, sizeof reason,
                 "rank 2: interrupted by %s: checkpoint step-00000002 is complete, the same command goes on from it",
                 signals[i]);
        assert_string_equal(end.reason, reason);
        finish(&w, STATUS_AGAIN);
    }
}

static void a_job_that_is_done_does_not_stop(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.section.steps = 1;
    start(&w);
    ask(&w, "rank 0", "SIGTERM");
    step(&w, NULL);
    assert_true(w.over && !w.stops);
    assert_string_equal(w.saves, "");
    ask(&w, "rank 1", "SIGTERM"); /* while it writes its model */
    conductor_settle(w.conductor);
    finish(&w, 0);
}

static void a_stop_whose_checkpoint_fails_is_an_error(void **unused)
{
    (void)unused;
    struct world w;
    struct error why;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    ask(&w, "the coordinator", "SIGTERM");
    step(&w, NULL);
    failed(&why);
    conductor_saved(w.conductor, &why);
    conductor_settle(w.conductor);
    struct end_record end;
    conductor_end(w.conductor, w.now, &end);
    assert_string_equal(end.reason,
                        "the coordinator: interrupted by SIGTERM, but there is no checkpoint: rank 1: disk full");
    finish(&w, STATUS_IO);
}

static void one_failure_is_no_end_and_two_in_a_row_are(void **unused)
{
    (void)unused;
    struct world w;
    struct error why;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.checkpoint.every = 1;
    start(&w);
    const bool good[] = {false, true, false, false};
    for (int i = 0; i < 4; i++) {
        step(&w, NULL);
        assert_false(w.over);
        failed(&why);
        conductor_saved(w.conductor, good[i] ? NULL : &why);
    }
    report_all(&w, NULL);
    assert_int_equal(w.verdict, GACC__V1__VERDICT__VERDICT_FAIL);
    finish(&w, STATUS_IO);
}

static void a_rank_that_dies_once_the_job_has_stopped_is_no_loss(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    ask(&w, "rank 0", "SIGTERM");
    step(&w, NULL);
    conductor_saved(w.conductor, NULL);
    conductor_lost(w.conductor, 1, "its process ended");
    struct end_record end;
    conductor_end(w.conductor, w.now, &end);
    assert_int_equal(end.exit, STATUS_AGAIN);
    conductor_close(w.conductor);
}

/* A world as the random numbers have it; the same for the same seed. */
static void make_any(struct world *w, uint64_t seed)
{
    bool fp16 = random_chance(&seed, 0.6);
    make(w, (uint32_t)random_between(&seed, 1, RANKS_MOST),
         fp16 ? GACC__V1__COMPUTE__COMPUTE_FP16 : GACC__V1__COMPUTE__COMPUTE_FP32);
    if (random_chance(&seed, 0.3)) {
        w->section.steps = 0;
        w->section.epochs = random_between(&seed, 1, 3);
    } else {
        w->section.steps = random_between(&seed, 2, 20);
    }
    w->sequences = random_between(&seed, 8, 30);
    w->batch.micro = (uint32_t)random_between(&seed, 1, 2);
    w->batch.global = w->batch.micro * (uint32_t)random_between(&seed, w->ranks, 6);
    w->batch.tail = random_chance(&seed, 0.5) ? GACC__V1__TAIL__TAIL_DROP : GACC__V1__TAIL__TAIL_FLUSH;
    if (w->batch.global > w->sequences) w->batch.tail = GACC__V1__TAIL__TAIL_FLUSH;
    w->evaluation.every = random_between(&seed, 0, 3);
    w->optimizer.clip_norm = random_chance(&seed, 0.5) ? 1 : 0;
    w->schedule.type = GACC__V1__SCHEDULE_TYPE__SCHEDULE_COSINE;
    w->scale.hysteresis = 1;
    w->precision.nonfinite_stop_after = 0;
}

/* Whether an attempt overflows is the history's, not the run's. */
static bool overflows(uint64_t seed, uint64_t attempt)
{
    seed += attempt * 1000003;
    return random_chance(&seed, 0.25);
}

struct attempt_facts {
    uint64_t epoch, first, count;
    struct step_record record;
    bool evaluated, over;
    uint32_t events;
};

static void attempt(struct world *w, uint64_t seed, struct attempt_facts *facts)
{
    const struct twist overflow = {.rank = 0, .nonfinite = true};
    *facts = (struct attempt_facts){.epoch = w->plan.epoch, .first = w->plan.first, .count = w->plan.count};
    facts->record = *step(w, overflows(seed, w->plan.step) ? &overflow : NULL);
    facts->evaluated = w->evaluate;
    facts->over = w->over;
    for (size_t i = 0; i < w->record_count; i++) facts->events += w->records[i].type == RECORD_EVENT;
}

static void check_same(const struct attempt_facts *one, const struct attempt_facts *other)
{
    assert_int_equal(one->epoch, other->epoch);
    assert_int_equal(one->first, other->first);
    assert_int_equal(one->count, other->count);
    assert_int_equal(one->evaluated, other->evaluated);
    assert_int_equal(one->over, other->over);
    assert_int_equal(one->events, other->events);
    const struct step_record *a = &one->record, *b = &other->record;
    assert_memory_equal(&a->counters, &b->counters, sizeof a->counters);
    assert_int_equal(a->verdict, b->verdict);
    assert_true(a->lr == b->lr && a->weight == b->weight);
    assert_true(a->loss_scale == b->loss_scale && a->loss_scale_next == b->loss_scale_next);
    assert_int_equal(a->growth_tracker, b->growth_tracker);
    assert_true(a->clip_coefficient == b->clip_coefficient || (a->clip_coefficient != a->clip_coefficient));
}

/* The whole history, or up to a stop behind attempt `until` (0: none); returns the attempts made. */
static uint64_t run(struct world *w, uint64_t seed, uint64_t until, struct attempt_facts *facts)
{
    uint64_t attempts = w->resumed;
    while (!w->over && attempts < ATTEMPTS_MOST) {
        if (attempts + 1 == until) ask(w, "rank 0", "SIGUSR2");
        attempt(w, seed, &facts[attempts++]);
    }
    return attempts;
}

/* Stopped anywhere and gone on with, at any number of ranks and any micro-batch: the steps are those of the run that
 * was never stopped. */
static void any_history_goes_on_as_if_it_had_not_ended(void **unused)
{
    (void)unused;
    static struct attempt_facts whole[ATTEMPTS_MOST], parts[ATTEMPTS_MOST];
    uint64_t random = 11;
    for (int history = 0; history < HISTORIES; history++) {
        const uint64_t seed = random_between(&random, 0, UINT32_MAX);
        struct world w;
        make_any(&w, seed);
        start(&w);
        const uint64_t attempts = run(&w, seed, 0, whole);
        conductor_close(w.conductor);
        if (attempts < 2 || attempts == ATTEMPTS_MOST) continue;

        const uint64_t until = random_between(&random, 1, attempts - 1);
        make_any(&w, seed);
        start(&w);
        assert_int_equal(run(&w, seed, until, parts), until);
        assert_true(w.stops && w.saves[0]);
        const char *name;
        const struct progress progress = *conductor_progress(w.conductor, &name);
        conductor_close(w.conductor);

        make_any(&w, seed);
        w.ranks = (uint32_t)random_between(&random, 1, RANKS_MOST);
        w.batch.micro = 1;
        if (w.batch.global < w.ranks) w.ranks = w.batch.global;
        w.resumed = until;
        Gacc__V1__Restore restore = GACC__V1__RESTORE__INIT;
        open_conductor(&w);
        conductor_resume(w.conductor, &progress, &restore);
        begin(&w);
        assert_int_equal(run(&w, seed, 0, parts), attempts);
        for (uint64_t i = 0; i < attempts; i++) {
            parts[i].over &= i + 1 != until; /* it stopped there */
            parts[i].evaluated |= i + 1 == until && whole[i].evaluated && whole[i].over;
            check_same(&parts[i], &whole[i]);
        }
        conductor_close(w.conductor);
    }
}

static void what_has_nothing_left_to_do_only_finishes(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.checkpoint.every = 5;
    start(&w);
    for (int i = 0; i < 5; i++) step(&w, NULL);
    assert_true(w.over);
    assert_string_equal(w.saves, "step-00000005");
    const char *name;
    const struct progress progress = *conductor_progress(w.conductor, &name);
    conductor_saved(w.conductor, NULL);
    finish(&w, 0);

    for (int longer = 0; longer < 2; longer++) {
        make(&w, 3, GACC__V1__COMPUTE__COMPUTE_FP32);
        w.section.steps = longer ? 7 : 5;
        Gacc__V1__Restore restore = GACC__V1__RESTORE__INIT;
        struct error error = {0};
        open_conductor(&w);
        conductor_resume(w.conductor, &progress, &restore);
        for (uint32_t r = 0; r < 3; r++) {
            Gacc__V1__Hello hello = hello_of(&w, r);
            take(conductor_hello(w.conductor, r, &hello, w.now, &error), r == 2, &error);
        }
        const Gacc__V1__Welcome *welcome = conductor_welcome(w.conductor, w.now);
        assert_ptr_equal(welcome->restore, &restore);
        assert_int_equal(welcome->plan != NULL, longer);
        if (longer) assert_int_equal(welcome->plan->first, 20);
        w.over = true;
        if (!longer) finish(&w, 0);
        if (longer) conductor_close(w.conductor);
    }
}

static void other_data_are_refused(void **unused)
{
    (void)unused;
    struct world w;
    make(&w, 1, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    ask_for_one(&w);
    step(&w, NULL);
    const char *name;
    const struct progress progress = *conductor_progress(w.conductor, &name);
    conductor_close(w.conductor);
    w.sequences++;
    Gacc__V1__Restore restore = GACC__V1__RESTORE__INIT;
    struct error error = {0};
    open_conductor(&w);
    conductor_resume(w.conductor, &progress, &restore);
    Gacc__V1__Hello hello = hello_of(&w, 0);
    assert_int_equal(conductor_hello(w.conductor, 0, &hello, w.now, &error), -STATUS_DATA);
    assert_non_null(strstr(error.text, "data.train: holds 1001 sequences, 1000 when the checkpoint was made"));
    conductor_close(w.conductor);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usr1_saves_behind_the_step_under_way_and_goes_on),
        cmocka_unit_test(a_checkpoint_behind_a_skip_has_a_name_of_its_own),
        cmocka_unit_test(a_signal_stops_the_job_behind_a_checkpoint_with_75),
        cmocka_unit_test(a_job_that_is_done_does_not_stop),
        cmocka_unit_test(a_stop_whose_checkpoint_fails_is_an_error),
        cmocka_unit_test(one_failure_is_no_end_and_two_in_a_row_are),
        cmocka_unit_test(a_rank_that_dies_once_the_job_has_stopped_is_no_loss),
        cmocka_unit_test(any_history_goes_on_as_if_it_had_not_ended),
        cmocka_unit_test(what_has_nothing_left_to_do_only_finishes),
        cmocka_unit_test(other_data_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
