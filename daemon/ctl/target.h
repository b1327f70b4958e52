/* Which running job gaccctl talks to: --connect, --run, or the newest run directory below runs/. */
#ifndef GACC_CTL_TARGET_H
#define GACC_CTL_TARGET_H

#include "proto/error.h"

struct target {
    char endpoint[512]; /* unix:PATH, HOST:PORT or tcp://HOST:PORT */
    char token[256];    /* empty: none. With --connect it comes from $GACC_TOKEN */
};

/* `connect` and `run` as given, or NULL. No address: 64. A run directory without a running job: 69, with what
 * result.json says. */
int target_find(struct target *target, const char *connect, const char *run, struct error *error);

#endif
