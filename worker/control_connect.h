/* A blocking connect to the coordinator, at the first of its addresses that answers and is it, with a time limit. */
#ifndef GACC_CONTROL_CONNECT_H
#define GACC_CONTROL_CONNECT_H

#include <stdint.h>

#include "proto/tls.h"

struct control_line {
    int socket;                  /* non-blocking, close-on-exec; −1: none */
    struct tls *tls;             /* on it, behind its handshake; NULL: bytes travel as they are */
    struct tls_context *context; /* of tls */
};

/* addresses: unix:PATH, or tcp://HOST:PORT (an IPv6 HOST in brackets) and others like it, with commas. An address that
 * is silent holds up the next for a quarter of a second; one that shows another certificate than that of `fingerprint`
 * (TLS_FINGERPRINT_BYTES) is left for the next. `fingerprint` NULL, and unix: no TLS. Fails with 69; *line is then
 * closed. */
int control_connect(struct control_line *line, const char *addresses, const uint8_t *fingerprint,
                    double timeout_seconds, struct error *error);
void control_line_close(struct control_line *line);

#endif
