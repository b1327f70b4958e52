/*
 * The receipt: verify.json in the run directory, which says of one job, program and device that verify has found them
 * right. `verify: required` in a job asks for it.
 */
#ifndef GACC_RECEIPT_H
#define GACC_RECEIPT_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/verify/check.h"
#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"

/* Writes the receipt into the job's output directory, which is made where there is none, whole or not at all. A failed
 * verification leaves one, too, that says so. path: PATH_MAX bytes, receives where it lies. */
int receipt_write(const Gacc__V1__JobSpec *job, uint32_t ranks, uint32_t sequences,
                  const struct verification *verification, char *path, struct error *error);

/* 76, naming what is missing or what differs, unless the output directory holds a receipt of a verification that was
 * passed by this job, this program and this device. */
int receipt_require(const Gacc__V1__JobSpec *job, struct error *error);

#endif
