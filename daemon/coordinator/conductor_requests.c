/* What signals and operators ask for, and the checkpoints that come of it. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/coordinator/conductor_internal.h"

/* The checkpoint under way has all that was set. */
static bool is_saving_all(const struct conductor *c)
{
    return c->is_saving && !c->has_unsaved;
}

/* What the ranks have to write of the boundary is in a complete checkpoint: it was made there, and the job is paused.
 */
static bool has_parts(const struct conductor *c)
{
    return !c->is_saving && c->step > c->start && c->saved_step == c->counters.step;
}

void conductor_note_unsaved(struct conductor *c)
{
    c->has_unsaved = true;
    const bool saves_here = c->is_saving && c->progress.counters.step == c->counters.step;
    if (c->requests.held && (saves_here || has_parts(c))) c->saving.asked = true; /* what is there gets it, too */
}

int conductor_interrupted(struct conductor *c, const char *who, const Gacc__V1__Interrupted *interrupted,
                          struct error *error)
{
    if (c->phase == PHASE_BROKEN || c->phase == PHASE_OVER) return 0;
    const bool has_begun = c->step > c->start || c->phase >= PHASE_FINISHING;
    const bool stops = !strcmp(interrupted->signal, "SIGUSR2") || !strcmp(interrupted->signal, "SIGTERM") ||
                       !strcmp(interrupted->signal, "SIGINT") || !strcmp(interrupted->signal, "SIGHUP");
    if (!strcmp(interrupted->signal, "SIGUSR1")) {
        /* As mpirun passes it on to every rank, some will be late: the checkpoint under way is what they ask for. */
        if (!is_saving_all(c)) c->saving.asked = true;
        return 0;
    }
    if (stops && interrupted->times <= 1 && has_begun) {
        if (!c->saving.stopping)
            snprintf(c->asked_by, sizeof c->asked_by, "%.32s: interrupted by %.12s", who, interrupted->signal);
        c->saving.stopping = true;
        return 0;
    }
    /* "rank 1's end" is that of a rank which has never come, or whose stream tells of it. */
    if (!strncmp(interrupted->signal, "rank ", strlen("rank ")) && c->phase != PHASE_HELLOS) return 0;
    struct error why;
    if (has_begun)
        error_set(&why, STATUS_INTERNAL, "%.32s: interrupted by %.32s%s at step %" PRIu64, who, interrupted->signal,
                  interrupted->times > 1 ? ", a second time," : "", c->step);
    else
        error_set(&why, stops ? STATUS_AGAIN : STATUS_INTERNAL, "%.32s: interrupted by %.32s before the first step",
                  who, interrupted->signal);
    return conductor_break(c, &why, error);
}

static struct moment moment_of(const struct conductor *c)
{
    const bool ends = c->failed || c->phase >= PHASE_FINISHING;
    return (struct moment){
        .has_begun = c->step > c->start,
        .ends = ends,
        .has_stopped = c->stopped,
        .has_finished = ends && c->requests.finishing,
        .is_saving = is_saving_all(c),
        .is_saved = has_parts(c) && !c->has_unsaved,
    };
}

enum answer conductor_ask(struct conductor *c, enum request request, const char *who, struct error *error)
{
    const struct moment moment = moment_of(c);
    const char *why;
    struct error unheard;
    const bool was_stopping = c->saving.stopping;
    const enum answer answer = requests_take(&c->requests, &c->saving, request, &moment, &why);
    if (answer == ANSWER_REFUSED)
        error_set(error, STATUS_UNAVAILABLE, "%s%s%.300s", why, c->failed ? ": " : "",
                  c->failed ? c->failure.text : "");
    if (c->saving.stopping && !was_stopping) snprintf(c->asked_by, sizeof c->asked_by, "%.100s: asked to stop", who);
    if (answer == ANSWER_END) {
        error_set(&unheard, STATUS_AGAIN, "%.100s: asked to stop before the first step", who);
        conductor_break(c, &unheard, NULL);
    }
    return answer;
}

const struct step_counters *conductor_boundary(const struct conductor *c)
{
    return &c->counters;
}

