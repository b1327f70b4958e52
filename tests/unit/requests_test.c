/* What is asked for, and what becomes of it at the next boundary: daemon/core/requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "daemon/core/requests.h"

static const struct moment starting = {0}, training = {.has_begun = true};

static enum answer take(struct requests *requests, struct saving *saving, enum request request,
                        const struct moment *moment)
{
    const char *why = NULL;
    enum answer answer = requests_take(requests, saving, request, moment, &why);
    assert_int_equal(answer == ANSWER_REFUSED, why != NULL);
    return answer;
}

static void a_checkpoint_is_the_next_boundarys_or_the_one_under_way(void **unused)
{
    (void)unused;
    struct requests requests = {0};
    struct saving saving = {0};
    assert_int_equal(take(&requests, &saving, REQUEST_CHECKPOINT, &starting), ANSWER_AT_BOUNDARY);
    assert_int_equal(take(&requests, &saving, REQUEST_CHECKPOINT, &training), ANSWER_AT_BOUNDARY);
    struct boundary boundary = requests_boundary(&requests, &saving, false, 3, true);
    assert_true(boundary.save && boundary.more && !boundary.stop);
    assert_false(requests_boundary(&requests, &saving, true, 4, true).save);
    const struct moment saves = {.has_begun = true, .is_saving = true};
    assert_int_equal(take(&requests, &saving, REQUEST_CHECKPOINT, &saves), ANSWER_NOW);
    assert_false(saving.asked);
    const struct moment last = {.has_begun = true, .is_saving = true, .ends = true, .has_stopped = true};
    assert_int_equal(take(&requests, &saving, REQUEST_CHECKPOINT, &last), ANSWER_NOW);
}

static void a_stop_saves_and_a_finish_ends(void **unused)
{
    (void)unused;
    struct requests requests = {0};
    struct saving saving = {0};
    for (int times = 0; times < 2; times++)
        assert_int_equal(take(&requests, &saving, REQUEST_STOP, &training), ANSWER_AT_BOUNDARY);
    assert_int_equal(take(&requests, &saving, REQUEST_FINISH, &training), ANSWER_REFUSED);
    struct boundary boundary = requests_boundary(&requests, &saving, true, 3, true);
    assert_true(boundary.save && boundary.stop && boundary.more);

    saving = (struct saving){0};
    for (int times = 0; times < 2; times++)
        assert_int_equal(take(&requests, &saving, REQUEST_FINISH, &training), ANSWER_AT_BOUNDARY);
    assert_int_equal(take(&requests, &saving, REQUEST_STOP, &training), ANSWER_REFUSED);
    assert_int_equal(take(&requests, &saving, REQUEST_CHECKPOINT, &training), ANSWER_AT_BOUNDARY);
    boundary = requests_boundary(&requests, &saving, true, 3, true);
    assert_true(boundary.save && !boundary.stop && !boundary.more);
}

static void before_the_first_step_a_stop_is_the_end(void **unused)
{
    (void)unused;
    struct requests requests = {0};
    struct saving saving = {0};
    assert_int_equal(take(&requests, &saving, REQUEST_STOP, &starting), ANSWER_END);
    assert_int_equal(take(&requests, &saving, REQUEST_FINISH, &starting), ANSWER_REFUSED);
    assert_false(saving.stopping || requests.finishing);
}

static void a_job_that_ends_takes_nothing_but_what_it_ends_by(void **unused)
{
    (void)unused;
    struct requests requests = {0};
    struct saving saving = {0};
    const struct moment ends = {.has_begun = true, .ends = true};
    const struct moment stopped = {.has_begun = true, .ends = true, .has_stopped = true};
    const struct moment finished = {.has_begun = true, .ends = true, .has_finished = true};
    for (enum request request = REQUEST_CHECKPOINT; request <= REQUEST_RESUME; request++) {
        assert_int_equal(take(&requests, &saving, request, &ends), ANSWER_REFUSED);
        assert_int_equal(take(&requests, &saving, request, &stopped),
                         request == REQUEST_STOP ? ANSWER_NOW : ANSWER_REFUSED);
        assert_int_equal(take(&requests, &saving, request, &finished),
                         request == REQUEST_FINISH ? ANSWER_NOW : ANSWER_REFUSED);
    }
    assert_false(saving.asked || saving.stopping || requests.finishing);
}

static void a_pause_holds_until_a_resume(void **unused)
{
    (void)unused;
    struct requests requests = {0};
    struct saving saving = {.every = 3};
    assert_int_equal(take(&requests, &saving, REQUEST_RESUME, &training), ANSWER_REFUSED);
    assert_int_equal(take(&requests, &saving, REQUEST_PAUSE, &training), ANSWER_AT_BOUNDARY);
    struct boundary boundary = requests_boundary(&requests, &saving, true, 3, true);
    assert_true(boundary.hold && boundary.more && boundary.save); /* one that is due is made */
    assert_false(requests_are_due(&requests, &saving, true));
    assert_int_equal(take(&requests, &saving, REQUEST_PAUSE, &training), ANSWER_NOW);
    assert_int_equal(take(&requests, &saving, REQUEST_RESUME, &training), ANSWER_AT_BOUNDARY);
    assert_int_equal(take(&requests, &saving, REQUEST_PAUSE, &training), ANSWER_AT_BOUNDARY); /* the next one */
    assert_true(requests_are_due(&requests, &saving, true));
    boundary = requests_boundary(&requests, &saving, false, 3, true);
    assert_true(!boundary.hold && boundary.more && !boundary.save);
    assert_true(requests_boundary(&requests, &saving, true, 4, true).hold);
}

static void a_paused_job_has_nothing_to_save_before_its_first_step(void **unused)
{
    (void)unused;
    struct requests requests = {.pausing = true};
    struct saving saving = {.asked = true}; /* by a signal: the first step's */
    assert_true(requests_boundary(&requests, NULL, false, 0, true).hold);
    assert_false(requests_are_due(&requests, &saving, false));
    assert_int_equal(take(&requests, &saving, REQUEST_CHECKPOINT, &starting), ANSWER_REFUSED);
    assert_int_equal(take(&requests, &saving, REQUEST_STOP, &starting), ANSWER_END);
    assert_int_equal(take(&requests, &saving, REQUEST_RESUME, &starting), ANSWER_AT_BOUNDARY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checkpoint_is_the_next_boundarys_or_the_one_under_way),
        cmocka_unit_test(a_stop_saves_and_a_finish_ends),
        cmocka_unit_test(before_the_first_step_a_stop_is_the_end),
        cmocka_unit_test(a_pause_holds_until_a_resume),
        cmocka_unit_test(a_paused_job_has_nothing_to_save_before_its_first_step),
        cmocka_unit_test(a_job_that_ends_takes_nothing_but_what_it_ends_by),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
