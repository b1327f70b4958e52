/*
 * Who may call what: a pure judgment of the address a call came through, the secrets it shows, and the role that its
 * method asks for.
 */
#ifndef GACC_GUARD_H
#define GACC_GUARD_H

#include <stdint.h>

#include "daemon/coordinator/connections.h"
#include "proto/error.h"
#include "proto/rpc/rpc.h"

#define SECRET_BYTES 32
#define TOKEN_DIGITS (2 * SECRET_BYTES) /* hexadecimal */

enum role {
    ROLE_READ,    /* operators: asks and changes nothing */
    ROLE_CONTROL, /* operators: changes what the job does */
    ROLE_WORKER,  /* the job's own ranks */
};

struct guard {
    uint8_t secret[SECRET_BYTES]; /* of the job's ranks */
    char control_token[TOKEN_DIGITS + 1], read_token[TOKEN_DIGITS + 1];
};

/* New ones at random. */
int guard_open(struct guard *guard, struct error *error);

struct judgment {
    enum rpc_code code; /* RPC_OK: he may */
    const char *said;   /* to the caller: no more than he has to know. Static, as the next two */
    const char *logged; /* what it was */
    const char *role;   /* that he has shown: "control", "read", or NULL */
};

/* authorization, secret: the call's metadata "authorization" ("Bearer TOKEN") and "gacc-secret-bin" (base64), or NULL.
 */
struct judgment guard_judge(const struct guard *guard, enum trust trust, enum role wanted, const char *authorization,
                            const char *secret);

#endif
