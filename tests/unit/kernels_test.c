/*
 * Every kernel of a backend, in every compute type and kind of instance (kernels_support.h), against the reference on
 * the same (rounded) inputs. Allowed: half a unit of the compute type for each rounding on the way, plus the wide
 * type's rounding of every term of a sum (both first-order bounds; inputs are at most 1 or 2).
 */
#include <string.h>

#include "tests/unit/kernels_support.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* --- products ----------------------------------------------------------------------------------------------------- */

static const struct linear_shape linear_shapes[] = {
    {1, 1, 1, WEIGHT_IN_OUT, 0},       {1, 3, 65, WEIGHT_OUT_IN, 0},       {7, 65, 3, WEIGHT_IN_OUT, 5},
    {33, 129, 65, WEIGHT_OUT_IN, 128}, {100, 1, 129, WEIGHT_IN_OUT, 0},    {65, 128, 96, WEIGHT_IN_OUT, 0},
    {300, 1100, 17, WEIGHT_IN_OUT, 0}, {5, 17, 1100, WEIGHT_OUT_IN, 1111}, {530, 530, 2, WEIGHT_OUT_IN, 0},
    {0, 4, 4, WEIGHT_IN_OUT, 0},
};

static size_t row_stride(struct linear_shape s)
{
    return s.stride ? s.stride : s.out;
}

static void linear_forward_case(struct instance *t, struct linear_shape s, enum activation activation, bool biased,
                                bool keeps_pre)
{
    uint64_t seed = s.rows * 1000 + s.in;
    struct array x = array_random(t->type, s.rows * s.in, 0, 1, &seed),
                 w = array_random(t->type, s.in * s.out, 0, 1, &seed);
    struct array bias = array_random(t->type, s.out, 0, 1, &seed);
    struct array y = array_new(t->type, s.rows * row_stride(s)), pre = array_new(t->type, keeps_pre ? y.n : 0);
    t->table->linear_forward(t->kernels, y.data, keeps_pre ? pre.data : NULL, x.data, w.data, biased ? bias.data : NULL,
                             s, activation);
    t->reference_table->linear_forward(t->reference, y.exact, keeps_pre ? pre.exact : NULL, x.exact, w.exact,
                                       biased ? bias.exact : NULL, s, activation);
    char what[200];
    DESCRIBE(what, t, "linear_forward %zu×%zu→%zu layout %d activation %d bias %d", s.rows, s.in, s.out, s.layout,
             activation, biased);
    const double sum_error = t->wide_unit * (double)(s.in + 2) * (double)(s.in + 1);
    const double before =
        t->unit * (double)(s.in + 1) * (activation != ACTIVATE_NONE); /* |pre| <= in + 1; slopes <= 1.13 */
    array_check(what, &y, t->unit + 4 * t->wide_unit, 1.13 * (sum_error + before) + 2 * t->wide_unit);
    if (keeps_pre && activation != ACTIVATE_NONE) array_check(what, &pre, t->unit, sum_error);
    array_free(&x), array_free(&w), array_free(&bias), array_free(&y), array_free(&pre);
}

static void linear_forward_shapes(struct instance *t)
{
    for (size_t i = 0; i < COUNT(linear_shapes); i++) {
        linear_forward_case(t, linear_shapes[i], ACTIVATE_NONE, false, false);
        linear_forward_case(t, linear_shapes[i], ACTIVATE_NONE, true, false);
        linear_forward_case(t, linear_shapes[i], ACTIVATE_GELU, false, true);
    }
    for (int a = ACTIVATE_RELU; a <= ACTIVATE_GELU_TANH; a++) {
        linear_forward_case(t, linear_shapes[3], (enum activation)a, true, true);
        linear_forward_case(t, linear_shapes[3], (enum activation)a, true, false);
    }
}

static void linear_forward_agrees(void **state)
{
    (void)state;
    for_each_instance(linear_forward_shapes);
}

/* The activation that comes along, in place of pre, has the bits of the forward's; dx is what it is without. */
static void activated_again_case(struct instance *t, struct linear_shape s, enum activation activation,
                                 const struct array *dy, const struct array *w, struct array *pre)
{
    const size_t n = s.rows * s.in;
    struct array forward = array_new(t->type, n), again = array_new(t->type, n);
    t->table->activation_forward(t->kernels, forward.data, pre->data, activation, n);
    t->reference_table->activation_forward(t->reference, forward.exact, pre->exact, activation, n);
    t->table->linear_backward_input(t->kernels, again.data, pre->data, dy->data, w->data, pre->data, s, activation);
    t->reference_table->linear_backward_input(t->reference, again.exact, pre->exact, dy->exact, w->exact, pre->exact, s,
                                              activation);
    assert_memory_equal(pre->data, forward.data, n * dtype_size(t->type));
    assert_memory_equal(pre->exact, forward.exact, n * sizeof(double));
    array_check("linear_backward_input with the activation", &again, t->unit + t->between,
                t->wide_unit * (double)(s.out + 10) * (double)s.out);
    array_free(&forward), array_free(&again);
}

