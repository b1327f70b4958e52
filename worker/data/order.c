/*
 * The order of an epoch: a permutation of 0…count−1 that is computed, not stored.
 *
 *     h(a)     the output function of splitmix64: z = a + 0x9E3779B97F4A7C15; z = (z ^ z>>30)·0xBF58476D1CE4E5B9;
 *              z = (z ^ z>>27)·0x94D049BB133111EB; h = z ^ z>>31              (all modulo 2^64)
 *     key      h(h(seed) ^ epoch)
 *     half     the smallest number ≥ 4 with 2^(2·half) ≥ count; a number below 2^(2·half) is (left, right), half bits
 * each P        8 rounds r = 0…7:  (left, right) ← (right, left ^ (h(h(key ^ r) ^ right) mod 2^half)) order    position
 * ← P(position), once and then again while the result is ≥ count    ("cycle walking")
 *
 * A Feistel network is a bijection whatever its round function is, and walking a bijection's cycle back into 0…count−1
 * is one of 0…count−1. At least 8 bits, because networks of 2 or 4 bits do not reach all orders of a handful of
 * sequences.
 *
 * A mixture. The n_i sequences of file i have q_i of an epoch's count = Σn_i positions: with parts m_i, whose sum is P,
 * those from ⌊count·(m_0+…+m_{i−1})/P⌋ on, up to where the next file's begin. Of each file passes are made, each an
 * order of its own:
 *
 *     slot     order(seed, epoch, count)(position)                        lies in the part of file i, which begins at
 * s_i draw     epoch·q_i + slot − s_i                                      so many of the file were drawn before
 *     sequence order(h(seed ^ h(i)), draw div n_i, n_i)(draw mod n_i)      of the file: pass, and position in it
 */
#include "worker/data/data.h"

enum { ROUNDS = 8, HALF_MINIMUM = 4 };

static uint64_t h(uint64_t a)
{
    uint64_t z = a + UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

uint64_t order_sequence(Gacc__V1__Order order, uint64_t seed, uint64_t epoch, uint64_t count, uint64_t position)
{
    if (order == GACC__V1__ORDER__ORDER_SEQUENTIAL) return position;
    unsigned half = HALF_MINIMUM;
    while (half < 32 && count > UINT64_C(1) << 2 * half) half++;
    uint64_t mask = (UINT64_C(1) << half) - 1;
    uint64_t key = h(h(seed) ^ epoch), round_key[ROUNDS];
    for (uint64_t r = 0; r < ROUNDS; r++) round_key[r] = h(key ^ r);
    do {
        uint64_t left = position >> half, right = position & mask;
        for (unsigned r = 0; r < ROUNDS; r++) {
            uint64_t next = left ^ (h(round_key[r] ^ right) & mask);
            left = right;
            right = next;
        }
        position = left << half | right;
    } while (position >= count);
    return position;
}

__extension__ typedef unsigned __int128 draws; /* epoch times sequences */

uint64_t order_mixed(Gacc__V1__Order order, uint64_t seed, uint64_t epoch, size_t files, const uint64_t *first,
                     const uint64_t *slots, uint64_t position)
{
    const uint64_t slot = order_sequence(order, seed, epoch, first[files], position);
    size_t file = files - 1;
    while (slots[file] > slot) file--;
    const uint64_t count = first[file + 1] - first[file];
    const draws draw = (draws)epoch * (slots[file + 1] - slots[file]) + (slot - slots[file]);
    return first[file] +
           order_sequence(order, h(seed ^ h(file)), (uint64_t)(draw / count), count, (uint64_t)(draw % count));
}
