#include "daemon/observe/metrics.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define VERDICTS 3

struct source {
    const Gacc__V1__Status *status;
    double now; /* unix seconds */
};

/* Values are NaN where there is none, and then left out unless the row says that NaN has a meaning. */
typedef double read_job(const struct source *from);
typedef double read_rank(const Gacc__V1__RankStatus *rank);

#define OF_JOB(NAME, VALUE)                            \
    static double NAME(const struct source *from)      \
    {                                                  \
        const Gacc__V1__Status *status = from->status; \
        return (double)(VALUE);                        \
    }
#define OF_RANK(NAME, VALUE)                             \
    static double NAME(const Gacc__V1__RankStatus *rank) \
    {                                                    \
        return (double)(VALUE);                          \
    }

static double info(const struct source *from)
{
    (void)from;
    return 1;
}
OF_JOB(applied, status->optimizer_steps)
OF_JOB(skipped, status->skipped_steps)
OF_JOB(empty, status->empty_steps)
OF_JOB(total_steps, status->total_steps)
OF_JOB(epoch, status->epoch)
OF_JOB(loss, status->loss)
OF_JOB(validation_loss, status->has_validation ? status->validation_loss : (double)NAN)
OF_JOB(lr, status->lr)
OF_JOB(loss_scale, status->has_scaler ? status->loss_scale : (double)NAN)
OF_JOB(growth_tracker, status->has_scaler ? (double)status->growth_tracker : (double)NAN)
OF_JOB(grad_norm, status->n_last ? status->last[status->n_last - 1]->grad_norm : (double)NAN)
OF_JOB(step_seconds, status->n_last ? status->last[status->n_last - 1]->seconds : (double)NAN)
OF_JOB(tokens, status->tokens_seen)
OF_JOB(tokens_per_second, status->tokens_per_second)
OF_JOB(eta, status->eta_seconds)
OF_JOB(effective_batch, status->effective_batch)
OF_JOB(micro_batch, status->micro_batch)
OF_JOB(ranks, status->n_ranks)
OF_JOB(started, status->started_unix_seconds)
OF_JOB(checkpoint_age, *status->checkpoint ? fmax(0, from->now - status->checkpoint_unix_seconds) : (double)NAN)
OF_JOB(checkpoint_steps, *status->checkpoint ? (double)status->checkpoint_optimizer_steps : (double)NAN)
OF_JOB(checkpoint_under_way, status->checkpoint_under_way)
static double rank_present(const Gacc__V1__RankStatus *rank)
{
    (void)rank;
    return 1;
}
OF_RANK(rank_step, rank->step)
OF_RANK(rank_micro_batch, rank->micro_batch)
OF_RANK(rank_heard, rank->seconds_since_heard)
OF_RANK(rank_step_seconds, rank->step_seconds)
OF_RANK(rank_in_state, rank->seconds_in_state)

enum labels { LABELS_NONE, LABELS_JOB, LABELS_RANK, LABELS_STATE };

static const struct metric {
    const char *name, *type, *help;
    enum labels labels;
    bool tells_nan; /* NaN is a value: a loss that is not finite, a norm of an attempt that was skipped */
    struct {
        const char *label; /* in braces; NULL: none, or the one of `labels` */
        read_job *job;
        read_rank *rank;
    } values[VERDICTS];
} metrics[] = {
    {"job_info",
     "gauge",
     "Name, output directory and phase of the job; always 1.",
     LABELS_JOB,
     false,
     {{NULL, info, NULL}}},
    {"steps_total",
     "counter",
     "Attempts by verdict.",
     LABELS_NONE,
     false,
     {{"verdict=\"apply\"", applied, NULL}, {"verdict=\"skip\"", skipped, NULL}, {"verdict=\"empty\"", empty, NULL}}},
    {"planned_steps",
     "gauge",
     "Applied steps after which the job is done.",
     LABELS_NONE,
     false,
     {{NULL, total_steps, NULL}}},
    {"epoch", "gauge", "Epoch under way, from 0.", LABELS_NONE, false, {{NULL, epoch, NULL}}},
    {"loss",
     "gauge",
     "Training loss of the last attempt, by batch.weighting.",
     LABELS_NONE,
     true,
     {{NULL, loss, NULL}}},
    {"validation_loss", "gauge", "Loss of the last evaluation.", LABELS_NONE, false, {{NULL, validation_loss, NULL}}},
    {"learning_rate", "gauge", "Learning rate of the window under way.", LABELS_NONE, false, {{NULL, lr, NULL}}},
    {"loss_scale",
     "gauge",
     "Loss scale of the window under way (fp16).",
     LABELS_NONE,
     false,
     {{NULL, loss_scale, NULL}}},
    {"loss_scale_growth_tracker",
     "gauge",
     "Finite steps in a row since the loss scale changed (fp16).",
     LABELS_NONE,
     false,
     {{NULL, growth_tracker, NULL}}},
    {"gradient_norm",
     "gauge",
     "Unscaled norm of the last attempt before the clip; NaN when it was not applied.",
     LABELS_NONE,
     true,
     {{NULL, grad_norm, NULL}}},
    {"step_seconds", "gauge", "Wall time of the last attempt.", LABELS_NONE, false, {{NULL, step_seconds, NULL}}},
    {"tokens_total", "counter", "Training targets consumed.", LABELS_NONE, false, {{NULL, tokens, NULL}}},
    {"tokens_per_second",
     "gauge",
     "Training targets per second.",
     LABELS_NONE,
     false,
     {{NULL, tokens_per_second, NULL}}},
    {"eta_seconds", "gauge", "Time left at this pace.", LABELS_NONE, false, {{NULL, eta, NULL}}},
    {"effective_batch",
     "gauge",
     "B: sequences of one optimizer step.",
     LABELS_NONE,
     false,
     {{NULL, effective_batch, NULL}}},
    {"micro_batch",
     "gauge",
     "b: sequences that a rank holds at a time.",
     LABELS_NONE,
     false,
     {{NULL, micro_batch, NULL}}},
    {"ranks", "gauge", "N.", LABELS_NONE, false, {{NULL, ranks, NULL}}},
    {"start_time_seconds",
     "gauge",
     "When this start of the job began, since 1970.",
     LABELS_NONE,
     false,
     {{NULL, started, NULL}}},
    {"checkpoint_age_seconds",
     "gauge",
     "Since the newest complete checkpoint.",
     LABELS_NONE,
     false,
     {{NULL, checkpoint_age, NULL}}},
    {"checkpoint_optimizer_steps",
     "gauge",
     "Applied steps in the newest complete checkpoint.",
     LABELS_NONE,
     false,
     {{NULL, checkpoint_steps, NULL}}},
    {"checkpoint_under_way",
     "gauge",
     "1 while a checkpoint is being written.",
     LABELS_NONE,
     false,
     {{NULL, checkpoint_under_way, NULL}}},
    {"rank_state",
     "gauge",
     "The state that a rank is in now; always 1.",
     LABELS_STATE,
     false,
     {{NULL, NULL, rank_present}}},
    {"rank_state_seconds", "gauge", "How long it has been in it.", LABELS_RANK, false, {{NULL, NULL, rank_in_state}}},
    {"rank_step", "gauge", "The attempt that a rank works on.", LABELS_RANK, false, {{NULL, NULL, rank_step}}},
    {"rank_micro_batch",
     "gauge",
     "The micro-batch of its window that it works on.",
     LABELS_RANK,
     false,
     {{NULL, NULL, rank_micro_batch}}},
    {"rank_step_seconds",
     "gauge",
     "A rank's own work in its last attempt, without waiting for others.",
     LABELS_RANK,
     false,
     {{NULL, NULL, rank_step_seconds}}},
    {"rank_heard_seconds", "gauge", "Since a rank was last heard.", LABELS_RANK, false, {{NULL, NULL, rank_heard}}},
};

