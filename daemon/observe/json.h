/*
 * Writes one strict JSON object, member by member, in the order of the calls. jansson, which reads JSON here, prints
 * every double with the same number of digits; this writer prints the fewest that read back as the same bits.
 */
#ifndef GACC_JSON_H
#define GACC_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Nesting deeper than this is a fault of ours. */
#define JSON_DEPTH 31

struct json {
    FILE *to;
    unsigned depth;
    uint32_t begun; /* bit d: the object or array at depth d has a member already */
};

/* Text that is written ends up in *out after json_close; free() it. */
int json_open(struct json *json, char **out, size_t *length);
/* False when memory was short: *out is NULL then. */
bool json_close(struct json *json, char **out);

/* key NULL: an element of an array, or the outermost object. */
void json_object(struct json *json, const char *key);
void json_object_end(struct json *json);
void json_array(struct json *json, const char *key);
void json_array_end(struct json *json);

/* NULL text is null. Bytes that are not UTF-8 become U+FFFD. */
void json_string(struct json *json, const char *key, const char *text);
void json_hex(struct json *json, const char *key, const uint8_t *bytes, size_t length);
void json_unsigned(struct json *json, const char *key, uint64_t value);
void json_signed(struct json *json, const char *key, int64_t value);
/* What is not finite is null; returns whether it was finite. */
bool json_double(struct json *json, const char *key, double value);
void json_bool(struct json *json, const char *key, bool value);
void json_null(struct json *json, const char *key);

#endif
