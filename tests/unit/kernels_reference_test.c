/*
 * The reference: its forward against formulas worked out by hand, its backward against finite differences in fp64.
 */
#include <string.h>

#include "kernels/philox.h"
#include "tests/unit/kernels_support.h"

static struct kernels *reference;
static const struct kernel_table *table;

static int open_reference(void **state)
{
    (void)state;
    reference = kernels_open_reference(&(struct kernels_options){.compute_type = DTYPE_FP64, .threads = 1});
    table = reference ? reference->table : NULL;
    return reference ? 0 : -1;
}

static int close_reference(void **state)
{
    (void)state;
    kernels_close(reference);
    kernels_close(NULL);
    return 0;
}

/* --- element types and dropout bits ---------------------------------------------------------------------------------
 */

static void every_type_has_its_size_and_name(void **state)
{
    (void)state;
    assert_int_equal(dtype_size(DTYPE_FP32), 4);
    assert_int_equal(dtype_size(DTYPE_BF16), 2);
    assert_int_equal(dtype_size(DTYPE_FP16), 2);
    assert_int_equal(dtype_size(DTYPE_FP64), 8);
    assert_string_equal(dtype_name(DTYPE_FP32), "fp32");
    assert_string_equal(dtype_name(DTYPE_BF16), "bf16");
    assert_string_equal(dtype_name(DTYPE_FP16), "fp16");
    assert_string_equal(dtype_name(DTYPE_FP64), "fp64");
    assert_int_equal(dtype_wide(DTYPE_FP16), DTYPE_FP32);
    assert_int_equal(dtype_wide(DTYPE_FP64), DTYPE_FP64);
}

static void the_reference_is_fp64_only(void **state)
{
    (void)state;
    assert_null(kernels_open_reference(&(struct kernels_options){.compute_type = DTYPE_FP32, .threads = 1}));
}

