/*
 * One rank of a job from its first line to its exit status. In rank 0's process also: reading the job file and starting
 * the coordinator.
 */
#ifndef GACC_LAUNCH_H
#define GACC_LAUNCH_H

#include <stdbool.h>

#include "daemon/job/job.h"
#include "daemon/place.h"
#include "worker/comm.h"
#include "worker/device.h"

struct launch_options {
    const char *job_path;
    struct job_overrides overrides;
    const char *resume; /* --resume: auto (or NULL), never, or the directory of a checkpoint */
    enum device_wanted device;
};

/* Returns the exit status of this rank; every message is printed. */
int launch_run(const struct launch_options *options);

/* How a rank comes to its communicator: MPI, which is initialised here, where a launcher started it, else none.
 * shared_memory: place_shared_memory_path's, or "". The launcher and MPI must agree on the number of ranks (69). */
int launch_open_transport(struct comm **comm, const struct place *place, const char *shared_memory,
                          struct error *error);
/* Collective: all ranks have come to their end in order. */
void launch_close_transport(struct comm *comm, const struct place *place);

/* For a rank other than 0 that fails, and lets rank 0 say so: until the launcher ends it, three seconds at most.
 * Returns whether it has been told to go, or nobody is left to tell it. */
bool launch_stay(void);

#endif
