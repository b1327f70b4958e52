/*
 * mlp: a chain of layers y = activate(norm(x·Wᵀ + b)) with a loss after the last, which has neither norm nor
 * activation. linear is the same chain with no hidden layer and one output. Weights are [out, in] and start, like the
 * biases, uniform in ±1/√in, as PyTorch's Linear does. With a norm, it and the activation are stages of their own.
 *
 *   layers.I.weight [out, in], layers.I.bias [out]; norms.I.… [out] after hidden layer I (models/norm.c); bias: false
 * leaves out all biases, those of the norms too. linear: weight [1, inputs], bias [1].
 */
#include <math.h>
#include <stdio.h>

#include "worker/models/chain.h"

struct layer {
    size_t in, out;
    struct linear linear;
    enum activation activation;
    bool first, last;
};

/* For one micro-batch of `rows`. */
struct layer_saved {
    compute *x;      /* [rows, in] the data, rounded; first layer only */
    compute *linear; /* [rows, out] x·Wᵀ + b before an activation; the last layer's prediction, then its gradient */
};

static size_t lay_out(const struct stage *stage, size_t rows, struct layer_saved *saved, void *base)
{
    const struct layer *layer = stage->parameters;
    size_t element = dtype_size(stage->model->compute_type);
    struct carver carver = {.base = (uintptr_t)base};
    saved->x = carve(&carver, layer->first ? rows * layer->in * element : 0);
    bool keeps = layer->last || layer->activation != ACTIVATE_NONE;
    saved->linear = carve(&carver, keeps ? rows * layer->out * element : 0);
    return carver.used;
}

static size_t layer_saved_bytes(const struct stage *stage, size_t rows)
{
    struct layer_saved saved;
    return lay_out(stage, rows, &saved, NULL);
}

static size_t layer_out_bytes(const struct stage *stage, size_t rows)
{
    const struct layer *layer = stage->parameters;
    return layer->last ? 0 : rows * layer->out * dtype_size(stage->model->compute_type);
}

struct layer_scratch {
    compute *gradient; /* [rows, out] behind the activation */
    void *linear;
};

static size_t lay_out_scratch(const struct stage *stage, size_t rows, struct layer_scratch *scratch, void *base)
{
    const struct layer *layer = stage->parameters;
    struct carver carver = {.base = (uintptr_t)base};
    scratch->gradient = carve(&carver, layer_out_bytes(stage, rows));
    scratch->linear = carve(&carver, linear_scratch_bytes(&layer->linear, rows, stage->model->compute_type));
    return carver.used;
}

static size_t layer_scratch_bytes(const struct stage *stage, size_t rows)
{
    struct layer_scratch scratch;
    return lay_out_scratch(stage, rows, &scratch, NULL);
}

/* Adds the loss; with seeds, turns the prediction into its gradient. */
static void take_loss(const struct stage *stage, struct pass *pass, compute *prediction)
{
    const struct layer *layer = stage->parameters;
    const struct feed *feed = &pass->feed;
    const struct kernel_table *k = pass->kernels->table;
    const wide *seed = pass->gradients ? feed->seed : NULL;
    size_t outputs = layer->out;
    if (stage->model->spec->loss == GACC__V1__LOSS__LOSS_WASSERSTEIN) {
        k->critic_loss(pass->kernels, prediction, prediction, feed->y, feed->weight, seed, feed->rows, pass->loss_sum);
    } else if (stage->model->spec->loss == GACC__V1__LOSS__LOSS_CROSS_ENTROPY) {
        k->cross_entropy(pass->kernels, prediction, feed->targets, feed->weight, seed, feed->rows, 1, outputs, outputs,
                         pass->loss_sum);
    } else {
        double factor = stage->model->spec->loss == GACC__V1__LOSS__LOSS_MSE ? 1 / (double)outputs : 0.5;
        k->squared_error(pass->kernels, prediction, prediction, feed->y, feed->weight, seed, factor, feed->rows,
                         outputs, pass->loss_sum);
    }
}

