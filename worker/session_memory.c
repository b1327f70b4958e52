/*
 * The large buffers of a session, one reservation of the backend's memory for each kind, and what they take. They
 * depend on b, never on B, K or the step.
 */
#include <stdio.h>
#include <stdlib.h>

#include "worker/memory.h"
#include "worker/session_internal.h"

static void lay_out_shard(struct session *session, struct carver *carver)
{
    size_t room = shard_map_shard_room(&session->map), size = dtype_size(session->wide_type);
    session->shard = carve(carver, room * size);
    session->master = carve(carver, (room + session->kept - session->owned) * size);
}

static int reserve_shard(struct session *session, struct error *error)
{
    struct carver carver = {0};
    lay_out_shard(session, &carver);
    int result = memory_reserve(session->kernels, &session->shard_memory, carver.used,
                                "the gradient shard and the master parameters", error);
    carver = (struct carver){.base = (uintptr_t)session->shard_memory};
    lay_out_shard(session, &carver);
    return result;
}

/* A device has a copy of the batch; where memory is the host's, the batch itself is fed. */
static int reserve_feed(struct session *session, struct error *error)
{
    if (session->kernels->table->on_host) {
        session->feed = session->batch->block;
        return 0;
    }
    return memory_reserve(session->kernels, &session->feed, session->batch->block_bytes, "a micro-batch", error);
}

/* Own micro-batches of the job's window that are kept; 0: they are not. */
static uint32_t kept_passes(const Gacc__V1__JobSpec *job, const struct model *model, uint32_t ranks, uint32_t micro)
{
    if (model->set_count == 0 || job->model->norm_stats != GACC__V1__NORM_STATS__NORM_STATS_WINDOW) return 0;
    const uint32_t micro_batches = (job->batch->global - 1) / micro + 1;
    return (micro_batches - 1) / ranks + 1;
}

static uint64_t bytes_of_window(const Gacc__V1__JobSpec *job, const struct model *model, uint32_t ranks, uint32_t micro)
{
    const uint32_t passes = kept_passes(job, model, ranks, micro);
    return passes ? window_memory_measure(model, passes, micro) : 0;
}

/* What grows with b. */
static uint64_t bytes_of_micro_batch(const struct session *session, uint32_t micro)
{
    uint64_t row = session->kernels->table->on_host ? 0 : session->batch->block_bytes / session->batch->capacity + 1;
    return activations_measure(session->model, micro, true) + row * micro +
           bytes_of_window(session->job, session->model, session->comm->ranks, micro);
}

/* The largest b, up to the job's, for which there is room; 0: none. */
static uint32_t micro_that_fits(const struct session *session, uint64_t room)
{
    uint32_t fits = 0, above = session->job->batch->micro + 1;
    while (above - fits > 1) {
        uint32_t middle = fits + (above - fits) / 2;
        if (bytes_of_micro_batch(session, middle) <= room)
            fits = middle;
        else
            above = middle;
    }
    return fits;
}

/* The same with recompute: block, whatever the job has. */
static uint32_t micro_that_fits_recomputed(const struct session *session, uint64_t room)
{
    const bool recomputes = session->model->recomputes;
    session->model->recomputes = true;
    const uint32_t fits = micro_that_fits(session, room);
    session->model->recomputes = recomputes;
    return fits;
}

/* Adds to an error about the memory of a micro-batch what would help. */
static int advise(const struct session *session, struct error *error)
{
    const struct kernel_table *table = session->kernels->table;
    uint32_t micro = session->job->batch->micro;
    uint64_t left, all;
    if (!error || !table->memory_left(session->kernels, &left, &all)) return -(int)STATUS_INTERNAL;
    if (!table->on_host && session->feed) left += session->batch->block_bytes;
    const uint64_t values = session_initial_block(session) * sizeof(double); /* on their way, when all is in place */
    left = left > values ? left - values : 0;
    const uint32_t fits = micro_that_fits(session, left);
    const uint32_t fits_recomputed = micro_that_fits_recomputed(session, left);
    if (fits == micro) return -(int)STATUS_INTERNAL; /* it is not for want of room */
    struct error what = *error;
    char also[64] = "";
    if (fits_recomputed > fits) snprintf(also, sizeof also, "; with recompute: block %u fits", fits_recomputed);
    if (fits == 0) return error_set(error, STATUS_INTERNAL, "%s; not even batch.micro: 1 fits%s", what.text, also);
    return error_set(error, STATUS_INTERNAL, "%s; batch.micro: %u fits, %u does not%s", what.text, fits, micro, also);
}

int session_reserve(struct session *session, struct error *error)
{
    struct kernels *kernels = session->kernels;
    uint64_t room = shard_map_room(&session->map);
    int result = memory_reserve(kernels, &session->parameters, room * dtype_size(session->compute_type),
                                "the parameters", error);
    const uint64_t frozen = session->model->table.parameters - session->model->table.trained;
    if (!result && frozen > 0)
        result = memory_reserve(kernels, &session->frozen, frozen * dtype_size(session->compute_type),
                                "the frozen parameters", error);
    if (!result)
        result =
            memory_reserve(kernels, &session->gradients, room * dtype_size(session->wide_type), "the gradients", error);
    if (!result) result = reserve_shard(session, error);
    if (!result)
        result = optimizer_open(&session->optimizer, kernels, session->wide_type,
                                layout_moments(&session->layout, &session->map, session->comm->rank), error);
    if (!result) result = results_open(&session->results, kernels, session->layout.count, error);
    if (result) return result;
    result = reserve_feed(session, error);
    if (!result)
        result =
            activations_open(&session->activations, session->model, kernels, session->job->batch->micro, true, error);
    if (!result)
        result = session_window_room(
            session, kept_passes(session->job, session->model, session->comm->ranks, session->job->batch->micro),
            error);
    return result ? advise(session, error) : 0;
}

