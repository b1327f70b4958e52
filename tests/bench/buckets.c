/*
 * buckets MODULE [PARAMETERS]: what a step's collectives take between GPUs, by the number of buckets that the flat
 * buffers are cut into: fp32 gradients reduced and scattered, bf16 parameters gathered, by NCCL, of the 124 M
 * parameters of GPT-2 or so many. Run by a rank for each GPU (mpirun -n N buckets …); one rank alone sends nothing, and
 * what is left is what the calls cost. MODULE is gacc_cuda.so.
 *
 * Few buckets leave much to the end, when no backward hides it, many cost a start each: `seconds` are of all of them,
 * one after the other, `exposed` of a single one's reduction and gather. Rank 0 prints one JSON object; seconds are
 * medians of the slowest rank's.
 */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/module.h"
#include "worker/comm.h"

enum { ROUNDS = 20, WARM = 3 };
static const uint32_t counts[] = {1, 2, 4, 8, 16, 32};
enum { COUNTS = sizeof counts / sizeof *counts };

/* The transport is for as many buckets as it would itself make of so many parameters: 64. */
#define MOST_PARAMETERS ((uint64_t)64 << 24)

static struct comm *host, *comm;
static struct kernels *kernels;
static struct error error;

static void fail(const char *why)
{
    fprintf(stderr, "buckets: %s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void must(int result)
{
    if (result) fail(error.text);
}

static void open_all(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail(dlerror());
    const struct cuda_module *module = dlsym(library, CUDA_MODULE_SYMBOL);
    if (!module || module->abi != CUDA_MODULE_ABI) fail("another version's module");
    const struct kernels_options options = {.compute_type = DTYPE_BF16, .threads = 1};
    struct kernels_failure why = {0};
    must(comm_open_mpi(&host, &error));
    kernels = module->kernels_open(&options, (int)host->local_rank, &why);
    if (!kernels) fail(why.text);
    must(module->comm_open(&comm, host, kernels, MOST_PARAMETERS, &error));
}

static void *allocate(uint64_t bytes)
{
    void *memory = kernels->table->allocate(kernels, bytes);
    if (!memory) fail("out of memory");
    return memory;
}

struct buffers {
    struct shard_map map;
    float *gradients, *shard;
    void *parameters; /* bf16 */
};

static void all(const struct buffers *b)
{
    must(comm_reduce_scatter(comm, &b->map, b->gradients, b->shard, DTYPE_FP32, &error));
    must(comm_all_gather(comm, &b->map, b->parameters, DTYPE_BF16, &error));
}

/* What is reduced last is gathered first. */
static void single(const struct buffers *b)
{
    must(comm_reduce_scatter_bucket(comm, &b->map, 0, b->gradients, b->shard, DTYPE_FP32, &error));
    must(comm_join(comm, 0, &error));
    must(comm_all_gather_bucket(comm, &b->map, 0, b->parameters, DTYPE_BF16, &error));
    must(comm_join(comm, 0, &error));
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_seconds(void (*work)(const struct buffers *), const struct buffers *buffers)
{
    double seconds[ROUNDS];
    for (int i = -WARM; i < ROUNDS; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double began = MPI_Wtime();
        work(buffers);
        const char *failure = kernels->table->wait(kernels);
        if (failure) fail(failure);
        double own = MPI_Wtime() - began, slowest;
        MPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (i >= 0) seconds[i] = slowest;
    }
    qsort(seconds, ROUNDS, sizeof *seconds, ascending);
    return seconds[ROUNDS / 2];
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    if (argc < 2) fail("a module is wanted");
    open_all(argv[1]);
    const uint64_t parameters = argc > 2 ? strtoull(argv[2], NULL, 10) : 124439808;
    if (parameters < 1000 * (uint64_t)comm->ranks || parameters > MOST_PARAMETERS)
        fail("too few or too many parameters");
    struct buffers buffers;
    const uint64_t room = parameters + comm->ranks; /* whole parts of the last bucket */
    buffers.gradients = allocate(room * sizeof(float));
    buffers.shard = allocate(room * sizeof(float));
    buffers.parameters = allocate(room * dtype_size(DTYPE_BF16));
    kernels->table->clear(kernels, buffers.gradients, room * sizeof(float));
    kernels->table->clear(kernels, buffers.parameters, room * dtype_size(DTYPE_BF16));
    if (comm->rank == 0)
        printf("{\"ranks\": %u, \"parameters\": %llu, \"transport\": \"%s\", \"buckets\": [", comm->ranks,
               (unsigned long long)parameters, comm->transport);
    for (int i = 0; i < COUNTS; i++) {
        const uint64_t parts = (uint64_t)counts[i] * comm->ranks;
        shard_map_init(&buffers.map, parameters, comm->ranks, (parameters + parts - 1) / parts * comm->ranks);
        const double seconds = median_seconds(all, &buffers), exposed = median_seconds(single, &buffers);
        if (comm->rank == 0)
            printf("%s{\"count\": %u, \"elements\": %llu, \"seconds\": %.9f, \"exposed\": %.9f}", i ? ", " : "",
                   buffers.map.bucket_count, (unsigned long long)buffers.map.bucket_elements, seconds, exposed);
    }
    if (comm->rank == 0) printf("]}\n");
    kernels->table->release(kernels, buffers.gradients);
    kernels->table->release(kernels, buffers.shard);
    kernels->table->release(kernels, buffers.parameters);
    comm_close(comm);
    kernels_close(kernels);
    comm_close(host);
    MPI_Finalize();
    return 0;
}
