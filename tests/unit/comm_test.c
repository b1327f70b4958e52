/* The shard map, and what the wrapper counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/comm_threads.h"

static uint64_t bucket_length(const struct shard_map *map, uint32_t bucket)
{
    struct range range = shard_map_bucket(map, bucket);
    return range.end - range.begin;
}

/* Case 37-1. */
static void more_elements_than_an_int_counts_are_cut_into_buckets(void **state)
{
    (void)state;
    struct shard_map map;
    shard_map_init(&map, (UINT64_C(1) << 31) + 10, 2, UINT64_C(1) << 30);
    assert_int_equal(map.bucket_count, 3);
    assert_int_equal(bucket_length(&map, 0), UINT64_C(1) << 30);
    assert_int_equal(bucket_length(&map, 1), UINT64_C(1) << 30);
    assert_int_equal(bucket_length(&map, 2), 10);
    assert_true(shard_map_bucket(&map, 2).begin == UINT64_C(1) << 31);
    assert_true(shard_map_range(&map, 2, 1).begin == (UINT64_C(1) << 31) + 5);
    assert_true(shard_map_range(&map, 2, 1).end == (UINT64_C(1) << 31) + 10);
}

static void no_collective_call_exceeds_what_an_int_holds(void **state)
{
    (void)state;
    struct shard_map map;
    shard_map_init(&map, UINT64_C(70000000001), 3, COMM_BUCKET_LIMIT);
    for (uint32_t bucket = 0; bucket < map.bucket_count; bucket++)
        assert_true(bucket_length(&map, bucket) <= INT32_MAX);
}

/* Case 21-1. */
static void earlier_ranks_take_what_n_does_not_divide(void **state)
{
    (void)state;
    static const uint64_t expected[][5] = {{4, 3}, {3, 3, 1}, {2, 2, 2, 1}, {2, 2, 2, 1, 0}};
    for (uint32_t ranks = 2; ranks <= 5; ranks++) {
        struct shard_map map;
        shard_map_init(&map, 7, ranks, COMM_BUCKET_LIMIT);
        for (uint32_t rank = 0; rank < ranks; rank++)
            assert_int_equal(shard_map_owned(&map, rank), expected[ranks - 2][rank]);
    }
}

/* What a collective of equal parts reads and writes lies in the buffers, and nobody's range. */
static void whole_parts_fit_the_buffers_and_spoil_no_other_bucket(void **state)
{
    (void)state;
    static const uint64_t limits[] = {1, 3, 10, 1000};
    for (uint64_t parameters = 1; parameters < 40; parameters++)
        for (uint32_t ranks = 1; ranks <= 5; ranks++)
            for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
                struct shard_map map;
                shard_map_init(&map, parameters, ranks, limits[i]);
                for (uint32_t bucket = 0; bucket < map.bucket_count; bucket++) {
                    struct range first = shard_map_range(&map, bucket, 0);
                    uint64_t part = first.end - first.begin;
                    bool last = bucket + 1 == map.bucket_count;
                    uint64_t flat = last ? shard_map_room(&map) : shard_map_bucket(&map, bucket + 1).begin;
                    uint64_t shard = last ? shard_map_shard_room(&map) : shard_map_offset(&map, bucket + 1);
                    assert_int_equal(first.begin + ranks * part, flat);
                    assert_int_equal(shard_map_offset(&map, bucket) + part, shard);
                    for (uint32_t rank = 0; rank < ranks; rank++) {
                        struct range own = shard_map_range(&map, bucket, rank);
                        if (own.begin < own.end) assert_int_equal(own.begin, first.begin + rank * part);
                    }
                }
            }
}

static void every_parameter_has_exactly_one_owner(void **state)
{
    (void)state;
    static const uint64_t limits[] = {1, 3, 10, 1000};
    for (uint64_t parameters = 0; parameters < 40; parameters++)
        for (uint32_t ranks = 1; ranks <= 5; ranks++)
            for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
                struct shard_map map;
                shard_map_init(&map, parameters, ranks, limits[i]);
                uint64_t at = 0, owned = 0;
                for (uint32_t bucket = 0; bucket < map.bucket_count; bucket++)
                    for (uint32_t rank = 0; rank < ranks; rank++) {
                        struct range range = shard_map_range(&map, bucket, rank);
                        assert_int_equal(range.begin, at);
                        at = range.end;
                    }
                assert_int_equal(at, parameters);
                for (uint32_t rank = 0; rank < ranks; rank++) owned += shard_map_owned(&map, rank);
                assert_int_equal(owned, parameters);
            }
}

struct rank {
    struct comm *comm;
    struct shard_map map;
    float gradients[7], shard[7];
    uint16_t parameters[7];
};

