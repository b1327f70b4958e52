/*
 * Where the coordinator can be reached. Operators: control.listen, with TLS as control.tls says. Workers:
 * control.workers; `auto` is a private unix socket when all ranks share the host, else TCP that serves Join only, with
 * TLS and a certificate of this start that exists in memory alone.
 */
#ifndef GACC_LISTENERS_H
#define GACC_LISTENERS_H

#include "daemon/coordinator/connections.h"
#include "daemon/coordinator/leftovers.h"
#include "proto/gacc/v1/job.pb-c.h"

#define LISTENERS_ADDRESSES_MAX 1024 /* bytes */
#define LISTENERS_CERTIFICATE_MAX 512

/* In DER, of the workers' TCP address; no bytes: they come by the unix socket. */
struct workers_certificate {
    uint32_t length;
    uint8_t bytes[LISTENERS_CERTIFICATE_MAX];
};

struct listeners {
    struct listener each[3];
    unsigned count;
    char endpoint[160];                    /* operators' address, as gRPC clients take it: unix:PATH or HOST:PORT */
    bool needs_token;                      /* operators come over TCP */
    char workers[LISTENERS_ADDRESSES_MAX]; /* unix:PATH, or tcp://HOST:PORT and others that may reach us, with commas */
    struct tls_context *operators_tls, *workers_tls; /* NULL: without */
    struct workers_certificate certificate;          /* of workers_tls */
};

/* Before the coordinator's process is there, so that each of the two knows what to remove whenever the other dies:
 * names the directory of the socket, where there is to be one, in *leftovers. It is made by listeners_open. */
int listeners_prepare(const Gacc__V1__ControlSection *control, bool one_host, struct leftovers *leftovers,
                      struct error *error);
/* Fails with 69 and "control.KEY: ADDRESS: why", or with 65 or 66 for a file of control.tls. The unix socket is noted
 * in *leftovers. */
int listeners_open(struct listeners *listeners, struct connections *connections,
                   const Gacc__V1__ControlSection *control, bool one_host, struct leftovers *leftovers,
                   struct error *error);
/* After the connections. */
void listeners_close(struct listeners *listeners);

#endif
