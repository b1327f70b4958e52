#include "daemon/coordinator/coordinator.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/rand.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/coordinator/inside.h"
#include "daemon/coordinator/job_rules.h"
#include "daemon/coordinator/lock.h"
#include "daemon/hex.h"
#include "daemon/place.h"
#include "proto/descriptors.h"
#include "proto/optimizers.h"

static_assert(sizeof(struct coordinator_ready) <= PIPE_BUF && sizeof(struct coordinator_note) <= PIPE_BUF,
              "written to the pipe whole");

#define OPERATORS_MAX 256 /* connections beside the ranks': more than there can be watchers */
/* Once rank 0's process is gone: the ranks' time to go, and the operators' to read how their calls ended. */
#define LINGER_MILLISECONDS 3000
#define READERS_LINGER_MILLISECONDS 1000
#define LOCK_MILLISECONDS 1000 /* between two renewals of the run directory's lock */

/* ---- the log, the result, the end of the job ---- */

/* Whether what takes room may go before long: a checkpoint or a final model that is being written, and removed if it
 * fails. */
static bool room_may_come(const struct coordinator *coordinator)
{
    return saver_is_busy(coordinator->saver) || conductor_is_finishing(coordinator->conductor);
}

/* Lines wait for that. Those that wait for nothing, or too many, end the job. */
static void judge_log(struct coordinator *coordinator, int status, const struct error *error)
{
    const bool waits = !coordinator->directory.log.lost && room_may_come(coordinator);
    if (!status || waits || coordinator->log_failed) return;
    coordinator->log_failed = true;
    conductor_fail(coordinator->conductor, error);
}

void coordinator_append(struct coordinator *coordinator, char *line)
{
    struct error error;
    int status = step_log_append(&coordinator->directory.log, line, &error);
    free(line);
    judge_log(coordinator, status, &error);
}

/* A job that goes on may be shorter by now than what is done of it. */
static void say_beyond_end(struct coordinator *coordinator, const struct header_record *header)
{
    const Gacc__V1__JobSection *job = conductor_job(coordinator->conductor)->job;
    const uint64_t beyond = conductor_steps_beyond(coordinator->conductor);
    struct error text;
    if (!beyond || !header->resumed) return;
    error_set(&text, STATUS_JOB,
              "nothing is left to do: %s is %llu step%s past the end that job.%s says; final/ has the weights of its "
              "step %llu",
              header->resumed_from, (unsigned long long)beyond, beyond == 1 ? "" : "s",
              job->steps    ? "steps"
              : job->epochs ? "epochs"
                            : "tokens",
              (unsigned long long)header->resumed->optimizer_steps);
    coordinator_warn(coordinator, "past_end", header->resumed->step, text.text);
}

void coordinator_write_header(struct coordinator *coordinator)
{
    struct header_record header;
    conductor_header(coordinator->conductor, &header);
    const struct resume *resume = &coordinator->resume;
    struct header_change *changes = calloc(resume->changes.count + 1, sizeof *changes);
    for (size_t i = 0; i < resume->changes.count && changes; i++) {
        const struct job_change *change = &resume->changes.each[i];
        changes[i] = (struct header_change){change->key, change->was, change->now, change->rule == CHANGE_KEPT};
    }
    if (resume->found) {
        header.resumed_from = resume->directory;
        header.resumed = &resume->manifest.progress.counters;
        header.changes = changes;
        header.change_count = changes ? resume->changes.count : 0;
        header.settings = &resume->manifest.settings;
    }
    coordinator_append(coordinator, header_line(&header));
    free(changes);
    const uint64_t step = header.resumed ? header.resumed->step : 0;
    for (size_t i = 0; i < header.notice_count; i++) {
        const struct event_record event = {step, "notice", header.notices[i]};
        coordinator_append(coordinator, event_line(&event));
    }
    for (size_t i = 0; i < resume->move_count; i++) {
        const struct event_record event = {step, "checkpoint_left", resume->moves[i].why};
        coordinator_append(coordinator, event_line(&event));
    }
    say_beyond_end(coordinator, &header);
}