static void *one_of_each(void *argument)
{
    struct rank *rank = argument;
    for (uint32_t i = 0; i < 7; i++) {
        rank->gradients[i] = (float)(i + 10 * rank->comm->rank);
        rank->parameters[i] = 0;
    }
    comm_reduce_scatter(rank->comm, &rank->map, rank->gradients, rank->shard, DTYPE_FP32, NULL);
    uint64_t at = 0;
    for (uint32_t bucket = 0; bucket < rank->map.bucket_count; bucket++) {
        struct range own = shard_map_range(&rank->map, bucket, rank->comm->rank);
        for (uint64_t i = own.begin; i < own.end; i++) rank->parameters[i] = (uint16_t)rank->shard[at++];
    }
    comm_all_gather(rank->comm, &rank->map, rank->parameters, DTYPE_FP16, NULL);
    return NULL;
}

static void collect(uint32_t ranks, uint64_t limit, struct rank *results)
{
    struct comm *group[THREADS_MAX];
    void *arguments[THREADS_MAX];
    comm_threads_open(group, ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        results[r].comm = group[r];
        shard_map_init(&results[r].map, 7, ranks, limit);
        arguments[r] = &results[r];
    }
    run_ranks(ranks, one_of_each, arguments);
    for (uint32_t r = 0; r < ranks; r++) {
        for (uint32_t i = 0; i < 7; i++) assert_int_equal(results[r].parameters[i], 3 * i + 30);
        results[r].comm = NULL;
    }
    /* D3, exact with uneven shards: gradient elements·4·(N−1), parameters elements·2·(N−1) over all ranks */
    uint64_t reduced = 0, gathered = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        const struct comm_counts *counts = &group[r]->counts;
        assert_int_equal(counts->reduce_scatter, results[r].map.bucket_count);
        assert_int_equal(counts->all_gather, results[r].map.bucket_count);
        assert_int_equal(counts->control, 0);
        assert_int_equal(counts->reduce_scatter_bytes, (7 - shard_map_owned(&results[r].map, r)) * 4);
        assert_int_equal(counts->all_gather_bytes, shard_map_owned(&results[r].map, r) * 2 * (ranks - 1));
        reduced += counts->reduce_scatter_bytes;
        gathered += counts->all_gather_bytes;
    }
    assert_int_equal(reduced, 7 * 4 * (ranks - 1));
    assert_int_equal(gathered, 7 * 2 * (ranks - 1));
    comm_threads_close(group, ranks);
}

static void a_sum_is_scattered_gathered_and_counted_once(void **state)
{
    (void)state;
    struct rank results[3] = {0};
    collect(3, COMM_BUCKET_LIMIT, results);
}

static void a_buffer_in_buckets_gives_the_same_sum_and_a_call_for_each(void **state)
{
    (void)state;
    struct rank results[3] = {0};
    collect(3, 4, results);
}

static void one_rank_alone_counts_calls_that_send_nothing(void **state)
{
    (void)state;
    struct comm *comm;
    assert_int_equal(comm_open_alone(&comm, NULL), 0);
    struct shard_map map;
    shard_map_init(&map, 3, 1, COMM_BUCKET_LIMIT);
    double gradients[3] = {1, 2, 3}, shard[3] = {0};
    assert_int_equal(comm_reduce_scatter(comm, &map, gradients, shard, DTYPE_FP64, NULL), 0);
    assert_int_equal(comm_all_gather(comm, &map, shard, DTYPE_FP64, NULL), 0);
    assert_memory_equal(shard, gradients, sizeof shard);
    assert_int_equal(comm->counts.reduce_scatter, 1);
    assert_int_equal(comm->counts.all_gather, 1);
    assert_int_equal(comm->counts.reduce_scatter_bytes, 0);
    assert_int_equal(comm->counts.all_gather_bytes, 0);
    assert_true(comm->local_cores >= 1);
    comm_close(comm);
}

static void a_map_for_other_ranks_is_refused(void **state)
{
    (void)state;
    struct comm *comm;
    struct error error;
    struct shard_map map;
    assert_int_equal(comm_open_alone(&comm, NULL), 0);
    shard_map_init(&map, 3, 2, COMM_BUCKET_LIMIT);
    float numbers[3] = {0};
    assert_int_equal(comm_reduce_scatter(comm, &map, numbers, numbers, DTYPE_FP32, &error), -STATUS_INTERNAL);
    assert_int_equal(comm->counts.reduce_scatter, 0);
    comm_close(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_elements_than_an_int_counts_are_cut_into_buckets),
        cmocka_unit_test(no_collective_call_exceeds_what_an_int_holds),
        cmocka_unit_test(earlier_ranks_take_what_n_does_not_divide),
        cmocka_unit_test(every_parameter_has_exactly_one_owner),
        cmocka_unit_test(whole_parts_fit_the_buffers_and_spoil_no_other_bucket),
        cmocka_unit_test(a_sum_is_scattered_gathered_and_counted_once),
        cmocka_unit_test(a_buffer_in_buckets_gives_the_same_sum_and_a_call_for_each),
        cmocka_unit_test(one_rank_alone_counts_calls_that_send_nothing),
        cmocka_unit_test(a_map_for_other_ranks_is_refused),
    };
    return cmocka_run_group_tests_name("comm", tests, NULL, NULL);
}
