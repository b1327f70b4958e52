#include "daemon/verify/heartbeat.h"

#include <errno.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/addresses.h"

#define KEY_BYTES 32
#define CODE_BYTES 32 /* SHA-256 */
#define ADDRESSES 16  /* of a host; and its loopback, for ranks on the same one */

struct whereabouts {
    uint16_t port; /* network byte order */
    uint32_t count;
    struct in6_addr each[ADDRESSES + 1]; /* IPv4 mapped into IPv6 */
};

struct beat {
    uint32_t from, to; /* ranks */
    uint64_t count;    /* of those from there, larger than any before */
    uint8_t code[CODE_BYTES];
};

struct heartbeat {
    int socket;
    bool is_ipv4; /* the machine has no IPv6 */
    uint32_t rank, ranks;
    uint64_t count;
    uint8_t key[KEY_BYTES];
    struct whereabouts *others; /* [ranks] */
    uint64_t *heard;            /* [ranks], the highest count */
};

static void seal(const struct heartbeat *heartbeat, struct beat *beat)
{
    HMAC(EVP_sha256(), heartbeat->key, KEY_BYTES, (const uint8_t *)beat, offsetof(struct beat, code), beat->code, NULL);
}

/* ---- sockets ---- */

/* Of both families where the machine has both. */
static int open_socket(struct heartbeat *heartbeat, in_port_t *port, struct error *error)
{
    const int off = 0;
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
    struct sockaddr_in any_ipv4 = {.sin_family = AF_INET};
    socklen_t size = sizeof any;
    heartbeat->socket = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    heartbeat->is_ipv4 = heartbeat->socket < 0;
    if (heartbeat->is_ipv4) heartbeat->socket = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (heartbeat->socket < 0) return error_set_errno(error, STATUS_INTERNAL, errno, "a socket for heartbeats");
    int status;
    if (heartbeat->is_ipv4) {
        status = bind(heartbeat->socket, (const struct sockaddr *)&any_ipv4, sizeof any_ipv4);
    } else {
        setsockopt(heartbeat->socket, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        status = bind(heartbeat->socket, (const struct sockaddr *)&any, sizeof any);
    }
    if (status || getsockname(heartbeat->socket, (struct sockaddr *)&any, &size))
        return error_set_errno(error, STATUS_INTERNAL, errno, "a port for heartbeats");
    *port = any.sin6_port; /* where sin_port is, too */
    return 0;
}

static void send_to(const struct heartbeat *heartbeat, const struct beat *beat, const struct in6_addr *address,
                    in_port_t port)
{
    struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = port, .sin6_addr = *address};
    struct sockaddr_in to_ipv4 = {.sin_family = AF_INET, .sin_port = port};
    memcpy(&to_ipv4.sin_addr, &address->s6_addr[12], sizeof to_ipv4.sin_addr);
    if (heartbeat->is_ipv4 && !IN6_IS_ADDR_V4MAPPED(address)) return;
    const struct sockaddr *any = heartbeat->is_ipv4 ? (const void *)&to_ipv4 : (const void *)&to;
    sendto(heartbeat->socket, beat, sizeof *beat, 0, any, heartbeat->is_ipv4 ? sizeof to_ipv4 : sizeof to);
}

/* ---- what is sent and heard ---- */

void heartbeat_send(struct heartbeat *heartbeat)
{
    heartbeat->count++;
    for (uint32_t rank = 0; rank < heartbeat->ranks; rank++) {
        const struct whereabouts *other = &heartbeat->others[rank];
        struct beat beat = {.from = heartbeat->rank, .to = rank, .count = heartbeat->count};
        seal(heartbeat, &beat);
        for (uint32_t i = 0; rank != heartbeat->rank && i < other->count; i++)
            send_to(heartbeat, &beat, &other->each[i], other->port);
    }
}

int heartbeat_socket(const struct heartbeat *heartbeat)
{
    return heartbeat->socket;
}

int64_t heartbeat_hear(struct heartbeat *heartbeat)
{
    struct beat beat, right;
    if (recv(heartbeat->socket, &beat, sizeof beat, MSG_TRUNC) != sizeof beat) return -1;
    right = beat;
    seal(heartbeat, &right);
    if (CRYPTO_memcmp(beat.code, right.code, CODE_BYTES) || beat.to != heartbeat->rank ||
        beat.from >= heartbeat->ranks || beat.count <= heartbeat->heard[beat.from])
        return -1;
    heartbeat->heard[beat.from] = beat.count;
    return beat.from;
}

/* ---- opening ---- */

static void find_self(struct whereabouts *self)
{
    static const struct in6_addr loopback = {.s6_addr = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}};
    self->count = (uint32_t)addresses_of_host(self->each, ADDRESSES);
    self->each[self->count++] = loopback;
}

static int exchange(struct heartbeat *heartbeat, struct comm *comm, struct error *error)
{
    int status = comm_broadcast(comm, heartbeat->key, sizeof heartbeat->key, 0, error);
    for (uint32_t rank = 0; rank < comm->ranks && !status; rank++)
        status = comm_broadcast(comm, &heartbeat->others[rank], sizeof *heartbeat->others, rank, error);
    return status;
}

/* What this rank brings to the exchange. */
static int prepare(struct heartbeat *heartbeat, const struct comm *comm, struct error *error)
{
    heartbeat->socket = -1;
    heartbeat->rank = comm->rank;
    heartbeat->ranks = comm->ranks;
    heartbeat->others = calloc(comm->ranks, sizeof *heartbeat->others);
    heartbeat->heard = calloc(comm->ranks, sizeof *heartbeat->heard);
    if (!heartbeat->others || !heartbeat->heard)
        return error_set(error, STATUS_INTERNAL, "out of memory for %u ranks", comm->ranks);
    if (RAND_bytes(heartbeat->key, sizeof heartbeat->key) != 1)
        return error_set(error, STATUS_INTERNAL, "no random bytes to be had");
    struct whereabouts *self = &heartbeat->others[comm->rank];
    find_self(self);
    return open_socket(heartbeat, &self->port, error);
}

int heartbeat_open(struct heartbeat **out, struct comm *comm, struct error *error)
{
    struct heartbeat *heartbeat = *out = calloc(1, sizeof *heartbeat);
    if (!heartbeat) return error_set(error, STATUS_INTERNAL, "out of memory for heartbeats");
    const int status = prepare(heartbeat, comm, error);
    return status ? status : exchange(heartbeat, comm, error);
}

void heartbeat_close(struct heartbeat *heartbeat)
{
    if (!heartbeat) return;
    if (heartbeat->socket >= 0) close(heartbeat->socket);
    free(heartbeat->others);
    free(heartbeat->heard);
    free(heartbeat);
}
