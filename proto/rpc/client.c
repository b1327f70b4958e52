/*
 * The client's half of gRPC: requests out, responses and their status in.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/rpc/internal.h"

#define METADATA_PAIRS 16

static enum rpc_code code_of_http_status(const char *status)
{
    /* grpc/doc/http-grpc-status-mapping.md */
    static const struct {
        const char *status;
        enum rpc_code code;
    } table[] = {
        {"400", RPC_INTERNAL},      {"401", RPC_UNAUTHENTICATED}, {"403", RPC_PERMISSION_DENIED},
        {"404", RPC_UNIMPLEMENTED}, {"429", RPC_UNAVAILABLE},     {"502", RPC_UNAVAILABLE},
        {"503", RPC_UNAVAILABLE},   {"504", RPC_UNAVAILABLE},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (strcmp(table[i].status, status) == 0) return table[i].code;
    }
    return RPC_UNKNOWN;
}

static enum rpc_code code_of_reset(uint32_t http2_error)
{
    switch (http2_error) { /* PROTOCOL-HTTP2, "Errors" */
    case NGHTTP2_REFUSED_STREAM:
        return RPC_UNAVAILABLE;
    case NGHTTP2_CANCEL:
        return RPC_CANCELLED;
    case NGHTTP2_ENHANCE_YOUR_CALM:
        return RPC_RESOURCE_EXHAUSTED;
    case NGHTTP2_INADEQUATE_SECURITY:
        return RPC_PERMISSION_DENIED;
    default:
        return RPC_INTERNAL;
    }
}

static void broken(struct rpc_call *call, enum rpc_code code, const char *text)
{
    connection_nuisance(call->connection, NUISANCE_RESET);
    call_settle(call, code, text);
    call_reset(call, NGHTTP2_CANCEL);
}

static void headers(struct rpc_call *call, bool last)
{
    call->remote_ended = last;
    if (call->over) return;
    if (call->metadata.overflowed) {
        broken(call, RPC_RESOURCE_EXHAUSTED, "the metadata are larger than this end takes");
        return;
    }
    const char *status = rpc_call_metadata(call, ":status");
    if (status != NULL && status[0] == '1') { /* an interim response */
        call->metadata.length = 0;
        return;
    }
    const char *type = rpc_call_metadata(call, "content-type");
    if (status == NULL || strcmp(status, "200") != 0) {
        broken(call, code_of_http_status(status == NULL ? "" : status), "the answer's HTTP status is not 200");
    } else if (type == NULL || !content_type_is_grpc(type)) {
        broken(call, RPC_UNKNOWN, "the answer's content-type is not application/grpc");
    }
}

static void ended(struct rpc_call *call)
{
    call->remote_ended = true;
}

static bool parse_code(const char *text, enum rpc_code *code)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0') return false;
    *code = value >= 0 && value <= RPC_UNAUTHENTICATED ? (enum rpc_code)value : RPC_UNKNOWN;
    return true;
}

static void closed(struct rpc_call *call, uint32_t http2_error)
{
    if (call->settled) return;
    call->was_refused = http2_error == NGHTTP2_REFUSED_STREAM;
    const char *status = rpc_call_metadata(call, "grpc-status");
    const char *message = rpc_call_metadata(call, "grpc-message");
    enum rpc_code code;
    if (!call->remote_ended || status == NULL || !parse_code(status, &code)) {
        if (http2_error == NGHTTP2_NO_ERROR) {
            call_settle(call, RPC_INTERNAL, "the stream ended without a status");
        } else {
            call_settle(call, code_of_reset(http2_error), nghttp2_http2_strerror(http2_error));
        }
    } else if (code == RPC_OK && !deframer_at_boundary(&call->deframer)) {
        call_settle(call, RPC_INTERNAL, "the response ended inside a message");
    } else {
        call_settle(call, code, NULL);
        if (message != NULL) percent_decode(call->text, sizeof call->text, message);
    }
}

static void body_sent(struct rpc_call *call, uint32_t *flags)
{
    (void)call;
    *flags |= NGHTTP2_DATA_FLAG_EOF;
}

static const struct rpc_role client = {
    .headers = headers,
    .ended = ended,
    .closed = closed,
    .broken = broken,
    .body_sent = body_sent,
};

int rpc_client_open(struct rpc_connection **out, const char *authority, const struct rpc_limits *limits,
                    struct error *error)
{
    int result = connection_open(out, &client, limits, error);
    if (result != 0) return result;
    (*out)->authority = strdup(authority);
    if ((*out)->authority != NULL) return 0;
    rpc_close(*out);
    *out = NULL;
    return error_set(error, STATUS_INTERNAL, "out of memory for a connection");
}

static size_t add_metadata(nghttp2_nv *fields, const char *const *metadata)
{
    size_t count = 0;
    for (; metadata != NULL && metadata[0] != NULL; metadata += 2) {
        if (count == METADATA_PAIRS) return SIZE_MAX;
        fields[count++] = FIELD(metadata[0], metadata[1]);
    }
    return count;
}

struct rpc_call *rpc_call_begin(struct rpc_connection *connection, const struct rpc_method *method, void *context,
                                const char *const *metadata, uint32_t timeout_milliseconds)
{
    nghttp2_session *session = connection->session;
    if (connection->closing || connection->failed || !nghttp2_session_check_request_allowed(session)) return NULL;

    char timeout[TIMEOUT_TEXT];
    nghttp2_nv fields[8 + METADATA_PAIRS] = {
        FIELD(":method", "POST"),
        FIELD(":scheme", "http"),
        FIELD(":path", method->path),
        FIELD(":authority", connection->authority),
        FIELD("te", "trailers"),
        FIELD("content-type", "application/grpc"),
        FIELD("user-agent", "gaccd/" GACC_VERSION),
    };
    size_t count = 7;
    if (timeout_milliseconds > 0) {
        timeout_print(timeout, timeout_milliseconds);
        fields[count++] = FIELD("grpc-timeout", timeout);
    }
    size_t more = add_metadata(fields + count, metadata);
    if (more == SIZE_MAX) return NULL;

    struct rpc_call *call = call_open(connection, 0);
    if (call == NULL) return NULL;
    nghttp2_data_provider body = call_body(call);
    call->stream = nghttp2_submit_request(session, NULL, fields, count + more, &body, call);
    if (call->stream < 0) {
        call_close(call); /* `method` is not set: nobody hears of it */
        return NULL;
    }
    call->method = method;
    call->context = context;
    call->answered = true;
    return call;
}

void rpc_call_half_close(struct rpc_call *call)
{
    if (!call->local_ended && !call->connection->closing) call_end_body(call);
}
