/*
 * One optimizer step, in the order of its states. Nothing is communicated before Reduce; nothing is decided here: what
 * the rank saw goes into one report, and the decision says what all ranks do.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "worker/session_internal.h"

#define STATE(name) GACC__V1__STATE__STATE_##name

double seconds_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double seconds_now(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

/* Adds the time since *since to *total and starts anew. */
static void clock_lap(double *since, double *total)
{
    double now = seconds_now();
    *total += now - *since;
    *since = now;
}

/* A local error does not keep the rank from the reduction: the others are waiting there. The report carries it. */
static void fail_locally(struct session *session, const struct error *error)
{
    if (!session->failure.status) session->failure = *error;
}

/* Shows the session to whoever looks on. */
static int observe(struct session *session, const struct step *step,
                   void (*look)(struct observer *, const struct session_view *), struct error *error)
{
    struct session_view view;
    int result = session_look(session, &view, error);
    if (result) return result;
    view.step = step->plan->step;
    view.scale = step->window->scale;
    look(session->options.observer, &view);
    return 0;
}

double split_loss(long double sum, int32_t *exponent)
{
    *exponent = 0;
    return isfinite(sum) ? (double)frexpl(sum, exponent) : (double)sum;
}

/* Forward and backward, kernel by kernel. */
static int run_pass(struct session *session, const struct step *step, struct pass *pass, struct error *error)
{
    model_forward(session->model, pass, session->activations);
    int result = session_enter(session, STATE(MICRO_BACKWARD), error);
    if (!result && !fault_loses_backward(session, step)) model_backward(session->model, pass, session->activations);
    return result;
}

/* Nothing but its memory tells one micro-batch from the next if both are full: then what was asked of the kernels once
 * can be asked again as a whole. Not of the window's first, which waits for parameters, nor of its last, beside which
 * gradients are reduced. */
static bool replays(const struct session *session, uint32_t k)
{
    return session->kernels->table->record && session->model->recordable && !session->unrecordable && k > 0 &&
           k + 1 < session->machine.micro_batches && session->batch->rows == session->batch->capacity;
}

static void forget_recording(struct session *session)
{
    if (session->recording) session->kernels->table->recording_close(session->kernels, session->recording);
    session->recording = NULL;
}

/* Leaves session->recording NULL when the backend could not record. */
static void record(struct session *session, struct pass *pass)
{
    const struct kernel_table *table = session->kernels->table;
    table->record(session->kernels);
    model_forward(session->model, pass, session->activations);
    model_backward(session->model, pass, session->activations);
    session->recording = table->recorded(session->kernels);
    session->recorded_loss = pass->loss_sum;
    session->unrecordable = session->recording == NULL;
}

static int replay(struct session *session, const struct step *step, struct pass *pass, struct error *error)
{
    if (session->recorded_loss != pass->loss_sum) forget_recording(session);
    if (!session->recording) record(session, pass);
    if (!session->recording) return run_pass(session, step, pass, error);
    session->kernels->table->replay(session->kernels, session->recording);
    return session_enter(session, STATE(MICRO_BACKWARD), error);
}

static void count_batch(struct session *session, struct step *step)
{
    struct loss_unit unit = {session->batch->exponent, session->batch->weight_sum};
    results_keep_loss(&session->results, unit);
    step->weight += unit.weight_sum;
    step->micro_batches++;
}

/* Forward and backward of the batch that was read, the rank's k-th. */
static int run_micro_batch(struct session *session, struct step *step, uint32_t k, struct error *error)
{
    int result = session_enter(session, STATE(MICRO_FORWARD), error);
    if (result) return result;
    struct pass pass = window_pass(session, step);
    if (replays(session, k)) {
        result = replay(session, step, &pass, error);
    } else {
        pass.overlap = overlap_first(session);
        if (k + 1 == session->machine.micro_batches) pass.overlap.complete = overlap_last(session).complete;
        result = run_pass(session, step, &pass, error);
    }
    if (!result && session->statistics) result = running_check(session, error);
    if (!result) count_batch(session, step);
    return result;
}

/* The micro-batches of a window that is run stage by stage. */
struct staged {
    struct session *session;
    struct step *step;
    double clock;
    struct error error;
};

static bool open_staged(void *context, uint32_t k, struct pass *pass)
{
    struct staged *staged = context;
    struct session *session = staged->session;
    struct error unreadable = {0};
    if (session->failure.status) return false;
    clock_lap(&staged->clock, &staged->step->seconds.compute);
    if (window_read(session, staged->step->plan, staged->step->share.first + k, &unreadable))
        fail_locally(session, &unreadable);
    clock_lap(&staged->clock, &staged->step->seconds.data);
    if (session->failure.status || !(session->batch->weight_sum > 0)) return false;
    if (fault_loses_backward(session, staged->step)) return false;
    *pass = window_pass(session, staged->step);
    return true;
}

