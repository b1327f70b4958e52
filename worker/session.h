/*
 * One rank's training: opens model, data and shards for a job, then runs optimizer steps as decisions arrive.
 * Re-entrant, no globals: several sessions may live in one process. The step itself: step.c.
 */
#ifndef GACC_SESSION_H
#define GACC_SESSION_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"
#include "proto/gacc/v1/workers.pb-c.h"
#include "worker/comm.h"
#include "worker/device.h"
#include "worker/faults.h"

/* How a session speaks with whoever decides: the coordinator over gRPC (control_client.h), or a test. Messages given
 * are borrowed; messages returned are the caller's, freed with protobuf-c's free_unpacked. */
struct control {
    /* Hello → Welcome; Report → Decision: blocks. */
    int (*hello)(struct control *, const Gacc__V1__Hello *, Gacc__V1__Welcome **, struct error *);
    int (*report)(struct control *, const Gacc__V1__Report *, Gacc__V1__Decision **, struct error *);
    /* Queued, not awaited. */
    int (*step_done)(struct control *, const Gacc__V1__StepDone *, struct error *);
    /* The state the rank is in, for whoever asks: cheap, from the compute thread, at every transition. */
    void (*state)(struct control *, uint64_t step, Gacc__V1__State state, uint32_t micro_batch);
    /* Queued, not awaited; from any thread, beside the others. Asked for by a Decision's Save. */
    int (*saved)(struct control *, const Gacc__V1__Saved *, struct error *);
    /* Finished → Farewell: blocks. */
    int (*finished)(struct control *, const Gacc__V1__Finished *, Gacc__V1__Farewell **, struct error *);
};

/* Bytes of the large buffers. Set when the session opens: but for `window` they depend on b, never on B, K or the step.
 */
struct session_memory {
    uint64_t parameters; /* compute type, all of them */
    uint64_t gradients;  /* wide, of all that are trained */
    uint64_t shard; /* wide: reduced gradient and master parameters of the own shard, own part of the frozen ones */
    uint64_t moments;
    uint64_t activations;
    uint64_t window;    /* kept of every micro-batch of a window that is run stage by stage: times K; else 0 */
    uint64_t batch;     /* sequences, targets and loss seeds of one micro-batch */
    uint64_t copies;    /* of the state, from the first checkpoint on */
    uint64_t reduction; /* on CPUs: MPI's own two of the gradients while ranks reduce them (Open MPI 4) */
};

/* Seconds of a monotonic clock. */
double seconds_now(void);
/* Of any clock. */
double seconds_of(clockid_t clock);

struct session;
struct tensor_table; /* worker/model.h */

/* What a session holds, to be read and nothing else. Pointers are the session's, of the host's memory: the buffers
 * themselves, or copies of those of a device, made by session_look and good until the next one. */
struct session_view {
    uint64_t step; /* attempt; 0 outside a step */
    double scale;  /* S of its window; 0 outside a step */
    uint32_t rank;
    enum dtype compute_type, wide_type;
    const struct tensor_table *table;
    const struct shard_map *map;
    uint64_t owned;            /* elements of the own shard */
    uint64_t kept;             /* the same and those of the own part of the frozen index */
    const compute *parameters; /* [map->parameters], the trained ones */
    const compute *frozen;     /* [table->parameters − map->parameters]; NULL: there are none */
    const wide *gradients;     /* [map->parameters] this rank's own, scaled by S */
    const wide *shard;         /* [owned] reduced over the ranks, scaled by S, after Reduce */
    const wide *master;        /* [kept] */
    uint64_t m_count, v_count; /* elements of the own shard whose optimizer has such a moment */
    const wide *m, *v;         /* [m_count], [v_count]; NULL: none */
};

/* Who looks on, in the rank's own thread. */
struct observer {
    void (*reduced)(struct observer *, const struct session_view *); /* right after Reduce */
    void (*stepped)(struct observer *, const struct session_view *); /* at the end of ExitStep, whatever the verdict */
};

/* What is doubtful about a job, though it runs: a sentence each. */
struct notices {
    char **each;
    size_t count;
};

struct session_options {
    const struct device *device;   /* NULL: the CPU; borrowed */
    const struct notices *notices; /* that hello takes to the log; NULL: none; borrowed */
    bool staged; /* its collectives go by way of the host, whatever it offers: the ranks are threads of this process */
    /* For tests and verify; a job is trained with none of them. */
    struct faults faults;
    struct observer *observer; /* NULL: nobody; borrowed */
    bool reference;            /* the reference kernels, on the CPU: of fp64 only, others are refused (70) */
    uint64_t train_most;       /* every epoch is so many sequences, those with which the first begins; 0: all */
    bool reversed;             /* every global batch is read from its end: the same sums, added up otherwise */
};

/* options NULL: none. */
int session_open(struct session **out, const Gacc__V1__JobSpec *job, struct comm *comm, struct control *control,
                 const struct session_options *options, struct error *error);
/* Whether BatchNorm's sets are micro-batches that may hold rows of one class alone, as the data lie. */
bool session_norms_by_class(const struct session *session);
/* From Hello to the last step: returns 0 when the coordinator said it is over in order, or the negated status of a FAIL
 * decision or of a lost coordinator. A data error in the evaluation after the last step has no report left to travel
 * in: it fails session_write_model, on all ranks alike. */
int session_run(struct session *session, struct error *error);
/* Whether session_run ended because the job was asked to stop: it is not done, and its model not the last one. */
bool session_has_stopped(const struct session *session);
/* All ranks together: writes PATH (safetensors, fp32 or fp64 master parameters), complete or not at all. An error on
 * one rank is everyone's; so is a weight that is not finite (76): nothing is written then. Adapters are merged into the
 * weights beside them. */
int session_write_model(struct session *session, const char *path, struct error *error);
/* The same of the adapters alone, by the names that the peft library has for them; the model has some. */
int session_write_adapters(struct session *session, const char *path, struct error *error);
/* As its tensors are frozen now. */
void session_memory(const struct session *session, struct session_memory *memory);
/* In the step in which the most is trained, whatever is frozen now. */
int session_memory_at_most(const struct session *session, struct session_memory *memory, struct error *error);
/* The same of rank 0, which has the most, without a session. */
int session_memory_of(const Gacc__V1__JobSpec *job, uint32_t ranks, struct session_memory *memory, struct error *error);
/* The groups of its tensors when the job begins, as layout_list_groups has them. */
int session_groups_of(const Gacc__V1__JobSpec *job, Gacc__V1__TensorGroup ***groups, size_t *count,
                      struct error *error);
int session_look(struct session *session, struct session_view *view, struct error *error);
void session_close(struct session *session);

#endif
