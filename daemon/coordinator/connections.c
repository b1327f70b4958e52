#include "daemon/coordinator/connections.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* What a peer can make this process hold, with `maximum` connections (the ranks' and OPERATORS_MAX more) at once:
 *     TLS                                   TLS_HANDSHAKE_MAX, then one read; TLS_OUTPUT_MAX, or one answer, sealed
 *     before it says what it speaks         PREFACE_BYTES
 *     gRPC, calls under way                 100 (rpc.h), each RPC_METADATA_MAX and 2 KiB
 *     gRPC, half-received messages          OPERATOR_RECEIVE_BYTES, of a rank RPC_RECEIVE_MAX
 *     gRPC, unsent messages                 OPERATOR_QUEUE_BYTES, of a rank rpc.h's default
 *     gRPC, header compression              4 KiB each way (nghttp2's default table)
 *     HTTP/1.1                              HTTP_HEAD_MAX, HTTP_INPUT_MAX and one answer
 *     output that waits for the socket      RPC_OUTPUT_ROUND and a frame, or that one answer
 * Only a call that was admitted has messages. Nothing is read from a peer while output waits for it, so answers to what
 * it sends do not pile up. Watchers and operations have caps of their own (WATCHERS_MAX, OPERATIONS_MAX). */
#define PREFACE_BYTES 4 /* "PRI ": no method of HTTP/1.1 begins so */
#define OPERATOR_RECEIVE_BYTES RPC_MESSAGE_MAX
#define OPERATOR_QUEUE_BYTES (2u << 20) /* more than the longest line of the log that is sent (watching.h) */
#define SLICE_BYTES (16u << 10)         /* read at once from who is no rank */
#define CALLED_AT_ONCE 8                /* of those who rest */
#define IDLE_MILLISECONDS 250           /* for which a connection that is idle keeps its place where others want one */
/* A request's head, and a stranger's time to show a secret. */
#define PATIENCE_MILLISECONDS 10000
#define KEEP_ALIVE_MILLISECONDS 60000 /* between two requests of HTTP/1.1 */
/* For which a connection that is over is kept for its peer to read the end of. A socket that is closed refuses what
 * comes to it, and there are clients that drop what they have not read yet when a write fails. */
#define FAREWELL_MILLISECONDS 1000

struct connection {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    };
    struct connections *owner;
    struct tls *tls;              /* between the socket and what follows; NULL: nothing is */
    struct rpc_connection *rpc;   /* one of both; none until the first bytes tell */
    struct http_connection *http; /* operators only */
    uint8_t first[PREFACE_BYTES]; /* bytes that may yet be either's */
    size_t first_length;
    enum trust trust;
    uint64_t opened, heard, asked; /* uv_now; asked: the last time a request began */
    uint64_t round;                /* owner->round when it was last read from */
    bool is_stranger, is_rank, is_claimed, is_dirty, is_writing, is_failed, is_closing;
    bool is_resting, is_called; /* while strangers have no time, nothing is read; called: may be */
    bool is_over;               /* all has been said, and what comes is not looked at: the peer's end is waited for */
    uint64_t over;              /* uv_now when that began */
    bool is_reader;             /* of answers that had not left when the end came near */
    struct connection *next_resting;
    bool has_written;                            /* what a write left for later has left since the last flush */
    struct connection *next, **link;             /* in owner->all; *link points here */
    struct connection *next_dirty, **dirty_link; /* while it is_dirty */
    uv_write_t write;
    uint8_t *unsent; /* of the write under way: at most one round of next_output */
};

static void give_buffer(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer);
static void on_read(uv_stream_t *stream, ssize_t length, const uv_buf_t *buffer);
static void on_room(uv_timer_t *timer);

static void mark_dirty(struct connection *connection)
{
    if (connection->is_dirty || connection->is_closing) return;
    struct connection **first = &connection->owner->dirty[connection->is_rank];
    connection->is_dirty = true;
    connection->dirty_link = first;
    connection->next_dirty = *first;
    if (*first) (*first)->dirty_link = &connection->next_dirty;
    *first = connection;
}

