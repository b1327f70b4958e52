#include "daemon/coordinator/listeners.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/addresses.h"
#include "daemon/coordinator/private_directory.h"
#include "proto/endpoint.h"

static int fail(struct error *error, const char *key, const char *address, const char *why)
{
    return error_set(error, STATUS_UNAVAILABLE, "%s: %s: %s", key, address, why);
}

/* A name that nobody else has, and with which a socket's path fits sun_path. */
static int name_socket_directory(struct leftovers *leftovers, struct error *error)
{
    uint64_t name;
    if (getrandom(&name, sizeof name, 0) != sizeof name)
        return error_set(error, STATUS_INTERNAL, "no random bytes to be had");
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    const bool usable = runtime && runtime[0] == '/' && strlen(runtime) < 60 && !access(runtime, W_OK | X_OK) &&
                        !private_directory_check(runtime, NULL);
    snprintf(leftovers->socket_directory, sizeof leftovers->socket_directory, "%s/gaccd-%016" PRIx64,
             usable ? runtime : "/tmp", name);
    return 0;
}

static bool uses_own_socket(const Gacc__V1__ControlSection *control, bool one_host)
{
    if (!strncmp(control->listen, "unix:", strlen("unix:"))) return !strcmp(control->listen, "unix:auto");
    return one_host && !strcmp(control->workers, "auto");
}

int listeners_prepare(const Gacc__V1__ControlSection *control, bool one_host, struct leftovers *leftovers,
                      struct error *error)
{
    leftovers->socket_directory[0] = leftovers->socket[0] = '\0';
    if (!uses_own_socket(control, one_host)) return 0;
    int status = name_socket_directory(leftovers, error);
    if (!status)
        snprintf(leftovers->socket, sizeof leftovers->socket, "%.90s/control.sock", leftovers->socket_directory);
    return status;
}

/* A socket file whose owner died refuses connections; it is in nobody's use. (So does a file that is no socket.) */
static bool is_stale(const struct sockaddr_un *address)
{
    struct stat facts;
    if (lstat(address->sun_path, &facts) || !S_ISSOCK(facts.st_mode) || facts.st_uid != geteuid()) return false;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    bool refused = connect(fd, (const struct sockaddr *)address, sizeof *address) && errno == ECONNREFUSED;
    close(fd);
    return refused;
}

static int bind_unix(const char *path, int *number)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    mode_t mask = umask(0177);
    int status = fd < 0 ? -1 : bind(fd, (const struct sockaddr *)&address, sizeof address);
    if (status && errno == EADDRINUSE && is_stale(&address) && !unlink(path))
        status = bind(fd, (const struct sockaddr *)&address, sizeof address);
    if (!status) status = chmod(path, 0600); /* a directory's default ACL beats the mask; nobody can connect yet */
    *number = errno;
    umask(mask);
    if (!status) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static int listen_unix(struct listeners *listeners, struct connections *connections, const char *address,
                       struct leftovers *leftovers, struct error *error)
{
    char path[sizeof leftovers->socket];
    if (!strcmp(address, "unix:auto")) {
        if (private_directory_make(leftovers->socket_directory, error)) return error_prefix(error, "control.listen");
        snprintf(path, sizeof path, "%s", leftovers->socket);
    } else {
        const char *given = address + strlen("unix:");
        if (strlen(given) >= sizeof path)
            return fail(error, "control.listen", address, "a socket's path has at most 107 bytes");
        snprintf(path, sizeof path, "%s", given);
        char directory[sizeof path];
        snprintf(directory, sizeof directory, "%s", path);
        if (private_directory_check(dirname(directory), error))
            return error_prefix(error, "control.listen: %s", address);
    }
    int number, fd = bind_unix(path, &number);
    if (fd < 0) return fail(error, "control.listen", address, strerror(number));
    char absolute[PATH_MAX]; /* clients may stand elsewhere */
    bool fits = realpath(path, absolute) && strlen(absolute) < sizeof leftovers->socket;
    snprintf(leftovers->socket, sizeof leftovers->socket, "%.107s", fits ? absolute : path);
    struct listener *listener = &listeners->each[listeners->count++];
    uv_pipe_init(connections->loop, &listener->pipe, 0);
    int status = uv_pipe_open(&listener->pipe, fd);
    if (!status) status = connections_listen(connections, listener, TRUST_OWNER, NULL);
    if (status) return fail(error, "control.listen", address, uv_strerror(status));
    return 0;
}

static int bind_tcp(const struct addrinfo *found, int *number)
{
    const int on = 1, off = 0;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (found->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        if (!bind(fd, found->ai_addr, found->ai_addrlen)) return fd;
    }
    *number = errno;
    if (fd >= 0) close(fd);
    return -1;
}

static uint16_t port_of(const uv_tcp_t *tcp)
{
    struct sockaddr_storage bound;
    int size = sizeof bound;
    if (uv_tcp_getsockname(tcp, (struct sockaddr *)&bound, &size)) return 0;
    return ntohs(bound.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)&bound)->sin6_port
                                             : ((const struct sockaddr_in *)&bound)->sin_port);
}

/* *host and *port as bound: what a client on this machine can connect to. */
static int listen_tcp(struct listeners *listeners, struct connections *connections, const char *key,
                      const char *address, enum trust trust, struct tls_context *tls, char host[256], uint16_t *port,
                      struct error *error)
{
    struct endpoint endpoint;
    if (!endpoint_parse(&endpoint, address)) return fail(error, key, address, "is no tcp://HOST:PORT");
    snprintf(host, 256, "%s", endpoint.host);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    int status = getaddrinfo(endpoint.host, endpoint.port, &hints, &found);
    if (status) return fail(error, key, address, gai_strerror(status));
    int number, fd = bind_tcp(found, &number);
    freeaddrinfo(found);
    if (fd < 0) return fail(error, key, address, strerror(number));
    struct listener *listener = &listeners->each[listeners->count++];
    uv_tcp_init(connections->loop, &listener->tcp);
    status = uv_tcp_open(&listener->tcp, fd);
    if (!status) status = connections_listen(connections, listener, trust, tls);
    if (status) return fail(error, key, address, uv_strerror(status));
    *port = port_of(&listener->tcp);
    return 0;
}

