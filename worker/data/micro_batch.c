/* Memory for one micro-batch, as the model wants to be fed. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "worker/data/data.h"

void micro_batch_close(struct micro_batch *batch)
{
    if (!batch) return;
    free(batch->sequence);
    free(batch->weight);
    free(batch->tokens);
    free(batch->targets);
    free(batch->x);
    free(batch->y);
    free(batch);
}

/* rows·columns items; NULL when there are no columns. *enough turns false when there is no memory. */
static void *reserve(bool *enough, size_t rows, size_t columns, size_t item)
{
    size_t items;
    bool overflow = __builtin_mul_overflow(rows, columns, &items);
    void *memory = overflow || columns == 0 ? NULL : calloc(items, item);
    if (columns > 0 && !memory) *enough = false;
    return memory;
}

int micro_batch_open(struct micro_batch **out, const struct data_shape *shape, size_t capacity, struct error *error)
{
    *out = NULL;
    struct micro_batch *batch = calloc(1, sizeof *batch);
    if (!batch) return error_set(error, STATUS_INTERNAL, "no memory for a micro-batch");
    size_t values = shape->size ? shape->size : shape->inputs;
    size_t targets = shape->context ? shape->context : shape->classes ? 1 : 0;
    size_t outputs = shape->classes ? 0 : shape->outputs;
    bool enough = true;
    batch->capacity = capacity;
    batch->sequence = reserve(&enough, capacity, 1, sizeof *batch->sequence);
    batch->weight = reserve(&enough, capacity, 1, sizeof *batch->weight);
    batch->tokens = reserve(&enough, capacity, shape->context, sizeof *batch->tokens);
    batch->targets = reserve(&enough, capacity, targets, sizeof *batch->targets);
    batch->x = reserve(&enough, capacity, values, sizeof *batch->x);
    batch->y = reserve(&enough, capacity, outputs, sizeof *batch->y);
    if (!enough) {
        micro_batch_close(batch);
        return error_set(error, STATUS_INTERNAL, "no memory for a micro-batch of %zu sequences", capacity);
    }
    *out = batch;
    return 0;
}

void micro_batch_clear(struct micro_batch *batch)
{
    batch->rows = 0;
    batch->weight_sum = 0;
    batch->exponent = 0;
}

void micro_batch_scale(struct micro_batch *batch)
{
    frexp(batch->weight_sum, &batch->exponent);
    for (size_t row = 0; row < batch->rows; row++) batch->weight[row] = ldexp(batch->weight[row], -batch->exponent);
}
