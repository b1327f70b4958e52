/*
 * gRPC over HTTP/2, both ends back to back in memory. What each end's callbacks saw is written as one line of words, so
 * that a test reads as a conversation.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <nghttp2/nghttp2.h>

#include "proto/rpc/metadata.h"
#include "proto/rpc/rpc.h"

#define LOG 8192

struct link {
    struct rpc_connection *client, *server;
    size_t cut;         /* bytes given to rpc_input at once */
    struct error error; /* of the last rpc_input that failed */
    bool to_client_blocked;
    struct rpc_call *server_call; /* the last one begun */
    char heard_by_client[LOG], heard_by_server[LOG];
};

static uint64_t now_milliseconds;

static uint64_t test_clock(void)
{
    return now_milliseconds;
}

__attribute__((format(printf, 2, 3))) static void note(char *log, const char *format, ...)
{
    size_t length = strlen(log);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(log + length, LOG - length, format, arguments);
    va_end(arguments);
}

static void note_message(char *log, const uint8_t *message, size_t length)
{
    if (length <= 64)
        note(log, "[%.*s] ", (int)length, (const char *)message);
    else
        note(log, "[%zu bytes] ", length);
}

static int send_text(struct rpc_call *call, const char *text)
{
    return rpc_call_send(call, (const uint8_t *)text, strlen(text));
}

static void server_begin(struct rpc_call *call, void *context)
{
    struct link *link = context;
    link->server_call = call;
    note(link->heard_by_server, "begin ");
}

static void server_note(struct rpc_call *call, const uint8_t *message, size_t length, void *context)
{
    (void)call;
    struct link *link = context;
    note_message(link->heard_by_server, message, length);
}

static void server_echo(struct rpc_call *call, const uint8_t *message, size_t length, void *context)
{
    server_note(call, message, length, context);
    assert_int_equal(rpc_call_send(call, message, length), 0);
}

static void server_end(struct rpc_call *call, void *context)
{
    (void)call;
    struct link *link = context;
    note(link->heard_by_server, "end ");
}

static void server_end_and_finish(struct rpc_call *call, void *context)
{
    server_end(call, context);
    rpc_call_finish(call, RPC_OK, NULL);
}

static void server_gone(struct rpc_call *call, void *context)
{
    struct link *link = context;
    const char *text;
    enum rpc_code code = rpc_call_status(call, &text);
    note(link->heard_by_server, "gone %d%s%s ", (int)code, text[0] != '\0' ? " " : "", text);
    if (link->server_call == call) link->server_call = NULL;
}

static void server_refuse(struct rpc_call *call, void *context)
{
    server_begin(call, context);
    rpc_call_finish(call, RPC_UNAUTHENTICATED, "gacc-secret-bin: 100 % wrong\né");
}

static const struct rpc_method methods[] = {
    {"/t.T/Echo", server_begin, server_echo, server_end_and_finish, server_gone},
    {"/t.T/Manual", server_begin, server_note, server_end, server_gone},
    {"/t.T/Refuse", server_refuse, server_note, server_end, server_gone},
    {0},
};

static void client_message(struct rpc_call *call, const uint8_t *message, size_t length, void *context)
{
    (void)call;
    struct link *link = context;
    note_message(link->heard_by_client, message, length);
}

static void client_gone(struct rpc_call *call, void *context)
{
    struct link *link = context;
    const char *text;
    enum rpc_code code = rpc_call_status(call, &text);
    note(link->heard_by_client, "status %d%s%s ", (int)code, text[0] != '\0' ? " " : "", text);
}

static const struct rpc_method echo = {.path = "/t.T/Echo", .message = client_message, .gone = client_gone};
static const struct rpc_method manual = {.path = "/t.T/Manual", .message = client_message, .gone = client_gone};
static const struct rpc_method refuse = {.path = "/t.T/Refuse", .message = client_message, .gone = client_gone};
static const struct rpc_method unknown = {.path = "/t.T/Nothing", .message = client_message, .gone = client_gone};

static void link_open_with(struct link *link, const struct rpc_limits *client, const struct rpc_limits *server)
{
    *link = (struct link){.cut = SIZE_MAX};
    assert_int_equal(rpc_client_open(&link->client, "localhost", client, &link->error), 0);
    assert_int_equal(rpc_server_open(&link->server, methods, link, server, &link->error), 0);
}

