#include "daemon/coordinator/caller.h"

#include <netdb.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Everybody on the private socket has our own user id; asking for its name once is enough. */
static const char *user_name(void)
{
    static char name[64];
    if (name[0]) return name;
    const struct passwd *entry = getpwuid(geteuid());
    snprintf(name, sizeof name, "%s", entry ? entry->pw_name : "unknown");
    return name;
}

static void describe_owner(struct caller *caller, int fd)
{
    struct ucred peer = {.uid = geteuid()};
    socklen_t size = sizeof peer;
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
    snprintf(caller->by, sizeof caller->by, "uid %u (%s), pid %d", (unsigned)peer.uid, user_name(), (int)peer.pid);
}

static void describe_operator(struct caller *caller, int fd)
{
    struct sockaddr_storage peer;
    socklen_t size = sizeof peer;
    char host[INET6_ADDRSTRLEN + 16] = "an unknown address", port[8] = "";
    if (!getpeername(fd, (struct sockaddr *)&peer, &size))
        getnameinfo((struct sockaddr *)&peer, size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    const bool has_colons = strchr(host, ':') != NULL;
    snprintf(caller->by, sizeof caller->by, "token %s from %s%s%s:%s", caller->role, has_colons ? "[" : "", host,
             has_colons ? "]" : "", port);
}

void caller_of(struct caller *caller, const struct rpc_call *call)
{
    const int fd = connection_descriptor(call);
    caller->role = "control";
    if (connection_trust(call) == TRUST_OWNER)
        describe_owner(caller, fd);
    else
        describe_operator(caller, fd);
}
