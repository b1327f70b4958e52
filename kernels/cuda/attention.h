/*
 * What the two forms of attention share: attention.cu's for any element type and head size, attention_tiles.cu's for
 * tensor cores. The formulas are those of reference/attention.c: the softmax is carried along the keys (online softmax,
 * Milakov and Gimelshein 2018), the backward recomputes the probabilities from lse (FlashAttention, Dao et al. 2022).
 *
 * Every output has one block that sums it, in the order of the other index: dk and dv key block by key block, dq in a
 * pass of its own, which works out the scores once more.
 */
#ifndef GACC_KERNELS_CUDA_ATTENTION_H
#define GACC_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/instance.h"
#include "kernels/cuda/random.h"

namespace gpu
{

/* A call, or the part of it that begins at head `first_head` of the batch·heads. */
template <class T> struct attention {
    const T *qkv;
    T *out;       /* forward */
    real<T> *lse; /* [batch·heads,context]; written by the forward */
    T *dqkv;      /* backward */
    const T *dout, *result;
    real<T> *delta; /* [heads of this part,context]: dout·out of each row */
    size_t first_head, context, heads, size;
    real<T> scale; /* 1/√size */
    drawing<real<T>> dropout;

    __device__ size_t width() const
    {
        return heads * size;
    }
    __device__ size_t packed() const
    {
        return 3 * heads * size;
    }
    /* Where a head's first row is in an array [batch,context,columns]. */
    __device__ size_t offset(size_t head, size_t columns) const
    {
        return head / heads * context * columns + head % heads * size;
    }
    /* Number of the head's first probability within its sequence. */
    __device__ uint64_t first_element(size_t head) const
    {
        return static_cast<uint64_t>(head % heads) * context * context;
    }
};

/* Whether tensor cores serve: their element types, a head that 16-byte accesses fit, and dropout's draws of four
 * likewise. */
template <class T> bool tiles_serve(const attention<T> &a);

/* On `heads` heads from a.first_head on. */
template <class T> void start_tiles_forward(struct cuda *cuda, const attention<T> &a, size_t heads);
template <class T> void start_tiles_backward(struct cuda *cuda, const attention<T> &a, size_t heads);

/* Allows the kernels the shared memory they need. */
template <class T> void prepare_tiles(struct cuda *cuda);

} // namespace gpu

#endif
