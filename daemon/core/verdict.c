#include "daemon/core/verdict.h"

#include <math.h>

struct sums {
    double squares_scaled, squares;
    long double loss;
};

static long double loss_of(long double loss_sum, const struct verdict *verdict, enum loss_weighting weighting)
{
    switch (weighting) {
    case WEIGHT_BY_TOKEN:
        return loss_sum / (long double)verdict->weight;
    case WEIGHT_BY_MICRO_BATCH:
        return loss_sum / verdict->micro_batches;
    case WEIGHT_SUM:
        break;
    }
    return loss_sum;
}

/* Adds up all ranks; verdict->kind is left at FAIL, SKIP (a shard is not finite) or APPLY. */
static struct sums add_up(const struct rank_report *reports, uint32_t ranks, struct verdict *verdict)
{
    struct sums sums = {0};
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const struct rank_report *report = &reports[rank];
        sums.squares_scaled += report->sum_squares_scaled;
        sums.squares += report->sum_squares;
        sums.loss += ldexpl((long double)report->loss_sum, report->loss_exponent);
        verdict->weight += report->weight;
        verdict->micro_batches += report->micro_batches;
        bool finite = report->finite && isfinite(report->sum_squares_scaled) && isfinite(report->sum_squares);
        if (!finite && verdict->nonfinite_rank == ranks) verdict->nonfinite_rank = rank;
        if (report->status != 0 && verdict->kind != VERDICT_IS_FAIL) {
            verdict->kind = VERDICT_IS_FAIL;
            verdict->fail_status = report->status;
            verdict->fail_rank = rank;
        }
    }
    return sums;
}

void verdict_of(const struct rank_report *reports, uint32_t ranks, enum loss_weighting weighting, double clip_norm,
                double norm_most, struct verdict *verdict)
{
    double none = (double)NAN;
    *verdict = (struct verdict){.kind = VERDICT_IS_APPLY,
                                .nonfinite_rank = ranks,
                                .grad_norm_scaled = none,
                                .grad_norm = none,
                                .grad_norm_clipped = none,
                                .clip_coefficient = none,
                                .loss = none};
    struct sums sums = add_up(reports, ranks, verdict);
    if (verdict->kind == VERDICT_IS_FAIL) return;
    if (verdict->weight == 0) {
        verdict->kind = VERDICT_IS_EMPTY;
        return;
    }
    verdict->loss = (double)loss_of(sums.loss, verdict, weighting);
    const double norm = sqrt(sums.squares);
    const double coefficient = clip_norm > 0 ? fmin(1, clip_norm / (norm + CLIP_EPSILON)) : 1;
    const bool fits = isfinite(sums.squares_scaled) && isfinite(norm) && norm * coefficient <= norm_most;
    if (verdict->nonfinite_rank < ranks || !fits) {
        verdict->kind = VERDICT_IS_SKIP;
        verdict->norm_overflows = true;
        for (uint32_t rank = 0; rank < ranks; rank++) verdict->norm_overflows &= reports[rank].finite;
        return;
    }
    verdict->grad_norm_scaled = sqrt(sums.squares_scaled);
    verdict->grad_norm = norm;
    verdict->clip_coefficient = coefficient;
    verdict->grad_norm_clipped = norm * coefficient;
}
