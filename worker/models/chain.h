/* Linear layers one behind the other, with the loss behind the last: what mlp is, and how cnn ends. */
#ifndef GACC_MODELS_CHAIN_H
#define GACC_MODELS_CHAIN_H

#include "worker/models/linear.h"
#include "worker/models/norm.h"

/* Of the model's memory, and rows and stages for model_reserve: of model.hidden and model.outputs. */
size_t chain_bytes(const Gacc__V1__ModelSection *spec);
size_t chain_tensors(const Gacc__V1__ModelSection *spec);
size_t chain_linears(const Gacc__V1__ModelSection *spec);
size_t chain_stages(const Gacc__V1__ModelSection *spec);
/* Layers `first`, first + 1, …, of rows of `inputs` numbers: the data's (`reads_data`) or what the stage before hands
 * on. `memory` [chain_bytes] is the model's. */
void chain_add(struct model *model, void *memory, unsigned first, size_t inputs, bool reads_data);

#endif
