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

#include "worker/comm_roll.h"

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void shard_map_init(struct shard_map *map, uint64_t parameters, uint32_t ranks, uint64_t bucket_limit)
{
    uint64_t part = bucket_limit / ranks > 0 ? bucket_limit / ranks : 1;
    uint64_t bucket_elements = parameters <= bucket_limit ? parameters : part * ranks;
    *map = (struct shard_map){
        .parameters = parameters,
        .ranks = ranks,
        .bucket_count = (uint32_t)(parameters ? (parameters + bucket_elements - 1) / bucket_elements : 0),
        .bucket_elements = bucket_elements,
    };
}

struct range shard_map_bucket(const struct shard_map *map, uint32_t bucket)
{
    uint64_t begin = bucket * map->bucket_elements;
    return (struct range){begin, smaller(begin + map->bucket_elements, map->parameters)};
}

static uint64_t length(struct range range)
{
    return range.end - range.begin;
}

static uint64_t part_length(const struct shard_map *map, uint32_t bucket)
{
    return (length(shard_map_bucket(map, bucket)) + map->ranks - 1) / map->ranks;
}

struct range shard_map_range(const struct shard_map *map, uint32_t bucket, uint32_t rank)
{
    struct range whole = shard_map_bucket(map, bucket);
    uint64_t part = part_length(map, bucket);
    return (struct range){smaller(whole.begin + rank * part, whole.end),
                          smaller(whole.begin + (rank + 1) * part, whole.end)};
}

uint64_t shard_map_offset(const struct shard_map *map, uint32_t bucket)
{
    return bucket * (map->bucket_elements / map->ranks);
}

uint64_t shard_map_owned(const struct shard_map *map, uint32_t rank)
{
    if (map->bucket_count == 0) return 0;
    uint32_t last = map->bucket_count - 1;
    return shard_map_offset(map, last) + length(shard_map_range(map, last, rank));
}

uint64_t shard_map_room(const struct shard_map *map)
{
    if (map->bucket_count == 0) return 0;
    uint32_t last = map->bucket_count - 1;
    return shard_map_bucket(map, last).begin + map->ranks * part_length(map, last);
}

uint64_t shard_map_shard_room(const struct shard_map *map)
{
    return shard_map_owned(map, 0);
}

/* [ranks], to be freed */
static struct range *bucket_parts(const struct comm *comm, const struct shard_map *map, uint32_t bucket,
                                  struct error *error)
{
    if (map->ranks != comm->ranks) {
        error_set(error, STATUS_INTERNAL, "a shard map of %u ranks meets a communicator of %u", map->ranks,
                  comm->ranks);
        return NULL;
    }
    struct range *parts = calloc(comm->ranks, sizeof *parts);
    if (!parts) error_set(error, STATUS_INTERNAL, "out of memory for the ranges of %u ranks", comm->ranks);
    for (uint32_t rank = 0; parts && rank < map->ranks; rank++) parts[rank] = shard_map_range(map, bucket, rank);
    return parts;
}

int comm_reduce_scatter_bucket(struct comm *comm, const struct shard_map *map, uint32_t bucket, const wide *gradients,
                               wide *shard, enum dtype wide_type, struct error *error)
{
    struct range *parts = bucket_parts(comm, map, bucket, error);
    if (!parts) return -(int)STATUS_INTERNAL;
    size_t size = dtype_size(wide_type);
    wide *into = (char *)shard + shard_map_offset(map, bucket) * size;
    int result = comm_meet(comm, CALL_REDUCE_SCATTER, bucket, error);
    if (!result) result = comm->class->reduce_scatter(comm, bucket, gradients, into, wide_type, parts, error);
    comm->counts.reduce_scatter++;
    size_t sent = comm->rounds && wide_type == DTYPE_FP32 ? dtype_size(DTYPE_BF16) : size;
    comm->counts.reduce_scatter_bytes += (length(shard_map_bucket(map, bucket)) - length(parts[comm->rank])) * sent;
    free(parts);
    return result;
}

