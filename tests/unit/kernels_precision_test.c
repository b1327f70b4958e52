/*
 * Real fp16 and bf16: conversions bit by bit, overflow where the type overflows, NaN never hidden, wide accumulators;
 * and the optimizer's numbers worked out by hand.
 */
#include <dirent.h>
#include <pthread.h>
#include <string.h>

#include "kernels/philox.h"
#include "tests/unit/kernels_support.h"

/* The vector functions of the build's baseline. */
#define GACC_COMPUTE_FP32
#include "kernels/cpu/activation.h"

/* --- conversions
 * ------------------------------------------------------------------------------------------------------ */

/* fp16 from its definition: sign, 5 bits of exponent biased by 15, 10 of mantissa. */
static double fp16_value(uint16_t h)
{
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    const double magnitude = exponent == 31 ? (mantissa ? (double)NAN : (double)INFINITY)
                             : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                                            : ldexp(mantissa, -24);
    return h & 0x8000 ? -magnitude : magnitude;
}

static void every_fp16_pattern_widens_to_its_value_and_comes_back(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const float x = fp16_to_fp32((uint16_t)h);
        const double value = fp16_value((uint16_t)h);
        if (isnan(value)) {
            assert_true(isnan(x));
            assert_int_equal(fp32_to_fp16(x), h | 0x200); /* quiet, payload kept */
        } else {
            assert_true((double)x == value);
            assert_int_equal(signbit(x) != 0, h >> 15);
            assert_int_equal(fp32_to_fp16(x), h);
        }
    }
}

static void every_bf16_pattern_comes_back(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const float x = bf16_to_fp32((uint16_t)h);
        assert_int_equal(fp32_to_bf16(x), isnan(x) ? h | 0x40 : h);
    }
}

/* Between two neighbours a value goes to the nearer one, half way to the even one. */
static void narrowing_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        const double low = fp16_value((uint16_t)h), high = fp16_value((uint16_t)(h + 1)), middle = (low + high) / 2;
        assert_int_equal(fp32_to_fp16((float)middle), h + (h & 1));
        assert_int_equal(fp32_to_fp16(nextafterf((float)middle, 0)), h);
        assert_int_equal(fp32_to_fp16(nextafterf((float)middle, INFINITY)), h + 1);
        assert_int_equal(fp32_to_fp16(-(float)middle), 0x8000 | (h + (h & 1)));
    }
    for (uint32_t h = 0; h < 0x7f80; h++) {
        const uint32_t middle = h << 16 | 0x8000;
        assert_int_equal(fp32_to_bf16(bits_float(middle)), h + (h & 1));
        assert_int_equal(fp32_to_bf16(bits_float(middle - 1)), h);
        assert_int_equal(fp32_to_bf16(bits_float(middle + 1)), h + 1);
    }
}

static void fp16_overflows_from_65520_on(void **state)
{
    (void)state;
    assert_int_equal(fp32_to_fp16(65504), 0x7bff);
    assert_int_equal(fp32_to_fp16(nextafterf(65520, 0)), 0x7bff);
    assert_int_equal(fp32_to_fp16(65520), 0x7c00);
    assert_int_equal(fp32_to_fp16(-1e30f), 0xfc00);
    assert_int_equal(fp32_to_fp16(INFINITY), 0x7c00);
    assert_int_equal(fp32_to_fp16(0x1p-24f), 1);
    assert_int_equal(fp32_to_fp16(0x1p-25f), 0);
}

/* Four billion bit patterns are too many: every exponent with a few hundred mantissas, and neighbours of all fp16 ties.
 */
static size_t float_patterns(uint32_t *bits)
{
    size_t n = 0;
    uint64_t seed = 1;
    for (uint32_t top = 0; top < 512; top++) {
        for (uint32_t i = 0; i < 250; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            bits[n++] = top << 23 | (uint32_t)(seed >> 41);
        }
        bits[n++] = top << 23;
        bits[n++] = top << 23 | 0x7fffff;
        bits[n++] = top << 23 | 1;
    }
    for (uint32_t h = 0; h < 0x7c00; h++)
        for (uint32_t near = 0; near < 3; near++)
            bits[n++] = float_bits((float)fp16_value((uint16_t)h)) + 0x1000 + near - 1;
    return n;
}

