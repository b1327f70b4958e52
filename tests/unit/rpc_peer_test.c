/*
 * Peers that no end of ours would be: each end of gRPC against scripted HTTP/2, floods and garbage.
 */
#include "rpc_link.h"

#include <nghttp2/nghttp2.h>

static uint64_t now_milliseconds;

static uint64_t test_clock(void)
{
    return now_milliseconds;
}

/* A client that says what no client of ours would. */
struct raw {
    struct link link;
    nghttp2_session *session;
    char heard[LOG]; /* header fields and resets */
};

static int raw_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_length,
                      const uint8_t *value, size_t value_length, uint8_t flags, void *user)
{
    (void)session, (void)frame, (void)flags;
    struct raw *raw = user;
    note(raw->heard, "%.*s=%.*s ", (int)name_length, (const char *)name, (int)value_length, (const char *)value);
    return 0;
}

static int raw_frame(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
    (void)session;
    struct raw *raw = user;
    if (frame->hd.type == NGHTTP2_RST_STREAM)
        note(raw->heard, "reset=%s ", nghttp2_http2_strerror(frame->rst_stream.error_code));
    if (frame->hd.type == NGHTTP2_GOAWAY)
        note(raw->heard, "goaway=%s ", nghttp2_http2_strerror(frame->goaway.error_code));
    return 0;
}

static void raw_open(struct raw *raw)
{
    *raw = (struct raw){0};
    link_open_with(&raw->link, NULL, &(struct rpc_limits){.milliseconds = test_clock});
    nghttp2_session_callbacks *callbacks;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, raw_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, raw_frame);
    nghttp2_option *options;
    nghttp2_option_new(&options);
    nghttp2_option_set_max_send_header_block_length(options, 1 << 20);
    nghttp2_session_client_new2(&raw->session, callbacks, raw, options);
    nghttp2_option_del(options);
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_submit_settings(raw->session, NGHTTP2_FLAG_NONE, NULL, 0);
}

static int raw_run(struct raw *raw)
{
    for (;;) {
        const uint8_t *bytes;
        ssize_t length = nghttp2_session_mem_send(raw->session, &bytes);
        if (length > 0 && rpc_input(raw->link.server, bytes, (size_t)length, &raw->link.error) != 0) return -1;
        size_t back = rpc_output(raw->link.server, &bytes);
        if (back > 0) nghttp2_session_mem_recv(raw->session, bytes, back);
        if (length == 0 && back == 0) return 0;
    }
}

static void raw_close(struct raw *raw)
{
    nghttp2_session_del(raw->session);
    link_close(&raw->link);
}

static ssize_t read_bytes(nghttp2_session *session, int32_t stream, uint8_t *buffer, size_t length, uint32_t *flags,
                          nghttp2_data_source *source, void *user)
{
    (void)session, (void)stream, (void)length, (void)user;
    const char *text = source->ptr; /* one count byte, then the bytes */
    *flags |= NGHTTP2_DATA_FLAG_EOF;
    memcpy(buffer, text + 1, (size_t)text[0]);
    return text[0];
}

#define RAW_FIELD(NAME, VALUE)                                                                   \
    {                                                                                            \
        (uint8_t *)(NAME), (uint8_t *)(VALUE), strlen(NAME), strlen(VALUE), NGHTTP2_NV_FLAG_NONE \
    }

static int32_t raw_request(struct raw *raw, const char *verb, const char *type, const char *timeout, const char *body)
{
    const nghttp2_nv fields[] = {
        RAW_FIELD(":method", verb),        RAW_FIELD(":scheme", "http"),
        RAW_FIELD(":path", "/t.T/Manual"), RAW_FIELD(":authority", "localhost"),
        RAW_FIELD("content-type", type),   RAW_FIELD("grpc-timeout", timeout == NULL ? "" : timeout)};
    nghttp2_data_provider provider = {.source = {.ptr = (void *)(uintptr_t)body}, .read_callback = read_bytes};
    return nghttp2_submit_request(raw->session, NULL, fields, timeout == NULL ? 5 : 6, body == NULL ? NULL : &provider,
                                  NULL);
}

