#include "daemon/job/compare.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/job/keys.h"
#include "daemon/job/values.h"
#include "proto/message.h"

/* By the first path that matches; one that ends in . stands for all that begins with it. What is not here is taken. */
static const struct {
    const char *path;
    enum change_rule rule;
} rules[] = {
    {"job.seed", CHANGE_REFUSED},    {"model.pad_vocab", CHANGE_TAKEN},  {"model.", CHANGE_REFUSED},
    {"data.", CHANGE_REFUSED},       {"batch.global", CHANGE_REFUSED},   {"batch.weighting", CHANGE_REFUSED},
    {"batch.tail", CHANGE_REFUSED},  {"batch.lr_scaling", CHANGE_KEPT},  {"batch.base", CHANGE_KEPT},
    {"batch.ramp.", CHANGE_REFUSED}, {"optimizer.type", CHANGE_REFUSED}, {"optimizer.clip_norm", CHANGE_TAKEN},
    {"optimizer.", CHANGE_KEPT},
};

/* The rates are worked out together: whoever sets one sets all. */
static const char *const rates[] = {"optimizer.lr", "optimizer.groups", "batch.lr_scaling", "batch.base"};

static bool begins_with(const char *text, const char *with, char end)
{
    const size_t length = strlen(with);
    return !strncmp(text, with, length) && (text[length] == end || text[length] == '.' || text[length] == '\0');
}

/* By the key itself, a section around it or a part of it. */
static bool is_set(const struct job_overrides *overrides, const char *path)
{
    for (size_t i = 0; overrides && i < overrides->set_count; i++) {
        const char *set = overrides->sets[i];
        char key[256] = "";
        const size_t length = strcspn(set, "=");
        if (length < sizeof key) memcpy(key, set, length);
        if (begins_with(set, path, '=') || begins_with(path, key, '\0')) return true;
    }
    return false;
}

static bool is_rate(const char *path)
{
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (!strcmp(rates[i], path)) return true;
    return false;
}

bool job_is_named(const struct job_overrides *overrides, const char *path)
{
    if (!is_rate(path)) return is_set(overrides, path);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (is_set(overrides, rates[i])) return true;
    return false;
}

static enum change_rule rule_of(const char *path, const struct job_overrides *overrides)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const size_t length = strlen(rules[i].path);
        const bool is_section = rules[i].path[length - 1] == '.';
        if (is_section ? strncmp(path, rules[i].path, length) : strcmp(path, rules[i].path)) continue;
        return rules[i].rule == CHANGE_KEPT && job_is_named(overrides, path) ? CHANGE_TAKEN : rules[i].rule;
    }
    return CHANGE_TAKEN;
}

/* ---- a key's value as text ---- */

static void print_groups(const Gacc__V1__JobSpec *job, FILE *to)
{
    fputc('[', to);
    for (size_t i = 0; i < job->optimizer->n_groups; i++) {
        const char *before = i ? ", {" : "{";
        for (size_t k = 0; k < key_count; k++) {
            if (keys[k].section != IN_GROUP) continue;
            const void *base = job->optimizer->groups[i];
            if (value_is_absent(&keys[k], base)) continue;
            fprintf(to, "%s%s: ", before, strrchr(keys[k].path, '.') + 1);
            value_print(&keys[k], base, to);
            before = ", ";
        }
        fputc('}', to);
    }
    fputc(']', to);
}

/* *text NULL: the job does not have it; else free() it. Negative: out of memory. */
static int value_text(const struct key *key, const Gacc__V1__JobSpec *job, char **text)
{
    size_t length;
    *text = NULL;
    const void *base = key->type == KEY_GROUPS ? job->optimizer : key_base(job, NULL, NULL, key->section);
    if (!base || !key_applies(key, job, NULL) || (key->type != KEY_GROUPS && value_is_absent(key, base))) return 0;
    FILE *stream = open_memstream(text, &length);
    if (!stream) return -1;
    if (key->type == KEY_GROUPS)
        print_groups(job, stream);
    else
        value_print(key, base, stream);
    return fclose(stream) ? -1 : 0;
}

char *job_value_text(const Gacc__V1__JobSpec *job, const char *path)
{
    char *text = NULL;
    const struct key *key = key_find(job, path, NULL);
    return key && !value_text(key, job, &text) ? text : NULL;
}

/* ---- comparing ---- */

static bool is_compared(const struct key *key)
{
    if (key->type == KEY_GROUPS) return true;
    if (key->type == KEY_SECTION || key->section == IN_NONE || key->section == IN_GROUP || key->section == IN_ASIDE)
        return false;
    return strcmp(key->path, "job.name") && strcmp(key->path, "job.output");
}