static void link_open(struct link *link)
{
    link_open_with(link, NULL, NULL);
}

static void link_close(struct link *link)
{
    rpc_close(link->client);
    rpc_close(link->server);
}

static bool carry(struct link *link, struct rpc_connection *from, struct rpc_connection *to)
{
    const uint8_t *bytes;
    size_t length = rpc_output(from, &bytes);
    for (size_t done = 0, take; done < length; done += take) {
        take = link->cut < length - done ? link->cut : length - done;
        rpc_input(to, bytes + done, take, &link->error);
    }
    return length > 0;
}

static void run(struct link *link)
{
    bool moved = true;
    while (moved) {
        moved = carry(link, link->client, link->server);
        if (!link->to_client_blocked) moved |= carry(link, link->server, link->client);
    }
}

static void test_echoes_a_unary_call_however_the_bytes_are_cut(void **state)
{
    (void)state;
    for (size_t cut = 1; cut <= 64; cut++) {
        struct link link;
        link_open(&link);
        link.cut = cut;
        struct rpc_call *call = rpc_call_begin(link.client, &echo, &link, NULL, 0);
        send_text(call, "hello");
        rpc_call_half_close(call);
        run(&link);
        assert_string_equal(link.heard_by_server, "begin [hello] end gone 0 ");
        assert_string_equal(link.heard_by_client, "[hello] status 0 ");
        link_close(&link);
    }
}

static void test_keeps_empty_messages_and_message_boundaries(void **state)
{
    (void)state;
    struct link link;
    link_open(&link);
    struct rpc_call *call = rpc_call_begin(link.client, &echo, &link, NULL, 0);
    send_text(call, "");
    send_text(call, "ab");
    send_text(call, "");
    send_text(call, "c");
    rpc_call_half_close(call);
    run(&link);
    assert_string_equal(link.heard_by_client, "[] [ab] [] [c] status 0 ");
    link_close(&link);
}

static void test_wakes_an_idle_stream_in_both_directions(void **state)
{
    (void)state;
    struct link link;
    link_open(&link);
    struct rpc_call *call = rpc_call_begin(link.client, &manual, &link, NULL, 0);
    run(&link);
    assert_string_equal(link.heard_by_server, "begin ");
    for (int step = 0; step < 3; step++) {
        send_text(call, "report");
        run(&link);
        send_text(link.server_call, "decision");
        run(&link);
    }
    assert_string_equal(link.heard_by_server, "begin [report] [report] [report] ");
    assert_string_equal(link.heard_by_client, "[decision] [decision] [decision] ");
    rpc_call_half_close(call);
    run(&link);
    rpc_call_finish(link.server_call, RPC_OK, NULL);
    run(&link);
    assert_string_equal(link.heard_by_server, "begin [report] [report] [report] end gone 0 ");
    assert_string_equal(link.heard_by_client, "[decision] [decision] [decision] status 0 ");
    link_close(&link);
}

static void test_sends_all_calls_in_one_round_of_output(void **state)
{
    (void)state;
    struct link link;
    link_open(&link);
    struct rpc_call *calls[8];
    for (int i = 0; i < 8; i++) calls[i] = rpc_call_begin(link.client, &manual, &link, NULL, 0);
    run(&link);
    for (int i = 0; i < 8; i++) send_text(calls[i], "report");
    const uint8_t *bytes;
    assert_int_equal(rpc_output(link.client, &bytes), 8 * (9 + 5 + 6));
    assert_int_equal(rpc_output(link.client, &bytes), 0);
    link_close(&link);
}

static void test_a_message_longer_than_every_frame_and_window_arrives_whole(void **state)
{
    (void)state;
    struct link link;
    link_open(&link);
    uint8_t *message = calloc(1, RPC_MESSAGE_MAX);
    for (size_t i = 0; i < RPC_MESSAGE_MAX; i++) message[i] = (uint8_t)(i * 7 >> 3);
    struct rpc_call *call = rpc_call_begin(link.client, &echo, &link, NULL, 0);
    for (int i = 0; i < 6; i++) { /* 24 MiB: beyond the connection's window */
        assert_int_equal(rpc_call_send(call, message, RPC_MESSAGE_MAX), 0);
        run(&link);
    }
    rpc_call_half_close(call);
    run(&link);
    assert_string_equal(
        link.heard_by_client,
        "[4194304 bytes] [4194304 bytes] [4194304 bytes] [4194304 bytes] [4194304 bytes] [4194304 bytes] status 0 ");
    free(message);
    link_close(&link);
}