static void linear_backward_input_case(struct instance *t, struct linear_shape s, enum activation activation)
{
    uint64_t seed = s.rows * 1000 + s.out;
    struct array dy = array_random(t->type, s.rows * row_stride(s), 0, 1, &seed),
                 w = array_random(t->type, s.in * s.out, 0, 1, &seed);
    struct array pre = array_random(t->type, s.rows * s.in, 0, 4, &seed), dx = array_new(t->type, s.rows * s.in);
    const bool slopes = activation != ACTIVATE_NONE;
    t->table->linear_backward_input(t->kernels, dx.data, NULL, dy.data, w.data, slopes ? pre.data : NULL, s,
                                    activation);
    t->reference_table->linear_backward_input(t->reference, dx.exact, NULL, dy.exact, w.exact,
                                              slopes ? pre.exact : NULL, s, activation);
    char what[200];
    DESCRIBE(what, t, "linear_backward_input %zu×%zu←%zu layout %d activation %d", s.rows, s.in, s.out, s.layout,
             activation);
    array_check(what, &dx, t->unit + (slopes ? t->between : 0), t->wide_unit * (double)(s.out + 10) * (double)s.out);
    if (slopes) activated_again_case(t, s, activation, &dy, &w, &pre);
    array_free(&dy), array_free(&w), array_free(&pre), array_free(&dx);
}

static void linear_backward_input_shapes(struct instance *t)
{
    for (size_t i = 0; i < COUNT(linear_shapes); i++) linear_backward_input_case(t, linear_shapes[i], ACTIVATE_NONE);
    for (int a = ACTIVATE_RELU; a <= ACTIVATE_GELU_TANH; a++)
        linear_backward_input_case(t, linear_shapes[3], (enum activation)a);
}

static void linear_backward_input_agrees(void **state)
{
    (void)state;
    for_each_instance(linear_backward_input_shapes);
}

static void linear_backward_weight_shapes(struct instance *t)
{
    for (size_t i = 0; i < COUNT(linear_shapes); i++) {
        const struct linear_shape s = linear_shapes[i];
        uint64_t seed = i;
        struct array dy = array_random(t->type, s.rows * row_stride(s), 0, 1, &seed),
                     x = array_random(t->type, s.rows * s.in, 0, 1, &seed);
        struct array dw = array_random(t->wide, s.in * s.out, 0, 1, &seed),
                     dbias = array_random(t->wide, s.out, 0, 1, &seed);
        for (int call = 0; call < 3; call++) { /* adds to what is there; what is NULL is left out */
            t->table->linear_backward_weight(t->kernels, call == 2 ? NULL : dw.data, call == 1 ? NULL : dbias.data,
                                             dy.data, x.data, s);
            t->reference_table->linear_backward_weight(t->reference, call == 2 ? NULL : dw.exact,
                                                       call == 1 ? NULL : dbias.exact, dy.exact, x.exact, s);
        }
        char what[200];
        DESCRIBE(what, t, "linear_backward_weight %zu×%zu→%zu layout %d", s.rows, s.in, s.out, s.layout);
        const double allowed = t->wide_unit * (double)(2 * s.rows + 2) * (double)(2 * s.rows + 1);
        array_check(what, &dw, t->wide_unit, allowed);
        array_check(what, &dbias, t->wide_unit, allowed);
        array_free(&dy), array_free(&x), array_free(&dw), array_free(&dbias);
    }
}

static void linear_backward_weight_adds_in_the_wide_type(void **state)
{
    (void)state;
    for_each_instance(linear_backward_weight_shapes);
}

/* --- elementwise ---------------------------------------------------------------------------------------------------
 */

static const size_t lengths[] = {0, 1, 3, 65, 129, 1000, 5001};

static void elementwise_lengths(struct instance *t)
{
    char what[200];
    for (size_t i = 0; i < COUNT(lengths); i++) {
        const size_t n = lengths[i];
        uint64_t seed = n;
        struct array a = array_random(t->type, n, 0, 4, &seed), b = array_random(t->type, n, 0, 2, &seed);
        struct array out = array_new(t->type, n);
        DESCRIBE(what, t, "add %zu", n);
        t->table->add(t->kernels, out.data, a.data, 1, b.data, n);
        t->reference_table->add(t->reference, out.exact, a.exact, 1, b.exact, n);
        array_check(what, &out, t->unit, 0);
        t->table->add(t->kernels, out.data, out.data, 1, b.data, n);
        t->reference_table->add(t->reference, out.exact, out.exact, 1, b.exact, n);
        array_check(what, &out, t->unit, 6 * t->unit);
        DESCRIBE(what, t, "a third of %zu, alone and added", n);
        t->table->add(t->kernels, out.data, NULL, 1 / 3.0, b.data, n);
        t->reference_table->add(t->reference, out.exact, NULL, 1 / 3.0, b.exact, n);
        array_check(what, &out, t->unit + 2 * t->wide_unit, 0);
        t->table->add(t->kernels, out.data, a.data, -1 / 3.0, b.data, n); /* |a| <= 4, |b / 3| < 1 */
        t->reference_table->add(t->reference, out.exact, a.exact, -1 / 3.0, b.exact, n);
        array_check(what, &out, t->unit, 6 * t->wide_unit);
        for (int activation = ACTIVATE_NONE; activation <= ACTIVATE_GELU_TANH; activation++) {
            DESCRIBE(what, t, "activation %d of %zu", activation, n);
            t->table->activation_forward(t->kernels, out.data, a.data, (enum activation)activation, n);
            t->reference_table->activation_forward(t->reference, out.exact, a.exact, (enum activation)activation, n);
            array_check(what, &out, t->unit + 16 * t->wide_unit, 4 * t->wide_unit);
            t->table->activation_backward(t->kernels, out.data, b.data, a.data, (enum activation)activation, n);
            t->reference_table->activation_backward(t->reference, out.exact, b.exact, a.exact,
                                                    (enum activation)activation, n);
            /* GELU's exponents reach 11, with three roundings; |dy| <= 2 */
            array_check(what, &out, t->unit + 4 * t->wide_unit, 48 * t->wide_unit);
        }
        array_free(&a), array_free(&b), array_free(&out);
    }
}

