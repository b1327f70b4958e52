/*
 * One HTTP/2 connection: the nghttp2 session, bytes in and out, and what a peer may not do to it.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/rpc/internal.h"

#define STREAMS_DEFAULT 100
#define QUEUE_DEFAULT (8u << 20)
/* Messages are taken as they come, so windows only have to be large enough that no message waits for an update. */
/* Milliseconds for a client whose stream is in full flow to see by its own clock that the time is over: clients take a
 * reset that comes before that for a cancellation. */
#define RESET_GRACE 200
#define OWN 1     /* the HEADERS of a call */
#define UPDATES 2 /* of windows, the stream's and the connection's: with each call, and for DATA that a peer takes */
/* Behind so many bytes of fields, more than a block without compression has (nghttp2's limit), the stream is reset, and
 * nghttp2 looks at no more of them: a byte may stand for thousands. */
#define HEADERS_ENDURED (64u << 10)
#define STREAM_WINDOW (RPC_MESSAGE_MAX + (64 << 10))
#define CONNECTION_WINDOW (16 << 20)

static uint64_t system_milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void fail(struct rpc_connection *connection, const char *why)
{
    if (connection->failed) return;
    connection->failed = true;
    connection->failure = why;
}

void connection_check(struct rpc_connection *connection, int nghttp2_result)
{
    if (nghttp2_result >= 0 || !nghttp2_is_fatal(nghttp2_result)) return;
    fail(connection, nghttp2_strerror(nghttp2_result));
    connection->dead = true;
}

void connection_nuisance(struct rpc_connection *connection, enum nuisance kind)
{
    struct nuisances *nuisances = &connection->nuisances[kind];
    uint64_t now = connection->milliseconds();
    uint64_t forgiven = (now - nuisances->time) * RPC_NUISANCE_RATE / 1000;
    if (forgiven > 0) {
        nuisances->count -= forgiven < nuisances->count ? (uint32_t)forgiven : nuisances->count;
        nuisances->time = now;
    }
    if (++nuisances->count <= RPC_NUISANCE_BURST || connection->failed) return;
    fail(connection, "the peer sends too many resets, pings, settings or broken messages");
    nghttp2_session_terminate_session(connection->session, NGHTTP2_ENHANCE_YOUR_CALM);
}

void connection_make_up(struct rpc_connection *connection, uint32_t frames)
{
    uint32_t *count = &connection->nuisances[NUISANCE_FRAME].count;
    *count -= frames < *count ? frames : *count;
}

static int on_unknown_frame(nghttp2_session *session, void **payload, const nghttp2_frame_hd *header, void *user)
{
    (void)session, (void)payload, (void)header;
    connection_nuisance(user, NUISANCE_FRAME);
    return NGHTTP2_ERR_CANCEL; /* of it no more is wanted */
}

/* Here, for of what comes on a stream that is gone nghttp2 tells nothing more. */
static int on_begin_frame(nghttp2_session *session, const nghttp2_frame_hd *header, void *user)
{
    (void)session;
    const bool acknowledges = header->type == NGHTTP2_SETTINGS && (header->flags & NGHTTP2_FLAG_ACK) != 0;
    const bool is_counted_elsewhere =
        header->type == NGHTTP2_DATA || header->type == NGHTTP2_RST_STREAM || header->type > NGHTTP2_CONTINUATION;
    if (!acknowledges && !is_counted_elsewhere) connection_nuisance(user, NUISANCE_FRAME);
    return 0;
}

/* Of DATA on a stream that is gone nghttp2 tells nothing at all. */
static void note_empty_data(struct rpc_connection *connection, const uint8_t *bytes, size_t length)
{
    struct frame_edges *edges = &connection->edges;
    while (length > 0) {
        if (edges->payload > 0) {
            const size_t passed = length < edges->payload ? length : edges->payload;
            edges->payload -= (uint32_t)passed;
            bytes += passed;
            length -= passed;
            continue;
        }
        edges->header[edges->length++] = *bytes++;
        length--;
        if (edges->length < sizeof edges->header) continue;
        edges->length = 0;
        edges->payload = (uint32_t)edges->header[0] << 16 | (uint32_t)edges->header[1] << 8 | edges->header[2];
        if (edges->header[3] == NGHTTP2_DATA && edges->payload == 0) connection_nuisance(connection, NUISANCE_FRAME);
    }
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
    struct rpc_call *call = call_open(user, frame->hd.stream_id);
    if (call == NULL) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, call);
    return 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_length,
                     const uint8_t *value, size_t value_length, uint8_t flags, void *user)
{
    (void)flags, (void)user;
    struct rpc_call *call = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (call == NULL) return 0;
    if (!call->over) metadata_add(&call->metadata, name, name_length, value, value_length);
    call->header_bytes += name_length + value_length;
    return call->header_bytes > HEADERS_ENDURED ? NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE : 0;
}