static void philox_gives_the_published_known_answers(void **state)
{
    (void)state;
    /* Random123's kat_vectors: philox4x32 10 */
    static const struct {
        uint32_t counter[4];
        uint64_t key;
        uint32_t answer[4];
    } known[] = {
        {{0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         0xffffffffffffffff,
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         0x299f31d0a4093822,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t word[4];
        memcpy(word, known[i].counter, sizeof word);
        philox4x32(word, known[i].key);
        assert_memory_equal(word, known[i].answer, sizeof word);
    }
}

static void the_dropout_key_is_the_output_of_splitmix64(void **state)
{
    (void)state;
    /* the first outputs of SplitMix64 started at 0 and at 1234567, as published with xoshiro */
    assert_true(dropout_key(0, 1) == 0xE220A8397B1DCDAFu);
    assert_true(dropout_key(1234567, 1) == 6457827717110365317u);
    assert_true(dropout_key(1234567, 2) == 3203168211198807973u);
}

static void the_share_of_kept_elements_is_one_minus_p(void **state)
{
    (void)state;
    const uint64_t key = dropout_key(1337, 7);
    unsigned kept = 0;
    for (uint64_t element = 0; element < 100000; element++) kept += dropout_keeps(0.3, key, 2, 5, element);
    assert_in_range(kept, 69500, 70500); /* standard deviation 145 */
}

static void dropout_bits_depend_on_each_of_their_arguments(void **state)
{
    (void)state;
    static const struct {
        uint64_t seed, attempt, sequence;
        uint32_t site;
    } base = {1, 1, 7, 0},
      other[] = {{2, 1, 7, 0}, {1, 2, 7, 0}, {1, 1, 7, 1}, {1, 1, 8, 0}, {1, 1, 7 + (1ull << 32), 0}};
    for (size_t o = 0; o < sizeof other / sizeof *other; o++) {
        const uint64_t key = dropout_key(base.seed, base.attempt);
        const uint64_t other_key = dropout_key(other[o].seed, other[o].attempt);
        unsigned equal = 0;
        for (uint64_t e = 0; e < 1000; e++)
            equal += dropout_keeps(0.5, key, base.site, base.sequence, e) ==
                     dropout_keeps(0.5, other_key, other[o].site, other[o].sequence, e);
        assert_in_range(equal, 420, 580); /* as two independent coins */
    }
}

static void an_element_exactly_at_the_threshold_is_kept(void **state)
{
    (void)state;
    const uint64_t key = dropout_key(3, 1);
    assert_true(dropout_keeps(0, key, 4, 0, 0));
    uint32_t word[4] = {0, 4, 0, 0};
    philox4x32(word, key);
    const double p = (word[0] >> 8) * 0x1p-24;
    assert_true(dropout_keeps(p, key, 4, 0, 0));
    assert_false(dropout_keeps(nextafter(p, 1), key, 4, 0, 0));
}

/* --- finite differences
 * ------------------------------------------------------------------------------------------------
 *
 * f(x) = Σ c·forward(x) for random c; the backward of c must be df/dx, element by element. */

#define STEP 1e-5
#define TOLERANCE 2e-8

struct function {
    double (*value)(void *context);
    void *context;
};

static void check_gradient(const char *what, struct function f, double *x, size_t n, const double *gradient)
{
    for (size_t i = 0; i < n; i++) {
        const double at = x[i];
        x[i] = at + STEP;
        const double above = f.value(f.context);
        x[i] = at - STEP;
        const double below = f.value(f.context);
        x[i] = at;
        const double slope = (above - below) / (2 * STEP);
        if (fabs(slope - gradient[i]) > TOLERANCE * (1 + fabs(slope)))
            fail_msg("%s[%zu]: backward %.12g, finite difference %.12g", what, i, gradient[i], slope);
    }
}

static double weighted_sum(const double *c, const double *y, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += c[i] * y[i];
    return sum;
}

static void fill(double *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) x[i] = random_unit(&seed);
}

enum { ROWS = 3, IN = 4, OUT = 5 };

struct linear_case {
    struct linear_shape shape;
    enum activation below; /* of x's own pre-activation */
    double pre[ROWS * IN], w[IN * OUT], bias[OUT], c[ROWS * OUT];
};

static double linear_value(void *context)
{
    struct linear_case *l = context;
    double x[ROWS * IN], y[ROWS * OUT];
    table->activation_forward(reference, x, l->pre, l->below, ROWS * IN);
    table->linear_forward(reference, y, NULL, x, l->w, l->bias, l->shape, ACTIVATE_NONE);
    return weighted_sum(l->c, y, ROWS * OUT);
}

static void the_backward_of_linear_and_of_every_activation_is_its_derivative(void **state)
{
    (void)state;
    for (int layout = WEIGHT_IN_OUT; layout <= WEIGHT_OUT_IN; layout++) {
        for (int below = ACTIVATE_NONE; below <= ACTIVATE_GELU_TANH; below++) {
            struct linear_case l = {
                {ROWS, IN, OUT, (enum weight_layout)layout, 0}, (enum activation)below, {0}, {0}, {0}, {0}};
            fill(l.pre, ROWS * IN, 1), fill(l.w, IN * OUT, 2), fill(l.bias, OUT, 3), fill(l.c, ROWS * OUT, 4);
            double x[ROWS * IN], dpre[ROWS * IN], dw[IN * OUT] = {0}, dbias[OUT] = {0};
            table->activation_forward(reference, x, l.pre, l.below, ROWS * IN);
            table->linear_backward_input(reference, dpre, NULL, l.c, l.w, l.below == ACTIVATE_NONE ? NULL : l.pre,
                                         l.shape, l.below);
            table->linear_backward_weight(reference, dw, dbias, l.c, x, l.shape);
            const struct function f = {linear_value, &l};
            check_gradient("input", f, l.pre, ROWS * IN, dpre);
            check_gradient("weight", f, l.w, IN * OUT, dw);
            check_gradient("bias", f, l.bias, OUT, dbias);
            double separately[ROWS * IN];
            table->linear_backward_input(reference, separately, NULL, l.c, l.w, NULL, l.shape, ACTIVATE_NONE);
            table->activation_backward(reference, separately, separately, l.pre, l.below, ROWS * IN);
            assert_memory_equal(separately, dpre, sizeof dpre);
        }
    }
}

struct norm_case {
    double x[ROWS * IN], residual[ROWS * IN], weight[IN], bias[IN], c[ROWS * IN], c_sum[ROWS * IN];
};

static double norm_value(void *context)
{
    struct norm_case *n = context;
    double y[ROWS * IN], sum[ROWS * IN], mean[ROWS], rstd[ROWS];
    table->layernorm_forward(reference, y, sum, mean, rstd, n->x, n->residual, n->weight, n->bias, ROWS, IN);
    return weighted_sum(n->c, y, ROWS * IN) + weighted_sum(n->c_sum, sum, ROWS * IN);
}

static void the_backward_of_layernorm_is_its_derivative_and_adds_the_residual_gradient(void **state)
{
    (void)state;
    struct norm_case n;
    fill(n.x, ROWS * IN, 1), fill(n.residual, ROWS * IN, 2), fill(n.weight, IN, 3), fill(n.bias, IN, 4);
    fill(n.c, ROWS * IN, 5), fill(n.c_sum, ROWS * IN, 6);
    double y[ROWS * IN], sum[ROWS * IN], mean[ROWS], rstd[ROWS], dx[ROWS * IN], dweight[IN] = {0}, dbias[IN] = {0};
    table->layernorm_forward(reference, y, sum, mean, rstd, n.x, n.residual, n.weight, n.bias, ROWS, IN);
    table->layernorm_backward(reference, dx, n.c_sum, dweight, dbias, n.c, sum, mean, rstd, n.weight, ROWS, IN);
    const struct function f = {norm_value, &n};
    check_gradient("x", f, n.x, ROWS * IN, dx);
    check_gradient("residual", f, n.residual, ROWS * IN, dx);
    check_gradient("weight", f, n.weight, IN, dweight);
    check_gradient("bias", f, n.bias, IN, dbias);
}

enum { BATCH = 2, CONTEXT = 5, HEADS = 2, SIZE = 3, PACKED = 3 * HEADS * SIZE, TOKENS = BATCH * CONTEXT };

struct attention_case {
    const struct dropout *dropout;
    double qkv[TOKENS * PACKED], c[TOKENS * HEADS * SIZE];
};

static const struct attention_shape attention_shape = {BATCH, CONTEXT, HEADS, SIZE};

static double attention_value(void *context)
{
    struct attention_case *a = context;
    double out[TOKENS * HEADS * SIZE], lse[TOKENS * HEADS];
    table->attention_forward(reference, out, lse, a->qkv, a->dropout, attention_shape);
    return weighted_sum(a->c, out, TOKENS * HEADS * SIZE);
}

static void the_backward_of_attention_is_its_derivative_with_and_without_dropout(void **state)
{
    (void)state;
    const uint64_t sequence[BATCH] = {3, 9};
    const uint64_t key = dropout_key(5, 2);
    const struct dropout dropout = {.p = 0.4, .site = 1, .key = &key, .sequence = sequence};
    for (int drops = 0; drops < 2; drops++) {
        struct attention_case a = {.dropout = drops ? &dropout : NULL};
        fill(a.qkv, TOKENS * PACKED, 1), fill(a.c, TOKENS * HEADS * SIZE, 2);
        double out[TOKENS * HEADS * SIZE], lse[TOKENS * HEADS], dqkv[TOKENS * PACKED];
        table->attention_forward(reference, out, lse, a.qkv, a.dropout, attention_shape);
        table->attention_backward(reference, dqkv, a.c, out, lse, a.qkv, a.dropout, attention_shape);
        check_gradient("qkv", (struct function){attention_value, &a}, a.qkv, TOKENS * PACKED, dqkv);
    }
}

static void the_first_query_sees_only_itself_and_equal_scores_give_the_mean(void **state)
{
    (void)state;
    double qkv[CONTEXT * 3] = {0}, out[CONTEXT], lse[CONTEXT];
    for (size_t i = 0; i < CONTEXT; i++) qkv[3 * i + 2] = (double)(i + 1); /* q = k = 0, v = 1, 2, … */
    table->attention_forward(reference, out, lse, qkv, NULL, (struct attention_shape){1, CONTEXT, 1, 1});
    for (size_t i = 0; i < CONTEXT; i++) {
        assert_near(out[i], (double)(i + 2) / 2, 1e-15);
        assert_near(lse[i], log((double)(i + 1)), 1e-15);
    }
}

static void attention_dropout_leaves_lse_and_takes_the_bits_of_its_elements(void **state)
{
    (void)state;
    const uint64_t sequence[1] = {11};
    const uint64_t key = dropout_key(5, 2);
    const struct dropout dropout = {.p = 0.5, .site = 1, .key = &key, .sequence = sequence};
    double qkv[CONTEXT * 3] = {0}, out[CONTEXT], lse[CONTEXT];
    for (size_t i = 0; i < CONTEXT; i++) qkv[3 * i + 2] = 1;
    table->attention_forward(reference, out, lse, qkv, &dropout, (struct attention_shape){1, CONTEXT, 1, 1});
    for (size_t i = 0; i < CONTEXT; i++) {
        unsigned kept = 0;
        for (size_t j = 0; j <= i; j++) kept += dropout_keeps(0.5, key, 1, 11, i * CONTEXT + j);
        assert_near(out[i], 2.0 * kept / (double)(i + 1), 1e-15);
        assert_near(lse[i], log((double)(i + 1)), 1e-15);
    }
}

struct loss_case {
    double logits[ROWS * OUT], weight[ROWS], target[ROWS * OUT];
};

static const int32_t loss_target[ROWS] = {1, 3, 0};

static double cross_entropy_value(void *context)
{
    struct loss_case *l = context;
    double loss = 0;
    table->cross_entropy(reference, l->logits, loss_target, l->weight, NULL, ROWS, 1, OUT - 1, OUT, &loss);
    return loss;
}

static double squared_error_value(void *context)
{
    struct loss_case *l = context;
    double loss = 0;
    table->squared_error(reference, NULL, l->logits, l->target, l->weight, NULL, 0.5, ROWS, OUT, &loss);
    return loss;
}

static void the_gradients_of_the_losses_are_their_derivatives(void **state)
{
    (void)state;
    struct loss_case l = {.weight = {0.5, 2, 0}};
    double gradient[ROWS * OUT], ignored = 0;
    fill(l.logits, ROWS * OUT, 1), fill(l.target, ROWS * OUT, 2);
    memcpy(gradient, l.logits, sizeof gradient);
    table->cross_entropy(reference, gradient, loss_target, l.weight, l.weight, ROWS, 1, OUT - 1, OUT, &ignored);
    check_gradient("logits", (struct function){cross_entropy_value, &l}, l.logits, ROWS * OUT, gradient);
    table->squared_error(reference, gradient, l.logits, l.target, l.weight, l.weight, 0.5, ROWS, OUT, &ignored);
    check_gradient("prediction", (struct function){squared_error_value, &l}, l.logits, ROWS * OUT, gradient);
}

static void cross_entropy_of_logits_0_and_ln_3_is_ln_4(void **state)
{
    (void)state;
    double logits[2][2] = {{0, log(3)}, {0, log(3)}}, loss = 0;
    const double weight[2] = {1, 1};
    table->cross_entropy(reference, logits, (int32_t[]){0, 1}, weight, weight, 2, 1, 2, 2, &loss);
    assert_near(loss, log(4) + log(4.0 / 3), 1e-14);
    assert_near(logits[0][0], -0.75, 1e-15);
    assert_near(logits[1][0], 0.25, 1e-15);
}

static void the_backward_of_the_embedding_adds_repeated_tokens(void **state)
{
    (void)state;
    const int32_t tokens[4] = {2, 0, 2, 2};
    double wte[3] = {10, 20, 30}, wpe[2] = {1, 2}, out[4], dwte[3] = {0}, dwpe[2] = {0};
    table->embedding_forward(reference, out, tokens, wte, wpe, 2, 2, 1);
    assert_memory_equal(out, ((double[]){31, 12, 31, 32}), sizeof out);
    table->embedding_backward(reference, dwte, dwpe, (double[]){1, 2, 4, 8}, tokens, 2, 2, 1);
    assert_memory_equal(dwte, ((double[]){2, 0, 13}), sizeof dwte);
    assert_memory_equal(dwpe, ((double[]){5, 10}), sizeof dwpe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_has_its_size_and_name),
        cmocka_unit_test(the_reference_is_fp64_only),
        cmocka_unit_test(philox_gives_the_published_known_answers),
        cmocka_unit_test(the_dropout_key_is_the_output_of_splitmix64),
        cmocka_unit_test(the_share_of_kept_elements_is_one_minus_p),
        cmocka_unit_test(dropout_bits_depend_on_each_of_their_arguments),
        cmocka_unit_test(an_element_exactly_at_the_threshold_is_kept),
        cmocka_unit_test(the_backward_of_linear_and_of_every_activation_is_its_derivative),
        cmocka_unit_test(the_backward_of_layernorm_is_its_derivative_and_adds_the_residual_gradient),
        cmocka_unit_test(the_backward_of_attention_is_its_derivative_with_and_without_dropout),
        cmocka_unit_test(the_first_query_sees_only_itself_and_equal_scores_give_the_mean),
        cmocka_unit_test(attention_dropout_leaves_lse_and_takes_the_bits_of_its_elements),
        cmocka_unit_test(the_gradients_of_the_losses_are_their_derivatives),
        cmocka_unit_test(cross_entropy_of_logits_0_and_ln_3_is_ln_4),
        cmocka_unit_test(the_backward_of_the_embedding_adds_repeated_tokens),
    };
    return cmocka_run_group_tests(tests, open_reference, close_reference);
}
