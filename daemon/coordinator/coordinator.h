/*
 * The coordinator: a process of its own that decides for all ranks. Rank 0's process starts it before MPI_Init. It
 * holds nothing of its parent's but two pipes: one whose end of file says that rank 0's process is gone, which alone
 * (never a signal) begins its end, and one for notes to rank 0.
 */
#ifndef GACC_COORDINATOR_H
#define GACC_COORDINATOR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/checkpoint/store.h"
#include "daemon/coordinator/guard.h"
#include "daemon/coordinator/leftovers.h"
#include "daemon/coordinator/listeners.h"
#include "daemon/job/job.h"
#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"

struct coordinator_options {
    const struct job_overrides *overrides; /* that make the job */
    uint32_t ranks;
    bool one_host;              /* all ranks share this host */
    const char *resume;         /* --resume, as resume.h takes it */
    bool progress;              /* rank 0 shows a progress line: send it */
    struct leftovers leftovers; /* shared memory and session directory, as rank 0 knows them */
    Gacc__V1__JobSpec *job;     /* in the process itself, which is sent it: the job as it goes on */
};

/* The first thing through the pipe, smaller than PIPE_BUF so that it comes whole. It comes before: when the run
 * directory is ours and when the socket is there, so that rank 0 can clean up should the process die; and when the
 * coordinator is ready. */
struct coordinator_ready {
    bool opening;                            /* there is more to come */
    struct error error;                      /* status 0: ready */
    bool finished;                           /* the job was done by an earlier start: it only clears up in the end */
    char addresses[LISTENERS_ADDRESSES_MAX]; /* for workers */
    char socket[108];
    uint8_t secret[SECRET_BYTES];
    struct workers_certificate certificate;
    char checkpoint[STORE_NAME_MAX + 1]; /* of the run directory, that the job goes on from; empty: none */
    bool resumes;                        /* from that, or from the directory that was named */
};

/* What comes after it. */
enum note_kind {
    NOTE_PROGRESS, /* the progress line, without a newline */
    NOTE_DONE,     /* its last form: newline after it */
    NOTE_WARNING,  /* a line for stderr */
    NOTE_FATAL,    /* the job failed while no rank had joined: print, and end with `status` */
};
struct coordinator_note {
    enum note_kind kind;
    enum status status;
    char text[1024];
};

struct coordinator_link {
    pid_t pid;
    int life;  /* closing it ends the coordinator; a struct error before it says why */
    int notes; /* struct coordinator_note, until end of file */
    bool one_host;
    struct leftovers leftovers; /* all that is to be removed should it die */
};

/* Forks the process, which waits for its job and ends with this one. Before this one has any thread: what another held
 * or was about to do would be half done in the new process. */
int coordinator_fork(struct coordinator_link *link, const struct coordinator_options *options, struct error *error);
/* Gives it the job: from here on `life` takes last words. After a failure it is to be dismissed. */
int coordinator_start(struct coordinator_link *link, const Gacc__V1__JobSpec *job, struct error *error);
/* Waits until it can be reached. A failure is the coordinator's own: bad output directory, address in use, … It is gone
 * then. */
int coordinator_await(struct coordinator_link *link, const Gacc__V1__JobSpec *job, struct coordinator_ready *ready,
                      struct error *error);
/* Ends the process where there is no job. */
void coordinator_dismiss(struct coordinator_link *link);

#endif
