/*
 * A message as protobuf's JSON mapping has it: names in lowerCamelCase, 64-bit integers as strings, enumerations by
 * name, NaN and infinities as strings; fields that hold their default are there, too. Fields of bytes are left out.
 */
#ifndef GACC_MESSAGE_JSON_H
#define GACC_MESSAGE_JSON_H

#include <protobuf-c/protobuf-c.h>

/* free() it; NULL when memory is short. *length without the NUL. */
char *message_json(const ProtobufCMessage *message, size_t *length);

#endif
