/*
 * The server's half of gRPC: requests in, responses and trailers out.
 */
#include <stdio.h>
#include <string.h>

#include "proto/rpc/internal.h"

enum { TRAILERS = 2 };

/* `message` holds the encoded text as long as the fields are used. */
static size_t status_fields(const struct rpc_call *call, nghttp2_nv fields[TRAILERS], char code[12],
                            char message[3 * RPC_TEXT_MAX])
{
    snprintf(code, 12, "%d", (int)call->code);
    fields[0] = FIELD("grpc-status", code);
    if (call->text[0] == '\0') return 1;
    percent_encode(message, call->text);
    fields[1] = FIELD("grpc-message", message);
    return 2;
}

static void submit_headers(struct rpc_call *call, const nghttp2_nv *fields, size_t count,
                           const nghttp2_data_provider *body)
{
    call->answered = true;
    nghttp2_session *session = call->connection->session;
    connection_check(call->connection, nghttp2_submit_response(session, call->stream, fields, count, body));
}

static void answer(struct rpc_call *call)
{
    const nghttp2_nv fields[] = {FIELD(":status", "200"), FIELD("content-type", "application/grpc"),
                                 FIELD("grpc-accept-encoding", "identity")};
    nghttp2_data_provider body = call_body(call);
    submit_headers(call, fields, sizeof fields / sizeof fields[0], &body);
}

static void answer_trailers_only(struct rpc_call *call)
{
    char code[12], message[3 * RPC_TEXT_MAX];
    nghttp2_nv fields[3 + TRAILERS] = {FIELD(":status", "200"), FIELD("content-type", "application/grpc")};
    size_t count = 2 + status_fields(call, fields + 2, code, message);
    if (call->code == RPC_UNIMPLEMENTED) fields[count++] = FIELD("grpc-accept-encoding", "identity");
    submit_headers(call, fields, count, NULL);
}

static void body_sent(struct rpc_call *call, uint32_t *flags)
{
    char code[12], message[3 * RPC_TEXT_MAX];
    nghttp2_nv fields[TRAILERS];
    size_t count = status_fields(call, fields, code, message);
    *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
    nghttp2_session *session = call->connection->session;
    connection_check(call->connection, nghttp2_submit_trailer(session, call->stream, fields, count));
}

void rpc_call_finish(struct rpc_call *call, enum rpc_code code, const char *text)
{
    if (call->local_ended || call->connection->closing) return;
    call_settle(call, code, text);
    call->over = true;
    if (call->answered) {
        call_end_body(call);
    } else {
        call->local_ended = true;
        answer_trailers_only(call);
    }
}

static void broken(struct rpc_call *call, enum rpc_code code, const char *text)
{
    connection_nuisance(call->connection, NUISANCE_RESET);
    rpc_call_finish(call, code, text);
}

/* Not gRPC at all: plain HTTP has the word for it. */
static void refuse_http(struct rpc_call *call, const char *status)
{
    call->over = call->local_ended = true;
    const nghttp2_nv field = FIELD(":status", status);
    submit_headers(call, &field, 1, NULL);
}

static const struct rpc_method *find_method(const struct rpc_method *methods, const char *path)
{
    for (; methods->path != NULL; methods++) {
        if (strcmp(methods->path, path) == 0) return methods;
    }
    return NULL;
}

static bool has_service(const struct rpc_method *methods, const char *path, size_t length)
{
    for (; methods->path != NULL; methods++) {
        if (strncmp(methods->path, path, length) == 0 && methods->path[length] == '/') return true;
    }
    return false;
}

/* Both are UNIMPLEMENTED; the text tells a wrong service from a wrong method. */
static void refuse_path(struct rpc_call *call, const char *path)
{
    char text[256];
    const char *slash = path == NULL ? NULL : strrchr(path, '/');
    if (slash == NULL || slash == path || path[0] != '/')
        snprintf(text, sizeof text, "no path of a method: %.200s", path == NULL ? "" : path);
    else if (has_service(call->connection->methods, path, (size_t)(slash - path)))
        snprintf(text, sizeof text, "unknown method %.200s", path);
    else
        snprintf(text, sizeof text, "unknown service %.*s", slash - path > 200 ? 200 : (int)(slash - path - 1),
                 path + 1);
    rpc_call_finish(call, RPC_UNIMPLEMENTED, text);
}

static void begin(struct rpc_call *call)
{
    struct rpc_connection *connection = call->connection;
    if (call->metadata.overflowed) {
        broken(call, RPC_RESOURCE_EXHAUSTED, "the metadata are larger than this end takes");
        return;
    }
    const char *type = rpc_call_metadata(call, "content-type");
    if (type == NULL || !content_type_is_grpc(type)) {
        refuse_http(call, "415");
        return;
    }
    const char *verb = rpc_call_metadata(call, ":method");
    if (verb == NULL || strcmp(verb, "POST") != 0) {
        refuse_http(call, "405");
        return;
    }
    const char *timeout = rpc_call_metadata(call, "grpc-timeout");
    if (timeout != NULL && (call->deadline_milliseconds = timeout_parse(timeout)) < 0) {
        broken(call, RPC_INTERNAL, "grpc-timeout is malformed");
        return;
    }
    if (timeout != NULL) {
        call->deadline = connection->milliseconds() + (uint64_t)call->deadline_milliseconds;
        connection->has_deadlines = true;
    }
    const char *path = rpc_call_metadata(call, ":path");
    const struct rpc_method *method = path == NULL ? NULL : find_method(connection->methods, path);
    if (method == NULL) {
        refuse_path(call, path);
        return;
    }
    call->method = method;
    call->context = connection->context;
    if (method->begin != NULL) method->begin(call, call->context);
}

static void ended(struct rpc_call *call)
{
    call->remote_ended = true;
    if (call->over) return;
    if (!deframer_at_boundary(&call->deframer)) {
        broken(call, RPC_INTERNAL, "the request ended inside a message");
    } else if (call->method->one_message && !call->heard) {
        broken(call, RPC_UNIMPLEMENTED, "this method takes one message, and there was none");
    } else if (call->method->end != NULL) {
        call->method->end(call, call->context);
    }
}

static void headers(struct rpc_call *call, bool last)
{
    if (call->method == NULL && !call->over) begin(call);
    if (call->over) metadata_close(&call->metadata); /* who is refused, or through, holds no more than he must */
    if (last) ended(call);
}

static void closed(struct rpc_call *call, uint32_t http2_error)
{
    (void)http2_error;
    call_settle(call, RPC_CANCELLED, "cancelled by the client");
}

static const struct rpc_role server = {
    .headers = headers,
    .answer = answer,
    .ended = ended,
    .closed = closed,
    .broken = broken,
    .body_sent = body_sent,
};

int rpc_server_open(struct rpc_connection **out, const struct rpc_method *methods, void *context,
                    const struct rpc_limits *limits, struct error *error)
{
    int result = connection_open(out, &server, limits, error);
    if (result != 0) return result;
    (*out)->methods = methods;
    (*out)->context = context;
    return 0;
}

void rpc_drain(struct rpc_connection *connection)
{
    if (connection->drain != DRAIN_NONE || connection->closing) return;
    connection->drain = DRAIN_NOTICE;
    connection_check(connection, nghttp2_submit_shutdown_notice(connection->session));
    rpc_ping(connection);
}
