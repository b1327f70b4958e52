/* What the files of the coordinator share: the state of its process, and the services it offers. */
#ifndef GACC_COORDINATOR_INSIDE_H
#define GACC_COORDINATOR_INSIDE_H

#include <time.h>
#include <uv.h>

#include "daemon/checkpoint/resume.h"
#include "daemon/coordinator/audit.h"
#include "daemon/coordinator/conductor.h"
#include "daemon/coordinator/connections.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/coordinator/guard.h"
#include "daemon/coordinator/listeners.h"
#include "daemon/coordinator/run_directory.h"
#include "daemon/coordinator/saver.h"
#include "daemon/coordinator/watching.h"
#include "daemon/core/silence.h"
#include "proto/message.h"

struct operation;
struct health_watcher;
struct descriptors;

#define COORDINATOR_SIGNALS 5
/* Bytes that a message may take in memory beside its own: an operator's, and a rank's. */
#define REQUEST_BEYOND (1u << 20)
#define WORKER_BEYOND (32u << 20)

struct coordinator {
    const struct coordinator_options *options;
    uv_loop_t loop;
    uv_pipe_t life; /* from rank 0's process */
    int notes;      /* to it */
    uv_timer_t tick;
    struct connections connections;
    struct listeners listeners;
    struct leftovers leftovers;
    struct run_directory directory;
    struct conductor *conductor;
    struct resume resume;
    Gacc__V1__Restore restore; /* of resume, for the ranks */
    struct saver *saver;
    char newest[STORE_NAME_MAX + 1]; /* complete checkpoint; empty: none */
    double newest_unix_seconds;
    uv_signal_t signals[COORDINATOR_SIGNALS];
    uint32_t stops; /* signals that asked the coordinator to stop */
    struct guard guard;
    struct audit audit;
    uint8_t asked_digest[32]; /* of the job as the command has it; what goes on may differ */
    char job_id[33];
    double started_unix_seconds;
    uint64_t started;              /* uv_now */
    uint64_t checked, awake_since; /* uv_now of the last look at silences, and of the end of this process's own */

    struct rpc_call **workers;    /* [ranks]; NULL: not joined, or gone */
    struct silence *silences;     /* [ranks] */
    uint32_t joined;              /* ranks that ever were */
    struct operation *operations; /* calls that were accepted and are to be answered, the oldest first */
    uint32_t operation_count;
    struct watching watching;
    struct health_watcher *health_watchers;
    struct descriptors *descriptors; /* for reflection */
    struct error last_words;         /* of rank 0 */

    bool decision_waits;   /* for the checkpoint under way */
    bool conclusion_waits; /* as well */
    bool log_failed;
    bool result_waits;                    /* for the room that a checkpoint takes which the end has cut short */
    bool concluded;                       /* the end is decided, and being written */
    bool log_is_whole;                    /* its last line is written, and so is result.json: watchers end behind it */
    bool rank_0_gone;                     /* the end of the process begins */
    uint64_t gone_since;                  /* uv_now, with rank_0_gone */
    uint64_t next_progress, next_renewal; /* uv_now */
    bool is_locked;                       /* lock.json is ours */
};

/* Seconds, as the conductor takes them. */
static inline double coordinator_now(void)
{
    return (double)uv_hrtime() * 1e-9;
}

static inline double coordinator_unix_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* coordinator.c */
/* One line on rank 0's stderr, and an event in the log. */
void coordinator_warn(struct coordinator *coordinator, const char *event, uint64_t step, const char *text);
/* Takes the line; NULL: memory was short. */
void coordinator_append(struct coordinator *coordinator, char *line);
void coordinator_write_records(struct coordinator *coordinator);
void coordinator_write_header(struct coordinator *coordinator);
/* As coordinator_conclude, behind a checkpoint that is under way. */
void coordinator_conclude_in_order(struct coordinator *coordinator);
/* Once: the end of the log, result.json, farewells to all that have joined. */
void coordinator_conclude(struct coordinator *coordinator);
/* Rank 0 has said why the job ends, and is on the line to hear its end. */
void coordinator_heed_last_words(struct coordinator *coordinator);
void coordinator_show_progress(struct coordinator *coordinator);

