/* HTTP/1.1, the server's half: requests in, answers out, and what no request is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/http/http.h"

static char heard[4096]; /* what the handler was asked */
static char said[1 << 16];

static void handle(const struct http_request *request, struct http_answer *answer, void *context)
{
    (void)context;
    const size_t length = strlen(heard);
    snprintf(heard + length, sizeof heard - length, "[%s %s]", request->path,
             request->authorization ? request->authorization : "-");
    answer->status = strcmp(request->path, "/none") == 0 ? 404 : 200;
    answer->type = "text/plain";
    answer->body = strdup("body");
    answer->length = 4;
}

/* Gives the bytes `cut` at a time and takes all output; returns whether the connection ends. */
static bool converse(const char *bytes, size_t length, size_t cut)
{
    struct http_connection *c;
    struct error error;
    heard[0] = '\0';
    size_t out = 0;
    assert_int_equal(http_open(&c, handle, NULL, &error), 0);
    for (size_t done = 0, take; done < length && !http_wants_close(c); done += take) {
        take = length - done < cut ? length - done : cut;
        http_input(c, (const uint8_t *)bytes + done, take, &error);
        const uint8_t *output;
        for (size_t n; (n = http_output(c, &output)) > 0; out += n) {
            assert_true(out + n < sizeof said);
            memcpy(said + out, output, n);
        }
    }
    said[out] = '\0';
    const bool ends = http_wants_close(c);
    http_close(c);
    return ends;
}

static void a_request_is_answered_however_it_is_cut(void **state)
{
    (void)state;
    static const char text[] = "GET /metrics?x=1 HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer abc\r\nX: y\r\n\r\n";
    for (size_t cut = 1; cut <= sizeof text; cut++) {
        assert_false(converse(text, sizeof text - 1, cut));
        assert_string_equal(heard, "[/metrics Bearer abc]");
        assert_string_equal(said, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n"
                                  "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\r\nbody");
    }
}

static void requests_on_one_connection_are_answered_in_order(void **state)
{
    (void)state;
    static const char text[] =
        "GET /a HTTP/1.1\r\nHost: h\r\n\r\nHEAD /b HTTP/1.1\r\nHost: h\r\n\r\n"
        "GET /none HTTP/1.1\r\nHost: h\r\nAuthorization: Basic x\r\n\r\nGET /c HTTP/1.0\r\n\r\nGET /d HTTP/1.1\r\n";
    for (size_t cut = 1; cut <= sizeof text; cut++) {
        assert_true(converse(text, sizeof text - 1, cut)); /* with the HTTP/1.0 */
        assert_string_equal(heard, "[/a -][/b -][/none Basic x][/c -]");
        int answers = 0, bodies = 0;
        for (const char *at = said; (at = strstr(at, "HTTP/1.1 ")); at++) answers++;
        for (const char *at = said; (at = strstr(at, "\r\n\r\nbody")); at++) bodies++;
        assert_int_equal(answers, 4);
        assert_int_equal(bodies, 3);
        assert_non_null(strstr(said, "Connection: close\r\n\r\nbody"));
    }
}

/* As proxies' clients send it, and every server must take it (RFC 9112, 3.2.2). */
static void a_target_may_be_a_whole_address(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"http://h/metrics", "/metrics"},
        {"http://h:7700/a/b?c=http://d/e#f", "/a/b"},
        {"HTTPS://h/", "/"},
        {"http://h", "/"},
        {"http://h?c", "/"},
        {"/http://h/a", "/http://h/a"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256], path[64];
        snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", cases[i][0]);
        snprintf(path, sizeof path, "[%s -]", cases[i][1]);
        assert_false(converse(text, strlen(text), sizeof text));
        assert_string_equal(heard, path);
    }
}

/* Of HTTP/1.0 a client that is not told so waits for the connection's end. */
static void a_connection_that_stays_says_so_where_that_is_not_the_rule(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool ends, says_keep_alive;
    } cases[] = {
        {"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", false, true},
        {"POST /a HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", false, true},
        {"GET /a HTTP/1.0\r\n\r\n", true, false},
        {"GET /a HTTP/1.1\r\nHost: h\r\n\r\n", false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(converse(cases[i].text, strlen(cases[i].text), 1000), cases[i].ends);
        assert_int_equal(strstr(said, "\r\nConnection: keep-alive\r\n") != NULL, cases[i].says_keep_alive);
        assert_int_equal(strstr(said, "\r\nConnection: close\r\n") != NULL, cases[i].ends);
    }
}