static void mark_clean(struct connection *connection)
{
    if (!connection->is_dirty) return;
    connection->is_dirty = false;
    *connection->dirty_link = connection->next_dirty;
    if (connection->next_dirty) connection->next_dirty->dirty_link = connection->dirty_link;
}

static void on_closed(uv_handle_t *handle)
{
    struct connection *connection = handle->data;
    free(connection->unsent);
    free(connection);
}

/* What it has to say waits in its socket. */
static void rest(struct connection *connection)
{
    struct connections *owner = connection->owner;
    uv_read_stop(&connection->stream);
    connection->is_resting = true;
    connection->is_called = false;
    connection->next_resting = NULL;
    *owner->last_resting = connection;
    owner->last_resting = &connection->next_resting;
}

static void end_rest(struct connection *connection)
{
    struct connections *owner = connection->owner;
    if (!connection->is_resting) return;
    struct connection **link = &owner->resting;
    while (*link != connection) link = &(*link)->next_resting;
    *link = connection->next_resting;
    if (!*link) owner->last_resting = link;
    connection->is_resting = false;
}

static void close_connection(struct connection *connection)
{
    if (connection->is_closing) return;
    struct connections *owner = connection->owner;
    mark_clean(connection);
    end_rest(connection);
    owner->joined -= connection->is_rank;
    *connection->link = connection->next;
    if (connection->next) connection->next->link = connection->link;
    owner->count--;
    connection->is_closing = true;
    struct rpc_connection *rpc = connection->rpc;
    rpc_close(rpc);
    http_close(connection->http);
    tls_close(connection->tls);
    connection->rpc = NULL;
    connection->http = NULL;
    connection->tls = NULL;
    uv_close(&connection->handle, on_closed);
}

static void on_written(uv_write_t *write, int status)
{
    struct connection *connection = write->data;
    free(connection->unsent);
    connection->unsent = NULL;
    connection->is_writing = false;
    connection->has_written = true;
    if (connection->is_closing) return;
    if (status < 0) {
        close_connection(connection);
        return;
    }
    if (!connection->is_failed && !connection->is_resting) uv_read_start(&connection->stream, give_buffer, on_read);
    mark_dirty(connection);
}

/* What uv_try_write left of a round waits for the socket; further rounds wait in the rpc connection. */
static int write_later(struct connection *connection, const uint8_t *bytes, size_t length)
{
    connection->unsent = malloc(length);
    if (!connection->unsent) return UV_ENOMEM;
    memcpy(connection->unsent, bytes, length);
    connection->is_writing = true;
    uv_read_stop(&connection->stream);
    connection->write.data = connection;
    uv_buf_t part = uv_buf_init((char *)connection->unsent, (unsigned)length);
    return uv_write(&connection->write, &connection->stream, &part, 1, on_written);
}

static size_t next_plain(struct connection *connection, const uint8_t **bytes)
{
    if (connection->rpc) return rpc_output(connection->rpc, bytes);
    return connection->http ? http_output(connection->http, bytes) : 0;
}

/* For the socket; borrowed until the next call. 0: nothing now. */
static size_t next_output(struct connection *connection, const uint8_t **bytes)
{
    if (!connection->tls) return next_plain(connection, bytes);
    struct connections *owner = connection->owner;
    const uint8_t *plain;
    struct error error;
    size_t length = tls_output(connection->tls, owner->sealed, sizeof owner->sealed);
    if (!length && tls_is_established(connection->tls) && (length = next_plain(connection, &plain))) {
        connection->is_failed |= tls_write(connection->tls, plain, length, &error) != 0;
        length = tls_output(connection->tls, owner->sealed, sizeof owner->sealed);
    }
    *bytes = owner->sealed;
    return length;
}

static int descriptor(const struct connection *connection)
{
    int fd;
    return uv_fileno(&connection->handle, &fd) ? -1 : fd;
}

