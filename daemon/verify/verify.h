/* The whole of verify on one job: the checks on the program as it is, then the planted faults. */
#ifndef GACC_VERIFY_H
#define GACC_VERIFY_H

#include "daemon/verify/check.h"
#include "daemon/verify/suite.h"

/* Who is told what has been found so far. */
struct verify_listener {
    void (*began)(void *context, const struct suite *suite); /* the probe is chosen */
    void (*checked)(void *context, const struct check *check);
    void (*controlled)(void *context, const struct planted *planted);
    void *context;
};

/* `launcher` and `device` as in suite.h; the other ranks are in together_serve meanwhile. Errors are the job's: what
 * the checks find is in *verification. */
int verify_job(const Gacc__V1__JobSpec *job, struct comm *launcher, const struct device *device, uint64_t sequences,
               const struct verify_listener *listener, struct verification *verification, struct error *error);

#endif
