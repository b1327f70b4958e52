/*
 * The instructions that only a tensor core's machine has (PTX ISA 7.0, sm_80 and later): the m16n8k16 product, ldmatrix
 * and cp.async. The only file with assembly; simulations replace it by a header of the same interface.
 *
 * Lane l holds, with g = l/4 and t = l%4, of
 *   A [16,16]  r[0] (g, 2t), r[1] (g+8, 2t), r[2] (g, 2t+8), r[3] (g+8, 2t+8), each with the next column
 *   B [16,8]   r[0] (2t, g), r[1] (2t+8, g), each with the next row
 *   C [16,8]   r[0], r[1] (g, 2t), (g, 2t+1); r[2], r[3] (g+8, 2t), (g+8, 2t+1)
 * so two C tiles side by side are an A tile: (c0 r0 r1), (c0 r2 r3), (c1 r0 r1), (c1 r2 r3).
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

/* c += a·b, operands of type T (bf16 or fp16), sums in fp32 */
template <class T> __device__ __forceinline__ void mma(frag_c &c, const frag_a &a, const frag_b &b);

template <> __device__ __forceinline__ void mma<bf16>(frag_c &c, const frag_a &a, const frag_b &b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
}

template <> __device__ __forceinline__ void mma<fp16>(frag_c &c, const frag_a &a, const frag_b &b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
}

__device__ __forceinline__ unsigned shared_address(const void *pointer)
{
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

/* Four 8×8 matrices of 16-bit elements: lanes 8i … 8i+7 give the rows of matrix i in shared memory, each 16 bytes at a
 * multiple of 16; r[i] gets (g, 2t), (g, 2t+1) of matrix i, transposed (2t, g), (2t+1, g). */
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* 16 bytes to shared memory; zeros when not `present` (then nothing is read). There after the wait and a barrier. */
__device__ __forceinline__ void copy_async(void *to, const void *from, bool present)
{
    const int bytes = present ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
}

/* Closes a group of copies. */
__device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits for all but the N latest groups of this thread. */
template <int N> __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

} // namespace gpu

#endif
