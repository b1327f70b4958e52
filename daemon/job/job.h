/*
 * The job file: YAML in, an effective JobSpec out, or one error with file:line:column: key: why. One table (keys.c) holds every
 * key with its type, default, range and the models and modes it belongs to; parsing, printing, suggestions, `gaccd check` and
 * deploy/docs/job-file.md derive from it.
 */
#ifndef GACC_JOB_H
#define GACC_JOB_H

#include <stdint.h>
#include <stdio.h>

#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"

struct job_overrides {
    const char *const *sets; /* "key.path=value" as given with --set, in order */
    size_t set_count;
    const char *output;      /* --output, or NULL */
};

/* On success *out is freed with gacc__v1__job_spec__free_unpacked(*out, NULL). Globs are expanded and ${VAR} replaced; files are
 * not opened. Notices (a dropped section, a doubtful lr) go to `notices`, one line each, may be NULL. */
int job_load(Gacc__V1__JobSpec **out, const char *path, const struct job_overrides *overrides, FILE *notices, struct error *error);

/* The checks that need N: M < N refused, … (78). */
int job_check_ranks(const Gacc__V1__JobSpec *job, uint32_t ranks, struct error *error);

/* The effective job as YAML that job_load reads back to the same job. With ranks > 0, comment lines give M, K per rank, tokens per step. */
int job_print(const Gacc__V1__JobSpec *job, uint32_t ranks, FILE *to);

/* Every key as a table in Markdown: deploy/docs/job-file.md. */
void job_print_reference(FILE *to);

#endif
