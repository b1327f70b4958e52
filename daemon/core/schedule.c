#include "daemon/core/schedule.h"

#include <math.h>

static double between(double lr, double minimum, double remaining)
{
    return minimum + (lr - minimum) * remaining;
}

double schedule_lr(const struct schedule *schedule, uint64_t applied)
{
    double lr = schedule->lr, minimum = schedule->minimum;
    /* (i+1)/(warmup+1): the first step already moves, and the step after the warm-up is the first at the full rate. */
    if (applied < schedule->warmup) return lr * (double)(applied + 1) / ((double)schedule->warmup + 1);
    if (schedule->type == SCHEDULE_RULE_CONSTANT) return lr;
    if (applied >= schedule->total) return minimum;

    uint64_t begin = schedule->warmup; /* of the decay; below total, as begin <= applied < total */
    if (schedule->type == SCHEDULE_RULE_WSD) {
        begin = schedule->decay < schedule->total ? schedule->total - schedule->decay : 0;
        if (applied < begin) return lr;
    }
    double p = (double)(applied - begin) / (double)(schedule->total - begin);
    if (schedule->type == SCHEDULE_RULE_COSINE) return between(lr, minimum, 0.5 * (1 + cos(M_PI * p)));
    return between(lr, minimum, 1 - p);
}
