/* How a value of each type of key is read from the job file into the message, and printed from it. */
#ifndef GACC_JOB_VALUES_H
#define GACC_JOB_VALUES_H

#include <stdio.h>

#include "daemon/job/keys.h"
#include "daemon/job/tree.h"

#define U32_LIST_LIMIT 64         /* model.hidden, data.mix, ids */
#define TEXTS_LIMIT 64            /* model.lora.targets */
#define TENSOR_VALUES_LIMIT 32768 /* numbers of model.init.values in all: more belong in a file */

/* Reads the node into the key's field of the message at `base`; path is how the key is called in errors. */
int value_read(const struct key *key, void *base, const struct node *node, const char *path, struct error *error);
/* As the job file has it, on one line, without the key. */
void value_print(const struct key *key, const void *base, FILE *to);
/* Whether the field is that of a key which was not given and has no default. */
bool value_is_absent(const struct key *key, const void *base);
/* Whether a job file could have put the field's value there, as far as bounds and choices say. */
bool value_is_legal(const struct key *key, const void *base);
/* What the type is called in the manual. */
const char *value_type_name(enum key_type type);

#endif
