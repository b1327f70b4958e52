/*
 * The driver of stages: builds a model by its type, holds the memory of one micro-batch, runs forward and backward.
 */
#include "worker/model.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/memory.h"
#include "worker/model_memory.h"
#include "worker/models/linear.h"
#include "worker/statistics.h"

static const struct {
    Gacc__V1__ModelType type;
    int (*build)(struct model *, struct error *);
} model_types[] = {
    {GACC__V1__MODEL_TYPE__MODEL_GPT, gpt_build},   {GACC__V1__MODEL_TYPE__MODEL_MLP, mlp_build},
    {GACC__V1__MODEL_TYPE__MODEL_CNN, cnn_build},   {GACC__V1__MODEL_TYPE__MODEL_LINEAR, linear_build},
    {GACC__V1__MODEL_TYPE__MODEL_TAPE, tape_build},
};

int model_open(struct model **out, const Gacc__V1__ModelSection *spec, enum dtype compute_type, struct error *error)
{
    *out = NULL;
    for (size_t i = 0; i < sizeof model_types / sizeof *model_types; i++) {
        if (model_types[i].type != spec->type) continue;
        struct model *model = calloc(1, sizeof *model);
        if (!model) return error_set(error, STATUS_INTERNAL, "out of memory for the model's table");
        model->spec = spec;
        model->compute_type = compute_type;
        model->targets_per_sequence = 1;
        model->recordable = true;
        int rc = model_types[i].build(model, error);
        if (rc == 0) rc = linear_adapt(model, error);
        if (rc < 0) {
            model_close(model);
            return rc;
        }
        *out = model;
        return 0;
    }
    return error_set(error, STATUS_JOB, "model.type: no model of type %d", (int)spec->type);
}

void model_close(struct model *model)
{
    if (!model) return;
    free(model->table.tensors);
    free(model->zeros.tensors);
    free(model->stages);
    free((void *)model->linears);
    free(model->own);
    free(model);
}

const struct tensor *tensor_find(const struct tensor_table *table, const char *name)
{
    for (size_t i = 0; i < table->count; i++)
        if (strcmp(table->tensors[i].name, name) == 0) return &table->tensors[i];
    return NULL;
}

/* --- building ----------------------------------------------------------------------------------------------------- */

int model_reserve(struct model *model, size_t tensors, size_t linears, size_t stages, size_t own_bytes,
                  struct error *error)
{
    model->table.tensors = calloc(tensors + 2 * linears, sizeof *model->table.tensors);
    model->zeros.tensors = calloc(tensors, sizeof *model->zeros.tensors);
    model->stages = calloc(stages, sizeof *model->stages);
    model->linears = calloc(linears + 1, sizeof(struct linear *));
    model->own = calloc(1, own_bytes);
    if (!model->table.tensors || !model->zeros.tensors || !model->stages || !model->linears || !model->own)
        return error_set(error, STATUS_INTERNAL, "out of memory for a table of %zu tensors", tensors);
    return 0;
}

const struct tensor *table_add(struct tensor_table *table, struct tensor like, const char *format, ...)
{
    struct tensor *tensor = &table->tensors[table->count++];
    *tensor = like;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(tensor->name, sizeof tensor->name, format, arguments);
    va_end(arguments);
    assert(length > 0 && (size_t)length < sizeof tensor->name);
    (void)length;
    tensor->begin = tensor->at = table->parameters;
    tensor->size = 1;
    for (int d = 0; d < tensor->dimensions; d++) tensor->size *= tensor->shape[d];
    table->parameters += tensor->size;
    table->trained = table->parameters;
    return tensor;
}

void model_add_stage(struct model *model, const struct stage_class *class, unsigned index, const void *parameters)
{
    const struct stage *before = model->stage_count > 0 ? &model->stages[model->stage_count - 1] : NULL;
    const size_t first = before ? before->first + before->count : 0;
    model->recordable = model->recordable && !class->works_on_host;
    model->stages[model->stage_count++] = (struct stage){.class = class,
                                                         .model = model,
                                                         .index = index,
                                                         .set = class->statistics ? model->set_count++ : 0,
                                                         .first = first,
                                                         .count = model->table.count - first,
                                                         .begin = before ? before->end : 0,
                                                         .end = model->table.parameters,
                                                         .parameters = parameters};
}

static uint64_t count_trained(const struct tensor_table *table, const bool *frozen, size_t first, size_t count)
{
    uint64_t trained = 0;
    for (size_t row = first; row < first + count; row++)
        if (!frozen[row]) trained += table->tensors[row].size;
    return trained;
}

