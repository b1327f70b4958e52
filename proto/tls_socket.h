/* A client's handshake over a connected socket, with a time limit; what is said behind it is the caller's to move. */
#ifndef GACC_TLS_SOCKET_H
#define GACC_TLS_SOCKET_H

#include <stdbool.h>

#include "proto/tls.h"

/* Returns when the peer has shown who it is, or fails with 69; *hung_up: because the peer closed or reset the
 * connection, by which it has shown nothing. Plain bytes that came with the end of the handshake wait in tls_read. The
 * socket may be blocking or not. */
int tls_socket_handshake(struct tls *tls, int fd, double seconds, bool *hung_up, struct error *error);

#endif
