#include "proto/message.h"

#include <stdlib.h>

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

void *message_unpack(const ProtobufCMessageDescriptor *descriptor, size_t length, const uint8_t *bytes, size_t beyond)
{
    struct budget budget = {.left = length + beyond};
    budget.allocator = (ProtobufCAllocator){take, give_back, &budget};
    return protobuf_c_message_unpack(descriptor, &budget.allocator, length, bytes);
}
