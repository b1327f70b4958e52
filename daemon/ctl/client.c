#include "daemon/ctl/client.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "daemon/ctl/dial.h"
#include "daemon/ctl/outcome.h"
#include "proto/endpoint.h"
#include "proto/tls_socket.h"

struct client {
    const struct target *target;
    int fd;
    struct tls_context *context; /* of tls */
    struct tls *tls;             /* between fd and connection; NULL: nothing is */
    struct rpc_connection *connection;
    bool has_heard; /* the server, anything */
    int64_t heard;  /* milliseconds: the last byte from it */
    bool pinged;    /* since then */
    bool is_deaf;   /* the server has closed: nothing can be sent, but its last words may be there to be read */
};

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1000 * (int64_t)time.tv_sec + time.tv_nsec / 1000000;
}

/* ---- bytes: the only functions that touch the socket ---- */

/* number: errno, 0: the server has closed it. */
static int lost(const struct client *client, int number, struct error *error)
{
    const char *endpoint = client->target->endpoint;
    if (!client->has_heard) return outcome_silent(client->target, number, error);
    if (number) return error_set_errno(error, STATUS_UNAVAILABLE, number, "%s", endpoint);
    return error_set(error, STATUS_UNAVAILABLE, "%s: the coordinator has closed the connection", endpoint);
}

static int send_bytes(struct client *client, const uint8_t *bytes, size_t length, struct error *error)
{
    while (length > 0 && !client->is_deaf) {
        ssize_t written = send(client->fd, bytes, length, MSG_NOSIGNAL);
        if (written < 0 && errno == EINTR) continue;
        client->is_deaf = written < 0 && (errno == EPIPE || errno == ECONNRESET);
        if (client->is_deaf) return 0;
        if (written < 0) return lost(client, errno == EAGAIN ? ETIMEDOUT : errno, error);
        bytes += written;
        length -= (size_t)written;
    }
    return 0;
}

/* The number of bytes, 0 when there are none just now, negative when there will be none. */
static ssize_t receive_bytes(const struct client *client, uint8_t *bytes, size_t capacity, struct error *error)
{
    ssize_t length = recv(client->fd, bytes, capacity, MSG_DONTWAIT);
    if (length > 0) return length;
    if (length < 0 && (errno == EINTR || errno == EAGAIN)) return 0;
    return lost(client, length < 0 ? errno : 0, error);
}

/* Whom to trust, out of files that may be large: a server's patience does not begin with it. */
static int prepare_tls(struct client *client, struct error *error)
{
    const struct target *target = client->target;
    struct endpoint endpoint;
    if (!endpoint_parse(&endpoint, target->endpoint))
        return error_set(error, STATUS_USAGE, "%s: is no HOST:PORT", target->endpoint);
    const struct tls_client_options options = {
        .fingerprint = target->tls == TARGET_PINNED ? target->fingerprint : NULL,
        .authorities = target->ca,
        .host = endpoint.host,
        .certificate = target->certificate,
        .key = target->key,
    };
    const int status = tls_client(&client->context, &options, error);
    return status ? status : tls_open(&client->tls, client->context, error);
}

static int open_bytes(struct client *client, struct error *error)
{
    int status = client->target->tls ? prepare_tls(client, error) : 0;
    if (status) return status;
    client->fd = dial(client->target->endpoint, CLIENT_SECONDS);
    if (client->fd < 0) return outcome_unreachable(client->target, errno, error);
    bool hung_up; /* it is told what it is, as other failures of TLS are */
    if (!client->tls || !tls_socket_handshake(client->tls, client->fd, CLIENT_SECONDS, &hung_up, error)) return 0;
    return outcome_no_tls(client->target, tls_fault(client->tls), error);
}

/* ---- between bytes and gRPC ---- */

static int send_plain(struct client *client, const uint8_t *bytes, size_t length, struct error *error)
{
    if (!client->tls) return send_bytes(client, bytes, length, error);
    uint8_t sealed[16384];
    int status = tls_write(client->tls, bytes, length, error);
    for (size_t part; !status && (part = tls_output(client->tls, sealed, sizeof sealed));)
        status = send_bytes(client, sealed, part, error);
    return status;
}

static int take_plain(const struct client *client, const uint8_t *bytes, size_t length, struct error *error)
{
    if (!rpc_input(client->connection, bytes, length, error)) return 0;
    return error_set(error, STATUS_UNAVAILABLE, "%s: speaks no gRPC", client->target->endpoint);
}

