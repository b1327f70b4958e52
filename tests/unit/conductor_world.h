/*
 * A simulated world for the conductor's tests: a job, and ranks that do what its messages say, or, where a test wants
 * it, something else. Every message is checked as it passes.
 */
#ifndef GACC_TESTS_CONDUCTOR_WORLD_H
#define GACC_TESTS_CONDUCTOR_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "daemon/coordinator/conductor.h"

#define RANKS_MOST 4

/* A job, its ranks, and what they were told last. */
struct world {
    Gacc__V1__JobSpec job;
    Gacc__V1__JobSection section;
    Gacc__V1__BatchSection batch;
    Gacc__V1__PrecisionSection precision;
    Gacc__V1__LossScaleSection scale;
    Gacc__V1__OptimizerSection optimizer;
    Gacc__V1__ScheduleSection schedule;
    Gacc__V1__EvaluationSection evaluation;
    Gacc__V1__CheckpointSection checkpoint;
    uint8_t digest[4];

    uint32_t ranks;
    uint64_t sequences, validation_sequences, targets;
    bool (*weightless)(uint64_t epoch, uint64_t position); /* NULL: every sequence weighs `targets` */

    uint32_t reductions; /* that each rank counts */
    bool single_value;   /* each rank found a set of one */
    uint32_t mute;       /* this rank has no evaluation to send; UINT32_MAX: all have */

    struct conductor *conductor;
    double now;
    struct {
        uint64_t step, epoch, first;
        uint32_t count, micro, shares[RANKS_MOST][2];
    } plan, next_plan; /* of the step under way, of the one after it (step 0: none) */
    struct {
        uint64_t step, optimizer_steps;
        double scale, weight, lr;
        uint32_t micro_batches;
    } window;
    bool over;
    Gacc__V1__Verdict verdict;
    double coefficient;
    bool evaluate, stops, held;
    char saves[64];   /* the name of the checkpoint that the last decision asked for; empty: none */
    uint64_t resumed; /* step that the world goes on from */
    struct record records[8];
    size_t record_count;
};

static inline void make(struct world *w, uint32_t ranks, Gacc__V1__Compute compute)
{
    *w = (struct world){.job = GACC__V1__JOB_SPEC__INIT,
                        .section = GACC__V1__JOB_SECTION__INIT,
                        .batch = GACC__V1__BATCH_SECTION__INIT,
                        .precision = GACC__V1__PRECISION_SECTION__INIT,
                        .scale = GACC__V1__LOSS_SCALE_SECTION__INIT,
                        .optimizer = GACC__V1__OPTIMIZER_SECTION__INIT,
                        .schedule = GACC__V1__SCHEDULE_SECTION__INIT,
                        .evaluation = GACC__V1__EVALUATION_SECTION__INIT,
                        .checkpoint = GACC__V1__CHECKPOINT_SECTION__INIT,
                        .digest = {1, 2, 3, 4},
                        .ranks = ranks,
                        .sequences = 1000,
                        .validation_sequences = 10,
                        .targets = 1,
                        .reductions = 1,
                        .mute = UINT32_MAX};
    w->job.job = &w->section;
    w->job.batch = &w->batch;
    w->job.precision = &w->precision;
    w->job.optimizer = &w->optimizer;
    w->job.schedule = &w->schedule;
    w->job.evaluation = &w->evaluation;
    w->job.checkpoint = &w->checkpoint;
    w->job.digest = (ProtobufCBinaryData){sizeof w->digest, w->digest};
    w->section.name = (char *)"test";
    w->section.output = (char *)"runs/test";
    w->section.steps = 5;
    w->batch.global = 4;
    w->batch.micro = 1;
    w->precision.compute = compute;
    w->precision.nonfinite_stop_after = 3;
    w->optimizer.lr = 1;
    w->checkpoint.async = true;
    if (compute != GACC__V1__COMPUTE__COMPUTE_FP16) return;
    w->precision.loss_scale = &w->scale;
    w->scale.initial = 8;
    w->scale.growth = 2;
    w->scale.backoff = 0.5;
    w->scale.interval = 2;
    w->scale.hysteresis = 1;
    w->scale.at_minimum = GACC__V1__AT_MINIMUM__AT_MINIMUM_CLAMP;
    w->scale.stop_after = 20;
}

