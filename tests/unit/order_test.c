/* The order of an epoch is a permutation that depends on seed and epoch alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/data/data.h"

#define SHUFFLED GACC__V1__ORDER__ORDER_SHUFFLED

static bool is_permutation(uint64_t seed, uint64_t epoch, uint64_t count)
{
    bool whole = true, *seen = calloc(count, sizeof *seen);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = order_sequence(SHUFFLED, seed, epoch, count, i);
        if (at >= count || seen[at])
            whole = false;
        else
            seen[at] = true;
    }
    free(seen);
    return whole;
}

static void every_count_up_to_300_is_permuted(void **state)
{
    (void)state;
    for (uint64_t count = 1; count <= 300; count++)
        for (uint64_t epoch = 0; epoch < 4; epoch++) assert_true(is_permutation(1337, epoch, count));
}

static void counts_at_and_around_powers_of_two_are_permuted(void **state)
{
    (void)state;
    const uint64_t counts[] = {1023, 1024, 1025, 4096, 4097, 65536, 65537, 100003, 1048576};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) assert_true(is_permutation(7, 3, counts[i]));
}

static void positions_of_a_count_beyond_two_to_the_32_stay_below_it(void **state)
{
    (void)state;
    const uint64_t counts[] = {(UINT64_C(1) << 32) + 1, (UINT64_C(1) << 62) + 3, UINT64_MAX};
    for (size_t c = 0; c < 3; c++) {
        uint64_t high = 0;
        for (uint64_t i = 0; i < 1000; i++) {
            uint64_t at = order_sequence(SHUFFLED, 1, 0, counts[c], i);
            assert_true(at < counts[c]);
            high += at > counts[c] / 2;
        }
        assert_in_range(high, 400, 600);
    }
}

/* 34-1: 12 sequences, 3 ranks, 2 micro-batches of one sequence each: two steps an epoch. */
static void ranks_together_read_every_sequence_once_an_epoch(void **state)
{
    (void)state;
    uint64_t order[2][12];
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        unsigned read[12] = {0};
        for (uint64_t step = 0; step < 2; step++)
            for (uint64_t rank = 0; rank < 3; rank++)
                for (uint64_t k = 0; k < 2; k++) {
                    uint64_t position = step * 6 + rank * 2 + k;
                    order[epoch][position] = order_sequence(SHUFFLED, 1337, epoch, 12, position);
                    read[order[epoch][position]]++;
                }
        for (size_t i = 0; i < 12; i++) assert_int_equal(read[i], 1);
    }
    assert_memory_not_equal(order[0], order[1], sizeof order[0]);
}

static void another_seed_is_another_order(void **state)
{
    (void)state;
    unsigned same = 0;
    for (uint64_t i = 0; i < 1000; i++)
        same += order_sequence(SHUFFLED, 1, 0, 1000, i) == order_sequence(SHUFFLED, 2, 0, 1000, i);
    assert_in_range(same, 0, 10); /* 1 is expected */
}

static void sequential_order_is_the_position_itself(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(order_sequence(GACC__V1__ORDER__ORDER_SEQUENTIAL, 5, 9, 100, i), i);
}

/* All 24 orders of 4 sequences, over 24000 epochs: 1000 each are expected; chi-square with 23 degrees of freedom is
 * below 50 in 99.9 % of cases. */
static void all_orders_of_a_small_set_are_about_equally_frequent(void **state)
{
    (void)state;
    unsigned seen[256] = {0};
    for (uint64_t epoch = 0; epoch < 24000; epoch++) {
        unsigned key = 0;
        for (uint64_t i = 0; i < 4; i++) key = key * 4 + (unsigned)order_sequence(SHUFFLED, 1337, epoch, 4, i);
        seen[key]++;
    }
    double chi_square = 0;
    unsigned kinds = 0;
    for (size_t i = 0; i < 256; i++) {
        if (!seen[i]) continue;
        kinds++;
        chi_square += (seen[i] - 1000.0) * (seen[i] - 1000.0) / 1000;
    }
    assert_int_equal(kinds, 24);
    assert_true(chi_square < 50);
}

/* Where sequence 0 … 9 of 10 lands over 20000 epochs: 81 degrees of freedom, below 126 in 99.9 %. */
static void every_sequence_is_equally_often_at_every_position(void **state)
{
    (void)state;
    unsigned seen[10][10] = {{0}};
    for (uint64_t epoch = 0; epoch < 20000; epoch++)
        for (uint64_t i = 0; i < 10; i++) seen[i][order_sequence(SHUFFLED, 99, epoch, 10, i)]++;
    double chi_square = 0;
    for (size_t i = 0; i < 10; i++)
        for (size_t j = 0; j < 10; j++) chi_square += (seen[i][j] - 2000.0) * (seen[i][j] - 2000.0) / 2000;
    assert_true(chi_square < 126);
}

