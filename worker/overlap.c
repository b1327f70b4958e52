/*
 * When the buckets of the flat buffers are reduced and gathered. Where the transport works beside the kernels, a bucket
 * is reduced as soon as the window's last backward has passed it, and the gather of the updated parameters is waited
 * for by the first forward that reads them. Otherwise all of it happens in Reduce and in ExitStep. All ranks start the
 * same collectives in the same order, whatever their windows hold.
 */
#include "worker/session_internal.h"

void overlap_begin(struct session *session)
{
    session->buckets.reducing = session->map.bucket_count;
    session->buckets.failure = (struct error){0};
}

/* --- reductions ---------------------------------------------------------------------------------------------- */

/* Starts the reduction of every bucket whose gradients from `begin` on are complete. */
static int reduce_from(struct session *session, uint64_t begin, struct error *error)
{
    struct buckets *buckets = &session->buckets;
    int result = 0;
    while (!result && buckets->reducing > 0 && shard_map_bucket(&session->map, buckets->reducing - 1).begin >= begin)
        result = comm_reduce_scatter_bucket(session->comm, &session->map, --buckets->reducing, session->gradients,
                                            session->shard, session->wide_type, error);
    return result;
}

static void on_complete(void *context, uint64_t begin)
{
    struct session *session = context;
    if (!session->buckets.failure.status) reduce_from(session, begin, &session->buckets.failure);
}

/* A planted fault may change gradients after the last micro-batch: then the reduction waits for it. */
struct overlap overlap_last(struct session *session)
{
    bool may = comm_overlaps(session->comm) && session->options.faults.plant == PLANT_NOTHING;
    return (struct overlap){.context = session, .complete = may ? on_complete : NULL};
}

int overlap_reduce(struct session *session, struct error *error)
{
    const struct error *failure = &session->buckets.failure;
    int result = failure->status ? error_set(error, failure->status, "%s", failure->text) : 0;
    if (!result) result = reduce_from(session, 0, error);
    for (uint32_t bucket = 0; bucket < session->map.bucket_count && !result; bucket++)
        result = comm_join(session->comm, bucket, error);
    return result;
}

/* --- gathers ------------------------------------------------------------------------------------------------- */

/* Joins the gathers of all buckets that begin before `end`. */
static int join_until(struct session *session, uint64_t end, struct error *error)
{
    struct buckets *buckets = &session->buckets;
    int result = 0;
    while (!result && buckets->gathered < session->map.bucket_count &&
           shard_map_bucket(&session->map, buckets->gathered).begin < end)
        result = comm_join(session->comm, buckets->gathered++, error);
    return result;
}

static void on_needs(void *context, uint64_t begin, uint64_t end)
{
    (void)begin;
    struct session *session = context;
    if (!session->buckets.failure.status) join_until(session, end, &session->buckets.failure);
}

struct overlap overlap_first(struct session *session)
{
    bool open = session->buckets.gathered < session->map.bucket_count;
    return (struct overlap){.context = session, .needs = open ? on_needs : NULL};
}

int overlap_gather(struct session *session, struct error *error)
{
    int result = 0;
    for (uint32_t bucket = 0; bucket < session->map.bucket_count && !result; bucket++)
        result = comm_all_gather_bucket(session->comm, &session->map, bucket, session->parameters,
                                        session->compute_type, error);
    session->buckets.gathered = 0;
    return result || comm_overlaps(session->comm) ? result : overlap_settle(session, error);
}

int overlap_settle(struct session *session, struct error *error)
{
    return join_until(session, session->map.parameters, error);
}
