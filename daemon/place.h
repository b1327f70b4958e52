/*
 * Where this process stands among the ranks, before any MPI call: launchers say so in the environment. The coordinator
 * is forked before MPI_Init, so rank 0 and the number of ranks must be known by then; MPI is asked to agree afterwards.
 */
#ifndef GACC_PLACE_H
#define GACC_PLACE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/error.h"

struct place {
    bool launched; /* a launcher started this process: MPI is in use */
    uint32_t rank, ranks;
    uint32_t local_rank, local_ranks; /* on this host; local_ranks 0: the launcher does not say */
    bool one_host;                    /* all ranks share this host */
};

/* One rank without a launcher when no launcher's variable is set; 69 when a launcher's variables make no sense. */
int place_find(struct place *place, struct error *error);

/* How many cores this process could use if it were not bound to fewer. */
uint32_t place_allowed_cores(void);
/* Takes back a launcher's binding of this process to some cores. */
void place_unbind(void);

/* Whether somebody at a terminal sees this process's standard output; a launcher puts itself in between. */
bool place_has_terminal(const struct place *place);

/* Before MPI_Init: settings of Open MPI that the user has not made. Ranks that outnumber the cores yield while they
 * wait. */
void place_tune_transport(const struct place *place);
/* The directory for the transport's shared-memory files, the same for all ranks of this job on this host and for nobody
 * else; false when there is none: no launcher, several hosts (each host's launcher daemon cleans up), or a directory
 * set by the user. */
bool place_shared_memory_path(const struct place *place, char *path, size_t size);
/* Rank 0 makes the directory once nothing more can be refused; the others wait for it. Then the transport is pointed at
 * it. Where that fails the transport uses its own default. */
void place_shared_memory_use(const struct place *place, const char *path);

/* What a launcher that is killed leaves behind: its session directory, to be removed when the process `owner` is gone.
 * False: not known. */
bool place_session_directory(char *path, size_t size, pid_t *owner);
/* mpirun's process id where it started this process itself; else 0. */
pid_t place_launcher(void);
/* Whether mpirun, on its host, is gone: nobody waits for anything, and MPI does not start. A process in another
 * container may think so without cause. */
bool place_launcher_is_gone(void);
/* The first rank whose process, a child of this launcher's, has ended. False: there is none, or ranks are on other
 * hosts, too, of which nothing is seen. */
bool place_lost_rank(pid_t launcher, uint32_t *rank);
/* Whether a process has ended, reaped or not. */
bool place_is_gone(pid_t process);

#endif
