#include "worker/layout.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/optimizers.h"
#include "worker/near.h"

/* --- groups -------------------------------------------------------------------------------------------------- */

static bool matches(const char *pattern, const struct tensor *tensor)
{
    return fnmatch(pattern, tensor->name, 0) == 0;
}

struct place layout_place(const Gacc__V1__JobSpec *job, const struct tensor *tensor)
{
    struct place place = {0};
    if (optimizers_are_list(job))
        while (place.optimizer < optimizer_count(job) && !matches(optimizer_at(job, place.optimizer)->match, tensor))
            place.optimizer++;
    if (place.optimizer == optimizer_count(job)) return place;
    const Gacc__V1__OptimizerSection *optimizer = optimizer_at(job, place.optimizer);
    while (place.group < optimizer->n_groups && !matches(optimizer->groups[place.group]->match, tensor)) place.group++;
    return place;
}

/* NULL: it is in none. */
static const Gacc__V1__ParameterGroup *group_of(const Gacc__V1__JobSpec *job, const struct tensor *tensor)
{
    const struct place place = layout_place(job, tensor);
    if (place.optimizer == optimizer_count(job)) return NULL;
    const Gacc__V1__OptimizerSection *optimizer = optimizer_at(job, place.optimizer);
    return place.group < optimizer->n_groups ? optimizer->groups[place.group] : NULL;
}

/* Running statistics are no optimizer's. */
static bool is_frozen(const Gacc__V1__JobSpec *job, const struct tensor *tensor, uint64_t steps)
{
    if (tensor->fixed || tensor->statistic) return true;
    const Gacc__V1__ParameterGroup *group = group_of(job, tensor);
    return group && group_is_frozen(group->frozen, group->frozen_until, group->frozen_from, steps);
}

/* The next number of applied steps above `steps` at which a group is frozen or trained; UINT64_MAX: none. */
static uint64_t next_change(const Gacc__V1__JobSpec *job, uint64_t steps)
{
    uint64_t next = UINT64_MAX;
    for (size_t o = 0; o < optimizer_count(job); o++)
        for (size_t i = 0; i < optimizer_at(job, o)->n_groups; i++) {
            const Gacc__V1__ParameterGroup *group = optimizer_at(job, o)->groups[i];
            if (group->frozen_until > steps && group->frozen_until < next) next = group->frozen_until;
            if (group->frozen_from > steps && group->frozen_from < next) next = group->frozen_from;
        }
    return next;
}

static uint64_t count_trained(const struct tensor_table *table, const Gacc__V1__JobSpec *job, uint64_t steps)
{
    uint64_t trained = 0;
    for (size_t i = 0; i < table->count; i++)
        if (!is_frozen(job, &table->tensors[i], steps)) trained += table->tensors[i].size;
    return trained;
}

uint64_t layout_largest(const struct tensor_table *table, const Gacc__V1__JobSpec *job)
{
    uint64_t largest = 0, most = 0;
    for (uint64_t steps = 0; steps != UINT64_MAX; steps = next_change(job, steps)) {
        const uint64_t trained = count_trained(table, job, steps);
        if (trained > most) most = trained, largest = steps;
    }
    return largest;
}

/* At no step is all of it frozen. */
static int check_trained(const struct tensor_table *table, const Gacc__V1__JobSpec *job, struct error *error)
{
    for (uint64_t steps = 0; steps != UINT64_MAX; steps = next_change(job, steps)) {
        if (count_trained(table, job, steps) > 0) continue;
        if (steps == 0)
            return error_set(error, STATUS_JOB, "optimizer: every tensor is frozen: nothing is left to train");
        return error_set(error, STATUS_JOB,
                         "optimizer: every tensor is frozen after %" PRIu64 " steps: nothing is left to train", steps);
    }
    return 0;
}

double layout_lr_ratio(const Gacc__V1__JobSpec *job, double lr, double set)
{
    if (set > 0) return set;
    return job->optimizer->lr > 0 ? lr / job->optimizer->lr : 0;
}

/* groups[2·i] holds the matrices of the i-th group of the job, groups[2·i + 1] its vectors where they do not decay as
 * matrices do. The groups of an optimizer follow each other; behind them is one for its tensors that are in none. The
 * last of all has the tensors that are fixed, whatever matches them. */
static uint32_t group_index(const struct layout *layout, const Gacc__V1__JobSpec *job, struct place place,
                            const struct tensor *tensor)
{
    size_t row = place.group;
    for (size_t i = 0; i < place.optimizer; i++) row += optimizer_at(job, i)->n_groups + 1;
    const struct group *pair = &layout->groups[2 * row];
    bool apart = tensor->dimensions < 2 && pair[0].rule.weight_decay != pair[1].rule.weight_decay;
    return (uint32_t)(2 * row + apart);
}

