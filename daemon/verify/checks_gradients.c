/* Gradients: of the whole batch and of every split of it, in every precision, and by the reference kernels. */
#include "daemon/verify/checks.h"
#include "daemon/verify/checks_internal.h"

#include <inttypes.h>
#include <math.h>

#define DROPOUT 0.1           /* where the job has none */
#define REFERENCE_SEQUENCES 3 /* the reference kernels are slow */
#define ROUNDED_LEAST 32      /* sums that show an accumulator of the compute type with a chance of a half each … */
#define ROUNDED_MOST 64       /* … and as many as are enough */

static const struct {
    uint64_t bits; /* of a significand */
    const char *name;
} formats[] = {[FP32] = {24, "fp32"}, [BF16] = {8, "bf16"}, [FP16] = {11, "fp16"}};

/* ---- comparisons of gradients ---- */

/* The trial of `variant` against that of `right`. */
static int compare(struct suite *suite, struct check *check, const struct variant *variant, const struct variant *right,
                   double floor, double allowed, double ratio, struct error *error)
{
    const struct trial *a = suite_applied(suite, variant, 0, error);
    const struct trial *b = a ? suite_applied(suite, right, 0, error) : NULL;
    if (!b) return -(int)error->status;
    const struct comparison found = measure_compare(a->gradient, b->gradient, b->parameters);
    check_judge(check, found.error, allowed);
    check->floor = floor;
    check->ratio = found.ratio;
    check->cosine = found.cosine;
    check->pass &= fabs(found.ratio - 1) <= ratio && found.cosine >= 1 - ratio * ratio / 2;
    const struct suspects suspects = {
        .ratio = found.ratio,
        .cosine = found.cosine,
        .allowed_ratio = ratio,
        .micro_batches = variant_micro_batches(variant),
        .per_rank = variant_per_rank(suite, variant),
        .ranks = variant_ranks(suite, variant),
        .micro = variant->micro,
        .loss_scale = variant->loss_scale,
        .weight = b->steps[0].weight,
    };
    if (!check->pass) diagnosis_of(&suspects, check->note, sizeof check->note);
    return 0;
}

static int compare_split(struct suite *suite, struct check *check, Gacc__V1__Compute type, uint32_t ranks,
                         struct error *error)
{
    double floor, scale = 0;
    int result = type == FP16 ? yardstick_scale(suite, &scale, error) : 0;
    if (result || (type == FP16 && check_is_beyond_fp16(suite, scale, check))) return result;
    struct variant variant = variant_split(suite, type, ranks), right = variant_undivided(suite, type);
    variant.loss_scale = right.loss_scale = scale;
    if (!(result = yardstick_floor(suite, type, scale, &floor, error)))
        result =
            compare(suite, check, &variant, &right, floor, FLOORS * floor, type == FP32 ? FP32_RATIO : HALF, error);
    return result;
}

int check_accumulated(struct suite *suite, struct check *check, struct error *error)
{
    const char *why = suite_is_by_micro_batch(suite);
    return why ? check_skip(check, "%s", why) : compare_split(suite, check, FP32, 1, error);
}

static int over_ranks(struct suite *suite, struct check *check, uint32_t ranks, struct error *error)
{
    const struct variant variant = variant_split(suite, FP32, ranks);
    if (suite_is_by_ranks(suite)) return check_skip(check, "%s", suite_is_by_micro_batch(suite));
    if (variant_micro_batches(&variant) < variant_ranks(suite, &variant))
        return check_skip(check, "%" PRIu32 " micro-batches are fewer than %" PRIu32 " ranks",
                          variant_micro_batches(&variant), variant_ranks(suite, &variant));
    return compare_split(suite, check, FP32, ranks, error);
}

int check_over_two_ranks(struct suite *suite, struct check *check, struct error *error)
{
    return over_ranks(suite, check, 2, error);
}

int check_over_three_ranks(struct suite *suite, struct check *check, struct error *error)
{
    return over_ranks(suite, check, 3, error);
}

int check_over_mpi(struct suite *suite, struct check *check, struct error *error)
{
    if (!suite->launcher) return check_skip(check, "not started by mpirun with more than one rank");
    return over_ranks(suite, check, RANKS_OF_LAUNCHER, error);
}

int check_bf16_accumulated(struct suite *suite, struct check *check, struct error *error)
{
    return compare_split(suite, check, BF16, suite_ranks(suite), error);
}

int check_fp16_accumulated(struct suite *suite, struct check *check, struct error *error)
{
    return compare_split(suite, check, FP16, suite_ranks(suite), error);
}

