/*
 * Where the coordinator can be reached. Operators: control.listen. Workers: control.workers; `auto` is a private unix
 * socket when all ranks share the host, else TCP that serves Join only.
 */
#ifndef GACC_LISTENERS_H
#define GACC_LISTENERS_H

#include "daemon/coordinator/connections.h"
#include "daemon/coordinator/leftovers.h"
#include "proto/gacc/v1/job.pb-c.h"

#define LISTENERS_ADDRESSES_MAX 1024 /* bytes */

struct listeners {
    struct listener each[3];
    unsigned count;
    char endpoint[160];                    /* operators' address, as gRPC clients take it: unix:PATH or HOST:PORT */
    bool needs_token;                      /* operators come over TCP */
    char workers[LISTENERS_ADDRESSES_MAX]; /* unix:PATH, or tcp://HOST:PORT and others that may reach us, with commas */
};

/* Before the coordinator's process is there, so that each of the two knows what to remove whenever the other dies:
 * names the directory of the socket, where there is to be one, in *leftovers. It is made by listeners_open. */
int listeners_prepare(const Gacc__V1__ControlSection *control, bool one_host, struct leftovers *leftovers,
                      struct error *error);
/* Fails with 69 and "control.KEY: ADDRESS: why". The unix socket is noted in *leftovers. */
int listeners_open(struct listeners *listeners, struct connections *connections,
                   const Gacc__V1__ControlSection *control, bool one_host, struct leftovers *leftovers,
                   struct error *error);
void listeners_close(struct listeners *listeners);

#endif