static void test_refuses_a_message_one_byte_too_large_without_receiving_it(void **state)
{
    (void)state;
    struct link link;
    link_open_with(&link, NULL, &(struct rpc_limits){.message_bytes = 10});
    struct rpc_call *call = rpc_call_begin(link.client, &manual, &link, NULL, 0);
    send_text(call, "0123456789");
    run(&link);
    send_text(call, "0123456789a");
    run(&link);
    assert_string_equal(link.heard_by_server, "begin [0123456789] gone 8 the message is larger than this end takes ");
    assert_string_equal(link.heard_by_client, "status 8 the message is larger than this end takes ");
    link_close(&link);
}

static void test_a_client_refuses_a_too_large_answer(void **state)
{
    (void)state;
    struct link link;
    link_open_with(&link, &(struct rpc_limits){.message_bytes = 4}, NULL);
    rpc_call_begin(link.client, &manual, &link, NULL, 0);
    run(&link);
    send_text(link.server_call, "12345");
    run(&link);
    assert_string_equal(link.heard_by_client, "status 8 the message is larger than this end takes ");
    assert_string_equal(link.heard_by_server, "begin gone 1 cancelled by the client ");
    link_close(&link);
}

static void test_an_unknown_method_is_unimplemented(void **state)
{
    (void)state;
    struct link link;
    link_open(&link);
    struct rpc_call *call = rpc_call_begin(link.client, &unknown, &link, NULL, 0);
    send_text(call, "hello");
    run(&link);
    assert_string_equal(link.heard_by_client, "status 12 unknown method /t.T/Nothing ");
    assert_string_equal(link.heard_by_server, "");
    link_close(&link);
}

static void test_a_refusal_in_begin_is_trailers_only_and_keeps_its_text(void **state)
{
    (void)state;
    struct link link;
    link_open(&link);
    struct rpc_call *call = rpc_call_begin(link.client, &refuse, &link, NULL, 0);
    send_text(call, "unheard");
    run(&link);
    assert_string_equal(link.heard_by_client, "status 16 gacc-secret-bin: 100 % wrong\né ");
    assert_string_equal(link.heard_by_server, "begin gone 16 gacc-secret-bin: 100 % wrong\né ");
    link_close(&link);
}

static void test_trailers_follow_what_is_queued(void **state)
{
    (void)state;
    struct link link;
    link_open(&link);
    rpc_call_begin(link.client, &manual, &link, NULL, 0);
    run(&link);
    send_text(link.server_call, "a");
    send_text(link.server_call, "b");
    rpc_call_finish(link.server_call, RPC_NOT_FOUND, "no more");
    assert_int_equal(send_text(link.server_call, "c"), -1);
    run(&link);
    assert_string_equal(link.heard_by_client, "[a] [b] status 5 no more ");
    assert_string_equal(link.heard_by_server, "begin gone 5 no more ");
    link_close(&link);
}

static void test_cancel_reaches_the_other_end(void **state)
{
    (void)state;
    struct link link;
    link_open(&link);
    struct rpc_call *call = rpc_call_begin(link.client, &manual, &link, NULL, 0);
    run(&link);
    rpc_call_cancel(call);
    assert_int_equal(send_text(call, "too late"), -1);
    run(&link);
    assert_string_equal(link.heard_by_server, "begin gone 1 cancelled by the client ");
    assert_string_equal(link.heard_by_client, "status 1 cancelled by this end ");

    link.heard_by_client[0] = '\0';
    rpc_call_begin(link.client, &manual, &link, NULL, 0);
    run(&link);
    rpc_call_cancel(link.server_call);
    run(&link);
    assert_string_equal(link.heard_by_client, "status 1 CANCEL ");
    link_close(&link);
}

