#include "daemon/verify/checks.h"

#include <math.h>

#include "daemon/verify/checks_internal.h"

/* ---- the table ---- */

static const struct {
    const char *name;
    enum check_stage stage;
    check_function *run;
} checks[CHECKS] = {
    [CHECK_FP32_ACCUMULATED] = {"fp32: accumulated = whole", CHECK_ACCUMULATION, check_accumulated},
    [CHECK_FP32_TWO_RANKS] = {"fp32: 2 ranks = 1", CHECK_ACCUMULATION, check_over_two_ranks},
    [CHECK_FP32_THREE_RANKS] = {"fp32: 3 ranks = 1", CHECK_ACCUMULATION, check_over_three_ranks},
    [CHECK_FP32_MPI] = {"fp32: mpirun's ranks = 1", CHECK_ACCUMULATION, check_over_mpi},
    [CHECK_FP32_SGD] = {"fp32: one SGD step", CHECK_ACCUMULATION, check_sgd_step},
    [CHECK_FP32_ADAMW] = {"fp32: one AdamW step", CHECK_ACCUMULATION, check_adamw_step},
    [CHECK_FP32_FOUR_SPLITS] = {"fp32: four splits, with dropout", CHECK_ACCUMULATION, check_four_splits},
    [CHECK_FP32_SHORT_BATCH] = {"fp32: a short batch between", CHECK_ACCUMULATION, check_short_batch},
    [CHECK_FP64_ACCUMULATED] = {"fp64: accumulated = whole", CHECK_ACCUMULATION, check_fp64_accumulated},
    [CHECK_FP64_LOSS] = {"fp64: loss = its definition", CHECK_ACCUMULATION, check_loss_by_definition},
    [CHECK_FP64_SLOPE] = {"fp64: gradient = slope of the loss", CHECK_ACCUMULATION, check_slope},
    [CHECK_FP64_REFERENCE] = {"fp64: = reference kernels", CHECK_ACCUMULATION, check_fp64_reference},
    [CHECK_FP32_REFERENCE] = {"fp32: = fp64 reference kernels", CHECK_ACCUMULATION, check_fp32_reference},
    [CHECK_BF16_ACCUMULATED] = {"bf16: accumulated = whole", CHECK_BF16, check_bf16_accumulated},
    [CHECK_BF16_REFERENCE] = {"bf16: = fp64 reference kernels", CHECK_BF16, check_bf16_reference},
    [CHECK_BF16_ACCUMULATOR] = {"bf16: the accumulator is fp32", CHECK_BF16, check_bf16_accumulator},
    [CHECK_BF16_REDUCE] = {"bf16: gradients that travel = fp32's", CHECK_BF16, check_bf16_reduce},
    [CHECK_FP16_ACCUMULATED] = {"fp16, S: accumulated = whole", CHECK_FP16, check_fp16_accumulated},
    [CHECK_FP16_REFERENCE] = {"fp16, S: = fp64 reference kernels", CHECK_FP16, check_fp16_reference},
    [CHECK_FP16_STEP] = {"fp16, S: one SGD step = fp32's", CHECK_FP16, check_fp16_step},
    [CHECK_SCALE_NORMS] = {"S: norm before / after unscale", CHECK_SCALING, check_norms_and_scale},
    [CHECK_SCALE_GROWTH] = {"S: a growth step is a whole step", CHECK_SCALING, check_growth},
    [CHECK_CLIP_ORDER] = {"clip: after unscale, to the limit", CHECK_CLIP, check_clip},
    [CHECK_OVERFLOW_SKIPS] = {"overflow: all ranks skip", CHECK_SKIPS, check_overflow_skips},
    [CHECK_OVERFLOW_SCALE] = {"overflow: S falls once", CHECK_SKIPS, check_overflow_backs_off_once},
    [CHECK_OVERFLOW_NEXT_STEP] = {"overflow: the next step is a first step", CHECK_SKIPS, check_step_after_overflow},
    [CHECK_OVERFLOW_RETRY] = {"overflow: tried again = at that S at once", CHECK_SKIPS, check_retry},
    [CHECK_SCHEDULE] = {"schedule: 2 windows are 2 steps", CHECK_SKIPS, check_schedule_counts},
    [CHECK_GROUPS] = {"groups: each by its own numbers", CHECK_OTHER, check_groups},
    [CHECK_RUNNING_STATISTICS] = {"norm: running statistics move once", CHECK_OTHER, check_running_statistics},
    [CHECK_WINDOW_FROZEN] = {"window: parameters are frozen", CHECK_OTHER, check_frozen_window},
    [CHECK_WINDOW_COLLECTIVES] = {"window: collectives and bytes", CHECK_OTHER, check_collectives},
    [CHECK_WINDOW_MEMORY] = {"window: memory does not grow with K", CHECK_OTHER, check_memory},
    [CHECK_RECOMPUTE] = {"recompute: changes no bit", CHECK_OTHER, check_recompute},
};
_Static_assert(CHECKS <= CHECKS_MAX, "every check has a place in a verification");

void check_run(enum check_index index, struct suite *suite, struct check *check)
{
    struct error error = {0};
    *check = (struct check){.name = checks[index].name,
                            .stage = checks[index].stage,
                            .floor = (double)NAN,
                            .ratio = (double)NAN,
                            .cosine = (double)NAN};
    if (!checks[index].run(suite, check, &error)) return;
    check->pass = check->skipped = false;
    if (error.status == STATUS_REFUSED) { /* these data have no such steps */
        check_skip(check, "%s", error.text);
        return;
    }
    check->measured = (double)INFINITY;
    check_say(check, "%s", error.text);
}
