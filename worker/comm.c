/*
 * The wrapper around a transport: cuts the flat buffers into buckets, and counts calls and bytes where the transport is
 * called. Also the shard map, and the transport of one rank alone.
 */
#include "worker/comm.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void shard_map_init(struct shard_map *map, uint64_t parameters, uint32_t ranks, uint64_t bucket_limit)
{
    *map = (struct shard_map){
        .parameters = parameters,
        .ranks = ranks,
        .bucket_count = (uint32_t)((parameters + bucket_limit - 1) / bucket_limit),
        .bucket_elements = parameters < bucket_limit ? parameters : bucket_limit,
    };
}

struct range shard_map_bucket(const struct shard_map *map, uint32_t bucket)
{
    uint64_t begin = bucket * map->bucket_elements;
    uint64_t left = map->parameters - begin;
    return (struct range){begin, begin + (left < map->bucket_elements ? left : map->bucket_elements)};
}

/* Earlier ranks take the elements that N does not divide. */
struct range shard_map_range(const struct shard_map *map, uint32_t bucket, uint32_t rank)
{
    struct range whole = shard_map_bucket(map, bucket);
    uint64_t part = (whole.end - whole.begin) / map->ranks;
    uint64_t extras = (whole.end - whole.begin) % map->ranks;
    uint64_t begin = whole.begin + rank * part + (rank < extras ? rank : extras);
    return (struct range){begin, begin + part + (rank < extras ? 1 : 0)};
}

uint64_t shard_map_owned(const struct shard_map *map, uint32_t rank)
{
    uint64_t owned = 0;
    for (uint32_t bucket = 0; bucket < map->bucket_count; bucket++) {
        struct range range = shard_map_range(map, bucket, rank);
        owned += range.end - range.begin;
    }
    return owned;
}

static uint64_t length(struct range range)
{
    return range.end - range.begin;
}

/* parts: [ranks] */
static void bucket_parts(const struct shard_map *map, uint32_t bucket, struct range *parts)
{
    for (uint32_t rank = 0; rank < map->ranks; rank++) parts[rank] = shard_map_range(map, bucket, rank);
}

static struct range *parts_new(const struct comm *comm, const struct shard_map *map, struct error *error)
{
    if (map->ranks != comm->ranks) {
        error_set(error, STATUS_INTERNAL, "a shard map of %u ranks meets a communicator of %u", map->ranks,
                  comm->ranks);
        return NULL;
    }
    struct range *parts = calloc(comm->ranks, sizeof *parts);
    if (!parts) error_set(error, STATUS_INTERNAL, "out of memory for the ranges of %u ranks", comm->ranks);
    return parts;
}

int comm_reduce_scatter(struct comm *comm, const struct shard_map *map, const wide *gradients, wide *shard,
                        enum dtype wide_type, struct error *error)
{
    struct range *parts = parts_new(comm, map, error);
    if (!parts) return -(int)STATUS_INTERNAL;
    size_t size = dtype_size(wide_type);
    char *into = shard;
    int result = 0;
    for (uint32_t bucket = 0; bucket < map->bucket_count && !result; bucket++) {
        bucket_parts(map, bucket, parts);
        uint64_t own = length(parts[comm->rank]);
        result = comm->class->reduce_scatter(comm, gradients, into, wide_type, parts, error);
        comm->counts.reduce_scatter++;
        comm->counts.reduce_scatter_bytes += (length(shard_map_bucket(map, bucket)) - own) * size;
        into += own * size;
    }
    free(parts);
    return result;
}

int comm_all_gather(struct comm *comm, const struct shard_map *map, compute *parameters, enum dtype compute_type,
                    struct error *error)
{
    struct range *parts = parts_new(comm, map, error);
    if (!parts) return -(int)STATUS_INTERNAL;
    size_t size = dtype_size(compute_type);
    int result = 0;
    for (uint32_t bucket = 0; bucket < map->bucket_count && !result; bucket++) {
        bucket_parts(map, bucket, parts);
        result = comm->class->all_gather(comm, parameters, compute_type, parts, error);
        comm->counts.all_gather++;
        comm->counts.all_gather_bytes += length(parts[comm->rank]) * (comm->ranks - 1) * size;
    }
    free(parts);
    return result;
}

int comm_broadcast(struct comm *comm, void *bytes, uint64_t count, uint32_t root, struct error *error)
{
    comm->counts.control++;
    return comm->class->broadcast(comm, bytes, count, root, error);
}

int comm_barrier(struct comm *comm, struct error *error)
{
    comm->counts.control++;
    return comm->class->barrier(comm, error);
}

void comm_progress(struct comm *comm)
{
    if (comm->class->progress) comm->class->progress(comm);
}

void comm_abort(struct comm *comm, int status)
{
    comm->class->abort(comm, status);
}

int comm_duplicate(struct comm *comm, struct comm **out, struct error *error)
{
    *out = NULL;
    return comm->class->duplicate(comm, out, error);
}

void comm_close(struct comm *comm)
{
    if (comm) comm->class->close(comm);
}

/* --- one rank alone ------------------------------------------------------------------------------------------ */

static int alone_reduce_scatter(struct comm *comm, const wide *gradients, wide *shard, enum dtype wide_type,
                                const struct range *parts, struct error *error)
{
    (void)comm, (void)error;
    size_t size = dtype_size(wide_type);
    memcpy(shard, (const char *)gradients + parts[0].begin * size, length(parts[0]) * size);
    return 0;
}

static int alone_all_gather(struct comm *comm, compute *parameters, enum dtype compute_type, const struct range *parts,
                            struct error *error)
{
    (void)comm, (void)parameters, (void)compute_type, (void)parts, (void)error;
    return 0;
}

static int alone_broadcast(struct comm *comm, void *bytes, uint64_t count, uint32_t root, struct error *error)
{
    (void)comm, (void)bytes, (void)count, (void)root, (void)error;
    return 0;
}

static int alone_barrier(struct comm *comm, struct error *error)
{
    (void)comm, (void)error;
    return 0;
}

__attribute__((noreturn)) static void alone_abort(struct comm *comm, int status)
{
    (void)comm;
    _exit(status);
}

static int alone_duplicate(struct comm *comm, struct comm **out, struct error *error)
{
    (void)comm;
    return comm_open_alone(out, error);
}

static void alone_close(struct comm *comm)
{
    free(comm);
}

int comm_open_alone(struct comm **out, struct error *error)
{
    static const struct comm_class class = {
        .reduce_scatter = alone_reduce_scatter,
        .all_gather = alone_all_gather,
        .broadcast = alone_broadcast,
        .barrier = alone_barrier,
        .duplicate = alone_duplicate,
        .abort = alone_abort,
        .close = alone_close,
    };
    struct comm *comm = malloc(sizeof *comm);
    if (!comm) return error_set(error, STATUS_INTERNAL, "out of memory for a communicator");
    cpu_set_t cores;
    bool known = sched_getaffinity(0, sizeof cores, &cores) == 0;
    *comm = (struct comm){
        .class = &class,
        .ranks = 1,
        .local_ranks = 1,
        .local_cores = known ? (uint32_t)CPU_COUNT(&cores) : 1,
        .transport = "none",
    };
    *out = comm;
    return 0;
}
