/* A critic's loss and the penalty on its gradient: every instance against the reference. The penalty is worked out in
 * the wide type throughout: what is allowed does not depend on the compute type. */
#include "tests/unit/kernels_support.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define LAYERS 4

/* --- the critic's loss -------------------------------------------------------------------------------------------- */

static void critic_rows(struct instance *t, size_t rows, bool has_seed)
{
    uint64_t state = rows;
    char what[200];
    struct array prediction = array_random(t->type, rows, 0, 1, &state), gradient = array_new(t->type, rows);
    struct array seed = array_random(t->wide, rows, 0, 1, &state);
    double *target = malloc((rows + 1) * sizeof *target), *weight = malloc((rows + 1) * sizeof *weight);
    double loss = 3, wanted = 3;
    for (size_t r = 0; r < rows; r++) {
        target[r] = random_unit(&state);
        weight[r] = r % 5 == 2 ? 0 : 0.5 + (double)(r % 3);
        if (weight[r] == 0) target[r] = (double)NAN, array_set(&prediction, r, (double)NAN);
    }
    DESCRIBE(what, t, "critic_loss of %zu", rows);
    t->table->critic_loss(t->kernels, has_seed ? gradient.data : NULL, prediction.data, target, weight,
                          has_seed ? seed.data : NULL, rows, &loss);
    t->reference_table->critic_loss(t->reference, has_seed ? gradient.exact : NULL, prediction.exact, target, weight,
                                    has_seed ? seed.exact : NULL, rows, &wanted);
    assert_near(loss, wanted, 0x1p-50 * (double)(rows + 10));
    array_check(what, &gradient, t->unit + t->wide_unit, 0);
    if (has_seed) { /* in the place of the prediction */
        t->table->critic_loss(t->kernels, prediction.data, prediction.data, target, weight, seed.data, rows, &loss);
        assert_memory_equal(prediction.data, gradient.data, rows * dtype_size(t->type));
    }
    array_free(&prediction), array_free(&gradient), array_free(&seed);
    free(target), free(weight);
}

static void critic_lengths(struct instance *t)
{
    static const size_t lengths[] = {0, 1, 3, 300, 1200};
    for (size_t i = 0; i < COUNT(lengths); i++)
        for (int has_seed = 0; has_seed < 2; has_seed++) critic_rows(t, lengths[i], has_seed);
}

static void critic_loss_agrees(void **state)
{
    (void)state;
    for_each_instance(critic_lengths);
}

/* --- the penalty -------------------------------------------------------------------------------------------------- */

struct network {
    size_t count, widths[LAYERS + 1], rows;
};

/* The arrays of a layer; `exact` makes the reference's description of them. */
struct layer_arrays {
    struct array weight, bias, dweight, dbias;
};

static struct penalty penalty_of(const struct network *network, struct layer_arrays *arrays, bool exact, bool biased,
                                 size_t without_gradient)
{
    struct penalty penalty = {.count = network->count, .lambda = 3};
    for (size_t l = 0; l < network->count; l++) {
        struct layer_arrays *a = &arrays[l];
        struct penalty_layer *layer = &penalty.layers[l];
        layer->in = network->widths[l], layer->out = network->widths[l + 1];
        layer->weight = exact ? a->weight.exact : a->weight.data;
        if (biased) layer->bias = exact ? a->bias.exact : a->bias.data;
        if (l == without_gradient) continue;
        layer->dweight = exact ? (wide *)a->dweight.exact : a->dweight.data;
        if (biased) layer->dbias = exact ? (wide *)a->dbias.exact : a->dbias.data;
    }
    return penalty;
}

static void check_sum(const struct instance *t, const char *what, const struct array *sum)
{
    double largest = 0;
    for (size_t i = 0; i < sum->n; i++) largest = fmax(largest, fabs(sum->exact[i]));
    array_check(what, sum, t->wide_unit, 1000 * t->wide_unit * largest);
}

/* none: no row is penalised. */
static void penalty_case(struct instance *t, const struct network *network, enum activation activation, bool biased,
                         bool has_seed, bool none)
{
    const size_t rows = network->rows, inputs = network->widths[0];
    uint64_t state = rows + inputs;
    char what[200];
    struct layer_arrays arrays[LAYERS];
    for (size_t l = 0; l < network->count; l++) {
        const size_t in = network->widths[l], out = network->widths[l + 1];
        arrays[l] = (struct layer_arrays){
            array_random(t->type, in * out, 0, 2 / sqrt((double)in), &state), array_random(t->type, out, 0, 1, &state),
            array_random(t->wide, in * out, 0, 1, &state), array_random(t->wide, out, 0, 1, &state)};
    }
    double *x = malloc((rows * inputs + 1) * sizeof *x), *weight = calloc(rows + 1, sizeof *weight);
    double *share = calloc(rows + 1, sizeof *share), loss = 1, wanted = 1;
    struct array seed = array_random(t->wide, rows, 1, 0.5, &state);
    for (size_t r = 0; r < rows; r++) {
        weight[r] = none || r % 4 == 1 ? 0 : 0.5;
        share[r] = r % 4 == 2 ? 0 : 1.5;
        for (size_t i = 0; i < inputs; i++)
            x[r * inputs + i] = weight[r] * share[r] == 0 ? (double)NAN : random_unit(&state);
    }
    for (int call = 0; call < 2; call++) { /* in the second the first layer's gradients are wanted by nobody */
        const size_t without = call ? 0 : network->count;
        struct penalty own = penalty_of(network, arrays, false, biased, without);
        struct penalty exact = penalty_of(network, arrays, true, biased, without);
        own.activation = exact.activation = activation;
        struct array scratch = array_new(t->wide, penalty_scratch(&own, rows));
        t->table->gradient_penalty(t->kernels, &own, x, weight, share, has_seed ? seed.data : NULL, rows, &loss,
                                   scratch.data);
        t->reference_table->gradient_penalty(t->reference, &exact, x, weight, share, has_seed ? seed.exact : NULL, rows,
                                             &wanted, scratch.exact);
        array_free(&scratch);
    }
    DESCRIBE(what, t, "penalty %zu layers, %zu rows, activation %d bias %d seed %d", network->count, rows, activation,
             biased, has_seed);
    assert_near(loss, wanted, 1000 * t->wide_unit * fabs(wanted));
    for (size_t l = 0; l < network->count; l++) {
        check_sum(t, what, &arrays[l].dweight), check_sum(t, what, &arrays[l].dbias);
        array_free(&arrays[l].weight), array_free(&arrays[l].bias);
        array_free(&arrays[l].dweight), array_free(&arrays[l].dbias);
    }
    array_free(&seed);
    free(x), free(weight), free(share);
}

