#include "daemon/observe/message_json.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "daemon/observe/json_writer.h"

#define NAME_BYTES 96

static void camel(char to[NAME_BYTES], const char *name)
{
    size_t length = 0;
    bool upper = false;
    for (; *name != '\0' && length + 1 < NAME_BYTES; name++) {
        if (*name == '_') {
            upper = true;
            continue;
        }
        to[length++] = upper && *name >= 'a' && *name <= 'z' ? (char)(*name - 'a' + 'A') : *name;
        upper = false;
    }
    to[length] = '\0';
}

static void write_number(struct json_writer *json, const char *key, double value)
{
    if (isfinite(value))
        json_write_double(json, key, value);
    else
        json_write_string(json, key, isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
}

static void write_enum(struct json_writer *json, const char *key, const ProtobufCEnumDescriptor *type, int value)
{
    const ProtobufCEnumValue *known = protobuf_c_enum_descriptor_get_value(type, value);
    if (known)
        json_write_string(json, key, known->name);
    else
        json_write_signed(json, key, value);
}

static void write_message(struct json_writer *json, const char *key, const ProtobufCMessage *message);

/* The size of one, in an array of them. */
static size_t write_value(struct json_writer *json, const char *key, const ProtobufCFieldDescriptor *field,
                          const void *at)
{
    char text[24];
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        json_write_signed(json, key, *(const int32_t *)at);
        return sizeof(int32_t);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        json_write_unsigned(json, key, *(const uint32_t *)at);
        return sizeof(uint32_t);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        snprintf(text, sizeof text, "%" PRId64, *(const int64_t *)at);
        json_write_string(json, key, text);
        return sizeof(int64_t);
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        snprintf(text, sizeof text, "%" PRIu64, *(const uint64_t *)at);
        json_write_string(json, key, text);
        return sizeof(uint64_t);
    case PROTOBUF_C_TYPE_FLOAT:
        write_number(json, key, (double)*(const float *)at);
        return sizeof(float);
    case PROTOBUF_C_TYPE_DOUBLE:
        write_number(json, key, *(const double *)at);
        return sizeof(double);
    case PROTOBUF_C_TYPE_BOOL:
        json_write_bool(json, key, *(const protobuf_c_boolean *)at);
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_ENUM:
        write_enum(json, key, field->descriptor, *(const int *)at);
        return sizeof(int);
    case PROTOBUF_C_TYPE_STRING:
        json_write_string(json, key, *(char *const *)at ? *(char *const *)at : "");
        return sizeof(char *);
    case PROTOBUF_C_TYPE_MESSAGE:
        if (*(ProtobufCMessage *const *)at) write_message(json, key, *(ProtobufCMessage *const *)at);
        return sizeof(ProtobufCMessage *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    }
    return 0;
}

static void write_field(struct json_writer *json, const ProtobufCMessage *message,
                        const ProtobufCFieldDescriptor *field)
{
    char name[NAME_BYTES];
    const char *base = (const char *)message;
    camel(name, field->name);
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        const char *at = *(char *const *)(const void *)(base + field->offset);
        json_write_array(json, name);
        for (size_t left = *(const size_t *)(const void *)(base + field->quantifier_offset); left > 0; left--)
            at += write_value(json, NULL, field, at);
        json_write_array_end(json);
    } else if (!(field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) ||
               *(const uint32_t *)(const void *)(base + field->quantifier_offset) == field->id) {
        write_value(json, name, field, base + field->offset);
    }
}

static void write_message(struct json_writer *json, const char *key, const ProtobufCMessage *message)
{
    json_write_object(json, key);
    for (unsigned i = 0; i < message->descriptor->n_fields; i++)
        write_field(json, message, &message->descriptor->fields[i]);
    json_write_object_end(json);
}

char *message_json(const ProtobufCMessage *message, size_t *length)
{
    struct json_writer json;
    char *text;
    if (json_write_open(&json, &text, length)) return NULL;
    write_message(&json, NULL, message);
    return json_write_close(&json, &text) ? text : NULL;
}
