#include "worker/layout.h"

#include <fnmatch.h>
#include <stdbool.h>
#include <stdlib.h>

#include "worker/near.h"

/* --- groups -------------------------------------------------------------------------------------------------- */

/* groups[2·i] holds the matrices of the i-th pattern, groups[2·i + 1] its vectors where they do not decay as matrices
 * do; the last pair is for tensors that no pattern matches. */
static uint32_t group_index(const struct layout *layout, size_t pattern, const struct tensor *tensor)
{
    const struct group *pair = &layout->groups[2 * pattern];
    bool apart = tensor->dimensions < 2 && !pair[0].frozen && pair[0].weight_decay != pair[1].weight_decay;
    return (uint32_t)(2 * pattern + apart);
}

double layout_lr_ratio(const Gacc__V1__OptimizerSection *optimizer, const Gacc__V1__ParameterGroup *group)
{
    if (group->lr_ratio > 0) return group->lr_ratio;
    return optimizer->lr > 0 ? group->lr / optimizer->lr : 0;
}

static int fill_groups(struct layout *layout, const Gacc__V1__OptimizerSection *optimizer, struct error *error)
{
    size_t patterns = optimizer->n_groups;
    for (size_t i = 0; i < patterns; i++) {
        const Gacc__V1__ParameterGroup *group = optimizer->groups[i];
        if (optimizer->lr <= 0 && group->lr > 0)
            return error_set(error, STATUS_JOB, "optimizer.groups.%zu.lr: %g cannot follow a schedule whose lr is %g",
                             i, group->lr, optimizer->lr);
        bool own = group->weight_decay >= 0;
        struct group matrices = {.match = group->match, .frozen = group->frozen};
        matrices.lr_ratio = layout_lr_ratio(optimizer, group);
        matrices.weight_decay = own ? group->weight_decay : optimizer->weight_decay;
        layout->groups[2 * i] = layout->groups[2 * i + 1] = matrices;
        if (!own) layout->groups[2 * i + 1].weight_decay = 0;
    }
    layout->groups[2 * patterns] = (struct group){.lr_ratio = 1, .weight_decay = optimizer->weight_decay};
    layout->groups[2 * patterns + 1] = (struct group){.lr_ratio = 1};
    return 0;
}

static bool matches(const Gacc__V1__ParameterGroup *group, const struct tensor *tensor)
{
    return fnmatch(group->match, tensor->name, 0) == 0;
}

/* The first that matches; n_groups: none. */
static size_t pattern_of(const Gacc__V1__OptimizerSection *optimizer, const struct tensor *tensor)
{
    size_t pattern = 0;
    while (pattern < optimizer->n_groups && !matches(optimizer->groups[pattern], tensor)) pattern++;
    return pattern;
}

void layout_find_frozen(const struct tensor_table *table, const Gacc__V1__OptimizerSection *optimizer, bool *frozen)
{
    for (size_t i = 0; i < table->count; i++) {
        const size_t pattern = pattern_of(optimizer, &table->tensors[i]);
        frozen[i] = pattern < optimizer->n_groups && optimizer->groups[pattern]->frozen;
    }
}

/* --- patterns ------------------------------------------------------------------------------------------------ */

static int check_patterns(const struct tensor_table *table, const Gacc__V1__OptimizerSection *optimizer,
                          struct error *error)
{
    for (size_t i = 0; i < optimizer->n_groups; i++) {
        size_t tensor = 0;
        while (tensor < table->count && !matches(optimizer->groups[i], &table->tensors[tensor])) tensor++;
        if (tensor < table->count) continue;
        return error_set(error, STATUS_JOB, "optimizer.groups.%zu.match: '%.200s' matches no tensor; near it: %s", i,
                         optimizer->groups[i]->match, tensors_near(table, optimizer->groups[i]->match, NEAR_MOST).text);
    }
    return 0;
}

/* --- segments ------------------------------------------------------------------------------------------------ */

/* The group of every tensor, of which the model then knows whether it is frozen. */
static int assign(struct layout *layout, struct model *model, const Gacc__V1__OptimizerSection *optimizer,
                  uint32_t *groups, bool *frozen, struct error *error)
{
    const struct tensor_table *table = &model->table;
    bool any = false;
    layout_find_frozen(table, optimizer, frozen);
    for (size_t i = 0; i < table->count; i++) {
        const struct tensor *tensor = &table->tensors[i];
        groups[i] = group_index(layout, pattern_of(optimizer, tensor), tensor);
        struct group *group = &layout->groups[groups[i]];
        group->tensors++;
        group->parameters += tensor->size;
        any |= !frozen[i];
    }
    if (!any) return error_set(error, STATUS_JOB, "optimizer.groups: every tensor is frozen: nothing is left to train");
    model_freeze(model, frozen);
    return 0;
}

static void fill_segments(struct layout *layout, const struct tensor_table *table, const uint32_t *groups)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct tensor *tensor = &table->tensors[i];
        if (tensor->frozen) continue;
        layout->segments[layout->count++] = (struct segment){
            .begin = tensor->at,
            .end = tensor->at + tensor->size,
            .tensor = (uint32_t)i,
            .group = groups[i],
        };
    }
}

