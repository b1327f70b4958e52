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

/* SplitMix64: Steele, Lea and Flood 2014. */
uint64_t dropout_key(uint64_t seed, uint64_t attempt)
{
    uint64_t z = seed + attempt * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

bool dropout_keeps(double p, uint64_t key, uint32_t site, uint64_t sequence, uint64_t element)
{
    uint32_t word[4] = {(uint32_t)(element / 4), site, (uint32_t)sequence, (uint32_t)(sequence >> 32)};
    philox4x32(word, key);
    return (word[element % 4] >> 8) >= dropout_threshold(p);
}

void kernels_close(struct kernels *kernels)
{
    if (kernels) kernels->table->close(kernels);
}
