/*
 * A norm as a stage of its own: LayerNorm over a row, GroupNorm over groups of a row's channels, BatchNorm over each
 * channel of a set of rows.
 */
#ifndef GACC_MODELS_NORM_H
#define GACC_MODELS_NORM_H

#include "worker/models/models.h"

struct norm {
    Gacc__V1__Norm kind;
    size_t positions, channels, groups;                   /* as in struct norm_shape */
    const struct tensor *weight, *bias;                   /* [channels]; bias NULL: it has none */
    const struct tensor *running_mean, *running_variance; /* [channels], of BatchNorm */
};

#define NORM_TENSORS 4 /* at most */

/* Adds tensors norms.INDEX.… and the stage, of rows of [positions, channels] as the job's model.norm says. *norm is the
 * model's memory. */
void norm_add(struct model *model, struct norm *norm, unsigned index, size_t positions, size_t channels);

#endif
