#include "daemon/verify/suite.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/job/load.h"
#include "daemon/verify/measure.h"
#include "daemon/verify/together.h"
#include "proto/message.h"
#include "proto/optimizers.h"
#include "worker/data/data.h"
#include "worker/layout.h"
#include "worker/model.h"

/* What all trials together may take of fp32 work on the probe, as a multiple of one pass over it: measured, see
 * SECONDS_MOST. */
#define PASSES 150.0
#define SECONDS_MOST 25.0       /* … so that everything stays below a minute */
#define BYTES_MOST (256u << 20) /* activations, unless the job itself takes more */
#define MICRO_LEAST 2           /* one sequence cannot be cut short */
#define MICRO_BATCHES_PER_RANK 4

/* --- the variant's job --------------------------------------------------------------------------------------- */

/* Plain SGD, or AdamW with the job's numbers; the same for all optimizers and groups. What is frozen stays so. */
static void set_rule(Gacc__V1__OptimizerSection *optimizer, const Gacc__V1__OptimizerSection *first,
                     const struct variant *variant)
{
    optimizer->lr = optimizer->lr_written = variant->rate;
    optimizer->lr_ratio = 1;
    if (!variant->adamw) {
        optimizer->type = GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_SGD;
        optimizer->momentum = 0;
        optimizer->weight_decay = 0;
    } else {
        const bool has = first->type == GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_ADAMW;
        optimizer->type = GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_ADAMW;
        optimizer->beta1 = has ? first->beta1 : 0.9;
        optimizer->beta2 = has ? first->beta2 : 0.999;
        optimizer->eps = has ? first->eps : 1e-8;
    }
    for (size_t i = 0; i < optimizer->n_groups; i++) {
        Gacc__V1__ParameterGroup *group = optimizer->groups[i];
        group->lr = group->lr_written = variant->rate;
        group->lr_ratio = 1;
        if (!variant->adamw) group->weight_decay = 0;
    }
}

/* The job's own numbers at the variant's lr: the ratios to it are worked out before it changes. */
static void set_rate(Gacc__V1__JobSpec *job, double rate)
{
    Gacc__V1__OptimizerSection first = *job->optimizer;
    Gacc__V1__JobSpec was = *job;
    was.optimizer = &first;
    for (size_t o = 0; o < optimizer_count(job); o++) {
        Gacc__V1__OptimizerSection *optimizer = optimizer_at(job, o);
        for (size_t i = 0; i < optimizer->n_groups; i++) {
            Gacc__V1__ParameterGroup *group = optimizer->groups[i];
            group->lr_ratio = layout_lr_ratio(&was, group->lr, group->lr_ratio);
            group->lr = group->lr_written = rate * group->lr_ratio;
        }
        optimizer->lr_ratio = o == 0 ? 1 : layout_lr_ratio(&was, optimizer->lr, optimizer->lr_ratio);
        optimizer->lr = optimizer->lr_written = rate * optimizer->lr_ratio;
    }
}

static void set_optimizers(Gacc__V1__JobSpec *job, const struct variant *variant)
{
    const Gacc__V1__OptimizerSection first = *job->optimizer;
    job->optimizer->clip_norm = variant->clip;
    if (variant->keeps_groups) set_rate(job, variant->rate);
    for (size_t i = 0; i < optimizer_count(job) && !variant->keeps_groups; i++)
        set_rule(optimizer_at(job, i), &first, variant);
}

/* The job's own rules, but for the scale to begin with; torch's where the job has none. */
static int set_precision(Gacc__V1__PrecisionSection *precision, const struct variant *variant, struct error *error)
{
    precision->compute = (Gacc__V1__Compute)variant->compute;
    precision->reduce = variant->rounded ? GACC__V1__REDUCE__REDUCE_BF16 : GACC__V1__REDUCE__REDUCE_FP32;
    if (precision->compute != GACC__V1__COMPUTE__COMPUTE_FP16) {
        if (precision->loss_scale) gacc__v1__loss_scale_section__free_unpacked(precision->loss_scale, NULL);
        precision->loss_scale = NULL;
        return 0;
    }
    Gacc__V1__LossScaleSection *section = precision->loss_scale;
    if (!section) {
        if (!(section = malloc(sizeof *section))) return error_set(error, STATUS_INTERNAL, "out of memory for a job");
        gacc__v1__loss_scale_section__init(section);
        job_loss_scale_defaults(section);
        precision->loss_scale = section;
    }
    section->mode = GACC__V1__SCALE_MODE__SCALE_DYNAMIC;
    section->initial = variant->loss_scale;
    section->interval = variant->interval ? variant->interval : TRIAL_STEPS_MAX + 1;
    section->hysteresis = 1; /* the first overflow lowers it */
    section->minimum = section->maximum = 0;
    section->at_minimum = GACC__V1__AT_MINIMUM__AT_MINIMUM_CLAMP;
    section->on_overflow =
        variant->retries ? GACC__V1__ON_OVERFLOW__ON_OVERFLOW_RETRY : GACC__V1__ON_OVERFLOW__ON_OVERFLOW_SKIP;
    section->retries = (uint32_t)variant->retries;
    section->growth = 2;
    if (section->backoff <= 0 || section->backoff >= 1) section->backoff = 0.5;
    return 0;
}

