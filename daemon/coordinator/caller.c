#include "daemon/coordinator/caller.h"

#include <netdb.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Asked for once, and for nobody else's: a directory service may take its time. */
static const char *own_name(void)
{
    static char name[64];
    if (name[0]) return name;
    const struct passwd *entry = getpwuid(geteuid());
    snprintf(name, sizeof name, "%s", entry ? entry->pw_name : "unknown");
    return name;
}

static void describe_local(char by[160], int fd)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size))
        snprintf(by, 160, "an unknown process");
    else if (peer.uid == geteuid())
        snprintf(by, 160, "uid %u (%s), pid %d", (unsigned)peer.uid, own_name(), (int)peer.pid);
    else
        snprintf(by, 160, "uid %u, pid %d", (unsigned)peer.uid, (int)peer.pid);
}

void caller_at(char by[160], int fd, const char *role)
{
    struct sockaddr_storage peer;
    socklen_t size = sizeof peer;
    char host[INET6_ADDRSTRLEN + 16] = "an unknown address", port[8] = "";
    if (!getpeername(fd, (struct sockaddr *)&peer, &size)) {
        if (peer.ss_family == AF_UNIX) {
            describe_local(by, fd);
            return;
        }
        getnameinfo((struct sockaddr *)&peer, size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    }
    const bool has_colons = strchr(host, ':') != NULL;
    snprintf(by, 160, "%s%s%s%s%s%s:%s", role ? "token " : "", role ? role : "", role ? " from " : "",
             has_colons ? "[" : "", host, has_colons ? "]" : "", port);
}

void caller_of(struct caller *caller, const struct rpc_call *call)
{
    caller->role = "control";
    caller_at(caller->by, connection_descriptor(call), caller->role);
}
