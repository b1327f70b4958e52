/* Any bytes to gRPC's deframer, however they are cut: the messages are those that a reader of the whole finds, the
 * status is his, and no more is held than the budget allows. */
#include <stdlib.h>
#include <string.h>

#include "proto/rpc/framing.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { MESSAGE_MAX = 200, HELD_MAX = 700 }; /* of capacities: 512, and no second one */

struct found {
    const uint8_t *at; /* behind the last whole message, in the input */
    size_t messages;
    bool has_stopped;
};

/* One that begins with 's' is the last that is wanted. */
static bool take(struct found *found, const uint8_t *message, size_t length)
{
    const uint8_t *expected = found->at + FRAME_HEADER;
    if (length > MESSAGE_MAX || (length > 0 && memcmp(message, expected, length) != 0)) abort();
    found->at = expected + length;
    found->messages++;
    found->has_stopped = length > 0 && message[0] == 's';
    return !found->has_stopped;
}

static bool sink(void *context, const uint8_t *message, size_t length)
{
    return take(context, message, length);
}

/* By the protocol's words alone. */
static enum rpc_code read_whole(struct found *found, const uint8_t *end)
{
    while (end - found->at >= FRAME_HEADER) {
        const uint8_t *header = found->at;
        if (header[0] > 1) return RPC_INTERNAL;
        if (header[0] == 1) return RPC_UNIMPLEMENTED;
        const uint64_t length =
            (uint64_t)header[1] << 24 | (uint64_t)header[2] << 16 | (uint64_t)header[3] << 8 | header[4];
        if (length > MESSAGE_MAX) return RPC_RESOURCE_EXHAUSTED;
        if ((uint64_t)(end - header) < FRAME_HEADER + length) return RPC_OK;
        if (!take(found, header + FRAME_HEADER, (size_t)length)) return RPC_OK;
    }
    return RPC_OK;
}

/* The first byte says how the others are cut. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size == 0) return 0;
    const size_t cut = 1 + bytes[0];
    const uint8_t *begin = bytes + 1, *end = bytes + size;
    struct found wanted = {begin, 0, false}, found = {begin, 0, false};
    const enum rpc_code code = read_whole(&wanted, end);

    struct deframer deframer = {0};
    struct receive_budget budget = {.held_max = HELD_MAX, .message_max = MESSAGE_MAX};
    const char *text = NULL;
    enum rpc_code got = RPC_OK;
    for (const uint8_t *at = begin; at < end && got == RPC_OK && !found.has_stopped;) {
        const size_t length = (size_t)(end - at) < cut ? (size_t)(end - at) : cut;
        uint8_t *piece = malloc(length); /* of its own: what lies behind it is no part of it */
        if (!piece) abort();
        memcpy(piece, at, length);
        got = deframer_feed(&deframer, &budget, piece, length, sink, &found, &text);
        free(piece);
        if (budget.held > HELD_MAX || budget.held != deframer.capacity) abort();
        at += length;
    }
    if (got != code || found.at != wanted.at || found.messages != wanted.messages) abort();
    if ((got != RPC_OK) != (text != NULL)) abort();
    if (got == RPC_OK && !found.has_stopped && deframer_at_boundary(&deframer) != (found.at == end)) abort();
    deframer_close(&deframer, &budget);
    if (budget.held != 0) abort();
    return 0;
}
