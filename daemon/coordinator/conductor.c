/* Messages in: each is checked against what is awaited, and taken. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/coordinator/conductor_internal.h"
#include "proto/message.h"

/* What a rank announced and what it then ran are sums over the same targets, perhaps grouped otherwise. */
#define WEIGHT_TOLERANCE 1e-9

int conductor_open(struct conductor **out, const Gacc__V1__JobSpec *job, uint32_t ranks, double now,
                   struct error *error)
{
    *out = NULL;
    struct job_rules rules;
    int result = job_rules_from_job(&rules, job, ranks, error);
    if (result) return result;
    struct conductor *c = calloc(1, sizeof *c);
    if (!c) return error_set(error, STATUS_INTERNAL, "out of memory");
    c->job = job;
    c->rules = rules;
    c->ranks = ranks;
    c->awaited = ranks;
    c->opened_at = c->decided_at = now;
    c->evaluated_at = UINT64_MAX;
    c->rank = calloc(ranks, sizeof *c->rank);
    c->reports = calloc(ranks, sizeof *c->reports);
    c->shares = calloc(ranks, sizeof *c->shares);
    c->rank_statuses = calloc(ranks, sizeof *c->rank_statuses);
    c->rank_status_list = calloc(ranks, sizeof(void *));
    c->attempt.accumulate = calloc(ranks, sizeof *c->attempt.accumulate);
    c->full_accumulate = calloc(ranks, sizeof *c->full_accumulate);
    if (!c->rank || !c->reports || !c->shares || !c->rank_statuses || !c->rank_status_list || !c->attempt.accumulate ||
        !c->full_accumulate) {
        conductor_close(c);
        return error_set(error, STATUS_INTERNAL, "out of memory for %" PRIu32 " ranks", ranks);
    }
    gacc__v1__welcome__init(&c->welcome);
    gacc__v1__plan__init(&c->plan);
    gacc__v1__window__init(&c->window);
    gacc__v1__decision__init(&c->decision);
    gacc__v1__save__init(&c->save);
    c->saving.every = rules.save_every;
    gacc__v1__farewell__init(&c->farewell);
    gacc__v1__failure__init(&c->failure_message);
    gacc__v1__status__init(&c->status);
    struct plan full = {.micro_batches = (rules.plan.global - 1) / rules.plan.micro + 1};
    for (uint32_t r = 0; r < ranks; r++) {
        uint32_t first;
        plan_share(&full, ranks, r, &first, &c->full_accumulate[r]);
        gacc__v1__rank_status__init(c->rank_status_list[r] = &c->rank_statuses[r]);
    }
    if (rules.has_scaler) loss_scale_init(&c->scale, &rules.scale);
    *out = c;
    return 0;
}

void conductor_resume(struct conductor *c, const struct progress *progress, Gacc__V1__Restore *restore)
{
    c->start = c->step = progress->counters.step;
    c->counters = progress->counters;
    c->nonfinite_in_a_row = progress->nonfinite_in_a_row;
    if (progress->has_scaler && c->rules.has_scaler) loss_scale_restore(&c->scale, &c->rules.scale, &progress->scale);
    c->position = progress->position;
    c->has_upcoming = progress->has_plan;
    c->upcoming = progress->plan;
    if (!c->upcoming.global) c->upcoming.global = c->rules.plan.global; /* older manifests do not say it */
    c->sequences_seen = progress->sequences_seen;
    c->epoch_weight = progress->epoch_weight;
    c->evaluated_at = progress->was_evaluated ? progress->evaluated_at : UINT64_MAX;
    c->has_loss = progress->has_loss;
    c->loss = progress->loss;
    c->has_validation = progress->has_validation;
    c->validation_loss = progress->validation_loss;
    c->validation_optimizer_steps = progress->validation_optimizer_steps;
    c->warnings = progress->warnings;
    c->told_single_value = progress->told_single_value;
    c->resumed_sequences = progress->train_sequences;
    c->welcome.restore = restore;
}

void conductor_close(struct conductor *c)
{
    if (!c) return;
    for (uint32_t r = 0; c->rank && r < c->ranks; r++)
        if (c->rank[r].hello) gacc__v1__hello__free_unpacked(c->rank[r].hello, NULL);
    if (c->attempt.blame) gacc__v1__blame__free_unpacked(c->attempt.blame, NULL);
    conductor_free_settings(c);
    free(c->rank);
    free(c->reports);
    free(c->shares);
    free(c->rank_statuses);
    free(c->rank_status_list);
    free(c->attempt.accumulate);
    free(c->full_accumulate);
    free(c);
}

