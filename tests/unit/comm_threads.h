/* N ranks as threads: lets a test run a session of several ranks without a launcher. */
#ifndef GACC_TEST_COMM_THREADS_H
#define GACC_TEST_COMM_THREADS_H

#include <pthread.h>
#include <stdlib.h>

#include "worker/comm.h"

#define THREADS_MAX 8

/* members: [ranks] */
static inline void comm_threads_open(struct comm **members, uint32_t ranks)
{
    if (comm_open_local(members, ranks, NULL)) abort();
}

static inline void comm_threads_close(struct comm **members, uint32_t ranks)
{
    for (uint32_t rank = 0; rank < ranks; rank++) comm_close(members[rank]);
}

/* Runs body(arguments[rank]) for all ranks at once. Assertions belong after it: cmocka's jump out of the thread they
 * fail in. */
static inline void run_ranks(uint32_t ranks, void *(*body)(void *), void *const *arguments)
{
    pthread_t threads[THREADS_MAX];
    for (uint32_t rank = 0; rank < ranks; rank++)
        if (pthread_create(&threads[rank], NULL, body, arguments[rank])) abort();
    for (uint32_t rank = 0; rank < ranks; rank++) pthread_join(threads[rank], NULL);
}

#endif