static void conversions(struct instance *t)
{
    enum { MOST = 512 * 253 + 3 * 0x7c00 };
    if (t->type != DTYPE_BF16 && t->type != DTYPE_FP16) return;
    uint32_t *bits = malloc(MOST * sizeof *bits);
    uint16_t *narrow_got = malloc(MOST * sizeof *narrow_got), *halves = malloc(65536 * sizeof *halves);
    float *wide_got = calloc(65536, sizeof *wide_got);
    const size_t n = float_patterns(bits);
    assert_int_equal(n, MOST);
    t->table->cast(t->kernels, narrow_got, bits, n);
    for (size_t i = 0; i < n; i++) {
        const float x = bits_float(bits[i]);
        if (isnan(x) && !t->on_cpu) /* a GPU has one NaN */
            assert_true(isnan(element_get(t->type, narrow_got, i)));
        else
            assert_int_equal(narrow_got[i], t->type == DTYPE_FP16 ? fp32_to_fp16(x) : fp32_to_bf16(x));
    }
    for (uint32_t h = 0; h < 65536; h++) halves[h] = (uint16_t)h;
    t->table->accumulate(t->kernels, wide_got, halves, 65536); /* 0 + x: the widened value */
    for (uint32_t h = 0; h < 65536; h++) {
        const float want = t->type == DTYPE_FP16 ? fp16_to_fp32((uint16_t)h) : bf16_to_fp32((uint16_t)h);
        assert_true(isnan(want) ? isnan(wide_got[h]) : wide_got[h] == want);
    }
    free(bits), free(narrow_got), free(halves), free(wide_got);
}

static void every_instance_converts_to_the_same_bits(void **state)
{
    (void)state;
    for_each_instance(conversions);
}

/* --- functions
 * ---------------------------------------------------------------------------------------------------------- */

/* Error in units of the last place of the fp32 nearest to the exact value. */
static double ulps(float got, double want)
{
    const double magnitude = fabs(want) < 0x1p-126 ? 0x1p-126 : fabs(want);
    return fabs((double)got - want) / ldexp(1, ilogb(magnitude) - 23);
}

static void exp_and_tanh_are_within_two_ulp(void **state)
{
    (void)state;
    double worst_exp = 0, worst_tanh = 0;
    for (double x = -87.33; x < 88; x += 0.00037) {
        const float at = (float)x;
        worst_exp = fmax(worst_exp, ulps(exp_f32(at), exp((double)at)));
        worst_tanh = fmax(worst_tanh, ulps(tanh_f32(at / 10), tanh((double)(at / 10))));
    }
    for (float x = 1e-37f; x < 20; x *= 1.001f) {
        worst_exp = fmax(worst_exp, ulps(exp_f32(-x), exp(-(double)x)));
        worst_tanh = fmax(worst_tanh, ulps(tanh_f32(-x), tanh(-(double)x)));
    }
    assert_near(worst_exp, 0, 2);
    assert_near(worst_tanh, 0, 2);
}

static void the_normal_distribution_is_as_close_as_its_header_says(void **state)
{
    (void)state;
    double absolute = 0, relative = 0;
    for (double x = -10; x <= 10; x += 0.00013) {
        const float at = (float)x;
        const double want = 0.5 * erfc(-(double)at * M_SQRT1_2), got = (double)normal_cdf(at, gauss(at));
        absolute = fmax(absolute, fabs(got - want) * 0x1p24);
        relative = fmax(relative, fabs(got / want - 1) * 0x1p24);
    }
    assert_near(absolute, 0, 4);
    assert_near(relative, 0, 40);
}

