/* mlp and linear on the reference kernels in fp64. */
#include "tests/unit/trial.h"

static uint32_t sizes[] = {5, 3};

static Gacc__V1__ModelSection mlp(size_t hidden, Gacc__V1__Loss loss)
{
    Gacc__V1__ModelSection spec = GACC__V1__MODEL_SECTION__INIT;
    spec.type = GACC__V1__MODEL_TYPE__MODEL_MLP;
    spec.inputs = 4;
    spec.hidden = sizes;
    spec.n_hidden = hidden;
    spec.outputs = 3;
    spec.bias = 1;
    spec.loss = loss;
    return spec;
}

static Gacc__V1__ModelSection linear(uint32_t inputs)
{
    Gacc__V1__ModelSection spec = GACC__V1__MODEL_SECTION__INIT;
    spec.type = GACC__V1__MODEL_TYPE__MODEL_LINEAR;
    spec.inputs = inputs;
    spec.bias = 1;
    spec.loss = GACC__V1__LOSS__LOSS_HALF_MSE;
    return spec;
}

static struct trial open_trial(const Gacc__V1__ModelSection *spec, size_t rows)
{
    return trial_open(kernels_open_reference, DTYPE_FP64, spec, rows);
}

static void gradient_is_the_slope_of_the_loss_in_every_combination(void **state)
{
    (void)state;
    static const Gacc__V1__Loss losses[] = {GACC__V1__LOSS__LOSS_MSE, GACC__V1__LOSS__LOSS_HALF_MSE,
                                            GACC__V1__LOSS__LOSS_CROSS_ENTROPY};
    for (unsigned variant = 0; variant < 3 * 3 * 5 * 2 * 2; variant++) {
        Gacc__V1__ModelSection spec = mlp(variant % 3, losses[variant / 3 % 3]);
        spec.activation = (Gacc__V1__Activation)(variant / 9 % 5);
        spec.bias = variant / 45 % 2;
        spec.norm = (Gacc__V1__Norm)(variant / 90);
        struct trial trial = open_trial(&spec, 6);
        trial_read(&trial, 0, 6);
        trial.batch->weight[1] = 0;
        trial.batch->weight[2] = 0.25;
        trial_check_gradient(&trial, 1, 1e-7);
        trial_close(&trial);
    }
}

static void gradient_of_adapters_is_the_slope_of_the_loss_with_their_dropout(void **state)
{
    (void)state;
    char all[] = "*", second[] = "layers.1";
    char *targets[] = {all};
    for (unsigned variant = 0; variant < 5 * 2 * 2; variant++) {
        Gacc__V1__ModelSection spec = mlp(2, GACC__V1__LOSS__LOSS_MSE);
        spec.activation = (Gacc__V1__Activation)(variant % 5);
        spec.norm = (Gacc__V1__Norm)(variant / 5 % 2);
        targets[0] = variant / 10 ? second : all;
        spec.lora_rank = 2;
        spec.lora_alpha = 3;
        spec.lora_dropout = 0.3;
        spec.lora_targets = targets;
        spec.n_lora_targets = 1;
        struct trial trial = open_trial(&spec, 6);
        assert_int_equal(trial.model->table.count - trial.model->table.fixed, variant / 10 ? 2 : 6);
        trial_read(&trial, 0, 6);
        trial.batch->weight[2] = 0.25;
        trial_check_gradient(&trial, 1, 1e-7);
        trial_close(&trial);
    }
}

static void gradient_of_linear_is_the_slope_of_its_loss(void **state)
{
    (void)state;
    for (unsigned variant = 0; variant < 4; variant++) {
        Gacc__V1__ModelSection spec = linear(7);
        spec.bias = variant & 1;
        spec.loss = variant & 2 ? GACC__V1__LOSS__LOSS_MSE : GACC__V1__LOSS__LOSS_HALF_MSE;
        struct trial trial = open_trial(&spec, 3);
        trial_read(&trial, 0, 3);
        trial_check_gradient(&trial, 1, 1e-7);
        trial_close(&trial);
    }
}

static void half_mse_sums_over_outputs_and_mse_averages(void **state)
{
    (void)state;
    const struct {
        Gacc__V1__Loss loss;
        double expected; /* errors 1, 2, 3: ½·14 and 14/3 */
    } cases[] = {{GACC__V1__LOSS__LOSS_HALF_MSE, 7}, {GACC__V1__LOSS__LOSS_MSE, 14.0 / 3}};
    for (size_t i = 0; i < 2; i++) {
        Gacc__V1__ModelSection spec = mlp(0, cases[i].loss);
        struct trial trial = open_trial(&spec, 1);
        trial_read(&trial, 0, 1);
        memset(trial.parameters, 0, trial_parameters(&trial) * sizeof *trial.parameters);
        for (size_t o = 0; o < 3; o++) trial.batch->y[o] = (double)(o + 1);
        trial_pass(&trial, 0, 0);
        assert_true(fabs(trial.loss - cases[i].expected) < 1e-14);
        trial_close(&trial);
    }
}

