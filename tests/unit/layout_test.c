/* Which tensor is in which group, and which runs of its shard a rank goes over. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/layout.h"
#include "worker/near.h"

static struct tensor tensors[] = {
    {.name = "wte.weight", .dimensions = 2, .shape = {3, 2}, .begin = 0, .size = 6},
    {.name = "h.0.attn.c_attn.weight", .dimensions = 2, .shape = {2, 2}, .begin = 6, .size = 4},
    {.name = "h.0.attn.c_attn.bias", .dimensions = 1, .shape = {2}, .begin = 10, .size = 2},
    {.name = "h.0.ln_1.weight", .dimensions = 1, .shape = {2}, .begin = 12, .size = 2},
};
static struct stage stage = {.count = 4};
static struct model model = {
    .table = {.tensors = tensors, .count = 4, .parameters = 14}, .stages = &stage, .stage_count = 1};

static void open_layout(struct layout *layout, Gacc__V1__ParameterGroup **groups, size_t count)
{
    Gacc__V1__OptimizerSection optimizer = GACC__V1__OPTIMIZER_SECTION__INIT;
    optimizer.lr = 0.1;
    optimizer.weight_decay = 0.5;
    optimizer.groups = groups;
    optimizer.n_groups = count;
    struct error error = {0};
    Gacc__V1__JobSpec job = GACC__V1__JOB_SPEC__INIT;
    job.optimizer = &optimizer;
    if (layout_open(layout, &model, &job, 0, &error)) fail_msg("%s", error.text);
}

static const struct group *group_of(const struct layout *layout, size_t tensor)
{
    assert_int_equal(layout->count, 4);
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
        assert_true(group_of(&layout, i)->rule.weight_decay == decays[i]);
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
    assert_true(group_of(&layout, 1)->rule.weight_decay == 0.25);
    assert_true(group_of(&layout, 2)->rule.weight_decay == 0.25); /* said so by its group, for a vector too */
    assert_true(group_of(&layout, 3)->lr_ratio == 0.3 / 0.1);
    assert_true(group_of(&layout, 3)->rule.weight_decay == 0); /* left to the dimensions */
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
    Gacc__V1__JobSpec job = GACC__V1__JOB_SPEC__INIT;
    job.optimizer = &optimizer;
    assert_int_equal(layout_open(&layout, &model, &job, 0, &error), -STATUS_JOB);
    assert_string_equal(error.text, "optimizer.groups.0.match: 'h.1.*' matches no tensor; near it: "
                                    "h.0.attn.c_attn.weight, h.0.attn.c_attn.bias, h.0.ln_1.weight");
    assert_string_equal(tensors_near(&model.table, "*.c_atn.bias", 3).text, "h.0.attn.c_attn.bias");
    assert_string_equal(tensors_near(&model.table, "wte.wieght", 1).text, "wte.weight");
    assert_string_equal(tensors_near(&model.table, "h.?.ln_2.weight", 3).text, "h.0.ln_1.weight");
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
        assert_int_equal(runs[i].since, expected[i].since);
        assert_memory_equal(&runs[i].moments, &expected[i].moments, sizeof runs[i].moments);
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
    check_runs(&layout, &map, 0, (struct run[]){{0, 7, 0, 0, {0, 0}}}, 1);
    check_runs(&layout, &map, 1, (struct run[]){{0, 3, 0, 0, {0, 0}}, {3, 4, 1, 0, {3, 3}}}, 2);
    shard_map_init(&map, 14, 2, 11); /* buckets 0…9 and 10…13: rank 0 owns 0…4 and 10, 11; rank 1 5…9 and 12, 13 */
    check_runs(&layout, &map, 0, (struct run[]){{0, 5, 0, 0, {0, 0}}, {5, 2, 1, 0, {5, 5}}}, 2);
    check_runs(&layout, &map, 1, (struct run[]){{0, 5, 0, 0, {0, 0}}, {5, 2, 1, 0, {5, 5}}}, 2);
    layout.segments[1].since = 30; /* its moments are younger */
    shard_map_init(&map, 14, 1, 100);
    check_runs(&layout, &map, 0, (struct run[]){{0, 6, 0, 0, {0, 0}}, {6, 4, 0, 30, {6, 6}}, {10, 4, 1, 0, {10, 10}}},
               3);
    layout_close(&layout);
}

