#include "daemon/coordinator/connections.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define STRANGER_MILLISECONDS 1000

struct connection {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    };
    struct connections *owner;
    struct rpc_connection *rpc;
    enum trust trust;
    uint64_t opened, heard; /* uv_now */
    bool is_stranger, is_claimed, is_dirty, is_writing, is_failed, is_closing;
    struct connection *next, **link; /* in owner->all; *link points here */
    struct connection *next_dirty;
    uv_write_t write;
    uint8_t *unsent; /* of the write under way: at most one round of rpc_output */
};

static void mark_dirty(struct connection *connection)
{
    if (connection->is_dirty || connection->is_closing) return;
    connection->is_dirty = true;
    connection->next_dirty = connection->owner->dirty;
    connection->owner->dirty = connection;
}

static void on_closed(uv_handle_t *handle)
{
    struct connection *connection = handle->data;
    free(connection->unsent);
    free(connection);
}

static void close_connection(struct connection *connection)
{
    if (connection->is_closing) return;
    struct connections *owner = connection->owner;
    for (struct connection **at = &owner->dirty; *at; at = &(*at)->next_dirty)
        if (*at == connection) {
            *at = connection->next_dirty;
            break;
        }
    *connection->link = connection->next;
    if (connection->next) connection->next->link = connection->link;
    owner->count--;
    connection->is_closing = true;
    struct rpc_connection *rpc = connection->rpc;
    rpc_close(rpc);
    connection->rpc = NULL;
    uv_close(&connection->handle, on_closed);
}

static void on_written(uv_write_t *write, int status)
{
    struct connection *connection = write->data;
    free(connection->unsent);
    connection->unsent = NULL;
    connection->is_writing = false;
    if (connection->is_closing) return;
    if (status < 0) {
        close_connection(connection);
        return;
    }
    mark_dirty(connection);
}

/* What uv_try_write left of a round waits for the socket; further rounds wait in the rpc connection. */
static int write_later(struct connection *connection, const uint8_t *bytes, size_t length)
{
    connection->unsent = malloc(length);
    if (!connection->unsent) return UV_ENOMEM;
    memcpy(connection->unsent, bytes, length);
    connection->is_writing = true;
    connection->write.data = connection;
    uv_buf_t part = uv_buf_init((char *)connection->unsent, (unsigned)length);
    return uv_write(&connection->write, &connection->stream, &part, 1, on_written);
}

static void flush(struct connection *connection)
{
    if (connection->is_writing) return;
    struct connections *owner = connection->owner;
    const uint8_t *bytes;
    bool any = false;
    for (size_t length; !connection->is_writing && (length = rpc_output(connection->rpc, &bytes)); any = true) {
        uv_buf_t part = uv_buf_init((char *)bytes, (unsigned)length);
        int written = uv_try_write(&connection->stream, &part, 1);
        if (written == UV_EAGAIN) written = 0;
        if (written >= 0 && (size_t)written == length) continue;
        if (written < 0 || write_later(connection, bytes + written, length - (size_t)written) < 0) {
            close_connection(connection);
            return;
        }
    }
    if (any && owner->drained) owner->drained(owner->context);
    if (connection->is_writing) return;
    if (connection->is_failed || rpc_wants_close(connection->rpc)) close_connection(connection);
}

static void flush_all(uv_prepare_t *prepare)
{
    struct connections *connections = prepare->data;
    while (connections->dirty) {
        struct connection *connection = connections->dirty;
        connections->dirty = connection->next_dirty;
        connection->is_dirty = false;
        flush(connection);
    }
}

static void give_buffer(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    (void)suggested;
    struct connection *connection = handle->data;
    *buffer = uv_buf_init(connection->owner->buffer, sizeof connection->owner->buffer);
}

static void on_read(uv_stream_t *stream, ssize_t length, const uv_buf_t *buffer)
{
    struct connection *connection = stream->data;
    if (length < 0) {
        close_connection(connection);
        return;
    }
    connection->heard = uv_now(connection->owner->loop);
    struct error error;
    if (length > 0 && rpc_input(connection->rpc, (const uint8_t *)buffer->base, (size_t)length, &error)) {
        connection->is_failed = true;
        uv_read_stop(stream);
    }
    mark_dirty(connection);
}

