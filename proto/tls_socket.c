#include "proto/tls_socket.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A handshake is smaller than any socket's buffer: what does not fit is a peer that does not read. */
static int send_output(struct tls *tls, int fd, bool *hung_up, struct error *error)
{
    uint8_t bytes[4096];
    for (size_t length; (length = tls_output(tls, bytes, sizeof bytes));) {
        if (send(fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)length) continue;
        *hung_up = errno == EPIPE || errno == ECONNRESET;
        return error_set_errno(error, STATUS_UNAVAILABLE, errno, "TLS");
    }
    return 0;
}

static int receive_input(struct tls *tls, int fd, double seconds, bool *hung_up, struct error *error)
{
    uint8_t bytes[4096];
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    if (seconds <= 0 || poll(&ready, 1, (int)(1e3 * seconds) + 1) == 0)
        return error_set(error, STATUS_UNAVAILABLE, "TLS: the peer does not answer in time");
    const ssize_t length = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (length > 0) return tls_input(tls, bytes, (size_t)length, error);
    if (length < 0 && (errno == EINTR || errno == EAGAIN)) return 0;
    *hung_up = length == 0 || errno == ECONNRESET;
    if (length < 0) return error_set_errno(error, STATUS_UNAVAILABLE, errno, "TLS");
    return error_set(error, STATUS_UNAVAILABLE, "TLS: the peer has closed the connection");
}

int tls_socket_handshake(struct tls *tls, int fd, double seconds, bool *hung_up, struct error *error)
{
    const double end = now_seconds() + seconds;
    *hung_up = false;
    for (;;) {
        const int status = tls_handshake(tls, error);
        struct error unsent;
        const int sent = send_output(tls, fd, hung_up, status ? &unsent : error);
        if (status || sent || tls_is_established(tls)) return status ? status : sent;
        const int received = receive_input(tls, fd, end - now_seconds(), hung_up, error);
        if (received) return received;
    }
}
