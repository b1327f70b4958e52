#include "proto/message.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void *message_copy(const ProtobufCMessage *message)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(size + 1);
    if (!bytes) return NULL;
    protobuf_c_message_pack(message, bytes);
    void *copy = protobuf_c_message_unpack(message->descriptor, NULL, size, bytes);
    free(bytes);
    return copy;
}

#define BOOKKEEPING 16 /* bytes of malloc's own beside each */

struct budget {
    ProtobufCAllocator allocator;
    size_t left;
};

static void *take(void *context, size_t size)
{
    struct budget *budget = context;
    if (budget->left < BOOKKEEPING || size > budget->left - BOOKKEEPING) return NULL;
    budget->left -= size + BOOKKEEPING;
    return calloc(1, size); /* protobuf-c 1.4 counts on zeros */
}

static void give_back(void *context, void *memory)
{
    (void)context;
    free(memory);
}

/* ---- strings that are cut ---- */

enum { VARINT, EIGHT_BYTES, DELIMITED, FOUR_BYTES = 5 }; /* wire types */

struct wire {
    const uint8_t *at, *end;
};

/* 0 at the end. */
static uint64_t next_varint(struct wire *wire)
{
    uint64_t value = 0;
    for (unsigned shift = 0; wire->at < wire->end && shift < 64; shift += 7) {
        const uint8_t byte = *wire->at++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) break;
    }
    return value;
}

static void skip(struct wire *wire, uint64_t bytes)
{
    const size_t left = (size_t)(wire->end - wire->at);
    wire->at += bytes < left ? bytes : left;
}

/* Of what has been unpacked: fields and depth are those of the descriptor. */
static bool has_cut_string(const ProtobufCMessageDescriptor *descriptor, struct wire wire)
{
    while (wire.at < wire.end) {
        const uint64_t tag = next_varint(&wire);
        const uint64_t length = (tag & 7) == EIGHT_BYTES ? 8 : (tag & 7) == FOUR_BYTES ? 4 : next_varint(&wire);
        if ((tag & 7) == VARINT) continue;
        struct wire inside = wire;
        skip(&wire, length);
        inside.end = wire.at;
        const ProtobufCFieldDescriptor *field =
            (tag & 7) == DELIMITED ? protobuf_c_message_descriptor_get_field(descriptor, (unsigned)(tag >> 3)) : NULL;
        if (!field) continue;
        if (field->type == PROTOBUF_C_TYPE_STRING && memchr(inside.at, '\0', (size_t)(inside.end - inside.at)))
            return true;
        if (field->type == PROTOBUF_C_TYPE_MESSAGE && has_cut_string(field->descriptor, inside)) return true;
    }
    return false;
}

void *message_unpack(const ProtobufCMessageDescriptor *descriptor, size_t length, const uint8_t *bytes, size_t beyond)
{
    struct budget budget = {.left = length + beyond};
    budget.allocator = (ProtobufCAllocator){take, give_back, &budget};
    ProtobufCMessage *message = protobuf_c_message_unpack(descriptor, &budget.allocator, length, bytes);
    if (!message || !has_cut_string(descriptor, (struct wire){bytes, bytes + length})) return message;
    protobuf_c_message_free_unpacked(message, NULL);
    return NULL;
}
