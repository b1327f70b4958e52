/* Paths as the job file may write them: ${VAR} from the environment, and globs. */
#ifndef GACC_JOB_PATHS_H
#define GACC_JOB_PATHS_H

#include <stddef.h>

#include "daemon/job/scalar.h"

#define PATHS_LIMIT 4096               /* files of one key */
#define PATHS_BYTES_LIMIT (384 * 1024) /* of their names, so that a printed job stays below JOB_BYTES_LIMIT */

struct path_list {
    char **paths;
    size_t count, bytes;
};
void path_list_free(struct path_list *list);

/* ${VAR} replaced; $${ stands for ${ itself. The result is the caller's, NULL when *why says why not. */
char *path_expand(const char *text, struct why *why);
/* ${ written as $${, so that path_expand gives the path back. The result is the caller's. */
char *path_escape(const char *path);

/* Adds what the text stands for: a file of that very name, or the matches of a glob, sorted by byte. 0, or the negated
 * status (78; 66: a glob that matches nothing) with the text in *why. */
int path_list_add(struct path_list *list, const char *text, struct why *why);

/* 0 when the file can be read, else an errno; a directory is EISDIR, anything else that is no regular file EINVAL. */
int path_check_readable(const char *path);

#endif
