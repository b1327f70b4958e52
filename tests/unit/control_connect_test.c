/* The worker's way to the coordinator over TLS, past servers that are not it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "worker/control_connect.h"

enum kind {
    CERTIFIED, /* TLS, and an echo behind it */
    PLAIN,     /* answers whatever comes in plain text */
    SILENT,    /* says nothing */
    CROWDED,   /* as CERTIFIED, but hangs up on the first three */
};

struct server {
    enum kind kind;
    struct tls_context *context; /* CERTIFIED: a certificate of its own */
    uint8_t fingerprint[TLS_FINGERPRINT_BYTES];
    int listener;
    char address[64];
    atomic_int bytes; /* that came through TLS */
    pthread_t thread;
};

static void send_output(struct tls *tls, int fd)
{
    uint8_t sealed[4096];
    for (size_t length; (length = tls_output(tls, sealed, sizeof sealed)) > 0;)
        if (send(fd, sealed, length, MSG_NOSIGNAL) < 0) return;
}

static void echo(struct server *server, int fd)
{
    struct tls *tls;
    struct error error;
    uint8_t sealed[4096], plain[4096];
    ssize_t length = 0, opened = 0;
    assert_int_equal(tls_open(&tls, server->context, &error), 0);
    while (opened >= 0 && (length = recv(fd, sealed, sizeof sealed, 0)) > 0) {
        if (tls_input(tls, sealed, (size_t)length, &error)) break;
        while ((opened = tls_read(tls, plain, sizeof plain, &error)) > 0) {
            server->bytes += (int)opened;
            tls_write(tls, plain, (size_t)opened, &error);
        }
        send_output(tls, fd);
    }
    tls_close(tls);
}

static void *serve(void *context)
{
    struct server *server = context;
    const bool certified = server->kind == CERTIFIED || server->kind == CROWDED;
    int put_out = server->kind == CROWDED ? 3 : 0;
    for (int fd; (fd = accept(server->listener, NULL, NULL)) >= 0; close(fd)) {
        char bytes[4096];
        if (put_out-- > 0) continue;
        if (certified) echo(server, fd);
        while (!certified && recv(fd, bytes, sizeof bytes, 0) > 0)
            if (server->kind == PLAIN) send(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, MSG_NOSIGNAL);
    }
    return NULL;
}

static void server_start(struct server *server, enum kind kind)
{
    const struct tls_server_options options = {.names = "DNS:gaccd"};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct error error;
    *server = (struct server){.kind = kind, .listener = socket(AF_INET, SOCK_STREAM, 0)};
    assert_int_equal(bind(server->listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(server->listener, 4), 0);
    getsockname(server->listener, (struct sockaddr *)&at, &(socklen_t){sizeof at});
    snprintf(server->address, sizeof server->address, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    assert_int_equal(tls_server(&server->context, &options, &error), 0);
    tls_context_fingerprint(server->context, server->fingerprint);
    pthread_create(&server->thread, NULL, serve, server);
}

static void server_stop(struct server *server)
{
    shutdown(server->listener, SHUT_RDWR);
    pthread_join(server->thread, NULL);
    close(server->listener);
    tls_context_close(server->context);
}

/* Through the line and back. */
static void assert_echo(struct control_line *line, const char *text)
{
    uint8_t bytes[4096];
    struct error error;
    ssize_t got = 0;
    assert_int_equal(tls_write(line->tls, (const uint8_t *)text, strlen(text), &error), 0);
    send_output(line->tls, line->socket);
    while (got == 0) {
        struct pollfd ready = {.fd = line->socket, .events = POLLIN};
        assert_int_equal(poll(&ready, 1, 10000), 1);
        const ssize_t length = recv(line->socket, bytes, sizeof bytes, 0);
        assert_true(length > 0);
        assert_int_equal(tls_input(line->tls, bytes, (size_t)length, &error), 0);
        got = tls_read(line->tls, bytes, sizeof bytes, &error);
    }
    assert_int_equal(got, strlen(text));
    assert_memory_equal(bytes, text, strlen(text));
}

static void the_certificate_that_was_told_of_is_the_coordinators(void **unused)
{
    (void)unused;
    struct server server;
    struct control_line line;
    struct error error;
    server_start(&server, CERTIFIED);
    assert_int_equal(control_connect(&line, server.address, server.fingerprint, 10, &error), 0);
    assert_echo(&line, "hello");
    control_line_close(&line);
    server_stop(&server);
}

/* Nothing is said to whoever stands in between, or has taken the port. */
static void who_is_not_the_coordinator_hears_nothing(void **unused)
{
    (void)unused;
    static const struct {
        enum kind kind;
        const char *why;
    } cases[] = {
        {CERTIFIED, "TLS: the peer's certificate: certificate not trusted"},
        {PLAIN, "TLS: what the peer sends is none"},
        {SILENT, "TLS: the peer does not answer in time"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct server server;
        struct control_line line;
        struct error error;
        const uint8_t told[TLS_FINGERPRINT_BYTES] = {1};
        char expected[256];
        server_start(&server, cases[i].kind);
        assert_int_equal(control_connect(&line, server.address, told, 0.5, &error), -STATUS_UNAVAILABLE);
        snprintf(expected, sizeof expected, "cannot reach the coordinator at %s: %s", server.address, cases[i].why);
        assert_string_equal(error.text, expected);
        assert_int_equal(line.socket, -1);
        server_stop(&server);
        assert_int_equal(server.bytes, 0);
    }
}

static void addresses_of_somebody_else_are_passed_over(void **unused)
{
    (void)unused;
    struct server other, plain, server;
    struct control_line line;
    struct error error;
    char list[256];
    server_start(&other, CERTIFIED);
    server_start(&plain, PLAIN);
    server_start(&server, CERTIFIED);
    snprintf(list, sizeof list, "%s,tcp://127.0.0.1:1,%s,%s", other.address, plain.address, server.address);
    assert_int_equal(control_connect(&line, list, server.fingerprint, 10, &error), 0);
    assert_echo(&line, "hello");
    control_line_close(&line);
    server_stop(&server);
    server_stop(&plain);
    server_stop(&other);
    assert_int_equal(other.bytes, 0);
}

static void a_coordinator_that_hangs_up_is_tried_again(void **unused)
{
    (void)unused;
    struct server server;
    struct control_line line;
    struct error error;
    server_start(&server, CROWDED);
    assert_int_equal(control_connect(&line, server.address, server.fingerprint, 30, &error), 0);
    assert_echo(&line, "hello");
    control_line_close(&line);
    server_stop(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_certificate_that_was_told_of_is_the_coordinators),
        cmocka_unit_test(who_is_not_the_coordinator_hears_nothing),
        cmocka_unit_test(addresses_of_somebody_else_are_passed_over),
        cmocka_unit_test(a_coordinator_that_hangs_up_is_tried_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
