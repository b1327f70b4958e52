/* What gaccctl prints on standard output, for people or (--json) for programs. */
#ifndef GACC_CTL_SHOW_H
#define GACC_CTL_SHOW_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/gacc/v1/control.pb-c.h"

/* Whether a descriptor is a terminal that may have colours: not with NO_COLOR, nor TERM=dumb. */
bool show_has_colours(int fd);
/* A text of the job's for a terminal: bytes that would steer it become '?'. Until the next call but three. */
const char *show_clean(const char *text);
/* The same of a key's value; "nothing" for NULL and "": the job does not have the key. */
const char *show_value(const char *text);
/* "2:03:04"; "?" where it is not finite. */
const char *show_duration(double seconds, char text[32]);
/* An enum's name behind its prefix; UNKNOWN: it has none. */
const char *show_name(const ProtobufCEnumDescriptor *descriptor, int value, size_t prefix);
const char *show_state(Gacc__V1__State state);       /* REDUCE */
const char *show_verdict(Gacc__V1__Verdict verdict); /* apply */

void show_status(const Gacc__V1__Status *status, double unix_seconds);
json_t *show_status_json(const Gacc__V1__Status *status);
/* "after step 120 (attempt 123)"; NULL is allowed. */
const char *show_effect(const Gacc__V1__Effect *effect, char text[64]);
/* null where there is no number, or no text of UTF-8. */
json_t *show_number(double value);
json_t *show_string(const char *text);
/* Prints it and gives it back. `indent` 0: one line. */
void show_json(json_t *object, size_t indent);

/* A line of log.jsonl as a row, by its own attempt: one about a step boundary is written before the line of the attempt
 * that ends there. `with_head` prints the names of the columns first. False: a header has no row. */
bool show_record(const json_t *line, bool with_head, bool with_colours);

#endif
