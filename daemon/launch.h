/*
 * One rank of a job from its first line to its exit status. In rank 0's process also: reading the job file and starting
 * the coordinator.
 */
#ifndef GACC_LAUNCH_H
#define GACC_LAUNCH_H

#include <stdbool.h>

#include "daemon/job/job.h"

struct launch_options {
    const char *job_path;
    struct job_overrides overrides;
    bool fresh; /* --resume never */
};

/* Returns the exit status of this rank; every message is printed. */
int launch_run(const struct launch_options *options);

/* For a rank other than 0 that fails, and lets rank 0 say so: until the launcher ends it, three seconds at most. */
void launch_stay(void);

#endif
