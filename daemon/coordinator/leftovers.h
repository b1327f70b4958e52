/*
 * What a job leaves outside of its run directory, and connection.json and lock.json in it: removed by the coordinator
 * at the end, or by rank 0 when the coordinator died first. Removing twice does no harm.
 */
#ifndef GACC_LEFTOVERS_H
#define GACC_LEFTOVERS_H

#include <stdbool.h>
#include <sys/types.h>

struct leftovers {         /* empty strings: there is none */
    char connection[4096]; /* connection.json */
    char lock[4096];       /* lock.json */
    char socket[108];      /* sun_path's size */
    char socket_directory[108];
    char shared_memory[256];      /* a directory */
    char session_directory[1024]; /* the launcher's, left when the launcher is killed */
    pid_t launcher;
};

/* Everything but the launcher's session directory. The ranks' transport removes its files when it is closed, and
 * complains when they are gone by then: with `patience` it has up to half a second. */
void leftovers_remove(const struct leftovers *leftovers, bool patience);
/* The session directory, if the launcher that owns it is gone; for after the ranks' end. */
void leftovers_remove_session(const struct leftovers *leftovers);

#endif
