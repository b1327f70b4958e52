/* Stands in for kernels/cuda/mma_tile.h, found before it: the same interface without the instructions.
 *
 * Which lane holds which element is that of the PTX ISA. Sums are in fp32 in the order of k; a tensor core has another
 * one, so results are to be compared within K·2⁻²³·Σ|a·b|, never by bits.
 */
#ifndef GACC_KERNELS_CUDA_MMA_TILE_H
#define GACC_KERNELS_CUDA_MMA_TILE_H

#include "kernels/cuda/gpu.h"

namespace gpu
{

struct frag_a {
    uint32_t r[4];
};
struct frag_b {
    uint32_t r[2];
};
struct frag_c {
    float r[4];
};

namespace plain
{

template <class T> float element(uint32_t pair, unsigned which)
{
    uint16_t bits = static_cast<uint16_t>(pair >> 16 * which);
    T value;
    memcpy(static_cast<void *>(&value), &bits, sizeof value);
    return static_cast<float>(value);
}

struct product {
    frag_c *c;
    const frag_a *a;
    const frag_b *b;
};

/* [16,16]·[16,8], the fragments of all lanes together */
template <class T> void multiply(::sim::lane_records records)
{
    float a[16][16], b[16][8];
    for (unsigned lane = 0; lane < 32; lane++) {
        const auto *own = static_cast<const product *>(records[lane]);
        const unsigned g = lane / 4, t = lane % 4;
        for (unsigned r = 0; r < 4; r++)
            for (unsigned i = 0; i < 2; i++) a[g + 8 * (r % 2)][2 * t + 8 * (r / 2) + i] = element<T>(own->a->r[r], i);
        for (unsigned r = 0; r < 2; r++)
            for (unsigned i = 0; i < 2; i++) b[2 * t + 8 * r + i][g] = element<T>(own->b->r[r], i);
    }
    for (unsigned lane = 0; lane < 32; lane++) {
        const auto *own = static_cast<const product *>(records[lane]);
        const unsigned g = lane / 4, t = lane % 4;
        for (unsigned r = 0; r < 4; r++) {
            const unsigned row = g + 8 * (r / 2), column = 2 * t + r % 2;
            for (unsigned k = 0; k < 16; k++) own->c->r[r] += a[row][k] * b[k][column];
        }
    }
}

struct matrices {
    uint32_t *r;
    const void *row;
};

template <bool TRANSPOSED> void load_matrices(::sim::lane_records records)
{
    uint16_t m[4][8][8];
    for (unsigned lane = 0; lane < 32; lane++)
        memcpy(m[lane / 8][lane % 8], static_cast<const matrices *>(records[lane])->row, sizeof m[0][0]);
    for (unsigned lane = 0; lane < 32; lane++) {
        const unsigned g = lane / 4, t = lane % 4;
        for (unsigned i = 0; i < 4; i++) {
            const uint32_t low = TRANSPOSED ? m[i][2 * t][g] : m[i][g][2 * t];
            const uint32_t high = TRANSPOSED ? m[i][2 * t + 1][g] : m[i][g][2 * t + 1];
            static_cast<matrices *>(records[lane])->r[i] = low | high << 16;
        }
    }
}

} // namespace plain

/* c += a·b */
template <class T> void mma(frag_c &c, const frag_a &a, const frag_b &b, SIM_PLACE)
{
    plain::product record = {&c, &a, &b};
    ::sim::collective("mma", 0xffffffff, &record, plain::multiply<T>, file, line);
}

inline void ldmatrix_x4(uint32_t (&r)[4], const void *row, SIM_PLACE)
{
    sim_check_alignment(row, 16, file, line);
    plain::matrices record = {r, row};
    ::sim::collective("ldmatrix_x4", 0xffffffff, &record, plain::load_matrices<false>, file, line);
}

inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row, SIM_PLACE)
{
    sim_check_alignment(row, 16, file, line);
    plain::matrices record = {r, row};
    ::sim::collective("ldmatrix_x4_trans", 0xffffffff, &record, plain::load_matrices<true>, file, line);
}

inline void copy_async(void *to, const void *from, bool present, SIM_PLACE)
{
    sim_check_alignment(to, 16, file, line);
    if (present) sim_check_alignment(from, 16, file, line);
    ::sim::async_copy(to, from, 16, present ? 16 : 0);
}

inline void copy_commit()
{
    ::sim::async_copy_commit();
}

template <int N> void copy_wait()
{
    ::sim::async_copy_wait(N);
}

} // namespace gpu

#endif
