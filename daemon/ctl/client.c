#include "daemon/ctl/client.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/rpc/rpc.h"

struct exchange {
    const struct client_call *call;
    bool over;
    enum rpc_code code;
    char text[256];
};

static int connect_to(const struct sockaddr *to, socklen_t length)
{
    const struct timeval limit = {.tv_sec = CLIENT_SECONDS};
    int fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit); /* limits connect as well */
    if (!connect(fd, to, length)) return fd;
    int number = errno;
    close(fd);
    errno = number;
    return -1;
}

static int connect_unix(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof to.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(to.sun_path, path);
    return connect_to((const struct sockaddr *)&to, sizeof to);
}

/* HOST:PORT or [HOST]:PORT */
static int connect_tcp(const char *text)
{
    char host[256];
    const char *colon = strrchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : 0;
    if (length >= 2 && text[0] == '[' && text[length - 1] == ']') text++, length -= 2;
    if (!colon || length == 0 || length >= sizeof host) {
        errno = EINVAL;
        return -1;
    }
    snprintf(host, sizeof host, "%.*s", (int)length, text);
    const struct addrinfo wanted = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    if (getaddrinfo(host, colon + 1, &wanted, &found)) {
        errno = EHOSTUNREACH;
        return -1;
    }
    int fd = -1;
    for (const struct addrinfo *at = found; at && fd < 0; at = at->ai_next)
        fd = connect_to(at->ai_addr, at->ai_addrlen);
    freeaddrinfo(found);
    return fd;
}

static int connect_endpoint(const char *endpoint)
{
    if (!strncmp(endpoint, "unix:", 5)) return connect_unix(endpoint + 5);
    return connect_tcp(!strncmp(endpoint, "tcp://", 6) ? endpoint + 6 : endpoint);
}

static void on_message(struct rpc_call *call, const uint8_t *message, size_t length, void *context)
{
    (void)call;
    const struct exchange *exchange = context;
    exchange->call->message(exchange->call->context, message, length);
}

static void on_gone(struct rpc_call *call, void *context)
{
    struct exchange *exchange = context;
    const char *text;
    exchange->over = true;
    exchange->code = rpc_call_status(call, &text);
    snprintf(exchange->text, sizeof exchange->text, "%s", text ? text : "");
}

static int send_all(int fd, struct rpc_connection *connection)
{
    const uint8_t *bytes;
    for (size_t length; (length = rpc_output(connection, &bytes));)
        while (length > 0) {
            ssize_t written = send(fd, bytes, length, MSG_NOSIGNAL);
            if (written < 0 && errno != EINTR) return -1;
            if (written < 0) continue;
            bytes += written;
            length -= (size_t)written;
        }
    return 0;
}

static int pump(int fd, struct rpc_connection *connection, struct exchange *exchange, const char *endpoint,
                struct error *error)
{
    uint8_t buffer[65536];
    while (!exchange->over) {
        if (send_all(fd, connection)) return error_set_errno(error, STATUS_UNAVAILABLE, errno, "%s", endpoint);
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int seconds = exchange->call->timeout_seconds;
        int count = poll(&ready, 1, seconds ? 1000 * seconds : -1);
        if (count < 0 && errno == EINTR) continue;
        if (count == 0) return error_set(error, STATUS_UNAVAILABLE, "%s: no answer within %d s", endpoint, seconds);
        ssize_t length = recv(fd, buffer, sizeof buffer, 0);
        if (length < 0 && errno == EINTR) continue;
        if (length < 0) return error_set_errno(error, STATUS_UNAVAILABLE, errno, "%s", endpoint);
        if (length == 0) return error_set(error, STATUS_UNAVAILABLE, "%s: the job has ended", endpoint);
        int status = rpc_input(connection, buffer, (size_t)length, error);
        if (status) return status;
    }
    if (exchange->code == RPC_OK) return 0;
    return error_set(error, STATUS_UNAVAILABLE, "%s: %s (grpc-status %d)", endpoint, exchange->text,
                     (int)exchange->code);
}

int client_call(const struct target *target, const struct client_call *call, struct error *error)
{
    const char *endpoint = target->endpoint;
    char bearer[sizeof target->token + 8];
    snprintf(bearer, sizeof bearer, "Bearer %s", target->token);
    const char *const metadata[] = {"authorization", bearer, NULL};
    const struct rpc_method method = {.path = call->path, .message = on_message, .gone = on_gone};
    struct exchange exchange = {.call = call};
    struct rpc_connection *connection = NULL;
    int fd = connect_endpoint(endpoint);
    if (fd < 0) return error_set_errno(error, STATUS_UNAVAILABLE, errno, "cannot connect to %s", endpoint);
    int status = rpc_client_open(&connection, "gaccd", NULL, error);
    struct rpc_call *rpc =
        status ? NULL : rpc_call_begin(connection, &method, &exchange, target->token[0] ? metadata : NULL, 0);
    if (!status && (!rpc || rpc_call_send(rpc, call->request, call->request_length)))
        status = error_set(error, STATUS_INTERNAL, "out of memory");
    if (!status) {
        rpc_call_half_close(rpc);
        status = pump(fd, connection, &exchange, endpoint, error);
    }
    rpc_close(connection);
    close(fd);
    return status;
}
