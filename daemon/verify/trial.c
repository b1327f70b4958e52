/*
 * One rank of a trial is the same code whether it is a thread or a process: it opens a session and a control of its
 * own, looks on while the session runs, and at the end tells the others what it saw.
 */
#include "daemon/verify/trial.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/verify/control_local.h"
#include "proto/message.h"
#include "worker/comm_roll.h"
#include "worker/layout.h"
#include "worker/memory.h"

/* Buffers of which an attempt that is not applied must change no byte. */
enum watched { WATCHED_PARAMETERS, WATCHED_FROZEN, WATCHED_MASTER, WATCHED_M, WATCHED_V, WATCHED };

/* What a rank saw of its own part. */
struct sighting {
    uint64_t bytes_changed[TRIAL_STEPS_MAX];
    bool gradients_kept[TRIAL_STEPS_MAX];
};

struct rank {
    struct observer observer; /* first: an observer is a rank */
    const struct trial_spec *spec;
    const Gacc__V1__JobSpec *job;
    struct comm *comm; /* the sessions' */
    struct comm *roll; /* on which all ranks meet before each call, so that one that fails does not leave the others */
    struct comm *talk; /* everything else */
    struct control_local control;
    struct session *session;

    void *copies[WATCHED]; /* as they were after the attempt before */
    void *gradient, *before,
        *after;   /* the own shard's and, behind it, the own frozen part's, wide; gradient still scaled */
    double scale; /* of the first window */
    void *whole;  /* wide, an index to gather in */
    struct sighting sighting;

    bool keeps; /* the result's arrays: threads of one process need them once */
    struct trial trial;
    int result;
    struct error error;
};

/* --- looking on ---------------------------------------------------------------------------------------------- */

struct span {
    const void *at;
    uint64_t bytes;
};

static uint64_t frozen_of(const struct session_view *view)
{
    return view->table->parameters - view->table->trained;
}

static struct span watched_span(const struct session_view *view, enum watched what)
{
    const size_t size = dtype_size(view->wide_type);
    switch (what) {
    case WATCHED_PARAMETERS:
        return (struct span){view->parameters, view->map->parameters * dtype_size(view->compute_type)};
    case WATCHED_FROZEN:
        return (struct span){view->frozen, frozen_of(view) * dtype_size(view->compute_type)};
    case WATCHED_MASTER:
        return (struct span){view->master, view->kept * size};
    case WATCHED_M:
        return (struct span){view->m, view->m_count * size};
    case WATCHED_V:
        return (struct span){view->v, view->v_count * size};
    case WATCHED:
        break;
    }
    return (struct span){0};
}

/* The number of bytes that differ; the copy is then as the original. */
static uint64_t renew(unsigned char *copy, struct span now)
{
    const unsigned char *bytes = now.at;
    uint64_t changed = 0;
    if (now.bytes == 0 || memcmp(copy, bytes, now.bytes) == 0) return 0;
    for (uint64_t i = 0; i < now.bytes; i++) changed += copy[i] != bytes[i];
    memcpy(copy, bytes, now.bytes);
    return changed;
}

static bool any_bit(struct span span)
{
    const unsigned char *bytes = span.at;
    return span.bytes > 0 && (bytes[0] || memcmp(bytes, bytes + 1, span.bytes - 1) != 0);
}

static void on_reduced(struct observer *observer, const struct session_view *view)
{
    struct rank *rank = (struct rank *)observer;
    if (view->step != 1) return;
    memcpy(rank->gradient, view->shard, view->owned * dtype_size(view->wide_type));
    rank->scale = view->scale;
}

static void on_stepped(struct observer *observer, const struct session_view *view)
{
    struct rank *rank = (struct rank *)observer;
    struct sighting *sighting = &rank->sighting;
    for (enum watched what = 0; what < WATCHED; what++)
        sighting->bytes_changed[view->step - 1] += renew(rank->copies[what], watched_span(view, what));
    sighting->gradients_kept[view->step - 1] =
        any_bit((struct span){view->gradients, view->map->parameters * dtype_size(view->wide_type)});
    memcpy(rank->after, view->master, view->kept * dtype_size(view->wide_type));
}

