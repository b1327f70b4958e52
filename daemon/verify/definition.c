#include "daemon/verify/definition.h"

#include <math.h>
#include <string.h>

#include "worker/data/data.h"
#include "worker/model.h"
#include "worker/statistics.h"

/* One sequence at a time, or a set of them. */
struct reader {
    const Gacc__V1__JobSpec *job;
    const double *parameters;
    struct model *model;
    struct data *data;
    struct micro_batch *batch;
    struct activations *activations;
    struct statistics *statistics; /* NULL: the model has no norm that goes by running ones */
    struct kernels *kernels;
    long double penalties, penalised; /* of a penalty that is estimated once a step: Σ w·P and Σ w of its rows */
};

static int open_running(struct reader *reader, struct error *error)
{
    if (reader->model->set_count == 0) return 0;
    int result = statistics_open(&reader->statistics, reader->model, reader->kernels, 1, error);
    for (size_t i = 0; i < reader->model->set_count && !result; i++) {
        const struct stage_statistics *stage = &reader->statistics->stages[i];
        const size_t bytes = stage->channels * sizeof *stage->running;
        memcpy(stage->running, reader->parameters + stage->running_mean->begin, bytes);
        memcpy(stage->running + stage->channels, reader->parameters + stage->running_variance->begin, bytes);
    }
    return result;
}

static int open_reader(struct reader *reader, uint32_t rows, struct error *error)
{
    struct data_shape shape;
    data_shape_of(reader->job->model, &shape);
    int result = model_open(&reader->model, reader->job->model, DTYPE_FP64, error);
    if (!result) result = data_open(&reader->data, reader->job->data, 't', &shape, error);
    if (!result) result = micro_batch_open(&reader->batch, &shape, rows, error);
    if (result) return result;
    reader->kernels = kernels_open_cpu(&(struct kernels_options){.compute_type = DTYPE_FP64, .threads = 1});
    if (!reader->kernels) return error_set(error, STATUS_INTERNAL, "out of memory for the kernels' scratch");
    result = open_running(reader, error);
    if (result) return result;
    return activations_open(&reader->activations, reader->model, reader->kernels, rows, false, error);
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

static uint64_t sequence_at(const struct reader *reader, uint32_t position)
{
    return data_sequence_at(reader->data, reader->job->job->seed, 0, position);
}

static struct pass pass_over(const struct reader *reader, double *loss)
{
    struct pass pass = {.kernels = reader->kernels,
                        .parameters = reader->parameters,
                        .batch = reader->batch,
                        .feed = feed_of(reader->batch, reader->batch->block),
                        .loss_sum = loss,
                        .statistics = reader->statistics,
                        .sets = SETS_RUNNING};
    pass.feed.dropout_key = NULL;
    return pass;
}

/* The loss of the sequence in the batch, each of its targets weighing 1. */
static double loss_of_sequence(struct reader *reader)
{
    double loss = 0;
    struct pass pass = pass_over(reader, &loss);
    model_forward(reader->model, &pass, reader->activations);
    return loss;
}

/* The sum over its targets of the loss, and what each of them weighs; *whole: the weight of all of them. *penalty: of a
 * penalty that is estimated once a step, which is then not in the loss; else 0. */
static int read_sequence(struct reader *reader, uint32_t position, double *loss, double *penalty, double *weight,
                         double *whole, struct error *error)
{
    struct micro_batch *batch = reader->batch;
    micro_batch_clear(batch);
    int result = data_read(reader->data, sequence_at(reader, position), batch, error);
    if (result) return result;
    *weight = batch->weight[0];
    *whole = batch->weight_sum;
    batch->weight[0] = 1;
    *loss = loss_of_sequence(reader);
    *penalty = 0;
    if (!batch->share || reader->job->model->penalty_rows == 0) return 0;
    batch->share[0] = 0;
    *penalty = *loss;
    *loss = loss_of_sequence(reader);
    *penalty -= *loss;
    return 0;
}

/* Sequences i with their sum of w·ℓ and of w; what is masked may hold anything. */
static int read_one_by_one(struct reader *reader, uint32_t first, uint32_t count, long double *loss,
                           long double *weight, struct error *error)
{
    int result = 0;
    for (uint32_t i = first; i < first + count && !result; i++) {
        double one, penalty, each, whole;
        result = read_sequence(reader, i, &one, &penalty, &each, &whole, error);
        if (!result && each > 0 && i < reader->job->model->penalty_rows) {
            reader->penalties += (long double)each * (long double)penalty;
            reader->penalised += (long double)each;
        }
        if (!result && each > 0) *loss += (long double)each * (long double)one;
        if (!result) *weight += (long double)whole;
    }
    return result;
}

/* The same of sequences that BatchNorm takes together. */
static int read_set(struct reader *reader, uint32_t first, uint32_t count, long double *loss, long double *weight,
                    struct error *error)
{
    struct micro_batch *batch = reader->batch;
    double sum = 0;
    int result = 0;
    micro_batch_clear(batch);
    for (uint32_t i = first; i < first + count && !result; i++)
        result = data_read(reader->data, sequence_at(reader, i), batch, error);
    if (result || !(batch->weight_sum > 0)) return result;
    struct pass pass = pass_over(reader, &sum);
    pass.sets = SETS_OWN;
    model_forward(reader->model, &pass, reader->activations);
    *loss = (long double)sum;
    *weight = (long double)batch->weight_sum;
    return 0;
}

int definition_loss(const Gacc__V1__JobSpec *job, const double *parameters, uint32_t sequences, uint32_t micro,
                    double *loss, struct error *error)
{
    const bool has_sets = job->model->norm == GACC__V1__NORM__NORM_BATCH &&
                          job->model->norm_stats != GACC__V1__NORM_STATS__NORM_STATS_FROZEN;
    const bool at_once = has_sets && job->model->norm_stats == GACC__V1__NORM_STATS__NORM_STATS_WINDOW;
    const uint32_t part = at_once ? sequences : micro;
    struct reader reader = {.job = job, .parameters = parameters};
    long double sum = 0, weight_sum = 0, means = 0; /* weights have any size */
    uint32_t micro_batches = 0;
    int result = open_reader(&reader, has_sets ? part : 1, error);
    for (uint32_t first = 0; first < sequences && !result; first += part) {
        const uint32_t count = sequences - first < part ? sequences - first : part;
        long double of_part = 0, weight = 0;
        result = (has_sets ? read_set : read_one_by_one)(&reader, first, count, &of_part, &weight, error);
        if (result || !(weight > 0)) continue;
        sum += of_part;
        weight_sum += weight;
        means += of_part / weight;
        micro_batches++;
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
    if (reader.penalised > 0) *loss += (double)(reader.penalties / reader.penalised);
    return result;
}
