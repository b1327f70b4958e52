/* What operations.c and parameters.c share: calls of gacc.v1.Control that change something. */
#ifndef GACC_OPERATIONS_H
#define GACC_OPERATIONS_H

#include "daemon/coordinator/caller.h"
#include "daemon/coordinator/inside.h"

/* A call, from when it comes until it is answered. */
struct operation {
    struct rpc_call *call; /* NULL: gone */
    enum request request;
    struct caller caller;
    double at;           /* unix seconds */
    bool wants_complete; /* a checkpoint, and not only its name */
    bool is_at_boundary; /* it has taken effect: only a checkpoint's completion is awaited */
    uint64_t step, optimizer_steps;
    char name[STORE_NAME_MAX + 1]; /* of the checkpoint */
    struct job_changes changes;    /* own */
    bool was_paused;               /* when it came */
    struct operation *next;
};

/* False: refused, since too many wait. */
bool operation_open(struct coordinator *coordinator, struct operation *operation, struct rpc_call *call,
                    enum request request);
/* The conductor has answered, with ANSWER_REFUSED for the reason *why; takes what the operation owns. */
void operation_begin(struct coordinator *coordinator, struct operation *operation, enum answer known,
                     const struct error *why);
/* With RPC_OK: the end of an answer. */
void operation_refuse(struct rpc_call *call, enum rpc_code code, const char *text);

/* parameters.c: as control_send. */
int parameters_answer(const struct operation *operation, Gacc__V1__Effect *effect);

#endif