void conductor_set_failure(struct conductor *c, const struct error *error)
{
    if (c->failed) return;
    c->failed = true;
    c->failure = *error;
}

void conductor_fail(struct conductor *c, const struct error *error)
{
    conductor_set_failure(c, error);
}

void conductor_fail_said(struct conductor *c, const struct error *error)
{
    conductor_set_failure(c, error);
    if (c->has_speaker) return;
    c->has_speaker = true;
    c->speaker = 0;
}

int conductor_break(struct conductor *c, const struct error *why, struct error *error)
{
    conductor_set_failure(c, why);
    if (c->attempt.pending) conductor_complete_attempt(c);
    c->phase = PHASE_BROKEN;
    if (error) *error = c->failure;
    return -(int)c->failure.status;
}

__attribute__((format(printf, 4, 5))) static int protocol_error(struct conductor *c, uint32_t rank, struct error *error,
                                                                const char *format, ...)
{
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    struct error why;
    error_set(&why, STATUS_INTERNAL, "rank %" PRIu32 ": %s", rank, what);
    return conductor_break(c, &why, error);
}

static int one_less(uint32_t *awaited)
{
    return --*awaited == 0;
}

static void failure_of_rank(struct error *out, uint32_t rank, const Gacc__V1__Failure *failure)
{
    error_received(out, failure->status, failure->text);
    const bool is_named = !strncmp(out->text, "rank ", strlen("rank ")); /* it may speak of another rank */
    if (!is_named) error_prefix(out, "rank %" PRIu32, rank);
}

/* Who says nothing of it trains all. */
static uint64_t trained_of(const Gacc__V1__Hello *hello)
{
    return hello->trained ? hello->trained : hello->parameters;
}

static int hello_differs(const struct conductor *c, uint32_t rank, const Gacc__V1__Hello *hello, struct error *why)
{
    if (hello->rank != rank || hello->ranks != c->ranks)
        return error_set(why, STATUS_INTERNAL,
                         "rank %" PRIu32 ": says that it is rank %" PRIu32 " of %" PRIu32 ", not of %" PRIu32, rank,
                         hello->rank, hello->ranks, c->ranks);
    if (hello->job_digest.len != c->job->digest.len ||
        (hello->job_digest.len && memcmp(hello->job_digest.data, c->job->digest.data, hello->job_digest.len) != 0))
        return error_set(why, STATUS_INTERNAL, "rank %" PRIu32 ": runs another job: its digest differs", rank);
    for (uint32_t r = 0; r < c->ranks; r++) {
        const Gacc__V1__Hello *other = c->rank[r].hello;
        if (!other) continue;
        const struct {
            const char *what;
            uint64_t here, there;
        } same[] = {
            {"train sequences", hello->train_sequences, other->train_sequences},
            {"validation sequences", hello->validation_sequences, other->validation_sequences},
            {"parameters", hello->parameters, other->parameters},
            {"trained parameters", trained_of(hello), trained_of(other)},
            {"targets per sequence", hello->targets_per_sequence, other->targets_per_sequence},
        };
        for (size_t i = 0; i < sizeof same / sizeof *same; i++)
            if (same[i].here != same[i].there)
                return error_set(why, STATUS_DATA,
                                 "rank %" PRIu32 ": has %" PRIu64 " %s, rank %" PRIu32 " has %" PRIu64, rank,
                                 same[i].here, same[i].what, r, same[i].there);
    }
    return 0;
}

int conductor_hello(struct conductor *c, uint32_t rank, const Gacc__V1__Hello *hello, double now, struct error *error)
{
    struct error why;
    if (c->phase == PHASE_BROKEN) {
        *error = c->failure;
        return -(int)c->failure.status;
    }
    if (rank >= c->ranks || c->phase != PHASE_HELLOS || c->rank[rank].hello)
        return protocol_error(c, rank, error, "a hello out of turn");
    if (hello->failure) {
        failure_of_rank(&why, rank, hello->failure);
        return conductor_break(c, &why, error);
    }
    if (hello_differs(c, rank, hello, &why)) return conductor_break(c, &why, error);
    c->rank[rank].hello = message_copy(&hello->base);
    if (!c->rank[rank].hello) return protocol_error(c, rank, error, "no memory for its hello");
    c->rank[rank].heard = c->rank[rank].state_since = c->moved = now;
    if (!one_less(&c->awaited)) return 0;
    if (c->resumed_sequences && hello->train_sequences != c->resumed_sequences) {
        error_set(&why, STATUS_DATA,
                  "data.train: holds %" PRIu64 " sequences, %" PRIu64
                  " when the checkpoint was made: its place in them "
                  "means nothing any more",
                  hello->train_sequences, c->resumed_sequences);
        return conductor_break(c, &why, error);
    }
    if (job_rules_add_data(&c->rules, c->job, hello->train_sequences, hello->validation_sequences,
                           hello->targets_per_sequence, &why))
        return conductor_break(c, &why, error);
    c->phase = PHASE_WELCOME;
    return 1;
}

