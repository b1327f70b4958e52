/*
 * Fully connected layers. Operands of 16-bit types are widened panel by panel, so the scratch memory does not depend on
 * the shape; the result of a panel of rows is finished (bias, activation, rounding) while it is in the cache.
 */
#include "kernels/cpu/activation.h"
#include "kernels/cpu/instance.h"
#include "kernels/cpu/matrix.h"

#define PANEL CPU_PANEL_REALS

/* y[rows,n] = finish(a[rows,k]·b), b [k,n], or [n,k] when transposed. */
struct rows_product {
    size_t n, k;
    size_t a_stride, y_stride; /* elements from row to row; y's is pre's as well */
    const element *a, *b;
    bool transposed;
    element *y;
    enum activation activation;
    element *pre;         /* forward: where the pre-activation goes, or NULL */
    const element *bias;  /* forward, or NULL */
    const element *slope; /* backward: pre-activation of the layer below, or NULL */
    element *activated;   /* backward: where the layer below's activation goes again, or NULL; may be slope */
};

struct panels {
    size_t rows, n, k;
};

/* Rows: few enough for the result to stay in the cache until it is finished, enough to pay for BLAS's packing of b.
 * Operands that are used as they are need no other cuts, and none at all when there is nothing to finish. */
static struct panels choose_panels(const struct rows_product *p)
{
    if (ELEMENT_IS_REAL && !p->bias && p->activation == ACTIVATE_NONE) return (struct panels){SIZE_MAX, p->n, p->k};
    const size_t k = ELEMENT_IS_REAL ? p->k : smaller(p->k, 1024);
    const size_t n = ELEMENT_IS_REAL ? p->n : smaller(p->n, smaller(1024, PANEL / k));
    const size_t fits = ELEMENT_IS_REAL ? SIZE_MAX : PANEL / k, cached = ((size_t)1 << 17) / n;
    return (struct panels){cached > 256 ? smaller(cached, fits) : 256, n, k};
}

/* Store `count` values of row r from column c on. */
static void finish_forward(const struct rows_product *p, real *values, size_t r, size_t c, size_t count)
{
    real buffer[CHUNK];
    const size_t at = r * p->y_stride + c;
    if (p->bias) {
        const real *bias = widen(buffer, p->bias + c, count);
        SIMD for (size_t i = 0; i < count; i++) values[i] += bias[i];
    }
    if (p->activation == ACTIVATE_NONE) {
        narrow(p->y + at, values, count);
        return;
    }
    const real *rounded = round_trip((p->pre ? p->pre : p->y) + at, values, count);
    real *out = place(buffer, p->y + at);
    activate_run(out, rounded, p->activation, count);
    narrow(p->y + at, out, count);
}

static void finish_backward(const struct rows_product *p, real *values, size_t r, size_t c, size_t count)
{
    real buffer[CHUNK];
    const size_t at = r * p->y_stride + c;
    const real *x = widen(buffer, p->slope + at, count);
    if (p->activated) {
        real *activated = place(buffer, p->activated + at);
        activation_both_run(values, activated, values, x, p->activation, count);
        narrow(p->activated + at, activated, count);
    } else {
        activation_slope_run(values, values, x, p->activation, count);
    }
    narrow(p->y + at, values, count);
}

static void finish_panel(const struct rows_product *p, real *result, size_t stride, size_t row, size_t rows,
                         size_t column, size_t columns)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < columns; c += CHUNK) {
            real *values = result + r * stride + c;
            const size_t count = smaller(CHUNK, columns - c);
            if (p->slope)
                finish_backward(p, values, row + r, column + c, count);
            else
                finish_forward(p, values, row + r, column + c, count);
        }
    }
}

/* One panel of rows by one panel of columns. b_panel holds b's panel already when keep_b. */
static void multiply_panel(const struct rows_product *p, const struct panels *size, real *scratch, bool keep_b,
                           size_t row, size_t rows, size_t column, size_t columns)
{
    real *a_panel = scratch, *b_panel = scratch + PANEL;
    element *stored = p->activation != ACTIVATE_NONE && p->pre ? p->pre : p->y;
    real *result = place(scratch + 2 * PANEL, stored + row * p->y_stride + column);
    const size_t stride = ELEMENT_IS_REAL ? p->y_stride : columns;
    for (size_t first = 0; first < p->k; first += size->k) {
        const size_t terms = smaller(size->k, p->k - first);
        const struct matrix a = widen_panel(a_panel, p->a + row * p->a_stride + first, p->a_stride, rows, terms);
        struct matrix b = {b_panel, p->transposed ? terms : columns};
        if (!keep_b) {
            b = p->transposed ? widen_panel(b_panel, p->b + column * p->k + first, p->k, columns, terms)
                              : widen_panel(b_panel, p->b + first * p->n + column, p->n, terms, columns);
        }
        product(p->transposed ? PRODUCT_NT : PRODUCT_NN, rows, columns, terms, 1, a, b, first > 0, result, stride);
    }
    const bool finished = ELEMENT_IS_REAL && !p->bias && p->activation == ACTIVATE_NONE;
    if (!finished) finish_panel(p, result, stride, row, rows, column, columns);
}

