#include "daemon/observe/step_log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/observe/json_writer.h"
#include "proto/optimizers.h"

/* A measured number: null and a count beside it when it is not finite. */
static void measured(struct json_writer *json, const char *key, double value)
{
    if (json_write_double(json, key, value)) return;
    char count[64];
    snprintf(count, sizeof count, "%s_nonfinite", key);
    json_write_unsigned(json, count, 1);
}

static void present(struct json_writer *json, const char *key, bool is_present, double value)
{
    if (is_present)
        measured(json, key, value);
    else
        json_write_null(json, key);
}

static void present_count(struct json_writer *json, const char *key, bool is_present, uint64_t value)
{
    if (is_present)
        json_write_unsigned(json, key, value);
    else
        json_write_null(json, key);
}

static void counters(struct json_writer *json, const struct step_counters *of)
{
    json_write_unsigned(json, "step", of->step);
    json_write_unsigned(json, "optimizer_steps", of->optimizer_steps);
    json_write_unsigned(json, "skipped_steps", of->skipped_steps);
    json_write_unsigned(json, "empty_steps", of->empty_steps);
    json_write_unsigned(json, "scheduler_steps", of->scheduler_steps);
}

static void accumulate(struct json_writer *json, const uint32_t *counts, uint32_t ranks)
{
    json_write_array(json, "accumulate");
    for (uint32_t rank = 0; rank < ranks; rank++) json_write_unsigned(json, NULL, counts[rank]);
    json_write_array_end(json);
}

static void resumption(struct json_writer *json, const struct header_record *header)
{
    json_write_object(json, "resumed");
    counters(json, header->resumed);
    json_write_unsigned(json, "tokens_seen", header->resumed->tokens_seen);
    json_write_object_end(json);
    json_write_array(json, "changes");
    for (size_t i = 0; i < header->change_count; i++) {
        const struct header_change *change = &header->changes[i];
        json_write_object(json, NULL);
        json_write_string(json, "key", change->key);
        json_write_string(json, "was", change->was);
        json_write_string(json, "now", change->kept ? change->was : change->now);
        if (change->kept) json_write_string(json, "not", change->now);
        json_write_object_end(json);
    }
    json_write_array_end(json);
    json_write_array(json, "settings");
    for (size_t i = 0; header->settings && i < header->settings->count; i++) {
        json_write_object(json, NULL);
        json_write_string(json, "path", header->settings->each[i].path);
        json_write_string(json, "value", header->settings->each[i].value);
        json_write_object_end(json);
    }
    json_write_array_end(json);
}

static void memory(struct json_writer *json, const Gacc__V1__Memory *taken)
{
    if (!taken) {
        json_write_null(json, "memory");
        return;
    }
    json_write_object(json, "memory");
    json_write_unsigned(json, "parameters", taken->parameters);
    json_write_unsigned(json, "gradients", taken->gradients);
    json_write_unsigned(json, "shard", taken->shard);
    json_write_unsigned(json, "moments", taken->moments);
    json_write_unsigned(json, "activations", taken->activations);
    json_write_unsigned(json, "data", taken->data);
    json_write_unsigned(json, "window", taken->window);
    json_write_object_end(json);
}

static bool is_frozen(const Gacc__V1__TensorGroup *group, uint64_t optimizer_steps)
{
    return group_is_frozen(group->frozen, group->frozen_until, group->frozen_from, optimizer_steps);
}

/* What is frozen in the step behind so many applied ones has no learning rate there. */
static void group_rate(struct json_writer *json, const char *key, const Gacc__V1__TensorGroup *group, double lr,
                       uint64_t optimizer_steps)
{
    if (is_frozen(group, optimizer_steps))
        json_write_null(json, key);
    else
        json_write_double(json, key, lr * group->lr_ratio);
}