void coordinator_write_records(struct coordinator *coordinator)
{
    struct record record;
    while (conductor_next_record(coordinator->conductor, &record)) {
        switch (record.type) {
        case RECORD_STEP:
            coordinator_append(coordinator, step_line(&record.step));
            break;
        case RECORD_EVAL:
            coordinator_append(coordinator, eval_line(&record.eval));
            break;
        case RECORD_EVENT:
            coordinator_append(coordinator, event_line(&record.event));
            break;
        }
    }
    watchers_feed(coordinator);
}

static void note(struct coordinator *coordinator, enum note_kind kind, enum status status, const char *text)
{
    struct coordinator_note note = {.kind = kind, .status = status};
    snprintf(note.text, sizeof note.text, "%s", text ? text : "");
    while (write(coordinator->notes, &note, sizeof note) < 0 && errno == EINTR) {
    } /* a full pipe: not shown */
}

/* ---- checkpoints ---- */

void coordinator_warn(struct coordinator *coordinator, const char *event, uint64_t step, const char *text)
{
    const struct event_record record = {step, event, text};
    coordinator_append(coordinator, event_line(&record));
    note(coordinator, NOTE_WARNING, STATUS_DONE, text);
}

static void on_saved(void *context, const struct checkpoint_record *record, const struct error *why,
                     const char *complaint)
{
    struct coordinator *coordinator = context;
    if (!why) {
        snprintf(coordinator->newest, sizeof coordinator->newest, "%s", record->name);
        coordinator->newest_unix_seconds = coordinator_unix_seconds();
    }
    conductor_saved(coordinator->conductor, why);
    if (!coordinator->concluded) {
        struct error text;
        const char *newest = coordinator->newest[0] ? coordinator->newest : "none";
        if (!why) coordinator_append(coordinator, checkpoint_line(record));
        if (why) {
            error_set(&text, STATUS_IO, "checkpoint %s failed: %s (the newest complete one: %s)", record->name,
                      why->text, newest);
            coordinator_warn(coordinator, "checkpoint_failed", record->step, text.text);
        }
        if (complaint[0]) coordinator_warn(coordinator, "checkpoint_left", record->step, complaint);
        watchers_feed(coordinator);
    }
    operations_saved(coordinator, record->name, why ? why->text : NULL);
    if (coordinator->conclusion_waits)
        coordinator_conclude(coordinator);
    else if (coordinator->decision_waits)
        workers_decide(coordinator);
}

static void on_signal(uv_signal_t *handle, int number)
{
    static const int saves = SIGUSR1;
    struct coordinator *coordinator = handle->data;
    char name[16];
    snprintf(name, sizeof name, "SIG%s", sigabbrev_np(number));
    Gacc__V1__Interrupted interrupted = GACC__V1__INTERRUPTED__INIT;
    interrupted.signal = name;
    if (number != saves) coordinator->stops++;
    interrupted.times = coordinator->stops;
    struct error error;
    if (conductor_interrupted(coordinator->conductor, "the coordinator", &interrupted, &error) < 0)
        coordinator_conclude(coordinator);
    else
        workers_decide(coordinator);
}

void coordinator_conclude_in_order(struct coordinator *coordinator)
{
    if (saver_is_busy(coordinator->saver))
        coordinator->conclusion_waits = true;
    else
        coordinator_conclude(coordinator);
}

static void end_of(struct coordinator *coordinator, struct end_record *end)
{
    conductor_end(coordinator->conductor, coordinator_now(), end);
    end->checkpoint = coordinator->newest[0] ? coordinator->newest : NULL;
}

