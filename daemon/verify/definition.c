#include "daemon/verify/definition.h"

#include <math.h>
#include <string.h>

#include "worker/data/data.h"
#include "worker/model.h"
#include "worker/statistics.h"

/* One sequence at a time. */
struct reader {
    const Gacc__V1__JobSpec *job;
    const double *parameters;
    struct model *model;
    struct data *data;
    struct micro_batch *batch;
    struct activations *activations;
    struct statistics *statistics; /* NULL: the model has no norm that goes by running ones */
    struct kernels *kernels;
};

static int open_running(struct reader *reader, struct error *error)
{
    if (reader->model->set_count == 0) return 0;
    int result = statistics_open(&reader->statistics, reader->model, 1, error);
    for (size_t i = 0; i < reader->model->set_count && !result; i++) {
        const struct stage_statistics *stage = &reader->statistics->stages[i];
        const size_t bytes = stage->channels * sizeof *stage->running;
        memcpy(stage->running, reader->parameters + stage->running_mean->begin, bytes);
        memcpy(stage->running + stage->channels, reader->parameters + stage->running_variance->begin, bytes);
    }
    return result;
}

static int open_reader(struct reader *reader, struct error *error)
{
    struct data_shape shape;
    data_shape_of(reader->job->model, &shape);
    int result = model_open(&reader->model, reader->job->model, DTYPE_FP64, error);
    if (!result) result = data_open(&reader->data, reader->job->data, 't', &shape, error);
    if (!result) result = micro_batch_open(&reader->batch, &shape, 1, error);
    if (!result) result = open_running(reader, error);
    if (result) return result;
    reader->kernels = kernels_open_cpu(&(struct kernels_options){.compute_type = DTYPE_FP64, .threads = 1});
    if (!reader->kernels) return error_set(error, STATUS_INTERNAL, "out of memory for the kernels' scratch");
    return activations_open(&reader->activations, reader->model, reader->kernels, 1, false, error);
}

static void close_reader(struct reader *reader)
{
    activations_close(reader->activations);
    statistics_close(reader->statistics);
    kernels_close(reader->kernels);
    micro_batch_close(reader->batch);
    data_close(reader->data);
    model_close(reader->model);
}

/* The sum over its targets of the loss, and what each of them weighs; *whole: the weight of all of them. */
static int read_sequence(struct reader *reader, uint32_t position, double *loss, double *weight, double *whole,
                         struct error *error)
{
    struct micro_batch *batch = reader->batch;
    const uint64_t sequence = data_sequence_at(reader->data, reader->job->job->seed, 0, position);
    micro_batch_clear(batch);
    int result = data_read(reader->data, sequence, batch, error);
    if (result) return result;
    *weight = batch->weight[0];
    *whole = batch->weight_sum;
    batch->weight[0] = 1;
    *loss = 0;
    struct pass pass = {.kernels = reader->kernels,
                        .parameters = reader->parameters,
                        .batch = batch,
                        .feed = feed_of(batch, batch->block),
                        .loss_sum = loss,
                        .statistics = reader->statistics,
                        .is_by_running = true};
    pass.feed.dropout_key = NULL;
    model_forward(reader->model, &pass, reader->activations);
    return 0;
}

int definition_loss(const Gacc__V1__JobSpec *job, const double *parameters, uint32_t sequences, uint32_t micro,
                    double *loss, struct error *error)
{
    struct reader reader = {.job = job, .parameters = parameters};
    long double sum = 0, weight_sum = 0, of_micro_batch = 0, micro_weight = 0, means = 0; /* weights have any size */
    uint32_t micro_batches = 0;
    int result = open_reader(&reader, error);
    for (uint32_t i = 0; i < sequences && !result; i++) {
        double one, weight, whole;
        if ((result = read_sequence(&reader, i, &one, &weight, &whole, error))) break;
        if (weight > 0) of_micro_batch += (long double)weight * (long double)one; /* what is masked may hold anything */
        micro_weight += (long double)whole;
        if ((i + 1) % micro && i + 1 < sequences) continue;
        if (micro_weight > 0) {
            sum += of_micro_batch;
            weight_sum += micro_weight;
            means += of_micro_batch / micro_weight;
            micro_batches++;
        }
        of_micro_batch = micro_weight = 0;
    }
    close_reader(&reader);
    switch (job->batch->weighting) {
    case GACC__V1__WEIGHTING__WEIGHTING_MICROBATCH:
        *loss = (double)(means / micro_batches);
        break;
    case GACC__V1__WEIGHTING__WEIGHTING_SUM:
        *loss = weight_sum > 0 ? (double)sum : (double)NAN;
        break;
    default:
        *loss = (double)(sum / weight_sum);
    }
    return result;
}
