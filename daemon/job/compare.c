#include "daemon/job/compare.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/job/keys.h"
#include "daemon/job/values.h"
#include "proto/message.h"
#include "proto/optimizers.h"

/* By the first path that matches; one that ends in . stands for all that begins with it. What is not here is taken. */
static const struct {
    const char *path;
    enum change_rule rule;
} rules[] = {
    {"job.seed", CHANGE_REFUSED},        {"model.pad_vocab", CHANGE_TAKEN},  {"model.", CHANGE_REFUSED},
    {"data.", CHANGE_REFUSED},           {"batch.global", CHANGE_REFUSED},   {"batch.weighting", CHANGE_REFUSED},
    {"batch.tail", CHANGE_REFUSED},      {"batch.lr_scaling", CHANGE_KEPT},  {"batch.base", CHANGE_KEPT},
    {"batch.ramp.", CHANGE_REFUSED},     {"optimizer.type", CHANGE_REFUSED}, {"optimizer.clip_norm", CHANGE_TAKEN},
    {"optimizer.match", CHANGE_REFUSED}, {"optimizer.name", CHANGE_TAKEN},   {"optimizer.", CHANGE_KEPT},
};

/* The rates are worked out together: whoever sets one sets all. */
static const char *const rates[] = {"optimizer.lr", "optimizer.groups", FURTHER, "batch.lr_scaling", "batch.base"};

static bool begins_with(const char *text, const char *with, char end)
{
    const size_t length = strlen(with);
    return !strncmp(text, with, length) && (text[length] == end || text[length] == '.' || text[length] == '\0');
}

/* The key of "key=value" as it is called here: a list's first optimizer as if there were no other, the others alike. */
static void name_of_set(const char *set, char *key, size_t size)
{
    static const char list[] = "optimizer.";
    const size_t length = strcspn(set, "=");
    snprintf(key, size, "%.*s", length < size ? (int)length : 0, set);
    if (strncmp(key, list, strlen(list)) != 0) return;
    char *index = key + strlen(list), *end;
    const unsigned long number = strtoul(index, &end, 10);
    if (end == index || (*end != '.' && *end != '\0')) return;
    if (number > 0)
        snprintf(key, size, FURTHER);
    else
        memmove(*end ? index : index - 1, *end ? end + 1 : end, strlen(*end ? end + 1 : end) + 1);
}

