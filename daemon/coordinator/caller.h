/* Who calls, in words for the log. */
#ifndef GACC_CALLER_H
#define GACC_CALLER_H

#include "daemon/coordinator/connections.h"

struct caller {
    char by[160];     /* "uid 1000 (jo), pid 1234", "token control from 127.0.0.1:41234" */
    const char *role; /* "control"; static */
};

/* Of a call that changes something and was admitted. */
void caller_of(struct caller *caller, const struct rpc_call *call);
/* The peer of a socket; role: of the token that it has shown, or NULL: "127.0.0.1:41234". */
void caller_at(char by[160], int fd, const char *role);

#endif