static int descriptor(const struct connection *connection)
{
    int fd;
    return uv_fileno(&connection->handle, &fd) ? -1 : fd;
}

static void refused(const struct connection *connection, const char *why)
{
    struct connections *owner = connection->owner;
    if (owner->refused) owner->refused(owner->context, descriptor(connection), why);
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

/* Strangers cannot keep the job's own processes out: whoever comes takes the place of the oldest stranger, who has had
 * his time to show a secret. Until there is one, newcomers wait in the socket's queue. */
static bool must_wait(struct connections *connections)
{
    if (connections->count < connections->maximum) return false;
    struct connection *oldest = NULL;
    for (struct connection *each = connections->all; each; each = each->next)
        if (each->is_stranger) oldest = each;
    if (!oldest) return false;
    if (uv_now(connections->loop) - oldest->opened < STRANGER_MILLISECONDS) return true;
    close_connection(oldest);
    return false;
}

static void forget(uv_handle_t *handle)
{
    free(handle->data);
}

static void on_connection(uv_stream_t *stream, int status)
{
    if (status < 0) return;
    struct listener *listener = stream->data;
    struct connections *owner = listener->connections;
    if ((listener->is_waiting = must_wait(owner))) return; /* libuv accepts no more until uv_accept is called */
    struct connection *connection = calloc(1, sizeof *connection);
    if (!connection) return;
    connection->owner = owner;
    connection->trust = listener->trust;
    connection->is_stranger = listener->trust != TRUST_OWNER;
    connection->opened = connection->heard = uv_now(owner->loop);
    if (stream->type == UV_TCP)
        uv_tcp_init(owner->loop, &connection->tcp);
    else
        uv_pipe_init(owner->loop, &connection->pipe, 0);
    connection->handle.data = connection;
    struct error error;
    if (uv_accept(stream, &connection->stream) || owner->count >= owner->maximum ||
        (listener->trust == TRUST_OWNER && !is_our_user(connection)) ||
        rpc_server_open(&connection->rpc, owner->methods, owner->context, NULL, &error)) {
        uv_close(&connection->handle, forget);
        return;
    }
    if (stream->type == UV_TCP) uv_tcp_nodelay(&connection->tcp, 1);
    rpc_connection_set_user(connection->rpc, connection);
    connection->link = &owner->all;
    connection->next = owner->all;
    if (owner->all) owner->all->link = &connection->next;
    owner->all = connection;
    owner->count++;
    mark_dirty(connection);
    uv_read_start(&connection->stream, give_buffer, on_read);
}

int connections_init(struct connections *connections, uv_loop_t *loop, const struct rpc_method *methods, void *context,
                     uint32_t maximum, struct error *error)
{
    connections->loop = loop;
    connections->methods = methods;
    connections->context = context;
    connections->drained = NULL;
    connections->refused = NULL;
    connections->maximum = maximum;
    connections->all = connections->dirty = NULL;
    connections->count = 0;
    int status = uv_prepare_init(loop, &connections->flush);
    if (!status) status = uv_prepare_start(&connections->flush, flush_all);
    if (status) return error_set(error, STATUS_INTERNAL, "the event loop: %s", uv_strerror(status));
    connections->flush.data = connections;
    return 0;
}

int connections_listen(struct connections *connections, struct listener *listener, enum trust trust)
{
    listener->connections = connections;
    listener->is_waiting = false;
    listener->trust = trust;
    listener->handle.data = listener;
    return uv_listen(&listener->stream, 1024, on_connection);
}

void connections_retry(struct listener *listener)
{
    if (listener->is_waiting) on_connection(&listener->stream, 0);
}

void connections_close(struct connections *connections)
{
    while (connections->all) close_connection(connections->all);
    uv_close((uv_handle_t *)&connections->flush, NULL);
}

void connection_wake(struct rpc_call *call)
{
    mark_dirty(rpc_connection_user(rpc_call_connection(call)));
}

int connection_descriptor(const struct rpc_call *call)
{
    return descriptor(rpc_connection_user(rpc_call_connection(call)));
}

enum trust connection_trust(const struct rpc_call *call)
{
    return ((const struct connection *)rpc_connection_user(rpc_call_connection(call)))->trust;
}

void connection_admit(const struct rpc_call *call)
{
    ((struct connection *)rpc_connection_user(rpc_call_connection(call)))->is_stranger = false;
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