/* In quotes, with what the format escapes. */
static void print_label(FILE *to, const char *name, const char *value)
{
    fprintf(to, "%s=\"", name);
    for (; *value != '\0'; value++) {
        if (*value == '\n')
            fputs("\\n", to);
        else if (*value == '"' || *value == '\\')
            fprintf(to, "\\%c", *value);
        else
            fputc(*value, to);
    }
    fputc('"', to);
}

static void print_value(FILE *to, double value)
{
    if (isnan(value))
        fputs(" NaN\n", to);
    else if (isinf(value))
        fputs(value > 0 ? " +Inf\n" : " -Inf\n", to);
    else
        fprintf(to, " %.17g\n", value);
}

static void print_job(FILE *to, const struct metric *metric, const struct source *from)
{
    for (size_t i = 0; i < VERDICTS && metric->values[i].job; i++) {
        const double value = metric->values[i].job(from);
        if (isnan(value) && !metric->tells_nan) continue;
        fprintf(to, "gacc_%s", metric->name);
        if (metric->values[i].label) fprintf(to, "{%s}", metric->values[i].label);
        if (metric->labels == LABELS_JOB) {
            fputc('{', to);
            print_label(to, "job_name", from->status->job);
            fputc(',', to);
            print_label(to, "output", from->status->output);
            fputc(',', to);
            print_label(to, "phase", from->status->phase);
            fputs(",version=\"" GACC_VERSION "\"}", to);
        }
        print_value(to, value);
    }
}

static void print_ranks(FILE *to, const struct metric *metric, const struct source *from)
{
    for (size_t i = 0; i < from->status->n_ranks; i++) {
        const Gacc__V1__RankStatus *rank = from->status->ranks[i];
        fprintf(to, "gacc_%s{rank=\"%u\",", metric->name, rank->rank);
        print_label(to, "host", rank->host);
        if (metric->labels == LABELS_STATE) {
            const ProtobufCEnumValue *state =
                protobuf_c_enum_descriptor_get_value(&gacc__v1__state__descriptor, (int)rank->state);
            fputc(',', to);
            print_label(to, "state", state ? state->name + sizeof "STATE_" - 1 : "UNKNOWN");
        }
        fputc('}', to);
        print_value(to, metric->values[0].rank(rank));
    }
}

char *metrics_text(const Gacc__V1__Status *status, double unix_seconds, size_t *length)
{
    const struct source from = {status, unix_seconds};
    char *text = NULL;
    FILE *to = open_memstream(&text, length);
    if (to == NULL) return NULL;
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++) {
        const struct metric *metric = &metrics[i];
        fprintf(to, "# HELP gacc_%s %s\n# TYPE gacc_%s %s\n", metric->name, metric->help, metric->name, metric->type);
        (metric->labels >= LABELS_RANK ? print_ranks : print_job)(to, metric, &from);
    }
    const bool whole = !ferror(to);
    if (fclose(to) == 0 && whole) return text;
    free(text);
    return NULL;
}
