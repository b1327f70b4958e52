#include "worker/models/linear.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "worker/near.h"

static size_t width_in(const struct linear *linear)
{
    return linear->weight->shape[linear->layout == WEIGHT_IN_OUT ? 0 : 1];
}

static size_t width_out(const struct linear *linear)
{
    return linear->weight->shape[linear->layout == WEIGHT_IN_OUT ? 1 : 0];
}

static struct linear_shape shape_of(const struct linear *linear, size_t rows)
{
    return (struct linear_shape){.rows = rows,
                                 .in = width_in(linear),
                                 .out = width_out(linear),
                                 .layout = linear->layout,
                                 .stride = linear->stride};
}

/* --- adapters --------------------------------------------------------------------------------------------------- */

enum { SITE_FIRST_ADAPTER = 1 << 30 }; /* beyond those of the models' own dropout */

static size_t rank_of(const struct linear *linear)
{
    return linear->a->shape[0];
}

/* x·Aᵀ */
static struct linear_shape into_rank(const struct linear *linear, size_t rows)
{
    return (struct linear_shape){.rows = rows, .in = width_in(linear), .out = rank_of(linear), .layout = WEIGHT_OUT_IN};
}

/* …·Bᵀ */
static struct linear_shape out_of_rank(const struct linear *linear, size_t rows)
{
    return (struct linear_shape){.rows = rows,
                                 .in = rank_of(linear),
                                 .out = width_out(linear),
                                 .layout = WEIGHT_OUT_IN,
                                 .stride = linear->stride};
}

struct scratch {
    compute *thin; /* [rows, rank] */
    compute *wide; /* [rows, in] or [rows, out] */
};

static size_t lay_out(const struct linear *linear, size_t rows, enum dtype compute_type, struct scratch *scratch,
                      void *base)
{
    const size_t element = dtype_size(compute_type), in = width_in(linear);
    const size_t out = linear->stride ? linear->stride : width_out(linear);
    struct carver carver = {.base = (uintptr_t)base};
    scratch->thin = carve(&carver, rows * rank_of(linear) * element);
    scratch->wide = carve(&carver, rows * (in > out ? in : out) * element);
    return carver.used;
}

size_t linear_scratch_bytes(const struct linear *linear, size_t rows, enum dtype compute_type)
{
    struct scratch scratch;
    return linear->a ? lay_out(linear, rows, compute_type, &scratch, NULL) : 0;
}

/* x [rows, in] after the adapter's dropout, or a gradient before it: x itself when nothing is dropped, else in
 * `memory`, which may be x. */
static const compute *drop(const struct pass *pass, const struct linear *linear, const compute *x, compute *memory,
                           size_t rows)
{
    const struct feed *feed = &pass->feed;
    const struct dropout dropout = {
        .p = linear->dropout, .site = linear->site, .key = feed->dropout_key, .sequence = feed->sequence};
    if (dropout.p == 0 || !dropout.key) return x;
    pass->kernels->table->dropout(pass->kernels, memory, x, &dropout, feed->rows, rows / feed->rows * width_in(linear));
    return memory;
}

/* scratch->thin = alpha/rank · x·Aᵀ */
static void enter_rank(const struct pass *pass, const struct linear *linear, const compute *x, size_t rows,
                       const struct scratch *scratch)
{
    const struct kernel_table *k = pass->kernels->table;
    k->linear_forward(pass->kernels, scratch->thin, NULL, x, tensor_parameters(pass, linear->a), NULL,
                      into_rank(linear, rows), ACTIVATE_NONE);
    k->add(pass->kernels, scratch->thin, NULL, linear->factor, scratch->thin, rows * rank_of(linear));
}

