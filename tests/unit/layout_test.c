/* Which tensor is in which group, and which runs of its shard a rank goes over. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/layout.h"

static struct tensor tensors[] = {
    {.name = "wte.weight", .dimensions = 2, .shape = {3, 2}, .begin = 0, .size = 6},
    {.name = "h.0.attn.c_attn.weight", .dimensions = 2, .shape = {2, 2}, .begin = 6, .size = 4},
    {.name = "h.0.attn.c_attn.bias", .dimensions = 1, .shape = {2}, .begin = 10, .size = 2},
    {.name = "h.0.ln_1.weight", .dimensions = 1, .shape = {2}, .begin = 12, .size = 2},
};
static const struct tensor_table table = {.tensors = tensors, .count = 4, .parameters = 14};

static void open_layout(struct layout *layout, Gacc__V1__ParameterGroup **groups, size_t count)
{
    Gacc__V1__OptimizerSection optimizer = GACC__V1__OPTIMIZER_SECTION__INIT;
    optimizer.lr = 0.1;
    optimizer.weight_decay = 0.5;
    optimizer.groups = groups;
    optimizer.n_groups = count;
    struct error error = {0};
    if (layout_open(layout, &table, &optimizer, &error)) fail_msg("%s", error.text);
    assert_int_equal(layout->count, 4);
}

static const struct group *group_of(const struct layout *layout, size_t tensor)
{
    assert_int_equal(layout->segments[tensor].tensor, tensor);
    return &layout->groups[layout->segments[tensor].group];
}

static Gacc__V1__ParameterGroup group(const char *match, double lr, double weight_decay)
{
    Gacc__V1__ParameterGroup group = GACC__V1__PARAMETER_GROUP__INIT;
    group.match = (char *)(uintptr_t)match;
    group.lr = lr;
    group.weight_decay = weight_decay;
    return group;
}

/* G2, case 15-1 */
static void matrices_decay_and_vectors_do_not(void **state)
{
    (void)state;
    struct layout layout;
    open_layout(&layout, NULL, 0);
    static const double decays[] = {0.5, 0.5, 0, 0};
    for (size_t i = 0; i < 4; i++) {
        assert_true(group_of(&layout, i)->weight_decay == decays[i]);
        assert_true(group_of(&layout, i)->lr_ratio == 1);
    }
    layout_close(&layout);
}

static void the_first_group_that_matches_wins(void **state)
{
    (void)state;
    Gacc__V1__ParameterGroup first = group("h.0.attn.*", 0.02, 0.25), second = group("h.*", 0.3, -1);
    Gacc__V1__ParameterGroup *groups[] = {&first, &second};
    struct layout layout;
    open_layout(&layout, groups, 2);
    assert_true(group_of(&layout, 0)->lr_ratio == 1);
    assert_true(group_of(&layout, 1)->lr_ratio == 0.02 / 0.1);
    assert_true(group_of(&layout, 1)->weight_decay == 0.25);
    assert_true(group_of(&layout, 2)->weight_decay == 0.25); /* said so by its group, for a vector too */
    assert_true(group_of(&layout, 3)->lr_ratio == 0.3 / 0.1);
    assert_true(group_of(&layout, 3)->weight_decay == 0); /* left to the dimensions */
    layout_close(&layout);
}

static void a_group_that_matches_nothing_is_refused(void **state)
{
    (void)state;
    Gacc__V1__ParameterGroup wrong = group("h.1.*", 0.1, -1);
    Gacc__V1__ParameterGroup *groups[] = {&wrong};
    Gacc__V1__OptimizerSection optimizer = GACC__V1__OPTIMIZER_SECTION__INIT;
    optimizer.lr = 0.1;
    optimizer.groups = groups;
    optimizer.n_groups = 1;
    struct layout layout;
    struct error error = {0};
    assert_int_equal(layout_open(&layout, &table, &optimizer, &error), -STATUS_JOB);
    assert_string_equal(error.text, "optimizer.groups[0].match: 'h.1.*' matches no tensor of the model");
}

static void check_runs(const struct layout *layout, const struct shard_map *map, uint32_t rank,
                       const struct run *expected, size_t expected_count)
{
    struct run *runs;
    size_t count;
    assert_int_equal(layout_runs(layout, map, rank, &runs, &count, NULL), 0);
    assert_int_equal(count, expected_count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(runs[i].first, expected[i].first);
        assert_int_equal(runs[i].count, expected[i].count);
        assert_int_equal(runs[i].group, expected[i].group);
    }
    free(runs);
}

static void neighbours_of_one_group_are_one_run_of_the_shard(void **state)
{
    (void)state;
    struct layout layout;
    open_layout(&layout, NULL, 0);
    struct shard_map map;
    shard_map_init(&map, 14, 2, 100);
    check_runs(&layout, &map, 0, (struct run[]){{0, 7, 0}}, 1);
    check_runs(&layout, &map, 1, (struct run[]){{0, 3, 0}, {3, 4, 1}}, 2);
    shard_map_init(&map, 14, 2, 11); /* buckets 0…9 and 10…13: rank 0 owns 0…4 and 10, 11; rank 1 5…9 and 12, 13 */
    check_runs(&layout, &map, 0, (struct run[]){{0, 5, 0}, {5, 2, 1}}, 2);
    check_runs(&layout, &map, 1, (struct run[]){{0, 5, 0}, {5, 2, 1}}, 2);
    layout_close(&layout);
}

static void a_gap_in_the_segments_is_in_no_run(void **state)
{
    (void)state;
    struct layout layout;
    open_layout(&layout, NULL, 0);
    memmove(&layout.segments[1], &layout.segments[2], 2 * sizeof *layout.segments); /* c_attn.weight is not trained */
    layout.count = 3;
    struct shard_map map;
    shard_map_init(&map, 14, 1, 100);
    check_runs(&layout, &map, 0, (struct run[]){{0, 6, 0}, {10, 4, 1}}, 2);
    layout_close(&layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_decay_and_vectors_do_not),
        cmocka_unit_test(the_first_group_that_matches_wins),
        cmocka_unit_test(a_group_that_matches_nothing_is_refused),
        cmocka_unit_test(neighbours_of_one_group_are_one_run_of_the_shard),
        cmocka_unit_test(a_gap_in_the_segments_is_in_no_run),
    };
    return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
