/*
 * What the kernels' tests share: repeatable random arrays in any element type, the instances under test, and comparison
 * under a tolerance that follows from the type. The instances are those of the CPU backend, or, where KERNELS_MODULE
 * names the file, of the GPU backend's module (the environment's KERNELS_MODULE has precedence).
 */
#ifndef GACC_TESTS_KERNELS_SUPPORT_H
#define GACC_TESTS_KERNELS_SUPPORT_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/half.h"
#include "kernels/kernels.h"

#ifdef KERNELS_MODULE
#include <dlfcn.h>

#include "kernels/cuda/module.h"
#include "tests/unit/kernels_mirror.h"
#endif

#define assert_near(got, want, allowed)                                                                                \
    do {                                                                                                               \
        const double got_ = (got), want_ = (want), allowed_ = (allowed);                                               \
        if (!(fabs(got_ - want_) <= allowed_)) fail_msg("%s is %.17g, not %.17g ± %.3g", #got, got_, want_, allowed_); \
    } while (0)

static inline struct gradient_check checked(struct kernels *kernels, const wide *gradient, size_t n,
                                            double inverse_scale)
{
    struct gradient_check sums = {0};
    kernels->table->check(kernels, &sums, gradient, n, inverse_scale);
    return sums;
}

static const char *const variant_names[CPU_VARIANTS] = {"baseline", "avx2", "avx512"};

/* --- elements ----------------------------------------------------------------------------------------------------- */

static inline double element_get(enum dtype type, const void *data, size_t i)
{
    switch (type) {
    case DTYPE_FP32:
        return (double)((const float *)data)[i];
    case DTYPE_BF16:
        return (double)bf16_to_fp32(((const uint16_t *)data)[i]);
    case DTYPE_FP16:
        return (double)fp16_to_fp32(((const uint16_t *)data)[i]);
    case DTYPE_FP64:
        break;
    }
    return ((const double *)data)[i];
}

static inline void element_set(enum dtype type, void *data, size_t i, double value)
{
    switch (type) {
    case DTYPE_FP32:
        ((float *)data)[i] = (float)value;
        return;
    case DTYPE_BF16:
        ((uint16_t *)data)[i] = fp32_to_bf16((float)value);
        return;
    case DTYPE_FP16:
        ((uint16_t *)data)[i] = fp32_to_fp16((float)value);
        return;
    case DTYPE_FP64:
        ((double *)data)[i] = value;
    }
}

/* Half a unit in the last place of a number near 1, and the smallest positive number. */
static inline double rounding_unit(enum dtype type)
{
    return type == DTYPE_FP64 ? 0x1p-53 : type == DTYPE_FP32 ? 0x1p-24 : type == DTYPE_FP16 ? 0x1p-11 : 0x1p-8;
}

static inline double smallest(enum dtype type)
{
    return type == DTYPE_FP16 ? 0x1p-24 : type == DTYPE_FP64 ? 0 : 0x1p-126;
}

/* --- arrays: the same numbers in an element type, for the CPU backend, and in fp64, for the reference
 * ------------------ */

struct array {
    enum dtype type;
    size_t n;
    void *data;
    double *exact;
};

static inline double random_unit(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-52 - 1; /* −1 … 1 */
}

static inline struct array array_new(enum dtype type, size_t n)
{
    struct array a = {type, n, malloc(n ? n * dtype_size(type) : 1), malloc(n ? n * sizeof(double) : 1)};
    assert_non_null(a.data);
    assert_non_null(a.exact);
    for (size_t i = 0; i < n; i++) {
        a.exact[i] = (double)NAN;
        element_set(type, a.data, i, (double)NAN);
    }
    return a;
}

static inline void array_set(struct array *a, size_t i, double value)
{
    element_set(a->type, a->data, i, value);
    a->exact[i] = element_get(a->type, a->data, i);
}

/* centre + spread·(−1 … 1) */
static inline struct array array_random(enum dtype type, size_t n, double centre, double spread, uint64_t *state)
{
    struct array a = array_new(type, n);
    for (size_t i = 0; i < n; i++) array_set(&a, i, centre + spread * random_unit(state));
    return a;
}

static inline void array_free(struct array *a)
{
    free(a->data);
    free(a->exact);
    *a = (struct array){0};
}

static inline void arrays_free(struct array *arrays, size_t count)
{
    for (size_t i = 0; i < count; i++) array_free(&arrays[i]);
}

/* The data against the exact values that the reference left: |got − want| <= relative·|want| + absolute +
 * factor·each, NaN where NaN, infinite where infinite or beyond the type's range. */
static inline void array_check_each(const char *what, const struct array *a, double relative, double absolute,
                                    double factor, const double *each)
{
    for (size_t i = 0; i < a->n; i++) {
        const double got = element_get(a->type, a->data, i), want = a->exact[i];
        const double allowed =
            relative * fabs(want) + absolute + (factor > 0 ? factor * each[i] : 0) + smallest(a->type);
        if (isnan(want) ? isnan(got) : got == want || fabs(got - want) <= allowed) continue;
        fail_msg("%s[%zu]: got %.17g, want %.17g, allowed difference %.3g", what, i, got, want, allowed);
    }
}

static inline void array_check(const char *what, const struct array *a, double relative, double absolute)
{
    array_check_each(what, a, relative, absolute, 0, NULL);
}

/* --- instances ---------------------------------------------------------------------------------------------------- */

struct instance {
    struct kernels *kernels, *reference;
    const struct kernel_table *table, *reference_table;
    enum dtype type, wide;
    char name[40];
    bool on_cpu;
    double unit, wide_unit; /* rounding units */
    /* That of what a GPU rounds in between and the CPU does not: a product before the slope of an activation multiplies
     * it, probabilities as operands. */
    double between;
};

/* Takes the backend over. */
static inline void instance_of(struct instance *instance, struct kernels *kernels)
{
    const struct kernels_options exact = {.compute_type = DTYPE_FP64, .threads = 1};
    struct kernels *reference = kernels_open_reference(&exact);
    const enum dtype type = kernels->compute_type;
    assert_non_null(reference);
    *instance = (struct instance){
        .kernels = kernels,
        .reference = reference,
        .table = kernels->table,
        .reference_table = reference->table,
        .type = type,
        .wide = dtype_wide(type),
        .unit = rounding_unit(type),
        .wide_unit = rounding_unit(dtype_wide(type)),
    };
}

static inline bool instance_open(struct instance *instance, enum dtype type, enum cpu_variant variant, int threads)
{
    const struct kernels_options options = {.compute_type = type, .threads = threads};
    struct kernels *cpu = cpu_open_variant(&options, variant);
    if (!cpu) return false;
    instance_of(instance, cpu);
    instance->on_cpu = true;
    snprintf(instance->name, sizeof instance->name, "%s, %d threads", variant_names[variant], threads);
    return true;
}

static inline void instance_close(struct instance *instance)
{
    kernels_close(instance->kernels);
    kernels_close(instance->reference);
}

#ifdef KERNELS_MODULE

static inline const struct cuda_module *kernels_module(void)
{
    static const struct cuda_module *module;
    if (module) return module;
    const char *chosen = getenv("KERNELS_MODULE");
    void *library = dlopen(chosen ? chosen : KERNELS_MODULE, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail_msg("%s", dlerror());
    module = dlsym(library, CUDA_MODULE_SYMBOL);
    assert_non_null(module);
    assert_int_equal(module->abi, CUDA_MODULE_ABI);
    int devices;
    struct kernels_failure why;
    if (!module->device_count(&devices, &why)) {
        printf("skipped: %s\n", why.text);
        exit(77);
    }
    return module;
}

/* Calls test for every type, with arrays aligned as allocate() does and with arrays that are not. */
static inline void for_each_instance(void (*test)(struct instance *))
{
    for (enum dtype type = DTYPE_FP32; type <= DTYPE_FP64; type++) {
        for (size_t shift = 0; shift <= 1; shift++) {
            const struct kernels_options options = {.compute_type = type, .threads = 1};
            struct instance instance;
            struct kernels_failure why;
            struct kernels *backend = kernels_module()->kernels_open(&options, 0, &why);
            if (!backend) fail_msg("%s", why.text);
            instance_of(&instance, mirror_open(backend, shift));
            instance.between = type == DTYPE_BF16 || type == DTYPE_FP16 ? instance.unit : 0;
            snprintf(instance.name, sizeof instance.name, "shifted by %zu", shift);
            test(&instance);
            instance_close(&instance);
        }
    }
}

#else

/* Calls test for every type, every instruction set of this machine, and one thread and three. */
static inline void for_each_instance(void (*test)(struct instance *))
{
    for (enum dtype type = DTYPE_FP32; type <= DTYPE_FP64; type++) {
        for (enum cpu_variant variant = CPU_BASELINE; variant < CPU_VARIANTS; variant++) {
            for (int threads = 1; threads <= 3; threads += 2) {
                struct instance instance;
                if (!instance_open(&instance, type, variant, threads)) continue;
                test(&instance);
                instance_close(&instance);
            }
        }
    }
}

#endif

#define DESCRIBE(buffer, instance, format, ...) \
    snprintf(buffer, sizeof buffer, "%s %s " format, dtype_name((instance)->type), (instance)->name, __VA_ARGS__)

#endif
