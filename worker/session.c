/*
 * A session: what one rank holds for a job, and the conversation that drives its steps.
 *
 *     Hello → Welcome(plan 1); Report(0) → Decision(0): window 1, plan 2; then step by step (step.c)
 *     Decision(s): hold; Report(s) → Decision(s): window s+1, plan s+2                    a pause, as at the start
 *
 * Plans run one step ahead of their windows, because a plan's weights are what the window's W is made of. Start and
 * every later step share this path.
 */
#include "worker/session.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/device.h"
#include "worker/memory.h"
#include "worker/session_internal.h"

int session_enter(struct session *session, Gacc__V1__State state, struct error *error)
{
    int result = step_state_enter(&session->machine, state, error);
    if (result) return result;
    const struct kernel_table *table = session->kernels->table;
    if (table->range_begin) table->range_begin(session->kernels, step_state_name(state));
    session->control->state(session->control, session->machine.step, state, session->machine.current);
    return 0;
}

uint64_t session_evaluation_sequences(const struct session *session)
{
    if (!session->validation) return 0;
    uint64_t all = data_sequences(session->validation), wanted = session->job->evaluation->sequences;
    return wanted > 0 && wanted < all ? wanted : all;
}

/* --- opening ------------------------------------------------------------------------------------------------- */

/* This rank's part of the host's cores, but never more than it may run on. */
static int arithmetic_threads(const struct comm *comm)
{
    cpu_set_t own;
    int allowed = sched_getaffinity(0, sizeof own, &own) == 0 ? CPU_COUNT(&own) : 1;
    int part = (int)(comm->local_cores / comm->local_ranks);
    int threads = part < allowed ? part : allowed;
    return threads > 1 ? threads : 1;
}

static int open_kernels(struct session *session, struct error *error)
{
    struct kernels_options options = {.compute_type = session->compute_type,
                                      .threads = arithmetic_threads(session->host)};
    bool reference = session->options.reference;
    if (reference && session->compute_type != DTYPE_FP64)
        return error_set(error, STATUS_INTERNAL, "the reference kernels are for fp64, not %s",
                         dtype_name(session->compute_type));
    const struct device *device = session->options.device;
    if (device) {
        struct error why = {.status = STATUS_INTERNAL};
        session->kernels = device->open_kernels(device, &options, &why);
        return session->kernels ? 0 : error_set(error, why.status, "%s", why.text);
    }
    session->kernels = reference ? kernels_open_reference(&options) : kernels_open_cpu(&options);
    return session->kernels ? 0 : error_set(error, STATUS_INTERNAL, "out of memory for the kernels' scratch");
}

static int open_data(struct session *session, struct error *error)
{
    struct data_shape shape;
    data_shape_of(session->job->model, &shape);
    int result = data_open(&session->train, session->job->data, 't', &shape, error);
    if (!result && session->options.train_most) data_keep_first(session->train, session->options.train_most);
    if (!result) result = data_open(&session->validation, session->job->data, 'v', &shape, error);
    if (!result) result = micro_batch_open(&session->batch, &shape, session->job->batch->micro, error);
    return result;
}

static int open_comm(struct session *session, struct error *error)
{
    session->comm = session->host;
    if (session->kernels->table->on_host) return 0;
    const struct device *device = session->options.device;
    const uint64_t parameters = session->model->table.trained;
    struct comm *own = NULL;
    int result = device->open_comm && !session->options.staged
                     ? device->open_comm(device, &own, session->host, session->kernels, parameters, error)
                     : comm_open_staged(&own, session->host, session->kernels, parameters, error);
    if (!result) session->comm = own;
    return result;
}

int session_list_parts(struct session *session, struct error *error)
{
    const uint32_t rank = session->comm->rank;
    free(session->runs);
    free(session->pieces);
    session->runs = NULL;
    session->pieces = NULL;
    int result = layout_runs(&session->layout, &session->map, rank, &session->runs, &session->run_count, error);
    return result ? result
                  : layout_pieces(&session->layout, &session->model->table, &session->map, rank, &session->pieces,
                                  &session->piece_count, error);
}

