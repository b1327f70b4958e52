/*
 * tape: ℓ(w) = g·w with g read from the data, so the gradient of the mean loss is g itself. For testing everything
 * around a model without one.
 */
#include <string.h>

#include "worker/models/models.h"
#include "worker/rounding.h"

struct tape {
    const struct tensor *weight; /* [1, size] */
};

struct tape_scratch {
    double *sum;      /* [size] averaging · Σ v·g */
    compute *rounded; /* [size] the same, as a model of this compute type would have computed it */
    wide *weight;     /* [size] */
};

static size_t lay_out(const struct stage *stage, struct tape_scratch *scratch, void *base)
{
    const struct tape *tape = stage->parameters;
    enum dtype type = stage->model->compute_type;
    struct carver carver = {.base = (uintptr_t)base};
    scratch->sum = carve(&carver, tape->weight->size * sizeof *scratch->sum);
    scratch->rounded = carve(&carver, tape->weight->size * dtype_size(type));
    scratch->weight = carve(&carver, tape->weight->size * dtype_size(dtype_wide(type)));
    return carver.used;
}

static size_t no_bytes(const struct stage *stage, size_t rows)
{
    (void)stage, (void)rows;
    return 0;
}

static size_t tape_scratch_bytes(const struct stage *stage, size_t rows)
{
    (void)rows;
    struct tape_scratch scratch;
    return lay_out(stage, &scratch, NULL);
}

static double as_double(const wide *values, enum dtype type, size_t i)
{
    return type == DTYPE_FP64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

static void tape_forward(const struct stage *stage, struct pass *pass, const compute *in, compute *out, void *saved,
                         void *memory)
{
    (void)in, (void)out, (void)saved;
    const struct tape *tape = stage->parameters;
    const struct micro_batch *batch = pass->batch;
    size_t size = tape->weight->size;
    enum dtype wide_type = dtype_wide(stage->model->compute_type);
    struct tape_scratch scratch;
    lay_out(stage, &scratch, memory);
    memset(scratch.weight, 0, size * dtype_size(wide_type));
    pass->kernels->table->accumulate(pass->kernels, scratch.weight, tensor_parameters(pass, tape->weight), size);
    for (size_t row = 0; row < batch->rows; row++) {
        if (batch->weight[row] == 0) continue;
        double loss = 0;
        for (size_t i = 0; i < size; i++) loss += batch->x[row * size + i] * as_double(scratch.weight, wide_type, i);
        pass->loss_sum += batch->weight[row] * loss;
    }
}

static void tape_backward(const struct stage *stage, struct pass *pass, compute *din, const compute *dout,
                          const compute *in, void *saved, void *memory)
{
    (void)din, (void)dout, (void)in, (void)saved;
    const struct tape *tape = stage->parameters;
    const struct micro_batch *batch = pass->batch;
    size_t size = tape->weight->size;
    struct tape_scratch scratch;
    lay_out(stage, &scratch, memory);
    for (size_t i = 0; i < size; i++) {
        double sum = 0;
        for (size_t row = 0; row < batch->rows; row++)
            if (batch->weight[row] != 0) sum += batch->weight[row] * batch->x[row * size + i];
        scratch.sum[i] = (double)(pass->averaging * (long double)sum);
    }
    rounding_from_double(pass->kernels, scratch.rounded, scratch.sum, size);
    pass->kernels->table->accumulate(pass->kernels, tensor_gradient(pass, tape->weight), scratch.rounded, size);
}

static const struct stage_class tape_class = {
    .name = "tape",
    .out_bytes = no_bytes,
    .saved_bytes = no_bytes,
    .scratch_bytes = tape_scratch_bytes,
    .forward = tape_forward,
    .backward = tape_backward,
};

int tape_build(struct model *model, struct error *error)
{
    int rc = model_reserve(model, 1, 1, sizeof(struct tape), error);
    if (rc < 0) return rc;
    struct tape *tape = model->own;
    tape->weight =
        table_add(&model->table, (struct tensor){.dimensions = 2, .shape = {1, model->spec->size}}, "weight");
    model_add_stage(model, &tape_class, 0, tape);
    return 0;
}
