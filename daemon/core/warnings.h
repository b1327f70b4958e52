/*
 * What deserves a look in the steps of late, pure: too many skips, a loss scale that lies at its minimum, saw-teeth
 * or leaves nothing of a gradient, a clip limit that always or never binds. Windows are of WARNINGS_WINDOW steps; each
 * warning is given at most once in as many.
 */
#ifndef GACC_WARNINGS_H
#define GACC_WARNINGS_H

#include <stdbool.h>
#include <stdint.h>

#define WARNINGS_WINDOW 200

enum warning {
    WARNING_SKIP_RATE, /* more than 5 % of the last attempts were skips (more than 10 when there were fewer than the
                          window) */
    WARNING_SCALE_AT_MINIMUM,  /* an overflow could not lower S further */
    WARNING_GRADIENT_VANISHED, /* a step was applied whose gradient S did not keep from being 0 */
    WARNING_SCALE_SAW_TOOTH,   /* more than 3 backoffs per growth in the last attempts */
    WARNING_CLIP_ALWAYS,       /* clipping bound on more than 95 % of the last applied steps */
    WARNING_CLIP_NEVER,        /* … on none of them */
    WARNINGS,
};

/* One attempt. */
struct warnings_step {
    bool applied, skipped;
    bool backed_off, grew; /* S */
    bool at_minimum;       /* S, of the next window; false without a dynamic scale */
    bool vanished;         /* the gradient of an applied step, in fp16, is 0 */
    bool clips, clipped;   /* the job has a limit; it bound in this step */
};

enum { WARNINGS_SKIPPED, WARNINGS_BACKED_OFF, WARNINGS_GREW, WARNINGS_CLIPPED, WARNINGS_FACTS };

struct warnings_ring {
    uint8_t facts[WARNINGS_WINDOW]; /* bits of the WARNINGS_… facts */
    uint32_t next, count;
    uint32_t sums[WARNINGS_FACTS];
};

/* All zero at the start. */
struct warnings {
    struct warnings_ring attempts, applied;
    uint32_t quiet[WARNINGS]; /* attempts until the warning may be given again */
};

/* The warnings to give after this step, as bits 1 << enum warning. */
uint32_t warnings_update(struct warnings *warnings, const struct warnings_step *step);

/* A ring as text, one hexadecimal digit of facts per attempt, the oldest first; and back, false for any other text. */
void warnings_ring_write(const struct warnings_ring *ring, char text[WARNINGS_WINDOW + 1]);
bool warnings_ring_read(struct warnings_ring *ring, const char *text);

/* The name for programs and the sentence for people. */
const char *warning_name(enum warning warning);
const char *warning_text(enum warning warning);

#endif
