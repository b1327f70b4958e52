#include "proto/rpc/framing.h"

#include <stdlib.h>
#include <string.h>

#define CAPACITY_MIN 512
#define CAPACITY_KEPT (1u << 10) /* a larger buffer is given back when it is empty */

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static enum rpc_code check_header(struct deframer *deframer, const struct receive_budget *budget, const char **text)
{
    const uint8_t *header = deframer->header;
    if (header[0] > 1) {
        *text = "a message's compression flag is neither 0 nor 1";
        return RPC_INTERNAL;
    }
    if (header[0] == 1) {
        *text = "compressed messages are not supported";
        return RPC_UNIMPLEMENTED;
    }
    deframer->length = (size_t)header[1] << 24 | (size_t)header[2] << 16 | (size_t)header[3] << 8 | header[4];
    if (deframer->length > budget->message_max) {
        *text = "the message is larger than this end takes";
        return RPC_RESOURCE_EXHAUSTED;
    }
    return RPC_OK;
}

/* Doubles up to the message's length. */
static bool make_room(struct deframer *deframer, struct receive_budget *budget, size_t needed)
{
    if (needed <= deframer->capacity) return true;
    size_t capacity = deframer->capacity < CAPACITY_MIN ? CAPACITY_MIN : 2 * deframer->capacity;
    while (capacity < needed) capacity *= 2;
    size_t more = capacity - deframer->capacity;
    if (more > budget->held_max - budget->held) return false;
    uint8_t *buffer = realloc(deframer->buffer, capacity);
    if (buffer == NULL) return false;
    budget->held += more;
    deframer->buffer = buffer;
    deframer->capacity = capacity;
    return true;
}

static void next_message(struct deframer *deframer)
{
    deframer->header_filled = 0;
    deframer->length = deframer->filled = 0;
}

enum rpc_code deframer_feed(struct deframer *deframer, struct receive_budget *budget, const uint8_t *bytes,
                            size_t length, deframer_sink *sink, void *context, const char **text)
{
    const uint8_t *end = bytes + length;
    while (bytes < end) {
        if (deframer->header_filled < FRAME_HEADER) {
            size_t take = smaller((size_t)(FRAME_HEADER - deframer->header_filled), (size_t)(end - bytes));
            memcpy(deframer->header + deframer->header_filled, bytes, take);
            deframer->header_filled = (uint8_t)(deframer->header_filled + take);
            bytes += take;
            if (deframer->header_filled < FRAME_HEADER) return RPC_OK;
            enum rpc_code code = check_header(deframer, budget, text);
            if (code != RPC_OK) return code;
        }
        const uint8_t *message = bytes;
        size_t take = smaller(deframer->length - deframer->filled, (size_t)(end - bytes));
        bytes += take;
        if (take < deframer->length) { /* else whole and in place: handed on without a copy */
            if (take == 0) return RPC_OK;
            if (!make_room(deframer, budget, deframer->filled + take)) {
                *text = "too many bytes in half-received messages";
                return RPC_RESOURCE_EXHAUSTED;
            }
            memcpy(deframer->buffer + deframer->filled, message, take);
            deframer->filled += take;
            if (deframer->filled < deframer->length) return RPC_OK;
            message = deframer->buffer;
        }
        size_t message_length = deframer->length;
        next_message(deframer);
        bool wanted = sink(context, message, message_length);
        if (deframer->capacity > CAPACITY_KEPT) deframer_close(deframer, budget);
        if (!wanted) return RPC_OK;
    }
    return RPC_OK;
}

bool deframer_at_boundary(const struct deframer *deframer)
{
    return deframer->header_filled == 0;
}

void deframer_close(struct deframer *deframer, struct receive_budget *budget)
{
    budget->held -= deframer->capacity;
    free(deframer->buffer);
    *deframer = (struct deframer){0};
}

uint8_t *byte_queue_reserve(struct byte_queue *queue, size_t length)
{
    if (length <= queue->capacity - queue->end) return queue->bytes + queue->end;

    size_t used = byte_queue_length(queue);
    if (length <= queue->capacity - used && queue->begin >= used) { /* moving what is left is cheaper than growing */
        memcpy(queue->bytes, queue->bytes + queue->begin, used);
    } else {
        size_t capacity = queue->capacity < CAPACITY_MIN ? CAPACITY_MIN : queue->capacity;
        while (capacity - used < length) capacity *= 2;
        uint8_t *bytes = malloc(capacity);
        if (bytes == NULL) return NULL;
        if (used > 0) memcpy(bytes, queue->bytes + queue->begin, used);
        free(queue->bytes);
        queue->bytes = bytes;
        queue->capacity = capacity;
    }
    queue->begin = 0;
    queue->end = used;
    return queue->bytes + queue->end;
}

void byte_queue_take(struct byte_queue *queue, size_t length)
{
    queue->begin += length;
    if (queue->begin < queue->end) return;
    queue->begin = queue->end = 0;
    if (queue->capacity > CAPACITY_KEPT) byte_queue_close(queue);
}

void byte_queue_close(struct byte_queue *queue)
{
    free(queue->bytes);
    *queue = (struct byte_queue){0};
}
