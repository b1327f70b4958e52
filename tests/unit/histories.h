/* Repeatable random histories for the tests of pure modules: splitmix64 (Steele, Lea, Flood 2014). */
#ifndef GACC_TESTS_HISTORIES_H
#define GACC_TESTS_HISTORIES_H

#include <stdbool.h>
#include <stdint.h>

#define HISTORIES 10000

static inline uint64_t random_bits(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15U);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
    z = (z ^ z >> 27) * 0x94D049BB133111EBU;
    return z ^ z >> 31;
}

/* In [low, high]. */
static inline uint64_t random_between(uint64_t *state, uint64_t low, uint64_t high)
{
    return low + random_bits(state) % (high - low + 1);
}

static inline bool random_chance(uint64_t *state, double probability)
{
    return (double)(random_bits(state) >> 11) * 0x1p-53 < probability;
}

#endif
