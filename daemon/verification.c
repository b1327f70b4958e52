#include "daemon/verification.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/interruption.h"
#include "daemon/launch.h"
#include "daemon/place.h"
#include "daemon/verify/fellows.h"
#include "daemon/verify/receipt.h"
#include "daemon/verify/report.h"
#include "daemon/verify/together.h"
#include "daemon/verify/verify.h"

/* What the listener and the thread that hears of interruptions know. */
struct view {
    uint32_t rank;
    bool is_first, json;
    bool controls_begun;
    uint32_t sequences;
    double limit;            /* of the patience with a rank that is silent, in seconds */
    pthread_mutex_t writing; /* held while a file is half written: nobody ends the process then */
};

static void complain(const char *text)
{
    fprintf(stderr, "gaccd: verify: %s\n", text);
}

/* Nothing but the receipt is ever written: there is nothing to clean up. */
static void on_interruption(void *context, const char *name, bool by_launcher)
{
    (void)by_launcher;
    struct view *view = context;
    pthread_mutex_lock(&view->writing);
    if (view->is_first) fprintf(stderr, "gaccd: verify: interrupted by %s\n", name);
    _exit(STATUS_INTERNAL);
}

/* A fellow rank is silent: stopped, or out of reach. */
static void on_fellow(void *context, enum silence_event event, uint32_t rank, double seconds)
{
    struct view *view = context;
    switch (event) {
    case SILENCE_NOTHING_NEW:
        break;
    case SILENCE_BEGINS:
        fprintf(stderr,
                "gaccd: verify: rank %u waits for rank %u, which is silent; not beyond %g s (control.timeout)\n",
                view->rank, rank, view->limit);
        break;
    case SILENCE_ENDS:
        fprintf(stderr, "gaccd: verify: rank %u goes on after %.3g s\n", rank, seconds);
        break;
    case SILENCE_TOO_LONG:
        pthread_mutex_lock(&view->writing);
        fprintf(stderr,
                "gaccd: verify: rank %u waits no longer for rank %u, which is silent for %g s (control.timeout)\n",
                view->rank, rank, view->limit);
        _exit(STATUS_INTERNAL);
    }
}

/* Rank 0 has read how long. */
static int watch_fellows(const Gacc__V1__JobSpec *job, struct comm *comm, struct view *view, struct error *error)
{
    view->limit = job ? job->control->timeout_seconds : 0;
    const struct fellows_listener listener = {on_fellow, view};
    int status = comm_broadcast(comm, &view->limit, sizeof view->limit, 0, error);
    return status ? status : fellows_watch(comm, view->limit, &listener, error);
}

/* ---- as it goes ---- */

static void on_began(void *context, const struct suite *suite)
{
    struct view *view = context;
    view->sequences = suite->probe.sequences;
    if (!view->json) report_head(suite, stdout);
}

static void on_checked(void *context, const struct check *check)
{
    const struct view *view = context;
    if (!view->json) report_check(check, stdout);
}

static void on_controlled(void *context, const struct planted *planted)
{
    struct view *view = context;
    if (view->json) return;
    if (!view->controls_begun) report_controls_head(stdout);
    view->controls_begun = true;
    report_planted(planted, stdout);
}

static int print_json(const struct verification *verification)
{
    struct json_writer json;
    char *text;
    size_t length;
    if (json_write_open(&json, &text, &length)) return -1;
    json_write_object(&json, NULL);
    report_members(&json, verification);
    json_write_object_end(&json);
    if (!json_write_close(&json, &text)) return -1;
    puts(text);
    free(text);
    return 0;
}

/* ---- rank 0 ---- */

static int conclude(const Gacc__V1__JobSpec *job, const struct device *device, struct view *view, uint32_t ranks,
                    const struct verification *verification, struct error *error)
{
    char path[PATH_MAX];
    pthread_mutex_lock(&view->writing);
    int status = receipt_write(job, device ? device->model : NULL, ranks, view->sequences, verification, path, error);
    pthread_mutex_unlock(&view->writing);
    if (status) return status;
    if (view->json && print_json(verification)) return error_set(error, STATUS_INTERNAL, "out of memory");
    if (!view->json) report_end(verification, path, stdout);
    if (fflush(stdout) || ferror(stdout)) return error_set_errno(error, STATUS_IO, errno, "standard output");
    return 0;
}

/* *passed is meant only with 0. */
static int verify(const Gacc__V1__JobSpec *job, struct comm *comm, const struct device *device,
                  const struct verification_options *options, struct view *view, bool *passed, struct error *error)
{
    struct verification *verification = malloc(sizeof *verification);
    if (!verification) return error_set(error, STATUS_INTERNAL, "out of memory");
    const struct verify_listener listener = {on_began, on_checked, on_controlled, view};
    struct comm *launcher = comm->ranks > 1 ? comm : NULL;
    int status = verify_job(job, launcher, device, options->sequences, &listener, verification, error);
    if (launcher) together_end(launcher);
    if (!status) status = conclude(job, device, view, comm->ranks, verification, error);
    *passed = verification->pass;
    free(verification);
    return status;
}

/* ---- the whole ---- */

int verification_run(const struct verification_options *options)
{
    static struct view view = {.writing = PTHREAD_MUTEX_INITIALIZER}; /* outlives us: an interruption may look at it */
    struct place place = {0};
    struct error error;
    struct comm *comm;
    Gacc__V1__JobSpec *job = NULL;
    char shared_memory[1] = ""; /* the transport's own: no coordinator is there to remove another */
    bool passed = true;
    signal(SIGPIPE, SIG_IGN);
    int status = interruption_hold(place_launcher(), &error); /* before all that takes time */
    if (!status) status = place_find(&place, &error);
    view.rank = place.rank;
    view.is_first = place.rank == 0;
    view.json = options->json;
    if (!status) status = interruption_watch(on_interruption, &view, &error);
    if (!status && view.is_first) {
        struct job_overrides overrides = options->overrides;
        overrides.ranks = place.ranks;
        status = job_load(&job, options->job_path, &overrides, stderr, &error);
    }
    if (!status) status = launch_open_transport(&comm, &place, shared_memory, &error);
    if (status) {
        fprintf(stderr, "gaccd: %s\n", error.text);
        return -status;
    }
    struct device *device = NULL;
    status = watch_fellows(job, comm, &view, &error);
    if (status) {
        complain(error.text);
        comm_abort(comm, STATUS_INTERNAL);
    }
    status = device_open(&device, options->device, comm, &error);
    if (status && view.is_first) complain(error.text); /* all ranks have the same */
    if (!status) {
        if (view.is_first && device && *device->warning) complain(device->warning);
        status = view.is_first ? verify(job, comm, device, options, &view, &passed, &error)
                               : together_serve(comm, device, &error);
        if (status) complain(error.text);
        if (status && !view.is_first) comm_abort(comm, STATUS_INTERNAL); /* rank 0 waits for it */
    }
    device_close(device);
    launch_close_transport(comm, &place);
    if (job) gacc__v1__job_spec__free_unpacked(job, NULL);
    if (status) return -status;
    return passed ? 0 : STATUS_NUMERICS;
}
