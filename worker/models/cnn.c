/*
 * cnn: convolutions, each with its norm, activation and pooling, and linear layers behind them (models/mlp.c). A
 * convolution is a product of patches with its kernel; so is the first linear layer, whose patch is the whole image.
 * Stages hand on [rows, height, width, channels]; the data, and what a linear layer sees, are channel by channel.
 *
 *   layers.I.weight [channels, channels before, kernel, kernel], layers.I.bias [channels]; norms.I.… [channels]; then
 * the layers of an mlp, counted on. Weights start uniform in ±1/√(a patch's numbers), as PyTorch's Conv2d does.
 */
#include <math.h>

#include "worker/models/chain.h"

struct convolution {
    struct image_shape image; /* but for the rows */
    size_t out;               /* channels */
    const struct tensor *weight, *bias;
    bool first;
};

static struct image_shape of_rows(struct image_shape image, size_t rows)
{
    image.rows = rows;
    return image;
}

static size_t places(const struct image_shape *image)
{
    return image_places_down(image) * image_places_across(image);
}

static size_t patch_size(const struct image_shape *image)
{
    return image->channels * image->window_height * image->window_width;
}

static size_t image_size(const struct image_shape *image)
{
    return image->channels * image->height * image->width;
}

static size_t element_of(const struct stage *stage)
{
    return dtype_size(stage->model->compute_type);
}

/* --- convolution ------------------------------------------------------------------------------------------------- */

static size_t convolution_out_bytes(const struct stage *stage, size_t rows)
{
    const struct convolution *convolution = stage->parameters;
    return rows * places(&convolution->image) * convolution->out * element_of(stage);
}

/* The data, rounded; first only. */
static size_t convolution_saved_bytes(const struct stage *stage, size_t rows)
{
    const struct convolution *convolution = stage->parameters;
    return convolution->first ? rows * image_size(&convolution->image) * element_of(stage) : 0;
}

/* The patches, or their gradient. */
static size_t convolution_scratch_bytes(const struct stage *stage, size_t rows)
{
    const struct convolution *convolution = stage->parameters;
    return rows * places(&convolution->image) * patch_size(&convolution->image) * element_of(stage);
}

static struct linear_shape product_of(const struct convolution *convolution, size_t rows)
{
    return (struct linear_shape){.rows = rows * places(&convolution->image),
                                 .in = patch_size(&convolution->image),
                                 .out = convolution->out,
                                 .layout = WEIGHT_OUT_IN};
}

static void convolution_forward(const struct stage *stage, struct pass *pass, const compute *in, compute *out,
                                void *saved, void *scratch)
{
    const struct convolution *convolution = stage->parameters;
    const struct kernel_table *k = pass->kernels->table;
    const size_t rows = pass->feed.rows;
    if (convolution->first) { /* a row of weight 0 becomes zeros: what stands in it must not reach a product */
        k->cast_rows(pass->kernels, saved, pass->feed.x, pass->feed.weight, rows, image_size(&convolution->image));
        in = saved;
    }
    k->patches_forward(pass->kernels, scratch, in, of_rows(convolution->image, rows));
    k->linear_forward(pass->kernels, out, NULL, scratch, tensor_parameters(pass, convolution->weight),
                      tensor_parameters(pass, convolution->bias), product_of(convolution, rows), ACTIVATE_NONE);
}

static void convolution_backward(const struct stage *stage, struct pass *pass, compute *din, const compute *dout,
                                 const compute *in, void *saved, void *scratch)
{
    const struct convolution *convolution = stage->parameters;
    const struct kernel_table *k = pass->kernels->table;
    const struct image_shape image = of_rows(convolution->image, pass->feed.rows);
    const struct linear_shape product = product_of(convolution, pass->feed.rows);
    k->patches_forward(pass->kernels, scratch, convolution->first ? saved : in, image);
    k->linear_backward_weight(pass->kernels, tensor_gradient(pass, convolution->weight),
                              tensor_gradient(pass, convolution->bias), dout, scratch, product);
    if (!din) return;
    k->linear_backward_input(pass->kernels, scratch, NULL, dout, tensor_parameters(pass, convolution->weight), NULL,
                             product, ACTIVATE_NONE);
    k->patches_backward(pass->kernels, din, scratch, image);
}

static const struct stage_class convolution_class = {
    .name = "convolution",
    .out_bytes = convolution_out_bytes,
    .saved_bytes = convolution_saved_bytes,
    .scratch_bytes = convolution_scratch_bytes,
    .forward = convolution_forward,
    .backward = convolution_backward,
};

/* --- pooling ----------------------------------------------------------------------------------------------------- */

struct pooled {
    struct image_shape image; /* but for the rows */
    enum pooling pooling;
};

static size_t pooled_out_bytes(const struct stage *stage, size_t rows)
{
    const struct pooled *pooled = stage->parameters;
    return rows * places(&pooled->image) * pooled->image.channels * element_of(stage);
}

static void pooled_forward(const struct stage *stage, struct pass *pass, const compute *in, compute *out, void *saved,
                           void *scratch)
{
    (void)saved, (void)scratch;
    const struct pooled *pooled = stage->parameters;
    pass->kernels->table->pool_forward(pass->kernels, out, in, pooled->pooling,
                                       of_rows(pooled->image, pass->feed.rows));
}