/* The job as the command has it, by which the command finds that it is done. */
static int write_result(struct coordinator *coordinator, struct error *error)
{
    struct end_record end;
    end_of(coordinator, &end);
    Gacc__V1__JobSpec asked = *coordinator->directory.job;
    asked.digest = (ProtobufCBinaryData){sizeof coordinator->asked_digest, coordinator->asked_digest};
    return run_result_write(&asked, &end, error);
}

/* A checkpoint that the job's end has cut short is gone: there is room for what it left none. */
static void write_what_waits(struct coordinator *coordinator)
{
    struct error unheard; /* no rank is left to say it */
    step_log_catch_up(&coordinator->directory.log, &unheard);
    if (coordinator->result_waits) write_result(coordinator, &unheard);
}

void coordinator_conclude(struct coordinator *coordinator)
{
    if (coordinator->concluded) return;
    struct end_record end;
    conductor_settle(coordinator->conductor);
    operations_end(coordinator);
    audit_end(coordinator);
    coordinator->concluded = true;
    coordinator_write_records(coordinator);
    end_of(coordinator, &end);
    coordinator_append(coordinator, end_line(&end));
    struct error error;
    const int unwritten = write_result(coordinator, &error); /* with a failure of the log, if any */
    coordinator->result_waits = unwritten && saver_is_busy(coordinator->saver);
    if (unwritten && !coordinator->result_waits) conductor_fail(coordinator->conductor, &error);
    coordinator->log_is_whole = true;
    watchers_feed(coordinator);
    health_tell(coordinator);
    connections_drain(&coordinator->connections);
    workers_say_farewell(coordinator);
    conductor_end(coordinator->conductor, coordinator_now(), &end);
    if (!coordinator->joined && !coordinator->rank_0_gone)
        note(coordinator, NOTE_FATAL, (enum status)end.exit, end.reason);
    coordinator_show_progress(coordinator);
}

/* ---- the progress line ---- */

static void format_time_left(char text[32], double seconds)
{
    const unsigned long left = seconds > 0 && seconds < 1e9 ? (unsigned long)seconds : 0;
    if (left >= 3600)
        snprintf(text, 32, "%lu:%02lu:%02lu", left / 3600, left / 60 % 60, left % 60);
    else
        snprintf(text, 32, "%lu:%02lu", left / 60, left % 60);
}

void coordinator_show_progress(struct coordinator *coordinator)
{
    const uint64_t now = uv_now(&coordinator->loop);
    if (!coordinator->options->progress || (now < coordinator->next_progress && !coordinator->concluded)) return;
    coordinator->next_progress = now + 200;
    const Gacc__V1__Status *status = conductor_status(coordinator->conductor, coordinator_now());
    char left[32], scale[48] = "", validation[48] = "", text[256];
    format_time_left(left, status->eta_seconds);
    if (status->has_scaler) snprintf(scale, sizeof scale, "  scale %g", status->loss_scale);
    if (status->has_validation) snprintf(validation, sizeof validation, "  validation %.4f", status->validation_loss);
    snprintf(text, sizeof text, "step %llu/%llu  loss %.4f%s%s  lr %.3g  %.0f tokens/s  %s left",
             (unsigned long long)status->optimizer_steps, (unsigned long long)status->total_steps, status->loss,
             validation, scale, status->lr, status->tokens_per_second, left);
    note(coordinator, coordinator->concluded ? NOTE_DONE : NOTE_PROGRESS, STATUS_DONE, text);
}

/* ---- the event loop ---- */

static void on_tick(uv_timer_t *timer)
{
    struct coordinator *coordinator = timer->data;
    workers_check_silence(coordinator);
    audit_tick(coordinator);
    health_tell(coordinator);
    if (uv_now(&coordinator->loop) >= coordinator->next_renewal) {
        coordinator->next_renewal = uv_now(&coordinator->loop) + LOCK_MILLISECONDS;
        lock_renew(coordinator->directory.path);
    }
    connections_tick(&coordinator->connections);
    if (!coordinator->rank_0_gone) return;
    const uint64_t waited = uv_now(&coordinator->loop) - coordinator->gone_since;
    const bool ranks = !workers_all_gone(coordinator) && waited < LINGER_MILLISECONDS;
    const bool readers = connections_have_readers(&coordinator->connections) && waited < READERS_LINGER_MILLISECONDS;
    if (!ranks && !readers && !saver_is_committing(coordinator->saver)) uv_stop(&coordinator->loop);
}

