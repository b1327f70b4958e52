/* The learning-rate schedule, pure. Counts applied optimizer steps. Formulas: README, "Schedules". */
#ifndef GACC_SCHEDULE_H
#define GACC_SCHEDULE_H

#include <stdint.h>

enum schedule_type { SCHEDULE_RULE_CONSTANT, SCHEDULE_RULE_LINEAR, SCHEDULE_RULE_COSINE, SCHEDULE_RULE_WSD };

struct schedule {
    enum schedule_type type;
    double lr, minimum;            /* absolute */
    uint64_t warmup, total, decay; /* applied optimizer steps */
};

/* lr of the step that has `applied` optimizer steps before it. */
double schedule_lr(const struct schedule *schedule, uint64_t applied);

#endif
