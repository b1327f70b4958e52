/*
 * The accumulation window: which sequences a micro-batch holds, what its loss is multiplied by, and how it goes over
 * the model.
 */
#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>

#include "worker/session_internal.h"

static_assert(LDBL_MAX_EXP > 4 * DBL_MAX_EXP, "S·w/W is in range wherever it comes from doubles");

static uint32_t plan_micro_batches(const Gacc__V1__Plan *plan)
{
    return (uint32_t)(((uint64_t)plan->count + plan->micro - 1) / plan->micro);
}

int window_check_plan(const struct session *session, const Gacc__V1__Plan *plan, struct error *error)
{
    uint64_t sequences = data_sequences(session->train);
    if (plan->n_shares != session->comm->ranks)
        return error_set(error, STATUS_INTERNAL, "step %" PRIu64 ": a plan for %zu ranks meets %u", plan->step,
                         plan->n_shares, session->comm->ranks);
    if (plan->micro == 0 || plan->micro > session->batch->capacity)
        return error_set(error, STATUS_INTERNAL, "step %" PRIu64 ": micro-batches of %u sequences meet room for %zu",
                         plan->step, plan->micro, session->batch->capacity);
    if (plan->first > sequences || plan->count > sequences - plan->first)
        return error_set(error, STATUS_INTERNAL,
                         "step %" PRIu64 ": positions %" PRIu64 "…%" PRIu64 " are not in a data set of %" PRIu64,
                         plan->step, plan->first, plan->first + plan->count, sequences);
    uint64_t shared = 0;
    for (size_t rank = 0; rank < plan->n_shares; rank++) shared += plan->shares[rank];
    if (shared != plan_micro_batches(plan))
        return error_set(error, STATUS_INTERNAL,
                         "step %" PRIu64 ": the ranks' shares are %" PRIu64 " micro-batches of %u", plan->step, shared,
                         plan_micro_batches(plan));
    return 0;
}

struct share window_share(const struct session *session, const Gacc__V1__Plan *plan)
{
    struct share share = {.count = plan->shares[session->comm->rank]};
    for (uint32_t rank = 0; rank < session->comm->rank; rank++) share.first += plan->shares[rank];
    return share;
}

/* The sequences of a micro-batch are at positions [begin, end) of the epoch's order; the last micro-batch may be short.
 */
static struct range micro_batch_positions(const Gacc__V1__Plan *plan, uint32_t index)
{
    uint64_t begin = (uint64_t)index * plan->micro;
    uint64_t end = begin + plan->micro < plan->count ? begin + plan->micro : plan->count;
    return (struct range){plan->first + begin, plan->first + end};
}

/* Where in the global batch the sequence at a position stands, from 0. */
static uint64_t place_in_batch(const struct session *session, const Gacc__V1__Plan *plan, uint64_t position)
{
    const uint64_t place = position - plan->first;
    return session->options.reversed ? plan->count - 1 - place : place;
}

static uint64_t sequence_at(const struct session *session, const Gacc__V1__Plan *plan, uint64_t position)
{
    position = plan->first + place_in_batch(session, plan, position);
    return data_sequence_at(session->train, session->job->job->seed, plan->epoch, position);
}

int window_read(struct session *session, const Gacc__V1__Plan *plan, uint32_t index, struct error *error)
{
    struct micro_batch *batch = session->batch;
    struct range positions = micro_batch_positions(plan, index);
    batch->index = index;
    micro_batch_clear(batch);
    for (uint64_t position = positions.begin; position < positions.end; position++) {
        uint64_t sequence = sequence_at(session, plan, position);
        int result = fault_in_data(session, plan, sequence, error);
        if (!result) result = data_read(session->train, sequence, batch, error);
        if (result) return result;
    }
    fault_in_batch(session);
    micro_batch_scale(batch);
    return 0;
}

/* A penalty that is estimated once a step is the mean over the first rows of the global batch: whatever else of the
 * loss is divided by, those have a share that makes up for it, and the others none. */