/* Every tensor by name, its values taken from the flat [P] array. */
static int set_initial(Gacc__V1__ModelSection *spec, const double *values, struct error *error)
{
    struct model *model;
    int result = model_open(&model, spec, DTYPE_FP64, error);
    if (result) return result;
    const struct tensor_table *table = &model->table;
    for (size_t i = 0; i < spec->n_init_values; i++) gacc__v1__tensor_values__free_unpacked(spec->init_values[i], NULL);
    free((void *)spec->init_values);
    spec->n_init_values = 0;
    spec->init_values = calloc(table->count, sizeof *spec->init_values);
    if (*spec->init_file) spec->init_file[0] = '\0';
    bool complete = spec->init_values != NULL;
    for (size_t t = 0; t < table->count && complete; t++) {
        const struct tensor *tensor = &table->tensors[t];
        Gacc__V1__TensorValues *entry = malloc(sizeof *entry);
        if (!(complete = entry != NULL)) break;
        gacc__v1__tensor_values__init(entry);
        spec->init_values[spec->n_init_values++] = entry;
        entry->name = strdup(tensor->name);
        entry->values = malloc(tensor->size * sizeof *entry->values);
        if (!(complete = entry->name && entry->values)) break;
        entry->n_values = tensor->size;
        memcpy(entry->values, values + tensor->begin, tensor->size * sizeof *entry->values);
    }
    model_close(model);
    return complete ? 0 : error_set(error, STATUS_INTERNAL, "out of memory for initial values");
}

struct variant variant_split(const struct suite *suite, Gacc__V1__Compute type, uint32_t ranks)
{
    return (struct variant){.compute = type,
                            .sequences = suite->probe.sequences,
                            .micro = suite->probe.micro,
                            .ranks = ranks,
                            .steps = 1,
                            .dropout = -1};
}

struct variant variant_whole(const struct suite *suite, Gacc__V1__Compute type)
{
    struct variant variant = variant_split(suite, type, 1);
    variant.micro = variant.sequences;
    return variant;
}

/* `value` with a significand of so many bits. */
static double rounded(double value, int bits)
{
    int exponent;
    const double significand = frexp(value, &exponent);
    return ldexp(nearbyint(ldexp(significand, bits)), exponent - bits);
}

/* A number in (−1, 1) for each parameter, the same in every run. */
static double stirring(uint64_t index)
{
    return 2 * ((double)(index * 7919 % 10007) + 0.5) / 10007 - 1;
}

/* The initial parameters with fewer bits, stirred, or moved along the gradient from where they are, stirred or not. */
static int set_moved(struct suite *suite, Gacc__V1__ModelSection *spec, const struct variant *variant,
                     struct error *error)
{
    struct variant centre = *variant;
    centre.bits = 0;
    if (variant->shift != 0)
        centre.shift = 0;
    else
        centre.stir = 0;
    const struct trial *at = suite_trial(suite, &centre, error);
    if (!at) return -(int)error->status;
    const double norm = measure_distance(at->gradient, NULL, at->parameters);
    const double along = variant->shift != 0 ? variant->shift / norm : 0;
    double *values = malloc(at->parameters * sizeof *values);
    if (!values) return error_set(error, STATUS_INTERNAL, "out of memory for initial values");
    for (uint64_t i = 0; i < at->parameters; i++)
        values[i] = variant->bits         ? rounded(at->before[i], (int)variant->bits)
                    : variant->shift != 0 ? at->before[i] + along * at->gradient[i]
                                          : at->before[i] + variant->stir * stirring(i);
    int result = set_initial(spec, values, error);
    free(values);
    return result;
}

