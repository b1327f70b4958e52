/*
 * A connection to the coordinator over a blocking socket, and calls side by side on it. Nothing here prints; what a
 * call answered and how it ended is the caller's to judge (outcome.h has the exit status of each grpc-status).
 */
#ifndef GACC_CTL_CLIENT_H
#define GACC_CTL_CLIENT_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/ctl/target.h"
#include "proto/error.h"
#include "proto/rpc/rpc.h"

#define CLIENT_SECONDS \
    10 /* for connecting; of silence until a PING is sent, and after it until the server is given up */

struct client;

struct client_call {
    const char *path;                                                    /* "/gacc.v1.Control/GetStatus" */
    void (*message)(void *context, const uint8_t *bytes, size_t length); /* inside client_wait; may be NULL */
    void *context;
    /* Filled by the client. */
    bool over;
    enum rpc_code code;
    char text[256];
    bool was_refused; /* not begun by the server, which turned its connection away: it may be made again on another */
    struct rpc_method method;
};

/* 69 when nobody answers there, with the next step in the text. */
int client_open(struct client **out, const struct target *target, struct error *error);
void client_close(struct client *client); /* calls that are not over end as cancelled; NULL is allowed */

/* `call` is the caller's until it is over or the connection is closed; `request` is packed at once. */
int client_begin(struct client *client, struct client_call *call, const ProtobufCMessage *request, struct error *error);
/* Sends what is queued; then waits until bytes came (and hands them to their calls), until `other` (a descriptor, −1:
 * none) can be read, a signal came, or `milliseconds` (−1: no limit) are over. Negative: the connection is lost. */
int client_wait(struct client *client, int other, int milliseconds, struct error *error);

#endif