static void sums_and_activations_agree(void **state)
{
    (void)state;
    for_each_instance(elementwise_lengths);
}

static void dropout_lengths(struct instance *t)
{
    const uint64_t sequences[3] = {4, 1ull << 40, 5};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        for (int p = 0; p <= 9; p += 3) {
            const uint64_t key = dropout_key(9, 3);
            const struct dropout dropout = {.p = 0.1 * p, .site = 1, .key = &key, .sequence = sequences};
            const size_t n = lengths[i];
            uint64_t seed = n;
            struct array x = array_random(t->type, 3 * n, 0, 4, &seed), out = array_new(t->type, 3 * n);
            t->table->dropout(t->kernels, out.data, x.data, &dropout, 3, n);
            t->reference_table->dropout(t->reference, out.exact, x.exact, &dropout, 3, n);
            char what[200];
            DESCRIBE(what, t, "dropout 0.%d of 3×%zu", p, n);
            array_check(what, &out, t->unit + 4 * t->wide_unit, 0);
            t->table->dropout(t->kernels, x.data, x.data, &dropout, 3, n);
            assert_memory_equal(x.data, out.data, 3 * n * dtype_size(t->type));
            array_free(&x), array_free(&out);
        }
    }
}

static void dropout_takes_the_defined_bits(void **state)
{
    (void)state;
    for_each_instance(dropout_lengths);
}

/* --- embedding -----------------------------------------------------------------------------------------------------
 */

/* Tokens 0, apart, 2·apart … 4·apart, every one several times. */
static void embedding_case(struct instance *t, size_t batch, size_t context, size_t width, size_t apart)
{
    const size_t rows = batch * context, vocabulary = 4 * apart + 1;
    uint64_t seed = width;
    int32_t *tokens = malloc(rows * sizeof *tokens);
    for (size_t r = 0; r < rows; r++) tokens[r] = (int32_t)(r * r % 5 * apart);
    struct array wte = array_random(t->type, vocabulary * width, 0, 1, &seed),
                 wpe = array_random(t->type, context * width, 0, 1, &seed);
    struct array out = array_new(t->type, rows * width), dout = array_random(t->type, rows * width, 0, 1, &seed);
    struct array dwte = array_random(t->wide, vocabulary * width, 0, 1, &seed);
    struct array dwpe = array_random(t->wide, context * width, 0, 1, &seed);
    t->table->embedding_forward(t->kernels, out.data, tokens, wte.data, wpe.data, batch, context, width);
    t->reference_table->embedding_forward(t->reference, out.exact, tokens, wte.exact, wpe.exact, batch, context, width);
    for (int call = 0; call < 3; call++) { /* adds to what is there; what is NULL is left out */
        t->table->embedding_backward(t->kernels, call == 2 ? NULL : dwte.data, call == 1 ? NULL : dwpe.data, dout.data,
                                     tokens, batch, context, width);
        t->reference_table->embedding_backward(t->reference, call == 2 ? NULL : dwte.exact,
                                               call == 1 ? NULL : dwpe.exact, dout.exact, tokens, batch, context,
                                               width);
    }
    char what[200];
    DESCRIBE(what, t, "embedding of %zu×%zu, width %zu", batch, context, width);
    const double terms = 2 * (double)rows + 3;
    array_check(what, &out, t->unit, 0);
    array_check(what, &dwte, t->wide_unit, t->wide_unit * terms * terms);
    array_check(what, &dwpe, t->wide_unit, t->wide_unit * 7 * 7);
    array_free(&wte), array_free(&wpe), array_free(&out), array_free(&dout), array_free(&dwte), array_free(&dwpe);
    free(tokens);
}

static void embedding_shapes(struct instance *t)
{
    static const size_t widths[] = {1, 3, 65, 129, 600};
    for (size_t i = 0; i < COUNT(widths); i++) embedding_case(t, 3, 9, widths[i], 1);
    embedding_case(t, 3, 400, 8, 1024); /* more rows, and tokens farther apart, than a GPU's block lists at a time */
}

