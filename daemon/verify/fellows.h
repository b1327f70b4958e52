/*
 * The other ranks, wherever they are: each sends every other a heartbeat, for a rank that is stopped (SIGSTOP, a
 * debugger), or is behind a cut link, has the others wait for it in a collective call, and nothing else would ever
 * tell. No coordinator is there to hear heartbeats.
 *
 * They are datagrams (UDP) of their own, beside MPI, whose calls belong to the main thread; a key that MPI has brought
 * to the ranks tells them from anybody else's. A rank is watched from the first that is heard of it: where datagrams do
 * not come through, as behind a filter, nobody is watched.
 */
#ifndef GACC_FELLOWS_H
#define GACC_FELLOWS_H

#include "daemon/core/silence.h"
#include "worker/comm.h"

struct fellows_listener {
    /* On a thread of its own, of the lowest rank of those that still hear each other. `seconds`: for how long `rank` is
     * silent. SILENCE_TOO_LONG is told on all of them, a little later on the others; nothing more is told behind it. */
    void (*told)(void *context, enum silence_event event, uint32_t rank, double seconds);
    void *context;
};

/* All ranks together, in broadcasts; from here to the end of the process. limit: seconds. */
int fellows_watch(struct comm *comm, double limit, const struct fellows_listener *listener, struct error *error);

#endif
