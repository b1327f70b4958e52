#include "worker/near.h"

#include <stdio.h>
#include <string.h>

static unsigned smaller(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Letters to be changed, added or left out until the pattern matches the name (Levenshtein's distance, where * costs
 * nothing). */
static unsigned distance(const char *pattern, const char *name)
{
    unsigned row[sizeof((struct tensor *)0)->name + 1];
    const size_t length = strlen(name);
    for (size_t i = 0; i <= length; i++) row[i] = (unsigned)i;
    for (const char *letter = pattern; *letter; letter++) {
        const unsigned cost = *letter != '*';
        unsigned diagonal = row[0];
        row[0] += cost;
        for (size_t i = 1; i <= length; i++) {
            unsigned best = smaller(row[i], row[i - 1]) + cost;
            if (cost) best = smaller(best, diagonal + (*letter != '?' && *letter != name[i - 1]));
            diagonal = row[i];
            row[i] = best;
        }
    }
    return row[length];
}

struct near_names tensors_near(const struct tensor_table *table, const char *pattern, size_t most)
{
    struct near_names names = {""};
    unsigned least = (unsigned)-1;
    size_t used = 0;
    for (size_t i = 0; i < table->count; i++) least = smaller(least, distance(pattern, table->tensors[i].name));
    for (size_t i = 0, listed = 0; i < table->count && listed < most && used < sizeof names.text; i++)
        if (distance(pattern, table->tensors[i].name) == least)
            used += (size_t)snprintf(names.text + used, sizeof names.text - used, "%s%s", listed++ ? ", " : "",
                                     table->tensors[i].name);
    return names;
}
