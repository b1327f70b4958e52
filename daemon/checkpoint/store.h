/*
 * The checkpoints of a run directory: OUTPUT/checkpoints/step-00000100/, complete once manifest.json is there, and the
 * file `latest` with the name of the newest. A checkpoint becomes durable before it becomes visible, and an older one
 * goes only when a newer one is both.
 */
#ifndef GACC_STORE_H
#define GACC_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/checkpoint/manifest.h"
#include "daemon/core/retention.h"
#include "proto/error.h"

#define STORE_NAME_MAX 63

struct stored {
    char name[STORE_NAME_MAX + 1];
    uint64_t optimizer_steps;
    uint64_t attempt; /* 0, or the later attempt of the same optimizer steps after which it was made */
    bool complete;    /* its manifest is there, or cannot be looked for */
};

/* step-00000100; step-00000100-attempt-00000117 where the attempt before it was not applied, and so another checkpoint
 * of as many optimizer steps may be there. */
void store_name(char name[STORE_NAME_MAX + 1], uint64_t optimizer_steps, uint64_t attempt, bool was_applied);
/* The optimizer steps of such a name; 0: it is none. */
uint64_t store_name_steps(const char *name);
/* OUTPUT/checkpoints/NAME, PATH_MAX bytes; 74 when it does not fit. */
int store_path(char *path, const char *output, const char *name, struct error *error);

/* Oldest first; free() it. Other names than store_name's are passed over, and that there are none is no error. */
int store_list(const char *output, struct stored **list, size_t *count, struct error *error);

/* The newest that is complete; empty: there is none, or nobody can look. */
void store_newest(const char *output, char name[STORE_NAME_MAX + 1]);
/* When it became complete, in unix seconds; 0: it is not. */
double store_seconds(const char *output, const char *name);

/* Everything a whole checkpoint needs, once all ranks have all their ranges on disk: manifest, durable names, latest.
 * On failure (74) the checkpoint is to be removed. */
int store_commit(const char *output, const char *name, struct manifest *manifest, struct error *error);
/* Removes what the rules let go, behind a commit. */
int store_retain(const char *output, const struct retention *rules, struct error *error);
/* Complete or not: first it stops being complete, durably. */
int store_remove(const char *output, const char *name, struct error *error);
/* Renames it to NAME.SUFFIX (NAME.SUFFIX-2, …), which nothing here looks at any more. */
int store_set_aside(const char *output, const char *name, const char *suffix, struct error *error);

/* Every file of the manifest is there, as long as it should be, with the checksums it should have; 65 naming the first
 * that is not, with wanted and found size. */
int store_verify(const char *directory, const struct manifest *manifest, struct error *error);

#endif