static void pooled_backward(const struct stage *stage, struct pass *pass, compute *din, const compute *dout,
                            const compute *in, void *saved, void *scratch)
{
    (void)saved, (void)scratch;
    const struct pooled *pooled = stage->parameters;
    pass->kernels->table->pool_backward(pass->kernels, din, dout, in, pooled->pooling,
                                        of_rows(pooled->image, pass->feed.rows));
}

static const struct stage_class pooled_class = {
    .name = "pooling",
    .out_bytes = pooled_out_bytes,
    .forward = pooled_forward,
    .backward = pooled_backward,
};

/* --- to rows: the whole image is one patch ----------------------------------------------------------------------- */

static size_t flat_out_bytes(const struct stage *stage, size_t rows)
{
    return rows * image_size(stage->parameters) * element_of(stage);
}

static void flat_forward(const struct stage *stage, struct pass *pass, const compute *in, compute *out, void *saved,
                         void *scratch)
{
    (void)saved, (void)scratch;
    const struct image_shape *image = stage->parameters;
    pass->kernels->table->patches_forward(pass->kernels, out, in, of_rows(*image, pass->feed.rows));
}

static void flat_backward(const struct stage *stage, struct pass *pass, compute *din, const compute *dout,
                          const compute *in, void *saved, void *scratch)
{
    (void)saved, (void)scratch, (void)in;
    const struct image_shape *image = stage->parameters;
    pass->kernels->table->patches_backward(pass->kernels, din, dout, of_rows(*image, pass->feed.rows));
}

static const struct stage_class flat_class = {
    .name = "flat",
    .out_bytes = flat_out_bytes,
    .forward = flat_forward,
    .backward = flat_backward,
};

/* --- tables ------------------------------------------------------------------------------------------------------ */

/* A convolution and what follows it. */
struct block {
    struct convolution convolution;
    struct norm norm;
    struct activated activated;
    struct pooled pooled;
};

static void add_convolution(struct model *model, struct convolution *convolution, unsigned index)
{
    const struct image_shape *image = &convolution->image;
    const double half_width = 1 / sqrt((double)patch_size(image));
    convolution->weight = table_add(
        &model->table,
        (struct tensor){.dimensions = 4,
                        .shape = {convolution->out, image->channels, image->window_height, image->window_width},
                        .init = TENSOR_UNIFORM,
                        .init_scale = half_width},
        "layers.%u.weight", index);
    if (model->spec->bias)
        convolution->bias = table_add(
            &model->table,
            (struct tensor){
                .dimensions = 1, .shape = {convolution->out}, .init = TENSOR_UNIFORM, .init_scale = half_width},
            "layers.%u.bias", index);
    model_add_stage(model, &convolution_class, index, convolution);
}

/* The image as the block hands it on. */
static struct image_shape add_block(struct model *model, struct block *block, unsigned index, struct image_shape image)
{
    const Gacc__V1__ModelSection *spec = model->spec;
    image.window_height = image.window_width = spec->kernel;
    image.stride = 1;
    image.padding = spec->kernel / 2;
    block->convolution =
        (struct convolution){.image = image, .out = spec->channels[index], .first = image.channels_first};
    add_convolution(model, &block->convolution, index);
    image.channels = spec->channels[index];
    image.channels_first = false;
    const size_t positions = image.height * image.width;
    if (spec->norm != GACC__V1__NORM__NORM_NONE) norm_add(model, &block->norm, index, positions, image.channels);
    block->activated = (struct activated){activation_of(spec->activation), positions * image.channels};
    activation_add(model, &block->activated, index);
    image.window_height = image.window_width = image.stride = 2;
    image.padding = 0;
    if (spec->pool == GACC__V1__POOL__POOL_NONE) return image;
    block->pooled = (struct pooled){image, spec->pool == GACC__V1__POOL__POOL_MAX ? POOL_MAX : POOL_AVERAGE};
    model_add_stage(model, &pooled_class, index, &block->pooled);
    image.height = image_places_down(&block->pooled.image);
    image.width = image_places_across(&block->pooled.image);
    return image;
}

int cnn_build(struct model *model, struct error *error)
{
    const Gacc__V1__ModelSection *spec = model->spec;
    struct own {
        struct image_shape flat;
        struct block blocks[];
    };
    const size_t count = spec->n_channels, own_bytes = sizeof(struct own) + count * sizeof(struct block);
    int rc = model_reserve(model, count * (2 + NORM_TENSORS) + chain_tensors(spec), chain_linears(spec),
                           4 * count + 1 + chain_stages(spec), own_bytes + chain_bytes(spec), error);
    if (rc < 0) return rc;
    struct own *own = model->own;
    struct image_shape image = {
        .channels = spec->image[0], .height = spec->image[1], .width = spec->image[2], .channels_first = true};
    for (unsigned i = 0; i < count; i++) image = add_block(model, &own->blocks[i], i, image);
    own->flat = image;
    own->flat.window_height = image.height;
    own->flat.window_width = image.width;
    own->flat.stride = 1;
    own->flat.padding = 0;
    model_add_stage(model, &flat_class, (unsigned)count, &own->flat);
    chain_add(model, (char *)own + own_bytes, (unsigned)count, image_size(&own->flat), false);
    return 0;
}
