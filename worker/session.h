/*
 * One rank's training: opens model, data and shards for a job, then runs optimizer steps as decisions arrive.
 * Re-entrant, no globals: several sessions may live in one process. The step itself: step.c.
 */
#ifndef GACC_SESSION_H
#define GACC_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"
#include "proto/gacc/v1/workers.pb-c.h"
#include "worker/comm.h"

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
    /* Finished → Farewell: blocks. */
    int (*finished)(struct control *, const Gacc__V1__Finished *, Gacc__V1__Farewell **, struct error *);
};

/* Faults to plant: for tests and for verify's negative controls, never reachable from a job file. All zero: none. */
struct faults {
    uint64_t data_error_at_step;      /* reading data of this step fails with 65 on `rank` */
    uint64_t parameter_write_at_step; /* a parameter of `rank` changes inside the window of this step */
    uint32_t rank;
    bool self_check; /* not a fault: look for parameters that change inside a window (70 naming the tensor) */
};

/* Bytes of the large buffers. Set when the session opens: they depend on b, never on B, K or the step. */
struct session_memory {
    uint64_t parameters; /* compute type, all of them */
    uint64_t gradients;  /* wide, all of them */
    uint64_t shard;      /* wide: reduced gradient and master parameters of the own shard */
    uint64_t moments;
    uint64_t activations;
    uint64_t batch; /* sequences, targets and loss seeds of one micro-batch */
};

struct session;

int session_open(struct session **out, const Gacc__V1__JobSpec *job, struct comm *comm, struct control *control,
                 const struct faults *faults, struct error *error);
/* From Hello to the last step: returns 0 when the coordinator said it is over in order, or the negated status of a FAIL
 * decision or of a lost coordinator. A data error in the evaluation after the last step has no report left to travel
 * in: it fails session_write_model, on all ranks alike. */
int session_run(struct session *session, struct error *error);
/* All ranks together: writes PATH (safetensors, fp32 or fp64 master parameters), complete or not at all. An error on
 * one rank is everyone's. */
int session_write_model(struct session *session, const char *path, struct error *error);
void session_memory(const struct session *session, struct session_memory *memory);
void session_close(struct session *session);

#endif
