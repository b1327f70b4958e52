/* `gaccd check JOB.yaml [-n N]`: the effective job, or what is wrong with it. */
#ifndef GACC_JOB_CHECK_H
#define GACC_JOB_CHECK_H

#include "daemon/job/job.h"

/* argv[0] is the word "check" itself; takes [-n N] [--set key.path=value]… [--output DIR] JOB.yaml. Prints the
 * effective job on `out`, notices on `notices`. 0, or the negated status with the text in *error. */
int job_check_command(int argc, char **argv, FILE *out, FILE *notices, struct error *error);

#endif
