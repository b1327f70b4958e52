#include "daemon/ctl/show.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *state_name(Gacc__V1__State state)
{
    const ProtobufCEnumValue *value = protobuf_c_enum_descriptor_get_value(&gacc__v1__state__descriptor, (int)state);
    return value ? value->name + sizeof "STATE_" - 1 : "UNKNOWN";
}

static void show_time_left(double seconds)
{
    if (!(seconds < 1e9)) {
        printf("not known yet how long\n");
        return;
    }
    const unsigned long left = seconds > 0 ? (unsigned long)seconds : 0;
    printf("%lu:%02lu:%02lu left\n", left / 3600, left / 60 % 60, left % 60);
}

void show_status(const Gacc__V1__Status *status)
{
    printf("job        %s in %s (coordinator: process %u)\n", status->job, status->output, status->pid);
    printf("phase      %s\n", status->phase);
    printf("step       %llu of %llu; skipped %llu, empty %llu\n", (unsigned long long)status->optimizer_steps,
           (unsigned long long)status->total_steps, (unsigned long long)status->skipped_steps,
           (unsigned long long)status->empty_steps);
    printf("batch      %u sequences in micro-batches of %u\n", status->effective_batch, status->micro_batch);
    if (isfinite(status->loss))
        printf("loss       %.6g", status->loss);
    else
        printf("loss       %s", status->step ? "not finite" : "not known yet");
    if (status->has_validation)
        printf("; validation %.6g at step %llu", status->validation_loss,
               (unsigned long long)status->validation_optimizer_steps);
    printf("\nlr         %.6g\n", status->lr);
    if (status->has_scaler) printf("loss scale %g; growth tracker %u\n", status->loss_scale, status->growth_tracker);
    printf("tokens     %llu seen; %.0f a second; ", (unsigned long long)status->tokens_seen, status->tokens_per_second);
    show_time_left(status->eta_seconds);
    for (size_t i = 0; i < status->n_ranks; i++) {
        const Gacc__V1__RankStatus *rank = status->ranks[i];
        printf("rank %-5u %s, process %u: %s, step %llu, micro-batch %u, heard %.1f s ago\n", rank->rank, rank->host,
               rank->pid, state_name(rank->state), (unsigned long long)rank->step, rank->micro_batch,
               rank->seconds_since_heard);
    }
}

/* null where there is no number. */
static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

void show_status_json(const Gacc__V1__Status *status)
{
    json_t *ranks = json_array();
    for (size_t i = 0; i < status->n_ranks; i++) {
        const Gacc__V1__RankStatus *rank = status->ranks[i];
        json_array_append_new(ranks, json_pack("{si ss si ss sI si sf}", "rank", (int)rank->rank, "host", rank->host,
                                               "pid", (int)rank->pid, "state", state_name(rank->state), "step",
                                               (json_int_t)rank->step, "micro_batch", (int)rank->micro_batch,
                                               "seconds_since_heard", rank->seconds_since_heard));
    }
    json_t *object =
        json_pack("{ss ss si ss sI sI sI sI sI so so so sI sf sI so so so so si si sf}", "job", status->job, "output",
                  status->output, "pid", (int)status->pid, "phase", status->phase, "step", (json_int_t)status->step,
                  "optimizer_steps", (json_int_t)status->optimizer_steps, "skipped_steps",
                  (json_int_t)status->skipped_steps, "empty_steps", (json_int_t)status->empty_steps, "total_steps",
                  (json_int_t)status->total_steps, "loss", number(status->loss), "lr", number(status->lr), "loss_scale",
                  status->has_scaler ? number(status->loss_scale) : json_null(), "growth_tracker",
                  (json_int_t)status->growth_tracker, "tokens_per_second", status->tokens_per_second, "tokens_seen",
                  (json_int_t)status->tokens_seen, "eta_seconds", number(status->eta_seconds), "validation_loss",
                  status->has_validation ? number(status->validation_loss) : json_null(), "validation_optimizer_steps",
                  status->has_validation ? json_integer((json_int_t)status->validation_optimizer_steps) : json_null(),
                  "ranks", ranks, "effective_batch", (int)status->effective_batch, "micro_batch",
                  (int)status->micro_batch, "started_unix_seconds", status->started_unix_seconds);
    json_dumpf(object, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(object);
}

/* Right-aligned; a null as a dash. */
static void show_number(const json_t *record, const char *key, int width)
{
    const json_t *value = json_object_get(record, key);
    if (json_is_number(value))
        printf("  %*.5g", width, json_number_value(value));
    else
        printf("  %*s", width, "-");
}

static void show_beginning(const Gacc__V1__StepRecord *record, const json_t *line, const char *what)
{
    printf("%9lld  %9lld  %-7s", (long long)record->step,
           (long long)json_integer_value(json_object_get(line, "optimizer_steps")), what);
}

static void show_attempt(const Gacc__V1__StepRecord *record, const json_t *step)
{
    const char *verdict = json_string_value(json_object_get(step, "verdict"));
    show_beginning(record, step, verdict ? verdict : "?");
    show_number(step, "loss", 10);
    show_number(step, "lr", 10);
    show_number(step, "loss_scale", 10);
    show_number(step, "grad_norm", 10);
    show_number(json_object_get(step, "seconds"), "step", 8);
}

static void show_evaluation(const Gacc__V1__StepRecord *record, const json_t *evaluation)
{
    show_beginning(record, evaluation, "eval");
    show_number(evaluation, "loss", 10);
    printf("  %10s  %10s  %10s", "-", "-", "-");
    show_number(evaluation, "seconds", 8);
}

void show_record(const Gacc__V1__StepRecord *record, int head)
{
    json_t *line = json_loads(record->json, 0, NULL);
    const char *type = json_string_value(json_object_get(line, "type"));
    if (head)
        printf("%9s  %9s  %-7s  %10s  %10s  %10s  %10s  %8s\n", "attempt", "step", "verdict", "loss", "lr", "scale",
               "grad norm", "seconds");
    (type && !strcmp(type, "eval") ? show_evaluation : show_attempt)(record, line);
    putchar('\n');
    json_decref(line);
}
