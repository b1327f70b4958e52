/*
 * The dropout bits of kernels.h for a run of elements, many Philox blocks side by side: one block to a 64-bit lane, of
 * which the lower half counts.
 */
#ifndef GACC_KERNELS_CPU_DROPOUT_H
#define GACC_KERNELS_CPU_DROPOUT_H

#include "kernels/cpu/element.h"
#include "kernels/kernels.h"
#include "kernels/philox.h"

#if defined __AVX512F__ || defined __AVX2__ || defined __SSE2__
#include <immintrin.h>
#endif

/* Lanes of two vectors taken in turn. */
#if defined __AVX512F__
#define DROPOUT_LANES 8
#define INTERLEAVE_LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define INTERLEAVE_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#elif defined __AVX2__
#define DROPOUT_LANES 4
#define INTERLEAVE_LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define INTERLEAVE_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#else
#define DROPOUT_LANES 2
#define INTERLEAVE_LOW(a, b) __builtin_shufflevector(a, b, 0, 2)
#define INTERLEAVE_HIGH(a, b) __builtin_shufflevector(a, b, 1, 3)
#endif

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a lane's lower word comes first in memory");

#define DROPOUT_BLOCK ((size_t)4 * DROPOUT_LANES) /* elements */

typedef uint64_t lanes __attribute__((vector_size(8 * DROPOUT_LANES)));

/* The lower halves multiplied. */
static inline lanes multiply_halves(lanes a, lanes b)
{
#if defined __AVX512F__
    return (lanes)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined __AVX2__
    return (lanes)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined __SSE2__
    return (lanes)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (a & 0xffffffff) * (b & 0xffffffff);
#endif
}

static inline bool dropout_draws(const struct dropout *dropout)
{
    return dropout && dropout->p > 0;
}

/* The words of blocks first … first + DROPOUT_LANES − 1 of a sequence, in the order of the elements. */
static inline void dropout_words(uint32_t out[DROPOUT_BLOCK], const struct dropout *dropout, uint64_t key,
                                 uint64_t sequence, uint32_t first)
{
    lanes word0, word1 = (lanes){0} + dropout->site, word2 = (lanes){0} + (uint32_t)sequence,
                 word3 = (lanes){0} + (sequence >> 32);
    for (uint32_t l = 0; l < DROPOUT_LANES; l++) word0[l] = first + l;
    const lanes multiplier0 = (lanes){0} + PHILOX_MULTIPLIER_0, multiplier1 = (lanes){0} + PHILOX_MULTIPLIER_1;
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const lanes product0 = multiply_halves(word0, multiplier0), product1 = multiply_halves(word2, multiplier1);
        word0 = (product1 >> 32) ^ word1 ^ key0;
        word2 = (product0 >> 32) ^ word3 ^ key1;
        word1 = product1;
        word3 = product0;
        key0 += PHILOX_WEYL_0;
        key1 += PHILOX_WEYL_1;
    }
    const lanes low = (word0 & 0xffffffff) | word1 << 32, high = (word2 & 0xffffffff) | word3 << 32;
    const lanes halves[2] = {INTERLEAVE_LOW(low, high), INTERLEAVE_HIGH(low, high)};
    memcpy(out, halves, sizeof halves);
}

/* factor[i] = 1/(1−p) where element first + i of the sequence is kept, else 0. */
static inline void dropout_factors(real *factor, const struct dropout *dropout, uint64_t sequence, uint64_t first,
                                   size_t n)
{
    const uint64_t key = *dropout->key;
    const uint32_t threshold = dropout_threshold(dropout->p);
    const real scale = (real)(1 / (1 - dropout->p));
    uint32_t words[DROPOUT_BLOCK];
    size_t skip = first % 4;
    for (size_t done = 0; done < n;) {
        dropout_words(words, dropout, key, sequence, (uint32_t)((first + done) / 4));
        const size_t count = smaller(DROPOUT_BLOCK - skip, n - done);
        SIMD for (size_t i = 0; i < count; i++) factor[done + i] = words[skip + i] >> 8 >= threshold ? scale : 0;
        done += count;
        skip = 0;
    }
}

#endif
