/* The gradient penalty of mlp, and a critic's loss: the reference against finite differences, the others against it. */
#include "tests/unit/trial.h"

static uint32_t sizes[] = {5, 3};

static Gacc__V1__ModelSection critic(size_t hidden, Gacc__V1__Loss loss, Gacc__V1__Activation activation)
{
    Gacc__V1__ModelSection spec = GACC__V1__MODEL_SECTION__INIT;
    spec.type = GACC__V1__MODEL_TYPE__MODEL_MLP;
    spec.inputs = 4;
    spec.hidden = sizes;
    spec.n_hidden = hidden;
    spec.outputs = 1;
    spec.bias = 1;
    spec.loss = loss;
    spec.activation = activation;
    spec.penalty = 3;
    return spec;
}

static void read_rows(struct trial *trial)
{
    trial_read(trial, 0, 6);
    trial->batch->weight[1] = 0;
    trial->batch->weight[2] = 0.25;
    trial->batch->share[3] = 0;
    trial->batch->share[4] = 2.5;
}

static void gradient_is_the_slope_of_the_penalised_loss(void **state)
{
    (void)state;
    static const Gacc__V1__Loss losses[] = {GACC__V1__LOSS__LOSS_MSE, GACC__V1__LOSS__LOSS_HALF_MSE,
                                            GACC__V1__LOSS__LOSS_WASSERSTEIN};
    for (unsigned variant = 0; variant < 3 * 3 * 5 * 2; variant++) {
        Gacc__V1__ModelSection spec =
            critic(variant % 3, losses[variant / 3 % 3], (Gacc__V1__Activation)(variant / 9 % 5));
        spec.bias = variant >= 45;
        struct trial trial = trial_open(kernels_open_reference, DTYPE_FP64, &spec, 6);
        read_rows(&trial);
        trial_check_gradient(&trial, 1, 1e-6);
        trial_close(&trial);
    }
}

/* A loss and a gradient on the CPU against the reference's, both from the same rounded parameters and rows. */
static void compare(enum dtype type, const Gacc__V1__ModelSection *spec, double tolerance)
{
    struct trial own = trial_open(kernels_open_cpu, type, spec, 6);
    struct trial reference = trial_open(kernels_open_reference, DTYPE_FP64, spec, 6);
    for (size_t i = 0; i < trial_parameters(&own); i++)
        own.parameters[i] = reference.parameters[i] = round(own.parameters[i] * 64) / 64;
    read_rows(&own);
    read_rows(&reference);
    for (size_t i = 0; i < 24; i++) own.batch->x[i] = reference.batch->x[i] = round(own.batch->x[i] * 64) / 64;
    trial_clear(&own);
    trial_clear(&reference);
    trial_pass(&own, 0.5, 1);
    trial_pass(&reference, 0.5, 1);
    double largest = 0, worst = 0;
    for (size_t i = 0; i < trial_parameters(&own); i++) {
        largest = fmax(largest, fabs(trial_gradient(&reference, i)));
        worst = fmax(worst, fabs(trial_gradient(&own, i) - trial_gradient(&reference, i)));
    }
    if (worst > tolerance * largest || fabs(own.loss - reference.loss) > tolerance * fabs(reference.loss))
        fail_msg("%s, %zu hidden, activation %d: %g of %g; loss %g, wanted %g", dtype_name(type), spec->n_hidden,
                 (int)spec->activation, worst, largest, own.loss, reference.loss);
    trial_close(&own);
    trial_close(&reference);
}

static void the_cpu_does_as_the_reference_does(void **state)
{
    (void)state;
    for (unsigned variant = 0; variant < 3 * 5 * 2; variant++) {
        Gacc__V1__ModelSection spec =
            critic(variant % 3, GACC__V1__LOSS__LOSS_WASSERSTEIN, (Gacc__V1__Activation)(variant / 3 % 5));
        spec.bias = variant >= 15;
        compare(DTYPE_FP64, &spec, 1e-12);
        compare(DTYPE_FP32, &spec, 3e-5);
        compare(DTYPE_BF16, &spec, 0.03);
        compare(DTYPE_FP16, &spec, 4e-3);
    }
}

/* Case 29: ŷ = w·x, w = 2, S = 1024: the penalty is 1 and its derivative 2, at any x; of the scaled gradient it would
 * be 2047². In every type to the last bit, because the penalty is never rounded to it. */
static void the_penalty_is_of_the_unscaled_gradient(void **state)
{
    (void)state;
    static const enum dtype types[] = {DTYPE_FP64, DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};
    Gacc__V1__ModelSection spec = critic(0, GACC__V1__LOSS__LOSS_WASSERSTEIN, GACC__V1__ACTIVATION__ACTIVATION_NONE);
    spec.inputs = 1;
    spec.bias = 0;
    spec.penalty = 1;
    for (size_t t = 0; t < 4; t++) {
        struct trial trial = trial_open(kernels_open_cpu, types[t], &spec, 2);
        trial_read(&trial, 0, 2);
        trial.parameters[0] = 2;
        trial.batch->y[0] = trial.batch->y[1] = 0;
        trial_pass(&trial, 1024 / 2.0, 1);
        assert_true(trial.loss == 2); /* of two rows */
        assert_true(trial_gradient(&trial, 0) == 2048);
        trial_close(&trial);
    }
}

/* w = 0: the norm has no derivative there; the penalty is λ, and nothing is NaN. */
static void a_gradient_of_zero_is_penalised_without_a_direction(void **state)
{
    (void)state;
    Gacc__V1__ModelSection spec = critic(0, GACC__V1__LOSS__LOSS_WASSERSTEIN, GACC__V1__ACTIVATION__ACTIVATION_NONE);
    for (int reference = 0; reference < 2; reference++) {
        struct trial trial = trial_open(reference ? kernels_open_reference : kernels_open_cpu, DTYPE_FP64, &spec, 1);
        trial_read(&trial, 0, 1);
        for (size_t i = 0; i < trial_parameters(&trial); i++) trial.parameters[i] = 0;
        trial.batch->y[0] = 0;
        trial_pass(&trial, 1, 1);
        assert_true(trial.loss == 3);
        for (size_t i = 0; i < trial_parameters(&trial); i++) assert_true(trial_gradient(&trial, i) == 0);
        trial_close(&trial);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradient_is_the_slope_of_the_penalised_loss),
        cmocka_unit_test(the_cpu_does_as_the_reference_does),
        cmocka_unit_test(the_penalty_is_of_the_unscaled_gradient),
        cmocka_unit_test(a_gradient_of_zero_is_penalised_without_a_direction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
