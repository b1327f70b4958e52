/*
 * Whose turn it is at the coordinator's sockets: a rank is heard in every turn of the loop, whatever others have sent;
 * these share a little of each, and nobody twice before everybody once; strangers share a little of all time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/coordinator/connections.h"

#define OTHERS 20
#define LONG_NANOSECONDS 2000000u /* more than a turn is for others */

struct heard {
    int rank;                /* messages */
    char others[OTHERS + 8]; /* a letter for each call, in order */
};

static void join(struct rpc_call *call, void *context)
{
    (void)context;
    connection_admit(call, true);
}

static void hear_rank(struct rpc_call *call, const uint8_t *message, size_t length, void *context)
{
    (void)call, (void)message, (void)length;
    ((struct heard *)context)->rank++;
}

/* Takes long. */
static void knock(struct rpc_call *call, void *context)
{
    struct heard *heard = context;
    const uint64_t began = uv_hrtime();
    while (uv_hrtime() - began < LONG_NANOSECONDS) continue;
    const size_t count = strlen(heard->others);
    if (count < sizeof heard->others - 1) heard->others[count] = *rpc_call_metadata(call, "who");
}

/* The same of one who has shown his secret. */
static void ask(struct rpc_call *call, void *context)
{
    connection_admit(call, false);
    knock(call, context);
}

static const struct rpc_method methods[] = {{.path = "/t.T/Join", .begin = join, .message = hear_rank},
                                            {.path = "/t.T/Ask", .begin = ask},
                                            {.path = "/t.T/Knock", .begin = knock},
                                            {0}};

static bool no_page(const struct http_request *request, struct http_answer *answer, enum trust trust, int fd,
                    void *context)
{
    (void)request, (void)answer, (void)trust, (void)fd, (void)context;
    return false;
}

/* A server, its loop, and everybody who is connected to it: the rank first. */
struct scene {
    uv_loop_t loop;
    struct connections connections;
    struct listener listener;
    struct heard heard;
    char path[64];
    int fd[1 + OTHERS], count;
    struct rpc_connection *client[1 + OTHERS];
};

static void turn(struct scene *scene)
{
    uv_run(&scene->loop, UV_RUN_NOWAIT);
}

static void say(const struct scene *scene, int who)
{
    const uint8_t *bytes;
    for (size_t length; (length = rpc_output(scene->client[who], &bytes)) > 0;)
        assert_int_equal(send(scene->fd[who], bytes, length, MSG_NOSIGNAL), length);
}

static void enter(struct scene *scene)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct error error;
    snprintf(at.sun_path, sizeof at.sun_path, "%s", scene->path);
    const int who = scene->count++, fd = scene->fd[who] = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(rpc_client_open(&scene->client[who], "localhost", NULL, &error), 0);
    while (scene->connections.count < (uint32_t)scene->count) turn(scene);
}

static struct rpc_call *begin(struct scene *scene, int who, const char *path, const char *more)
{
    static struct rpc_method method;
    const char name[] = {(char)('a' + who - 1), '\0'}, *const metadata[] = {"who", name, "more", more, NULL};
    method.path = path;
    struct rpc_call *call = rpc_call_begin(scene->client[who], &method, NULL, metadata, 0);
    assert_non_null(call);
    return call;
}

static void open_scene(struct scene *scene, int others)
{
    struct error error;
    memset(scene, 0, sizeof *scene);
    snprintf(scene->path, sizeof scene->path, "/tmp/gacc-turns-%d", (int)getpid());
    assert_int_equal(uv_loop_init(&scene->loop), 0);
    assert_int_equal(connections_init(&scene->connections, &scene->loop, methods, &scene->heard, 1, 1 + OTHERS, &error),
                     0);
    scene->connections.http = no_page;
    uv_pipe_init(&scene->loop, &scene->listener.pipe, 0);
    assert_int_equal(uv_pipe_bind(&scene->listener.pipe, scene->path), 0);
    assert_int_equal(connections_listen(&scene->connections, &scene->listener, TRUST_OWNER, NULL), 0);
    for (int who = 0; who <= others; who++) enter(scene);
}

static void call_all(struct scene *scene, int first, int last, const char *path)
{
    for (int who = first; who <= last; who++) {
        begin(scene, who, path, "");
        say(scene, who);
    }
}

