/*
 * A critic's loss, and the penalty on the gradient of its output by its inputs, whose own gradient takes derivatives
 * twice. Row by row in `real`, never rounded to the compute type: with d/dt at x + t·r, r = ∂P/∂(∂ŷ/∂x), what the
 * penalty P adds to the gradient of the weights is d/dt of the gradient of ŷ.
 */
#include <math.h>

#include "kernels/cpu/element.h"
#include "kernels/cpu/instance.h"

/* One row's way through a layer; a dot stands for d/dt. */
struct layer_row {
    real *x, *x_dot;         /* [in] what goes in */
    real *z, *z_dot;         /* [out] before the activation */
    real *above, *above_dot; /* [out] ∂ŷ/∂(what comes out) */
    real *delta, *delta_dot; /* [out] ∂ŷ/∂z */
};

struct slope {
    double value, first, second; /* φ, φ′, φ″ */
};

static struct slope slope_of(enum activation activation, double x)
{
    const double normal = exp(-0.5 * x * x) * 0.5 * M_SQRT1_2 * M_2_SQRTPI, tangent = tanh(x);
    const double k = M_SQRT1_2 * M_2_SQRTPI, inner = k * (x + 0.044715 * x * x * x);
    switch (activation) {
    case ACTIVATE_RELU:
        return x > 0 ? (struct slope){x, 1, 0} : (struct slope){x * 0, 0, 0};
    case ACTIVATE_TANH:
        return (struct slope){tangent, 1 - tangent * tangent, -2 * tangent * (1 - tangent * tangent)};
    case ACTIVATE_GELU: {
        const double cdf = 0.5 * erfc(-x * M_SQRT1_2);
        return (struct slope){x * cdf, cdf + x * normal, (2 - x * x) * normal};
    }
    case ACTIVATE_GELU_TANH: {
        const double t = tanh(inner), s = 1 - t * t, u = k * (1 + 3 * 0.044715 * x * x), v = 6 * 0.044715 * k * x;
        return (struct slope){0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * s * u,
                              s * u + 0.5 * x * s * (v - 2 * t * u * u)};
    }
    default:
        return (struct slope){x, 1, 0};
    }
}

/* Carves `count` values off *memory. */
static real *take(real **memory, size_t count)
{
    real *taken = *memory;
    *memory += count;
    return taken;
}

/* y[out] = W·x (+ bias); x_dot alike without bias. */
static void times(real *y, const struct penalty_layer *layer, const real *x, const element *bias)
{
    real buffer[CHUNK];
    for (size_t o = 0; o < layer->out; o++) {
        real sum = 0;
        for (size_t i = 0; i < layer->in; i += CHUNK) {
            const size_t n = smaller(CHUNK, layer->in - i);
            const real *w = widen(buffer, (const element *)layer->weight + o * layer->in + i, n);
            SIMD_SUM(sum) for (size_t j = 0; j < n; j++) sum += w[j] * x[i + j];
        }
        if (bias) sum += *widen(buffer, bias + o, 1);
        y[o] = sum;
    }
}

/* y[in] = Wᵀ·x */
static void times_transposed(real *y, const struct penalty_layer *layer, const real *x)
{
    real buffer[CHUNK];
    for (size_t i = 0; i < layer->in; i++) y[i] = 0;
    for (size_t o = 0; o < layer->out; o++)
        for (size_t i = 0; i < layer->in; i += CHUNK) {
            const size_t n = smaller(CHUNK, layer->in - i);
            const real *w = widen(buffer, (const element *)layer->weight + o * layer->in + i, n);
            SIMD for (size_t j = 0; j < n; j++) y[i + j] += w[j] * x[o];
        }
}

/* ∂ŷ/∂x, in what lies below the first layer; the values of the forward pass stay. */
static void gradient_of_output(const struct penalty *penalty, struct layer_row *rows, real *gradient)
{
    const size_t last = penalty->count - 1;
    for (size_t l = 0; l <= last; l++) {
        const struct penalty_layer *layer = &penalty->layers[l];
        times(rows[l].z, layer, rows[l].x, layer->bias);
        for (size_t o = 0; l < last && o < layer->out; o++)
            rows[l + 1].x[o] = (real)slope_of(penalty->activation, (double)rows[l].z[o]).value;
    }
    rows[last].delta[0] = 1;
    for (size_t l = last; l > 0; l--) {
        struct layer_row *below = &rows[l - 1];
        times_transposed(below->above, &penalty->layers[l], rows[l].delta);
        for (size_t o = 0; o < penalty->layers[l].in; o++)
            below->delta[o] = below->above[o] * (real)slope_of(penalty->activation, (double)below->z[o]).first;
    }
    times_transposed(gradient, &penalty->layers[0], rows[0].delta);
}

