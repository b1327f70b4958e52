/* `gaccd plan`: what a job takes of memory, and what it can be made of within a limit. */
#ifndef GACC_PLANNING_H
#define GACC_PLANNING_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/job/job.h"
#include "worker/session.h"

struct planning_options {
    const char *job_path;
    struct job_overrides overrides; /* with the ranks */
    const char *memory;             /* of a rank, "80GiB"; NULL: what this machine has free, shared by the ranks */
    bool probe;                     /* measure the proposals here, and take the fastest */
    bool json;
};

/* Returns the exit status; everything is printed. 78: nothing fits. */
int planning_run(const struct planning_options *options);

/* One row of what a rank takes. */
struct memory_row {
    const char *key, *what;
    uint64_t bytes;
};
#define MEMORY_ROWS 10
/* Returns the sum. `ranks`: on this machine, whose cores they share. */
uint64_t memory_rows(const struct session_memory *memory, uint32_t ranks, struct memory_row rows[MEMORY_ROWS]);

#endif