bool checks_rounded(struct suite *suite, struct variant *variant, const char **why)
{
    struct error error;
    const struct variant plain = variant_undivided(suite, FP32);
    const struct trial *trial = suite_trial(suite, &plain, &error);
    const uint64_t numbers =
        trial ? measure_longer(trial->gradient, trial->parameters, (int)formats[BF16].bits) : ROUNDED_LEAST;
    const uint32_t sequences = suite->probe.sequences;
    *variant = variant_split(suite, BF16, 1);
    variant->micro = 1;
    *why = suite_is_by_micro_batch(suite);
    if (*why && suite->job->model->norm == GACC__V1__NORM__NORM_BATCH) return false; /* one sequence is no set */
    *why = "gradients and sequences are too few for rounding to tell";
    return sequences > 2 && numbers * (sequences - 2) >= ROUNDED_LEAST;
}

/* One sequence at a time, in both orders: every pass has the same bits, only the sums over passes differ, and they are
 * to differ as sums in fp32 do, and not to be bf16 numbers all of them. A small model needs several sums until one
 * would show it: of the first n sequences, of the first n − 1, … */
int check_bf16_accumulator(struct suite *suite, struct check *check, struct error *error)
{
    static const Gacc__V1__Compute types[] = {FP32, BF16};
    const char *why;
    struct variant straight, reversed;
    double apart[] = {0, 0};
    uint64_t numbers = 0, between[] = {0, 0};
    if (!checks_rounded(suite, &straight, &why)) return check_skip(check, "%s", why);
    for (; straight.sequences > 2 && numbers < ROUNDED_MOST; straight.sequences--) {
        for (size_t i = 0; i < 2; i++) {
            straight.compute = types[i];
            reversed = straight;
            reversed.reversed = 1;
            int result = suite_distance(suite, &reversed, &straight, &apart[i], error);
            const struct trial *trial = result ? NULL : suite_applied(suite, &straight, 0, error);
            if (!trial) return -(int)error->status;
            between[i] += measure_longer(trial->gradient, trial->parameters, (int)formats[BF16].bits);
        }
        numbers = between[0];
    }
    check->floor = fmax(apart[0], 0x1p-24);
    check_judge(check, apart[1], FLOORS * check->floor);
    check_say(check, "%" PRIu32 " micro-batches of one sequence, in both orders; floor: the same in fp32",
              suite->probe.sequences);
    if (between[0] < ROUNDED_MOST || between[1] > 0) return 0;
    check_judge(check, 1, 0);
    check_say(check, "share of elements that are bf16 numbers, of which fp32 leaves %" PRIu64 " between two",
              between[0]);
    return 0;
}

/* The same split, once with fp32 on its way. */
int check_bf16_reduce(struct suite *suite, struct check *check, struct error *error)
{
    if (suite->job->precision->reduce != GACC__V1__REDUCE__REDUCE_BF16)
        return check_skip(check, "precision.reduce is fp32");
    struct variant plain = variant_split(suite, FP32, suite->launcher ? RANKS_OF_LAUNCHER : suite_ranks(suite));
    struct variant rounded = plain;
    rounded.rounded = 1;
    double floor;
    int result = yardstick_floor(suite, FP32, 0, &floor, error);
    return result ? result : compare(suite, check, &rounded, &plain, floor, HALF, HALF, error);
}

int check_fp64_accumulated(struct suite *suite, struct check *check, struct error *error)
{
    const struct variant variant = variant_split(suite, FP64, suite_ranks(suite)),
                         right = variant_undivided(suite, FP64);
    double floor;
    int result = yardstick_floor(suite, FP64, 0, &floor, error);
    return result ? result : compare(suite, check, &variant, &right, floor, FP64_ERROR, FP32_RATIO, error);
}

/* Half precision that is too coarse for a model is a fault of the jobs that compute in it alone. */
static bool concerns_the_job(const struct suite *suite, Gacc__V1__Compute type)
{
    return type == FP32 || type == FP64 || type == suite->job->precision->compute;
}

/* `variant` in the type against `exact`, by the reference kernels in fp64. A model whose gradient the type holds less
 * well than `allowed` is allowed what rounding its parameters alone, in exact arithmetic, moves it by: what a job that
 * computes in the type cannot but lose, however right. */
