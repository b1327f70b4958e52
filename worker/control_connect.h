/* A blocking connect to the coordinator's address, with a time limit. */
#ifndef GACC_CONTROL_CONNECT_H
#define GACC_CONTROL_CONNECT_H

#include "proto/error.h"

/* address: unix:PATH or tcp://HOST:PORT (an IPv6 HOST in brackets). Returns a non-blocking, close-on-exec socket, or
 * fails with 69. */
int control_connect(const char *address, double timeout_seconds, struct error *error);

#endif
