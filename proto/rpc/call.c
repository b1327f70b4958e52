/*
 * One call: messages in through its deframer, messages out through its queue.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/rpc/internal.h"

struct rpc_call *call_open(struct rpc_connection *connection, int32_t stream)
{
    struct rpc_call *call = calloc(1, sizeof *call);
    if (call == NULL) return NULL;
    call->connection = connection;
    call->stream = stream;
    call->deadline_milliseconds = -1;
    call->next = connection->calls;
    if (call->next != NULL) call->next->previous = call;
    connection->calls = call;
    return call;
}

void call_close(struct rpc_call *call)
{
    struct rpc_connection *connection = call->connection;
    call->over = call->local_ended = true;
    if (call->method != NULL && call->method->gone != NULL) call->method->gone(call, call->context);

    if (call->previous != NULL)
        call->previous->next = call->next;
    else
        connection->calls = call->next;
    if (call->next != NULL) call->next->previous = call->previous;
    connection->queued -= byte_queue_length(&call->queue);
    byte_queue_close(&call->queue);
    deframer_close(&call->deframer, &connection->receive);
    metadata_close(&call->metadata);
    free(call);
}

void call_settle(struct rpc_call *call, enum rpc_code code, const char *text)
{
    if (call->settled) return;
    call->settled = true;
    call->code = code;
    size_t length = text == NULL ? 0 : strlen(text);
    if (length >= sizeof call->text) { /* cut, but not inside a character of UTF-8 */
        length = sizeof call->text - 1;
        while (length > 0 && ((unsigned char)text[length] & 0xc0) == 0x80) length--;
    }
    if (length > 0) memcpy(call->text, text, length);
    call->text[length] = '\0';
}

static bool deliver(void *context, const uint8_t *message, size_t length)
{
    struct rpc_call *call = context;
    connection_make_up(call->connection, 1);
    if (call->heard && call->method->one_message) {
        call->connection->role->broken(call, RPC_UNIMPLEMENTED, "this method takes one message, and no second");
        return false;
    }
    call->heard = true;
    if (call->method->message != NULL) call->method->message(call, message, length, call->context);
    return !call->over;
}

static bool has_compression(const struct rpc_call *call)
{
    const char *encoding = rpc_call_metadata(call, "grpc-encoding");
    return encoding != NULL && strcmp(encoding, "identity") != 0;
}

void call_receive(struct rpc_call *call, const uint8_t *bytes, size_t length)
{
    if (call->over) return;
    const char *text = NULL;
    enum rpc_code code =
        deframer_feed(&call->deframer, &call->connection->receive, bytes, length, deliver, call, &text);
    if (code == RPC_OK) return;
    deframer_close(&call->deframer, &call->connection->receive);
    if (code == RPC_UNIMPLEMENTED && !has_compression(call)) {
        code = RPC_INTERNAL;
        text = "a message says that it is compressed, and grpc-encoding does not say how";
    }
    call->connection->role->broken(call, code, text);
}

/* nghttp2 asks how much of the body goes into the next DATA frame; the bytes follow in call_write_body. */
static ssize_t read_body(nghttp2_session *session, int32_t stream, uint8_t *buffer, size_t length, uint32_t *flags,
                         nghttp2_data_source *source, void *user)
{
    (void)session, (void)stream, (void)buffer, (void)user;
    struct rpc_call *call = source->ptr;
    size_t queued = byte_queue_length(&call->queue);
    if (queued == 0 && !call->local_ended) return NGHTTP2_ERR_DEFERRED;
    if (queued <= length && call->local_ended) call->connection->role->body_sent(call, flags);
    if (queued == 0) return 0;
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    return (ssize_t)(queued < length ? queued : length);
}

nghttp2_data_provider call_body(struct rpc_call *call)
{
    return (nghttp2_data_provider){.source = {.ptr = call}, .read_callback = read_body};
}

