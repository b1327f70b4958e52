/* The dropout bits of kernels.h in a kernel: one draw gives the factors of four elements that follow each other. */
#ifndef GACC_KERNELS_CUDA_RANDOM_H
#define GACC_KERNELS_CUDA_RANDOM_H

#include "kernels/cuda/instance.h"
#include "kernels/philox.h"

namespace gpu
{

/* struct dropout as a kernel's argument; of NULL or p = 0: `draws` is false. */
template <class W> struct drawing {
    bool draws;
    uint32_t site, threshold;
    W kept; /* 1/(1−p) */
    const uint64_t *key, *sequence;

    explicit drawing(const struct dropout *dropout) : draws(dropout && dropout->p > 0)
    {
        if (!draws) return;
        site = dropout->site;
        threshold = dropout_threshold(dropout->p);
        kept = static_cast<W>(1 / (1 - dropout->p));
        key = dropout->key;
        sequence = dropout->sequence;
    }
};

/* Those of one sequence of the batch. */
template <class W> struct stream_of_bits {
    uint64_t key, sequence;
    uint32_t site, threshold;
    W kept;

    __device__ stream_of_bits(const drawing<W> &drawing, size_t b)
        : key(*drawing.key), sequence(drawing.sequence[b]), site(drawing.site), threshold(drawing.threshold),
          kept(drawing.kept)
    {
    }

    /* Of elements 4·block … 4·block + 3: 1/(1−p) where kept, else 0. */
    __device__ void factors(W *factor, uint64_t block) const
    {
        uint32_t word[4] = {static_cast<uint32_t>(block), site, static_cast<uint32_t>(sequence),
                            static_cast<uint32_t>(sequence >> 32)};
        philox4x32(word, key);
        for (unsigned i = 0; i < 4; i++) factor[i] = word[i] >> 8 >= threshold ? kept : 0;
    }

    /* Of one element. */
    __device__ W factor(uint64_t element) const
    {
        W four[4];
        factors(four, element / 4);
        const unsigned which = element % 4;
        return which == 0 ? four[0] : which == 1 ? four[1] : which == 2 ? four[2] : four[3];
    }
};

} // namespace gpu

#endif
