/*
 * The layout table: which runs of the canonical index are trained, and in which group. Whatever goes over gradients or
 * parameters (norm, optimizer, blame) goes over segments, cut to the ranges a rank owns; a frozen tensor would have no
 * segment.
 */
#ifndef GACC_LAYOUT_H
#define GACC_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"
#include "worker/comm.h"
#include "worker/model.h"

/* Tensors that share a learning rate and a decay. */
struct group {
    double lr_ratio; /* lr = lr of the window × this: groups follow the schedule by their ratio */
    double weight_decay;
};

struct segment {
    uint64_t begin, end; /* in the canonical index */
    uint32_t tensor;     /* row of the tensor table */
    uint32_t group;
};

struct layout {
    struct segment *segments; /* ascending, not overlapping */
    size_t count;
    struct group *groups;
    size_t group_count;
};

/* The first group whose pattern (a glob) matches the tensor's name wins; tensors that none matches take the optimizer's
 * own lr and decay. Unless its group says otherwise, a tensor of fewer than two dimensions does not decay. A pattern
 * that matches no tensor: 78 naming it. */
int layout_open(struct layout *layout, const struct tensor_table *table, const Gacc__V1__OptimizerSection *optimizer,
                struct error *error);
void layout_close(struct layout *layout);

/* A run of a rank's shard buffer inside one group. */
struct run {
    uint64_t first, count; /* elements of the shard buffer */
    uint32_t group;
};
/* Segments ∩ the rank's ranges, as few runs as groups and gaps allow. *runs is the caller's, freed with free(). */
int layout_runs(const struct layout *layout, const struct shard_map *map, uint32_t rank, struct run **runs,
                size_t *count, struct error *error);

#endif