static void test_a_call_cancelled_before_it_is_sent_is_gone_once(void **state)
{
    (void)state;
    struct link link;
    link_open(&link);
    rpc_call_cancel(rpc_call_begin(link.client, &manual, &link, NULL, 0));
    run(&link);
    assert_string_equal(link.heard_by_client, "status 1 cancelled by this end ");
    assert_string_equal(link.heard_by_server, "");
    link_close(&link);
}

static void test_a_deadline_is_told_to_the_server(void **state)
{
    (void)state;
    static const struct {
        uint32_t sent;
        int seen;
    } cases[] = {{0, -1}, {1, 1}, {1500, 1500}, {99999999, 99999999}, {100000001, 100001000}, {UINT32_MAX, INT32_MAX}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct link link;
        link_open(&link);
        rpc_call_begin(link.client, &manual, &link, NULL, cases[i].sent);
        run(&link);
        assert_int_equal(rpc_call_deadline(link.server_call), cases[i].seen);
        link_close(&link);
    }
}

static void test_timeouts_are_read_in_every_unit_and_garbage_is_not(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int milliseconds;
    } cases[] = {{"1n", 1},   {"1000000n", 1},    {"1000001n", 2}, {"0m", 0},       {"250u", 1},
                 {"7m", 7},   {"2S", 2000},       {"3M", 180000},  {"1H", 3600000}, {"99999999H", INT32_MAX},
                 {"", -1},    {"5", -1},          {"m", -1},       {"5x", -1},      {"5mm", -1},
                 {"-5m", -1}, {"123456789m", -1}, {" 5m", -1},     {"5 m", -1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(timeout_parse(cases[i].text), cases[i].milliseconds);
    }
}

static void test_metadata_with_bytes_arrives(void **state)
{
    (void)state;
    uint8_t secret[32], seen[32];
    char text[45];
    for (int i = 0; i < 32; i++) secret[i] = (uint8_t)(i * 37);
    rpc_base64_encode(text, secret, sizeof secret);
    struct link link;
    link_open(&link);
    const char *const metadata[] = {"gacc-secret-bin", text, "x-empty", "", NULL};
    rpc_call_begin(link.client, &manual, &link, metadata, 0);
    run(&link);
    assert_int_equal(rpc_base64_decode(seen, sizeof seen, rpc_call_metadata(link.server_call, "gacc-secret-bin")), 32);
    assert_memory_equal(seen, secret, 32);
    assert_string_equal(rpc_call_metadata(link.server_call, "x-empty"), "");
    assert_null(rpc_call_metadata(link.server_call, "x-missing"));
    link_close(&link);
}

static void test_base64_round_trips_padded_or_not_and_refuses_the_rest(void **state)
{
    (void)state;
    static const struct {
        const char *text, *bytes;
    } cases[] = {{"", ""},      {"Zg==", "f"},   {"Zg", "f"},         {"Zm8=", "fo"},
                 {"Zm8", "fo"}, {"Zm9v", "foo"}, {"Zm9vYg==", "foob"}};
    uint8_t bytes[8];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int length = rpc_base64_decode(bytes, sizeof bytes, cases[i].text);
        assert_int_equal(length, strlen(cases[i].bytes));
        assert_memory_equal(bytes, cases[i].bytes, (size_t)length);
    }
    static const char *const malformed[] = {"Z", "Zm9vY", "Zm9-", "Zg=", "====", "Zm9vZm9vZm9v"};
    for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
        assert_int_equal(rpc_base64_decode(bytes, sizeof bytes, malformed[i]), -1);
    }
}

static void test_metadata_beyond_the_cap_are_refused(void **state)
{
    (void)state;
    struct link link;
    link_open(&link);
    char *value = malloc(RPC_METADATA_MAX + 1);
    memset(value, 'x', RPC_METADATA_MAX);
    value[RPC_METADATA_MAX] = '\0';
    const char *const metadata[] = {"x-long", value, NULL};
    rpc_call_begin(link.client, &manual, &link, metadata, 0);
    run(&link);
    assert_string_equal(link.heard_by_client, "status 8 the metadata are larger than this end takes ");
    assert_string_equal(link.heard_by_server, "");
    free(value);
    link_close(&link);
}

