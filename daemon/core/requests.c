#include "daemon/core/requests.h"

static enum answer refuse(const char **why, const char *text)
{
    *why = text;
    return ANSWER_REFUSED;
}

static const char ending[] = "the job is ending";
static const char stopping[] = "the job was asked to stop behind a checkpoint already";
static const char finishing[] = "the job was asked to finish already";

static enum answer take_checkpoint(const struct requests *requests, struct saving *saving, const struct moment *moment,
                                   const char **why)
{
    if (moment->is_saving) return ANSWER_NOW; /* with that one */
    if (moment->ends) return refuse(why, ending);
    if (requests->held && moment->is_saved) return ANSWER_NOW;
    if (requests->held && !moment->has_begun) return refuse(why, "before the first step there is nothing to save");
    saving->asked = true;
    return ANSWER_AT_BOUNDARY;
}

static enum answer take_stop(const struct requests *requests, struct saving *saving, const struct moment *moment,
                             const char **why)
{
    if (moment->has_stopped) return ANSWER_NOW;
    if (moment->ends) return refuse(why, ending);
    if (requests->finishing) return refuse(why, finishing);
    if (!moment->has_begun) return ANSWER_END; /* there is nothing to save */
    saving->stopping = true;
    return ANSWER_AT_BOUNDARY;
}

static enum answer take_finish(struct requests *requests, const struct saving *saving, const struct moment *moment,
                               const char **why)
{
    if (moment->has_finished) return ANSWER_NOW;
    if (moment->ends) return refuse(why, ending);
    if (saving->stopping) return refuse(why, stopping);
    if (!moment->has_begun) return refuse(why, "before the first step there is nothing to finish with");
    requests->finishing = true;
    return ANSWER_AT_BOUNDARY;
}

static enum answer take_pause(struct requests *requests, const struct saving *saving, const struct moment *moment,
                              const char **why)
{
    if (moment->ends) return refuse(why, ending);
    if (saving->stopping) return refuse(why, stopping);
    if (requests->finishing) return refuse(why, finishing);
    if (requests->held && !requests->resuming) return ANSWER_NOW;
    requests->pausing = true;
    return ANSWER_AT_BOUNDARY;
}

static enum answer take_resume(struct requests *requests, const struct moment *moment, const char **why)
{
    if (moment->ends) return refuse(why, ending);
    if (!requests->held && !requests->pausing) return refuse(why, "the job is not paused");
    requests->pausing = false;
    requests->resuming = requests->held;
    return ANSWER_AT_BOUNDARY;
}

enum answer requests_take(struct requests *requests, struct saving *saving, enum request request,
                          const struct moment *moment, const char **why)
{
    switch (request) {
    case REQUEST_CHECKPOINT:
        return take_checkpoint(requests, saving, moment, why);
    case REQUEST_STOP:
        return take_stop(requests, saving, moment, why);
    case REQUEST_FINISH:
        return take_finish(requests, saving, moment, why);
    case REQUEST_PAUSE:
        return take_pause(requests, saving, moment, why);
    case REQUEST_RESUME:
        return take_resume(requests, moment, why);
    case REQUEST_SET:
        break;
    }
    if (moment->ends) return refuse(why, ending);
    if (requests->finishing) return refuse(why, finishing);
    return requests->held ? ANSWER_NOW : ANSWER_AT_BOUNDARY;
}

struct boundary requests_boundary(struct requests *requests, struct saving *saving, bool applied,
                                  uint64_t optimizer_steps, bool more)
{
    struct boundary boundary = {.more = more && !requests->finishing};
    if (saving) {
        const struct saving_decision decision = saving_decide(saving, applied, optimizer_steps, boundary.more);
        boundary.save = decision.save;
        boundary.stop = decision.stop;
    }
    const bool goes_on = boundary.more && !boundary.stop;
    const bool stays = requests->held ? !requests->resuming || requests->replans : requests->pausing;
    boundary.hold = goes_on && stays;
    requests->pausing &= goes_on && requests->held; /* asked for behind a resume: of the boundary after this one */
    requests->resuming &= requests->replans && boundary.hold;
    requests->replans = false;
    requests->held = boundary.hold;
    return boundary;
}

bool requests_are_due(const struct requests *requests, const struct saving *saving, bool has_begun)
{
    return !requests->held || requests->resuming || requests->replans || requests->finishing || saving->stopping ||
           (saving->asked && has_begun);
}
