#include "worker/layout.h"

#include <fnmatch.h>
#include <stdbool.h>
#include <stdlib.h>

/* groups[2·i] holds the matrices of the i-th pattern, groups[2·i + 1] its vectors; the last pair is for tensors that no
 * pattern matches. */
static uint32_t group_index(size_t pattern, const struct tensor *tensor)
{
    return (uint32_t)(2 * pattern + (tensor->dimensions < 2));
}

static int fill_groups(struct layout *layout, const Gacc__V1__OptimizerSection *optimizer, struct error *error)
{
    size_t patterns = optimizer->n_groups;
    for (size_t i = 0; i < patterns; i++) {
        const Gacc__V1__ParameterGroup *group = optimizer->groups[i];
        if (optimizer->lr <= 0 && group->lr > 0)
            return error_set(error, STATUS_JOB, "optimizer.groups[%zu].lr: %g cannot follow a schedule whose lr is %g",
                             i, group->lr, optimizer->lr);
        double ratio = optimizer->lr > 0 ? group->lr / optimizer->lr : 0;
        if (group->lr_ratio > 0) ratio = group->lr_ratio;
        bool own = group->weight_decay >= 0;
        layout->groups[2 * i] = (struct group){ratio, own ? group->weight_decay : optimizer->weight_decay};
        layout->groups[2 * i + 1] = (struct group){ratio, own ? group->weight_decay : 0};
    }
    layout->groups[2 * patterns] = (struct group){1, optimizer->weight_decay};
    layout->groups[2 * patterns + 1] = (struct group){1, 0};
    return 0;
}

static bool matches(const Gacc__V1__ParameterGroup *group, const struct tensor *tensor)
{
    return fnmatch(group->match, tensor->name, 0) == 0;
}

static int check_patterns(const struct tensor_table *table, const Gacc__V1__OptimizerSection *optimizer,
                          struct error *error)
{
    for (size_t i = 0; i < optimizer->n_groups; i++) {
        size_t tensor = 0;
        while (tensor < table->count && !matches(optimizer->groups[i], &table->tensors[tensor])) tensor++;
        if (tensor == table->count)
            return error_set(error, STATUS_JOB, "optimizer.groups[%zu].match: '%s' matches no tensor of the model", i,
                             optimizer->groups[i]->match);
    }
    return 0;
}

static void fill_segments(struct layout *layout, const struct tensor_table *table,
                          const Gacc__V1__OptimizerSection *optimizer)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct tensor *tensor = &table->tensors[i];
        size_t pattern = 0;
        while (pattern < optimizer->n_groups && !matches(optimizer->groups[pattern], tensor)) pattern++;
        layout->segments[layout->count++] = (struct segment){
            .begin = tensor->begin,
            .end = tensor->begin + tensor->size,
            .tensor = (uint32_t)i,
            .group = group_index(pattern, tensor),
        };
    }
}

int layout_open(struct layout *layout, const struct tensor_table *table, const Gacc__V1__OptimizerSection *optimizer,
                struct error *error)
{
    *layout = (struct layout){.group_count = 2 * (optimizer->n_groups + 1)};
    layout->segments = calloc(table->count, sizeof *layout->segments);
    layout->groups = calloc(layout->group_count, sizeof *layout->groups);
    int result = 0;
    if (!layout->segments || !layout->groups)
        result = error_set(error, STATUS_INTERNAL, "out of memory for the layout of %zu tensors", table->count);
    if (!result) result = fill_groups(layout, optimizer, error);
    if (!result) result = check_patterns(table, optimizer, error);
    if (result) {
        layout_close(layout);
        return result;
    }
    fill_segments(layout, table, optimizer);
    return 0;
}

void layout_close(struct layout *layout)
{
    free(layout->segments);
    free(layout->groups);
    *layout = (struct layout){0};
}

static void append(struct run *runs, size_t *count, struct run next)
{
    struct run *last = *count ? &runs[*count - 1] : NULL;
    if (last && last->group == next.group && last->first + last->count == next.first)
        last->count += next.count;
    else
        runs[(*count)++] = next;
}

int layout_runs(const struct layout *layout, const struct shard_map *map, uint32_t rank, struct run **runs,
                size_t *count, struct error *error)
{
    /* Every segment is cut at most once by each bucket. */
    *count = 0;
    *runs = calloc(layout->count + map->bucket_count, sizeof **runs);
    if (!*runs) return error_set(error, STATUS_INTERNAL, "out of memory for the runs of %zu tensors", layout->count);
    uint64_t before = 0; /* elements of the shard buffer that earlier buckets fill */
    for (uint32_t bucket = 0; bucket < map->bucket_count; bucket++) {
        struct range own = shard_map_range(map, bucket, rank);
        for (size_t i = 0; i < layout->count; i++) {
            const struct segment *segment = &layout->segments[i];
            uint64_t begin = segment->begin > own.begin ? segment->begin : own.begin;
            uint64_t end = segment->end < own.end ? segment->end : own.end;
            if (begin >= end) continue;
            append(*runs, count, (struct run){before + begin - own.begin, end - begin, segment->group});
        }
        before += own.end - own.begin;
    }
    return 0;
}