static void staged_done(void *context, uint32_t k)
{
    struct staged *staged = context;
    count_batch(staged->session, staged->step);
    if (!staged->error.status) fault_after_micro_batch(staged->session, staged->step, k, &staged->error);
}

static void staged_added(void *context)
{
    struct staged *staged = context;
    if (!staged->error.status) fault_in_accumulator(staged->session, &staged->error);
}

/* All of the window's micro-batches together; a rank that cannot take part has none, so that no other waits for it. */
static int accumulate_by_stages(struct session *session, struct step *step, struct error *error)
{
    struct staged staged = {.session = session, .step = step, .clock = step->started};
    struct window_passes passes = {session->machine.micro_batches, &staged, open_staged, staged_done, staged_added};
    struct error no_room = {0};
    int result = overlap_settle(session, error);
    if (!result && session_window_room(session, passes.count, &no_room)) fail_locally(session, &no_room);
    if (session->failure.status) {
        step_state_cut_short(&session->machine);
        passes.count = 0;
    }
    if (!result && passes.count) result = session_enter(session, STATE(MICRO_FORWARD), error);
    if (!result && passes.count) result = session_enter(session, STATE(MICRO_BACKWARD), error); /* here and there */
    if (result) return result;
    model_run_window(session->model, &passes, session->statistics, session->activations, session->window);
    clock_lap(&staged.clock, &step->seconds.compute);
    for (uint32_t k = 0; k < passes.count && !result; k++)
        result = step_state_micro_batch_done(&session->machine, error);
    if (!result) result = running_check(session, error);
    if (!result && staged.error.status) result = error_set(error, staged.error.status, "%s", staged.error.text);
    return result;
}

static uint32_t most_micro_batches(const Gacc__V1__Plan *plan)
{
    uint32_t most = 0;
    for (size_t rank = 0; rank < plan->n_shares; rank++)
        if (plan->shares[rank] > most) most = plan->shares[rank];
    return most;
}

/* A micro-batch without weight is read and left out: it adds nothing, and its 0/0 is never formed. */
static int accumulate_one_by_one(struct session *session, struct step *step, struct error *error)
{
    double clock = step->started;
    if (session->failure.status) step_state_cut_short(&session->machine);
    for (uint32_t k = 0; k < session->machine.micro_batches; k++) {
        struct error unreadable = {0};
        int failed = window_read(session, step->plan, step->share.first + k, &unreadable);
        clock_lap(&clock, &step->seconds.data);
        if (failed) {
            fail_locally(session, &unreadable);
            step_state_cut_short(&session->machine);
            break;
        }
        int result = 0;
        if (session->batch->weight_sum > 0)
            result = run_micro_batch(session, step, k, error);
        else
            running_stand_by(session);
        if (!result) result = step_state_micro_batch_done(&session->machine, error);
        if (result) return result;
        result = fault_in_accumulator(session, error);
        if (!result) result = fault_after_micro_batch(session, step, k, error);
        if (result) return result;
        comm_progress(session->comm); /* of the last step's all-gather */
        clock_lap(&clock, &step->seconds.compute);
    }
    for (uint32_t k = session->machine.current; k < most_micro_batches(step->plan); k++) running_stand_by(session);
    clock_lap(&clock, &step->seconds.compute);
    return session->statistics ? running_check(session, error) : 0;
}

static int accumulate(struct session *session, struct step *step, struct error *error)
{
    int result = running_needs_window(session) ? accumulate_by_stages(session, step, error)
                                               : accumulate_one_by_one(session, step, error);
    if (result) return result;
    result = fault_after_window(session, step, error);
    return result ? result : session_enter(session, STATE(MAYBE_OVERFLOW_SIGNAL), error);
}

static int reduce(struct session *session, struct step *step, struct error *error)
{
    int result = session_enter(session, STATE(REDUCE), error);
    if (result) return result;
    double clock = seconds_now();
    if (!fault_misses_reduction(session, step)) result = overlap_reduce(session, error);
    clock_lap(&clock, &step->seconds.reduce);
    if (!result && session->options.observer)
        result = observe(session, step, session->options.observer->reduced, error);
    return result;
}

/* One pass over the own shard: finite?, Σ raw², Σ (raw/S)². The gradient itself is unscaled where it is used, in the
 * update. Here the host waits for the kernels, once in a step. */
