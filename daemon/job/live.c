#include "daemon/job/live.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/keys.h"
#include "daemon/job/scalar.h"
#include "proto/optimizers.h"

#define NAME "the job" /* that stands for the file in messages */
#define VALUE_MAX 256  /* bytes: no live key has a longer one */

/* ---- a list of settings ---- */

static struct job_setting *find(const struct job_settings *settings, const char *path)
{
    for (size_t i = 0; i < settings->count; i++)
        if (!strcmp(settings->each[i].path, path)) return &settings->each[i];
    return NULL;
}

int job_settings_put(struct job_settings *settings, const char *path, const char *value, struct error *error)
{
    struct job_setting *old = find(settings, path);
    char *copy = strdup(value), *name = old ? NULL : strdup(path);
    struct job_setting *longer = old ? settings->each : realloc(settings->each, (settings->count + 1) * sizeof *longer);
    if (longer) settings->each = longer;
    if (!copy || !longer || (!old && !name)) {
        free(copy);
        free(name);
        return error_set(error, STATUS_INTERNAL, "out of memory for %s", path);
    }
    if (old) {
        free(old->value);
        old->value = copy;
    } else {
        longer[settings->count++] = (struct job_setting){name, copy};
    }
    return 0;
}

int job_settings_copy(struct job_settings *to, const struct job_settings *from, struct error *error)
{
    int status = 0;
    *to = (struct job_settings){0};
    for (size_t i = 0; i < from->count && !status; i++)
        status = job_settings_put(to, from->each[i].path, from->each[i].value, error);
    if (status) job_settings_free(to);
    return status;
}

void job_settings_free(struct job_settings *settings)
{
    for (size_t i = 0; i < settings->count; i++) {
        free(settings->each[i].path);
        free(settings->each[i].value);
    }
    free(settings->each);
    *settings = (struct job_settings){0};
}

/* ---- what is live ---- */

static bool has_dynamic_scale(const Gacc__V1__JobSpec *job)
{
    const Gacc__V1__LossScaleSection *scale = job->precision->loss_scale;
    return scale && scale->mode == GACC__V1__SCALE_MODE__SCALE_DYNAMIC;
}

/* Of a list of optimizers the first one's are, which the others follow, and every group's. */
static bool is_live(const struct key_place *place)
{
    return place->key && place->key->live != LIVE_NEVER && (place->optimizer == 0 || place->group);
}

bool job_is_live(const Gacc__V1__JobSpec *job, const char *path)
{
    const struct key_place place = key_follow(job, path);
    return strcmp(path, LIVE_SCALE) ? is_live(&place) : has_dynamic_scale(job);
}

bool job_is_live_later(const char *path)
{
    for (size_t i = 0; i < key_count; i++)
        if (!strcmp(keys[i].path, path)) return keys[i].live == LIVE_WINDOW_AFTER;
    return false;
}

static void add_path(struct live_paths *live, const char *path)
{
    char *text = live->texts[live->count];
    if (strlen(path) < sizeof *live->texts) live->paths[live->count++] = strcpy(text, path);
}

/* Those of groups that no schedule freezes, one by one. */
static void add_group_paths(struct live_paths *live, const Gacc__V1__JobSpec *job, const char *leaf)
{
    const size_t most = live->count + LIVE_GROUPS_MAX;
    for (size_t o = 0; o < optimizer_count(job); o++)
        for (size_t i = 0; i < optimizer_at(job, o)->n_groups && live->count < most; i++) {
            const Gacc__V1__ParameterGroup *group = optimizer_at(job, o)->groups[i];
            char path[64];
            snprintf(path, sizeof path, "optimizer.groups.%zu.%.20s", i, leaf);
            if (!group->frozen_until && !group->frozen_from)
                add_path(live, key_path(optimizers_are_list(job), o, path).text);
        }
}

void job_live_paths(const Gacc__V1__JobSpec *job, struct live_paths *live)
{
    live->count = 0;
    for (size_t i = 0; i < key_count && live->count < LIVE_PATHS_MAX - LIVE_GROUPS_MAX - 1; i++) {
        if (keys[i].live == LIVE_NEVER || key_find(job, keys[i].path, NULL) != &keys[i]) continue;
        if (keys[i].section == IN_GROUP)
            add_group_paths(live, job, strrchr(keys[i].path, '.') + 1);
        else
            add_path(live, key_path(optimizers_are_list(job), 0, keys[i].path).text);
    }
    if (has_dynamic_scale(job)) add_path(live, LIVE_SCALE);
}

/* ---- the job with other values ---- */