static void groups(struct json_writer *json, const struct header_record *header)
{
    const uint64_t steps = header->resumed ? header->resumed->optimizer_steps : 0;
    json_write_array(json, "groups");
    for (size_t i = 0; i < header->group_count; i++) {
        const Gacc__V1__TensorGroup *group = header->groups[i];
        json_write_object(json, NULL);
        if (*group->optimizer) json_write_string(json, "optimizer", group->optimizer);
        json_write_string(json, "match", *group->match ? group->match : NULL);
        json_write_unsigned(json, "tensors", group->tensors);
        json_write_unsigned(json, "parameters", group->parameters);
        group_rate(json, "lr", group, header->lr, steps);
        if (is_frozen(group, steps))
            json_write_null(json, "weight_decay");
        else
            json_write_double(json, "weight_decay", group->weight_decay);
        json_write_bool(json, "frozen", is_frozen(group, steps));
        if (group->frozen_until) json_write_unsigned(json, "frozen_until", group->frozen_until);
        if (group->frozen_from) json_write_unsigned(json, "frozen_from", group->frozen_from);
        json_write_object_end(json);
    }
    json_write_array_end(json);
}

/* What the running statistics are of, and at which rate they move, once a step. */
static void batch_norm(struct json_writer *json, const Gacc__V1__ModelSection *model)
{
    static const char *const stats[] = {"micro", "frozen", "sync", "window"}; /* in the order of NormStats */
    json_write_object(json, "batch_norm");
    json_write_string(json, "stats", stats[model->norm_stats]);
    json_write_double(json, "momentum", model->norm_momentum);
    json_write_object_end(json);
}

static void header_members(struct json_writer *json, const void *record)
{
    const struct header_record *header = record;
    json_write_string(json, "type", "header");
    json_write_string(json, "job", header->job);
    json_write_hex(json, "job_digest", header->job_digest, header->job_digest_length);
    json_write_unsigned(json, "effective_batch", header->effective_batch);
    json_write_unsigned(json, "micro_batch", header->micro_batch);
    accumulate(json, header->accumulate, header->ranks);
    json_write_unsigned(json, "ranks", header->ranks);
    json_write_unsigned(json, "tokens_per_step", header->tokens_per_step);
    json_write_unsigned(json, "total_steps", header->total_steps);
    json_write_unsigned(json, "train_sequences", header->train_sequences);
    json_write_unsigned(json, "validation_sequences", header->validation_sequences);
    json_write_unsigned(json, "parameters", header->parameters);
    json_write_unsigned(json, "trained", header->trained);
    groups(json, header);
    if (header->batch_norm) batch_norm(json, header->batch_norm);
    json_write_string(json, "device", header->device);
    memory(json, header->memory);
    json_write_array(json, "versions");
    for (size_t i = 0; i < header->version_count; i++) json_write_string(json, NULL, header->versions[i]);
    json_write_array_end(json);
    json_write_string(json, "resumed_from", header->resumed_from);
    if (header->resumed_from) resumption(json, header);
}

static void blame(struct json_writer *json, const Gacc__V1__Blame *found, uint32_t rank)
{
    if (!found) {
        json_write_null(json, "nonfinite");
        return;
    }
    json_write_object(json, "nonfinite");
    json_write_unsigned(json, "rank", rank);
    json_write_string(json, "tensor", found->tensor);
    present_count(json, "micro_batch", found->has_micro_batch, found->micro_batch);
    json_write_array(json, "sequences");
    for (size_t i = 0; i < found->n_sequences; i++) {
        json_write_object(json, NULL);
        json_write_unsigned(json, "index", found->sequences[i]->index);
        json_write_string(json, "file", found->sequences[i]->file);
        json_write_unsigned(json, "offset", found->sequences[i]->offset);
        json_write_object_end(json);
    }
    json_write_array_end(json);
    json_write_object_end(json);
}

