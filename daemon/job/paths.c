#include "daemon/job/paths.h"

#include <ctype.h>
#include <errno.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_LIMIT 4095 /* bytes of one path, as the system has it */

__attribute__((format(printf, 3, 4))) static int no(struct why *why, enum status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why->text, sizeof why->text, format, arguments);
    va_end(arguments);
    return -(int)status;
}

struct text {
    char bytes[PATH_LIMIT + 1];
    size_t length;
};

static bool append(struct text *text, const char *from, size_t length)
{
    if (length > PATH_LIMIT - text->length) return false;
    memcpy(text->bytes + text->length, from, length);
    text->length += length;
    text->bytes[text->length] = '\0';
    return true;
}

/* The variable at "${NAME}", *end behind it; NULL when *why says why not. */
static const char *variable_at(const char *at, const char **end, struct why *why)
{
    const char *name = at + 2;
    size_t length = 0;
    while (isalnum((unsigned char)name[length]) || name[length] == '_') length++;
    char word[128];
    if (name[length] != '}' || length == 0 || length >= sizeof word) {
        no(why, STATUS_JOB, "%.60s: ${ wants the name of an environment variable and }", at);
        return NULL;
    }
    memcpy(word, name, length);
    word[length] = '\0';
    *end = name + length + 1;
    const char *value = getenv(word);
    if (!value) no(why, STATUS_JOB, "the environment has no variable %s", word);
    return value;
}

char *path_expand(const char *text, struct why *why)
{
    struct text out = {.length = 0};
    bool fits = true;
    while (*text && fits) {
        if (strncmp(text, "$${", 3) == 0) {
            fits = append(&out, "${", 2);
            text += 3;
        } else if (strncmp(text, "${", 2) == 0) {
            const char *end, *value = variable_at(text, &end, why);
            if (!value) return NULL;
            fits = append(&out, value, strlen(value));
            text = end;
        } else {
            fits = append(&out, text++, 1);
        }
    }
    const char *fault = !fits             ? "is longer than a path can be"
                        : out.length == 0 ? "is an empty path"
                        : text_fault(out.bytes, out.length, true)
                            ? "stands for a path with characters that are not printable UTF-8"
                            : NULL;
    char *copy = fault ? NULL : strdup(out.bytes);
    if (!copy) no(why, STATUS_JOB, "%s", fault ? fault : "out of memory");
    return copy;
}

char *path_escape(const char *path)
{
    char *out = malloc(2 * strlen(path) + 1), *at = out;
    if (!out) return NULL;
    for (; *path; path++) {
        if (strncmp(path, "${", 2) == 0) *at++ = '$';
        *at++ = *path;
    }
    *at = '\0';
    return out;
}

void path_list_free(struct path_list *list)
{
    for (size_t i = 0; i < list->count; i++) free(list->paths[i]);
    free((void *)list->paths);
    *list = (struct path_list){0};
}

/* Takes `path`. */
static int add_one(struct path_list *list, char *path, struct why *why)
{
    size_t bytes = path ? strlen(path) : 0;
    bool fits = list->count < PATHS_LIMIT && list->bytes + bytes <= PATHS_BYTES_LIMIT;
    char **paths = path && fits ? realloc((void *)list->paths, (list->count + 1) * sizeof *paths) : NULL;
    if (!paths) {
        free(path);
        if (!fits)
            return no(why, STATUS_JOB, "more than %d files, or names of more than %d bytes", PATHS_LIMIT,
                      PATHS_BYTES_LIMIT);
        return no(why, STATUS_INTERNAL, "out of memory");
    }
    list->paths = paths;
    paths[list->count++] = path;
    list->bytes += bytes;
    return 0;
}

static int add_matches(struct path_list *list, const char *pattern, struct why *why)
{
    glob_t found;
    int result = glob(pattern, 0, NULL, &found); /* sorted by strcoll, which in the C locale is by byte */
    if (result == GLOB_NOMATCH) return no(why, STATUS_MISSING, "%.180s matches no file", pattern);
    if (result) return no(why, STATUS_MISSING, "%.180s cannot be searched", pattern);
    int status = 0;
    for (size_t i = 0; i < found.gl_pathc && !status; i++) {
        const char *path = found.gl_pathv[i];
        if (text_fault(path, strlen(path), true))
            status = no(why, STATUS_JOB, "%.150s matches a file whose name is not printable UTF-8", pattern);
        else
            status = add_one(list, strdup(path), why);
    }
    globfree(&found);
    return status;
}

int path_list_add(struct path_list *list, const char *text, struct why *why)
{
    char *path = path_expand(text, why);
    if (!path) return -(int)STATUS_JOB;
    if (!strpbrk(path, "*?[") || access(path, F_OK) == 0) return add_one(list, path, why);
    int status = add_matches(list, path, why);
    free(path);
    return status;
}

int path_check_readable(const char *path)
{
    struct stat stat_of;
    if (stat(path, &stat_of) != 0) return errno;
    if (S_ISDIR(stat_of.st_mode)) return EISDIR;
    if (!S_ISREG(stat_of.st_mode)) return EINVAL;
    return access(path, R_OK) == 0 ? 0 : errno;
}
