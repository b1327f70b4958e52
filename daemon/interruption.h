/*
 * What asks a process to end: signals, and the death of its launcher. A thread of its own takes them, so that whoever
 * is told may lock, write and wait, which no signal handler may.
 */
#ifndef GACC_INTERRUPTION_H
#define GACC_INTERRUPTION_H

#include <stdbool.h>
#include <sys/types.h>

#include "proto/error.h"

#define INTERRUPTION_LAUNCHER "its launcher's end"

/* Before any other thread is started: from here on SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2, as far as they are not
 * ignored (nohup), no longer end the process, and wait until they are watched. Starts no thread: who forks does so
 * between the two. `launcher`, our parent, is watched, too; 0: there is none. */
int interruption_hold(pid_t launcher, struct error *error);
/* `by_launcher`: the launcher sent it. */
typedef void interruption_taken(void *context, const char *name, bool by_launcher);
/* Each is told, on the thread, with a name such as "SIGTERM" that stays for as long as `taken` has not returned; two of
 * a kind that come at once may be told as one. A SIGTERM that the launcher sends because another rank's process has
 * ended, as far as that can be seen, is told as "rank 1's end". The end of the launcher is told once, as
 * INTERRUPTION_LAUNCHER, and after it nothing more. */
int interruption_watch(interruption_taken *taken, void *context, struct error *error);
/* Whether the launcher itself has sent this process a SIGTERM. */
bool interruption_is_launchers(void);
/* The same, or it cannot be told who sent one: the launcher is not known. */
bool interruption_may_be_launchers(void);

#endif
