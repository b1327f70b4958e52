/* Which running job gaccctl talks to: --connect, --run, or the newest run directory below runs/. */
#ifndef GACC_CTL_TARGET_H
#define GACC_CTL_TARGET_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"
#include "proto/tls.h"

/* Whom the endpoint's certificate has to come from. */
enum target_tls {
    TARGET_PLAIN,       /* there is no TLS */
    TARGET_PINNED,      /* `fingerprint` */
    TARGET_AUTHORITIES, /* the option --ca, or whom the system trusts */
};

struct target {
    char endpoint[512]; /* unix:PATH, HOST:PORT or tcp://HOST:PORT */
    char token[256];    /* empty: none */
    char run[PATH_MAX]; /* the run directory; empty: --connect */
    char host[256];     /* the coordinator's, with `run` */
    char job_id[64];    /* another one for every start, with `run` */
    enum target_tls tls;
    uint8_t fingerprint[TLS_FINGERPRINT_BYTES];
    const char *ca, *certificate, *key; /* PEM files, as given, or NULL */
};

/* As given on the command line, or NULL. */
struct target_words {
    const char *connect, *run;
    const char *token_file; /* for `connect`: the token, or a job's connection.json, which nobody else may read */
    const char *ca, *certificate, *key;
    bool tls, plaintext;
};

/* No address, or options that do not go together: 64. No run directory: 66. One that is not ours: 77. One without a
 * running job: 69, with what result.json says and the next step. */
int target_find(struct target *target, const struct target_words *words, struct error *error);
/* result.json, the caller's; NULL: there is none, as while the job runs. */
json_t *target_result(const char *run);
/* done, stopped or failed: how a job ended, of its result or of the last record of its log. */
const char *target_ending(const json_t *end);
/* How it ended: "done after 200 steps". */
void target_result_text(const json_t *result, char *text, size_t capacity);

#endif