static void multiply_rows(const void *arguments, struct cpu_share share)
{
    const struct rows_product *p = arguments;
    const struct panels size = choose_panels(p);
    const bool b_fits = !ELEMENT_IS_REAL && size.k >= p->k;
    for (size_t column = 0; column < p->n; column += size.n) {
        const size_t columns = smaller(size.n, p->n - column);
        for (size_t row = share.begin, rows; row < share.end; row += rows) {
            rows = smaller(size.rows, share.end - row);
            const bool keep_b = b_fits && row > share.begin;
            multiply_panel(p, &size, share.scratch, keep_b, row, rows, column, columns);
        }
    }
}

static size_t row_stride(struct linear_shape shape)
{
    return shape.stride ? shape.stride : shape.out;
}

static void multiply(struct kernels *kernels, const struct rows_product *p, size_t rows)
{
    cpu_spread(kernels, multiply_rows, p, p->n > 0 && p->k > 0 ? rows : 0, 16);
}

void cpu_linear_forward(struct kernels *kernels, compute *y, compute *pre, const compute *x, const compute *w,
                        const compute *bias, struct linear_shape shape, enum activation activation)
{
    const struct rows_product p = {
        .n = shape.out,
        .k = shape.in,
        .a_stride = shape.in,
        .y_stride = row_stride(shape),
        .a = x,
        .b = w,
        .transposed = shape.layout == WEIGHT_OUT_IN,
        .y = y,
        .activation = activation,
        .pre = pre,
        .bias = bias,
    };
    multiply(kernels, &p, shape.rows);
}

void cpu_linear_backward_input(struct kernels *kernels, compute *dx, compute *activated, const compute *dy,
                               const compute *w, const compute *pre, struct linear_shape shape,
                               enum activation activation)
{
    const struct rows_product p = {
        .n = shape.in,
        .k = shape.out,
        .a_stride = row_stride(shape),
        .y_stride = shape.in,
        .a = dy,
        .b = w,
        .transposed = shape.layout == WEIGHT_IN_OUT,
        .y = dx,
        .activation = activation,
        .slope = activation == ACTIVATE_NONE ? NULL : pre,
        .activated = activated,
    };
    multiply(kernels, &p, shape.rows);
}

/* dw[m,n] += leftᵀ·right. */
struct weight_product {
    real *dw;
    const element *left, *right; /* [rows,m], [rows,n] */
    size_t rows, m, n, left_stride, right_stride;
};

/* The share's rows of dw. */
static void weight_rows(const void *arguments, struct cpu_share share)
{
    const struct weight_product *p = arguments;
    const size_t side = ELEMENT_IS_REAL ? SIZE_MAX : 512;
    real *left_panel = share.scratch, *right_panel = left_panel + PANEL;
    for (size_t i = share.begin, height; i < share.end; i += height) {
        height = smaller(side, share.end - i);
        for (size_t row = 0, terms; row < p->rows; row += terms) {
            terms = smaller(side, p->rows - row);
            const element *left = p->left + row * p->left_stride + i;
            const struct matrix a = widen_panel(left_panel, left, p->left_stride, terms, height);
            for (size_t j = 0, columns; j < p->n; j += columns) {
                columns = smaller(side, p->n - j);
                const element *right = p->right + row * p->right_stride + j;
                const struct matrix b = widen_panel(right_panel, right, p->right_stride, terms, columns);
                product(PRODUCT_TN, height, columns, terms, 1, a, b, 1, p->dw + i * p->n + j, p->n);
            }
        }
    }
}

struct bias_sums {
    real *dbias;
    const element *dy;
    size_t rows, stride;
};

static void bias_columns(const void *arguments, struct cpu_share share)
{
    const struct bias_sums *b = arguments;
    real buffer[CHUNK], sum[CHUNK];
    for (size_t c = share.begin; c < share.end; c += CHUNK) {
        const size_t n = smaller(CHUNK, share.end - c);
        memset(sum, 0, n * sizeof *sum);
        for (size_t r = 0; r < b->rows; r++) {
            const real *d = widen(buffer, b->dy + r * b->stride + c, n);
            SIMD for (size_t i = 0; i < n; i++) sum[i] += d[i];
        }
        SIMD for (size_t i = 0; i < n; i++) b->dbias[c + i] += sum[i];
    }
}

void cpu_linear_backward_weight(struct kernels *kernels, wide *dw, wide *dbias, const compute *dy, const compute *x,
                                struct linear_shape shape)
{
    if (shape.rows == 0 || shape.in == 0 || shape.out == 0) return;
    const size_t stride = row_stride(shape);
    struct weight_product p = {dw, x, dy, shape.rows, shape.in, shape.out, shape.in, stride};
    if (shape.layout == WEIGHT_OUT_IN)
        p = (struct weight_product){dw, dy, x, shape.rows, shape.out, shape.in, stride, shape.in};
    if (dw) cpu_spread(kernels, weight_rows, &p, p.m, 16);
    const struct bias_sums sums = {dbias, dy, shape.rows, stride};
    if (dbias) cpu_spread(kernels, bias_columns, &sums, shape.out, 16);
}