static void penalty_networks(struct instance *t)
{
    static const struct network networks[] = {
        {1, {4, 1}, 6}, {2, {5, 3, 1}, 1}, {3, {4, 5, 3, 1}, 7}, {4, {70, 40, 33, 5, 1}, 45}, {3, {4, 5, 3, 1}, 0},
    };
    for (size_t i = 0; i < COUNT(networks); i++) {
        for (int a = ACTIVATE_NONE; a <= ACTIVATE_GELU_TANH; a++)
            penalty_case(t, &networks[i], (enum activation)a, a % 2 == 0, true, false);
        penalty_case(t, &networks[i], ACTIVATE_TANH, true, false, false);
        penalty_case(t, &networks[i], ACTIVATE_GELU, true, true, true);
    }
    const struct network many = {2, {3, 4, 1}, 700}; /* more rows than a GPU's block lists at a time */
    penalty_case(t, &many, ACTIVATE_TANH, true, true, false);
}

static void gradient_penalty_agrees(void **state)
{
    (void)state;
    for_each_instance(penalty_networks);
}

/* Where nothing is penalised, not even weights that are no numbers reach a gradient. */
static void nothing_is_multiplied(struct instance *t)
{
    struct array weight = array_new(t->type, 2), dweight = array_new(t->wide, 2), scratch, seed = array_new(t->wide, 1);
    const double x[2] = {1, 2}, none = 0, some = 1;
    struct penalty penalty = {.count = 1, .lambda = 1, .layers = {{.weight = weight.data, .in = 2, .out = 1}}};
    scratch = array_new(t->wide, penalty_scratch(&penalty, 1));
    penalty.layers[0].dweight = dweight.data;
    array_set(&dweight, 0, 5), array_set(&dweight, 1, 6);
    double loss = 7;
    t->table->gradient_penalty(t->kernels, &penalty, x, &none, &some, seed.data, 1, &loss, scratch.data);
    t->table->gradient_penalty(t->kernels, &penalty, x, &some, &none, seed.data, 1, &loss, scratch.data);
    assert_true(loss == 7);
    array_check("dweight of nothing", &dweight, 0, 0);
    array_free(&weight), array_free(&dweight), array_free(&scratch), array_free(&seed);
}

static void what_is_not_penalised_is_not_multiplied(void **state)
{
    (void)state;
    for_each_instance(nothing_is_multiplied);
}

/* Case 29: ŷ = w·x, w = 2, S = 1024: the penalty is 1 and its derivative 2, at any x, to the last bit in every type. */
static void case_29(struct instance *t)
{
    struct array weight = array_new(t->type, 1), dweight = array_new(t->wide, 1), seed = array_new(t->wide, 1);
    const double x = 0.3, one = 1;
    struct penalty penalty = {.count = 1, .lambda = 1, .layers = {{.weight = weight.data, .in = 1, .out = 1}}};
    struct array scratch = array_new(t->wide, penalty_scratch(&penalty, 1));
    penalty.layers[0].dweight = dweight.data;
    array_set(&weight, 0, 2), array_set(&dweight, 0, 0), array_set(&seed, 0, 1024);
    double loss = 0;
    t->table->gradient_penalty(t->kernels, &penalty, &x, &one, &one, seed.data, 1, &loss, scratch.data);
    assert_true(loss == 1);
    assert_true(element_get(t->wide, dweight.data, 0) == 2048);
    /* w = 0: the norm has no derivative there; the penalty is λ, and nothing is NaN */
    array_set(&weight, 0, 0);
    t->table->gradient_penalty(t->kernels, &penalty, &x, &one, &one, seed.data, 1, &loss, scratch.data);
    assert_true(loss == 2);
    assert_true(element_get(t->wide, dweight.data, 0) == 2048);
    array_free(&weight), array_free(&dweight), array_free(&scratch), array_free(&seed);
}

static void the_penalty_is_of_the_unscaled_gradient(void **state)
{
    (void)state;
    for_each_instance(case_29);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(critic_loss_agrees),
        cmocka_unit_test(gradient_penalty_agrees),
        cmocka_unit_test(what_is_not_penalised_is_not_multiplied),
        cmocka_unit_test(the_penalty_is_of_the_unscaled_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
