/*
 * Writes one strict JSON object, member by member, in the order of the calls. jansson, which reads JSON here, prints
 * every double with the same number of digits; this writer prints the fewest that read back as the same bits.
 */
#ifndef GACC_JSON_WRITER_H
#define GACC_JSON_WRITER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Nesting deeper than this is a fault of ours. */
#define JSON_WRITER_DEPTH 31

struct json_writer {
    FILE *to;
    unsigned depth;
    uint32_t begun; /* bit d: the object or array at depth d has a member already */
};

/* Text that is written ends up in *out after json_write_close; free() it. */
int json_write_open(struct json_writer *json, char **out, size_t *length);
/* False when memory was short: *out is NULL then. */
bool json_write_close(struct json_writer *json, char **out);

/* key NULL: an element of an array, or the outermost object. */
void json_write_object(struct json_writer *json, const char *key);
void json_write_object_end(struct json_writer *json);
void json_write_array(struct json_writer *json, const char *key);
void json_write_array_end(struct json_writer *json);

/* NULL text is null. Bytes that are not UTF-8 become U+FFFD. */
void json_write_string(struct json_writer *json, const char *key, const char *text);
void json_write_hex(struct json_writer *json, const char *key, const uint8_t *bytes, size_t length);
void json_write_unsigned(struct json_writer *json, const char *key, uint64_t value);
void json_write_signed(struct json_writer *json, const char *key, int64_t value);
/* What is not finite is null; returns whether it was finite. */
bool json_write_double(struct json_writer *json, const char *key, double value);
void json_write_bool(struct json_writer *json, const char *key, bool value);
void json_write_null(struct json_writer *json, const char *key);

#endif
