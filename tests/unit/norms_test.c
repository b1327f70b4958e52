/* Statistics of sets, the norms that go by them, and a window that is run stage by stage. */
#include "tests/unit/trial.h"

static uint32_t hidden[] = {6, 4};

static Gacc__V1__ModelSection mlp(Gacc__V1__Norm norm)
{
    Gacc__V1__ModelSection spec = GACC__V1__MODEL_SECTION__INIT;
    spec.type = GACC__V1__MODEL_TYPE__MODEL_MLP;
    spec.inputs = 5;
    spec.hidden = hidden;
    spec.n_hidden = 2;
    spec.outputs = 3;
    spec.bias = 1;
    spec.norm = norm;
    spec.norm_groups = 2;
    spec.norm_momentum = 0.1;
    spec.activation = GACC__V1__ACTIVATION__ACTIVATION_TANH;
    spec.loss = GACC__V1__LOSS__LOSS_CROSS_ENTROPY;
    return spec;
}

/* --- statistics --------------------------------------------------------------------------------------------------- */

static void parts_of_a_set_join_to_its_moments(void **state)
{
    (void)state;
    /* 1, 2 | 3, 4, 11: 21/5 = 4.2; squares 10.24 + 4.84 + 1.44 + 0.04 + 46.24 = 62.8 */
    struct moments whole = {0, (double[]){0}, (double[]){0}};
    const struct moments parts[] = {{2, (double[]){1.5}, (double[]){0.5}},
                                    {0, (double[]){(double)NAN}, (double[]){(double)NAN}},
                                    {3, (double[]){6}, (double[]){9 + 4 + 25}}};
    for (size_t i = 0; i < 3; i++) moments_join(&whole, &parts[i], 1);
    assert_true(whole.count == 5);
    assert_true(fabs(*whole.mean - 4.2) < 1e-15);
    assert_true(fabs(*whole.squares - 62.8) < 1e-13);
}

/* One channel of the first stage that has statistics: a set of so many rows. */
static void add_set(struct statistics *statistics, double count, double mean, double squares)
{
    struct stage_statistics *stage = &statistics->stages[0];
    statistics_begin_set(stage);
    for (size_t c = 0; c < stage->channels; c++) {
        stage->part[c] = mean;
        stage->part[stage->channels + c] = squares;
    }
    statistics_add(stage, count);
    statistics_settle(statistics, stage);
}

/* Case 28-1, and the unbiased variance: of 1, 2 and 3, 4 the mean is 2.5 and the variance 5/3. */
static void running_statistics_move_once_a_step_by_all_of_its_sets(void **state)
{
    (void)state;
    const Gacc__V1__ModelSection spec = mlp(GACC__V1__NORM__NORM_BATCH);
    struct trial trial = trial_open(kernels_open_reference, DTYPE_FP64, &spec, 2);
    struct statistics *statistics = trial.statistics;
    const struct stage_statistics *stage = &statistics->stages[0];
    const double *mean = stage->running, *variance = stage->running + stage->channels;
    statistics_begin(statistics);
    add_set(statistics, 2, 1.5, 0.5);
    add_set(statistics, 2, 3.5, 0.5);
    assert_true(*mean == 0 && *variance == 1); /* not before the step is applied */
    assert_int_equal(statistics_advance(statistics, NULL, NULL), 0);
    assert_true(fabs(*mean - 0.25) < 1e-15);
    assert_true(fabs(*variance - (0.9 + 0.1 * 5 / 3)) < 1e-15);

    statistics_begin(statistics);
    statistics_begin_set(&statistics->stages[0]); /* an empty window */
    statistics_settle(statistics, &statistics->stages[0]);
    assert_int_equal(statistics_advance(statistics, NULL, NULL), 0);
    add_set(statistics, 2, (double)INFINITY, 0); /* one that overflowed */
    assert_int_equal(statistics_advance(statistics, NULL, NULL), 0);
    assert_true(fabs(*mean - 0.25) < 1e-15);
    trial_close(&trial);
}

static void of_a_mean_of_10_a_momentum_of_a_tenth_takes_1(void **state)
{
    (void)state;
    const Gacc__V1__ModelSection spec = mlp(GACC__V1__NORM__NORM_BATCH);
    struct trial trial = trial_open(kernels_open_cpu, DTYPE_FP32, &spec, 2);
    statistics_begin(trial.statistics);
    for (int k = 0; k < 2; k++) add_set(trial.statistics, 4, 10, 0);
    assert_int_equal(statistics_advance(trial.statistics, NULL, NULL), 0);
    assert_true(trial.statistics->stages[0].running[0] == 1);
    trial_close(&trial);
}

/* --- norms -------------------------------------------------------------------------------------------------------- */