static void limits_and_nan_pass_through_the_functions(void **state)
{
    (void)state;
    assert_true(exp_f32(-INFINITY) == 0);
    assert_true(exp_f32(-88) == 0);
    assert_true(exp_f32(-1e38f) == 0);
    assert_true(exp_f32(0) == 1);
    for (uint32_t payload = 0x7f800001; payload < 0x7f800001 + (1u << 22); payload += 1001) {
        assert_true(isnan(exp_f32(bits_float(payload))));
        assert_true(isnan(exp_f32(bits_float(payload | 0x80000000))));
    }
    assert_true(tanh_f32(INFINITY) == 1 && tanh_f32(-INFINITY) == -1);
    assert_true(tanh_f32(-0.0f) == 0);
    assert_true(isnan(tanh_f32(NAN)));
    assert_true(normal_cdf(INFINITY, 0) == 1 && normal_cdf(-INFINITY, 0) == 0 && isnan(normal_cdf(NAN, NAN)));
}

static void activations_hide_no_nan(struct instance *t)
{
    for (int activation = ACTIVATE_NONE; activation <= ACTIVATE_GELU_TANH; activation++) {
        for (size_t at = 0; at < 40; at += 13) {
            struct array x = array_new(t->type, 40), dy = array_new(t->type, 40), out = array_new(t->type, 40);
            for (size_t i = 0; i < 40; i++) array_set(&x, i, i == at ? (double)NAN : 1), array_set(&dy, i, 1);
            t->table->activation_forward(t->kernels, out.data, x.data, (enum activation)activation, 40);
            for (size_t i = 0; i < 40; i++) assert_int_equal(isnan(element_get(t->type, out.data, i)) != 0, i == at);
            if (activation != ACTIVATE_NONE) {
                t->table->activation_backward(t->kernels, out.data, dy.data, x.data, (enum activation)activation, 40);
                for (size_t i = 0; i < 40; i++)
                    assert_int_equal(isnan(element_get(t->type, out.data, i)) != 0, i == at);
            }
            array_free(&x), array_free(&dy), array_free(&out);
        }
    }
}

static void an_activation_of_nan_is_nan_in_every_instance(void **state)
{
    (void)state;
    for_each_instance(activations_hide_no_nan);
}

/* --- overflow and NaN
 * ------------------------------------------------------------------------------------------------------ */

static void overflowing_product(struct instance *t)
{
    struct array x = array_new(t->type, 4), w = array_new(t->type, 8), y = array_new(t->type, 2),
                 pre = array_new(t->type, 2);
    const struct linear_shape shape = {1, 4, 2, WEIGHT_OUT_IN, 0};
    for (size_t i = 0; i < 4; i++) array_set(&x, i, 200);
    for (size_t i = 0; i < 8; i++) array_set(&w, i, i < 4 ? 100 : 50); /* sums: 80000 and 40000 */
    t->table->linear_forward(t->kernels, y.data, NULL, x.data, w.data, NULL, shape, ACTIVATE_NONE);
    const double first = element_get(t->type, y.data, 0), second = element_get(t->type, y.data, 1);
    assert_true(t->type == DTYPE_FP16 ? isinf(first) : fabs(first / 80000 - 1) < 0.01);
    assert_true(fabs(second / 40000 - 1) < 0.01);
    /* tanh(80000) is 1, but in fp16 the activation it is taken of was infinite and shows it */
    t->table->linear_forward(t->kernels, y.data, pre.data, x.data, w.data, NULL, shape, ACTIVATE_TANH);
    assert_true(isinf(element_get(t->type, pre.data, 0)) == (t->type == DTYPE_FP16));
    assert_true(element_get(t->type, y.data, 0) == 1);
    t->table->linear_forward(t->kernels, y.data, NULL, x.data, w.data, NULL, shape, ACTIVATE_GELU);
    assert_true(isinf(element_get(t->type, y.data, 0)) == (t->type == DTYPE_FP16));
    t->table->add(t->kernels, y.data, w.data, 1, w.data, 2);
    assert_true(element_get(t->type, y.data, 0) == 200);
    for (size_t i = 0; i < 2; i++) array_set(&pre, i, 40000);
    t->table->add(t->kernels, y.data, pre.data, 1, pre.data, 2);
    assert_true(isinf(element_get(t->type, y.data, 0)) == (t->type == DTYPE_FP16));
    array_free(&x), array_free(&w), array_free(&y), array_free(&pre);
}

