#include "daemon/ctl/show.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/ctl/target.h"

bool show_has_colours(int fd)
{
    const char *none = getenv("NO_COLOR"), *terminal = getenv("TERM");
    return isatty(fd) && !(none && none[0]) && terminal && strcmp(terminal, "dumb") != 0;
}

/* Control characters of ASCII, and those that UTF-8 has as two bytes (U+0080 to U+009F). */
const char *show_clean(const char *text)
{
    static char rooms[4][512];
    static unsigned next;
    char *room = rooms[next++ % 4];
    snprintf(room, sizeof rooms[0], "%s", text);
    for (unsigned char *at = (unsigned char *)room; *at; at++) {
        const bool steers = *at < 0x20 || *at == 0x7f || (*at == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0);
        if (!steers) continue;
        if (*at == 0xc2) at[1] = '?';
        *at = '?';
    }
    return room;
}

const char *show_value(const char *text)
{
    return text && text[0] ? show_clean(text) : "nothing";
}

const char *show_duration(double seconds, char text[32])
{
    if (!(seconds < 1e9)) return "?";
    const unsigned long whole = seconds > 0 ? (unsigned long)seconds : 0;
    snprintf(text, 32, "%lu:%02lu:%02lu", whole / 3600, whole / 60 % 60, whole % 60);
    return text;
}

const char *show_name(const ProtobufCEnumDescriptor *descriptor, int value, size_t prefix)
{
    const ProtobufCEnumValue *found = protobuf_c_enum_descriptor_get_value(descriptor, value);
    return found ? found->name + prefix : "UNKNOWN";
}

const char *show_state(Gacc__V1__State state)
{
    return show_name(&gacc__v1__state__descriptor, (int)state, sizeof "STATE_" - 1);
}

/* As log.jsonl has it. */
const char *show_verdict(Gacc__V1__Verdict verdict)
{
    static const char *const names[] = {"none", "apply", "skip", "empty", "fail"};
    return (unsigned)verdict < sizeof names / sizeof *names ? names[verdict] : "unknown";
}

const char *show_effect(const Gacc__V1__Effect *effect, char text[64])
{
    if (!effect) return "at once";
    snprintf(text, 64, "after step %llu (attempt %llu)", (unsigned long long)effect->optimizer_steps,
             (unsigned long long)effect->step);
    return text;
}

/* ---- status ---- */

static void show_checkpoint(const Gacc__V1__Status *status, double unix_seconds)
{
    char age[32];
    if (status->checkpoint[0])
        printf("checkpoint %s, %s old%s\n", show_clean(status->checkpoint),
               show_duration(unix_seconds - status->checkpoint_unix_seconds, age),
               status->checkpoint_under_way ? "; another is being written" : "");
    else
        printf("checkpoint %s\n", status->checkpoint_under_way ? "the first is being written" : "none yet");
}

static void show_rank(const Gacc__V1__RankStatus *rank)
{
    printf("rank %-5u %s, process %u: %s", rank->rank, show_clean(rank->host), rank->pid, show_state(rank->state));
    printf(" for %.1f s, step %llu, micro-batch %u, heard %.1f s ago", rank->seconds_in_state,
           (unsigned long long)rank->step, rank->micro_batch, rank->seconds_since_heard);
    if (rank->step_seconds > 0) printf(", own work %.3g s a step", rank->step_seconds);
    putchar('\n');
}

void show_status(const Gacc__V1__Status *status, double unix_seconds)
{
    char left[32];
    printf("job        %s in %s (coordinator: process %u)\n", show_clean(status->job), show_clean(status->output),
           status->pid);
    printf("phase      %s", show_clean(status->phase));
    for (size_t i = 0; i < status->n_requests; i++)
        printf("%s%s", i ? ", " : "; asked for: ", show_clean(status->requests[i]));
    printf("\nstep       %llu of %llu; skipped %llu, empty %llu\n", (unsigned long long)status->optimizer_steps,
           (unsigned long long)status->total_steps, (unsigned long long)status->skipped_steps,
           (unsigned long long)status->empty_steps);
    printf("batch      %u sequences in micro-batches of %u; epoch %llu\n", status->effective_batch, status->micro_batch,
           (unsigned long long)status->epoch);
    if (isfinite(status->loss))
        printf("loss       %.6g", status->loss);
    else
        printf("loss       %s", status->step ? "not finite" : "not known yet");
    if (status->has_validation)
        printf("; validation %.6g at step %llu", status->validation_loss,
               (unsigned long long)status->validation_optimizer_steps);
    printf("\nlr         %.6g\n", status->lr);
    if (status->has_scaler) printf("loss scale %g; growth tracker %u\n", status->loss_scale, status->growth_tracker);
    printf("pace       %.3g attempts, %.0f tokens a second; %llu tokens seen; %s left\n", status->steps_per_second,
           status->tokens_per_second, (unsigned long long)status->tokens_seen,
           show_duration(status->eta_seconds, left));
    show_checkpoint(status, unix_seconds);
    for (size_t i = 0; i < status->n_ranks; i++) show_rank(status->ranks[i]);
}

