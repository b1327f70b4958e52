/* From the tree to the message, along the table of keys: first what is unknown, then the choices that others depend on,
 * then all the rest. */
#include <stdlib.h>
#include <string.h>

#include "daemon/job/load.h"
#include "daemon/job/scalar.h"
#include "daemon/job/values.h"
#include "proto/optimizers.h"

#define PATH_BYTES 256 /* of a key; longer ones are no keys and are cut in messages */

static int no_memory(const struct loading *loading)
{
    return error_set(loading->error, STATUS_INTERNAL, "out of memory");
}

static const char *kind_name(const struct node *node)
{
    if (scalar_is_null(node)) return "nothing";
    return node->kind == NODE_SCALAR ? "a single value" : node->kind == NODE_LIST ? "a list" : "a mapping";
}

static const struct key *row_of(const char *path)
{
    for (size_t i = 0; i < key_count; i++)
        if (strcmp(keys[i].path, path) == 0) return &keys[i];
    return NULL;
}

/* Structure: every key known, every section a mapping. `pattern` is the section's path in the table, `path` what the
 * user calls it. */

static int check_section(const struct loading *loading, const struct node *section, const char *pattern,
                         const char *path);

static int check_groups(const struct loading *loading, const struct node *list, const char *path)
{
    if (list->kind != NODE_LIST)
        return node_fail(list, path, loading->error, "must be a list of mappings, not %s", kind_name(list));
    size_t index = 0;
    for (const struct node *element = list->children; element; element = element->next, index++) {
        char element_path[PATH_BYTES];
        snprintf(element_path, sizeof element_path, "%.200s.%zu", path, index);
        if (index >= JOB_GROUPS_LIMIT)
            return node_fail(element, path, loading->error, "has more than %d elements", JOB_GROUPS_LIMIT);
        int status = check_section(loading, element, "optimizer.groups.*", element_path);
        if (status) return status;
    }
    return 0;
}

static int check_optimizers(const struct loading *loading, const struct node *list, const char *path)
{
    size_t index = 0;
    if (!list->children) return node_fail(list, path, loading->error, "is an empty list");
    for (const struct node *element = list->children; element; element = element->next, index++) {
        if (index >= JOB_OPTIMIZERS_LIMIT)
            return node_fail(element, path, loading->error, "has more than %d elements", JOB_OPTIMIZERS_LIMIT);
        char element_path[64];
        snprintf(element_path, sizeof element_path, "optimizer.%zu", index);
        if (element->kind != NODE_MAPPING)
            return node_fail(element, element_path, loading->error, "must be a mapping of keys, not %s",
                             kind_name(element));
        int status = check_section(loading, element, "optimizer", element_path);
        if (status) return status;
    }
    return 0;
}

static int unknown_key(const struct loading *loading, const struct node *node, const char *section, const char *pattern,
                       const char *path)
{
    const struct absent *absent = absent_find(pattern, NULL);
    if (absent) return node_fail_key(node, path, loading->error, "%s", absent->why);
    if (key_is_derived(pattern)) return node_fail_key(node, path, loading->error, KEY_IS_DERIVED);
    if (*path && strspn(node->key, "0123456789") == strlen(node->key))
        return node_fail_key(node, path, loading->error, "unknown key; %.*s is not a list",
                             (int)(strlen(path) - strlen(node->key) - 1), path);
    if (strpbrk(node->key, "."))
        return node_fail_key(node, path, loading->error, "unknown key; sections are nested, not written with dots");
    return node_fail_key(node, path, loading->error, "unknown key%s", key_suggestion(section, node->key).text);
}

static int check_section(const struct loading *loading, const struct node *section, const char *pattern,
                         const char *path)
{
    if (section->kind == NODE_LIST && strcmp(pattern, "optimizer") == 0)
        return check_optimizers(loading, section, path);
    if (section->kind != NODE_MAPPING)
        return node_fail(section, path, loading->error, "must be a mapping of keys, not %s", kind_name(section));
    for (const struct node *node = section->children; node; node = node->next) {
        char child_pattern[PATH_BYTES], child_path[PATH_BYTES];
        const char *dot = *pattern ? "." : "";
        snprintf(child_pattern, sizeof child_pattern, "%s%s%s", pattern, dot, node->key);
        snprintf(child_path, sizeof child_path, "%s%s%s", path, dot, node->key);
        const struct key *key = strpbrk(node->key, ".*") ? NULL : row_of(child_pattern);
        int status = 0;
        if (!key)
            status = unknown_key(loading, node, pattern, child_pattern, child_path);
        else if (key->type == KEY_SECTION)
            status = check_section(loading, node, child_pattern, child_path);
        else if (key->type == KEY_GROUPS)
            status = check_groups(loading, node, child_path);
        if (status) return status;
    }
    return 0;
}

/* Values. */

