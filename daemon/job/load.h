/* A job file while it is read: the steps of job_load, in order. */
#ifndef GACC_JOB_LOAD_H
#define GACC_JOB_LOAD_H

#include "daemon/job/job.h"
#include "daemon/job/keys.h"
#include "daemon/job/tree.h"

#define JOB_BYTES_LIMIT (1024 * 1024)
#define JOB_SETS_LIMIT 1024
#define JOB_GROUPS_LIMIT 256
#define JOB_OPTIMIZERS_LIMIT 16

struct loading {
    const char *file;
    const struct job_overrides *overrides; /* may be NULL */
    FILE *notices;                         /* may be NULL */
    struct error *error;
    struct source source, default_source;
    struct source *set_sources; /* one per --set */
    char **set_paths;           /* their key paths */
    struct node *root;
    Gacc__V1__JobSpec *job;
    struct key_aside aside;
};

/* --set into the tree, over what the file says. */
int job_override(struct loading *loading);
/* Takes what the file has at `path` out of the tree, and says that --set `set` does; false where --set gives it, too,
 * or there is nothing. */
bool job_drop(struct loading *loading, const char *set, const char *path);
/* Tree into message: every key known, of the right type and in its range; defaults filled in. */
int job_bind(struct loading *loading);
/* What no single key can say: numbers that must fit each other, derived numbers, files that must exist. */
int job_finish(struct loading *loading);

/* All fields as the section's profile has them. */
void job_loss_scale_defaults(Gacc__V1__LossScaleSection *section);

/* key_path of the file that is being read. */
struct phrase optimizer_path(const struct loading *loading, size_t index, const char *path);
/* The node of the key, or of the innermost section around it that is there. */
const struct node *job_node(const struct loading *loading, const char *path);
__attribute__((format(printf, 2, 3))) void job_notice(const struct loading *loading, const char *format, ...);

#endif
