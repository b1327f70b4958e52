/* One verdict per step from all ranks' reports, pure. */
#ifndef GACC_VERDICT_H
#define GACC_VERDICT_H

#include <stdbool.h>
#include <stdint.h>

#define CLIP_EPSILON 1e-6 /* as torch.nn.utils.clip_grad_norm_ */

struct rank_report {
    int status; /* a local error; 0: none */
    bool finite;
    double sum_squares_scaled, sum_squares;
    double loss_sum, weight;
    int loss_exponent;      /* loss_sum is in units of 2^loss_exponent: of any weights, it may leave double's range */
    uint32_t micro_batches; /* non-empty */
};

enum verdict_kind { VERDICT_IS_APPLY, VERDICT_IS_SKIP, VERDICT_IS_EMPTY, VERDICT_IS_FAIL };
enum loss_weighting { WEIGHT_BY_TOKEN, WEIGHT_BY_MICRO_BATCH, WEIGHT_SUM };

struct verdict {
    enum verdict_kind kind;
    int fail_status; /* of the first failing rank, with VERDICT_IS_FAIL */
    uint32_t fail_rank;
    uint32_t nonfinite_rank; /* the first with a non-finite shard, with VERDICT_IS_SKIP; ranks: only the sum over them
                                is non-finite */
    bool norm_overflows;     /* with VERDICT_IS_SKIP: all shards are finite, the sum of their squares is not, or their
                                norm is beyond what the optimizer can take */
    double grad_norm_scaled, grad_norm, grad_norm_clipped, clip_coefficient; /* of an APPLY; else NaN */
    double loss; /* NaN with VERDICT_IS_EMPTY and VERDICT_IS_FAIL */
    double weight;
    uint32_t micro_batches;
};

/* Reports in rank order; sums are added in that order in fp64, those of losses in long double. clip_norm 0: no
 * clipping. A sum of finite shards that is not itself finite is a SKIP, and so is a clipped norm above norm_most (may
 * be infinite). FAIL goes before EMPTY, and EMPTY (no weight at all) before SKIP. */
void verdict_of(const struct rank_report *reports, uint32_t ranks, enum loss_weighting weighting, double clip_norm,
                double norm_most, struct verdict *verdict);

#endif
