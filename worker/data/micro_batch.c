/* Memory for one micro-batch, as the model wants to be fed. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "worker/data/data.h"
#include "worker/memory.h"

void micro_batch_close(struct micro_batch *batch)
{
    if (!batch) return;
    free(batch->block);
    free(batch);
}

/* NULL when there are no columns. *enough turns false where a size overflows. */
static void *lay(struct carver *carver, bool *enough, size_t rows, size_t columns, size_t item)
{
    size_t items, bytes, room = SIZE_MAX - MEMORY_ALIGNMENT - carver->used;
    if (columns == 0) return NULL;
    if (__builtin_mul_overflow(rows, columns, &items) || __builtin_mul_overflow(items, item, &bytes) || bytes > room) {
        *enough = false;
        return NULL;
    }
    return carve(carver, bytes);
}

/* False when no block is large enough. */
static bool lay_out(struct micro_batch *batch, const struct data_shape *shape)
{
    size_t values = shape->size ? shape->size : shape->inputs, rows = batch->capacity;
    size_t targets = shape->context ? shape->context : shape->classes ? 1 : 0;
    size_t outputs = shape->classes ? 0 : shape->outputs;
    bool enough = true;
    struct carver carver = {.base = (uintptr_t)batch->block};
    batch->dropout_key = carve(&carver, sizeof *batch->dropout_key);
    batch->sequence = lay(&carver, &enough, rows, 1, sizeof *batch->sequence);
    batch->weight = lay(&carver, &enough, rows, 1, sizeof *batch->weight);
    batch->seed = lay(&carver, &enough, rows, 1, sizeof(double));
    batch->tokens = lay(&carver, &enough, rows, shape->context, sizeof *batch->tokens);
    batch->targets = lay(&carver, &enough, rows, targets, sizeof *batch->targets);
    batch->x = lay(&carver, &enough, rows, values, sizeof *batch->x);
    batch->y = lay(&carver, &enough, rows, outputs, sizeof *batch->y);
    batch->share = lay(&carver, &enough, rows, shape->penalty, sizeof *batch->share);
    batch->block_bytes = carver.used;
    return enough;
}

int micro_batch_open(struct micro_batch **out, const struct data_shape *shape, size_t capacity, struct error *error)
{
    *out = NULL;
    struct micro_batch *batch = calloc(1, sizeof *batch);
    if (!batch) return error_set(error, STATUS_INTERNAL, "no memory for a micro-batch");
    batch->capacity = capacity;
    if (!lay_out(batch, shape) || memory_new(&batch->block, batch->block_bytes, 1, "a micro-batch", NULL)) {
        micro_batch_close(batch);
        return error_set(error, STATUS_INTERNAL, "no memory for a micro-batch of %zu sequences", capacity);
    }
    lay_out(batch, shape);
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