static void fp16_overflows_where_its_range_ends_though_the_fp32_sum_is_finite(void **state)
{
    (void)state;
    for_each_instance(overflowing_product);
}

static void activation_behind_a_product(struct instance *t)
{
    enum { ROWS = 40, IN = 30, OUT = 33 };
    const struct linear_shape shape = {ROWS, IN, OUT, WEIGHT_IN_OUT, 0};
    const size_t bytes = ROWS * OUT * dtype_size(t->type);
    uint64_t seed = 3;
    struct array x = array_random(t->type, ROWS * IN, 0, 0.5, &seed),
                 w = array_random(t->type, IN * OUT, 0, 0.5, &seed);
    struct array y = array_new(t->type, ROWS * OUT), pre = array_new(t->type, ROWS * OUT),
                 want = array_new(t->type, ROWS * OUT);
    for (int activation = ACTIVATE_RELU; activation <= ACTIVATE_GELU_TANH; activation++) {
        t->table->linear_forward(t->kernels, y.data, pre.data, x.data, w.data, NULL, shape,
                                 (enum activation)activation);
        t->table->activation_forward(t->kernels, want.data, pre.data, (enum activation)activation, ROWS * OUT);
        assert_memory_equal(y.data, want.data, bytes);
        t->table->linear_forward(t->kernels, y.data, NULL, x.data, w.data, NULL, shape, (enum activation)activation);
        assert_memory_equal(y.data, want.data, bytes);
    }
    array_free(&x), array_free(&w), array_free(&y), array_free(&pre), array_free(&want);
}

static void the_activation_behind_a_product_is_that_of_its_rounded_result(void **state)
{
    (void)state;
    for_each_instance(activation_behind_a_product);
}

static void weight_gradient_beyond_fp16(struct instance *t)
{
    struct array x = array_new(t->type, 4), dy = array_new(t->type, 4), dw = array_new(t->wide, 1),
                 dbias = array_new(t->wide, 1);
    for (size_t i = 0; i < 4; i++) array_set(&x, i, 200), array_set(&dy, i, 60000);
    array_set(&dw, 0, 0), array_set(&dbias, 0, 0);
    t->table->linear_backward_weight(t->kernels, dw.data, dbias.data, dy.data, x.data,
                                     (struct linear_shape){4, 1, 1, WEIGHT_IN_OUT, 0});
    const double one = element_get(t->type, dy.data, 0); /* 60000 as the type has it */
    assert_true(element_get(t->wide, dw.data, 0) == 4 * 200 * one);
    assert_true(element_get(t->wide, dbias.data, 0) == 4 * one);
    array_free(&x), array_free(&dy), array_free(&dw), array_free(&dbias);
}

static void weight_gradients_are_never_rounded_to_the_compute_type(void **state)
{
    (void)state;
    for_each_instance(weight_gradient_beyond_fp16);
}

static void poisoned_row(struct instance *t, size_t stride, size_t at, double bad)
{
    enum { CLASSES = 67 };
    const double weight[2] = {1, 1};
    struct array logits = array_new(t->type, 2 * stride), seed = array_new(t->wide, 2);
    for (size_t i = 0; i < logits.n; i++) array_set(&logits, i, i == at ? bad : 0.5);
    array_set(&seed, 0, 1), array_set(&seed, 1, 1);
    double loss = 0;
    t->table->cross_entropy(t->kernels, logits.data, (int32_t[]){5, 5}, weight, seed.data, 2, 1, CLASSES, stride,
                            &loss);
    assert_true(isnan(loss));
    for (size_t i = 0; i < logits.n; i++)
        assert_int_equal(isnan(element_get(t->type, logits.data, i)) != 0, i < CLASSES);
    array_free(&logits), array_free(&seed);
}

