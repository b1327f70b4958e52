/*
 * The worker's line to the coordinator, against a small server over a unix socket: one connection, one thread, and one
 * way of behaving per test.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "proto/rpc/rpc.h"
#include "worker/control_client.h"

enum behaviour {
    OBLIGING,            /* Welcome, Decision, Farewell as asked */
    FAREWELL_TO_HELLO,   /* 65 */
    FAREWELL_TO_REPORT,  /* unsolicited, 70 */
    HANGS_UP_ON_REPORT,  /* the connection is gone */
    ENDS_CALL_ON_REPORT, /* the stream is gone, in order */
    GARBAGE_TO_REPORT,   /* bytes that are no message */
    WELCOME_TO_REPORT,   /* a message nobody waits for */
    SILENT_ON_REPORT,    /* reads no more */
    LEAVES_ON_REPORT,    /* takes nothing any more, and says why a moment later */
    IGNORES_REPORT,
};

struct server {
    enum behaviour behaviour;
    uint8_t secret[CONTROL_SECRET];
    int listener;
    char address[128];
    pthread_t thread;
    atomic_bool stop;
    atomic_int states, steps_done;
    _Atomic uint64_t last_state; /* step·100 + state */
    bool hang_up, silent;
    struct rpc_call *left; /* of whom it takes leave */
};

static void answer(struct rpc_call *call, const Gacc__V1__CoordinatorMessage *message)
{
    uint8_t packed[4096];
    size_t length = gacc__v1__coordinator_message__pack(message, packed);
    assert_int_equal(rpc_call_send(call, packed, length), 0);
}

static void answer_farewell(struct rpc_call *call, uint32_t status, const char *text)
{
    Gacc__V1__Failure failure = GACC__V1__FAILURE__INIT;
    Gacc__V1__Farewell farewell = GACC__V1__FAREWELL__INIT;
    Gacc__V1__CoordinatorMessage message = GACC__V1__COORDINATOR_MESSAGE__INIT;
    failure.status = status;
    failure.text = (char *)(uintptr_t)text;
    farewell.failure = status != 0 ? &failure : NULL;
    farewell.print = status != 0;
    message.body_case = GACC__V1__COORDINATOR_MESSAGE__BODY_FAREWELL;
    message.farewell = &farewell;
    answer(call, &message);
}

static void answer_welcome(struct rpc_call *call)
{
    Gacc__V1__Plan plan = GACC__V1__PLAN__INIT;
    Gacc__V1__Welcome welcome = GACC__V1__WELCOME__INIT;
    Gacc__V1__CoordinatorMessage message = GACC__V1__COORDINATOR_MESSAGE__INIT;
    plan.step = 1;
    welcome.plan = &plan;
    message.body_case = GACC__V1__COORDINATOR_MESSAGE__BODY_WELCOME;
    message.welcome = &welcome;
    answer(call, &message);
}

static void answer_decision(struct rpc_call *call, uint64_t step)
{
    Gacc__V1__Decision decision = GACC__V1__DECISION__INIT;
    Gacc__V1__CoordinatorMessage message = GACC__V1__COORDINATOR_MESSAGE__INIT;
    decision.step = step;
    decision.verdict = GACC__V1__VERDICT__VERDICT_APPLY;
    message.body_case = GACC__V1__COORDINATOR_MESSAGE__BODY_DECISION;
    message.decision = &decision;
    answer(call, &message);
}

static void answer_report(struct server *server, struct rpc_call *call, const Gacc__V1__Report *report)
{
    switch (server->behaviour) {
    case FAREWELL_TO_REPORT:
        answer_farewell(call, 70, "rank 3 is gone");
        break;
    case HANGS_UP_ON_REPORT:
        server->hang_up = true;
        break;
    case ENDS_CALL_ON_REPORT:
        rpc_call_finish(call, RPC_RESOURCE_EXHAUSTED, "too slow");
        break;
    case GARBAGE_TO_REPORT:
        rpc_call_send(call, (const uint8_t *)"\xff\xff\xff", 3);
        break;
    case WELCOME_TO_REPORT:
        answer_welcome(call);
        break;
    case SILENT_ON_REPORT:
        server->silent = true;
        break;
    case LEAVES_ON_REPORT:
        server->left = call;
        break;
    case IGNORES_REPORT:
        break;
    default:
        answer_decision(call, report->step);
        break;
    }
}

