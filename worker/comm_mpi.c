/* Collectives over MPI. Errors come back as text; nothing here ends the process but abort. */
#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/comm.h"
#include "worker/comm_rounded.h"
#include "worker/memory.h"

#define TOLD 1 /* the tag of what mpi_tell sends */
#define TELL_MICROSECONDS 1000

struct comm_mpi {
    struct comm comm;
    MPI_Comm world;              /* our own duplicate, so that no one else's messages meet ours */
    int *counts, *displacements; /* [ranks] */
    struct {
        uint16_t *sent, *received; /* a bucket; a part of every rank */
        uint64_t room;             /* elements of each */
        int *counts, *displacements;
    } rounded; /* for gradients that travel as bf16; NULL until the first do */
};

static int mpi_error(const struct comm *comm, int code, const char *call, struct error *error)
{
    if (code == MPI_SUCCESS) return 0;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return error_set(error, STATUS_INTERNAL, "rank %u: %s: %s", comm->rank, call, text);
}

static MPI_Datatype mpi_type(enum dtype type)
{
    switch (type) {
    case DTYPE_FP32:
        return MPI_FLOAT;
    case DTYPE_FP64:
        return MPI_DOUBLE;
    case DTYPE_BF16:
    case DTYPE_FP16:
        return MPI_UINT16_T; /* moved, never added */
    }
    return MPI_DATATYPE_NULL;
}

/* Counts, and displacements from the first part, fit an int: a bucket has at most COMM_BUCKET_LIMIT elements. */
static void set_parts(struct comm_mpi *mpi, const struct range *parts)
{
    for (uint32_t rank = 0; rank < mpi->comm.ranks; rank++) {
        mpi->counts[rank] = (int)(parts[rank].end - parts[rank].begin);
        mpi->displacements[rank] = (int)(parts[rank].begin - parts[0].begin);
    }
}

static uint64_t length(struct range range)
{
    return range.end - range.begin;
}

/* Memory for a bucket whose parts are as long as the first one's. */
static int rounded_reserve(struct comm_mpi *mpi, const struct range *parts, struct error *error)
{
    uint32_t ranks = mpi->comm.ranks;
    uint64_t room = ranks * length(parts[0]);
    if (mpi->rounded.room >= room) return 0;
    free(mpi->rounded.sent);
    free(mpi->rounded.received);
    mpi->rounded.room = 0;
    void *sent = NULL, *received = NULL;
    int result = memory_new(&sent, room, sizeof *mpi->rounded.sent, "gradients as bf16", error);
    if (!result) result = memory_new(&received, room, sizeof *mpi->rounded.received, "gradients as bf16", error);
    mpi->rounded.sent = sent;
    mpi->rounded.received = received;
    if (!mpi->rounded.counts) mpi->rounded.counts = calloc(2 * (size_t)ranks, sizeof *mpi->rounded.counts);
    if (!result && !mpi->rounded.counts)
        result = error_set(error, STATUS_INTERNAL, "out of memory for the counts of %u ranks", ranks);
    if (result) return result;
    mpi->rounded.displacements = mpi->rounded.counts + ranks;
    mpi->rounded.room = room;
    return 0;
}

/* Every rank sends every other its part, rounded; the own one stays where it is. */
static int reduce_scatter_rounded(struct comm_mpi *mpi, const float *bucket, float *shard, const struct range *parts,
                                  struct error *error)
{
    uint32_t rank = mpi->comm.rank, ranks = mpi->comm.ranks;
    int result = rounded_reserve(mpi, parts, error);
    if (result) return result;
    uint64_t own = length(parts[rank]);
    rounded_from_floats(mpi->rounded.sent, bucket, parts[ranks - 1].end - parts[0].begin);
    for (uint32_t other = 0; other < ranks; other++) {
        mpi->rounded.counts[other] = other == rank ? 0 : (int)own;
        mpi->rounded.displacements[other] = (int)(other * own);
    }
    mpi->counts[rank] = 0;
    int code = MPI_Alltoallv(mpi->rounded.sent, mpi->counts, mpi->displacements, MPI_UINT16_T, mpi->rounded.received,
                             mpi->rounded.counts, mpi->rounded.displacements, MPI_UINT16_T, mpi->world);
    result = mpi_error(&mpi->comm, code, "MPI_Alltoallv", error);
    if (!result)
        rounded_sum(shard, bucket + (parts[rank].begin - parts[0].begin), mpi->rounded.received, rank, ranks, own);
    return result;
}

