/*
 * gRPC's message framing: one flag byte, a big-endian 32-bit length, the message. `struct deframer` takes it apart
 * however the bytes were cut; `struct byte_queue` holds framed messages until HTTP/2 has room for them.
 */
#ifndef GACC_RPC_FRAMING_H
#define GACC_RPC_FRAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/rpc/rpc.h"

#define FRAME_HEADER 5

struct deframer {
    uint8_t header[FRAME_HEADER];
    uint8_t header_filled;
    size_t length; /* of the message being received, once its header is complete */
    size_t filled;
    uint8_t *buffer; /* grows with the bytes that came, never with the length announced */
    size_t capacity;
};

/* What all deframers of one connection may hold together, and what one message may measure. */
struct receive_budget {
    size_t held;
    size_t held_max;
    size_t message_max;
};

/* One whole message; false: stop here, the rest of the input is not wanted. */
typedef bool deframer_sink(void *context, const uint8_t *message, size_t length);

/* RPC_OK, or the status to end the call with and *text. */
enum rpc_code deframer_feed(struct deframer *deframer, struct receive_budget *budget, const uint8_t *bytes,
                            size_t length, deframer_sink *sink, void *context, const char **text);
/* No message is half received. */
bool deframer_at_boundary(const struct deframer *deframer);
void deframer_close(struct deframer *deframer, struct receive_budget *budget);

struct byte_queue {
    uint8_t *bytes;
    size_t begin, end, capacity;
};

/* Room for `length` more bytes at the returned place (then add them to end), NULL: no memory. */
uint8_t *byte_queue_reserve(struct byte_queue *queue, size_t length);
void byte_queue_take(struct byte_queue *queue, size_t length); /* from the front */
void byte_queue_close(struct byte_queue *queue);

static inline size_t byte_queue_length(const struct byte_queue *queue)
{
    return queue->end - queue->begin;
}

#endif
