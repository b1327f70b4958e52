/* Slips of the pen: which of the words that there are somebody may have meant. */
#ifndef GACC_SLIP_H
#define GACC_SLIP_H

#include <stdbool.h>

/* Edit distance with transpositions, of words shortened to 63 characters. */
unsigned edit_distance(const char *a, const char *b);
/* Whether the distance is small enough, for words of that length, to be a slip of the pen. */
bool is_slip(const char *wrong, const char *right);

/* The nearest of the words shown so far that is a slip away; {.wrong = …} at the start. */
struct nearest {
    const char *wrong;
    const char *word; /* NULL: none yet */
    unsigned distance;
};
void nearest_try(struct nearest *nearest, const char *word);

#endif