static int make_job(struct suite *suite, const struct variant *variant, Gacc__V1__JobSpec **out, struct error *error)
{
    Gacc__V1__JobSpec *job = message_copy(&suite->job->base);
    *out = job;
    if (!job) return error_set(error, STATUS_INTERNAL, "out of memory for a copy of the job");
    job->batch->global = variant->sequences;
    job->batch->micro = variant->micro;
    job->batch->ramp_from = job->batch->ramp_steps = 0;
    job->batch->tail = variant->train ? GACC__V1__TAIL__TAIL_FLUSH : GACC__V1__TAIL__TAIL_DROP;
    job->batch->lr_scaling = GACC__V1__LR_SCALING__LR_SCALING_NONE;
    job->schedule->type = GACC__V1__SCHEDULE_TYPE__SCHEDULE_CONSTANT;
    job->schedule->warmup = variant->warmup;
    job->schedule->total = job->schedule->decay = 0;
    job->schedule->minimum = 0;
    if (variant->dropout >= 0 && job->model->type == GACC__V1__MODEL_TYPE__MODEL_GPT)
        job->model->dropout = variant->dropout;
    if (variant->dropout >= 0) job->model->lora_dropout = variant->dropout;
    job->model->lora_stirred = job->model->lora_rank > 0;
    if (variant->keeps_activations) job->recompute = GACC__V1__RECOMPUTE__RECOMPUTE_NONE;
    set_optimizers(job, variant);
    int result = set_precision(job->precision, variant, error);
    const bool moves = variant->shift != 0 || variant->stir != 0 || variant->bits != 0;
    return !result && moves ? set_moved(suite, job->model, variant, error) : result;
}

/* --- trials -------------------------------------------------------------------------------------------------- */

static bool is_same(const struct variant *a, const struct variant *b)
{
    return memcmp(a, b, sizeof *a) == 0; /* no padding: eight-byte numbers first, an even count of others */
}
_Static_assert(sizeof(struct variant) == 13 * 8 + 12 * 4, "no padding in struct variant");

static int run(struct suite *suite, const struct variant *variant, struct trial *trial, struct error *error)
{
    Gacc__V1__JobSpec *job;
    int result = make_job(suite, variant, &job, error);
    struct trial_spec spec = {
        .job = job,
        .ranks = variant->ranks,
        .launcher = variant->ranks == RANKS_OF_LAUNCHER ? suite->launcher : NULL,
        .device = suite->device,
        .steps = variant->steps,
        .train = variant->train,
        .reference = variant->reference,
        .reversed = variant->reversed,
        .faults = suite->faults,
        .decision_fault = suite->decision_fault,
    };
    if (variant->self_check) spec.faults.self_check = true;
    if (variant->overflow_at_step) {
        spec.faults.overflow_at.step = variant->overflow_at_step;
        spec.faults.overflow_at.micro_batch = variant->overflow_micro_batch;
        spec.faults.overflow_at.scale = variant->retries ? variant->loss_scale : 0;
    }
    if (!result) result = spec.launcher ? together_run(trial, &spec, error) : trial_run(trial, &spec, error);
    if (job) gacc__v1__job_spec__free_unpacked(job, NULL);
    return result;
}

const struct trial *suite_trial(struct suite *suite, const struct variant *variant, struct error *error)
{
    struct trial trial;
    size_t oldest = 0;
    for (size_t i = 0; i < SUITE_TRIALS; i++)
        if (suite->trials[i].used && is_same(&suite->trials[i].variant, variant)) {
            suite->trials[i].used = ++suite->clock;
            return &suite->trials[i].trial;
        }
    if (run(suite, variant, &trial, error)) return NULL;
    for (size_t i = 1; i < SUITE_TRIALS; i++)
        if (suite->trials[i].used < suite->trials[oldest].used) oldest = i;
    if (suite->trials[oldest].used) trial_free(&suite->trials[oldest].trial);
    suite->trials[oldest].variant = *variant;
    suite->trials[oldest].trial = trial;
    suite->trials[oldest].used = ++suite->clock;
    return &suite->trials[oldest].trial;
}

uint32_t variant_micro_batches(const struct variant *variant)
{
    return (variant->sequences - 1) / variant->micro + 1;
}

uint32_t variant_ranks(const struct suite *suite, const struct variant *variant)
{
    return variant->ranks == RANKS_OF_LAUNCHER ? suite->launcher->ranks : variant->ranks;
}

uint32_t variant_per_rank(const struct suite *suite, const struct variant *variant)
{
    return (variant_micro_batches(variant) - 1) / variant_ranks(suite, variant) + 1;
}

/* --- the probe ----------------------------------------------------------------------------------------------- */

