/*
 * The layout table: which tensors are trained and which are frozen, and in which group each trained one is. Whatever
 * goes over gradients or trained parameters (norm, optimizer, blame) goes over segments, cut to the ranges a rank owns;
 * a frozen tensor has no segment. What a rank keeps of the model, frozen or not, are pieces.
 */
#ifndef GACC_LAYOUT_H
#define GACC_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"
#include "proto/gacc/v1/workers.pb-c.h"
#include "worker/comm.h"
#include "worker/model.h"

/* Tensors that share an optimizer, a learning rate and a decay, or are frozen. */
struct group {
    const char *optimizer; /* the job's name of it; empty: there is one */
    const char *match;     /* the job's; NULL: those of the optimizer's tensors that no pattern matches */
    struct update rule;    /* kind, betas, eps, momentum, weight_decay; the rest belongs to a step */
    bool frozen;
    uint64_t frozen_until, frozen_from; /* as in the job */
    double lr_ratio;                    /* lr = lr of the window × this: groups follow the schedule by their ratio */
    uint64_t tensors, parameters;       /* that are in it */
};

struct segment {
    uint64_t begin, end; /* in the trained index */
    uint32_t tensor;     /* row of the tensor table */
    uint32_t group;
    uint64_t since; /* applied steps before its moments began, which they do when it is not frozen any more */
};

struct layout {
    struct segment *segments; /* ascending, not overlapping */
    size_t count;
    struct group *groups;
    size_t group_count;
    uint64_t until; /* applied steps before the first step that has another layout; UINT64_MAX: none */
};

/* The first optimizer whose pattern (a glob) matches the tensor's name has it, or the only one; of its groups the first
 * that matches wins; tensors that none matches take the optimizer's own lr and decay. Unless its group says otherwise,
 * a tensor of fewer than two dimensions does not decay. Tensors of a frozen group become the model's frozen ones. A
 * pattern that matches no tensor that may be trained: 78 naming it and the tensors nearest to it; 78 as well for a
 * tensor that no optimizer has, and when nothing is left to train. */
int layout_open(struct layout *layout, struct model *model, const Gacc__V1__JobSpec *job, uint64_t steps,
                struct error *error);
/* The number of applied steps before the step in which the most is trained: its layout takes the most memory. */
uint64_t layout_largest(const struct tensor_table *table, const Gacc__V1__JobSpec *job);
void layout_close(struct layout *layout);
/* For people: the groups that tensors are in, and patterns whose tensors an earlier one has. *count messages, which
 * borrow the job's texts, of one memory, freed with free(); NULL: there is none. */
Gacc__V1__TensorGroup **layout_list_groups(const struct layout *layout, size_t *count);

/* Where in a job a tensor is. */
struct place {
    size_t optimizer; /* optimizer_at; their number: nowhere */
    size_t group;     /* of that one; n_groups: in none */
};
struct place layout_place(const Gacc__V1__JobSpec *job, const struct tensor *tensor);
/* What lr, of an optimizer or a group, is to the first optimizer's, which follows the schedule; `set`: the lr_ratio
 * that was set while the job ran. */
double layout_lr_ratio(const Gacc__V1__JobSpec *job, double lr, double set);

/* Where the moments of a run of parameters begin in the rank's moment buffers, which hold those alone that an optimizer
 * needs; NO_MOMENT where it needs none. */
struct moments_at {
    uint64_t m, v;
};
#define NO_MOMENT UINT64_MAX

/* A run of a rank's shard buffer inside one group. */
struct run {
    uint64_t first, count; /* elements of the shard buffer */
    uint32_t group;
    uint64_t since; /* its segments' */
    struct moments_at moments;
};
/* Segments ∩ the rank's ranges, as few runs as groups, their moments' ages and gaps allow. *runs is the caller's, freed
 * with free(). */
int layout_runs(const struct layout *layout, const struct shard_map *map, uint32_t rank, struct run **runs,
                size_t *count, struct error *error);

/* A run of the canonical index that a rank keeps in the wide type. */
struct piece {
    uint64_t begin, end; /* in the canonical index */
    uint64_t at;         /* element of the rank's master parameters: its shard, then its part of the frozen index */
    bool frozen;
    uint64_t since; /* its segments'; frozen: 0 */
    struct moments_at moments;
};
/* Elements of both moments that the rank keeps. */
struct moments_at layout_moments(const struct layout *layout, const struct shard_map *map, uint32_t rank);
/* How the frozen index is shared: nothing of it travels, so it is one bucket. */
void layout_frozen_map(struct shard_map *map, const struct tensor_table *table, uint32_t ranks);
/* All that the rank keeps, as few pieces as there can be: trained ones in the order of its shard, then frozen ones. The
 * pieces of all ranks cover the canonical index once. *pieces is the caller's, freed with free(). */
int layout_pieces(const struct layout *layout, const struct tensor_table *table, const struct shard_map *map,
                  uint32_t rank, struct piece **pieces, size_t *count, struct error *error);

#endif