static void poisoned_losses(struct instance *t)
{
    const double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    for (size_t kind = 0; kind < 3; kind++) {
        for (size_t at = 0; at < 67; at += 33) {
            poisoned_row(t, 67, at, bad[kind]);
            poisoned_row(t, 72, at, bad[kind]);
        }
    }
}

static void a_row_with_a_non_finite_logit_has_a_nan_loss_and_gradient_and_spoils_no_other(void **state)
{
    (void)state;
    for_each_instance(poisoned_losses);
}

static void poisoned_head(struct instance *t, size_t size)
{
    const struct attention_shape s = {1, 70, 1, size};
    struct array qkv = array_new(t->type, 70 * 3 * size), out = array_new(t->type, 70 * size),
                 lse = array_new(t->wide, 70);
    const size_t row = 66 * 3 * size;
    for (size_t i = 0; i < qkv.n; i++) array_set(&qkv, i, 0.5);
    array_set(&qkv, row, (double)NAN); /* the query at 66 */
    t->table->attention_forward(t->kernels, out.data, lse.data, qkv.data, NULL, s);
    for (size_t i = 0; i < 70; i++) assert_int_equal(isnan(element_get(t->type, out.data, size * i)) != 0, i == 66);
    array_set(&qkv, row, 0.5), array_set(&qkv, row + size, (double)INFINITY); /* the key at 66 */
    t->table->attention_forward(t->kernels, out.data, lse.data, qkv.data, NULL, s);
    for (size_t i = 0; i < 70; i++) assert_int_equal(isnan(element_get(t->type, out.data, size * i)) != 0, i >= 66);
    array_free(&qkv), array_free(&out), array_free(&lse);
}

static void poisoned_attention(struct instance *t)
{
    poisoned_head(t, 4);
    poisoned_head(t, 8); /* a multiple that tensor cores take */
}

static void attention_hides_no_nan_from_those_who_see_it(void **state)
{
    (void)state;
    for_each_instance(poisoned_attention);
}

static void check_in_double(struct instance *t)
{
    struct array g = array_new(t->wide, 2);
    array_set(&g, 0, 1e30), array_set(&g, 1, -1e30);
    const struct gradient_check sums = checked(t->kernels, g.data, 2, 1e-30);
    assert_int_equal(sums.nonfinite, 0); /* though Σg² is no fp32 number */
    assert_near(sums.sum_squares_scaled, 2e60, 1e54);
    assert_near(sums.sum_squares, 2, 1e-6);
    array_set(&g, 0, 16), array_set(&g, 1, 1); /* 257 is no bf16 number */
    assert_true(checked(t->kernels, g.data, 2, 1).sum_squares == 257);
    assert_int_equal(checked(t->kernels, g.data, 0, 1).nonfinite, 0);
    array_free(&g);
}

static void the_norm_is_formed_in_double(void **state)
{
    (void)state;
    for_each_instance(check_in_double);
}

/* --- accumulators and the optimizer's numbers
 * ----------------------------------------------------------------------------- */

static void five_hundred_and_twelve_ones(struct instance *t)
{
    struct array sum = array_new(t->wide, 20), one = array_new(t->type, 20);
    for (size_t i = 0; i < 20; i++) array_set(&sum, i, 0), array_set(&one, i, 1);
    for (int k = 0; k < 512; k++) t->table->accumulate(t->kernels, sum.data, one.data, 20);
    for (size_t i = 0; i < 20; i++) assert_true(element_get(t->wide, sum.data, i) == 512);
    array_free(&sum), array_free(&one);
}

static void accumulating_512_ones_gives_512_in_every_type(void **state)
{
    (void)state;
    for_each_instance(five_hundred_and_twelve_ones);
}

/* One parameter from w on, one update per gradient. */
static double run(struct instance *t, struct update u, double w, const double *g, size_t steps, uint64_t first)
{
    struct array master = array_new(t->wide, 1), m = array_new(t->wide, 1), v = array_new(t->wide, 1),
                 one = array_new(t->wide, 1);
    array_set(&master, 0, w), array_set(&m, 0, 0), array_set(&v, 0, 0);
    for (size_t i = 0; i < steps; i++) {
        array_set(&one, 0, g[i]);
        u.t = first + i;
        t->table->update(t->kernels, master.data, m.data, v.data, one.data, 1, &u);
    }
    const double result = element_get(t->wide, master.data, 0);
    array_free(&master), array_free(&m), array_free(&v), array_free(&one);
    return result;
}