/* The peer reads the end, and closes. Calls that have not ended, of a session that has failed, hear of it at once. */
static void say_farewell(struct connection *connection)
{
    const bool has_calls = connection->rpc && rpc_calls(connection->rpc) > 0;
    if (connection->is_failed || has_calls || shutdown(descriptor(connection), SHUT_WR)) {
        close_connection(connection);
        return;
    }
    connection->is_over = true;
    connection->over = uv_now(connection->owner->loop);
}

static bool wants_close(const struct connection *connection)
{
    if (connection->rpc) return rpc_wants_close(connection->rpc);
    return connection->http && http_wants_close(connection->http);
}

static void on_deadline(uv_timer_t *timer);

/* The calls whose time is over end before the output is taken; the timer knows of the next one. */
static void expire(struct connection *connection)
{
    struct connections *owner = connection->owner;
    if (!connection->rpc) return;
    const uint64_t left = rpc_expire(connection->rpc), at = uv_now(owner->loop) + left;
    if (left == UINT64_MAX || (uv_is_active((uv_handle_t *)&owner->deadline) && owner->next_deadline <= at)) return;
    owner->next_deadline = at;
    uv_timer_start(&owner->deadline, on_deadline, left + 1, 0);
}

static void on_deadline(uv_timer_t *timer)
{
    struct connections *connections = timer->data;
    for (struct connection *each = connections->all; each; each = each->next) mark_dirty(each);
}

static void flush(struct connection *connection)
{
    if (connection->is_over) return;
    expire(connection);
    if (connection->is_writing) return;
    struct connections *owner = connection->owner;
    const uint8_t *bytes;
    bool any = connection->has_written;
    connection->has_written = false;
    for (size_t length; !connection->is_writing && (length = next_output(connection, &bytes)); any = true) {
        uv_buf_t part = uv_buf_init((char *)bytes, (unsigned)length);
        int written = uv_try_write(&connection->stream, &part, 1);
        if (written == UV_EAGAIN) written = 0;
        if (written >= 0 && (size_t)written == length) continue;
        if (written < 0 || write_later(connection, bytes + written, length - (size_t)written) < 0) {
            close_connection(connection);
            return;
        }
    }
    if (connection->is_writing) return;
    if (any && owner->drained) owner->drained(owner->context);
    if (connection->is_failed || wants_close(connection)) say_farewell(connection);
}

/* ---- turns ---- */

/* There is no decision to keep waiting before all ranks are there. */
static bool limits_strangers(const struct connections *connections)
{
    return connections->joined >= connections->ranks;
}

/* Milliseconds until they may be served. */
static uint64_t strangers_wait(struct connections *connections)
{
    return limits_strangers(connections) ? turns_wait(&connections->turns, uv_hrtime()) : 0;
}

/* Whoever is no rank has been served since `began`. */
static void spend(struct connections *connections, uint64_t began, bool is_stranger)
{
    turns_spend(&connections->turns, uv_hrtime() - began, is_stranger && limits_strangers(connections));
}

static bool has_to_rest(const struct connection *connection)
{
    struct connections *owner = connection->owner;
    if (!connection->is_stranger || !limits_strangers(owner)) return false;
    return (owner->is_contested && !connection->is_called) || strangers_wait(owner) > 0;
}

static bool may_be_read(struct connection *connection)
{
    struct connections *owner = connection->owner;
    if (connection->is_rank) return true;
    if (connection->round == owner->round || has_to_rest(connection)) return false;
    const bool has_time = turns_have_time(&owner->turns);
    owner->is_round_on |= !has_time;
    if (has_time) connection->round = owner->round;
    return has_time;
}

/* No buffer: what there is waits in the socket for another turn. */
static void give_buffer(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    (void)suggested;
    struct connection *connection = handle->data;
    struct connections *owner = connection->owner;
    const size_t room = connection->is_rank ? sizeof owner->buffer : SLICE_BYTES;
    *buffer = may_be_read(connection) ? uv_buf_init(owner->buffer, (unsigned)room) : uv_buf_init(NULL, 0);
}

