/*
 * A model with parameters, memory and one micro-batch around it, for tests of models.
 */
#ifndef GACC_TRIAL_H
#define GACC_TRIAL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/statistics.h"

typedef struct kernels *(*kernels_opener)(const struct kernels_options *);

struct trial {
    struct kernels *kernels;
    struct model *model;
    struct data_shape shape;
    struct micro_batch *batch;
    struct activations *activations;
    struct statistics *statistics; /* NULL: the model has no sets */
    enum pass_sets sets;
    double *parameters; /* as double; what the kernels see is rounded from them at every pass */
    compute *rounded;
    wide *gradients;
    double loss;
};

/* Uniform in (−1, 1), the same for the same (seed, n). */
static inline double trial_random(uint64_t seed, uint64_t n)
{
    uint64_t z = (seed * 1000003 + n + 1) * 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return (double)(int64_t)(z ^ (z >> 31)) * 0x1p-63;
}

static inline size_t trial_parameters(const struct trial *trial)
{
    return trial->model->table.parameters;
}

/* Parameters ±0.5, norm weights 1 ± 0.5: nothing is near zero or symmetric, so that a wrong term shows. */
static inline struct trial trial_open(kernels_opener open, enum dtype type, const Gacc__V1__ModelSection *spec,
                                      size_t rows)
{
    struct trial trial = {0};
    struct error error = {0};
    trial.kernels = open(&(struct kernels_options){.compute_type = type, .threads = 1});
    assert_non_null(trial.kernels);
    if (model_open(&trial.model, spec, type, &error) < 0) fail_msg("%s", error.text);
    data_shape_of(spec, &trial.shape);
    assert_int_equal(micro_batch_open(&trial.batch, &trial.shape, rows, &error), 0);
    assert_int_equal(activations_open(&trial.activations, trial.model, trial.kernels, rows, true, &error), 0);
    if (trial.model->set_count > 0)
        assert_int_equal(statistics_open(&trial.statistics, trial.model, trial.kernels, 1, &error), 0);
    size_t wide_size = dtype_size(dtype_wide(type)), n = trial_parameters(&trial);
    trial.parameters = calloc(n, sizeof *trial.parameters);
    trial.rounded = calloc(n, dtype_size(type));
    trial.gradients = calloc(n, wide_size);
    for (size_t t = 0; t < trial.model->table.count; t++) {
        const struct tensor *tensor = &trial.model->table.tensors[t];
        for (uint64_t i = tensor->begin; i < tensor->begin + tensor->size; i++)
            trial.parameters[i] = 0.5 * trial_random(11, i) + (tensor->init == TENSOR_ONES);
    }
    return trial;
}

static inline void trial_close(struct trial *trial)
{
    activations_close(trial->activations);
    statistics_close(trial->statistics);
    micro_batch_close(trial->batch);
    model_close(trial->model);
    kernels_close(trial->kernels);
    free(trial->parameters);
    free(trial->rounded);
    free(trial->gradients);
}

/* Sequences first … first + rows − 1 of an endless data set of random numbers; weights 1. */
static inline void trial_read(struct trial *trial, uint64_t first, size_t rows)
{
    struct micro_batch *batch = trial->batch;
    const struct data_shape *shape = &trial->shape;
    size_t x = shape->size ? shape->size : shape->inputs;
    batch->rows = rows;
    for (size_t r = 0; r < rows; r++) {
        uint64_t s = first + r;
        batch->sequence[r] = s;
        batch->weight[r] = 1;
        if (batch->share) batch->share[r] = 1;
        for (size_t i = 0; i < shape->context; i++) {
            batch->tokens[r * shape->context + i] = (int32_t)(fabs(trial_random(1, s * 1000 + i)) * shape->vocab);
            batch->targets[r * shape->context + i] = (int32_t)(fabs(trial_random(1, s * 1000 + i + 1)) * shape->vocab);
        }
        for (size_t i = 0; i < x; i++) batch->x[r * x + i] = 2 * trial_random(2, s * 1000 + i);
        if (shape->classes)
            batch->targets[r] = (int32_t)(fabs(trial_random(3, s)) * shape->classes);
        else
            for (size_t i = 0; batch->y && i < shape->outputs; i++)
                batch->y[r * shape->outputs + i] = trial_random(4, s * 1000 + i);
    }
}

