/* What a job tells Prometheus: one table, in its text format (version 0.0.4). */
#ifndef GACC_METRICS_H
#define GACC_METRICS_H

#include <stddef.h>

#include "proto/gacc/v1/control.pb-c.h"

#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* `unix_seconds`: now. free() it; NULL when memory is short. */
char *metrics_text(const Gacc__V1__Status *status, double unix_seconds, size_t *length);

#endif
