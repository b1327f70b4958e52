/* The validation loss: each rank's contiguous block, forward only, dropout off. */
#include <math.h>

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

bool evaluate(struct session *session, Gacc__V1__Evaluation *result)
{
    if (!session->validation) return false;
    double started = seconds_now();
    uint64_t sequences = session_evaluation_sequences(session);
    uint64_t first = sequences * session->comm->rank / session->comm->ranks;
    uint64_t end = sequences * (session->comm->rank + 1) / session->comm->ranks;
    long double loss_sum = 0;
    for (uint64_t at = first; at < end; at += session->batch->rows) {
        struct error unreadable = {0};
        if (read_block(session, at, end, &unreadable)) {
            session->failure = unreadable;
            return false;
        }
        result->weight += session->batch->weight_sum;
        struct pass pass = {.kernels = session->kernels, .parameters = session->parameters, .batch = session->batch};
        if (session->batch->weight_sum > 0) model_forward(session->model, &pass, session->activations);
        loss_sum += ldexpl((long double)pass.loss_sum, session->batch->exponent);
        comm_progress(session->comm);
    }
    result->loss_sum = split_loss(loss_sum, &result->loss_exponent);
    result->sequences = end - first;
    result->seconds = seconds_now() - started;
    return true;
}
