/* Other values of what the job is made of take effect at a boundary, on all ranks alike. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "proto/message.h"
#include "tests/unit/conductor_world.h"

/* The world's job with other values, as the coordinator binds it. */
struct edit {
    double lr, clip_norm, scale;
    uint64_t steps, save_every;
    uint32_t global;
};

static enum answer set(struct world *w, const struct edit *edit, const char *key, struct error *error)
{
    Gacc__V1__JobSpec *job = message_copy(&conductor_next_job(w->conductor)->base);
    struct job_change change = {.row = key, .key = (char *)key};
    const struct job_changes changes = {&change, 1};
    struct job_settings settings = {0};
    job_settings_copy(&settings, conductor_next_settings(w->conductor), error);
    job_settings_put(&settings, key, "as told", error);
    if (edit->lr > 0) job->optimizer->lr = job->optimizer->lr_written = edit->lr;
    if (edit->clip_norm > 0) job->optimizer->clip_norm = edit->clip_norm;
    if (edit->steps) job->job->steps = edit->steps;
    if (edit->save_every) job->checkpoint->every = edit->save_every;
    if (edit->global) job->batch->global = edit->global;
    const enum answer answer = conductor_set(w->conductor, job, &settings, &changes, (float)edit->scale, error);
    if (answer == ANSWER_REFUSED) gacc__v1__job_spec__free_unpacked(job, NULL);
    job_settings_free(&settings);
    return answer;
}

static void a_setting_is_the_next_windows_and_not_sooner(void **unused)
{
    (void)unused;
    struct world w;
    struct error error;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    step(&w, NULL);
    assert_int_equal(set(&w, &(struct edit){.lr = 0.5}, "optimizer.lr", &error), ANSWER_AT_BOUNDARY);
    assert_int_equal(set(&w, &(struct edit){.clip_norm = 1}, "optimizer.clip_norm", &error), ANSWER_AT_BOUNDARY);
    const Gacc__V1__Status *status = conductor_status(w.conductor, w.now);
    assert_int_equal(status->n_requests, 2);
    assert_string_equal(status->requests[0], "set optimizer.lr");
    assert_string_equal(status->requests[1], "set optimizer.clip_norm");
    assert_true(conductor_job(w.conductor)->optimizer->lr == 1);
    assert_int_equal(conductor_settings(w.conductor)->count, 0);
    const struct step_record *record = step(&w, NULL);
    assert_true(record->lr == 1 && record->clip_coefficient == 1); /* the window under way is not touched */
    assert_true(w.window.lr == 0.5);
    assert_true(conductor_job(w.conductor)->optimizer->lr == 0.5);
    assert_int_equal(conductor_settings(w.conductor)->count, 2);
    check_status(&w, "training", NULL);
    record = step(&w, NULL);
    assert_true(record->lr == 0.5 && record->grad_norm_clipped < 1.0000001);
    conductor_close(w.conductor);
}

static void the_global_batch_changes_one_window_later(void **unused)
{
    (void)unused;
    struct world w;
    struct error error;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.batch.lr_scaling = GACC__V1__LR_SCALING__LR_SCALING_LINEAR;
    w.batch.base_sequences = 2;
    w.optimizer.lr_written = 1;
    w.optimizer.lr = 2;
    start(&w);
    step(&w, NULL);
    assert_int_equal(set(&w, &(struct edit){.global = 6}, "batch.global", &error), ANSWER_AT_BOUNDARY);
    const uint64_t first = w.next_plan.first; /* step 3's, which is out */
    step(&w, NULL);
    assert_int_equal(w.plan.count, 4);
    assert_true(w.window.lr == 2); /* with its own B */
    assert_int_equal(w.next_plan.count, 6);
    assert_int_equal(w.plan.first, first);
    assert_int_equal(w.next_plan.first, first + 4);
    step(&w, NULL);
    assert_true(w.window.weight == 6 && w.window.lr == 3);
    conductor_close(w.conductor);
}

