/*
 * Who made a gradient non-finite. Costs nothing until a step is skipped; then data and dropout are keyed, so that every
 * micro-batch can be run again exactly as it was.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "worker/session_internal.h"

/* The first tensor, in table order, whose gradient on this rank is not finite; NULL: none, or nobody can tell. */
static const struct tensor *nonfinite_tensor(struct session *session)
{
    const struct layout *layout = &session->layout;
    struct results *results = &session->results;
    if (results_begin(results, 0, NULL)) return NULL;
    for (size_t i = 0; i < layout->count; i++) {
        const struct segment *segment = &layout->segments[i];
        session->kernels->table->check(session->kernels, results_tensor_check(results, i),
                                       element(session->gradients, segment->begin, session->wide_type),
                                       segment->end - segment->begin, 1);
    }
    if (results_read(results, NULL)) return NULL;
    for (size_t i = 0; i < layout->count; i++)
        if (results_tensor_check_read(results, i).nonfinite)
            return &session->model->table.tensors[layout->segments[i].tensor];
    return NULL;
}

/* Leaves the first own micro-batch whose gradient alone is not finite in the session's batch. */
static bool replay(struct session *session, const struct step *step)
{
    for (uint32_t k = 0; k < step->share.count; k++) {
        if (window_read(session, step->plan, step->share.first + k, NULL)) return false;
        if (!(session->batch->weight_sum > 0)) continue;
        window_clear_gradients(session);
        struct pass pass = window_pass(session, step);
        if (pass.sets != SETS_RUNNING) pass.sets = SETS_OWN;
        model_forward(session->model, &pass, session->activations);
        model_backward(session->model, &pass, session->activations);
        if (nonfinite_tensor(session)) return true;
    }
    return false;
}

static void name_sequences(const struct session *session, Gacc__V1__Blame *blame)
{
    const struct micro_batch *batch = session->batch;
    Gacc__V1__SequenceRef *references = calloc(batch->rows, sizeof *references);
    blame->sequences = calloc(batch->rows, sizeof *blame->sequences);
    if (!references || !blame->sequences) {
        free(references);
        return;
    }
    blame->n_sequences = batch->rows;
    for (size_t row = 0; row < batch->rows; row++) {
        const char *file;
        gacc__v1__sequence_ref__init(&references[row]);
        references[row].index = batch->sequence[row];
        data_locate(session->train, batch->sequence[row], &file, &references[row].offset);
        references[row].file = (char *)(uintptr_t)file;
        blame->sequences[row] = &references[row];
    }
}

Gacc__V1__Blame *blame_find(struct session *session, const struct step *step)
{
    const struct tensor *tensor = nonfinite_tensor(session);
    Gacc__V1__Blame *blame = tensor ? malloc(sizeof *blame) : NULL;
    if (!blame) return NULL;
    gacc__v1__blame__init(blame);
    blame->tensor = (char *)(uintptr_t)tensor->name;
    if (replay(session, step)) {
        blame->has_micro_batch = true;
        blame->micro_batch = session->batch->index;
        name_sequences(session, blame);
    }
    return blame;
}

void blame_free(Gacc__V1__Blame *blame)
{
    if (!blame) return;
    if (blame->n_sequences > 0) free(blame->sequences[0]); /* one array holds them all */
    free(blame->sequences);
    free(blame);
}