json_t *show_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *show_string(const char *text)
{
    json_t *string = json_string(text);
    return string ? string : json_null();
}

static json_t *count(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *ranks_json(const Gacc__V1__Status *status)
{
    json_t *ranks = json_array();
    for (size_t i = 0; i < status->n_ranks; i++) {
        const Gacc__V1__RankStatus *rank = status->ranks[i];
        json_t *object = json_object();
        json_object_set_new(object, "rank", count(rank->rank));
        json_object_set_new(object, "host", show_string(rank->host));
        json_object_set_new(object, "pid", count(rank->pid));
        json_object_set_new(object, "state", show_string(show_state(rank->state)));
        json_object_set_new(object, "step", count(rank->step));
        json_object_set_new(object, "micro_batch", count(rank->micro_batch));
        json_object_set_new(object, "seconds_since_heard", show_number(rank->seconds_since_heard));
        json_object_set_new(object, "seconds_in_state", show_number(rank->seconds_in_state));
        json_object_set_new(object, "step_seconds", show_number(rank->step_seconds));
        json_array_append_new(ranks, object);
    }
    return ranks;
}

static json_t *last_json(const Gacc__V1__Status *status)
{
    json_t *last = json_array();
    for (size_t i = 0; i < status->n_last; i++) {
        const Gacc__V1__LastStep *step = status->last[i];
        json_t *object = json_object();
        json_object_set_new(object, "step", count(step->step));
        json_object_set_new(object, "verdict", show_string(show_verdict(step->verdict)));
        json_object_set_new(object, "loss", show_number(step->loss));
        json_object_set_new(object, "loss_scale", step->loss_scale > 0 ? show_number(step->loss_scale) : json_null());
        json_object_set_new(object, "grad_norm", show_number(step->grad_norm));
        json_object_set_new(object, "seconds", show_number(step->seconds));
        json_array_append_new(last, object);
    }
    return last;
}

json_t *show_status_json(const Gacc__V1__Status *status)
{
    json_t *requests = json_array();
    for (size_t i = 0; i < status->n_requests; i++) json_array_append_new(requests, show_string(status->requests[i]));
    const bool has_checkpoint = status->checkpoint[0] != '\0';
    const struct {
        const char *key;
        json_t *value;
    } members[] = {
        {"job", show_string(status->job)},
        {"output", show_string(status->output)},
        {"pid", count(status->pid)},
        {"phase", show_string(status->phase)},
        {"requests", requests},
        {"started_unix_seconds", show_number(status->started_unix_seconds)},
        {"step", count(status->step)},
        {"optimizer_steps", count(status->optimizer_steps)},
        {"skipped_steps", count(status->skipped_steps)},
        {"empty_steps", count(status->empty_steps)},
        {"total_steps", count(status->total_steps)},
        {"epoch", count(status->epoch)},
        {"effective_batch", count(status->effective_batch)},
        {"micro_batch", count(status->micro_batch)},
        {"loss", show_number(status->loss)},
        {"lr", show_number(status->lr)},
        {"loss_scale", status->has_scaler ? show_number(status->loss_scale) : json_null()},
        {"growth_tracker", status->has_scaler ? count(status->growth_tracker) : json_null()},
        {"validation_loss", status->has_validation ? show_number(status->validation_loss) : json_null()},
        {"validation_optimizer_steps",
         status->has_validation ? count(status->validation_optimizer_steps) : json_null()},
        {"tokens_seen", count(status->tokens_seen)},
        {"tokens_per_second", show_number(status->tokens_per_second)},
        {"steps_per_second", show_number(status->steps_per_second)},
        {"eta_seconds", show_number(status->eta_seconds)},
        {"checkpoint", has_checkpoint ? show_string(status->checkpoint) : json_null()},
        {"checkpoint_unix_seconds", has_checkpoint ? show_number(status->checkpoint_unix_seconds) : json_null()},
        {"checkpoint_optimizer_steps", has_checkpoint ? count(status->checkpoint_optimizer_steps) : json_null()},
        {"checkpoint_under_way", json_boolean(status->checkpoint_under_way)},
        {"ranks", ranks_json(status)},
        {"last", last_json(status)},
    };
    json_t *object = json_object();
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        json_object_set_new(object, members[i].key, members[i].value);
    return object;
}

void show_json(json_t *object, size_t indent)
{
    json_dumpf(object, stdout, indent ? JSON_INDENT(indent) : JSON_COMPACT);
    putchar('\n');
    json_decref(object);
}

/* ---- lines of the log ---- */

static const char *word(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? show_clean(text) : "?";
}

static double real(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

/* Right-aligned; a null as a dash. */
static void put_number(const json_t *record, const char *key, int width)
{
    const json_t *value = json_object_get(record, key);
    if (json_is_number(value))
        printf("  %*.5g", width, json_number_value(value));
    else
        printf("  %*s", width, "-");
}

static void put_count(const json_t *record, const char *key, int width)
{
    const json_t *value = json_object_get(record, key);
    if (json_is_integer(value))
        printf("%*lld", width, (long long)json_integer_value(value));
    else
        printf("%*s", width, "-");
}

static void put_step(const json_t *line)
{
    put_number(line, "loss", 10);
    put_number(line, "lr", 10);
    put_number(line, "loss_scale", 10);
    put_number(line, "grad_norm", 10);
    put_number(json_object_get(line, "seconds"), "step", 8);
}

static void put_eval(const json_t *line)
{
    put_number(line, "loss", 10);
    printf("  %10s  %10s  %10s", "-", "-", "-");
    put_number(line, "seconds", 8);
}

static void put_checkpoint(const json_t *line)
{
    const json_t *seconds = json_object_get(line, "seconds");
    printf("  %s: %.4g MB, training stood still for %.2g s, all on disk %.2g s later", word(line, "name"),
           real(line, "bytes") / 1e6, real(seconds, "copy"), real(seconds, "write") + real(seconds, "commit"));
}

static void put_event(const json_t *line)
{
    printf("  %s", word(line, "text"));
}

static void put_control(const json_t *line)
{
    printf("  %s by %s", word(line, "method"), word(line, "by"));
    const json_t *changes = json_object_get(line, "changes"), *change;
    size_t i;
    json_array_foreach(changes, i, change) printf("%s%s: %s → %s", i ? ", " : ": ", word(change, "key"),
                                                  show_value(json_string_value(json_object_get(change, "was"))),
                                                  show_value(json_string_value(json_object_get(change, "now"))));
    if (!json_is_true(json_object_get(line, "accepted"))) printf("; refused: %s", word(line, "reason"));
}

static void put_end(const json_t *line)
{
    const char *reason = json_string_value(json_object_get(line, "reason"));
    printf("  %s (exit status %d)%s%s", show_clean(target_ending(line)), (int)real(line, "exit"), reason ? ": " : "",
           reason ? show_clean(reason) : "");
}

static const char *colour_of(const char *word)
{
    static const struct {
        const char *word, *colour;
    } colours[] = {{"skip", "\033[33m"},  {"empty", "\033[33m"}, {"fail", "\033[31m"},       {"eval", "\033[36m"},
                   {"event", "\033[33m"}, {"end", "\033[1m"},    {"checkpoint", "\033[32m"}, {"control", "\033[35m"}};
    for (size_t i = 0; i < sizeof colours / sizeof *colours; i++)
        if (!strcmp(word, colours[i].word)) return colours[i].colour;
    return "";
}

bool show_record(const json_t *line, bool with_head, bool with_colours)
{
    static const struct {
        const char *type;
        void (*put)(const json_t *line);
    } kinds[] = {{"step", put_step},   {"eval", put_eval},       {"checkpoint", put_checkpoint},
                 {"event", put_event}, {"control", put_control}, {"end", put_end}};
    const char *type = json_string_value(json_object_get(line, "type"));
    for (size_t i = 0; type && i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(type, kinds[i].type) != 0) continue;
        if (with_head)
            printf("%9s  %9s  %-10s  %10s  %10s  %10s  %10s  %8s\n", "attempt", "step", "verdict", "loss", "lr",
                   "scale", "grad norm", "seconds");
        const char *what = i ? type : word(line, "verdict");
        const char *colour = with_colours ? colour_of(what) : "";
        fputs(colour, stdout);
        put_count(line, "step", 9);
        put_count(line, "optimizer_steps", 11);
        printf("  %-10s", what);
        kinds[i].put(line);
        printf("%s\n", colour[0] ? "\033[0m" : "");
        return true;
    }
    return false;
}
