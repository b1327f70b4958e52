/* Other values of what the job is made of, set while it runs. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/coordinator/conductor_internal.h"
#include "proto/optimizers.h"

static void free_edition(struct edition *edition)
{
    if (edition->job) gacc__v1__job_spec__free_unpacked(edition->job, NULL);
    job_settings_free(&edition->settings);
    free(edition->frozen);
    *edition = (struct edition){0};
}

void conductor_free_settings(struct conductor *c)
{
    free_edition(&c->edited);
    free_edition(&c->pending);
}

int conductor_restore_settings(struct conductor *c, const struct job_settings *settings, struct error *error)
{
    return job_settings_copy(&c->edited.settings, settings, error);
}

const Gacc__V1__JobSpec *conductor_job(const struct conductor *c)
{
    return c->job;
}

const Gacc__V1__JobSpec *conductor_next_job(const struct conductor *c)
{
    return c->pending.job ? c->pending.job : c->job;
}

const struct job_settings *conductor_settings(const struct conductor *c)
{
    return &c->edited.settings;
}

const struct job_settings *conductor_next_settings(const struct conductor *c)
{
    return c->pending.job ? &c->pending.settings : &c->edited.settings;
}

float conductor_next_scale(const struct conductor *c)
{
    if (!c->rules.has_scaler) return 0;
    return c->pending.scale > 0 ? c->pending.scale : c->scale.scale;
}

const struct retention *conductor_retention(const struct conductor *c)
{
    return &c->rules.retention;
}

/* The job's group whose tensors these are; NULL: they are in none. */
static const Gacc__V1__ParameterGroup *group_of(const Gacc__V1__JobSpec *job, const Gacc__V1__TensorGroup *tensors)
{
    for (size_t o = 0; o < optimizer_count(job) && *tensors->match; o++) {
        const Gacc__V1__OptimizerSection *optimizer = optimizer_at(job, o);
        if (strcmp(optimizer->name, tensors->optimizer) != 0) continue;
        for (size_t i = 0; i < optimizer->n_groups; i++)
            if (!strcmp(optimizer->groups[i]->match, tensors->match)) return optimizer->groups[i];
    }
    return NULL;
}

static bool is_trained(const Gacc__V1__JobSpec *job, const Gacc__V1__TensorGroup *tensors, uint64_t steps)
{
    const Gacc__V1__ParameterGroup *group = group_of(job, tensors);
    const bool frozen = group ? group->frozen : tensors->frozen;
    return tensors->parameters > 0 && !group_is_frozen(frozen, tensors->frozen_until, tensors->frozen_from, steps);
}

/* From here on, whenever groups are frozen or trained by a schedule, something is left to train. */
static int check_trained(const struct conductor *c, const Gacc__V1__JobSpec *job, struct error *error)
{
    const Gacc__V1__Hello *hello = c->rank[0].hello;
    const uint64_t now = c->counters.optimizer_steps;
    for (size_t i = 0; i < 2 * hello->n_groups + 1; i++) {
        const Gacc__V1__TensorGroup *changing = i < 2 * hello->n_groups ? hello->groups[i / 2] : NULL;
        const uint64_t change = !changing ? now : i % 2 ? changing->frozen_from : changing->frozen_until;
        const uint64_t steps = change > now ? change : now;
        bool any = hello->n_groups == 0;
        for (size_t g = 0; g < hello->n_groups && !any; g++) any = is_trained(job, hello->groups[g], steps);
        if (!any)
            return error_set(error, STATUS_UNAVAILABLE,
                             "%s: every tensor would be frozen: nothing would be left to train",
                             optimizers_are_list(job) ? "optimizer" : "optimizer.groups");
    }
    return 0;
}

/* What the job's length and its data say to it. */
static int check_edition(const struct conductor *c, const Gacc__V1__JobSpec *job, struct job_rules *rules,
                         struct error *error)
{
    const Gacc__V1__JobSpec *was = conductor_next_job(c);
    const Gacc__V1__Hello *hello = c->rank[0].hello;
    int status = job_rules_from_job(rules, job, c->ranks, error);
    if (!status)
        status = job_rules_add_data(rules, job, hello->train_sequences, hello->validation_sequences,
                                    hello->targets_per_sequence, error);
    if (!status) status = check_trained(c, job, error);
    if (status) return status;
    if (job->batch->global != was->batch->global && job->job->steps == 0)
        return error_set(error, STATUS_UNAVAILABLE,
                         "batch.global: cannot be changed in a job by job.%s, whose number of steps follows from it",
                         job->job->epochs ? "epochs" : "tokens");
    const bool is_under_way = c->step > c->start && !c->requests.held;
    const uint64_t done = c->counters.optimizer_steps + is_under_way;
    if (job->job->steps < was->job->steps && job->job->steps < done)
        return error_set(error, STATUS_UNAVAILABLE, "job.steps: %" PRIu64 " is below the %" PRIu64 " that are done%s",
                         job->job->steps, done, is_under_way ? " with the step under way" : "");
    return 0;
}