static struct update rule_of(const Gacc__V1__OptimizerSection *optimizer)
{
    bool adamw = optimizer->type == GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_ADAMW;
    return (struct update){.kind = adamw ? OPTIMIZER_KIND_ADAMW : OPTIMIZER_KIND_SGD,
                           .beta1 = optimizer->beta1,
                           .beta2 = optimizer->beta2,
                           .eps = optimizer->eps,
                           .momentum = adamw ? 0 : optimizer->momentum,
                           .weight_decay = optimizer->weight_decay};
}

/* Matrices and vectors of a group; NULL: of none. */
static void fill_pair(struct group *pair, const Gacc__V1__JobSpec *job, const Gacc__V1__OptimizerSection *optimizer,
                      const Gacc__V1__ParameterGroup *group, uint64_t steps)
{
    const bool is_first = optimizer == job->optimizer;
    pair[0] = (struct group){.optimizer = optimizer->name, .rule = rule_of(optimizer), .lr_ratio = 1};
    if (!is_first) pair[0].lr_ratio = layout_lr_ratio(job, optimizer->lr, optimizer->lr_ratio);
    if (group) {
        pair[0].match = group->match;
        pair[0].frozen = group_is_frozen(group->frozen, group->frozen_until, group->frozen_from, steps);
        pair[0].frozen_until = group->frozen_until;
        pair[0].frozen_from = group->frozen_from;
        pair[0].lr_ratio = layout_lr_ratio(job, group->lr, group->lr_ratio);
    }
    const bool own = group && group->weight_decay >= 0;
    if (own) pair[0].rule.weight_decay = group->weight_decay;
    pair[1] = pair[0];
    if (!own && !(group && group->frozen)) pair[1].rule.weight_decay = 0;
}

static void fill_groups(struct layout *layout, const Gacc__V1__JobSpec *job, uint64_t steps)
{
    struct group *pair = layout->groups;
    for (size_t o = 0; o < optimizer_count(job); o++) {
        const Gacc__V1__OptimizerSection *optimizer = optimizer_at(job, o);
        for (size_t i = 0; i < optimizer->n_groups; i++, pair += 2)
            fill_pair(pair, job, optimizer, optimizer->groups[i], steps);
        fill_pair(pair, job, optimizer, NULL, steps);
        pair += 2;
    }
    pair[0] = pair[1] = (struct group){.optimizer = "", .frozen = true, .lr_ratio = 1};
}

static size_t count_groups(const Gacc__V1__JobSpec *job)
{
    size_t count = 1; /* of what is fixed */
    for (size_t o = 0; o < optimizer_count(job); o++) count += optimizer_at(job, o)->n_groups + 1;
    return 2 * count;
}

/* --- patterns ------------------------------------------------------------------------------------------------ */

/* optimizer.lr, or in a list optimizer.0.lr */
static void name_optimizer(const Gacc__V1__JobSpec *job, size_t index, char *name, size_t size)
{
    snprintf(name, size, optimizers_are_list(job) ? "optimizer.%zu" : "optimizer", index);
}

/* `key` is the pattern's. `optimizer`: who must have a tensor that it matches. */
static int check_pattern(const struct tensor_table *table, const Gacc__V1__JobSpec *job, size_t optimizer,
                         const char *pattern, const char *key, struct error *error)
{
    struct near_names near = {.pattern = pattern, .most = NEAR_MOST};
    bool is_another = false, is_fixed = false, is_statistic = false;
    for (size_t i = 0; i < table->count; i++) {
        const struct tensor *tensor = &table->tensors[i];
        if (!tensor->fixed && !tensor->statistic) near_try(&near, tensor->name);
        if (!matches(pattern, tensor)) continue;
        is_statistic |= tensor->statistic;
        if (tensor->statistic) continue;
        const bool is_own = layout_place(job, tensor).optimizer == optimizer;
        if (is_own && !tensor->fixed) return 0;
        is_fixed |= is_own;
        is_another |= !is_own;
    }
    if (is_fixed)
        return error_set(error, STATUS_JOB,
                         "%s: '%.200s' matches tensors that model.lora keeps as they are, and none that is trained",
                         key, pattern);
    if (is_another)
        return error_set(error, STATUS_JOB, "%s: '%.200s' matches tensors of other optimizers only", key, pattern);
    if (is_statistic)
        return error_set(error, STATUS_JOB, "%s: '%.200s' matches running statistics, which no optimizer moves", key,
                         pattern);
    return error_set(error, STATUS_JOB, "%s: '%.200s' matches no tensor; %s", key, pattern, near_hint(&near).text);
}

