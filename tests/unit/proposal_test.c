/* What fits a limit of memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "daemon/core/proposal.h"

/* 100, and per sequence one byte a token, or a quarter of it with recomputation. */
static uint64_t measure(void *with, uint32_t context, bool recomputes, uint32_t micro)
{
    (void)with;
    const uint64_t tokens = context ? context : 1;
    return 100 + tokens * micro / (recomputes ? 4 : 1);
}

static void check(const struct proposal *found, uint32_t context, bool recomputes, uint32_t micro, uint32_t accumulate)
{
    assert_int_equal(found->context, context);
    assert_int_equal(found->recomputes, recomputes);
    assert_int_equal(found->micro, micro);
    assert_int_equal(found->accumulate, accumulate);
    assert_int_equal(found->bytes, measure(NULL, context, recomputes, micro));
}

static void first_a_smaller_peak_then_k(void **unused)
{
    (void)unused;
    struct proposal found[PROPOSALS_MAX];
    struct proposal_rules rules = {.global = 64,
                                   .smallest = 64,
                                   .ranks = 2,
                                   .context = 64,
                                   .can_recompute = true,
                                   .limit = 100 + 10 * 64,
                                   .measure = measure};
    assert_int_equal(proposals_find(&rules, found), 2);
    check(&found[0], 64, false, 8, 4); /* 10 fit, of which K = 4 needs 8 */
    check(&found[1], 64, true, 32, 1);
    rules.limit = 1 << 20;
    assert_int_equal(proposals_find(&rules, found), 2);
    check(&found[0], 64, false, 32, 1);
}

static void a_shorter_context_is_the_last_resort(void **unused)
{
    (void)unused;
    struct proposal found[PROPOSALS_MAX];
    struct proposal_rules rules = {.global = 6,
                                   .smallest = 6,
                                   .ranks = 1,
                                   .context = 64,
                                   .can_recompute = true,
                                   .limit = 100 + 16,
                                   .measure = measure};
    assert_int_equal(proposals_find(&rules, found), 1); /* recomputed, a sequence takes 16 */
    check(&found[0], 64, true, 1, 6);
    rules.limit = 100 + 15;
    assert_int_equal(proposals_find(&rules, found), 1);
    check(&found[0], 32, true, 1, 6);
    rules.limit = 100;
    assert_int_equal(proposals_find(&rules, found), 1); /* a quarter of 3 tokens is none here */
    rules.limit = 99;
    assert_int_equal(proposals_find(&rules, found), 0);
    rules.can_recompute = false, rules.context = 0, rules.limit = 103;
    assert_int_equal(proposals_find(&rules, found), 1);
    check(&found[0], 0, false, 3, 2);
}

static void every_rank_has_a_micro_batch(void **unused)
{
    (void)unused;
    struct proposal found[PROPOSALS_MAX], other;
    for (uint32_t global = 1; global < 60; global++)
        for (uint32_t ranks = 1; ranks <= global; ranks++)
            for (uint64_t limit = 101; limit < 140; limit += 3) {
                struct proposal_rules rules = {
                    .global = global, .smallest = global, .ranks = ranks, .limit = limit, .measure = measure};
                assert_int_equal(proposals_find(&rules, found), 1);
                const uint32_t micro_batches = (global - 1) / found[0].micro + 1;
                assert_true(micro_batches >= ranks && found[0].bytes <= limit);
                assert_int_equal((micro_batches - 1) / ranks + 1, found[0].accumulate);
                if (proposal_with(&rules, &found[0], found[0].micro / 2, &other))
                    assert_true(other.micro < found[0].micro && other.accumulate > found[0].accumulate);
            }
}

/* A ramp from 5 on 3 ranks: b = 2 leaves each one of its 3 micro-batches, b = 3 would leave one rank none. */
static void the_first_step_of_a_ramp_has_one_for_every_rank_too(void **unused)
{
    (void)unused;
    struct proposal found[PROPOSALS_MAX];
    struct proposal_rules rules = {.global = 24, .smallest = 5, .ranks = 3, .limit = 1000, .measure = measure};
    assert_int_equal(proposals_find(&rules, found), 1);
    check(&found[0], 0, false, 2, 4);
}

/* Statistics of a micro-batch: with 2 sequences at a time there are some, and where 2 do not fit nothing does. */
static void one_sequence_at_a_time_may_be_too_few(void **unused)
{
    (void)unused;
    struct proposal found[PROPOSALS_MAX], other;
    struct proposal_rules rules = {
        .global = 6, .smallest = 6, .ranks = 1, .too_few = 1, .limit = 102, .measure = measure};
    assert_int_equal(proposals_find(&rules, found), 1);
    check(&found[0], 0, false, 2, 3);
    assert_false(proposal_with(&rules, &found[0], 1, &other));
    rules.limit = 101;
    assert_int_equal(proposals_find(&rules, found), 0);
    rules.ranks = 6, rules.limit = 1000;
    assert_int_equal(proposals_find(&rules, found), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_a_smaller_peak_then_k),
        cmocka_unit_test(a_shorter_context_is_the_last_resort),
        cmocka_unit_test(every_rank_has_a_micro_batch),
        cmocka_unit_test(the_first_step_of_a_ramp_has_one_for_every_rank_too),
        cmocka_unit_test(one_sequence_at_a_time_may_be_too_few),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
