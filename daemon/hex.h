/* Bytes as text: two hexadecimal digits (0-9a-f) each. */
#ifndef GACC_HEX_H
#define GACC_HEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* text: 2·count characters and the zero behind them. */
static inline void hex_write(const uint8_t *bytes, size_t count, char *text)
{
    text[0] = '\0';
    for (size_t i = 0; i < count; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

/* The other way; false unless text is exactly the digits of `count` bytes. */
static inline bool hex_read(const char *text, uint8_t *bytes, size_t count)
{
    if (strlen(text) != 2 * count || strspn(text, "0123456789abcdef") != 2 * count) return false;
    for (size_t i = 0; i < count; i++) {
        const char pair[] = {text[2 * i], text[2 * i + 1], '\0'};
        bytes[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return true;
}

#endif
