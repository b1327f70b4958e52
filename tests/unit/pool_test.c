/*
 * The kernels' threads: every one runs once a round, and sleepers wake.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/pool.h"

enum { MOST = 5 };

struct counts {
    unsigned runs[MOST];
    unsigned sum; /* of what the caller did before the round: what a thread must see */
};

static void count(void *context, int thread)
{
    struct counts *counts = context;
    counts->runs[thread] += counts->sum;
}

static void every_thread_runs_once_in_every_round(void **state)
{
    (void)state;
    for (int threads = 1; threads <= MOST; threads++) {
        struct pool *pool = pool_open(threads);
        struct counts counts = {0};
        assert_non_null(pool);
        for (unsigned round = 1; round <= 300; round++) {
            counts.sum = round;
            pool_run(pool, count, &counts);
        }
        for (int i = 0; i < MOST; i++) assert_int_equal(counts.runs[i], i < threads ? 300 * 301 / 2 : 0);
        pool_close(pool);
    }
}

static void threads_that_sleep_wake_for_the_next_round(void **state)
{
    (void)state;
    struct pool *pool = pool_open(3);
    struct counts counts = {.sum = 1};
    for (int round = 0; round < 5; round++) {
        usleep(5000);
        pool_run(pool, count, &counts);
    }
    usleep(5000);
    pool_close(pool);
    for (int i = 0; i < 3; i++) assert_int_equal(counts.runs[i], 5);
}

static void wait_long(void *context, int thread)
{
    if (thread == 1) usleep(5000);
    count(context, thread);
}

static void the_caller_waits_for_the_slowest(void **state)
{
    (void)state;
    struct pool *pool = pool_open(2);
    struct counts counts = {.sum = 1};
    for (unsigned round = 1; round <= 3; round++) {
        pool_run(pool, wait_long, &counts);
        assert_int_equal(counts.runs[1], round);
    }
    pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_runs_once_in_every_round),
        cmocka_unit_test(threads_that_sleep_wake_for_the_next_round),
        cmocka_unit_test(the_caller_waits_for_the_slowest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