static void join_begin(struct rpc_call *call, void *context)
{
    struct server *server = context;
    const char *text = rpc_call_metadata(call, "gacc-secret-bin");
    uint8_t secret[CONTROL_SECRET];
    if (text == NULL || rpc_base64_decode(secret, sizeof secret, text) != CONTROL_SECRET ||
        memcmp(secret, server->secret, CONTROL_SECRET) != 0) {
        rpc_call_finish(call, RPC_UNAUTHENTICATED, "wrong secret");
    }
}

static void join_message(struct rpc_call *call, const uint8_t *bytes, size_t length, void *context)
{
    struct server *server = context;
    Gacc__V1__WorkerMessage *message = gacc__v1__worker_message__unpack(NULL, length, bytes);
    assert_non_null(message);
    switch (message->body_case) {
    case GACC__V1__WORKER_MESSAGE__BODY_HELLO:
        if (server->behaviour == FAREWELL_TO_HELLO)
            answer_farewell(call, 65, "rank 1: train.csv:3: not a number");
        else
            answer_welcome(call);
        break;
    case GACC__V1__WORKER_MESSAGE__BODY_REPORT:
        answer_report(server, call, message->report);
        break;
    case GACC__V1__WORKER_MESSAGE__BODY_FINISHED:
        answer_farewell(call, 0, "");
        break;
    case GACC__V1__WORKER_MESSAGE__BODY_STEP_DONE:
        server->steps_done++;
        break;
    case GACC__V1__WORKER_MESSAGE__BODY_STATE:
        server->states++;
        server->last_state = message->state->step * 100 + (uint64_t)message->state->state;
        break;
    case GACC__V1__WORKER_MESSAGE__BODY_INTERRUPTED:
        answer_farewell(call, 70, message->interrupted->signal);
        break;
    default:
        break;
    }
    gacc__v1__worker_message__free_unpacked(message, NULL);
}

static const struct rpc_method methods[] = {
    {.path = "/gacc.v1.Workers/Join", .begin = join_begin, .message = join_message},
    {0},
};

static void pause_ms(long milliseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = milliseconds * 1000000}, NULL);
}

static void send_output(const struct server *server, struct rpc_connection *connection, int fd)
{
    const uint8_t *bytes;
    for (size_t size; !server->hang_up && (size = rpc_output(connection, &bytes)) > 0;) {
        if (send(fd, bytes, size, MSG_NOSIGNAL) < 0) break;
    }
}

/* The PING wants an answer, which cannot be sent. */
static void take_leave(struct server *server, struct rpc_connection *connection, int fd)
{
    shutdown(fd, SHUT_RD);
    rpc_ping(connection);
    send_output(server, connection, fd);
    pause_ms(100);
    answer_farewell(server->left, 70, "rank 3 is gone");
    send_output(server, connection, fd);
    server->hang_up = true;
}

static void serve(struct server *server, int fd)
{
    struct rpc_connection *connection;
    struct error error;
    rpc_server_open(&connection, methods, server, NULL, &error);
    while (!server->stop && !server->hang_up) {
        static uint8_t buffer[65536];
        struct pollfd ready = {.fd = server->silent ? -1 : fd, .events = POLLIN};
        if (poll(&ready, 1, 10) <= 0) continue;
        ssize_t length = recv(fd, buffer, sizeof buffer, 0);
        if (length <= 0 || rpc_input(connection, buffer, (size_t)length, &error) != 0) break;
        send_output(server, connection, fd);
        if (server->left) take_leave(server, connection, fd);
    }
    rpc_close(connection);
}

static void *server_thread(void *context)
{
    struct server *server = context;
    int fd = accept(server->listener, NULL, NULL);
    if (fd < 0) return NULL;
    serve(server, fd);
    close(fd);
    return NULL;
}