static int check_patterns(const struct tensor_table *table, const Gacc__V1__JobSpec *job, struct error *error)
{
    char name[32], key[96];
    int result = 0;
    for (size_t o = 0; o < optimizer_count(job) && !result; o++) {
        const Gacc__V1__OptimizerSection *optimizer = optimizer_at(job, o);
        name_optimizer(job, o, name, sizeof name);
        snprintf(key, sizeof key, "%s.match", name);
        if (optimizers_are_list(job)) result = check_pattern(table, job, o, optimizer->match, key, error);
        for (size_t i = 0; i < optimizer->n_groups && !result; i++) {
            const Gacc__V1__ParameterGroup *group = optimizer->groups[i];
            snprintf(key, sizeof key, "%s.groups.%zu.match", name, i);
            result = check_pattern(table, job, o, group->match, key, error);
        }
    }
    return result;
}

/* What is 0 has no ratio to it. */
static int check_rates(const Gacc__V1__JobSpec *job, struct error *error)
{
    double most = 0;
    for (size_t o = 0; o < optimizer_count(job); o++) {
        const Gacc__V1__OptimizerSection *optimizer = optimizer_at(job, o);
        most = optimizer->lr > most ? optimizer->lr : most;
        for (size_t i = 0; i < optimizer->n_groups; i++)
            most = optimizer->groups[i]->lr > most ? optimizer->groups[i]->lr : most;
    }
    if (job->optimizer->lr > 0 || most <= 0) return 0;
    return error_set(error, STATUS_JOB, "optimizer: an lr of %g cannot follow a schedule whose lr is %g", most,
                     job->optimizer->lr);
}

/* --- segments ------------------------------------------------------------------------------------------------ */

