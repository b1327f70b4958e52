/*
 * Collectives over NCCL, between GPUs, bucket by bucket on a stream of their own. What was asked of the kernels before
 * a collective comes before it, what is asked of them after its join comes after it; both are events, so the host waits
 * for nothing. Part of the GPU backend's module.
 *
 * A communicator is non-blocking: a call may come back before NCCL has even begun, and then its state is asked for
 * until it is settled. While the host waits for the device, the communicator's health is watched (cuda.h: watch); a
 * failed one is aborted, which ends the collectives that wait for a peer.
 */
#include "worker/comm_nccl.h"

#include <nccl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/reduce.h"

/* The last bucket to be complete is reduced when there is no backward left to hide it: buckets are an eighth of the
 * parameters, but no larger than what keeps a link busy. */
#define BUCKETS 8
#define BUCKET_MOST (UINT64_C(1) << 24)

struct comm_nccl {
    struct comm comm;
    struct comm *host; /* borrowed: broadcasts, barriers, the end of the job */
    struct cuda *cuda; /* borrowed */
    ncclComm_t nccl;   /* NULL: not yet, or aborted */
    cudaStream_t stream;
    cudaEvent_t given;     /* what the kernels had been asked for when the last collective was */
    cudaEvent_t *finished; /* [buckets] the collective last started of each */
    uint32_t buckets;
    struct {
        void *sent, *received; /* a bucket's parts as bf16; NULL unless gradients travel so */
    } rounded;
};

static struct comm_nccl *nccl_of(struct comm *comm)
{
    return (struct comm_nccl *)comm;
}

/* Ends what is under way and what would come. */
static void give_up(struct comm_nccl *nccl)
{
    if (nccl->nccl) ncclCommAbort(nccl->nccl);
    nccl->nccl = NULL;
}

static int refuse(struct comm_nccl *nccl, ncclResult_t result, const char *call, struct error *error)
{
    const char *detail = nccl->nccl ? ncclGetLastError(nccl->nccl) : "";
    error_set(error, STATUS_INTERNAL, "rank %u: %s: %s%s%s", nccl->comm.rank, call, ncclGetErrorString(result),
              *detail ? ": " : "", detail);
    give_up(nccl);
    return -STATUS_INTERNAL;
}

/* Whether the call, which may only have been begun, went well: asks until NCCL has decided. */
static int settle(struct comm_nccl *nccl, ncclResult_t result, const char *call, struct error *error)
{
    while (result == ncclInProgress) {
        sched_yield();
        comm_progress(nccl->host);
        ncclResult_t asked = ncclCommGetAsyncError(nccl->nccl, &result);
        if (asked != ncclSuccess) result = asked;
    }
    return result == ncclSuccess ? 0 : refuse(nccl, result, call, error);
}

static int cuda_result(struct comm_nccl *nccl, cudaError_t result, const char *call, struct error *error)
{
    if (result == cudaSuccess) return 0;
    return error_set(error, STATUS_INTERNAL, "rank %u: GPU %d: %s: %s", nccl->comm.rank, nccl->cuda->device, call,
                     cudaGetErrorString(result));
}

/* While the host waits for the device. */
static bool watch(void *context, char why[CUDA_TEXT])
{
    struct comm_nccl *nccl = context;
    ncclResult_t state = ncclSuccess;
    if (!nccl->nccl) return true;
    ncclResult_t asked = ncclCommGetAsyncError(nccl->nccl, &state);
    if (asked != ncclSuccess) state = asked;
    if (state == ncclSuccess || state == ncclInProgress) return true;
    struct error error;
    refuse(nccl, state, "a collective", &error);
    snprintf(why, CUDA_TEXT, "%.*s", CUDA_TEXT - 1, error.text);
    return false;
}