static void test_requests_that_are_not_grpc_are_told_so(void **state)
{
    (void)state;
    static const struct {
        const char *verb, *type, *timeout, *body, *answer;
    } cases[] = {
        {"POST", "text/html", NULL, NULL, ":status=415 "},
        {"POST", "application/grpcish", NULL, NULL, ":status=415 "},
        {"GET", "application/grpc", NULL, NULL, ":status=405 "},
        {"POST", "application/grpc", "soon", NULL,
         ":status=200 content-type=application/grpc grpc-status=13 grpc-message=grpc-timeout is malformed "},
        {"POST", "application/grpc+proto", NULL, "\6\1\0\0\0\1x",
         ":status=200 content-type=application/grpc grpc-status=13 grpc-message=a message says that it is compressed, "
         "and grpc-encoding does not say how "},
        {"POST", "application/grpc;x=y", NULL, "\6\2\0\0\0\1x",
         ":status=200 content-type=application/grpc grpc-status=13 "
         "grpc-message=a message's compression flag is neither 0 nor 1 "},
        {"POST", "application/grpc", NULL, "\6\0\0\0\0\2x",
         ":status=200 content-type=application/grpc grpc-status=13 grpc-message=the request ended inside a message "},
        {"POST", "application/grpc", NULL, "\3\0\0\0",
         ":status=200 content-type=application/grpc grpc-status=13 grpc-message=the request ended inside a message "},
        {"POST", "application/grpc", NULL, "\5\0\xff\xff\xff\xff",
         ":status=200 content-type=application/grpc grpc-status=8 "
         "grpc-message=the message is larger than this end takes "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct raw raw;
        raw_open(&raw);
        raw_request(&raw, cases[i].verb, cases[i].type, cases[i].timeout, cases[i].body);
        assert_int_equal(raw_run(&raw), 0);
        assert_string_equal(raw.heard, cases[i].answer);
        raw_close(&raw);
    }
}

static void test_compressed_messages_are_refused_with_what_is_taken(void **state)
{
    (void)state;
    static const struct {
        const char *encoding, *answer;
    } cases[] = {
        {"gzip", ":status=200 content-type=application/grpc grpc-status=12 grpc-message=compressed messages are not "
                 "supported grpc-accept-encoding=identity "},
        {"identity",
         ":status=200 content-type=application/grpc grpc-status=13 grpc-message=a message says that it is compressed, "
         "and grpc-encoding does not say how "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct raw raw;
        raw_open(&raw);
        const nghttp2_nv fields[] = {RAW_FIELD(":method", "POST"),
                                     RAW_FIELD(":scheme", "http"),
                                     RAW_FIELD(":path", "/t.T/Manual"),
                                     RAW_FIELD(":authority", "localhost"),
                                     RAW_FIELD("content-type", "application/grpc"),
                                     RAW_FIELD("grpc-encoding", cases[i].encoding)};
        static char body[] = "\6\1\0\0\0\1x";
        nghttp2_data_provider provider = {.source = {.ptr = body}, .read_callback = read_bytes};
        nghttp2_submit_request(raw.session, NULL, fields, sizeof fields / sizeof fields[0], &provider, NULL);
        assert_int_equal(raw_run(&raw), 0);
        assert_string_equal(raw.heard, cases[i].answer);
        raw_close(&raw);
    }
}

/* PROTOCOL-HTTP2: the server tracks the deadline; it does not wait for the client's reset. */
static void test_the_server_ends_a_call_whose_time_is_over(void **state)
{
    (void)state;
    struct raw raw;
    raw_open(&raw);
    assert_true(rpc_expire(raw.link.server) == UINT64_MAX);
    raw_request(&raw, "POST", "application/grpc", "1500m", "\6\0\0\0\0\1x");
    raw_request(&raw, "POST", "application/grpc", "2S", "\6\0\0\0\0\1x");
    raw_request(&raw, "POST", "application/grpc", NULL, "\6\0\0\0\0\1x");
    raw_run(&raw);
    assert_int_equal(rpc_calls(raw.link.server), 3);
    assert_int_equal(rpc_expire(raw.link.server), 1500);
    now_milliseconds += 1499;
    assert_int_equal(rpc_expire(raw.link.server), 1);
    assert_int_equal(raw_run(&raw), 0);
    assert_string_equal(raw.heard, "");
    now_milliseconds += 1;
    assert_int_equal(rpc_expire(raw.link.server), 500);
    raw_run(&raw);
    assert_string_equal(raw.heard, ":status=200 content-type=application/grpc grpc-status=4 "
                                   "grpc-message=the call's time (grpc-timeout) is over ");
    assert_int_equal(rpc_calls(raw.link.server), 2);
    now_milliseconds += 1000;
    assert_true(rpc_expire(raw.link.server) == UINT64_MAX);
    raw_run(&raw);
    assert_int_equal(rpc_calls(raw.link.server), 1);
    assert_non_null(strstr(raw.link.heard_by_server, "gone 4 the call's time (grpc-timeout) is over "));
    raw_close(&raw);
}

static void test_a_call_whose_time_is_over_before_its_messages_are_sent_is_reset(void **state)
{
    (void)state;
    struct raw raw;
    raw_open(&raw);
    const nghttp2_settings_entry no_window = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0};
    nghttp2_submit_settings(raw.session, NGHTTP2_FLAG_NONE, &no_window, 1);
    raw_request(&raw, "POST", "application/grpc", "10m", "\6\0\0\0\0\1x");
    raw_run(&raw);
    send_text(raw.link.server_call, "an answer");
    raw_run(&raw);
    now_milliseconds += 10;
    assert_int_equal(rpc_expire(raw.link.server), 200); /* the client's clock comes first */
    raw_run(&raw);
    assert_int_equal(rpc_calls(raw.link.server), 1);
    now_milliseconds += 200;
    rpc_expire(raw.link.server);
    raw_run(&raw);
    assert_string_equal(raw.heard,
                        ":status=200 content-type=application/grpc grpc-accept-encoding=identity reset=CANCEL ");
    assert_string_equal(raw.link.heard_by_server, "begin [x] end gone 4 the call's time (grpc-timeout) is over ");
    assert_int_equal(rpc_calls(raw.link.server), 0);
    raw_close(&raw);
}

static void test_caps_of_a_peer_can_be_raised(void **state)
{
    (void)state;
    struct link link;
    link_open_with(&link, NULL, &(struct rpc_limits){.receive_bytes = 512, .queue_bytes = 10});
    static const struct rpc_method manual = CLIENT_METHOD("/t.T/Manual");
    uint8_t message[30000] = {0}; /* in two frames, so that the first has to be kept */
    for (int raised = 0; raised < 2; raised++) {
        if (raised) rpc_set_caps(link.server, 0, 0);
        link.heard_by_client[0] = link.heard_by_server[0] = '\0';
        struct rpc_call *call = rpc_call_begin(link.client, &manual, &link, NULL, 0);
        carry(&link, link.client, link.server);
        assert_int_equal(send_text(link.server_call, "longer than 10"), raised ? 0 : -1);
        rpc_call_send(call, message, sizeof message);
        run(&link);
        assert_string_equal(link.heard_by_server,
                            raised ? "begin [30000 bytes] " : "begin gone 8 too many bytes in half-received messages ");
    }
    link_close(&link);
}

static void test_resets_are_counted_however_many_messages_come_with_them(void **state)
{
    (void)state;
    struct raw raw;
    raw_open(&raw);
    raw_run(&raw);
    int resets = 0;
    for (; resets < 3000; resets++) {
        raw.heard[0] = raw.link.heard_by_server[0] = '\0';
        int32_t stream = raw_request(&raw, "POST", "application/grpc", NULL, "\6\0\0\0\0\1x");
        if (raw_run(&raw) != 0) break;
        nghttp2_submit_rst_stream(raw.session, NGHTTP2_FLAG_NONE, stream, NGHTTP2_CANCEL);
        if (raw_run(&raw) != 0) break;
    }
    assert_in_range(resets, RPC_NUISANCE_BURST - 2, RPC_NUISANCE_BURST + 2);
    raw_close(&raw);
}

static void test_rapid_resets_end_the_connection(void **state)
{
    (void)state;
    struct raw raw;
    raw_open(&raw);
    raw_run(&raw);
    int resets = 0;
    for (; resets < 3000; resets++) {
        int32_t stream = raw_request(&raw, "POST", "application/grpc", NULL, "\6\0\0\0\0\2x");
        nghttp2_submit_rst_stream(raw.session, NGHTTP2_FLAG_NONE, stream, NGHTTP2_CANCEL);
        raw.heard[0] = raw.link.heard_by_server[0] = '\0';
        raw_request(&raw, "POST", "application/grpc", NULL, "\3\0\0\0");
        if (raw_run(&raw) != 0) break;
    }
    assert_in_range(resets, 400, RPC_NUISANCE_BURST);
    assert_non_null(strstr(raw.link.error.text, "too many resets"));
    const uint8_t *bytes;
    size_t length = rpc_output(raw.link.server, &bytes);
    nghttp2_session_mem_recv(raw.session, bytes, length);
    assert_non_null(strstr(raw.heard, "goaway=ENHANCE_YOUR_CALM"));
    assert_true(rpc_wants_close(raw.link.server));
    raw_close(&raw);
}

static int pings_until_cut_off(uint64_t every_milliseconds, int most)
{
    struct raw raw;
    raw_open(&raw);
    int pings = 0;
    for (; pings < most; pings++) {
        nghttp2_submit_ping(raw.session, NGHTTP2_FLAG_NONE, NULL);
        if (raw_run(&raw) != 0) break;
        now_milliseconds += every_milliseconds;
    }
    raw_close(&raw);
    return pings;
}

static void test_a_ping_flood_ends_the_connection_and_a_keepalive_does_not(void **state)
{
    (void)state;
    assert_in_range(pings_until_cut_off(0, 3000), RPC_NUISANCE_BURST - 2, RPC_NUISANCE_BURST);
    assert_int_equal(pings_until_cut_off(100, 3000), 3000);
}

#define WIDER_WINDOW "\0\0\4\10\0\0\0\0\0\0\0\0\1"

/* The same frame until the server has enough, which it has behind a burst of them; ends the connection. */
static void raw_flood(struct raw *raw, const char *frame, size_t length)
{
    int count = 0;
    while (count < 3000 && !rpc_input(raw->link.server, (const uint8_t *)frame, length, &raw->link.error)) count++;
    assert_in_range(count, RPC_NUISANCE_BURST - 5, RPC_NUISANCE_BURST);
    raw_close(raw);
}

static void test_a_flood_of_any_frames_that_say_nothing_ends_the_connection(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t length;
    } frames[] = {
        {"\0\0\0\4\0\0\0\0", 9},              /* SETTINGS */
        {"\0\0\10\6\0\0\0\0\0pingping", 17},  /* PING */
        {"\0\0\10\6\1\0\0\0\0pingping", 17},  /* and its answer, unasked */
        {"\0\0\5\2\0\0\0\0\1\0\0\0\3\1", 14}, /* PRIORITY */
        {WIDER_WINDOW, 13},                   /* WINDOW_UPDATE */
        {"\0\0\1\310\0\0\0\0\0?", 10},        /* of a type that there is not */
    };
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        struct raw raw;
        raw_open(&raw);
        raw_run(&raw);
        raw_flood(&raw, frames[i].bytes, frames[i].length);
    }
}

