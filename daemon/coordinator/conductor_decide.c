/* Messages out: the welcome, one decision per step from all reports, the farewell. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "daemon/coordinator/conductor_internal.h"

static Gacc__V1__Plan *plan_message(struct conductor *c, uint64_t step, const struct plan *plan)
{
    c->plan.step = step;
    c->plan.epoch = plan->epoch;
    c->plan.first = plan->first;
    c->plan.count = plan->count;
    c->plan.micro = c->rules.plan.micro;
    c->plan.n_shares = c->ranks;
    c->plan.shares = c->shares;
    for (uint32_t r = 0; r < c->ranks; r++) {
        uint32_t first;
        plan_share(plan, c->ranks, r, &first, &c->shares[r]);
    }
    return &c->plan;
}

static void await_reports(struct conductor *c)
{
    c->phase = PHASE_REPORTS;
    c->awaited = c->ranks;
    c->first_failure.status = STATUS_DONE;
    c->reduce_scatters = 0;
    c->reduce_scatter_bytes = 0;
    for (uint32_t r = 0; r < c->ranks; r++) c->rank[r].reported = false;
}

/* A job that goes on may have nothing left to do. */
const Gacc__V1__Welcome *conductor_welcome(struct conductor *c, double now)
{
    if (c->phase != PHASE_WELCOME) return NULL;
    const bool is_done = c->rules.plan.epochs == 0 && c->counters.optimizer_steps >= c->rules.total_steps;
    const struct plan_rules *rules = &c->rules.plan;
    const bool was_issued = c->has_upcoming; /* before the checkpoint: of the B and the ramp of then */
    if (is_done)
        c->has_upcoming = false;
    else if (was_issued)
        c->has_upcoming = plan_again(rules, &c->position, &c->upcoming);
    else
        c->has_upcoming = plan_next(rules, c->counters.optimizer_steps, &c->position, &c->upcoming);
    c->welcome.plan = c->has_upcoming ? plan_message(c, c->step + 1, &c->upcoming) : NULL;
    c->decided_at = now;
    await_reports(c);
    if (!c->has_upcoming) c->phase = PHASE_FINISHING;
    return &c->welcome;
}

/* A step that was not finite: the next S, and whether enough is enough. */
static void after_skip(struct conductor *c)
{
    c->counters.skipped_steps++;
    c->nonfinite_in_a_row++;
    const struct job_rules *rules = &c->rules;
    struct error why;
    if (rules->has_scaler) {
        loss_scale_update(&c->scale, &rules->scale, false);
        if (!c->scale.stop) return;
        error_set(&why, STATUS_NUMERICS,
                  "step %" PRIu64 ": the gradient is still not finite at loss scale %g, which can fall no further "
                  "(%" PRIu32 " in a row there)",
                  c->step, c->window.scale, c->scale.skips_at_minimum);
    } else {
        if (rules->nonfinite_stop_after == 0 || c->nonfinite_in_a_row < rules->nonfinite_stop_after) return;
        error_set(&why, STATUS_NUMERICS,
                  "step %" PRIu64 ": the gradient%s was not finite in %" PRIu32
                  " steps in a row (precision.nonfinite_stop_after)%s%s",
                  c->step, c->attempt.norm_overflowed ? "'s norm" : "", c->nonfinite_in_a_row,
                  c->attempt.norm_overflowed ? ": " CONDUCTOR_NORM_OVERFLOW : "",
                  c->attempt.norm_overflowed ? rules->norm.words : "");
    }
    conductor_set_failure(c, &why);
    c->failed_by_numerics = !c->attempt.norm_overflowed; /* which has no culprit */
    c->failure_length = strlen(c->failure.text);
    conductor_name_culprit(c);
}

static void after_apply(struct conductor *c)
{
    c->counters.optimizer_steps++;
    c->counters.scheduler_steps++;
    c->nonfinite_in_a_row = 0;
    if (c->rules.has_scaler) loss_scale_update(&c->scale, &c->rules.scale, true);
}

static void after_epoch(struct conductor *c, double weight)
{
    c->epoch_weight += weight;
    if (c->has_upcoming && c->upcoming.epoch == c->current.epoch) return;
    if (c->epoch_weight == 0) {
        struct error why;
        error_set(&why, STATUS_DATA, "data.train: an epoch without any weight (epoch %" PRIu64 ")",
                  c->current.epoch + 1);
        conductor_set_failure(c, &why);
    }
    c->epoch_weight = 0;
}