static void traffic(struct json_writer *json, const struct step_record *step)
{
    json_write_object(json, "collectives");
    json_write_unsigned(json, "reduce_scatter", step->reduce_scatters);
    json_write_unsigned(json, "all_gather", step->all_gathers);
    json_write_unsigned(json, "control", step->control_collectives);
    if (step->has_statistics) json_write_unsigned(json, "statistics", step->statistics_collectives);
    json_write_object_end(json);
    json_write_object(json, "bytes");
    json_write_unsigned(json, "reduce_scatter", step->reduce_scatter_bytes);
    json_write_unsigned(json, "all_gather", step->all_gather_bytes);
    if (step->has_statistics) json_write_unsigned(json, "statistics", step->statistics_bytes);
    json_write_object_end(json);
}

static void seconds(struct json_writer *json, const struct step_record *step)
{
    json_write_object(json, "seconds");
    json_write_double(json, "step", step->seconds.step);
    json_write_double(json, "data", step->seconds.data);
    json_write_double(json, "compute", step->seconds.compute);
    json_write_double(json, "reduce", step->seconds.reduce);
    json_write_double(json, "decision", step->seconds.decision);
    json_write_double(json, "update", step->seconds.update);
    json_write_double(json, "gather", step->seconds.gather);
    json_write_double(json, "since_last_step", step->seconds.since_last_step);
    json_write_object_end(json);
}

static const char *const verdicts[] = {
    [VERDICT_IS_APPLY] = "apply",
    [VERDICT_IS_SKIP] = "skip",
    [VERDICT_IS_EMPTY] = "empty",
    [VERDICT_IS_FAIL] = "fail",
};

static void step_members(struct json_writer *json, const void *record)
{
    const struct step_record *step = record;
    bool applied = step->verdict == VERDICT_IS_APPLY;
    json_write_string(json, "type", "step");
    counters(json, &step->counters);
    json_write_string(json, "verdict", verdicts[step->verdict]);
    json_write_string(json, "reason", step->reason);
    json_write_unsigned(json, "retries", step->retries);
    blame(json, step->blame, step->blame_rank);
    present(json, "loss", step->has_loss, step->loss);
    json_write_double(json, "weight", step->weight);
    json_write_unsigned(json, "micro_batches", step->micro_batches);
    json_write_unsigned(json, "tokens", step->tokens);
    json_write_unsigned(json, "tokens_seen", step->counters.tokens_seen);
    json_write_double(json, "lr", step->lr);
    if (step->group_count > 1) {
        json_write_array(json, "lr_groups");
        const uint64_t before = step->counters.optimizer_steps - applied;
        for (size_t i = 0; i < step->group_count; i++) group_rate(json, NULL, step->groups[i], step->lr, before);
        json_write_array_end(json);
    }
    present(json, "loss_scale", step->has_scaler, step->loss_scale);
    present(json, "loss_scale_next", step->has_scaler, step->loss_scale_next);
    present_count(json, "growth_tracker", step->has_scaler, step->growth_tracker);
    present(json, "grad_norm_scaled", applied, step->grad_norm_scaled);
    present(json, "grad_norm", applied, step->grad_norm);
    present(json, "grad_norm_clipped", applied, step->grad_norm_clipped);
    present(json, "clip_coefficient", applied, step->clip_coefficient);
    traffic(json, step);
    accumulate(json, step->accumulate, step->ranks);
    seconds(json, step);
}

static void eval_members(struct json_writer *json, const void *record)
{
    const struct eval_record *eval = record;
    json_write_string(json, "type", "eval");
    json_write_unsigned(json, "step", eval->step);
    json_write_unsigned(json, "optimizer_steps", eval->optimizer_steps);
    measured(json, "loss", eval->loss);
    json_write_double(json, "weight", eval->weight);
    json_write_unsigned(json, "sequences", eval->sequences);
    json_write_double(json, "seconds", eval->seconds);
}

