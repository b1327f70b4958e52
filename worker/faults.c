/*
 * Where each fault of faults.h does its damage. The callers are the places at which a trainer goes wrong; without a
 * fault nothing here changes anything.
 */
#include "worker/faults.h"

#include <inttypes.h>
#include <math.h>

#include "worker/device.h"
#include "worker/memory.h"
#include "worker/session_internal.h"

/* Beyond every fp16 number, whatever it is multiplied by on its way, and a number in fp32. */
#define OVERFLOWS_FP16 1e30

int fault_in_data(const struct session *session, const Gacc__V1__Plan *plan, uint64_t sequence, struct error *error)
{
    const struct faults *faults = &session->options.faults;
    if (faults->data_error_at_step != plan->step || faults->rank != session->comm->rank) return 0;
    const char *file;
    uint64_t offset;
    data_locate(session->train, sequence, &file, &offset);
    return error_set(error, STATUS_DATA, "%s: byte %" PRIu64 ": a planted error", file, offset);
}

static void count_masked(const struct session *session)
{
    struct micro_batch *batch = session->batch;
    const size_t targets = batch->tokens ? session->job->model->context : 1;
    for (size_t row = 0; row < batch->rows; row++)
        if (batch->weight[row] == 0) batch->weight[row] = 1;
    for (size_t i = 0; batch->targets && i < batch->rows * targets; i++)
        if (batch->targets[i] < 0) batch->targets[i] = 0;
}

/* The weight sum stays as it was announced: W is right, what is divided by it is not. */
void fault_in_batch(struct session *session)
{
    enum plant plant = session->options.faults.plant;
    struct micro_batch *batch = session->batch;
    if (plant == PLANT_PADDING_COUNTED) count_masked(session);
    for (size_t row = 0; plant == PLANT_DROPOUT_BY_ROW && row < batch->rows; row++) batch->sequence[row] = row;
}

long double fault_in_divisor(const struct session *session, const struct step *step, long double divisor)
{
    const long double ranks = session->comm->ranks, micro_batches = step->window->micro_batches;
    const long double micro_batch = (long double)session->batch->weight_sum;
    double own;
    uint32_t own_micro_batches;
    switch (session->options.faults.plant) {
    case PLANT_SUM_FOR_MEAN:
        return 1;
    case PLANT_NOT_DIVIDED_BY_K:
        return micro_batch;
    case PLANT_DIVIDED_BY_K_TWICE:
        return divisor * micro_batches;
    case PLANT_DIVIDED_BY_N_TWICE:
        return divisor * ranks;
    case PLANT_RANK_MEANS:
        window_share_weight(session, step->plan, &own, &own_micro_batches);
        return (long double)own * ranks;
    case PLANT_MICRO_BATCH_MEANS:
        return micro_batches * micro_batch;
    default:
        return divisor;
    }
}

void fault_in_penalty(struct session *session, const struct step *step)
{
    const struct micro_batch *batch = session->batch;
    if (session->options.faults.plant != PLANT_PENALTY_IN_FULL || !batch->share) return;
    for (size_t row = 0; row < batch->rows; row++) batch->share[row] *= step->window->micro_batches;
}

double fault_in_scale(const struct session *session, const struct step *step)
{
    const struct faults *faults = &session->options.faults;
    if (faults->overflow_at.step != step->plan->step || faults->overflow_at.micro_batch != session->batch->index ||
        (faults->overflow_at.scale > 0 && faults->overflow_at.scale != step->window->scale))
        return step->window->scale;
    const bool is_all_fp16 = session->compute_type == DTYPE_FP16 && !(session->job->model->penalty > 0);
    return is_all_fp16 ? OVERFLOWS_FP16 : (double)INFINITY;
}

static void without_dropout(struct pass *pass, const compute **in, const compute *out)
{
    (void)in, (void)out;
    pass->feed.dropout_key = NULL;
}

static void from_output(struct pass *pass, const compute **in, const compute *out)
{
    (void)pass;
    *in = out;
}

void fault_in_recomputation(const struct session *session, struct pass *pass)
{
    const enum plant plant = session->options.faults.plant;
    if (plant == PLANT_RECOMPUTED_WITHOUT_DROPOUT) pass->recomputed_with = without_dropout;
    if (plant == PLANT_RECOMPUTED_FROM_OUTPUT) pass->recomputed_with = from_output;
}

