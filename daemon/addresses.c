#include "daemon/addresses.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <stdbool.h>
#include <string.h>

static bool take(const struct ifaddrs *interface, struct in6_addr *address)
{
    if (!interface->ifa_addr || !(interface->ifa_flags & IFF_UP) || (interface->ifa_flags & IFF_LOOPBACK)) return false;
    if (interface->ifa_addr->sa_family == AF_INET) {
        *address = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
        memcpy(&address->s6_addr[12], &((const struct sockaddr_in *)(const void *)interface->ifa_addr)->sin_addr, 4);
        return true;
    }
    if (interface->ifa_addr->sa_family != AF_INET6) return false;
    *address = ((const struct sockaddr_in6 *)(const void *)interface->ifa_addr)->sin6_addr;
    return !IN6_IS_ADDR_LINKLOCAL(address);
}

size_t addresses_of_host(struct in6_addr *addresses, size_t most)
{
    struct ifaddrs *interfaces;
    size_t count = 0;
    if (getifaddrs(&interfaces)) return 0;
    for (const struct ifaddrs *each = interfaces; each && count < most; each = each->ifa_next)
        count += take(each, &addresses[count]);
    freeifaddrs(interfaces);
    return count;
}