/* --- opening ------------------------------------------------------------------------------------------------- */

/* Room for all that will be looked at, and the state before the first attempt. */
static int open_sight(struct rank *rank, struct error *error)
{
    struct session_view view;
    int result = session_look(rank->session, &view, error);
    if (result) return result;
    size_t wide_size = dtype_size(view.wide_type);
    uint64_t all = rank->trial.parameters = view.table->parameters;
    rank->trial.trained = view.table->trained;
    rank->trial.buckets = view.map->bucket_count;
    for (enum watched what = 0; what < WATCHED && !result; what++) {
        struct span span = watched_span(&view, what);
        result = memory_new(&rank->copies[what], span.bytes, 1, "a copy of the session's state", error);
        if (!result) renew(rank->copies[what], span);
    }
    if (!result) result = memory_new(&rank->gradient, view.kept, wide_size, "a copy of the gradient", error);
    if (!result) result = memory_new(&rank->before, view.kept, wide_size, "a copy of the parameters", error);
    if (!result) result = memory_new(&rank->after, view.kept, wide_size, "a copy of the parameters", error);
    if (!result) result = memory_new(&rank->whole, all, wide_size, "the gathered gradient", error);
    double **results[] = {&rank->trial.gradient, &rank->trial.before, &rank->trial.after, &rank->trial.running};
    for (size_t i = 0; i < sizeof results / sizeof *results && rank->keeps && !result; i++) {
        void *values;
        result = memory_new(&values, all, sizeof(double), "a trial's result", error);
        *results[i] = values;
    }
    if (!result) memcpy(rank->before, view.master, view.kept * wide_size);
    return result;
}

static int open_session(struct rank *rank, struct error *error)
{
    const struct trial_spec *spec = rank->spec;
    struct session_options options = {
        .faults = spec->faults,
        .observer = &rank->observer,
        .reference = spec->reference,
        .train_most = spec->train,
        .reversed = spec->reversed,
        .device = spec->device,
        .staged = !spec->launcher,
    };
    return session_open(&rank->session, rank->job, rank->comm, &rank->control.control, &options, error);
}

/* --- gathering ----------------------------------------------------------------------------------------------- */

/* The ranks' parts of an index, the trained or the frozen one, as one: its tensors' elements of to [P], divided by
 * `scale`; NULL where nobody wants it. */
static int gather_index(struct rank *rank, const struct session_view *view, const struct shard_map *map, bool frozen,
                        const void *part, double scale, double *to, struct error *error)
{
    size_t size = dtype_size(view->wide_type);
    const char *from = part;
    for (uint32_t bucket = 0; bucket < map->bucket_count; bucket++) {
        struct range own = shard_map_range(map, bucket, view->rank);
        memcpy((char *)rank->whole + own.begin * size, from, (own.end - own.begin) * size);
        from += (own.end - own.begin) * size;
    }
    int result = comm_all_gather(rank->talk, map, rank->whole, view->wide_type, error);
    for (size_t t = 0; t < view->table->count && to && !result; t++) {
        const struct tensor *tensor = &view->table->tensors[t];
        for (uint64_t i = 0; i < tensor->size && tensor->frozen == frozen; i++) {
            const uint64_t at = tensor->at + i;
            const bool is_double = view->wide_type == DTYPE_FP64;
            to[tensor->begin + i] =
                (is_double ? ((double *)rank->whole)[at] : (double)((float *)rank->whole)[at]) / scale;
        }
    }
    return result;
}

static int gather(struct rank *rank, const void *kept, double scale, double *to, struct error *error)
{
    struct session_view view;
    struct shard_map frozen;
    int result = session_look(rank->session, &view, error);
    if (!result) result = gather_index(rank, &view, view.map, false, kept, scale, to, error);
    if (result) return result;
    layout_frozen_map(&frozen, view.table, view.map->ranks);
    const char *behind = (const char *)kept + view.owned * dtype_size(view.wide_type);
    return gather_index(rank, &view, &frozen, true, behind, scale, to, error);
}

