/*
 * What verify says: one line per check of the real program, one per fault that was planted to see whether the checks
 * notice it.
 */
#ifndef GACC_CHECK_H
#define GACC_CHECK_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon/verify/diagnosis.h"

#define CHECKS_MAX 64

struct check {
    const char *name; /* e.g. "fp32: accumulated = whole" */
    enum check_stage stage;
    double measured, allowed;    /* passes when measured ≤ allowed and no other figure says otherwise */
    double floor, ratio, cosine; /* of a comparison of gradients: the noise floor, norms, directions; else NaN */
    bool pass;
    bool skipped;   /* does not apply to this job; `note` says why */
    char note[256]; /* what was compared, or why it failed */
};

struct planted {
    const char *fault;     /* e.g. "gradients are not divided by K" */
    const char *caught_by; /* the first check that failed, NULL: none */
    bool pass;             /* caught */
    bool skipped;          /* the fault changes nothing in this job; `note` says why */
    char note[256];
};

struct verification {
    struct check checks[CHECKS_MAX];
    size_t check_count;
    struct planted controls[CHECKS_MAX];
    size_t control_count;
    bool pass; /* every check and every control passed or was skipped */
};

#endif
