/*
 * A session: what one rank holds for a job, and the conversation that drives its steps.
 *
 *     Hello → Welcome(plan 1); Report(0) → Decision(0): window 1, plan 2; then step by step (step.c)
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

#include "worker/memory.h"
#include "worker/session_internal.h"

#define INITIAL_BLOCK 65536u /* elements initialised at a time */

int session_enter(struct session *session, Gacc__V1__State state, struct error *error)
{
    int result = step_state_enter(&session->machine, state, error);
    if (!result) session->control->state(session->control, session->machine.step, state, session->machine.current);
    return result;
}

uint64_t session_evaluation_sequences(const struct session *session)
{
    if (!session->validation) return 0;
    uint64_t all = data_sequences(session->validation), wanted = session->job->evaluation->sequences;
    return wanted > 0 && wanted < all ? wanted : all;
}

/* --- opening ------------------------------------------------------------------------------------------------- */

static enum dtype dtype_of(Gacc__V1__Compute compute_type)
{
    static const enum dtype types[] = {
        [GACC__V1__COMPUTE__COMPUTE_FP32] = DTYPE_FP32,
        [GACC__V1__COMPUTE__COMPUTE_BF16] = DTYPE_BF16,
        [GACC__V1__COMPUTE__COMPUTE_FP16] = DTYPE_FP16,
        [GACC__V1__COMPUTE__COMPUTE_FP64] = DTYPE_FP64,
    };
    return types[compute_type];
}

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
                                      .threads = arithmetic_threads(session->comm)};
    bool reference = session->options.reference;
    if (reference && session->compute_type != DTYPE_FP64)
        return error_set(error, STATUS_INTERNAL, "the reference kernels are for fp64, not %s",
                         dtype_name(session->compute_type));
    session->kernels = reference ? kernels_open_reference(&options) : kernels_open_cpu(&options);
    return session->kernels ? 0 : error_set(error, STATUS_INTERNAL, "out of memory for the kernels' scratch");
}

static int open_data(struct session *session, struct error *error)
{
    struct data_shape shape;
    data_shape_of(session->job->model, &shape);
    int result = data_open(&session->train, session->job->data, 't', &shape, error);
    if (!result) result = data_open(&session->validation, session->job->data, 'v', &shape, error);
    if (!result) result = micro_batch_open(&session->batch, &shape, session->job->batch->micro, error);
    if (!result)
        result = memory_new(&session->seeds, session->job->batch->micro, dtype_size(session->wide_type),
                            "the loss seeds", error);
    return result;
}

static int open_shards(struct session *session, struct error *error)
{
    const struct tensor_table *table = &session->model->table;
    size_t wide_size = dtype_size(session->wide_type);
    shard_map_init(&session->map, table->parameters, session->comm->ranks, COMM_BUCKET_LIMIT);
    session->owned = shard_map_owned(&session->map, session->comm->rank);
    int result = layout_open(&session->layout, table, session->job->optimizer, error);
    if (!result)
        result = layout_runs(&session->layout, &session->map, session->comm->rank, &session->runs, &session->run_count,
                             error);
    if (!result)
        result = memory_new(&session->parameters, table->parameters, dtype_size(session->compute_type),
                            "the parameters", error);
    if (!result) result = memory_new(&session->gradients, table->parameters, wide_size, "the gradients", error);
    if (!result) result = memory_new(&session->shard, session->owned, wide_size, "the gradient shard", error);
    if (!result) result = memory_new(&session->master, session->owned, wide_size, "the master parameters", error);
    if (!result)
        result =
            optimizer_open(&session->optimizer, session->job->optimizer, session->wide_type, session->owned, error);
    if (!result && session->options.faults.self_check) {
        void *checksums;
        result = memory_new(&checksums, table->count + 1, sizeof *session->checksums, "the checksums", error);
        session->checksums = checksums;
    }
    return result;
}

/* Puts the values of [begin, begin + count) where this rank keeps them: rounded to the compute type all of them, in
 * wide the own. */
