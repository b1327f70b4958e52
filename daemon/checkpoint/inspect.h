/* What `gaccd inspect` says of a checkpoint. */
#ifndef GACC_CHECKPOINT_INSPECT_H
#define GACC_CHECKPOINT_INSPECT_H

#include <stdio.h>

#include "proto/error.h"

/* The directory's manifest, and whether every file is what it says. An unsound one is an error that says why (65, 66,
 * 74). */
int checkpoint_inspect(const char *directory, FILE *to, struct error *error);

#endif
