#include "daemon/ctl/dial.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/endpoint.h"

static int connect_to(const struct sockaddr *to, socklen_t length, int seconds)
{
    const struct timeval limit = {.tv_sec = seconds};
    int fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit); /* limits connect as well */
    if (!connect(fd, to, length)) return fd;
    int number = errno == EINPROGRESS ? ETIMEDOUT : errno;
    close(fd);
    errno = number;
    return -1;
}

static int connect_unix(const char *path, int seconds)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof to.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(to.sun_path, path);
    return connect_to((const struct sockaddr *)&to, sizeof to, seconds);
}

static int connect_tcp(const char *text, int seconds)
{
    struct endpoint endpoint;
    if (!endpoint_parse(&endpoint, text)) {
        errno = EINVAL;
        return -1;
    }
    const struct addrinfo wanted = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    if (getaddrinfo(endpoint.host, endpoint.port, &wanted, &found)) {
        errno = EHOSTUNREACH;
        return -1;
    }
    int fd = -1;
    for (const struct addrinfo *at = found; at && fd < 0; at = at->ai_next)
        fd = connect_to(at->ai_addr, at->ai_addrlen, seconds);
    freeaddrinfo(found);
    return fd;
}

int dial(const char *endpoint, int seconds)
{
    if (!strncmp(endpoint, "unix:", 5)) return connect_unix(endpoint + 5, seconds);
    return connect_tcp(endpoint, seconds);
}
