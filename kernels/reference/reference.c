/*
 * The arithmetic once more, in fp64 and written to be read: what the other backends are compared with. It shares no
 * kernel with them, only the definition of a dropout bit.
 */
#include "kernels/reference/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/host_memory.h"

/* --- products --------------------------------------------------------------------------------------------------- */

static size_t weight_index(struct linear_shape shape, size_t i, size_t o)
{
    return shape.layout == WEIGHT_IN_OUT ? i * shape.out + o : o * shape.in + i;
}

static size_t row_stride(struct linear_shape shape)
{
    return shape.stride ? shape.stride : shape.out;
}

double reference_activate(enum activation activation, double x)
{
    switch (activation) {
    case ACTIVATE_NONE:
        return x;
    case ACTIVATE_RELU:
        return x < 0 ? 0 : x; /* NaN stays */
    case ACTIVATE_TANH:
        return tanh(x);
    case ACTIVATE_GELU: /* x·Φ(x); Hendrycks & Gimpel 2016 */
        return 0.5 * x * erfc(-x * M_SQRT1_2);
    case ACTIVATE_GELU_TANH: /* the same paper's approximation */
        return 0.5 * x * (1 + tanh(M_SQRT1_2 * M_2_SQRTPI * (x + 0.044715 * x * x * x)));
    }
    return (double)NAN;
}

double reference_slope(enum activation activation, double x)
{
    switch (activation) {
    case ACTIVATE_NONE:
        return 1;
    case ACTIVATE_RELU:
        return x <= 0 ? 0 : isnan(x) ? x : 1;
    case ACTIVATE_TANH:
        return 1 - tanh(x) * tanh(x);
    case ACTIVATE_GELU: /* Φ(x) + x·φ(x) */
        return 0.5 * erfc(-x * M_SQRT1_2) + x * exp(-0.5 * x * x) * 0.5 * M_SQRT1_2 * M_2_SQRTPI;
    case ACTIVATE_GELU_TANH: {
        const double t = tanh(M_SQRT1_2 * M_2_SQRTPI * (x + 0.044715 * x * x * x));
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * M_SQRT1_2 * M_2_SQRTPI * (1 + 3 * 0.044715 * x * x);
    }
    }
    return (double)NAN;
}

static void linear_forward(struct kernels *kernels, compute *y_, compute *pre_, const compute *x_, const compute *w_,
                           const compute *bias_, struct linear_shape shape, enum activation activation)
{
    (void)kernels;
    double *y = y_, *pre = pre_;
    const double *x = x_, *w = w_, *bias = bias_;
    for (size_t r = 0; r < shape.rows; r++) {
        for (size_t o = 0; o < shape.out; o++) {
            double sum = bias ? bias[o] : 0;
            for (size_t i = 0; i < shape.in; i++) sum += x[r * shape.in + i] * w[weight_index(shape, i, o)];
            if (activation != ACTIVATE_NONE && pre) pre[r * row_stride(shape) + o] = sum;
            y[r * row_stride(shape) + o] = reference_activate(activation, sum);
        }
    }
}

static void linear_backward_input(struct kernels *kernels, compute *dx_, compute *activated_, const compute *dy_,
                                  const compute *w_, const compute *pre_, struct linear_shape shape,
                                  enum activation activation)
{
    (void)kernels;
    double *dx = dx_, *activated = activated_;
    const double *dy = dy_, *w = w_, *pre = pre_;
    for (size_t r = 0; r < shape.rows; r++) {
        for (size_t i = 0; i < shape.in; i++) {
            double sum = 0;
            for (size_t o = 0; o < shape.out; o++) sum += dy[r * row_stride(shape) + o] * w[weight_index(shape, i, o)];
            const size_t at = r * shape.in + i;
            if (activation != ACTIVATE_NONE) {
                const double x = pre[at];
                sum *= reference_slope(activation, x);
                if (activated) activated[at] = reference_activate(activation, x);
            }
            dx[at] = sum;
        }
    }
}

static void linear_backward_weight(struct kernels *kernels, wide *dw_, wide *dbias_, const compute *dy_,
                                   const compute *x_, struct linear_shape shape)
{
    (void)kernels;
    double *dw = dw_, *dbias = dbias_;
    const double *dy = dy_, *x = x_;
    for (size_t r = 0; r < shape.rows; r++) {
        for (size_t o = 0; o < shape.out; o++) {
            const double d = dy[r * row_stride(shape) + o];
            if (dbias) dbias[o] += d;
            for (size_t i = 0; i < shape.in && dw; i++) dw[weight_index(shape, i, o)] += d * x[r * shape.in + i];
        }
    }
}

