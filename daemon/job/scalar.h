/*
 * What one YAML scalar means, strictly: YAML 1.2's core schema without its traps. Numbers and booleans are written
 * without quotes, in decimal, finite; each function says why it will not take a text.
 */
#ifndef GACC_JOB_SCALAR_H
#define GACC_JOB_SCALAR_H

#include "daemon/job/tree.h"

struct why {
    char text[256];
};

/* null, ~ or nothing at all, without quotes. */
bool scalar_is_null(const struct node *node);
/* A decimal number without quotes; whole: digits only. */
bool scalar_number(const struct node *node, bool whole, double *out, struct why *why);
bool scalar_bool(const struct node *node, bool *out, struct why *why);
/* Printable UTF-8 that YAML does not read as a number, a boolean or null. *out is borrowed from the node. */
bool scalar_text(const struct node *node, const char **out, struct why *why);
/* Seconds: a number, or a number with ms, s, min or h behind it. */
bool scalar_seconds(const struct node *node, double *out, struct why *why);

/* Whether the text is a number in decimal as scalar_number reads it: validation may be a path or a fraction. */
bool scalar_looks_like_number(const struct node *node);

/* The first byte that is not UTF-8; with `printable` also the first control character or the like, which a one-line
 * text cannot hold. NULL: none. */
const char *text_fault(const char *text, size_t length, bool printable);

/* The shortest decimal that strtod reads back to the same number. */
struct decimal {
    char text[32];
};
struct decimal decimal_of(double value);

#endif
