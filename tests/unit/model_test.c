/* The driver of stages, tape, rounding, and whole models on the cpu kernels against the reference. */
#include "tests/unit/trial.h"

static Gacc__V1__ModelSection tape(uint32_t size)
{
    Gacc__V1__ModelSection spec = GACC__V1__MODEL_SECTION__INIT;
    spec.type = GACC__V1__MODEL_TYPE__MODEL_TAPE;
    spec.size = size;
    return spec;
}

static Gacc__V1__ModelSection gpt(void)
{
    Gacc__V1__ModelSection spec = GACC__V1__MODEL_SECTION__INIT;
    spec.type = GACC__V1__MODEL_TYPE__MODEL_GPT;
    spec.layers = 2;
    spec.heads = 3;
    spec.width = 24;
    spec.context = 9;
    spec.vocab = 31;
    spec.bias = spec.tie = 1;
    spec.dropout = 0.1;
    spec.pad_vocab = 16;
    spec.activation = GACC__V1__ACTIVATION__ACTIVATION_GELU;
    spec.init_std = 0.02;
    return spec;
}

static uint32_t hidden[] = {17, 9};

static Gacc__V1__ModelSection mlp(void)
{
    Gacc__V1__ModelSection spec = GACC__V1__MODEL_SECTION__INIT;
    spec.type = GACC__V1__MODEL_TYPE__MODEL_MLP;
    spec.inputs = 5;
    spec.hidden = hidden;
    spec.n_hidden = 2;
    spec.outputs = 4;
    spec.bias = 1;
    spec.norm = GACC__V1__NORM__NORM_LAYER;
    spec.activation = GACC__V1__ACTIVATION__ACTIVATION_TANH;
    spec.loss = GACC__V1__LOSS__LOSS_CROSS_ENTROPY;
    return spec;
}

/* --- the driver -----------------------------------------------------------------------------------------------------
 */

static void unknown_model_type_is_refused(void **state)
{
    (void)state;
    Gacc__V1__ModelSection spec = GACC__V1__MODEL_SECTION__INIT;
    struct model *model;
    struct error error;
    assert_int_equal(model_open(&model, &spec, DTYPE_FP32, &error), -STATUS_JOB);
    assert_string_equal(error.text, "model.type: no model of type 0");
}

static void tensors_lie_one_after_the_other_without_gaps(void **state)
{
    (void)state;
    Gacc__V1__ModelSection spec = gpt();
    struct model *model;
    uint64_t at = 0;
    assert_int_equal(model_open(&model, &spec, DTYPE_FP32, NULL), 0);
    for (size_t i = 0; i < model->table.count; i++) {
        const struct tensor *tensor = &model->table.tensors[i];
        assert_int_equal(tensor->begin, at);
        assert_ptr_equal(tensor_find(&model->table, tensor->name), tensor);
        at += tensor->size;
    }
    assert_int_equal(model->table.parameters, at);
    assert_null(tensor_find(&model->table, "h.0.attn"));
    model_close(model);
}

static void activations_grow_with_rows_alone_and_evaluation_takes_less(void **state)
{
    (void)state;
    Gacc__V1__ModelSection spec = gpt();
    struct model *model;
    struct kernels *kernels = kernels_open_cpu(&(struct kernels_options){.compute_type = DTYPE_FP32, .threads = 1});
    size_t bytes[2][2];
    spec.context = 64; /* buffers are whole cache lines */
    spec.width = 48;
    assert_int_equal(model_open(&model, &spec, DTYPE_FP32, NULL), 0);
    for (size_t i = 0; i < 4; i++) {
        struct activations *activations;
        assert_int_equal(activations_open(&activations, model, kernels, i % 2 ? 8 : 4, i / 2, NULL), 0);
        bytes[i / 2][i % 2] = activations_bytes(activations);
        assert_int_equal(activations_measure(model, i % 2 ? 8 : 4, i / 2), bytes[i / 2][i % 2]);
        activations_close(activations);
    }
    assert_int_equal(bytes[0][1], 2 * bytes[0][0]);
    assert_int_equal(bytes[1][1], 2 * bytes[1][0]);
    assert_true(bytes[0][0] < bytes[1][0] * 3 / 4);
    model_close(model);
    kernels_close(kernels);
}

