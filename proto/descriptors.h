/*
 * The descriptors of all .proto files that the program serves, as protoc made them, built into the program: what server
 * reflection hands out. Read once; nothing here is written after descriptors_open.
 */
#ifndef GACC_DESCRIPTORS_H
#define GACC_DESCRIPTORS_H

#include <stddef.h>

#include <protobuf-c/protobuf-c.h>

#include "proto/error.h"

struct descriptors;

int descriptors_open(struct descriptors **out, struct error *error);
void descriptors_close(struct descriptors *descriptors); /* NULL is allowed */
size_t descriptors_count(const struct descriptors *descriptors);

/* A file by its name ("gacc/v1/control.proto"), or that which declares a full name: service, method, message, field,
 * enumeration or oneof, without a leading dot. Its number, −1: there is none. */
int descriptors_find_file(const struct descriptors *descriptors, const char *name);
int descriptors_find_symbol(const struct descriptors *descriptors, const char *symbol);
int descriptors_find_message(const struct descriptors *descriptors, const char *symbol); /* messages only */

/* The serialized FileDescriptorProtos of a file and of all it imports, itself first: borrowed. `files` holds
 * descriptors_count of them. Returns how many. */
size_t descriptors_closure(const struct descriptors *descriptors, int file, ProtobufCBinaryData *files);

#endif