void coordinator_heed_last_words(struct coordinator *coordinator)
{
    if (coordinator->last_words.status && coordinator->workers[0]) coordinator_conclude(coordinator);
}

/* End of file; before it, perhaps, why rank 0 ends early, or another rank does that has only rank 0 to tell: a struct
 * error. */
static void on_life(uv_stream_t *life, ssize_t length, const uv_buf_t *buffer)
{
    struct coordinator *coordinator = life->data;
    (void)buffer;
    if (length == sizeof coordinator->last_words) {
        conductor_fail_said(coordinator->conductor, &coordinator->last_words);
        coordinator_heed_last_words(coordinator);
    }
    if (length >= 0) return;
    uv_read_stop(life);
    coordinator->rank_0_gone = true;
    coordinator->gone_since = uv_now(&coordinator->loop);
    workers_lose(coordinator, 0, "its process ended");
    uv_timer_start(&coordinator->tick, on_tick, 0, 5);
}

static void give_last_words(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    (void)suggested;
    struct coordinator *coordinator = handle->data;
    *buffer = uv_buf_init((char *)&coordinator->last_words, sizeof coordinator->last_words);
}

static void on_refused(void *coordinator, int fd, const char *why)
{
    audit_refused(coordinator, NULL, fd, NULL, why);
}

static int open_loop(struct coordinator *coordinator, int life, struct error *error)
{
    uv_loop_t *loop = &coordinator->loop;
    int status = uv_loop_init(loop);
    if (!status) status = uv_pipe_init(loop, &coordinator->life, 0);
    if (!status) status = uv_pipe_open(&coordinator->life, life);
    if (!status) status = uv_timer_init(loop, &coordinator->tick);
    if (status) return error_set(error, STATUS_INTERNAL, "the event loop: %s", uv_strerror(status));
    coordinator->life.data = coordinator->tick.data = coordinator;
    coordinator->started = coordinator->checked = uv_now(loop);
    uv_read_start((uv_stream_t *)&coordinator->life, give_last_words, on_life);
    uv_timer_start(&coordinator->tick, on_tick, 250, 250);
    status = connections_init(&coordinator->connections, loop, coordinator_methods, coordinator,
                              coordinator->options->ranks, coordinator->options->ranks + OPERATORS_MAX, error);
    coordinator->connections.drained = watchers_have_room;
    coordinator->connections.refused = on_refused;
    coordinator->connections.http = http_service_answer;
    return status;
}

static const int signal_numbers[COORDINATOR_SIGNALS] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

/* They ask as those to a rank do; only the end of rank 0's process ends this one. */
static void watch_signals(struct coordinator *coordinator)
{
    for (size_t i = 0; i < COORDINATOR_SIGNALS; i++) {
        coordinator->signals[i].data = coordinator;
        uv_signal_init(&coordinator->loop, &coordinator->signals[i]);
        uv_signal_start(&coordinator->signals[i], on_signal, signal_numbers[i]);
    }
}

