/* gRPC over HTTP/2: what two ends of ours say to each other. */
#include "rpc_link.h"

static const struct rpc_method echo = CLIENT_METHOD("/t.T/Echo");
static const struct rpc_method manual = CLIENT_METHOD("/t.T/Manual");
static const struct rpc_method refuse = CLIENT_METHOD("/t.T/Refuse");
static const struct rpc_method unary = CLIENT_METHOD("/t.T/Unary");
static const struct rpc_method unknown = CLIENT_METHOD("/t.T/Nothing");

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

static void test_an_unknown_service_and_a_path_of_none_are_unimplemented(void **state)
{
    (void)state;
    static const struct {
        const char *path, *heard;
    } cases[] = {
        {"/t.U/Echo", "status 12 unknown service t.U "},
        {"/t/Echo", "status 12 unknown service t "},
        {"/t.T/Echo/Echo", "status 12 unknown service t.T/Echo "},
        {"/Echo", "status 12 no path of a method: /Echo "},
        {"//", "status 12 unknown service  "},
        {"/", "status 12 no path of a method: / "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct rpc_method method = CLIENT_METHOD(cases[i].path);
        struct link link;
        link_open(&link);
        rpc_call_half_close(rpc_call_begin(link.client, &method, &link, NULL, 0));
        run(&link);
        assert_string_equal(link.heard_by_client, cases[i].heard);
        link_close(&link);
    }
}

static void test_a_method_of_one_message_takes_neither_none_nor_two(void **state)
{
    (void)state;
    static const char *const heard[][2] = {
        {"begin gone 12 this method takes one message, and there was none ",
         "status 12 this method takes one message, and there was none "},
        {"begin [0] end gone 0 ", "status 0 "},
        {"begin [0] gone 12 this method takes one message, and no second ",
         "status 12 this method takes one message, and no second "},
    };
    for (int messages = 0; messages < 3; messages++) {
        struct link link;
        link_open(&link);
        struct rpc_call *call = rpc_call_begin(link.client, &unary, &link, NULL, 0);
        for (int i = 0; i < messages; i++) send_text(call, i == 0 ? "0" : "1");
        rpc_call_half_close(call);
        run(&link);
        assert_string_equal(link.heard_by_server, heard[messages][0]);
        assert_string_equal(link.heard_by_client, heard[messages][1]);
        link_close(&link);
    }
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

static void test_a_long_text_is_cut_between_characters(void **state)
{
    (void)state;
    struct link link;
    link_open(&link);
    rpc_call_begin(link.client, &manual, &link, NULL, 0);
    run(&link);
    char text[RPC_TEXT_MAX + 16] = "", expected[RPC_TEXT_MAX + 32];
    memset(text, 'x', RPC_TEXT_MAX - 2);
    strcpy(text + RPC_TEXT_MAX - 2, "\xc3\xa9 and so on");
    rpc_call_finish(link.server_call, RPC_NOT_FOUND, text);
    run(&link);
    snprintf(expected, sizeof expected, "status 5 %.*s ", RPC_TEXT_MAX - 2, text);
    assert_string_equal(link.heard_by_client, expected);
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

static void test_a_call_that_is_finished_hears_no_more(void **state)
{
    (void)state;
    static const struct rpc_method first = CLIENT_METHOD("/t.T/First");
    struct link link;
    link_open(&link);
    struct rpc_call *call = rpc_call_begin(link.client, &first, &link, NULL, 0);
    send_text(call, "a");
    send_text(call, "b"); /* in the same frame */
    run(&link);
    assert_string_equal(link.heard_by_server, "begin [a] gone 0 ");
    link_close(&link);
}

static void test_what_a_lost_call_had_queued_is_room_again(void **state)
{
    (void)state;
    struct link link;
    link_open_with(&link, NULL, &(struct rpc_limits){.queue_bytes = 100});
    uint8_t message[95] = {0};
    struct rpc_call *call = rpc_call_begin(link.client, &manual, &link, NULL, 0);
    run(&link);
    assert_int_equal(rpc_call_send(link.server_call, message, sizeof message), 0);
    rpc_call_cancel(call);
    carry(&link, link.client, link.server);
    rpc_call_begin(link.client, &manual, &link, NULL, 0);
    carry(&link, link.client, link.server);
    assert_int_equal(rpc_call_send(link.server_call, message, sizeof message), 0);
    link_close(&link);
}

static size_t occurrences(const char *text, const char *word)
{
    size_t count = 0;
    for (; (text = strstr(text, word)) != NULL; text++) count++;
    return count;
}

static void test_half_received_messages_share_one_budget(void **state)
{
    (void)state;
    struct link link;
    link_open_with(&link, &(struct rpc_limits){.queue_bytes = 64u << 20}, NULL);
    uint8_t *message = calloc(1, RPC_MESSAGE_MAX);
    for (int i = 0; i < 8; i++) { /* 32 MiB in turns of one frame each */
        struct rpc_call *call = rpc_call_begin(link.client, &manual, &link, NULL, 0);
        assert_int_equal(rpc_call_send(call, message, RPC_MESSAGE_MAX), 0);
    }
    run(&link);
    size_t received = occurrences(link.heard_by_server, "[4194304 bytes]");
    size_t refused = occurrences(link.heard_by_client, "status 8 too many bytes in half-received messages");
    assert_int_equal(received + refused, 8);
    assert_in_range(received, 3, RPC_RECEIVE_MAX / RPC_MESSAGE_MAX);
    link.heard_by_server[0] = '\0';
    for (int i = 0; i < 2; i++) { /* and it is free again */
        rpc_call_send(rpc_call_begin(link.client, &manual, &link, NULL, 0), message, RPC_MESSAGE_MAX);
    }
    run(&link);
    assert_int_equal(occurrences(link.heard_by_server, "[4194304 bytes]"), 2);
    free(message);
    link_close(&link);
}

static void test_a_call_that_waits_for_a_stream_ends_with_the_drain(void **state)
{
    (void)state;
    struct link link;
    link_open_with(&link, NULL, &(struct rpc_limits){.streams = 1});
    run(&link);
    rpc_call_begin(link.client, &manual, &link, NULL, 0);
    rpc_call_begin(link.client, &manual, &link, NULL, 0); /* waits */
    run(&link);
    rpc_drain(link.server);
    run(&link);
    rpc_call_finish(link.server_call, RPC_OK, NULL);
    run(&link);
    assert_int_equal(occurrences(link.heard_by_client, "status"), 2);
    assert_int_equal(occurrences(link.heard_by_client, "status 14"), 1);
    assert_string_equal(link.heard_by_server, "begin gone 0 ");
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

/* 14 is UNAVAILABLE: it may be begun again elsewhere. */
static void test_a_call_that_meets_a_terminated_connection_was_not_begun(void **state)
{
    (void)state;
    struct link link;
    link_open(&link);
    run(&link);
    rpc_terminate(link.server);
    struct rpc_call *call = rpc_call_begin(link.client, &echo, &link, NULL, 0);
    send_text(call, "too late");
    run(&link);
    assert_string_equal(link.heard_by_client, "status 14 REFUSED_STREAM ");
    assert_string_equal(link.heard_by_server, "");
    assert_true(rpc_wants_close(link.server));
    assert_true(rpc_wants_close(link.client));
    link_close(&link);
}

static void test_what_is_queued_is_counted_until_it_leaves(void **state)
{
    (void)state;
    struct link link;
    link_open(&link);
    rpc_call_begin(link.client, &manual, &link, NULL, 0);
    run(&link);
    send_text(link.server_call, "five.");
    send_text(link.server_call, "");
    assert_int_equal(rpc_call_queued(link.server_call), 5 + 5 + 5);
    run(&link);
    assert_int_equal(rpc_call_queued(link.server_call), 0);
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

static void test_calls_beyond_the_stream_limit_wait_their_turn(void **state)
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
    size_t served = occurrences(link.heard_by_client, "[x] status 0 ");
    assert_true(served >= 10); /* until the server's settings arrive, the client may try more and see them refused */
    link.heard_by_client[0] = link.heard_by_server[0] = '\0';
    for (int i = 0; i < 40; i++) {
        struct rpc_call *call = rpc_call_begin(link.client, &echo, &link, NULL, 0);
        send_text(call, "x");
        rpc_call_half_close(call);
    }
    run(&link);
    served = occurrences(link.heard_by_client, "[x] status 0 ");
    assert_int_equal(served, 40);
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
        cmocka_unit_test(test_an_unknown_service_and_a_path_of_none_are_unimplemented),
        cmocka_unit_test(test_a_method_of_one_message_takes_neither_none_nor_two),
        cmocka_unit_test(test_a_refusal_in_begin_is_trailers_only_and_keeps_its_text),
        cmocka_unit_test(test_a_long_text_is_cut_between_characters),
        cmocka_unit_test(test_trailers_follow_what_is_queued),
        cmocka_unit_test(test_cancel_reaches_the_other_end),
        cmocka_unit_test(test_a_call_cancelled_before_it_is_sent_is_gone_once),
        cmocka_unit_test(test_a_deadline_is_told_to_the_server),
        cmocka_unit_test(test_metadata_with_bytes_arrives),
        cmocka_unit_test(test_metadata_beyond_the_cap_are_refused),
        cmocka_unit_test(test_a_full_queue_refuses_until_the_peer_reads),
        cmocka_unit_test(test_a_peer_that_does_not_open_its_window_fills_the_queue_and_no_more),
        cmocka_unit_test(test_a_call_that_is_finished_hears_no_more),
        cmocka_unit_test(test_what_a_lost_call_had_queued_is_room_again),
        cmocka_unit_test(test_half_received_messages_share_one_budget),
        cmocka_unit_test(test_a_call_that_waits_for_a_stream_ends_with_the_drain),
        cmocka_unit_test(test_draining_lets_running_calls_finish_and_then_wants_to_close),
        cmocka_unit_test(test_a_call_that_meets_a_terminated_connection_was_not_begun),
        cmocka_unit_test(test_what_is_queued_is_counted_until_it_leaves),
        cmocka_unit_test(test_a_call_begun_while_the_notice_travels_is_still_served),
        cmocka_unit_test(test_closing_tells_every_call_once),
        cmocka_unit_test(test_calls_beyond_the_stream_limit_wait_their_turn),
        cmocka_unit_test(test_a_ping_is_answered),
        cmocka_unit_test(test_output_is_refused_inside_a_callback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