/* B, and how it is shared, may change while the job runs. */
int session_window_room(struct session *session, uint32_t passes, struct error *error)
{
    if (passes <= window_memory_passes(session->window)) return 0;
    window_memory_close(session->window);
    session->window = NULL;
    return window_memory_open(&session->window, session->model, session->kernels, passes, session->batch->capacity,
                              error);
}

void session_release(struct session *session)
{
    struct kernels *kernels = session->kernels;
    if (!kernels) return;
    const struct kernel_table *table = kernels->table;
    void **const reserved[] = {&session->shard_memory, &session->gradients, &session->frozen, &session->parameters};
    if (session->recording) table->recording_close(kernels, session->recording);
    activations_close(session->activations);
    window_memory_close(session->window);
    results_close(&session->results);
    optimizer_close(&session->optimizer);
    if (!table->on_host) table->release(kernels, session->feed);
    session->recording = NULL;
    session->activations = NULL;
    session->window = NULL;
    session->feed = NULL;
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++) {
        table->release(kernels, *reserved[i]);
        *reserved[i] = NULL;
    }
    for (enum buffer which = 0; which < BUFFERS; which++) {
        free(session->copies[which]);
        session->copies[which] = NULL;
    }
}

enum dtype session_compute_type(const Gacc__V1__JobSpec *job)
{
    static const enum dtype types[] = {
        [GACC__V1__COMPUTE__COMPUTE_FP32] = DTYPE_FP32,
        [GACC__V1__COMPUTE__COMPUTE_BF16] = DTYPE_BF16,
        [GACC__V1__COMPUTE__COMPUTE_FP16] = DTYPE_FP16,
        [GACC__V1__COMPUTE__COMPUTE_FP64] = DTYPE_FP64,
    };
    return types[job->precision->compute];
}

bool session_recomputes(const Gacc__V1__JobSpec *job)
{
    return job->recompute == GACC__V1__RECOMPUTE__RECOMPUTE_BLOCK;
}

static uint64_t bytes_of_sequence(const Gacc__V1__ModelSection *spec, uint64_t wide_size)
{
    struct data_shape shape;
    data_shape_of(spec, &shape);
    uint64_t targets = shape.context ? shape.context : shape.classes ? 1 : 0;
    uint64_t values = (shape.size ? shape.size : shape.inputs) + (shape.classes ? 0 : shape.outputs);
    uint64_t own = sizeof(uint64_t) + sizeof(double) + wide_size; /* index, weight, seed */
    return own + (shape.context + targets) * sizeof(int32_t) + values * sizeof(double);
}

static void add_up(const Gacc__V1__JobSpec *job, const struct model *model, uint32_t ranks, uint64_t owned,
                   uint64_t kept, struct moments_at moments, struct session_memory *memory)
{
    uint64_t wide_size = dtype_size(dtype_wide(model->compute_type));
    *memory = (struct session_memory){
        .parameters = model->table.parameters * dtype_size(model->compute_type),
        .gradients = model->table.trained * wide_size,
        .shard = (owned + kept) * wide_size,
        .moments = (moments.m + moments.v) * wide_size,
        .activations = activations_measure(model, job->batch->micro, true),
        .window = bytes_of_window(job, model, ranks, job->batch->micro),
        .batch = bytes_of_sequence(job->model, wide_size) * job->batch->micro,
        .copies = (kept + moments.m + moments.v) * wide_size,
        .reduction = ranks > 1 ? 2 * model->table.trained * wide_size : 0,
    };
}

void session_memory(const struct session *session, struct session_memory *memory)
{
    add_up(session->job, session->model, session->comm->ranks, session->owned, session->kept, session->optimizer.count,
           memory);
}

/* Where so many elements are a bucket at most. */
static int memory_of(const Gacc__V1__JobSpec *job, uint32_t ranks, uint32_t rank, uint64_t bucket_limit,
                     struct session_memory *memory, struct error *error)
{
    struct model *model;
    struct layout layout = {0};
    struct shard_map map, frozen;
    int result = model_open(&model, job->model, session_compute_type(job), error);
    if (!result) result = layout_open(&layout, model, job, layout_largest(&model->table, job), error);
    if (!result) {
        model->recomputes = session_recomputes(job);
        shard_map_init(&map, model->table.trained, ranks, bucket_limit);
        layout_frozen_map(&frozen, &model->table, ranks);
        const uint64_t owned = shard_map_owned(&map, rank);
        add_up(job, model, ranks, owned, owned + shard_map_owned(&frozen, rank), layout_moments(&layout, &map, rank),
               memory);
    }
    layout_close(&layout);
    model_close(model);
    return result;
}

int session_memory_of(const Gacc__V1__JobSpec *job, uint32_t ranks, struct session_memory *memory, struct error *error)
{
    return memory_of(job, ranks, 0, COMM_BUCKET_LIMIT, memory, error);
}

int session_memory_at_most(const struct session *session, struct session_memory *memory, struct error *error)
{
    const struct comm *comm = session->comm;
    return memory_of(session->job, comm->ranks, comm->rank, comm->bucket_limit, memory, error);
}

int session_groups_of(const Gacc__V1__JobSpec *job, Gacc__V1__TensorGroup ***groups, size_t *count, struct error *error)
{
    struct model *model;
    struct layout layout = {0};
    *groups = NULL;
    int result = model_open(&model, job->model, session_compute_type(job), error);
    if (!result) result = layout_open(&layout, model, job, 0, error);
    if (!result && !(*groups = layout_list_groups(&layout, count)))
        result = error_set(error, STATUS_INTERNAL, "out of memory for a list of groups");
    layout_close(&layout);
    model_close(model);
    return result;
}
