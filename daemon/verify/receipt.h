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

/* `device` is a GPU's model, or NULL for the CPU. Writes the receipt into the job's output directory, which is made
 * where there is none, whole or not at all. A failed verification leaves one, too, that says so. path: PATH_MAX bytes,
 * receives where it lies. */
int receipt_write(const Gacc__V1__JobSpec *job, const char *device, uint32_t ranks, uint32_t sequences,
                  const struct verification *verification, char *path, struct error *error);

#define RECEIPT_ANY_DEVICE "any"

/* 76, naming what is missing or what differs, unless the output directory holds a receipt of a verification that was
 * passed by this job, this program and this device; RECEIPT_ANY_DEVICE: the CPU or any GPU, where it is not yet known
 * which it will be. */
int receipt_require(const Gacc__V1__JobSpec *job, const char *device, struct error *error);

#endif
