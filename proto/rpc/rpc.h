/*
 * gRPC over HTTP/2 (nghttp2), both ends, without I/O: bytes in, bytes out. The caller moves bytes between a connection
 * and its socket and wakes it; this module frames messages, speaks the gRPC protocol (PROTOCOL-HTTP2) and hands out
 * calls.
 *
 * What a connection can allocate is capped, whatever the peer sends: `streams` concurrent calls, each with
 * RPC_METADATA_MAX bytes of metadata; messages being received, `receive_bytes` in all; unsent messages, `queue_bytes`
 * in all; RPC_OUTPUT_ROUND bytes and one frame of output. A peer that sends resets, or has us reset, faster than
 * RPC_NUISANCE_RATE per second, beyond RPC_NUISANCE_BURST, is cut off. So is one that sends pings, settings, window
 * updates, frames of unknown types or other idle ones faster, where every message that comes with them makes up for
 * one, and every call and every frame of messages that it takes for two. The caller's part: not to read from a peer
 * while that one does not read, or answers to its frames pile up.
 *
 * Callbacks run inside rpc_input, rpc_output and rpc_close, never inside rpc_call_*. Inside a callback every rpc_call_*
 * function may be used, on any call of any connection; rpc_output on the same connection returns 0; rpc_input and
 * rpc_close on it are not allowed. One connection belongs to one thread.
 */
#ifndef GACC_RPC_H
#define GACC_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"

#define RPC_MESSAGE_MAX (4u << 20)
#define RPC_RECEIVE_MAX (16u << 20)
#define RPC_METADATA_MAX (8u << 10)
#define RPC_OUTPUT_ROUND (64u << 10)
#define RPC_TEXT_MAX 1024 /* of a status text, with its NUL; longer ones are cut */
#define RPC_NUISANCE_BURST 1000
#define RPC_NUISANCE_RATE 33

enum rpc_code { /* grpc-status */
                RPC_OK = 0,
                RPC_CANCELLED = 1,
                RPC_UNKNOWN = 2,
                RPC_INVALID_ARGUMENT = 3,
                RPC_DEADLINE_EXCEEDED = 4,
                RPC_NOT_FOUND = 5,
                RPC_ALREADY_EXISTS = 6,
                RPC_PERMISSION_DENIED = 7,
                RPC_RESOURCE_EXHAUSTED = 8,
                RPC_FAILED_PRECONDITION = 9,
                RPC_ABORTED = 10,
                RPC_OUT_OF_RANGE = 11,
                RPC_UNIMPLEMENTED = 12,
                RPC_INTERNAL = 13,
                RPC_UNAVAILABLE = 14,
                RPC_DATA_LOSS = 15,
                RPC_UNAUTHENTICATED = 16,
};

struct rpc_connection;
struct rpc_call;

/* One method of a service; a server has a table of them, ended by a row without a path. `context` is what
 * rpc_server_open or rpc_call_begin was given. */
struct rpc_method {
    const char *path; /* "/gacc.v1.Control/GetStatus" */
    /* A call has begun: its metadata is in (rpc_call_metadata). Refuse with rpc_call_finish. Server only; may be NULL.
     */
    void (*begin)(struct rpc_call *call, void *context);
    /* One whole message came; never before begin, never after rpc_call_finish or rpc_call_cancel. `message` is borrowed
     * for the call. May be NULL. */
    void (*message)(struct rpc_call *call, const uint8_t *message, size_t length, void *context);
    /* The peer half-closed: no more messages. Server only; may be NULL. */
    void (*end)(struct rpc_call *call, void *context);
    /* The call is gone, whatever the reason (finished, cancelled, connection lost): the last callback; the last use of
     * `call`. May be NULL. */
    void (*gone)(struct rpc_call *call, void *context);
    /* Server: a request is exactly one message. A second one ends the call before it is handed out, as does the end
     * without any: with UNIMPLEMENTED, as gRPC's status codes have it for the wrong number of requests. */
    bool one_message;
    int role; /* the table's own: who may call (rpc_call_method) */
};

struct rpc_limits {
    uint32_t streams;               /* concurrent, 0: 100 */
    size_t message_bytes;           /* of one received message, 0: RPC_MESSAGE_MAX */
    size_t receive_bytes;           /* half-received messages, 0: RPC_RECEIVE_MAX */
    size_t queue_bytes;             /* unsent messages, 0: 8 MiB */
    uint64_t (*milliseconds)(void); /* a monotonic clock for deadlines and RPC_NUISANCE_RATE, NULL: the system's */
};

/* `methods` and `limits->milliseconds` must outlive the connection; *limits (may be NULL) is copied. */
int rpc_server_open(struct rpc_connection **out, const struct rpc_method *methods, void *context,
                    const struct rpc_limits *limits, struct error *error);