static void ping_answered(struct rpc_connection *connection)
{
    if (connection->drain != DRAIN_NOTICE) return;
    connection->drain = DRAIN_DONE; /* every call the peer began before it read the notice has arrived */
    nghttp2_session *session = connection->session;
    connection_check(connection,
                     nghttp2_submit_goaway(session, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session),
                                           NGHTTP2_NO_ERROR, NULL, 0));
}

static int on_frame_recv(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
    struct rpc_connection *connection = user;
    struct rpc_call *call = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    bool last = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    bool acknowledges = (frame->hd.flags & NGHTTP2_FLAG_ACK) != 0;
    switch (frame->hd.type) {
    case NGHTTP2_HEADERS:
        connection_make_up(connection, OWN + UPDATES);
        if (call != NULL) connection->role->headers(call, last);
        break;
    case NGHTTP2_DATA:
        if (call != NULL && last) connection->role->ended(call);
        break;
    case NGHTTP2_PING:
        if (acknowledges) ping_answered(connection);
        break;
    case NGHTTP2_RST_STREAM:
        connection_nuisance(connection, NUISANCE_RESET);
        break;
    default:
        break;
    }
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t stream, const uint8_t *bytes, size_t length,
                   void *user)
{
    (void)flags, (void)user;
    struct rpc_call *call = nghttp2_session_get_stream_user_data(session, stream);
    if (call != NULL) call_receive(call, bytes, length);
    return 0;
}

static int on_frame_send(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
    struct rpc_connection *connection = user;
    struct rpc_call *call = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    switch (frame->hd.type) {
    case NGHTTP2_HEADERS: /* a server that has answered does not wait for the rest of the request */
        if (call != NULL && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) && !call->remote_ended) {
            call->cancelled = true;
            call_reset(call, NGHTTP2_NO_ERROR);
        }
        break;
    case NGHTTP2_RST_STREAM:
        if (call == NULL || !call->cancelled) connection_nuisance(connection, NUISANCE_RESET);
        break;
    case NGHTTP2_GOAWAY:
        if (frame->goaway.error_code != NGHTTP2_NO_ERROR)
            fail(connection, nghttp2_http2_strerror(frame->goaway.error_code));
        break;
    default:
        break;
    }
    return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t stream, uint32_t http2_error, void *user)
{
    struct rpc_connection *connection = user;
    struct rpc_call *call = nghttp2_session_get_stream_user_data(session, stream);
    if (call == NULL) return 0;
    connection->role->closed(call, http2_error);
    call_close(call);
    return 0;
}

static int send_data(nghttp2_session *session, nghttp2_frame *frame, const uint8_t *frame_header, size_t length,
                     nghttp2_data_source *source, void *user)
{
    (void)session, (void)frame;
    connection_make_up(user, UPDATES);
    return call_write_body(source->ptr, frame_header, length);
}

/* Frames of all types that HTTP/2 does not know are to be told of. */
static int make_options(nghttp2_option **out)
{
    int result = nghttp2_option_new(out);
    if (result != 0) return result;
    for (unsigned type = NGHTTP2_CONTINUATION + 1; type <= UINT8_MAX; type++)
        nghttp2_option_set_user_recv_extension_type(*out, (uint8_t)type);
    return 0;
}

static int open_session(struct rpc_connection *connection, bool is_server)
{
    nghttp2_session_callbacks *callbacks;
    nghttp2_option *options;
    int result = nghttp2_session_callbacks_new(&callbacks);
    if (result != 0) return result;
    nghttp2_session_callbacks_set_unpack_extension_callback(callbacks, on_unknown_frame);
    nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks, on_begin_frame);
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame_recv);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_frame_send);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
    nghttp2_session_callbacks_set_send_data_callback(callbacks, send_data);
    result = make_options(&options);
    if (result == 0) {
        result = is_server ? nghttp2_session_server_new2(&connection->session, callbacks, connection, options)
                           : nghttp2_session_client_new2(&connection->session, callbacks, connection, options);
        nghttp2_option_del(options);
    }
    nghttp2_session_callbacks_del(callbacks);
    return result;
}

static int submit_settings(struct rpc_connection *connection, bool is_server, uint32_t streams)
{
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, STREAM_WINDOW},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, RPC_METADATA_MAX},
        is_server ? (nghttp2_settings_entry){NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, streams}
                  : (nghttp2_settings_entry){NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
    };
    int result =
        nghttp2_submit_settings(connection->session, NGHTTP2_FLAG_NONE, settings, sizeof settings / sizeof settings[0]);
    if (result != 0) return result;
    return nghttp2_session_set_local_window_size(connection->session, NGHTTP2_FLAG_NONE, 0, CONNECTION_WINDOW);
}

int connection_open(struct rpc_connection **out, const struct rpc_role *role, const struct rpc_limits *limits,
                    struct error *error)
{
    static const struct rpc_limits none;
    if (limits == NULL) limits = &none;
    *out = NULL;
    struct rpc_connection *connection = calloc(1, sizeof *connection);
    if (connection == NULL) return error_set(error, STATUS_INTERNAL, "out of memory for a connection");
    connection->role = role;
    connection->receive.message_max = limits->message_bytes != 0 ? limits->message_bytes : RPC_MESSAGE_MAX;
    rpc_set_caps(connection, limits->receive_bytes, limits->queue_bytes);
    connection->milliseconds = limits->milliseconds != NULL ? limits->milliseconds : system_milliseconds;
    for (int kind = 0; kind < NUISANCE_KINDS; kind++) connection->nuisances[kind].time = connection->milliseconds();