static bool impossible(double weight, uint32_t micro_batches, uint32_t most)
{
    return weight < 0 || !isfinite(weight) || micro_batches > most || (weight > 0) != (micro_batches > 0);
}

static int check_report(struct conductor *c, uint32_t rank, const Gacc__V1__Report *report, struct error *error)
{
    struct rank *from = &c->rank[rank];
    uint32_t first, most = 0;
    if (c->step > c->start && !c->requests.held) {
        plan_share(&c->current, c->ranks, rank, &first, &most);
        if (impossible(report->weight, report->micro_batches, most))
            return protocol_error(c, rank, error,
                                  "step %" PRIu64 ": reports weight %g in %" PRIu32 " of %" PRIu32 " micro-batches",
                                  c->step, report->weight, report->micro_batches, most);
        if (report->micro_batches != from->micro_batches ||
            !(fabs(report->weight - from->weight) <= WEIGHT_TOLERANCE * from->weight))
            return protocol_error(c, rank, error,
                                  "step %" PRIu64 ": ran weight %.17g in %" PRIu32
                                  " micro-batches, having announced %.17g in %" PRIu32,
                                  c->step, report->weight, report->micro_batches, from->weight, from->micro_batches);
    }
    if (!c->has_upcoming) return 0;
    plan_share(&c->upcoming, c->ranks, rank, &first, &most);
    if (impossible(report->next_weight, report->next_micro_batches, most))
        return protocol_error(c, rank, error,
                              "step %" PRIu64 ": announces weight %g in %" PRIu32 " of %" PRIu32 " micro-batches",
                              c->step + 1, report->next_weight, report->next_micro_batches, most);
    return 0;
}

int conductor_report(struct conductor *c, uint32_t rank, const Gacc__V1__Report *report, double now,
                     struct error *error)
{
    if (c->phase == PHASE_BROKEN) return 0;
    if (rank >= c->ranks || c->phase != PHASE_REPORTS || c->rank[rank].reported || report->step != c->step ||
        (c->attempt.pending && !c->rank[rank].stepped))
        return protocol_error(c, rank, error, "a report of step %" PRIu64 " out of turn", report->step);
    struct rank *from = &c->rank[rank];
    int status = 0;
    if (report->failure) {
        status = (int)status_received(report->failure->status);
        if (!c->first_failure.status || rank < c->first_failure_rank) {
            failure_of_rank(&c->first_failure, rank, report->failure);
            c->first_failure_rank = rank;
        }
    } else {
        int result = check_report(c, rank, report, error);
        if (result) return result;
    }
    from->reported = true;
    from->heard = c->moved = now;
    from->next_weight = report->next_weight;
    from->next_micro_batches = report->next_micro_batches;
    from->parameters_checksum = report->parameters_checksum;
    c->reports[rank] = (struct rank_report){.status = status,
                                            .finite = report->finite,
                                            .sum_squares_scaled = report->sum_squares_scaled,
                                            .sum_squares = report->sum_squares,
                                            .loss_sum = report->loss_sum,
                                            .loss_exponent = report->loss_exponent,
                                            .weight = report->weight,
                                            .micro_batches = report->micro_batches};
    if (report->reduce_scatters > c->reduce_scatters) c->reduce_scatters = report->reduce_scatters;
    if (report->reduce_scatter_bytes > c->reduce_scatter_bytes) c->reduce_scatter_bytes = report->reduce_scatter_bytes;
    if (!one_less(&c->awaited)) return 0;
    c->phase = PHASE_DECISION;
    return 1;
}

static void keep_larger(double *kept, double value)
{
    if (value > *kept) *kept = value;
}

static void keep_seconds(struct step_record *record, const Gacc__V1__Seconds *seconds)
{
    if (!seconds) return;
    keep_larger(&record->seconds.step, seconds->step);
    keep_larger(&record->seconds.data, seconds->data);
    keep_larger(&record->seconds.compute, seconds->compute);
    keep_larger(&record->seconds.reduce, seconds->reduce);
    keep_larger(&record->seconds.decision, seconds->decision);
    keep_larger(&record->seconds.update, seconds->update);
    keep_larger(&record->seconds.gather, seconds->gather);
}

