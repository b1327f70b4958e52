/* What `gaccd inspect` says of a checkpoint. */
#ifndef GACC_CHECKPOINT_INSPECT_H
#define GACC_CHECKPOINT_INSPECT_H

#include <stdbool.h>
#include <stdio.h>

#include "proto/error.h"

/* The directory's manifest, and that every file is what it says, as text or as JSON. Nothing is said of an unsound one:
 * an error says why (65, 66, 74). */
int checkpoint_inspect(const char *directory, bool as_json, FILE *to, struct error *error);

#endif
