/*
 * Collectives for memory that is not the host's, by way of a communicator of host memory: a bucket is fetched, goes
 * through the transport, and what came of it is put back.
 */
#include <stdio.h>
#include <stdlib.h>

#include "worker/comm.h"
#include "worker/memory.h"

struct comm_staged {
    struct comm comm;
    struct comm *host;
    struct kernels *kernels;
    struct range *parts; /* [ranks] of a bucket, counted from its beginning */
    void *bucket;        /* the host's copy of one, of the wide type or the compute type */
    void *shard;         /* of this rank's part */
};

static struct range in_bucket(struct comm_staged *staged, const struct range *parts)
{
    uint32_t ranks = staged->comm.ranks;
    uint64_t first = parts[0].begin;
    for (uint32_t rank = 0; rank < ranks; rank++)
        staged->parts[rank] = (struct range){parts[rank].begin - first, parts[rank].end - first};
    return (struct range){first, parts[ranks - 1].end};
}

/* A device that failed says so whenever it is waited for, from then on. The transport is entered all the same: the
 * others are waiting there. */
static void fetch(struct comm_staged *staged, void *to, const void *from, size_t bytes)
{
    staged->kernels->table->download(staged->kernels, to, from, bytes);
}

static int staged_reduce_scatter(struct comm *comm, uint32_t bucket, const wide *gradients, wide *shard,
                                 enum dtype wide_type, const struct range *parts, struct error *error)
{
    struct comm_staged *staged = (struct comm_staged *)comm;
    const struct kernel_table *table = staged->kernels->table;
    struct range whole = in_bucket(staged, parts), own = staged->parts[comm->rank];
    size_t size = dtype_size(wide_type);
    const void *from = (const char *)gradients + whole.begin * size;
    if (comm->ranks == 1) {
        table->copy(staged->kernels, shard, from, (whole.end - whole.begin) * size);
        return 0;
    }
    fetch(staged, staged->bucket, from, (whole.end - whole.begin) * size);
    int result = staged->host->class->reduce_scatter(staged->host, bucket, staged->bucket, staged->shard, wide_type,
                                                     staged->parts, error);
    if (!result) table->upload(staged->kernels, shard, staged->shard, (own.end - own.begin) * size);
    return result;
}

static int staged_all_gather(struct comm *comm, uint32_t bucket, compute *parameters, enum dtype compute_type,
                             const struct range *parts, struct error *error)
{
    struct comm_staged *staged = (struct comm_staged *)comm;
    struct range whole = in_bucket(staged, parts), own = staged->parts[comm->rank];
    size_t size = dtype_size(compute_type);
    char *device = (char *)parameters + whole.begin * size, *host = staged->bucket;
    if (comm->ranks == 1) return 0;
    fetch(staged, host + own.begin * size, device + own.begin * size, (own.end - own.begin) * size);
    int result = staged->host->class->all_gather(staged->host, bucket, host, compute_type, staged->parts, error);
    if (!result) staged->kernels->table->upload(staged->kernels, device, host, (whole.end - whole.begin) * size);
    return result;
}

static int staged_broadcast(struct comm *comm, void *bytes, uint64_t count, uint32_t root, struct error *error)
{
    struct comm *host = ((struct comm_staged *)comm)->host;
    return host->class->broadcast(host, bytes, count, root, error);
}

static int staged_barrier(struct comm *comm, struct error *error)
{
    struct comm *host = ((struct comm_staged *)comm)->host;
    return host->class->barrier(host, error);
}

/* For what is none of a step's; of the host's memory. */
static int staged_duplicate(struct comm *comm, struct comm **out, struct error *error)
{
    return comm_duplicate(((struct comm_staged *)comm)->host, out, error);
}

static void staged_progress(struct comm *comm)
{
    comm_progress(((struct comm_staged *)comm)->host);
}

__attribute__((noreturn)) static void staged_abort(struct comm *comm, int status)
{
    comm_abort(((struct comm_staged *)comm)->host, status);
}

static void staged_close(struct comm *comm)
{
    struct comm_staged *staged = (struct comm_staged *)comm;
    free(staged->parts);
    free(staged->bucket);
    free(staged->shard);
    free(staged);
}

int comm_open_staged(struct comm **out, struct comm *host, struct kernels *kernels, uint64_t parameters,
                     struct error *error)
{
    static const struct comm_class class = {
        .reduce_scatter = staged_reduce_scatter,
        .all_gather = staged_all_gather,
        .broadcast = staged_broadcast,
        .barrier = staged_barrier,
        .duplicate = staged_duplicate,
        .progress = staged_progress,
        .abort = staged_abort,
        .close = staged_close,
    };
    struct shard_map map;
    shard_map_init(&map, parameters, host->ranks, host->bucket_limit);
    struct range largest = parameters ? shard_map_bucket(&map, 0) : (struct range){0, 0};
    struct range part = parameters ? shard_map_range(&map, 0, 0) : (struct range){0, 0};
    size_t size = dtype_size(dtype_wide(kernels->compute_type));
    struct comm_staged *staged = calloc(1, sizeof *staged);
    if (!staged) return error_set(error, STATUS_INTERNAL, "out of memory for a communicator");
    staged->comm = *host;
    staged->comm.class = &class;
    staged->comm.counts = (struct comm_counts){0};
    snprintf(staged->comm.transport, sizeof staged->comm.transport, "%.48s, staged", host->transport);
    staged->host = host;
    staged->kernels = kernels;
    staged->parts = calloc(host->ranks, sizeof *staged->parts);
    int result = staged->parts ? 0 : error_set(error, STATUS_INTERNAL, "out of memory for %u ranges", host->ranks);
    if (!result && host->ranks > 1) {
        result = memory_new(&staged->bucket, largest.end - largest.begin, size, "the host's copy of a bucket", error);
        if (!result)
            result = memory_new(&staged->shard, part.end - part.begin, size, "the host's copy of a shard", error);
    }
    if (result) {
        staged_close(&staged->comm);
        return result;
    }
    *out = &staged->comm;
    return 0;
}