static void checkpoint_members(struct json_writer *json, const void *record)
{
    const struct checkpoint_record *checkpoint = record;
    json_write_string(json, "type", "checkpoint");
    json_write_unsigned(json, "step", checkpoint->step);
    json_write_unsigned(json, "optimizer_steps", checkpoint->optimizer_steps);
    json_write_string(json, "name", checkpoint->name);
    json_write_unsigned(json, "bytes", checkpoint->bytes);
    json_write_object(json, "seconds");
    json_write_double(json, "copy", checkpoint->seconds.copy);
    json_write_double(json, "write", checkpoint->seconds.write);
    json_write_double(json, "commit", checkpoint->seconds.commit);
    json_write_object_end(json);
}

static void control_members(struct json_writer *json, const void *record)
{
    const struct control_record *control = record;
    json_write_string(json, "type", "control");
    json_write_string(json, "method", control->method);
    json_write_string(json, "by", control->by);
    json_write_string(json, "role", control->role);
    json_write_double(json, "at", control->at);
    json_write_unsigned(json, "step", control->step);
    json_write_unsigned(json, "optimizer_steps", control->optimizer_steps);
    json_write_bool(json, "accepted", !control->refusal);
    json_write_string(json, "reason", control->refusal);
    if (control->count) json_write_unsigned(json, "count", control->count);
    json_write_array(json, "changes");
    for (size_t i = 0; i < control->change_count; i++) {
        json_write_object(json, NULL);
        json_write_string(json, "key", control->changes[i].key);
        json_write_string(json, "was", control->changes[i].was);
        json_write_string(json, "now", control->changes[i].now);
        json_write_object_end(json);
    }
    json_write_array_end(json);
}

static void event_members(struct json_writer *json, const void *record)
{
    const struct event_record *event = record;
    json_write_string(json, "type", "event");
    json_write_unsigned(json, "step", event->step);
    json_write_string(json, "event", event->event);
    json_write_string(json, "text", event->text);
}

static void result_members(struct json_writer *json, const void *record)
{
    const struct end_record *end = record;
    json_write_string(json, "status",
                      end->exit == STATUS_DONE    ? "done"
                      : end->exit == STATUS_AGAIN ? "again"
                                                  : "failed");
    json_write_signed(json, "exit", end->exit);
    json_write_string(json, "reason", end->reason);
    counters(json, &end->counters);
    json_write_unsigned(json, "total_steps", end->total_steps);
    json_write_unsigned(json, "tokens_seen", end->counters.tokens_seen);
    present(json, "loss", end->has_loss, end->loss);
    present(json, "validation_loss", end->has_validation, end->validation_loss);
    json_write_double(json, "seconds", end->seconds);
    json_write_string(json, "checkpoint", end->checkpoint);
}

static void end_members(struct json_writer *json, const void *record)
{
    json_write_string(json, "type", "end");
    result_members(json, record);
}

static char *object(void (*members)(struct json_writer *, const void *), const void *record)
{
    struct json_writer json;
    char *out;
    size_t length;
    if (json_write_open(&json, &out, &length)) return NULL;
    json_write_object(&json, NULL);
    members(&json, record);
    json_write_object_end(&json);
    return json_write_close(&json, &out) ? out : NULL;
}

#define TEXT_OF(function, record_type, members)      \
    char *function(const struct record_type *record) \
    {                                                \
        return object(members, record);              \
    }

TEXT_OF(header_line, header_record, header_members)
TEXT_OF(step_line, step_record, step_members)
TEXT_OF(eval_line, eval_record, eval_members)
TEXT_OF(checkpoint_line, checkpoint_record, checkpoint_members)
TEXT_OF(control_line, control_record, control_members)
TEXT_OF(event_line, event_record, event_members)
TEXT_OF(end_line, end_record, end_members)
TEXT_OF(result_text, end_record, result_members)