/* --- elementwise ------------------------------------------------------------------------------------------------ */

static void add(struct kernels *kernels, compute *out, const compute *a, double factor, const compute *b, size_t n)
{
    (void)kernels;
    for (size_t i = 0; i < n; i++)
        ((double *)out)[i] = (a ? ((const double *)a)[i] : 0) + factor * ((const double *)b)[i];
}

static void activation_forward(struct kernels *kernels, compute *y, const compute *x, enum activation activation,
                               size_t n)
{
    (void)kernels;
    for (size_t i = 0; i < n; i++) ((double *)y)[i] = reference_activate(activation, ((const double *)x)[i]);
}

static void activation_backward(struct kernels *kernels, compute *dx, const compute *dy, const compute *x,
                                enum activation activation, size_t n)
{
    (void)kernels;
    for (size_t i = 0; i < n; i++)
        ((double *)dx)[i] = ((const double *)dy)[i] * reference_slope(activation, ((const double *)x)[i]);
}

static void drop(struct kernels *kernels, compute *out_, const compute *x_, const struct dropout *dropout, size_t batch,
                 size_t elements)
{
    (void)kernels;
    double *out = out_;
    const double *x = x_;
    for (size_t b = 0; b < batch; b++) {
        for (size_t e = 0; e < elements; e++) {
            const size_t at = b * elements + e;
            const bool keep =
                dropout->p == 0 || dropout_keeps(dropout->p, *dropout->key, dropout->site, dropout->sequence[b], e);
            out[at] = keep ? x[at] / (1 - dropout->p) : 0;
        }
    }
}

/* --- embedding -------------------------------------------------------------------------------------------------- */

static void embedding_forward(struct kernels *kernels, compute *out_, const int32_t *tokens, const compute *wte_,
                              const compute *wpe_, size_t batch, size_t context, size_t width)
{
    (void)kernels;
    double *out = out_;
    const double *wte = wte_, *wpe = wpe_;
    for (size_t r = 0; r < batch * context; r++) {
        for (size_t c = 0; c < width; c++)
            out[r * width + c] = wte[(size_t)tokens[r] * width + c] + wpe[r % context * width + c];
    }
}

static void embedding_backward(struct kernels *kernels, wide *dwte_, wide *dwpe_, const compute *dout_,
                               const int32_t *tokens, size_t batch, size_t context, size_t width)
{
    (void)kernels;
    double *dwte = dwte_, *dwpe = dwpe_;
    const double *dout = dout_;
    for (size_t r = 0; r < batch * context; r++) {
        for (size_t c = 0; c < width; c++) {
            if (dwte) dwte[(size_t)tokens[r] * width + c] += dout[r * width + c];
            if (dwpe) dwpe[r % context * width + c] += dout[r * width + c];
        }
    }
}

/* --- LayerNorm: Ba, Kiros and Hinton 2016; y = (x − mean)·rstd·weight + bias ------------------------------------- */

static void layernorm_row(double *y, double *mean_out, double *rstd_out, const double *x, const double *weight,
                          const double *bias, size_t width)
{
    double mean = 0, variance = 0;
    for (size_t c = 0; c < width; c++) mean += x[c] / (double)width;
    for (size_t c = 0; c < width; c++) variance += (x[c] - mean) * (x[c] - mean) / (double)width;
    const double rstd = 1 / sqrt(variance + NORM_EPS);
    for (size_t c = 0; c < width; c++) y[c] = (x[c] - mean) * rstd * weight[c] + (bias ? bias[c] : 0);
    *mean_out = mean;
    *rstd_out = rstd;
}

static void layernorm_forward(struct kernels *kernels, compute *y, compute *sum_, wide *mean, wide *rstd,
                              const compute *x_, const compute *residual_, const compute *weight, const compute *bias,
                              size_t rows, size_t width)
{
    const double *x = x_;
    if (residual_) {
        add(kernels, sum_, x_, 1, residual_, rows * width);
        x = sum_;
    }
    for (size_t r = 0; r < rows; r++)
        layernorm_row((double *)y + r * width, (double *)mean + r, (double *)rstd + r, x + r * width, weight, bias,
                      width);
}