static int keep_blame(struct attempt *attempt, uint32_t rank, const Gacc__V1__Blame *blame)
{
    if (!blame || (attempt->blame && attempt->blame_rank < rank)) return 0;
    if (attempt->blame) gacc__v1__blame__free_unpacked(attempt->blame, NULL);
    attempt->blame = message_copy(&blame->base);
    attempt->blame_rank = rank;
    return attempt->blame ? 0 : -1;
}

int conductor_step_done(struct conductor *c, uint32_t rank, const Gacc__V1__StepDone *done, double now,
                        struct error *error)
{
    struct attempt *attempt = &c->attempt;
    if (c->phase == PHASE_BROKEN) return 0;
    if (rank >= c->ranks || !attempt->pending || c->rank[rank].stepped || c->rank[rank].finished ||
        done->step != attempt->record.counters.step)
        return protocol_error(c, rank, error, "the end of step %" PRIu64 " out of turn", done->step);
    if (done->evaluation && !attempt->evaluates)
        return protocol_error(c, rank, error, "step %" PRIu64 ": an evaluation that nobody asked for", done->step);
    if (keep_blame(attempt, rank, done->blame)) return protocol_error(c, rank, error, "no memory for its blame");
    struct rank *from = &c->rank[rank];
    struct step_record *record = &attempt->record;
    from->stepped = true;
    from->heard = c->moved = now;
    if (done->all_gathers > record->all_gathers) record->all_gathers = done->all_gathers;
    if (done->all_gather_bytes > record->all_gather_bytes) record->all_gather_bytes = done->all_gather_bytes;
    if (done->control_collectives > record->control_collectives)
        record->control_collectives = done->control_collectives;
    if (done->statistics_collectives > record->statistics_collectives)
        record->statistics_collectives = done->statistics_collectives;
    if (done->statistics_bytes > record->statistics_bytes) record->statistics_bytes = done->statistics_bytes;
    attempt->single_value |= done->single_value;
    keep_seconds(record, done->seconds);
    if (done->seconds) from->step_seconds = done->seconds->data + done->seconds->compute + done->seconds->update;
    from->evaluated = done->evaluation != NULL;
    if (done->evaluation) {
        from->evaluation_loss_sum = ldexpl((long double)done->evaluation->loss_sum, done->evaluation->loss_exponent);
        from->evaluation_weight = done->evaluation->weight;
        from->evaluation_sequences = done->evaluation->sequences;
        from->evaluation_seconds = done->evaluation->seconds;
    }
    if (!one_less(&attempt->awaited)) return 0;
    conductor_complete_attempt(c);
    return 1;
}

int conductor_finished(struct conductor *c, uint32_t rank, const Gacc__V1__Finished *finished, double now,
                       struct error *error)
{
    if (c->phase == PHASE_BROKEN) return 0;
    struct error why = {0};
    if (rank < c->ranks && finished->failure) failure_of_rank(&why, rank, finished->failure);
    if (rank < c->ranks && c->phase != PHASE_FINISHING && why.status) return conductor_break(c, &why, error);
    bool owes_step = c->attempt.pending && !c->failed && !why.status;
    if (rank >= c->ranks || c->phase != PHASE_FINISHING || c->rank[rank].finished ||
        (owes_step && !c->rank[rank].stepped))
        return protocol_error(c, rank, error, "finished out of turn");
    if (why.status) conductor_set_failure(c, &why);
    c->rank[rank].finished = true;
    c->rank[rank].heard = now;
    if (!one_less(&c->awaited)) return 0;
    if (c->attempt.pending) conductor_complete_attempt(c);
    c->phase = PHASE_OVER;
    return 1;
}

void conductor_state(struct conductor *c, uint32_t rank, const Gacc__V1__StateChange *change, double now)
{
    if (rank >= c->ranks) return;
    struct rank *from = &c->rank[rank];
    from->heard = now;
    if (from->state == change->state && from->state_step == change->step &&
        from->state_micro_batch == change->micro_batch)
        return;
    from->state = change->state;
    from->state_step = change->step;
    from->state_micro_batch = change->micro_batch;
    from->state_since = c->moved = now;
}

bool conductor_lost(struct conductor *c, uint32_t rank, const char *why)
{
    if (rank >= c->ranks || c->phase == PHASE_OVER) return false;
    c->rank[rank].lost = true;
    if (c->phase == PHASE_BROKEN) return false;
    struct error error;
    conductor_settle(c); /* a rank that is killed once its job has stopped is no loss */
    error_set(&error, STATUS_INTERNAL, "rank %" PRIu32 ": %s", rank, why);
    conductor_break(c, &error, NULL);
    return true;
}
