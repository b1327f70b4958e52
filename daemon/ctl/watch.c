/* gaccctl watch: the lines of log.jsonl as they are written, across lost connections, until the job ends. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/ctl/arguments.h"
#include "daemon/ctl/client.h"
#include "daemon/ctl/outcome.h"
#include "daemon/ctl/show.h"
#include "daemon/ctl/stream.h"

/* For this long a job that cannot be reached, though its connection.json is there, may be cut off for a while, or be
 * started again. */
#define PATIENCE_SECONDS 60
#define LOCAL_PATIENCE_SECONDS 5
#define RETRY_MILLISECONDS 250
#define ROWS_PER_HEAD 40

struct watching {
    const struct arguments *arguments;
    struct stream stream;
    uint64_t rows;
    bool has_colours;
    bool has_ended;  /* the log's last line was shown */
    int write_error; /* errno: what is shown cannot be written */
    time_t reached;  /* when a connection was there; 0: never */
};

static void on_record(void *context, const uint8_t *bytes, size_t length)
{
    struct watching *watching = context;
    Gacc__V1__StepRecord *record = gacc__v1__step_record__unpack(NULL, length, bytes);
    if (!record) return;
    json_t *line = json_loads(record->json, 0, NULL);
    const char *type = json_string_value(json_object_get(line, "type"));
    if (type && stream_take(&watching->stream, record->step, !strcmp(type, "step"))) {
        if (watching->arguments->json)
            puts(record->json);
        else if (show_record(line, watching->rows % ROWS_PER_HEAD == 0, watching->has_colours))
            watching->rows++;
        watching->has_ended |= !strcmp(type, "end");
        if ((fflush(stdout) || ferror(stdout)) && !watching->write_error) watching->write_error = errno;
    }
    json_decref(line);
    gacc__v1__step_record__free_unpacked(record, NULL);
}

/* ---- the connection ---- */

enum ending { ENDED, REFUSED /* or unwritten: for good */, LOST };

/* Until the stream ends, or nobody can read on. */
static enum ending follow(struct watching *watching, const struct target *target, struct error *error)
{
    Gacc__V1__WatchStepsRequest request = GACC__V1__WATCH_STEPS_REQUEST__INIT;
    struct client_call call = {.path = "/gacc.v1.Control/WatchSteps", .message = on_record, .context = watching};
    struct client *client;
    request.from_step = stream_begin(&watching->stream);
    request.all = true;
    int status = client_open(&client, target, error);
    if (status) return LOST;
    status = client_begin(client, &call, &request.base, error);
    while (!status && !call.over && !watching->write_error) {
        watching->reached = time(NULL);
        status = client_wait(client, -1, -1, error);
    }
    if (watching->write_error)
        status = error_set_errno(error, STATUS_IO, watching->write_error, "standard output");
    else if (!status)
        status = outcome_of_call(target, call.code, call.text, error);
    const bool is_final =
        watching->write_error || (call.over && call.code != RPC_UNAVAILABLE && call.code != RPC_CANCELLED);
    client_close(client);
    if (!status) return ENDED;
    return is_final ? REFUSED : LOST;
}

/* The job's last words, where the stream did not bring them: result.json has them. */
static int conclude(const struct watching *watching, struct error *error)
{
    char text[512];
    const char *run = watching->arguments->target->run;
    if (watching->has_ended) return 0;
    json_t *result = run[0] ? target_result(run) : NULL;
    if (!result) return -(int)error->status;
    if (watching->arguments->json) {
        json_object_set_new(result, "type", json_string("end"));
        show_json(result, 0);
    } else {
        target_result_text(result, text, sizeof text);
        printf("%s: %s\n", show_clean(run), show_clean(text));
        json_decref(result);
    }
    return 0;
}

static void pause_before_retry(void)
{
    const struct timespec time = {.tv_nsec = RETRY_MILLISECONDS * 1000000L};
    nanosleep(&time, NULL);
}

/* 0: connect again; 1: the job is gone, and *error says so. The endpoint may have become another one: a supervisor
 * starts jobs again. */
static int find_again(struct watching *watching, struct error *error)
{
    const struct target was = *watching->arguments->target;
    pause_before_retry();
    if (!was.run[0]) return 0;
    const struct target_words words = {.run = was.run};
    struct target found;
    if (target_find(&found, &words, error)) return 1;
    if (strcmp(found.job_id, was.job_id) != 0) stream_reset(&watching->stream);
    *watching->arguments->target = found;
    return 0;
}

static bool is_patient(const struct watching *watching)
{
    const bool is_local = !strncmp(watching->arguments->target->endpoint, "unix:", 5);
    return watching->reached &&
           time(NULL) - watching->reached <= (is_local ? LOCAL_PATIENCE_SECONDS : PATIENCE_SECONDS);
}

int watch(const struct arguments *arguments)
{
    struct watching watching = {.arguments = arguments, .stream.from = arguments->from};
    struct error *error = arguments->error;
    watching.has_colours = show_has_colours(STDOUT_FILENO);
    for (bool was_told = false;; was_told = true) {
        const enum ending ending = follow(&watching, arguments->target, error);
        if (ending == ENDED) {
            error_set(error, STATUS_UNAVAILABLE, "the job has ended; how, it did not say");
            return conclude(&watching, error);
        }
        if (watching.has_ended) return 0;
        if (ending == REFUSED || !is_patient(&watching)) return -(int)error->status;
        if (!was_told && !arguments->json) fprintf(stderr, "gaccctl: %s: connecting again\n", error->text);
        if (find_again(&watching, error)) return conclude(&watching, error);
    }
}
