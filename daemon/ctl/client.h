/* One call of gacc.v1.Control over a blocking socket, from connecting to the last message. */
#ifndef GACC_CTL_CLIENT_H
#define GACC_CTL_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/ctl/target.h"
#include "proto/error.h"

#define CLIENT_SECONDS 10 /* for connecting, and for a first answer to a call of one answer */

struct client_call {
    const char *path; /* "/gacc.v1.Control/GetStatus" */
    const uint8_t *request;
    size_t request_length;
    int timeout_seconds; /* without a byte from the server; 0: none */
    void (*message)(void *context, const uint8_t *message, size_t length);
    void *context;
};

/* 0 when the server ended the call with OK; 69 when it cannot be reached or refuses us. */
int client_call(const struct target *target, const struct client_call *call, struct error *error);

#endif