static void optimizer_numbers(struct instance *t)
{
    struct update adamw = {.kind = OPTIMIZER_KIND_ADAMW,
                           .lr = 0.1,
                           .beta1 = 0.9,
                           .beta2 = 0.999,
                           .eps = 1e-8,
                           .weight_decay = 0.5,
                           .unscale = 1};
    assert_near(run(t, adamw, 1, (double[]){0}, 1, 1), 0.95, 1e-7); /* decay alone */
    adamw.weight_decay = 0;
    assert_near(run(t, adamw, 1, (double[]){0}, 1, 1), 1, 0);
    adamw.weight_decay = 0.1;
    assert_near(run(t, adamw, 1, (double[]){0.5}, 1, 1), 0.89, 1e-7);
    assert_near(run(t, adamw, 2, (double[]){0.3, -0.3}, 2, 1), 1.866463, 1e-6);
    adamw.unscale = 0x1p-10;
    assert_near(run(t, adamw, 2, (double[]){0.3 * 1024, -0.3 * 1024}, 2, 1), 1.866463, 1e-6);
    adamw.unscale = 1, adamw.weight_decay = 0, adamw.lr = 0.01;
    assert_near(run(t, adamw, 1, (double[]){1, -2, 0.5}, 3, 1), 0.9950279, 1e-7);
    assert_near(run(t, adamw, 1, (double[]){1, -2, 0.5, 1}, 4, 1), 0.9937274, 1e-7);

    struct update sgd = {.kind = OPTIMIZER_KIND_SGD, .lr = 0.1, .momentum = 0.5, .weight_decay = 0.5, .unscale = 1};
    /* g = 1 + 0.5·2 = 2, w = 1.8; g = 1 + 0.9 = 1.9, m = 2.9, w = 1.51 */
    assert_near(run(t, sgd, 2, (double[]){1, 1}, 2, 1), 1.51, 1e-6);
    /* the smallest of the scales' reciprocals times a small clip coefficient is no fp32 number; the gradient is */
    sgd = (struct update){.kind = OPTIMIZER_KIND_SGD, .lr = 1, .unscale = 0x1p-160};
    assert_near(run(t, sgd, 1, (double[]){0x1p120}, 1, 1), 1 - 0x1p-40, 0x1p-24);
    assert_near(run(t, sgd, 0, (double[]){0x1p120}, 1, 1), -0x1p-40, 0x1p-60);
    adamw.lr = 0.25, adamw.eps = 0, adamw.unscale = 0x1p-160;
    assert_near(run(t, adamw, 1, (double[]){0x1p120}, 1, 1), 0.75, 1e-6);
}

static void the_optimizers_give_the_numbers_worked_out_by_hand(void **state)
{
    (void)state;
    for_each_instance(optimizer_numbers);
}

static void wide_masters(struct instance *t)
{
    const struct update sgd = {.kind = OPTIMIZER_KIND_SGD, .lr = 0.0005, .unscale = 1};
    double g[100];
    for (size_t i = 0; i < 100; i++) g[i] = 1;
    const double master = run(t, sgd, 1, g, 100, 1);
    assert_near(master, 0.95, 3e-6);
    if (t->wide == DTYPE_FP32) assert_near(master, 0.9499977, 1e-7);
    struct array exact = array_new(t->wide, 1), rounded = array_new(t->type, 1);
    array_set(&exact, 0, master);
    t->table->cast(t->kernels, rounded.data, exact.data, 1);
    if (t->type == DTYPE_BF16) assert_true(element_get(t->type, rounded.data, 0) == 0.94921875);
    array_free(&exact), array_free(&rounded);
}