/* What the last turn has queued leaves, and the next one begins. */
static void begin_turn(uv_prepare_t *prepare)
{
    struct connections *connections = prepare->data;
    turns_begin(&connections->turns);
    if (!connections->is_round_on) connections->round++;
    connections->is_round_on = false;
    if (connections->is_time_wanted) on_room(&connections->room);
    for (struct connection *next;
         (next = connections->dirty[true] ? connections->dirty[true] : connections->dirty[false]);) {
        mark_clean(next);
        const uint64_t began = next->is_rank ? 0 : uv_hrtime();
        flush(next); /* may close it, which frees it later */
        if (!next->is_rank) spend(connections, began, next->is_stranger);
    }
}

static int speak_grpc(struct connection *connection, struct error *error)
{
    struct connections *owner = connection->owner;
    const struct rpc_limits limits = {.receive_bytes = OPERATOR_RECEIVE_BYTES, .queue_bytes = OPERATOR_QUEUE_BYTES};
    int status = rpc_server_open(&connection->rpc, owner->methods, owner->context, &limits, error);
    if (status) return status;
    rpc_connection_set_user(connection->rpc, connection);
    if (owner->is_draining) rpc_drain(connection->rpc);
    return 0;
}

static void on_request(const struct http_request *request, struct http_answer *answer, void *context)
{
    struct connection *connection = context;
    struct connections *owner = connection->owner;
    connection->asked = uv_now(owner->loop);
    if (owner->http(request, answer, connection->trust, descriptor(connection), owner->context))
        connection->is_stranger = false;
}

static int speak_http(struct connection *connection, struct error *error)
{
    int status = http_open(&connection->http, on_request, connection, error);
    if (!status && connection->owner->is_draining) http_drain(connection->http);
    return status;
}

/* The first bytes tell. They may come one by one. */
static int take_first(struct connection *connection, const uint8_t **bytes, size_t *length, struct error *error)
{
    static const uint8_t preface[PREFACE_BYTES] = "PRI ";
    while (*length > 0 && connection->first_length < PREFACE_BYTES) {
        const uint8_t byte = *(*bytes)++;
        (*length)--;
        connection->first[connection->first_length++] = byte;
        if (byte == preface[connection->first_length - 1]) continue;
        const int status = speak_http(connection, error);
        return status ? status : http_input(connection->http, connection->first, connection->first_length, error);
    }
    if (connection->first_length < PREFACE_BYTES) return 0;
    const int status = speak_grpc(connection, error);
    return status ? status : rpc_input(connection->rpc, connection->first, PREFACE_BYTES, error);
}

static int take(struct connection *connection, const uint8_t *bytes, size_t length, struct error *error)
{
    int status = connection->rpc || connection->http ? 0 : take_first(connection, &bytes, &length, error);
    if (status || length == 0) return status;
    if (connection->rpc) return rpc_input(connection->rpc, bytes, length, error);
    if (connection->http) return http_input(connection->http, bytes, length, error);
    return 0;
}

static void refused(const struct connection *connection, const char *why)
{
    struct connections *owner = connection->owner;
    if (owner->refused) owner->refused(owner->context, descriptor(connection), why);
}

/* Sealed bytes, and so perhaps a part of a handshake. */
static int take_sealed(struct connection *connection, const uint8_t *bytes, size_t length, struct error *error)
{
    uint8_t *plain = connection->owner->plain;
    int status = tls_input(connection->tls, bytes, length, error);
    ssize_t opened = status;
    while (!status && (opened = tls_read(connection->tls, plain, sizeof connection->owner->plain, error)) > 0)
        status = take(connection, plain, (size_t)opened, error);
    if (opened < 0 && !tls_is_established(connection->tls)) refused(connection, error->text);
    return opened < 0 ? (int)opened : status;
}

