/* gaccctl top: GetStatus twice a second and the lines of the log as they come, drawn by view.c, until q. */
#include <langinfo.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/ctl/arguments.h"
#include "daemon/ctl/client.h"
#include "daemon/ctl/outcome.h"
#include "daemon/ctl/show.h"
#include "daemon/ctl/stream.h"
#include "daemon/ctl/target.h"
#include "daemon/ctl/terminal.h"
#include "daemon/ctl/view.h"

#define STATUS_SECONDS 0.5
#define RETRY_SECONDS 0.5
#define TICK_MILLISECONDS 100

/* What a key asks for, once it is confirmed. */
static const struct steering {
    int key;
    const char *question, *path, *done;
    const ProtobufCMessageDescriptor *answer;
} steerings[] = {
    {'p', "pause behind this step?", "/gacc.v1.Control/Pause", "paused", &gacc__v1__effect__descriptor},
    {'r', "go on?", "/gacc.v1.Control/Resume", "goes on", &gacc__v1__effect__descriptor},
    {'c', "save a checkpoint behind this step?", "/gacc.v1.Control/Checkpoint", "saves",
     &gacc__v1__checkpoint_reply__descriptor},
};

struct top {
    const struct arguments *arguments;
    struct client *client; /* NULL: the connection is lost */
    struct client_call status_call, watch_call, change_call;
    bool status_runs, watch_runs, change_runs;
    struct stream stream;
    struct view view;
    Gacc__V1__Status *status;
    struct screen shown;
    const struct steering *asked, *under_way;
    double next_status, next_try;
    char last_words[256]; /* of a job that is over */
    bool is_dirty, is_over, quits, has_colours, is_ascii;
};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void say(struct top *top, enum style style, const char *text)
{
    snprintf(top->view.message, sizeof top->view.message, "%.290s", text);
    top->view.message_style = style;
    top->is_dirty = true;
}

/* ---- what the job answers ---- */

static void on_status(void *context, const uint8_t *bytes, size_t length)
{
    struct top *top = context;
    Gacc__V1__Status *status = gacc__v1__status__unpack(NULL, length, bytes);
    if (!status) return;
    if (top->status) gacc__v1__status__free_unpacked(top->status, NULL);
    top->view.status = top->status = status;
    top->is_dirty = true;
}

static double number_of(const json_t *line, const char *key, double otherwise)
{
    const json_t *value = json_object_get(line, key);
    return json_is_number(value) ? json_number_value(value) : otherwise;
}

static const char *word_of(const json_t *line, const char *key)
{
    const char *text = json_string_value(json_object_get(line, key));
    return text ? text : "";
}

/* The line's own attempt; a record has that of the step's line before it. */
static uint64_t step_of(const json_t *line)
{
    return (uint64_t)number_of(line, "step", 0);
}

static void take_step(struct top *top, const json_t *line)
{
    const char *verdict = word_of(line, "verdict");
    const uint64_t step = step_of(line);
    const struct view_point point = {step, number_of(line, "loss", (double)NAN), number_of(line, "loss_scale", 0),
                                     strcmp(verdict, "skip") ? GACC__V1__VERDICT__VERDICT_APPLY
                                                             : GACC__V1__VERDICT__VERDICT_SKIP};
    view_add_point(&top->view, &point);
    if (!strcmp(verdict, "apply") || !strcmp(verdict, "empty")) return;
    char text[240];
    const json_t *culprit = json_object_get(line, "nonfinite");
    const char *tensor = word_of(culprit, "tensor");
    snprintf(text, sizeof text, "%s: %s%s%s", verdict, word_of(line, "reason"), tensor[0] ? " in " : "", tensor);
    view_add_event(&top->view, step, strcmp(verdict, "fail") ? STYLE_WARN : STYLE_BAD, text);
}

static void take_line(struct top *top, const char *type, const json_t *line)
{
    char text[240] = "";
    enum style style = STYLE_PLAIN;
    if (!strcmp(type, "eval")) {
        snprintf(text, sizeof text, "validation %.5g", number_of(line, "loss", (double)NAN));
    } else if (!strcmp(type, "checkpoint")) {
        snprintf(text, sizeof text, "%s is complete, %.4g MB", word_of(line, "name"),
                 number_of(line, "bytes", 0) / 1e6);
        style = STYLE_GOOD;
    } else if (!strcmp(type, "event")) {
        snprintf(text, sizeof text, "%s", word_of(line, "text"));
        style = STYLE_WARN;
    } else if (!strcmp(type, "control")) {
        const bool is_accepted = json_is_true(json_object_get(line, "accepted"));
        snprintf(text, sizeof text, "%s by %s%s%s", word_of(line, "method"), word_of(line, "by"),
                 is_accepted ? "" : ": refused: ", is_accepted ? "" : word_of(line, "reason"));
    } else if (!strcmp(type, "end")) {
        snprintf(text, sizeof text, "the job is %s %s", target_ending(line), word_of(line, "reason"));
        style = number_of(line, "exit", 0) > 0 ? STYLE_BAD : STYLE_GOOD;
    }
    if (text[0]) view_add_event(&top->view, step_of(line), style, text);
}