/* All ranks, which is the one, are there. */
static struct rpc_call *open_joined_scene(struct scene *scene)
{
    open_scene(scene, OTHERS);
    struct rpc_call *rank = begin(scene, 0, "/t.T/Join", "");
    say(scene, 0);
    turn(scene);
    return rank;
}

static void close_scene(struct scene *scene)
{
    for (int who = 0; who < scene->count; who++) {
        rpc_close(scene->client[who]);
        close(scene->fd[who]);
    }
    connections_close(&scene->connections);
    uv_close(&scene->listener.handle, NULL);
    uv_run(&scene->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&scene->loop), 0);
}

static void a_rank_is_heard_in_every_turn_and_the_others_one_after_the_other(void **state)
{
    (void)state;
    static struct scene scene;
    struct rpc_call *rank = open_joined_scene(&scene);
    call_all(&scene, 1, OTHERS, "/t.T/Ask");
    for (int turns = 1; strlen(scene.heard.others) < OTHERS; turns++) {
        assert_in_range(turns, 1, 2 * OTHERS);
        const size_t before = strlen(scene.heard.others);
        rpc_call_send(rank, (const uint8_t *)"report", 6);
        say(&scene, 0);
        turn(&scene);
        assert_int_equal(scene.heard.rank, turns);
        assert_in_range(strlen(scene.heard.others), before, before + 1);
    }
    for (int who = 1; who <= OTHERS; who++) assert_non_null(strchr(scene.heard.others, 'a' + who - 1));
    close_scene(&scene);
}

static void who_says_much_waits_for_those_who_say_little(void **state)
{
    (void)state;
    static struct scene scene;
    char more[7000] = "";
    memset(more, 'x', sizeof more - 1);
    open_scene(&scene, 3);
    for (int calls = 0; calls < 10; calls++) begin(&scene, 1, "/t.T/Ask", more); /* two at once, or three */
    say(&scene, 1);
    turn(&scene);
    call_all(&scene, 2, 3, "/t.T/Ask");
    while (strlen(scene.heard.others) < 12) turn(&scene);
    const char *b = strchr(scene.heard.others, 'b'), *c = strchr(scene.heard.others, 'c');
    assert_non_null(b);
    assert_non_null(c);
    assert_in_range((b > c ? b : c) - scene.heard.others, 2, 8);
    close_scene(&scene);
}

/* 20 ms of credit are 10 knocks of 2 ms; one more for each 20 ms that follow, of one after the other. */
static void strangers_have_a_part_of_all_time_while_all_ranks_are_there(void **state)
{
    (void)state;
    static struct scene scene;
    struct rpc_call *rank = open_joined_scene(&scene);
    call_all(&scene, 1, 15, "/t.T/Knock");
    const uint64_t began = uv_hrtime();
    for (int turns = 0; strlen(scene.heard.others) < 15; turns++) {
        const bool reports = turns < 1000; /* its window of HTTP/2 ends */
        if (reports) rpc_call_send(rank, (const uint8_t *)"report", 6);
        say(&scene, 0);
        turn(&scene);
        if (reports) assert_int_equal(scene.heard.rank, turns + 1);
    }
    assert_true(uv_hrtime() - began > 4 * 10 * (uint64_t)LONG_NANOSECONDS);
    for (int who = 1; who <= 15; who++) assert_non_null(strchr(scene.heard.others, 'a' + who - 1));
    /* who has shown his secret does not wait, whoever knocks */
    call_all(&scene, 16, 16, "/t.T/Ask");
    while (strlen(scene.heard.others) < 16) turn(&scene);
    call_all(&scene, 17, 19, "/t.T/Knock");
    call_all(&scene, 16, 16, "/t.T/Ask");
    for (int turns = 0; turns < 10; turns++) turn(&scene);
    assert_non_null(strchr(scene.heard.others + 16, 'p'));
    close_scene(&scene);
}

static void before_that_they_do_not_wait(void **state)
{
    (void)state;
    static struct scene scene;
    open_scene(&scene, OTHERS);
    call_all(&scene, 1, OTHERS, "/t.T/Knock");
    for (int turns = 0; turns < 2 * OTHERS; turns++) turn(&scene);
    assert_int_equal(strlen(scene.heard.others), OTHERS);
    close_scene(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_is_heard_in_every_turn_and_the_others_one_after_the_other),
        cmocka_unit_test(who_says_much_waits_for_those_who_say_little),
        cmocka_unit_test(strangers_have_a_part_of_all_time_while_all_ranks_are_there),
        cmocka_unit_test(before_that_they_do_not_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
