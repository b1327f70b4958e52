/*
 * Another set of tensors is trained from this step on, by schedule or because it was set: state out, new layout, state
 * in. What was trained and stays so keeps its moments and their age; what is trained now begins with moments at zero;
 * what is frozen now loses them. All ranks do it together, between two steps.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/message.h"
#include "proto/optimizers.h"
#include "worker/memory.h"
#include "worker/session_internal.h"

enum { VALUES, FIRST, SECOND, STATES };

/* All of it on every rank, in the canonical index, while the layout changes. */
struct state {
    wide *all[STATES]; /* [parameters]; NULL: there is none. Moments are 0 where no tensor has them. */
    bool *was_trained; /* [tensors] */
    uint64_t *since;   /* [tensors] */
    enum dtype wide_type;
};

static void close_state(struct state *state)
{
    for (int i = 0; i < STATES; i++) free(state->all[i]);
    free(state->was_trained);
    free(state->since);
}

static int open_state(const struct session *session, struct state *state, struct error *error)
{
    const struct tensor_table *table = &session->model->table;
    struct shard_map whole; /* of one rank: what any of them has, all of them gather */
    shard_map_init(&whole, table->trained, 1, UINT64_MAX);
    const struct moments_at count = layout_moments(&session->layout, &whole, 0);
    const bool has[STATES] = {true, count.m > 0, count.v > 0};
    void *memory;
    int result = 0;
    *state = (struct state){.wide_type = session->wide_type};
    for (int i = 0; i < STATES && !result; i++) {
        if (!has[i]) continue;
        result = memory_new(&memory, table->parameters, dtype_size(session->wide_type), "the state on its way", error);
        if (!result) state->all[i] = memory;
    }
    if (!result) result = memory_new(&memory, table->count, sizeof *state->was_trained, "the state on its way", error);
    if (!result) state->was_trained = memory;
    if (!result) result = memory_new(&memory, table->count, sizeof *state->since, "the state on its way", error);
    if (!result) state->since = memory;
    return result;
}

/* --- out ----------------------------------------------------------------------------------------------------- */

/* The ranks' parts of an index, one behind the other as their owners keep them, to the tensors that are in it. */
static int gather_index(struct session *session, const struct shard_map *map, bool frozen, const wide *part,
                        wide *canonical, struct error *error)
{
    const size_t size = dtype_size(session->wide_type);
    void *index;
    if (map->bucket_count == 0) return 0;
    int result = memory_new(&index, shard_map_room(map), size, "the state on its way", error);
    if (result) return result;
    const char *from = part;
    for (uint32_t bucket = 0; bucket < map->bucket_count; bucket++) {
        const struct range own = shard_map_range(map, bucket, session->comm->rank);
        memcpy((char *)index + own.begin * size, from, (own.end - own.begin) * size);
        from += (own.end - own.begin) * size;
    }
    result = comm_all_gather(session->host, map, index, session->wide_type, error);
    for (size_t i = 0; i < session->model->table.count && !result; i++) {
        const struct tensor *tensor = &session->model->table.tensors[i];
        if (tensor->frozen == frozen)
            memcpy((char *)canonical + tensor->begin * size, (char *)index + tensor->at * size, tensor->size * size);
    }
    free(index);
    return result;
}

/* The moment of the own shard, 0 where it has none: *shard is freed with free(). */
static int widen_moment(struct session *session, enum buffer which, wide **shard, struct error *error)
{
    const size_t size = dtype_size(session->wide_type);
    const void *moment;
    void *memory;
    *shard = NULL;
    int result = session_read(session, which, &moment, error);
    if (!result) result = memory_new(&memory, session->owned, size, "the state on its way", error);
    if (result) return result;
    *shard = memory;
    for (const struct run *run = session->runs; run < session->runs + session->run_count; run++) {
        const uint64_t at = which == BUFFER_M ? run->moments.m : run->moments.v;
        if (at != NO_MOMENT)
            memcpy((char *)*shard + run->first * size, (const char *)moment + at * size, run->count * size);
    }
    return 0;
}

