/* --set key.path=value: the value, parsed as YAML, takes the place of what the file has at that path. */
#include <stdlib.h>
#include <string.h>

#include "daemon/job/load.h"
#include "daemon/job/scalar.h"

/* Keys of which a job has one: the one given with --set drops the others of the file. */
static const char *const alternatives[][4] = {
    {"job.steps", "job.tokens", "job.epochs", NULL},
    {"batch.global", "batch.tokens", NULL},
    {"model.init.file", "model.init.values", NULL},
};

/* From where on the path is one key: tensors' names have dots. */
static size_t whole_key_from(const char *path)
{
    for (size_t i = 0; i < key_count; i++) {
        size_t length = strlen(keys[i].path);
        if (keys[i].type == KEY_TENSORS && strncmp(path, keys[i].path, length) == 0 && path[length] == '.')
            return length + 1;
    }
    return strlen(path);
}

static bool begins_with(const char *path, const char *section)
{
    size_t length = strlen(section);
    return strncmp(path, section, length) == 0 && (path[length] == '\0' || path[length] == '.');
}

static bool is_set(const struct loading *loading, const char *section)
{
    for (size_t i = 0; i < loading->overrides->set_count; i++)
        if (begins_with(loading->set_sources[i].set, section)) return true;
    return false;
}

bool job_drop(struct loading *loading, const char *set, const char *path)
{
    if (!tree_find(loading->root, path) || is_set(loading, path)) return false;
    tree_remove(loading->root, path);
    job_notice(loading, "--set %s drops %s of %s", set, path, loading->file);
    return true;
}

static void drop_alternatives(struct loading *loading, const char *set)
{
    for (size_t i = 0; i < sizeof alternatives / sizeof *alternatives; i++) {
        bool mine = false;
        for (const char *const *path = alternatives[i]; *path; path++) mine |= begins_with(set, *path);
        for (const char *const *path = alternatives[i]; mine && *path; path++)
            if (!begins_with(set, *path)) job_drop(loading, set, *path);
    }
}

static int put_one(struct loading *loading, size_t index)
{
    const char *set = loading->overrides->sets[index];
    struct source *source = &loading->set_sources[index];
    const char *equals = strchr(set, '=');
    if (!equals || equals == set) return error_set(loading->error, STATUS_USAGE, "--set %s: wants key.path=value", set);
    char *path = strndup(set, (size_t)(equals - set));
    if (!path) return error_set(loading->error, STATUS_INTERNAL, "out of memory");
    source->set = loading->set_paths[index] = path;
    const char *text = equals + 1;
    size_t length = strlen(text);
    if (text_fault(path, strlen(path), true) || text_fault(text, length, false))
        return error_set(loading->error, STATUS_USAGE, "--set %s: is not UTF-8", path);
    struct node *value;
    /* Nothing behind the = is YAML's null, which a document cannot be. */
    if (length == 0) text = "~", length = 1;
    int status = tree_parse(&value, text, length, source, loading->error);
    if (status) return status;
    if (!value) return error_set(loading->error, STATUS_JOB, "--set %s: is a comment, not a value", path);
    return tree_put(loading->root, path, whole_key_from(path), value, loading->error);
}

int job_override(struct loading *loading)
{
    size_t count = loading->overrides ? loading->overrides->set_count : 0;
    if (count == 0) return 0;
    if (count > JOB_SETS_LIMIT)
        return error_set(loading->error, STATUS_USAGE, "--set: given more than %d times", JOB_SETS_LIMIT);
    loading->set_sources = calloc(count, sizeof *loading->set_sources);
    loading->set_paths = calloc(count, sizeof(char *));
    if (!loading->set_sources || !loading->set_paths)
        return error_set(loading->error, STATUS_INTERNAL, "out of memory");
    for (size_t i = 0; i < count; i++) {
        int status = put_one(loading, i);
        if (status) return status;
    }
    for (size_t i = 0; i < count; i++) drop_alternatives(loading, loading->set_sources[i].set);
    return 0;
}