static int unscale(struct session *session, struct step *step, struct error *error)
{
    int result = session_enter(session, STATE(UNSCALE), error);
    if (result) return result;
    double clock = seconds_now();
    for (const struct run *run = session->runs; run < session->runs + session->run_count; run++)
        session->kernels->table->check(session->kernels, results_check(&session->results),
                                       element(session->shard, run->first, session->wide_type), run->count,
                                       1 / step->window->scale);
    clock_lap(&clock, &step->seconds.update);
    struct error failed = {0};
    if (results_read(&session->results, &failed)) fail_locally(session, &failed);
    clock_lap(&clock, &step->seconds.compute); /* what a device has left to do, the reduction beside it included */
    bool means = session->job->batch->weighting == GACC__V1__WEIGHTING__WEIGHTING_MICROBATCH;
    step->check = results_check_read(&session->results);
    step->loss_sum = results_loss_sum(&session->results, means);
    if (self_check_due(session) && self_check_compare(session, &failed)) fail_locally(session, &failed);
    clock_lap(&clock, &step->seconds.update);
    return 0;
}

static int report(struct session *session, struct step *step, struct error *error)
{
    Gacc__V1__Failure failure = GACC__V1__FAILURE__INIT;
    failure.status = (uint32_t)session->failure.status;
    failure.text = session->failure.text;
    Gacc__V1__Report message = GACC__V1__REPORT__INIT;
    message.step = step->plan->step;
    if (session->failure.status) message.failure = &failure;
    message.finite = step->check.nonfinite == 0;
    message.sum_squares_scaled = step->check.sum_squares_scaled;
    message.sum_squares = step->check.sum_squares;
    message.loss_sum = split_loss(step->loss_sum, &message.loss_exponent);
    message.weight = step->weight;
    message.micro_batches = step->micro_batches;
    if (self_check_due(session)) message.parameters_checksum = self_check_parameters(session);
    window_share_weight(session, step->next_plan, &message.next_weight, &message.next_micro_batches);
    message.reduce_scatters = session->comm->counts.reduce_scatter;
    message.reduce_scatter_bytes = session->comm->counts.reduce_scatter_bytes;
    message.seconds = &step->seconds;
    double clock = seconds_now();
    step->seconds.step = clock - step->started;
    int result = session->control->report(session->control, &message, &step->decision, error);
    clock_lap(&clock, &step->seconds.decision);
    return result;
}

/* What the attempt was like, and an evaluation where the decision asks for one. Not awaited. */
static int step_done(struct session *session, struct step *step, Gacc__V1__Blame *blame, struct error *error)
{
    Gacc__V1__StepDone message = GACC__V1__STEP_DONE__INIT;
    Gacc__V1__Evaluation evaluation = GACC__V1__EVALUATION__INIT;
    if (step->decision->evaluate) {
        int result = session_enter(session, STATE(EVALUATE), error);
        if (result) return result;
        if (evaluate(session, &evaluation)) message.evaluation = &evaluation;
    }
    message.step = step->plan->step;
    message.all_gathers = session->comm->counts.all_gather;
    message.all_gather_bytes = session->comm->counts.all_gather_bytes;
    message.control_collectives = session->comm->counts.control;
    message.statistics_collectives = session->comm->counts.statistics;
    message.statistics_bytes = session->comm->counts.statistics_bytes;
    message.single_value = session->statistics && session->statistics->has_single;
    message.seconds = &step->seconds;
    message.blame = blame;
    session->comm->counts = (struct comm_counts){0};
    return session->control->step_done(session->control, &message, error);
}

/* The verdict is FAIL: the job ends here. Where numerics end it, this attempt is asked for its culprit like a skipped
 * one, so that the last words name it; after any other failure there is nothing to find. */
static int end_by_failure(struct session *session, struct step *step, struct error *error)
{
    const Gacc__V1__Failure *failure = step->decision->failure;
    int result = session_enter(session, STATE(FINISHED), error);
    if (result) return result;
    if (!failure || !failure->status)
        return error_set(error, STATUS_INTERNAL, "step %" PRIu64 ": the coordinator ends the job and does not say why",
                         step->plan->step);
    if (failure->status == STATUS_NUMERICS) {
        Gacc__V1__Blame *blame = blame_find(session, step);
        result = step_done(session, step, blame, error);
        blame_free(blame);
        if (result) return result;
    }
    return error_received(error, failure->status, failure->text);
}