static void layer_forward(const struct stage *stage, struct pass *pass, const compute *in, compute *out, void *memory,
                          void *scratch_memory)
{
    const struct layer *layer = stage->parameters;
    const struct kernel_table *k = pass->kernels->table;
    size_t rows = pass->feed.rows;
    struct layer_saved saved;
    struct layer_scratch scratch;
    lay_out(stage, rows, &saved, memory);
    lay_out_scratch(stage, rows, &scratch, scratch_memory);
    if (layer->first) { /* a row of weight 0 becomes zeros: what stands in it must not reach a product */
        k->cast_rows(pass->kernels, saved.x, pass->feed.x, pass->feed.weight, rows, layer->in);
        in = saved.x;
    }
    if (layer->last) {
        linear_forward(pass, &layer->linear, saved.linear, NULL, in, rows, ACTIVATE_NONE, scratch.linear);
        take_loss(stage, pass, saved.linear);
    } else {
        linear_forward(pass, &layer->linear, out, saved.linear, in, rows, layer->activation, scratch.linear);
    }
}

static void layer_backward(const struct stage *stage, struct pass *pass, compute *din, const compute *dout,
                           const compute *in, void *memory, void *scratch_memory)
{
    const struct layer *layer = stage->parameters;
    const struct kernel_table *k = pass->kernels->table;
    size_t rows = pass->feed.rows;
    struct layer_saved saved;
    struct layer_scratch scratch;
    lay_out(stage, rows, &saved, memory);
    lay_out_scratch(stage, rows, &scratch, scratch_memory);
    const compute *gradient = layer->last ? saved.linear : dout;
    if (layer->activation != ACTIVATE_NONE) {
        k->activation_backward(pass->kernels, scratch.gradient, gradient, saved.linear, layer->activation,
                               rows * layer->out);
        gradient = scratch.gradient;
    }
    linear_backward(pass, &layer->linear, din, gradient, layer->first ? saved.x : (compute *)(uintptr_t)in, rows,
                    ACTIVATE_NONE, scratch.linear);
}

static const struct stage_class layer_class = {
    .name = "layer",
    .out_bytes = layer_out_bytes,
    .saved_bytes = layer_saved_bytes,
    .scratch_bytes = layer_scratch_bytes,
    .forward = layer_forward,
    .backward = layer_backward,
};

/* A layer and what follows it. */
struct link {
    struct layer layer;
    struct norm norm;
    struct activated activated;
};

/* --- the penalty ------------------------------------------------------------------------------------------------- */

/* The last stage, which has no tensor of its own: it looks at the data and at all layers' parameters, and adds to all
 * their gradients before their own backward does. */

static void describe_penalty(const struct stage *stage, const struct pass *pass, struct penalty *penalty)
{
    const struct link *links = stage->parameters;
    const Gacc__V1__ModelSection *spec = stage->model->spec;
    penalty->count = spec->n_hidden + 1;
    penalty->activation = activation_of(spec->activation);
    penalty->lambda = spec->penalty;
    for (size_t l = 0; l < penalty->count; l++) {
        penalty->layers[l] = (struct penalty_layer){.in = links[l].layer.in, .out = links[l].layer.out};
        if (!pass) continue;
        const struct linear *linear = &links[l].layer.linear;
        penalty->layers[l].weight = tensor_parameters(pass, linear->weight);
        penalty->layers[l].bias = tensor_parameters(pass, linear->bias);
        if (!pass->gradients) continue;
        penalty->layers[l].dweight = tensor_gradient(pass, linear->weight);
        penalty->layers[l].dbias = tensor_gradient(pass, linear->bias);
    }
}

static size_t penalty_scratch_bytes(const struct stage *stage, size_t rows)
{
    struct penalty penalty;
    describe_penalty(stage, NULL, &penalty);
    return penalty_scratch(&penalty, rows) * dtype_size(dtype_wide(stage->model->compute_type));
}

static void penalty_forward(const struct stage *stage, struct pass *pass, const compute *in, compute *out, void *saved,
                            void *scratch)
{
    (void)in, (void)out, (void)saved;
    const struct feed *feed = &pass->feed;
    struct penalty penalty;
    describe_penalty(stage, pass, &penalty);
    pass->kernels->table->gradient_penalty(pass->kernels, &penalty, feed->x, feed->weight, feed->share,
                                           pass->gradients ? feed->seed : NULL, feed->rows, pass->loss_sum, scratch);
}

