/* What the conductor tells whoever asks: GetStatus. */
#include <math.h>

#include "daemon/coordinator/conductor_internal.h"

void conductor_keep_last(struct conductor *c, const struct step_record *record)
{
    Gacc__V1__LastStep *last = &c->last[c->last_count++ % LAST_STEPS];
    gacc__v1__last_step__init(last);
    last->step = record->counters.step;
    last->verdict = conductor_verdict(record->verdict);
    last->loss = record->has_loss ? record->loss : (double)NAN;
    last->loss_scale = record->has_scaler ? record->loss_scale : 0;
    last->seconds = record->seconds.step;
    last->grad_norm = record->grad_norm; /* NaN unless applied */
}

/* Oldest first. */
static void fill_last(struct conductor *c, Gacc__V1__Status *status)
{
    const uint64_t count = c->last_count < LAST_STEPS ? c->last_count : LAST_STEPS;
    for (uint64_t i = 0; i < count; i++) c->last_list[i] = &c->last[(c->last_count - count + i) % LAST_STEPS];
    status->n_last = count;
    status->last = c->last_list;
}

static void fill_requests(struct conductor *c, Gacc__V1__Status *status)
{
    static char pause[] = "pause", checkpoint[] = "checkpoint", stop[] = "stop", finish[] = "stop --finish";
    status->n_requests = 0;
    status->requests = c->request_list;
    if (c->phase >= PHASE_FINISHING) return;
    if (c->requests.pausing) c->request_list[status->n_requests++] = pause;
    if (c->saving.asked) c->request_list[status->n_requests++] = checkpoint;
    if (c->saving.stopping) c->request_list[status->n_requests++] = stop;
    for (size_t i = 0; i < c->setting_count; i++) c->request_list[status->n_requests++] = c->setting_names[i];
    if (c->requests.finishing) c->request_list[status->n_requests++] = finish;
}

const char *conductor_phase(const struct conductor *c)
{
    if (c->failed) return "failing";
    if (c->stopped) return "stopping";
    if (c->phase >= PHASE_FINISHING || c->requests.finishing) return "finishing";
    if (c->saving.stopping) return "stopping";
    if (c->requests.held) return "paused";
    return c->phase >= PHASE_REPORTS && c->step > c->start ? "training" : "starting";
}

static void fill_rank(Gacc__V1__RankStatus *to, const struct rank *rank, uint32_t number, double now)
{
    to->rank = number;
    if (rank->hello) {
        to->host = rank->hello->host;
        to->pid = rank->hello->pid;
        to->seconds_since_heard = now - rank->heard;
        to->seconds_in_state = now - rank->state_since;
    }
    to->state = rank->state;
    to->step = rank->state_step;
    to->micro_batch = rank->state_micro_batch;
    to->step_seconds = rank->step_seconds;
}

/* What counts towards the job's end: data are consumed by skipped attempts as well. */
static uint64_t steps_done(const struct conductor *c)
{
    return c->rules.plan.epochs != 0 ? c->counters.step : c->counters.optimizer_steps;
}

uint64_t conductor_steps_beyond(const struct conductor *c)
{
    const uint64_t done = steps_done(c);
    return done > c->rules.total_steps ? done - c->rules.total_steps : 0;
}

Gacc__V1__Status *conductor_status(struct conductor *c, double now)
{
    Gacc__V1__Status *status = &c->status;
    const uint64_t done = steps_done(c);
    uint64_t left = c->failed || done > c->rules.total_steps ? 0 : c->rules.total_steps - done;
    status->job = c->job->job->name;
    status->output = c->job->job->output;
    status->phase = (char *)conductor_phase(c);
    status->step = c->counters.step;
    status->optimizer_steps = c->counters.optimizer_steps;
    status->skipped_steps = c->counters.skipped_steps;
    status->empty_steps = c->counters.empty_steps;
    status->total_steps = c->rules.total_steps;
    const bool has_stepped = c->counters.step != c->start;
    status->loss = has_stepped ? c->loss : (double)NAN;
    status->lr = c->window.lr;
    status->has_scaler = c->rules.has_scaler;
    status->loss_scale = c->rules.has_scaler ? (double)c->scale.scale : 0;
    status->growth_tracker = c->scale.growth_tracker;
    status->tokens_per_second = c->attempt_seconds > 0 ? c->attempt_tokens / c->attempt_seconds : 0;
    status->tokens_seen = c->counters.tokens_seen;
    status->eta_seconds = has_stepped ? (double)left * c->attempt_seconds : (double)NAN;
    status->validation_loss = c->validation_loss;
    status->has_validation = c->has_validation;
    status->validation_optimizer_steps = c->validation_optimizer_steps;
    status->steps_per_second = c->attempt_seconds > 0 ? 1 / c->attempt_seconds : 0;
    status->epoch = c->step > c->start ? c->current.epoch : c->upcoming.epoch;
    fill_last(c, status);
    fill_requests(c, status);
    status->effective_batch = c->rules.plan.global;
    status->micro_batch = c->rules.plan.micro;
    status->n_ranks = c->ranks;
    status->ranks = c->rank_status_list;
    for (uint32_t r = 0; r < c->ranks; r++) fill_rank(&c->rank_statuses[r], &c->rank[r], r, now);
    return status;
}
