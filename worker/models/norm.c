/*
 *   norms.I.weight, norms.I.bias [channels]; of BatchNorm also norms.I.running_mean, norms.I.running_var [channels],
 * which are no parameters: an evaluation, and model.norm_stats: frozen, normalise by them.
 */
#include "worker/models/norm.h"

#include "worker/statistics.h"

static struct norm_shape shape_of(const struct norm *norm, size_t rows)
{
    return (struct norm_shape){
        .rows = rows, .positions = norm->positions, .channels = norm->channels, .groups = norm->groups};
}

static size_t out_bytes(const struct stage *stage, size_t rows)
{
    const struct norm *norm = stage->parameters;
    return rows * norm->positions * norm->channels * dtype_size(stage->model->compute_type);
}

struct saved {
    wide *mean, *rstd; /* of every set: [rows], [rows, groups], or [channels] */
};

static size_t lay_out(const struct stage *stage, size_t rows, struct saved *saved, void *base)
{
    const struct norm *norm = stage->parameters;
    const size_t sets = norm->kind == GACC__V1__NORM__NORM_BATCH ? norm->channels : rows * norm->groups;
    const size_t bytes = sets * dtype_size(dtype_wide(stage->model->compute_type));
    struct carver carver = {.base = (uintptr_t)base};
    saved->mean = carve(&carver, bytes);
    saved->rstd = carve(&carver, bytes);
    return carver.used;
}

static size_t saved_bytes(const struct stage *stage, size_t rows)
{
    struct saved saved;
    return lay_out(stage, rows, &saved, NULL);
}

/* --- within a row ------------------------------------------------------------------------------------------------ */

static void row_forward(const struct stage *stage, struct pass *pass, const compute *in, compute *out, void *memory,
                        void *scratch)
{
    (void)scratch;
    const struct norm *norm = stage->parameters;
    const struct kernel_table *k = pass->kernels->table;
    const compute *weight = tensor_parameters(pass, norm->weight), *bias = tensor_parameters(pass, norm->bias);
    struct saved saved;
    lay_out(stage, pass->feed.rows, &saved, memory);
    if (norm->kind == GACC__V1__NORM__NORM_LAYER)
        k->layernorm_forward(pass->kernels, out, NULL, saved.mean, saved.rstd, in, NULL, weight, bias, pass->feed.rows,
                             norm->channels);
    else
        k->groupnorm_forward(pass->kernels, out, saved.mean, saved.rstd, in, weight, bias,
                             shape_of(norm, pass->feed.rows));
}

static void row_backward(const struct stage *stage, struct pass *pass, compute *din, const compute *dout,
                         const compute *in, void *memory, void *scratch)
{
    (void)scratch;
    const struct norm *norm = stage->parameters;
    const struct kernel_table *k = pass->kernels->table;
    wide *dweight = tensor_gradient(pass, norm->weight), *dbias = tensor_gradient(pass, norm->bias);
    const compute *weight = tensor_parameters(pass, norm->weight);
    struct saved saved;
    lay_out(stage, pass->feed.rows, &saved, memory);
    if (norm->kind == GACC__V1__NORM__NORM_LAYER)
        k->layernorm_backward(pass->kernels, din, NULL, dweight, dbias, dout, in, saved.mean, saved.rstd, weight,
                              pass->feed.rows, norm->channels);
    else
        k->groupnorm_backward(pass->kernels, din, dweight, dbias, dout, in, saved.mean, saved.rstd, weight,
                              shape_of(norm, pass->feed.rows));
}

static const struct stage_class row_class = {
    .name = "norm",
    .out_bytes = out_bytes,
    .saved_bytes = saved_bytes,
    .forward = row_forward,
    .backward = row_backward,
};

/* --- over the rows of a set -------------------------------------------------------------------------------------- */

static size_t two_of_each(const struct norm *norm)
{
    return 2 * norm->channels * sizeof(double);
}

static size_t set_scratch_bytes(const struct stage *stage, size_t rows)
{
    (void)rows;
    return two_of_each(stage->parameters);
}

static size_t set_statistics(const struct stage *stage, const struct tensor **mean, const struct tensor **variance)
{
    const struct norm *norm = stage->parameters;
    if (mean) *mean = norm->running_mean;
    if (variance) *variance = norm->running_variance;
    return norm->channels;
}

static struct stage_statistics *statistics_of(const struct stage *stage, const struct pass *pass)
{
    return &pass->statistics->stages[stage->set];
}

/* Values of a channel that the pass has. */
static double count_of(const struct norm *norm, const struct pass *pass)
{
    double rows = 0;
    for (size_t row = 0; row < pass->batch->rows; row++) rows += pass->batch->weight[row] != 0;
    return rows * (double)norm->positions;
}

static void add_moments(const struct stage *stage, struct pass *pass, const compute *in, void *scratch)
{
    const struct norm *norm = stage->parameters;
    const struct kernel_table *k = pass->kernels->table;
    struct stage_statistics *statistics = statistics_of(stage, pass);
    k->batchnorm_moments(pass->kernels, scratch, in, pass->feed.weight, shape_of(norm, pass->feed.rows));
    k->download(pass->kernels, statistics->part, scratch, two_of_each(norm));
    statistics_add(statistics, count_of(norm, pass));
}

/* The pass is a set of its own: what it goes by never leaves the kernels' memory. */
static void take_own_set(const struct stage *stage, struct pass *pass, const compute *in, const struct saved *saved,
                         void *scratch)
{
    const struct norm *norm = stage->parameters;
    const struct kernel_table *k = pass->kernels->table;
    struct stage_statistics *statistics = statistics_of(stage, pass);
    const double count = count_of(norm, pass);
    k->batchnorm_moments(pass->kernels, scratch, in, pass->feed.weight, shape_of(norm, pass->feed.rows));
    k->batchnorm_settle(pass->kernels, saved->mean, saved->rstd, statistics->own, statistics->step.count, scratch,
                        count, norm->channels);
    statistics_settle_own(pass->statistics, statistics, count);
}