/* With n = (x − mean)·rstd and g = dy·weight: dx = rstd·(g − mean(g) − n·mean(g·n)). */
static void layernorm_backward(struct kernels *kernels, compute *dx_, const compute *dresidual_, wide *dweight_,
                               wide *dbias_, const compute *dy_, const compute *x_, const wide *mean_,
                               const wide *rstd_, const compute *weight_, size_t rows, size_t width)
{
    (void)kernels;
    double *dx = dx_, *dweight = dweight_, *dbias = dbias_;
    const double *dresidual = dresidual_, *dy = dy_, *x = x_, *mean = mean_, *rstd = rstd_, *weight = weight_;
    for (size_t r = 0; r < rows; r++) {
        double mean_g = 0, mean_gn = 0;
        for (size_t c = 0; c < width; c++) {
            const size_t at = r * width + c;
            const double n = (x[at] - mean[r]) * rstd[r];
            mean_g += dy[at] * weight[c] / (double)width;
            mean_gn += dy[at] * weight[c] * n / (double)width;
            if (dweight) dweight[c] += dy[at] * n;
            if (dbias) dbias[c] += dy[at];
        }
        for (size_t c = 0; c < width; c++) {
            const size_t at = r * width + c;
            const double n = (x[at] - mean[r]) * rstd[r];
            dx[at] = (dresidual ? dresidual[at] : 0) + rstd[r] * (dy[at] * weight[c] - mean_g - n * mean_gn);
        }
    }
}

/* --- losses ----------------------------------------------------------------------------------------------------- */

/* NaN when a logit is infinite or NaN: an overflow is never hidden behind a probability of 0. */
static double log_sum_exp(const double *x, size_t n)
{
    double largest = x[0], sum = 0, poison = 0;
    for (size_t c = 0; c < n; c++) {
        if (x[c] > largest) largest = x[c];
        poison += x[c] * 0;
    }
    for (size_t c = 0; c < n; c++) sum += exp(x[c] - largest);
    return largest + log(sum) + poison;
}

static void cross_entropy(struct kernels *kernels, compute *logits_, const int32_t *target, const double *weight,
                          const wide *seed_, size_t rows, size_t repeat, size_t classes, size_t stride,
                          double *loss_sum)
{
    (void)kernels;
    const double *seed = seed_;
    for (size_t r = 0; r < rows; r++) {
        double *x = (double *)logits_ + r * stride;
        const double w = target[r] < 0 ? 0 : weight[r / repeat];
        const double lse = w != 0 ? log_sum_exp(x, classes) : 0;
        if (w != 0) *loss_sum += w * (lse - x[target[r]]);
        if (!seed) continue;
        for (size_t c = 0; c < stride; c++) {
            const double onehot = c == (size_t)target[r] ? 1 : 0;
            x[c] = w != 0 && c < classes ? (exp(x[c] - lse) - onehot) * seed[r / repeat] : 0;
        }
    }
}

static void squared_error(struct kernels *kernels, compute *gradient_, const compute *prediction_, const double *target,
                          const double *weight, const wide *seed_, double factor, size_t rows, size_t outputs,
                          double *loss_sum)
{
    (void)kernels;
    double *gradient = gradient_;
    const double *prediction = prediction_, *seed = seed_;
    for (size_t r = 0; r < rows; r++) {
        double sum = 0;
        for (size_t o = 0; o < outputs; o++) {
            const size_t at = r * outputs + o;
            const double error = prediction[at] - target[at];
            sum += error * error;
            if (seed) gradient[at] = weight[r] != 0 ? 2 * factor * error * seed[r] : 0;
        }
        if (weight[r] != 0) *loss_sum += weight[r] * factor * sum;
    }
}

static void linear_loss(struct kernels *kernels, const double *x, const double *weight, const compute *w, size_t rows,
                        size_t columns, double *loss_sum)
{
    (void)kernels;
    for (size_t r = 0; r < rows; r++) {
        double loss = 0;
        if (weight[r] == 0) continue;
        for (size_t c = 0; c < columns; c++) loss += x[r * columns + c] * ((const double *)w)[c];
        *loss_sum += weight[r] * loss;
    }
}

/* --- parameters, gradients, shards ------------------------------------------------------------------------------ */

static void cast_rows(struct kernels *kernels, compute *out, const double *x, const double *weight, size_t rows,
                      size_t columns)
{
    (void)kernels;
    for (size_t i = 0; i < rows * columns; i++) ((double *)out)[i] = weight[i / columns] != 0 ? x[i] : 0;
}