static void embedding_agrees_and_adds_repeated_tokens(void **state)
{
    (void)state;
    for_each_instance(embedding_shapes);
}

/* --- LayerNorm ------------------------------------------------------------------------------------------------------
 */

static void layernorm_case(struct instance *t, size_t rows, size_t width, bool residual, bool biased)
{
    const size_t n = rows * width;
    uint64_t seed = n;
    struct array x = array_random(t->type, n, 0, 2, &seed), other = array_random(t->type, n, 0.25, 1, &seed);
    struct array weight = array_random(t->type, width, 1, 0.5, &seed), bias = array_random(t->type, width, 0, 1, &seed);
    struct array y = array_new(t->type, n), sum = array_new(t->type, residual ? n : 0), dx = array_new(t->type, n);
    struct array mean = array_new(t->wide, rows), rstd = array_new(t->wide, rows);
    struct array dy = array_random(t->type, n, 0, 1, &seed);
    struct array dweight = array_random(t->wide, width, 0, 1, &seed), dbias = array_random(t->wide, width, 0, 1, &seed);
    char what[200];
    DESCRIBE(what, t, "layernorm %zu×%zu residual %d bias %d", rows, width, residual, biased);

    t->table->layernorm_forward(t->kernels, y.data, residual ? sum.data : NULL, mean.data, rstd.data, x.data,
                                residual ? other.data : NULL, weight.data, biased ? bias.data : NULL, rows, width);
    if (residual) { /* the norm is that of the rounded sum */
        t->reference_table->add(t->reference, sum.exact, x.exact, 1, other.exact, n);
        array_check(what, &sum, t->unit, 0);
        for (size_t i = 0; i < n; i++) sum.exact[i] = element_get(t->type, sum.data, i);
    }
    const struct array *normed = residual ? &sum : &x;
    t->reference_table->layernorm_forward(t->reference, y.exact, NULL, mean.exact, rstd.exact, normed->exact, NULL,
                                          weight.exact, biased ? bias.exact : NULL, rows, width);
    /* the error of the mean and of x − mean is multiplied by rstd: √(1/eps) = 316 at most, where all of a row are equal
     */
    const double steep = width == 1 ? 320 : 8;
    array_check(what, &mean, 0, 4 * t->wide_unit * (double)(width < 20 ? width : 20));
    array_check(what, &rstd, 100 * t->wide_unit, 0);
    array_check(what, &y, t->unit, steep * 40 * t->wide_unit);

    t->table->layernorm_backward(t->kernels, dx.data, residual ? other.data : NULL, dweight.data,
                                 biased ? dbias.data : NULL, dy.data, normed->data, mean.data, rstd.data, weight.data,
                                 rows, width);
    for (size_t r = 0; r < rows; r++) {
        mean.exact[r] = element_get(t->wide, mean.data, r);
        rstd.exact[r] = element_get(t->wide, rstd.data, r);
    }
    t->reference_table->layernorm_backward(t->reference, dx.exact, residual ? other.exact : NULL, dweight.exact,
                                           biased ? dbias.exact : NULL, dy.exact, normed->exact, mean.exact, rstd.exact,
                                           weight.exact, rows, width);
    array_check(what, &dx, t->unit, steep * 40 * t->wide_unit);
    array_check(what, &dweight, t->wide_unit, t->wide_unit * (double)(rows * rows + 10) * 4);
    array_check(what, &dbias, t->wide_unit, t->wide_unit * (double)(rows * rows + 10));
    if (biased) { /* it alone */
        t->table->layernorm_backward(t->kernels, dx.data, residual ? other.data : NULL, NULL, dbias.data, dy.data,
                                     normed->data, mean.data, rstd.data, weight.data, rows, width);
        t->reference_table->layernorm_backward(t->reference, dx.exact, residual ? other.exact : NULL, NULL, dbias.exact,
                                               dy.exact, normed->exact, mean.exact, rstd.exact, weight.exact, rows,
                                               width);
        array_check(what, &dbias, t->wide_unit, 2 * t->wide_unit * (double)(rows * rows + 10));
    }
    if (residual) { /* dx may stand where dresidual stood, and need no other gradient beside it */
        t->table->layernorm_backward(t->kernels, other.data, other.data, NULL, NULL, dy.data, normed->data, mean.data,
                                     rstd.data, weight.data, rows, width);
        assert_memory_equal(other.data, dx.data, n * dtype_size(t->type));
    }
    array_free(&x), array_free(&other), array_free(&weight), array_free(&bias), array_free(&y), array_free(&sum);
    array_free(&dx), array_free(&mean), array_free(&rstd), array_free(&dy), array_free(&dweight), array_free(&dbias);
}

static void layernorm_shapes(struct instance *t)
{
    static const size_t shapes[][2] = {{1, 1}, {1, 3}, {5, 65}, {33, 129}, {12, 128}, {2, 1500}, {0, 8}};
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int options = 0; options < 4; options++)
            layernorm_case(t, shapes[i][0], shapes[i][1], options & 1, options & 2);
}