static int open_shards(struct session *session, struct error *error)
{
    const struct tensor_table *table = &session->model->table;
    struct shard_map frozen;
    shard_map_init(&session->map, table->trained, session->comm->ranks, session->comm->bucket_limit);
    layout_frozen_map(&frozen, table, session->comm->ranks);
    session->buckets.gathered = session->map.bucket_count;
    session->owned = shard_map_owned(&session->map, session->comm->rank);
    session->kept = session->owned + shard_map_owned(&frozen, session->comm->rank);
    int result = session_list_parts(session, error);
    if (!result && self_check_wanted(session)) {
        void *checksums;
        result = memory_new(&checksums, 2 * (table->count + 1), sizeof *session->checksums, "the checksums", error);
        session->checksums = checksums;
    }
    return result;
}

/* Room for initial values on their way. */
struct values {
    double *exact;  /* [INITIAL_BLOCK] */
    wide *narrowed; /* [INITIAL_BLOCK], the host's */
    wide *sent;     /* [INITIAL_BLOCK], the backend's; `narrowed` where that is the same */
};

/* Puts the values of [begin, begin + count) of the canonical index where this rank keeps them: rounded to the compute
 * type all of them, in wide the own. */
static void place(struct session *session, uint64_t begin, const struct values *values, uint64_t count)
{
    const struct kernel_table *table = session->kernels->table;
    size_t size = dtype_size(session->wide_type);
    for (uint64_t i = 0; i < count; i++)
        if (session->wide_type == DTYPE_FP64)
            ((double *)values->narrowed)[i] = values->exact[i];
        else
            ((float *)values->narrowed)[i] = (float)values->exact[i];
    table->upload(session->kernels, values->sent, values->narrowed, count * size);
    const struct range block = {begin, begin + count};
    for (size_t i = 0; i < session->model->table.count; i++) {
        const struct tensor *tensor = &session->model->table.tensors[i];
        struct range part = range_of_both(block, (struct range){tensor->begin, tensor->begin + tensor->size});
        compute *to = tensor->frozen ? session->frozen : session->parameters;
        if (part.begin < part.end)
            table->cast(session->kernels, element(to, tensor->at + (part.begin - tensor->begin), session->compute_type),
                        element(values->sent, part.begin - begin, session->wide_type), part.end - part.begin);
    }
    running_put(session, begin, count, values->exact);
    for (size_t i = 0; i < session->piece_count; i++) {
        const struct piece *piece = &session->pieces[i];
        struct range part = range_of_both(block, (struct range){piece->begin, piece->end});
        if (part.begin < part.end)
            table->copy(session->kernels,
                        element(session->master, piece->at + (part.begin - piece->begin), session->wide_type),
                        element(values->sent, part.begin - begin, session->wide_type), (part.end - part.begin) * size);
    }
}

static int open_values(struct session *session, struct values *values, uint64_t block, struct error *error)
{
    void *exact, *narrowed = NULL, *sent;
    bool on_host = session->kernels->table->on_host;
    *values = (struct values){0};
    int result = memory_new(&exact, block, sizeof(double), "initial values", error);
    if (!result) values->exact = exact;
    if (!result) result = memory_reserve(session->kernels, &sent, block * sizeof(double), "initial values", error);
    if (!result) values->sent = sent;
    if (!result && !on_host) result = memory_new(&narrowed, block, sizeof(double), "initial values", error);
    values->narrowed = on_host ? values->sent : narrowed;
    return result;
}

static void close_values(struct session *session, struct values *values)
{
    free(values->exact);
    if (values->narrowed != values->sent) free(values->narrowed);
    session->kernels->table->release(session->kernels, values->sent);
}

