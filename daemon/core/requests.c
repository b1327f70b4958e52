#include "daemon/core/requests.h"

static enum answer refuse(const char **why, const char *text)
{
    *why = text;
    return ANSWER_REFUSED;
}

static const char ending[] = "the job is ending";
static const char stopping[] = "the job was asked to stop behind a checkpoint already";
static const char finishing[] = "the job was asked to finish already";

static enum answer take_checkpoint(struct saving *saving, const struct moment *moment, const char **why)
{
    if (moment->is_saving) return ANSWER_NOW; /* with that one */
    if (moment->ends) return refuse(why, ending);
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

enum answer requests_take(struct requests *requests, struct saving *saving, enum request request,
                          const struct moment *moment, const char **why)
{
    switch (request) {
    case REQUEST_CHECKPOINT:
        return take_checkpoint(saving, moment, why);
    case REQUEST_STOP:
        return take_stop(requests, saving, moment, why);
    case REQUEST_FINISH:
        break;
    }
    return take_finish(requests, saving, moment, why);
}

struct boundary requests_boundary(const struct requests *requests, struct saving *saving, bool applied,
                                  uint64_t optimizer_steps, bool more)
{
    struct boundary boundary = {.more = more && !requests->finishing};
    const struct saving_decision decision = saving_decide(saving, applied, optimizer_steps, boundary.more);
    boundary.save = decision.save;
    boundary.stop = decision.stop;
    return boundary;
}