static void layernorm_agrees(void **state)
{
    (void)state;
    for_each_instance(layernorm_shapes);
}

/* --- attention ------------------------------------------------------------------------------------------------------
 */

/* Sums of the absolute values of all terms of out, and of dq, dk and dv, that have a probability or its gradient as an
 * operand: a rounding of those operands changes a sum by at most so many rounding units. */
struct magnitudes {
    double *out, *dqkv;
};

struct terms {
    const double *qkv, *dout, *out, *lse; /* of the reference */
    const struct dropout *drops;
    struct attention_shape shape;
};

/* What query i and key j of a head bring; `at` is the head's first column, `row` the sequence's first row. */
static void add_magnitudes(struct magnitudes *sums, const struct terms *x, size_t row, size_t head, size_t i, size_t j)
{
    const size_t size = x->shape.head_size, width = x->shape.heads * size, context = x->shape.context;
    const size_t at_i = (row + i) * 3 * width + head * size, at_j = (row + j) * 3 * width + head * size;
    const size_t out_i = (row + i) * width + head * size;
    const uint64_t element = (head * context + i) * context + j;
    const double scale = 1 / sqrt((double)size);
    double s = 0, dp = 0, mean = 0, m = 1;
    if (x->drops) {
        const uint64_t sequence = x->drops->sequence[row / context];
        m = dropout_keeps(x->drops->p, *x->drops->key, x->drops->site, sequence, element) / (1 - x->drops->p);
    }
    for (size_t d = 0; d < size; d++) {
        s += x->qkv[at_i + d] * x->qkv[at_j + width + d] * scale;
        dp += x->dout[out_i + d] * x->qkv[at_j + 2 * width + d];
        mean += x->dout[out_i + d] * x->out[out_i + d];
    }
    const double p = exp(s - x->lse[(row / context * x->shape.heads + head) * context + i]);
    const double ds = fabs(p * (m * dp - mean)) * scale;
    for (size_t d = 0; d < size; d++) {
        sums->out[out_i + d] += m * p * fabs(x->qkv[at_j + 2 * width + d]);
        sums->dqkv[at_i + d] += ds * fabs(x->qkv[at_j + width + d]);
        sums->dqkv[at_j + width + d] += ds * fabs(x->qkv[at_i + d]);
        sums->dqkv[at_j + 2 * width + d] += m * p * fabs(x->dout[out_i + d]);
    }
}

static struct magnitudes magnitudes_of(const struct terms *x)
{
    const size_t rows = x->shape.batch * x->shape.context, width = x->shape.heads * x->shape.head_size;
    struct magnitudes sums = {calloc(rows * width, sizeof(double)), calloc(rows * 3 * width, sizeof(double))};
    for (size_t row = 0; row < rows; row += x->shape.context)
        for (size_t head = 0; head < x->shape.heads; head++)
            for (size_t i = 0; i < x->shape.context; i++)
                for (size_t j = 0; j <= i; j++) add_magnitudes(&sums, x, row, head, i, j);
    return sums;
}

static void attention_case(struct instance *t, struct attention_shape s, double p, size_t attention_rows)
{
    const size_t width = s.heads * s.head_size, rows = s.batch * s.context;
    const uint64_t sequences[3] = {7, 1, 1ull << 33};
    const uint64_t key = dropout_key(2, 5);
    const struct dropout dropout = {.p = p, .site = 3, .key = &key, .sequence = sequences};
    const struct dropout *drops = p > 0 ? &dropout : NULL;
    uint64_t seed = s.context;
    struct array qkv = array_random(t->type, rows * 3 * width, 0, 2, &seed), out = array_new(t->type, rows * width);
    struct array lse = array_new(t->wide, s.batch * s.heads * s.context),
                 dout = array_random(t->type, rows * width, 0, 1, &seed);
    struct array dqkv = array_new(t->type, rows * 3 * width);
    char what[200];
    DESCRIBE(what, t, "attention %zu×%zu, %zu heads of %zu, dropout %g, %zu rows", s.batch, s.context, s.heads,
             s.head_size, p, attention_rows);
    t->table->attention_forward(t->kernels, out.data, lse.data, qkv.data, drops, s);
    t->reference_table->attention_forward(t->reference, out.exact, lse.exact, qkv.exact, drops, s);
    /* an error of ε in the scores, at most 4·√size, is one of ε in lse and of 2ε relatively in every probability */
    const double score_error = t->wide_unit * 4 * sqrt((double)s.head_size) * (double)(s.head_size + 8);
    const struct terms terms = {qkv.exact, dout.exact, out.exact, lse.exact, drops, s};
    struct magnitudes rounded = magnitudes_of(&terms);
    array_check(what, &lse, 4 * t->wide_unit, score_error);
    array_check_each(what, &out, t->unit, (2 * score_error + t->wide_unit * 40) * 2 / (1 - p), t->between, rounded.out);

    if (t->on_cpu) ((struct cpu *)t->kernels)->attention_rows = attention_rows;
    t->table->attention_backward(t->kernels, dqkv.data, dout.data, out.data, lse.data, qkv.data, drops, s);
    if (t->on_cpu) ((struct cpu *)t->kernels)->attention_rows = SIZE_MAX;
    for (size_t i = 0; i < out.n; i++) out.exact[i] = element_get(t->type, out.data, i);
    for (size_t i = 0; i < lse.n; i++) lse.exact[i] = element_get(t->wide, lse.data, i);
    t->reference_table->attention_backward(t->reference, dqkv.exact, dout.exact, out.exact, lse.exact, qkv.exact, drops,
                                           s);
    const double sums = (double)(s.context < 40 ? s.context : 40); /* Σ p <= context; all p together matter little */
    array_check_each(what, &dqkv, t->unit,
                     sums * (score_error + 100 * t->wide_unit) * 4 * sqrt((double)s.head_size) / (1 - p), t->between,
                     rounded.dqkv);
    free(rounded.out), free(rounded.dqkv);
    array_free(&qkv), array_free(&out), array_free(&lse), array_free(&dout), array_free(&dqkv);
}

