/* Any bytes from the peer, to either end of gRPC: each call that began is gone once, memory stays within its caps, and
 * an end that is through says so. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/rpc/rpc.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static const struct rpc_limits limits = {.streams = 4, .message_bytes = 64, .queue_bytes = 256};

struct tally {
    int begun, gone;
};

static void begin(struct rpc_call *call, void *context)
{
    struct tally *tally = context;
    tally->begun++;
    if (rpc_call_deadline(call) == 0) rpc_call_finish(call, RPC_DEADLINE_EXCEEDED, "too late");
}

/* Echoes; the first byte of a message may ask for something else. */
static void message(struct rpc_call *call, const uint8_t *bytes, size_t length, void *context)
{
    (void)context;
    if (length > limits.message_bytes) abort();
    switch (length > 0 ? bytes[0] : 0) {
    case 'c':
        rpc_call_cancel(call);
        break;
    case 'f':
        rpc_call_finish(call, RPC_NOT_FOUND, "100 %\n");
        break;
    case 'd':
        rpc_drain(rpc_call_connection(call));
        break;
    default:
        if (rpc_call_send(call, bytes, length) < 0) rpc_call_finish(call, RPC_RESOURCE_EXHAUSTED, "slow");
    }
}

static void end(struct rpc_call *call, void *context)
{
    (void)context;
    rpc_call_finish(call, RPC_OK, NULL);
}

static void gone(struct rpc_call *call, void *context)
{
    struct tally *tally = context;
    const char *text;
    if (rpc_call_status(call, &text) > RPC_UNAUTHENTICATED || strlen(text) >= RPC_TEXT_MAX) abort();
    tally->gone++;
}

static void client_message(struct rpc_call *call, const uint8_t *bytes, size_t length, void *context)
{
    (void)context;
    if (length > limits.message_bytes) abort();
    if (length > 0 && bytes[0] == 'c')
        rpc_call_cancel(call);
    else
        rpc_call_send(call, bytes, length);
}

static const struct rpc_method methods[] = {
    {.path = "/t.T/Echo", .begin = begin, .message = message, .end = end, .gone = gone}, {0}};
static const struct rpc_method echo = {.path = "/t.T/Echo", .message = client_message, .gone = gone};

static void drain_output(struct rpc_connection *connection)
{
    const uint8_t *output;
    for (size_t length; (length = rpc_output(connection, &output)) > 0;) {
        if (output == NULL || length > RPC_OUTPUT_ROUND + (64u << 10)) abort();
    }
}

static void feed(struct rpc_connection *connection, const uint8_t *bytes, size_t size, size_t cut)
{
    struct error error;
    for (size_t done = 0, take; done < size; done += take) {
        take = size - done < cut ? size - done : cut;
        int result = rpc_input(connection, bytes + done, take, &error);
        drain_output(connection);
        if (result != 0) {
            if (error.text[0] == '\0' || !rpc_wants_close(connection)) abort();
            break;
        }
    }
    rpc_close(connection);
}

static void feed_server(const uint8_t *bytes, size_t size, size_t cut)
{
    static const uint8_t preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    struct rpc_connection *connection;
    struct tally tally = {0};
    struct error error;
    if (rpc_server_open(&connection, methods, &tally, &limits, &error) != 0) abort();
    if (rpc_input(connection, preface, sizeof preface - 1, &error) != 0) abort();
    feed(connection, bytes, size, cut);
    if (tally.begun != tally.gone) abort();
}

static void feed_client(const uint8_t *bytes, size_t size, size_t cut)
{
    struct rpc_connection *connection;
    struct tally tally = {0};
    struct error error;
    if (rpc_client_open(&connection, "localhost", &limits, &error) != 0) abort();
    for (; tally.begun < 3; tally.begun++) {
        struct rpc_call *call = rpc_call_begin(connection, &echo, &tally, NULL, 0);
        if (call == NULL) abort();
        rpc_call_send(call, (const uint8_t *)"hello", 5);
        if (tally.begun == 2) rpc_call_half_close(call);
    }
    drain_output(connection);
    feed(connection, bytes, size, cut);
    if (tally.begun != tally.gone) abort();
}

/* The first byte chooses the end (bit 0) and how the bytes are cut. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const size_t cuts[] = {1, 2, 7, SIZE_MAX};
    if (size == 0) return 0;
    (bytes[0] & 1 ? feed_client : feed_server)(bytes + 1, size - 1, cuts[bytes[0] >> 1 & 3]);
    return 0;
}
