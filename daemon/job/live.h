/*
 * Settings of a running job: the job as it is with other values of the keys that are live (keys.c), under all rules
 * that a job file is under.
 */
#ifndef GACC_JOB_LIVE_H
#define GACC_JOB_LIVE_H

#include "daemon/job/compare.h"

/* The present loss scale: no key, since a job file cannot have it. */
#define LIVE_SCALE "precision.loss_scale.current"
/* More are not taken: the keys that are live are fewer. */
#define SETTINGS_MAX 64

/* One value for each path that was set, as a job file would have it; in the order in which they were set first. */
struct job_setting {
    char *path, *value;
};
struct job_settings {
    struct job_setting *each;
    size_t count;
};

/* Replaces the value of that path. 70: out of memory. */
int job_settings_put(struct job_settings *settings, const char *path, const char *value, struct error *error);
/* 70: out of memory, with *to empty. */
int job_settings_copy(struct job_settings *to, const struct job_settings *from, struct error *error);
/* Leaves those that a job takes which has their choices beside its own: precision.loss_scale.retries goes where
 * on_overflow: skip is set. 78: one of the choices cannot be, 70: out of memory; both leave the list as it is. */
int job_settings_drop(struct job_settings *settings, const Gacc__V1__JobSpec *job, struct error *error);
void job_settings_free(struct job_settings *settings);

/* *out is the job with the settings; groups and further optimizers keep the ratio of their lr to
 * the first optimizer's, whose keys are optimizer.lr and so on in a list, too, and schedule.total stays
 * job.steps where it was that, unless it is set itself. *changes says what was set (also to the value it had), and what
 * followed. *scale: what LIVE_SCALE was set to; 0: it was not. `ranks`: that run the job.
 * 78: no job file could have this, 69: a running job does not take it; both name the key. */
int job_set_live(Gacc__V1__JobSpec **out, const Gacc__V1__JobSpec *job, const struct job_settings *settings,
                 uint32_t ranks, struct job_changes *changes, float *scale, struct error *error);
/* Whether and from when a job with such choices takes another value of that path; LIVE_SCALE included. */
bool job_is_live(const Gacc__V1__JobSpec *job, const char *path);
/* Is only known one window later. */
bool job_is_live_later(const char *path);
/* The paths that such a job takes, in the order of the manual; those of groups one by one, the first so many. */
#define LIVE_PATHS_MAX (2 * SETTINGS_MAX)
#define LIVE_GROUPS_MAX (LIVE_PATHS_MAX / 2)
struct live_paths {
    const char *paths[LIVE_PATHS_MAX]; /* in texts */
    char texts[LIVE_PATHS_MAX][48];
    size_t count;
};
void job_live_paths(const Gacc__V1__JobSpec *job, struct live_paths *live);

#endif