static int listen_unix(struct server *server)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "/tmp/gacc-control-client-test.%d", (int)getpid());
    snprintf(server->address, sizeof server->address, "unix:%s", at.sun_path);
    unlink(at.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static int listen_tcp(struct server *server)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    getsockname(fd, (struct sockaddr *)&at, &length);
    snprintf(server->address, sizeof server->address, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    return fd;
}

/* A listener whose queue is full drops what comes, silently. Closes with the sockets in *fillers. */
static int listen_silently(int fillers[4], char *address, size_t size)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 0), 0);
    getsockname(fd, (struct sockaddr *)&at, &length);
    snprintf(address, size, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    for (int i = 0; i < 4; i++) {
        fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(fillers[i], (struct sockaddr *)&at, sizeof at);
    }
    return fd;
}

/* Answers on 127.0.0.1, and is said to be at two silent addresses, too. */
static int silent[2], fillers[2][4];
static int listen_behind_silence(struct server *server)
{
    char first[40], second[40], real[40];
    int fd = listen_tcp(server);
    snprintf(real, sizeof real, "%.39s", server->address);
    silent[0] = listen_silently(fillers[0], first, sizeof first);
    silent[1] = listen_silently(fillers[1], second, sizeof second);
    snprintf(server->address, sizeof server->address, "%s,%s,%s", first, second, real);
    return fd;
}

static void close_silence(void)
{
    for (int i = 0; i < 2; i++) {
        close(silent[i]);
        for (int j = 0; j < 4; j++) close(fillers[i][j]);
    }
}

static void server_start(struct server *server, enum behaviour behaviour, int (*listen_on)(struct server *))
{
    *server = (struct server){.behaviour = behaviour};
    for (int i = 0; i < CONTROL_SECRET; i++) server->secret[i] = (uint8_t)(255 - 7 * i);
    server->listener = listen_on(server);
    assert_int_equal(listen(server->listener, 1), 0);
    pthread_create(&server->thread, NULL, server_thread, server);
}

static void server_stop(struct server *server)
{
    server->stop = true;
    shutdown(server->listener, SHUT_RDWR);
    pthread_join(server->thread, NULL);
    close(server->listener);
    if (strncmp(server->address, "unix:", 5) == 0) unlink(server->address + 5);
}

/* What the events said. */
struct heard {
    atomic_int losses, farewells;
    char text[1024];
    uint32_t status;
    bool print, signals_blocked;
    atomic_uint idled; /* on the caller's thread */
};

static void on_lost(void *context, const struct error *error)
{
    struct heard *heard = context;
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    heard->signals_blocked = sigismember(&blocked, SIGTERM) == 1 && sigismember(&blocked, SIGUSR1) == 1;
    snprintf(heard->text, sizeof heard->text, "%s", error->text);
    heard->losses++;
}

static void on_farewell(void *context, const Gacc__V1__Farewell *farewell)
{
    struct heard *heard = context;
    snprintf(heard->text, sizeof heard->text, "%s", farewell->failure->text);
    heard->status = farewell->failure->status;
    heard->print = farewell->print;
    heard->farewells++;
}

static void on_idle(void *context)
{
    ((struct heard *)context)->idled++;
}

struct line {
    struct server server;
    struct heard heard;
    struct control *control;
    struct error error;
};

static int line_open(struct line *line, enum behaviour behaviour, int (*listen_on)(struct server *),
                     double timeout_seconds)
{
    memset(line, 0, sizeof *line);
    server_start(&line->server, behaviour, listen_on);
    const struct control_client_events events = {on_lost, on_farewell, on_idle, &line->heard, NULL};
    const struct control_address to = {.addresses = line->server.address, .secret = line->server.secret};
    return control_client_open(&line->control, &to, 1, timeout_seconds, &events, &line->error);
}

static void line_close(struct line *line)
{
    control_client_close(line->control);
    server_stop(&line->server);
}

