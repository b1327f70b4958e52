/*
 * Which sequences make up a step and who runs them, pure. The global batch t is a run of positions of an epoch's order
 * that does not depend on b, K or N; it is cut in order into M = ⌈count/b⌉ micro-batches, contiguous blocks of which go
 * to ranks, earlier ranks taking the extras. Global batches never cross an epoch.
 */
#ifndef GACC_PLAN_H
#define GACC_PLAN_H

#include <stdbool.h>
#include <stdint.h>

struct plan_rules {
    uint64_t sequences;            /* of the train set */
    uint32_t global, micro, ranks; /* B, b, N */
    bool drop_tail;
    uint64_t epochs;     /* the data end after so many; 0: never */
    uint32_t ramp_from;  /* sequences of the first step; 0: B … */
    uint32_t ramp_steps; /* … which it grows to in so many applied steps */
};

/* Where the next global batch begins. */
struct plan_position {
    uint64_t epoch, first;
};

struct plan {
    uint64_t epoch, first;
    uint32_t count;         /* sequences */
    uint32_t global;        /* B, of which count is all, or what the ramp has come to, or an epoch's short rest */
    uint32_t micro_batches; /* M */
};

/* Sequences of a full step that is planned when so many are applied: B, or on the way there from + (B − from)·i/steps,
 * grown by whole micro-batches. */
uint32_t plan_sequences(const struct plan_rules *rules, uint64_t optimizer_steps);
/* False when the data are over (epochs) or when no batch can be made (drop_tail with sequences < global). Moves the
 * position past the batch. */
bool plan_next(const struct plan_rules *rules, uint64_t optimizer_steps, struct plan_position *position,
               struct plan *plan);
/* The next plan is one that was issued before; it is cut by these rules' b. False where they end before it. Moves the
 * position past it. */
bool plan_again(const struct plan_rules *rules, struct plan_position *position, struct plan *plan);
/* Micro-batches [first, first + count) of the plan are rank's. */
void plan_share(const struct plan *plan, uint32_t ranks, uint32_t rank, uint32_t *first, uint32_t *count);
/* Attempts in one epoch. */
uint64_t plan_steps_per_epoch(const struct plan_rules *rules);

#endif