/* A checkpoint between the two: the next step's plan keeps the B that it was issued with. */
static void a_batch_that_was_about_to_change_does_so_behind_a_resume(void **unused)
{
    (void)unused;
    struct world w, later;
    struct error error;
    const char *name;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    set(&w, &(struct edit){.global = 6}, "batch.global", &error);
    call_for(&w, REQUEST_CHECKPOINT, ANSWER_AT_BOUNDARY, NULL);
    step(&w, NULL);
    const struct progress progress = *conductor_progress(w.conductor, &name);
    make(&later, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    later.batch.global = 6;
    later.resumed = 1;
    open_conductor(&later);
    conductor_resume(later.conductor, &progress, NULL);
    begin(&later);
    assert_memory_equal(&later.plan, &w.plan, sizeof w.plan);
    assert_memory_equal(&later.next_plan, &w.next_plan, sizeof w.next_plan);
    assert_int_equal(later.plan.count + 10 * later.next_plan.count, 64);
    conductor_close(w.conductor);
    conductor_close(later.conductor);
}

/* A manifest from before B could be set does not say that of its plan: it is the job's. */
static void a_plan_that_does_not_say_its_batch_has_the_jobs(void **unused)
{
    (void)unused;
    struct world worlds[2];
    struct progress progress = {0};
    for (int later = 0; later <= 1; later++) {
        struct world *w = &worlds[later];
        const char *name;
        make(w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
        w->batch.lr_scaling = GACC__V1__LR_SCALING__LR_SCALING_LINEAR;
        w->batch.base_sequences = 2;
        w->optimizer.lr_written = 1;
        w->optimizer.lr = 2;
        w->resumed = (uint64_t)later;
        open_conductor(w);
        if (later) conductor_resume(w->conductor, &progress, NULL);
        begin(w);
        assert_true(w->window.lr == 2);
        if (later) continue;
        call_for(w, REQUEST_CHECKPOINT, ANSWER_AT_BOUNDARY, NULL);
        step(w, NULL);
        progress = *conductor_progress(w->conductor, &name);
        progress.plan.global = 0;
    }
    for (int i = 0; i < 2; i++) conductor_close(worlds[i].conductor);
}

static void a_paused_job_has_it_at_once_and_its_plan_anew(void **unused)
{
    (void)unused;
    struct world w;
    struct error error;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    call_for(&w, REQUEST_PAUSE, ANSWER_AT_BOUNDARY, NULL);
    step(&w, NULL);
    assert_int_equal(set(&w, &(struct edit){.lr = 0.5}, "optimizer.lr", &error), ANSWER_NOW);
    assert_false(conductor_is_due(w.conductor)); /* not all stand yet */
    assert_int_equal(set(&w, &(struct edit){.global = 6}, "batch.global", &error), ANSWER_NOW);
    stand(&w); /* on the plan that they have */
    assert_true(conductor_is_due(w.conductor));
    call_for(&w, REQUEST_RESUME, ANSWER_AT_BOUNDARY, NULL);
    const uint64_t first = w.next_plan.first;
    decide(&w);
    assert_true(w.held); /* once more: on the new one */
    assert_int_equal(w.next_plan.count, 6);
    assert_int_equal(w.next_plan.first, first);
    for (uint32_t r = 0; r < 2; r++) {
        Gacc__V1__Report report = report_of(&w, r);
        take(conductor_report(w.conductor, r, &report, w.now, &error), r == 1, &error);
    }
    assert_true(conductor_is_due(w.conductor));
    decide(&w);
    assert_true(w.window.weight == 6 && w.window.lr == 0.5);
    assert_int_equal(w.next_plan.first, first + 6);
    conductor_close(w.conductor);
}

/* The ranks' parts are on disk: their manifest is made anew, by the coordinator alone. */
static void check_settings_are_saved(struct world *w, const char *name)
{
    const char *saved;
    assert_string_equal(w->saves, "");
    assert_true(conductor_opens_checkpoint(w->conductor));
    conductor_progress(w->conductor, &saved);
    assert_string_equal(saved, name);
}

static void a_checkpoint_where_the_job_is_paused_gets_what_is_set_there(void **unused)
{
    (void)unused;
    struct world w;
    struct error error;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP16);
    w.checkpoint.every = 1;
    start(&w);
    call_for(&w, REQUEST_PAUSE, ANSWER_AT_BOUNDARY, NULL);
    step(&w, NULL);
    assert_string_equal(w.saves, "step-00000001");
    stand(&w);
    assert_int_equal(set(&w, &(struct edit){.lr = 0.5}, "optimizer.lr", &error), ANSWER_NOW);
    call_for(&w, REQUEST_CHECKPOINT, ANSWER_AT_BOUNDARY, NULL); /* the one under way does not have it */
    assert_true(conductor_is_due(w.conductor) && conductor_awaits_checkpoint(w.conductor));
    conductor_saved(w.conductor, NULL);
    decide(&w);
    check_settings_are_saved(&w, "step-00000001");
    stand(&w);
    call_for(&w, REQUEST_CHECKPOINT, ANSWER_NOW, NULL); /* this one does … */
    conductor_saved(w.conductor, NULL);
    call_for(&w, REQUEST_CHECKPOINT, ANSWER_NOW, NULL);
    assert_false(conductor_is_due(w.conductor));

    const struct edit scale = {.scale = 64}, batch = {.global = 6};
    assert_int_equal(set(&w, &scale, "precision.loss_scale.current", &error), ANSWER_NOW);
    assert_int_equal(set(&w, &batch, "batch.global", &error), ANSWER_NOW); /* … but not these */
    assert_true(conductor_is_due(w.conductor));
    decide(&w);
    check_settings_are_saved(&w, "step-00000001");
    const char *name;
    const struct progress *progress = conductor_progress(w.conductor, &name);
    assert_true(progress->scale.scale == 64 && progress->plan.count == 6);
    stand(&w);
    const struct error full = {.status = STATUS_IO, .text = "disk full"};
    conductor_saved(w.conductor, &full);
    call_for(&w, REQUEST_STOP, ANSWER_AT_BOUNDARY, NULL);
    decide(&w);
    check_settings_are_saved(&w, "step-00000001");
    assert_true(w.over && w.stops);
    conductor_saved(w.conductor, NULL);
    conductor_settle(w.conductor);
    finish(&w, STATUS_AGAIN);
}

static void a_checkpoint_asked_for_behind_a_setting_has_it(void **unused)
{
    (void)unused;
    struct world w;
    struct error error;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    call_for(&w, REQUEST_CHECKPOINT, ANSWER_AT_BOUNDARY, NULL);
    step(&w, NULL);
    assert_string_equal(w.saves, "step-00000001");
    call_for(&w, REQUEST_CHECKPOINT, ANSWER_NOW, NULL);
    assert_int_equal(set(&w, &(struct edit){.lr = 0.5}, "optimizer.lr", &error), ANSWER_AT_BOUNDARY);
    call_for(&w, REQUEST_CHECKPOINT, ANSWER_AT_BOUNDARY, NULL); /* not the one under way */
    conductor_saved(w.conductor, NULL);
    step(&w, NULL);
    assert_string_equal(w.saves, "step-00000002");
    assert_true(conductor_settings(w.conductor)->count == 1);
    conductor_close(w.conductor);
}

static void the_scale_is_set_with_its_trackers_at_the_beginning(void **unused)
{
    (void)unused;
    struct world w;
    struct error error;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP16);
    w.scale.interval = 3;
    start(&w);
    step(&w, NULL);
    assert_true(conductor_next_scale(w.conductor) == 8);
    set(&w, &(struct edit){.scale = 64}, "precision.loss_scale.current", &error);
    assert_true(conductor_next_scale(w.conductor) == 64);
    const struct step_record *record = step(&w, NULL);
    assert_true(record->loss_scale == 8 && record->loss_scale_next == 64 && record->growth_tracker == 0);
    for (int i = 0; i < 3; i++) {
        assert_true(w.window.scale == 64); /* three finite steps from there on */
        step(&w, NULL);
    }
    assert_true(w.records[0].step.loss_scale_next == 128);
    conductor_close(w.conductor);
}

