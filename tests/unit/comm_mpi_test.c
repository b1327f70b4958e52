/*
 * Collectives over MPI, run by several ranks at once (CTest: mpirun -n 3). Every rank asserts its own part; one that
 * fails makes the launcher's status non-zero.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <mpi.h>

#include "worker/comm.h"

#define PARAMETERS 1000u

static int open_comm(void **state)
{
    struct comm *comm = NULL;
    struct error error;
    if (comm_open_mpi(&comm, &error)) {
        print_error("%s\n", error.text);
        return -1;
    }
    *state = comm;
    return 0;
}

static int close_comm(void **state)
{
    comm_close(*state);
    return 0;
}

static void the_reduced_shard_is_the_sum_over_ranks(void **state)
{
    struct comm *comm = *state;
    for (uint64_t limit = 300; limit <= 1200; limit += 900) {
        struct shard_map map;
        shard_map_init(&map, PARAMETERS, comm->ranks, limit);
        float gradients[PARAMETERS], shard[PARAMETERS];
        for (uint32_t i = 0; i < PARAMETERS; i++) gradients[i] = (float)(i + comm->rank);
        comm->counts = (struct comm_counts){0};
        assert_int_equal(comm_reduce_scatter(comm, &map, gradients, shard, DTYPE_FP32, NULL), 0);
        uint64_t at = 0, ranks = comm->ranks;
        for (uint32_t bucket = 0; bucket < map.bucket_count; bucket++) {
            struct range own = shard_map_range(&map, bucket, comm->rank);
            for (uint64_t i = own.begin; i < own.end; i++)
                assert_true((uint64_t)shard[at++] == i * ranks + ranks * (ranks - 1) / 2);
        }
        assert_int_equal(comm->counts.reduce_scatter, map.bucket_count);
        assert_int_equal(comm->counts.reduce_scatter_bytes, 4 * (PARAMETERS - at));
    }
}

/* What every rank sends is rounded to bf16, to nearest even; what the owner adds to it is not. In bf16 1 + 2^-8 is a
 * tie and becomes 1, 1 + 3·2^-8 a tie and becomes 1 + 2^-6, and 1 + 2^-8 + 2^-20 becomes 1 + 2^-7. */
static void rounded_gradients_are_added_in_fp32(void **state)
{
    struct comm *comm = *state;
    static const float values[] = {1 + 0x1p-8f, 1 + 3 * 0x1p-8f, 1 + 0x1p-8f + 0x1p-20f};
    static const float arrives[] = {1, 1 + 0x1p-6f, 1 + 0x1p-7f};
    struct shard_map map;
    shard_map_init(&map, PARAMETERS, comm->ranks, 300);
    float gradients[PARAMETERS], shard[PARAMETERS];
    for (uint32_t i = 0; i < PARAMETERS; i++) gradients[i] = values[i % 3] * (float)(1 << comm->rank);
    comm->rounds = true;
    comm->counts = (struct comm_counts){0};
    assert_int_equal(comm_reduce_scatter(comm, &map, gradients, shard, DTYPE_FP32, NULL), 0);
    comm->rounds = false;
    uint64_t at = 0;
    for (uint32_t bucket = 0; bucket < map.bucket_count; bucket++) {
        struct range own = shard_map_range(&map, bucket, comm->rank);
        for (uint64_t i = own.begin; i < own.end; i++) {
            float sum = 0;
            for (uint32_t rank = 0; rank < comm->ranks; rank++)
                sum += (rank == comm->rank ? values[i % 3] : arrives[i % 3]) * (float)(1 << rank);
            assert_true(shard[at++] == sum);
        }
    }
    assert_int_equal(comm->counts.reduce_scatter, map.bucket_count);
    assert_int_equal(comm->counts.reduce_scatter_bytes, 2 * (PARAMETERS - at));
}

static void gathered_parameters_are_the_same_on_all_ranks(void **state)
{
    struct comm *comm = *state;
    static const enum dtype types[] = {DTYPE_FP16, DTYPE_FP32, DTYPE_FP64};
    struct shard_map map;
    shard_map_init(&map, PARAMETERS, comm->ranks, 300);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        size_t size = dtype_size(types[t]);
        unsigned char *parameters = calloc(PARAMETERS, size);
        for (uint32_t bucket = 0; bucket < map.bucket_count; bucket++) {
            struct range own = shard_map_range(&map, bucket, comm->rank);
            for (uint64_t i = own.begin * size; i < own.end * size; i++) parameters[i] = (unsigned char)(i % 251);
        }
        comm->counts = (struct comm_counts){0};
        assert_int_equal(comm_all_gather(comm, &map, parameters, types[t], NULL), 0);
        for (uint64_t i = 0; i < PARAMETERS * size; i++) assert_int_equal(parameters[i], i % 251);
        assert_int_equal(comm->counts.all_gather, map.bucket_count);
        assert_int_equal(comm->counts.all_gather_bytes, shard_map_owned(&map, comm->rank) * (comm->ranks - 1) * size);
        free(parameters);
    }
}

static void a_broadcast_reaches_everyone_and_counts_as_control(void **state)
{
    struct comm *comm = *state;
    comm->counts = (struct comm_counts){0};
    uint32_t root = comm->ranks - 1, word = comm->rank;
    assert_int_equal(comm_broadcast(comm, &word, sizeof word, root, NULL), 0);
    assert_int_equal(word, root);
    assert_int_equal(comm_barrier(comm, NULL), 0);
    assert_int_equal(comm->counts.control, 2);
}

static void ranks_of_one_host_are_numbered_and_share_its_cores(void **state)
{
    struct comm *comm = *state;
    assert_int_equal(comm->local_ranks, comm->ranks);
    assert_int_equal(comm->local_rank, comm->rank);
    assert_true(comm->local_cores >= 1);
    assert_true(comm->transport[0] != '\0');
}

/* A bad root is an error of the call, not the end of the process. */
static void an_error_of_the_transport_comes_back_as_text(void **state)
{
    struct comm *comm = *state;
    struct error error = {0};
    int word = 0;
    assert_int_equal(comm_broadcast(comm, &word, sizeof word, comm->ranks + 7, &error), -STATUS_INTERNAL);
    assert_non_null(strstr(error.text, "MPI_Bcast"));
}

int main(int count, char **arguments)
{
    int level;
    MPI_Init_thread(&count, &arguments, MPI_THREAD_FUNNELED, &level);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reduced_shard_is_the_sum_over_ranks),
        cmocka_unit_test(rounded_gradients_are_added_in_fp32),
        cmocka_unit_test(gathered_parameters_are_the_same_on_all_ranks),
        cmocka_unit_test(a_broadcast_reaches_everyone_and_counts_as_control),
        cmocka_unit_test(ranks_of_one_host_are_numbered_and_share_its_cores),
        cmocka_unit_test(an_error_of_the_transport_comes_back_as_text),
    };
    int failed = cmocka_run_group_tests_name("comm over MPI", tests, open_comm, close_comm);
    MPI_Finalize();
    return failed;
}