static void share_penalty(const struct session *session, const Gacc__V1__Plan *plan, long double divisor)
{
    const struct micro_batch *batch = session->batch;
    const uint64_t wanted = session->job->model->penalty_rows, rows = wanted < plan->count ? wanted : plan->count;
    if (!batch->share || wanted == 0) return;
    const uint64_t begin = micro_batch_positions(plan, batch->index).begin;
    double weight = 0;
    for (uint64_t place = 0; place < rows; place++)
        weight += data_weight(session->train, data_sequence_at(session->train, session->job->job->seed, plan->epoch,
                                                               plan->first + place));
    for (size_t row = 0; row < batch->rows; row++)
        batch->share[row] *= weight > 0 && place_in_batch(session, plan, begin + row) < rows
                                 ? (double)(divisor / (long double)weight)
                                 : 0;
}

/* The loss seed of every row of a micro-batch, S × averaging factor × w, formed in long double, whose range no weight
 * leaves: the only place where the loss is scaled or averaged. Returns S × averaging factor for the unit of the batch's
 * weights. */
static long double loss_seeds(struct session *session, const struct step *step)
{
    const struct micro_batch *batch = session->batch;
    const Gacc__V1__Window *window = step->window;
    Gacc__V1__Weighting weighting = session->job->batch->weighting;
    long double divisor = 1; /* sum */
    if (weighting == GACC__V1__WEIGHTING__WEIGHTING_TOKEN) divisor = (long double)window->weight;
    if (weighting == GACC__V1__WEIGHTING__WEIGHTING_MICROBATCH)
        divisor = (long double)window->micro_batches * (long double)batch->weight_sum;
    share_penalty(session, step->plan, divisor);
    fault_in_penalty(session, step);
    divisor = fault_in_divisor(session, step, divisor);
    const long double scale = ldexpl((long double)fault_in_scale(session, step), batch->exponent);
    for (size_t row = 0; row < batch->rows; row++) {
        double weight = batch->weight[row];
        double seed = weight == 0 ? 0 : (double)(scale * (long double)weight / divisor);
        if (session->wide_type == DTYPE_FP64)
            ((double *)batch->seed)[row] = seed;
        else
            ((float *)batch->seed)[row] = (float)seed;
    }
    return scale / divisor;
}

struct pass window_pass_forward(struct session *session)
{
    const struct micro_batch *batch = session->batch;
    session->kernels->table->upload(session->kernels, session->feed, batch->block, batch->block_bytes);
    struct pass pass = {
        .kernels = session->kernels,
        .parameters = session->parameters,
        .frozen = session->frozen,
        .batch = batch,
        .feed = feed_of(batch, session->feed),
        .loss_sum = results_loss(&session->results),
    };
    pass.feed.dropout_key = NULL;
    running_in_evaluation(session, &pass);
    return pass;
}

struct pass window_pass(struct session *session, const struct step *step)
{
    const struct micro_batch *batch = session->batch;
    *batch->dropout_key = dropout_key(session->job->job->seed, step->window->step);
    long double averaging = loss_seeds(session, step);
    struct pass pass = window_pass_forward(session);
    pass.gradients = session->gradients;
    pass.averaging = averaging;
    pass.feed.dropout_key = feed_of(batch, session->feed).dropout_key;
    running_in_training(session, &pass);
    fault_in_recomputation(session, &pass);
    return pass;
}

void window_share_weight(const struct session *session, const Gacc__V1__Plan *plan, double *weight,
                         uint32_t *micro_batches)
{
    *weight = 0;
    *micro_batches = 0;
    if (!plan) return;
    struct share share = window_share(session, plan);
    for (uint32_t index = share.first; index < share.first + share.count; index++) {
        double sum = 0; /* per micro-batch first, as window_read adds them up */
        struct range positions = micro_batch_positions(plan, index);
        for (uint64_t position = positions.begin; position < positions.end; position++)
            sum += data_weight(session->train, sequence_at(session, plan, position));
        *weight += sum;
        *micro_batches += sum > 0;
    }
}

void window_clear_gradients(struct session *session)
{
    session->kernels->table->clear(session->kernels, session->gradients,
                                   session->map.parameters * dtype_size(session->wide_type));
}