static void a_master_of_one_moves_by_steps_that_its_type_cannot_hold(void **state)
{
    (void)state;
    for_each_instance(wide_masters);
}

/* --- dropout and determinism
 * ----------------------------------------------------------------------------------------------- */

static void dropout_shares(struct instance *t)
{
    enum { UNITS = 1000 };
    const uint64_t sequences[2] = {10, 11};
    struct array x = array_new(t->type, 2 * UNITS), first = array_new(t->type, 2 * UNITS),
                 again = array_new(t->type, 2 * UNITS);
    const uint64_t key = dropout_key(1, 1);
    struct dropout dropout = {.p = 0.5, .site = 0, .key = &key, .sequence = sequences};
    for (size_t i = 0; i < x.n; i++) array_set(&x, i, 1);
    t->table->dropout(t->kernels, first.data, x.data, &dropout, 2, UNITS);
    t->table->dropout(t->kernels, again.data, x.data, &dropout, 2, UNITS);
    assert_memory_equal(first.data, again.data, x.n * dtype_size(t->type));
    size_t kept = 0, equal = 0;
    for (size_t i = 0; i < UNITS; i++) {
        const double a = element_get(t->type, first.data, i), b = element_get(t->type, first.data, UNITS + i);
        assert_true(a == 0 || a == 2);
        kept += a != 0;
        equal += a == b;
    }
    assert_in_range(kept, 450, 550);
    assert_in_range(equal, 450, 550); /* two sequences, two masks */
    /* alone, the second sequence gets the bits it got beside the first */
    dropout.sequence = sequences + 1;
    t->table->dropout(t->kernels, again.data, x.data, &dropout, 1, UNITS);
    assert_memory_equal((char *)first.data + UNITS * dtype_size(t->type), again.data, UNITS * dtype_size(t->type));
    /* p exactly at element 5's draw keeps it, the next p drops it */
    uint32_t word[4] = {5 / 4, dropout.site, 11, 0};
    philox4x32(word, key);
    dropout.p = (word[5 % 4] >> 8) * 0x1p-24;
    t->table->dropout(t->kernels, again.data, x.data, &dropout, 1, UNITS);
    assert_true(element_get(t->type, again.data, 5) > 0);
    dropout.p += 0x1p-24;
    t->table->dropout(t->kernels, again.data, x.data, &dropout, 1, UNITS);
    assert_true(element_get(t->type, again.data, 5) == 0);
    array_free(&x), array_free(&first), array_free(&again);
}

static void dropout_keeps_its_share_and_depends_on_the_sequence_alone(void **state)
{
    (void)state;
    for_each_instance(dropout_shares);
}

static void same_bits_twice(struct instance *t)
{
    enum { ROWS = 200, IN = 70, OUT = 130 };
    uint64_t seed = 1;
    struct array x = array_random(t->type, ROWS * IN, 0, 1, &seed), dy = array_random(t->type, ROWS * OUT, 0, 1, &seed);
    struct array dw[2], dbias[2];
    struct gradient_check sums[2];
    for (int call = 0; call < 2; call++) {
        uint64_t start = 7;
        dw[call] = array_random(t->wide, IN * OUT, 0, 1, &start),
        dbias[call] = array_random(t->wide, OUT, 0, 1, &start);
        t->table->linear_backward_weight(t->kernels, dw[call].data, dbias[call].data, dy.data, x.data,
                                         (struct linear_shape){ROWS, IN, OUT, WEIGHT_IN_OUT, 0});
        sums[call] = checked(t->kernels, dw[call].data, IN * OUT, 0.1);
    }
    assert_memory_equal(dw[0].data, dw[1].data, IN * OUT * dtype_size(t->wide));
    assert_memory_equal(dbias[0].data, dbias[1].data, OUT * dtype_size(t->wide));
    assert_true(sums[0].sum_squares == sums[1].sum_squares && sums[0].sum_squares_scaled == sums[1].sum_squares_scaled);
    for (int call = 0; call < 2; call++) array_free(&dw[call]), array_free(&dbias[call]);
    array_free(&x), array_free(&dy);
}

