/*
 * A critic's loss, and the penalty on the gradient of its output by its inputs, whose own gradient takes derivatives
 * twice. In `real`, never rounded to the compute type: with d/dt at x + t·r, r = ∂P/∂(∂ŷ/∂x), what the penalty P adds
 * to the gradient of the weights is d/dt of the gradient of ŷ. Threads share the rows, and then the outputs of a layer,
 * to whose gradients the rows are added in their order.
 */
#include <math.h>

#include "kernels/cpu/element.h"
#include "kernels/cpu/instance.h"

/* One row's way through a layer; a dot stands for d/dt. */
struct layer_row {
    real *x, *x_dot;         /* [in] what goes in */
    real *z, *z_dot;         /* [out] before the activation */
    real *above;             /* [out] ∂ŷ/∂(what comes out) */
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

/* What the layers' gradients need for d/dt of ∂ŷ/∂W at x + t·x_dot, x_dot being that of the first layer. */
static void take_second_derivative(const struct penalty *penalty, struct layer_row *rows)
{
    const size_t last = penalty->count - 1;
    for (size_t l = 0; l < last; l++) {
        times(rows[l].z_dot, &penalty->layers[l], rows[l].x_dot, NULL);
        for (size_t o = 0; o < penalty->layers[l].out; o++)
            rows[l + 1].x_dot[o] = rows[l].z_dot[o] * (real)slope_of(penalty->activation, (double)rows[l].z[o]).first;
    }
    rows[last].delta_dot[0] = 0;
    for (size_t l = last; l > 0; l--) {
        const struct penalty_layer *layer = &penalty->layers[l];
        struct layer_row *below = &rows[l - 1];
        times_transposed(below->delta_dot, layer, rows[l].delta_dot);
        for (size_t o = 0; o < layer->in; o++) {
            const struct slope slope = slope_of(penalty->activation, (double)below->z[o]);
            below->delta_dot[o] =
                below->delta_dot[o] * (real)slope.first + below->above[o] * below->z_dot[o] * (real)slope.second;
        }
    }
}

struct critic {
    const struct penalty *penalty;
    const double *x, *weight, *share;
    const real *seed;
    size_t rows;
    double *loss; /* [rows] */
    real *memory; /* of the rows' ways */
    size_t layer; /* whose gradients are added to */
};

/* The way of one row; what it has at the output is the last layer's delta: 1, or 0 where it adds to no gradient. */
static void find_way(const struct critic *critic, size_t row, struct layer_row *layers)
{
    const struct penalty *penalty = critic->penalty;
    real *memory = critic->memory + row * (penalty_scratch(penalty, 1) - 2);
    for (size_t l = 0; l < penalty->count; l++) {
        const size_t in = penalty->layers[l].in, out = penalty->layers[l].out;
        layers[l].x = take(&memory, in), layers[l].x_dot = take(&memory, in);
        layers[l].z = take(&memory, out), layers[l].z_dot = take(&memory, out);
        layers[l].above = take(&memory, out);
        layers[l].delta = take(&memory, out), layers[l].delta_dot = take(&memory, out);
    }
}

/* The loss of a row that is penalised; whether it adds to gradients. */
static bool penalise(const struct critic *critic, size_t row, struct layer_row *layers)
{
    const struct penalty *penalty = critic->penalty;
    const size_t inputs = penalty->layers[0].in;
    real *gradient = layers[0].x_dot;
    for (size_t i = 0; i < inputs; i++) layers[0].x[i] = (real)critic->x[row * inputs + i];
    gradient_of_output(penalty, layers, gradient);
    double squares = 0;
    for (size_t i = 0; i < inputs; i++) squares += (double)gradient[i] * (double)gradient[i];
    const double norm = sqrt(squares), excess = norm - 1;
    critic->loss[row] = critic->weight[row] * critic->share[row] * penalty->lambda * excess * excess;
    if (!critic->seed || norm == 0) return false; /* where the norm is 0 it has no derivative: none is taken */
    const double factor = (double)critic->seed[row] * critic->share[row] * penalty->lambda * 2 * excess / norm;
    for (size_t i = 0; i < inputs; i++) gradient[i] = (real)(factor * (double)gradient[i]);
    take_second_derivative(penalty, layers);
    return true;
}

static void penalise_rows(const void *arguments, struct cpu_share share)
{
    const struct critic *critic = arguments;
    struct layer_row layers[PENALTY_LAYERS];
    for (size_t row = share.begin; row < share.end; row++) {
        find_way(critic, row, layers);
        critic->loss[row] = 0;
        const bool is_penalised = critic->weight[row] != 0 && critic->share[row] != 0;
        const bool adds = is_penalised && penalise(critic, row, layers);
        layers[critic->penalty->count - 1].delta[0] = adds;
    }
}

/* Gradients of a layer's outputs begin … end − 1. */
static void add_outputs(const void *arguments, struct cpu_share share)
{
    const struct critic *critic = arguments;
    const struct penalty_layer *layer = &critic->penalty->layers[critic->layer];
    real *dweight = layer->dweight, *dbias = layer->dbias;
    struct layer_row layers[PENALTY_LAYERS];
    for (size_t row = 0; row < critic->rows; row++) {
        find_way(critic, row, layers);
        if (layers[critic->penalty->count - 1].delta[0] == 0) continue;
        const struct layer_row *own = &layers[critic->layer];
        for (size_t o = share.begin; o < share.end; o++) {
            const real delta = own->delta[o], dot = own->delta_dot[o];
            if (dbias) dbias[o] += dot;
            if (!dweight) continue;
            SIMD for (size_t i = 0; i < layer->in; i++) dweight[o * layer->in + i] +=
                dot * own->x[i] + delta * own->x_dot[i];
        }
    }
}

void cpu_gradient_penalty(struct kernels *kernels, const struct penalty *penalty, const double *x, const double *weight,
                          const double *share, const wide *seed, size_t rows, double *loss_sum, void *scratch)
{
    struct critic critic = {.penalty = penalty,
                            .x = x,
                            .weight = weight,
                            .share = share,
                            .seed = seed,
                            .rows = rows,
                            .loss = scratch,
                            .memory = (real *)scratch + 2 * rows};
    double sum = 0;
    cpu_spread(kernels, penalise_rows, &critic, rows, 1);
    for (size_t row = 0; row < rows; row++) sum += critic.loss[row];
    *loss_sum += sum;
    for (critic.layer = 0; seed && critic.layer < penalty->count; critic.layer++)
        cpu_spread(kernels, add_outputs, &critic, penalty->layers[critic.layer].out, 1);
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