void model_freeze(struct model *model, const bool *frozen)
{
    struct tensor_table *table = &model->table;
    uint64_t trained = 0, still = 0;
    for (size_t i = 0; i < table->count; i++) {
        struct tensor *tensor = &table->tensors[i];
        assert(frozen[i] || !tensor->fixed);
        uint64_t *index = frozen[i] ? &still : &trained;
        tensor->frozen = frozen[i];
        tensor->at = *index;
        *index += tensor->size;
    }
    table->trained = trained;
    uint64_t at = 0;
    model->first_trained = model->stage_count;
    for (size_t i = 0; i < model->stage_count; i++) {
        struct stage *stage = &model->stages[i];
        stage->begin = at;
        at += count_trained(table, frozen, stage->first, stage->count);
        at += count_trained(table, frozen, stage->first_adapter, stage->adapter_count);
        stage->end = at;
        if (at > 0 && i < model->first_trained) model->first_trained = i;
    }
    assert(at == trained && trained > 0);
}

enum activation activation_of(Gacc__V1__Activation activation)
{
    static const enum activation activations[] = {
        [GACC__V1__ACTIVATION__ACTIVATION_NONE] = ACTIVATE_NONE,
        [GACC__V1__ACTIVATION__ACTIVATION_RELU] = ACTIVATE_RELU,
        [GACC__V1__ACTIVATION__ACTIVATION_TANH] = ACTIVATE_TANH,
        [GACC__V1__ACTIVATION__ACTIVATION_GELU] = ACTIVATE_GELU,
        [GACC__V1__ACTIVATION__ACTIVATION_GELU_TANH] = ACTIVATE_GELU_TANH,
    };
    return activations[activation];
}

/* --- a micro-batch in the backend's memory ------------------------------------------------------------------------ */

/* An array of the block, in its copy. */
static const void *in_copy(const struct micro_batch *batch, const void *array, const void *block)
{
    return array ? (const char *)block + ((const char *)array - (const char *)batch->block) : NULL;
}

struct feed feed_of(const struct micro_batch *batch, const void *block)
{
    return (struct feed){
        .rows = batch->rows,
        .sequence = in_copy(batch, batch->sequence, block),
        .weight = in_copy(batch, batch->weight, block),
        .seed = in_copy(batch, batch->seed, block),
        .tokens = in_copy(batch, batch->tokens, block),
        .targets = in_copy(batch, batch->targets, block),
        .x = in_copy(batch, batch->x, block),
        .y = in_copy(batch, batch->y, block),
        .share = in_copy(batch, batch->share, block),
        .dropout_key = in_copy(batch, batch->dropout_key, block),
    };
}

/* --- the memory of one micro-batch -------------------------------------------------------------------------------- */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static bool is_recomputed(const struct stage *stage)
{
    return stage->model->recomputes && stage->class->recompute;
}

static size_t bytes_of(size_t (*bytes)(const struct stage *, size_t rows), const struct stage *stage, size_t rows)
{
    return bytes ? bytes(stage, rows) : 0;
}

size_t stage_out_bytes(const struct stage *stage, size_t rows)
{
    return bytes_of(stage->class->out_bytes, stage, rows);
}

/* Forward only, a stage's saved memory is free for the next one, and two outputs take turns. With a backward every
 * stage has both for itself, but recomputed ones share the saved memory of one. Returns the bytes of it all. */
static size_t lay_out(struct activations *activations, const struct model *model)
{
    size_t out_most = 0, saved_most = 0, recomputed_most = 0, scratch_most = 0;
    struct carver carver = {.base = (uintptr_t)activations->arena};
    for (size_t i = 0; i < model->stage_count; i++) {
        const struct stage *stage = &model->stages[i];
        size_t out = stage_out_bytes(stage, activations->rows);
        size_t saved = bytes_of(stage->class->saved_bytes, stage, activations->rows);
        out_most = larger(out_most, out);
        saved_most = larger(saved_most, saved);
        scratch_most = larger(scratch_most, bytes_of(stage->class->scratch_bytes, stage, activations->rows));
        if (is_recomputed(stage)) recomputed_most = larger(recomputed_most, saved);
        if (!activations->backward) continue;
        activations->stages[i].out = carve(&carver, out);
        if (!is_recomputed(stage)) activations->stages[i].saved = carve(&carver, saved);
    }
    void *shared[2] = {carve(&carver, out_most), carve(&carver, out_most)};
    activations->scratch = carve(&carver, scratch_most);
    if (activations->backward) {
        memcpy(activations->gradient, shared, sizeof shared);
        void *recomputed = recomputed_most > 0 ? carve(&carver, recomputed_most) : NULL;
        for (size_t i = 0; i < model->stage_count; i++)
            if (is_recomputed(&model->stages[i])) activations->stages[i].saved = recomputed;
        return carver.used;
    }
    void *saved = carve(&carver, saved_most);
    for (size_t i = 0; i < model->stage_count; i++) {
        activations->stages[i].out = shared[i % 2];
        activations->stages[i].saved = saved;
    }
    return carver.used;
}

/* Laid out from address 0. */
static struct activations *measured(const struct model *model, size_t rows, bool backward)
{
    struct activations *activations = calloc(1, sizeof *activations + model->stage_count * sizeof *activations->stages);
    if (!activations) return NULL;
    activations->rows = rows;
    activations->backward = backward;
    activations->bytes = lay_out(activations, model);
    return activations;
}

