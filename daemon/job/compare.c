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

/* The row of "path" or "path=value": of a list's first optimizer as if there were no other, of all others FURTHER. */
static void row_of(const char *path, char *row, size_t size)
{
    static const char list[] = "optimizer.";
    const size_t length = strcspn(path, "=");
    snprintf(row, size, "%.*s", length < size ? (int)length : 0, path);
    if (strncmp(row, list, strlen(list)) != 0) return;
    char *index = row + strlen(list), *end;
    const unsigned long number = strtoul(index, &end, 10);
    if (end == index || (*end != '.' && *end != '\0')) return;
    if (number > 0)
        snprintf(row, size, FURTHER);
    else
        memmove(*end ? index : index - 1, *end ? end + 1 : end, strlen(*end ? end + 1 : end) + 1);
}

static bool lie_in_each_other(const char *one, const char *other)
{
    return begins_with(one, other, '\0') || begins_with(other, one, '\0');
}

static bool is_row_set(const struct job_overrides *overrides, const char *row)
{
    for (size_t i = 0; overrides && i < overrides->set_count; i++) {
        char set[256];
        row_of(overrides->sets[i], set, sizeof set);
        if (lie_in_each_other(set, row)) return true;
    }
    return false;
}

static bool is_rate(const char *row)
{
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (!strcmp(rates[i], row)) return true;
    return false;
}

static bool is_row_named(const struct job_overrides *overrides, const char *row)
{
    if (!is_rate(row)) return is_row_set(overrides, row);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (is_row_set(overrides, rates[i])) return true;
    return false;
}

bool job_is_named(const struct job_overrides *overrides, const char *path)
{
    char row[256];
    row_of(path, row, sizeof row);
    if (!strcmp(row, "optimizer.lr")) return is_row_named(overrides, row);
    for (size_t i = 0; overrides && i < overrides->set_count; i++) {
        char set[256];
        snprintf(set, sizeof set, "%.*s", (int)strcspn(overrides->sets[i], "="), overrides->sets[i]);
        if (lie_in_each_other(set, path)) return true;
    }
    return false;
}

static enum change_rule rule_of(const char *path, const struct job_overrides *overrides)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const size_t length = strlen(rules[i].path);
        const bool is_section = rules[i].path[length - 1] == '.';
        if (is_section ? strncmp(path, rules[i].path, length) : strcmp(path, rules[i].path)) continue;
        return rules[i].rule == CHANGE_KEPT && is_row_named(overrides, path) ? CHANGE_TAKEN : rules[i].rule;
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

