/* A critic's loss and the penalty on its gradient, row by row; the penalty's own gradient by going back through the
 * computation of ∂ŷ/∂x, and then through the forward pass that it used. */
#include <math.h>

#include "kernels/reference/reference.h"

static double curvature(enum activation activation, double x)
{
    const double t = tanh(x);
    switch (activation) {
    case ACTIVATE_TANH:
        return 2 * t * (t * t - 1);
    case ACTIVATE_GELU: /* of x·Φ(x): 2φ(x) + x·φ′(x) */
        return (2 - x * x) * exp(-0.5 * x * x) * 0.5 * M_SQRT1_2 * M_2_SQRTPI;
    case ACTIVATE_GELU_TANH: { /* of ½x(1 + T), T = tanh(u): T′ + ½x·T″, T′ = (1 − T²)u′, T″ = (1 − T²)u″ − 2T·T′u′ */
        const double k = M_SQRT1_2 * M_2_SQRTPI, cubic = 0.044715;
        const double T = tanh(k * (x + cubic * x * x * x)), u1 = k * (1 + 3 * cubic * x * x), u2 = 6 * k * cubic * x;
        const double T1 = (1 - T * T) * u1, T2 = (1 - T * T) * u2 - 2 * T * T1 * u1;
        return T1 + 0.5 * x * T2;
    }
    default:
        return 0;
    }
}

/* Of one row and one layer. */
struct values {
    double *in, *z, *above, *delta; /* what goes in [in]; W·in + bias; ∂ŷ/∂out; ∂ŷ/∂z [out] */
    double *by_gradient, *by_z;     /* ∂P/∂(∂ŷ/∂in) [in]; ∂P/∂z [out] */
};

static void lay_out(const struct penalty *penalty, struct values *values, double *memory)
{
    for (size_t l = 0; l < penalty->count; l++) {
        const size_t in = penalty->layers[l].in, out = penalty->layers[l].out;
        double *at[6];
        const size_t sizes[6] = {in, out, out, out, in, out};
        for (size_t i = 0; i < 6; i++) {
            at[i] = memory;
            memory += sizes[i];
        }
        values[l] = (struct values){at[0], at[1], at[2], at[3], at[4], at[5]};
    }
}

static double weight_of(const struct penalty_layer *layer, size_t o, size_t i)
{
    return ((const double *)layer->weight)[o * layer->in + i];
}

/* Σ over o of W[o, i]·x[o] */
static double column(const struct penalty_layer *layer, size_t i, const double *x)
{
    double sum = 0;
    for (size_t o = 0; o < layer->out; o++) sum += weight_of(layer, o, i) * x[o];
    return sum;
}

/* Σ over i of W[o, i]·x[i] */
static double row(const struct penalty_layer *layer, size_t o, const double *x)
{
    double sum = 0;
    for (size_t i = 0; i < layer->in; i++) sum += weight_of(layer, o, i) * x[i];
    return sum;
}

/* Up, and down again to ∂ŷ/∂x, which it leaves where ∂P/∂(∂ŷ/∂x) comes. */
static double norm_of_gradient(const struct penalty *penalty, struct values *v)
{
    const size_t last = penalty->count - 1;
    for (size_t l = 0; l <= last; l++) {
        const struct penalty_layer *layer = &penalty->layers[l];
        for (size_t o = 0; o < layer->out; o++) {
            v[l].z[o] = row(layer, o, v[l].in) + (layer->bias ? ((const double *)layer->bias)[o] : 0);
            if (l < last) v[l + 1].in[o] = reference_activate(penalty->activation, v[l].z[o]);
        }
    }
    v[last].delta[0] = 1;
    for (size_t l = last; l > 0; l--)
        for (size_t i = 0; i < penalty->layers[l].in; i++) {
            v[l - 1].above[i] = column(&penalty->layers[l], i, v[l].delta);
            v[l - 1].delta[i] = v[l - 1].above[i] * reference_slope(penalty->activation, v[l - 1].z[i]);
        }
    double squares = 0;
    for (size_t i = 0; i < penalty->layers[0].in; i++) {
        v[0].by_gradient[i] = column(&penalty->layers[0], i, v[0].delta);
        squares += v[0].by_gradient[i] * v[0].by_gradient[i];
    }
    return sqrt(squares);
}

static void add(const struct penalty_layer *layer, const double *out, const double *in)
{
    for (size_t o = 0; o < layer->out && layer->dweight; o++)
        for (size_t i = 0; i < layer->in; i++) ((double *)layer->dweight)[o * layer->in + i] += out[o] * in[i];
}

static void go_back(const struct penalty *penalty, struct values *v)
{
    const size_t last = penalty->count - 1;
    for (size_t l = 0; l <= last; l++) {
        const struct penalty_layer *layer = &penalty->layers[l];
        add(layer, v[l].delta, v[l].by_gradient);
        for (size_t o = 0; l < last && o < layer->out; o++) {
            const double by_delta = row(layer, o, v[l].by_gradient);
            v[l].by_z[o] = by_delta * v[l].above[o] * curvature(penalty->activation, v[l].z[o]);
            v[l + 1].by_gradient[o] = by_delta * reference_slope(penalty->activation, v[l].z[o]);
        }
    }
    for (size_t l = last; l-- > 0;) {
        const struct penalty_layer *layer = &penalty->layers[l];
        for (size_t o = 0; l + 1 < last && o < layer->out; o++)
            v[l].by_z[o] +=
                column(&penalty->layers[l + 1], o, v[l + 1].by_z) * reference_slope(penalty->activation, v[l].z[o]);
        add(layer, v[l].by_z, v[l].in);
        for (size_t o = 0; o < layer->out && layer->dbias; o++) ((double *)layer->dbias)[o] += v[l].by_z[o];
    }
}

void reference_gradient_penalty(struct kernels *kernels, const struct penalty *penalty, const double *x,
                                const double *weight, const double *share, const wide *seed, size_t rows,
                                double *loss_sum, void *scratch)
{
    (void)kernels;
    struct values values[PENALTY_LAYERS];
    const size_t inputs = penalty->layers[0].in;
    lay_out(penalty, values, scratch);
    for (size_t r = 0; r < rows; r++) {
        const double part = share[r] * penalty->lambda;
        if (weight[r] == 0 || part == 0) continue;
        for (size_t i = 0; i < inputs; i++) values[0].in[i] = x[r * inputs + i];
        const double norm = norm_of_gradient(penalty, values);
        *loss_sum += weight[r] * part * (norm - 1) * (norm - 1);
        if (!seed || norm == 0) continue;
        for (size_t i = 0; i < inputs; i++)
            values[0].by_gradient[i] *= ((const double *)seed)[r] * part * 2 * (norm - 1) / norm;
        go_back(penalty, values);
    }
}

void reference_critic_loss(struct kernels *kernels, compute *gradient, const compute *prediction, const double *target,
                           const double *weight, const wide *seed, size_t rows, double *loss_sum)
{
    (void)kernels;
    for (size_t r = 0; r < rows; r++) {
        if (weight[r] != 0) *loss_sum -= weight[r] * target[r] * ((const double *)prediction)[r];
        if (seed) ((double *)gradient)[r] = weight[r] != 0 ? -target[r] * ((const double *)seed)[r] : 0;
    }
}
