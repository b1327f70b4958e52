/*
 * Where a session computes: what it opens kernels with, and collectives for their memory.
 */
#ifndef GACC_DEVICE_H
#define GACC_DEVICE_H

#include "kernels/kernels.h"
#include "proto/error.h"
#include "worker/comm.h"

/* Serves several sessions, each with kernels and a communicator of its own, from threads of their own. */
struct device {
    /* To be closed with kernels_close. NULL and the reason. */
    struct kernels *(*open_kernels)(const struct device *, const struct kernels_options *, struct error *);
    /* The ranks of `host` for the kernels' memory; all of them together. Both stay as they are and are closed after it.
     * NULL: comm_open_staged. */
    int (*open_comm)(const struct device *, struct comm **out, struct comm *host, struct kernels *, struct error *);
};

#endif
