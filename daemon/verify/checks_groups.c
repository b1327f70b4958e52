/* Groups: what a step makes of each tensor, by the numbers of its own group; what is frozen does not move at all. */
#include <fnmatch.h>
#include <math.h>

#include "daemon/verify/checks_internal.h"
#include "worker/layout.h"
#include "worker/model.h"

/* The numbers of one tensor, as the job file's manual has them. */
struct numbers {
    double ratio, decay;
    bool frozen;
};

static struct numbers numbers_of(const Gacc__V1__OptimizerSection *optimizer, const struct tensor *tensor)
{
    struct numbers numbers = {.ratio = 1, .decay = tensor->dimensions < 2 ? 0 : optimizer->weight_decay};
    for (size_t i = 0; i < optimizer->n_groups; i++) {
        const Gacc__V1__ParameterGroup *group = optimizer->groups[i];
        if (fnmatch(group->match, tensor->name, 0) != 0) continue;
        numbers.ratio = layout_lr_ratio(optimizer, group);
        numbers.frozen = group->frozen;
        if (group->weight_decay >= 0) numbers.decay = group->weight_decay;
        break;
    }
    return numbers;
}

/* The largest distance from w − lr·(g + λ·w), by which w may be off, of one tensor; frozen: from w. */
static double furthest(const struct trial *trial, const struct tensor *tensor, struct numbers numbers, double rate)
{
    double worst = 0;
    for (uint64_t i = tensor->begin; i < tensor->begin + tensor->size; i++) {
        const double w = trial->before[i], lr = rate * numbers.ratio;
        const double step = numbers.frozen ? 0 : lr * (trial->gradient[i] + numbers.decay * w);
        const double off = fabs(trial->after[i] - (w - step)), size = fmax(fabs(w), fabs(step));
        const bool is_exact = numbers.frozen || size == 0;
        if (off > 0) worst = fmax(worst, is_exact ? (double)INFINITY : off / size);
    }
    return worst;
}

int check_groups(struct suite *suite, struct check *check, struct error *error)
{
    const Gacc__V1__OptimizerSection *optimizer = suite->job->optimizer;
    if (optimizer->n_groups == 0) return check_skip(check, "the job has no groups");
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
        const double off = furthest(trial, tensor, numbers_of(optimizer, tensor), variant.rate);
        if (off > worst) worst = off, where = tensor->name;
    }
    check_judge(check, worst, FP64_ERROR);
    check_say(check, "%s%sfrom w − lr·(g + λ·w) of each group; frozen tensors keep every bit", where,
              *where ? ": " : "");
    model_close(model);
    return 0;
}
