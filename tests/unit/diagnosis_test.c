/* What a ratio means, in the words of the list. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "daemon/verify/diagnosis.h"

/* K = 5 on each of three ranks, b = 7, S = 1024, W = 300: no two of them or their reciprocals are alike. */
static const struct suspects distinct = {.ratio = 1,
                                         .cosine = 1,
                                         .allowed_ratio = 1e-3,
                                         .micro_batches = 13,
                                         .per_rank = 5,
                                         .ranks = 3,
                                         .micro = 7,
                                         .loss_scale = 1024,
                                         .weight = 300};

static void assert_says(struct suspects suspects, const char *wanted)
{
    char text[256];
    assert_string_equal(diagnosis_of(&suspects, text, sizeof text), wanted);
}

static void every_ratio_has_its_words(void **state)
{
    (void)state;
    static const struct {
        double ratio;
        const char *words;
    } list[] = {
        {5, "not divided by K (K = 5)"},
        {1.0 / 5, "divided twice by K (K = 5)"},
        {13, "not divided by the number of micro-batches (M = 13)"},
        {1.0 / 13, "divided twice by the number of micro-batches (M = 13)"},
        {3, "not averaged over ranks (N = 3)"},
        {1.0 / 3, "averaged twice over ranks (N = 3)"},
        {1024, "update from scaled gradients (S = 1024)"},
        {1.0 / 1024, "clipped before unscale, or unscaled twice (S = 1024)"},
        {7, "sum taken for mean (b = 7)"},
        {1.0 / 7, "divided by b, whose mean it is already (b = 7)"},
        {300, "sum taken for mean (W = 300)"},
        {0, "no gradient at all"},
        {(double)NAN, "a gradient that is not finite"},
        {1, ""},
        {2, ""},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct suspects suspects = distinct;
        suspects.ratio = list[i].ratio;
        assert_says(suspects, list[i].words);
    }
}

static void a_ratio_near_a_factor_is_that_factor(void **state)
{
    (void)state;
    struct suspects suspects = distinct;
    suspects.ratio = 5.3;
    assert_says(suspects, "not divided by K (K = 5)");
    suspects.ratio = 5.6;
    assert_says(suspects, "");
}

static void all_that_fit_are_named(void **state)
{
    (void)state;
    struct suspects suspects = distinct;
    suspects.ranks = 5;
    suspects.micro = 5;
    suspects.ratio = 5;
    assert_says(suspects, "not divided by K (K = 5) or not averaged over ranks (N = 5) or sum taken for mean (b = 5)");
}

static void factors_that_play_no_part_explain_nothing(void **state)
{
    (void)state;
    struct suspects suspects = {
        .ratio = 2, .cosine = 1, .allowed_ratio = 1e-3, .per_rank = 2, .micro_batches = 2, .ranks = 1, .micro = 1};
    assert_says(suspects, "not divided by K (K = 2)"); /* M is K on one rank: said once */
    suspects.ratio = 1.05;                             /* of b = N = 1 */
    assert_says(suspects, "");
}

static void another_direction_is_another_weighting(void **state)
{
    (void)state;
    struct suspects suspects = distinct;
    suspects.cosine = 0.9;
    assert_says(suspects, "weights of targets differ (cosine = 0.9)");
    suspects.ratio = 1.0 / 3;
    assert_says(suspects, "averaged twice over ranks (N = 3) or weights of targets differ (cosine = 0.9)");
    suspects.ratio = 1;
    suspects.cosine = 1 - 1e-7; /* what a ratio that is right to 1e-3 may be off: 5e-7 */
    assert_says(suspects, "");
}

static void a_text_that_is_too_long_is_cut(void **state)
{
    (void)state;
    struct suspects suspects = distinct;
    char text[12];
    suspects.ratio = 5;
    assert_string_equal(diagnosis_of(&suspects, text, sizeof text), "not divided");
}

static void the_search_begins_with_fp32_and_ends_with_skips(void **state)
{
    (void)state;
    static const char *const order[] = {"fp32 accumulation",      "bf16",
                                        "fp16 with a loss scale", "the loss scale",
                                        "the unit of the clip",   "skipped steps"};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        assert_string_equal(stage_name((enum check_stage)i), order[i]);
        assert_true(strlen(stage_advice((enum check_stage)i)) > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_ratio_has_its_words),
        cmocka_unit_test(a_ratio_near_a_factor_is_that_factor),
        cmocka_unit_test(all_that_fit_are_named),
        cmocka_unit_test(factors_that_play_no_part_explain_nothing),
        cmocka_unit_test(another_direction_is_another_weighting),
        cmocka_unit_test(a_text_that_is_too_long_is_cut),
        cmocka_unit_test(the_search_begins_with_fp32_and_ends_with_skips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
