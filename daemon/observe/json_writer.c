#include "daemon/observe/json_writer.h"

#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The length of the UTF-8 sequence at text, 0 when there is none (RFC 3629: no overlong forms, no surrogates). */
static size_t utf8_length(const unsigned char *text)
{
    static const struct {
        unsigned char low, high, second_low, second_high;
        size_t length;
    } forms[] = {
        {0x01, 0x7F, 0x80, 0xBF, 1}, {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3},
        {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3},
        {0xF0, 0xF0, 0x90, 0xBF, 4}, {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (*text < forms[i].low || *text > forms[i].high) continue;
        if (forms[i].length > 1 && (text[1] < forms[i].second_low || text[1] > forms[i].second_high)) return 0;
        for (size_t k = 2; k < forms[i].length; k++)
            if (text[k] < 0x80 || text[k] > 0xBF) return 0;
        return forms[i].length;
    }
    return 0;
}

static void quoted(FILE *to, const char *string)
{
    fputc('"', to);
    const unsigned char *text = (const unsigned char *)string;
    while (*text) {
        size_t length = utf8_length(text);
        if (length == 0)
            fputs("\\ufffd", to);
        else if (*text == '"' || *text == '\\')
            fprintf(to, "\\%c", *text);
        else if (*text < 0x20)
            fprintf(to, "\\u%04x", *text);
        else
            fwrite(text, 1, length, to);
        text += length ? length : 1;
    }
    fputc('"', to);
}

static void before(struct json_writer *json, const char *key)
{
    uint32_t bit = 1U << json->depth;
    if (json->begun & bit) fputc(',', json->to);
    json->begun |= bit;
    if (!key) return;
    quoted(json->to, key);
    fputc(':', json->to);
}

static void enter(struct json_writer *json, const char *key, char bracket)
{
    before(json, key);
    assert(json->depth < JSON_WRITER_DEPTH);
    fputc(bracket, json->to);
    json->begun &= ~(1U << ++json->depth);
}

static void leave(struct json_writer *json, char bracket)
{
    json->depth--;
    fputc(bracket, json->to);
}

int json_write_open(struct json_writer *json, char **out, size_t *length)
{
    *out = NULL;
    *json = (struct json_writer){.to = open_memstream(out, length)};
    return json->to ? 0 : -1;
}

bool json_write_close(struct json_writer *json, char **out)
{
    bool failed = ferror(json->to) != 0;
    failed |= fclose(json->to) != 0;
    if (failed) {
        free(*out);
        *out = NULL;
    }
    return !failed;
}

void json_write_object(struct json_writer *json, const char *key)
{
    enter(json, key, '{');
}

void json_write_object_end(struct json_writer *json)
{
    leave(json, '}');
}

void json_write_array(struct json_writer *json, const char *key)
{
    enter(json, key, '[');
}

void json_write_array_end(struct json_writer *json)
{
    leave(json, ']');
}

void json_write_string(struct json_writer *json, const char *key, const char *text)
{
    if (!text) {
        json_write_null(json, key);
        return;
    }
    before(json, key);
    quoted(json->to, text);
}

void json_write_hex(struct json_writer *json, const char *key, const uint8_t *bytes, size_t length)
{
    before(json, key);
    fputc('"', json->to);
    for (size_t i = 0; i < length; i++) fprintf(json->to, "%02x", bytes[i]);
    fputc('"', json->to);
}

void json_write_unsigned(struct json_writer *json, const char *key, uint64_t value)
{
    before(json, key);
    fprintf(json->to, "%" PRIu64, value);
}

void json_write_signed(struct json_writer *json, const char *key, int64_t value)
{
    before(json, key);
    fprintf(json->to, "%" PRId64, value);
}

bool json_write_double(struct json_writer *json, const char *key, double value)
{
    if (!isfinite(value)) {
        json_write_null(json, key);
        return false;
    }
    before(json, key);
    char text[40];
    /* Any 15 digits survive a normal double, and %g drops trailing zeros; subnormal ones hold fewer. 17 always suffice.
     */
    for (int digits = fabs(value) < DBL_MIN ? 1 : DBL_DIG; digits <= DBL_DECIMAL_DIG; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    fputs(text, json->to);
    if (!strpbrk(text, ".e")) fputs(".0", json->to); /* a real stays one for readers that tell them apart */
    return true;
}

void json_write_bool(struct json_writer *json, const char *key, bool value)
{
    before(json, key);
    fputs(value ? "true" : "false", json->to);
}

void json_write_null(struct json_writer *json, const char *key)
{
    before(json, key);
    fputs("null", json->to);
}
