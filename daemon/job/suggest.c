/* Words for those who slipped: nearest keys and choices, and the conditions under which a key belongs. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/job/keys.h"
#include "daemon/slip.h"

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
    struct nearest nearest = {.wrong = leaf};
    const char *elsewhere = NULL; /* the key of another section */
    for (size_t i = 0; i < key_count; i++) {
        const char *name = leaf_of(keys[i].path);
        if (is_below(keys[i].path, section))
            nearest_try(&nearest, name);
        else if (!elsewhere && strcmp(leaf, name) == 0)
            elsewhere = keys[i].path;
    }
    if (nearest.word || elsewhere) {
        add(&phrase, "; did you mean %s?", nearest.word ? nearest.word : elsewhere);
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

/* Another row of the same path that has this choice, or NULL. */
static const struct key *row_with_choice(const struct key *key, const char *name)
{
    for (const struct key *row = keys; row < keys + key_count; row++)
        for (const struct choice *choice = row->choices; choice && choice->name; choice++)
            if (row != key && strcmp(row->path, key->path) == 0 && strcmp(choice->name, name) == 0) return row;
    return NULL;
}

struct phrase choice_suggestion(const struct key *key, const char *wrong)
{
    struct phrase phrase = {""};
    struct nearest nearest = {.wrong = wrong};
    const struct key *other = row_with_choice(key, wrong);
    if (other)
        add(&phrase, "is for %s %s; here it is one of ", key_of_selector(other->when->by)->path,
            condition_values(other->when).text);
    else
        add(&phrase, "is not one of ");
    for (const struct choice *choice = key->choices; choice->name; choice++) {
        add(&phrase, "%s%s", choice == key->choices ? "" : ", ", choice->name);
        nearest_try(&nearest, choice->name);
    }
    if (nearest.word && !other) add(&phrase, "; did you mean %s?", nearest.word);
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