/* The rank now knows what all ranks do. A decision it cannot follow is refused before anything changes. */
static int take_decision(struct session *session, struct step *step, struct error *error)
{
    int result = session_enter(session, STATE(CLIP), error);
    if (result) return result;
    const Gacc__V1__Decision *decision = step->decision;
    uint64_t number = step->plan->step;
    if (decision->verdict == GACC__V1__VERDICT__VERDICT_FAIL) return end_by_failure(session, step, error);
    if (decision->step != number)
        return error_set(error, STATUS_INTERNAL, "step %" PRIu64 ": a decision for step %" PRIu64 " came", number,
                         decision->step);
    if (decision->verdict == GACC__V1__VERDICT__VERDICT_APPLY && (step->check.nonfinite || session->failure.status))
        return error_set(error, STATUS_INTERNAL, "step %" PRIu64 ": told to apply a gradient that is not usable",
                         number);
    step->applies = step->gathers = decision->verdict == GACC__V1__VERDICT__VERDICT_APPLY;
    if (decision->verdict == GACC__V1__VERDICT__VERDICT_RETRY && !decision->next)
        return error_set(error, STATUS_INTERNAL, "step %" PRIu64 ": told to run the window again, and at no scale",
                         number);
    fault_in_verdict(session, step);
    return 0;
}

/* Rounds the own master parameters into the compute-type ones. */
static void publish_own_parameters(struct session *session)
{
    for (uint32_t bucket = 0; bucket < session->map.bucket_count; bucket++) {
        struct range own = shard_map_range(&session->map, bucket, session->comm->rank);
        session->kernels->table->cast(
            session->kernels, element(session->parameters, own.begin, session->compute_type),
            element(session->master, shard_map_offset(&session->map, bucket), session->wide_type), own.end - own.begin);
    }
}

/* The S that unscales is the one stamped on the window the gradient was made in. */
static int step_or_skip(struct session *session, struct step *step, Gacc__V1__Blame **blame, struct error *error)
{
    int result = session_enter(session, STATE(STEP_OR_SKIP), error);
    if (result) return result;
    if (step->decision->verdict == GACC__V1__VERDICT__VERDICT_SKIP) *blame = blame_find(session, step);
    if (!step->applies) return 0;
    double clock = seconds_now();
    struct optimizer_step applied = {
        .lr = step->window->lr,
        .unscale = step->decision->clip_coefficient / step->window->scale,
        .t = step->window->optimizer_steps + 1,
    };
    fault_in_update(session, step, &applied);
    optimizer_apply(&session->optimizer, &session->layout, session->runs, session->run_count, session->master,
                    session->shard, &applied);
    publish_own_parameters(session);
    result = running_advance(session, error);
    clock_lap(&clock, &step->seconds.update);
    return result;
}

/* Gradients are cleared here and nowhere else, whatever the verdict. */
static int exit_step(struct session *session, struct step *step, struct error *error)
{
    int result = session_enter(session, STATE(EXIT_STEP), error);
    if (result) return result;
    double clock = seconds_now();
    if (step->gathers) result = overlap_gather(session, error);
    clock_lap(&clock, &step->seconds.gather);
    if (!fault_keeps_gradients(session)) window_clear_gradients(session);
    if (!result && session->options.observer)
        result = observe(session, step, session->options.observer->stepped, error);
    step->seconds.step = seconds_now() - step->started;
    return result;
}

static int begin(struct session *session, struct step *step, struct error *error)
{
    step->share = window_share(session, step->plan);
    step->seconds = (Gacc__V1__Seconds)GACC__V1__SECONDS__INIT;
    step->started = seconds_now();
    if (step->window->step != step->plan->step)
        return error_set(error, STATUS_INTERNAL, "the window of step %" PRIu64 " meets the plan of step %" PRIu64,
                         step->window->step, step->plan->step);
    int result = step_state_begin(&session->machine, step->plan->step, step->share.count, error);
    if (result) return result;
    const struct kernel_table *table = session->kernels->table;
    if (table->range_begin) table->range_begin(session->kernels, step_state_name(STATE(ENTER_STEP)));
    session->control->state(session->control, step->plan->step, STATE(ENTER_STEP), 0);
    overlap_begin(session);
    if (session->statistics) statistics_begin(session->statistics);
    result = results_begin(&session->results, step->share.count, error);
    if (!result) result = fault_in_memory(session, step, error);
    if (!result && self_check_due(session)) result = self_check_remember(session, error);
    return result;
}

int step_run(struct session *session, struct step *step, struct error *error)
{
    Gacc__V1__Blame *blame = NULL;
    int result = begin(session, step, error);
    if (!result) result = accumulate(session, step, error);
    if (!result) result = reduce(session, step, error);
    if (!result) result = unscale(session, step, error);
    if (!result) result = report(session, step, error);
    if (!result) result = take_decision(session, step, error);
    if (!result) result = step_or_skip(session, step, &blame, error);
    if (!result) result = session_enter(session, STATE(UPDATE_SCALE), error); /* the next S came with the decision */
    if (!result) result = exit_step(session, step, error);
    const bool ends = !result && step->decision->verdict != GACC__V1__VERDICT__VERDICT_RETRY;
    if (ends && step->decision->save) result = checkpoint_begin(session, step->decision->save, error);
    if (ends && !result) result = step_done(session, step, blame, error);
    blame_free(blame);
    return result;
}
