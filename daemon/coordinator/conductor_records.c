/* What the conductor tells the log: records, the header, the end. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "daemon/coordinator/conductor_internal.h"
#include "proto/optimizers.h"

void conductor_name_culprit(struct conductor *c)
{
    if (!c->failed_by_numerics || !*c->culprit) return;
    char *tail = c->failure.text + c->failure_length;
    snprintf(tail, sizeof c->failure.text - c->failure_length, ": %s", c->culprit);
}

static void remember_culprit(struct conductor *c)
{
    const Gacc__V1__Blame *blame = c->attempt.blame;
    int length = snprintf(c->culprit, sizeof c->culprit, "rank %" PRIu32 ", tensor %s", c->attempt.blame_rank,
                          *blame->tensor ? blame->tensor : "unknown");
    if (length < 0 || (size_t)length >= sizeof c->culprit) return;
    if (blame->has_micro_batch)
        length += snprintf(c->culprit + length, sizeof c->culprit - (size_t)length, ", micro-batch %" PRIu32,
                           blame->micro_batch);
    if ((size_t)length < sizeof c->culprit)
        snprintf(c->culprit + length, sizeof c->culprit - (size_t)length, ", step %" PRIu64,
                 c->attempt.record.counters.step);
}

static struct record *add_record(struct conductor *c, enum record_type type)
{
    struct record *record = &c->records[c->record_count++];
    *record = (struct record){.type = type};
    return record;
}

static void add_event(struct conductor *c, const char *event, const char *text)
{
    add_record(c, RECORD_EVENT)->event =
        (struct event_record){.step = c->attempt.record.counters.step, .event = event, .text = text};
}

/* The validation loss over all ranks, added in rank order. A rank that could not read its part reports that with the
 * next step. */
static void add_evaluation(struct conductor *c)
{
    const struct step_counters *counters = &c->attempt.record.counters;
    struct eval_record eval = {.step = counters->step, .optimizer_steps = counters->optimizer_steps};
    long double loss_sum = 0;
    for (uint32_t r = 0; r < c->ranks; r++) {
        const struct rank *rank = &c->rank[r];
        if (!rank->evaluated) return;
        loss_sum += rank->evaluation_loss_sum;
        eval.weight += rank->evaluation_weight;
        eval.sequences += rank->evaluation_sequences;
        if (rank->evaluation_seconds > eval.seconds) eval.seconds = rank->evaluation_seconds;
    }
    eval.loss = (double)(loss_sum / (long double)eval.weight);
    c->has_validation = true;
    c->validation_loss = eval.loss;
    c->validation_optimizer_steps = eval.optimizer_steps;
    add_record(c, RECORD_EVAL)->eval = eval;
}

/* A skip is loud where no loss scale explains it, and where nobody's own gradient does. */
static void add_skip_event(struct conductor *c)
{
    const struct attempt *attempt = &c->attempt;
    if (!attempt->nonfinite) return;
    const char *culprit =
        attempt->blame ? c->culprit : "no rank's own gradient shows where: the sum over ranks overflowed";
    bool whole = attempt->awaited == 0; /* else some rank was not asked */
    if (attempt->norm_overflowed) {
        snprintf(c->event_text, sizeof c->event_text, CONDUCTOR_NORM_OVERFLOW "%s, %" PRIu32 " in a row",
                 c->rules.norm.words, c->nonfinite_in_a_row);
        add_event(c, "nonfinite", c->event_text);
    } else if (!c->rules.has_scaler) {
        snprintf(c->event_text, sizeof c->event_text, "the gradient is not finite, %" PRIu32 " in a row%s%s",
                 c->nonfinite_in_a_row, attempt->blame || whole ? ": " : "", attempt->blame || whole ? culprit : "");
        add_event(c, "nonfinite", c->event_text);
    } else if (!attempt->blame && whole) {
        add_event(c, "sum_overflow", culprit);
    }
}

