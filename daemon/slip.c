#include "daemon/slip.h"

#include <string.h>

#define WORD 63

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Optimal string alignment: insert, delete, replace, swap neighbours, each at a cost of 1. */
unsigned edit_distance(const char *a, const char *b)
{
    unsigned rows[3][WORD + 1];
    unsigned *before = rows[0], *above = rows[1], *row = rows[2];
    size_t height = strnlen(a, WORD), width = strnlen(b, WORD);
    for (size_t j = 0; j <= width; j++) above[j] = (unsigned)j;
    for (size_t i = 1; i <= height; i++) {
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= width; j++) {
            unsigned replaced = above[j - 1] + (a[i - 1] != b[j - 1]);
            row[j] = least(replaced, least(above[j], row[j - 1]) + 1);
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped) row[j] = least(row[j], before[j - 2] + 1);
        }
        unsigned *free_row = before;
        before = above, above = row, row = free_row;
    }
    return above[width];
}

bool is_slip(const char *wrong, const char *right)
{
    return edit_distance(wrong, right) <= 1 + strlen(right) / 5;
}

void nearest_try(struct nearest *nearest, const char *word)
{
    unsigned distance = edit_distance(nearest->wrong, word);
    if (!is_slip(nearest->wrong, word) || (nearest->word && distance >= nearest->distance)) return;
    nearest->word = word;
    nearest->distance = distance;
}