int call_write_body(struct rpc_call *call, const uint8_t *frame_header, size_t length)
{
    static const size_t header_length = 9; /* RFC 9113, 4.1 */
    struct byte_queue *output = &call->connection->output;
    uint8_t *to = byte_queue_reserve(output, header_length + length);
    if (to == NULL) return NGHTTP2_ERR_CALLBACK_FAILURE;
    memcpy(to, frame_header, header_length);
    memcpy(to + header_length, call->queue.bytes + call->queue.begin, length);
    output->end += header_length + length;
    byte_queue_take(&call->queue, length);
    call->connection->queued -= length;
    return 0;
}

int rpc_call_send(struct rpc_call *call, const uint8_t *message, size_t length)
{
    struct rpc_connection *connection = call->connection;
    if (call->local_ended || connection->closing) return -1;
    size_t room = connection->queued_max - connection->queued;
    if (room < FRAME_HEADER || length > room - FRAME_HEADER || length > UINT32_MAX) return -1;
    uint8_t *to = byte_queue_reserve(&call->queue, FRAME_HEADER + length);
    if (to == NULL) return -1;
    to[0] = 0;
    for (int i = 0; i < 4; i++) to[1 + i] = (uint8_t)(length >> (24 - 8 * i));
    if (length > 0) memcpy(to + FRAME_HEADER, message, length);
    bool was_idle = byte_queue_length(&call->queue) == 0;
    call->queue.end += FRAME_HEADER + length;
    connection->queued += FRAME_HEADER + length;
    if (!call->answered) {
        connection->role->answer(call);
    } else if (was_idle) {
        nghttp2_session_resume_data(connection->session, call->stream);
    }
    return 0;
}

size_t rpc_call_queued(const struct rpc_call *call)
{
    return byte_queue_length(&call->queue);
}

void call_end_body(struct rpc_call *call)
{
    call->local_ended = true;
    if (byte_queue_length(&call->queue) == 0) nghttp2_session_resume_data(call->connection->session, call->stream);
}

void call_reset(struct rpc_call *call, uint32_t http2_error)
{
    call->over = call->local_ended = true;
    connection_check(call->connection, nghttp2_submit_rst_stream(call->connection->session, NGHTTP2_FLAG_NONE,
                                                                 call->stream, http2_error));
}

/* As PROTOCOL-HTTP2 has it, a byte sequence that is incomplete is cancelled; else there can be a status. */
void call_expire(struct rpc_call *call)
{
    static const char text[] = "the call's time (grpc-timeout) is over";
    if (byte_queue_length(&call->queue) == 0) {
        rpc_call_finish(call, RPC_DEADLINE_EXCEEDED, text);
        return;
    }
    call->cancelled = true;
    call_settle(call, RPC_DEADLINE_EXCEEDED, text);
    call_reset(call, NGHTTP2_CANCEL);
}

void rpc_call_cancel(struct rpc_call *call)
{
    if (call->connection->closing || call->cancelled) return;
    call->cancelled = true;
    call_settle(call, RPC_CANCELLED, "cancelled by this end");
    call_reset(call, NGHTTP2_CANCEL);
}

const char *rpc_call_metadata(const struct rpc_call *call, const char *name)
{
    return metadata_get(&call->metadata, name);
}

int rpc_call_deadline(const struct rpc_call *call)
{
    return call->deadline_milliseconds;
}

const struct rpc_method *rpc_call_method(const struct rpc_call *call)
{
    return call->method;
}

enum rpc_code rpc_call_status(const struct rpc_call *call, const char **text)
{
    if (text != NULL) *text = call->text;
    return call->code;
}

bool rpc_call_was_refused(const struct rpc_call *call)
{
    return call->was_refused;
}

void rpc_call_set_user(struct rpc_call *call, void *user)
{
    call->user = user;
}

void *rpc_call_user(const struct rpc_call *call)
{
    return call->user;
}

struct rpc_connection *rpc_call_connection(const struct rpc_call *call)
{
    return call->connection;
}
