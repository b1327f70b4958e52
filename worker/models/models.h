/*
 * What the model types share: building the tensor table, and finding a tensor's part of the flat buffers.
 */
#ifndef GACC_MODELS_H
#define GACC_MODELS_H

#include "worker/memory.h"
#include "worker/model.h"

/* Each fills table, stages and own of a model whose spec and compute_type are set. */
int gpt_build(struct model *model, struct error *error);
int cnn_build(struct model *model, struct error *error);
int mlp_build(struct model *model, struct error *error);
int linear_build(struct model *model, struct error *error);
int tape_build(struct model *model, struct error *error);

/* Room for `tensors` rows and those of adapters of `linears` layers, `stages` stages and `own_bytes` of zeroed memory
 * at model->own. */
int model_reserve(struct model *model, size_t tensors, size_t linears, size_t stages, size_t own_bytes,
                  struct error *error);
/* Appends a row with the shape and initialiser of `like`, named by the format; the row keeps its address. */
__attribute__((format(printf, 3, 4))) const struct tensor *table_add(struct tensor_table *table, struct tensor like,
                                                                     const char *format, ...);
/* The rows added since the last stage are its own. */
void model_add_stage(struct model *model, const struct stage_class *class, unsigned index, const void *parameters);

enum activation activation_of(Gacc__V1__Activation activation);

struct activated {
    enum activation activation;
    size_t width; /* elements of a row */
};
/* The stage; none for ACTIVATE_NONE. *activated is the model's memory. */
void activation_add(struct model *model, struct activated *activated, unsigned index);

/* A tensor's part of the flat buffers; NULL for a tensor that the model does not have (a bias). */
static inline const compute *tensor_parameters(const struct pass *pass, const struct tensor *tensor)
{
    if (!tensor) return NULL;
    const compute *values = tensor->frozen ? pass->frozen : pass->parameters;
    return (const char *)values + tensor->at * dtype_size(pass->kernels->compute_type);
}

/* NULL for one that is frozen, too. */
static inline wide *tensor_gradient(const struct pass *pass, const struct tensor *tensor)
{
    if (!tensor || tensor->frozen) return NULL;
    return (char *)pass->gradients + tensor->at * dtype_size(dtype_wide(pass->kernels->compute_type));
}

#endif
