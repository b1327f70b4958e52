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
    struct pool *pool;     /* NULL with one thread */
    char *scratch;         /* [threads][CPU_SCRATCH_REALS] of wide, aligned to a (huge) page */
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

/* What one thread does of a kernel: begin … end−1 of whatever the kernel is cut into. */
struct cpu_share {
    size_t begin, end;
    void *scratch; /* the thread's own */
};

typedef void cpu_task(const void *arguments, struct cpu_share share);

/* Cut 0 … count−1 into one share per thread, at multiples of unit, and run the task on each that is not empty. With one
 * thread, or no more than one unit of work, this is a plain call. */
void cpu_spread(struct kernels *kernels, cpu_task *task, const void *arguments, size_t count, size_t unit);

#endif