/* The server has ended the call, and with it the stream: of frames there nghttp2 tells little or nothing. */
static void test_a_flood_on_a_stream_that_is_gone_ends_the_connection(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t length;
    } frames[] = {
        {"\0\0\0\0\0\0\0\0\1", 9},                       /* DATA without any */
        {"\0\0\0\0\1\0\0\0\1", 9},                       /* that ends the stream again */
        {"\0\0\4\10\0\0\0\0\1\0\0\0\1", 13},             /* WINDOW_UPDATE */
        {"\0\0\6\1\5\0\0\0\1\x83\x86\x84\x01\x01x", 15}, /* HEADERS */
    };
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        struct raw raw;
        raw_open(&raw);
        raw_request(&raw, "POST", "text/plain", NULL, "");
        raw_run(&raw);
        assert_non_null(strstr(raw.heard, "415"));
        raw_flood(&raw, frames[i].bytes, frames[i].length);
    }
}

/* Compressed, each but the first is one byte. */
static void test_a_field_that_is_named_again_and_again_resets_its_call_alone(void **state)
{
    (void)state;
    enum { MOST = 100 };
    static const struct {
        size_t times;
        const char *answer;
    } cases[] = {{3, ":status=200 content-type=application/grpc grpc-status=8 "},
                 {20, ":status=200 content-type=application/grpc grpc-status=8 "},
                 {30, "reset=INTERNAL_ERROR "},
                 {MOST, "reset=INTERNAL_ERROR "}};
    char value[2901] = "";
    memset(value, 'y', sizeof value - 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct raw raw;
        nghttp2_nv fields[5 + MOST] = {RAW_FIELD(":method", "POST"), RAW_FIELD(":scheme", "http"),
                                       RAW_FIELD(":path", "/t.T/Manual"), RAW_FIELD(":authority", "localhost"),
                                       RAW_FIELD("content-type", "application/grpc")};
        for (size_t at = 5; at < 5 + cases[i].times; at++) fields[at] = (nghttp2_nv)RAW_FIELD("x", value);
        raw_open(&raw);
        for (int again = 0; again < 2; again++) {
            raw.heard[0] = '\0';
            nghttp2_submit_request(raw.session, NULL, fields, 5 + cases[i].times, NULL, NULL);
            assert_int_equal(raw_run(&raw), 0);
            assert_memory_equal(raw.heard, cases[i].answer, strlen(cases[i].answer));
        }
        raw.link.heard_by_server[0] = '\0';
        raw_request(&raw, "POST", "application/grpc", NULL, "\6\0\0\0\0\1x");
        assert_int_equal(raw_run(&raw), 0);
        assert_string_equal(raw.link.heard_by_server, "begin [x] end ");
        raw_close(&raw);
    }
}

