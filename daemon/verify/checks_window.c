/* What a window may not do: write parameters, communicate, grow with K. */
#include "daemon/verify/checks.h"
#include "daemon/verify/checks_internal.h"

#include <inttypes.h>
#include <math.h>

/* ---- parameters, communication, memory ---- */

bool checks_frozen(struct suite *suite, struct variant *variant, const char **why)
{
    (void)why;
    *variant = variant_split(suite, FP32, suite_ranks(suite));
    variant->self_check = 1;
    return true;
}

int check_frozen_window(struct suite *suite, struct check *check, struct error *error)
{
    const char *why;
    struct variant variant;
    checks_frozen(suite, &variant, &why);
    const struct trial *trial = suite_applied(suite, &variant, 0, error);
    if (!trial) return -(int)error->status;
    check_judge(check, 0, 0);
    check_say(check, "no tensor changed between the first forward and the step");
    return 0;
}

/* The batch over two ranks in as few micro-batches as they can be, and in the probe's. */
static struct variant of_fewest(const struct suite *suite)
{
    struct variant variant = variant_split(suite, FP32, suite_ranks(suite));
    variant.micro = (variant.sequences - 1) / variant.ranks + 1;
    return variant;
}

/* P·4·(N−1)/N of gradients, P·(size of the compute type)·(N−1)/N of parameters, give or take one element for each rank
 * where N does not divide P. */
static void expect_bytes(struct check *check, const char *what, uint64_t bytes, uint64_t parameters, uint32_t ranks,
                         size_t size)
{
    const double wanted = (double)parameters * (double)size * (ranks - 1) / ranks;
    check_expect(check, fabs((double)bytes - wanted) <= (double)(ranks * size), "%s: %" PRIu64 " bytes, not %.0f", what,
                 bytes, wanted);
}

int check_collectives(struct suite *suite, struct check *check, struct error *error)
{
    const struct variant variants[] = {of_fewest(suite), variant_split(suite, FP32, suite_ranks(suite)),
                                       variant_split(suite, BF16, suite_ranks(suite)),
                                       variant_split(suite, FP32, RANKS_OF_LAUNCHER)};
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        if (variants[i].ranks == RANKS_OF_LAUNCHER && !suite->launcher) continue;
        const struct trial *trial = suite_applied(suite, &variants[i], 0, error);
        if (!trial) return -(int)error->status;
        const struct trial_step *step = &trial->steps[0];
        const uint32_t ranks = variant_ranks(suite, &variants[i]), k = variant_per_rank(suite, &variants[i]);
        check_expect(check,
                     step->reduce_scatters == trial->buckets && step->all_gathers == trial->buckets &&
                         step->control_collectives == 0,
                     "K = %" PRIu32 ": %" PRIu32 " reduce-scatters, %" PRIu32 " all-gathers, %" PRIu32
                     " others; %" PRIu32 " buckets",
                     k, step->reduce_scatters, step->all_gathers, step->control_collectives, trial->buckets);
        expect_bytes(check, "reduce-scatter", step->reduce_scatter_bytes, trial->trained, ranks, 4);
        expect_bytes(check, "all-gather", step->all_gather_bytes, trial->trained, ranks,
                     variants[i].compute == BF16 ? 2 : 4);
    }
    if (check->pass)
        check_say(check,
                  "one reduce-scatter and one all-gather a bucket at K = %" PRIu32 " and %" PRIu32
                  ", bytes by the formula",
                  variant_per_rank(suite, &variants[0]), variant_per_rank(suite, &variants[1]));
    return 0;
}

static uint64_t bytes_of(const struct session_memory *memory)
{
    return memory->parameters + memory->gradients + memory->shard + memory->moments + memory->activations +
           memory->batch;
}

int check_memory(struct suite *suite, struct check *check, struct error *error)
{
    const struct variant many = variant_split(suite, FP32, 1);
    struct variant one = many;
    one.sequences = one.micro;
    const struct trial *trial = suite_trial(suite, &one, error); /* with weight or without */
    if (!trial) return -(int)error->status;
    const double at_one = (double)bytes_of(&trial->memory);
    if (!(trial = suite_applied(suite, &many, 0, error))) return -(int)error->status;
    check_judge(check, fabs((double)bytes_of(&trial->memory) / at_one - 1), 0);
    check_say(check, "%.1f MiB at K = 1 and at K = %" PRIu32 ", b = %" PRIu32, at_one / 0x1p20,
              variant_per_rank(suite, &many), many.micro);
    return 0;
}

/* The job's own type and dropout, on some ranks. */
static int of_recomputing(struct suite *suite, struct variant *variant, struct error *error)
{
    *variant = variant_split(suite, suite->job->precision->compute, suite_ranks(suite));
    return variant->compute == FP16 ? yardstick_scale(suite, &variant->loss_scale, error) : 0;
}

static const char *const keeps = "the job keeps its activations";

static bool recomputes(const struct suite *suite)
{
    return suite->job->recompute == GACC__V1__RECOMPUTE__RECOMPUTE_BLOCK;
}

bool checks_recomputed(struct suite *suite, struct variant *variant, const char **why)
{
    struct error unused;
    *why = recomputes(suite) ? "the probe overflows in fp16 at every loss scale" : keeps;
    return recomputes(suite) && !of_recomputing(suite, variant, &unused) &&
           (variant->compute != FP16 || variant->loss_scale > 0);
}

/* What is recomputed is what was there. */
int check_recompute(struct suite *suite, struct check *check, struct error *error)
{
    if (!recomputes(suite)) return check_skip(check, keeps);
    struct variant variant;
    int result = of_recomputing(suite, &variant, error);
    if (result || (variant.compute == FP16 && check_is_beyond_fp16(suite, variant.loss_scale, check))) return result;
    struct variant kept = variant;
    kept.keeps_activations = 1;
    const struct trial *a = suite_applied(suite, &variant, 0, error);
    const struct trial *b = a ? suite_applied(suite, &kept, 0, error) : NULL;
    if (!b) return -(int)error->status;
    uint64_t differ = 0;
    for (uint64_t i = 0; i < a->parameters; i++) differ += a->gradient[i] != b->gradient[i];
    check_judge(check, (double)differ, 0);
    check_say(check, "gradients that differ; activations %.1f MiB, kept %.1f MiB",
              (double)a->memory.activations / 0x1p20, (double)b->memory.activations / 0x1p20);
    return 0;
}
