#include "daemon/core/plan.h"

bool plan_next(const struct plan_rules *rules, struct plan_position *position, struct plan *plan)
{
    if (rules->sequences == 0 || (rules->drop_tail && rules->sequences < rules->global)) return false;
    uint64_t left = rules->sequences - position->first;
    if (left == 0 || (rules->drop_tail && left < rules->global)) {
        *position = (struct plan_position){.epoch = position->epoch + 1};
        left = rules->sequences;
    }
    if (rules->epochs != 0 && position->epoch >= rules->epochs) return false;

    uint32_t count = left < rules->global ? (uint32_t)left : rules->global;
    *plan = (struct plan){.epoch = position->epoch,
                          .first = position->first,
                          .count = count,
                          .global = rules->global,
                          .micro_batches = (count - 1) / rules->micro + 1};
    position->first += count;
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