static int compare_with_exact(struct suite *suite, struct check *check, const struct variant *variant,
                              const struct variant *exact, double allowed, double ratio, struct error *error)
{
    int result = compare(suite, check, variant, exact, (double)NAN, allowed, ratio, error);
    if (result || check->pass || variant->compute == FP64) return result;
    struct variant stored = *exact;
    stored.bits = formats[variant->compute].bits;
    double lost = 0;
    if ((result = suite_distance(suite, &stored, exact, &lost, error))) return result;
    return compare(suite, check, variant, exact, lost, fmax(allowed, FLOORS * lost), fmax(ratio, FLOORS * lost), error);
}

/* The same few sequences in the same micro-batches, by other kernels in fp64. */
static int compare_reference(struct suite *suite, struct check *check, Gacc__V1__Compute type, double allowed,
                             double ratio, struct error *error)
{
    double scale = 0;
    int result = type == FP16 ? yardstick_scale(suite, &scale, error) : 0;
    if (result || (type == FP16 && check_is_beyond_fp16(suite, scale, check))) return result;
    struct variant variant = variant_split(suite, type, 1), right;
    if (variant.sequences > REFERENCE_SEQUENCES) variant.sequences = REFERENCE_SEQUENCES;
    variant.micro = variant.sequences > 1 ? variant.sequences - 1 : 1;
    right = variant;
    right.compute = FP64;
    right.reference = 1;
    variant.loss_scale = scale;
    result = compare_with_exact(suite, check, &variant, &right, allowed, ratio, error);
    const bool fails = result ? error->status == STATUS_NUMERICS : !check->pass;
    if (!fails || concerns_the_job(suite, type)) return result;
    if (result) return check_skip(check, "%s, and the job does not compute in %s", error->text, formats[type].name);
    return check_skip(
        check, "off by %.2g, with a factor of %.3g: %s is too coarse for this model, which does not compute in it",
        check->measured, check->ratio, formats[type].name);
}

int check_fp32_reference(struct suite *suite, struct check *check, struct error *error)
{
    return compare_reference(suite, check, FP32, RELATIVE, FP32_RATIO, error);
}

int check_fp64_reference(struct suite *suite, struct check *check, struct error *error)
{
    return compare_reference(suite, check, FP64, FP64_ERROR, FP32_RATIO, error);
}

int check_bf16_reference(struct suite *suite, struct check *check, struct error *error)
{
    return compare_reference(suite, check, BF16, HALF, HALF, error);
}

int check_fp16_reference(struct suite *suite, struct check *check, struct error *error)
{
    return compare_reference(suite, check, FP16, HALF, HALF, error);
}

bool checks_plain(struct suite *suite, struct variant *variant, const char **why)
{
    (void)why;
    *variant = variant_split(suite, FP32, suite_ranks(suite));
    return true;
}

bool checks_dropout(struct suite *suite, struct variant *variant, const char **why)
{
    *variant = variant_split(suite, FP32, suite_ranks(suite));
    const Gacc__V1__ModelSection *model = suite->job->model;
    variant->dropout = fmax(model->dropout, model->lora_dropout);
    if (variant->dropout <= 0) variant->dropout = DROPOUT;
    if ((*why = suite_is_by_micro_batch(suite))) return false; /* a row is the same in every split */
    *why = "the model has no dropout";
    return model->type == GACC__V1__MODEL_TYPE__MODEL_GPT || model->lora_rank > 0;
}

/* Of four splits the one that is furthest from the whole; with dropout, where the model has it. */
int check_four_splits(struct suite *suite, struct check *check, struct error *error)
{
    const char *why;
    struct variant dropping, right = variant_undivided(suite, FP32);
    checks_dropout(suite, &dropping, &why);
    right.dropout = dropping.dropout;
    const uint32_t micro = suite->probe.micro, ranks = suite_ranks(suite);
    const struct {
        uint32_t micro, ranks;
    } splits[] = {{micro, 1},
                  {micro, ranks},
                  {suite_is_by_micro_batch(suite) ? micro : (micro + 1) / 2, ranks},
                  {suite_is_by_micro_batch(suite) ? micro : 1, 1}};
    double floor;
    int result = yardstick_floor(suite, FP32, 0, &floor, error);
    for (size_t i = 0; i < sizeof splits / sizeof *splits && !result; i++) {
        struct check one = *check;
        struct variant variant = right;
        variant.micro = splits[i].micro;
        variant.ranks = splits[i].ranks;
        result = compare(suite, &one, &variant, &right, floor, FLOORS * floor, FP32_RATIO, error);
        if (!result && (i == 0 || !(one.measured <= check->measured))) *check = one;
    }
    return result;
}
