#include "proto/rpc/metadata.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "proto/rpc/rpc.h"

static bool make_room(struct metadata *metadata, size_t more)
{
    size_t needed = metadata->length + more;
    if (needed > RPC_METADATA_MAX) return false;
    if (needed <= metadata->capacity) return true;
    size_t capacity = metadata->capacity == 0 ? 256 : metadata->capacity;
    while (capacity < needed) capacity *= 2;
    char *bytes = realloc(metadata->bytes, capacity);
    if (bytes == NULL) return false;
    metadata->bytes = bytes;
    metadata->capacity = capacity;
    return true;
}

static void add_text(struct metadata *metadata, const uint8_t *text, size_t length)
{
    memcpy(metadata->bytes + metadata->length, text, length);
    metadata->length += length;
    metadata->bytes[metadata->length++] = '\0';
}

void metadata_add(struct metadata *metadata, const uint8_t *name, size_t name_length, const uint8_t *value,
                  size_t value_length)
{
    if (metadata->overflowed || !make_room(metadata, name_length + value_length + 2)) {
        metadata->overflowed = true;
        return;
    }
    add_text(metadata, name, name_length);
    add_text(metadata, value, value_length);
}

const char *metadata_get(const struct metadata *metadata, const char *name)
{
    if (metadata->length == 0) return NULL;
    const char *field = metadata->bytes;
    const char *end = field + metadata->length;
    while (field < end) {
        const char *value = field + strlen(field) + 1;
        if (strcmp(field, name) == 0) return value;
        field = value + strlen(value) + 1;
    }
    return NULL;
}

void metadata_close(struct metadata *metadata)
{
    free(metadata->bytes);
    *metadata = (struct metadata){0};
}

void percent_encode(char *encoded, const char *text)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *const begin = text;
    for (; *text != '\0'; text++) {
        unsigned char byte = (unsigned char)*text;
        const bool is_edge = text == begin || text[1] == '\0';
        if (byte >= 0x20 && byte <= 0x7e && byte != '%' && !(byte == ' ' && is_edge)) {
            *encoded++ = (char)byte;
        } else {
            *encoded++ = '%';
            *encoded++ = digits[byte >> 4];
            *encoded++ = digits[byte & 15];
        }
    }
    *encoded = '\0';
}

static int hex_value(char digit)
{
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    return -1;
}

void percent_decode(char *text, size_t capacity, const char *encoded)
{
    size_t length = 0;
    while (*encoded != '\0' && length + 1 < capacity) {
        int high = encoded[0] == '%' ? hex_value(encoded[1]) : -1;
        int low = high >= 0 ? hex_value(encoded[2]) : -1;
        if (low >= 0) {
            text[length++] = (char)(high << 4 | low);
            encoded += 3;
        } else {
            text[length++] = *encoded++;
        }
    }
    text[length] = '\0';
}

static const struct {
    char letter;
    uint64_t nanoseconds;
} units[] = {
    {'n', 1}, {'u', 1000}, {'m', 1000000}, {'S', 1000000000}, {'M', 60000000000u}, {'H', 3600000000000u},
};

int timeout_parse(const char *text)
{
    uint64_t value = 0;
    size_t digits = 0;
    for (; isdigit((unsigned char)text[digits]); digits++) {
        if (digits == 8) return -1;
        value = value * 10 + (uint64_t)(text[digits] - '0');
    }
    if (digits == 0 || text[digits] == '\0' || text[digits + 1] != '\0') return -1;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (units[i].letter != text[digits]) continue;
        if (value > UINT64_MAX / 2 / units[i].nanoseconds) return INT_MAX;
        uint64_t milliseconds = (value * units[i].nanoseconds + 999999) / 1000000;
        return milliseconds > INT_MAX ? INT_MAX : (int)milliseconds;
    }
    return -1;
}

void timeout_print(char text[TIMEOUT_TEXT], uint32_t milliseconds)
{
    if (milliseconds <= 99999999) {
        snprintf(text, TIMEOUT_TEXT, "%um", milliseconds);
    } else {
        snprintf(text, TIMEOUT_TEXT, "%uS", milliseconds / 1000 + (milliseconds % 1000 != 0));
    }
}

bool content_type_is_grpc(const char *text)
{
    static const char wanted[] = "application/grpc";
    size_t length = sizeof wanted - 1;
    if (strncasecmp(text, wanted, length) != 0) return false;
    return text[length] == '\0' || text[length] == '+' || text[length] == ';';
}

static const char base64_alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void rpc_base64_encode(char *text, const uint8_t *bytes, size_t length)
{
    for (size_t i = 0; i < length; i += 3) {
        size_t left = length - i;
        uint32_t group = (uint32_t)bytes[i] << 16;
        if (left > 1) group |= (uint32_t)bytes[i + 1] << 8;
        if (left > 2) group |= bytes[i + 2];
        *text++ = base64_alphabet[group >> 18];
        *text++ = base64_alphabet[group >> 12 & 63];
        *text++ = left > 1 ? base64_alphabet[group >> 6 & 63] : '=';
        *text++ = left > 2 ? base64_alphabet[group & 63] : '=';
    }
    *text = '\0';
}

int rpc_base64_decode(uint8_t *bytes, size_t capacity, const char *text)
{
    size_t length = strlen(text);
    if (length % 4 == 0) {
        for (int padding = 0; padding < 2 && length > 0 && text[length - 1] == '='; padding++) length--;
    }
    size_t count = length / 4 * 3 + (length % 4 == 0 ? 0 : length % 4 - 1);
    if (length % 4 == 1 || count > capacity || count > INT_MAX) return -1;

    uint32_t group = 0;
    size_t written = 0;
    for (size_t i = 0; i < length; i++) {
        const char *digit = strchr(base64_alphabet, text[i]);
        if (digit == NULL) return -1;
        group = group << 6 | (uint32_t)(digit - base64_alphabet);
        if (i % 4 != 0) bytes[written++] = (uint8_t)(group >> (6 - 2 * (i % 4)));
    }
    return (int)count;
}