/* Whoever watches widens its windows, and has nothing to say. */
static void test_two_wider_windows_for_every_message_that_a_peer_takes_are_no_flood(void **state)
{
    (void)state;
    struct raw raw;
    raw_open(&raw);
    raw_request(&raw, "POST", "application/grpc", NULL, NULL);
    raw_run(&raw);
    for (int i = 0; i < 3 * RPC_NUISANCE_BURST; i++) {
        send_text(raw.link.server_call, "line");
        assert_int_equal(raw_run(&raw), 0);
        for (int twice = 0; twice < 2; twice++)
            assert_int_equal(rpc_input(raw.link.server, (const uint8_t *)WIDER_WINDOW, 13, &raw.link.error), 0);
    }
    raw_close(&raw);
}

static void test_garbage_is_a_protocol_error(void **state)
{
    (void)state;
    static const char *const inputs[] = {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\rX",
                                         "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello"};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        struct link link;
        link_open(&link);
        assert_int_equal(rpc_input(link.server, (const uint8_t *)inputs[i], strlen(inputs[i]), &link.error),
                         -STATUS_INTERNAL);
        assert_true(rpc_wants_close(link.server));
        link_close(&link);
    }
}

static void test_a_frame_error_is_answered_with_goaway_and_closes(void **state)
{
    (void)state;
    struct link link;
    link_open(&link);
    run(&link);
    static const uint8_t data_on_stream_0[] = {0, 0, 1, 0, 0, 0, 0, 0, 0, 'x'};
    rpc_input(link.server, data_on_stream_0, sizeof data_on_stream_0, &link.error);
    const uint8_t *bytes;
    assert_true(rpc_output(link.server, &bytes) > 0);
    assert_true(rpc_wants_close(link.server));
    assert_int_equal(rpc_input(link.server, data_on_stream_0, 1, &link.error), -STATUS_INTERNAL);
    assert_string_equal(link.error.text, "HTTP/2: PROTOCOL_ERROR");
    link_close(&link);
}