static void take_bytes(struct connection *connection, const uint8_t *bytes, size_t length)
{
    if (connection->is_over) return;
    struct error error;
    connection->heard = uv_now(connection->owner->loop);
    if (!connection->http || !http_is_waiting(connection->http)) connection->asked = connection->heard;
    if (length > 0 && (connection->tls ? take_sealed : take)(connection, bytes, length, &error)) {
        connection->is_failed = true;
        uv_read_stop(&connection->stream);
    }
    mark_dirty(connection);
    if (connection->http) flush(connection); /* what follows is looked at when this answer has left */
}

static void look_again(struct connections *connections, uint64_t milliseconds)
{
    uv_timer_t *room = &connections->room;
    if (!uv_is_active((uv_handle_t *)room) || uv_timer_get_due_in(room) > milliseconds)
        uv_timer_start(room, on_room, milliseconds, 0);
}

static void on_read(uv_stream_t *stream, ssize_t length, const uv_buf_t *buffer)
{
    struct connection *connection = stream->data;
    struct connections *owner = connection->owner;
    if (length == UV_ENOBUFS) { /* as give_buffer would have it */
        if (!has_to_rest(connection)) return;
        rest(connection);
        look_again(owner, strangers_wait(owner));
        return;
    }
    connection->is_called = false;
    const bool is_rank = connection->is_rank;
    const uint64_t began = is_rank ? 0 : uv_hrtime();
    if (length < 0)
        close_connection(connection);
    else
        take_bytes(connection, (const uint8_t *)buffer->base, (size_t)length);
    if (!is_rank) spend(owner, began, connection->is_stranger);
}

static bool is_our_user(const struct connection *connection)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (!getsockopt(descriptor(connection), SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.uid == geteuid())
        return true;
    refused(connection, "another user");
    return false;
}

/* Nothing is lost with it: nobody has asked anything that is not answered. */
static bool is_idle(const struct connection *connection)
{
    return connection->is_stranger || !connection->rpc || rpc_calls(connection->rpc) == 0;
}

static uint64_t idle_since(const struct connection *connection)
{
    if (connection->is_over) return 0;
    return connection->is_stranger ? connection->opened : connection->heard;
}

/* Whether a makes room before b: who has been told all, strangers before those who have shown their secret, and who has
 * been idle longer. */
static bool goes_first(const struct connection *a, const struct connection *b)
{
    if (a->is_over != b->is_over) return a->is_over;
    if (a->is_stranger != b->is_stranger) return a->is_stranger;
    return idle_since(a) <= idle_since(b);
}

/* A client that is beginning a call just now learns that it has to begin it again elsewhere. */
static void displace(struct connection *connection)
{
    if (connection->rpc) rpc_terminate(connection->rpc);
    if (connection->rpc && !connection->is_writing) flush(connection);
    close_connection(connection);
}

/* libuv accepts no more from a listener until uv_accept is called. */
static void wait(struct listener *listener)
{
    listener->is_waiting = true;
    listener->next_waiting = listener->connections->waiting;
    listener->connections->waiting = listener;
}

static void wait_for_room(struct listener *listener, uint64_t milliseconds)
{
    wait(listener);
    look_again(listener->connections, milliseconds);
}

/* Whoever is idle cannot keep the job's own processes out: who comes takes the place of the one that has been idle
 * longest, and has had its time to ask. Until there is one, newcomers wait in the socket's queue. */
static bool must_wait(struct listener *listener)
{
    struct connections *connections = listener->connections;
    if (connections->count < connections->maximum) return false;
    struct connection *first = NULL;
    for (struct connection *each = connections->all; each; each = each->next)
        if (is_idle(each) && (!first || goes_first(each, first))) first = each;
    if (!first) return false;
    const uint64_t now = uv_now(connections->loop), at = idle_since(first) + IDLE_MILLISECONDS;
    if (now < at)
        wait_for_room(listener, at - now);
    else
        displace(first);
    return now < at;
}

/* Slow heads, strangers that stay, keep-alive without end. Who rests has said something that nobody had time to read.
 */