static inline double trial_wide(const struct trial *trial, const wide *values, size_t i)
{
    return trial->kernels->compute_type == DTYPE_FP64 ? ((const double *)values)[i]
                                                      : (double)((const float *)values)[i];
}

static inline void trial_set_wide(const struct trial *trial, wide *values, size_t i, double value)
{
    if (trial->kernels->compute_type == DTYPE_FP64)
        ((double *)values)[i] = value;
    else
        ((float *)values)[i] = (float)value;
}

static inline double trial_gradient(const struct trial *trial, size_t i)
{
    return trial_wide(trial, trial->gradients, i);
}

/* ‖a − b‖/‖b‖ of the gradients of parameters `begin` to `end`; no number that is small where b has none. */
static inline double trial_distance(const struct trial *a, const struct trial *b, size_t begin, size_t end)
{
    double difference = 0, norm = 0;
    for (size_t i = begin; i < end; i++) {
        difference += pow(trial_gradient(a, i) - trial_gradient(b, i), 2);
        norm += pow(trial_gradient(b, i), 2);
    }
    return sqrt(difference / norm);
}

/* One pass over the batch: the loss sum in trial->loss; with `averaging` not 0 the gradient of averaging · Σ w·ℓ is
 * added. */
static inline void trial_pass(struct trial *trial, double averaging, uint64_t attempt)
{
    size_t n = trial_parameters(trial);
    wide *master = calloc(n, dtype_size(dtype_wide(trial->kernels->compute_type)));
    for (size_t i = 0; i < n; i++) trial_set_wide(trial, master, i, trial->parameters[i]);
    trial->kernels->table->cast(trial->kernels, trial->rounded, master, n);
    free(master);
    for (size_t r = 0; r < trial->batch->rows; r++)
        trial_set_wide(trial, trial->batch->seed, r, averaging * trial->batch->weight[r]);
    *trial->batch->dropout_key = dropout_key(1337, attempt);
    trial->loss = 0;
    struct pass pass = {.kernels = trial->kernels,
                        .parameters = trial->rounded,
                        .gradients = averaging != 0 ? trial->gradients : NULL,
                        .batch = trial->batch,
                        .feed = feed_of(trial->batch, trial->batch->block),
                        .averaging = (long double)averaging,
                        .loss_sum = &trial->loss,
                        .statistics = trial->statistics,
                        .sets = trial->sets};
    if (attempt == 0) pass.feed.dropout_key = NULL;
    model_forward(trial->model, &pass, trial->activations);
    if (averaging != 0) model_backward(trial->model, &pass, trial->activations);
}

static inline void trial_clear(struct trial *trial)
{
    memset(trial->gradients, 0, trial_parameters(trial) * dtype_size(dtype_wide(trial->kernels->compute_type)));
}

/* Every element of every tensor that is not fixed against central differences of the loss sum (fp64). */
static inline void trial_check_gradient(struct trial *trial, uint64_t attempt, double tolerance)
{
    const double h = 1e-5;
    trial_clear(trial);
    trial_pass(trial, 1, attempt);
    for (size_t t = 0; t < trial->model->table.count; t++) {
        const struct tensor *tensor = &trial->model->table.tensors[t];
        double largest = 0, worst = 0;
        if (tensor->fixed) continue;
        for (uint64_t i = tensor->begin; i < tensor->begin + tensor->size; i++) {
            double at = trial->parameters[i];
            trial->parameters[i] = at + h;
            trial_pass(trial, 0, attempt);
            double above = trial->loss;
            trial->parameters[i] = at - h;
            trial_pass(trial, 0, attempt);
            trial->parameters[i] = at;
            double difference = (above - trial->loss) / (2 * h);
            largest = fmax(largest, fabs(trial_gradient(trial, i)));
            worst = fmax(worst, fabs(difference - trial_gradient(trial, i)));
        }
        /* a gradient of nothing (a bias before BatchNorm) leaves the differences' own noise */
        if (!(worst <= tolerance * fmax(largest, 1e-3)))
            fail_msg("%s: off by %g where the largest is %g", tensor->name, worst, largest);
    }
}

#endif