static void fewer_rows_than_there_is_room_for_give_what_exact_room_gives(void **state)
{
    (void)state;
    Gacc__V1__ModelSection spec = gpt();
    struct trial roomy = trial_open(kernels_open_reference, DTYPE_FP64, &spec, 7);
    struct trial exact = trial_open(kernels_open_reference, DTYPE_FP64, &spec, 2);
    trial_read(&roomy, 0, 7);
    trial_pass(&roomy, 1, 1);
    trial_clear(&roomy);
    trial_read(&roomy, 3, 2);
    trial_read(&exact, 3, 2);
    trial_pass(&roomy, 1, 1);
    trial_pass(&exact, 1, 1);
    for (size_t i = 0; i < trial_parameters(&exact); i++)
        assert_true(trial_gradient(&roomy, i) == trial_gradient(&exact, i));
    trial_close(&roomy);
    trial_close(&exact);
}

/* --- tape -----------------------------------------------------------------------------------------------------------
 */

static const enum dtype types[] = {DTYPE_FP64, DTYPE_FP32, DTYPE_FP16, DTYPE_BF16};

/* A micro-batch of rows of one g each, multiplied by `averaging`, added to the gradient. */
static void play(struct trial *trial, double averaging, size_t rows, const double *g, const double *weight)
{
    trial_read(trial, 0, rows);
    for (size_t r = 0; r < rows; r++) {
        trial->batch->x[r] = g[r];
        if (weight) trial->batch->weight[r] = weight[r];
    }
    trial_pass(trial, averaging, 1);
}

/* Requirement B4: K = 3, S = 8, g = 1, 2, 3: accumulated 16. */
static void tape_accumulates_what_the_data_say(void **state)
{
    (void)state;
    for (size_t t = 0; t < 4; t++) {
        Gacc__V1__ModelSection spec = tape(1);
        struct trial trial = trial_open(kernels_open_cpu, types[t], &spec, 1);
        for (int k = 1; k <= 3; k++) play(&trial, 8.0 / 3, 1, &(double){k}, NULL);
        double unit = t < 2 ? 1e-6 : t == 2 ? 0x1p-11 : 0x1p-8;
        assert_true(fabs(trial_gradient(&trial, 0) - 16) <= 16 * unit);
        trial_close(&trial);
    }
}

static void loss_of_tape_is_the_weighted_product_with_its_parameter(void **state)
{
    (void)state;
    Gacc__V1__ModelSection spec = tape(1);
    struct trial trial = trial_open(kernels_open_cpu, DTYPE_FP32, &spec, 2);
    trial.parameters[0] = 3;
    play(&trial, 0, 2, (double[]){2, -5}, (double[]){1, 0.5});
    assert_true(trial.loss == 3 * 2 + 0.5 * 3 * -5);
    trial_close(&trial);
}

static void masked_rows_of_tape_may_hold_anything(void **state)
{
    (void)state;
    for (size_t t = 0; t < 4; t++) {
        Gacc__V1__ModelSection spec = tape(1);
        struct trial trial = trial_open(kernels_open_cpu, types[t], &spec, 3);
        play(&trial, 2, 3, (double[]){(double)INFINITY, 1.5, (double)NAN}, (double[]){0, 1, 0});
        assert_true(trial_gradient(&trial, 0) == 3);
        assert_true(isfinite(trial.loss));
        trial_close(&trial);
    }
}

static void gradient_of_20000_at_scale_4_overflows_in_fp16_alone(void **state)
{
    (void)state;
    for (size_t t = 0; t < 4; t++) {
        Gacc__V1__ModelSection spec = tape(1);
        struct trial trial = trial_open(kernels_open_cpu, types[t], &spec, 1);
        play(&trial, 4, 1, &(double){20000}, NULL);
        assert_int_equal(isinf(trial_gradient(&trial, 0)) != 0, types[t] == DTYPE_FP16);
        trial_clear(&trial);
        play(&trial, 2, 1, &(double){-20000}, NULL); /* a fp16 number */
        assert_true(fabs(trial_gradient(&trial, 0) + 40000) <= (types[t] == DTYPE_BF16 ? 128 : 0));
        trial_close(&trial);
    }
}

