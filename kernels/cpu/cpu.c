/*
 * Opening the CPU backend: which instance, and its memory.
 */
#include "kernels/cpu/cpu.h"

#include <cblas.h>
#include <stdlib.h>

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
    free(((struct cpu *)kernels)->scratch);
    free(kernels);
}

struct kernels *cpu_open_variant(const struct kernels_options *options, enum cpu_variant variant)
{
    if (!machine_has(variant)) return NULL;
    struct cpu *cpu = malloc(sizeof *cpu);
    if (!cpu) return NULL;
    const enum dtype type = options->compute_type;
    /* OpenBLAS without any threads (its serial build) may not be called by several */
    const int threads = openblas_get_parallel() == OPENBLAS_SEQUENTIAL ? 1 : options->threads;
    *cpu = (struct cpu){
        .head = {tables[variant][type], type, threads},
        .real_size = dtype_size(dtype_wide(type)),
        .attention_rows = SIZE_MAX,
    };
    const size_t bytes = (size_t)threads * CPU_SCRATCH_REALS * cpu->real_size;
    cpu->scratch = aligned_alloc(4096, bytes);
    if (!cpu->scratch) {
        free(cpu);
        return NULL;
    }
    openblas_set_num_threads(1);
    return &cpu->head;
}

struct kernels *kernels_open_cpu(const struct kernels_options *options)
{
    enum cpu_variant best = CPU_BASELINE;
    for (enum cpu_variant variant = CPU_BASELINE; variant < CPU_VARIANTS; variant++)
        if (machine_has(variant)) best = variant;
    return cpu_open_variant(options, best);
}
