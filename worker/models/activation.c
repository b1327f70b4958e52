/* An activation as a stage of its own, where something stands between it and the product before. */
#include "worker/models/models.h"

static size_t out_bytes(const struct stage *stage, size_t rows)
{
    const struct activated *activated = stage->parameters;
    return rows * activated->width * dtype_size(stage->model->compute_type);
}

static void forward(const struct stage *stage, struct pass *pass, const compute *in, compute *out, void *saved,
                    void *scratch)
{
    (void)saved, (void)scratch;
    const struct activated *activated = stage->parameters;
    pass->kernels->table->activation_forward(pass->kernels, out, in, activated->activation,
                                             pass->feed.rows * activated->width);
}

static void backward(const struct stage *stage, struct pass *pass, compute *din, const compute *dout, const compute *in,
                     void *saved, void *scratch)
{
    (void)saved, (void)scratch;
    const struct activated *activated = stage->parameters;
    pass->kernels->table->activation_backward(pass->kernels, din, dout, in, activated->activation,
                                              pass->feed.rows * activated->width);
}

static const struct stage_class activation_class = {
    .name = "activation",
    .out_bytes = out_bytes,
    .forward = forward,
    .backward = backward,
};

void activation_add(struct model *model, struct activated *activated, unsigned index)
{
    if (activated->activation != ACTIVATE_NONE) model_add_stage(model, &activation_class, index, activated);
}
