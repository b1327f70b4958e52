/*
 * One checkpoint at a time, from the decision that asks for it to its manifest: gathers what the ranks say they have
 * written, waits for the log to have the records of its step, so that none is missing there when a job goes on from it,
 * and commits or clears up on a thread of the loop's pool, because a disk may take its time and a decision may not.
 */
#ifndef GACC_SAVER_H
#define GACC_SAVER_H

#include <stdbool.h>
#include <uv.h>

#include "daemon/checkpoint/manifest.h"
#include "daemon/core/retention.h"
#include "daemon/observe/step_log.h"
#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"
#include "proto/gacc/v1/workers.pb-c.h"

struct saver;

struct saver_events {
    /* On the loop. why NULL: the checkpoint of that record is complete; else it has been cleared away. A complaint that
     * leaves the checkpoint good (an older one that cannot be removed) comes beside; empty: none. */
    void (*ended)(void *context, const struct checkpoint_record *record, const struct error *why,
                  const char *complaint);
    void *context;
};

/* The job is borrowed until saver_close. */
int saver_open(struct saver **out, uv_loop_t *loop, const Gacc__V1__JobSpec *job, uint32_t ranks,
               const struct saver_events *events, struct error *error);
/* What a checkpoint is of; all of it is copied. */
struct saver_order {
    const char *name;
    const struct progress *progress;
    uint64_t parameters;
    const Gacc__V1__JobSpec *job;        /* as it is there */
    const struct job_settings *settings; /* that were set while it ran */
    struct retention retention;
    bool has_parts; /* the last checkpoint, which is complete and has that name, has them: its manifest is made anew */
    bool awaits_records; /* of its step: saver_recorded is to come */
};

/* The ranks have been asked, unless it has its parts; not while one is under way. Where memory is short the checkpoint
 * fails as a whole. */
void saver_begin(struct saver *saver, const struct saver_order *order);
/* A rank's answer. Negative (70): it is none to what was asked. */
int saver_take(struct saver *saver, uint32_t rank, const Gacc__V1__Saved *saved, struct error *error);
/* The log has the records of the step, and `progress` is what it is with them. Nothing happens where they are not
 * awaited. */
void saver_recorded(struct saver *saver, const struct progress *progress);
/* From saver_begin to `ended`. */
bool saver_is_busy(const struct saver *saver);
/* All ranks have answered: what they have to write is on disk, or has failed. */
bool saver_has_answers(const struct saver *saver);
/* What is left to do needs no rank, and the loop must run until it has ended. */
bool saver_is_committing(const struct saver *saver);
/* Clears away what was not finished; the loop runs no more. NULL is allowed. */
void saver_close(struct saver *saver);

#endif