static void attention_shapes(struct instance *t)
{
    static const struct attention_shape shapes[] = {
        {1, 1, 1, 1},   {2, 33, 2, 3},   {3, 64, 2, 32},  {1, 65, 3, 16},  {1, 100, 1, 65},
        {1, 200, 2, 8}, {1, 40, 1, 600}, {1, 132, 1, 64}, {2, 72, 1, 104},
    };
    for (size_t i = 0; i < COUNT(shapes); i++) {
        attention_case(t, shapes[i], 0, SIZE_MAX);
        attention_case(t, shapes[i], 0.2, SIZE_MAX);
    }
    attention_case(t, shapes[5], 0, 199); /* one query more than fits */
    attention_case(t, shapes[5], 0.2, 199);
}

static void attention_agrees(void **state)
{
    (void)state;
    for_each_instance(attention_shapes);
}

/* --- losses ---------------------------------------------------------------------------------------------------------
 */

static void cross_entropy_case(struct instance *t, size_t rows, size_t repeat, size_t classes, size_t stride)
{
    uint64_t seed = classes;
    struct array logits = array_random(t->type, rows * stride, 0, 8, &seed), before = array_new(t->type, rows * stride);
    struct array seeds = array_random(t->wide, rows / repeat, 0.5, 0.5, &seed);
    double *weight = malloc((rows + 1) * sizeof *weight), loss = 100, want = 100, forward = 100;
    int32_t *target = malloc((rows + 1) * sizeof *target);
    for (size_t s = 0; s < rows / repeat; s++) {
        weight[s] = s % 5 == 3 ? 0 : 0.25 * (double)(s % 4 + 1);
        if (s % 5 == 3) array_set(&seeds, s, (double)NAN);
    }
    for (size_t r = 0; r < rows; r++) {
        const bool masked = r % 11 == 4;
        target[r] = masked ? -1 : (int32_t)(r * 7 % classes);
        if (masked || r / repeat % 5 == 3) array_set(&logits, r * stride, (double)INFINITY);
    }
    memcpy(before.data, logits.data, logits.n * dtype_size(t->type));
    char what[200];
    DESCRIBE(what, t, "cross_entropy %zu/%zu×%zu of %zu", rows, repeat, classes, stride);
    t->table->cross_entropy(t->kernels, logits.data, target, weight, NULL, rows, repeat, classes, stride, &forward);
    assert_memory_equal(logits.data, before.data,
                        logits.n * dtype_size(t->type)); /* without seeds nothing is written */
    t->table->cross_entropy(t->kernels, logits.data, target, weight, seeds.data, rows, repeat, classes, stride, &loss);
    t->reference_table->cross_entropy(t->reference, logits.exact, target, weight, seeds.exact, rows, repeat, classes,
                                      stride, &want);
    assert_true(loss == forward);
    assert_near(loss, want, t->wide_unit * 40 * (double)(rows + 1));
    array_check(what, &logits, t->unit + 60 * t->wide_unit, 4 * t->wide_unit);
    array_free(&logits), array_free(&before), array_free(&seeds);
    free(weight), free(target);
}

static void cross_entropy_shapes(struct instance *t)
{
    static const size_t shapes[][4] = {{1, 1, 1, 1},      {1, 1, 3, 3},        {7, 1, 65, 128}, {40, 1, 129, 130},
                                       {40, 8, 129, 130}, {12, 3, 1300, 1301}, {70, 14, 9, 9},  {0, 1, 3, 4}};
    for (size_t i = 0; i < COUNT(shapes); i++)
        cross_entropy_case(t, shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]);
}

static void cross_entropy_agrees_and_rows_of_weight_0_leave_no_trace(void **state)
{
    (void)state;
    for_each_instance(cross_entropy_shapes);
}

/* No neighbour of out[i] is nearer to the exact x. Of 16-bit types: the bits of a neighbour are one more or one less.
 */
