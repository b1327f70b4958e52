#include "daemon/core/proposal.h"

static uint32_t quotient_up(uint32_t a, uint32_t b)
{
    return (a - 1) / b + 1;
}

/* The most sequences at a time that fit and leave no rank without a micro-batch in the smallest step, ⌈it/b⌉ ≥ N; 0:
 * none does. */
static uint32_t most_that_fit(const struct proposal_rules *rules, const struct proposal *of)
{
    const uint32_t most = rules->ranks > 1 ? (rules->smallest - 1) / (rules->ranks - 1) : rules->global;
    uint32_t fits = rules->too_few, above = 1 + (most > fits ? most : fits);
    while (above - fits > 1) {
        const uint32_t middle = fits + (above - fits) / 2;
        if (rules->measure(rules->with, of->context, of->recomputes, middle) <= rules->limit)
            fits = middle;
        else
            above = middle;
    }
    return fits > rules->too_few ? fits : 0;
}

/* As few micro-batches as `most` sequences at a time allow, and as many sequences in each as they then need. */
static void even(const struct proposal_rules *rules, uint32_t most, struct proposal *of)
{
    of->accumulate = quotient_up(quotient_up(rules->global, most), rules->ranks);
    of->micro = (uint32_t)(((uint64_t)rules->global - 1) / ((uint64_t)rules->ranks * of->accumulate) + 1);
    of->bytes = rules->measure(rules->with, of->context, of->recomputes, of->micro);
}

size_t proposals_find(const struct proposal_rules *rules, struct proposal found[PROPOSALS_MAX])
{
    size_t count = 0;
    for (uint32_t context = rules->context; count == 0; context /= 2) {
        for (int recomputes = 0; recomputes <= (rules->can_recompute ? 1 : 0); recomputes++) {
            struct proposal one = {.context = context, .recomputes = recomputes == 1};
            const uint32_t most = most_that_fit(rules, &one);
            if (most == 0) continue;
            even(rules, most, &one);
            found[count++] = one;
        }
        if (context <= 1) break;
    }
    return count;
}

bool proposal_with(const struct proposal_rules *rules, const struct proposal *like, uint32_t micro,
                   struct proposal *other)
{
    if (micro <= rules->too_few || micro >= like->micro) return false;
    *other = *like;
    even(rules, micro, other);
    return other->micro != like->micro;
}
