/*
 * What every backend shares: element types, and the definition of a dropout bit.
 */
#include "kernels/kernels.h"

#include "kernels/philox.h"

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [DTYPE_FP32] = {"fp32", 4},
    [DTYPE_BF16] = {"bf16", 2},
    [DTYPE_FP16] = {"fp16", 2},
    [DTYPE_FP64] = {"fp64", 8},
};

size_t dtype_size(enum dtype type)
{
    return dtypes[type].size;
}

const char *dtype_name(enum dtype type)
{
    return dtypes[type].name;
}

bool dropout_keeps(const struct dropout *dropout, uint64_t sequence, uint64_t element)
{
    uint32_t word[4] = {(uint32_t)(element / 4), dropout->site, (uint32_t)sequence, (uint32_t)(sequence >> 32)};
    philox4x32(word, dropout_key(dropout->seed, dropout->attempt));
    return (word[element % 4] >> 8) >= dropout_threshold(dropout->p);
}

void kernels_close(struct kernels *kernels)
{
    if (kernels) kernels->table->close(kernels);
}
