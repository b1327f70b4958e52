#include "daemon/checkpoint/resume.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((format(printf, 4, 5))) static int move(struct resume *resume, const struct stored *stored,
                                                      const char *suffix, const char *format, ...)
{
    struct resume_move *longer = realloc(resume->moves, (resume->move_count + 1) * sizeof *longer);
    if (!longer) return -1;
    resume->moves = longer;
    struct resume_move *added = &longer[resume->move_count++];
    *added = (struct resume_move){.stored = *stored, .suffix = suffix};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(added->why, sizeof added->why, format, arguments);
    va_end(arguments);
    return 0;
}

static int no_memory(struct error *error)
{
    return error_set(error, STATUS_INTERNAL, "out of memory for a list of checkpoints");
}

static int read_and_verify(const char *directory, struct manifest *manifest, struct error *error)
{
    int status = manifest_read(manifest, directory, error);
    if (status) return status;
    status = store_verify(directory, manifest, error);
    if (status) manifest_free(manifest);
    return status;
}

/* The newest of the list that is sound. */
static int choose_newest(struct resume *resume, const char *output, const struct stored *list, size_t count,
                         struct error *error)
{
    for (size_t i = count; i-- > 0 && !resume->found;) {
        if (!list[i].complete) continue;
        struct error fault;
        int status = store_path(resume->directory, output, list[i].name, error);
        if (status) return status;
        status = read_and_verify(resume->directory, &resume->manifest, &fault);
        resume->found = !status;
        if (!status) continue;
        if (status != -STATUS_DATA) { /* out of memory, or a disk that does not answer, is no damage */
            *error = fault;
            return status;
        }
        resume->damaged++;
        if (move(resume, &list[i], "damaged", "%s is damaged and left aside: %.400s", list[i].name, fault.text))
            return no_memory(error);
    }
    if (resume->found || resume->damaged == 0) return 0;
    return error_set(error, STATUS_DATA,
                     "%s: every checkpoint is damaged; the newest: %.500s (--resume never begins anew)", output,
                     resume->moves[resume->move_count - resume->damaged].why);
}

static int choose_directory(struct resume *resume, const char *directory, struct error *error)
{
    if (snprintf(resume->directory, sizeof resume->directory, "%s", directory) >= (int)sizeof resume->directory)
        return error_set(error, STATUS_USAGE, "--resume: the path is too long");
    int status = read_and_verify(directory, &resume->manifest, error);
    resume->found = !status;
    return status ? error_prefix(error, "--resume") : 0;
}

/* Whether the checkpoint lies on the way to the one that was found: it may stay. */
static bool is_before(const struct resume *resume, const char *output, const struct stored *stored)
{
    char path[PATH_MAX], here[PATH_MAX], found[PATH_MAX];
    if (!resume->found || !realpath(resume->directory, found) || store_path(path, output, stored->name, NULL))
        return false;
    const struct step_counters *counters = &resume->manifest.progress.counters;
    if (!realpath(path, here)) return false;
    if (!strcmp(here, found)) return true;
    const size_t folder = (size_t)(strrchr(here, '/') - here); /* checkpoints of another run say nothing about ours */
    if (strncmp(here, found, folder + 1) || strchr(found + folder + 1, '/')) return false;
    return stored->optimizer_steps < counters->optimizer_steps ||
           (stored->optimizer_steps == counters->optimizer_steps && stored->attempt < counters->step);
}

static int set_others_aside(struct resume *resume, const char *output, const struct stored *list, size_t count,
                            struct error *error)
{
    for (size_t i = 0; i < count; i++) {
        if (!list[i].complete || is_before(resume, output, &list[i])) continue;
        if (move(resume, &list[i], "aside", "%s is not on the way of this start and is set aside", list[i].name))
            return no_memory(error);
    }
    return 0;
}

int resume_find(struct resume *resume, const char *output, const char *how, struct error *error)
{
    *resume = (struct resume){0};
    struct stored *list;
    size_t count;
    int status = store_list(output, &list, &count, error);
    for (size_t i = 0; i < count && !status; i++)
        if (!list[i].complete &&
            move(resume, &list[i], NULL, "%s is incomplete (its job ended while it was written) and is removed",
                 list[i].name))
            status = no_memory(error);
    const bool is_auto = !how || !strcmp(how, "auto"), is_never = how && !strcmp(how, "never");
    if (!status && is_auto) status = choose_newest(resume, output, list, count, error);
    if (!status && !is_auto && !is_never) status = choose_directory(resume, how, error);
    if (!status && !is_auto) status = set_others_aside(resume, output, list, count, error);
    free(list);
    return status;
}

/* Those that --set is not in place of. */
static int choose_settings(struct job_settings *settings, const struct job_overrides *overrides, struct error *error)
{
    struct job_settings chosen = {0};
    int status = 0;
    for (size_t i = 0; i < settings->count && !status; i++)
        if (!job_is_named(overrides, settings->each[i].path))
            status = job_settings_put(&chosen, settings->each[i].path, settings->each[i].value, error);
    job_settings_free(settings);
    *settings = chosen;
    return status;
}

/* Those that the job still has. */
static int apply_settings(struct job_settings *settings, Gacc__V1__JobSpec *job, uint32_t ranks, struct error *error)
{
    Gacc__V1__JobSpec *with;
    struct job_changes changes;
    float scale;
    int status = job_settings_drop(settings, job, error);
    if (!status && settings->count == 0) return 0;
    if (!status) status = job_set_live(&with, job, settings, ranks, &changes, &scale, error);
    if (status) {
        error->status = error->status == STATUS_INTERNAL ? STATUS_INTERNAL : STATUS_JOB;
        error_prefix(error, "set while the job ran, and no longer possible (--set is stronger)");
        return -(int)error->status;
    }
    const Gacc__V1__JobSpec old = *job;
    char *output = with->job->output; /* the same text; that of `job` is borrowed by many */
    with->job->output = old.job->output;
    old.job->output = output;
    *job = *with;
    *with = old;
    gacc__v1__job_spec__free_unpacked(with, NULL);
    job_changes_free(&changes);
    return 0;
}

int resume_take_job(struct resume *resume, Gacc__V1__JobSpec *job, const struct job_overrides *overrides,
                    uint32_t ranks, struct error *error)
{
    if (!resume->found) return 0;
    int status = choose_settings(&resume->manifest.settings, overrides, error);
    if (!status) status = apply_settings(&resume->manifest.settings, job, ranks, error);
    if (!status) status = job_compare(&resume->changes, resume->manifest.job, job, overrides, error);
    if (!status) status = job_changes_check(&resume->changes, error);
    return status ? status : job_changes_keep(&resume->changes, resume->manifest.job, job, error);
}

int resume_tidy(const struct resume *resume, const char *output, struct error *error)
{
    int status = 0;
    for (size_t i = 0; i < resume->move_count && !status; i++) {
        const struct resume_move *each = &resume->moves[i];
        status = each->suffix ? store_set_aside(output, each->stored.name, each->suffix, error)
                              : store_remove(output, each->stored.name, error);
    }
    return status;
}

void resume_free(struct resume *resume)
{
    manifest_free(&resume->manifest);
    job_changes_free(&resume->changes);
    free(resume->moves);
    *resume = (struct resume){0};
}