/* gradients += d/dt of ∂ŷ/∂W at x + t·x_dot, x_dot being that of the first layer. */
static void add_second_derivative(const struct penalty *penalty, struct layer_row *rows)
{
    const size_t last = penalty->count - 1;
    for (size_t l = 0; l < last; l++) {
        times(rows[l].z_dot, &penalty->layers[l], rows[l].x_dot, NULL);
        for (size_t o = 0; o < penalty->layers[l].out; o++)
            rows[l + 1].x_dot[o] = rows[l].z_dot[o] * (real)slope_of(penalty->activation, (double)rows[l].z[o]).first;
    }
    rows[last].delta_dot[0] = 0;
    for (size_t l = last + 1; l-- > 0;) {
        const struct penalty_layer *layer = &penalty->layers[l];
        real *dweight = layer->dweight, *dbias = layer->dbias;
        for (size_t o = 0; o < layer->out; o++) {
            const real delta = rows[l].delta[o], dot = rows[l].delta_dot[o];
            if (dbias) dbias[o] += dot;
            if (!dweight) continue;
            SIMD for (size_t i = 0; i < layer->in; i++) dweight[o * layer->in + i] +=
                dot * rows[l].x[i] + delta * rows[l].x_dot[i];
        }
        if (l == 0) break;
        struct layer_row *below = &rows[l - 1];
        times_transposed(below->above_dot, layer, rows[l].delta_dot);
        for (size_t o = 0; o < layer->in; o++) {
            const struct slope slope = slope_of(penalty->activation, (double)below->z[o]);
            below->delta_dot[o] =
                below->above_dot[o] * (real)slope.first + below->above[o] * below->z_dot[o] * (real)slope.second;
        }
    }
}

void cpu_gradient_penalty(struct kernels *kernels, const struct penalty *penalty, const double *x, const double *weight,
                          const double *share, const wide *seed, size_t rows, double *loss_sum, void *scratch)
{
    (void)kernels;
    struct layer_row layer[PENALTY_LAYERS];
    real *memory = scratch;
    const size_t inputs = penalty->layers[0].in;
    real *gradient = take(&memory, inputs);
    for (size_t l = 0; l < penalty->count; l++) {
        const size_t in = penalty->layers[l].in, out = penalty->layers[l].out;
        layer[l] = (struct layer_row){take(&memory, in),  take(&memory, in),  take(&memory, out), take(&memory, out),
                                      take(&memory, out), take(&memory, out), take(&memory, out), take(&memory, out)};
    }
    double sum = 0;
    for (size_t r = 0; r < rows; r++) {
        if (weight[r] == 0 || share[r] == 0) continue;
        for (size_t i = 0; i < inputs; i++) layer[0].x[i] = (real)x[r * inputs + i];
        gradient_of_output(penalty, layer, gradient);
        double squares = 0;
        for (size_t i = 0; i < inputs; i++) squares += (double)gradient[i] * (double)gradient[i];
        const double norm = sqrt(squares), excess = norm - 1;
        sum += weight[r] * share[r] * penalty->lambda * excess * excess;
        if (!seed || norm == 0) continue; /* where the norm is 0 it has no derivative: none is taken */
        const double factor = (double)((const real *)seed)[r] * share[r] * penalty->lambda * 2 * excess / norm;
        for (size_t i = 0; i < inputs; i++) layer[0].x_dot[i] = (real)(factor * (double)gradient[i]);
        add_second_derivative(penalty, layer);
    }
    *loss_sum += sum;
}

void cpu_critic_loss(struct kernels *kernels, compute *gradient_, const compute *prediction_, const double *target,
                     const double *weight, const wide *seed, size_t rows, double *loss_sum)
{
    (void)kernels;
    const element *prediction = prediction_;
    element *gradient = gradient_;
    double sum = 0;
    for (size_t r = 0; r < rows; r++) {
        real value;
        value = *widen(&value, prediction + r, 1);
        if (weight[r] != 0) sum -= weight[r] * target[r] * (double)value;
        if (!seed) continue;
        const real slope = weight[r] == 0 ? 0 : (real)(-target[r] * (double)((const real *)seed)[r]);
        narrow(gradient + r, &slope, 1);
    }
    *loss_sum += sum;
}