/* A batch without any weight has neither loss nor gradient to be looked at. */
static int check_weight(const struct suite *suite, const struct data *data, struct error *error)
{
    double weight = 0;
    for (uint64_t i = 0; i < suite->probe.sequences; i++)
        weight += data_weight(data, data_sequence_at(data, suite->job->job->seed, 0, i));
    if (weight > 0) return 0;
    return error_set(error, STATUS_DATA,
                     "data.train: none of the first %" PRIu32 " sequences, in the job's order, has weight: there is "
                     "nothing to verify (--sequences n takes more)",
                     suite->probe.sequences);
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* b: the job's own, or what one trial of two sequences says is affordable; on the CPU by its own work, so that what
 * else the machine does changes nothing. */
static int affordable_micro(struct suite *suite, uint32_t ranks, uint32_t *micro, struct error *error)
{
    const uint32_t b = suite->job->batch->micro, few = suite->probe.available > 1 ? 2 : 1;
    struct variant small = variant_whole(suite, GACC__V1__COMPUTE__COMPUTE_FP32);
    small.sequences = small.micro = few;
    const double began = seconds_now(), worked = cpu_seconds();
    const struct trial *trial = suite_trial(suite, &small, error);
    if (!trial) return -(int)error->status;
    const double passed = seconds_now() - began, own = cpu_seconds() - worked;
    const double seconds = (suite->device ? passed : fmin(passed, own)) / few;
    const double bytes = (double)trial->memory.activations / few;
    const double most_bytes = fmax(BYTES_MOST, bytes * b);
    const double most = fmin(SECONDS_MOST / PASSES / seconds, most_bytes / bytes);
    const double of_probe = most / (MICRO_BATCHES_PER_RANK * ranks);
    *micro = of_probe < b ? (uint32_t)of_probe : b;
    if (*micro < MICRO_LEAST) *micro = MICRO_LEAST;
    return 0;
}

/* Whether the last micro-batch is short and no rank is left out. */
static bool is_ragged(uint32_t sequences, uint32_t micro, uint32_t ranks)
{
    return sequences % micro && (sequences - 1) / micro + 1 > ranks;
}

/* The ragged b that is nearest to `wanted`, smaller ones first; where there is none, the largest that leaves every rank
 * a micro-batch. */
static uint32_t ragged_micro(uint32_t sequences, uint32_t wanted, uint32_t ranks)
{
    if (wanted > sequences) wanted = sequences;
    for (uint32_t micro = wanted; micro > 1; micro--)
        if (is_ragged(sequences, micro, ranks)) return micro;
    for (uint32_t micro = wanted + 1; micro < sequences; micro++)
        if (is_ragged(sequences, micro, ranks)) return micro;
    for (uint32_t micro = wanted; micro > 1; micro--)
        if ((sequences - 1) / micro + 1 >= ranks) return micro;
    return 1;
}

static int choose_of(struct suite *suite, const struct data *data, uint64_t sequences, struct error *error)
{
    struct probe *probe = &suite->probe;
    const uint32_t ranks = suite->launcher ? suite->launcher->ranks : 1;
    uint32_t micro = 0;
    probe->available = data_sequences(data);
    int result = affordable_micro(suite, ranks, &micro, error);
    if (result) return result;
    if (sequences > probe->available)
        return error_set(error, STATUS_USAGE, "--sequences %" PRIu64 ": the training data hold %" PRIu64, sequences,
                         probe->available);
    if (!sequences) sequences = (uint64_t)MICRO_BATCHES_PER_RANK * micro * ranks + 1;
    probe->sequences = (uint32_t)(sequences < probe->available ? sequences : probe->available);
    probe->micro = ragged_micro(probe->sequences, micro, ranks > 2 ? ranks : 2);
    return check_weight(suite, data, error);
}

static int choose_probe(struct suite *suite, uint64_t sequences, struct error *error)
{
    struct data_shape shape;
    struct data *data;
    data_shape_of(suite->job->model, &shape);
    int result = data_open(&data, suite->job->data, 't', &shape, error);
    if (result) return result;
    result = choose_of(suite, data, sequences, error);
    data_close(data);
    return result;
}

int suite_open(struct suite *suite, const Gacc__V1__JobSpec *job, struct comm *launcher, const struct device *device,
               uint64_t sequences, struct error *error)
{
    *suite = (struct suite){.job = job, .launcher = launcher, .device = device};
    int result = choose_probe(suite, sequences, error);
    if (result) suite_close(suite);
    return result;
}

void suite_open_faulty(struct suite *suite, const struct suite *sound, const struct faults *faults,
                       enum decision_fault decision_fault)
{
    *suite =
        (struct suite){.job = sound->job, .device = sound->device, .faults = *faults, .decision_fault = decision_fault};
    suite->probe.sequences = sound->probe.sequences;
    suite->probe.micro = sound->probe.micro;
    suite->probe.available = sound->probe.available;
}

void suite_close(struct suite *suite)
{
    for (size_t i = 0; i < SUITE_TRIALS; i++)
        if (suite->trials[i].used) trial_free(&suite->trials[i].trial);
    *suite = (struct suite){0};
}