static void on_record(void *context, const uint8_t *bytes, size_t length)
{
    struct top *top = context;
    Gacc__V1__StepRecord *record = gacc__v1__step_record__unpack(NULL, length, bytes);
    if (!record) return;
    json_t *line = json_loads(record->json, 0, NULL);
    const char *type = json_string_value(json_object_get(line, "type"));
    const bool is_step = type && !strcmp(type, "step");
    if (type && stream_take(&top->stream, record->step, is_step)) {
        if (is_step)
            take_step(top, line);
        else
            take_line(top, type, line);
    }
    json_decref(line);
    gacc__v1__step_record__free_unpacked(record, NULL);
}

static void on_change(void *context, const uint8_t *bytes, size_t length)
{
    struct top *top = context;
    char effect[64], text[160];
    ProtobufCMessage *answer = protobuf_c_message_unpack(top->under_way->answer, NULL, length, bytes);
    if (!answer) return;
    if (top->under_way->answer == &gacc__v1__checkpoint_reply__descriptor)
        show_effect(((const Gacc__V1__CheckpointReply *)answer)->effect, effect);
    else
        show_effect((const Gacc__V1__Effect *)answer, effect);
    snprintf(text, sizeof text, "%s %s", top->under_way->done, effect);
    say(top, STYLE_GOOD, text);
    protobuf_c_message_free_unpacked(answer, NULL);
}

/* ---- the connection ---- */

static void let_go(struct top *top)
{
    client_close(top->client);
    top->client = NULL;
    top->status_runs = top->watch_runs = top->change_runs = false;
    top->next_try = now() + RETRY_SECONDS;
}

static int begin_status(struct top *top, struct error *error)
{
    const Gacc__V1__GetStatusRequest request = GACC__V1__GET_STATUS_REQUEST__INIT;
    top->status_call = (struct client_call){.path = "/gacc.v1.Control/GetStatus", .message = on_status, .context = top};
    top->next_status = now() + STATUS_SECONDS;
    top->status_runs = true;
    return client_begin(top->client, &top->status_call, &request.base, error);
}

/* As many steps back as the graphs hold. */
static int begin_watch(struct top *top, struct error *error)
{
    Gacc__V1__WatchStepsRequest request = GACC__V1__WATCH_STEPS_REQUEST__INIT;
    const uint64_t step = top->status->step;
    if (!top->stream.last) top->stream.from = step > VIEW_POINTS_MAX ? step - VIEW_POINTS_MAX : 1;
    request.from_step = stream_begin(&top->stream);
    request.all = true;
    top->watch_call = (struct client_call){.path = "/gacc.v1.Control/WatchSteps", .message = on_record, .context = top};
    top->watch_runs = true;
    return client_begin(top->client, &top->watch_call, &request.base, error);
}

static void begin_change(struct top *top, const struct steering *steering)
{
    const Gacc__V1__PauseRequest request = GACC__V1__PAUSE_REQUEST__INIT; /* none of the three has a field to fill */
    struct error error;
    if (!top->client || top->change_runs) return;
    top->under_way = steering;
    top->change_call = (struct client_call){.path = steering->path, .message = on_change, .context = top};
    top->change_runs = true;
    if (client_begin(top->client, &top->change_call, &request.base, &error))
        say(top, STYLE_BAD, error.text);
    else
        say(top, STYLE_PLAIN, "asked; answered at the end of this step");
}

/* The last words: the run directory has the reason, when the job is no longer there. */
static void end(struct top *top, const char *text)
{
    char line[300];
    top->is_over = true;
    snprintf(top->last_words, sizeof top->last_words, "%.250s", text);
    snprintf(line, sizeof line, "q quits; %.270s", text);
    say(top, STYLE_TITLE, line);
}

static void lose(struct top *top, const struct error *reason)
{
    struct error error;
    char line[300];
    struct target found;
    const struct target_words words = {.run = top->arguments->target->run};
    let_go(top);
    if (words.run[0] && target_find(&found, &words, &error)) {
        end(top, error.text);
        return;
    }
    if (words.run[0]) {
        if (strcmp(found.job_id, top->arguments->target->job_id) != 0) stream_reset(&top->stream);
        *top->arguments->target = found;
    }
    snprintf(line, sizeof line, "q quits; trying again: %.250s", reason->text);
    say(top, STYLE_BAD, line);
}

static void reach(struct top *top)
{
    struct error error;
    if (client_open(&top->client, top->arguments->target, &error) || begin_status(top, &error))
        lose(top, &error);
    else
        top->view.message[0] = '\0';
}