static void adapted_forward(const struct pass *pass, const struct linear *linear, compute *y, compute *pre,
                            const compute *x, size_t rows, enum activation activation, void *memory)
{
    const struct kernel_table *k = pass->kernels->table;
    const struct linear_shape shape = shape_of(linear, rows), last = out_of_rank(linear, rows);
    const size_t n = rows * (shape.stride ? shape.stride : shape.out);
    compute *sum = activation != ACTIVATE_NONE && pre ? pre : y;
    struct scratch scratch;
    lay_out(linear, rows, pass->kernels->compute_type, &scratch, memory);
    k->linear_forward(pass->kernels, sum, NULL, x, tensor_parameters(pass, linear->weight),
                      tensor_parameters(pass, linear->bias), shape, ACTIVATE_NONE);
    enter_rank(pass, linear, drop(pass, linear, x, scratch.wide, rows), rows, &scratch);
    k->linear_forward(pass->kernels, scratch.wide, NULL, scratch.thin, tensor_parameters(pass, linear->b), NULL, last,
                      ACTIVATE_NONE);
    k->add(pass->kernels, sum, sum, 1, scratch.wide, n);
    if (activation != ACTIVATE_NONE) k->activation_forward(pass->kernels, y, sum, activation, n);
}

/* The weight beside an adapter is fixed: it has no gradient. */
static void adapted_backward(const struct pass *pass, const struct linear *linear, compute *dx, const compute *dy,
                             const compute *x_or_pre, size_t rows, enum activation activation, void *memory)
{
    const struct kernel_table *k = pass->kernels->table;
    const struct linear_shape first = into_rank(linear, rows), last = out_of_rank(linear, rows);
    const size_t n = rows * first.in;
    const compute *x = x_or_pre;
    struct scratch scratch;
    lay_out(linear, rows, pass->kernels->compute_type, &scratch, memory);
    if (activation != ACTIVATE_NONE) {
        k->activation_forward(pass->kernels, scratch.wide, x_or_pre, activation, n);
        x = scratch.wide;
    }
    x = drop(pass, linear, x, scratch.wide, rows);
    enter_rank(pass, linear, x, rows, &scratch);
    k->linear_backward_weight(pass->kernels, tensor_gradient(pass, linear->b), NULL, dy, scratch.thin, last);
    k->linear_backward_input(pass->kernels, scratch.thin, NULL, dy, tensor_parameters(pass, linear->b), NULL, last,
                             ACTIVATE_NONE);
    k->add(pass->kernels, scratch.thin, NULL, linear->factor, scratch.thin, rows * rank_of(linear));
    k->linear_backward_weight(pass->kernels, tensor_gradient(pass, linear->a), NULL, scratch.thin, x, first);
    if (!dx) return;
    k->linear_backward_input(pass->kernels, scratch.wide, NULL, scratch.thin, tensor_parameters(pass, linear->a), NULL,
                             first, ACTIVATE_NONE);
    k->linear_backward_input(pass->kernels, dx, NULL, dy, tensor_parameters(pass, linear->weight), NULL,
                             shape_of(linear, rows), ACTIVATE_NONE);
    k->add(pass->kernels, dx, dx, 1, drop(pass, linear, scratch.wide, scratch.wide, rows), n);
    if (activation != ACTIVATE_NONE) k->activation_backward(pass->kernels, dx, dx, x_or_pre, activation, n);
}

/* --- the layer --------------------------------------------------------------------------------------------------- */

void linear_forward(const struct pass *pass, const struct linear *linear, compute *y, compute *pre, const compute *x,
                    size_t rows, enum activation activation, void *scratch)
{
    if (linear->a) {
        adapted_forward(pass, linear, y, pre, x, rows, activation, scratch);
        return;
    }
    pass->kernels->table->linear_forward(pass->kernels, y, pre, x, tensor_parameters(pass, linear->weight),
                                         tensor_parameters(pass, linear->bias), shape_of(linear, rows), activation);
}

void linear_backward(const struct pass *pass, const struct linear *linear, compute *dx, const compute *dy,
                     compute *x_or_pre, size_t rows, enum activation activation, void *scratch)
{
    if (linear->a) {
        adapted_backward(pass, linear, dx, dy, x_or_pre, rows, activation, scratch);
        return;
    }
    const struct kernel_table *k = pass->kernels->table;
    const struct linear_shape shape = shape_of(linear, rows);
    const compute *weight = tensor_parameters(pass, linear->weight);
    wide *dweight = tensor_gradient(pass, linear->weight), *dbias = tensor_gradient(pass, linear->bias);
    if (activation != ACTIVATE_NONE) /* x takes the place of pre on the way */
        k->linear_backward_input(pass->kernels, dx, x_or_pre, dy, weight, x_or_pre, shape, activation);
    k->linear_backward_weight(pass->kernels, dweight, dbias, dy, x_or_pre, shape);
    if (activation == ACTIVATE_NONE && dx)
        k->linear_backward_input(pass->kernels, dx, NULL, dy, weight, NULL, shape, ACTIVATE_NONE);
}

