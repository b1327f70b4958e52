/*
 * What a measured deviation means, in words, pure: which factor, order or double scaling explains the ratio of two
 * gradients that ought to be equal, and where to look next. The order of the search is the one to follow by hand: fp32
 * accumulation first, then bf16, then fp16 with its scale, then double scaling, the unit of the clip, the skips.
 */
#ifndef GACC_DIAGNOSIS_H
#define GACC_DIAGNOSIS_H

#include <stddef.h>
#include <stdint.h>

/* The numbers of the trial that deviated, and of the one it was held against. 0 or 1: the factor plays no part. */
struct suspects {
    double ratio, cosine;   /* of the gradients' norms, and of their directions */
    double allowed_ratio;   /* how far from 1 the ratio may be: a factor explains it when it is as close as that */
    uint32_t micro_batches; /* M of a step, all ranks together */
    uint32_t per_rank;      /* K of the rank that runs most */
    uint32_t ranks;         /* N */
    uint32_t micro;         /* b */
    double loss_scale;      /* S */
    double weight;          /* W */
};

/* Every explanation that fits, joined by " or "; "" when none does. text is cut at `size`. Returns text. */
const char *diagnosis_of(const struct suspects *suspects, char *text, size_t size);

/* What a check is about, in the order of the search. */
enum check_stage {
    CHECK_ACCUMULATION, /* fp32, fp64: averaging, weights, ranks */
    CHECK_BF16,
    CHECK_FP16,
    CHECK_SCALING, /* S once on, once off */
    CHECK_CLIP,
    CHECK_SKIPS, /* overflow, schedule */
    CHECK_OTHER, /* collectives, memory: no part of the search */
    CHECK_STAGES,
};

/* The name, and what to look at when it is the first that fails. */
const char *stage_name(enum check_stage stage);
const char *stage_advice(enum check_stage stage);

#endif