/* Calls that have ended. Negative: the job refuses to be asked. */
static int settle(struct top *top, struct error *error)
{
    if (top->status_runs && top->status_call.over) {
        top->status_runs = false;
        int status = outcome_of_call(top->arguments->target, top->status_call.code, top->status_call.text, error);
        if (status) return status;
        if (!top->watch_runs && top->status && (status = begin_watch(top, error))) return status;
    }
    if (top->change_runs && top->change_call.over) {
        top->change_runs = false;
        if (outcome_of_call(top->arguments->target, top->change_call.code, top->change_call.text, error))
            say(top, STYLE_BAD, error->text);
    }
    if (top->watch_runs && top->watch_call.over && !top->is_over) {
        top->watch_call.over = false; /* told once */
        if (!outcome_of_call(top->arguments->target, top->watch_call.code, top->watch_call.text, error))
            end(top, "the job has ended");
        else if (top->watch_call.code != RPC_UNAVAILABLE && top->watch_call.code != RPC_CANCELLED)
            say(top, STYLE_BAD, error->text);
    }
    return 0;
}

static int converse(struct top *top, struct error *error)
{
    if (!top->client && !top->is_over && now() >= top->next_try) reach(top);
    if (!top->client) {
        struct pollfd ready = {.fd = STDIN_FILENO, .events = POLLIN};
        poll(&ready, 1, TICK_MILLISECONDS);
        return 0;
    }
    int status = 0;
    if (!top->status_runs && now() >= top->next_status && !top->is_over) status = begin_status(top, error);
    if (!status) status = client_wait(top->client, STDIN_FILENO, TICK_MILLISECONDS, error);
    if (status) {
        if (top->is_over)
            let_go(top);
        else
            lose(top, error);
        return 0;
    }
    status = settle(top, error);
    if (!status || !top->status) return status; /* a token that is wrong is so from the first */
    lose(top, error);
    return 0;
}

/* ---- keys and drawing ---- */

static void take_key(struct top *top, int key)
{
    const struct steering *asked = top->asked;
    top->asked = NULL;
    if (asked) {
        top->view.message[0] = '\0';
        top->is_dirty = true;
        if (key == 'y') begin_change(top, asked);
        return;
    }
    top->quits = key == 'q' || key < 0;
    if (key == '\f') screen_close(&top->shown); /* Ctrl-L */
    top->is_dirty = true;
    for (size_t i = 0; i < sizeof steerings / sizeof *steerings; i++) {
        if (steerings[i].key != key || !top->client || top->is_over) continue;
        char text[128];
        top->asked = &steerings[i];
        snprintf(text, sizeof text, "%s  y: yes", steerings[i].question);
        say(top, STYLE_TITLE, text);
    }
}

static void draw(struct top *top)
{
    struct screen next;
    int columns, rows;
    terminal_size(&columns, &rows);
    if (screen_open(&next, columns, rows, top->is_ascii)) return;
    top->view.unix_seconds = (double)time(NULL);
    view_draw(&top->view, &next);
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    if (stream) {
        screen_paint(top->shown.cells ? &top->shown : NULL, &next, top->has_colours, stream);
        fclose(stream);
        fwrite(text, 1, length, stdout);
        fflush(stdout);
        free(text);
    }
    screen_close(&top->shown);
    top->shown = next;
    top->is_dirty = false;
}

static int loop(struct top *top, struct error *error)
{
    while (!top->quits && !terminal_signal()) {
        int status = converse(top, error);
        if (status) return status;
        for (int key; (key = terminal_key()) != 0 && !top->quits;) take_key(top, key);
        if (terminal_was_resized()) top->is_dirty = true;
        if (top->is_dirty) draw(top);
    }
    return 0;
}

/* So that who started it sees what ended it. */
static void die_of(int number)
{
    signal(number, SIG_DFL);
    raise(number);
}

int top(const struct arguments *arguments)
{
    struct error *error = arguments->error;
    if (arguments->json)
        return error_set(error, STATUS_USAGE, "top: is for people; gaccctl watch --json is for programs");
    struct top *top = calloc(1, sizeof *top);
    if (!top) return error_set(error, STATUS_INTERNAL, "out of memory");
    top->arguments = arguments;
    top->has_colours = show_has_colours(STDOUT_FILENO);
    top->is_ascii = strcmp(nl_langinfo(CODESET), "UTF-8") != 0;
    top->is_dirty = true;
    int status = client_open(&top->client, arguments->target, error); /* where nobody is, the screen stays as it is */
    if (!status) status = begin_status(top, error);
    if (!status) status = terminal_open(error);
    if (!status) status = loop(top, error);
    terminal_close();
    if (!status && top->is_over) fprintf(stderr, "gaccctl: %s\n", show_clean(top->last_words));
    client_close(top->client);
    if (top->status) gacc__v1__status__free_unpacked(top->status, NULL);
    screen_close(&top->shown);
    free(top);
    if (terminal_signal()) die_of(terminal_signal());
    return status;
}
