/*
 * Memory runs out under the coordinator's sockets: calls and pages are asked for again and again, each time with
 * another allocation failing, from the accepted socket to the last byte of the answer. Who asks is answered or cut off;
 * whoever comes next is answered.
 */
#include "failing_memory.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/coordinator/connections.h"

#define ALLOCATIONS 5 /* of a call there are at least so many, nghttp2's left aside */

struct tally {
    int begun, gone;
};

static void begin(struct rpc_call *call, void *context)
{
    ((struct tally *)context)->begun++;
    connection_admit(call, false);
}

static void echo(struct rpc_call *call, const uint8_t *message, size_t length, void *context)
{
    (void)context;
    const int sent = rpc_call_send(call, message, length);
    rpc_call_finish(call, sent ? RPC_RESOURCE_EXHAUSTED : RPC_OK, sent ? "no memory" : NULL);
    connection_wake(call);
}

static void gone(struct rpc_call *call, void *context)
{
    (void)call;
    ((struct tally *)context)->gone++;
}

static const struct rpc_method methods[] = {{.path = "/t.T/Echo", .begin = begin, .message = echo, .gone = gone}, {0}};

static bool page(const struct http_request *request, struct http_answer *answer, enum trust trust, int fd,
                 void *context)
{
    (void)request, (void)trust, (void)fd, (void)context;
    answer->status = 200;
    answer->type = "text/plain";
    answer->body = strdup("page");
    answer->length = answer->body ? 4 : 0;
    return true;
}

/* libuv's own allocations must not fail: it aborts. */
#define ASIDE(TYPE, CALL)                          \
    do {                                           \
        const bool counts = failing_memory.counts; \
        failing_memory.counts = false;             \
        TYPE result = CALL;                        \
        failing_memory.counts = counts;            \
        return result;                             \
    } while (0)

static void *uv_own_malloc(size_t size)
{
    ASIDE(void *, malloc(size));
}

static void *uv_own_realloc(void *memory, size_t size)
{
    ASIDE(void *, realloc(memory, size));
}

static void *uv_own_calloc(size_t count, size_t size)
{
    ASIDE(void *, calloc(count, size));
}

static void uv_own_free(void *memory)
{
    const bool counts = failing_memory.counts;
    failing_memory.counts = false;
    free(memory);
    failing_memory.counts = counts;
}

/* ---- who asks ---- */

struct question {
    uint8_t bytes[1024];
    size_t length;
    const char *answer; /* has this in it */
};

static struct question questions[3];

static void ask_by_rpc(struct question *question)
{
    struct rpc_connection *client;
    struct error error;
    const uint8_t *bytes;
    assert_int_equal(rpc_client_open(&client, "localhost", NULL, &error), 0);
    static const struct rpc_method method = {.path = "/t.T/Echo"};
    struct rpc_call *call = rpc_call_begin(client, &method, NULL, NULL, 60000);
    rpc_call_send(call, (const uint8_t *)"hello", 5);
    rpc_call_half_close(call);
    question->length = rpc_output(client, &bytes);
    assert_in_range(question->length, 50, sizeof question->bytes);
    memcpy(question->bytes, bytes, question->length);
    question->answer = "hello";
    rpc_close(client);
}

static void ask_for_pages(struct question *question, const char *text)
{
    question->length = strlen(text);
    memcpy(question->bytes, text, question->length);
    question->answer = "page";
}

static int connect_to(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

/* Whether it is answered before it is closed, or nothing has moved for `patience` looks 10 ms apart. */
static bool is_answered(uv_loop_t *loop, const char *path, const struct question *question, int patience)
{
    char got[8192];
    size_t length = 0;
    bool found = false, closed = false;
    int fd = connect_to(path);
    assert_int_equal(send(fd, question->bytes, question->length, MSG_NOSIGNAL), question->length);
    for (int look = 0; look < patience && !found && !closed; look++) {
        if (look > 0) usleep(10000);
        for (int turn = 0; turn < 5; turn++) uv_run(loop, UV_RUN_NOWAIT);
        ssize_t more = recv(fd, got + length, sizeof got - length, 0);
        closed = more == 0 || (more < 0 && errno != EAGAIN);
        if (more > 0) length += (size_t)more;
        found = memmem(got, length, question->answer, strlen(question->answer)) != NULL;
    }
    close(fd);
    for (int turn = 0; turn < 5; turn++) uv_run(loop, UV_RUN_NOWAIT);
    return found;
}

/* ---- one attempt ---- */

static void attempt(const struct question *question, long failing, bool all)
{
    char path[64];
    struct tally tally = {0};
    static struct connections connections;
    struct listener listener = {0};
    struct error error;
    uv_loop_t loop;
    snprintf(path, sizeof path, "/tmp/gacc-memory-%d", (int)getpid());
    unlink(path);
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(connections_init(&connections, &loop, methods, &tally, 1, 2, &error), 0);
    connections.http = page;
    uv_pipe_init(&loop, &listener.pipe, 0);
    assert_int_equal(uv_pipe_bind(&listener.pipe, path), 0);
    assert_int_equal(connections_listen(&connections, &listener, TRUST_OWNER, NULL), 0);

    memory_begin(failing, all);
    const bool answered = is_answered(&loop, path, question, 3);
    assert_true(answered || failing > 0);
    failing_memory.countdown = 0;
    failing_memory.all = false;
    assert_true(is_answered(&loop, path, question, 200));
    connections_close(&connections);
    uv_close(&listener.handle, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    memory_end();
    assert_int_equal(tally.begun, tally.gone);
    assert_int_equal(uv_loop_close(&loop), 0);
    unlink(path);
}

static void try_every_allocation(bool all)
{
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        attempt(&questions[i], 0, all);
        const long taken = failing_memory.taken / 2; /* by each of the two who were answered */
        assert_true(taken >= (i == 0 ? ALLOCATIONS : 2));
        for (long failing = 1; failing <= taken; failing++) attempt(&questions[i], failing, all);
    }
}

static void any_one_allocation_may_fail(void **state)
{
    (void)state;
    try_every_allocation(false);
}

static void all_allocations_from_any_one_on_may_fail(void **state)
{
    (void)state;
    try_every_allocation(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_one_allocation_may_fail),
        cmocka_unit_test(all_allocations_from_any_one_on_may_fail),
    };
    signal(SIGPIPE, SIG_IGN); /* as the coordinator does */
    uv_replace_allocator(uv_own_malloc, uv_own_realloc, uv_own_calloc, uv_own_free);
    ask_by_rpc(&questions[0]);
    ask_for_pages(&questions[1], "GET /a HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer x\r\n\r\n");
    ask_for_pages(&questions[2], "GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
