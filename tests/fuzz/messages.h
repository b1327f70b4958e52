/* A conversation in a fuzzer's input: messages one after the other, each behind a byte that says who sent it and the
 * two bytes (low one first) of its length; the last one may be cut. */
#ifndef GACC_TEST_MESSAGES_H
#define GACC_TEST_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct messages {
    const uint8_t *bytes;
    size_t size;
};

struct one_message {
    const uint8_t *bytes;
    size_t size;
    uint8_t sender;
};

/* Takes the first one off; false: there is none left. */
static inline bool messages_next(struct messages *messages, struct one_message *one)
{
    if (messages->size < 3) return false;
    size_t length = messages->bytes[1] | (size_t)messages->bytes[2] << 8;
    if (length > messages->size - 3) length = messages->size - 3;
    *one = (struct one_message){.sender = messages->bytes[0], .bytes = messages->bytes + 3, .size = length};
    messages->bytes += 3 + length;
    messages->size -= 3 + length;
    return true;
}

#endif
