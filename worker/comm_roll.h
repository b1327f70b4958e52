/*
 * The roll: all ranks meet before each collective call and compare what they are about to call. A rank that has gone
 * astray (an error of its own, a call left out) would have the others wait for ever; so all of them hear of it. For
 * trials, which have no coordinator to look after them; a job's steps pay nothing for it.
 */
#ifndef GACC_COMM_ROLL_H
#define GACC_COMM_ROLL_H

#include "worker/comm.h"

enum comm_call { CALL_REDUCE_SCATTER = 1, CALL_ALL_GATHER, CALL_BROADCAST, CALL_BARRIER, CALL_DUPLICATE };

/* From here on the roll is called on `roll`, a duplicate for that alone, before each collective call on `comm`, on what
 * is duplicated from it, and on what is opened on top of it; NULL: no longer. Borrowed. Before any other call, all
 * ranks alike. */
void comm_call_roll(struct comm *comm, struct comm *roll);
/* 0: all ranks make this call, with this `detail` (a bucket, a root). Else 70 on all of them, naming one that makes
 * another. Without a roll: 0. */
int comm_meet(struct comm *comm, enum comm_call call, uint32_t detail, struct error *error);
/* Whether the last roll that was called here found a rank astray. */
bool comm_is_astray(const struct comm *comm);

#endif