/* What a message says of the place in a file or on a command line, of which there is neither. */
static void strip_place(struct error *error)
{
    static const char set[] = "--set ";
    const char *text = error->text;
    unsigned line, column;
    int length = 0;
    if (!strncmp(text, set, strlen(set))) text += strlen(set);
    if (sscanf(text, NAME ":%u:%u: %n", &line, &column, &length) == 2 && length > 0) text += length;
    memmove(error->text, text, strlen(text) + 1);
}

static int parse_with(Gacc__V1__JobSpec **out, const Gacc__V1__JobSpec *job, const char *const *sets, size_t count,
                      uint32_t ranks, struct error *error)
{
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    const bool printed = stream && !job_print(job, 0, stream);
    if (!stream || fclose(stream) || !printed) {
        free(text);
        return error_set(error, STATUS_INTERNAL, "out of memory for the job");
    }
    const struct job_overrides overrides = {.sets = sets, .set_count = count, .ranks = ranks};
    int status = job_parse(out, text, length, NAME, &overrides, NULL, error);
    free(text);
    if (!status) return 0;
    strip_place(error);
    if (error->status == STATUS_USAGE) error->status = STATUS_JOB; /* there is no command line either */
    return -(int)error->status;
}

/* "path=value"; free() it. */
static char *set_text(const char *path, const char *value)
{
    const size_t length = strlen(path) + strlen(value) + 2;
    char *text = malloc(length);
    if (text) snprintf(text, length, "%s=%s", path, value);
    return text;
}

/* The words of --set for a path that no key has. */
static int refuse_path(const Gacc__V1__JobSpec *job, const struct job_setting *setting, struct error *error)
{
    Gacc__V1__JobSpec *with = NULL;
    char *set = set_text(setting->path, setting->value);
    int status = set ? parse_with(&with, job, (const char *const *)&set, 1, 0, error)
                     : error_set(error, STATUS_INTERNAL, "out of memory");
    free(set);
    if (status) return status;
    gacc__v1__job_spec__free_unpacked(with, NULL);
    return error_set(error, STATUS_UNAVAILABLE, "%.200s: cannot be changed while the job runs", setting->path);
}

static int check_live(const struct key_place *place, const char *path, struct error *error)
{
    static const char unchangeable[] = "%.200s: cannot be changed while the job runs%s%s";
    const Gacc__V1__ParameterGroup *group = place->group;
    if (is_live(place) && group && (group->frozen_until || group->frozen_from))
        return error_set(error, STATUS_UNAVAILABLE, "%.200s: the group follows its frozen_%s", path,
                         group->frozen_until ? "until" : "from");
    if (is_live(place)) return 0;
    if (place->key && place->key->live != LIVE_NEVER)
        return error_set(error, STATUS_UNAVAILABLE, unchangeable, path, ": the others of the list follow ",
                         key_path(true, 0, place->key->path).text);
    if (!place->key && place->any->live != LIVE_NEVER)
        return error_set(error, STATUS_UNAVAILABLE, "%.200s: does not apply to this job", path);
    return error_set(error, STATUS_UNAVAILABLE, unchangeable, path, "", "");
}

static int check_form(const struct job_setting *setting, struct error *error)
{
    const char *path = setting->path;
    if (!*path || strchr(path, '=') || text_fault(path, strlen(path), true) || strlen(path) > VALUE_MAX)
        return error_set(error, STATUS_JOB, "a setting wants the path of a key, such as optimizer.lr");
    if (key_is_derived(path)) return error_set(error, STATUS_JOB, "%.200s: " KEY_IS_DERIVED, path);
    if (strlen(setting->value) > VALUE_MAX) return error_set(error, STATUS_JOB, "%.200s: the value is too long", path);
    if (strchr(path, '*'))
        return error_set(error, STATUS_JOB, "%.200s: a number is wanted in place of *, from 0", path);
    return 0;
}

/* A path that the job does not have is refused in the words in which --set refuses it. */
static int check_place(const Gacc__V1__JobSpec *job, const struct job_setting *setting, struct error *error)
{
    const char *path = setting->path;
    if (!strcmp(path, LIVE_SCALE) && !has_dynamic_scale(job))
        return error_set(error, STATUS_UNAVAILABLE, "%s: %s", path,
                         job->precision->loss_scale ? "precision.loss_scale.mode static: the scale never moves"
                                                    : "this job has no loss scale, only precision.compute fp16 has");
    if (!strcmp(path, LIVE_SCALE)) return 0;
    const struct key_place place = key_follow(job, path);
    return place.key || place.any ? check_live(&place, path, error) : refuse_path(job, setting, error);
}