static inline void open_conductor(struct world *w)
{
    struct error error = {0};
    w->now = 100;
    if (conductor_open(&w->conductor, &w->job, w->ranks, w->now, &error)) fail_msg("%s", error.text);
}

static inline Gacc__V1__Hello hello_of(struct world *w, uint32_t rank)
{
    Gacc__V1__Hello hello = GACC__V1__HELLO__INIT;
    hello.rank = rank;
    hello.ranks = w->ranks;
    hello.job_digest = w->job.digest;
    hello.host = (char *)"host";
    hello.pid = 1000 + rank;
    hello.train_sequences = w->sequences;
    hello.validation_sequences = w->validation_sequences;
    hello.parameters = 77;
    hello.targets_per_sequence = w->targets;
    hello.device = (char *)"cpu";
    return hello;
}

static inline void take_next_plan(struct world *w, const Gacc__V1__Plan *plan)
{
    w->next_plan.step = plan->step;
    w->next_plan.epoch = plan->epoch;
    w->next_plan.first = plan->first;
    w->next_plan.count = plan->count;
    w->next_plan.micro = plan->micro;
    assert_int_equal(plan->n_shares, w->ranks);
    uint32_t next = 0;
    for (uint32_t r = 0; r < w->ranks; r++) {
        w->next_plan.shares[r][0] = next;
        w->next_plan.shares[r][1] = plan->shares[r];
        next += plan->shares[r];
    }
    assert_int_equal(next, (plan->count + plan->micro - 1) / plan->micro);
}

static inline void take_plan(struct world *w, const Gacc__V1__Plan *plan)
{
    w->plan = w->next_plan;
    w->next_plan.step = 0;
    if (plan) take_next_plan(w, plan);
}

static inline void weigh(struct world *w, uint32_t rank, bool next, double *weight, uint32_t *micro_batches)
{
    *weight = 0;
    *micro_batches = 0;
    const __typeof__(w->plan) *plan = next ? &w->next_plan : &w->plan;
    if (plan->step == 0) return;
    for (uint32_t m = plan->shares[rank][0]; m < plan->shares[rank][0] + plan->shares[rank][1]; m++) {
        double micro_weight = 0;
        for (uint32_t i = m * plan->micro; i < (m + 1) * plan->micro && i < plan->count; i++)
            if (!w->weightless || !w->weightless(plan->epoch, plan->first + i)) micro_weight += (double)w->targets;
        *weight += micro_weight;
        *micro_batches += micro_weight > 0;
    }
}

/* A finite report with loss 2 and gradient norm 5 (over all ranks). */
static inline Gacc__V1__Report report_of(struct world *w, uint32_t rank)
{
    Gacc__V1__Report report = GACC__V1__REPORT__INIT;
    report.step = w->plan.step ? w->plan.step : w->resumed;
    weigh(w, rank, true, &report.next_weight, &report.next_micro_batches);
    if (w->held) return report;
    report.finite = true;
    weigh(w, rank, false, &report.weight, &report.micro_batches);
    report.loss_sum = 2 * report.weight;
    report.sum_squares = 25.0 / w->ranks;
    report.sum_squares_scaled = report.sum_squares * w->window.scale * w->window.scale;
    report.parameters_checksum = 77;
    report.reduce_scatters = w->reductions;
    report.reduce_scatter_bytes = w->reductions * (100 + rank);
    return report;
}

