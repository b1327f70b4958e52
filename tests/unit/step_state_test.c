/* The state machine of a step: the way through it, and every way that is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "worker/step_state.h"

#define STATE(name) GACC__V1__STATE__STATE_##name
#define STATES (STATE(PAUSED) + 1)

static void enter(struct step_state *machine, Gacc__V1__State state)
{
    struct error error = {0};
    if (step_state_enter(machine, state, &error)) fail_msg("%s", error.text);
}

static void refuse(struct step_state *machine, Gacc__V1__State state, const char *text)
{
    struct error error = {0};
    struct step_state before = *machine;
    assert_int_equal(step_state_enter(machine, state, &error), -STATUS_INTERNAL);
    assert_string_equal(error.text, text);
    assert_memory_equal(machine, &before, sizeof before);
}

static void micro_batch(struct step_state *machine)
{
    enter(machine, STATE(MICRO_FORWARD));
    enter(machine, STATE(MICRO_BACKWARD));
    assert_int_equal(step_state_micro_batch_done(machine, NULL), 0);
}

static void begin(struct step_state *machine, uint64_t step, uint32_t micro_batches)
{
    if (step == 1) step_state_init(machine);
    assert_int_equal(step_state_begin(machine, step, micro_batches, NULL), 0);
}

static void through(struct step_state *machine, Gacc__V1__State last)
{
    static const Gacc__V1__State way[] = {
        STATE(MAYBE_OVERFLOW_SIGNAL), STATE(REDUCE),       STATE(UNSCALE),  STATE(CLIP),
        STATE(STEP_OR_SKIP),          STATE(UPDATE_SCALE), STATE(EXIT_STEP)};
    for (size_t i = 0; i < sizeof way / sizeof *way; i++) {
        enter(machine, way[i]);
        if (way[i] == last) return;
    }
}

static void a_step_goes_through_its_states_and_the_next_begins(void **state)
{
    (void)state;
    struct step_state machine;
    begin(&machine, 1, 2);
    micro_batch(&machine);
    micro_batch(&machine);
    through(&machine, STATE(EXIT_STEP));
    begin(&machine, 2, 1);
    assert_int_equal(machine.step, 2);
    assert_int_equal(machine.current, 0);
    micro_batch(&machine);
    through(&machine, STATE(EXIT_STEP));
    enter(&machine, STATE(EVALUATE));
    enter(&machine, STATE(FINISHED));
}

static void a_rank_without_micro_batches_takes_part_in_the_rest(void **state)
{
    (void)state;
    struct step_state machine;
    begin(&machine, 1, 0);
    through(&machine, STATE(EXIT_STEP));
}

static void a_micro_batch_without_weight_is_left_out(void **state)
{
    (void)state;
    struct step_state machine;
    begin(&machine, 1, 2);
    assert_int_equal(step_state_micro_batch_done(&machine, NULL), 0);
    micro_batch(&machine);
    through(&machine, STATE(EXIT_STEP));
}

static void nothing_is_decided_before_the_last_micro_batch(void **state)
{
    (void)state;
    struct step_state machine;
    begin(&machine, 1, 4);
    micro_batch(&machine);
    micro_batch(&machine);
    refuse(&machine, STATE(MAYBE_OVERFLOW_SIGNAL),
           "step 1: MaybeOverflowSignal may not follow MicroBackward after 2 of 4 micro-batches");
    step_state_cut_short(&machine);
    enter(&machine, STATE(MAYBE_OVERFLOW_SIGNAL));
}

/* B5 */
static void a_second_unscale_is_refused(void **state)
{
    (void)state;
    struct step_state machine;
    begin(&machine, 1, 0);
    through(&machine, STATE(UNSCALE));
    refuse(&machine, STATE(UNSCALE), "step 1: Unscale may not follow Unscale");
    enter(&machine, STATE(CLIP));
    refuse(&machine, STATE(UNSCALE), "step 1: Unscale may not follow Clip");
}

static void a_step_without_unscale_is_refused(void **state)
{
    (void)state;
    struct step_state machine;
    begin(&machine, 1, 0);
    through(&machine, STATE(REDUCE));
    refuse(&machine, STATE(STEP_OR_SKIP), "step 1: StepOrSkip may not follow Reduce");
}

