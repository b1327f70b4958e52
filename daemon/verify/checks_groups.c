/* Optimizers and groups: what the job's first step makes of each tensor, by the numbers that are its own; what is
 * frozen does not move at all. */
#include <fnmatch.h>
#include <math.h>
#include <string.h>

#include "daemon/verify/checks_internal.h"
#include "proto/optimizers.h"
#include "worker/model.h"

/* The numbers of one tensor, as the job file's manual has them. */
struct numbers {
    double ratio, decay, eps;
    bool adamw, frozen;
};

static double ratio_of(const Gacc__V1__JobSpec *job, double lr, double set)
{
    if (set > 0) return set;
    return job->optimizer->lr > 0 ? lr / job->optimizer->lr : 0;
}

static struct numbers numbers_of(const Gacc__V1__JobSpec *job, const struct tensor *tensor)
{
    size_t index = 0;
    if (job->model->lora_rank > 0 && !strstr(tensor->name, ".lora_")) return (struct numbers){.frozen = true};
    while (optimizers_are_list(job) && fnmatch(optimizer_at(job, index)->match, tensor->name, 0) != 0) index++;
    const Gacc__V1__OptimizerSection *optimizer = optimizer_at(job, index);
    struct numbers numbers = {.ratio = index ? ratio_of(job, optimizer->lr, optimizer->lr_ratio) : 1,
                              .decay = tensor->dimensions < 2 ? 0 : optimizer->weight_decay,
                              .eps = optimizer->eps,
                              .adamw = optimizer->type == GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_ADAMW};
    for (size_t i = 0; i < optimizer->n_groups; i++) {
        const Gacc__V1__ParameterGroup *group = optimizer->groups[i];
        if (fnmatch(group->match, tensor->name, 0) != 0) continue;
        numbers.ratio = ratio_of(job, group->lr, group->lr_ratio);
        numbers.frozen = group_is_frozen(group->frozen, group->frozen_until, group->frozen_from, 0);
        if (group->weight_decay >= 0) numbers.decay = group->weight_decay;
        break;
    }
    return numbers;
}

/* By how much a first step moves w: moments are corrected for their beginning, momentum has none before it. */
static double first_step(struct numbers numbers, double rate, double w, double g)
{
    const double lr = rate * numbers.ratio;
    if (numbers.frozen) return 0;
    if (numbers.adamw) return lr * numbers.decay * w + lr * g / (fabs(g) + numbers.eps);
    return lr * (g + numbers.decay * w);
}

/* The largest distance of a tensor from that, by its size or the step's; of what does not move, any. */
static double furthest(const struct trial *trial, const struct tensor *tensor, struct numbers numbers, double rate)
{
    double worst = 0;
    for (uint64_t i = tensor->begin; i < tensor->begin + tensor->size; i++) {
        const double w = trial->before[i], step = first_step(numbers, rate, w, trial->gradient[i]);
        const double off = fabs(trial->after[i] - (w - step)), size = fmax(fabs(w), fabs(step));
        const bool is_exact = numbers.frozen || size == 0;
        if (off > 0) worst = fmax(worst, is_exact ? (double)INFINITY : off / size);
    }
    return worst;
}

int check_groups(struct suite *suite, struct check *check, struct error *error)
{
    struct variant variant = variant_split(suite, FP64, suite_ranks(suite));
    struct model *model;
    variant.keeps_groups = 1;
    int result = yardstick_rate(suite, &variant.rate, error);
    const struct trial *trial = result ? NULL : suite_applied(suite, &variant, 0, error);
    if (!trial) return -(int)error->status;
    if ((result = model_open(&model, suite->job->model, DTYPE_FP64, error))) return result;
    double worst = 0;
    const char *where = "";
    for (size_t i = 0; i < model->table.count; i++) {
        const struct tensor *tensor = &model->table.tensors[i];
        const double off = furthest(trial, tensor, numbers_of(suite->job, tensor), variant.rate);
        if (off > worst) worst = off, where = tensor->name;
    }
    check_judge(check, worst, FP64_ERROR);
    check_say(check, "%s%sfrom the step by lr, decay and optimizer of its own; frozen tensors keep every bit", where,
              *where ? ": " : "");
    model_close(model);
    return 0;
}