static void test_a_full_queue_refuses_until_the_peer_reads(void **state)
{
    (void)state;
    struct link link;
    link_open_with(&link, NULL, &(struct rpc_limits){.queue_bytes = 100});
    rpc_call_begin(link.client, &manual, &link, NULL, 0);
    run(&link);
    char text[46] = {0};
    memset(text, 'x', 45);
    assert_int_equal(send_text(link.server_call, text), 0);
    assert_int_equal(send_text(link.server_call, text), 0); /* 2·(5+45) = 100 */
    assert_int_equal(send_text(link.server_call, ""), -1);
    run(&link);
    assert_int_equal(send_text(link.server_call, text), 0);
    link_close(&link);
}

static void test_a_peer_that_does_not_open_its_window_fills_the_queue_and_no_more(void **state)
{
    (void)state;
    struct link link;
    link_open_with(&link, NULL, &(struct rpc_limits){.queue_bytes = 1 << 20});
    rpc_call_begin(link.client, &manual, &link, NULL, 0);
    run(&link);
    uint8_t message[1000] = {0};
    const uint8_t *bytes;
    size_t sent = 0;
    link.to_client_blocked = true; /* the client never answers with WINDOW_UPDATE */
    while (rpc_call_send(link.server_call, message, sizeof message) == 0) {
        sent++;
        while (rpc_output(link.server, &bytes) > 0) {
        }
        assert_true(sent < 10000);
    }
    assert_in_range(sent * 1005, RPC_MESSAGE_MAX, RPC_MESSAGE_MAX + (2 << 20));
    link_close(&link);
}

static void test_draining_lets_running_calls_finish_and_then_wants_to_close(void **state)
{
    (void)state;
    struct link link;
    link_open(&link);
    rpc_call_begin(link.client, &manual, &link, NULL, 0);
    run(&link);
    rpc_drain(link.server);
    run(&link);
    assert_null(rpc_call_begin(link.client, &manual, &link, NULL, 0));
    assert_false(rpc_wants_close(link.server));
    send_text(link.server_call, "still here");
    rpc_call_finish(link.server_call, RPC_OK, NULL);
    run(&link);
    assert_string_equal(link.heard_by_client, "[still here] status 0 ");
    assert_true(rpc_wants_close(link.server));
    assert_true(rpc_wants_close(link.client));
    link_close(&link);
}

static void test_a_call_begun_while_the_notice_travels_is_still_served(void **state)
{
    (void)state;
    struct link link;
    link_open(&link);
    run(&link);
    rpc_drain(link.server);
    struct rpc_call *call = rpc_call_begin(link.client, &echo, &link, NULL, 0);
    send_text(call, "in time");
    rpc_call_half_close(call);
    run(&link);
    assert_string_equal(link.heard_by_client, "[in time] status 0 ");
    assert_true(rpc_wants_close(link.server));
    link_close(&link);
}

static void test_closing_tells_every_call_once(void **state)
{
    (void)state;
    struct link link;
    link_open(&link);
    for (int i = 0; i < 3; i++) rpc_call_begin(link.client, &manual, &link, NULL, 0);
    run(&link);
    link_close(&link);
    assert_string_equal(link.heard_by_client, "status 14 the connection is gone status 14 the connection is gone "
                                              "status 14 the connection is gone ");
    assert_string_equal(link.heard_by_server,
                        "begin begin begin gone 14 the connection is gone gone 14 the connection is gone "
                        "gone 14 the connection is gone ");
}

static void test_a_hundred_streams_run_at_once_and_the_rest_wait(void **state)
{
    (void)state;
    struct link link;
    link_open_with(&link, NULL, &(struct rpc_limits){.streams = 10});
    for (int i = 0; i < 40; i++) {
        struct rpc_call *call = rpc_call_begin(link.client, &echo, &link, NULL, 0);
        send_text(call, "x");
        rpc_call_half_close(call);
    }
    run(&link);
    size_t served = 0;
    for (const char *at = link.heard_by_client; (at = strstr(at, "[x] status 0 ")) != NULL; at++) served++;
    assert_true(served >= 10); /* until the server's settings arrive, the client may try more and see them refused */
    link.heard_by_client[0] = link.heard_by_server[0] = '\0';
    for (int i = 0; i < 40; i++) {
        struct rpc_call *call = rpc_call_begin(link.client, &echo, &link, NULL, 0);
        send_text(call, "x");
        rpc_call_half_close(call);
    }
    run(&link);
    served = 0;
    for (const char *at = link.heard_by_client; (at = strstr(at, "[x] status 0 ")) != NULL; at++) served++;
    assert_int_equal(served, 40);
    link_close(&link);
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
    nghttp2_session_client_new(&raw->session, callbacks, raw);
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
         ":status=200 content-type=application/grpc grpc-status=12 grpc-message=compressed messages are not "
         "supported "},
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

