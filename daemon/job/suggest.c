/* Words for those who slipped: nearest keys and choices, and the conditions under which a key belongs. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/job/keys.h"

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

__attribute__((format(printf, 2, 3))) static void add(struct phrase *phrase, const char *format, ...)
{
    size_t length = strlen(phrase->text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(phrase->text + length, sizeof phrase->text - length, format, arguments);
    va_end(arguments);
}

static const char *leaf_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* Whether the path is a key right below the section. */
static bool is_below(const char *path, const char *section)
{
    size_t length = strlen(section);
    if (length == 0) return !strchr(path, '.');
    return strncmp(path, section, length) == 0 && path[length] == '.' && leaf_of(path) == path + length + 1;
}

static bool is_first_of_its_path(const struct key *key)
{
    for (const struct key *before = keys; before < key; before++)
        if (strcmp(before->path, key->path) == 0) return false;
    return true;
}

struct phrase key_suggestion(const char *section, const char *leaf)
{
    struct phrase phrase = {""};
    const char *nearest = NULL;
    unsigned best = WORD + 1;
    for (size_t i = 0; i < key_count; i++) {
        const char *name = leaf_of(keys[i].path);
        bool here = is_below(keys[i].path, section);
        unsigned distance = here ? edit_distance(leaf, name) : WORD + 1;
        if (here && is_slip(leaf, name) && distance < best) best = distance, nearest = name;
        if (!here && !nearest && strcmp(leaf, name) == 0) nearest = keys[i].path;
    }
    if (nearest) {
        add(&phrase, "; did you mean %s?", nearest);
        return phrase;
    }
    const char *separator = "; there are ";
    for (size_t i = 0; i < key_count; i++) {
        if (!is_below(keys[i].path, section) || !is_first_of_its_path(&keys[i])) continue;
        add(&phrase, "%s%s", separator, leaf_of(keys[i].path));
        separator = ", ";
    }
    return phrase;
}

struct phrase choice_suggestion(const struct choice *choices, const char *wrong)
{
    struct phrase phrase = {"is not one of "};
    const char *nearest = NULL;
    unsigned best = WORD + 1;
    for (const struct choice *choice = choices; choice->name; choice++) {
        unsigned distance = edit_distance(wrong, choice->name);
        add(&phrase, "%s%s", choice == choices ? "" : ", ", choice->name);
        if (is_slip(wrong, choice->name) && distance < best) best = distance, nearest = choice->name;
    }
    if (nearest) add(&phrase, "; did you mean %s?", nearest);
    return phrase;
}

struct phrase condition_values(const struct condition *condition)
{
    struct phrase phrase = {""};
    const char *separator = "";
    for (const struct choice *choice = key_of_selector(condition->by)->choices; choice->name; choice++) {
        if (!(condition->values & 1U << choice->value)) continue;
        add(&phrase, "%s%s", separator, choice->name);
        separator = ", ";
    }
    return phrase;
}