static void place(struct session *session, uint64_t begin, const double *values, wide *rounded, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (session->wide_type == DTYPE_FP64)
            ((double *)rounded)[i] = values[i];
        else
            ((float *)rounded)[i] = (float)values[i];
    session->kernels->table->cast(session->kernels, element(session->parameters, begin, session->compute_type), rounded,
                                  count);
    uint64_t at = 0;
    for (uint32_t bucket = 0; bucket < session->map.bucket_count; bucket++) {
        struct range own = shard_map_range(&session->map, bucket, session->comm->rank);
        uint64_t from = own.begin > begin ? own.begin : begin, to = own.end < begin + count ? own.end : begin + count;
        if (from < to)
            memcpy(element(session->master, at + from - own.begin, session->wide_type),
                   element(rounded, from - begin, session->wide_type), (to - from) * dtype_size(session->wide_type));
        at += own.end - own.begin;
    }
}

static int initialise(struct session *session, struct error *error)
{
    struct model_initial *initial = NULL;
    void *values = NULL, *rounded = NULL;
    int result = model_initial_open(&initial, session->model, session->job->job->seed, error);
    if (!result) result = memory_new(&values, INITIAL_BLOCK, sizeof(double), "initial values", error);
    if (!result) result = memory_new(&rounded, INITIAL_BLOCK, sizeof(double), "initial values", error);
    uint64_t parameters = session->map.parameters;
    for (uint64_t begin = 0; begin < parameters && !result; begin += INITIAL_BLOCK) {
        uint64_t count = parameters - begin < INITIAL_BLOCK ? parameters - begin : INITIAL_BLOCK;
        result = model_initial_read(initial, begin, begin + count, values, error);
        if (!result) place(session, begin, values, rounded, count);
    }
    free(values);
    free(rounded);
    model_initial_close(initial);
    return result;
}

int session_open(struct session **out, const Gacc__V1__JobSpec *job, struct comm *comm, struct control *control,
                 const struct session_options *options, struct error *error)
{
    *out = NULL;
    struct session *session = calloc(1, sizeof *session);
    if (!session) return error_set(error, STATUS_INTERNAL, "out of memory for a session");
    session->job = job;
    session->comm = comm;
    session->control = control;
    if (options) session->options = *options;
    session->compute_type = dtype_of(job->precision->compute);
    session->wide_type = dtype_wide(session->compute_type);
    step_state_init(&session->machine);

    int result = model_open(&session->model, job->model, session->compute_type, error);
    if (!result) result = open_data(session, error);
    if (!result) result = open_kernels(session, error);
    if (!result) result = open_shards(session, error);
    if (!result) result = activations_open(&session->activations, session->model, job->batch->micro, true, error);
    if (!result) result = initialise(session, error);
    if (result) {
        session_close(session);
        return result;
    }
    *out = session;
    return 0;
}

void session_close(struct session *session)
{
    if (!session) return;
    activations_close(session->activations);
    micro_batch_close(session->batch);
    optimizer_close(&session->optimizer);
    layout_close(&session->layout);
    data_close(session->train);
    data_close(session->validation);
    kernels_close(session->kernels);
    model_close(session->model);
    free(session->runs);
    free(session->parameters);
    free(session->gradients);
    free(session->shard);
    free(session->master);
    free(session->seeds);
    free(session->checksums);
    free(session);
}

void session_memory(const struct session *session, struct session_memory *memory)
{
    uint64_t wide_size = dtype_size(session->wide_type);
    struct data_shape shape;
    data_shape_of(session->job->model, &shape);
    uint64_t row = sizeof(uint64_t) + sizeof(double) + wide_size; /* sequence, weight, seed */
    if (session->batch->tokens) row += shape.context * sizeof(int32_t);
    if (session->batch->targets) row += (shape.context ? shape.context : 1) * sizeof(int32_t);
    if (session->batch->x) row += (shape.size ? shape.size : shape.inputs) * sizeof(double);
    if (session->batch->y) row += shape.outputs * sizeof(double);
    *memory = (struct session_memory){
        .parameters = session->map.parameters * dtype_size(session->compute_type),
        .gradients = session->map.parameters * wide_size,
        .shard = 2 * session->owned * wide_size,
        .moments = optimizer_bytes(&session->optimizer),
        .activations = activations_bytes(session->activations),
        .batch = row * session->batch->capacity,
    };
}