int layout_open(struct layout *layout, struct model *model, const Gacc__V1__OptimizerSection *optimizer,
                struct error *error)
{
    const struct tensor_table *table = &model->table;
    *layout = (struct layout){.group_count = 2 * (optimizer->n_groups + 1)};
    layout->segments = calloc(table->count, sizeof *layout->segments);
    layout->groups = calloc(layout->group_count, sizeof *layout->groups);
    uint32_t *groups = calloc(table->count, sizeof *groups);
    bool *frozen = calloc(table->count, sizeof *frozen);
    int result = 0;
    if (!layout->segments || !layout->groups || !groups || !frozen)
        result = error_set(error, STATUS_INTERNAL, "out of memory for the layout of %zu tensors", table->count);
    if (!result) result = fill_groups(layout, optimizer, error);
    if (!result) result = check_patterns(table, optimizer, error);
    if (!result) result = assign(layout, model, optimizer, groups, frozen, error);
    if (!result) fill_segments(layout, table, groups);
    free(groups);
    free(frozen);
    if (result) layout_close(layout);
    return result;
}

void layout_close(struct layout *layout)
{
    free(layout->segments);
    free(layout->groups);
    *layout = (struct layout){0};
}

/* --- a rank's part ------------------------------------------------------------------------------------------- */

/* What of a rank's shard lies in one segment. */
struct cut {
    const struct segment *segment;
    uint64_t begin, end; /* in the trained index */
    uint64_t first;      /* element of the shard buffer */
};

/* Calls `take` for every cut, in the order of the shard buffer. */
static void for_each_cut(const struct layout *layout, const struct shard_map *map, uint32_t rank,
                         void (*take)(void *context, struct cut cut), void *context)
{
    uint64_t before = 0; /* elements of the shard buffer that earlier buckets fill */
    for (uint32_t bucket = 0; bucket < map->bucket_count; bucket++) {
        struct range own = shard_map_range(map, bucket, rank);
        for (size_t i = 0; i < layout->count; i++) {
            const struct segment *segment = &layout->segments[i];
            uint64_t begin = segment->begin > own.begin ? segment->begin : own.begin;
            uint64_t end = segment->end < own.end ? segment->end : own.end;
            if (begin < end) take(context, (struct cut){segment, begin, end, before + begin - own.begin});
        }
        before += own.end - own.begin;
    }
}

/* Every segment is cut at most once by each bucket. */
static size_t most_cuts(const struct layout *layout, const struct shard_map *map)
{
    return layout->count + map->bucket_count;
}

struct run_list {
    struct run *runs;
    size_t count;
};

static void append_run(void *context, struct cut cut)
{
    struct run_list *list = context;
    struct run *last = list->count ? &list->runs[list->count - 1] : NULL;
    const struct run next = {cut.first, cut.end - cut.begin, cut.segment->group, cut.segment->since};
    if (last && last->group == next.group && last->since == next.since && last->first + last->count == next.first)
        last->count += next.count;
    else
        list->runs[list->count++] = next;
}

int layout_runs(const struct layout *layout, const struct shard_map *map, uint32_t rank, struct run **runs,
                size_t *count, struct error *error)
{
    struct run_list list = {.runs = calloc(most_cuts(layout, map), sizeof *list.runs)};
    if (!list.runs)
        return error_set(error, STATUS_INTERNAL, "out of memory for the runs of %zu tensors", layout->count);
    for_each_cut(layout, map, rank, append_run, &list);
    *runs = list.runs;
    *count = list.count;
    return 0;
}

struct piece_list {
    const struct tensor_table *table;
    struct piece *pieces;
    size_t count;
};

static void append_piece(struct piece_list *list, struct piece next)
{
    struct piece *last = list->count ? &list->pieces[list->count - 1] : NULL;
    if (last && last->frozen == next.frozen && last->since == next.since && last->end == next.begin &&
        last->at + (last->end - last->begin) == next.at)
        last->end = next.end;
    else
        list->pieces[list->count++] = next;
}

static void append_trained_piece(void *context, struct cut cut)
{
    struct piece_list *list = context;
    const uint64_t shift = list->table->tensors[cut.segment->tensor].begin - cut.segment->begin; /* to canonical */
    append_piece(list, (struct piece){cut.begin + shift, cut.end + shift, cut.first, false, cut.segment->since});
}

void layout_frozen_map(struct shard_map *map, const struct tensor_table *table, uint32_t ranks)
{
    shard_map_init(map, table->parameters - table->trained, ranks, UINT64_MAX);
}

static void append_frozen_pieces(struct piece_list *list, uint64_t owned, struct range own)
{
    for (size_t i = 0; i < list->table->count; i++) {
        const struct tensor *tensor = &list->table->tensors[i];
        uint64_t begin = tensor->at > own.begin ? tensor->at : own.begin;
        uint64_t end = tensor->at + tensor->size < own.end ? tensor->at + tensor->size : own.end;
        if (!tensor->frozen || begin >= end) continue;
        const uint64_t first = tensor->begin + (begin - tensor->at);
        append_piece(list, (struct piece){first, first + (end - begin), owned + (begin - own.begin), true, 0});
    }
}

int layout_pieces(const struct layout *layout, const struct tensor_table *table, const struct shard_map *map,
                  uint32_t rank, struct piece **pieces, size_t *count, struct error *error)
{
    struct shard_map frozen;
    struct piece_list list = {.table = table,
                              .pieces = calloc(most_cuts(layout, map) + table->count, sizeof *list.pieces)};
    if (!list.pieces)
        return error_set(error, STATUS_INTERNAL, "out of memory for the pieces of %zu tensors", table->count);
    for_each_cut(layout, map, rank, append_trained_piece, &list);
    layout_frozen_map(&frozen, table, map->ranks);
    if (frozen.bucket_count > 0)
        append_frozen_pieces(&list, shard_map_owned(map, rank), shard_map_range(&frozen, 0, rank));
    *pieces = list.pieces;
    *count = list.count;
    return 0;
}