    bool is_server = role->answer != NULL;
    connection->edges.payload = is_server ? NGHTTP2_CLIENT_MAGIC_LEN : 0;
    int result = open_session(connection, is_server);
    if (result == 0)
        result = submit_settings(connection, is_server, limits->streams != 0 ? limits->streams : STREAMS_DEFAULT);
    if (result != 0) {
        rpc_close(connection);
        return error_set(error, STATUS_INTERNAL, "cannot open an HTTP/2 connection: %s", nghttp2_strerror(result));
    }
    *out = connection;
    return 0;
}

void rpc_close(struct rpc_connection *connection)
{
    if (connection == NULL) return;
    connection->closing = connection->busy = true;
    while (connection->calls != NULL) {
        call_settle(connection->calls, RPC_UNAVAILABLE, "the connection is gone");
        call_close(connection->calls);
    }
    nghttp2_session_del(connection->session);
    byte_queue_close(&connection->output);
    free(connection->authority);
    free(connection);
}

static int failure(const struct rpc_connection *connection, struct error *error)
{
    return error_set(error, STATUS_INTERNAL, "HTTP/2: %s", connection->failure);
}

int rpc_input(struct rpc_connection *connection, const uint8_t *bytes, size_t length, struct error *error)
{
    if (connection->failed) return failure(connection, error);
    connection->busy = true;
    note_empty_data(connection, bytes, length);
    ssize_t taken = nghttp2_session_mem_recv(connection->session, bytes, length);
    connection->busy = false;
    if (taken < 0) connection_check(connection, (int)taken);
    return connection->failed ? failure(connection, error) : 0;
}

size_t rpc_output(struct rpc_connection *connection, const uint8_t **bytes)
{
    if (connection->busy || connection->dead) return 0;
    struct byte_queue *output = &connection->output;
    byte_queue_take(output, byte_queue_length(output)); /* the caller is through with the last round */
    connection->busy = true;
    while (output->end < RPC_OUTPUT_ROUND) {
        const uint8_t *frame;
        ssize_t length = nghttp2_session_mem_send(connection->session, &frame);
        if (length == 0) break;
        uint8_t *to = length > 0 ? byte_queue_reserve(output, (size_t)length) : NULL;
        if (to == NULL) {
            connection_check(connection, length < 0 ? (int)length : NGHTTP2_ERR_NOMEM);
            break;
        }
        memcpy(to, frame, (size_t)length);
        output->end += (size_t)length;
    }
    connection->busy = false;
    *bytes = output->bytes;
    return output->end;
}

bool rpc_wants_close(const struct rpc_connection *connection)
{
    nghttp2_session *session = connection->session;
    return connection->failed || (!nghttp2_session_want_read(session) && !nghttp2_session_want_write(session));
}

void rpc_set_caps(struct rpc_connection *connection, size_t receive_bytes, size_t queue_bytes)
{
    connection->receive.held_max = receive_bytes != 0 ? receive_bytes : RPC_RECEIVE_MAX;
    connection->queued_max = queue_bytes != 0 ? queue_bytes : QUEUE_DEFAULT;
}

uint64_t rpc_expire(struct rpc_connection *connection)
{
    uint64_t next = UINT64_MAX;
    if (!connection->has_deadlines || connection->busy || connection->dead) return next;
    const uint64_t now = connection->milliseconds();
    for (struct rpc_call *call = connection->calls; call != NULL; call = call->next) {
        if (call->deadline_milliseconds < 0 || call->local_ended) continue;
        const uint64_t end = call->deadline + (byte_queue_length(&call->queue) > 0 ? RESET_GRACE : 0);
        if (end <= now)
            call_expire(call);
        else if (end - now < next)
            next = end - now;
    }
    connection->has_deadlines = next != UINT64_MAX;
    return next;
}

size_t rpc_calls(const struct rpc_connection *connection)
{
    size_t count = 0;
    for (const struct rpc_call *call = connection->calls; call != NULL; call = call->next) count++;
    return count;
}

void rpc_terminate(struct rpc_connection *connection)
{
    if (connection->closing || connection->failed) return;
    connection_check(connection, nghttp2_session_terminate_session(connection->session, NGHTTP2_NO_ERROR));
}

void rpc_ping(struct rpc_connection *connection)
{
    if (connection->closing) return;
    connection_check(connection, nghttp2_submit_ping(connection->session, NGHTTP2_FLAG_NONE, NULL));
}

void rpc_connection_set_user(struct rpc_connection *connection, void *user)
{
    connection->user = user;
}

void *rpc_connection_user(const struct rpc_connection *connection)
{
    return connection->user;
}
