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