/* What has come through TLS and was not looked at. */
static int take_opened(const struct client *client, struct error *error)
{
    uint8_t plain[16384];
    int status = 0;
    for (ssize_t length; !status;) {
        length = tls_read(client->tls, plain, sizeof plain, error);
        if (length < 0) return outcome_no_tls(client->target, tls_fault(client->tls), error);
        if (length == 0) break;
        status = take_plain(client, plain, (size_t)length, error);
    }
    return status;
}

static int take(const struct client *client, const uint8_t *bytes, size_t length, struct error *error)
{
    if (!client->tls) return take_plain(client, bytes, length, error);
    const int status = tls_input(client->tls, bytes, length, error);
    return status ? status : take_opened(client, error);
}

/* ---- the connection ---- */

int client_open(struct client **out, const struct target *target, struct error *error)
{
    struct client *client = calloc(1, sizeof *client);
    if (!client) return error_set(error, STATUS_INTERNAL, "out of memory");
    *client = (struct client){.target = target, .fd = -1};
    int status = open_bytes(client, error);
    if (!status) status = rpc_client_open(&client->connection, "gaccd", NULL, error);
    if (!status && client->tls) status = take_opened(client, error);
    client->heard = now();
    if (status)
        client_close(client);
    else
        *out = client;
    return status;
}

void client_close(struct client *client)
{
    if (!client) return;
    rpc_close(client->connection);
    tls_close(client->tls);
    tls_context_close(client->context);
    if (client->fd >= 0) close(client->fd);
    free(client);
}

static int flush(struct client *client, struct error *error)
{
    const uint8_t *bytes;
    for (size_t length; (length = rpc_output(client->connection, &bytes));) {
        int status = send_plain(client, bytes, length, error);
        if (status) return status;
    }
    return 0;
}

/* How long it may still be silent; 0: too long already. */
static int64_t patience(struct client *client)
{
    const int64_t limit = client->heard + (client->pinged ? 2 : 1) * 1000 * CLIENT_SECONDS;
    return limit > now() ? limit - now() : 0;
}

int client_wait(struct client *client, int other, int milliseconds, struct error *error)
{
    uint8_t buffer[65536];
    if (!patience(client)) {
        if (client->pinged)
            return error_set(error, STATUS_UNAVAILABLE, "%s: no answer within %d s", client->target->endpoint,
                             2 * CLIENT_SECONDS);
        rpc_ping(client->connection);
        client->pinged = true;
    }
    int status = flush(client, error);
    if (status) return status;
    const int64_t limit = patience(client);
    struct pollfd ready[] = {{.fd = client->fd, .events = POLLIN}, {.fd = other, .events = POLLIN}};
    if (poll(ready, 2, (int)(milliseconds >= 0 && milliseconds < limit ? milliseconds : limit)) <= 0) return 0;
    if (!ready[0].revents) return 0;
    ssize_t length = receive_bytes(client, buffer, sizeof buffer, error);
    if (length <= 0) return (int)length;
    client->heard = now();
    client->has_heard = true;
    client->pinged = false;
    status = take(client, buffer, (size_t)length, error);
    return status ? status : flush(client, error);
}

/* ---- calls ---- */

static void on_message(struct rpc_call *rpc, const uint8_t *bytes, size_t length, void *context)
{
    (void)rpc;
    const struct client_call *call = context;
    if (call->message) call->message(call->context, bytes, length);
}

static void on_gone(struct rpc_call *rpc, void *context)
{
    struct client_call *call = context;
    const char *text;
    call->over = true;
    call->was_refused = rpc_call_was_refused(rpc);
    call->code = rpc_call_status(rpc, &text);
    snprintf(call->text, sizeof call->text, "%s", text ? text : "");
}

int client_begin(struct client *client, struct client_call *call, const ProtobufCMessage *request, struct error *error)
{
    char bearer[sizeof client->target->token + 8];
    snprintf(bearer, sizeof bearer, "Bearer %s", client->target->token);
    const char *const metadata[] = {"authorization", bearer, NULL};
    call->method = (struct rpc_method){.path = call->path, .message = on_message, .gone = on_gone};
    call->over = call->was_refused = false;
    const size_t length = protobuf_c_message_get_packed_size(request);
    uint8_t *bytes = malloc(length + 1);
    if (!bytes) return error_set(error, STATUS_INTERNAL, "out of memory");
    protobuf_c_message_pack(request, bytes);
    struct rpc_call *rpc =
        rpc_call_begin(client->connection, &call->method, call, client->target->token[0] ? metadata : NULL, 0);
    const int refused = !rpc || rpc_call_send(rpc, bytes, length);
    call->was_refused = !rpc;
    if (!refused) rpc_call_half_close(rpc);
    free(bytes);
    return refused ? error_set(error, STATUS_UNAVAILABLE, "%s: takes no more calls", client->target->endpoint) : 0;
}
