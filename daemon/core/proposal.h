/*
 * What a job can be made of within a limit of memory, pure. B stays: what does not fit at once is accumulated, so first
 * comes a smaller peak of activations (fewer sequences at a time, recomputation, and where nothing else helps a shorter
 * context), then the K that makes up for it.
 */
#ifndef GACC_PROPOSAL_H
#define GACC_PROPOSAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROPOSALS_MAX 4

struct proposal {
    uint32_t context; /* tokens; 0: the model has none */
    bool recomputes;
    uint32_t micro, accumulate; /* b; K of the rank that has most */
    uint64_t bytes;             /* of a rank */
};

struct proposal_rules {
    uint32_t global, ranks; /* B, N */
    uint32_t smallest;      /* sequences of the smallest step: B, or what a ramp begins with */
    uint32_t too_few;       /* a job with so many sequences at a time is refused; 0: none is */
    uint32_t context;       /* the job's; 0: the model has none */
    bool can_recompute;
    uint64_t limit; /* bytes of a rank */
    /* Bytes of a rank with these; grows with micro. UINT64_MAX: more than can be said. */
    uint64_t (*measure)(void *with, uint32_t context, bool recomputes, uint32_t micro);
    void *with;
};

/* What fits, the one to take first: the job's context without recomputation, and with it; where neither fits, the same
 * at the largest half, quarter, … of the context that does. b is the largest that fits, and no larger than its K needs.
 * Returns how many. */
size_t proposals_find(const struct proposal_rules *rules, struct proposal found[PROPOSALS_MAX]);
/* Another one with at most so many sequences at a time; false: there is none. */
bool proposal_with(const struct proposal_rules *rules, const struct proposal *like, uint32_t micro,
                   struct proposal *other);

#endif