static void groups_of_the_same_numbers_for_all_dimensions_are_one(void **state)
{
    (void)state;
    Gacc__V1__ParameterGroup all = group("*", 0.1, 0.25);
    Gacc__V1__ParameterGroup *groups[] = {&all};
    struct layout layout;
    struct shard_map map;
    open_layout(&layout, groups, 1);
    shard_map_init(&map, 14, 1, 100);
    check_runs(&layout, &map, 0, (struct run[]){{0, 14, 0, 0, {0, 0}}}, 1);
    assert_int_equal(layout.groups[0].tensors, 4);
    assert_int_equal(layout.groups[0].parameters, 14);
    layout_close(&layout);
}

/* c_attn.weight is frozen: wte lies at 0…5 of the trained index, the vectors at 6…9. */
static void open_frozen(struct layout *layout)
{
    static Gacc__V1__ParameterGroup frozen, *groups[] = {&frozen};
    frozen = group("*.c_attn.weight", 0.1, -1);
    frozen.frozen = true;
    open_layout(layout, groups, 1);
}

/* G4 */
static void a_frozen_tensor_has_no_segment(void **state)
{
    (void)state;
    struct layout layout;
    struct shard_map map;
    open_frozen(&layout);
    assert_int_equal(model.table.trained, 10);
    assert_int_equal(layout.count, 3);
    static const uint64_t begins[] = {0, 6, 8}, ends[] = {6, 8, 10};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(layout.segments[i].begin, begins[i]);
        assert_int_equal(layout.segments[i].end, ends[i]);
    }
    assert_true(tensors[1].frozen && tensors[1].at == 0 && !tensors[0].frozen && tensors[2].at == 6);
    assert_int_equal(stage.end, 10);
    shard_map_init(&map, model.table.trained, 2, 100);
    check_runs(&layout, &map, 0, (struct run[]){{0, 5, 2, 0, {0, 0}}}, 1);
    check_runs(&layout, &map, 1, (struct run[]){{0, 1, 2, 0, {0, 0}}, {1, 4, 3, 0, {1, 1}}}, 2);
    layout_close(&layout);
}

#define NONE                 \
    {                        \
        NO_MOMENT, NO_MOMENT \
    }

static void check_pieces(const struct layout *layout, uint32_t ranks, uint32_t rank, const struct piece *expected,
                         size_t expected_count)
{
    struct shard_map map;
    struct piece *pieces;
    size_t count;
    shard_map_init(&map, model.table.trained, ranks, 100);
    assert_int_equal(layout_pieces(layout, &model.table, &map, rank, &pieces, &count, NULL), 0);
    assert_int_equal(count, expected_count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(pieces[i].begin, expected[i].begin);
        assert_int_equal(pieces[i].end, expected[i].end);
        assert_int_equal(pieces[i].at, expected[i].at);
        assert_int_equal(pieces[i].frozen, expected[i].frozen);
        assert_int_equal(pieces[i].since, expected[i].since);
        assert_memory_equal(&pieces[i].moments, &expected[i].moments, sizeof pieces[i].moments);
    }
    free(pieces);
}