static void assert_nearest(const struct array *out, size_t i, double x)
{
    if (out->type != DTYPE_BF16 && out->type != DTYPE_FP16) return;
    const uint16_t bits = ((const uint16_t *)out->data)[i],
                   neighbours[2] = {(uint16_t)(bits - 1), (uint16_t)(bits + 1)};
    const double distance = fabs(element_get(out->type, out->data, i) - x);
    for (size_t n = 0; n < 2 && (bits & 0x7fff); n++)
        assert_true(distance <= fabs(element_get(out->type, neighbours, n) - x));
}

/* Doubles that lie beside a tie between two numbers of the type, and rows of weight 0 that hold anything. */
static void rows_of_data(struct instance *t)
{
    static const size_t shapes[][2] = {{1, 1}, {5, 3}, {40, 129}, {3, 1300}, {0, 4}};
    for (size_t i = 0; i < COUNT(shapes); i++) {
        const size_t rows = shapes[i][0], columns = shapes[i][1];
        uint64_t seed = columns;
        struct array noise = array_random(DTYPE_FP64, rows * columns, 0, 4, &seed),
                     w = array_random(t->type, columns, 0, 1, &seed);
        struct array out = array_new(t->type, rows * columns);
        double *x = noise.data, weight[40], loss = 2, want = 2;
        for (size_t r = 0; r < rows; r++) weight[r] = r % 5 == 3 ? 0 : 0.25 * (double)(r % 4 + 1);
        for (size_t e = 0; e < rows * columns; e++) {
            const double tie = 1 + (1 + 2 * (double)(e % 8)) * t->unit;
            if (e % 3 == 0) x[e] = (e % 2 ? 1 : -1) * tie * (1 + (double)((int)(e % 5) - 2) * 0x1p-45);
            if (weight[e / columns] == 0) x[e] = (double)NAN;
        }
        t->table->cast_rows(t->kernels, out.data, x, weight, rows, columns);
        t->reference_table->cast_rows(t->reference, out.exact, x, weight, rows, columns);
        char what[200];
        DESCRIBE(what, t, "cast_rows %zu×%zu", rows, columns);
        array_check(what, &out, t->unit, 0);
        for (size_t e = 0; e < rows * columns; e++)
            if (weight[e / columns] != 0) assert_nearest(&out, e, x[e]);
        t->table->linear_loss(t->kernels, x, weight, w.data, rows, columns, &loss);
        t->reference_table->linear_loss(t->reference, x, weight, w.exact, rows, columns, &want);
        assert_near(loss, want, 1e-12 * (1 + fabs(want)));
        array_free(&noise), array_free(&w), array_free(&out);
    }
}

static void rows_of_data_agree_and_those_of_weight_0_become_zeros(void **state)
{
    (void)state;
    for_each_instance(rows_of_data);
}

static void squared_error_case(struct instance *t, size_t rows, size_t outputs, double factor)
{
    const size_t n = rows * outputs;
    uint64_t seed = n;
    struct array prediction = array_random(t->type, n, 0, 2, &seed), gradient = array_new(t->type, n);
    struct array seeds = array_random(t->wide, rows, 0.5, 0.5, &seed),
                 target = array_random(DTYPE_FP64, n, 0, 2, &seed);
    double *weight = malloc((rows + 1) * sizeof *weight), loss = -1, want = -1;
    for (size_t r = 0; r < rows; r++) {
        weight[r] = r % 3 == 1 ? 0 : 0.5 * (double)(r % 4 + 1);
        if (r % 3 == 1)
            array_set(&prediction, r * outputs, (double)NAN), array_set(&target, r * outputs, (double)INFINITY);
    }
    char what[200];
    DESCRIBE(what, t, "squared_error %zu×%zu", rows, outputs);
    t->table->squared_error(t->kernels, gradient.data, prediction.data, target.exact, weight, seeds.data, factor, rows,
                            outputs, &loss);
    t->reference_table->squared_error(t->reference, gradient.exact, prediction.exact, target.exact, weight, seeds.exact,
                                      factor, rows, outputs, &want);
    assert_near(loss, want, 1e-14 * (double)(16 * n + 1));
    array_check(what, &gradient, t->unit + 2 * t->wide_unit, 0);
    t->table->squared_error(t->kernels, prediction.data, prediction.data, target.exact, weight, seeds.data, factor,
                            rows, outputs, &loss);
    assert_memory_equal(prediction.data, gradient.data, n * dtype_size(t->type));
    array_free(&prediction), array_free(&gradient), array_free(&seeds), array_free(&target);
    free(weight);
}

static void squared_error_shapes(struct instance *t)
{
    static const size_t shapes[][2] = {{1, 1}, {200, 1}, {9, 65}, {3, 1300}, {0, 2}};
    for (size_t i = 0; i < COUNT(shapes); i++) {
        squared_error_case(t, shapes[i][0], shapes[i][1], 0.5);
        squared_error_case(t, shapes[i][0], shapes[i][1], 1.0 / (double)shapes[i][1]);
    }
}

static void squared_error_agrees_and_rows_of_weight_0_leave_no_trace(void **state)
{
    (void)state;
    for_each_instance(squared_error_shapes);
}

/* --- parameters and gradients ----------------------------------------------------------------------------------------
 */