/* What the conductor and the ranks must know of the checkpoint that was found. */
static int go_on(struct coordinator *coordinator, struct error *error)
{
    const struct manifest *manifest = &coordinator->resume.manifest;
    Gacc__V1__Restore *restore = &coordinator->restore;
    gacc__v1__restore__init(restore);
    restore->directory = coordinator->resume.directory;
    restore->optimizer_steps = manifest->progress.counters.optimizer_steps;
    restore->optimizer_files = calloc(manifest->range_count + 1, sizeof *restore->optimizer_files);
    if (!restore->optimizer_files) return error_set(error, STATUS_INTERNAL, "out of memory");
    for (size_t i = 0; i < manifest->range_count; i = manifest_next_file(manifest, i))
        if (!strncmp(manifest->ranges[i].file, "optimizer-", strlen("optimizer-")))
            restore->optimizer_files[restore->n_optimizer_files++] = manifest->ranges[i].file;
    conductor_resume(coordinator->conductor, &manifest->progress, restore);
    return conductor_restore_settings(coordinator->conductor, &manifest->settings, error);
}

static int make_secrets(struct coordinator *coordinator, struct error *error)
{
    uint8_t id[16];
    if (RAND_bytes(id, sizeof id) != 1) return error_set(error, STATUS_INTERNAL, "no random bytes to be had");
    hex_write(id, sizeof id, coordinator->job_id);
    return guard_open(&coordinator->guard, error);
}

static void fill_ready(const struct coordinator *coordinator, struct coordinator_ready *ready)
{
    snprintf(ready->addresses, sizeof ready->addresses, "%s", coordinator->listeners.workers);
    snprintf(ready->socket, sizeof ready->socket, "%s", coordinator->leftovers.socket);
    memcpy(ready->secret, coordinator->guard.secret, SECRET_BYTES);
    ready->certificate = coordinator->listeners.certificate;
}

static void say_ready(int notes, const struct coordinator_ready *ready)
{
    if (write(notes, ready, sizeof *ready) < 0) {
    } /* rank 0 is gone: the loop will see the other pipe's end, and end in order */
}

/* From here on a death leaves something behind. */
static void say_opening(const struct coordinator *coordinator)
{
    struct coordinator_ready opening = {.opening = true};
    fill_ready(coordinator, &opening);
    say_ready(coordinator->notes, &opening);
}

/* Once the run directory is ours, everything that fails leaves a result.json there. */
static int open_all(struct coordinator *coordinator, int life, struct error *error)
{
    const struct coordinator_options *options = coordinator->options;
    coordinator->started_unix_seconds = coordinator_unix_seconds();
    coordinator->workers = calloc(options->ranks, sizeof *coordinator->workers);
    coordinator->silences = calloc(options->ranks, sizeof *coordinator->silences);
    if (!coordinator->workers || !coordinator->silences) return error_set(error, STATUS_INTERNAL, "out of memory");
    say_opening(coordinator);
    int status;
    if ((status = make_secrets(coordinator, error)) || (status = descriptors_open(&coordinator->descriptors, error)) ||
        (status = open_loop(coordinator, life, error)) || (status = watchers_open(coordinator, error)) ||
        (status = listeners_open(&coordinator->listeners, &coordinator->connections, options->job->control,
                                 options->one_host, &coordinator->leftovers, error)))
        return status;
    say_opening(coordinator);
    if ((status = conductor_open(&coordinator->conductor, options->job, options->ranks, coordinator_now(), error)) ||
        (coordinator->resume.found && (status = go_on(coordinator, error))) ||
        (status = run_directory_write_job(&coordinator->directory, options->ranks, error)))
        return status;
    const struct saver_events events = {on_saved, coordinator};
    if ((status = saver_open(&coordinator->saver, &coordinator->loop, options->job, options->ranks, &events, error)))
        return status;
    watch_signals(coordinator);
    const struct connection_facts facts = {
        .endpoint = coordinator->listeners.endpoint,
        .token = coordinator->listeners.needs_token ? coordinator->guard.control_token : NULL,
        .read_token = coordinator->listeners.needs_token ? coordinator->guard.read_token : NULL,
        .tls = coordinator->listeners.operators_tls,
        .wants_certificate = *options->job->control->tls_client_authorities != '\0',
        .job_id = coordinator->job_id,
        .pid = getpid(),
    };
    return run_directory_write_connection(&coordinator->directory, coordinator->leftovers.connection, &facts, error);
}