int comm_all_gather_bucket(struct comm *comm, const struct shard_map *map, uint32_t bucket, compute *parameters,
                           enum dtype compute_type, struct error *error)
{
    struct range *parts = bucket_parts(comm, map, bucket, error);
    if (!parts) return -(int)STATUS_INTERNAL;
    int result = comm_meet(comm, CALL_ALL_GATHER, bucket, error);
    if (!result) result = comm->class->all_gather(comm, bucket, parameters, compute_type, parts, error);
    comm->counts.all_gather++;
    comm->counts.all_gather_bytes += length(parts[comm->rank]) * (comm->ranks - 1) * dtype_size(compute_type);
    free(parts);
    return result;
}

bool comm_overlaps(const struct comm *comm)
{
    return comm->class->join != NULL;
}

int comm_join(struct comm *comm, uint32_t bucket, struct error *error)
{
    return comm->class->join ? comm->class->join(comm, bucket, error) : 0;
}

static int join_all(struct comm *comm, const struct shard_map *map, struct error *error)
{
    int result = 0;
    for (uint32_t bucket = 0; bucket < map->bucket_count && !result; bucket++) result = comm_join(comm, bucket, error);
    return result;
}

int comm_reduce_scatter(struct comm *comm, const struct shard_map *map, const wide *gradients, wide *shard,
                        enum dtype wide_type, struct error *error)
{
    int result = 0;
    for (uint32_t bucket = map->bucket_count; bucket-- > 0 && !result;)
        result = comm_reduce_scatter_bucket(comm, map, bucket, gradients, shard, wide_type, error);
    return result ? result : join_all(comm, map, error);
}

int comm_all_gather(struct comm *comm, const struct shard_map *map, compute *parameters, enum dtype compute_type,
                    struct error *error)
{
    int result = 0;
    for (uint32_t bucket = 0; bucket < map->bucket_count && !result; bucket++)
        result = comm_all_gather_bucket(comm, map, bucket, parameters, compute_type, error);
    return result ? result : join_all(comm, map, error);
}

int comm_broadcast(struct comm *comm, void *bytes, uint64_t count, uint32_t root, struct error *error)
{
    comm->counts.control++;
    int result = comm_meet(comm, CALL_BROADCAST, root, error);
    return result ? result : comm->class->broadcast(comm, bytes, count, root, error);
}

int comm_barrier(struct comm *comm, struct error *error)
{
    comm->counts.control++;
    int result = comm_meet(comm, CALL_BARRIER, 0, error);
    return result ? result : comm->class->barrier(comm, error);
}

void comm_progress(struct comm *comm)
{
    if (comm->class->progress) comm->class->progress(comm);
}

bool comm_tell(struct comm *comm, const void *bytes, uint64_t count, double seconds)
{
    return comm->class->tell && comm->class->tell(comm, bytes, count, seconds);
}

bool comm_hear(struct comm *comm, void *bytes, uint64_t count)
{
    comm_progress(comm);
    return comm->class->hear && comm->class->hear(comm, bytes, count);
}

void comm_abort(struct comm *comm, int status)
{
    comm->class->abort(comm, status);
}

int comm_duplicate(struct comm *comm, struct comm **out, struct error *error)
{
    *out = NULL;
    int result = comm_meet(comm, CALL_DUPLICATE, 0, error);
    if (!result) result = comm->class->duplicate(comm, out, error);
    if (!result) comm_call_roll(*out, comm->roll);
    return result;
}

void comm_close(struct comm *comm)
{
    if (comm) comm->class->close(comm);
}

/* --- one rank alone ------------------------------------------------------------------------------------------ */

static int alone_reduce_scatter(struct comm *comm, uint32_t bucket, const wide *gradients, wide *shard,
                                enum dtype wide_type, const struct range *parts, struct error *error)
{
    (void)comm, (void)bucket, (void)error;
    size_t size = dtype_size(wide_type);
    memcpy(shard, (const char *)gradients + parts[0].begin * size, length(parts[0]) * size);
    return 0;
}

static int alone_all_gather(struct comm *comm, uint32_t bucket, compute *parameters, enum dtype compute_type,
                            const struct range *parts, struct error *error)
{
    (void)comm, (void)bucket, (void)parameters, (void)compute_type, (void)parts, (void)error;
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
        .bucket_limit = COMM_BUCKET_LIMIT,
        .local_cores = known ? (uint32_t)CPU_COUNT(&cores) : 1,
        .transport = "none",
    };
    *out = comm;
    return 0;
}