static void lose_patience(struct connection *connection, uint64_t now)
{
    const bool over = now - connection->opened >= PATIENCE_MILLISECONDS;
    if (connection->is_over) {
        if (now - connection->over >= FAREWELL_MILLISECONDS) close_connection(connection);
    } else if (connection->http && http_is_waiting(connection->http) &&
               now - connection->asked >= PATIENCE_MILLISECONDS) {
        http_time_out(connection->http);
        mark_dirty(connection);
    } else if ((connection->http && now - connection->heard >= KEEP_ALIVE_MILLISECONDS) ||
               (over && !connection->rpc && !connection->http && connection->first_length > 0) ||
               (over && connection->is_stranger && connection->trust != TRUST_OWNER && !connection->is_resting)) {
        close_connection(connection);
    }
}

void connections_tick(struct connections *connections)
{
    const uint64_t now = uv_now(connections->loop);
    for (struct connection *each = connections->all, *next; each; each = next) {
        next = each->next;
        lose_patience(each, now);
    }
}

void connections_drain(struct connections *connections)
{
    connections->is_draining = true;
    for (struct connection *each = connections->all; each; each = each->next) {
        const bool has_call = (each->rpc && rpc_calls(each->rpc) > 0) || each->is_dirty || each->is_writing;
        each->is_reader = has_call && !each->is_rank && !each->is_stranger;
        if (each->rpc && !each->is_rank) rpc_drain(each->rpc);
        if (each->http) http_drain(each->http);
        mark_dirty(each);
    }
}

bool connections_have_readers(const struct connections *connections)
{
    for (const struct connection *each = connections->all; each; each = each->next)
        if (each->is_reader) return true;
    return false;
}

static void forget(uv_handle_t *handle)
{
    struct connection *connection = handle->data;
    tls_close(connection->tls);
    free(connection);
}

/* Where the caller has seen that there is room for one more. */
static void greet(struct listener *listener)
{
    struct connections *owner = listener->connections;
    uv_stream_t *stream = &listener->stream;
    struct connection *connection = calloc(1, sizeof *connection);
    if (!connection) {
        wait_for_room(listener, IDLE_MILLISECONDS);
        return;
    }
    connection->owner = owner;
    connection->trust = listener->trust;
    connection->is_stranger = true;
    connection->opened = connection->heard = uv_now(owner->loop);
    if (stream->type == UV_TCP)
        uv_tcp_init(owner->loop, &connection->tcp);
    else
        uv_pipe_init(owner->loop, &connection->pipe, 0);
    connection->handle.data = connection;
    struct error error;
    if (uv_accept(stream, &connection->stream) || owner->count >= owner->maximum ||
        (listener->trust == TRUST_OWNER && !is_our_user(connection)) ||
        (listener->tls && tls_open(&connection->tls, listener->tls, &error)) ||
        (listener->trust == TRUST_WORKER && speak_grpc(connection, &error))) {
        uv_close(&connection->handle, forget);
        return;
    }
    if (stream->type == UV_TCP) uv_tcp_nodelay(&connection->tcp, 1);
    connection->link = &owner->all;
    connection->next = owner->all;
    if (owner->all) owner->all->link = &connection->next;
    owner->all = connection;
    owner->count++;
    mark_dirty(connection);
    uv_read_start(&connection->stream, give_buffer, on_read);
}

static void welcome(struct listener *listener)
{
    struct connections *owner = listener->connections;
    if (!turns_have_time(&owner->turns)) {
        owner->is_time_wanted = true;
        wait(listener);
        return;
    }
    const uint64_t began = uv_hrtime();
    if (!must_wait(listener)) greet(listener);
    spend(owner, began, true);
}

static void on_connection(uv_stream_t *stream, int status)
{
    struct listener *listener = stream->data;
    struct connections *owner = listener->connections;
    if (status < 0 || listener->is_waiting) return;
    const uint64_t milliseconds = strangers_wait(owner);
    if (milliseconds > 0 || owner->is_contested)
        wait_for_room(listener, milliseconds);
    else
        welcome(listener);
}

/* Those who have waited longest. */
static void call_resting(struct connections *connections)
{
    struct connection *first;
    connections->is_contested = connections->resting;
    for (int count = 0; count < CALLED_AT_ONCE && (first = connections->resting); count++) {
        end_rest(first);
        first->is_called = true;
        if (!first->is_writing) uv_read_start(&first->stream, give_buffer, on_read);
    }
}