uint64_t session_initial_block(const struct session *session)
{
    const uint64_t parameters = session->model->table.parameters;
    return parameters < INITIAL_BLOCK ? parameters : INITIAL_BLOCK;
}

int session_fill(struct session *session,
                 int (*read)(void *context, uint64_t begin, uint64_t end, double *values, struct error *error),
                 void *context, struct error *error)
{
    struct values values;
    const uint64_t parameters = session->model->table.parameters;
    const uint64_t block = session_initial_block(session);
    int result = open_values(session, &values, block, error);
    for (uint64_t begin = 0; begin < parameters && !result; begin += block) {
        uint64_t count = parameters - begin < block ? parameters - begin : block;
        result = read(context, begin, begin + count, values.exact, error);
        if (!result) place(session, begin, &values, count);
    }
    if (!result) result = device_wait(session->kernels, error);
    close_values(session, &values);
    return result;
}

int session_put(struct session *session, uint64_t begin, uint64_t count, const double *exact, struct error *error)
{
    struct values values;
    int result = open_values(session, &values, count, error);
    if (!result) {
        memcpy(values.exact, exact, count * sizeof *exact);
        place(session, begin, &values, count);
        result = device_wait(session->kernels, error);
    }
    close_values(session, &values);
    return result;
}

static int read_initial(void *context, uint64_t begin, uint64_t end, double *values, struct error *error)
{
    return model_initial_read(context, begin, end, values, error);
}

int session_initialise(struct session *session, const char *file, struct error *error)
{
    struct model_initial *initial = NULL;
    int result =
        model_initial_open(&initial, session->model, session->job->job->seed, file, session->kernels->threads, error);
    if (!result) result = session_fill(session, read_initial, initial, error);
    model_initial_close(initial);
    return result;
}

static void close_layout(struct session *session)
{
    if (session->comm != session->host) comm_close(session->comm);
    session->comm = session->host;
    session_release(session);
    layout_close(&session->layout);
    free(session->runs);
    free(session->pieces);
    free(session->checksums);
    session->runs = NULL;
    session->pieces = NULL;
    session->checksums = NULL;
}

static int open_layout(struct session *session, uint64_t steps, struct error *error)
{
    int result = layout_open(&session->layout, session->model, session->job, steps, error);
    if (!result) result = open_comm(session, error);
    if (!result) result = open_shards(session, error);
    return result ? result : session_reserve(session, error);
}

int session_reopen_layout(struct session *session, uint64_t steps, struct error *error)
{
    close_layout(session);
    return open_layout(session, steps, error);
}

int session_open(struct session **out, const Gacc__V1__JobSpec *job, struct comm *comm, struct control *control,
                 const struct session_options *options, struct error *error)
{
    *out = NULL;
    struct session *session = calloc(1, sizeof *session);
    if (!session) return error_set(error, STATUS_INTERNAL, "out of memory for a session");
    session->job = job;
    session->host = comm;
    comm->rounds = job->precision->reduce == GACC__V1__REDUCE__REDUCE_BF16;
    session->control = control;
    if (options) session->options = *options;
    if (session->options.reference) session->options.device = NULL;
    session->compute_type = session_compute_type(job);
    session->wide_type = dtype_wide(session->compute_type);
    step_state_init(&session->machine);

    int result = model_open(&session->model, job->model, session->compute_type, error);
    if (!result) session->model->recomputes = session_recomputes(job);
    if (!result) result = open_data(session, error);
    if (!result) result = open_kernels(session, error);
    if (!result) result = running_open(session, error);
    if (!result) result = open_layout(session, 0, error);
    if (!result) result = session_initialise(session, NULL, error);
    if (result) {
        session_close(session);
        return result;
    }
    *out = session;
    return 0;
}