static int say_hello(struct line *line)
{
    Gacc__V1__Hello hello = GACC__V1__HELLO__INIT;
    Gacc__V1__Welcome *welcome = NULL;
    int result = line->control->hello(line->control, &hello, &welcome, &line->error);
    if (result != 0) return result;
    assert_int_equal(welcome->plan->step, 1);
    gacc__v1__welcome__free_unpacked(welcome, NULL);
    return 0;
}

static int report_step(struct line *line, uint64_t step)
{
    Gacc__V1__Report report = GACC__V1__REPORT__INIT;
    Gacc__V1__Decision *decision = NULL;
    report.step = step;
    int result = line->control->report(line->control, &report, &decision, &line->error);
    if (result != 0) return result;
    assert_int_equal(decision->step, step);
    gacc__v1__decision__free_unpacked(decision, NULL);
    return 0;
}

static void finish(struct line *line)
{
    Gacc__V1__Finished finished = GACC__V1__FINISHED__INIT;
    Gacc__V1__Farewell *farewell = NULL;
    assert_int_equal(line->control->finished(line->control, &finished, &farewell, &line->error), 0);
    assert_null(farewell->failure);
    gacc__v1__farewell__free_unpacked(farewell, NULL);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void run_a_job(struct line *line)
{
    assert_int_equal(say_hello(line), 0);
    for (uint64_t step = 0; step < 200; step++) {
        assert_int_equal(report_step(line, step), 0);
        Gacc__V1__StepDone done = GACC__V1__STEP_DONE__INIT;
        done.step = step;
        assert_int_equal(line->control->step_done(line->control, &done, &line->error), 0);
    }
    finish(line);
    assert_int_equal(line->server.steps_done, 200); /* all before Finished, in order */
    assert_false(control_client_prints(line->control));
    line_close(line);
    assert_int_equal(line->heard.losses + line->heard.farewells, 0);
}

static void test_a_job_from_hello_to_farewell_over_a_unix_socket(void **state)
{
    (void)state;
    struct line line;
    assert_int_equal(line_open(&line, OBLIGING, listen_unix, 5), 0);
    run_a_job(&line);
}

static void test_a_job_from_hello_to_farewell_over_tcp(void **state)
{
    (void)state;
    struct line line;
    assert_int_equal(line_open(&line, OBLIGING, listen_tcp, 5), 0);
    run_a_job(&line);
}

static void test_a_farewell_to_hello_is_the_callers(void **state)
{
    (void)state;
    struct line line;
    assert_int_equal(line_open(&line, FAREWELL_TO_HELLO, listen_unix, 5), 0);
    assert_int_equal(say_hello(&line), -STATUS_DATA);
    assert_string_equal(line.error.text, "rank 1: train.csv:3: not a number");
    assert_true(control_client_prints(line.control));
    line_close(&line);
    assert_int_equal(line.heard.losses + line.heard.farewells, 0);
}

static void test_an_unsolicited_farewell_is_an_event_and_frees_the_caller(void **state)
{
    (void)state;
    struct line line;
    assert_int_equal(line_open(&line, FAREWELL_TO_REPORT, listen_unix, 5), 0);
    assert_int_equal(say_hello(&line), 0);
    assert_int_equal(report_step(&line, 0), -STATUS_INTERNAL);
    assert_string_equal(line.error.text, "rank 3 is gone");
    assert_int_equal(line.heard.farewells, 1);
    assert_int_equal(line.heard.status, 70);
    assert_true(line.heard.print);
    assert_int_equal(line.heard.losses, 0);
    line_close(&line);
    assert_int_equal(line.heard.losses, 0);
}

static void *interrupt(void *context)
{
    pause_ms(50);
    struct line *line = context;
    assert_true(control_client_interrupt(line->control, "SIGTERM", 2, NULL));
    return NULL;
}

static void test_a_farewell_is_read_though_nothing_can_be_sent_any_more(void **state)
{
    (void)state;
    struct line line;
    assert_int_equal(line_open(&line, LEAVES_ON_REPORT, listen_unix, 5), 0);
    assert_int_equal(say_hello(&line), 0);
    assert_int_equal(report_step(&line, 0), -STATUS_INTERNAL);
    assert_string_equal(line.error.text, "rank 3 is gone");
    line_close(&line);
    assert_int_equal(line.heard.losses, 0);
}

static void test_an_interruption_is_told_beside_a_caller_that_waits(void **state)
{
    (void)state;
    struct line line;
    assert_int_equal(line_open(&line, IGNORES_REPORT, listen_unix, 5), 0);
    assert_int_equal(say_hello(&line), 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, interrupt, &line), 0);
    assert_int_equal(report_step(&line, 0), -STATUS_INTERNAL);
    pthread_join(thread, NULL);
    assert_string_equal(line.heard.text, "SIGTERM");
    assert_int_equal(line.heard.farewells, 1);
    assert_int_equal(line.heard.losses, 0);
    assert_false(control_client_interrupt(line.control, "SIGTERM", 2, NULL)); /* nobody to tell any more */
    line_close(&line);
}

