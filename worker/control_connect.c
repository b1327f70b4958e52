#include "worker/control_connect.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

static int connect_to(const struct sockaddr *to, socklen_t length, double timeout_seconds)
{
    int fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    double whole = floor(timeout_seconds);
    struct timeval limit = {.tv_sec = (time_t)whole, .tv_usec = (suseconds_t)(1e6 * (timeout_seconds - whole))};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit); /* limits connect as well: socket(7) */
    int result = connect(fd, to, length) == 0 ? 0 : errno == EINPROGRESS || errno == EAGAIN ? -ETIMEDOUT : -errno;
    if (result == 0 && fcntl(fd, F_SETFL, O_NONBLOCK) == 0) return fd;
    close(fd);
    return result;
}

static int connect_unix(const char *path, double timeout_seconds)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof to.sun_path) return -ENAMETOOLONG;
    strcpy(to.sun_path, path);
    return connect_to((const struct sockaddr *)&to, sizeof to, timeout_seconds);
}

/* "HOST:PORT", "[HOST]:PORT" */
static bool split(char *host, const char **port)
{
    char *colon = strrchr(host, ':');
    if (colon == NULL || colon == host || colon[1] == '\0') return false;
    *colon = '\0';
    *port = colon + 1;
    size_t length = strlen(host);
    if (host[0] == '[' && host[length - 1] == ']') {
        memmove(host, host + 1, length - 2);
        host[length - 2] = '\0';
    }
    return true;
}

static int connect_tcp(const char *address, const char *host_and_port, double timeout_seconds, struct error *error)
{
    char host[256];
    const char *port;
    if (strlen(host_and_port) >= sizeof host || !split(strcpy(host, host_and_port), &port)) {
        return error_set(error, STATUS_UNAVAILABLE, "the coordinator's address %s is not tcp://HOST:PORT", address);
    }
    const struct addrinfo wanted = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    int result = getaddrinfo(host, port, &wanted, &found);
    if (result != 0) {
        return error_set(error, STATUS_UNAVAILABLE, "cannot reach the coordinator at %s: %s", address,
                         gai_strerror(result));
    }
    int fd = -EADDRNOTAVAIL;
    for (const struct addrinfo *at = found; at != NULL && fd < 0; at = at->ai_next) {
        fd = connect_to(at->ai_addr, at->ai_addrlen, timeout_seconds);
    }
    freeaddrinfo(found);
    if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return fd >= 0 ? fd
                   : error_set_errno(error, STATUS_UNAVAILABLE, -fd, "cannot reach the coordinator at %s", address);
}

int control_connect(const char *address, double timeout_seconds, struct error *error)
{
    if (strncmp(address, "tcp://", 6) == 0) return connect_tcp(address, address + 6, timeout_seconds, error);
    if (strncmp(address, "unix:", 5) != 0) {
        return error_set(error, STATUS_UNAVAILABLE,
                         "the coordinator's address %s is neither unix:PATH nor tcp://HOST:PORT", address);
    }
    int fd = connect_unix(address + 5, timeout_seconds);
    return fd >= 0 ? fd
                   : error_set_errno(error, STATUS_UNAVAILABLE, -fd, "cannot reach the coordinator at %s", address);
}
