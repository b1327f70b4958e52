/* Whole messages as values. */
#ifndef GACC_MESSAGE_H
#define GACC_MESSAGE_H

#include <protobuf-c/protobuf-c.h>

/* An own deep copy, freed with free_unpacked; NULL when memory is short. */
void *message_copy(const ProtobufCMessage *message);

/* What came over the wire, freed with free_unpacked; NULL: it is no such message, or memory is short, or it takes
 * `beyond` bytes more than its own: two bytes can say that there is one more message in a list. Nor is it one where a
 * string holds a NUL: whoever reads it would take it for a shorter one. */
void *message_unpack(const ProtobufCMessageDescriptor *descriptor, size_t length, const uint8_t *bytes, size_t beyond);

#endif