/* What all ranks saw, put together. */
static int gather_sightings(struct rank *rank, struct error *error)
{
    struct trial *trial = &rank->trial;
    for (uint64_t i = 0; i < trial->step_count; i++) trial->steps[i].gradients_cleared = true;
    for (uint32_t root = 0; root < rank->talk->ranks; root++) {
        struct sighting sighting = rank->sighting;
        int result = comm_broadcast(rank->talk, &sighting, sizeof sighting, root, error);
        if (result) return result;
        for (uint64_t i = 0; i < trial->step_count; i++) {
            trial->steps[i].bytes_changed += sighting.bytes_changed[i];
            trial->steps[i].gradients_cleared &= !sighting.gradients_kept[i];
        }
    }
    session_memory(rank->session, &trial->memory);
    return comm_broadcast(rank->talk, &trial->memory, sizeof trial->memory, 0, error);
}

/* They are no parameters: no optimizer moves them. */
static int set_running_apart(struct rank *rank, struct error *error)
{
    struct session_view view;
    struct trial *trial = &rank->trial;
    int result = session_look(rank->session, &view, error);
    for (size_t i = 0; rank->keeps && !result && i < view.table->count; i++) {
        const struct tensor *tensor = &view.table->tensors[i];
        if (!tensor->statistic) continue;
        const size_t bytes = tensor->size * sizeof(double);
        memcpy(trial->running + tensor->begin, trial->after + tensor->begin, bytes);
        memcpy(trial->after + tensor->begin, trial->before + tensor->begin, bytes);
    }
    return result;
}

static int gather_all(struct rank *rank, struct error *error)
{
    struct trial *trial = &rank->trial;
    trial->step_count = rank->control.step_count;
    int result = gather_sightings(rank, error);
    if (!result) result = gather(rank, rank->gradient, rank->scale, trial->gradient, error);
    if (!result) result = gather(rank, rank->before, 1, trial->before, error);
    if (!result) result = gather(rank, rank->after, 1, trial->after, error);
    return result ? result : set_running_apart(rank, error);
}

/* --- one rank ------------------------------------------------------------------------------------------------ */

static void close_rank(struct rank *rank)
{
    session_close(rank->session);
    control_local_close(&rank->control);
    comm_close(rank->talk);
    comm_call_roll(rank->comm, NULL);
    comm_close(rank->roll);
    for (enum watched what = 0; what < WATCHED; what++) free(rank->copies[what]);
    free(rank->gradient);
    free(rank->before);
    free(rank->after);
    free(rank->whole);
    if (rank->result) trial_free(&rank->trial);
}

/* All is opened, on all ranks, before anything is run: from there on they need each other. */
static void run_rank(struct rank *rank)
{
    struct comm_counts counts = rank->comm->counts;
    struct error why = {0};
    rank->observer = (struct observer){.reduced = on_reduced, .stepped = on_stepped};
    rank->comm->counts = (struct comm_counts){0};
    rank->result = comm_duplicate(rank->comm, &rank->roll, &rank->error);
    if (!rank->result) {
        comm_call_roll(rank->comm, rank->roll);
        rank->result = comm_duplicate(rank->comm, &rank->talk, &rank->error);
    }
    if (!rank->result) {
        int opened = control_local_open(&rank->control, rank->spec, rank->job, rank->talk, rank->trial.steps, &why);
        if (!opened) opened = open_session(rank, &why);
        if (!opened) opened = open_sight(rank, &why);
        rank->result = control_local_agree(&rank->control, opened, &why, &rank->error);
    }
    if (!rank->result) {
        int ran = session_run(rank->session, &why);
        rank->result = control_local_agree(&rank->control, ran, &why, &rank->error);
    }
    if (!rank->result) {
        int gathered = gather_all(rank, &why);
        rank->result = control_local_agree(&rank->control, gathered, &why, &rank->error);
    }
    close_rank(rank);
    rank->comm->counts = counts;
}

/* --- threads ------------------------------------------------------------------------------------------------- */

/* Threads start work when all of them are there. */
struct crew {
    pthread_mutex_t gate;
    bool called_off;
};

struct worker {
    struct crew *crew;
    struct rank rank;
    pthread_t thread;
};