bool fault_loses_backward(const struct session *session, const struct step *step)
{
    return session->options.faults.plant == PLANT_LAST_MICRO_BATCH_LOST &&
           session->batch->index == step->share.first + step->share.count - 1;
}

/* Through the compute type and back, a block at a time. */
static int round_accumulator(struct session *session, struct error *error)
{
    enum { BLOCK = 4096 };
    struct kernels *kernels = session->kernels;
    const struct kernel_table *table = kernels->table;
    void *rounded;
    uint64_t count;
    int result = memory_reserve(kernels, &rounded, BLOCK * dtype_size(session->compute_type), "a fault", error);
    if (result) return result;
    for (uint64_t at = 0; at < session->map.parameters; at += count) {
        count = session->map.parameters - at < BLOCK ? session->map.parameters - at : BLOCK;
        wide *block = element(session->gradients, at, session->wide_type);
        table->cast(kernels, rounded, block, count);
        table->clear(kernels, block, count * dtype_size(session->wide_type));
        table->accumulate(kernels, block, rounded, count);
    }
    result = device_wait(kernels, error);
    table->release(kernels, rounded);
    return result;
}

static int flip_a_bit(struct session *session, struct error *error)
{
    const struct kernel_table *table = session->kernels->table;
    unsigned char byte;
    int result = device_download(session->kernels, &byte, session->parameters, 1, error);
    byte ^= 1;
    if (!result) table->upload(session->kernels, session->parameters, &byte, 1);
    return result;
}

int fault_in_accumulator(struct session *session, struct error *error)
{
    return session->options.faults.plant == PLANT_ACCUMULATOR_ROUNDED ? round_accumulator(session, error) : 0;
}

int fault_after_micro_batch(struct session *session, const struct step *step, uint32_t k, struct error *error)
{
    const struct faults *faults = &session->options.faults;
    const bool writes = faults->parameter_write_at_step == step->plan->step && faults->rank == session->comm->rank;
    return writes && k == 0 ? flip_a_bit(session, error) : 0; /* once: twice would be as if never */
}

/* As many as the busiest rank has micro-batches, so that all ranks meet. */
int fault_after_window(struct session *session, const struct step *step, struct error *error)
{
    if (session->options.faults.plant != PLANT_REDUCED_PER_MICRO_BATCH) return 0;
    uint32_t most = 0;
    for (size_t rank = 0; rank < step->plan->n_shares; rank++)
        if (step->plan->shares[rank] > most) most = step->plan->shares[rank];
    int result = 0;
    for (uint32_t k = 0; k < most && !result; k++)
        result = comm_reduce_scatter(session->comm, &session->map, session->gradients, session->shard,
                                     session->wide_type, error);
    return result;
}

bool fault_misses_reduction(const struct session *session, const struct step *step)
{
    const struct faults *faults = &session->options.faults;
    return faults->reduction_missed_at_step == step->plan->step && faults->rank == session->comm->rank;
}

int fault_in_memory(const struct session *session, const struct step *step, struct error *error)
{
    const struct faults *faults = &session->options.faults;
    if (faults->memory_lost_at_step != step->plan->step || faults->rank != session->comm->rank) return 0;
    return error_set(error, STATUS_INTERNAL, "out of memory, as planted");
}

void fault_in_verdict(const struct session *session, struct step *step)
{
    enum plant plant = session->options.faults.plant;
    if (step->decision->verdict != GACC__V1__VERDICT__VERDICT_SKIP) return;
    if (plant != PLANT_SKIP_APPLIES && plant != PLANT_SKIPS_ALONE) return;
    step->applies = plant == PLANT_SKIP_APPLIES || !step->check.nonfinite;
    step->gathers = true; /* a rank that stayed away would leave the others waiting */
    step->decision->clip_coefficient = 1;
}

void fault_in_update(const struct session *session, const struct step *step, struct optimizer_step *update)
{
    switch (session->options.faults.plant) {
    case PLANT_NOT_UNSCALED:
        update->unscale *= step->window->scale;
        break;
    case PLANT_UNSCALED_TWICE:
        update->unscale /= step->window->scale;
        break;
    case PLANT_SKIP_MOVES_T:
        update->t = step->plan->step;
        break;
    default:
        break;
    }
}

bool fault_keeps_gradients(const struct session *session)
{
    return session->options.faults.plant == PLANT_GRADIENTS_KEPT;
}
