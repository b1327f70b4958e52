/*
 * The CPU backend's own struct, its instances (compute type × instruction set), and how a kernel is spread over
 * threads.
 */
#ifndef GACC_KERNELS_CPU_H
#define GACC_KERNELS_CPU_H

#include <stddef.h>

#include "kernels/kernels.h"

/* Instruction sets the kernels are compiled for, the best last. Elsewhere than on x86-64 there is the baseline alone.
 */
enum cpu_variant { CPU_BASELINE, CPU_AVX2, CPU_AVX512, CPU_VARIANTS };

/* Scratch memory of each thread: three panels of a product (linear.c), or the blocks of a head up to a size of 2048 and
 * as many sums as then fit (attention.c). Pages that no kernel touches cost nothing. */
#define CPU_PANEL_REALS ((size_t)1 << 18)
#define CPU_SCRATCH_REALS (6 * CPU_PANEL_REALS)

struct cpu {
    struct kernels head;
    size_t real_size;
    size_t attention_rows; /* attention sums the gradients of at most so many keys of a head at once */
    char *scratch;         /* [threads][CPU_SCRATCH_REALS] of wide, aligned to a page */
};

static inline void *cpu_scratch(struct kernels *kernels, int thread)
{
    struct cpu *cpu = (struct cpu *)kernels;
    return cpu->scratch + (size_t)thread * CPU_SCRATCH_REALS * cpu->real_size;
}

/* kernels_open_cpu takes the best variant the machine has; this one takes the one named. NULL when the machine (or this
 * build) does not have it, or when out of memory. */
struct kernels *cpu_open_variant(const struct kernels_options *options, enum cpu_variant variant);
void cpu_close(struct kernels *kernels);

/* The part of 0 … count−1 that one thread works on: contiguous, cut at multiples of unit. */
struct cpu_range {
    size_t begin, end;
};

static inline struct cpu_range cpu_range(size_t count, size_t unit, int thread, int threads)
{
    const size_t units = count / unit + (count % unit != 0);
    const size_t first = units * (size_t)thread / (size_t)threads * unit;
    const size_t last = units * ((size_t)thread + 1) / (size_t)threads * unit;
    return (struct cpu_range){first < count ? first : count, last < count ? last : count};
}

/* Evaluate `call`, which uses begin, end and thread, once per thread. With one thread, or no more than one unit of
 * work, it is a plain call and the OpenMP runtime is not entered. */
#define CPU_PARALLEL(kernels, count, unit, call)                                                                       \
    do {                                                                                                               \
        const size_t count_ = (count), unit_ = (unit);                                                                 \
        const int threads_ = (kernels)->threads;                                                                       \
        if (threads_ == 1 || count_ <= unit_) {                                                                        \
            const size_t begin = 0, end = count_;                                                                      \
            const int thread = 0;                                                                                      \
            (void)thread;                                                                                              \
            if (count_ > 0) call;                                                                                      \
        } else {                                                                                                       \
            _Pragma("omp parallel for num_threads(threads_) schedule(static)") for (int thread = 0; thread < threads_; \
                                                                                    thread++)                          \
            {                                                                                                          \
                const size_t begin = cpu_range(count_, unit_, thread, threads_).begin;                                 \
                const size_t end = cpu_range(count_, unit_, thread, threads_).end;                                     \
                if (begin < end) call;                                                                                 \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

#endif
