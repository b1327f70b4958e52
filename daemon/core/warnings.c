#include "daemon/core/warnings.h"

#include <assert.h>

static const struct {
    const char *name, *text;
} table[WARNINGS] = {
    [WARNING_SKIP_RATE] = {"skip_rate", "more than 5 % of the last 200 steps were skipped"},
    [WARNING_SCALE_AT_MINIMUM] = {"scale_at_minimum", "the loss scale lies at its minimum and cannot fall further"},
    [WARNING_GRADIENT_VANISHED] = {"gradient_vanished",
                                   "the gradient of an optimizer step is 0: the loss scale is too low for it in fp16"},
    [WARNING_SCALE_SAW_TOOTH] = {"scale_saw_tooth",
                                 "the loss scale backed off more than 3 times per growth over the last 200 steps"},
    [WARNING_CLIP_ALWAYS] = {"clip_always", "clipping bound on more than 95 % of the last 200 optimizer steps"},
    [WARNING_CLIP_NEVER] = {"clip_never", "clipping bound on none of the last 200 optimizer steps"},
};

const char *warning_name(enum warning warning)
{
    return table[warning].name;
}

const char *warning_text(enum warning warning)
{
    return table[warning].text;
}

static void count(struct warnings_ring *ring, uint8_t facts, int by)
{
    for (uint32_t fact = 0; fact < WARNINGS_FACTS; fact++)
        if (facts >> fact & 1) ring->sums[fact] += (uint32_t)by;
}

static void push(struct warnings_ring *ring, uint8_t facts)
{
    if (ring->count == WARNINGS_WINDOW)
        count(ring, ring->facts[ring->next], -1);
    else
        ring->count++;
    ring->facts[ring->next] = facts;
    ring->next = (ring->next + 1) % WARNINGS_WINDOW;
    count(ring, facts, 1);
}

static const char digits[] = "0123456789abcdef";
static_assert(1u << WARNINGS_FACTS <= sizeof digits - 1, "a digit holds all facts");

void warnings_ring_write(const struct warnings_ring *ring, char text[WARNINGS_WINDOW + 1])
{
    const uint32_t oldest = ring->next + WARNINGS_WINDOW - ring->count;
    for (uint32_t i = 0; i < ring->count; i++) text[i] = digits[ring->facts[(oldest + i) % WARNINGS_WINDOW]];
    text[ring->count] = '\0';
}

bool warnings_ring_read(struct warnings_ring *ring, const char *text)
{
    *ring = (struct warnings_ring){0};
    for (; *text; text++) {
        uint8_t facts = 0;
        while (digits[facts] && digits[facts] != *text) facts++;
        if (!digits[facts] || ring->count == WARNINGS_WINDOW) return false;
        push(ring, facts);
    }
    return true;
}

uint32_t warnings_update(struct warnings *warnings, const struct warnings_step *step)
{
    push(&warnings->attempts, (uint8_t)(step->skipped << WARNINGS_SKIPPED | step->backed_off << WARNINGS_BACKED_OFF |
                                        step->grew << WARNINGS_GREW));
    if (step->applied && step->clips) push(&warnings->applied, (uint8_t)(step->clipped << WARNINGS_CLIPPED));

    const uint32_t *attempts = warnings->attempts.sums;
    bool full = warnings->applied.count == WARNINGS_WINDOW;
    uint32_t clipped = warnings->applied.sums[WARNINGS_CLIPPED];
    /* A scale that only looks for its level backs off without growing: no saw-tooth. */
    bool holds[WARNINGS] = {
        [WARNING_SKIP_RATE] = attempts[WARNINGS_SKIPPED] * 20 > WARNINGS_WINDOW,
        [WARNING_SCALE_AT_MINIMUM] = step->at_minimum,
        [WARNING_GRADIENT_VANISHED] = step->vanished,
        [WARNING_SCALE_SAW_TOOTH] =
            attempts[WARNINGS_GREW] > 0 && attempts[WARNINGS_BACKED_OFF] > 3 * attempts[WARNINGS_GREW],
        [WARNING_CLIP_ALWAYS] = full && clipped * 20 > WARNINGS_WINDOW * 19,
        [WARNING_CLIP_NEVER] = full && clipped == 0,
    };
    uint32_t given = 0;
    for (uint32_t warning = 0; warning < WARNINGS; warning++) {
        if (warnings->quiet[warning] > 0) {
            warnings->quiet[warning]--;
        } else if (holds[warning]) {
            warnings->quiet[warning] = WARNINGS_WINDOW - 1;
            given |= 1U << warning;
        }
    }
    return given;
}
