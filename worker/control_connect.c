#include "worker/control_connect.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "proto/endpoint.h"
#include "proto/tls_socket.h"

/* An address that answers does so sooner than that on any network worth training on; then the next is tried beside it.
 */
#define HEAD_START_SECONDS 0.25
/* Until a coordinator is tried again that hangs up on those it does not know yet, as it does when too many come. */
#define AGAIN_NANOSECONDS 50000000
/* Listeners list a host's addresses in 1024 bytes; a name may stand for several. */
#define TARGETS_MAX 64

/* One way to the coordinator. */
struct target {
    struct sockaddr_storage to;
    socklen_t length;
    int fd;        /* while it is under way; else -1 */
    bool is_other; /* it has shown that it is not the coordinator */
};

struct attempt {
    struct target targets[TARGETS_MAX];
    size_t count, begun, under_way;
    int number; /* why the last one to fail did */
};

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int connect_unix(const char *path, double timeout_seconds)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof to.sun_path) return -ENAMETOOLONG;
    strcpy(to.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    double whole = floor(timeout_seconds);
    struct timeval limit = {.tv_sec = (time_t)whole, .tv_usec = (suseconds_t)(1e6 * (timeout_seconds - whole))};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit); /* limits connect as well: socket(7) */
    int result = connect(fd, (const struct sockaddr *)&to, sizeof to) == 0 ? 0 : errno == EAGAIN ? -ETIMEDOUT : -errno;
    if (result == 0 && fcntl(fd, F_SETFL, O_NONBLOCK) == 0) return fd;
    close(fd);
    return result;
}

/* Adds what tcp://HOST:PORT stands for to the targets. */
static int add_targets(struct attempt *attempt, const char *address, struct error *error)
{
    if (strncmp(address, "tcp://", 6) != 0)
        return error_set(error, STATUS_UNAVAILABLE,
                         "the coordinator's address %s is neither unix:PATH nor tcp://HOST:PORT", address);
    struct endpoint endpoint;
    if (!endpoint_parse(&endpoint, address))
        return error_set(error, STATUS_UNAVAILABLE, "the coordinator's address %s is not tcp://HOST:PORT", address);
    const struct addrinfo wanted = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    int result = getaddrinfo(endpoint.host, endpoint.port, &wanted, &found);
    if (result != 0)
        return error_set(error, STATUS_UNAVAILABLE, "cannot reach the coordinator at %s: %s", address,
                         gai_strerror(result));
    for (const struct addrinfo *at = found; at != NULL && attempt->count < TARGETS_MAX; at = at->ai_next) {
        struct target *target = &attempt->targets[attempt->count++];
        *target = (struct target){.length = at->ai_addrlen, .fd = -1};
        memcpy(&target->to, at->ai_addr, at->ai_addrlen);
    }
    freeaddrinfo(found);
    return 0;
}

static void give_up(struct attempt *attempt, struct target *target, int number)
{
    attempt->number = number;
    attempt->under_way--;
    if (target->fd >= 0) close(target->fd);
    target->fd = -1;
}

