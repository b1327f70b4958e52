/*
 * Pure: how much of the coordinator's loop is for those who are no ranks. All of them share a part of each turn. Who
 * has not shown a secret yet, and so may be anybody, shares a part of all time: a handshake of TLS alone takes as long
 * as a turn has, and one behind the other they would keep each decision waiting.
 */
#ifndef GACC_TURNS_H
#define GACC_TURNS_H

#include <stdbool.h>
#include <stdint.h>

struct turns {
    uint64_t spent; /* nanoseconds of this turn */
    int64_t credit; /* nanoseconds that strangers may take, as it was at … */
    uint64_t at;    /* … this time, in nanoseconds of any clock that does not go back */
};

void turns_init(struct turns *turns, uint64_t now);
void turns_begin(struct turns *turns);
/* `by_strangers`: it is of their part, too. */
void turns_spend(struct turns *turns, uint64_t nanoseconds, bool by_strangers);
/* Whether this turn has time left. */
bool turns_have_time(const struct turns *turns);
/* Milliseconds until strangers may be served, one more after the other until it is over again; 0: now. */
uint64_t turns_wait(struct turns *turns, uint64_t now);

#endif
