/* cnn: its tensors, one output by hand, its gradients, and that no split changes them. */
#include "tests/unit/trial.h"

static uint32_t image[] = {2, 5, 6}, channels[] = {4, 2}, hidden[] = {6};

static Gacc__V1__ModelSection cnn(Gacc__V1__Norm norm, Gacc__V1__Pool pool)
{
    Gacc__V1__ModelSection spec = GACC__V1__MODEL_SECTION__INIT;
    spec.type = GACC__V1__MODEL_TYPE__MODEL_CNN;
    spec.image = image;
    spec.n_image = 3;
    spec.inputs = 2 * 5 * 6;
    spec.channels = channels;
    spec.n_channels = 2;
    spec.kernel = 3;
    spec.pool = pool;
    spec.hidden = hidden;
    spec.n_hidden = 1;
    spec.outputs = 3;
    spec.bias = 1;
    spec.norm = norm;
    spec.norm_groups = 2;
    spec.norm_momentum = 0.1;
    spec.activation = GACC__V1__ACTIVATION__ACTIVATION_TANH;
    spec.loss = GACC__V1__LOSS__LOSS_CROSS_ENTROPY;
    return spec;
}

static void gradient_is_the_slope_of_the_loss(void **state)
{
    (void)state;
    static const Gacc__V1__Norm norms[] = {GACC__V1__NORM__NORM_NONE, GACC__V1__NORM__NORM_GROUP,
                                           GACC__V1__NORM__NORM_BATCH};
    for (unsigned variant = 0; variant < 9; variant++) {
        Gacc__V1__ModelSection spec = cnn(norms[variant / 3], (Gacc__V1__Pool)(variant % 3));
        spec.bias = variant % 2;
        struct trial trial = trial_open(kernels_open_reference, DTYPE_FP64, &spec, 3);
        trial_read(&trial, 0, 3);
        trial.batch->weight[1] = 0;
        trial_check_gradient(&trial, 1, 1e-6);
        trial_close(&trial);
    }
}

static void tensors_are_named_and_shaped_as_torch_has_them(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t shape[4];
    } tensors[] = {
        {"layers.0.weight", {4, 2, 3, 3}}, {"layers.0.bias", {4}}, {"norms.0.weight", {4}}, {"norms.0.bias", {4}},
        {"layers.1.weight", {2, 4, 3, 3}}, {"layers.1.bias", {2}}, {"norms.1.weight", {2}}, {"norms.1.bias", {2}},
        {"layers.2.weight", {6, 2}},       {"layers.2.bias", {6}}, {"norms.2.weight", {6}}, {"norms.2.bias", {6}},
        {"layers.3.weight", {3, 6}},       {"layers.3.bias", {3}}}; /* 5 × 6 becomes 2 × 3, then 1 × 1 */
    const Gacc__V1__ModelSection spec = cnn(GACC__V1__NORM__NORM_GROUP, GACC__V1__POOL__POOL_MAX);
    struct model *model;
    assert_int_equal(model_open(&model, &spec, DTYPE_FP32, NULL), 0);
    assert_int_equal(model->table.count, sizeof tensors / sizeof *tensors);
    for (size_t i = 0; i < model->table.count; i++) {
        assert_string_equal(model->table.tensors[i].name, tensors[i].name);
        assert_memory_equal(model->table.tensors[i].shape, tensors[i].shape, sizeof tensors[i].shape);
    }
    assert_true(model->table.tensors[4].init_scale == 1 / sqrt(4 * 3 * 3));
    model_close(model);
}

/* One channel of 2 × 2, a kernel of ones without its centre: every place has the sum of the others. */
static void one_image_by_hand(void **state)
{
    (void)state;
    static uint32_t one[] = {1}, small[] = {1, 2, 2};
    Gacc__V1__ModelSection spec = cnn(GACC__V1__NORM__NORM_NONE, GACC__V1__POOL__POOL_NONE);
    spec.image = small;
    spec.inputs = 4;
    spec.channels = one;
    spec.n_channels = 1;
    spec.n_hidden = 0;
    spec.outputs = 1;
    spec.bias = 0;
    spec.activation = GACC__V1__ACTIVATION__ACTIVATION_NONE;
    spec.loss = GACC__V1__LOSS__LOSS_HALF_MSE;
    struct trial trial = trial_open(kernels_open_cpu, DTYPE_FP32, &spec, 1);
    trial_read(&trial, 0, 1);
    for (size_t i = 0; i < 9; i++) trial.parameters[i] = i != 4;
    for (size_t i = 0; i < 4; i++) {
        trial.batch->x[i] = (double)(i + 1);         /* 1 2 / 3 4 becomes 9 8 / 7 6 */
        trial.parameters[9 + i] = i == 0 ? 1 : 0.25; /* 9 + (8 + 7 + 6)/4 = 14.25 */
    }
    trial.batch->y[0] = 12.25;
    trial_pass(&trial, 1, 1);
    assert_true(trial.loss == 2);
    const double gradient[] = {9, 8, 7, 6}; /* of the linear layer: 2 times what enters it */
    for (size_t i = 0; i < 4; i++) assert_true(trial_gradient(&trial, 9 + i) == 2 * gradient[i]);
    /* the kernel's centre: 2·(1 + 2/4 + 3/4 + 4/4) */
    assert_true(trial_gradient(&trial, 4) == 6.5);
    trial_close(&trial);
}

/* Case 28-4: eight rows at once, and one by one. */
static void groupnorm_does_not_depend_on_the_split(void **state)
{
    (void)state;
    const Gacc__V1__ModelSection spec = cnn(GACC__V1__NORM__NORM_GROUP, GACC__V1__POOL__POOL_AVERAGE);
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
    assert_true(trial_distance(&small, &whole, 0, trial_parameters(&whole)) <= 1e-6);
    trial_close(&small);
    trial_close(&whole);
}

/* The reference sees the parameters as the type rounds them. */
static void every_type_agrees_with_the_reference(void **state)
{
    (void)state;
    static const enum dtype types[] = {DTYPE_FP64, DTYPE_FP32, DTYPE_FP16, DTYPE_BF16};
    static const double allowed[] = {1e-13, 1e-5, 2e-2, 2e-1};
    const Gacc__V1__ModelSection spec = cnn(GACC__V1__NORM__NORM_BATCH, GACC__V1__POOL__POOL_AVERAGE);
    for (size_t t = 0; t < 4; t++) {
        struct trial trial = trial_open(kernels_open_cpu, types[t], &spec, 6);
        struct trial reference = trial_open(kernels_open_reference, DTYPE_FP64, &spec, 6);
        trial_read(&trial, 0, 6);
        trial_read(&reference, 0, 6);
        trial_pass(&trial, 64, 1);
        trial_pass(&reference, 64, 1);
        const double apart = trial_distance(&trial, &reference, 0, trial_parameters(&trial));
        print_message("cnn %s: %.2e of the norm, allowed %.0e\n", dtype_name(types[t]), apart, allowed[t]);
        assert_true(apart <= allowed[t]);
        trial_close(&trial);
        trial_close(&reference);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradient_is_the_slope_of_the_loss),
        cmocka_unit_test(tensors_are_named_and_shaped_as_torch_has_them),
        cmocka_unit_test(one_image_by_hand),
        cmocka_unit_test(groupnorm_does_not_depend_on_the_split),
        cmocka_unit_test(every_type_agrees_with_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
