/*
 * update cpu|MODULE [TYPE]: what is done once a step to the 124 M parameters of GPT-2 and cannot be done while
 * gradients come in: the check of all gradients (found_inf and the norm), and AdamW's update with its clip and unscale.
 * Against the time that the same backend's own copy takes to move the bytes that both must move. MODULE is
 * gacc_cuda.so, and its first device computes.
 *
 * Runs of equal settings are those of the model: matrices decay, what lies between them does not. Prints one JSON
 * object; seconds are medians.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/module.h"
#include "kernels/kernels.h"

enum { LAYERS = 12, WIDTH = 768, CONTEXT = 1024, VOCAB = 50257, ROUNDS = 20, COPIED = 1 << 30 };

/* Parameters of each run of a block, by turns not to decay (ln_1; c_attn's bias; …) and to decay (c_attn; c_proj; …).
 */
static const size_t block[] = {
    2 * WIDTH,        3 * WIDTH *WIDTH, 3 * WIDTH,        WIDTH *WIDTH, 3 * WIDTH,
    4 * WIDTH *WIDTH, 4 * WIDTH,        4 * WIDTH *WIDTH, WIDTH,
};
enum { BLOCK_RUNS = sizeof block / sizeof *block };

static struct kernels *kernels;
static const struct kernel_table *table;
static float *gradient, *master, *m, *v;
static struct gradient_check *found;
static char *copied[2];

static void fail(const char *why)
{
    fprintf(stderr, "update: %s\n", why);
    exit(1);
}

static struct kernels *open_module(const char *path, const struct kernels_options *options)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail(dlerror());
    const struct cuda_module *module = dlsym(library, CUDA_MODULE_SYMBOL);
    if (!module || module->abi != CUDA_MODULE_ABI) fail("another version's module");
    struct kernels_failure why;
    struct kernels *opened = module->kernels_open(options, 0, &why);
    if (!opened) fail(why.text);
    return opened;
}

static void *allocate(size_t bytes)
{
    void *memory = table->allocate(kernels, bytes);
    if (!memory) fail("out of memory");
    return memory;
}

static void finish(void)
{
    const char *failure = table->wait(kernels);
    if (failure) fail(failure);
}

/* Calls `run` for every run of equal settings; returns the parameters in all. */
static size_t for_each_run(void (*run)(size_t first, size_t count, bool decays))
{
    size_t first = 0;
    run(first, (VOCAB + CONTEXT) * (size_t)WIDTH, true);
    first += (VOCAB + CONTEXT) * (size_t)WIDTH;
    for (int layer = 0; layer < LAYERS; layer++) {
        for (size_t i = 0; i < BLOCK_RUNS; i++) {
            run(first, block[i], i % 2 == 1);
            first += block[i];
        }
    }
    run(first, (size_t)2 * WIDTH, false);
    return first + (size_t)2 * WIDTH;
}

static void no_run(size_t first, size_t count, bool decays)
{
    (void)first, (void)count, (void)decays;
}

static void check_run(size_t first, size_t count, bool decays)
{
    (void)decays;
    table->check(kernels, found, gradient + first, count, 1.0 / 1024);
}

static void update_run(size_t first, size_t count, bool decays)
{
    const struct update update = {.kind = OPTIMIZER_KIND_ADAMW,
                                  .lr = 1e-5,
                                  .beta1 = 0.9,
                                  .beta2 = 0.95,
                                  .eps = 1e-8,
                                  .weight_decay = decays ? 0.1 : 0,
                                  .unscale = 1.0 / 1024,
                                  .t = 100};
    table->update(kernels, master + first, m + first, v + first, gradient + first, count, &update);
}

static void check_and_update(void)
{
    for_each_run(check_run);
    for_each_run(update_run);
}

static void copy(void)
{
    table->copy(kernels, copied[1], copied[0], COPIED);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_seconds(void (*work)(void))
{
    double seconds[ROUNDS];
    work(); /* the first may have to load code */
    finish();
    for (int i = 0; i < ROUNDS; i++) {
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        work();
        finish();
        clock_gettime(CLOCK_MONOTONIC, &end);
        seconds[i] = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    }
    qsort(seconds, ROUNDS, sizeof *seconds, ascending);
    return seconds[ROUNDS / 2];
}

int main(int argc, char **argv)
{
    if (argc < 2) fail("cpu or a module is wanted");
    struct kernels_options options = {.compute_type = DTYPE_BF16, .threads = 1};
    for (enum dtype type = DTYPE_FP32; argc > 2 && type <= DTYPE_FP16; type++)
        if (strcmp(argv[2], dtype_name(type)) == 0) options.compute_type = type;
    kernels = strcmp(argv[1], "cpu") == 0 ? kernels_open_cpu(&options) : open_module(argv[1], &options);
    if (!kernels) fail("out of memory");
    table = kernels->table;
    const size_t parameters = for_each_run(no_run);
    float **const arrays[] = {&gradient, &master, &m, &v}; /* zeros: what is in them changes no time */
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) *arrays[i] = allocate(parameters * sizeof(float));
    for (size_t i = 0; i < 2; i++) copied[i] = allocate(COPIED);
    found = allocate(sizeof *found);

    const double copying = median_seconds(copy), bytes_per_second = 2.0 * COPIED / copying;
    const double seconds = median_seconds(check_and_update);
    /* check: g; update: g, w, m, v read, w, m, v written */
    const double bytes = (double)parameters * sizeof(float) * 8;
    printf(
        "{\"parameters\": %zu, \"bytes\": %.0f, \"seconds\": %.9f, \"copy_bytes_per_second\": %.0f, \"ratio\": %.4f}\n",
        parameters, bytes, seconds, bytes_per_second, seconds * bytes_per_second / bytes);
    kernels_close(kernels);
    return 0;
}