/* The group of every tensor, of which the model then knows whether it is frozen. */
static int assign(struct layout *layout, struct model *model, const Gacc__V1__JobSpec *job, uint64_t steps,
                  uint32_t *groups, bool *frozen, struct error *error)
{
    const struct tensor_table *table = &model->table;
    for (size_t i = 0; i < table->count; i++) {
        const struct tensor *tensor = &table->tensors[i];
        if (tensor->statistic) continue;
        const struct place place = layout_place(job, tensor);
        if (place.optimizer == optimizer_count(job) && !tensor->fixed)
            return error_set(error, STATUS_JOB, "optimizer: no match of any of them has the tensor %s", tensor->name);
        groups[i] = tensor->fixed ? (uint32_t)layout->group_count - 2 : group_index(layout, job, place, tensor);
        struct group *group = &layout->groups[groups[i]];
        group->tensors++;
        group->parameters += tensor->size;
    }
    int result = check_trained(table, job, error);
    if (result) return result;
    for (size_t i = 0; i < table->count; i++) frozen[i] = is_frozen(job, &table->tensors[i], steps);
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

int layout_open(struct layout *layout, struct model *model, const Gacc__V1__JobSpec *job, uint64_t steps,
                struct error *error)
{
    const struct tensor_table *table = &model->table;
    *layout = (struct layout){.group_count = count_groups(job), .until = next_change(job, steps)};
    layout->segments = calloc(table->count, sizeof *layout->segments);
    layout->groups = calloc(layout->group_count, sizeof *layout->groups);
    uint32_t *groups = calloc(table->count, sizeof *groups);
    bool *frozen = calloc(table->count, sizeof *frozen);
    int result = 0;
    if (!layout->segments || !layout->groups || !groups || !frozen)
        result = error_set(error, STATUS_INTERNAL, "out of memory for the layout of %zu tensors", table->count);
    if (!result) result = check_rates(job, error);
    if (!result) result = check_patterns(table, job, error);
    if (!result) fill_groups(layout, job, steps);
    if (!result) result = assign(layout, model, job, steps, groups, frozen, error);
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

/* --- telling ------------------------------------------------------------------------------------------------- */

Gacc__V1__TensorGroup **layout_list_groups(const struct layout *layout, size_t *count)
{
    Gacc__V1__TensorGroup **list = calloc(layout->group_count, sizeof *list + sizeof **list);
    Gacc__V1__TensorGroup *next = list ? (void *)(list + layout->group_count) : NULL;
    *count = 0;
    for (size_t i = 0; i < layout->group_count && list; i++) {
        const struct group *group = &layout->groups[i];
        const bool stands_alone = group->match && i % 2 == 0 && layout->groups[i + 1].tensors == 0;
        if (group->tensors == 0 && !stands_alone) continue;
        gacc__v1__tensor_group__init(next);
        next->optimizer = (char *)(uintptr_t)group->optimizer;
        if (group->match) next->match = (char *)(uintptr_t)group->match;
        next->tensors = group->tensors;
        next->parameters = group->parameters;
        next->lr_ratio = group->lr_ratio;
        next->weight_decay = group->rule.weight_decay;
        next->frozen = group->frozen && group->frozen_until == 0 && group->frozen_from == 0;
        next->frozen_until = group->frozen_until;
        next->frozen_from = group->frozen_from;
        list[(*count)++] = next++;
    }
    return list;
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

/* Whether a moment that begins at `at` goes on, behind `count` elements, as the one that begins at `next`. */
static bool goes_on(uint64_t at, uint64_t count, uint64_t next)
{
    return at == NO_MOMENT ? next == NO_MOMENT : at + count == next;
}

/* Where the moments of a cut begin, those before having taken so many elements. */
static struct moments_at take_moments(const struct layout *layout, struct cut cut, struct moments_at *taken)
{
    const struct update *rule = &layout->groups[cut.segment->group].rule;
    const bool has_v = rule->kind == OPTIMIZER_KIND_ADAMW, has_m = has_v || rule->momentum > 0;
    const struct moments_at at = {has_m ? taken->m : NO_MOMENT, has_v ? taken->v : NO_MOMENT};
    if (has_m) taken->m += cut.end - cut.begin;
    if (has_v) taken->v += cut.end - cut.begin;
    return at;
}

struct counting {
    const struct layout *layout;
    struct moments_at taken;
};

static void count_moments(void *context, struct cut cut)
{
    struct counting *counting = context;
    take_moments(counting->layout, cut, &counting->taken);
}

struct moments_at layout_moments(const struct layout *layout, const struct shard_map *map, uint32_t rank)
{
    struct counting counting = {.layout = layout};
    for_each_cut(layout, map, rank, count_moments, &counting);
    return counting.taken;
}

struct run_list {
    const struct layout *layout;
    struct moments_at taken;
    struct run *runs;
    size_t count;
};

static void append_run(void *context, struct cut cut)
{
    struct run_list *list = context;
    struct run *last = list->count ? &list->runs[list->count - 1] : NULL;
    const struct run next = {cut.first, cut.end - cut.begin, cut.segment->group, cut.segment->since,
                             take_moments(list->layout, cut, &list->taken)};
    if (last && last->group == next.group && last->since == next.since && last->first + last->count == next.first)
        last->count += next.count;
    else
        list->runs[list->count++] = next;
}

int layout_runs(const struct layout *layout, const struct shard_map *map, uint32_t rank, struct run **runs,
                size_t *count, struct error *error)
{
    struct run_list list = {.layout = layout, .runs = calloc(most_cuts(layout, map), sizeof *list.runs)};
    if (!list.runs)
        return error_set(error, STATUS_INTERNAL, "out of memory for the runs of %zu tensors", layout->count);
    for_each_cut(layout, map, rank, append_run, &list);
    *runs = list.runs;
    *count = list.count;
    return 0;
}

struct piece_list {
    const struct layout *layout;
    const struct tensor_table *table;
    struct moments_at taken;
    struct piece *pieces;
    size_t count;
};

static void append_piece(struct piece_list *list, struct piece next)
{
    struct piece *last = list->count ? &list->pieces[list->count - 1] : NULL;
    if (last && last->frozen == next.frozen && last->since == next.since && last->end == next.begin &&
        last->at + (last->end - last->begin) == next.at &&
        goes_on(last->moments.m, last->end - last->begin, next.moments.m) &&
        goes_on(last->moments.v, last->end - last->begin, next.moments.v))
        last->end = next.end;
    else
        list->pieces[list->count++] = next;
}

static void append_trained_piece(void *context, struct cut cut)
{
    struct piece_list *list = context;
    const uint64_t shift = list->table->tensors[cut.segment->tensor].begin - cut.segment->begin; /* to canonical */
    append_piece(list, (struct piece){cut.begin + shift, cut.end + shift, cut.first, false, cut.segment->since,
                                      take_moments(list->layout, cut, &list->taken)});
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
        append_piece(
            list,
            (struct piece){first, first + (end - begin), owned + (begin - own.begin), true, 0, {NO_MOMENT, NO_MOMENT}});
    }
}

int layout_pieces(const struct layout *layout, const struct tensor_table *table, const struct shard_map *map,
                  uint32_t rank, struct piece **pieces, size_t *count, struct error *error)
{
    struct shard_map frozen;
    struct piece_list list = {
        .layout = layout, .table = table, .pieces = calloc(most_cuts(layout, map) + table->count, sizeof *list.pieces)};
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