/* The choice that none of the rows of this path applies with, and those that one would apply with. */
static struct condition condition_needed(const Gacc__V1__JobSpec *job, const struct key *key)
{
    struct condition needed = {BY_NOTHING, 0};
    for (size_t i = 0; i < key_count; i++) {
        const struct condition *failed = NULL;
        if (strcmp(keys[i].path, key->path) != 0 || key_applies(&keys[i], job, &failed)) continue;
        if (needed.by == BY_NOTHING) needed.by = failed->by;
        if (needed.by == failed->by) needed.values |= failed->values;
    }
    return needed;
}

/* The outermost section around the key that does not apply either, or the key itself. */
static struct phrase outermost(const Gacc__V1__JobSpec *job, const struct key *key, const char *path)
{
    struct phrase section;
    for (const char *dot = strchr(key->path, '.'); dot; dot = strchr(dot + 1, '.')) {
        snprintf(section.text, sizeof section.text, "%.*s", (int)(dot - key->path), key->path);
        const struct key *row = row_of(section.text);
        if (row && !key_applies(row, job, NULL)) return section;
    }
    snprintf(section.text, sizeof section.text, "%s", path);
    return section;
}

/* `index`: of the optimizer that it is of, if it is one's. */
static struct phrase selector_path(const struct loading *loading, const struct key *selector, size_t index)
{
    struct phrase path;
    if (selector->section == IN_OPTIMIZER) return optimizer_path(loading, index, selector->path);
    snprintf(path.text, sizeof path.text, "%s", selector->path);
    return path;
}

/* `--set precision.compute=bf16` runs an fp16 job in another precision, where the loss scale of its file has no
 * meaning: a choice that --set makes drops what the file has for another. Whatever else does not apply is refused.
 * `index`: of the optimizer that the key is of, if it is one's. */
static int does_not_apply(struct loading *loading, const Gacc__V1__JobSpec *job, size_t index, const struct node *node,
                          const struct key *key, const char *path)
{
    const struct condition needed = condition_needed(job, key);
    const struct key *selector = key_of_selector(needed.by);
    const struct phrase chosen = selector_path(loading, selector, index);
    const struct node *by = tree_find(loading->root, chosen.text);
    if (by && by->source->set && job_drop(loading, by->source->set, outermost(job, key, path).text)) return 0;
    return node_fail_key(node, path, loading->error, "does not apply with %s %s, only with %s", selector->path,
                         choice_name(selector->choices, key_selector_value(job, needed.by)),
                         condition_values(&needed).text);
}

static int take_default(struct loading *loading, const struct key *key, void *base)
{
    struct node *node;
    int status = tree_parse(&node, key->fallback, strlen(key->fallback), &loading->default_source, loading->error);
    if (!status) status = value_read(key, base, node, key->path, loading->error);
    tree_free(node);
    return status;
}

/* What the tree says, else the default, else it is missing. `section` is where a missing key would stand. */
static int take_value(struct loading *loading, const struct key *key, void *base, const struct node *node,
                      const struct node *section, const char *path)
{
    if (node) return value_read(key, base, node, path, loading->error);
    if (key->by_profile || (key->fallback && !*key->fallback)) return 0;
    if (key->fallback) return take_default(loading, key, base);
    const struct condition *last = NULL;
    for (const struct condition *condition = key->when; condition < key->when + 3; condition++)
        if (condition->by != BY_NOTHING) last = condition;
    if (!last) return node_fail(section, path, loading->error, "is missing");
    const struct key *selector = key_of_selector(last->by);
    return node_fail(section, path, loading->error, "is missing; %s %s needs it", selector->path,
                     choice_name(selector->choices, key_selector_value(loading->job, last->by)));
}

static int bind_key(struct loading *loading, const struct key *key)
{
    const struct node *node = tree_find(loading->root, key->path);
    if (key_applies(key, loading->job, NULL)) {
        if (key->type == KEY_SECTION || key->type == KEY_GROUPS) return 0;
        void *base = key_base(loading->job, &loading->aside, NULL, key->section);
        return take_value(loading, key, base, node, job_node(loading, key->path), key->path);
    }
    bool refused = node && !key_find(loading->job, key->path, NULL);
    return refused ? does_not_apply(loading, loading->job, 0, node, key, key->path) : 0;
}

/* In the order of the table, in which no selector depends on a later one. */
static int bind_selectors(struct loading *loading)
{
    Gacc__V1__PrecisionSection *precision = loading->job->precision;
    for (size_t i = 0; i < key_count; i++) {
        if (keys[i].selects == BY_NOTHING || keys[i].section == IN_OPTIMIZER) continue;
        int status = bind_key(loading, &keys[i]);
        if (status) return status;
        bool is_fp16 = keys[i].selects == BY_COMPUTE && precision->compute == GACC__V1__COMPUTE__COMPUTE_FP16;
        if (!is_fp16) continue;
        precision->loss_scale = malloc(sizeof *precision->loss_scale);
        if (!precision->loss_scale) return no_memory(loading);
        gacc__v1__loss_scale_section__init(precision->loss_scale);
    }
    if (precision->loss_scale) job_loss_scale_defaults(precision->loss_scale);
    return 0;
}