static void gradient_is_the_slope_of_the_loss_with_every_norm(void **state)
{
    (void)state;
    for (unsigned variant = 0; variant < 3 * 2 * 2; variant++) {
        Gacc__V1__ModelSection spec = mlp((Gacc__V1__Norm)(1 + variant % 3));
        spec.bias = variant / 3 % 2;
        struct trial trial = trial_open(kernels_open_reference, DTYPE_FP64, &spec, 6);
        trial.sets = variant / 6 ? SETS_RUNNING : SETS_OWN;
        trial_read(&trial, 0, 6);
        trial.batch->weight[1] = 0;
        trial.batch->weight[2] = 0.25;
        trial_check_gradient(&trial, 1, 1e-6);
        trial_close(&trial);
    }
}

/* A channel of −1, 1, 3 and, masked, whatever: mean 1, biased variance 8/3. */
static void batchnorm_takes_the_biased_variance_of_rows_that_are_there(void **state)
{
    (void)state;
    static const struct norm_shape shape = {4, 1, 1, 1};
    static const double weight[] = {1, 1, 0, 1}, ones[] = {1}, x[] = {-1, 1, 1000, 3};
    struct kernels *kernels = kernels_open_cpu(&(struct kernels_options){.compute_type = DTYPE_FP64, .threads = 1});
    double moments[2], y[4], mean[1], rstd[1], sums[2], dx[4];
    kernels->table->batchnorm_moments(kernels, moments, x, weight, shape);
    assert_true(moments[0] == 1 && moments[1] == 8);
    mean[0] = moments[0];
    rstd[0] = 1 / sqrt(moments[1] / 3 + NORM_EPS);
    kernels->table->batchnorm_forward(kernels, y, x, mean, rstd, ones, NULL, shape);
    assert_true(fabs(y[3] - 2 / sqrt(8.0 / 3 + 1e-5)) < 1e-15);
    kernels->table->batchnorm_sums(kernels, sums, NULL, NULL, (double[]){1, 2, (double)NAN, 3}, x, mean, rstd, weight,
                                   shape);
    assert_true(sums[0] == 6 && fabs(sums[1] - 4 * rstd[0]) < 1e-15);
    kernels->table->batchnorm_backward(kernels, dx, (double[]){1, 2, 0, 3}, x, mean, rstd, ones, sums, 3, weight,
                                       shape);
    assert_true(dx[2] == 0 && fabs(dx[0] + dx[1] + dx[3]) < 1e-15);
    kernels_close(kernels);
}

/* --- splits ------------------------------------------------------------------------------------------------------- */

/* A window of 8 rows in micro-batches of 3, the last one short, one row being masked. */
struct window {
    struct trial *trial;
    const compute *parameters;
    double averaging, loss;
};

static void read_rows(struct trial *trial, double averaging, uint64_t first, size_t rows)
{
    trial_read(trial, first, rows);
    for (size_t r = 0; r < rows; r++) {
        if (first + r == 4) trial->batch->weight[r] = 0;
        trial_set_wide(trial, trial->batch->seed, r, averaging * trial->batch->weight[r]);
    }
}

static bool open_pass(void *context, uint32_t k, struct pass *pass)
{
    struct window *window = context;
    struct trial *trial = window->trial;
    if (k == 2) return false; /* one that holds no weight */
    const uint64_t first = 3 * (uint64_t)(k > 2 ? k - 1 : k);
    read_rows(trial, window->averaging, first, first == 6 ? 2 : 3);
    *pass = (struct pass){.kernels = trial->kernels,
                          .parameters = window->parameters,
                          .gradients = trial->gradients,
                          .batch = trial->batch,
                          .feed = feed_of(trial->batch, trial->batch->block),
                          .loss_sum = &window->loss,
                          .statistics = trial->statistics};
    pass->feed.dropout_key = NULL;
    return true;
}

static void done(void *context, uint32_t k)
{
    (void)context, (void)k;
}

static double run_by_stages(struct trial *trial, double averaging)
{
    struct window window = {trial, trial->rounded, averaging, 0};
    const struct window_passes passes = {4, &window, open_pass, done, NULL};
    struct window_memory *memory;
    assert_int_equal(window_memory_open(&memory, trial->model, trial->kernels, 4, 3, NULL), 0);
    statistics_begin(trial->statistics);
    model_run_window(trial->model, &passes, trial->statistics, trial->activations, memory);
    window_memory_close(memory);
    return window.loss;
}

static double apart(const struct trial *a, const struct trial *b)
{
    return trial_distance(a, b, 0, trial_parameters(a));
}