static void cast(struct kernels *kernels, compute *out, const wide *in, size_t n)
{
    (void)kernels;
    for (size_t i = 0; i < n; i++) ((double *)out)[i] = ((const double *)in)[i];
}

static void accumulate(struct kernels *kernels, wide *into, const compute *addend, size_t n)
{
    (void)kernels;
    for (size_t i = 0; i < n; i++) ((double *)into)[i] += ((const double *)addend)[i];
}

static void check(struct kernels *kernels, struct gradient_check *into, const wide *gradient, size_t n,
                  double inverse_scale)
{
    (void)kernels;
    for (size_t i = 0; i < n; i++) {
        const double g = ((const double *)gradient)[i];
        if (!isfinite(g)) into->nonfinite++;
        into->sum_squares_scaled += g * g;
        into->sum_squares += g * inverse_scale * (g * inverse_scale);
    }
}

static void adamw(double *w, double *m, double *v, double g, const struct update *u)
{
    *w -= u->lr * u->weight_decay * *w;
    *m = u->beta1 * *m + (1 - u->beta1) * g;
    *v = u->beta2 * *v + (1 - u->beta2) * g * g;
    const double m_hat = *m / (1 - pow(u->beta1, (double)u->t));
    const double v_hat = *v / (1 - pow(u->beta2, (double)u->t));
    *w -= u->lr * m_hat / (sqrt(v_hat) + u->eps);
}

static void sgd(double *w, double *m, double g, const struct update *u)
{
    g += u->weight_decay * *w;
    if (u->momentum != 0) {
        *m = u->t == 1 ? g : u->momentum * *m + g;
        g = *m;
    }
    *w -= u->lr * g;
}

static void update(struct kernels *kernels, wide *master_, wide *m_, wide *v_, const wide *gradient, size_t n,
                   const struct update *u)
{
    (void)kernels;
    double *w = master_, *m = m_, *v = v_;
    for (size_t i = 0; i < n; i++) {
        const double g = ((const double *)gradient)[i] * u->unscale;
        if (u->kind == OPTIMIZER_KIND_ADAMW)
            adamw(w + i, m + i, v + i, g, u);
        else
            sgd(w + i, m ? m + i : NULL, g, u);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */

static void reference_close(struct kernels *kernels)
{
    free(kernels);
}

static const struct kernel_table reference_table = {
    .name = "reference",
    .close = reference_close,
    .on_host = true,
    .allocate = host_allocate,
    .release = host_release,
    .clear = host_clear,
    .copy = host_copy,
    .upload = host_copy,
    .download = host_download,
    .wait = host_wait,
    .memory_left = host_memory_left,
    .linear_forward = linear_forward,
    .linear_backward_input = linear_backward_input,
    .linear_backward_weight = linear_backward_weight,
    .add = add,
    .activation_forward = activation_forward,
    .activation_backward = activation_backward,
    .dropout = drop,
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .layernorm_forward = layernorm_forward,
    .layernorm_backward = layernorm_backward,
    .groupnorm_forward = reference_groupnorm_forward,
    .groupnorm_backward = reference_groupnorm_backward,
    .batchnorm_moments = reference_batchnorm_moments,
    .batchnorm_settle = reference_batchnorm_settle,
    .batchnorm_forward = reference_batchnorm_forward,
    .batchnorm_sums = reference_batchnorm_sums,
    .batchnorm_backward = reference_batchnorm_backward,
    .patches_forward = reference_patches_forward,
    .patches_backward = reference_patches_backward,
    .pool_forward = reference_pool_forward,
    .pool_backward = reference_pool_backward,
    .attention_forward = reference_attention_forward,
    .attention_backward = reference_attention_backward,
    .cross_entropy = cross_entropy,
    .squared_error = squared_error,
    .linear_loss = linear_loss,
    .critic_loss = reference_critic_loss,
    .gradient_penalty = reference_gradient_penalty,
    .cast_rows = cast_rows,
    .cast = cast,
    .accumulate = accumulate,
    .check = check,
    .update = update,
};

struct kernels *kernels_open_reference(const struct kernels_options *options)
{
    if (options->compute_type != DTYPE_FP64) return NULL;
    struct kernels *kernels = malloc(sizeof *kernels);
    if (kernels) *kernels = (struct kernels){&reference_table, DTYPE_FP64, 1};
    return kernels;
}
