/*
 * N ranks as threads of one process: collectives through shared memory, sums in rank order. Lets a test run a session
 * of several ranks without a launcher.
 */
#ifndef GACC_TEST_COMM_THREADS_H
#define GACC_TEST_COMM_THREADS_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "worker/comm.h"

#define THREADS_MAX 8

struct comm_threads {
    uint32_t ranks;
    pthread_barrier_t barrier;
    void *buffers[THREADS_MAX]; /* what each rank brought to the collective under way */
    struct comm_thread {
        struct comm comm;
        struct comm_threads *group;
    } members[THREADS_MAX];
};

static inline struct comm_threads *threads_meet(struct comm *comm, const void *buffer)
{
    struct comm_threads *group = ((struct comm_thread *)comm)->group;
    group->buffers[comm->rank] = (void *)(uintptr_t)buffer;
    pthread_barrier_wait(&group->barrier);
    return group;
}

static inline void threads_part(struct comm_threads *group)
{
    pthread_barrier_wait(&group->barrier);
}

static inline int threads_reduce_scatter(struct comm *comm, const wide *gradients, wide *shard, enum dtype wide_type,
                                         const struct range *parts, struct error *error)
{
    (void)error;
    struct comm_threads *group = threads_meet(comm, gradients);
    struct range own = parts[comm->rank];
    for (uint64_t i = own.begin; i < own.end; i++) {
        double sum = 0;
        float narrow = 0;
        for (uint32_t rank = 0; rank < comm->ranks; rank++)
            if (wide_type == DTYPE_FP64)
                sum += ((double *)group->buffers[rank])[i];
            else
                narrow += ((float *)group->buffers[rank])[i];
        if (wide_type == DTYPE_FP64)
            ((double *)shard)[i - own.begin] = sum;
        else
            ((float *)shard)[i - own.begin] = narrow;
    }
    threads_part(group);
    return 0;
}

static inline int threads_all_gather(struct comm *comm, compute *parameters, enum dtype compute_type,
                                     const struct range *parts, struct error *error)
{
    (void)error;
    struct comm_threads *group = threads_meet(comm, parameters);
    size_t size = dtype_size(compute_type);
    for (uint32_t rank = 0; rank < comm->ranks; rank++)
        if (rank != comm->rank)
            memcpy((char *)parameters + parts[rank].begin * size,
                   (char *)group->buffers[rank] + parts[rank].begin * size,
                   (parts[rank].end - parts[rank].begin) * size);
    threads_part(group);
    return 0;
}

static inline int threads_broadcast(struct comm *comm, void *bytes, uint64_t count, uint32_t root, struct error *error)
{
    (void)error;
    struct comm_threads *group = threads_meet(comm, bytes);
    if (comm->rank != root) memcpy(bytes, group->buffers[root], count);
    threads_part(group);
    return 0;
}

static inline int threads_barrier(struct comm *comm, struct error *error)
{
    (void)error;
    threads_part(((struct comm_thread *)comm)->group);
    return 0;
}

__attribute__((noreturn)) static inline void threads_abort(struct comm *comm, int status)
{
    (void)comm, (void)status;
    abort();
}

static inline void threads_close(struct comm *comm)
{
    (void)comm;
}

static inline void comm_threads_open(struct comm_threads *group, uint32_t ranks)
{
    static const struct comm_class class = {
        .reduce_scatter = threads_reduce_scatter,
        .all_gather = threads_all_gather,
        .broadcast = threads_broadcast,
        .barrier = threads_barrier,
        .abort = threads_abort,
        .close = threads_close,
    };
    memset(group, 0, sizeof *group);
    group->ranks = ranks;
    pthread_barrier_init(&group->barrier, NULL, ranks);
    for (uint32_t rank = 0; rank < ranks; rank++)
        group->members[rank] = (struct comm_thread){
            .comm = {.class = &class,
                     .rank = rank,
                     .ranks = ranks,
                     .local_rank = rank,
                     .local_ranks = ranks,
                     .local_cores = 1,
                     .transport = "threads"},
            .group = group,
        };
}

static inline void comm_threads_close(struct comm_threads *group)
{
    pthread_barrier_destroy(&group->barrier);
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
