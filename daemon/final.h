/* DIR/final: what a job that is done leaves, as other programs read it. */
#ifndef GACC_FINAL_H
#define GACC_FINAL_H

#include <stdbool.h>

#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"
#include "worker/session.h"

/* All ranks together, one of which is the first: weights, adapters, and what describes them. An error on one rank is
 * everyone's, but for descriptions, which the first one writes. */
int final_write(const Gacc__V1__JobSpec *job, bool is_first, struct session *session, struct error *error);

#endif