/* The window's statistics make micro-batches what one big batch is; a micro-batch's do not. */
static void a_window_stage_by_stage_is_the_big_batch_in_every_type(void **state)
{
    (void)state;
    static const enum dtype types[] = {DTYPE_FP64, DTYPE_FP32, DTYPE_FP16, DTYPE_BF16};
    static const double allowed[] = {1e-14, 2e-6, 2e-2, 1e-1};
    const Gacc__V1__ModelSection spec = mlp(GACC__V1__NORM__NORM_BATCH);
    for (size_t t = 0; t < 4; t++) {
        struct trial small = trial_open(kernels_open_cpu, types[t], &spec, 3);
        struct trial whole = trial_open(kernels_open_cpu, types[t], &spec, 8);
        read_rows(&whole, 0.125, 0, 8);
        statistics_begin(whole.statistics);
        trial_pass(&whole, 0.125, 0);
        trial_read(&small, 0, 3);
        trial_pass(&small, 0, 0); /* rounds the parameters */
        const double loss = run_by_stages(&small, 0.125), off = apart(&small, &whole);
        print_message("%s: window %.2e from the whole, allowed %.0e\n", dtype_name(types[t]), off, allowed[t]);
        assert_true(off <= allowed[t]);
        assert_true(fabs(loss / whole.loss - 1) <= allowed[t]);
        for (size_t i = 0; i < 2; i++) {
            const struct stage_statistics *a = &small.statistics->stages[i], *b = &whole.statistics->stages[i];
            assert_true(a->step.count == 7 && b->step.count == 7);
            for (size_t c = 0; c < a->channels; c++)
                assert_true(fabs(a->step.mean[c] - b->step.mean[c]) <= allowed[t] * 10);
        }
        trial_clear(&small);
        for (uint64_t first = 0; first < 8; first += 3) {
            read_rows(&small, 0.125, first, first == 6 ? 2 : 3);
            trial_pass(&small, 0.125, 0);
        }
        assert_true(apart(&small, &whole) > 0.1);
        trial_close(&small);
        trial_close(&whole);
    }
}

/* Case 28-4. */
static void groupnorm_does_not_depend_on_the_split(void **state)
{
    (void)state;
    const Gacc__V1__ModelSection spec = mlp(GACC__V1__NORM__NORM_GROUP);
    struct trial small = trial_open(kernels_open_cpu, DTYPE_FP32, &spec, 1);
    struct trial whole = trial_open(kernels_open_cpu, DTYPE_FP32, &spec, 8);
    double loss = 0;
    for (uint64_t row = 0; row < 8; row++) {
        trial_read(&small, row, 1);
        trial_pass(&small, 0.125, 0);
        loss += small.loss;
    }
    trial_read(&whole, 0, 8);
    trial_pass(&whole, 0.125, 0);
    assert_true(fabs(loss / whole.loss - 1) <= 1e-6);
    assert_true(apart(&small, &whole) <= 1e-6);
    trial_close(&small);
    trial_close(&whole);
}

/* What is frozen before a norm needs no way back; the norm's own tensors do. */
static void a_window_goes_back_to_the_first_stage_that_is_trained(void **state)
{
    (void)state;
    const Gacc__V1__ModelSection spec = mlp(GACC__V1__NORM__NORM_BATCH);
    for (size_t trained_from = 0; trained_from < 12; trained_from += 2) {
        bool frozen[32] = {false};
        struct trial small = trial_open(kernels_open_cpu, DTYPE_FP64, &spec, 3);
        struct trial whole = trial_open(kernels_open_cpu, DTYPE_FP64, &spec, 8);
        for (size_t i = 0; i < trained_from; i++) frozen[i] = true;
        read_rows(&whole, 0.125, 0, 8);
        trial_pass(&whole, 0.125, 0);
        trial_pass(&small, 0, 0);
        struct window_memory *memory;
        struct window window = {&small, small.rounded, 0.125, 0};
        const struct window_passes passes = {4, &window, open_pass, done, NULL};
        model_freeze(small.model, frozen);
        for (size_t i = 0; i < small.model->table.count; i++) /* where trial_pass has put them all */
            small.model->table.tensors[i].at = small.model->table.tensors[i].begin;
        assert_int_equal(window_memory_open(&memory, small.model, small.kernels, 4, 3, NULL), 0);
        for (size_t i = 0; i < small.model->table.count; i++) small.model->table.tensors[i].frozen = false;
        model_run_window(small.model, &passes, small.statistics, small.activations, memory);
        window_memory_close(memory);
        for (size_t i = trained_from; i < small.model->table.count; i++) {
            const struct tensor *tensor = &small.model->table.tensors[i];
            for (uint64_t at = tensor->begin; at < tensor->begin + tensor->size; at++)
                assert_true(fabs(trial_gradient(&small, at) - trial_gradient(&whole, at)) < 1e-14);
        }
        trial_close(&small);
        trial_close(&whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_a_set_join_to_its_moments),
        cmocka_unit_test(running_statistics_move_once_a_step_by_all_of_its_sets),
        cmocka_unit_test(of_a_mean_of_10_a_momentum_of_a_tenth_takes_1),
        cmocka_unit_test(gradient_is_the_slope_of_the_loss_with_every_norm),
        cmocka_unit_test(batchnorm_takes_the_biased_variance_of_rows_that_are_there),
        cmocka_unit_test(a_window_stage_by_stage_is_the_big_batch_in_every_type),
        cmocka_unit_test(groupnorm_does_not_depend_on_the_split),
        cmocka_unit_test(a_window_goes_back_to_the_first_stage_that_is_trained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