static void begin_next(struct attempt *attempt)
{
    struct target *target = &attempt->targets[attempt->begun++];
    if (target->is_other) return;
    attempt->under_way++;
    target->fd = socket(target->to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (target->fd < 0 ||
        (connect(target->fd, (const struct sockaddr *)&target->to, target->length) != 0 && errno != EINPROGRESS))
        give_up(attempt, target, errno);
}

/* Waits for one of those under way; its socket, or -1. */
static int poll_targets(struct attempt *attempt, double seconds)
{
    struct pollfd ready[TARGETS_MAX];
    for (size_t i = 0; i < attempt->begun; i++) /* poll leaves out what is negative */
        ready[i] = (struct pollfd){.fd = attempt->targets[i].fd, .events = POLLOUT};
    if (poll(ready, attempt->begun, seconds > 0 ? (int)ceil(1e3 * seconds) : 0) <= 0) return -1;
    for (size_t i = 0; i < attempt->begun; i++) {
        struct target *target = &attempt->targets[i];
        if (target->fd < 0 || ready[i].revents == 0) continue;
        int number = 0;
        getsockopt(target->fd, SOL_SOCKET, SO_ERROR, &number, &(socklen_t){sizeof number});
        if (number == 0) return target->fd;
        give_up(attempt, target, number);
    }
    return -1;
}

/* Each target has a head start before the next; the first that answers is returned. Or NULL: why is in attempt->number.
 */
static struct target *connect_first(struct attempt *attempt, double end)
{
    double next = 0;
    int fd = -1;
    attempt->begun = attempt->under_way = 0;
    while (fd < 0 && (attempt->under_way > 0 || attempt->begun < attempt->count)) {
        double now = now_seconds();
        if (now >= end) break;
        if (attempt->begun < attempt->count && (attempt->under_way == 0 || now >= next)) {
            begin_next(attempt);
            next = now + HEAD_START_SECONDS;
        }
        if (attempt->under_way == 0) continue;
        fd = poll_targets(attempt, (attempt->begun < attempt->count ? fmin(next, end) : end) - now);
    }
    if (fd < 0 && attempt->under_way > 0) attempt->number = ETIMEDOUT;
    struct target *found = NULL;
    for (struct target *target = attempt->targets; target < attempt->targets + attempt->begun; target++) {
        if (target->fd >= 0 && target->fd == fd)
            found = target;
        else if (target->fd >= 0)
            give_up(attempt, target, attempt->number);
    }
    return found;
}

static int add_all_targets(struct attempt *attempt, const char *addresses, struct error *error)
{
    char *list = strdup(addresses), *rest;
    if (list == NULL) return error_set(error, STATUS_INTERNAL, "no memory for the coordinator's addresses");
    int result = 0;
    for (char *address = strtok_r(list, ",", &rest); address != NULL && result == 0;
         address = strtok_r(NULL, ",", &rest))
        result = add_targets(attempt, address, error);
    free(list);
    return result;
}

static int cannot_reach(const char *addresses, int number, struct error *error)
{
    return error_set_errno(error, STATUS_UNAVAILABLE, number, "cannot reach the coordinator at %s", addresses);
}

/* *hung_up as in tls_socket_handshake. */
static int open_tls(struct control_line *line, double end, bool *hung_up, struct error *error)
{
    *hung_up = false;
    int status = tls_open(&line->tls, line->context, error);
    if (!status) status = tls_socket_handshake(line->tls, line->socket, end - now_seconds(), hung_up, error);
    if (!status) return 0;
    tls_close(line->tls);
    line->tls = NULL;
    return status;
}

static int connect_tcp(struct control_line *line, const char *addresses, double timeout_seconds, struct error *error)
{
    struct attempt attempt = {.number = EDESTADDRREQ};
    struct error why_other = {.status = STATUS_DONE};
    const double end = now_seconds() + timeout_seconds;
    int status = add_all_targets(&attempt, addresses, error);
    if (status) return status;
    for (struct target *target; (target = connect_first(&attempt, end));) {
        line->socket = target->fd;
        setsockopt(line->socket, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        bool hung_up;
        if (!line->context || !open_tls(line, end, &hung_up, &why_other)) return 0;
        target->is_other = !hung_up;
        give_up(&attempt, target, EPROTO);
        line->socket = -1;
        if (hung_up) nanosleep(&(struct timespec){.tv_nsec = AGAIN_NANOSECONDS}, NULL);
    }
    if (!why_other.status) return cannot_reach(addresses, attempt.number, error);
    return error_set(error, STATUS_UNAVAILABLE, "cannot reach the coordinator at %s: %s", addresses, why_other.text);
}

int control_connect(struct control_line *line, const char *addresses, const uint8_t *fingerprint,
                    double timeout_seconds, struct error *error)
{
    *line = (struct control_line){.socket = -1};
    if (!strncmp(addresses, "unix:", 5)) {
        const int fd = connect_unix(addresses + 5, timeout_seconds);
        if (fd < 0) return cannot_reach(addresses, -fd, error);
        line->socket = fd;
        return 0;
    }
    const struct tls_client_options options = {.fingerprint = fingerprint};
    int status = fingerprint ? tls_client(&line->context, &options, error) : 0;
    if (!status) status = connect_tcp(line, addresses, timeout_seconds, error);
    if (status) control_line_close(line);
    return status;
}

void control_line_close(struct control_line *line)
{
    tls_close(line->tls);
    tls_context_close(line->context);
    if (line->socket >= 0) close(line->socket);
    *line = (struct control_line){.socket = -1};
}