static void write_failed_start(const Gacc__V1__JobSpec *job, const struct error *why)
{
    struct end_record end = {.exit = (int)why->status, .reason = why->text};
    struct error error; /* nobody to tell: rank 0 prints the first failure */
    run_result_write(job, &end, &error);
}

/* ---- the process ---- */

static void detach(int *life, int *notes)
{
    setsid();
    prctl(PR_SET_NAME, "gaccd-coord");
    const int nothing = open("/dev/null", O_RDWR);
    for (int fd = 0; fd <= 2; fd++) dup2(nothing, fd);
    const int from[] = {*life, *notes};
    int at[2];
    for (int i = 0; i < 2; i++) at[i] = fcntl(from[i], F_DUPFD_CLOEXEC, 5); /* out of the way of 3 and 4 */
    *life = dup3(at[0], 3, O_CLOEXEC);
    *notes = dup3(at[1], 4, O_CLOEXEC);
    close_range(5, ~0u, 0);
    fcntl(*notes, F_SETFL, fcntl(*notes, F_GETFL) | O_NONBLOCK);

    const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGPIPE, SIGTSTP};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    place_unbind();
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

static void close_all(struct coordinator *coordinator)
{
    connections_close(&coordinator->connections);
    listeners_close(&coordinator->listeners);
    saver_close(coordinator->saver);
    write_what_waits(coordinator);
    leftovers_remove(&coordinator->leftovers, true);
    leftovers_remove_session(&coordinator->leftovers);
    conductor_close(coordinator->conductor);
    free(coordinator->restore.optimizer_files);
    resume_free(&coordinator->resume);
    run_directory_close(&coordinator->directory);
    free(coordinator->workers);
    free(coordinator->silences);
    descriptors_close(coordinator->descriptors);
    watchers_close(coordinator);
}

/* A job that an earlier start has finished: its ranks still meet to end together, and may die on the way. */
static void outlive_rank_0(int life, const struct leftovers *leftovers)
{
    char words[sizeof(struct error)];
    ssize_t length;
    do length = read(life, words, sizeof words);
    while (length > 0 || (length < 0 && errno == EINTR));
    leftovers_remove(leftovers, true);
    leftovers_remove_session(leftovers);
}

/* What the run directory holds: a job that is done, nothing, or where to go on. It is ours when this returns 0. */
static int open_directory(struct coordinator *coordinator, bool *finished, struct error *error)
{
    const struct coordinator_options *options = coordinator->options;
    struct run_directory *directory = &coordinator->directory;
    const bool fresh = options->resume && !strcmp(options->resume, "never");
    const char *output = options->job->job->output;
    enum run_left left;
    int status = run_directory_lock(directory, options->job, &left, error);
    *finished = !status && !fresh && left == RUN_DONE;
    if (status || *finished) return status;
    const ProtobufCBinaryData *digest = &options->job->digest;
    memcpy(coordinator->asked_digest, digest->data,
           digest->len < sizeof coordinator->asked_digest ? digest->len : sizeof coordinator->asked_digest);
    if ((status = lock_take(output, error))) return status;
    coordinator->is_locked = true;
    if ((status = resume_find(&coordinator->resume, output, options->resume, error)) ||
        (status = resume_take_job(&coordinator->resume, options->job, options->overrides, options->ranks, error)))
        return status;
    if (left == RUN_DONE_OTHER && !fresh && !coordinator->resume.found)
        return error_set(
            error, STATUS_JOB,
            "job.output: %s holds the finished run of another job, and no checkpoint: choose another --output, "
            "or give --resume never to begin anew there",
            output);
    if ((status = resume_tidy(&coordinator->resume, output, error))) return status;
    store_newest(output, coordinator->newest);
    coordinator->newest_unix_seconds = store_seconds(output, coordinator->newest);
    return run_directory_begin(directory, error);
}