static void format_endpoint(char *text, size_t size, const char *host, uint16_t port)
{
    snprintf(text, size, strchr(host, ':') ? "[%.120s]:%u" : "%.120s:%u", host, port);
}

/* "tcp://A:PORT,tcp://B:PORT…" */
static int list_addresses(char *list, size_t size, uint16_t port, struct error *error)
{
    struct in6_addr addresses[64]; /* the first dozens will do */
    const size_t count = addresses_of_host(addresses, sizeof addresses / sizeof *addresses);
    size_t used = 0;
    list[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        char host[INET6_ADDRSTRLEN], endpoint[160];
        const bool is_ipv4 = IN6_IS_ADDR_V4MAPPED(&addresses[i]);
        inet_ntop(is_ipv4 ? AF_INET : AF_INET6, &addresses[i].s6_addr[is_ipv4 ? 12 : 0], host, sizeof host);
        format_endpoint(endpoint, sizeof endpoint, host, port);
        if (used + strlen(endpoint) + 8 >= size) break;
        used += (size_t)snprintf(list + used, size - used, "%stcp://%s", used ? "," : "", endpoint);
    }
    if (!used)
        return error_set(error, STATUS_UNAVAILABLE, "control.workers: this host has no address that others can reach");
    return 0;
}

static int make_certificate(struct listeners *listeners, struct error *error)
{
    const struct tls_server_options options = {.names = "DNS:gaccd"};
    struct workers_certificate *certificate = &listeners->certificate;
    int status = tls_server(&listeners->workers_tls, &options, error);
    if (status) return error_prefix(error, "control.workers");
    certificate->length =
        (uint32_t)tls_context_certificate(listeners->workers_tls, certificate->bytes, sizeof certificate->bytes);
    return certificate->length ? 0 : error_set(error, STATUS_INTERNAL, "control.workers: a certificate too long");
}

static int listen_for_workers(struct listeners *listeners, struct connections *connections, const char *address,
                              struct error *error)
{
    static const char *const everywhere[] = {"tcp://[::]:0", "tcp://0.0.0.0:0"}; /* a machine may have no IPv6 */
    const bool is_auto = !strcmp(address, "auto");
    char host[256], endpoint[160];
    uint16_t port;
    int status = make_certificate(listeners, error);
    if (status) return status;
    for (size_t i = 0; i < (is_auto ? 2 : 1); i++) {
        status = listen_tcp(listeners, connections, "control.workers", is_auto ? everywhere[i] : address, TRUST_WORKER,
                            listeners->workers_tls, host, &port, error);
        if (!status) break;
    }
    if (status) return status;
    if (is_auto || !strcmp(host, "0.0.0.0") || !strcmp(host, "::"))
        return list_addresses(listeners->workers, sizeof listeners->workers, port, error);
    format_endpoint(endpoint, sizeof endpoint, host, port);
    snprintf(listeners->workers, sizeof listeners->workers, "tcp://%s", endpoint);
    return 0;
}

static int listen_for_operators(struct listeners *listeners, struct connections *connections,
                                const Gacc__V1__ControlSection *control, struct error *error)
{
    const struct tls_server_options options = {
        .certificate = control->tls_certificate,
        .key = control->tls_key,
        .clients = *control->tls_client_authorities ? control->tls_client_authorities : NULL,
        .http1 = true,
    };
    char host[256];
    uint16_t port;
    int status = *control->tls_certificate ? tls_server(&listeners->operators_tls, &options, error) : 0;
    if (status) return error_prefix(error, "control.tls");
    status = listen_tcp(listeners, connections, "control.listen", control->listen, TRUST_OPERATOR,
                        listeners->operators_tls, host, &port, error);
    if (!status) format_endpoint(listeners->endpoint, sizeof listeners->endpoint, host, port);
    return status;
}

int listeners_open(struct listeners *listeners, struct connections *connections,
                   const Gacc__V1__ControlSection *control, bool one_host, struct leftovers *leftovers,
                   struct error *error)
{
    const bool operators_on_unix = !strncmp(control->listen, "unix:", strlen("unix:"));
    const bool workers_on_unix = one_host && !strcmp(control->workers, "auto");
    *listeners = (struct listeners){0};
    listeners->needs_token = !operators_on_unix;
    int status = 0;
    if (operators_on_unix || workers_on_unix)
        status =
            listen_unix(listeners, connections, operators_on_unix ? control->listen : "unix:auto", leftovers, error);
    if (!status && operators_on_unix)
        snprintf(listeners->endpoint, sizeof listeners->endpoint, "unix:%s", leftovers->socket);
    if (!status && !operators_on_unix) status = listen_for_operators(listeners, connections, control, error);
    if (!status && workers_on_unix)
        snprintf(listeners->workers, sizeof listeners->workers, "unix:%s", leftovers->socket);
    if (!status && !workers_on_unix) status = listen_for_workers(listeners, connections, control->workers, error);
    return status;
}

void listeners_close(struct listeners *listeners)
{
    for (unsigned i = 0; i < listeners->count; i++) uv_close(&listeners->each[i].handle, NULL);
    tls_context_close(listeners->operators_tls);
    tls_context_close(listeners->workers_tls);
}
