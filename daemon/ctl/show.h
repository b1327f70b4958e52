/* What gaccctl prints, for people or (--json) for programs. */
#ifndef GACC_CTL_SHOW_H
#define GACC_CTL_SHOW_H

#include "proto/gacc/v1/control.pb-c.h"

void show_status(const Gacc__V1__Status *status);
void show_status_json(const Gacc__V1__Status *status);
/* The line of log.jsonl, a step or an evaluation, as a row; `head` prints the names of its columns first. */
void show_record(const Gacc__V1__StepRecord *record, int head);

#endif
