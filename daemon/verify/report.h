/* What verify found, for people and for programs. */
#ifndef GACC_REPORT_H
#define GACC_REPORT_H

#include <stdio.h>

#include "daemon/observe/json_writer.h"
#include "daemon/verify/check.h"
#include "daemon/verify/suite.h"

/* The table, line by line. */
void report_head(const struct suite *suite, FILE *to);
void report_check(const struct check *check, FILE *to);
void report_controls_head(FILE *to);
void report_planted(const struct planted *planted, FILE *to);
/* What to look at first, where a check has failed; then the result in one sentence. receipt NULL: none was written. */
void report_end(const struct verification *verification, const char *receipt, FILE *to);

/* The members "checks", "negative_controls" and "pass" of an object that is open. */
void report_members(struct json_writer *json, const struct verification *verification);

#endif