static bool differ(const char *one, const char *other)
{
    return one && other ? strcmp(one, other) != 0 : one != other;
}

static struct job_change *find(const struct job_changes *changes, const char *path)
{
    for (size_t i = 0; i < changes->count; i++)
        if (!strcmp(changes->each[i].key, path)) return &changes->each[i];
    return NULL;
}

/* A key has several rows, of which different ones may apply to the two jobs. */
static void add(struct job_changes *changes, const char *path, const struct job_overrides *overrides, char *was,
                char *now)
{
    struct job_change *change = find(changes, path);
    if (!change) {
        change = &changes->each[changes->count++];
        *change = (struct job_change){.key = path, .rule = rule_of(path, overrides)};
    }
    if (was) change->was = was;
    if (now) change->now = now;
}

int job_compare(struct job_changes *changes, const Gacc__V1__JobSpec *was, const Gacc__V1__JobSpec *now,
                const struct job_overrides *overrides, struct error *error)
{
    *changes = (struct job_changes){.each = calloc(key_count, sizeof *changes->each)};
    bool failed = !changes->each;
    for (size_t i = 0; i < key_count && !failed; i++) {
        char *before = NULL, *after = NULL;
        if (!is_compared(&keys[i])) continue;
        failed = value_text(&keys[i], was, &before) || value_text(&keys[i], now, &after);
        if (!failed && differ(before, after)) {
            add(changes, keys[i].path, overrides, before, after);
        } else {
            free(before);
            free(after);
        }
    }
    if (!failed) return 0;
    job_changes_free(changes);
    return error_set(error, STATUS_INTERNAL, "out of memory");
}

int job_changes_check(const struct job_changes *changes, struct error *error)
{
    const struct job_change *first = NULL;
    size_t others = 0;
    char more[64] = "";
    for (size_t i = 0; i < changes->count; i++) {
        if (changes->each[i].rule != CHANGE_REFUSED) continue;
        others += first != NULL;
        if (!first) first = &changes->each[i];
    }
    if (!first) return 0;
    if (others) snprintf(more, sizeof more, " (and %zu more that differ)", others);
    return error_set(
        error, STATUS_JOB,
        "%s: %.200s here, %.200s in the checkpoint%s: the same training cannot go on with it; --resume never begins "
        "anew, another --output beside it",
        first->key, first->now ? first->now : "not there", first->was ? first->was : "not there", more);
}

/* ---- keeping ---- */

static void keep_numbers(const struct key *key, const Gacc__V1__JobSpec *was, Gacc__V1__JobSpec *now)
{
    const char *from = key_base(was, NULL, NULL, key->section);
    char *to = key_base(now, NULL, NULL, key->section);
    memcpy(to + key->offset, from + key->offset, key->type == KEY_PAIR ? 2 * sizeof(double) : sizeof(double));
}

static int keep_groups(const Gacc__V1__JobSpec *was, Gacc__V1__JobSpec *now, struct error *error)
{
    Gacc__V1__OptimizerSection *copy = message_copy(&was->optimizer->base);
    if (!copy) return error_set(error, STATUS_INTERNAL, "out of memory");
    const size_t count = copy->n_groups;
    Gacc__V1__ParameterGroup **groups = copy->groups;
    copy->n_groups = now->optimizer->n_groups;
    copy->groups = now->optimizer->groups;
    now->optimizer->n_groups = count;
    now->optimizer->groups = groups;
    gacc__v1__optimizer_section__free_unpacked(copy, NULL);
    return 0;
}

static int keep_rates(const Gacc__V1__JobSpec *was, Gacc__V1__JobSpec *now, struct error *error)
{
    now->optimizer->lr = was->optimizer->lr;
    now->optimizer->lr_written = was->optimizer->lr_written;
    now->batch->lr_scaling = was->batch->lr_scaling;
    now->batch->base_sequences = was->batch->base_sequences;
    return keep_groups(was, now, error);
}

int job_changes_keep(const struct job_changes *changes, const Gacc__V1__JobSpec *was, Gacc__V1__JobSpec *now,
                     struct error *error)
{
    int status = 0;
    for (size_t i = 0; i < changes->count && !status; i++) {
        const struct job_change *change = &changes->each[i];
        if (change->rule != CHANGE_KEPT) continue;
        if (is_rate(change->key))
            status = keep_rates(was, now, error);
        else
            keep_numbers(key_find(now, change->key, NULL), was, now);
    }
    return status ? status : job_set_digest(now, error);
}

void job_changes_free(struct job_changes *changes)
{
    for (size_t i = 0; i < changes->count; i++) {
        free(changes->each[i].was);
        free(changes->each[i].now);
    }
    free(changes->each);
    *changes = (struct job_changes){0};
}
