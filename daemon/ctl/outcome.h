/* How a call ended, as an exit status and a line that says the next step: one table from grpc-status. */
#ifndef GACC_CTL_OUTCOME_H
#define GACC_CTL_OUTCOME_H

#include <stddef.h>

#include "daemon/ctl/target.h"
#include "proto/error.h"
#include "proto/rpc/rpc.h"

struct outcome {
    enum rpc_code code;
    const char *name; /* UNAVAILABLE */
    enum status status;
    const char *advice; /* the next step, or NULL: the job's own text says it */
};
extern const struct outcome outcomes[];
extern const size_t outcome_count;

/* 0 for RPC_OK; else fills *error from the row of `code` and the job's `text`. */
int outcome_of_call(const struct target *target, enum rpc_code code, const char *text, struct error *error);
/* Nobody could be reached at the target's endpoint; `number` is errno. */
int outcome_unreachable(const struct target *target, int number, struct error *error);
/* Puts the endpoint before a failure of TLS, and the next step behind it. */
int outcome_no_tls(const struct target *target, enum tls_fault fault, struct error *error);
/* The connection ended, by errno `number` (0: in order), before the server had said a word. */
int outcome_silent(const struct target *target, int number, struct error *error);
/* Every exit status, what it stands for, and its codes: a section of the manual. Static. */
const char *outcome_manual(void);
/* {"error": {"status", "message"}}, one line on standard output. */
void outcome_print_json(const struct error *error);

#endif
