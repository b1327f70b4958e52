/* The names that somebody may have meant by a name, or a pattern, that none has. In a pattern * stands for any letters
 * and ? for any one. */
#ifndef GACC_NEAR_H
#define GACC_NEAR_H

#include "worker/model.h"

#define NEAR_MOST 3 /* names that fit a struct near_names */

struct near_names {
    const char *pattern;                                           /* borrowed; whoever begins gives it, and `most` */
    size_t most;                                                   /* names, at most NEAR_MOST */
    char text[NEAR_MOST * (sizeof((struct tensor *)0)->name + 2)]; /* "a, b": in the order in which they were tried */
    unsigned distance;                                             /* of those in `text` */
    size_t listed, used;
    bool ends_so; /* a name ends in it, behind a dot */
};

/* Another name of those that could have been meant. */
void near_try(struct near_names *names, const char *name);

/* "'*.c_attn' does", where a name ends so, or "near it: a, b". */
struct near_hint {
    char text[sizeof((struct near_names *)0)->text + 16];
};
struct near_hint near_hint(const struct near_names *names);

/* Up to `most` of the table's nearest to the pattern, in table order: "a, b". */
struct near_names tensors_near(const struct tensor_table *table, const char *pattern, size_t most);

#endif