static int mpi_reduce_scatter(struct comm *comm, uint32_t number, const wide *gradients, wide *shard,
                              enum dtype wide_type, const struct range *parts, struct error *error)
{
    (void)number;
    struct comm_mpi *mpi = (struct comm_mpi *)comm;
    set_parts(mpi, parts);
    const char *bucket = (const char *)gradients + parts[0].begin * dtype_size(wide_type);
    if (comm->rounds && wide_type == DTYPE_FP32)
        return reduce_scatter_rounded(mpi, (const float *)(const void *)bucket, shard, parts, error);
    int code = MPI_Reduce_scatter(bucket, shard, mpi->counts, mpi_type(wide_type), MPI_SUM, mpi->world);
    return mpi_error(comm, code, "MPI_Reduce_scatter", error);
}

static int mpi_all_gather(struct comm *comm, uint32_t number, compute *parameters, enum dtype compute_type,
                          const struct range *parts, struct error *error)
{
    (void)number;
    struct comm_mpi *mpi = (struct comm_mpi *)comm;
    set_parts(mpi, parts);
    char *bucket = (char *)parameters + parts[0].begin * dtype_size(compute_type);
    int code = MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, bucket, mpi->counts, mpi->displacements,
                              mpi_type(compute_type), mpi->world);
    return mpi_error(comm, code, "MPI_Allgatherv", error);
}

static int mpi_broadcast(struct comm *comm, void *bytes, uint64_t count, uint32_t root, struct error *error)
{
    struct comm_mpi *mpi = (struct comm_mpi *)comm;
    if (count > INT_MAX)
        return error_set(error, STATUS_INTERNAL, "a broadcast of %llu bytes is too large", (unsigned long long)count);
    return mpi_error(comm, MPI_Bcast(bytes, (int)count, MPI_BYTE, (int)root, mpi->world), "MPI_Bcast", error);
}

static int mpi_barrier(struct comm *comm, struct error *error)
{
    return mpi_error(comm, MPI_Barrier(((struct comm_mpi *)comm)->world), "MPI_Barrier", error);
}

static void mpi_progress(struct comm *comm)
{
    int found;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, ((struct comm_mpi *)comm)->world, &found, MPI_STATUS_IGNORE);
}

/* A synchronous send: it is complete when it is being received. One that nobody hears is never taken back: the process
 * ends. */
static bool mpi_tell(struct comm *comm, const void *bytes, uint64_t count, double seconds)
{
    MPI_Comm world = ((struct comm_mpi *)comm)->world;
    const double end = MPI_Wtime() + seconds;
    MPI_Request request;
    int heard = 0;
    if (MPI_Issend(bytes, (int)count, MPI_BYTE, 0, TOLD, world, &request) != MPI_SUCCESS) return false;
    while (MPI_Test(&request, &heard, MPI_STATUS_IGNORE) == MPI_SUCCESS && !heard && MPI_Wtime() < end)
        usleep(TELL_MICROSECONDS);
    return heard;
}

static bool mpi_hear(struct comm *comm, void *bytes, uint64_t count)
{
    MPI_Comm world = ((struct comm_mpi *)comm)->world;
    MPI_Status from;
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, TOLD, world, &found, &from);
    return found &&
           MPI_Recv(bytes, (int)count, MPI_BYTE, from.MPI_SOURCE, TOLD, world, MPI_STATUS_IGNORE) == MPI_SUCCESS;
}

/* MPI_Abort ends all ranks of the job. Under MPI_THREAD_FUNNELED it is the main thread's alone: called beside a
 * collective that meets a dead rank's closed socket, it and the collective were in Open MPI's message printer at once,
 * and the process died there. A process that ends without MPI_Finalize makes the launcher end the job just as well. */
__attribute__((noreturn)) static void mpi_abort(struct comm *comm, int status)
{
    int is_main = 0;
    MPI_Is_thread_main(&is_main);
    if (is_main) MPI_Abort(((struct comm_mpi *)comm)->world, status);
    _exit(status);
}

