/* Collectives between threads of one process, through shared memory; sums are added in rank order. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/comm.h"
#include "worker/comm_rounded.h"

struct member {
    struct comm comm;
    struct group *group;
    const void *buffer; /* what this rank brought to the collective under way */
};

struct group {
    pthread_barrier_t barrier;
    atomic_uint open; /* members not yet closed: the last one frees the group */
    struct member members[];
};

static struct group *group_of(struct comm *comm)
{
    return ((struct member *)comm)->group;
}

/* Every rank's buffer can be read from here until `part`. */
static struct group *meet(struct comm *comm, const void *buffer)
{
    struct group *group = group_of(comm);
    group->members[comm->rank].buffer = buffer;
    pthread_barrier_wait(&group->barrier);
    return group;
}

static void part(struct group *group)
{
    pthread_barrier_wait(&group->barrier);
}

/* Element i of another rank's gradient as it arrives here. */
static float received(const struct comm *comm, const void *buffer, uint64_t i)
{
    const float *gradient = buffer;
    return comm->rounds ? rounded_value(gradient[i]) : gradient[i];
}

static int local_reduce_scatter(struct comm *comm, uint32_t bucket, const wide *gradients, wide *shard,
                                enum dtype wide_type, const struct range *parts, struct error *error)
{
    (void)bucket, (void)error;
    struct range own = parts[comm->rank];
    struct group *group = meet(comm, gradients);
    for (uint64_t i = own.begin; i < own.end; i++) {
        double sum = 0;
        float narrow = 0;
        for (uint32_t rank = 0; rank < comm->ranks; rank++)
            if (wide_type == DTYPE_FP64)
                sum += ((const double *)group->members[rank].buffer)[i];
            else if (rank == comm->rank)
                narrow += ((const float *)gradients)[i];
            else
                narrow += received(comm, group->members[rank].buffer, i);
        if (wide_type == DTYPE_FP64)
            ((double *)shard)[i - own.begin] = sum;
        else
            ((float *)shard)[i - own.begin] = narrow;
    }
    part(group);
    return 0;
}

static int local_all_gather(struct comm *comm, uint32_t bucket, compute *parameters, enum dtype compute_type,
                            const struct range *parts, struct error *error)
{
    (void)bucket, (void)error;
    size_t size = dtype_size(compute_type);
    struct group *group = meet(comm, parameters);
    for (uint32_t rank = 0; rank < comm->ranks; rank++)
        if (rank != comm->rank)
            memcpy((char *)parameters + parts[rank].begin * size,
                   (const char *)group->members[rank].buffer + parts[rank].begin * size,
                   (parts[rank].end - parts[rank].begin) * size);
    part(group);
    return 0;
}

static int local_broadcast(struct comm *comm, void *bytes, uint64_t count, uint32_t root, struct error *error)
{
    (void)error;
    struct group *group = meet(comm, bytes);
    if (comm->rank != root) memcpy(bytes, group->members[root].buffer, count);
    part(group);
    return 0;
}

static int local_barrier(struct comm *comm, struct error *error)
{
    (void)error;
    part(group_of(comm));
    return 0;
}

__attribute__((noreturn)) static void local_abort(struct comm *comm, int status)
{
    (void)comm;
    _exit(status);
}

static void local_close(struct comm *comm)
{
    struct group *group = group_of(comm);
    if (atomic_fetch_sub(&group->open, 1) > 1) return;
    pthread_barrier_destroy(&group->barrier);
    free(group);
}

static int local_duplicate(struct comm *comm, struct comm **out, struct error *error);

static struct group *group_new(uint32_t ranks)
{
    static const struct comm_class class = {
        .reduce_scatter = local_reduce_scatter,
        .all_gather = local_all_gather,
        .broadcast = local_broadcast,
        .barrier = local_barrier,
        .duplicate = local_duplicate,
        .abort = local_abort,
        .close = local_close,
    };
    struct group *group = calloc(1, sizeof *group + ranks * sizeof *group->members);
    if (!group || pthread_barrier_init(&group->barrier, NULL, ranks)) {
        free(group);
        return NULL;
    }
    atomic_init(&group->open, ranks);
    cpu_set_t cores;
    bool known = sched_getaffinity(0, sizeof cores, &cores) == 0;
    for (uint32_t rank = 0; rank < ranks; rank++)
        group->members[rank] = (struct member){
            .comm = {.class = &class,
                     .rank = rank,
                     .ranks = ranks,
                     .local_rank = rank,
                     .local_ranks = ranks,
                     .bucket_limit = COMM_BUCKET_LIMIT,
                     .local_cores = known ? (uint32_t)CPU_COUNT(&cores) : 1,
                     .transport = "threads"},
            .group = group,
        };
    return group;
}

static int no_memory(uint32_t ranks, struct error *error)
{
    return error_set(error, STATUS_INTERNAL, "out of memory for a communicator of %u threads", ranks);
}

static int local_duplicate(struct comm *comm, struct comm **out, struct error *error)
{
    struct group *copy = comm->rank == 0 ? group_new(comm->ranks) : NULL;
    local_broadcast(comm, (void *)&copy, sizeof copy, 0, error);
    if (!copy) return no_memory(comm->ranks, error);
    *out = &copy->members[comm->rank].comm;
    return 0;
}

int comm_open_local(struct comm **members, uint32_t ranks, struct error *error)
{
    struct group *group = group_new(ranks);
    if (!group) return no_memory(ranks, error);
    for (uint32_t rank = 0; rank < ranks; rank++) members[rank] = &group->members[rank].comm;
    return 0;
}