static void test_an_interruption_before_hello_is_a_hello_that_fails(void **state)
{
    (void)state;
    struct line line;
    assert_int_equal(line_open(&line, FAREWELL_TO_HELLO, listen_unix, 5), 0);
    Gacc__V1__Hello hello = GACC__V1__HELLO__INIT;
    assert_true(control_client_interrupt(line.control, "SIGTERM", 1, &hello));
    for (int i = 0; i < 500 && line.heard.farewells == 0; i++) pause_ms(10);
    assert_int_equal(line.heard.farewells, 1);
    assert_int_equal(line.heard.losses, 0);
    line_close(&line);
}

/* A line whose hello was answered; closes it. */
static void lose(struct line *line, const char *text)
{
    assert_int_equal(report_step(line, 0), -STATUS_INTERNAL);
    assert_string_equal(line->error.text, text);
    assert_int_equal(line->heard.losses, 1);
    assert_string_equal(line->heard.text, text);
    assert_true(line->heard.signals_blocked);
    assert_int_equal(report_step(line, 1), -STATUS_INTERNAL); /* and so does every later call, at once */
    line_close(line);
    assert_int_equal(line->heard.losses, 1);
}

static void lost_with(enum behaviour behaviour, const char *text)
{
    struct line line;
    assert_int_equal(line_open(&line, behaviour, listen_unix, 30), 0);
    assert_int_equal(say_hello(&line), 0);
    lose(&line, text);
}

static void test_a_coordinator_that_dies_is_lost(void **state)
{
    (void)state;
    lost_with(HANGS_UP_ON_REPORT, "the coordinator is gone: it closed the connection");
}

static void test_a_stream_that_ends_is_lost(void **state)
{
    (void)state;
    lost_with(ENDS_CALL_ON_REPORT, "the coordinator is gone: too slow (grpc-status 8)");
}

static void test_a_message_that_is_none_is_lost(void **state)
{
    (void)state;
    lost_with(GARBAGE_TO_REPORT,
              "the coordinator is gone: it sent a message of 3 bytes that is not a CoordinatorMessage");
}

static void test_a_message_nobody_waits_for_is_lost(void **state)
{
    (void)state;
    lost_with(WELCOME_TO_REPORT, "the coordinator is gone: it sent a message nobody waits for (1)");
}

/* On a busy machine a coordinator may take longer for its first answer: then with more patience. */
static void test_a_coordinator_that_falls_silent_is_lost_after_the_timeout(void **state)
{
    (void)state;
    struct line line;
    double timeout = 0.3;
    for (; line_open(&line, SILENT_ON_REPORT, listen_unix, timeout) || say_hello(&line); timeout *= 2) {
        assert_true(timeout < 10);
        line_close(&line);
    }
    char text[80];
    snprintf(text, sizeof text, "the coordinator is gone: it has not answered for %g s", timeout);
    const double began = seconds();
    lose(&line, text);
    assert_true(seconds() - began >= 0.9 * timeout); /* a ping was on its way when it fell silent */
}

