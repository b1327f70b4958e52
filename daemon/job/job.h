/*
 * The job file: YAML in, an effective JobSpec out, or one error with file:line:column: key: why. One table (keys.c)
 * holds every key with its type, default, range and the models and modes it belongs to; parsing, printing, suggestions,
 * `gaccd check` and deploy/docs/job-file.md derive from it.
 */
#ifndef GACC_JOB_H
#define GACC_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/core/loss_scale.h"
#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"

#define NOTICE_HEAD "gaccd: "

struct job_overrides {
    const char *const *sets; /* "key.path=value" as given with --set, in order */
    size_t set_count;
    const char *output; /* --output, or NULL */
    uint32_t ranks;     /* that are to run the job: fewer micro-batches than that are refused; 0: not known */
};

/* On success *out is freed with gacc__v1__job_spec__free_unpacked(*out, NULL). Globs are expanded and ${VAR} replaced;
 * files are not opened, but each must be there and readable (66). Notices (a dropped section, a doubtful lr) go to
 * `notices`, one line each with NOTICE_HEAD before it; may be NULL. A missing or unreadable job file is 66, a
 * --set without = is 64, all else 78. */
int job_load(Gacc__V1__JobSpec **out, const char *path, const struct job_overrides *overrides, FILE *notices,
             struct error *error);

/* As job_load, from memory. `name` stands for the file in messages and for the job's default name. */
int job_parse(Gacc__V1__JobSpec **out, const char *text, size_t length, const char *name,
              const struct job_overrides *overrides, FILE *notices, struct error *error);

/* Whether a job that came as a message could have come out of a job file: no section is missing, every choice is one of
 * the table's and every number within its bounds. What is not whole is not to be printed, compared or run. */
bool job_is_whole(const Gacc__V1__JobSpec *job);

/* The digest of what the job says now, in place of the one it has. 70: out of memory. */
int job_set_digest(Gacc__V1__JobSpec *job, struct error *error);

/* Targets of a full step: B·context, or B where a sequence is a row. */
uint64_t job_tokens_per_step(const Gacc__V1__JobSpec *job);
/* Whether BatchNorm's statistics are over a micro-batch, so that one row alone has none. */
bool job_norms_micro_batches(const Gacc__V1__JobSpec *job);
/* The section as the state machine takes it. */
void job_loss_scale_rules(const Gacc__V1__LossScaleSection *section, struct loss_scale_rules *rules);

/* The effective job as YAML that job_load reads back to the same job. With ranks > 0, comment lines give M, K per rank,
 * tokens per step. 0, or -74 with errno set. */
int job_print(const Gacc__V1__JobSpec *job, uint32_t ranks, FILE *to);

/* Every key as a table in Markdown: deploy/docs/job-file.md. */
void job_print_reference(FILE *to);

#endif