/* By the key itself, a section around it or a part of it. */
static bool is_set(const struct job_overrides *overrides, const char *path)
{
    for (size_t i = 0; overrides && i < overrides->set_count; i++) {
        char key[256];
        name_of_set(overrides->sets[i], key, sizeof key);
        if (begins_with(key, path, '\0') || begins_with(path, key, '\0')) return true;
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

/* The keys of a section as {leaf: value, …}; `base` is the message that holds them. */
static void print_mapping(const Gacc__V1__JobSpec *job, enum section section, const void *base, FILE *to)
{
    const char *before = "{";
    for (size_t k = 0; k < key_count; k++) {
        const bool is_value = keys[k].section == section && keys[k].type != KEY_GROUPS;
        if (!is_value || !key_applies(&keys[k], job, NULL) || value_is_absent(&keys[k], base)) continue;
        fprintf(to, "%s%s: ", before, strrchr(keys[k].path, '.') + 1);
        value_print(&keys[k], base, to);
        before = ", ";
    }
}

static void print_groups(const Gacc__V1__JobSpec *job, FILE *to)
{
    fputc('[', to);
    for (size_t i = 0; i < job->optimizer->n_groups; i++) {
        if (i) fputs(", ", to);
        print_mapping(job, IN_GROUP, job->optimizer->groups[i], to);
        fputc('}', to);
    }
    fputc(']', to);
}

static void print_further(const Gacc__V1__JobSpec *job, FILE *to)
{
    for (size_t i = 1; i < optimizer_count(job); i++) {
        const Gacc__V1__JobSpec one = optimizer_alone(job, i);
        fputs(i > 1 ? ", " : "[", to);
        print_mapping(&one, IN_OPTIMIZER, one.optimizer, to);
        if (one.optimizer->n_groups > 0) {
            fputs(", groups: ", to);
            print_groups(&one, to);
        }
        fputc('}', to);
    }
    fputc(']', to);
}

/* Which tensors each of a list has, and of what type it is. */
static void print_matches(const Gacc__V1__JobSpec *job, FILE *to)
{
    const struct choice *types = key_of_selector(BY_OPTIMIZER)->choices;
    for (size_t i = 0; i < optimizer_count(job); i++)
        fprintf(to, "%s%s: %s", i ? ", " : "{", optimizer_at(job, i)->match,
                choice_name(types, (int)optimizer_at(job, i)->type));
    fputc('}', to);
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
    else if (!strcmp(key->path, "optimizer.match"))
        print_matches(job, stream);
    else
        value_print(key, base, stream);
    return fclose(stream) ? -1 : 0;
}

/* The same of FURTHER. */
static int further_text(const Gacc__V1__JobSpec *job, char **text)
{
    size_t length;
    *text = NULL;
    if (job->n_further_optimizers == 0) return 0;
    FILE *stream = open_memstream(text, &length);
    if (!stream) return -1;
    print_further(job, stream);
    return fclose(stream) ? -1 : 0;
}

char *job_value_text(const Gacc__V1__JobSpec *job, const char *path)
{
    char *text = NULL;
    size_t length;
    const Gacc__V1__ParameterGroup *group;
    const struct key *key = key_find_of_group(job, path, &group);
    if (!key) return (key = key_find(job, path, NULL)) && !value_text(key, job, &text) ? text : NULL;
    if (value_is_absent(key, group)) return NULL;
    FILE *stream = open_memstream(&text, &length);
    if (stream) value_print(key, group, stream);
    if (stream && !fclose(stream)) return text;
    free(text);
    return NULL;
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

/* Takes both texts, which are no values where making them failed; returns that. */
static bool compare_texts(struct job_changes *changes, const char *path, const struct job_overrides *overrides,
                          bool failed, char *before, char *after)
{
    if (!failed && differ(before, after)) {
        add(changes, path, overrides, before, after);
    } else {
        free(before);
        free(after);
    }
    return failed;
}

int job_compare(struct job_changes *changes, const Gacc__V1__JobSpec *was, const Gacc__V1__JobSpec *now,
                const struct job_overrides *overrides, struct error *error)
{
    *changes = (struct job_changes){.each = calloc(key_count + 1, sizeof *changes->each)};
    bool failed = !changes->each;
    for (size_t i = 0; i < key_count && !failed; i++) {
        char *before = NULL, *after = NULL;
        if (keys[i].type == KEY_GROUPS) { /* behind the keys of the first */
            failed = further_text(was, &before) || further_text(now, &after);
            failed = compare_texts(changes, FURTHER, overrides, failed, before, after);
            before = after = NULL;
        }
        if (failed || !is_compared(&keys[i])) continue;
        failed = value_text(&keys[i], was, &before) || value_text(&keys[i], now, &after);
        failed = compare_texts(changes, keys[i].path, overrides, failed, before, after);
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

/* The groups of the first optimizer, and all of the further ones. */
static int keep_lists(const Gacc__V1__JobSpec *was, Gacc__V1__JobSpec *now, struct error *error)
{
    Gacc__V1__JobSpec *copy = message_copy(&was->base);
    if (!copy) return error_set(error, STATUS_INTERNAL, "out of memory");
    const Gacc__V1__JobSpec own = *now;
    const Gacc__V1__OptimizerSection own_first = *now->optimizer;
    now->optimizer->n_groups = copy->optimizer->n_groups;
    now->optimizer->groups = copy->optimizer->groups;
    now->n_further_optimizers = copy->n_further_optimizers;
    now->further_optimizers = copy->further_optimizers;
    copy->optimizer->n_groups = own_first.n_groups;
    copy->optimizer->groups = own_first.groups;
    copy->n_further_optimizers = own.n_further_optimizers;
    copy->further_optimizers = own.further_optimizers;
    gacc__v1__job_spec__free_unpacked(copy, NULL);
    return 0;
}

static int keep_rates(const Gacc__V1__JobSpec *was, Gacc__V1__JobSpec *now, struct error *error)
{
    now->optimizer->lr = was->optimizer->lr;
    now->optimizer->lr_written = was->optimizer->lr_written;
    now->batch->lr_scaling = was->batch->lr_scaling;
    now->batch->base_sequences = was->batch->base_sequences;
    return keep_lists(was, now, error);
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
        free(changes->each[i].own);
        free(changes->each[i].was);
        free(changes->each[i].now);
    }
    free(changes->each);
    *changes = (struct job_changes){0};
}