void session_look(const struct session *session, struct session_view *view)
{
    *view = (struct session_view){
        .rank = session->comm->rank,
        .compute_type = session->compute_type,
        .wide_type = session->wide_type,
        .table = &session->model->table,
        .map = &session->map,
        .owned = session->owned,
        .parameters = session->parameters,
        .gradients = session->gradients,
        .shard = session->shard,
        .master = session->master,
        .m = session->optimizer.m,
        .v = session->optimizer.v,
    };
}

/* --- running ------------------------------------------------------------------------------------------------- */

static int hello(struct session *session, Gacc__V1__Welcome **welcome, struct error *error)
{
    char host[256] = "", device[64], transport[96];
    gethostname(host, sizeof host - 1);
    snprintf(device, sizeof device, "%s, %d thread%s", session->kernels->table->name, session->kernels->threads,
             session->kernels->threads == 1 ? "" : "s");
    snprintf(transport, sizeof transport, "transport %s", session->comm->transport);
    char own_version[] = "gaccd " GACC_VERSION;
    char *versions[] = {own_version, transport};
    Gacc__V1__Hello message = GACC__V1__HELLO__INIT;
    message.rank = session->comm->rank;
    message.ranks = session->comm->ranks;
    message.job_digest = session->job->digest;
    message.host = host;
    message.pid = (uint32_t)getpid();
    message.train_sequences = data_sequences(session->train);
    message.validation_sequences = session_evaluation_sequences(session);
    message.parameters = session->map.parameters;
    message.targets_per_sequence = session->model->targets_per_sequence;
    message.device = device;
    message.versions = versions;
    message.n_versions = sizeof versions / sizeof *versions;
    return session->control->hello(session->control, &message, welcome, error);
}

/* The weights of the first plan; the answer opens the first window. */
static int report_first_plan(struct session *session, const Gacc__V1__Plan *plan, Gacc__V1__Decision **decision,
                             struct error *error)
{
    Gacc__V1__Report message = GACC__V1__REPORT__INIT;
    window_share_weight(session, plan, &message.next_weight, &message.next_micro_batches);
    int result = session->control->report(session->control, &message, decision, error);
    if (result) return result;
    if ((*decision)->verdict != GACC__V1__VERDICT__VERDICT_FAIL) return 0;
    const Gacc__V1__Failure *failure = (*decision)->failure;
    return failure ? error_set(error, (enum status)failure->status, "%s", failure->text)
                   : error_set(error, STATUS_INTERNAL, "the coordinator ends the job and does not say why");
}

static void free_decision(Gacc__V1__Decision *decision)
{
    if (decision) gacc__v1__decision__free_unpacked(decision, NULL);
}

/* Each decision carries the window of the next step and the plan of the one after it; the plan of the next step came
 * with the decision before, which therefore stays alive (`former`) while its plan is in use. */
static int run_steps(struct session *session, const Gacc__V1__Plan *plan, Gacc__V1__Decision **former,
                     Gacc__V1__Decision **current, struct error *error)
{
    int result = 0;
    while (!result && (*current)->next) {
        struct step step = {.plan = plan, .next_plan = (*current)->plan, .window = (*current)->next};
        if (!plan) return error_set(error, STATUS_INTERNAL, "the coordinator opens a window without a plan");
        if (step.next_plan) result = window_check_plan(session, step.next_plan, error);
        if (!result) result = step_run(session, &step, error);
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
    if (!result && welcome->plan) {
        result = window_check_plan(session, welcome->plan, error);
        if (!result) result = report_first_plan(session, welcome->plan, &current, error);
        if (!result) result = run_steps(session, welcome->plan, &former, &current, error);
    }
    free_decision(former);
    free_decision(current);
    if (welcome) gacc__v1__welcome__free_unpacked(welcome, NULL);
    return result ? result : session_enter(session, GACC__V1__STATE__STATE_FINISHED, error);
}