static void *work(void *argument)
{
    struct worker *worker = argument;
    pthread_mutex_lock(&worker->crew->gate);
    bool called_off = worker->crew->called_off;
    pthread_mutex_unlock(&worker->crew->gate);
    if (!called_off) run_rank(&worker->rank);
    return NULL;
}

/* Returns when all threads are gone. */
static int run_workers(struct worker *workers, uint32_t ranks, struct error *error)
{
    struct crew crew = {.gate = PTHREAD_MUTEX_INITIALIZER};
    int number = 0;
    uint32_t started = 0;
    pthread_mutex_lock(&crew.gate);
    while (started < ranks && !number) {
        workers[started].crew = &crew;
        number = pthread_create(&workers[started].thread, NULL, work, &workers[started]);
        started += number == 0;
    }
    crew.called_off = number != 0;
    pthread_mutex_unlock(&crew.gate);
    for (uint32_t rank = 0; rank < started; rank++) pthread_join(workers[rank].thread, NULL);
    return number ? error_set_errno(error, STATUS_INTERNAL, number, "cannot start a thread for every rank") : 0;
}

/* What run_rank leaves behind, as the caller of trial_run gets it. */
static int take_result(struct rank *rank, struct trial *trial, struct error *error)
{
    if (rank->result)
        *error = rank->error;
    else
        *trial = rank->trial;
    return rank->result;
}

/* All ranks have the same result: rank 0's is taken. */
static int run_threads(struct trial *trial, const struct trial_spec *spec, const Gacc__V1__JobSpec *job,
                       struct error *error)
{
    struct worker *workers = calloc(spec->ranks, sizeof *workers);
    struct comm **members = calloc(spec->ranks, sizeof(void *));
    int result = workers && members ? comm_open_local(members, spec->ranks, error)
                                    : error_set(error, STATUS_INTERNAL, "out of memory for %u ranks", spec->ranks);
    if (!result) {
        for (uint32_t rank = 0; rank < spec->ranks; rank++)
            workers[rank].rank = (struct rank){.spec = spec, .job = job, .comm = members[rank], .keeps = rank == 0};
        result = run_workers(workers, spec->ranks, error);
        for (uint32_t rank = 0; rank < spec->ranks; rank++) comm_close(members[rank]);
        if (!result) result = take_result(&workers[0].rank, trial, error);
    }
    free(workers);
    free(members);
    return result;
}

static int run_launched(struct trial *trial, const struct trial_spec *spec, const Gacc__V1__JobSpec *job,
                        struct error *error)
{
    struct rank rank = {.spec = spec, .job = job, .comm = spec->launcher, .keeps = true};
    run_rank(&rank);
    return take_result(&rank, trial, error);
}

/* --- the whole ----------------------------------------------------------------------------------------------- */

/* The job without an end of its own: the trial ends it. What follows from the job's length, a schedule's total that is
 * not written, becomes as long as can be. */
static Gacc__V1__JobSpec *endless(const Gacc__V1__JobSpec *job)
{
    Gacc__V1__JobSpec *variant = message_copy(&job->base);
    if (!variant) return NULL;
    variant->job->steps = INT64_MAX;
    variant->job->tokens = variant->job->epochs = 0;
    variant->evaluation->every = 0;
    if (variant->checkpoint) variant->checkpoint->every = 0;
    return variant;
}

int trial_run(struct trial *trial, const struct trial_spec *spec, struct error *error)
{
    *trial = (struct trial){0};
    if (spec->steps == 0 || spec->steps > TRIAL_STEPS_MAX || (!spec->launcher && spec->ranks == 0))
        return error_set(error, STATUS_INTERNAL, "a trial of %llu steps on %u ranks", (unsigned long long)spec->steps,
                         spec->ranks);
    Gacc__V1__JobSpec *job = endless(spec->job);
    if (!job) return error_set(error, STATUS_INTERNAL, "out of memory for a copy of the job");
    int result = spec->launcher ? run_launched(trial, spec, job, error) : run_threads(trial, spec, job, error);
    gacc__v1__job_spec__free_unpacked(job, NULL);
    return result;
}

void trial_free(struct trial *trial)
{
    free(trial->gradient);
    free(trial->before);
    free(trial->after);
    free(trial->running);
    *trial = (struct trial){0};
}
