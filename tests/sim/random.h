/* Seeded choices. SplitMix64 (Steele, Lea, Flood 2014): a choice depends on the seed and on how many were made before.
 */
#ifndef SIM_RANDOM_H
#define SIM_RANDOM_H

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace sim
{

class generator
{
  public:
    explicit generator(uint64_t seed) : state_(seed)
    {
    }

    uint64_t next()
    {
        uint64_t z = state_ += 0x9E3779B97F4A7C15;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
        return z ^ (z >> 31);
    }

    uint64_t below(uint64_t bound) // the bias of a remainder does not matter to a test
    {
        return next() % bound;
    }

    /* 0 … n−1 in random order (Fisher and Yates). */
    std::vector<uint32_t> permutation(uint32_t n)
    {
        std::vector<uint32_t> order(n);
        std::iota(order.begin(), order.end(), 0u);
        for (uint32_t i = n; i > 1; i--) std::swap(order[i - 1], order[below(i)]);
        return order;
    }

  private:
    uint64_t state_;
};

} // namespace sim

#endif
