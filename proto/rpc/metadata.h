/*
 * The header fields of one call as the peer sent them, and the encodings gRPC uses inside header values.
 */
#ifndef GACC_RPC_METADATA_H
#define GACC_RPC_METADATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* name, NUL, value, NUL, …; RPC_METADATA_MAX bytes at most. */
struct metadata {
    char *bytes;
    size_t length, capacity;
    bool overflowed; /* a field did not fit, or no memory */
};

void metadata_add(struct metadata *metadata, const uint8_t *name, size_t name_length, const uint8_t *value,
                  size_t value_length);
const char *metadata_get(const struct metadata *metadata, const char *name);
void metadata_close(struct metadata *metadata);

/* grpc-message: bytes outside printable ASCII, '%', and a space at either end, which HTTP would strip, as %XX.
 * `encoded` holds 3·strlen(text)+1 characters. Decoding is in place sized: `text` of `capacity` characters; a malformed
 * %XX is kept as it is. */
void percent_encode(char *encoded, const char *text);
void percent_decode(char *text, size_t capacity, const char *encoded);

/* grpc-timeout: 1 to 8 digits and one of H M S m u n. Milliseconds, rounded up, at most INT_MAX; −1: malformed. */
int timeout_parse(const char *text);
#define TIMEOUT_TEXT 16
void timeout_print(char text[TIMEOUT_TEXT], uint32_t milliseconds);

/* "application/grpc", also with a +suffix or a ;parameter. */
bool content_type_is_grpc(const char *text);

#endif