static void weigh_warnings(struct conductor *c, const struct verdict *verdict, float scale_before)
{
    bool dynamic = c->rules.has_scaler && !c->rules.scale.is_static;
    struct warnings_step step = {
        .applied = verdict->kind == VERDICT_IS_APPLY,
        .skipped = verdict->kind == VERDICT_IS_SKIP,
        .backed_off = dynamic && c->scale.scale < scale_before,
        .grew = dynamic && c->scale.scale > scale_before,
        .at_minimum = dynamic && loss_scale_at_minimum(&c->scale, &c->rules.scale),
        .vanished = c->rules.has_scaler && verdict->kind == VERDICT_IS_APPLY && verdict->grad_norm_scaled == 0,
        .clips = c->rules.clip_norm > 0,
        .clipped = verdict->clip_coefficient < 1,
    };
    c->attempt.warnings = warnings_update(&c->warnings, &step);
}

/* The smoothed pace from which GetStatus tells tokens per second and the time left: the last twenty attempts or so. */
static void keep_pace(struct conductor *c, double seconds, double tokens)
{
    double share = c->counters.step == c->start + 1 ? 1 : 0.1;
    c->attempt_seconds += share * (seconds - c->attempt_seconds);
    c->attempt_tokens += share * (tokens - c->attempt_tokens);
}

static void begin_record(struct conductor *c, const struct verdict *verdict, double now)
{
    struct attempt *attempt = &c->attempt;
    conductor_note_frozen(c);
    attempt->pending = true;
    attempt->awaited = c->ranks;
    attempt->nonfinite = verdict->kind == VERDICT_IS_SKIP;
    attempt->norm_overflowed = verdict->norm_overflows;
    attempt->evaluates = false;
    attempt->single_value = false;
    if (attempt->blame) gacc__v1__blame__free_unpacked(attempt->blame, NULL);
    attempt->blame = NULL;
    attempt->record = (struct step_record){
        .verdict = verdict->kind,
        .has_loss = verdict->kind == VERDICT_IS_APPLY || verdict->kind == VERDICT_IS_SKIP,
        .loss = verdict->loss,
        .weight = verdict->weight,
        .micro_batches = verdict->micro_batches,
        .tokens = c->current.count * c->rules.tokens_per_sequence,
        .lr = c->window.lr,
        .groups = c->rank[0].hello->groups,
        .group_count = c->rank[0].hello->n_groups,
        .has_statistics = conductor_batch_norm(c) != NULL,
        .has_scaler = c->rules.has_scaler,
        .loss_scale = c->window.scale,
        .grad_norm_scaled = verdict->grad_norm_scaled,
        .grad_norm = verdict->grad_norm,
        .grad_norm_clipped = verdict->grad_norm_clipped,
        .clip_coefficient = verdict->clip_coefficient,
        .reduce_scatters = c->reduce_scatters,
        .reduce_scatter_bytes = c->reduce_scatter_bytes,
        .retries = c->retries,
        .accumulate = attempt->accumulate,
        .ranks = c->ranks,
        .seconds.since_last_step = now - c->decided_at,
    };
    for (uint32_t r = 0; r < c->ranks; r++) {
        uint32_t first;
        plan_share(&c->current, c->ranks, r, &first, &attempt->accumulate[r]);
        c->rank[r].stepped = c->rank[r].evaluated = false;
    }
}

/* What most ranks reported (Boyer and Moore 1981); where there is no majority, the first of what is left. */
static uint64_t checksum_of_most(const struct conductor *c)
{
    uint64_t most = 0;
    uint32_t votes = 0;
    for (uint32_t r = 0; r < c->ranks; r++) {
        if (votes == 0) most = c->rank[r].parameters_checksum;
        votes = c->rank[r].parameters_checksum == most ? votes + 1 : votes - 1;
    }
    return votes > 0 ? most : c->rank[0].parameters_checksum;
}

/* All ranks ran the window with the same parameters, or the job ends before anything is made of it. */
static void compare_parameters(struct conductor *c)
{
    uint64_t most = checksum_of_most(c);
    uint32_t odd = 0, other = 0;
    while (odd < c->ranks && c->rank[odd].parameters_checksum == most) odd++;
    if (odd == c->ranks) return;
    while (c->rank[other].parameters_checksum != most) other++;
    struct error why;
    error_set(&why, STATUS_INTERNAL,
              "rank %" PRIu32 ": step %" PRIu64 ": the parameters differ from those of rank %" PRIu32
              " (control.self_check)",
              odd, c->step, other);
    conductor_set_failure(c, &why);
}

