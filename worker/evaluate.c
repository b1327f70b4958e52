/* The validation loss: each rank's contiguous block, forward only, dropout off. */
#include "worker/session_internal.h"

/* Sequences [first, first + up to b) into the batch. */
static int read_block(struct session *session, uint64_t first, uint64_t end, struct error *error)
{
    struct micro_batch *batch = session->batch;
    micro_batch_clear(batch);
    for (uint64_t sequence = first; sequence < end && batch->rows < batch->capacity; sequence++) {
        int result = data_read(session->validation, sequence, batch, error);
        if (result) return result;
    }
    micro_batch_scale(batch);
    return 0;
}

/* Goes over sequences [first, end): the losses into the session's results, the weights into the evaluation's. */
static int add_losses(struct session *session, uint64_t first, uint64_t end, Gacc__V1__Evaluation *evaluation,
                      struct error *error)
{
    struct micro_batch *batch = session->batch;
    uint64_t micro_batches = (end - first + batch->capacity - 1) / batch->capacity;
    int result = results_begin(&session->results, (uint32_t)micro_batches, error);
    for (uint64_t at = first; at < end && !result; at += batch->rows) {
        result = read_block(session, at, end, error);
        if (result || !(batch->weight_sum > 0)) continue;
        struct pass pass = window_pass_forward(session);
        pass.overlap = overlap_first(session);
        model_forward(session->model, &pass, session->activations);
        results_keep_loss(&session->results, (struct loss_unit){batch->exponent, batch->weight_sum});
        evaluation->weight += batch->weight_sum;
        comm_progress(session->comm);
    }
    return result ? result : results_read(&session->results, error);
}

bool evaluate(struct session *session, Gacc__V1__Evaluation *result)
{
    if (!session->validation) return false;
    double started = seconds_now();
    uint64_t sequences = session_evaluation_sequences(session);
    uint64_t first = sequences * session->comm->rank / session->comm->ranks;
    uint64_t end = sequences * (session->comm->rank + 1) / session->comm->ranks;
    if (add_losses(session, first, end, result, &session->failure)) return false;
    result->loss_sum = split_loss(results_loss_sum(&session->results, false), &result->loss_exponent);
    result->sequences = end - first;
    result->seconds = seconds_now() - started;
    return true;
}
