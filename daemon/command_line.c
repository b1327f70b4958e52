#include "daemon/command_line.h"

#include <stdio.h>
#include <string.h>

#include "daemon/slip.h"

int option_fault(int answer, char **words, const struct option *options, struct error *error)
{
    const char *word = words[optind - 1];
    if (answer == ':') return error_set(error, STATUS_USAGE, "%s: a value is wanted", word);
    if (strncmp(word, "--", 2)) return error_set(error, STATUS_USAGE, "-%c: no such option", optopt);
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 2, "="), word + 2);
    if (optopt) return error_set(error, STATUS_USAGE, "--%s: takes no value", name);
    struct nearest nearest = {.wrong = name};
    for (const struct option *option = options; option->name; option++) nearest_try(&nearest, option->name);
    return error_set(error, STATUS_USAGE, "--%s: no such option%s%s%s", name, nearest.word ? "; did you mean --" : "",
                     nearest.word ? nearest.word : "", nearest.word ? "?" : "");
}
