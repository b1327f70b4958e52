/*
 * The other ranks of this host, which may be stopped (SIGSTOP, a debugger) while others wait for them in a collective
 * call: nothing else would ever tell. No coordinator is there to hear heartbeats.
 */
#ifndef GACC_FELLOWS_H
#define GACC_FELLOWS_H

#include "daemon/core/silence.h"
#include "daemon/place.h"

struct fellows_listener {
    /* On a thread of its own, of the lowest rank here that is not stopped. `seconds`: for how long `rank` is. Behind
     * SILENCE_TOO_LONG nothing more is told. */
    void (*told)(void *context, enum silence_event event, uint32_t rank, double seconds);
    void *context;
};

/* From here to the end of the process; `limit`: seconds. Where it is not known which processes they are, or there are
 * none, nobody is watched. */
int fellows_watch(const struct place *place, double limit, const struct fellows_listener *listener,
                  struct error *error);

#endif