static void what_ranks_keep_covers_the_canonical_index(void **state)
{
    (void)state;
    struct layout layout;
    open_layout(&layout, NULL, 0);
    check_pieces(&layout, 1, 0, (struct piece[]){{0, 14, 0, false, 0, {0, 0}}}, 1);
    layout_close(&layout);
    open_frozen(&layout);
    check_pieces(
        &layout, 1, 0,
        (struct piece[]){{0, 6, 0, false, 0, {0, 0}}, {10, 14, 6, false, 0, {6, 6}}, {6, 10, 10, true, 0, NONE}}, 3);
    check_pieces(&layout, 2, 0, (struct piece[]){{0, 5, 0, false, 0, {0, 0}}, {6, 8, 5, true, 0, NONE}}, 2);
    check_pieces(
        &layout, 2, 1,
        (struct piece[]){{5, 6, 0, false, 0, {0, 0}}, {10, 14, 1, false, 0, {1, 1}}, {8, 10, 5, true, 0, NONE}}, 3);
    layout.segments[2].since = 7;
    check_pieces(&layout, 2, 1,
                 (struct piece[]){{5, 6, 0, false, 0, {0, 0}},
                                  {10, 12, 1, false, 0, {1, 1}},
                                  {12, 14, 3, false, 7, {3, 3}},
                                  {8, 10, 5, true, 0, NONE}},
                 4);
    layout_close(&layout);
}

/* G4: what is trained in a step depends on how many were applied before it. */
static void groups_are_frozen_by_the_step(void **state)
{
    (void)state;
    Gacc__V1__ParameterGroup late = group("wte.*", 0.1, -1), early = group("h.*", 0.1, -1), *groups[] = {&late, &early};
    Gacc__V1__OptimizerSection optimizer = GACC__V1__OPTIMIZER_SECTION__INIT;
    Gacc__V1__JobSpec job = GACC__V1__JOB_SPEC__INIT;
    job.optimizer = &optimizer;
    late.frozen_until = 3;
    early.frozen_from = 5;
    optimizer.lr = 0.1;
    optimizer.groups = groups;
    optimizer.n_groups = 2;
    static const struct {
        uint64_t steps, trained, until;
    } cases[] = {{0, 8, 3}, {2, 8, 3}, {3, 14, 5}, {4, 14, 5}, {5, 6, UINT64_MAX}, {100, 6, UINT64_MAX}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct layout layout;
        struct error error = {0};
        if (layout_open(&layout, &model, &job, cases[i].steps, &error)) fail_msg("%s", error.text);
        assert_int_equal(model.table.trained, cases[i].trained);
        assert_true(layout.until == cases[i].until);
        layout_close(&layout);
    }
    assert_int_equal(layout_largest(&model.table, &job), 3);
    early.frozen_from = 2;
    struct layout layout;
    struct error error = {0};
    assert_int_equal(layout_open(&layout, &model, &job, 0, &error), -STATUS_JOB);
    assert_string_equal(error.text, "optimizer: every tensor is frozen after 2 steps: nothing is left to train");
}

static Gacc__V1__OptimizerSection optimizer(const char *name, const char *match, Gacc__V1__OptimizerType type,
                                            double lr)
{
    Gacc__V1__OptimizerSection section = GACC__V1__OPTIMIZER_SECTION__INIT;
    section.name = (char *)(uintptr_t)name;
    section.match = (char *)(uintptr_t)match;
    section.type = type;
    section.lr = lr;
    return section;
}

#define ADAMW GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_ADAMW
#define SGD GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_SGD

