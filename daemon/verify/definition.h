/*
 * The loss of a batch by its definition: every sequence passes the model alone, with weight 1, and what comes out is
 * weighed and averaged here. It shares the model and the data with a training step, and neither its micro-batches nor
 * its loss seeds, ranks or scale. Where BatchNorm takes sequences together they pass it together.
 */
#ifndef GACC_DEFINITION_H
#define GACC_DEFINITION_H

#include <stdint.h>

#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"

/* Of the first `sequences` of the job's first epoch, in fp64 and without dropout; parameters [P]. The job's weighting
 * says how; `micro` (b) is part of the definition under microbatch weighting, and of BatchNorm's over micro-batches;
 * both with norm_stats window is not offered. NaN without any weight. */
int definition_loss(const Gacc__V1__JobSpec *job, const double *parameters, uint32_t sequences, uint32_t micro,
                    double *loss, struct error *error);

#endif
