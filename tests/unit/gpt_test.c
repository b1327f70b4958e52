/* GPT-2 as stages, on the reference kernels in fp64. */
#include "tests/unit/trial.h"

static Gacc__V1__ModelSection tiny(void)
{
    Gacc__V1__ModelSection spec = GACC__V1__MODEL_SECTION__INIT;
    spec.type = GACC__V1__MODEL_TYPE__MODEL_GPT;
    spec.layers = 2;
    spec.heads = 2;
    spec.width = 8;
    spec.context = 5;
    spec.vocab = 11;
    spec.bias = spec.tie = 1;
    spec.activation = GACC__V1__ACTIVATION__ACTIVATION_GELU;
    spec.init_std = 0.02;
    return spec;
}

static struct trial open_tiny(const Gacc__V1__ModelSection *spec, size_t rows)
{
    return trial_open(kernels_open_reference, DTYPE_FP64, spec, rows);
}

static const struct tensor *row(const struct trial *trial, const char *name)
{
    const struct tensor *tensor = tensor_find(&trial->model->table, name);
    assert_non_null(tensor);
    return tensor;
}

static void gradient_is_the_slope_of_the_loss_in_every_variant(void **state)
{
    (void)state;
    for (unsigned variant = 0; variant < 32; variant++) {
        Gacc__V1__ModelSection spec = tiny();
        spec.bias = variant & 1;
        spec.tie = variant >> 1 & 1;
        spec.dropout = variant >> 2 & 1 ? 0.3 : 0;
        spec.activation =
            variant >> 3 & 1 ? GACC__V1__ACTIVATION__ACTIVATION_GELU_TANH : GACC__V1__ACTIVATION__ACTIVATION_GELU;
        spec.pad_vocab = variant >> 4 & 1 ? 16 : 0;
        struct trial trial = open_tiny(&spec, 3);
        trial_read(&trial, 0, 3);
        trial.batch->weight[0] = 0.5;
        trial.batch->weight[1] = 0;
        trial_check_gradient(&trial, 7, 1e-7);
        trial_close(&trial);
    }
}

static void gradient_of_adapters_is_the_slope_of_the_loss_with_their_dropout(void **state)
{
    (void)state;
    char all[] = "*", one[] = "h.1.attn.c_attn", broad[] = "*.mlp.*.weight";
    char *const patterns[] = {all, one, broad};
    static const size_t tensors[] = {2 * 9, 2, 2 * 4};
    for (unsigned variant = 0; variant < 3 * 2; variant++) {
        char *targets[] = {patterns[variant % 3]};
        Gacc__V1__ModelSection spec = tiny();
        spec.tie = 0; /* the head may have one, too, whose rows are longer than the vocabulary */
        spec.pad_vocab = 8;
        spec.dropout = variant / 3 ? 0.2 : 0;
        spec.lora_rank = 3;
        spec.lora_alpha = 4.5;
        spec.lora_dropout = 0.3;
        spec.lora_targets = targets;
        spec.n_lora_targets = 1;
        struct trial trial = open_tiny(&spec, 2);
        assert_int_equal(trial.model->table.count - trial.model->table.fixed, tensors[variant % 3]);
        trial_read(&trial, 0, 2);
        trial_check_gradient(&trial, 1, 1e-6);
        trial_close(&trial);
    }
}

/* The mean gradient over `count` sequences of five targets, read in pieces of at most `most`. */
static void accumulate(struct trial *trial, size_t count, size_t most)
{
    trial_clear(trial);
    double loss = 0;
    for (uint64_t first = 0; first < count; first += most) {
        trial_read(trial, first, count - first < most ? count - first : most);
        trial_pass(trial, 1.0 / (5.0 * (double)count), 3);
        loss += trial->loss;
    }
    trial->loss = loss;
}

static void gradient_of_micro_batches_sums_to_that_of_the_batch_with_dropout_on(void **state)
{
    (void)state;
    Gacc__V1__ModelSection spec = tiny();
    spec.dropout = 0.1;
    struct trial whole = open_tiny(&spec, 6), parts = open_tiny(&spec, 6);
    accumulate(&whole, 6, 6);
    for (size_t most = 1; most <= 4; most++) {
        accumulate(&parts, 6, most);
        assert_true(trial_distance(&parts, &whole, 0, trial_parameters(&whole)) <= 1e-12);
        assert_true(fabs(parts.loss - whole.loss) <= 1e-12 * fabs(whole.loss));
    }
    trial_close(&whole);
    trial_close(&parts);
}

/* F3. At the usual start gradients are below 1/4, where doubles are at most 2^-55 = 2.8e-17 apart: 1e-16 is three of
 * the last digits. The source measured 2^-54 = 5.55e-17. */