/* The collective that is about to be asked for waits for the kernels. */
static int begin(struct comm_nccl *nccl, struct error *error)
{
    if (!nccl->nccl)
        return error_set(error, STATUS_INTERNAL, "rank %u: the communicator was given up before", nccl->comm.rank);
    int result = cuda_result(nccl, cudaEventRecord(nccl->given, nccl->cuda->stream), "cudaEventRecord", error);
    if (result) return result;
    return cuda_result(nccl, cudaStreamWaitEvent(nccl->stream, nccl->given, 0), "cudaStreamWaitEvent", error);
}

static int finish(struct comm_nccl *nccl, uint32_t bucket, struct error *error)
{
    return cuda_result(nccl, cudaEventRecord(nccl->finished[bucket], nccl->stream), "cudaEventRecord", error);
}

static ncclDataType_t nccl_type(enum dtype type)
{
    static const ncclDataType_t types[] = {[DTYPE_FP32] = ncclFloat32,
                                           [DTYPE_BF16] = ncclBfloat16,
                                           [DTYPE_FP16] = ncclFloat16,
                                           [DTYPE_FP64] = ncclFloat64};
    return types[type];
}

/* Every rank's part is as long as the first one's; the buffers have room for whole parts. */
static size_t part_elements(const struct range *parts)
{
    return (size_t)(parts[0].end - parts[0].begin);
}

static const void *at(const void *buffer, uint64_t index, enum dtype type)
{
    return (const char *)buffer + index * dtype_size(type);
}

/* Every rank sends every other its part, rounded; its own stays where it is. */
static int exchange_rounded(struct comm_nccl *nccl, const float *gradients, size_t part, struct error *error)
{
    const uint32_t rank = nccl->comm.rank, ranks = nccl->comm.ranks;
    int result = cuda_result(nccl, cuda_round_bf16(nccl->stream, nccl->rounded.sent, gradients, ranks * part),
                             "rounding to bf16", error);
    if (result) return result;
    ncclResult_t given = ncclGroupStart();
    for (uint32_t other = 0; other < ranks && given == ncclSuccess; other++) {
        if (other == rank) continue;
        given = ncclSend(at(nccl->rounded.sent, other * part, DTYPE_BF16), part, ncclBfloat16, (int)other, nccl->nccl,
                         nccl->stream);
        if (given != ncclSuccess) break;
        given = ncclRecv((void *)(uintptr_t)at(nccl->rounded.received, other * part, DTYPE_BF16), part, ncclBfloat16,
                         (int)other, nccl->nccl, nccl->stream);
    }
    const ncclResult_t ended = ncclGroupEnd();
    return settle(nccl, given == ncclSuccess ? ended : given, "ncclSend and ncclRecv", error);
}

static int reduce_scatter_rounded(struct comm_nccl *nccl, const float *gradients, float *shard,
                                  const struct range *parts, struct error *error)
{
    const struct range own = parts[nccl->comm.rank];
    const size_t part = part_elements(parts);
    int result = exchange_rounded(nccl, gradients + parts[0].begin, part, error);
    if (result) return result;
    return cuda_result(nccl,
                       cuda_sum_rounded(nccl->stream, shard, gradients + own.begin, nccl->rounded.received,
                                        nccl->comm.rank, nccl->comm.ranks, part, (size_t)(own.end - own.begin)),
                       "adding what came as bf16", error);
}

static int reduce_scatter_exact(struct comm_nccl *nccl, const wide *gradients, wide *shard, enum dtype wide_type,
                                const struct range *parts, struct error *error)
{
    return settle(nccl,
                  ncclReduceScatter(at(gradients, parts[0].begin, wide_type), shard, part_elements(parts),
                                    nccl_type(wide_type), ncclSum, nccl->nccl, nccl->stream),
                  "ncclReduceScatter", error);
}

