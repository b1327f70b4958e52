/*
 * The dropout bits of kernels.h for a run of elements, many Philox blocks side by side.
 */
#ifndef GACC_KERNELS_CPU_DROPOUT_H
#define GACC_KERNELS_CPU_DROPOUT_H

#include "kernels/cpu/element.h"
#include "kernels/kernels.h"
#include "kernels/philox.h"

#define DROPOUT_LANES 16

static inline bool dropout_draws(const struct dropout *dropout)
{
    return dropout && dropout->p > 0;
}

/* Elements first … first + 4·DROPOUT_LANES − 1 (first divisible by 4) of one sequence, as factors 0 or `scale`. */
static inline void dropout_block(real factor[4 * DROPOUT_LANES], uint64_t key, uint64_t sequence, uint32_t site,
                                 uint64_t first, uint32_t threshold, real scale)
{
    uint32_t word0[DROPOUT_LANES], word1[DROPOUT_LANES], word2[DROPOUT_LANES], word3[DROPOUT_LANES];
    SIMD for (uint32_t l = 0; l < DROPOUT_LANES; l++)
    {
        uint32_t word[4] = {(uint32_t)(first / 4) + l, site, (uint32_t)sequence, (uint32_t)(sequence >> 32)};
        philox4x32(word, key);
        word0[l] = word[0], word1[l] = word[1], word2[l] = word[2], word3[l] = word[3];
    }
    SIMD for (size_t l = 0; l < DROPOUT_LANES; l++)
    {
        factor[4 * l + 0] = word0[l] >> 8 >= threshold ? scale : 0;
        factor[4 * l + 1] = word1[l] >> 8 >= threshold ? scale : 0;
        factor[4 * l + 2] = word2[l] >> 8 >= threshold ? scale : 0;
        factor[4 * l + 3] = word3[l] >> 8 >= threshold ? scale : 0;
    }
}

/* factor[i] = 1/(1−p) where element first + i of the sequence is kept, else 0. */
static inline void dropout_factors(real *factor, const struct dropout *dropout, uint64_t sequence, uint64_t first,
                                   size_t n)
{
    const uint64_t key = dropout_key(dropout->seed, dropout->attempt);
    const uint32_t threshold = dropout_threshold(dropout->p);
    const real scale = (real)(1 / (1 - dropout->p));
    real block[4 * DROPOUT_LANES];
    size_t skip = first % 4;
    for (size_t done = 0; done < n;) {
        dropout_block(block, key, sequence, dropout->site, first + done - skip, threshold, scale);
        const size_t count = smaller(4 * DROPOUT_LANES - skip, n - done);
        memcpy(factor + done, block + skip, count * sizeof *factor);
        done += count;
        skip = 0;
    }
}

#endif
