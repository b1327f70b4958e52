#include "daemon/launch.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/checkpoint/resume.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/coordinator/run_directory.h"
#include "daemon/final.h"
#include "daemon/interruption.h"
#include "daemon/notes.h"
#include "daemon/place.h"
#include "daemon/verify/receipt.h"
#include "worker/control_client.h"
#include "worker/session.h"

/* A launcher ends the other ranks sooner than that once rank 0 has failed; where none does there is no rank 0 to speak.
 */
#define ALONE_SECONDS 3
/*
 * Open MPI's mpirun ends a failed job so: SIGCONT to every rank that is still there, sleep a second, SIGTERM, sleep a
 * second, SIGKILL. A rank that ends while it sleeps ends that sleep (SIGCHLD); one that ends before, as it would when a
 * signal killed it, is not heard, and so is one that has ended long ago. So ranks stay until they are told to go, and
 * then go this much later: mpirun takes one second, never two.
 */
#define LEAVE_MICROSECONDS 100000
/* Of two ranks that end at once it takes either one's status: it is to see the death that a farewell is about first. */
#define DEATH_FIRST_MICROSECONDS 200000
/* Where nobody says who speaks, ranks wait for rank 0 to hear them, or, if it has failed itself, for mpirun to tell
 * them to go: rank 0 may be late, takes up to half a second to clear up, and mpirun one. */
#define YIELD_SECONDS 5
/* A starting rank's patience with the others once it is told to go: well below the launcher's second before SIGKILL. */
#define JOIN_MICROSECONDS 300000
/* An interrupted rank's patience with its coordinator. */
#define FAREWELL_SECONDS 1

enum stage {
    STAGE_STARTING,
    STAGE_ENGAGED,     /* rank 0: a coordinator has the job, and may hear why there is nothing to do … */
    STAGE_COORDINATED, /* … and is ready */
    STAGE_JOINED,      /* there is a line to it */
    STAGE_ENDING,      /* why the job ends is known, or it is done */
};

struct launch {
    const struct launch_options *options;
    struct place place;
    Gacc__V1__JobSpec *job;
    struct notices notices;                  /* rank 0: on stderr, and for the log */
    char addresses[LISTENERS_ADDRESSES_MAX]; /* of the coordinator */
    uint8_t secret[SECRET_BYTES];
    struct workers_certificate certificate;
    bool finished; /* nothing to do: an earlier start did it */
    enum device_wanted device_wanted;
    char shared_memory[256];
    struct comm *comm;
    struct device *device; /* NULL: the CPU */

    pthread_mutex_t ending; /* of the thread that ends this process, before it has said all; never given back */
    pthread_mutex_t lock;
    enum stage stage;        /* under lock */
    const char *interrupted; /* under lock: by which signal; this rank leaves by itself */
    enum status outcome;     /* under lock: in STAGE_ENDING, if it was reached in order; else STATUS_INTERNAL */
    uint32_t stops[2];       /* under lock: signals that asked this rank to stop, by others and by its launcher */
    bool wants_checkpoint;   /* under lock: asked for one before there was a line to the coordinator */
    char wants_stop[16];     /* under lock: by which signal a rank other than 0 was asked to stop before that */
    struct control *control; /* in STAGE_JOINED, under lock */

    /* rank 0 */
    bool has_terminal; /* somebody sees stdout */
    struct coordinator_link coordinator;
    struct notes notes;
};

/* ---- what is printed ---- */

/* Before the ranks exist, and where the text names a rank already. */
static void complain(const char *text)
{
    fprintf(stderr, "gaccd: %s\n", text);
}

static void complain_as_rank(const struct launch *launch, const char *text)
{
    if (!strncmp(text, "rank ", 5))
        complain(text);
    else
        fprintf(stderr, "gaccd: rank %u: %s\n", launch->place.rank, text);
}

/* For the log. One that there is no memory for stands on stderr alone. */
static void keep_notice(struct launch *launch, const char *text)
{
    struct notices *notices = &launch->notices;
    char **longer = realloc((void *)notices->each, (notices->count + 1) * sizeof *longer);
    if (!longer) return;
    notices->each = longer;
    longer[notices->count] = strdup(text);
    if (longer[notices->count]) notices->count++;
}