static void four_sequences_at_once_and_two_times_two_differ_by_1e_16_at_most(void **state)
{
    (void)state;
    const kernels_opener openers[] = {kernels_open_reference, kernels_open_cpu};
    Gacc__V1__ModelSection spec = tiny();
    for (size_t k = 0; k < 2; k++) {
        struct trial whole = trial_open(openers[k], DTYPE_FP64, &spec, 4);
        struct trial parts = trial_open(openers[k], DTYPE_FP64, &spec, 4);
        for (size_t i = 0; i < trial_parameters(&whole); i++)
            if (fabs(whole.parameters[i]) < 0.5) parts.parameters[i] = whole.parameters[i] *= 0.04; /* std 0.012 */
        accumulate(&whole, 4, 4);
        accumulate(&parts, 4, 2);
        double largest = 0, difference = 0;
        for (size_t i = 0; i < trial_parameters(&whole); i++) {
            largest = fmax(largest, fabs(trial_gradient(&whole, i)));
            difference = fmax(difference, fabs(trial_gradient(&whole, i) - trial_gradient(&parts, i)));
        }
        assert_true(largest > 0.01 && largest < 0.25);
        if (difference > 1e-16) fail_msg("largest gradient %g, difference %g", largest, difference);
        trial_close(&whole);
        trial_close(&parts);
    }
}

static void dropout_depends_on_attempt_and_sequence_and_is_off_in_attempt_0(void **state)
{
    (void)state;
    Gacc__V1__ModelSection with = tiny(), without = tiny();
    with.dropout = 0.2;
    struct trial dropped = open_tiny(&with, 2), full = open_tiny(&without, 2);
    trial_read(&dropped, 0, 2);
    trial_read(&full, 0, 2);
    trial_pass(&full, 0, 1);
    trial_pass(&dropped, 0, 0);
    assert_true(dropped.loss == full.loss);
    trial_pass(&dropped, 0, 1);
    double first = dropped.loss;
    assert_true(first != full.loss);
    trial_pass(&dropped, 0, 2);
    assert_true(dropped.loss != first);
    dropped.batch->sequence[0] = 5;
    trial_pass(&dropped, 0, 1);
    assert_true(dropped.loss != first);
    trial_close(&dropped);
    trial_close(&full);
}

/* --- a spy between the model and its kernels: which sites drop -------------------------------------------------------
 */

static struct {
    struct kernel_table table;
    const struct kernel_table *behind;
    unsigned uses[16];
} spy;

static void spy_dropout(struct kernels *kernels, compute *out, const compute *x, const struct dropout *dropout,
                        size_t batch, size_t elements)
{
    spy.uses[dropout->site]++;
    spy.behind->dropout(kernels, out, x, dropout, batch, elements);
}

static void spy_attention_forward(struct kernels *kernels, compute *out, wide *lse, const compute *qkv,
                                  const struct dropout *dropout, struct attention_shape shape)
{
    spy.uses[dropout->site]++;
    spy.behind->attention_forward(kernels, out, lse, qkv, dropout, shape);
}

static void spy_attention_backward(struct kernels *kernels, compute *dqkv, const compute *dout, const compute *out,
                                   const wide *lse, const compute *qkv, const struct dropout *dropout,
                                   struct attention_shape shape)
{
    spy.uses[dropout->site]++;
    spy.behind->attention_backward(kernels, dqkv, dout, out, lse, qkv, dropout, shape);
}

static void every_place_of_every_layer_drops_by_a_site_of_its_own(void **state)
{
    (void)state;
    Gacc__V1__ModelSection spec = tiny();
    spec.dropout = 0.1;
    struct trial trial = open_tiny(&spec, 2);
    memset(&spy, 0, sizeof spy);
    spy.behind = trial.kernels->table;
    spy.table = *spy.behind;
    spy.table.dropout = spy_dropout;
    spy.table.attention_forward = spy_attention_forward;
    spy.table.attention_backward = spy_attention_backward;
    trial.kernels->table = &spy.table;
    trial_read(&trial, 0, 2);
    trial_pass(&trial, 1, 1);
    for (unsigned site = 0; site < 16; site++)
        assert_int_equal(spy.uses[site], site < 1 + 3 * spec.layers ? 2 : 0); /* forward and backward */
    trial_close(&trial);
}

static void loss_is_ln_V_when_the_output_matrix_is_zero(void **state)
{
    (void)state;
    const struct {
        uint32_t vocab;
        double loss;
    } cases[] = {{4, 1.386294}, {65, 4.174387}, {50257, 10.824905}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Gacc__V1__ModelSection spec = tiny();
        spec.vocab = cases[i].vocab;
        spec.pad_vocab = 128;
        spec.tie = 0;
        struct trial trial = open_tiny(&spec, 2);
        const struct tensor *head = row(&trial, "lm_head.weight");
        memset(trial.parameters + head->begin, 0, head->size * sizeof *trial.parameters);
        trial_read(&trial, 0, 2);
        trial_pass(&trial, 0, 0);
        assert_true(fabs(trial.loss / (2 * spec.context) - cases[i].loss) < 5e-7);
        trial_close(&trial);
    }
}

