#include "kernels/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#define SPINS 1000 /* 10 to 50 µs */

struct pool {
    pthread_mutex_t mutex;
    pthread_cond_t started, finished;
    atomic_uint round;       /* counts calls of pool_run; changed under the mutex */
    atomic_int working;      /* threads that have not finished this round */
    pool_function *function; /* NULL: end */
    void *context;
    int threads, created;
    struct member {
        struct pool *pool;
        pthread_t thread;
        int number;
    } members[];
};

static inline void relax(void)
{
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

static void await_round(struct pool *pool, unsigned last)
{
    for (int i = 0; i < SPINS; i++, relax())
        if (atomic_load_explicit(&pool->round, memory_order_acquire) != last) return;
    pthread_mutex_lock(&pool->mutex);
    while (atomic_load(&pool->round) == last) pthread_cond_wait(&pool->started, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

static void start_round(struct pool *pool, pool_function *function, void *context)
{
    pool->function = function;
    pool->context = context;
    atomic_store(&pool->working, pool->created);
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->round, 1);
    pthread_cond_broadcast(&pool->started);
    pthread_mutex_unlock(&pool->mutex);
}

static void finish_round(struct pool *pool)
{
    if (atomic_fetch_sub(&pool->working, 1) > 1) return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_signal(&pool->finished);
    pthread_mutex_unlock(&pool->mutex);
}

static void await_members(struct pool *pool)
{
    for (int i = 0; i < SPINS; i++, relax())
        if (atomic_load_explicit(&pool->working, memory_order_acquire) == 0) return;
    pthread_mutex_lock(&pool->mutex);
    while (atomic_load(&pool->working) > 0) pthread_cond_wait(&pool->finished, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

static void *member_main(void *argument)
{
    const struct member *member = argument;
    struct pool *pool = member->pool;
    for (unsigned round = 0;; round++) {
        await_round(pool, round);
        if (!pool->function) return NULL;
        pool->function(pool->context, member->number);
        finish_round(pool);
    }
}

/* Signals are for the program's own threads. */
static bool create_member(struct member *member)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool created = pthread_create(&member->thread, NULL, member_main, member) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return created;
}

struct pool *pool_open(int threads)
{
    struct pool *pool = malloc(sizeof *pool + (size_t)threads * sizeof *pool->members);
    if (!pool) return NULL;
    *pool = (struct pool){.threads = threads};
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->started, NULL);
    pthread_cond_init(&pool->finished, NULL);
    for (int i = 1; i < threads; i++) {
        struct member *member = &pool->members[pool->created];
        *member = (struct member){.pool = pool, .number = i};
        if (!create_member(member)) {
            pool_close(pool);
            return NULL;
        }
        pool->created++;
    }
    return pool;
}

void pool_close(struct pool *pool)
{
    start_round(pool, NULL, NULL);
    for (int i = 0; i < pool->created; i++) pthread_join(pool->members[i].thread, NULL);
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->started);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

void pool_run(struct pool *pool, pool_function *function, void *context)
{
    start_round(pool, function, context);
    function(context, 0);
    await_members(pool);
}