static void notice(struct launch *launch, const char *text)
{
    complain_as_rank(launch, text);
    keep_notice(launch, text);
}

static void free_notices(struct notices *notices)
{
    for (size_t i = 0; i < notices->count; i++) free(notices->each[i]);
    free((void *)notices->each);
    *notices = (struct notices){0};
}

/* Behind all that the coordinator has said. */
static void complain_last(struct launch *launch, const char *text)
{
    if (launch->place.rank == 0) notes_show(&launch->notes);
    complain_as_rank(launch, text);
}

/* ---- how far the job has come ---- */

/* Returns the signal that has asked this rank to end, or NULL. The coordinator may be lost before it is joined. */
static const char *enter_stage(struct launch *launch, enum stage stage, struct control *control)
{
    pthread_mutex_lock(&launch->lock);
    if (launch->stage < stage) {
        launch->stage = stage;
        launch->control = control;
        if (control && launch->wants_checkpoint) control_client_ask(control, "SIGUSR1");
    }
    const char *interrupted = launch->interrupted;
    pthread_mutex_unlock(&launch->lock);
    return interrupted;
}

/* ---- rank 0, before MPI ---- */

/* The coordinator's process has done the same to its own copy of the job. */
static int go_on(struct launch *launch, const struct coordinator_ready *ready, struct error *error)
{
    struct resume resume = {.found = true};
    int status = 0;
    if (ready->checkpoint[0])
        status = store_path(resume.directory, launch->job->job->output, ready->checkpoint, error);
    else
        snprintf(resume.directory, sizeof resume.directory, "%s", launch->options->resume);
    if (!status) status = manifest_read(&resume.manifest, resume.directory, error);
    if (!status)
        status = resume_take_job(&resume, launch->job, &launch->options->overrides, launch->place.ranks, error);
    resume_free(&resume);
    return status;
}

static int fork_coordinator(struct launch *launch, struct error *error)
{
    launch->has_terminal = place_has_terminal(&launch->place);
    struct coordinator_options options = {
        .overrides = &launch->options->overrides,
        .ranks = launch->place.ranks,
        .one_host = launch->place.one_host,
        .resume = launch->options->resume,
        .progress = launch->has_terminal,
    };
    struct leftovers *leftovers = &options.leftovers;
    snprintf(leftovers->shared_memory, sizeof leftovers->shared_memory, "%s", launch->shared_memory);
    if (!place_session_directory(leftovers->session_directory, sizeof leftovers->session_directory,
                                 &leftovers->launcher))
        leftovers->session_directory[0] = '\0';
    return coordinator_fork(&launch->coordinator, &options, error);
}

static int meet_coordinator(struct launch *launch, struct error *error)
{
    struct coordinator_ready ready;
    int status = coordinator_await(&launch->coordinator, launch->job, &ready, error);
    if (status) return status;
    launch->finished = ready.finished;
    snprintf(launch->addresses, sizeof launch->addresses, "%s", ready.addresses);
    memcpy(launch->secret, ready.secret, SECRET_BYTES);
    launch->certificate = ready.certificate;
    status = notes_open(&launch->notes, launch->coordinator.notes, error);
    if (status) return status;
    return ready.resumes ? go_on(launch, &ready, error) : 0;
}