/* The present scale is under the rules of the first one. */
static int read_scale(const Gacc__V1__JobSpec *job, const char *value, uint32_t ranks, float *scale,
                      struct error *error)
{
    static const char initial[] = "precision.loss_scale.initial";
    Gacc__V1__JobSpec *with = NULL;
    char *set = set_text(initial, value);
    int status = set ? parse_with(&with, job, (const char *const *)&set, 1, ranks, error)
                     : error_set(error, STATUS_INTERNAL, "out of memory");
    free(set);
    if (!status) *scale = (float)with->precision->loss_scale->initial;
    if (with) gacc__v1__job_spec__free_unpacked(with, NULL);
    if (!status || strncmp(error->text, initial, strlen(initial))) return status;
    char rest[sizeof error->text];
    snprintf(rest, sizeof rest, "%s", error->text + strlen(initial));
    return error_set(error, error->status, LIVE_SCALE "%.900s", rest);
}

/* A schedule as long as the job stays that. */
static bool total_follows(const Gacc__V1__JobSpec *job, const struct job_settings *settings)
{
    return job->schedule->type != GACC__V1__SCHEDULE_TYPE__SCHEDULE_CONSTANT && job->job->steps != 0 &&
           job->schedule->total == job->job->steps && find(settings, "job.steps") && !find(settings, "schedule.total");
}

static int apply(Gacc__V1__JobSpec **out, const Gacc__V1__JobSpec *job, const struct job_settings *settings,
                 uint32_t ranks, struct error *error)
{
    char *sets[SETTINGS_MAX + 1];
    size_t count = 0;
    bool whole = true;
    for (size_t i = 0; i < settings->count; i++) {
        if (!strcmp(settings->each[i].path, LIVE_SCALE)) continue;
        whole &= (sets[count++] = set_text(settings->each[i].path, settings->each[i].value)) != NULL;
    }
    if (total_follows(job, settings))
        whole &= (sets[count++] = set_text("schedule.total", find(settings, "job.steps")->value)) != NULL;
    int status = whole ? parse_with(out, job, (const char *const *)sets, count, ranks, error)
                       : error_set(error, STATUS_INTERNAL, "out of memory");
    while (count > 0) free(sets[--count]);
    return status;
}

/* The job with those of the settings that other keys depend on: what else is set has to be a key of this one. NULL:
 * none is among them, it is `job`. */
static int apply_choices(Gacc__V1__JobSpec **out, const Gacc__V1__JobSpec *job, const struct job_settings *settings,
                         struct error *error)
{
    struct job_settings choices = {0};
    int status = 0;
    for (size_t i = 0; i < settings->count && !status; i++) {
        const struct key_place place = key_follow(job, settings->each[i].path);
        if (is_live(&place) && place.key->selects)
            status = job_settings_put(&choices, settings->each[i].path, settings->each[i].value, error);
    }
    if (!status && choices.count > 0) status = apply(out, job, &choices, 0, error);
    job_settings_free(&choices);
    return status;
}

int job_settings_drop(struct job_settings *settings, const Gacc__V1__JobSpec *job, struct error *error)
{
    Gacc__V1__JobSpec *chosen = NULL;
    struct job_settings kept = {0};
    int status = apply_choices(&chosen, job, settings, error);
    for (size_t i = 0; i < settings->count && !status; i++)
        if (job_is_live(chosen ? chosen : job, settings->each[i].path))
            status = job_settings_put(&kept, settings->each[i].path, settings->each[i].value, error);
    if (chosen) gacc__v1__job_spec__free_unpacked(chosen, NULL);
    job_settings_free(status ? &kept : settings);
    if (!status) *settings = kept;
    return status;
}

/* As the ranks have it, who know nothing of settings. */
static void keep_ratios(const Gacc__V1__JobSpec *was, Gacc__V1__JobSpec *now)
{
    const double first = was->optimizer->lr;
    const Gacc__V1__OptimizerSection *to = now->optimizer;
    for (size_t o = 0; o < optimizer_count(now) && first > 0; o++) {
        const Gacc__V1__OptimizerSection *before = optimizer_at(was, o);
        Gacc__V1__OptimizerSection *optimizer = optimizer_at(now, o);
        if (o > 0) {
            optimizer->lr_ratio = before->lr_ratio > 0 ? before->lr_ratio : before->lr / first;
            optimizer->lr_written = optimizer->lr_ratio * to->lr_written;
            optimizer->lr = optimizer->lr_ratio * to->lr;
        }
        for (size_t i = 0; i < optimizer->n_groups; i++) {
            const Gacc__V1__ParameterGroup *earlier = before->groups[i];
            Gacc__V1__ParameterGroup *group = optimizer->groups[i];
            group->lr_ratio = earlier->lr_ratio > 0 ? earlier->lr_ratio : earlier->lr / first;
            group->lr_written = group->lr_ratio * to->lr_written;
            group->lr = group->lr_ratio * to->lr;
        }
    }
}