/* Where the last whole line ends, or -1. */
static off_t end_of_lines(int fd, off_t size)
{
    char block[4096];
    while (size > 0) {
        off_t from = (size - 1) / (off_t)sizeof block * (off_t)sizeof block;
        ssize_t got = pread(fd, block, (size_t)(size - from), from);
        if (got != size - from) return -1;
        const char *newline = memrchr(block, '\n', (size_t)got);
        if (newline) return from + (newline - block) + 1;
        size = from;
    }
    return 0;
}

int step_log_open(struct step_log *log, const char *path, struct error *error)
{
    *log = (struct step_log){.fd = -1};
    size_t length = strlen(path);
    if (length >= sizeof log->path) return error_set(error, STATUS_IO, "%s: the path is too long", path);
    memcpy(log->path, path, length + 1);
    int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return error_set_errno(error, STATUS_IO, errno, "%s: cannot open", path);
    struct stat info;
    off_t whole = fstat(fd, &info) ? -1 : S_ISREG(info.st_mode) ? end_of_lines(fd, info.st_size) : info.st_size;
    if (whole < 0 || (whole != info.st_size && ftruncate(fd, whole))) {
        int number = errno;
        close(fd);
        return error_set_errno(error, STATUS_IO, number, "%s: cannot remove an unfinished last line", path);
    }
    log->fd = fd;
    return 0;
}

/* Of the first `bytes` of what waits nothing is left to write. */
static void forget(struct step_log *log, size_t bytes)
{
    log->waiting_bytes -= bytes;
    memmove(log->waiting, log->waiting + bytes, log->waiting_bytes);
}

int step_log_catch_up(struct step_log *log, struct error *error)
{
    if (!log->waiting_bytes) return 0;
    off_t end = lseek(log->fd, 0, SEEK_END);
    ssize_t written;
    do {
        written = write(log->fd, log->waiting, log->waiting_bytes);
    } while (written < 0 && errno == EINTR);
    int number = written < 0 ? errno : ENOSPC;
    if (written > 0 && (size_t)written < log->waiting_bytes) {
        /* Half a line would break every reader. If it cannot be taken back its other half is what comes next. */
        const char *newline = memrchr(log->waiting, '\n', (size_t)written);
        ssize_t whole = newline ? newline - log->waiting + 1 : 0;
        if (end >= 0 && !ftruncate(log->fd, end + whole)) written = whole;
    }
    if (written > 0) forget(log, (size_t)written);
    if (!log->waiting_bytes) return 0;
    return error_set_errno(error, STATUS_IO, number, "%s: cannot write", log->path);
}

/* The line and its newline, in memory. */
static int keep(struct step_log *log, const char *line, struct error *error)
{
    if (!line) return error_set(error, STATUS_INTERNAL, "%s: out of memory", log->path);
    const size_t length = strlen(line), needed = log->waiting_bytes + length + 1;
    if (log->waiting_bytes > STEP_LOG_WAITING_MAX)
        return error_set(error, STATUS_IO, "%s: cannot write: %zu bytes of lines wait for room already", log->path,
                         log->waiting_bytes);
    if (needed > log->waiting_capacity) {
        char *larger = realloc(log->waiting, 2 * needed);
        if (!larger) return error_set(error, STATUS_INTERNAL, "%s: out of memory", log->path);
        log->waiting = larger;
        log->waiting_capacity = 2 * needed;
    }
    memcpy(log->waiting + log->waiting_bytes, line, length);
    log->waiting[needed - 1] = '\n';
    log->waiting_bytes = needed;
    return 0;
}

int step_log_append(struct step_log *log, const char *line, struct error *error)
{
    int status = keep(log, line, error);
    log->lost |= status != 0;
    return status ? status : step_log_catch_up(log, error);
}

int step_log_close(struct step_log *log, struct error *error)
{
    int fd = log->fd;
    free(log->waiting);
    log->fd = -1;
    log->waiting = NULL;
    log->waiting_bytes = log->waiting_capacity = 0;
    if (fd >= 0 && close(fd)) return error_set_errno(error, STATUS_IO, errno, "%s: cannot close", log->path);
    return 0;
}