/* The state as it is between the step that was judged and the window that opens next. */
static void keep_progress(struct conductor *c)
{
    c->progress = (struct progress){
        .counters = c->counters,
        .nonfinite_in_a_row = c->nonfinite_in_a_row,
        .has_scaler = c->rules.has_scaler,
        .scale = c->scale,
        .position = c->has_upcoming ? (struct plan_position){c->upcoming.epoch, c->upcoming.first} : c->position,
        .has_plan = c->has_upcoming,
        .plan = c->upcoming,
        .sequences_seen = c->sequences_seen,
        .epoch_weight = c->epoch_weight,
        .was_evaluated = c->evaluated_at != UINT64_MAX,
        .evaluated_at = c->evaluated_at,
        .has_loss = c->has_loss,
        .loss = c->loss,
        .has_validation = c->has_validation,
        .validation_loss = c->validation_loss,
        .validation_optimizer_steps = c->validation_optimizer_steps,
        .warnings = c->warnings,
        .told_single_value = c->told_single_value,
        .train_sequences = c->rules.plan.sequences,
    };
}

/* Settings are in the manifest alone: where the ranks' parts are on disk, they have nothing to do for them. */
Gacc__V1__Save *conductor_open_save(struct conductor *c, const struct boundary *boundary)
{
    const bool ranks_write = !has_parts(c);
    c->opens_checkpoint = false;
    c->decision.stop = false;
    if (!boundary->save) return NULL;
    if (!ranks_write && !c->has_unsaved) {
        c->decision.stop = c->stopped = c->stop_saved = boundary->stop;
        return NULL;
    }
    struct error too_long;
    store_name(c->save_name, c->counters.optimizer_steps, c->counters.step, c->applied);
    if (store_path(c->save_directory, c->job->job->output, c->save_name, &too_long)) {
        conductor_set_failure(c, &too_long);
        return NULL;
    }
    keep_progress(c);
    c->is_saving = c->opens_checkpoint = true;
    c->has_unsaved = false;
    c->decision.stop = c->stopped = boundary->stop;
    c->save.directory = c->save_directory;
    c->save.optimizer_steps = c->counters.optimizer_steps;
    c->save.wait = c->rules.save_waits;
    return ranks_write ? &c->save : NULL;
}

bool conductor_awaits_records(const struct conductor *c)
{
    return c->attempt.pending;
}

bool conductor_opens_checkpoint(const struct conductor *c)
{
    return c->opens_checkpoint;
}

bool conductor_is_due(const struct conductor *c)
{
    if (c->phase != PHASE_DECISION) return false;
    return c->failed || c->first_failure.status || requests_are_due(&c->requests, &c->saving, c->step > c->start);
}

bool conductor_is_paused(const struct conductor *c)
{
    return c->requests.held;
}

bool conductor_will_pause(const struct conductor *c)
{
    return c->requests.pausing;
}

bool conductor_awaits_checkpoint(const struct conductor *c)
{
    if (c->requests.held) return c->saving.asked || c->saving.stopping;
    if (c->pending.job) return true; /* checkpoint.every may be among what is set */
    return c->rules.save_waits || saving_may_be_due(&c->saving, c->counters.optimizer_steps);
}

const struct progress *conductor_progress(const struct conductor *c, const char **name)
{
    *name = c->save_name;
    return &c->progress;
}

bool conductor_is_stopping(const struct conductor *c)
{
    return c->stopped;
}

bool conductor_is_finishing(const struct conductor *c)
{
    return c->phase == PHASE_FINISHING;
}

void conductor_saved(struct conductor *c, const struct error *why)
{
    c->is_saving = false;
    if (!why) c->saved_step = c->progress.counters.step;
    if (why) c->has_unsaved = true;
    c->stop_saved = c->stopped && !why;
    const bool fatal = saving_ended(&c->saving, !why) || c->stopped;
    if (!why || !fatal) return;
    struct error failure = *why;
    if (c->stopped) error_prefix(&failure, "%s, but there is no checkpoint", c->asked_by);
    conductor_set_failure(c, &failure);
}

void conductor_settle(struct conductor *c)
{
    if (!c->stop_saved) return;
    if (c->attempt.pending) conductor_complete_attempt(c);
    struct error again;
    error_set(&again, STATUS_AGAIN, "%s: checkpoint %s is complete, the same command goes on from it", c->asked_by,
              c->save_name);
    conductor_set_failure(c, &again);
}
