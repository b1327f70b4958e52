#include "proto/error.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void keep_one_line(char *text)
{
    for (; *text; text++)
        if (iscntrl((unsigned char)*text)) *text = '?';
}

int error_set(struct error *error, enum status status, const char *format, ...)
{
    if (error) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error->text, sizeof error->text, format, arguments);
        va_end(arguments);
        keep_one_line(error->text);
        error->status = status;
    }
    return -(int)status;
}

int error_set_errno(struct error *error, enum status status, int number, const char *format, ...)
{
    if (error) {
        va_list arguments;
        va_start(arguments, format);
        char reason[128];
        snprintf(reason, sizeof reason, ": %s", strerror(number));
        const size_t room = sizeof error->text - strlen(reason); /* a long text is cut, its reason is not */
        vsnprintf(error->text, room, format, arguments);
        va_end(arguments);
        strcat(error->text, reason);
        keep_one_line(error->text);
        error->status = status;
    }
    return -(int)status;
}

enum status status_received(uint32_t number)
{
    static const enum status known[] = {STATUS_USAGE,       STATUS_DATA,     STATUS_MISSING,
                                        STATUS_UNAVAILABLE, STATUS_INTERNAL, STATUS_IO,
                                        STATUS_AGAIN,       STATUS_NUMERICS, STATUS_JOB};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (number == (uint32_t)known[i]) return known[i];
    return STATUS_INTERNAL;
}

int error_received(struct error *error, uint32_t number, const char *text)
{
    return error_set(error, status_received(number), "%s", text && *text ? text : "failed and did not say why");
}

int error_prefix(struct error *error, const char *format, ...)
{
    if (!error) return -(int)STATUS_INTERNAL;
    char before[sizeof error->text];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(before, sizeof before, format, arguments);
    va_end(arguments);
    keep_one_line(before);
    size_t length = strlen(before);
    size_t room = sizeof error->text - 1;
    if (length + 2 < room) {
        size_t keep = strnlen(error->text, room - length - 2);
        memmove(error->text + length + 2, error->text, keep);
        memcpy(error->text, before, length);
        memcpy(error->text + length, ": ", 2);
        error->text[length + 2 + keep] = '\0';
    }
    return -(int)error->status;
}