/* A server that answers as no server of ours would. */
struct odd_server {
    nghttp2_session *session;
    const nghttp2_nv *fields; /* of the response; then those of the trailers */
    size_t field_count;
    const char *body; /* one count byte, then the bytes; NULL: the fields are all */
    const char *status;
    bool interim;
};

static ssize_t read_body_and_trail(nghttp2_session *session, int32_t stream, uint8_t *buffer, size_t length,
                                   uint32_t *flags, nghttp2_data_source *source, void *user)
{
    struct odd_server *odd = source->ptr;
    nghttp2_data_source text = {.ptr = (void *)(uintptr_t)odd->body};
    const nghttp2_nv status = RAW_FIELD("grpc-status", odd->status == NULL ? "" : odd->status);
    if (odd->status != NULL) *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
    if (odd->status != NULL) nghttp2_submit_trailer(session, stream, &status, 1);
    return read_bytes(session, stream, buffer, length, flags, &text, user);
}

static int answer_oddly(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
    struct odd_server *odd = user;
    if (frame->hd.type != NGHTTP2_HEADERS) return 0;
    const nghttp2_nv early = RAW_FIELD(":status", "103");
    if (odd->interim) nghttp2_submit_headers(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NULL, &early, 1, NULL);
    nghttp2_data_provider body = {.source = {.ptr = odd}, .read_callback = read_body_and_trail};
    nghttp2_submit_response(session, frame->hd.stream_id, odd->fields, odd->field_count,
                            odd->body == NULL ? NULL : &body);
    return 0;
}