static int bind_group(struct loading *loading, Gacc__V1__OptimizerSection *optimizer, const struct node *element,
                      const char *list_path)
{
    const size_t index = optimizer->n_groups;
    Gacc__V1__ParameterGroup *group = malloc(sizeof *group);
    if (!group) return no_memory(loading);
    gacc__v1__parameter_group__init(group);
    group->weight_decay = -1;
    group->lr_written = optimizer->lr_written;
    optimizer->groups[optimizer->n_groups++] = group;
    for (size_t i = 0; i < key_count; i++) {
        const struct key *key = &keys[i];
        if (key->section != IN_GROUP) continue;
        const char *leaf = strrchr(key->path, '.') + 1;
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%.100s.%zu.%s", list_path, index, leaf);
        const struct node *node = tree_child(element, leaf, strlen(leaf));
        int status = take_value(loading, key, group, node, element, path);
        if (status) return status;
    }
    return 0;
}

static int bind_groups(struct loading *loading, Gacc__V1__OptimizerSection *optimizer, const char *path)
{
    const struct node *list = tree_find(loading->root, path);
    if (!list || !list->children) return 0;
    optimizer->groups = calloc(JOB_GROUPS_LIMIT, sizeof(Gacc__V1__ParameterGroup *));
    if (!optimizer->groups) return no_memory(loading);
    for (const struct node *element = list->children; element; element = element->next) {
        int status = bind_group(loading, optimizer, element, path);
        if (status) return status;
    }
    return 0;
}

/* `job` has this optimizer alone. */
static int bind_optimizer_key(struct loading *loading, const Gacc__V1__JobSpec *job, size_t index,
                              const struct key *key)
{
    const struct phrase path = optimizer_path(loading, index, key->path);
    const struct node *node = tree_find(loading->root, path.text);
    if (key_applies(key, job, NULL))
        return take_value(loading, key, job->optimizer, node, job_node(loading, path.text), path.text);
    bool refused = node && !key_find(job, key->path, NULL);
    return refused ? does_not_apply(loading, job, index, node, key, path.text) : 0;
}

static int bind_optimizer(struct loading *loading, size_t index)
{
    const Gacc__V1__JobSpec job = optimizer_alone(loading->job, index);
    int status = 0;
    for (int selectors = 1; selectors >= 0; selectors--)
        for (size_t i = 0; i < key_count && !status; i++) {
            const struct key *key = &keys[i];
            if (key->section != IN_OPTIMIZER || key->type == KEY_GROUPS || (key->selects != BY_NOTHING) != selectors)
                continue;
            status = bind_optimizer_key(loading, &job, index, key);
        }
    const struct phrase groups = optimizer_path(loading, index, "optimizer.groups");
    return status ? status : bind_groups(loading, job.optimizer, groups.text);
}

/* The first is there already. */
static int bind_optimizers(struct loading *loading)
{
    Gacc__V1__JobSpec *job = loading->job;
    const struct node *list = tree_find(loading->root, "optimizer");
    int status = bind_optimizer(loading, 0);
    if (status || !list || list->kind != NODE_LIST || !list->children->next) return status;
    job->further_optimizers = calloc(JOB_OPTIMIZERS_LIMIT, sizeof(Gacc__V1__OptimizerSection *));
    if (!job->further_optimizers) return no_memory(loading);
    for (const struct node *element = list->children->next; element && !status; element = element->next) {
        Gacc__V1__OptimizerSection *optimizer = malloc(sizeof *optimizer);
        if (!optimizer) return no_memory(loading);
        gacc__v1__optimizer_section__init(optimizer);
        job->further_optimizers[job->n_further_optimizers++] = optimizer;
        status = bind_optimizer(loading, job->n_further_optimizers);
    }
    return status;
}

/* A message with all its sections, empty. */
static int new_job(struct loading *loading)
{
#define NEW(field, name)                       \
    do {                                       \
        field = malloc(sizeof *field);         \
        if (!field) return no_memory(loading); \
        gacc__v1__##name##__init(field);       \
    } while (0)
    NEW(loading->job, job_spec);
    Gacc__V1__JobSpec *job = loading->job;
    NEW(job->job, job_section);
    NEW(job->model, model_section);
    NEW(job->data, data_section);
    NEW(job->batch, batch_section);
    NEW(job->precision, precision_section);
    NEW(job->optimizer, optimizer_section);
    NEW(job->schedule, schedule_section);
    NEW(job->evaluation, evaluation_section);
    NEW(job->checkpoint, checkpoint_section);
    NEW(job->control, control_section);
#undef NEW
    return 0;
}

int job_bind(struct loading *loading)
{
    int status = check_section(loading, loading->root, "", "");
    if (!status) status = new_job(loading);
    if (!status) status = bind_selectors(loading);
    for (size_t i = 0; i < key_count && !status; i++) {
        if (keys[i].selects != BY_NOTHING || keys[i].section == IN_OPTIMIZER || keys[i].section == IN_GROUP) continue;
        status = bind_key(loading, &keys[i]);
    }
    return status ? status : bind_optimizers(loading);
}