static void on_room(uv_timer_t *timer)
{
    struct connections *connections = timer->data;
    const uint64_t milliseconds = strangers_wait(connections);
    connections->is_time_wanted = false;
    if (milliseconds > 0) {
        look_again(connections, milliseconds);
        return;
    }
    call_resting(connections);
    if (connections->is_contested) look_again(connections, 1);
    struct listener *waiting = connections->waiting;
    connections->waiting = NULL;
    while (waiting) {
        struct listener *listener = waiting;
        waiting = listener->next_waiting;
        listener->is_waiting = false;
        welcome(listener);
    }
}

int connections_init(struct connections *connections, uv_loop_t *loop, const struct rpc_method *methods, void *context,
                     uint32_t ranks, uint32_t maximum, struct error *error)
{
    connections->loop = loop;
    connections->methods = methods;
    connections->context = context;
    connections->drained = NULL;
    connections->refused = NULL;
    connections->ranks = ranks;
    connections->joined = 0;
    connections->maximum = maximum;
    connections->all = connections->dirty[false] = connections->dirty[true] = NULL;
    connections->is_contested = false;
    connections->resting = NULL;
    connections->last_resting = &connections->resting;
    turns_init(&connections->turns, uv_hrtime());
    connections->round = 1;
    connections->is_round_on = connections->is_time_wanted = false;
    connections->waiting = NULL;
    connections->count = 0;
    int status = uv_prepare_init(loop, &connections->flush);
    if (!status) status = uv_prepare_start(&connections->flush, begin_turn);
    if (!status) status = uv_timer_init(loop, &connections->deadline);
    if (!status) status = uv_timer_init(loop, &connections->room);
    if (status) return error_set(error, STATUS_INTERNAL, "the event loop: %s", uv_strerror(status));
    connections->flush.data = connections->deadline.data = connections->room.data = connections;
    connections->is_draining = false;
    return 0;
}

int connections_listen(struct connections *connections, struct listener *listener, enum trust trust,
                       struct tls_context *tls)
{
    listener->connections = connections;
    listener->is_waiting = false;
    listener->trust = trust;
    listener->tls = tls;
    listener->handle.data = listener;
    return uv_listen(&listener->stream, 1024, on_connection);
}

void connections_close(struct connections *connections)
{
    while (connections->all) close_connection(connections->all);
    uv_close((uv_handle_t *)&connections->deadline, NULL);
    uv_close((uv_handle_t *)&connections->room, NULL);
    uv_close((uv_handle_t *)&connections->flush, NULL);
}

void connection_wake(struct rpc_call *call)
{
    mark_dirty(rpc_connection_user(rpc_call_connection(call)));
}

void connection_flush(struct rpc_call *call)
{
    flush(rpc_connection_user(rpc_call_connection(call)));
}

int connection_descriptor(const struct rpc_call *call)
{
    return descriptor(rpc_connection_user(rpc_call_connection(call)));
}

enum trust connection_trust(const struct rpc_call *call)
{
    return ((const struct connection *)rpc_connection_user(rpc_call_connection(call)))->trust;
}

void connection_admit(const struct rpc_call *call, bool is_rank)
{
    struct connection *connection = rpc_connection_user(rpc_call_connection(call));
    connection->is_stranger = false;
    if (!is_rank) return;
    connection->owner->joined += !connection->is_rank;
    connection->is_rank = true;
    rpc_set_caps(connection->rpc, 0, 0);
}

bool connection_claim(const struct rpc_call *call)
{
    struct connection *connection = rpc_connection_user(rpc_call_connection(call));
    const bool is_first = !connection->is_claimed;
    connection->is_claimed = true;
    return is_first;
}

uint64_t connection_heard(const struct rpc_call *call)
{
    return ((const struct connection *)rpc_connection_user(rpc_call_connection(call)))->heard;
}
