/*
 * Running statistics: tensors that no optimizer has. Every rank keeps all of them in the wide type, so that evaluations
 * need no communication; in checkpoints they are tensors like others, each rank writing its part.
 */
#include <string.h>

#include "worker/session_internal.h"

#define STATS(name) GACC__V1__NORM_STATS__NORM_STATS_##name

/* Every rank's numbers on every rank, by way of the host. */
static int gather_from_ranks(void *context, const double *own, double *all, size_t count, struct error *error)
{
    struct session *session = context;
    struct comm *comm = session->host;
    const struct comm_counts before = comm->counts;
    struct shard_map map;
    shard_map_init(&map, count * comm->ranks, comm->ranks, COMM_BUCKET_LIMIT);
    memmove(all + comm->rank * count, own, count * sizeof *own);
    int result = comm_all_gather(comm, &map, all, DTYPE_FP64, error);
    const uint32_t calls = comm->counts.all_gather - before.all_gather;
    const uint64_t bytes = comm->counts.all_gather_bytes - before.all_gather_bytes;
    comm->counts = before;
    session->comm->counts.statistics += calls;
    session->comm->counts.statistics_bytes += bytes;
    return result;
}

/* Whether sets are over all ranks: then so are the moments of a step. */
static bool sets_are_shared(const struct session *session)
{
    const Gacc__V1__NormStats stats = session->job->model->norm_stats;
    return stats == STATS(SYNC) || stats == STATS(WINDOW);
}

bool running_needs_window(const struct session *session)
{
    return session->statistics && session->job->model->norm_stats == STATS(WINDOW);
}

void running_stand_by(struct session *session)
{
    if (session->statistics && session->job->model->norm_stats == STATS(SYNC))
        model_run_nothing(session->model, session->statistics);
}

int running_open(struct session *session, struct error *error)
{
    if (session->model->set_count == 0) return 0;
    int result = statistics_open(&session->statistics, session->model, session->kernels, session->host->ranks, error);
    if (result) return result;
    session->statistics->context = session;
    session->statistics->gather = sets_are_shared(session) ? gather_from_ranks : NULL;
    return 0;
}

void running_in_training(const struct session *session, struct pass *pass)
{
    pass->statistics = session->statistics;
    const Gacc__V1__NormStats stats = session->job->model->norm_stats;
    pass->sets = stats == STATS(FROZEN) ? SETS_RUNNING : stats == STATS(SYNC) ? SETS_OF_RANKS : SETS_OWN;
}

void running_in_evaluation(const struct session *session, struct pass *pass)
{
    pass->statistics = session->statistics;
    pass->sets = SETS_RUNNING;
}

int running_check(const struct session *session, struct error *error)
{
    const struct error *failure = &session->statistics->failure;
    return failure->status ? error_set(error, failure->status, "%s", failure->text) : 0;
}

/* --- their tensors ----------------------------------------------------------------------------------------------- */

static void put_tensor(const struct statistics *statistics, const struct tensor *tensor, double *running,
                       uint64_t begin, uint64_t count, const double *values)
{
    const struct range part = range_of_both((struct range){begin, begin + count},
                                            (struct range){tensor->begin, tensor->begin + tensor->size});
    for (uint64_t i = part.begin; i < part.end; i++)
        running[i - tensor->begin] = statistics_as_kept(statistics, values[i - begin]);
}

void running_put(struct session *session, uint64_t begin, uint64_t count, const double *values)
{
    const struct statistics *statistics = session->statistics;
    for (size_t i = 0; statistics && i < statistics->count; i++) {
        const struct stage_statistics *stage = &statistics->stages[i];
        put_tensor(statistics, stage->running_mean, stage->running, begin, count, values);
        put_tensor(statistics, stage->running_variance, stage->running + stage->channels, begin, count, values);
    }
}

int running_advance(struct session *session, struct error *error)
{
    struct statistics *statistics = session->statistics;
    if (!statistics || session->job->model->norm_stats == STATS(FROZEN)) return 0;
    int result = statistics_advance(statistics, sets_are_shared(session) ? NULL : gather_from_ranks, error);
    for (size_t i = 0; i < statistics->count && !result; i++) {
        const struct stage_statistics *stage = &statistics->stages[i];
        result = session_put(session, stage->running_mean->begin, stage->channels, stage->running, error);
        if (!result)
            result = session_put(session, stage->running_variance->begin, stage->channels,
                                 stage->running + stage->channels, error);
    }
    return result;
}