int activations_open(struct activations **out, const struct model *model, struct kernels *kernels, size_t rows,
                     bool backward, struct error *error)
{
    *out = NULL;
    struct activations *activations = measured(model, rows, backward);
    if (!activations) return error_set(error, STATUS_INTERNAL, "out of memory for the table of activations");
    activations->kernels = kernels;
    int rc =
        memory_reserve(kernels, &activations->arena, activations->bytes, "the activations of a micro-batch", error);
    if (rc < 0) {
        free(activations);
        return rc;
    }
    lay_out(activations, model);
    *out = activations;
    return 0;
}

size_t activations_bytes(const struct activations *activations)
{
    return activations->bytes;
}

size_t activations_measure(const struct model *model, size_t rows, bool backward)
{
    struct activations *activations = measured(model, rows, backward);
    size_t bytes = activations ? activations->bytes : SIZE_MAX;
    free(activations);
    return bytes;
}

void activations_close(struct activations *activations)
{
    if (!activations) return;
    activations->kernels->table->release(activations->kernels, activations->arena);
    free(activations);
}

/* --- the passes ----------------------------------------------------------------------------------------------------
 */

size_t stage_channels(const struct stage *stage)
{
    return stage->class->statistics ? stage->class->statistics(stage, NULL, NULL) : 0;
}

/* A micro-batch that is a part of a set that other ranks complete. */
static void complete_set(const struct stage *stage, struct pass *pass, const compute *in, void *scratch)
{
    if (!stage->class->statistics || pass->sets != SETS_OF_RANKS) return;
    struct stage_statistics *set = &pass->statistics->stages[stage->set];
    statistics_begin_set(set);
    stage->class->add_moments(stage, pass, in, scratch);
    statistics_settle(pass->statistics, set);
}

/* The same of what its backward needs. */
static void complete_sums(const struct stage *stage, struct pass *pass, const compute *dout, const compute *in,
                          void *saved, void *scratch)
{
    if (!stage->class->statistics || pass->sets != SETS_OF_RANKS) return;
    struct stage_statistics *set = &pass->statistics->stages[stage->set];
    statistics_begin_sums(set);
    stage->class->add_sums(stage, pass, dout, in, saved, scratch);
    statistics_settle_sums(pass->statistics, set);
}

void model_forward(const struct model *model, struct pass *pass, struct activations *activations)
{
    assert(pass->feed.rows <= activations->rows);
    size_t last = model->stage_count - 1;
    for (size_t i = 0; i <= last; i++) {
        const struct stage *stage = &model->stages[i];
        if (pass->overlap.needs) pass->overlap.needs(pass->overlap.context, stage->begin, stage->end);
        const compute *in = i > 0 ? activations->stages[i - 1].out : NULL;
        complete_set(stage, pass, in, activations->scratch);
        stage->class->forward(stage, pass, in, i < last ? activations->stages[i].out : NULL,
                              activations->stages[i].saved, activations->scratch);
        if (is_recomputed(stage)) activations->in_shared = stage;
    }
}

/* Once more what forward left in `saved` of stage i. */
static void recompute(const struct model *model, size_t i, const struct pass *pass, const compute *in,
                      struct activations *activations)
{
    const struct stage *stage = &model->stages[i];
    struct pass again = *pass;
    if (again.recomputed_with) again.recomputed_with(&again, &in, activations->stages[i].out);
    stage->class->recompute(stage, &again, in, activations->stages[i].saved, activations->scratch);
}

void model_backward(const struct model *model, struct pass *pass, struct activations *activations)
{
    assert(activations->backward && pass->gradients);
    size_t last = model->stage_count - 1;
    for (size_t i = last + 1; i-- > model->first_trained;) {
        const struct stage *stage = &model->stages[i];
        const compute *in = i > 0 ? activations->stages[i - 1].out : NULL;
        void *saved = activations->stages[i].saved;
        if (is_recomputed(stage) && activations->in_shared != stage) recompute(model, i, pass, in, activations);
        const compute *dout = i < last ? activations->gradient[i % 2] : NULL;
        complete_sums(stage, pass, dout, in, saved, activations->scratch);
        stage->class->backward(stage, pass, i > 0 ? activations->gradient[(i - 1) % 2] : NULL, dout, in, saved,
                               activations->scratch);
        if (pass->overlap.complete) pass->overlap.complete(pass->overlap.context, stage->begin);
    }
}

void model_run_nothing(const struct model *model, struct statistics *statistics)
{
    for (size_t i = 0; i < model->set_count; i++) {
        statistics_begin_set(&statistics->stages[i]);
        statistics_settle(statistics, &statistics->stages[i]);
    }
    for (size_t i = model->stage_count; i-- > model->first_trained;) {
        if (!model->stages[i].class->statistics) continue;
        struct stage_statistics *set = &statistics->stages[model->stages[i].set];
        statistics_begin_sums(set);
        statistics_settle_sums(statistics, set);
    }
}