bool session_norms_by_class(const struct session *session)
{
    const Gacc__V1__ModelSection *model = session->job->model;
    return model->norm == GACC__V1__NORM__NORM_BATCH &&
           (model->norm_stats == GACC__V1__NORM_STATS__NORM_STATS_MICRO ||
            model->norm_stats == GACC__V1__NORM_STATS__NORM_STATS_SYNC) &&
           data_reads_by_class(session->train);
}

void session_close(struct session *session)
{
    if (!session) return;
    checkpoint_forget(session);
    close_layout(session);
    statistics_close(session->statistics);
    micro_batch_close(session->batch);
    data_close(session->train);
    data_close(session->validation);
    kernels_close(session->kernels);
    model_close(session->model);
    if (session->edited) gacc__v1__job_spec__free_unpacked(session->edited, NULL);
    free(session);
}

bool session_has_stopped(const struct session *session)
{
    return session->stopped;
}

/* --- running ------------------------------------------------------------------------------------------------- */

static int hello(struct session *session, Gacc__V1__Welcome **welcome, struct error *error)
{
    char host[256] = "", device[160], transport[96];
    const struct device *own_device = session->options.device;
    gethostname(host, sizeof host - 1);
    if (own_device)
        snprintf(device, sizeof device, "%s", own_device->name);
    else
        snprintf(device, sizeof device, "%s, %d thread%s", session->kernels->table->name, session->kernels->threads,
                 session->kernels->threads == 1 ? "" : "s");
    snprintf(transport, sizeof transport, "transport %s", session->comm->transport);
    char own_version[] = "gaccd " GACC_VERSION;
    char *versions[] = {own_version, transport};
    Gacc__V1__Memory memory = GACC__V1__MEMORY__INIT;
    struct session_memory taken;
    int result = session_memory_at_most(session, &taken, error);
    if (result) return result;
    memory.parameters = taken.parameters;
    memory.gradients = taken.gradients;
    memory.shard = taken.shard;
    memory.moments = taken.moments;
    memory.activations = taken.activations;
    memory.window = taken.window;
    memory.data = taken.batch;
    Gacc__V1__Hello message = GACC__V1__HELLO__INIT;
    message.rank = session->comm->rank;
    message.ranks = session->comm->ranks;
    message.job_digest = session->job->digest;
    message.host = host;
    message.pid = (uint32_t)getpid();
    message.train_sequences = data_sequences(session->train);
    message.validation_sequences = session_evaluation_sequences(session);
    message.parameters = session->model->table.parameters;
    message.trained = session->model->table.trained;
    message.targets_per_sequence = session->model->targets_per_sequence;
    message.device = device;
    message.memory = &memory;
    message.versions = versions;
    message.n_versions = sizeof versions / sizeof *versions;
    if (session->options.notices) {
        message.notices = session->options.notices->each;
        message.n_notices = session->options.notices->count;
    }
    message.groups = layout_list_groups(&session->layout, &message.n_groups);
    result = session->control->hello(session->control, &message, welcome, error);
    free((void *)message.groups);
    return result;
}

/* Between two steps: the weights of the plan that comes next, and of the first one whether the state could be restored.
 * The answer opens its window, unless the job is paused. */
static int report_plan(struct session *session, const Gacc__V1__Plan *plan, Gacc__V1__Decision **decision,
                       struct error *error)
{
    Gacc__V1__Report message = GACC__V1__REPORT__INIT;
    Gacc__V1__Failure failed = GACC__V1__FAILURE__INIT;
    failed.status = (uint32_t)session->failure.status;
    failed.text = session->failure.text;
    if (session->failure.status) message.failure = &failed;
    message.step = plan->step - 1;
    window_share_weight(session, plan, &message.next_weight, &message.next_micro_batches);
    int result = session->control->report(session->control, &message, decision, error);
    if (result) return result;
    if ((*decision)->verdict != GACC__V1__VERDICT__VERDICT_FAIL) return 0;
    const Gacc__V1__Failure *failure = (*decision)->failure;
    return failure ? error_received(error, failure->status, failure->text)
                   : error_set(error, STATUS_INTERNAL, "the coordinator ends the job and does not say why");
}