static void test_a_ping_is_answered(void **state)
{
    (void)state;
    struct link link;
    link_open(&link);
    run(&link);
    rpc_ping(link.client);
    assert_true(carry(&link, link.client, link.server));
    assert_true(carry(&link, link.server, link.client));
    link_close(&link);
}

static void test_output_is_refused_inside_a_callback(void **state);

static void output_inside(struct rpc_call *call, const uint8_t *message, size_t length, void *context)
{
    (void)message, (void)length;
    const uint8_t *bytes;
    send_text(call, "answer");
    *(size_t *)context = rpc_output(rpc_call_connection(call), &bytes);
}

static void test_output_is_refused_inside_a_callback(void **state)
{
    (void)state;
    static const struct rpc_method nested[] = {{.path = "/t.T/Manual", .message = output_inside}, {0}};
    struct link link;
    link_open(&link);
    rpc_close(link.server);
    size_t seen = 77;
    assert_int_equal(rpc_server_open(&link.server, nested, &seen, NULL, &link.error), 0);
    struct rpc_call *call = rpc_call_begin(link.client, &manual, &link, NULL, 0);
    send_text(call, "x");
    run(&link);
    assert_int_equal(seen, 0);
    assert_string_equal(link.heard_by_client, "[answer] ");
    link_close(&link);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_echoes_a_unary_call_however_the_bytes_are_cut),
        cmocka_unit_test(test_keeps_empty_messages_and_message_boundaries),
        cmocka_unit_test(test_wakes_an_idle_stream_in_both_directions),
        cmocka_unit_test(test_sends_all_calls_in_one_round_of_output),
        cmocka_unit_test(test_a_message_longer_than_every_frame_and_window_arrives_whole),
        cmocka_unit_test(test_refuses_a_message_one_byte_too_large_without_receiving_it),
        cmocka_unit_test(test_a_client_refuses_a_too_large_answer),
        cmocka_unit_test(test_an_unknown_method_is_unimplemented),
        cmocka_unit_test(test_a_refusal_in_begin_is_trailers_only_and_keeps_its_text),
        cmocka_unit_test(test_trailers_follow_what_is_queued),
        cmocka_unit_test(test_cancel_reaches_the_other_end),
        cmocka_unit_test(test_a_call_cancelled_before_it_is_sent_is_gone_once),
        cmocka_unit_test(test_a_deadline_is_told_to_the_server),
        cmocka_unit_test(test_timeouts_are_read_in_every_unit_and_garbage_is_not),
        cmocka_unit_test(test_metadata_with_bytes_arrives),
        cmocka_unit_test(test_base64_round_trips_padded_or_not_and_refuses_the_rest),
        cmocka_unit_test(test_metadata_beyond_the_cap_are_refused),
        cmocka_unit_test(test_a_full_queue_refuses_until_the_peer_reads),
        cmocka_unit_test(test_a_peer_that_does_not_open_its_window_fills_the_queue_and_no_more),
        cmocka_unit_test(test_draining_lets_running_calls_finish_and_then_wants_to_close),
        cmocka_unit_test(test_a_call_begun_while_the_notice_travels_is_still_served),
        cmocka_unit_test(test_closing_tells_every_call_once),
        cmocka_unit_test(test_a_hundred_streams_run_at_once_and_the_rest_wait),
        cmocka_unit_test(test_requests_that_are_not_grpc_are_told_so),
        cmocka_unit_test(test_rapid_resets_end_the_connection),
        cmocka_unit_test(test_a_ping_flood_ends_the_connection_and_a_keepalive_does_not),
        cmocka_unit_test(test_garbage_is_a_protocol_error),
        cmocka_unit_test(test_a_frame_error_is_answered_with_goaway_and_closes),
        cmocka_unit_test(test_a_ping_is_answered),
        cmocka_unit_test(test_output_is_refused_inside_a_callback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
