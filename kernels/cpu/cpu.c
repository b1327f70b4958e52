/*
 * Opening the CPU backend: which instance, its memory and its threads.
 */
#include "kernels/cpu/cpu.h"

#include <cblas.h>
#include <omp.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "kernels/pool.h"

#define TABLES(variant)                                                                                            \
    extern const struct kernel_table cpu_table_fp32_##variant, cpu_table_bf16_##variant, cpu_table_fp16_##variant, \
        cpu_table_fp64_##variant

TABLES(baseline);
#ifdef GACC_CPU_X86
TABLES(avx2);
TABLES(avx512);
#endif

#define ROW(variant)                                                                        \
    {                                                                                       \
        [DTYPE_FP32] = &cpu_table_fp32_##variant, [DTYPE_BF16] = &cpu_table_bf16_##variant, \
        [DTYPE_FP16] = &cpu_table_fp16_##variant, [DTYPE_FP64] = &cpu_table_fp64_##variant  \
    }

static const struct kernel_table *const tables[CPU_VARIANTS][4] = {
    [CPU_BASELINE] = ROW(baseline),
#ifdef GACC_CPU_X86
    [CPU_AVX2] = ROW(avx2),
    [CPU_AVX512] = ROW(avx512),
#endif
};

static bool machine_has(enum cpu_variant variant)
{
#ifdef GACC_CPU_X86
    switch (variant) {
    case CPU_AVX2:
        /* and F16C, whose name clang 14 does not know: it came before AVX2 and FMA */
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case CPU_AVX512:
        return machine_has(CPU_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    default:
        break;
    }
#endif
    return variant == CPU_BASELINE;
}

void cpu_close(struct kernels *kernels)
{
    struct cpu *cpu = (struct cpu *)kernels;
    if (cpu->pool) pool_close(cpu->pool);
    free(cpu->scratch);
    free(cpu);
}

/* On huge pages where the system has them: walking its page table is what such memory costs most. */
static char *scratch_new(size_t bytes)
{
    const size_t page = (size_t)2 << 20;
    char *memory = aligned_alloc(page, (bytes + page - 1) / page * page);
    if (memory) madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

struct kernels *cpu_open_variant(const struct kernels_options *options, enum cpu_variant variant)
{
    if (!machine_has(variant)) return NULL;
    struct cpu *cpu = malloc(sizeof *cpu);
    if (!cpu) return NULL;
    const enum dtype type = options->compute_type;
    /* OpenBLAS without any threads (its serial build) may not be called by several */
    const int threads = openblas_get_parallel() == OPENBLAS_SEQUENTIAL ? 1 : options->threads;
    openblas_set_num_threads(1);
    *cpu = (struct cpu){
        .head = {tables[variant][type], type, threads},
        .real_size = dtype_size(dtype_wide(type)),
        .attention_rows = SIZE_MAX,
    };
    cpu->scratch = scratch_new((size_t)threads * CPU_SCRATCH_REALS * cpu->real_size);
    if (threads > 1) cpu->pool = pool_open(threads);
    if (cpu->scratch && (cpu->pool || threads == 1)) return &cpu->head;
    cpu_close(&cpu->head);
    return NULL;
}

struct kernels *kernels_open_cpu(const struct kernels_options *options)
{
    enum cpu_variant best = CPU_BASELINE;
    for (enum cpu_variant variant = CPU_BASELINE; variant < CPU_VARIANTS; variant++)
        if (machine_has(variant)) best = variant;
    return cpu_open_variant(options, best);
}

/* --- threads --------------------------------------------------------------------------------------------------------
 */

struct spread {
    struct kernels *kernels;
    cpu_task *task;
    const void *arguments;
    size_t count, unit;
};

/* OpenBLAS of the OpenMP build takes as many threads as OpenMP would in the calling thread, whatever it was told
 * itself. */
static void run_task(cpu_task *task, const void *arguments, struct cpu_share share)
{
    omp_set_num_threads(1);
    task(arguments, share);
}

static void run_share(void *context, int thread)
{
    const struct spread *s = context;
    const size_t units = s->count / s->unit + (s->count % s->unit != 0), threads = (size_t)s->kernels->threads;
    const size_t begin = units * (size_t)thread / threads * s->unit;
    const size_t end = units * ((size_t)thread + 1) / threads * s->unit;
    const struct cpu_share share = {begin, end < s->count ? end : s->count, cpu_scratch(s->kernels, thread)};
    if (share.begin < share.end) run_task(s->task, s->arguments, share);
}

void cpu_spread(struct kernels *kernels, cpu_task *task, const void *arguments, size_t count, size_t unit)
{
    struct pool *pool = ((struct cpu *)kernels)->pool;
    if (pool && count > unit) {
        struct spread spread = {kernels, task, arguments, count, unit};
        pool_run(pool, run_share, &spread);
    } else if (count > 0) {
        run_task(task, arguments, (struct cpu_share){0, count, cpu_scratch(kernels, 0)});
    }
}
