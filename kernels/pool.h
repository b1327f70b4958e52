/*
 * A team of threads that run the same function side by side. A waiting thread spins for some microseconds, long enough
 * for the gap between two kernels, and then sleeps: on a machine that is shared, threads that spin on for milliseconds,
 * as OpenMP's do, keep from the processor those they wait for.
 */
#ifndef GACC_KERNELS_POOL_H
#define GACC_KERNELS_POOL_H

struct pool;

typedef void pool_function(void *context, int thread);

/* threads in all, ≥ 1, the caller counted. NULL when they cannot be had. */
struct pool *pool_open(int threads);
void pool_close(struct pool *pool);

/* function(context, 0) in the calling thread, function(context, 1 … threads−1) in the others; returns when all have. */
void pool_run(struct pool *pool, pool_function *function, void *context);

#endif
