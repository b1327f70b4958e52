/* A blocking connect to the coordinator, at the first of its addresses that answers, with a time limit. */
#ifndef GACC_CONTROL_CONNECT_H
#define GACC_CONTROL_CONNECT_H

#include "proto/error.h"

/* addresses: unix:PATH, or tcp://HOST:PORT (an IPv6 HOST in brackets) and others like it, with commas. An address that
 * is silent holds up the next for a quarter of a second. Returns a non-blocking, close-on-exec socket, or fails
 * with 69. */
int control_connect(const char *addresses, double timeout_seconds, struct error *error);

#endif