static void free_decision(Gacc__V1__Decision *decision)
{
    if (decision) gacc__v1__decision__free_unpacked(decision, NULL);
}

/* The job is paused behind `current`, which may have the next step's plan anew: *plan, which lives in *former. */
static int stand_by(struct session *session, const Gacc__V1__Plan **plan, Gacc__V1__Decision **former,
                    Gacc__V1__Decision **current, struct error *error)
{
    Gacc__V1__Decision *answer = NULL;
    int result = 0;
    if (session->machine.state != GACC__V1__STATE__STATE_PAUSED)
        result = session_enter(session, GACC__V1__STATE__STATE_PAUSED, error);
    if (!result && (*current)->plan) {
        *plan = (*current)->plan;
        Gacc__V1__Decision *older = *former;
        *former = *current;
        *current = older;
        result = window_check_plan(session, *plan, error);
    }
    if (!result) result = report_plan(session, *plan, &answer, error);
    free_decision(*current);
    *current = answer;
    if (!result && answer->save) result = checkpoint_begin(session, answer->save, error);
    return result;
}

/* A step, and its window again with the same data for as long as the verdict is RETRY. */
static int run_step(struct session *session, struct step *step, struct error *error)
{
    Gacc__V1__Decision *again = NULL; /* has the window that is run */
    int result = step_run(session, step, error);
    while (!result && step->decision->verdict == GACC__V1__VERDICT__VERDICT_RETRY) {
        free_decision(again);
        again = step->decision;
        *step = (struct step){.plan = step->plan, .next_plan = step->next_plan, .window = again->next};
        result = step_run(session, step, error);
    }
    free_decision(again);
    return result;
}

/* Each decision carries the window of the next step and the plan of the one after it; the plan of the next step came
 * with the decision before, which therefore stays alive (`former`) while its plan is in use. */
static int run_steps(struct session *session, const Gacc__V1__Plan *plan, Gacc__V1__Decision **former,
                     Gacc__V1__Decision **current, struct error *error)
{
    int result = 0;
    while (!result && ((*current)->next || (*current)->hold)) {
        if (!plan) return error_set(error, STATUS_INTERNAL, "the coordinator opens a window without a plan");
        if (!(*current)->next) {
            result = stand_by(session, &plan, former, current, error);
            continue;
        }
        struct step step = {.plan = plan, .next_plan = (*current)->plan, .window = (*current)->next};
        if (step.next_plan) result = window_check_plan(session, step.next_plan, error);
        if (!result) result = session_follow_layout(session, step.window, error);
        if (!result) result = run_step(session, &step, error);
        plan = step.next_plan;
        free_decision(*former);
        *former = *current;
        *current = step.decision;
    }
    return result;
}

int session_run(struct session *session, struct error *error)
{
    Gacc__V1__Welcome *welcome = NULL;
    Gacc__V1__Decision *former = NULL, *current = NULL;
    int result = hello(session, &welcome, error);
    if (!result && welcome->restore && checkpoint_restore(session, welcome->restore, &session->failure) &&
        !welcome->plan)
        result = error_set(error, session->failure.status, "%s", session->failure.text);
    if (!result && welcome->plan) {
        result = window_check_plan(session, welcome->plan, error);
        if (!result) result = report_plan(session, welcome->plan, &current, error);
        if (!result) result = run_steps(session, welcome->plan, &former, &current, error);
    }
    session->stopped = !result && current && current->stop;
    checkpoint_wait(session);
    free_decision(former);
    free_decision(current);
    if (welcome) gacc__v1__welcome__free_unpacked(welcome, NULL);
    return result ? result : session_enter(session, GACC__V1__STATE__STATE_FINISHED, error);
}