/* Masks, or the short end of an epoch or of a batch, have left one row. */
static void add_single_value_event(struct conductor *c)
{
    if (!c->attempt.single_value || c->told_single_value) return;
    c->told_single_value = true;
    add_event(c, "single_row",
              "BatchNorm took its statistics over one row: nothing of it is left behind the norm (model.norm_stats: "
              "window has the most rows, model.norm: group needs none)");
}

/* What the end of the step has told belongs into its checkpoint. */
static void tell_progress(struct conductor *c)
{
    struct progress *progress = &c->progress;
    if (!c->is_saving || progress->counters.step != c->attempt.record.counters.step) return;
    progress->has_validation = c->has_validation;
    progress->validation_loss = c->validation_loss;
    progress->validation_optimizer_steps = c->validation_optimizer_steps;
    progress->told_single_value = c->told_single_value;
}

void conductor_complete_attempt(struct conductor *c)
{
    struct attempt *attempt = &c->attempt;
    attempt->pending = false;
    c->record_count = c->record_next = 0;
    attempt->record.blame = attempt->blame;
    attempt->record.blame_rank = attempt->blame_rank;
    if (attempt->blame) {
        remember_culprit(c);
        conductor_name_culprit(c);
    }
    add_record(c, RECORD_STEP)->step = attempt->record;
    conductor_keep_last(c, &attempt->record);
    if (attempt->evaluates) add_evaluation(c);
    add_skip_event(c);
    add_single_value_event(c);
    for (uint32_t warning = 0; warning < WARNINGS; warning++)
        if (attempt->warnings >> warning & 1)
            add_event(c, warning_name((enum warning)warning), warning_text((enum warning)warning));
    tell_progress(c);
}

bool conductor_next_record(struct conductor *c, struct record *record)
{
    if (c->record_next == c->record_count) return false;
    *record = c->records[c->record_next++];
    return true;
}

/* In the step that comes next; a hello tells what is frozen when a job begins. */
static uint64_t trained_now(const struct conductor *c)
{
    const Gacc__V1__Hello *hello = c->rank[0].hello;
    uint64_t trained = 0;
    for (size_t i = 0; i < hello->n_groups; i++) {
        const Gacc__V1__TensorGroup *group = hello->groups[i];
        if (!group_is_frozen(group->frozen, group->frozen_until, group->frozen_from, c->counters.optimizer_steps))
            trained += group->parameters;
    }
    return hello->n_groups > 0 ? trained : hello->trained;
}

void conductor_header(const struct conductor *c, struct header_record *header)
{
    const Gacc__V1__Hello *hello = c->rank[0].hello;
    *header = (struct header_record){
        .job = c->job->job->name,
        .job_digest = c->job->digest.data,
        .job_digest_length = c->job->digest.len,
        .effective_batch = c->rules.plan.global,
        .micro_batch = c->rules.plan.micro,
        .ranks = c->ranks,
        .accumulate = c->full_accumulate,
        .tokens_per_step = c->rules.plan.global * c->rules.tokens_per_sequence,
        .total_steps = c->rules.total_steps,
        .train_sequences = hello->train_sequences,
        .validation_sequences = hello->validation_sequences,
        .parameters = hello->parameters,
        .trained = trained_now(c),
        .groups = hello->groups,
        .group_count = hello->n_groups,
        .batch_norm = conductor_batch_norm(c),
        .lr = c->job->optimizer->lr,
        .device = hello->device,
        .memory = hello->memory,
        .versions = hello->versions,
        .version_count = hello->n_versions,
        .notices = hello->notices,
        .notice_count = hello->n_notices,
    };
}

void conductor_end(const struct conductor *c, double now, struct end_record *end)
{
    *end = (struct end_record){
        .exit = c->failed ? (int)c->failure.status : STATUS_DONE,
        .reason = c->failed ? c->failure.text : NULL,
        .counters = c->counters,
        .total_steps = c->rules.total_steps,
        .has_loss = c->has_loss,
        .loss = c->loss,
        .has_validation = c->has_validation,
        .validation_loss = c->validation_loss,
        .seconds = now - c->opened_at,
    };
}
