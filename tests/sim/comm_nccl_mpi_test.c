/*
 * Collectives over NCCL in the simulation, run by several ranks at once (CTest: mpirun -n 3), each with a device of its
 * own. Kernels make what is reduced and read what was gathered, so that a collective that does not wait for them, or
 * that they do not wait for, shows as a wrong number under some seed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <mpi.h>

#include "kernels/cuda/module.h"
#include "worker/comm.h"

#define PARAMETERS 1000u /* buckets of 123, an eighth and a multiple of 3 ranks */

struct world {
    struct comm *host, *comm;
    struct kernels *kernels;
    struct shard_map map;
    float *gradients, *shard, *parameters, *found;
};

static void *device_memory(struct world *world, uint64_t elements)
{
    void *memory = world->kernels->table->allocate(world->kernels, elements * sizeof(float));
    assert_non_null(memory);
    return memory;
}

static int open_world(void **state, bool rounds)
{
    struct world *world = calloc(1, sizeof *world);
    struct error error;
    void *module = dlopen(MODULE, RTLD_NOW | RTLD_LOCAL);
    const struct cuda_module *cuda = module ? dlsym(module, CUDA_MODULE_SYMBOL) : NULL;
    if (!world || !cuda) return -1;
    *state = world;
    if (comm_open_mpi(&world->host, &error)) return -1;
    world->host->rounds = rounds;
    const struct kernels_options options = {.compute_type = DTYPE_FP32, .threads = 1};
    struct kernels_failure why = {0};
    world->kernels = cuda->kernels_open(&options, (int)world->host->local_rank, &why);
    if (!world->kernels || cuda->comm_open(&world->comm, world->host, world->kernels, PARAMETERS, &error)) {
        print_error("%s\n", world->kernels ? error.text : why.text);
        return -1;
    }
    shard_map_init(&world->map, PARAMETERS, world->comm->ranks, world->comm->bucket_limit);
    world->gradients = device_memory(world, shard_map_room(&world->map));
    world->parameters = device_memory(world, shard_map_room(&world->map));
    world->shard = device_memory(world, shard_map_shard_room(&world->map));
    world->found = calloc(shard_map_room(&world->map), sizeof(float));
    return 0;
}

static int open_exact(void **state)
{
    return open_world(state, false);
}

static int open_rounded(void **state)
{
    return open_world(state, true);
}

static int close_world(void **state)
{
    struct world *world = *state;
    const struct kernel_table *table = world->kernels->table;
    comm_close(world->comm);
    table->release(world->kernels, world->gradients);
    table->release(world->kernels, world->parameters);
    table->release(world->kernels, world->shard);
    kernels_close(world->kernels);
    comm_close(world->host);
    free(world->found);
    free(world);
    return 0;
}

/* A kernel puts them there: to += from, of what was uploaded. */
static void make(struct world *world, float *to, const float *values, uint64_t count)
{
    const struct kernel_table *table = world->kernels->table;
    float *from = device_memory(world, count);
    table->upload(world->kernels, from, values, count * sizeof *values);
    table->clear(world->kernels, to, count * sizeof *to);
    table->accumulate(world->kernels, to, from, count);
    table->release(world->kernels, from);
}

static void read_back(struct world *world, const float *from, uint64_t count)
{
    const struct kernel_table *table = world->kernels->table;
    assert_null(table->download(world->kernels, world->found, from, count * sizeof *from));
}

static float gradient_of(uint32_t rank, uint64_t i)
{
    return (float)(i % 7 + 1) * (float)(1 << rank) * (i % 2 ? 1 : 1 + 3 * 0x1p-9f);
}

/* As it arrives at another rank: bf16 has 1 + 2^-7 for 1 + 3·2^-9; of small multiples, rounding once more, see below.
 */
static float arrives(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Step after step: each bucket is reduced while kernels go on, and gathered while they go on. */
static void check_steps(struct world *world, bool rounded)
{
    struct comm *comm = world->comm;
    float *values = calloc(PARAMETERS, sizeof *values);
    struct error error;
    for (int step = 0; step < 3; step++) {
        for (uint64_t i = 0; i < PARAMETERS; i++) values[i] = gradient_of(comm->rank, i + (uint64_t)step);
        make(world, world->gradients, values, PARAMETERS);
        comm->counts = (struct comm_counts){0};
        assert_int_equal(comm_reduce_scatter(comm, &world->map, world->gradients, world->shard, DTYPE_FP32, &error), 0);
        read_back(world, world->shard, shard_map_owned(&world->map, comm->rank));
        uint64_t at = 0;
        for (uint32_t bucket = 0; bucket < world->map.bucket_count; bucket++) {
            const struct range own = shard_map_range(&world->map, bucket, comm->rank);
            for (uint64_t i = own.begin; i < own.end; i++) {
                float sum = 0;
                for (uint32_t rank = 0; rank < comm->ranks; rank++) {
                    const float g = gradient_of(rank, i + (uint64_t)step);
                    sum += rounded && rank != comm->rank ? arrives(g) : g;
                }
                assert_true(world->found[at++] == sum);
            }
        }
        assert_int_equal(comm->counts.reduce_scatter, world->map.bucket_count);
        assert_int_equal(comm->counts.reduce_scatter_bytes, (rounded ? 2 : 4) * (PARAMETERS - at));

        at = 0;
        for (uint32_t bucket = 0; bucket < world->map.bucket_count; bucket++) {
            const struct range own = shard_map_range(&world->map, bucket, comm->rank);
            for (uint64_t i = own.begin; i < own.end; i++) values[i - own.begin] = (float)i + (float)step;
            make(world, world->parameters + own.begin, values, own.end - own.begin);
        }
        assert_int_equal(comm_all_gather(comm, &world->map, world->parameters, DTYPE_FP32, &error), 0);
        read_back(world, world->parameters, PARAMETERS);
        for (uint64_t i = 0; i < PARAMETERS; i++) assert_true(world->found[i] == (float)i + (float)step);
    }
    free(values);
}

static void gradients_are_added_and_parameters_gathered(void **state)
{
    struct world *world = *state;
    assert_int_equal(world->map.bucket_count, 9);
    assert_true(comm_overlaps(world->comm));
    assert_memory_equal(world->comm->transport, "NCCL ", 5);
    check_steps(world, false);
}

static void rounded_gradients_are_added_in_fp32(void **state)
{
    check_steps(*state, true);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(gradients_are_added_and_parameters_gathered, open_exact, close_world),
        cmocka_unit_test_setup_teardown(rounded_gradients_are_added_in_fp32, open_rounded, close_world),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    MPI_Finalize();
    return failed;
}