int rpc_client_open(struct rpc_connection **out, const char *authority, const struct rpc_limits *limits,
                    struct error *error);
void rpc_close(struct rpc_connection *connection); /* every open call sees `gone`; NULL is allowed */

/* Bytes from the socket. A negative result: protocol error, close the socket after writing what rpc_output still has.
 */
int rpc_input(struct rpc_connection *connection, const uint8_t *bytes, size_t length, struct error *error);
/* Bytes for the socket: *bytes is borrowed until the next rpc_input, rpc_output or rpc_close on this connection; 0 when
 * there is nothing now. Call until 0. Everything queued so far by all calls comes out in one round up to
 * RPC_OUTPUT_ROUND, so that one write per round suffices. A caller whose socket is full keeps the rest of the round and
 * does not call again before it is written: that is how rpc_call_send comes to see a full queue. */
size_t rpc_output(struct rpc_connection *connection, const uint8_t **bytes);
bool rpc_wants_close(const struct rpc_connection *connection); /* both ends are through with it, or it has failed */
/* Server: ends the calls whose grpc-timeout is over, with DEADLINE_EXCEEDED; one that has unsent messages is
 * reset, a fifth of a second later. To be called before output and when the time comes that it returns: milliseconds
 * from now, UINT64_MAX: never. */
uint64_t rpc_expire(struct rpc_connection *connection);
/* Calls that have begun and are not gone. */
size_t rpc_calls(const struct rpc_connection *connection);
/* For a peer that has shown who it is: other caps than those of the limits, 0: the default. */
void rpc_set_caps(struct rpc_connection *connection, size_t receive_bytes, size_t queue_bytes);
/* Queues a PING: a peer that is alive answers, and its answer is input. */
void rpc_ping(struct rpc_connection *connection);

/* Client: begins a call. Metadata: NULL-terminated name, value, name, value …, 16 pairs at most (a name ending in -bin
 * takes base64 text, rpc_base64_encode), may be NULL. timeout 0: none; the peer is told, the caller keeps the time and
 * cancels. `method` supplies path, message and gone (with rpc_call_status known in gone). NULL: the peer takes no more
 * calls, or no memory. */
struct rpc_call *rpc_call_begin(struct rpc_connection *connection, const struct rpc_method *method, void *context,
                                const char *const *metadata, uint32_t timeout_milliseconds);

/* Queues one message (copied). Returns −1 and queues nothing when the queue is full, memory is short, or the call is
 * over. */
int rpc_call_send(struct rpc_call *call, const uint8_t *message, size_t length);
/* Bytes of such messages, with their frames, that have not come out of rpc_output yet. */
size_t rpc_call_queued(const struct rpc_call *call);
void rpc_call_half_close(struct rpc_call *call); /* client: no more messages */
void rpc_call_finish(struct rpc_call *call, enum rpc_code code,
                     const char *text); /* server: trailers, after what is queued */
void rpc_call_cancel(struct rpc_call *call);
const char *rpc_call_metadata(const struct rpc_call *call,
                              const char *name);    /* of the peer, the first of that name; NULL: none */
int rpc_call_deadline(const struct rpc_call *call); /* server: grpc-timeout in ms, −1: none */
const struct rpc_method *rpc_call_method(const struct rpc_call *call);
enum rpc_code rpc_call_status(const struct rpc_call *call, const char **text); /* client, in gone */
/* Client, in gone: the peer has said that it did not begin the call, which may be made again elsewhere (RFC 9113, 8.7).
 */
bool rpc_call_was_refused(const struct rpc_call *call);
void rpc_call_set_user(struct rpc_call *call, void *user);
void *rpc_call_user(const struct rpc_call *call);
struct rpc_connection *rpc_call_connection(const struct rpc_call *call);
void rpc_connection_set_user(struct rpc_connection *connection, void *user);
void *rpc_connection_user(const struct rpc_connection *connection);
/* Server: no new calls (GOAWAY, in two steps as RFC 9113 6.8 advises), running ones go on; then rpc_wants_close. */
void rpc_drain(struct rpc_connection *connection);
/* The end, once what rpc_output has is written: the peer hears which calls were not begun (GOAWAY), and may begin them
 * elsewhere. */
void rpc_terminate(struct rpc_connection *connection);

/* Base64 as -bin metadata carries it. Encode writes 4·⌈length/3⌉ characters and a NUL. Decode takes padded and unpadded
 * text and returns the number of bytes, −1 when the text is malformed or longer than `capacity` bytes. */
void rpc_base64_encode(char *text, const uint8_t *bytes, size_t length);
int rpc_base64_decode(uint8_t *bytes, size_t capacity, const char *text);

#endif