static int nccl_reduce_scatter(struct comm *comm, uint32_t bucket, const wide *gradients, wide *shard,
                               enum dtype wide_type, const struct range *parts, struct error *error)
{
    struct comm_nccl *nccl = nccl_of(comm);
    int result = begin(nccl, error);
    if (result) return result;
    result = nccl->rounded.sent && wide_type == DTYPE_FP32
                 ? reduce_scatter_rounded(nccl, gradients, shard, parts, error)
                 : reduce_scatter_exact(nccl, gradients, shard, wide_type, parts, error);
    return result ? result : finish(nccl, bucket, error);
}

static int nccl_all_gather(struct comm *comm, uint32_t bucket, compute *parameters, enum dtype compute_type,
                           const struct range *parts, struct error *error)
{
    struct comm_nccl *nccl = nccl_of(comm);
    int result = begin(nccl, error);
    if (result) return result;
    const uint64_t own = parts[0].begin + comm->rank * part_elements(parts);
    void *whole = (char *)parameters + parts[0].begin * dtype_size(compute_type);
    result = settle(nccl,
                    ncclAllGather(at(parameters, own, compute_type), whole, part_elements(parts),
                                  nccl_type(compute_type), nccl->nccl, nccl->stream),
                    "ncclAllGather", error);
    return result ? result : finish(nccl, bucket, error);
}

static int nccl_join(struct comm *comm, uint32_t bucket, struct error *error)
{
    struct comm_nccl *nccl = nccl_of(comm);
    return cuda_result(nccl, cudaStreamWaitEvent(nccl->cuda->stream, nccl->finished[bucket], 0), "cudaStreamWaitEvent",
                       error);
}

/* --- by way of the host ------------------------------------------------------------------------------------------ */

static int nccl_broadcast(struct comm *comm, void *bytes, uint64_t count, uint32_t root, struct error *error)
{
    struct comm *host = nccl_of(comm)->host;
    return host->class->broadcast(host, bytes, count, root, error);
}

static int nccl_barrier(struct comm *comm, struct error *error)
{
    struct comm *host = nccl_of(comm)->host;
    return host->class->barrier(host, error);
}

static void nccl_progress(struct comm *comm)
{
    comm_progress(nccl_of(comm)->host);
}

/* Any thread may call it, also while another waits inside NCCL: the end of the process is the end of its collectives.
 */