static void parameter_lengths(struct instance *t)
{
    char what[200];
    for (size_t i = 0; i < COUNT(lengths); i++) {
        const size_t n = lengths[i];
        uint64_t seed = n;
        struct array in = array_random(t->wide, n, 0, 100, &seed), addend = array_random(t->type, n, 0, 1, &seed);
        struct array rounded = array_new(t->type, n);
        DESCRIBE(what, t, "cast, accumulate, check of %zu", n);
        t->table->cast(t->kernels, rounded.data, in.data, n);
        t->reference_table->cast(t->reference, rounded.exact, in.exact, n);
        array_check(what, &rounded, t->unit, 0);
        t->table->accumulate(t->kernels, in.data, addend.data, n);
        t->reference_table->accumulate(t->reference, in.exact, addend.exact, n);
        array_check(what, &in, t->wide_unit, 0);
        for (size_t e = 0; e < n; e++) in.exact[e] = element_get(t->wide, in.data, e);
        const struct gradient_check got = checked(t->kernels, in.data, n, 1.0 / 3);
        const struct gradient_check want = checked(t->reference, in.exact, n, 1.0 / 3);
        assert_int_equal(got.nonfinite, 0);
        assert_near(got.sum_squares_scaled, want.sum_squares_scaled, 1e-13 * want.sum_squares_scaled);
        assert_near(got.sum_squares, want.sum_squares, 1e-13 * want.sum_squares);
        for (size_t bad = 0; bad < n; bad += n / 3 + 1) {
            for (int kind = 0; kind < 3; kind++) {
                array_set(&in, bad, kind == 0 ? (double)NAN : kind == 1 ? (double)INFINITY : -(double)INFINITY);
                assert_true(checked(t->kernels, in.data, n, 1).nonfinite > 0);
                array_set(&in, bad, 1);
            }
        }
        array_free(&in), array_free(&addend), array_free(&rounded);
    }
}

static void casts_sums_and_checks_agree(void **state)
{
    (void)state;
    for_each_instance(parameter_lengths);
}

static void update_lengths(struct instance *t)
{
    static const struct update updates[] = {
        {.kind = OPTIMIZER_KIND_ADAMW,
         .lr = 1e-3,
         .beta1 = 0.9,
         .beta2 = 0.99,
         .eps = 1e-8,
         .weight_decay = 0.1,
         .unscale = 0x1p-16},
        {.kind = OPTIMIZER_KIND_SGD, .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .unscale = 1e-3},
        {.kind = OPTIMIZER_KIND_SGD, .lr = 0.1, .weight_decay = 0.01, .unscale = 0.5},
    };
    for (size_t i = 0; i < COUNT(lengths); i++) {
        for (size_t u = 0; u < COUNT(updates); u++) {
            const size_t n = lengths[i];
            struct update step = updates[u];
            const bool adamw = step.kind == OPTIMIZER_KIND_ADAMW, moment = adamw || step.momentum != 0;
            uint64_t seed = n;
            struct array w = array_random(t->wide, n, 0, 1, &seed),
                         m = array_random(t->wide, n, 0, adamw ? 0 : 9, &seed);
            struct array v = array_random(t->wide, n, 0, 0, &seed);
            for (step.t = 1; step.t <= 4; step.t++) {
                struct array g = array_random(t->wide, n, 0, 1 / step.unscale, &seed);
                t->table->update(t->kernels, w.data, moment ? m.data : NULL, adamw ? v.data : NULL, g.data, n, &step);
                t->reference_table->update(t->reference, w.exact, moment ? m.exact : NULL, adamw ? v.exact : NULL,
                                           g.exact, n, &step);
                array_free(&g);
            }
            char what[200];
            DESCRIBE(what, t, "update %zu of %zu", u, n);
            array_check(what, &w, 8 * t->wide_unit, 8 * t->wide_unit);
            array_check(what, &m, 8 * t->wide_unit, 8 * t->wide_unit);
            array_check(what, &v, 16 * t->wide_unit, 0);
            array_free(&w), array_free(&m), array_free(&v);
        }
    }
}

static void updates_agree_over_four_steps(void **state)
{
    (void)state;
    for_each_instance(update_lengths);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_forward_agrees),
        cmocka_unit_test(linear_backward_input_agrees),
        cmocka_unit_test(linear_backward_weight_adds_in_the_wide_type),
        cmocka_unit_test(sums_and_activations_agree),
        cmocka_unit_test(dropout_takes_the_defined_bits),
        cmocka_unit_test(embedding_agrees_and_adds_repeated_tokens),
        cmocka_unit_test(layernorm_agrees),
        cmocka_unit_test(attention_agrees),
        cmocka_unit_test(cross_entropy_agrees_and_rows_of_weight_0_leave_no_trace),
        cmocka_unit_test(rows_of_data_agree_and_those_of_weight_0_become_zeros),
        cmocka_unit_test(squared_error_agrees_and_rows_of_weight_0_leave_no_trace),
        cmocka_unit_test(casts_sums_and_checks_agree),
        cmocka_unit_test(updates_agree_over_four_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