/* The step's window once more, at the scale that its overflow left; as long as it lasts, nothing but the scale has
 * moved. Not where the loss, which knows no scale, is not finite: it would not be at any other. */
static bool retries(struct conductor *c, const struct verdict *verdict)
{
    if (verdict->kind != VERDICT_IS_SKIP || verdict->norm_overflows || !c->rules.has_scaler) return false;
    if (!isfinite(verdict->loss)) return false;
    if (!loss_scale_retry(&c->scale, &c->rules.scale, c->retries)) return false;
    c->retries++;
    c->window.scale = (double)c->scale.scale;
    return true;
}

static const Gacc__V1__Decision *decide_again(struct conductor *c)
{
    gacc__v1__decision__init(&c->decision);
    c->decision.step = c->step;
    c->decision.verdict = GACC__V1__VERDICT__VERDICT_RETRY;
    c->decision.next = &c->window;
    c->opens_checkpoint = false;
    await_reports(c);
    return &c->decision;
}

/* What follows from the verdict: counters, next S, whether the job has failed; the record is begun. */
static void judge(struct conductor *c, double now, struct verdict *verdict)
{
    begin_record(c, verdict, now);

    struct step_record *record = &c->attempt.record;
    float scale_before = c->scale.scale;
    c->counters.step = c->step;
    switch (verdict->kind) {
    case VERDICT_IS_APPLY:
        after_apply(c);
        break;
    case VERDICT_IS_SKIP:
        after_skip(c);
        record->reason = c->rules.has_scaler ? "overflow" : "nonfinite";
        break;
    case VERDICT_IS_EMPTY:
        c->counters.empty_steps++;
        record->reason = "empty";
        break;
    case VERDICT_IS_FAIL:
        record->reason = "failure";
        break;
    }
    weigh_warnings(c, verdict, scale_before);
    if (verdict->kind != VERDICT_IS_FAIL) {
        c->counters.tokens_seen += record->tokens;
        c->sequences_seen += c->current.count;
        after_epoch(c, verdict->weight);
        keep_pace(c, record->seconds.since_last_step, (double)record->tokens);
    }
    if (record->has_loss) {
        c->has_loss = true;
        c->loss = record->loss;
    }
    if (c->failed) record->verdict = verdict->kind = VERDICT_IS_FAIL;
    record->loss_scale_next = (double)c->scale.scale;
    record->growth_tracker = c->scale.growth_tracker;
    record->counters = c->counters;
}

/* The next window, from what every rank announced for its plan. */
static Gacc__V1__Window *open_window(struct conductor *c)
{
    c->step++;
    c->retries = 0;
    c->window.step = c->step;
    c->window.scale = c->rules.has_scaler ? (double)c->scale.scale : 1;
    c->window.weight = 0;
    c->window.micro_batches = 0;
    for (uint32_t r = 0; r < c->ranks; r++) {
        struct rank *rank = &c->rank[r];
        rank->weight = rank->next_weight;
        rank->micro_batches = rank->next_micro_batches;
        c->window.weight += rank->weight;
        c->window.micro_batches += rank->micro_batches;
    }
    c->window.optimizer_steps = c->counters.optimizer_steps;
    c->window.n_frozen = c->edited.frozen_count;
    c->window.frozen = c->edited.frozen;
    c->current = c->upcoming;
    const struct schedule schedule = job_rules_schedule(&c->rules, c->current.global);
    c->window.lr = schedule_lr(&schedule, c->counters.optimizer_steps);
    c->has_upcoming = plan_next(&c->rules.plan, c->counters.optimizer_steps, &c->position, &c->upcoming);
    return &c->window;
}

/* A job by steps may need more attempts than steps, so it goes on, and plans ahead, until the last one is applied. */
static bool goes_on(const struct conductor *c)
{
    bool by_epochs = c->rules.plan.epochs != 0;
    return !c->failed && c->has_upcoming && (by_epochs || c->counters.optimizer_steps < c->rules.total_steps);
}

static bool evaluates(const struct conductor *c, const struct verdict *verdict, bool last)
{
    if (c->rules.evaluate_every == 0 || c->failed || c->counters.optimizer_steps == c->evaluated_at) return false;
    bool due = verdict->kind == VERDICT_IS_APPLY && c->counters.optimizer_steps % c->rules.evaluate_every == 0;
    return due || last;
}

