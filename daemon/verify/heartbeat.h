/*
 * Datagrams between ranks that say no more than that their sender is alive. Each carries a count and a code (HMAC)
 * under the job's key, so that nobody else, and nobody who repeats them, is taken for a rank.
 */
#ifndef GACC_HEARTBEAT_H
#define GACC_HEARTBEAT_H

#include <stdint.h>

#include "worker/comm.h"

struct heartbeat;

/* All ranks together: the key and everybody's addresses travel in broadcasts. */
int heartbeat_open(struct heartbeat **out, struct comm *comm, struct error *error);
void heartbeat_close(struct heartbeat *heartbeat); /* NULL is allowed */

/* To every other rank, at each of its addresses; what cannot be sent is lost. */
void heartbeat_send(struct heartbeat *heartbeat);
/* To be polled for input. */
int heartbeat_socket(const struct heartbeat *heartbeat);
/* One datagram, where there is one: the rank that sent it; −1: none of a rank's, or one more of the same heartbeat.
 * Does not wait. */
int64_t heartbeat_hear(struct heartbeat *heartbeat);

#endif
