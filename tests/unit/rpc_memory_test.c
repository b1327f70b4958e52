/*
 * Memory runs out: the same conversation is held again and again, each time with another allocation failing, nghttp2's
 * included. It may break off, but every call that began must be gone once, nothing may leak into a later use, and it
 * must end.
 */
#include "failing_memory.h"
#include "proto/rpc/rpc.h"

#define ALLOCATIONS 20 /* there are at least so many, nghttp2's left aside */

struct tally {
    int begun, gone, answers;
};

static void server_begin(struct rpc_call *call, void *context)
{
    (void)call;
    ((struct tally *)context)->begun++;
}

static void echo_message(struct rpc_call *call, const uint8_t *message, size_t length, void *context)
{
    (void)context;
    if (rpc_call_send(call, message, length) < 0) rpc_call_finish(call, RPC_RESOURCE_EXHAUSTED, "no memory");
}

static void finish(struct rpc_call *call, void *context)
{
    (void)context;
    rpc_call_finish(call, RPC_OK, "done");
}

static void gone(struct rpc_call *call, void *context)
{
    (void)call;
    ((struct tally *)context)->gone++;
}

static void client_message(struct rpc_call *call, const uint8_t *message, size_t length, void *context)
{
    (void)call, (void)message, (void)length;
    ((struct tally *)context)->answers++;
}

static const struct rpc_method methods[] = {
    {.path = "/t.T/Echo", .begin = server_begin, .message = echo_message, .end = finish, .gone = gone}, {0}};
static const struct rpc_method echo = {.path = "/t.T/Echo", .message = client_message, .gone = gone};

static bool carry(struct rpc_connection *from, struct rpc_connection *to)
{
    const uint8_t *bytes;
    struct error error;
    size_t length = rpc_output(from, &bytes);
    for (size_t done = 0; done < length; done += 100) {
        if (rpc_input(to, bytes + done, length - done < 100 ? length - done : 100, &error) != 0) return false;
    }
    return length > 0;
}

static void converse(struct rpc_connection *client, struct rpc_connection *server, struct tally *client_tally)
{
    static uint8_t message[3000];
    const char *const metadata[] = {"x-one", "1", "x-two", "2", NULL};
    for (int i = 0; i < 3; i++) {
        struct rpc_call *call = rpc_call_begin(client, &echo, client_tally, metadata, 1000);
        if (call == NULL) continue;
        client_tally->begun++;
        rpc_call_send(call, message, sizeof message);
        if (i == 1) rpc_call_half_close(call);
        if (i == 2) rpc_call_cancel(call);
    }
    rpc_ping(client);
    for (int round = 0; round < 50; round++) {
        bool moved = carry(client, server);
        if (!carry(server, client) && !moved) break;
        assert_true(round < 49);
    }
    rpc_drain(server);
    for (int round = 0; round < 50 && (carry(server, client) || carry(client, server)); round++)
        assert_true(round < 49);
}

/* Returns the number of answers. */
static int attempt(long failing, bool all)
{
    struct rpc_connection *client = NULL, *server = NULL;
    struct tally client_tally = {0}, server_tally = {0};
    struct error error;
    memory_begin(failing, all);
    if (rpc_client_open(&client, "localhost", NULL, &error) == 0 &&
        rpc_server_open(&server, methods, &server_tally, NULL, &error) == 0) {
        converse(client, server, &client_tally);
    }
    rpc_close(client);
    rpc_close(server);
    memory_end();
    assert_int_equal(client_tally.begun, client_tally.gone);
    assert_int_equal(server_tally.begun, server_tally.gone);
    return client_tally.answers;
}

static void try_every_allocation(bool all)
{
    assert_int_equal(attempt(0, all), 2);
    long failing = 1;
    do attempt(failing, all);
    while (memory_has_failed() && failing++);
    assert_true(failing > ALLOCATIONS);
}

static void test_any_one_allocation_may_fail(void **state)
{
    (void)state;
    try_every_allocation(false);
}

static void test_all_allocations_from_any_one_on_may_fail(void **state)
{
    (void)state;
    try_every_allocation(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_one_allocation_may_fail),
        cmocka_unit_test(test_all_allocations_from_any_one_on_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