/* The checkpoint that the job goes on from, by name where it is one of the run directory's. */
static void fill_resumption(const struct coordinator *coordinator, struct coordinator_ready *ready)
{
    const struct resume *resume = &coordinator->resume;
    const char *how = coordinator->options->resume;
    ready->resumes = resume->found;
    if (resume->found && (!how || !strcmp(how, "auto")))
        snprintf(ready->checkpoint, sizeof ready->checkpoint, "%s", strrchr(resume->directory, '/') + 1);
}

static void say_what_was_found(struct coordinator *coordinator)
{
    const struct resume *resume = &coordinator->resume;
    struct error text;
    for (size_t i = 0; i < resume->move_count; i++) note(coordinator, NOTE_WARNING, STATUS_DONE, resume->moves[i].why);
    for (size_t i = 0; i < resume->changes.count; i++) {
        const struct job_change *change = &resume->changes.each[i];
        if (change->rule != CHANGE_KEPT) continue;
        error_set(&text, STATUS_JOB, "%s: %.300s stays as in the checkpoint, not %.300s; --set %s=… changes it",
                  change->key, change->was ? change->was : "nothing", change->now ? change->now : "nothing",
                  change->key);
        note(coordinator, NOTE_WARNING, STATUS_DONE, text.text);
    }
}

/* What goes before the packed job. */
struct errand {
    struct leftovers leftovers;
    uint64_t job_bytes;
};

static bool read_whole(int fd, void *into, uint64_t count)
{
    char *to = into;
    while (count > 0) {
        const ssize_t got = read(fd, to, count);
        if (got == 0 || (got < 0 && errno != EINTR)) return false;
        if (got < 0) continue;
        to += got;
        count -= (uint64_t)got;
    }
    return true;
}

/* False: there is nothing to do, or no memory to know it. */
static bool receive_errand(struct coordinator_options *options, int life)
{
    struct errand errand;
    if (!read_whole(life, &errand, sizeof errand)) return false;
    uint8_t *packed = malloc(errand.job_bytes + 1);
    const bool is_whole = packed && read_whole(life, packed, errand.job_bytes);
    options->leftovers = errand.leftovers;
    options->job = is_whole ? gacc__v1__job_spec__unpack(NULL, errand.job_bytes, packed) : NULL;
    free(packed);
    return options->job;
}

static void coordinator_process(struct coordinator_options *options, int life, int notes)
{
    detach(&life, &notes);
    if (!receive_errand(options, life)) return;
    struct coordinator *coordinator = calloc(1, sizeof *coordinator);
    struct coordinator_ready ready = {.error = {.status = STATUS_DONE}};
    if (!coordinator) {
        error_set(&ready.error, STATUS_INTERNAL, "the coordinator: out of memory");
    } else {
        coordinator->options = options;
        coordinator->leftovers = options->leftovers;
        coordinator->notes = notes;
        int status = open_directory(coordinator, &ready.finished, &ready.error);
        if (!status && !ready.finished && open_all(coordinator, life, &ready.error)) {
            write_failed_start(options->job, &ready.error);
            leftovers_remove(&coordinator->leftovers, true);
        }
        fill_ready(coordinator, &ready);
        fill_resumption(coordinator, &ready);
    }
    if (ready.error.status && coordinator && coordinator->is_locked) unlink(coordinator->leftovers.lock);
    say_ready(notes, &ready);
    if (ready.error.status) return;
    if (ready.finished) {
        coordinator->leftovers.connection[0] = coordinator->leftovers.lock[0] = '\0'; /* somebody else's, perhaps */
        outlive_rank_0(life, &coordinator->leftovers);
        return;
    }
    say_what_was_found(coordinator);
    uv_run(&coordinator->loop, UV_RUN_DEFAULT);
    close_all(coordinator);
}