static void what_is_no_request_of_ours_is_told_so(void **state)
{
    (void)state;
    static const struct {
        const char *text, *status;
        bool ends;
    } cases[] = {
        {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", "405 Method Not Allowed", true},
        {"DELETE /a HTTP/1.1\r\nHost: h\r\n\r\n", "405 Method Not Allowed", false},
        {"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "405 Method Not Allowed", false},
        {"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n", "405 Method Not Allowed", false},
        {"GET /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", "413 Content Too Large", true},
        {"GET /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "413 Content Too Large", true},
        {"GET /a HTTP/1.1\r\n\r\n", "400 Bad Request", true},
        {"GET /a HTTP/1.1\r\nHost: h\r\nHost: g\r\n\r\n", "400 Bad Request", true},
        {"GET /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", "400 Bad Request",
         true},
        {"GET /a HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\n", "400 Bad Request", true},
        {"GET /a HTTP/1.1\r\nHost h\r\n\r\n", "400 Bad Request", true},
        {"GET a HTTP/1.1\r\nHost: h\r\n\r\n", "400 Bad Request", true},
        {"NONSENSE /a HTTP/1.1\r\nHost: h\r\n\r\n", "400 Bad Request", true},
        {"GET /a HTTP/2.0\r\nHost: h\r\n\r\n", "505 HTTP Version Not Supported", true},
        {"\x16\x03\x01\x02", "400 Bad Request", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t cut = 1; cut < 100; cut += 33) {
            const bool ends = converse(cases[i].text, strlen(cases[i].text), cut);
            char expected[64];
            snprintf(expected, sizeof expected, "HTTP/1.1 %s\r\n", cases[i].status);
            assert_memory_equal(said, expected, strlen(expected));
            assert_string_equal(heard, "");
            assert_int_equal(ends, cases[i].ends);
            assert_int_equal(strstr(said, "Connection: close\r\n") != NULL, cases[i].ends);
        }
    }
}

static void a_head_has_8_kib_and_no_more(void **state)
{
    (void)state;
    char text[HTTP_HEAD_MAX + 512];
    for (int over = 0; over < 2; over++) {
        const int begin = snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: h\r\nX: ");
        const size_t fill = HTTP_HEAD_MAX - 4 - (size_t)begin + (size_t)over;
        memset(text + begin, 'x', fill);
        memcpy(text + begin + fill, "\r\n\r\n", 4);
        for (size_t cut = 100; cut < 2 * HTTP_HEAD_MAX; cut *= 13) {
            assert_int_equal(converse(text, (size_t)begin + fill + 4, cut), over);
            assert_string_equal(heard, over ? "" : "[/ -]");
            assert_non_null(strstr(said, over ? "HTTP/1.1 431 " : "HTTP/1.1 200 "));
        }
    }
    memset(text, 'x', sizeof text); /* a target without end */
    memcpy(text, "GET /", 5);
    assert_true(converse(text, sizeof text, 1000));
    assert_non_null(strstr(said, "HTTP/1.1 431 "));
    assert_string_equal(heard, "");
}

static void a_head_that_does_not_end_is_timed_out(void **state)
{
    (void)state;
    static const char half[] = "GET / HTTP/1.1\r\nHo";
    struct http_connection *c;
    struct error error;
    const uint8_t *output;
    assert_int_equal(http_open(&c, handle, NULL, &error), 0);
    assert_false(http_is_waiting(c));
    http_input(c, (const uint8_t *)half, sizeof half - 1, &error);
    assert_true(http_is_waiting(c));
    assert_int_equal(http_output(c, &output), 0);
    http_time_out(c);
    assert_true(http_output(c, &output) > 0);
    assert_memory_equal(output, "HTTP/1.1 408 Request Timeout\r\n", 30);
    assert_int_equal(http_output(c, &output), 0);
    assert_true(http_wants_close(c));
    http_close(c);
}

static void more_than_is_taken_at_once_is_an_error(void **state)
{
    (void)state;
    static const char text[] = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    struct http_connection *c;
    struct error error;
    int result = 0;
    size_t given = 0;
    heard[0] = '\0';
    assert_int_equal(http_open(&c, handle, NULL, &error), 0);
    for (; result == 0 && given < 1 << 20; given += sizeof text - 1) /* nobody takes the answers */
        result = http_input(c, (const uint8_t *)text, sizeof text - 1, &error);
    assert_int_equal(result, -STATUS_INTERNAL);
    assert_in_range(given, HTTP_INPUT_MAX, HTTP_INPUT_MAX + 100);
    assert_string_equal(heard, "[/ -]");
    http_close(c);
}

static void draining_answers_what_has_begun_and_ends(void **state)
{
    (void)state;
    static const char half[] = "GET /a HTTP/1.1\r\n", rest[] = "Host: h\r\n\r\n";
    struct http_connection *c;
    struct error error;
    const uint8_t *output;
    for (int begun = 0; begun < 2; begun++) {
        assert_int_equal(http_open(&c, handle, NULL, &error), 0);
        if (begun) http_input(c, (const uint8_t *)half, sizeof half - 1, &error);
        http_drain(c);
        assert_int_equal(http_wants_close(c), !begun);
        if (begun) {
            http_input(c, (const uint8_t *)rest, sizeof rest - 1, &error);
            const size_t length = http_output(c, &output);
            assert_non_null(memmem(output, length, "Connection: close\r\n", 19));
            assert_int_equal(http_output(c, &output), 0);
            assert_true(http_wants_close(c));
        }
        http_close(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_answered_however_it_is_cut),
        cmocka_unit_test(requests_on_one_connection_are_answered_in_order),
        cmocka_unit_test(a_target_may_be_a_whole_address),
        cmocka_unit_test(a_connection_that_stays_says_so_where_that_is_not_the_rule),
        cmocka_unit_test(what_is_no_request_of_ours_is_told_so),
        cmocka_unit_test(a_head_has_8_kib_and_no_more),
        cmocka_unit_test(a_head_that_does_not_end_is_timed_out),
        cmocka_unit_test(more_than_is_taken_at_once_is_an_error),
        cmocka_unit_test(draining_answers_what_has_begun_and_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
