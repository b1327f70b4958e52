/*
 * gRPC over HTTP/2 (nghttp2), both ends, without I/O: bytes in, bytes out. The caller moves bytes between a connection and its
 * socket and wakes it; this module frames messages, speaks the gRPC protocol (PROTOCOL-HTTP2) and hands out calls.
 *
 * A connection allocates at most its caps: one message of RPC_MESSAGE_MAX per stream being received, RPC_STREAMS_MAX streams,
 * RPC_QUEUE_MAX bytes of unsent output before rpc_call_send refuses.
 */
#ifndef GACC_RPC_H
#define GACC_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"

#define RPC_MESSAGE_MAX (4u << 20)

enum rpc_code { /* grpc-status */
    RPC_OK = 0, RPC_CANCELLED = 1, RPC_UNKNOWN = 2, RPC_INVALID_ARGUMENT = 3, RPC_DEADLINE_EXCEEDED = 4, RPC_NOT_FOUND = 5,
    RPC_PERMISSION_DENIED = 7, RPC_RESOURCE_EXHAUSTED = 8, RPC_FAILED_PRECONDITION = 9, RPC_UNIMPLEMENTED = 12, RPC_INTERNAL = 13,
    RPC_UNAVAILABLE = 14, RPC_UNAUTHENTICATED = 16,
};

struct rpc_connection;
struct rpc_call;

/* One method of a service; a server has a table of them, ended by a row without a path. */
struct rpc_method {
    const char *path; /* "/gacc.v1.Control/GetStatus" */
    /* A call has begun: its metadata is in (rpc_call_metadata). Refuse with rpc_call_finish. May be NULL. */
    void (*begin)(struct rpc_call *call, void *context);
    /* One whole message came. `message` is borrowed for the call. */
    void (*message)(struct rpc_call *call, const uint8_t *message, size_t length, void *context);
    /* The peer half-closed: no more messages. May be NULL. */
    void (*end)(struct rpc_call *call, void *context);
    /* The call is gone, whatever the reason (finished, cancelled, connection lost): the last callback; the last use of `call`. May be NULL. */
    void (*gone)(struct rpc_call *call, void *context);
};

struct rpc_limits {
    uint32_t streams;       /* concurrent, 0: 100 */
    size_t message_bytes;   /* 0: RPC_MESSAGE_MAX */
    size_t queue_bytes;     /* unsent output, 0: 8 MiB */
};

int rpc_server_open(struct rpc_connection **out, const struct rpc_method *methods, void *context, const struct rpc_limits *limits,
                    struct error *error);
int rpc_client_open(struct rpc_connection **out, const char *authority, const struct rpc_limits *limits, struct error *error);
void rpc_close(struct rpc_connection *connection); /* every open call sees `gone` */

/* Bytes from the socket. A negative result: protocol error, close the socket after writing what rpc_output still has. */
int rpc_input(struct rpc_connection *connection, const uint8_t *bytes, size_t length, struct error *error);
/* Bytes for the socket: *bytes is borrowed until the next call on this connection; 0 when there is nothing now. Call until 0. Everything
 * queued so far by all calls comes out of as few rounds as possible, so that one write suffices. */
size_t rpc_output(struct rpc_connection *connection, const uint8_t **bytes);
bool rpc_wants_close(const struct rpc_connection *connection); /* both ends are through with it */

/* Client: begins a call. Metadata: NULL-terminated name, value, name, value … (a name ending in -bin takes base64 text).
 * `method` supplies message and gone (with rpc_call_status known in gone); begin and end are not used. */
struct rpc_call *rpc_call_begin(struct rpc_connection *connection, const struct rpc_method *method, void *context,
                                const char *const *metadata, uint32_t timeout_milliseconds);

/* Queues one message (copied). RPC_CALL full: returns −1 (queue cap reached), the message is not queued. */
int rpc_call_send(struct rpc_call *call, const uint8_t *message, size_t length);
void rpc_call_half_close(struct rpc_call *call);                                        /* client: no more messages */
void rpc_call_finish(struct rpc_call *call, enum rpc_code code, const char *text);      /* server: trailers */
void rpc_call_cancel(struct rpc_call *call);
const char *rpc_call_metadata(const struct rpc_call *call, const char *name);           /* of the peer; NULL: none */
int rpc_call_deadline(const struct rpc_call *call);                                     /* server: grpc-timeout in ms, −1: none */
enum rpc_code rpc_call_status(const struct rpc_call *call, const char **text);          /* client, in gone */
void rpc_call_set_user(struct rpc_call *call, void *user);
void *rpc_call_user(const struct rpc_call *call);
struct rpc_connection *rpc_call_connection(const struct rpc_call *call);
void rpc_connection_set_user(struct rpc_connection *connection, void *user);
void *rpc_connection_user(const struct rpc_connection *connection);
/* Server: no new calls (GOAWAY), running ones go on. */
void rpc_drain(struct rpc_connection *connection);

#endif