__attribute__((noreturn)) static void nccl_abort(struct comm *comm, int status)
{
    comm_abort(nccl_of(comm)->host, status);
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

/* In order when all went well; a communicator that failed was given up. */
static void nccl_close(struct comm *comm)
{
    struct comm_nccl *nccl = nccl_of(comm);
    nccl->cuda->watch = (struct cuda_watch){0};
    if (nccl->nccl && settle(nccl, ncclCommFinalize(nccl->nccl), "ncclCommFinalize", NULL) == 0)
        ncclCommDestroy(nccl->nccl);
    for (uint32_t bucket = 0; nccl->finished && bucket < nccl->buckets; bucket++)
        if (nccl->finished[bucket]) cudaEventDestroy(nccl->finished[bucket]);
    if (nccl->given) cudaEventDestroy(nccl->given);
    nccl->cuda->head.table->release(&nccl->cuda->head, nccl->rounded.sent);
    nccl->cuda->head.table->release(&nccl->cuda->head, nccl->rounded.received);
    if (nccl->stream) cudaStreamDestroy(nccl->stream);
    free(nccl->finished);
    free(nccl);
}

static int nccl_duplicate(struct comm *comm, struct comm **out, struct error *error)
{
    (void)out;
    return error_set(error, STATUS_INTERNAL, "rank %u: a communicator of GPUs is not duplicated", comm->rank);
}

static int open_stream(struct comm_nccl *nccl, struct error *error)
{
    int least = 0, greatest = 0;
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    int result = cuda_result(nccl, cudaStreamCreateWithPriority(&nccl->stream, cudaStreamNonBlocking, greatest),
                             "cudaStreamCreateWithPriority", error);
    if (!result)
        result = cuda_result(nccl, cudaEventCreateWithFlags(&nccl->given, cudaEventDisableTiming),
                             "cudaEventCreateWithFlags", error);
    for (uint32_t bucket = 0; bucket < nccl->buckets && !result; bucket++)
        result = cuda_result(nccl, cudaEventCreateWithFlags(&nccl->finished[bucket], cudaEventDisableTiming),
                             "cudaEventCreateWithFlags", error);
    return result;
}

static int open_rounded(struct comm_nccl *nccl, const struct shard_map *map, struct error *error)
{
    struct kernels *kernels = &nccl->cuda->head;
    const struct range part = shard_map_range(map, 0, 0);
    const size_t bytes = (size_t)(part.end - part.begin) * nccl->comm.ranks * dtype_size(DTYPE_BF16);
    nccl->rounded.sent = kernels->table->allocate(kernels, bytes);
    nccl->rounded.received = kernels->table->allocate(kernels, bytes);
    if (nccl->rounded.sent && nccl->rounded.received) return 0;
    return error_set(error, STATUS_INTERNAL, "out of memory for gradients as bf16: two times %zu bytes", bytes);
}

/* Rank 0's id reaches the others over the host's transport. A rank that could not make one says so in its place. */
static int join_the_others(struct comm_nccl *nccl, struct error *error)
{
    struct {
        ncclUniqueId id;
        ncclResult_t result;
    } start = {.result = ncclSuccess};
    if (nccl->comm.rank == 0) start.result = ncclGetUniqueId(&start.id);
    int result = comm_broadcast(nccl->host, &start, sizeof start, 0, error);
    if (result) return result;
    if (start.result != ncclSuccess) return refuse(nccl, start.result, "ncclGetUniqueId on rank 0", error);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t begun =
        ncclCommInitRankConfig(&nccl->nccl, (int)nccl->comm.ranks, start.id, (int)nccl->comm.rank, &config);
    return settle(nccl, begun, "ncclCommInitRankConfig", error);
}

int comm_open_nccl(struct comm **out, struct comm *host, struct kernels *kernels, uint64_t parameters,
                   struct error *error)
{
    static const struct comm_class class = {
        .reduce_scatter = nccl_reduce_scatter,
        .all_gather = nccl_all_gather,
        .join = nccl_join,
        .broadcast = nccl_broadcast,
        .barrier = nccl_barrier,
        .duplicate = nccl_duplicate,
        .progress = nccl_progress,
        .abort = nccl_abort,
        .close = nccl_close,
    };
    *out = NULL;
    struct comm_nccl *nccl = calloc(1, sizeof *nccl);
    if (!nccl) return error_set(error, STATUS_INTERNAL, "out of memory for a communicator");
    nccl->comm = *host;
    nccl->comm.class = &class;
    nccl->comm.counts = (struct comm_counts){0};
    nccl->host = host;
    nccl->cuda = cuda_enter(kernels);
    const uint64_t eighth = (parameters + BUCKETS - 1) / BUCKETS;
    nccl->comm.bucket_limit = eighth < BUCKET_MOST ? eighth : BUCKET_MOST;
    struct shard_map map;
    shard_map_init(&map, parameters, host->ranks, nccl->comm.bucket_limit);
    nccl->buckets = map.bucket_count;
    int version = 0;
    ncclGetVersion(&version);
    snprintf(nccl->comm.transport, sizeof nccl->comm.transport, "NCCL %d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    nccl->finished = calloc(nccl->buckets, sizeof(cudaEvent_t));
    int result = nccl->finished ? open_stream(nccl, error)
                                : error_set(error, STATUS_INTERNAL, "out of memory for %u buckets", nccl->buckets);
    if (!result && host->rounds) result = open_rounded(nccl, &map, error);
    if (!result) result = join_the_others(nccl, error);
    if (result) {
        nccl_close(&nccl->comm);
        return result;
    }
    nccl->cuda->watch = (struct cuda_watch){watch, nccl};
    *out = &nccl->comm;
    return 0;
}