/* Ends the caller's waiting once it was idle. */
static void *interrupt_idle(void *context)
{
    struct line *line = context;
    while (line->heard.idled < 3 && !line->heard.losses) pause_ms(1);
    assert_true(control_client_interrupt(line->control, "SIGTERM", 2, NULL));
    return NULL;
}

/* Otherwise the bytes that other ranks need from this one would wait, too. */
static void test_a_caller_that_waits_is_not_idle(void **state)
{
    (void)state;
    struct line line;
    pthread_t thread;
    assert_int_equal(line_open(&line, IGNORES_REPORT, listen_unix, 30), 0);
    const double began = seconds();
    assert_int_equal(say_hello(&line), 0);
    assert_int_equal(pthread_create(&thread, NULL, interrupt_idle, &line), 0);
    assert_int_equal(report_step(&line, 0), -STATUS_INTERNAL);
    pthread_join(thread, NULL);
    assert_true(line.heard.idled >= 3 && line.heard.idled < 2 + 1000 * (seconds() - began)); /* once a millisecond */
    line_close(&line);
}

static void test_a_wrong_secret_is_told(void **state)
{
    (void)state;
    struct line line = {0};
    server_start(&line.server, OBLIGING, listen_unix);
    const struct control_client_events events = {on_lost, on_farewell, on_idle, &line.heard, NULL};
    const uint8_t wrong[CONTROL_SECRET] = {1};
    const struct control_address to = {.addresses = line.server.address, .secret = wrong};
    assert_int_equal(control_client_open(&line.control, &to, 1, 5, &events, &line.error), 0);
    assert_int_equal(say_hello(&line), -STATUS_INTERNAL);
    assert_string_equal(line.error.text, "the coordinator is gone: wrong secret (grpc-status 16)");
    line_close(&line);
}

static void test_states_are_sent_when_they_change_and_as_a_heartbeat(void **state)
{
    (void)state;
    struct line line;
    const double timeout = 4, heartbeat = timeout / 4, interval = 0.05;
    assert_int_equal(line_open(&line, OBLIGING, listen_unix, timeout), 0);
    const double began = seconds();
    assert_int_equal(say_hello(&line), 0);
    for (uint64_t step = 1; step <= 300; step++) { /* 300 changes within 300 ms, or more: few are worth sending */
        line.control->state(line.control, step, GACC__V1__STATE__STATE_REDUCE, 0);
        pause_ms(1);
    }
    while (line.server.last_state != 300 * 100 + GACC__V1__STATE__STATE_REDUCE && !line.heard.losses) pause_ms(1);
    const int changes = line.server.states;
    assert_true(changes < 2 + (seconds() - began) / interval);
    while (line.server.states < changes + 2 && !line.heard.losses) pause_ms(1);
    assert_true(seconds() - began > heartbeat);
    line_close(&line);
    assert_int_equal(line.heard.losses, 0);
}

/* The shortest of a few times is the machine's least busy one. */
static bool is_quicker(double took, double limit, int tries)
{
    assert_true(took < limit || tries < 10);
    return took < limit;
}

static void test_addresses_that_never_answer_hold_up_the_next_for_a_quarter_second_each(void **state)
{
    (void)state;
    double took = 20;
    for (int tries = 1; !is_quicker(took, 5, tries); tries++) {
        struct line line;
        const double began = seconds();
        assert_int_equal(line_open(&line, OBLIGING, listen_behind_silence, 60), 0);
        took = seconds() - began;
        assert_true(took >= 0.5);
        run_a_job(&line);
        close_silence();
    }
}

