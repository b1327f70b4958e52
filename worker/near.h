/* The tensors that somebody may have meant by a name, or a pattern, that no tensor has. */
#ifndef GACC_NEAR_H
#define GACC_NEAR_H

#include "worker/model.h"

#define NEAR_MOST 3 /* names that fit a struct near_names */

struct near_names {
    char text[NEAR_MOST * (sizeof((struct tensor *)0)->name + 2)];
};

/* Up to `most` of those nearest to the pattern, in table order: "a, b". In a pattern * stands for any letters and ? for
 * any one. */
struct near_names tensors_near(const struct tensor_table *table, const char *pattern, size_t most);

#endif
