#include "daemon/core/plan.h"

uint32_t plan_sequences(const struct plan_rules *rules, uint64_t optimizer_steps)
{
    const bool ramps = rules->ramp_from != 0 && rules->ramp_from < rules->global && optimizer_steps < rules->ramp_steps;
    if (!ramps) return rules->global;
    /* Both steps are below 2^31, as is B: the product fits. */
    const uint64_t grown = (rules->global - rules->ramp_from) * optimizer_steps / rules->ramp_steps;
    return rules->ramp_from + (uint32_t)(grown - grown % rules->micro);
}

bool plan_next(const struct plan_rules *rules, uint64_t optimizer_steps, struct plan_position *position,
               struct plan *plan)
{
    const uint32_t sequences = plan_sequences(rules, optimizer_steps);
    if (rules->sequences == 0 || (rules->drop_tail && rules->sequences < rules->global)) return false;
    uint64_t left = rules->sequences - position->first;
    if (left == 0 || (rules->drop_tail && left < sequences)) {
        *position = (struct plan_position){.epoch = position->epoch + 1};
        left = rules->sequences;
    }
    if (rules->epochs != 0 && position->epoch >= rules->epochs) return false;

    *plan = (struct plan){.epoch = position->epoch,
                          .first = position->first,
                          .count = left < sequences ? (uint32_t)left : sequences,
                          .global = rules->global};
    return plan_again(rules, position, plan);
}

bool plan_again(const struct plan_rules *rules, struct plan_position *position, struct plan *plan)
{
    if (rules->epochs != 0 && plan->epoch >= rules->epochs) return false;
    plan->micro_batches = (plan->count - 1) / rules->micro + 1;
    *position = (struct plan_position){plan->epoch, plan->first + plan->count};
    return true;
}

void plan_share(const struct plan *plan, uint32_t ranks, uint32_t rank, uint32_t *first, uint32_t *count)
{
    uint32_t each = plan->micro_batches / ranks, extras = plan->micro_batches % ranks;
    *first = rank * each + (rank < extras ? rank : extras);
    *count = each + (rank < extras ? 1 : 0);
}

uint64_t plan_steps_per_epoch(const struct plan_rules *rules)
{
    uint64_t full = rules->sequences / rules->global;
    return rules->drop_tail || rules->sequences % rules->global == 0 ? full : full + 1;
}