/* Groups and further optimizers are compared as one value; those that were set are told one by one instead. */
static int name_groups(struct job_changes *changes, const Gacc__V1__JobSpec *was, const Gacc__V1__JobSpec *now,
                       const struct job_settings *settings, struct error *error)
{
    struct job_changes kept = {.each = calloc(changes->count + settings->count + 1, sizeof *kept.each)};
    bool complete = kept.each, sets_groups = false;
    for (size_t i = 0; i < settings->count && complete; i++) {
        const char *path = settings->each[i].path;
        if (!key_follow(was, path).group) continue;
        struct job_change *change = &kept.each[kept.count++];
        *change = (struct job_change){.row = "optimizer.groups",
                                      .key = strdup(path),
                                      .was = job_value_text(was, path),
                                      .now = job_value_text(now, path)};
        complete = change->key && change->was && change->now;
        sets_groups = true;
    }
    for (size_t i = 0; i < changes->count && complete; i++) {
        struct job_change *change = &changes->each[i];
        const bool is_named =
            sets_groups && (!strcmp(change->row, "optimizer.groups") || !strcmp(change->row, FURTHER));
        if (is_named) continue;
        kept.each[kept.count++] = *change;
        *change = (struct job_change){.row = change->row};
    }
    job_changes_free(complete ? changes : &kept);
    if (!complete) return error_set(error, STATUS_INTERNAL, "out of memory");
    *changes = kept;
    return 0;
}

/* What was set stands in the list even where it is what it was. */
static int add_unchanged(struct job_changes *changes, const Gacc__V1__JobSpec *job, const struct job_settings *settings,
                         struct error *error)
{
    struct job_change *longer = realloc(changes->each, (changes->count + settings->count + 1) * sizeof *longer);
    if (!longer) return error_set(error, STATUS_INTERNAL, "out of memory");
    changes->each = longer;
    for (size_t i = 0; i < settings->count; i++) {
        bool is_there = false;
        for (size_t j = 0; j < changes->count; j++) is_there |= !strcmp(longer[j].key, settings->each[i].path);
        const char *path = settings->each[i].path;
        const struct key *key = key_follow(job, path).key;
        if (is_there || !key) continue; /* LIVE_SCALE is its caller's to tell: the job does not know it */
        struct job_change *change = &longer[changes->count++];
        *change = (struct job_change){
            .row = key->path, .key = strdup(path), .was = job_value_text(job, path), .now = job_value_text(job, path)};
        if (!change->key) return error_set(error, STATUS_INTERNAL, "out of memory");
    }
    return 0;
}

/* What a choice brings or takes along is a key of one of the two jobs only. */
static int check_changes(const Gacc__V1__JobSpec *was, const Gacc__V1__JobSpec *now, const struct job_changes *changes,
                         struct error *error)
{
    for (size_t i = 0; i < changes->count; i++) {
        const char *key = changes->each[i].key;
        if (!job_is_live(was, key) && !job_is_live(now, key))
            return error_set(error, STATUS_UNAVAILABLE,
                             "%s: would change from %.100s to %.100s, and cannot while the job runs", key,
                             changes->each[i].was ? changes->each[i].was : "nothing",
                             changes->each[i].now ? changes->each[i].now : "nothing");
    }
    return 0;
}

int job_set_live(Gacc__V1__JobSpec **out, const Gacc__V1__JobSpec *job, const struct job_settings *settings,
                 uint32_t ranks, struct job_changes *changes, float *scale, struct error *error)
{
    Gacc__V1__JobSpec *chosen = NULL;
    int status = 0;
    *out = NULL;
    *scale = 0;
    *changes = (struct job_changes){0};
    if (settings->count == 0 || settings->count > SETTINGS_MAX)
        return error_set(error, STATUS_JOB, "between 1 and %d settings are taken at a time", SETTINGS_MAX);
    for (size_t i = 0; i < settings->count && !status; i++) status = check_form(&settings->each[i], error);
    if (!status) status = apply_choices(&chosen, job, settings, error);
    for (size_t i = 0; i < settings->count && !status; i++)
        status = check_place(chosen ? chosen : job, &settings->each[i], error);
    if (chosen) gacc__v1__job_spec__free_unpacked(chosen, NULL);
    if (!status) status = apply(out, job, settings, ranks, error);
    const struct job_setting *current = find(settings, LIVE_SCALE);
    if (!status && current) status = read_scale(*out, current->value, ranks, scale, error);
    if (!status) status = job_compare(changes, job, *out, NULL, error);
    if (!status) status = name_groups(changes, job, *out, settings, error);
    if (!status) status = check_changes(job, *out, changes, error);
    if (!status) status = add_unchanged(changes, job, settings, error);
    if (!status) keep_ratios(job, *out);
    if (!status) status = job_set_digest(*out, error);
    if (!status) return 0;
    job_changes_free(changes);
    if (*out) gacc__v1__job_spec__free_unpacked(*out, NULL);
    *out = NULL;
    return status;
}