static void the_same_call_gives_the_same_bits(void **state)
{
    (void)state;
    for_each_instance(same_bits_twice);
}

static size_t threads_of_this_process(void)
{
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    size_t count = 0;
    for (struct dirent *entry; (entry = readdir(tasks));) count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static void *multiply_in_a_thread(void *added)
{
    enum { SIDE = 400 };
    struct kernels *k = kernels_open_cpu(&(struct kernels_options){.compute_type = DTYPE_FP32, .threads = 3});
    float *square = calloc(SIDE * SIDE, sizeof *square), *product = calloc(SIDE * SIDE, sizeof *product);
    const size_t before = threads_of_this_process();
    k->table->linear_forward(k, product, NULL, square, square, NULL,
                             (struct linear_shape){SIDE, SIDE, SIDE, WEIGHT_IN_OUT, 0}, ACTIVATE_NONE);
    *(size_t *)added = threads_of_this_process() - before;
    free(square), free(product);
    kernels_close(k);
    return NULL;
}

/* However many the machine has room for: they would wait for each other. */
static void blas_starts_no_threads_beside_those_of_the_kernels(void **state)
{
    (void)state;
    pthread_t thread;
    size_t added = 1;
    assert_int_equal(pthread_create(&thread, NULL, multiply_in_a_thread, &added), 0);
    pthread_join(thread, NULL);
    assert_int_equal(added, 0);
}

static void the_backend_takes_the_best_instruction_set(void **state)
{
    (void)state;
    const struct kernels_options options = {.compute_type = DTYPE_FP16, .threads = 2};
    struct kernels *best = kernels_open_cpu(&options), *last = NULL;
    assert_non_null(best);
    assert_int_equal(best->compute_type, DTYPE_FP16);
    assert_int_equal(best->threads, 2);
    for (enum cpu_variant variant = CPU_BASELINE; variant < CPU_VARIANTS; variant++) {
        struct kernels *k = cpu_open_variant(&options, variant);
        if (!k) continue;
        kernels_close(last);
        last = k;
    }
    assert_ptr_equal(best->table, last->table);
    kernels_close(best), kernels_close(last);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fp16_pattern_widens_to_its_value_and_comes_back),
        cmocka_unit_test(every_bf16_pattern_comes_back),
        cmocka_unit_test(narrowing_rounds_to_nearest_even),
        cmocka_unit_test(fp16_overflows_from_65520_on),
        cmocka_unit_test(every_instance_converts_to_the_same_bits),
        cmocka_unit_test(exp_and_tanh_are_within_two_ulp),
        cmocka_unit_test(the_normal_distribution_is_as_close_as_its_header_says),
        cmocka_unit_test(limits_and_nan_pass_through_the_functions),
        cmocka_unit_test(an_activation_of_nan_is_nan_in_every_instance),
        cmocka_unit_test(fp16_overflows_where_its_range_ends_though_the_fp32_sum_is_finite),
        cmocka_unit_test(the_activation_behind_a_product_is_that_of_its_rounded_result),
        cmocka_unit_test(weight_gradients_are_never_rounded_to_the_compute_type),
        cmocka_unit_test(a_row_with_a_non_finite_logit_has_a_nan_loss_and_gradient_and_spoils_no_other),
        cmocka_unit_test(attention_hides_no_nan_from_those_who_see_it),
        cmocka_unit_test(the_norm_is_formed_in_double),
        cmocka_unit_test(accumulating_512_ones_gives_512_in_every_type),
        cmocka_unit_test(the_optimizers_give_the_numbers_worked_out_by_hand),
        cmocka_unit_test(a_master_of_one_moves_by_steps_that_its_type_cannot_hold),
        cmocka_unit_test(dropout_keeps_its_share_and_depends_on_the_sequence_alone),
        cmocka_unit_test(the_same_call_gives_the_same_bits),
        cmocka_unit_test(blas_starts_no_threads_beside_those_of_the_kernels),
        cmocka_unit_test(the_backend_takes_the_best_instruction_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