void conductor_replan(struct conductor *c)
{
    if (!c->requests.replans || !c->has_upcoming) return;
    c->position = (struct plan_position){c->upcoming.epoch, c->upcoming.first};
    c->has_upcoming = plan_next(&c->rules.plan, c->counters.optimizer_steps, &c->position, &c->upcoming);
}

/* Of all groups, in the job's order, as ranks are told. */
static int list_frozen(struct edition *edition, const Gacc__V1__JobSpec *job, struct error *error)
{
    size_t count = 0;
    for (size_t o = 0; o < optimizer_count(job); o++) count += optimizer_at(job, o)->n_groups;
    edition->frozen = calloc(count + 1, sizeof *edition->frozen);
    if (!edition->frozen) return error_set(error, STATUS_INTERNAL, "out of memory for a setting");
    for (size_t o = 0; o < optimizer_count(job); o++)
        for (size_t i = 0; i < optimizer_at(job, o)->n_groups; i++)
            edition->frozen[edition->frozen_count++] = optimizer_at(job, o)->groups[i]->frozen;
    return 0;
}

void conductor_note_frozen(struct conductor *c)
{
    const Gacc__V1__Hello *hello = c->rank[0].hello;
    for (size_t i = 0; i < hello->n_groups; i++) {
        const Gacc__V1__ParameterGroup *group = group_of(c->job, hello->groups[i]);
        if (group) hello->groups[i]->frozen = group->frozen;
    }
}

void conductor_take_settings(struct conductor *c)
{
    if (!c->pending.job) return;
    struct edition taken = c->pending;
    c->pending = (struct edition){0};
    c->setting_count = 0;
    free_edition(&c->edited);
    c->edited = taken;
    c->job = taken.job;
    c->rules = taken.rules;
    c->saving.every = taken.rules.save_every;
    if (!c->rules.has_scaler) return;
    const struct loss_scale kept = c->scale;
    if (taken.scale > 0)
        c->scale = (struct loss_scale){.scale = taken.scale, .hysteresis_tracker = c->rules.scale.hysteresis};
    else
        loss_scale_restore(&c->scale, &c->rules.scale, &kept);
    if (!c->attempt.pending) return;
    c->attempt.record.loss_scale_next = (double)c->scale.scale;
    c->attempt.record.growth_tracker = c->scale.growth_tracker;
}

/* For GetStatus, until they are in effect. */
static void name_settings(struct conductor *c, const struct job_changes *changes)
{
    for (size_t i = 0; i < changes->count && c->setting_count < SETTINGS_MAX; i++) {
        char name[sizeof *c->setting_names];
        bool is_there = false;
        snprintf(name, sizeof name, "set %.70s", changes->each[i].key);
        for (size_t j = 0; j < c->setting_count; j++) is_there |= !strcmp(c->setting_names[j], name);
        if (!is_there) memcpy(c->setting_names[c->setting_count++], name, sizeof name);
    }
}

enum answer conductor_set(struct conductor *c, Gacc__V1__JobSpec *job, struct job_settings *settings,
                          const struct job_changes *changes, float scale, struct error *error)
{
    struct job_rules rules;
    struct error why;
    if (c->phase == PHASE_HELLOS) {
        error_set(error, STATUS_UNAVAILABLE, "the job is starting: not all ranks have joined yet");
        return ANSWER_REFUSED;
    }
    enum answer answer = conductor_ask(c, REQUEST_SET, "", error);
    if (answer == ANSWER_REFUSED) return answer;
    struct edition edition = {0};
    if (check_edition(c, job, &rules, &why) || list_frozen(&edition, job, &why)) {
        *error = why;
        return ANSWER_REFUSED;
    }
    edition.job = job;
    edition.rules = rules;
    edition.scale = scale == 0 ? c->pending.scale : scale;
    edition.settings = *settings;
    free_edition(&c->pending);
    c->pending = edition;
    conductor_note_unsaved(c);
    *settings = (struct job_settings){0};
    name_settings(c, changes);
    if (answer != ANSWER_NOW) return answer;
    conductor_take_settings(c);
    c->requests.replans = c->has_upcoming && c->upcoming.global != c->rules.plan.global;
    return answer;
}