static int load_job(struct launch *launch, struct error *error)
{
    struct job_overrides overrides = launch->options->overrides;
    overrides.ranks = launch->place.ranks;
    char *said = NULL, *rest;
    size_t length;
    FILE *notices = open_memstream(&said, &length);
    int status = job_load(&launch->job, launch->options->job_path, &overrides, notices ? notices : stderr, error);
    if (!notices || fclose(notices)) return status;
    fputs(said, stderr);
    for (char *line = strtok_r(said, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        keep_notice(launch, line + strlen(NOTICE_HEAD));
    free(said);
    return status;
}

static int prepare_job(struct launch *launch, struct error *error)
{
    int status = load_job(launch, error);
    if (!status && launch->job->verify == GACC__V1__VERIFY__VERIFY_REQUIRED)
        status = receipt_require(launch->job, RECEIPT_ANY_DEVICE, error);
    if (!status) status = coordinator_start(&launch->coordinator, launch->job, error);
    if (status) {
        coordinator_dismiss(&launch->coordinator);
        return status;
    }
    enter_stage(launch, STAGE_ENGAGED, NULL);
    return meet_coordinator(launch, error);
}

/* ---- becoming a rank ---- */

int launch_open_transport(struct comm **comm, const struct place *place, const char *shared_memory, struct error *error)
{
    if (!place->launched) return comm_open_alone(comm, error);
    if (shared_memory[0]) place_shared_memory_use(place, shared_memory);
    place_tune_transport(place);
    int given, size = 0;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given) != MPI_SUCCESS || given < MPI_THREAD_FUNNELED)
        return error_set(error, STATUS_UNAVAILABLE, "MPI does not start with MPI_THREAD_FUNNELED");
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if ((uint32_t)size != place->ranks) {
        MPI_Finalize(); /* all see the same: this much can be in order */
        return error_set(error, STATUS_UNAVAILABLE,
                         "the launcher says %u ranks, MPI says %d: gaccd was built for another MPI than the launcher's",
                         place->ranks, size);
    }
    return comm_open_mpi(comm, error);
}

struct names {
    char (*each)[PATH_MAX]; /* [count] */
    size_t count;
};

static int note_name(struct dl_phdr_info *object, size_t size, void *context)
{
    (void)size;
    struct names *names = context;
    char(*longer)[PATH_MAX] = realloc(names->each, (names->count + 1) * sizeof *longer);
    if (!longer) return 1;
    names->each = longer;
    snprintf(names->each[names->count++], PATH_MAX, "%s", object->dlpi_name);
    return 0;
}

/* Open MPI 4 unloads its components in MPI_Finalize while its own thread still takes events. One that comes just then,
 * such as another rank's end, would run code that is no longer there, and 139 would be the job's status. */