/* 60000 + 60000 is beyond fp16 but the sum over micro-batches is wide. */
static void gradients_are_added_in_the_wide_type(void **state)
{
    (void)state;
    Gacc__V1__ModelSection spec = tape(1);
    struct trial trial = trial_open(kernels_open_cpu, DTYPE_FP16, &spec, 1);
    play(&trial, 1, 1, &(double){60000}, NULL);
    play(&trial, 1, 1, &(double){60000}, NULL);
    assert_true(trial_gradient(&trial, 0) == 120000);
    trial_close(&trial);
}

/* --- rounding -------------------------------------------------------------------------------------------------------
 */

static double rounded(struct kernels *kernels, double value)
{
    compute *narrow = calloc(1, 8);
    wide *widened = calloc(1, 8);
    kernels->table->cast_rows(kernels, narrow, &value, (double[]){1}, 1, 1);
    kernels->table->accumulate(kernels, widened, narrow, 1);
    double result = kernels->compute_type == DTYPE_FP64 ? *(double *)widened : (double)*(float *)widened;
    free(narrow);
    free(widened);
    return result;
}

static void doubles_are_rounded_once(void **state)
{
    (void)state;
    /* just above the tie between two numbers of the type: by way of fp32 the tie is all that is left, and goes to even
     */
    static const struct {
        enum dtype type;
        double value, expected;
    } cases[] = {{DTYPE_FP16, 1 + 0x1p-11 + 0x1p-30, 1 + 0x1p-10},
                 {DTYPE_FP16, 1 + 0x1p-11, 1},
                 {DTYPE_FP16, 1 + 3 * 0x1p-11 - 0x1p-40, 1 + 0x1p-10},
                 {DTYPE_FP16, 65520 - 0x1p-20, 65504},
                 {DTYPE_FP16, 0x1p-25 + 0x1p-60, 0x1p-24},
                 {DTYPE_FP16, 0x1p-25, 0},
                 {DTYPE_BF16, 1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-7},
                 {DTYPE_BF16, -(1 + 0x1p-8 + 0x1p-40), -(1 + 0x1p-7)},
                 {DTYPE_BF16, 1 + 0x1p-8, 1},
                 {DTYPE_FP32, 1 + 0x1p-24 + 0x1p-50, 1 + 0x1p-23},
                 {DTYPE_FP64, 1 + 0x1p-52, 1 + 0x1p-52}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kernels *kernels =
            kernels_open_cpu(&(struct kernels_options){.compute_type = cases[i].type, .threads = 1});
        double found = rounded(kernels, cases[i].value);
        if (found != cases[i].expected)
            fail_msg("%s: %a becomes %a, not %a", dtype_name(cases[i].type), cases[i].value, found, cases[i].expected);
        kernels_close(kernels);
    }
}

static void values_beyond_the_type_become_infinite(void **state)
{
    (void)state;
    for (size_t t = 1; t < 4; t++) {
        struct kernels *kernels = kernels_open_cpu(&(struct kernels_options){.compute_type = types[t], .threads = 1});
        assert_true(isinf(rounded(kernels, 1e300)) && isinf(rounded(kernels, -3.4028236e38)));
        assert_true(isnan(rounded(kernels, (double)NAN)));
        if (types[t] == DTYPE_FP16) assert_true(isinf(rounded(kernels, 65520)));
        kernels_close(kernels);
    }
}

/* --- whole models ---------------------------------------------------------------------------------------------------
 */