static int read_ready(int notes, struct coordinator_ready *ready, struct error *error)
{
    ssize_t length;
    do length = read(notes, ready, sizeof *ready);
    while ((length < 0 && errno == EINTR) || (length == sizeof *ready && ready->opening));
    if (length != sizeof *ready) return error_set(error, STATUS_INTERNAL, "the coordinator ended before it was ready");
    if (!ready->error.status) return 0;
    *error = ready->error;
    return -(int)error->status;
}

int coordinator_fork(struct coordinator_link *link, const struct coordinator_options *options, struct error *error)
{
    struct coordinator_options own = *options;
    int life[2], notes[2];
    if (pipe2(life, O_CLOEXEC)) return error_set_errno(error, STATUS_INTERNAL, errno, "pipe");
    if (pipe2(notes, O_CLOEXEC)) return error_set_errno(error, STATUS_INTERNAL, errno, "pipe");
    const pid_t pid = fork();
    if (pid < 0) return error_set_errno(error, STATUS_INTERNAL, errno, "cannot start the coordinator's process");
    if (pid == 0) {
        coordinator_process(&own, life[0], notes[1]);
        _exit(0);
    }
    close(life[0]);
    close(notes[1]);
    *link = (struct coordinator_link){
        .pid = pid, .life = life[1], .notes = notes[0], .one_host = own.one_host, .leftovers = own.leftovers};
    return 0;
}

void coordinator_dismiss(struct coordinator_link *link)
{
    close(link->life);
    close(link->notes);
    waitpid(link->pid, NULL, 0);
}

/* Where the process is gone, the other pipe's end tells. */
static int send_errand(const struct coordinator_link *link, const Gacc__V1__JobSpec *job, struct error *error)
{
    struct errand errand;
    memset(&errand, 0, sizeof errand); /* padding goes through the pipe, too */
    errand.leftovers = link->leftovers;
    errand.job_bytes = gacc__v1__job_spec__get_packed_size(job);
    uint8_t *packed = malloc(sizeof errand + errand.job_bytes);
    if (!packed) return error_set(error, STATUS_INTERNAL, "out of memory for the job");
    memcpy(packed, &errand, sizeof errand);
    gacc__v1__job_spec__pack(job, packed + sizeof errand);
    size_t at = 0;
    while (at < sizeof errand + errand.job_bytes) {
        const ssize_t sent = write(link->life, packed + at, sizeof errand + errand.job_bytes - at);
        if (sent < 0 && errno != EINTR) break;
        if (sent > 0) at += (size_t)sent;
    }
    free(packed);
    return 0;
}

int coordinator_start(struct coordinator_link *link, const Gacc__V1__JobSpec *job, struct error *error)
{
    struct leftovers *leftovers = &link->leftovers;
    const char *output = job->job->output;
    snprintf(leftovers->connection, sizeof leftovers->connection, "%s/connection.json", output);
    snprintf(leftovers->lock, sizeof leftovers->lock, "%s/" LOCK_NAME, output);
    int status = listeners_prepare(job->control, link->one_host, leftovers, error);
    return status ? status : send_errand(link, job, error);
}

int coordinator_await(struct coordinator_link *link, const Gacc__V1__JobSpec *job, struct coordinator_ready *ready,
                      struct error *error)
{
    struct leftovers *leftovers = &link->leftovers;
    *ready = (struct coordinator_ready){0};
    int status = read_ready(link->notes, ready, error);
    if (ready->socket[0]) snprintf(leftovers->socket, sizeof leftovers->socket, "%s", ready->socket);
    const bool is_ours = ready->opening || (!status && !ready->finished);
    if (!is_ours) leftovers->connection[0] = leftovers->lock[0] = '\0'; /* somebody else's, perhaps */
    if (!status) return 0;
    coordinator_dismiss(link);
    if (ready->opening) write_failed_start(job, error); /* killed in between: the run directory was ours */
    lock_clear(job->job->output, link->pid);
    leftovers_remove(leftovers, true);
    return status;
}