static inline void decide(struct world *w)
{
    w->now += 0.5;
    const Gacc__V1__Decision *decision = conductor_decide(w->conductor, w->now);
    assert_non_null(decision);
    assert_int_equal(decision->step, w->plan.step ? w->plan.step : w->resumed);
    w->verdict = decision->verdict;
    w->coefficient = decision->clip_coefficient;
    w->evaluate = decision->evaluate;
    w->held = decision->hold;
    w->over = !decision->next && !decision->hold;
    w->stops = decision->stop;
    snprintf(w->saves, sizeof w->saves, "%s", decision->save ? strrchr(decision->save->directory, '/') + 1 : "");
    assert_int_equal(decision->verdict == GACC__V1__VERDICT__VERDICT_FAIL, decision->failure != NULL);
    if (decision->failure) assert_true(w->over);
    if (w->over) {
        assert_null(decision->plan);
        return;
    }
    if (w->held) {
        assert_null(decision->next);
        if (decision->plan) take_next_plan(w, decision->plan);
        return;
    }
    w->window.step = decision->next->step;
    w->window.optimizer_steps = decision->next->optimizer_steps;
    w->window.scale = decision->next->scale;
    w->window.weight = decision->next->weight;
    w->window.lr = decision->next->lr;
    w->window.micro_batches = decision->next->micro_batches;
    take_plan(w, decision->plan);
    assert_int_equal(w->window.step, w->plan.step);
    if (decision->plan) assert_int_equal(decision->plan->step, w->window.step + 1);
}

static inline void take(int result, int wanted, const struct error *error)
{
    if (result != wanted) fail_msg("%d, not %d: %s", result, wanted, error->text);
}

/* From the hello on; the conductor is open. */
static inline void begin(struct world *w)
{
    struct error error = {0};
    for (uint32_t r = 0; r < w->ranks; r++) {
        Gacc__V1__Hello hello = hello_of(w, r);
        take(conductor_hello(w->conductor, r, &hello, w->now, &error), r + 1 == w->ranks, &error);
    }
    const Gacc__V1__Welcome *welcome = conductor_welcome(w->conductor, w->now);
    assert_non_null(welcome);
    assert_int_equal(welcome->plan->step, w->resumed + 1);
    take_plan(w, welcome->plan);
    for (uint32_t r = 0; r < w->ranks; r++) {
        Gacc__V1__Report report = report_of(w, r);
        take(conductor_report(w->conductor, r, &report, w->now, &error), r + 1 == w->ranks, &error);
    }
    decide(w);
}

static inline void start(struct world *w)
{
    open_conductor(w);
    begin(w);
}

/* What one rank's report, or step_done, says otherwise. */
struct twist {
    uint32_t rank;
    bool nonfinite;
    const char *failure;
    const char *tensor;
    uint64_t parameters_checksum; /* 0: that of the others */
};

static inline void report_all(struct world *w, const struct twist *twist)
{
    struct error error = {0};
    for (uint32_t i = 0; i < w->ranks; i++) {
        uint32_t r = w->ranks - 1 - i; /* the order of arrival is no matter */
        Gacc__V1__Report report = report_of(w, r);
        Gacc__V1__Failure failure = GACC__V1__FAILURE__INIT;
        if (twist && twist->rank == r) {
            report.finite = !twist->nonfinite;
            if (twist->parameters_checksum) report.parameters_checksum = twist->parameters_checksum;
            failure.status = STATUS_DATA;
            failure.text = (char *)twist->failure;
            if (twist->failure) report.failure = &failure;
        }
        take(conductor_report(w->conductor, r, &report, w->now, &error), i + 1 == w->ranks, &error);
    }
    decide(w);
}

static inline void drain(struct world *w)
{
    w->record_count = 0;
    while (conductor_next_record(w->conductor, &w->records[w->record_count])) w->record_count++;
}