/* The reference sees the parameters and seeds as the type rounds them, so that only the arithmetic differs. */
static void compare(const Gacc__V1__ModelSection *spec, enum dtype type, double allowed)
{
    const double averaging = 64;
    struct trial trial = trial_open(kernels_open_cpu, type, spec, 5);
    struct trial reference = trial_open(kernels_open_reference, DTYPE_FP64, spec, 5);
    for (size_t i = 0; i < trial_parameters(&trial); i++)
        trial.parameters[i] = reference.parameters[i] = rounded(trial.kernels, trial.parameters[i]);
    trial_read(&trial, 0, 5);
    trial_read(&reference, 0, 5);
    trial.batch->weight[1] = reference.batch->weight[1] = 0;
    trial_pass(&trial, averaging, 1);
    trial_pass(&reference, averaging, 1);
    double worst = fabs(trial.loss / reference.loss - 1);
    const char *where = "the loss";
    for (size_t t = 0; t < trial.model->table.count; t++) {
        const struct tensor *tensor = &trial.model->table.tensors[t];
        const double apart = trial_distance(&trial, &reference, tensor->begin, tensor->begin + tensor->size);
        if (!(apart <= worst)) worst = apart, where = tensor->name;
    }
    print_message("%s %s: largest relative difference %.2e (%s), allowed %.0e\n", spec->vocab ? "gpt" : "mlp",
                  dtype_name(type), worst, where, allowed);
    assert_true(worst <= allowed);
    trial_close(&trial);
    trial_close(&reference);
}

static void whole_models_agree_with_the_reference_in_every_type(void **state)
{
    (void)state;
    static const double allowed[] = {1e-13, 5e-6, 1e-2, 1e-1};
    for (size_t t = 0; t < 4; t++) {
        Gacc__V1__ModelSection specs[] = {gpt(), mlp()};
        for (size_t i = 0; i < 2; i++) compare(&specs[i], types[t], allowed[t]);
    }
}

/* A hidden value of 70000 is finite in fp32 and infinite in fp16: the gradient must say so. */
static void activations_beyond_65504_overflow_in_fp16(void **state)
{
    (void)state;
    Gacc__V1__ModelSection spec = mlp();
    spec.norm = GACC__V1__NORM__NORM_NONE;
    spec.activation = GACC__V1__ACTIVATION__ACTIVATION_RELU;
    spec.loss = GACC__V1__LOSS__LOSS_MSE;
    for (size_t t = 0; t < 4; t++) {
        struct trial trial = trial_open(kernels_open_cpu, types[t], &spec, 1);
        trial_read(&trial, 0, 1);
        const struct tensor *bias = tensor_find(&trial.model->table, "layers.0.bias");
        trial.parameters[bias->begin] = 60000;
        trial_pass(&trial, 1e-3, 1);
        assert_true(isfinite(trial.loss));
        for (size_t i = 0; i < 5; i++) trial.parameters[i] = trial.batch->x[i] * 10000;
        trial_clear(&trial);
        trial_pass(&trial, 1e-3, 1);
        struct gradient_check sums = {0};
        trial.kernels->table->check(trial.kernels, &sums, trial.gradients, trial_parameters(&trial), 1);
        assert_int_equal(sums.nonfinite > 0, types[t] == DTYPE_FP16);
        trial_close(&trial);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_model_type_is_refused),
        cmocka_unit_test(tensors_lie_one_after_the_other_without_gaps),
        cmocka_unit_test(activations_grow_with_rows_alone_and_evaluation_takes_less),
        cmocka_unit_test(fewer_rows_than_there_is_room_for_give_what_exact_room_gives),
        cmocka_unit_test(tape_accumulates_what_the_data_say),
        cmocka_unit_test(loss_of_tape_is_the_weighted_product_with_its_parameter),
        cmocka_unit_test(masked_rows_of_tape_may_hold_anything),
        cmocka_unit_test(gradient_of_20000_at_scale_4_overflows_in_fp16_alone),
        cmocka_unit_test(gradients_are_added_in_the_wide_type),
        cmocka_unit_test(doubles_are_rounded_once),
        cmocka_unit_test(values_beyond_the_type_become_infinite),
        cmocka_unit_test(whole_models_agree_with_the_reference_in_every_type),
        cmocka_unit_test(activations_beyond_65504_overflow_in_fp16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
