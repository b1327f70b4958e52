#include "worker/near.h"

#include <fnmatch.h>
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

void near_try(struct near_names *names, const char *name)
{
    char ending[256];
    const unsigned far = distance(names->pattern, name);
    snprintf(ending, sizeof ending, "*.%.200s", names->pattern);
    names->ends_so |= fnmatch(ending, name, 0) == 0;
    if (names->listed > 0 && far > names->distance) return;
    if (far < names->distance) names->listed = names->used = 0;
    names->distance = far;
    if (names->listed == names->most || names->used >= sizeof names->text) return;
    names->used += (size_t)snprintf(names->text + names->used, sizeof names->text - names->used, "%s%s",
                                    names->listed++ ? ", " : "", name);
}

struct near_hint near_hint(const struct near_names *names)
{
    struct near_hint hint;
    if (names->ends_so)
        snprintf(hint.text, sizeof hint.text, "'*.%.200s' does", names->pattern);
    else
        snprintf(hint.text, sizeof hint.text, "near it: %s", names->text);
    return hint;
}

struct near_names tensors_near(const struct tensor_table *table, const char *pattern, size_t most)
{
    struct near_names names = {.pattern = pattern, .most = most};
    for (size_t i = 0; i < table->count; i++) near_try(&names, table->tensors[i].name);
    return names;
}