static void tied_embedding_gets_the_sum_of_both_gradients(void **state)
{
    (void)state;
    Gacc__V1__ModelSection tie = tiny(), untie = tiny();
    untie.tie = 0;
    struct trial tied = open_tiny(&tie, 2), untied = open_tiny(&untie, 2);
    const struct tensor *embedding = row(&untied, "wte.weight"), *head = row(&untied, "lm_head.weight");
    assert_null(tensor_find(&tied.model->table, "lm_head.weight"));
    memcpy(untied.parameters, tied.parameters, trial_parameters(&tied) * sizeof *tied.parameters);
    memcpy(untied.parameters + head->begin, untied.parameters + embedding->begin, head->size * sizeof(double));
    trial_read(&tied, 0, 2);
    trial_read(&untied, 0, 2);
    trial_pass(&tied, 1, 0);
    trial_pass(&untied, 1, 0);
    for (uint64_t i = 0; i < embedding->size; i++) {
        double both = trial_gradient(&untied, embedding->begin + i) + trial_gradient(&untied, head->begin + i);
        assert_true(fabs(trial_gradient(&tied, embedding->begin + i) - both) <= 1e-12 * fmax(1, fabs(both)));
    }
    trial_close(&tied);
    trial_close(&untied);
}

static void evaluation_gives_the_training_loss_and_leaves_gradients_alone(void **state)
{
    (void)state;
    Gacc__V1__ModelSection spec = tiny();
    struct trial trial = open_tiny(&spec, 2);
    struct activations *small;
    assert_int_equal(activations_open(&small, trial.model, trial.kernels, 2, false, NULL), 0);
    assert_true(activations_bytes(small) < activations_bytes(trial.activations) * 3 / 4);
    trial_read(&trial, 0, 2);
    trial_pass(&trial, 1, 0);
    double loss = trial.loss, gradient = trial_gradient(&trial, 17);
    assert_true(gradient != 0);
    activations_close(trial.activations);
    trial.activations = small;
    trial_pass(&trial, 0, 0);
    assert_true(trial.loss == loss);
    assert_true(trial_gradient(&trial, 17) == gradient);
    trial_close(&trial);
}

static void recomputed_blocks_give_the_same_bits_in_less_memory(void **state)
{
    (void)state;
    Gacc__V1__ModelSection spec = tiny();
    spec.layers = 3;
    spec.dropout = 0.5;
    struct trial kept = open_tiny(&spec, 2), again = open_tiny(&spec, 2);
    const size_t bytes = activations_bytes(again.activations);
    again.model->recomputes = true;
    activations_close(again.activations);
    assert_int_equal(activations_open(&again.activations, again.model, again.kernels, 2, true, NULL), 0);
    assert_int_equal(activations_measure(again.model, 2, true), activations_bytes(again.activations));
    assert_true(activations_bytes(again.activations) < bytes * 3 / 4);
    for (uint64_t pass = 0; pass < 2; pass++) { /* added up: a pass begins with what the one before left */
        trial_read(&kept, 2 * pass, 2);
        trial_read(&again, 2 * pass, 2);
        trial_pass(&kept, 0.7, pass);
        trial_pass(&again, 0.7, pass);
        assert_true(kept.loss == again.loss);
    }
    for (size_t i = 0; i < trial_parameters(&kept); i++)
        assert_true(trial_gradient(&kept, i) == trial_gradient(&again, i));
    trial_close(&kept);
    trial_close(&again);
}

static void padded_logits_change_no_bit(void **state)
{
    (void)state;
    Gacc__V1__ModelSection plain = tiny(), pad = tiny();
    pad.pad_vocab = 128;
    struct trial trial = open_tiny(&plain, 2), padded = open_tiny(&pad, 2);
    assert_int_equal(trial_parameters(&trial), trial_parameters(&padded));
    assert_true(activations_bytes(padded.activations) > activations_bytes(trial.activations));
    trial_read(&trial, 0, 2);
    trial_read(&padded, 0, 2);
    trial_pass(&trial, 1, 0);
    trial_pass(&padded, 1, 0);
    assert_true(trial.loss == padded.loss);
    for (size_t i = 0; i < trial_parameters(&trial); i++)
        assert_true(trial_gradient(&trial, i) == trial_gradient(&padded, i));
    trial_close(&trial);
    trial_close(&padded);
}