static void take_known_set(const struct stage *stage, struct pass *pass, const struct saved *saved)
{
    const struct norm *norm = stage->parameters;
    const struct kernel_table *k = pass->kernels->table;
    const size_t bytes = norm->channels * dtype_size(dtype_wide(stage->model->compute_type));
    struct stage_statistics *statistics = statistics_of(stage, pass);
    statistics_narrow(pass->statistics, statistics, pass->sets == SETS_RUNNING);
    k->upload(pass->kernels, saved->mean, statistics->narrowed, bytes);
    k->upload(pass->kernels, saved->rstd, (char *)statistics->narrowed + bytes, bytes);
}

static void set_forward(const struct stage *stage, struct pass *pass, const compute *in, compute *out, void *memory,
                        void *scratch)
{
    const struct norm *norm = stage->parameters;
    const struct kernel_table *k = pass->kernels->table;
    struct saved saved;
    lay_out(stage, pass->feed.rows, &saved, memory);
    if (pass->sets == SETS_OWN)
        take_own_set(stage, pass, in, &saved, scratch);
    else
        take_known_set(stage, pass, &saved);
    k->batchnorm_forward(pass->kernels, out, in, saved.mean, saved.rstd, tensor_parameters(pass, norm->weight),
                         tensor_parameters(pass, norm->bias), shape_of(norm, pass->feed.rows));
}

/* Of the pass, into scratch, and into the gradients. */
static void take_sums(const struct stage *stage, struct pass *pass, const compute *dout, const compute *in,
                      const struct saved *saved, void *scratch)
{
    const struct norm *norm = stage->parameters;
    pass->kernels->table->batchnorm_sums(pass->kernels, scratch, tensor_gradient(pass, norm->weight),
                                         tensor_gradient(pass, norm->bias), dout, in, saved->mean, saved->rstd,
                                         pass->feed.weight, shape_of(norm, pass->feed.rows));
}

static void add_sums(const struct stage *stage, struct pass *pass, const compute *dout, const compute *in, void *memory,
                     void *scratch)
{
    const struct norm *norm = stage->parameters;
    const struct kernel_table *k = pass->kernels->table;
    struct saved saved;
    lay_out(stage, pass->feed.rows, &saved, memory);
    take_sums(stage, pass, dout, in, &saved, scratch);
    k->download(pass->kernels, statistics_of(stage, pass)->part, scratch, two_of_each(norm));
    statistics_add_sums(statistics_of(stage, pass));
}

static void set_backward(const struct stage *stage, struct pass *pass, compute *din, const compute *dout,
                         const compute *in, void *memory, void *scratch)
{
    const struct norm *norm = stage->parameters;
    const struct kernel_table *k = pass->kernels->table;
    struct stage_statistics *statistics = statistics_of(stage, pass);
    struct saved saved;
    lay_out(stage, pass->feed.rows, &saved, memory);
    const bool is_own = pass->sets == SETS_OWN, is_running = pass->sets == SETS_RUNNING;
    if (is_own || is_running)
        take_sums(stage, pass, dout, in, &saved, scratch);
    else if (din)
        k->upload(pass->kernels, scratch, statistics->sums, two_of_each(norm));
    if (!din) return;
    k->batchnorm_backward(pass->kernels, din, dout, in, saved.mean, saved.rstd, tensor_parameters(pass, norm->weight),
                          is_running ? NULL : scratch, is_own ? count_of(norm, pass) : statistics->set.count,
                          pass->feed.weight, shape_of(norm, pass->feed.rows));
}

static const struct stage_class set_class = {
    .name = "norm",
    .works_on_host = true,
    .out_bytes = out_bytes,
    .saved_bytes = saved_bytes,
    .scratch_bytes = set_scratch_bytes,
    .forward = set_forward,
    .backward = set_backward,
    .statistics = set_statistics,
    .add_moments = add_moments,
    .add_sums = add_sums,
};

/* --- tables ------------------------------------------------------------------------------------------------------ */

static const struct tensor *add_vector(struct model *model, unsigned index, const char *name, size_t channels,
                                       enum tensor_init init, bool statistic)
{
    return table_add(&model->table,
                     (struct tensor){.dimensions = 1, .shape = {channels}, .init = init, .statistic = statistic},
                     "norms.%u.%s", index, name);
}

void norm_add(struct model *model, struct norm *norm, unsigned index, size_t positions, size_t channels)
{
    const Gacc__V1__ModelSection *spec = model->spec;
    *norm = (struct norm){.kind = spec->norm, .positions = positions, .channels = channels, .groups = 1};
    norm->weight = add_vector(model, index, "weight", channels, TENSOR_ONES, false);
    if (spec->bias) norm->bias = add_vector(model, index, "bias", channels, TENSOR_ZEROS, false);
    if (norm->kind == GACC__V1__NORM__NORM_GROUP) norm->groups = spec->norm_groups;
    const bool over_sets = norm->kind == GACC__V1__NORM__NORM_BATCH;
    if (over_sets) {
        norm->running_mean = add_vector(model, index, "running_mean", channels, TENSOR_ZEROS, true);
        norm->running_variance = add_vector(model, index, "running_var", channels, TENSOR_ONES, true);
    }
    model_add_stage(model, over_sets ? &set_class : &row_class, index, norm);
}
