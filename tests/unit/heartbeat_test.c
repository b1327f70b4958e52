/* Heartbeats between ranks that are threads: who is heard, and who is not taken for one. */
#include <arpa/inet.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/verify/heartbeat.h"

#define RANKS 3

struct rank {
    struct comm *comm;
    struct heartbeat *heartbeat;
    int status;
};

static void *open_one(void *context)
{
    struct rank *rank = context;
    struct error error;
    rank->status = heartbeat_open(&rank->heartbeat, rank->comm, &error);
    return NULL;
}

static void open_all(struct rank ranks[RANKS])
{
    struct comm *members[RANKS];
    struct error error;
    pthread_t threads[RANKS];
    assert_int_equal(comm_open_local(members, RANKS, &error), 0);
    for (int i = 0; i < RANKS; i++) {
        ranks[i].comm = members[i];
        assert_int_equal(pthread_create(&threads[i], NULL, open_one, &ranks[i]), 0);
    }
    for (int i = 0; i < RANKS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(ranks[i].status, 0);
    }
}

static void close_all(struct rank ranks[RANKS])
{
    for (int i = 0; i < RANKS; i++) {
        heartbeat_close(ranks[i].heartbeat);
        comm_close(ranks[i].comm);
    }
}

/* How often each rank is heard in all that has come. */
static void hear_all(const struct rank *rank, int heard[RANKS])
{
    char next;
    memset(heard, 0, RANKS * sizeof *heard);
    while (recv(heartbeat_socket(rank->heartbeat), &next, 1, MSG_PEEK) > 0) {
        const int64_t from = heartbeat_hear(rank->heartbeat);
        if (from >= 0) heard[from]++;
    }
}

static void test_every_rank_hears_every_other_once_for_each_heartbeat(void **state)
{
    (void)state;
    struct rank ranks[RANKS];
    int heard[RANKS];
    open_all(ranks);
    for (int beats = 1; beats <= 2; beats++) {
        for (int i = 0; i < RANKS; i++) heartbeat_send(ranks[i].heartbeat);
        for (int i = 0; i < RANKS; i++) {
            hear_all(&ranks[i], heard);
            for (int from = 0; from < RANKS; from++) assert_int_equal(heard[from], from != i);
        }
    }
    close_all(ranks);
}

/* Somebody on this machine who has seen a heartbeat of rank 0 to rank 1. */
static int64_t hear_again(const struct rank *rank, const uint8_t *bytes, size_t length)
{
    struct sockaddr_in6 bound;
    socklen_t size = sizeof bound;
    const int stranger = socket(AF_INET, SOCK_DGRAM, 0);
    assert_int_equal(getsockname(heartbeat_socket(rank->heartbeat), (struct sockaddr *)&bound, &size), 0);
    const struct sockaddr_in to = {AF_INET, bound.sin6_port, {htonl(INADDR_LOOPBACK)}, {0}};
    assert_int_equal(sendto(stranger, bytes, length, 0, (const struct sockaddr *)&to, sizeof to), length);
    close(stranger);
    return heartbeat_hear(rank->heartbeat);
}

static void test_what_is_repeated_changed_cut_or_meant_for_another_is_not_heard(void **state)
{
    (void)state;
    struct rank ranks[RANKS];
    uint8_t seen[128], rest[128];
    int heard[RANKS];
    open_all(ranks);
    heartbeat_send(ranks[0].heartbeat);
    const int fd = heartbeat_socket(ranks[1].heartbeat);
    const ssize_t length = recv(fd, seen, sizeof seen, 0);
    assert_in_range(length, 33, sizeof seen - 1);
    while (recv(fd, rest, sizeof rest, 0) > 0) continue;
    hear_all(&ranks[2], heard);

    for (ssize_t at = 0; at < length; at++) {
        seen[at] ^= 1;
        assert_int_equal(hear_again(&ranks[1], seen, (size_t)length), -1);
        seen[at] ^= 1;
    }
    assert_int_equal(hear_again(&ranks[1], seen, (size_t)length - 1), -1);
    assert_int_equal(hear_again(&ranks[1], seen, (size_t)length + 1), -1);
    assert_int_equal(hear_again(&ranks[2], seen, (size_t)length), -1);
    assert_int_equal(hear_again(&ranks[1], seen, (size_t)length), 0); /* it is only late */
    assert_int_equal(hear_again(&ranks[1], seen, (size_t)length), -1);
    close_all(ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_rank_hears_every_other_once_for_each_heartbeat),
        cmocka_unit_test(test_what_is_repeated_changed_cut_or_meant_for_another_is_not_heard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