static void table_is_that_of_the_transformers_library(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t rows, columns;
    } expected[] = {{"wte.weight", 50257, 768},
                    {"wpe.weight", 1024, 768},
                    {"h.0.ln_1.weight", 768, 0},
                    {"h.0.ln_1.bias", 768, 0},
                    {"h.0.attn.c_attn.weight", 768, 2304},
                    {"h.0.attn.c_attn.bias", 2304, 0},
                    {"h.0.attn.c_proj.weight", 768, 768},
                    {"h.0.attn.c_proj.bias", 768, 0},
                    {"h.0.ln_2.weight", 768, 0},
                    {"h.0.ln_2.bias", 768, 0},
                    {"h.0.mlp.c_fc.weight", 768, 3072},
                    {"h.0.mlp.c_fc.bias", 3072, 0},
                    {"h.0.mlp.c_proj.weight", 3072, 768},
                    {"h.0.mlp.c_proj.bias", 768, 0},
                    {"h.1.ln_1.weight", 768, 0}};
    Gacc__V1__ModelSection spec = tiny();
    struct model *model;
    spec.layers = spec.heads = 12;
    spec.width = 768;
    spec.context = 1024;
    spec.vocab = 50257;
    assert_int_equal(model_open(&model, &spec, DTYPE_FP32, NULL), 0);
    assert_int_equal(model->table.parameters, 124439808); /* the published size of GPT-2 small */
    assert_int_equal(model->zeros.count, 0);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const struct tensor *tensor = &model->table.tensors[i];
        assert_string_equal(tensor->name, expected[i].name);
        assert_int_equal(tensor->shape[0], expected[i].rows);
        assert_int_equal(tensor->dimensions == 2 ? tensor->shape[1] : 0, expected[i].columns);
    }
    assert_string_equal(model->table.tensors[model->table.count - 1].name, "ln_f.bias");
    /* residual projections start smaller: 0.02 / √24 */
    assert_true(fabs(tensor_find(&model->table, "h.3.mlp.c_proj.weight")->init_scale - 0.00408248) < 1e-8);
    assert_true(tensor_find(&model->table, "h.3.mlp.c_fc.weight")->init_scale == 0.02);
    model_close(model);
}

static void without_bias_the_biases_are_only_exported(void **state)
{
    (void)state;
    Gacc__V1__ModelSection with = tiny(), without = tiny();
    without.bias = 0;
    struct model *full, *lean;
    assert_int_equal(model_open(&full, &with, DTYPE_FP32, NULL), 0);
    assert_int_equal(model_open(&lean, &without, DTYPE_FP32, NULL), 0);
    assert_int_equal(lean->table.count + lean->zeros.count, full->table.count);
    for (size_t i = 0; i < full->table.count; i++) {
        const struct tensor *tensor = &full->table.tensors[i];
        bool is_bias = strstr(tensor->name, ".bias");
        const struct tensor *found = tensor_find(is_bias ? &lean->zeros : &lean->table, tensor->name);
        assert_non_null(found);
        assert_int_equal(found->size, tensor->size);
    }
    model_close(full);
    model_close(lean);
}

static void width_that_heads_do_not_divide_is_refused(void **state)
{
    (void)state;
    Gacc__V1__ModelSection spec = tiny();
    struct model *model;
    struct error error;
    spec.heads = 3;
    assert_int_equal(model_open(&model, &spec, DTYPE_FP32, &error), -STATUS_JOB);
    assert_string_equal(error.text, "model.width: 8 is not a multiple of model.heads: 3");
    assert_null(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradient_is_the_slope_of_the_loss_in_every_variant),
        cmocka_unit_test(gradient_of_adapters_is_the_slope_of_the_loss_with_their_dropout),
        cmocka_unit_test(gradient_of_micro_batches_sums_to_that_of_the_batch_with_dropout_on),
        cmocka_unit_test(four_sequences_at_once_and_two_times_two_differ_by_1e_16_at_most),
        cmocka_unit_test(dropout_depends_on_attempt_and_sequence_and_is_off_in_attempt_0),
        cmocka_unit_test(every_place_of_every_layer_drops_by_a_site_of_its_own),
        cmocka_unit_test(loss_is_ln_V_when_the_output_matrix_is_zero),
        cmocka_unit_test(tied_embedding_gets_the_sum_of_both_gradients),
        cmocka_unit_test(evaluation_gives_the_training_loss_and_leaves_gradients_alone),
        cmocka_unit_test(recomputed_blocks_give_the_same_bits_in_less_memory),
        cmocka_unit_test(padded_logits_change_no_bit),
        cmocka_unit_test(table_is_that_of_the_transformers_library),
        cmocka_unit_test(without_bias_the_biases_are_only_exported),
        cmocka_unit_test(width_that_heads_do_not_divide_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