/* The forward has done it. */
static void penalty_backward(const struct stage *stage, struct pass *pass, compute *din, const compute *dout,
                             const compute *in, void *saved, void *scratch)
{
    (void)stage, (void)pass, (void)din, (void)dout, (void)in, (void)saved, (void)scratch;
}

static const struct stage_class penalty_class = {
    .name = "penalty",
    .scratch_bytes = penalty_scratch_bytes,
    .forward = penalty_forward,
    .backward = penalty_backward,
};

/* --- tables --------------------------------------------------------------------------------------------------------
 */

/* `prefix` is what stands before "weight" and "bias". */
static void add_linear(struct model *model, struct layer *layer, const char *prefix)
{
    double half_width = 1 / sqrt((double)layer->in);
    layer->linear.layout = WEIGHT_OUT_IN;
    layer->linear.weight = table_add(
        &model->table,
        (struct tensor){
            .dimensions = 2, .shape = {layer->out, layer->in}, .init = TENSOR_UNIFORM, .init_scale = half_width},
        "%sweight", prefix);
    if (model->spec->bias)
        layer->linear.bias = table_add(
            &model->table,
            (struct tensor){.dimensions = 1, .shape = {layer->out}, .init = TENSOR_UNIFORM, .init_scale = half_width},
            "%sbias", prefix);
    linear_offer(&layer->linear, model);
}

static size_t count_layers(const Gacc__V1__ModelSection *spec)
{
    return spec->n_hidden + 1;
}

size_t chain_bytes(const Gacc__V1__ModelSection *spec)
{
    return count_layers(spec) * sizeof(struct link);
}

size_t chain_tensors(const Gacc__V1__ModelSection *spec)
{
    return count_layers(spec) * (2 + NORM_TENSORS);
}

size_t chain_linears(const Gacc__V1__ModelSection *spec)
{
    return count_layers(spec);
}

size_t chain_stages(const Gacc__V1__ModelSection *spec)
{
    return count_layers(spec) * 3 + (spec->penalty > 0);
}

/* The i-th of the chain, layer `index` of the model. */
static void add_link(struct model *model, struct link *link, size_t i, unsigned index, size_t in, bool reads_data)
{
    const Gacc__V1__ModelSection *spec = model->spec;
    char prefix[32];
    snprintf(prefix, sizeof prefix, "layers.%u.", index);
    const bool last = i == spec->n_hidden, normed = !last && spec->norm != GACC__V1__NORM__NORM_NONE;
    const size_t out = last ? spec->outputs : spec->hidden[i];
    const enum activation activation = last ? ACTIVATE_NONE : activation_of(spec->activation);
    link->layer = (struct layer){
        .in = in, .out = out, .activation = normed ? ACTIVATE_NONE : activation, .first = reads_data, .last = last};
    add_linear(model, &link->layer, prefix);
    model_add_stage(model, &layer_class, index, &link->layer);
    if (!normed) return;
    norm_add(model, &link->norm, index, 1, out);
    link->activated = (struct activated){activation, out};
    activation_add(model, &link->activated, index);
}

void chain_add(struct model *model, void *memory, unsigned first, size_t inputs, bool reads_data)
{
    struct link *links = memory;
    for (unsigned i = 0; i < count_layers(model->spec); i++)
        add_link(model, &links[i], i, first + i, i == 0 ? inputs : model->spec->hidden[i - 1], reads_data && i == 0);
}

int mlp_build(struct model *model, struct error *error)
{
    const Gacc__V1__ModelSection *spec = model->spec;
    int rc =
        model_reserve(model, chain_tensors(spec), chain_linears(spec), chain_stages(spec), chain_bytes(spec), error);
    if (rc < 0) return rc;
    chain_add(model, model->own, 0, spec->inputs, true);
    if (spec->penalty > 0) model_add_stage(model, &penalty_class, (unsigned)count_layers(spec), model->own);
    return 0;
}

int linear_build(struct model *model, struct error *error)
{
    int rc = model_reserve(model, 2, 1, 1, sizeof(struct layer), error);
    if (rc < 0) return rc;
    struct layer *layer = model->own;
    *layer = (struct layer){.in = model->spec->inputs, .out = 1, .first = true, .last = true};
    add_linear(model, layer, "");
    model_add_stage(model, &layer_class, 0, layer);
    return 0;
}
