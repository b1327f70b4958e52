#include "daemon/core/saving.h"

static bool is_multiple(const struct saving *saving, uint64_t optimizer_steps)
{
    return saving->every != 0 && optimizer_steps % saving->every == 0;
}

bool saving_may_be_due(const struct saving *saving, uint64_t optimizer_steps)
{
    return saving->asked || saving->stopping || is_multiple(saving, optimizer_steps + 1);
}

struct saving_decision saving_decide(struct saving *saving, bool applied, uint64_t optimizer_steps, bool more)
{
    struct saving_decision decision = {.stop = saving->stopping && more};
    decision.save = decision.stop || saving->asked || (applied && is_multiple(saving, optimizer_steps));
    if (decision.save) saving->asked = false;
    return decision;
}

bool saving_ended(struct saving *saving, bool good)
{
    saving->failures_in_a_row = good ? 0 : saving->failures_in_a_row + 1;
    return saving->failures_in_a_row >= SAVING_FAILURES_MOST;
}
