/* BatchNorm's running statistics. */
#include "daemon/verify/checks_internal.h"

#include <math.h>

#include "worker/model.h"

/* Where in the canonical index the running statistics of the first norm are. */
static int find_first(const struct suite *suite, uint64_t *begin, uint64_t *end, struct error *error)
{
    struct model *model;
    int result = model_open(&model, suite->job->model, DTYPE_FP32, error);
    if (result) return result;
    const struct tensor *mean = tensor_find(&model->table, "norms.0.running_mean");
    *begin = mean ? mean->begin : 0;
    *end = *begin + (mean ? 2 * mean->size : 0); /* the variance is behind it */
    model_close(model);
    return 0;
}

/* The first norm's are those of all rows that entered it, whatever the cut: what K micro-batches on some ranks moved
 * them by is what one micro-batch moves them by. Nothing moves them in a step that is skipped. */
int check_running_statistics(struct suite *suite, struct check *check, struct error *error)
{
    const Gacc__V1__ModelSection *model = suite->job->model;
    if (model->norm != GACC__V1__NORM__NORM_BATCH) return check_skip(check, "the model has no BatchNorm");
    const struct variant split = variant_split(suite, FP32, suite_ranks(suite)), one = variant_whole(suite, FP32);
    const struct trial *a = suite_applied(suite, &split, 0, error),
                       *b = a ? suite_applied(suite, &one, 0, error) : NULL;
    if (!b) return -(int)error->status;
    uint64_t begin, end;
    int result = find_first(suite, &begin, &end, error);
    if (result) return result;
    if (begin == end) return check_skip(check, "the model has no hidden layer, and so no BatchNorm");
    const bool moves = model->norm_stats != GACC__V1__NORM_STATS__NORM_STATS_FROZEN;
    double furthest = 0, moved = 0;
    for (uint64_t i = begin; i < end; i++) {
        moved = fmax(moved, fabs(b->running[i] - b->before[i]));
        furthest = fmax(furthest, fabs(a->running[i] - b->running[i]));
    }
    const bool as_it_should = moves == (moved > 0);
    check_judge(check, !as_it_should ? 1 : moves ? furthest / moved : furthest, FP32_RATIO);
    check_say(check, "%s",
              as_it_should ? "the first norm's after K micro-batches and after one, as a share of how far they move"
              : moves      ? "they do not move"
                           : "they are frozen, and move");
    return 0;
}