/* All of one optimizer. */
static void print_optimizer(const Gacc__V1__JobSpec *job, size_t index, FILE *to)
{
    const Gacc__V1__JobSpec one = optimizer_alone(job, index);
    print_mapping(&one, IN_OPTIMIZER, one.optimizer, to);
    if (one.optimizer->n_groups > 0) {
        fputs(", groups: ", to);
        print_groups(&one, to);
    }
    fputc('}', to);
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

/* The same of one behind the first. */
static int further_text(const Gacc__V1__JobSpec *job, size_t index, char **text)
{
    size_t length;
    *text = NULL;
    if (index >= optimizer_count(job)) return 0;
    FILE *stream = open_memstream(text, &length);
    if (!stream) return -1;
    print_optimizer(job, index, stream);
    return fclose(stream) ? -1 : 0;
}

char *job_value_text(const Gacc__V1__JobSpec *job, const char *path)
{
    char *text = NULL;
    size_t length;
    const struct key_place place = key_follow(job, path);
    const Gacc__V1__JobSpec alone = optimizer_alone(job, place.optimizer);
    if (!place.key) return NULL;
    if (!place.group) return value_text(place.key, &alone, &text) ? NULL : text;
    if (value_is_absent(place.key, place.group)) return NULL;
    FILE *stream = open_memstream(&text, &length);
    if (stream) value_print(place.key, place.group, stream);
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

static struct job_change *find(const struct job_changes *changes, const char *key)
{
    for (size_t i = 0; i < changes->count; i++)
        if (!strcmp(changes->each[i].key, key)) return &changes->each[i];
    return NULL;
}

struct comparison {
    struct job_changes *changes;
    const Gacc__V1__JobSpec *was, *now;
    const struct job_overrides *overrides;
};

/* A key has several rows, of which different ones may apply to the two jobs. Takes both texts. Negative: out of memory.
 */
static int add(const struct comparison *comparison, const char *row, const char *key, char *was, char *now)
{
    struct job_changes *changes = comparison->changes;
    struct job_change *change = differ(was, now) ? find(changes, key) : NULL;
    if (differ(was, now) && !change) {
        change = &changes->each[changes->count++];
        *change = (struct job_change){.row = row, .key = strdup(key), .rule = rule_of(row, comparison->overrides)};
        if (!change->key) changes->count--;
    }
    const bool is_kept = change && change->key;
    if (is_kept && was) change->was = was;
    if (is_kept && now) change->now = now;
    if (!is_kept) free(was);
    if (!is_kept) free(now);
    return change && !change->key ? -1 : 0;
}

static int compare_key(const struct comparison *comparison, const struct key *key)
{
    char *before = NULL, *after = NULL;
    const bool names_all = !strcmp(key->path, "optimizer.match"); /* of the list */
    const struct phrase path =
        names_all ? key_path(false, 0, "optimizer") : key_path(optimizers_are_list(comparison->now), 0, key->path);
    if (!value_text(key, comparison->was, &before) && !value_text(key, comparison->now, &after))
        return add(comparison, key->path, path.text, before, after);
    free(before);
    free(after);
    return -1;
}

static int compare_further(const struct comparison *comparison)
{
    for (size_t i = 1; i < optimizer_count(comparison->was) || i < optimizer_count(comparison->now); i++) {
        char *before = NULL, *after = NULL;
        if (further_text(comparison->was, i, &before) || further_text(comparison->now, i, &after)) {
            free(before);
            free(after);
            return -1;
        }
        if (add(comparison, FURTHER, key_path(true, i, "optimizer").text, before, after)) return -1;
    }
    return 0;
}

static void free_change(struct job_change *change)
{
    free(change->key);
    free(change->was);
    free(change->now);
}

/* Of a key of which one row applies to one of the jobs and another to the other, the values may be the same. */
static void drop_equal(struct job_changes *changes)
{
    size_t kept = 0;
    for (size_t i = 0; i < changes->count; i++) {
        if (differ(changes->each[i].was, changes->each[i].now))
            changes->each[kept++] = changes->each[i];
        else
            free_change(&changes->each[i]);
    }
    changes->count = kept;
}

int job_compare(struct job_changes *changes, const Gacc__V1__JobSpec *was, const Gacc__V1__JobSpec *now,
                const struct job_overrides *overrides, struct error *error)
{
    const struct comparison comparison = {changes, was, now, overrides};
    const size_t most = key_count + optimizer_count(was) + optimizer_count(now);
    *changes = (struct job_changes){.each = calloc(most, sizeof *changes->each)};
    int failed = changes->each ? 0 : -1;
    for (size_t i = 0; i < key_count && !failed; i++) {
        if (keys[i].type == KEY_GROUPS) failed = compare_further(&comparison); /* behind the keys of the first */
        if (!failed && is_compared(&keys[i])) failed = compare_key(&comparison, &keys[i]);
    }
    drop_equal(changes);
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
        if (is_rate(change->row))
            status = keep_rates(was, now, error);
        else
            keep_numbers(key_find(now, change->row, NULL), was, now);
    }
    return status ? status : job_set_digest(now, error);
}

void job_changes_free(struct job_changes *changes)
{
    for (size_t i = 0; i < changes->count; i++) free_change(&changes->each[i]);
    free(changes->each);
    *changes = (struct job_changes){0};
}
