/* Where other machines might reach this one. */
#ifndef GACC_ADDRESSES_H
#define GACC_ADDRESSES_H

#include <netinet/in.h>
#include <stddef.h>

/* The addresses of this host's interfaces that are up, IPv4 ones mapped into IPv6: not loopback, nor the link-local
 * ones, which need a scope that means nothing elsewhere. How many there are, `most` at most. */
size_t addresses_of_host(struct in6_addr *addresses, size_t most);

#endif
