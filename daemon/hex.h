/* Bytes as text: two hexadecimal digits each. */
#ifndef GACC_HEX_H
#define GACC_HEX_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* text: 2·count characters and the zero behind them. */
static inline void hex_write(const uint8_t *bytes, size_t count, char *text)
{
    text[0] = '\0';
    for (size_t i = 0; i < count; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

#endif