static void converse_with(struct odd_server *odd, struct link *link)
{
    static const struct rpc_method manual = CLIENT_METHOD("/t.T/Manual");
    nghttp2_session_callbacks *callbacks;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, answer_oddly);
    nghttp2_session_server_new(&odd->session, callbacks, odd);
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_submit_settings(odd->session, NGHTTP2_FLAG_NONE, NULL, 0);
    link_open(link);
    rpc_call_half_close(rpc_call_begin(link->client, &manual, link, NULL, 0));
    for (;;) {
        const uint8_t *bytes;
        size_t length = rpc_output(link->client, &bytes);
        if (length > 0) nghttp2_session_mem_recv(odd->session, bytes, length);
        ssize_t back = nghttp2_session_mem_send(odd->session, &bytes);
        if (back > 0) rpc_input(link->client, bytes, (size_t)back, &link->error);
        if (length == 0 && back <= 0) break;
    }
    nghttp2_session_del(odd->session);
}

static void test_a_client_makes_a_status_of_every_answer(void **state)
{
    (void)state;
    static const struct {
        const char *http, *type, *body, *status;
        bool interim;
        const char *heard;
    } cases[] = {
        {"200", "application/grpc", "\6\0\0\0\0\1x", "0", false, "[x] status 0 "},
        {"200", "application/grpc", "\6\0\0\0\0\1x", "0", true, "[x] status 0 "},
        {"200", "application/grpc", "\6\0\0\0\0\1x", "7", false, "[x] status 7 "},
        {"200", "application/grpc", "\6\0\0\0\0\1x", "99", false, "[x] status 2 "},
        {"200", "application/grpc", "\6\0\0\0\0\2x", "0", false, "status 13 the response ended inside a message "},
        {"200", "application/grpc", "\6\0\0\0\0\1x", NULL, false, "[x] status 13 the stream ended without a status "},
        {"200", "application/grpc", NULL, NULL, false, "status 13 the stream ended without a status "},
        {"200", "text/html", "\3<p>", NULL, false, "status 2 the answer's content-type is not application/grpc "},
        {"404", "text/html", "\3<p>", NULL, false, "status 12 the answer's HTTP status is not 200 "},
        {"503", "text/html", "\3<p>", NULL, false, "status 14 the answer's HTTP status is not 200 "},
        {"302", "text/html", NULL, NULL, false, "status 2 the answer's HTTP status is not 200 "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const nghttp2_nv fields[] = {RAW_FIELD(":status", cases[i].http), RAW_FIELD("content-type", cases[i].type)};
        struct odd_server odd = {.fields = fields,
                                 .field_count = 2,
                                 .body = cases[i].body,
                                 .status = cases[i].status,
                                 .interim = cases[i].interim};
        struct link link;
        converse_with(&odd, &link);
        assert_string_equal(link.heard_by_client, cases[i].heard);
        link_close(&link);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_that_are_not_grpc_are_told_so),
        cmocka_unit_test(test_compressed_messages_are_refused_with_what_is_taken),
        cmocka_unit_test(test_the_server_ends_a_call_whose_time_is_over),
        cmocka_unit_test(test_a_call_whose_time_is_over_before_its_messages_are_sent_is_reset),
        cmocka_unit_test(test_caps_of_a_peer_can_be_raised),
        cmocka_unit_test(test_resets_are_counted_however_many_messages_come_with_them),
        cmocka_unit_test(test_rapid_resets_end_the_connection),
        cmocka_unit_test(test_a_ping_flood_ends_the_connection_and_a_keepalive_does_not),
        cmocka_unit_test(test_a_flood_of_any_frames_that_say_nothing_ends_the_connection),
        cmocka_unit_test(test_a_flood_on_a_stream_that_is_gone_ends_the_connection),
        cmocka_unit_test(test_a_field_that_is_named_again_and_again_resets_its_call_alone),
        cmocka_unit_test(test_two_wider_windows_for_every_message_that_a_peer_takes_are_no_flood),
        cmocka_unit_test(test_garbage_is_a_protocol_error),
        cmocka_unit_test(test_a_frame_error_is_answered_with_goaway_and_closes),
        cmocka_unit_test(test_a_client_makes_a_status_of_every_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
