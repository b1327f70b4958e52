/*
 * Sockets under gRPC and, for operators, HTTP/1.1, whichever a peer's first bytes are: moves bytes between libuv
 * streams and connections of either, through TLS where the listener has it. Whatever the calls of one event-loop turn
 * queue on a connection leaves in one write.
 *
 * Ranks come first: what they say is read whenever it comes, and what they are told leaves before all else. The others
 * have a part of every turn, and share it: who has been read from is not again before each of those who had something
 * to say has been. While all ranks are connected, whoever has not shown a secret has a part of all time only (turns.h),
 * and rests until there is some.
 */
#ifndef GACC_CONNECTIONS_H
#define GACC_CONNECTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/coordinator/turns.h"
#include "proto/http/http.h"
#include "proto/rpc/rpc.h"
#include "proto/tls.h"

/* What a peer may do without showing a secret, by the listener it came through. */
enum trust {
    TRUST_OWNER,    /* the private unix socket, and the peer has our user id */
    TRUST_OPERATOR, /* TCP: a bearer token is required */
    TRUST_WORKER,   /* TCP, serves Join only */
};

struct connection;
struct connections;

struct listener {
    union { /* bound, not yet listening */
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    };
    struct connections *connections;
    enum trust trust;
    struct tls_context *tls; /* NULL: bytes travel as they are */
    bool is_waiting;         /* somebody has connected for whom there is no room yet */
    struct listener *next_waiting;
};

struct connections {
    uv_loop_t *loop;
    uv_prepare_t flush;
    uv_timer_t deadline;    /* of the next call whose time is over */
    uint64_t next_deadline; /* uv_now */
    uv_timer_t room;        /* until somebody can make room for those who wait, or there is time for who rests */
    struct listener *waiting;
    bool is_time_wanted; /* some of them wait for the next turn alone */
    bool is_draining;
    const struct rpc_method *methods;
    void *context; /* of the methods, and of http */
    /* Answers a request of HTTP/1.1; returns whether its sender has shown that he may ask. Set before the first
     * connections_listen. */
    bool (*http)(const struct http_request *request, struct http_answer *answer, enum trust trust, int fd,
                 void *context);
    void (*drained)(void *context); /* all output of a connection has left, and there was some. May be NULL */
    /* A peer on socket fd that did not come to a call. May be NULL. */
    void (*refused)(void *context, int fd, const char *why);
    struct connection *all;
    struct connection *dirty[2];                /* that have output: others', and ranks' */
    struct connection *resting, **last_resting; /* strangers that wait for time, and where the next one goes */
    bool is_contested;       /* there were some when the last were called: others do not go before them */
    struct turns turns;      /* for those who are no ranks */
    uint64_t round;          /* in which each of them may be read from once … */
    bool is_round_on;        /* … and some have been passed over in this turn */
    uint32_t ranks, joined;  /* how many there are, and are connected */
    uint32_t count, maximum; /* one more displaces an idle one; where none is idle it is closed at once */
    char buffer[65536];      /* every read lands here */
    uint8_t plain[16384];    /* … and what TLS makes of it */
    uint8_t sealed[RPC_OUTPUT_ROUND + (32 << 10)]; /* by TLS, for the socket: one round and a frame */
};

/* `ranks` of the `maximum` are for these. */
int connections_init(struct connections *connections, uv_loop_t *loop, const struct rpc_method *methods, void *context,
                     uint32_t ranks, uint32_t maximum, struct error *error);
/* Every peer that comes through the listener gets `trust`; `tls` (NULL: none) outlives its connections. Returns what
 * uv_listen returns. */
int connections_listen(struct connections *connections, struct listener *listener, enum trust trust,
                       struct tls_context *tls);
/* Every now and then: who is too slow, or has been silent too long, is closed. */
void connections_tick(struct connections *connections);
/* The end is near: calls that run go on to their end, new ones are refused (GOAWAY), but for ranks. */
void connections_drain(struct connections *connections);
/* Somebody whose call was under way at connections_drain has not closed yet, and may have to read its end. */
bool connections_have_readers(const struct connections *connections);
/* Closes all; the calls see `gone`. The loop must run on until the handles are closed. */
void connections_close(struct connections *connections);

/* After queueing on this call: the output of its connection leaves before the loop waits again. */
void connection_wake(struct rpc_call *call);
/* At once: the call may be gone afterwards. Not in a call's callback. */
void connection_flush(struct rpc_call *call);
enum trust connection_trust(const struct rpc_call *call);
/* Of its socket, to be asked about the peer and nothing else; −1: it is closed. */
int connection_descriptor(const struct rpc_call *call);
/* The peer has shown its secret: it is no stranger. A rank may have larger messages under way than others. */
void connection_admit(const struct rpc_call *call, bool is_rank);
/* The call is a rank's: false when its connection carries another one already. */
bool connection_claim(const struct rpc_call *call);
/* uv_now of the last bytes from this peer, in milliseconds. */
uint64_t connection_heard(const struct rpc_call *call);

#endif