Gacc__V1__Verdict conductor_verdict(enum verdict_kind kind)
{
    static const Gacc__V1__Verdict verdicts[] = {
        [VERDICT_IS_APPLY] = GACC__V1__VERDICT__VERDICT_APPLY,
        [VERDICT_IS_SKIP] = GACC__V1__VERDICT__VERDICT_SKIP,
        [VERDICT_IS_EMPTY] = GACC__V1__VERDICT__VERDICT_EMPTY,
        [VERDICT_IS_FAIL] = GACC__V1__VERDICT__VERDICT_FAIL,
    };
    return verdicts[kind];
}

static Gacc__V1__Failure *failure_message(struct conductor *c)
{
    if (!c->failed) return NULL;
    c->failure_message.status = (uint32_t)c->failure.status;
    c->failure_message.text = c->failure.text;
    return &c->failure_message;
}

/* What becomes here of all that was asked for. A failure is the end; the first boundary of a start has nothing to save.
 */
static struct boundary open_boundary(struct conductor *c, bool applied)
{
    if (c->failed) return (struct boundary){0};
    struct saving *saving = c->step > c->start ? &c->saving : NULL;
    return requests_boundary(&c->requests, saving, applied, c->counters.optimizer_steps, goes_on(c));
}

const Gacc__V1__Decision *conductor_decide(struct conductor *c, double now)
{
    if (c->phase != PHASE_DECISION) return NULL;
    c->moved = now;
    const bool has_stepped = c->step > c->start && !c->requests.held;
    struct verdict verdict = {.kind = VERDICT_IS_FAIL, .clip_coefficient = (double)NAN};
    if (c->first_failure.status)
        conductor_set_failure(c, &c->first_failure);
    else
        compare_parameters(c);
    if (has_stepped) {
        verdict_of(c->reports, c->ranks, c->rules.weighting, c->rules.clip_norm, c->rules.norm.most, &verdict);
        if (c->failed) verdict.kind = VERDICT_IS_FAIL;
        if (retries(c, &verdict)) return decide_again(c);
        judge(c, now, &verdict);
        c->applied = verdict.kind == VERDICT_IS_APPLY;
    }
    c->decided_at = now;
    const bool replans = c->requests.replans;
    if (!c->failed) conductor_take_settings(c);
    if (!c->failed && c->requests.held) conductor_replan(c);

    Gacc__V1__Decision *decision = &c->decision;
    const struct boundary boundary = open_boundary(c, has_stepped && c->applied);
    decision->step = c->step;
    decision->verdict =
        has_stepped || c->failed ? conductor_verdict(verdict.kind) : GACC__V1__VERDICT__VERDICT_UNSPECIFIED;
    decision->clip_coefficient = verdict.kind == VERDICT_IS_APPLY ? verdict.clip_coefficient : 0;
    decision->failure = failure_message(c);
    decision->evaluate = has_stepped && evaluates(c, &verdict, !boundary.more);
    if (decision->evaluate) c->evaluated_at = c->counters.optimizer_steps;
    c->attempt.evaluates = decision->evaluate;
    decision->save = conductor_open_save(c, &boundary);
    decision->hold = boundary.hold;
    const bool more = boundary.more && !decision->stop && !boundary.hold;
    decision->next = more ? open_window(c) : NULL;
    decision->plan =
        c->has_upcoming && (more || (boundary.hold && replans)) ? plan_message(c, c->step + 1, &c->upcoming) : NULL;
    await_reports(c);
    if (!more && !boundary.hold) c->phase = PHASE_FINISHING;
    return decision;
}

/* One rank speaks for all: the lowest that has joined and is not lost, or the first that asks (it listens, whether it
 * joined with a failure or was only asleep). Who joins later says nothing. */
static uint32_t choose_speaker(const struct conductor *c, uint32_t asking)
{
    for (uint32_t r = 0; r < c->ranks; r++)
        if (c->rank[r].hello && !c->rank[r].lost) return r < asking || c->rank[asking].lost ? r : asking;
    return asking;
}

const Gacc__V1__Farewell *conductor_farewell(struct conductor *c, uint32_t rank)
{
    if (!c->has_speaker) c->speaker = choose_speaker(c, rank);
    c->has_speaker = true;
    c->farewell.failure = failure_message(c);
    c->farewell.print = c->failed && rank == c->speaker;
    return &c->farewell;
}