static void keep_components(void)
{
    struct names names = {0};
    dl_iterate_phdr(note_name, &names);
    for (size_t i = 0; i < names.count; i++)
        if (names.each[i][0]) dlopen(names.each[i], RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    free(names.each);
}

void launch_close_transport(struct comm *comm, const struct place *place)
{
    comm_close(comm);
    if (!place->launched) return;
    keep_components();
    MPI_Finalize();
}

static const Gacc__V1__Device devices[] = {
    [DEVICE_CPU] = GACC__V1__DEVICE__DEVICE_CPU,
    [DEVICE_AUTO] = GACC__V1__DEVICE__DEVICE_AUTO,
    [DEVICE_CUDA] = GACC__V1__DEVICE__DEVICE_CUDA,
};

/* *bytes is the caller's to free. */
static int write_invitation(struct launch *launch, uint8_t **bytes, uint64_t *length, struct error *error)
{
    Gacc__V1__Invitation invitation = GACC__V1__INVITATION__INIT;
    launch->device_wanted = device_settle(launch->options->device);
    invitation.finished = launch->finished;
    if (!launch->finished) {
        invitation.job = launch->job;
        invitation.addresses = launch->addresses;
        invitation.secret = (ProtobufCBinaryData){SECRET_BYTES, launch->secret};
        invitation.certificate = (ProtobufCBinaryData){launch->certificate.length, launch->certificate.bytes};
        invitation.device = devices[launch->device_wanted];
    }
    *length = gacc__v1__invitation__get_packed_size(&invitation);
    *bytes = malloc(*length + 1);
    if (!*bytes) return error_set(error, STATUS_INTERNAL, "out of memory for the job");
    gacc__v1__invitation__pack(&invitation, *bytes);
    return 0;
}

static int read_invitation(struct launch *launch, const uint8_t *bytes, uint64_t length, struct error *error)
{
    Gacc__V1__Invitation *invitation = gacc__v1__invitation__unpack(NULL, length, bytes);
    const bool can_be =
        invitation && (invitation->finished || (invitation->job && invitation->secret.len == SECRET_BYTES &&
                                                invitation->certificate.len <= sizeof launch->certificate.bytes));
    if (can_be && !invitation->finished) {
        snprintf(launch->addresses, sizeof launch->addresses, "%s", invitation->addresses);
        memcpy(launch->secret, invitation->secret.data, SECRET_BYTES);
        launch->certificate.length = (uint32_t)invitation->certificate.len;
        if (launch->certificate.length)
            memcpy(launch->certificate.bytes, invitation->certificate.data, launch->certificate.length);
        launch->job = invitation->job;
        invitation->job = NULL;
        for (int wanted = 0; wanted < (int)(sizeof devices / sizeof *devices); wanted++)
            if (devices[wanted] == invitation->device) launch->device_wanted = (enum device_wanted)wanted;
    }
    if (can_be) launch->finished = invitation->finished;
    if (invitation) gacc__v1__invitation__free_unpacked(invitation, NULL);
    return can_be ? 0 : error_set(error, STATUS_INTERNAL, "the job cannot be read as rank 0 sent it");
}

/* The first thing rank 0 tells the others. */
static int take_invitation(struct launch *launch, struct error *error)
{
    struct comm *comm = launch->comm;
    const bool inviting = comm->rank == 0;
    uint8_t *bytes = NULL;
    uint64_t length = 0;
    int status = inviting ? write_invitation(launch, &bytes, &length, error) : 0;
    if (!status) status = comm_broadcast(comm, &length, sizeof length, 0, error);
    if (!status && !inviting && !(bytes = malloc(length + 1)))
        status = error_set(error, STATUS_INTERNAL, "out of memory for the job");
    if (!status) status = comm_broadcast(comm, bytes, length, 0, error);
    if (!status && !inviting) status = read_invitation(launch, bytes, length, error);
    free(bytes);
    comm->counts = (struct comm_counts){0};
    return status;
}

/* ---- the ends that are not in order ---- */

/* Rank 0 does what the coordinator would have done. A coordinator that only does not answer must not write beside us.
 */
static void stand_in(const struct launch *launch, const struct error *why)
{
    kill(launch->coordinator.pid, SIGKILL);
    struct end_record end = {.exit = (int)why->status, .reason = why->text};
    struct error unwritten;
    char newest[STORE_NAME_MAX + 1];
    store_newest(launch->job->job->output, newest);
    end.checkpoint = newest[0] ? newest : NULL;
    run_result_last_counters(launch->job, &end.counters);
    if (run_result_write(launch->job, &end, &unwritten)) complain_as_rank(launch, unwritten.text);
    leftovers_remove(&launch->coordinator.leftovers, false); /* no rank comes to close its transport any more */
}

static bool tell_last_words(const struct launch *launch, const struct error *error)
{
    struct error words = {.text = ""}; /* nothing else of this process's stands behind them */
    error_set(&words, error->status, "%s", error->text);
    return write(launch->coordinator.life, &words, sizeof words) == sizeof words;
}

/* Why rank 0 ends early, for the coordinator's result.json. */
static void say_last_words(const struct launch *launch, struct error *error)
{
    if (tell_last_words(launch, error)) return;
    error->status = STATUS_INTERNAL;
    error_prefix(error, "the coordinator is gone");
    stand_in(launch, error);
}

/* For whatever is not an end in order: of the threads that see a reason the first goes on, and the process ends before
 * another does, so that a last line, a result and the clearing up are whole and there is one of each. */
static const char *begin_ending(struct launch *launch)
{
    pthread_mutex_lock(&launch->ending);
    return enter_stage(launch, STAGE_ENDING, NULL);
}

bool launch_stay(void)
{
    if (place_launcher_is_gone()) return true;
    const struct timespec limit = {.tv_sec = ALONE_SECONDS};
    sigset_t told;
    sigemptyset(&told);
    sigaddset(&told, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &told, NULL);
    if (sigtimedwait(&told, NULL, &limit) < 0) return false;
    usleep(LEAVE_MICROSECONDS);
    return true;
}

static bool is_signal(const char *name)
{
    return !strncmp(name, "SIG", 3);
}

/* SIGTERM is how a launcher tells to go, also behind another rank's end; one that is gone tells nobody. Another signal
 * that it passes on reaches all ranks: rank 0 goes first. */
__attribute__((noreturn)) static void leave(const struct launch *launch, const char *signal, enum status status)
{
    if (launch->place.rank == 0 || !strcmp(signal, "SIGTERM") || !is_signal(signal))
        usleep(LEAVE_MICROSECONDS);
    else
        launch_stay();
    _exit((int)status);
}

/* A hello that says why this rank cannot begin. */
struct refusal {
    Gacc__V1__Hello hello;
    Gacc__V1__Failure failure;
    char host[256];
};

/* *why is borrowed. */
static void fill_refusal(const struct launch *launch, const struct error *why, struct refusal *refusal)
{
    *refusal = (struct refusal){.hello = GACC__V1__HELLO__INIT, .failure = GACC__V1__FAILURE__INIT};
    gethostname(refusal->host, sizeof refusal->host - 1);
    refusal->failure.status = why->status;
    refusal->failure.text = (char *)why->text;
    Gacc__V1__Hello *hello = &refusal->hello;
    hello->rank = launch->place.rank;
    hello->ranks = launch->place.ranks;
    hello->job_digest = launch->job->digest;
    hello->host = refusal->host;
    hello->pid = (uint32_t)getpid();
    hello->failure = &refusal->failure;
}

/* Who ends all processes of a job, as Slurm does, tells this rank, and its launcher, which tells it once more: of that
 * the second is none. The lock is held. */
static uint32_t times_stopped(const struct launch *launch)
{
    return launch->stops[0] > launch->stops[1] ? launch->stops[0] : launch->stops[1];
}

/* The lock is held. */
static bool tell_coordinator(const struct launch *launch, const char *signal, const struct error *why)
{
    if (launch->stage != STAGE_JOINED) return false;
    struct refusal refusal;
    fill_refusal(launch, why, &refusal);
    return control_client_interrupt(launch->control, signal, times_stopped(launch), &refusal.hello);
}

/* A coordinator that died after its last word, while ranks were still in MPI_Finalize, leaves to rank 0 what it has. */
static void clear_up_after(const struct coordinator_link *coordinator)
{
    if (coordinator->pid > 0 && waitpid(coordinator->pid, NULL, WNOHANG) != 0)
        leftovers_remove(&coordinator->leftovers, true);
}

static bool asks_to_stop(const char *signal)
{
    return is_signal(signal) && strcmp(signal, "SIGUSR1");
}

/* Asks the coordinator for a checkpoint, or for the end behind one, if need be as soon as there is a line to it; false
 * where the job has to end here and now: where it has not begun, at a second signal, and without a launcher. */
static bool ask(struct launch *launch, const char *signal, bool by_launcher)
{
    pthread_mutex_lock(&launch->lock);
    const bool saves = !strcmp(signal, "SIGUSR1");
    const bool stops = asks_to_stop(signal);
    launch->stops[by_launcher] += stops;
    const bool stops_in_order = stops && times_stopped(launch) == 1;
    bool asked = saves;
    if (launch->stage < STAGE_JOINED && saves)
        launch->wants_checkpoint = true;
    else if (launch->stage < STAGE_JOINED && launch->place.rank != 0 && stops_in_order)
        asked = snprintf(launch->wants_stop, sizeof launch->wants_stop, "%s", signal) > 0;
    else if (launch->stage == STAGE_JOINED && (saves || stops_in_order))
        asked = control_client_ask(launch->control, signal) || saves;
    pthread_mutex_unlock(&launch->lock);
    return asked;
}

/* A launcher that ends the job signals all ranks; of those that have no line to the coordinator rank 0 speaks. */
static void end_at_once(struct launch *launch, const char *signal)
{
    struct error why;
    const enum status status = asks_to_stop(signal) ? STATUS_AGAIN : STATUS_INTERNAL;
    error_set(&why, status, "rank %u: interrupted by %s before the first step", launch->place.rank, signal);
    pthread_mutex_lock(&launch->lock);
    const enum stage stage = launch->stage;
    const enum status outcome = launch->outcome;
    launch->interrupted = signal;
    bool told = tell_coordinator(launch, signal, &why);
    pthread_mutex_unlock(&launch->lock);
    if (told) sleep(FAREWELL_SECONDS); /* on_farewell leaves */
    begin_ending(launch);
    if (stage < STAGE_JOINED && launch->place.rank == 0) {
        if (stage == STAGE_ENGAGED)
            tell_last_words(launch, &why); /* if it cannot start there is nothing to stand in for */
        if (stage == STAGE_COORDINATED) say_last_words(launch, &why);
        complain_as_rank(launch, why.text);
    }
    if (stage >= STAGE_COORDINATED && launch->place.rank == 0) clear_up_after(&launch->coordinator);
    leave(launch, signal, stage < STAGE_JOINED ? status : outcome);
}

/* Whether this rank gets, or loses, its line to the coordinator before long. */
static bool joins_soon(struct launch *launch)
{
    enum stage stage = STAGE_STARTING;
    for (unsigned waited = 0; waited < JOIN_MICROSECONDS && stage < STAGE_JOINED; waited += JOIN_MICROSECONDS / 10) {
        usleep(JOIN_MICROSECONDS / 10);
        pthread_mutex_lock(&launch->lock);
        stage = launch->stage;
        pthread_mutex_unlock(&launch->lock);
    }
    return stage >= STAGE_JOINED;
}

/* On a thread of its own. A rank that waits at its start for a rank 0 that has failed is told to go by its launcher's
 * SIGTERM, and nobody tells it more. Anybody else's waits for the line on which the coordinator hears of it. */
static void on_interruption(void *context, const char *signal, bool by_launcher)
{
    const bool is_told_to_go = !strcmp(signal, "SIGTERM") && interruption_may_be_launchers();
    if (ask(context, signal, by_launcher) && (!is_told_to_go || joins_soon(context))) return;
    end_at_once(context, signal);
}

/* On the control thread, as the next. */

static void on_farewell(void *context, const Gacc__V1__Farewell *farewell)
{
    struct launch *launch = context;
    const char *interrupted = begin_ending(launch);
    const Gacc__V1__Failure *failure = farewell->failure;
    if (farewell->print && failure) complain_last(launch, failure->text);
    if (interrupted) /* a launcher that ends the job does not hear of an abort */
        leave(launch, interrupted, failure ? status_received(failure->status) : STATUS_INTERNAL);
    usleep(DEATH_FIRST_MICROSECONDS);
    comm_abort(launch->comm, failure && failure->status ? (int)failure->status : STATUS_INTERNAL);
}

/* Rank 0 stands in for the coordinator. The others stay until they are told to go, which on_interruption hears. */
static void on_lost(void *context, const struct error *error)
{
    struct launch *launch = context;
    if (launch->place.rank != 0 && !enter_stage(launch, STAGE_ENDING, NULL)) sleep(ALONE_SECONDS);
    const char *interrupted = begin_ending(launch);
    if (launch->place.rank == 0) {
        complain_last(launch, error->text);
        stand_in(launch, error);
    }
    if (interrupted) leave(launch, interrupted, STATUS_INTERNAL);
    comm_abort(launch->comm, STATUS_INTERNAL);
}

/* It cannot say so itself. */
static void on_silent(void *context, double seconds)
{
    const struct launch *launch = context;
    if (launch->place.rank != 0) return;
    fprintf(stderr, "gaccd: rank 0: the coordinator has been silent for %.3g s; lost after %g s (control.timeout)\n",
            seconds, launch->job->control->timeout_seconds);
}

/* ---- a rank's work ---- */

/* While the coordinator's answer is awaited, another rank may still need bytes of the last collective from here, or
 * have none but rank 0 to tell why it cannot come: the coordinator hears it, and ends the job for all. */
static void on_idle(void *context)
{
    const struct launch *launch = context;
    struct error told;
    if (launch->place.rank != 0)
        comm_progress(launch->comm);
    else if (comm_hear(launch->comm, &told, sizeof told))
        tell_last_words(launch, &told); /* a coordinator that is gone ends this rank by other ways */
}

static int open_control(struct launch *launch, struct control **control, struct error *error)
{
    const struct control_client_events events = {on_lost, on_farewell, on_idle, launch, on_silent};
    uint8_t fingerprint[TLS_FINGERPRINT_BYTES];
    tls_fingerprint(launch->certificate.bytes, launch->certificate.length, fingerprint);
    const struct control_address to = {
        .addresses = launch->addresses,
        .fingerprint = launch->certificate.length ? fingerprint : NULL,
        .secret = launch->secret,
    };
    return control_client_open(control, &to, launch->place.rank, launch->job->control->timeout_seconds, &events, error);
}

static int say_cannot_start(const struct launch *launch, struct control *control, const struct error *why,
                            struct error *error)
{
    struct refusal refusal;
    fill_refusal(launch, why, &refusal);
    Gacc__V1__Welcome *welcome = NULL;
    int status = control->hello(control, &refusal.hello, &welcome, error);
    if (!status) gacc__v1__welcome__free_unpacked(welcome, NULL);
    return status ? status : error_set(error, why->status, "%s", why->text);
}

/* Receipts of verify name the device, which is known only here, after the last fork. */
static int choose_device(struct launch *launch, struct error *error)
{
    int status = device_open(&launch->device, launch->device_wanted, launch->comm, error);
    if (status || launch->place.rank != 0) return status;
    if (launch->device && *launch->device->warning) notice(launch, launch->device->warning);
    if (launch->job->verify != GACC__V1__VERIFY__VERIFY_REQUIRED) return 0;
    return receipt_require(launch->job, launch->device ? launch->device->model : NULL, error);
}

static int train(struct launch *launch, struct control *control, struct error *error)
{
    struct session *session;
    struct error why;
    const struct session_options options = {.device = launch->device, .notices = &launch->notices};
    if (session_open(&session, launch->job, launch->comm, control, &options, &why))
        return say_cannot_start(launch, control, &why, error);
    if (launch->place.rank == 0 && session_norms_by_class(session))
        notice(launch, "model.norm batch: with data.order sequential rows of a class follow each other, so that a "
                       "micro-batch holds one class and its statistics are that class's: data.order shuffled, "
                       "model.norm_stats window or model.norm group helps");
    int status = session_run(session, error);
    if (!status && !session_has_stopped(session))
        status = final_write(launch->job, launch->place.rank == 0, session, error);
    session_close(session);
    return status;
}

/* The job's status, as the coordinator says it in its farewell. Where it has said so before (in answer to hello), or is
 * gone, *error holds the last word. */
static int finish(struct launch *launch, struct control *control, int status, struct error *error)
{
    Gacc__V1__Failure failure = GACC__V1__FAILURE__INIT;
    Gacc__V1__Finished finished = GACC__V1__FINISHED__INIT;
    Gacc__V1__Farewell *farewell = NULL;
    struct error unheard;
    if (status) {
        failure.status = error->status;
        failure.text = error->text;
        finished.failure = &failure;
    }
    if (control->finished(control, &finished, &farewell, &unheard)) {
        if (!status) *error = unheard;
        status = status ? status : -(int)unheard.status;
    } else {
        const Gacc__V1__Failure *verdict = farewell->failure;
        status = verdict && verdict->status ? error_received(error, verdict->status, verdict->text) : 0;
        gacc__v1__farewell__free_unpacked(farewell, NULL);
    }
    if (status && control_client_prints(control)) complain_last(launch, error->text);
    return status;
}

/* Where the coordinator is out of reach, rank 0 hears of it and the job ends in order; it may be in the same trouble,
 * and then speaks for all. */
static void end_out_of_reach(struct launch *launch, struct error *error)
{
    enter_stage(launch, STAGE_ENDING, NULL); /* a rank that waits may be told to go */
    if (launch->place.rank == 0) {
        begin_ending(launch);
        say_last_words(launch, error);
    } else {
        struct error told = {.text = ""};
        error_set(&told, error->status, "rank %u: %s", launch->place.rank, error->text);
        if (comm_tell(launch->comm, &told, sizeof told, YIELD_SECONDS)) return;
        begin_ending(launch);
    }
    complain_as_rank(launch, error->text);
    comm_abort(launch->comm, (int)error->status);
}

static int work(struct launch *launch, struct error *error)
{
    struct control *control;
    int status = open_control(launch, &control, error);
    if (status) {
        end_out_of_reach(launch, error);
        return status;
    }
    enter_stage(launch, STAGE_JOINED, control);
    if (launch->wants_stop[0]) end_at_once(launch, launch->wants_stop);
    struct error why;
    if (choose_device(launch, &why))
        status = say_cannot_start(launch, control, &why, error);
    else
        status = train(launch, control, error);
    device_close(launch->device);
    status = finish(launch, control, status, error);
    const enum status outcome = status ? error->status : STATUS_DONE;
    pthread_mutex_lock(&launch->lock);
    launch->outcome = outcome;
    pthread_mutex_unlock(&launch->lock);
    const char *interrupted = enter_stage(launch, STAGE_ENDING, NULL);
    bool has_said_why = control_client_prints(control);
    control_client_close(control);
    if (interrupted && status) leave(launch, interrupted, outcome);
    if (status != -STATUS_INTERNAL) return status;
    /* A fault of ours, or a process that is gone: the others may never come to MPI_Finalize. An abort may kill them
     * where they are, so who speaks for all goes first. */
    if (!has_said_why) usleep(DEATH_FIRST_MICROSECONDS);
    comm_abort(launch->comm, STATUS_INTERNAL);
}

/* ---- the whole ---- */

static void end_coordinator(struct launch *launch)
{
    int how;
    close(launch->coordinator.life);
    if (waitpid(launch->coordinator.pid, &how, 0) > 0 && WIFSIGNALED(how))
        leftovers_remove(&launch->coordinator.leftovers, true);
    notes_close(&launch->notes);
}

int launch_run(const struct launch_options *options)
{
    /* outlives us: an interruption may look at it */
    static struct launch launch = {
        .ending = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .outcome = STATUS_INTERNAL};
    launch.options = options;
    struct error error;
    signal(SIGPIPE, SIG_IGN); /* what cannot be written is an error that says so, not a death */
    signal(SIGXFSZ, SIG_IGN);
    int status = interruption_hold(place_launcher(), &error); /* before all that takes time */
    if (!status) status = place_find(&launch.place, &error);
    const bool is_first = launch.place.rank == 0;
    if (!status && !place_shared_memory_path(&launch.place, launch.shared_memory, sizeof launch.shared_memory))
        launch.shared_memory[0] = '\0';
    if (!status && is_first) status = fork_coordinator(&launch, &error);
    if (!status) status = interruption_watch(on_interruption, &launch, &error);
    if (!status && is_first) status = prepare_job(&launch, &error);
    if (status) {
        complain(error.text);
        return -status;
    }
    if (is_first && !launch.finished) enter_stage(&launch, STAGE_COORDINATED, NULL);
    status = launch_open_transport(&launch.comm, &launch.place, launch.shared_memory, &error);
    if (!status) status = take_invitation(&launch, &error);
    if (status) { /* the ranks are not together: no order to end in */
        if (is_first)
            begin_ending(&launch);
        else if (launch_stay())
            return (int)error.status; /* rank 0 has said it */
        if (is_first && !launch.finished) say_last_words(&launch, &error);
        complain_as_rank(&launch, error.text);
        if (is_first) end_coordinator(&launch);
        return (int)error.status;
    }
    if (!launch.finished)
        status = work(&launch, &error);
    else if (is_first)
        fprintf(stderr, "gaccd: %s: already finished\n", launch.job->job->output);

    if (interruption_is_launchers()) { /* it sleeps until it kills: MPI_Finalize, which needs it, would wait for that */
        if (is_first) end_coordinator(&launch);
        usleep(LEAVE_MICROSECONDS);
        _exit(is_first ? -status : 0);
    }
    launch_close_transport(launch.comm, &launch.place);
    if (is_first) end_coordinator(&launch);
    if (!status && is_first && launch.has_terminal)
        printf("%s: final/model.safetensors has the weights, log.jsonl every step, result.json the result\n",
               launch.job->job->output);
    gacc__v1__job_spec__free_unpacked(launch.job, NULL);
    free_notices(&launch.notices);
    if (!is_first && status) launch_stay();
    return is_first ? -status : 0; /* the others end with 0, so that the launcher returns rank 0's status */
}