/* G3 */
static void every_tensor_has_the_first_optimizer_that_matches_and_the_moments_it_needs(void **state)
{
    (void)state;
    Gacc__V1__OptimizerSection plain = optimizer("plain", "wte.*", SGD, 0.1),
                               heavy = optimizer("heavy", "*.bias", SGD, 0.2),
                               rest = optimizer("rest", "*", ADAMW, 0.3);
    Gacc__V1__OptimizerSection *further[] = {&heavy, &rest};
    Gacc__V1__ParameterGroup norms = group("*.ln_1.*", 0.6, -1), *groups[] = {&norms};
    Gacc__V1__JobSpec job = GACC__V1__JOB_SPEC__INIT;
    heavy.momentum = 0.9;
    rest.groups = groups;
    rest.n_groups = 1;
    job.optimizer = &plain;
    job.further_optimizers = further;
    job.n_further_optimizers = 2;
    struct layout layout;
    struct error error = {0};
    if (layout_open(&layout, &model, &job, 0, &error)) fail_msg("%s", error.text);
    static const char *const names[] = {"plain", "rest", "heavy", "rest"};
    static const double ratios[] = {1, 3, 2, 6};
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(group_of(&layout, i)->optimizer, names[i]);
        assert_true(fabs(group_of(&layout, i)->lr_ratio - ratios[i]) < 1e-15);
        assert_int_equal(group_of(&layout, i)->rule.kind, i % 2 ? OPTIMIZER_KIND_ADAMW : OPTIMIZER_KIND_SGD);
    }
    struct shard_map map;
    shard_map_init(&map, 14, 1, 100);
    const uint32_t each[] = {layout.segments[0].group, layout.segments[1].group, layout.segments[2].group,
                             layout.segments[3].group};
    check_runs(&layout, &map, 0,
               (struct run[]){{0, 6, each[0], 0, NONE},
                              {6, 4, each[1], 0, {0, 0}},
                              {10, 2, each[2], 0, {4, NO_MOMENT}},
                              {12, 2, each[3], 0, {6, 4}}},
               4);
    const struct moments_at all = layout_moments(&layout, &map, 0);
    assert_int_equal(all.m, 8);
    assert_int_equal(all.v, 6);
    check_pieces(&layout, 1, 0,
                 (struct piece[]){{0, 6, 0, false, 0, NONE},
                                  {6, 10, 6, false, 0, {0, 0}},
                                  {10, 12, 10, false, 0, {4, NO_MOMENT}},
                                  {12, 14, 12, false, 0, {6, 4}}},
                 4);
    layout_close(&layout);
    static const struct {
        const char *match, *why;
    } wrong[] = {{"h.*.bias", "optimizer: no match of any of them has the tensor h.0.attn.c_attn.weight"},
                 {"wte.*", "optimizer.2.match: 'wte.*' matches tensors of other optimizers only"},
                 {"lm_head", "optimizer.2.match: 'lm_head' matches no tensor; near it: wte.weight"}};
    for (size_t i = 0; i < 3; i++) {
        rest.match = (char *)(uintptr_t)wrong[i].match;
        rest.n_groups = 0;
        if (i == 0) heavy.match = (char *)(uintptr_t) "*.ln_1.*";
        assert_int_equal(layout_open(&layout, &model, &job, 0, &error), -STATUS_JOB);
        assert_string_equal(error.text, wrong[i].why);
    }
}

static void something_is_left_to_train(void **state)
{
    (void)state;
    Gacc__V1__ParameterGroup all = group("*", 0.1, -1);
    Gacc__V1__ParameterGroup *groups[] = {&all};
    Gacc__V1__OptimizerSection optimizer = GACC__V1__OPTIMIZER_SECTION__INIT;
    all.frozen = true;
    optimizer.lr = 0.1;
    optimizer.groups = groups;
    optimizer.n_groups = 1;
    struct layout layout;
    struct error error = {0};
    Gacc__V1__JobSpec job = GACC__V1__JOB_SPEC__INIT;
    job.optimizer = &optimizer;
    assert_int_equal(layout_open(&layout, &model, &job, 0, &error), -STATUS_JOB);
    assert_string_equal(error.text, "optimizer: every tensor is frozen: nothing is left to train");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_decay_and_vectors_do_not),
        cmocka_unit_test(the_first_group_that_matches_wins),
        cmocka_unit_test(a_group_that_matches_nothing_is_refused),
        cmocka_unit_test(neighbours_of_one_group_are_one_run_of_the_shard),
        cmocka_unit_test(groups_of_the_same_numbers_for_all_dimensions_are_one),
        cmocka_unit_test(a_frozen_tensor_has_no_segment),
        cmocka_unit_test(what_ranks_keep_covers_the_canonical_index),
        cmocka_unit_test(every_tensor_has_the_first_optimizer_that_matches_and_the_moments_it_needs),
        cmocka_unit_test(groups_are_frozen_by_the_step),
        cmocka_unit_test(something_is_left_to_train),
    };
    return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
