/* One rank of `gaccd verify`: rank 0 runs it and prints, the others take part in its trials. */
#ifndef GACC_VERIFICATION_H
#define GACC_VERIFICATION_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/job/job.h"
#include "worker/device.h"

struct verification_options {
    const char *job_path;
    struct job_overrides overrides;
    uint64_t sequences; /* of the probe; 0: as many as the job's batch suggests */
    bool json;
    enum device_wanted device;
};

/* Returns the exit status of this rank; everything is printed. */
int verification_run(const struct verification_options *options);

#endif