/* methods.c: every method with its role and its callbacks, ended by a row without a path. */
extern const struct rpc_method coordinator_methods[];

/* worker_service.c: gacc.v1.Workers */
void join_message(struct rpc_call *call, const uint8_t *message, size_t length, void *context);
void join_gone(struct rpc_call *call, void *context);
/* The decision, where one is due and need not wait for a checkpoint: after a report, and whatever was asked for. */
void workers_decide(struct coordinator *coordinator);
void workers_say_farewell(struct coordinator *coordinator);
/* Ranks that have been silent for too long, or never came. */
void workers_check_silence(struct coordinator *coordinator);
/* Rank `rank` is gone; concludes when that ends the job. */
void workers_lose(struct coordinator *coordinator, uint32_t rank, const char *why);
double workers_seconds_silent(const struct coordinator *coordinator, uint32_t rank);
bool workers_all_gone(const struct coordinator *coordinator);

/* operations.c: gacc.v1.Control, as far as it changes something */
void pause_message(struct rpc_call *call, const uint8_t *message, size_t length, void *context);
void resume_message(struct rpc_call *call, const uint8_t *message, size_t length, void *context);
void checkpoint_message(struct rpc_call *call, const uint8_t *message, size_t length, void *context);
void stop_message(struct rpc_call *call, const uint8_t *message, size_t length, void *context);
void operation_gone(struct rpc_call *call, void *context);
/* parameters.c */
void set_parameters_message(struct rpc_call *call, const uint8_t *message, size_t length, void *context);
void get_config_message(struct rpc_call *call, const uint8_t *message, size_t length, void *context);
/* A decision is out; a checkpoint has ended (why NULL: it is complete); nothing will happen any more. */
void operations_decided(struct coordinator *coordinator, const Gacc__V1__Decision *decision);
void operations_saved(struct coordinator *coordinator, const char *name, const char *why);
void operations_end(struct coordinator *coordinator);

/* control_service.c: gacc.v1.Control, as far as it only tells */
/* GetStatus's answer, valid until the conductor's next call. */
Gacc__V1__Status *coordinator_status(struct coordinator *coordinator);
/* Negative: it does not fit the queue. */
int control_send(struct rpc_call *call, const ProtobufCMessage *message);
void get_status_message(struct rpc_call *call, const uint8_t *message, size_t length, void *context);

/* watching.c: WatchSteps */
int watchers_open(struct coordinator *coordinator, struct error *error);
void watchers_close(struct coordinator *coordinator);
void watch_steps_message(struct rpc_call *call, const uint8_t *message, size_t length, void *context);
void watch_steps_gone(struct rpc_call *call, void *context);
/* The log has grown, or is whole: watchers will hear of it. */
void watchers_feed(struct coordinator *coordinator);
/* Output has left: so will those who waited for that. */
void watchers_have_room(void *coordinator);

/* health_service.c: grpc.health.v1.Health */
void health_check_message(struct rpc_call *call, const uint8_t *message, size_t length, void *context);
void health_watch_message(struct rpc_call *call, const uint8_t *message, size_t length, void *context);
void health_watch_gone(struct rpc_call *call, void *context);
/* All ranks have come, and the end has not. */
bool coordinator_is_serving(struct coordinator *coordinator);
/* Every now and then, and at the end: those who watch hear of a change. */
void health_tell(struct coordinator *coordinator);

/* http_service.c: /healthz, /api/status, /metrics. Returns whether the sender may ask. */
bool http_service_answer(const struct http_request *request, struct http_answer *answer, enum trust trust, int fd,
                         void *context);

/* reflection_service.c: grpc.reflection.v1.ServerReflection, and v1alpha */
void reflection_message(struct rpc_call *call, const uint8_t *message, size_t length, void *context);
void reflection_end(struct rpc_call *call, void *context);

#endif