static inline void done_all(struct world *w, uint64_t step, const struct twist *twist)
{
    struct error error = {0};
    for (uint32_t r = 0; r < w->ranks; r++) {
        Gacc__V1__StepDone done = GACC__V1__STEP_DONE__INIT;
        Gacc__V1__Seconds seconds = GACC__V1__SECONDS__INIT;
        Gacc__V1__Evaluation evaluation = GACC__V1__EVALUATION__INIT;
        Gacc__V1__Blame blame = GACC__V1__BLAME__INIT;
        done.step = step;
        done.all_gathers = w->verdict == GACC__V1__VERDICT__VERDICT_APPLY;
        seconds.step = 0.25 * (r + 1);
        seconds.compute = 0.5 / (r + 1);
        done.seconds = &seconds;
        done.single_value = w->single_value;
        evaluation.loss_sum = 3 * (r + 1);
        evaluation.weight = r + 1;
        evaluation.sequences = 5;
        if (w->evaluate && r != w->mute) done.evaluation = &evaluation;
        if (twist && twist->rank == r && twist->tensor) {
            blame.tensor = (char *)twist->tensor;
            blame.has_micro_batch = true;
            blame.micro_batch = 3;
            done.blame = &blame;
        }
        take(conductor_step_done(w->conductor, r, &done, w->now, &error), r + 1 == w->ranks, &error);
    }
    drain(w);
    assert_true(w->record_count >= 1);
    assert_int_equal(w->records[0].type, RECORD_STEP);
    assert_int_equal(w->records[0].step.counters.step, step);
}

/* One whole step; its record is records[0]. */
static inline const struct step_record *step(struct world *w, const struct twist *twist)
{
    uint64_t number = w->plan.step;
    report_all(w, twist);
    done_all(w, number, twist);
    return &w->records[0].step;
}

static inline void call_for(struct world *w, enum request request, enum answer wanted, const char *why)
{
    struct error error = {0};
    assert_int_equal(conductor_ask(w->conductor, request, "uid 1 (jo), pid 2", &error), wanted);
    if (why && !strstr(error.text, why)) fail_msg("%s, not %s", error.text, why);
}

static inline void check_status(struct world *w, const char *phase, const char *request)
{
    const Gacc__V1__Status *status = conductor_status(w->conductor, w->now);
    assert_string_equal(status->phase, phase);
    assert_int_equal(status->n_requests, request != NULL);
    if (request) assert_string_equal(status->requests[0], request);
}

static inline void check_boundary(const struct world *w, uint64_t step, uint64_t optimizer_steps)
{
    assert_int_equal(conductor_boundary(w->conductor)->step, step);
    assert_int_equal(conductor_boundary(w->conductor)->optimizer_steps, optimizer_steps);
}

/* The reports of ranks that stand: no decision is due yet. */
static inline void stand(struct world *w)
{
    struct error error = {0};
    assert_true(w->held);
    for (uint32_t r = 0; r < w->ranks; r++) {
        Gacc__V1__Report report = report_of(w, r);
        assert_false(conductor_is_due(w->conductor));
        take(conductor_report(w->conductor, r, &report, w->now, &error), r + 1 == w->ranks, &error);
    }
}

static inline void finish(struct world *w, int exit)
{
    struct error error = {0};
    assert_true(w->over);
    for (uint32_t r = 0; r < w->ranks; r++) {
        Gacc__V1__Finished finished = GACC__V1__FINISHED__INIT;
        take(conductor_finished(w->conductor, r, &finished, w->now, &error), r + 1 == w->ranks, &error);
    }
    for (uint32_t r = 0; r < w->ranks; r++) {
        const Gacc__V1__Farewell *farewell = conductor_farewell(w->conductor, r);
        assert_int_equal(farewell->failure ? (int)farewell->failure->status : 0, exit);
        assert_int_equal(farewell->print, exit != 0 && r == 0);
    }
    struct end_record end;
    conductor_end(w->conductor, w->now, &end);
    assert_int_equal(end.exit, exit);
    conductor_close(w->conductor);
}

#endif
