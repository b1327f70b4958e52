/*
 * From which checkpoint a start goes on, if from any, and what it means for the job. Looking changes nothing on disk;
 * resume_tidy does, once the start is certain.
 */
#ifndef GACC_RESUME_H
#define GACC_RESUME_H

#include <limits.h>
#include <stdbool.h>

#include "daemon/checkpoint/manifest.h"
#include "daemon/checkpoint/store.h"
#include "daemon/job/compare.h"

/* A checkpoint of the run directory that this start does not leave where it is. */
struct resume_move {
    struct stored stored;
    const char *suffix; /* it is set aside under this one; NULL: it is incomplete and removed */
    char why[512];
};

struct resume {
    bool found;
    char directory[PATH_MAX]; /* of the checkpoint, when found */
    struct manifest manifest; /* when found */
    struct job_changes changes;
    struct resume_move *moves;
    size_t move_count;
    size_t damaged; /* of them */
};

/* how: "auto" (or NULL), "never" or the directory of a checkpoint. The newest complete one whose checksums are right is
 * taken, older ones where newer are damaged; if all are damaged, 65. A directory that was named must hold a sound one
 * (66, 65). *resume is to be released with resume_free, after a failure, too. */
int resume_find(struct resume *resume, const char *output, const char *how, struct error *error);
/* The job as it goes on from what was found: with what was set while it ran, and the optimizer as it was, unless --set
 * says otherwise; refused with 78 where it differs in what must not. Settings that --set is in place of are no longer
 * those of the manifest then. */
int resume_take_job(struct resume *resume, Gacc__V1__JobSpec *job, const struct job_overrides *overrides,
                    uint32_t ranks, struct error *error);
/* Moves what is not to be found by the next start. */
int resume_tidy(const struct resume *resume, const char *output, struct error *error);
void resume_free(struct resume *resume);

#endif
