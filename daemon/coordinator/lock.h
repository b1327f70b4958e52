/*
 * Who writes in a run directory: lock.json with host, process and the boot of its host, renewed every second. Beside
 * the kernel's lock on log.jsonl, which other hosts need not see. A lock of this boot whose kernel lock is free is
 * stale; one of another host is, when it is not renewed while it is watched, so that no two clocks are compared.
 */
#ifndef GACC_LOCK_H
#define GACC_LOCK_H

#include <limits.h>
#include <stdint.h>

#include "proto/error.h"

#define LOCK_NAME "lock.json"

struct lock_holder {
    char host[256], boot[64];
    int64_t pid; /* 0: not known */
};

/* Who holds the lock of the directory, as far as it says; all empty where there is none. */
void lock_read(const char *directory, struct lock_holder *holder);
/* The kernel's lock is ours. Takes over what is stale, which takes five seconds where another host left it; 69 naming
 * the holder when it is not. Where there is no room for the file the kernel's lock has to do. */
int lock_take(const char *directory, struct error *error);
void lock_renew(const char *directory);
/* Removes what the process `pid`, which has died, may have left, unless another job has the directory by now. */
void lock_clear(const char *directory, int64_t pid);

#endif
