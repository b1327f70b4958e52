/*
 * Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
 * 1, 2, 3" (SC 2011): four random words are a function of a counter and a key, so that any dropout bit can be had
 * without the ones before it.
 */
#ifndef GACC_KERNELS_PHILOX_H
#define GACC_KERNELS_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define PHILOX_FUNCTION static __host__ __device__ inline
#else
#define PHILOX_FUNCTION static inline
#endif

#define PHILOX_ROUNDS 10
#define PHILOX_MULTIPLIER_0 0xD2511F53u
#define PHILOX_MULTIPLIER_1 0xCD9E8D57u
#define PHILOX_WEYL_0 0x9E3779B9u
#define PHILOX_WEYL_1 0xBB67AE85u

/* word[4]: the counter on entry, the random words on return. */
PHILOX_FUNCTION void philox4x32(uint32_t word[4], uint64_t key)
{
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const uint64_t product0 = (uint64_t)PHILOX_MULTIPLIER_0 * word[0];
        const uint64_t product1 = (uint64_t)PHILOX_MULTIPLIER_1 * word[2];
        word[0] = (uint32_t)(product1 >> 32) ^ word[1] ^ key0;
        word[1] = (uint32_t)product1;
        word[2] = (uint32_t)(product0 >> 32) ^ word[3] ^ key1;
        word[3] = (uint32_t)product0;
        key0 += PHILOX_WEYL_0;
        key1 += PHILOX_WEYL_1;
    }
}

/* word/2^24 >= p for the upper 24 bits of a word, as an integer comparison: the scaling by 2^24 is exact. */
PHILOX_FUNCTION uint32_t dropout_threshold(double p)
{
    const double scaled = p * 0x1p24;
    const uint32_t floor = (uint32_t)scaled;
    return floor < scaled ? floor + 1 : floor;
}

#endif