static void a_job_ends_at_the_steps_that_it_has_now(void **unused)
{
    (void)unused;
    struct world w;
    struct error error;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32); /* 5 steps */
    start(&w);
    step(&w, NULL);
    step(&w, NULL);
    assert_int_equal(set(&w, &(struct edit){.steps = 2}, "job.steps", &error), ANSWER_REFUSED);
    assert_string_equal(error.text, "job.steps: 2 is below the 3 that are done with the step under way");
    assert_int_equal(set(&w, &(struct edit){.steps = 3}, "job.steps", &error), ANSWER_AT_BOUNDARY);
    step(&w, NULL);
    assert_true(w.over);
    finish(&w, 0);

    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.section.steps = 1;
    start(&w);
    assert_int_equal(set(&w, &(struct edit){.steps = 2}, "job.steps", &error),
                     ANSWER_AT_BOUNDARY); /* in the last one */
    step(&w, NULL);
    assert_false(w.over);
    step(&w, NULL);
    assert_int_equal(set(&w, &(struct edit){.steps = 9}, "job.steps", &error), ANSWER_REFUSED);
    assert_string_equal(error.text, "the job is ending");
    finish(&w, 0);
}

static void what_the_data_do_not_allow_is_refused(void **unused)
{
    (void)unused;
    struct world w;
    struct error error;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.sequences = 8;
    w.batch.tail = GACC__V1__TAIL__TAIL_DROP;
    open_conductor(&w);
    assert_int_equal(set(&w, &(struct edit){.lr = 2}, "optimizer.lr", &error), ANSWER_REFUSED);
    assert_string_equal(error.text, "the job is starting: not all ranks have joined yet");
    begin(&w);
    assert_int_equal(set(&w, &(struct edit){.global = 9}, "batch.global", &error), ANSWER_REFUSED);
    assert_non_null(strstr(error.text, "holds 8 sequences, fewer than batch.global: 9"));
    conductor_close(w.conductor);
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    w.section.steps = 0;
    w.section.epochs = 1;
    start(&w);
    assert_int_equal(set(&w, &(struct edit){.global = 8}, "batch.global", &error), ANSWER_REFUSED);
    assert_non_null(strstr(error.text, "cannot be changed in a job by job.epochs"));
    conductor_close(w.conductor);
}