/* Case 01-1: a classifier of two with only an output bias (0, ln 3), so that p = (¼, ¾). */
static void four_targets_in_two_micro_batches_give_the_token_mean(void **state)
{
    (void)state;
    Gacc__V1__ModelSection spec = mlp(0, GACC__V1__LOSS__LOSS_CROSS_ENTROPY);
    spec.outputs = 2;
    struct trial trial = open_trial(&spec, 3);
    memset(trial.parameters, 0, trial_parameters(&trial) * sizeof *trial.parameters);
    const struct tensor *bias = tensor_find(&trial.model->table, "layers.0.bias");
    trial.parameters[bias->begin + 1] = log(3);
    double loss = 0;
    for (unsigned k = 0; k < 2; k++) {
        trial_read(&trial, k * 3, 3);
        for (size_t r = 0; r < 3; r++) {
            trial.batch->targets[r] = (int32_t)k;
            trial.batch->weight[r] = k == 0 || r == 0;
        }
        trial_pass(&trial, 1.0 / 4, 1);
        loss += trial.loss / 4;
    }
    assert_true(fabs(loss - 1.111641) < 5e-7);
    assert_true(fabs(trial_gradient(&trial, bias->begin) + 0.5) < 1e-14);
    trial_close(&trial);
}

/* Requirement A3: one weight w = 0, x = 1; A holds the target 2, B three targets −1. */
static void uneven_micro_batches_weigh_by_token_or_by_micro_batch_as_the_seeds_say(void **state)
{
    (void)state;
    const struct {
        double averaging[2]; /* of A and of B */
        double loss, gradient;
    } cases[] = {
        {{1.0 / 4, 1.0 / 4}, 0.875, 0.25}, /* token: 1/W */
        {{1.0 / 2, 1.0 / 6}, 1.25, -0.5},  /* microbatch: 1/(M'·n_k) */
    };
    for (size_t i = 0; i < 2; i++) {
        Gacc__V1__ModelSection spec = linear(1);
        spec.bias = 0;
        struct trial trial = open_trial(&spec, 3);
        trial.parameters[0] = 0;
        double loss = 0;
        for (unsigned k = 0; k < 2; k++) {
            size_t rows = k == 0 ? 1 : 3;
            trial_read(&trial, 0, rows);
            for (size_t r = 0; r < rows; r++) {
                trial.batch->x[r] = 1;
                trial.batch->y[r] = k == 0 ? 2 : -1;
            }
            trial_pass(&trial, cases[i].averaging[k], 1);
            loss += cases[i].averaging[k] * trial.loss;
        }
        assert_true(fabs(loss - cases[i].loss) < 1e-14);
        assert_true(fabs(trial_gradient(&trial, 0) - cases[i].gradient) < 1e-14);
        trial_close(&trial);
    }
}

static void what_stands_in_a_masked_row_reaches_neither_loss_nor_gradient(void **state)
{
    (void)state;
    Gacc__V1__ModelSection spec = mlp(2, GACC__V1__LOSS__LOSS_MSE);
    spec.activation = GACC__V1__ACTIVATION__ACTIVATION_TANH;
    struct trial trial = open_trial(&spec, 3), alone = open_trial(&spec, 3);
    trial_read(&trial, 0, 3);
    trial_read(&alone, 0, 2);
    trial.batch->weight[2] = 0;
    trial.batch->x[2 * 4] = (double)INFINITY;
    trial.batch->y[2 * 3 + 1] = (double)NAN;
    trial_pass(&trial, 1, 1);
    trial_pass(&alone, 1, 1);
    assert_true(trial.loss == alone.loss);
    for (size_t i = 0; i < trial_parameters(&trial); i++)
        assert_true(trial_gradient(&trial, i) == trial_gradient(&alone, i));
    trial_close(&trial);
    trial_close(&alone);
}

static void tensors_are_named_and_start_as_documented(void **state)
{
    (void)state;
    static const char *const names[] = {"layers.0.weight", "layers.0.bias", "norms.0.weight", "norms.0.bias",
                                        "layers.1.weight", "layers.1.bias", "norms.1.weight", "norms.1.bias",
                                        "layers.2.weight", "layers.2.bias"};
    Gacc__V1__ModelSection spec = mlp(2, GACC__V1__LOSS__LOSS_MSE), line = linear(9);
    spec.norm = GACC__V1__NORM__NORM_LAYER;
    struct model *model;
    assert_int_equal(model_open(&model, &spec, DTYPE_FP32, NULL), 0);
    assert_int_equal(model->table.count, sizeof names / sizeof *names);
    for (size_t i = 0; i < model->table.count; i++) assert_string_equal(model->table.tensors[i].name, names[i]);
    const struct tensor *weight = tensor_find(&model->table, "layers.1.weight"); /* [out, in] */
    assert_int_equal(weight->shape[0], 3);
    assert_int_equal(weight->shape[1], 5);
    assert_int_equal(weight->init, TENSOR_UNIFORM);
    assert_true(weight->init_scale == 1 / sqrt(5));
    model_close(model);

    assert_int_equal(model_open(&model, &line, DTYPE_FP32, NULL), 0);
    assert_int_equal(model->table.count, 2);
    assert_int_equal(tensor_find(&model->table, "weight")->shape[0], 1);
    assert_int_equal(tensor_find(&model->table, "weight")->shape[1], 9);
    assert_int_equal(tensor_find(&model->table, "bias")->size, 1);
    model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradient_is_the_slope_of_the_loss_in_every_combination),
        cmocka_unit_test(gradient_of_adapters_is_the_slope_of_the_loss_with_their_dropout),
        cmocka_unit_test(gradient_of_linear_is_the_slope_of_its_loss),
        cmocka_unit_test(half_mse_sums_over_outputs_and_mse_averages),
        cmocka_unit_test(four_targets_in_two_micro_batches_give_the_token_mean),
        cmocka_unit_test(uneven_micro_batches_weigh_by_token_or_by_micro_batch_as_the_seeds_say),
        cmocka_unit_test(what_stands_in_a_masked_row_reaches_neither_loss_nor_gradient),
        cmocka_unit_test(tensors_are_named_and_start_as_documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