static void test_addresses_of_which_none_answers_end_with_the_timeout(void **state)
{
    (void)state;
    char address[40], list[120], expected[200];
    struct error error;
    struct control *control;
    static const uint8_t secret[CONTROL_SECRET];
    struct control_address to = {.addresses = list, .secret = secret};
    struct heard heard = {0};
    const struct control_client_events events = {on_lost, on_farewell, NULL, &heard, NULL};
    double took = 20;
    for (int tries = 1; !is_quicker(took, 5, tries); tries++) {
        int fd = listen_silently(fillers[0], address, sizeof address);
        snprintf(list, sizeof list, "%s,tcp://127.0.0.1:1", address);
        const double began = seconds();
        assert_int_equal(control_client_open(&control, &to, 0, 0.6, &events, &error), -STATUS_UNAVAILABLE);
        took = seconds() - began;
        assert_true(took >= 0.6);
        snprintf(expected, sizeof expected, "cannot reach the coordinator at %s: Connection timed out", list);
        assert_string_equal(error.text, expected);
        close(fd);
        for (int i = 0; i < 4; i++) close(fillers[0][i]);
    }
    /* Refused at once: the next is not waited for. */
    to.addresses = "tcp://127.0.0.1:1,tcp://127.0.0.1:2,tcp://127.0.0.1:3";
    took = 20;
    for (int tries = 1; !is_quicker(took, 0.2, tries); tries++) {
        const double began = seconds();
        assert_int_equal(control_client_open(&control, &to, 0, 20, &events, &error), -STATUS_UNAVAILABLE);
        took = seconds() - began;
    }
}

static void test_an_address_that_cannot_be_reached_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *address, *text;
    } cases[] = {
        {"unix:/nonexistent/socket",
         "cannot reach the coordinator at unix:/nonexistent/socket: No such file or directory"},
        {"tcp://127.0.0.1:1", "cannot reach the coordinator at tcp://127.0.0.1:1: Connection refused"},
        {"tcp://[::1]:1", "cannot reach the coordinator at tcp://[::1]:1: "},
        {"tcp://127.0.0.1", "the coordinator's address tcp://127.0.0.1 is not tcp://HOST:PORT"},
        {"http://x:1", "the coordinator's address http://x:1 is neither unix:PATH nor tcp://HOST:PORT"},
    };
    struct heard heard = {0};
    const struct control_client_events events = {on_lost, on_farewell, on_idle, &heard, NULL};
    const uint8_t secret[CONTROL_SECRET] = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct control *control;
        struct error error;
        const struct control_address to = {.addresses = cases[i].address, .secret = secret};
        assert_int_equal(control_client_open(&control, &to, 0, 1, &events, &error), -STATUS_UNAVAILABLE);
        error.text[strlen(cases[i].text)] = '\0';
        assert_string_equal(error.text, cases[i].text);
    }
    assert_int_equal(heard.losses, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_job_from_hello_to_farewell_over_a_unix_socket),
        cmocka_unit_test(test_a_job_from_hello_to_farewell_over_tcp),
        cmocka_unit_test(test_a_farewell_to_hello_is_the_callers),
        cmocka_unit_test(test_an_unsolicited_farewell_is_an_event_and_frees_the_caller),
        cmocka_unit_test(test_a_farewell_is_read_though_nothing_can_be_sent_any_more),
        cmocka_unit_test(test_an_interruption_is_told_beside_a_caller_that_waits),
        cmocka_unit_test(test_an_interruption_before_hello_is_a_hello_that_fails),
        cmocka_unit_test(test_a_coordinator_that_dies_is_lost),
        cmocka_unit_test(test_a_stream_that_ends_is_lost),
        cmocka_unit_test(test_a_message_that_is_none_is_lost),
        cmocka_unit_test(test_a_message_nobody_waits_for_is_lost),
        cmocka_unit_test(test_a_coordinator_that_falls_silent_is_lost_after_the_timeout),
        cmocka_unit_test(test_a_caller_that_waits_is_not_idle),
        cmocka_unit_test(test_a_wrong_secret_is_told),
        cmocka_unit_test(test_states_are_sent_when_they_change_and_as_a_heartbeat),
        cmocka_unit_test(test_an_address_that_cannot_be_reached_is_named),
        cmocka_unit_test(test_addresses_that_never_answer_hold_up_the_next_for_a_quarter_second_each),
        cmocka_unit_test(test_addresses_of_which_none_answers_end_with_the_timeout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
