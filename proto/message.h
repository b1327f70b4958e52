/* Whole messages as values. */
#ifndef GACC_MESSAGE_H
#define GACC_MESSAGE_H

#include <protobuf-c/protobuf-c.h>

/* An own deep copy, freed with free_unpacked; NULL when memory is short. */
void *message_copy(const ProtobufCMessage *message);

#endif
