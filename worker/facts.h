/* What is found out about something, in order: printed as lines "key: value", or as one JSON object. */
#ifndef GACC_FACTS_H
#define GACC_FACTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "proto/error.h"

struct facts {
    json_t *object;
    bool failed; /* something could not be added */
};

/* To be closed, whatever it answers. */
static inline void facts_open(struct facts *facts)
{
    *facts = (struct facts){.object = json_object()};
    facts->failed = !facts->object;
}

/* Takes `value`; NULL is an addition that failed. */
static inline void facts_add(struct facts *facts, const char *key, json_t *value)
{
    if (json_object_set_new(facts->object, key, value)) facts->failed = true;
}

/* A list is a line for each of its values, a mapping an indented one. Out of memory, or what could not be written: 70,
 * 74. */
int facts_print(const struct facts *facts, bool as_json, FILE *to, struct error *error);

static inline void facts_close(struct facts *facts)
{
    json_decref(facts->object);
}

#endif