/* Two checkpoints must never be under way at once, and the interval may have changed. */
static void a_decision_with_settings_waits_for_the_checkpoint_under_way(void **unused)
{
    (void)unused;
    struct world w;
    struct error error;
    make(&w, 2, GACC__V1__COMPUTE__COMPUTE_FP32);
    start(&w);
    call_for(&w, REQUEST_CHECKPOINT, ANSWER_AT_BOUNDARY, NULL);
    step(&w, NULL);
    assert_false(conductor_awaits_checkpoint(w.conductor));
    set(&w, &(struct edit){.save_every = 2}, "checkpoint.every", &error);
    assert_true(conductor_awaits_checkpoint(w.conductor));
    conductor_saved(w.conductor, NULL);
    step(&w, NULL);
    assert_string_equal(w.saves, "step-00000002");
    conductor_close(w.conductor);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_setting_is_the_next_windows_and_not_sooner),
        cmocka_unit_test(the_global_batch_changes_one_window_later),
        cmocka_unit_test(a_batch_that_was_about_to_change_does_so_behind_a_resume),
        cmocka_unit_test(a_plan_that_does_not_say_its_batch_has_the_jobs),
        cmocka_unit_test(a_paused_job_has_it_at_once_and_its_plan_anew),
        cmocka_unit_test(a_checkpoint_where_the_job_is_paused_gets_what_is_set_there),
        cmocka_unit_test(a_checkpoint_asked_for_behind_a_setting_has_it),
        cmocka_unit_test(the_scale_is_set_with_its_trackers_at_the_beginning),
        cmocka_unit_test(a_job_ends_at_the_steps_that_it_has_now),
        cmocka_unit_test(what_the_data_do_not_allow_is_refused),
        cmocka_unit_test(a_decision_with_settings_waits_for_the_checkpoint_under_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