/* --- the table --------------------------------------------------------------------------------------------------- */

void linear_offer(struct linear *linear, struct model *model)
{
    linear->stage = model->stage_count;
    linear->site = SITE_FIRST_ADAPTER + (uint32_t)model->linear_count;
    model->linears[model->linear_count++] = linear;
}

/* h.0.attn.c_attn of h.0.attn.c_attn.weight. */
struct layer_name {
    char text[sizeof((struct tensor *)0)->name];
};

static struct layer_name layer_name(const struct linear *linear)
{
    static const char end[] = ".weight";
    struct layer_name name;
    snprintf(name.text, sizeof name.text, "%s", linear->weight->name);
    name.text[strlen(name.text) - strlen(end)] = '\0';
    return name;
}

/* By the layer's name or its weight's. */
static bool matches(const char *pattern, const struct linear *linear)
{
    return fnmatch(pattern, linear->weight->name, 0) == 0 || fnmatch(pattern, layer_name(linear).text, 0) == 0;
}

static int refuse_target(const struct model *model, const char *target, struct error *error)
{
    struct near_names near = {.pattern = target, .most = NEAR_MOST};
    for (size_t i = 0; i < model->linear_count; i++) {
        near_try(&near, layer_name(model->linears[i]).text);
        near_try(&near, model->linears[i]->weight->name);
    }
    return error_set(error, STATUS_JOB, "model.lora.targets: '%.200s' matches no linear layer; %s", target,
                     near_hint(&near).text);
}

static int check_targets(const struct model *model, struct error *error)
{
    const Gacc__V1__ModelSection *spec = model->spec;
    for (size_t t = 0; t < spec->n_lora_targets; t++) {
        bool found = false;
        for (size_t i = 0; i < model->linear_count && !found; i++)
            found = matches(spec->lora_targets[t], model->linears[i]);
        if (!found) return refuse_target(model, spec->lora_targets[t], error);
    }
    return 0;
}

static bool is_target(const struct model *model, const struct linear *linear)
{
    for (size_t t = 0; t < model->spec->n_lora_targets; t++)
        if (matches(model->spec->lora_targets[t], linear)) return true;
    return false;
}

/* A starts as linear layers do, B at zero: the adapted model starts as the one without adapters. */
static void add_adapter(struct model *model, struct linear *linear)
{
    static const char end[] = "weight";
    const uint64_t rank = model->spec->lora_rank, in = width_in(linear), out = width_out(linear);
    const struct tensor a = {
        .dimensions = 2, .shape = {rank, in}, .init = TENSOR_UNIFORM, .init_scale = 1 / sqrt((double)in)};
    struct tensor b = {.dimensions = 2, .shape = {out, rank}, .init = TENSOR_ZEROS};
    if (model->spec->lora_stirred) b.init = TENSOR_UNIFORM, b.init_scale = 1 / sqrt((double)rank);
    linear->factor = model->spec->lora_alpha / (double)rank;
    linear->dropout = model->spec->lora_dropout;
    const int length = (int)(strlen(linear->weight->name) - strlen(end));
    linear->a = table_add(&model->table, a, "%.*slora_A.weight", length, linear->weight->name);
    linear->b = table_add(&model->table, b, "%.*slora_B.weight", length, linear->weight->name);
}

int linear_adapt(struct model *model, struct error *error)
{
    struct tensor_table *table = &model->table;
    if (model->spec->lora_rank == 0) return 0;
    int rc = check_targets(model, error);
    if (rc < 0) return rc;
    table->fixed = table->count;
    for (size_t i = 0; i < table->count; i++) table->tensors[i].fixed = true;
    for (size_t s = 0, i = 0; s < model->stage_count; s++) { /* offered in the order of the stages */
        struct stage *stage = &model->stages[s];
        stage->first_adapter = table->count;
        for (; i < model->linear_count && model->linears[i]->stage == s; i++)
            if (is_target(model, model->linears[i])) add_adapter(model, model->linears[i]);
        stage->adapter_count = table->count - stage->first_adapter;
    }
    return 0;
}
