/*
 * Who was refused, in the log: a line of type control, as operations write for what they did. One a second at most;
 * those in between are counted in the next.
 */
#ifndef GACC_AUDIT_H
#define GACC_AUDIT_H

#include <stdint.h>

#define AUDIT_MILLISECONDS 1000

struct coordinator;

struct audit {
    uint64_t next;    /* uv_now: no line before that */
    uint32_t refused; /* since the last line */
    /* The last of them. */
    double at; /* unix seconds */
    char method[64], by[160], role[16], why[256];
};

/* method: the path of the call, NULL: it did not come to one. fd: the peer's socket. role: that it has shown, or NULL.
 */
void audit_refused(struct coordinator *coordinator, const char *method, int fd, const char *role, const char *why);
/* Now and then: what is still to be told. */
void audit_tick(struct coordinator *coordinator);
/* At the end: all that is. */
void audit_end(struct coordinator *coordinator);

#endif