/* A10: a data set sorted by class, 2 × 5000 sequences: a micro-batch of 100 has about 50 of each class, never one
 * class. The hypergeometric deviation is 5; 25 is five of them. */
static void a_slice_of_a_sorted_set_holds_all_classes(void **state)
{
    (void)state;
    for (uint64_t slice = 0; slice < 100; slice++) {
        unsigned first_class = 0;
        for (uint64_t i = 0; i < 100; i++) first_class += order_sequence(SHUFFLED, 3, 0, 10000, slice * 100 + i) < 5000;
        assert_in_range(first_class, 25, 75);
    }
}

/* Files of 5, 40 and 3 sequences with 12, 24 and 12 of 48 positions. In ten epochs a sequence of the first is read 24
 * times, one of the second 6, one of the third 40; in every epoch each file has its part. */
static void a_mixture_reads_all_of_a_file_before_it_reads_any_again(void **state)
{
    (void)state;
    const uint64_t first[] = {0, 5, 45, 48}, slots[] = {0, 12, 36, 48};
    for (uint64_t seed = 0; seed < 20; seed++) {
        unsigned seen[48] = {0};
        for (uint64_t epoch = 0; epoch < 10; epoch++) {
            unsigned parts[3] = {0};
            for (uint64_t i = 0; i < 48; i++) {
                const uint64_t at = order_mixed(SHUFFLED, seed, epoch, 3, first, slots, i);
                assert_true(at < 48);
                seen[at]++;
                parts[at < 5 ? 0 : at < 45 ? 1 : 2]++;
            }
            assert_int_equal(parts[0], 12);
            assert_int_equal(parts[1], 24);
            assert_int_equal(parts[2], 12);
        }
        for (size_t i = 0; i < 48; i++) assert_int_equal(seen[i], i < 5 ? 24 : i < 45 ? 6 : 40);
    }
}

static void positions_of_a_mixture_are_mixed_and_of_seed_and_epoch(void **state)
{
    (void)state;
    const uint64_t first[] = {0, 1000, 2000}, slots[] = {0, 500, 2000};
    unsigned early = 0, same_seed = 0, same_epoch = 0;
    for (uint64_t i = 0; i < 400; i++) {
        const uint64_t at = order_mixed(SHUFFLED, 1, 0, 2, first, slots, i);
        early += at < 1000;
        same_seed += at == order_mixed(SHUFFLED, 2, 0, 2, first, slots, i);
        same_epoch += at == order_mixed(SHUFFLED, 1, 1, 2, first, slots, i);
    }
    assert_in_range(early, 60, 140); /* 100 of 400; the deviation is 8 */
    assert_in_range(same_seed, 0, 5);
    assert_in_range(same_epoch, 0, 5);
}

/* The rule as the comment in order.c states it, worked out by another program: no change of order slips in. */
static void the_order_is_the_one_that_is_written_down(void **state)
{
    (void)state;
    const uint64_t expected[] = {4, 9, 5, 3, 2, 1, 7, 8, 6, 0};
    for (uint64_t i = 0; i < 10; i++) assert_int_equal(order_sequence(SHUFFLED, 1337, 0, 10, i), expected[i]);
    assert_int_equal(order_sequence(SHUFFLED, 1337, 5, 1000000, 123456), 602829);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_count_up_to_300_is_permuted),
        cmocka_unit_test(counts_at_and_around_powers_of_two_are_permuted),
        cmocka_unit_test(positions_of_a_count_beyond_two_to_the_32_stay_below_it),
        cmocka_unit_test(ranks_together_read_every_sequence_once_an_epoch),
        cmocka_unit_test(another_seed_is_another_order),
        cmocka_unit_test(sequential_order_is_the_position_itself),
        cmocka_unit_test(all_orders_of_a_small_set_are_about_equally_frequent),
        cmocka_unit_test(every_sequence_is_equally_often_at_every_position),
        cmocka_unit_test(a_slice_of_a_sorted_set_holds_all_classes),
        cmocka_unit_test(the_order_is_the_one_that_is_written_down),
        cmocka_unit_test(a_mixture_reads_all_of_a_file_before_it_reads_any_again),
        cmocka_unit_test(positions_of_a_mixture_are_mixed_and_of_seed_and_epoch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
