/*
 * The run directory: who may write there, and the files that are written whole. log.jsonl grows line by line
 * (observe/step_log.h); the lock on it keeps a second job out.
 */
#ifndef GACC_RUN_DIRECTORY_H
#define GACC_RUN_DIRECTORY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/observe/step_log.h"
#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"
#include "proto/tls.h"

struct run_directory {
    const char *path; /* the job's output, borrowed */
    const Gacc__V1__JobSpec *job;
    int reader;    /* of log.jsonl, for reading; holds the lock */
    int64_t start; /* where this start's lines begin in log.jsonl */
    struct step_log log;
};

/* Makes the directory and those it lies in, as far as they are not there. */
int run_directory_make(const char *path, struct error *error);
/* The file becomes `text` at once or not at all; path is shorter than PATH_MAX. */
int run_file_write(const char *path, const char *text, size_t length, mode_t mode, struct error *error);

/* What an earlier start left. */
enum run_left {
    RUN_UNDONE,     /* nothing, or an unfinished run */
    RUN_DONE,       /* this job, finished */
    RUN_DONE_OTHER, /* another one */
};
/* Makes and locks the directory, and looks what is there; run_directory_begin replaces the result and opens the log.
 * After a failure of either the directory is closed. */
int run_directory_lock(struct run_directory *directory, const Gacc__V1__JobSpec *job, enum run_left *left,
                       struct error *error);
int run_directory_begin(struct run_directory *directory, struct error *error);
void run_directory_close(struct run_directory *directory);

int run_directory_write_job(const struct run_directory *directory, uint32_t ranks, struct error *error);

struct connection_facts {
    const char *endpoint, *token, *read_token; /* tokens NULL: none is needed */
    const struct tls_context *tls;             /* of the endpoint; NULL: none */
    bool wants_certificate;                    /* of clients */
    const char *job_id;
    pid_t pid;
};
/* `path`: connection.json, as leftovers.h keeps it. */
int run_directory_write_connection(const struct run_directory *directory, const char *path,
                                   const struct connection_facts *facts, struct error *error);

/* Makes a file or directory durable as it is; flags: more for open than O_RDONLY. */
int run_path_sync(const char *path, int flags, struct error *error);
/* What the log has so far is there after a loss of power, too. */
int run_log_sync(const char *output, struct error *error);

/* result.json. Needs no open directory: rank 0 writes it, too, when the coordinator died. */
int run_result_write(const Gacc__V1__JobSpec *job, const struct end_record *end, struct error *error);
/* The counters of the last step in the job's log.jsonl; zero where there is none. */
void run_result_last_counters(const Gacc__V1__JobSpec *job, struct step_counters *counters);

#endif
