/*
 * What the files of proto/rpc share: a connection (connection.c: session, input, output, limits), its calls (call.c),
 * and the two roles (server.c, client.c), each of which is one `struct rpc_role`.
 */
#ifndef GACC_RPC_INTERNAL_H
#define GACC_RPC_INTERNAL_H

#include <nghttp2/nghttp2.h>

#include "proto/rpc/framing.h"
#include "proto/rpc/metadata.h"
#include "proto/rpc/rpc.h"

struct rpc_role {
    /* A block of header fields is complete (its fields are in call->metadata); `last`: the stream ends with it. */
    void (*headers)(struct rpc_call *call, bool last);
    void (*answer)(struct rpc_call *call); /* the first message waits: send the header fields that come before it */
    void (*ended)(struct rpc_call *call);  /* DATA ended the stream */
    void (*closed)(struct rpc_call *call, uint32_t http2_error); /* before `gone`: settle the status */
    /* The messages are broken, or too large: end the call with this status. */
    void (*broken)(struct rpc_call *call, enum rpc_code code, const char *text);
    void (*body_sent)(struct rpc_call *call, uint32_t *flags); /* nothing is queued and nothing will be: end the body */
};

enum nuisance {
    NUISANCE_RESET, /* streams that end early, by whoever's reset: each cost us a call */
    NUISANCE_FRAME, /* frames that say nothing; some clients send a few of them with each message */
    NUISANCE_KINDS,
};

struct nuisances { /* a leaky bucket */
    uint64_t time; /* of the last count */
    uint32_t count;
};

struct frame_edges { /* where frames begin in what is received */
    uint8_t header[9];
    uint32_t length;  /* of it, so far */
    uint32_t payload; /* bytes that are still to come before the next header */
};

enum drain {
    DRAIN_NONE,
    DRAIN_NOTICE, /* "no more calls soon"; its PING tells when the peer has read it */
    DRAIN_DONE,
};

struct rpc_connection {
    nghttp2_session *session;
    const struct rpc_role *role;
    const struct rpc_method *methods; /* server */
    void *context;                    /* server */
    char *authority;                  /* client */
    void *user;
    struct rpc_call *calls; /* doubly linked */

    struct byte_queue output;
    struct receive_budget receive;
    size_t queued, queued_max;

    uint64_t (*milliseconds)(void);
    struct nuisances nuisances[NUISANCE_KINDS];
    struct frame_edges edges;
    bool has_deadlines; /* a call has had one */

    enum drain drain;
    bool busy;    /* inside nghttp2, so inside a callback as far as a caller can see */
    bool closing; /* inside rpc_close */
    bool failed;
    bool dead;           /* the session must not be used any more (nghttp2's fatal errors) */
    const char *failure; /* why, a literal; NULL: nghttp2 says */
};

struct rpc_call {
    struct rpc_connection *connection;
    struct rpc_call *previous, *next;
    const struct rpc_method *method; /* NULL: the caller does not know of this call */
    void *context;
    void *user;
    int32_t stream;
    struct metadata metadata;
    size_t header_bytes; /* of fields that have come, kept or not */
    struct deframer deframer;
    struct byte_queue queue;

    bool answered;     /* server: response headers are submitted */
    bool local_ended;  /* nothing more will be queued */
    bool remote_ended; /* the peer has ended its half */
    bool over;         /* finished, cancelled or broken: no more messages to the caller */
    bool cancelled;    /* the reset is ours, not the peer's doing */
    bool settled;      /* code and text are final */
    bool was_refused;  /* client: the peer did not begin it */
    bool heard;        /* server: a message has been handed out */
    enum rpc_code code;
    int deadline_milliseconds; /* as the client sent it, −1: none */
    uint64_t deadline;         /* by the connection's clock */
    char text[RPC_TEXT_MAX];
};

int connection_open(struct rpc_connection **out, const struct rpc_role *role, const struct rpc_limits *limits,
                    struct error *error);
/* The peer did something that costs it less than us. */
void connection_nuisance(struct rpc_connection *connection, enum nuisance kind);
/* Real work has been done, which such frames may come with. */
void connection_make_up(struct rpc_connection *connection, uint32_t frames);
void connection_check(struct rpc_connection *connection,
                      int nghttp2_result); /* of a submit: no memory fails the connection */

struct rpc_call *call_open(struct rpc_connection *connection, int32_t stream); /* NULL: no memory */
void call_close(struct rpc_call *call);                                        /* gone, unlinked, freed */
void call_receive(struct rpc_call *call, const uint8_t *bytes, size_t length);
void call_settle(struct rpc_call *call, enum rpc_code code, const char *text); /* the first one stands */
void call_end_body(struct rpc_call *call);                                     /* what is queued is the rest */
void call_reset(struct rpc_call *call, uint32_t http2_error);
void call_expire(struct rpc_call *call); /* server: its time is over */
nghttp2_data_provider call_body(struct rpc_call *call);
int call_write_body(struct rpc_call *call, const uint8_t *frame_header, size_t length); /* nghttp2's send_data */

/* A header field of two strings, for nghttp2 to copy. */
#define FIELD(NAME, VALUE) \
    ((nghttp2_nv){(uint8_t *)(NAME), (uint8_t *)(VALUE), strlen(NAME), strlen(VALUE), NGHTTP2_NV_FLAG_NONE})

#endif
