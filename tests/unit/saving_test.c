/* When checkpoints are made and which of them go: daemon/core/saving, daemon/core/retention. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "daemon/core/retention.h"
#include "daemon/core/saving.h"

static void it_fires_at_multiples_of_applied_steps(void **unused)
{
    (void)unused;
    struct saving saving = {.every = 3};
    for (uint64_t steps = 1; steps <= 9; steps++) {
        assert_int_equal(saving_may_be_due(&saving, steps - 1), steps % 3 == 0);
        assert_int_equal(saving_decide(&saving, true, steps, true).save, steps % 3 == 0);
        assert_false(saving_decide(&saving, false, steps, true).save); /* a skip behind it: once is enough */
    }
    saving.every = 0;
    assert_false(saving_may_be_due(&saving, 2));
    assert_false(saving_decide(&saving, true, 3, true).save);
}

static void what_is_asked_for_is_granted_once_whatever_the_verdict(void **unused)
{
    (void)unused;
    struct saving saving = {.asked = true};
    assert_true(saving_may_be_due(&saving, 6));
    struct saving_decision decision = saving_decide(&saving, false, 6, true);
    assert_true(decision.save);
    assert_false(decision.stop);
    assert_false(saving_decide(&saving, true, 7, true).save);
}

static void a_stop_saves_unless_the_job_is_done(void **unused)
{
    (void)unused;
    struct saving saving = {.stopping = true};
    struct saving_decision decision = saving_decide(&saving, true, 6, true);
    assert_true(decision.save && decision.stop);
    decision = saving_decide(&saving, true, 7, false);
    assert_false(decision.save || decision.stop);
}

static void only_failures_in_a_row_are_too_many(void **unused)
{
    (void)unused;
    struct saving saving = {0};
    assert_false(saving_ended(&saving, false));
    assert_false(saving_ended(&saving, true));
    assert_false(saving_ended(&saving, false));
    assert_true(saving_ended(&saving, false));
}

static void the_newest_stay_and_the_marks(void **unused)
{
    (void)unused;
    const uint64_t steps[] = {100, 200, 300, 350, 400, 450};
    static const struct {
        struct retention rules;
        bool goes[6];
    } cases[] = {
        {{.keep = 0}, {false, false, false, false, false, false}},
        {{.keep = 1}, {true, true, true, true, true, false}},
        {{.keep = 2}, {true, true, true, true, false, false}},
        {{.keep = 2, .keep_every = 200}, {true, false, true, true, false, false}},
        {{.keep = 9}, {false, false, false, false, false, false}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool goes[6];
        retention_choose(&cases[i].rules, steps, 6, goes);
        for (size_t j = 0; j < 6; j++) assert_int_equal(goes[j], cases[i].goes[j]);
    }
}

static void the_newest_never_goes(void **unused)
{
    (void)unused;
    for (uint32_t keep = 0; keep < 5; keep++)
        for (uint64_t every = 0; every < 5; every++)
            for (size_t count = 1; count < 8; count++) {
                uint64_t steps[8];
                bool goes[8];
                for (size_t i = 0; i < count; i++) steps[i] = i + 1;
                retention_choose(&(struct retention){keep, every}, steps, count, goes);
                assert_false(goes[count - 1]);
                size_t stay = 0;
                for (size_t i = 0; i < count; i++) stay += !goes[i];
                assert_true(keep == 0 || count < keep ? stay == count : stay >= keep);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_fires_at_multiples_of_applied_steps),
        cmocka_unit_test(what_is_asked_for_is_granted_once_whatever_the_verdict),
        cmocka_unit_test(a_stop_saves_unless_the_job_is_done),
        cmocka_unit_test(only_failures_in_a_row_are_too_many),
        cmocka_unit_test(the_newest_stay_and_the_marks),
        cmocka_unit_test(the_newest_never_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
