/*
 * tape: ℓ(w) = g·w with g read from the data, so the gradient of the mean loss is g itself. For testing everything
 * around a model without one.
 */
#include "worker/models/models.h"

#define BLOCK 512 /* elements of a sum that are on their way at a time */

struct tape {
    const struct tensor *weight; /* [1, size] */
};

struct tape_scratch {
    double *sum;      /* [size] averaging · Σ v·g */
    compute *rounded; /* [size] the same, as a model of this compute type would have computed it */
    double *one;      /* [1] the weight of that row */
};

static size_t lay_out(const struct stage *stage, struct tape_scratch *scratch, void *base)
{
    const struct tape *tape = stage->parameters;
    struct carver carver = {.base = (uintptr_t)base};
    scratch->sum = carve(&carver, tape->weight->size * sizeof *scratch->sum);
    scratch->rounded = carve(&carver, tape->weight->size * dtype_size(stage->model->compute_type));
    scratch->one = carve(&carver, sizeof *scratch->one);
    return carver.used;
}

static size_t tape_scratch_bytes(const struct stage *stage, size_t rows)
{
    (void)rows;
    struct tape_scratch scratch;
    return lay_out(stage, &scratch, NULL);
}

static void tape_forward(const struct stage *stage, struct pass *pass, const compute *in, compute *out, void *saved,
                         void *memory)
{
    (void)in, (void)out, (void)saved, (void)memory;
    const struct tape *tape = stage->parameters;
    const struct feed *feed = &pass->feed;
    pass->kernels->table->linear_loss(pass->kernels, feed->x, feed->weight, tensor_parameters(pass, tape->weight),
                                      feed->rows, tape->weight->size, pass->loss_sum);
}

/* averaging · Σ v·g of elements first … first + count − 1, worked out on the host, where long double is at hand. */
static void sum_block(const struct pass *pass, size_t size, size_t first, size_t count, double *sums)
{
    const struct micro_batch *batch = pass->batch;
    for (size_t i = 0; i < count; i++) {
        double sum = 0;
        for (size_t row = 0; row < batch->rows; row++)
            if (batch->weight[row] != 0) sum += batch->weight[row] * batch->x[row * size + first + i];
        sums[i] = (double)(pass->averaging * (long double)sum);
    }
}

static void tape_backward(const struct stage *stage, struct pass *pass, compute *din, const compute *dout,
                          const compute *in, void *saved, void *memory)
{
    (void)din, (void)dout, (void)in, (void)saved;
    const struct tape *tape = stage->parameters;
    const struct kernel_table *k = pass->kernels->table;
    const double one = 1;
    double sums[BLOCK];
    size_t size = tape->weight->size;
    struct tape_scratch scratch;
    lay_out(stage, &scratch, memory);
    for (size_t first = 0; first < size; first += BLOCK) {
        size_t count = size - first < BLOCK ? size - first : BLOCK;
        sum_block(pass, size, first, count, sums);
        k->upload(pass->kernels, scratch.sum + first, sums, count * sizeof *sums);
    }
    k->upload(pass->kernels, scratch.one, &one, sizeof one);
    k->cast_rows(pass->kernels, scratch.rounded, scratch.sum, scratch.one, 1, size);
    k->accumulate(pass->kernels, tensor_gradient(pass, tape->weight), scratch.rounded, size);
}

static const struct stage_class tape_class = {
    .name = "tape",
    .works_on_host = true,
    .scratch_bytes = tape_scratch_bytes,
    .forward = tape_forward,
    .backward = tape_backward,
};

int tape_build(struct model *model, struct error *error)
{
    int rc = model_reserve(model, 1, 0, 1, sizeof(struct tape), error);
    if (rc < 0) return rc;
    struct tape *tape = model->own;
    tape->weight =
        table_add(&model->table, (struct tensor){.dimensions = 2, .shape = {1, model->spec->size}}, "weight");
    model_add_stage(model, &tape_class, 0, tape);
    return 0;
}