static int take_out(struct session *session, struct state *state, struct error *error)
{
    const struct layout *layout = &session->layout;
    const void *master;
    struct shard_map frozen;
    layout_frozen_map(&frozen, &session->model->table, session->comm->ranks);
    int result = session_read(session, BUFFER_MASTER, &master, error);
    if (!result) result = gather_index(session, &session->map, false, master, state->all[VALUES], error);
    if (!result)
        result = gather_index(session, &frozen, true, element(master, session->owned, session->wide_type),
                              state->all[VALUES], error);
    for (int i = FIRST; i < STATES && !result; i++) {
        wide *shard = NULL;
        if (!state->all[i]) continue;
        result = widen_moment(session, i == FIRST ? BUFFER_M : BUFFER_V, &shard, error);
        if (!result) result = gather_index(session, &session->map, false, shard, state->all[i], error);
        free(shard);
    }
    for (size_t i = 0; i < layout->count; i++) {
        state->was_trained[layout->segments[i].tensor] = true;
        state->since[layout->segments[i].tensor] = layout->segments[i].since;
    }
    return result;
}

/* --- in ------------------------------------------------------------------------------------------------------ */

static int read_values(void *context, uint64_t begin, uint64_t end, double *values, struct error *error)
{
    const struct state *state = context;
    (void)error;
    for (uint64_t i = begin; i < end; i++)
        values[i - begin] = state->wide_type == DTYPE_FP64 ? ((const double *)state->all[VALUES])[i]
                                                           : (double)((const float *)state->all[VALUES])[i];
    return 0;
}

/* What was frozen has zeros on its way, as its moments have had no time to be anything else. */
static void put_moments(struct session *session, const struct state *state)
{
    const size_t size = dtype_size(session->wide_type);
    wide *const kept[STATES] = {NULL, session->optimizer.m, session->optimizer.v};
    for (int i = FIRST; i < STATES; i++)
        for (const struct piece *own = session->pieces; own < session->pieces + session->piece_count; own++) {
            const uint64_t at = i == FIRST ? own->moments.m : own->moments.v;
            if (at != NO_MOMENT && state->all[i])
                session->kernels->table->upload(session->kernels, element(kept[i], at, session->wide_type),
                                                element(state->all[i], own->begin, session->wide_type),
                                                (own->end - own->begin) * size);
        }
}

static int put_in(struct session *session, struct state *state, uint64_t steps, struct error *error)
{
    for (size_t i = 0; i < session->layout.count; i++) {
        struct segment *segment = &session->layout.segments[i];
        segment->since = state->was_trained[segment->tensor] ? state->since[segment->tensor] : steps;
    }
    int result = session_list_parts(session, error);
    if (!result) result = session_fill(session, read_values, state, error);
    if (!result) put_moments(session, state);
    return result ? result : device_wait(session->kernels, error);
}

/* --- the whole ----------------------------------------------------------------------------------------------- */

/* Groups as the window has them; what is new makes the layout one that ends here. */
static int take_frozen(struct session *session, const Gacc__V1__Window *window, struct error *error)
{
    size_t at = 0;
    if (window->n_frozen == 0) return 0;
    if (!session->edited) session->edited = (Gacc__V1__JobSpec *)message_copy(&session->job->base);
    if (!session->edited) return error_set(error, STATUS_INTERNAL, "out of memory for a job");
    session->job = session->edited;
    for (size_t o = 0; o < optimizer_count(session->job); o++)
        for (size_t i = 0; i < optimizer_at(session->job, o)->n_groups; i++, at++) {
            Gacc__V1__ParameterGroup *group = optimizer_at(session->job, o)->groups[i];
            if (at >= window->n_frozen || !group->frozen == !window->frozen[at]) continue;
            group->frozen = window->frozen[at];
            session->layout.until = 0;
        }
    if (at == window->n_frozen) return 0;
    return error_set(error, STATUS_INTERNAL, "a window freezes or trains %zu groups, the job has %zu", window->n_frozen,
                     at);
}

int session_follow_layout(struct session *session, const Gacc__V1__Window *window, struct error *error)
{
    struct state state = {0};
    const uint64_t steps = window->optimizer_steps;
    int taken = take_frozen(session, window, error);
    if (taken || steps < session->layout.until) return taken;
    checkpoint_forget(session);
    const struct comm_counts before = session->host->counts;
    int result = open_state(session, &state, error);
    if (!result) result = take_out(session, &state, error);
    const uint32_t calls = session->host->counts.all_gather - before.all_gather;
    session->host->counts = before;
    if (!result) result = session_reopen_layout(session, steps, error);
    if (!result) result = put_in(session, &state, steps, error);
    if (!result) session->comm->counts.control += calls;
    close_state(&state);
    return result;
}