static void mpi_close(struct comm *comm)
{
    struct comm_mpi *mpi = (struct comm_mpi *)comm;
    if (mpi->world != MPI_COMM_NULL) MPI_Comm_free(&mpi->world);
    free(mpi->counts);
    free(mpi->displacements);
    free(mpi->rounded.sent);
    free(mpi->rounded.received);
    free(mpi->rounded.counts);
    free(mpi);
}

/* Which rank of this host we are, and the cores its ranks may use together. */
static int find_host(struct comm_mpi *mpi, struct error *error)
{
    struct comm *comm = &mpi->comm;
    MPI_Comm host = MPI_COMM_NULL;
    int code = MPI_Comm_split_type(mpi->world, MPI_COMM_TYPE_SHARED, (int)comm->rank, MPI_INFO_NULL, &host);
    if (code != MPI_SUCCESS) return mpi_error(comm, code, "MPI_Comm_split_type", error);
    int rank = 0, ranks = 1;
    MPI_Comm_rank(host, &rank);
    MPI_Comm_size(host, &ranks);
    cpu_set_t own, all;
    if (sched_getaffinity(0, sizeof own, &own)) CPU_ZERO(&own);
    code = MPI_Allreduce(&own, &all, (int)sizeof own, MPI_BYTE, MPI_BOR, host);
    comm->local_rank = (uint32_t)rank;
    comm->local_ranks = (uint32_t)ranks;
    comm->local_cores = (uint32_t)CPU_COUNT(&all);
    MPI_Comm_free(&host);
    return mpi_error(comm, code, "MPI_Allreduce", error);
}

/* "Open MPI v4.1.4, package: …" → "Open MPI v4.1.4" */
static void find_transport(struct comm *comm)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "MPI";
    int length = 0;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = '\0';
    snprintf(comm->transport, sizeof comm->transport, "%.*s", (int)sizeof comm->transport - 1, text);
}

static int mpi_duplicate(struct comm *comm, struct comm **out, struct error *error);

/* A communicator of the ranks of `of`, which stays as it is. */
static int open_like(MPI_Comm of, struct comm **out, struct error *error)
{
    static const struct comm_class class = {
        .reduce_scatter = mpi_reduce_scatter,
        .all_gather = mpi_all_gather,
        .broadcast = mpi_broadcast,
        .barrier = mpi_barrier,
        .duplicate = mpi_duplicate,
        .tell = mpi_tell,
        .hear = mpi_hear,
        .progress = mpi_progress,
        .abort = mpi_abort,
        .close = mpi_close,
    };
    struct comm_mpi *mpi = calloc(1, sizeof *mpi);
    if (!mpi) return error_set(error, STATUS_INTERNAL, "out of memory for a communicator");
    mpi->comm.class = &class;
    mpi->world = MPI_COMM_NULL;
    int rank = 0, ranks = 1;
    MPI_Comm_rank(of, &rank);
    MPI_Comm_size(of, &ranks);
    mpi->comm.rank = (uint32_t)rank;
    mpi->comm.ranks = (uint32_t)ranks;
    mpi->comm.bucket_limit = COMM_BUCKET_LIMIT;
    MPI_Comm_set_errhandler(of, MPI_ERRORS_RETURN);
    int result = mpi_error(&mpi->comm, MPI_Comm_dup(of, &mpi->world), "MPI_Comm_dup", error);
    if (!result) {
        MPI_Comm_set_errhandler(mpi->world, MPI_ERRORS_RETURN);
        result = find_host(mpi, error);
    }
    mpi->counts = calloc((size_t)ranks, sizeof *mpi->counts);
    mpi->displacements = calloc((size_t)ranks, sizeof *mpi->displacements);
    if (!result && (!mpi->counts || !mpi->displacements))
        result = error_set(error, STATUS_INTERNAL, "out of memory for the counts of %d ranks", ranks);
    if (result) {
        mpi_close(&mpi->comm);
        return result;
    }
    find_transport(&mpi->comm);
    *out = &mpi->comm;
    return 0;
}

static int mpi_duplicate(struct comm *comm, struct comm **out, struct error *error)
{
    return open_like(((struct comm_mpi *)comm)->world, out, error);
}

int comm_open_mpi(struct comm **out, struct error *error)
{
    return open_like(MPI_COMM_WORLD, out, error);
}