static void a_clip_before_unscale_is_refused(void **state)
{
    (void)state;
    struct step_state machine;
    begin(&machine, 1, 0);
    through(&machine, STATE(REDUCE));
    refuse(&machine, STATE(CLIP), "step 1: Clip may not follow Reduce");
}

static void a_second_reduction_is_refused(void **state)
{
    (void)state;
    struct step_state machine;
    begin(&machine, 1, 0);
    through(&machine, STATE(REDUCE));
    refuse(&machine, STATE(REDUCE), "step 1: Reduce may not follow Reduce");
}

static void more_micro_batches_than_planned_are_refused(void **state)
{
    (void)state;
    struct step_state machine;
    struct error error;
    begin(&machine, 1, 1);
    micro_batch(&machine);
    assert_int_equal(step_state_micro_batch_done(&machine, &error), -STATUS_INTERNAL);
    assert_string_equal(error.text, "step 1: a micro-batch may not end in MicroBackward, 1 of 1 being done");
}

/* All pairs: what is not in this list is refused with both names. */
static void only_the_listed_transitions_exist(void **state)
{
    (void)state;
    static const Gacc__V1__State allowed[][2] = {
        {STATE(STARTING), STATE(ENTER_STEP)},
        {STATE(STARTING), STATE(FINISHED)},
        {STATE(STARTING), STATE(PAUSED)},
        {STATE(EXIT_STEP), STATE(PAUSED)},
        {STATE(EVALUATE), STATE(PAUSED)},
        {STATE(PAUSED), STATE(ENTER_STEP)},
        {STATE(PAUSED), STATE(FINISHED)},
        {STATE(ENTER_STEP), STATE(MICRO_FORWARD)},
        {STATE(ENTER_STEP), STATE(MAYBE_OVERFLOW_SIGNAL)},
        {STATE(MICRO_FORWARD), STATE(MICRO_BACKWARD)},
        {STATE(MICRO_BACKWARD), STATE(MICRO_FORWARD)},
        {STATE(MICRO_BACKWARD), STATE(MAYBE_OVERFLOW_SIGNAL)},
        {STATE(MAYBE_OVERFLOW_SIGNAL), STATE(REDUCE)},
        {STATE(REDUCE), STATE(UNSCALE)},
        {STATE(UNSCALE), STATE(CLIP)},
        {STATE(CLIP), STATE(STEP_OR_SKIP)},
        {STATE(CLIP), STATE(FINISHED)},
        {STATE(STEP_OR_SKIP), STATE(UPDATE_SCALE)},
        {STATE(UPDATE_SCALE), STATE(EXIT_STEP)},
        {STATE(EXIT_STEP), STATE(ENTER_STEP)},
        {STATE(EXIT_STEP), STATE(EVALUATE)},
        {STATE(EXIT_STEP), STATE(FINISHED)},
        {STATE(EVALUATE), STATE(ENTER_STEP)},
        {STATE(EVALUATE), STATE(FINISHED)},
    };
    for (int from = 0; from < (int)STATES; from++)
        for (int to = 0; to < (int)STATES; to++) {
            bool expected = false;
            for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
                expected |= (int)allowed[i][0] == from && (int)allowed[i][1] == to;
            struct step_state machine = {.state = (Gacc__V1__State)from, .step = 3};
            struct error error = {0};
            int result = step_state_enter(&machine, (Gacc__V1__State)to, &error);
            assert_int_equal(result, expected ? 0 : -STATUS_INTERNAL);
            if (expected) continue;
            assert_non_null(strstr(error.text, step_state_name((Gacc__V1__State)from)));
            assert_non_null(strstr(error.text, step_state_name((Gacc__V1__State)to)));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_goes_through_its_states_and_the_next_begins),
        cmocka_unit_test(a_rank_without_micro_batches_takes_part_in_the_rest),
        cmocka_unit_test(a_micro_batch_without_weight_is_left_out),
        cmocka_unit_test(nothing_is_decided_before_the_last_micro_batch),
        cmocka_unit_test(a_second_unscale_is_refused),
        cmocka_unit_test(a_step_without_unscale_is_refused),
        cmocka_unit_test(a_clip_before_unscale_is_refused),
        cmocka_unit_test(a_second_reduction_is_refused),
        cmocka_unit_test(more_micro_batches_than_planned_are_refused),
        cmocka_unit_test(only_the_listed_transitions_exist),
    };
    return cmocka_run_group_tests_name("step_state", tests, NULL, NULL);
}
