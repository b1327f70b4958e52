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
#include "worker/models/models.h"

static const struct {
    Gacc__V1__ModelType type;
    int (*build)(struct model *, struct error *);
} model_types[] = {
    {GACC__V1__MODEL_TYPE__MODEL_GPT, gpt_build},
    {GACC__V1__MODEL_TYPE__MODEL_MLP, mlp_build},
    {GACC__V1__MODEL_TYPE__MODEL_LINEAR, linear_build},
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
        int rc = model_types[i].build(model, error);
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

int model_reserve(struct model *model, size_t tensors, size_t stages, size_t own_bytes, struct error *error)
{
    model->table.tensors = calloc(tensors, sizeof *model->table.tensors);
    model->zeros.tensors = calloc(tensors, sizeof *model->zeros.tensors);
    model->stages = calloc(stages, sizeof *model->stages);
    model->own = calloc(1, own_bytes);
    if (!model->table.tensors || !model->zeros.tensors || !model->stages || !model->own)
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
    tensor->begin = table->parameters;
    tensor->size = 1;
    for (int d = 0; d < tensor->dimensions; d++) tensor->size *= tensor->shape[d];
    table->parameters += tensor->size;
    return tensor;
}

void model_add_stage(struct model *model, const struct stage_class *class, unsigned index, const void *parameters)
{
    model->stages[model->stage_count++] =
        (struct stage){.class = class, .model = model, .index = index, .parameters = parameters};
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

/* --- the memory of one micro-batch -------------------------------------------------------------------------------- */

struct activations {
    size_t rows;
    bool backward;
    void *arena;
    size_t bytes;
    void *scratch;
    void *gradient[2]; /* of the outputs of even and odd stages: a backward reads one and writes the other */
    struct {
        void *out, *saved;
    } stages[];
};

/* Forward only, a stage's saved memory is free for the next one, and two outputs take turns. */
static void lay_out(struct activations *activations, const struct model *model, struct carver *carver)
{
    size_t out_most = 0, saved_most = 0, scratch_most = 0;
    for (size_t i = 0; i < model->stage_count; i++) {
        const struct stage *stage = &model->stages[i];
        size_t out = stage->class->out_bytes(stage, activations->rows);
        size_t saved = stage->class->saved_bytes(stage, activations->rows);
        size_t scratch = stage->class->scratch_bytes(stage, activations->rows);
        if (out > out_most) out_most = out;
        if (saved > saved_most) saved_most = saved;
        if (scratch > scratch_most) scratch_most = scratch;
        if (!activations->backward) continue;
        activations->stages[i].out = carve(carver, out);
        activations->stages[i].saved = carve(carver, saved);
    }
    void *shared[2] = {carve(carver, out_most), carve(carver, out_most)};
    activations->scratch = carve(carver, scratch_most);
    if (activations->backward) {
        memcpy(activations->gradient, shared, sizeof shared);
        return;
    }
    void *saved = carve(carver, saved_most);
    for (size_t i = 0; i < model->stage_count; i++) {
        activations->stages[i].out = shared[i % 2];
        activations->stages[i].saved = saved;
    }
}

int activations_open(struct activations **out, const struct model *model, size_t rows, bool backward,
                     struct error *error)
{
    *out = NULL;
    struct activations *activations = calloc(1, sizeof *activations + model->stage_count * sizeof *activations->stages);
    if (!activations) return error_set(error, STATUS_INTERNAL, "out of memory for the table of activations");
    activations->rows = rows;
    activations->backward = backward;
    struct carver carver = {0};
    lay_out(activations, model, &carver);
    activations->bytes = carver.used;
    int rc = memory_new(&activations->arena, carver.used, 1, "the activations of a micro-batch", error);
    if (rc < 0) {
        free(activations);
        return rc;
    }
    carver = (struct carver){.base = (uintptr_t)activations->arena};
    lay_out(activations, model, &carver);
    *out = activations;
    return 0;
}

size_t activations_bytes(const struct activations *activations)
{
    return activations->bytes;
}

void activations_close(struct activations *activations)
{
    if (!activations) return;
    free(activations->arena);
    free(activations);
}

/* --- the passes ----------------------------------------------------------------------------------------------------
 */

void model_forward(const struct model *model, struct pass *pass, struct activations *activations)
{
    assert(pass->batch->rows <= activations->rows);
    size_t last = model->stage_count - 1;
    for (size_t i = 0; i <= last; i++) {
        const struct stage *stage = &model->stages[i];
        stage->class->forward(stage, pass, i > 0 ? activations->stages[i - 1].out : NULL,
                              i < last ? activations->stages[i].out : NULL, activations->stages[i].saved,
                              activations->scratch);
    }
}

void model_backward(const struct model *model, struct pass *pass, struct activations *activations)
{
    assert(activations->backward && pass->gradients);
    size_t last = model->stage_count - 1;
    for (size_t i = last + 1; i-- > 0;) {
        const struct stage *stage = &model->stages[i];
        stage->class->backward(stage, pass, i > 0 ? activations->gradient[(i - 1) % 2] : NULL,
                               i < last ? activations->gradient[i % 2] : NULL,
                               i > 0 ? activations->stages[i - 1].out : NULL, activations->stages[i].saved,
                               activations->scratch);
    }
}
