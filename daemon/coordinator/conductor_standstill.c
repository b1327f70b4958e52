/*
 * Ranks that do not make the same collective calls wait for each other for ever, alive and well. Where one is still in
 * a collective that another has left, only time tells that from a rank that is slow on its way out.
 */
#include <inttypes.h>
#include <stdio.h>

#include "daemon/coordinator/conductor_internal.h"

/* How far a rank has come in step t, as PLACES·t and one of these. */
enum place { BEFORE_REDUCTION, IN_REDUCTION, BETWEEN, IN_GATHER, BEHIND_GATHER, PLACES };

/* Of a rank whose step_done of this attempt is still to come. */
static enum place place_in_attempt(const struct conductor *c, const struct rank *rank)
{
    if (rank->state_step != c->attempt.record.counters.step) return BETWEEN;
    if (rank->state == GACC__V1__STATE__STATE_EVALUATE) return BEHIND_GATHER;
    return rank->state == GACC__V1__STATE__STATE_EXIT_STEP && !c->is_saving ? IN_GATHER : BETWEEN; /* it may write */
}

static uint64_t place_of(const struct conductor *c, const struct rank *rank)
{
    if (c->attempt.pending && !rank->stepped)
        return PLACES * c->attempt.record.counters.step + place_in_attempt(c, rank);
    const uint64_t step = PLACES * c->step;
    if (c->phase == PHASE_FINISHING || (rank->reported && c->requests.held)) return step + BEHIND_GATHER;
    if (rank->reported) return step + BETWEEN;
    const bool reduces = rank->state == GACC__V1__STATE__STATE_REDUCE || rank->state == GACC__V1__STATE__STATE_UNSCALE;
    return step + (reduces && rank->state_step == c->step ? IN_REDUCTION : BEFORE_REDUCTION);
}

bool conductor_stands_still(struct conductor *c, double now, double awake_since, double limit)
{
    if (c->phase != PHASE_REPORTS && c->phase != PHASE_FINISHING) return false;
    if (now - (c->moved > awake_since ? c->moved : awake_since) < limit) return false;
    uint32_t last = 0, first = 0;
    for (uint32_t r = 1; r < c->ranks; r++) {
        if (place_of(c, &c->rank[r]) < place_of(c, &c->rank[last])) last = r;
        if (place_of(c, &c->rank[r]) > place_of(c, &c->rank[first])) first = r;
    }
    const uint64_t place = place_of(c, &c->rank[last]);
    const enum place where = (enum place)(place % PLACES);
    if ((where != IN_REDUCTION && where != IN_GATHER) || place == place_of(c, &c->rank[first])) return false;
    struct error why;
    error_set(&why, STATUS_INTERNAL,
              "rank %" PRIu32 ": step %" PRIu64 ": has waited %g s (control.timeout) in %s, which rank %" PRIu32
              " has left: they do not make the same collective calls",
              last, place / PLACES, limit, where == IN_REDUCTION ? "the reduction" : "the gathering of parameters",
              first);
    conductor_break(c, &why, NULL);
    return true;
}
