#include "worker/step_state.h"

#include <stdbool.h>

#define STATE(name) GACC__V1__STATE__STATE_##name
#define BIT(name) (1u << STATE(name))

/* What each state is called, and which states may follow it. */
static const struct {
    const char *name;
    unsigned next;
} states[] = {
    [STATE(STARTING)] = {"Starting", BIT(ENTER_STEP) | BIT(PAUSED) | BIT(FINISHED)},
    [STATE(ENTER_STEP)] = {"EnterStep", BIT(MICRO_FORWARD) | BIT(MAYBE_OVERFLOW_SIGNAL)},
    [STATE(MICRO_FORWARD)] = {"MicroForward", BIT(MICRO_BACKWARD)},
    [STATE(MICRO_BACKWARD)] = {"MicroBackward", BIT(MICRO_FORWARD) | BIT(MAYBE_OVERFLOW_SIGNAL)},
    [STATE(MAYBE_OVERFLOW_SIGNAL)] = {"MaybeOverflowSignal", BIT(REDUCE)},
    [STATE(REDUCE)] = {"Reduce", BIT(UNSCALE)},
    [STATE(UNSCALE)] = {"Unscale", BIT(CLIP)},
    [STATE(CLIP)] = {"Clip", BIT(STEP_OR_SKIP) | BIT(FINISHED)}, /* finished: the verdict was FAIL */
    [STATE(STEP_OR_SKIP)] = {"StepOrSkip", BIT(UPDATE_SCALE)},
    [STATE(UPDATE_SCALE)] = {"UpdateScale", BIT(EXIT_STEP)},
    [STATE(EXIT_STEP)] = {"ExitStep", BIT(ENTER_STEP) | BIT(EVALUATE) | BIT(PAUSED) | BIT(FINISHED)},
    [STATE(EVALUATE)] = {"Evaluate", BIT(ENTER_STEP) | BIT(PAUSED) | BIT(FINISHED)},
    [STATE(FINISHED)] = {"Finished", 0},
    [STATE(PAUSED)] = {"Paused", BIT(ENTER_STEP) | BIT(FINISHED)},
};

const char *step_state_name(Gacc__V1__State state)
{
    return (unsigned)state < sizeof states / sizeof *states ? states[state].name : "unknown";
}

void step_state_init(struct step_state *machine)
{
    *machine = (struct step_state){.state = STATE(STARTING)};
}

int step_state_enter(struct step_state *machine, Gacc__V1__State next, struct error *error)
{
    if (!(states[machine->state].next & 1u << next))
        return error_set(error, STATUS_INTERNAL, "step %llu: %s may not follow %s", (unsigned long long)machine->step,
                         step_state_name(next), step_state_name(machine->state));
    if (next == STATE(MAYBE_OVERFLOW_SIGNAL) && machine->current < machine->micro_batches)
        return error_set(error, STATUS_INTERNAL, "step %llu: %s may not follow %s after %u of %u micro-batches",
                         (unsigned long long)machine->step, step_state_name(next), step_state_name(machine->state),
                         machine->current, machine->micro_batches);
    machine->state = next;
    return 0;
}

int step_state_begin(struct step_state *machine, uint64_t step, uint32_t micro_batches, struct error *error)
{
    int result = step_state_enter(machine, STATE(ENTER_STEP), error);
    if (result) return result;
    machine->step = step;
    machine->micro_batches = micro_batches;
    machine->current = 0;
    return 0;
}

int step_state_micro_batch_done(struct step_state *machine, struct error *error)
{
    bool between = machine->state == STATE(ENTER_STEP) || machine->state == STATE(MICRO_BACKWARD);
    if (!between || machine->current == machine->micro_batches)
        return error_set(error, STATUS_INTERNAL, "step %llu: a micro-batch may not end in %s, %u of %u being done",
                         (unsigned long long)machine->step, step_state_name(machine->state), machine->current,
                         machine->micro_batches);
    machine->current++;
    return 0;
}

void step_state_cut_short(struct step_state *machine)
{
    machine->micro_batches = machine->current;
}
