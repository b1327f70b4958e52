/*
 * Attention for any element type and any head size, in the wide type; and the choice between it and tensor cores.
 *
 * A block works on SIDE queries and SIDE keys at a time, a warp on four of the rows with a lane to a column, and sums
 * up to SLICE columns of the head. A head with more has several blocks, each of which works out the scores for itself:
 * so nothing here grows with the size of a head.
 */
#include "kernels/cuda/attention.h"

namespace gpu
{

constexpr unsigned SIDE = 32, EACH = SIDE * SIDE / THREADS; /* rows of a thread */
constexpr unsigned SLICE = 64, PARTS = SLICE / WARP;        /* columns of a block's sums, of a lane's */

/* Rows of a head that begin at `at`; those from `count` on are zeros. */
template <class T> struct rows_of {
    const T *at;
    size_t stride, count;

    __device__ real<T> element(size_t row, size_t column, size_t columns) const
    {
        return row < count && column < columns ? widen(at[row * stride + column]) : 0;
    }
};

/* Shared memory of a block. `a` and `b` are panels of a product, or together a tile of a slice. */
template <class W> struct pair_memory {
    W a[SIDE][SIDE + 1], b[SIDE][SIDE + 1];
    W p[SIDE][SIDE + 1], ds[SIDE][SIDE + 1]; /* [query][key] */

    __device__ W (&slice())[SIDE][SLICE]
    {
        static_assert(sizeof a + sizeof b >= SIDE * SLICE * sizeof(W), "a slice lies in both panels");
        return *reinterpret_cast<W(*)[SIDE][SLICE]>(&a);
    }
};

struct place {
    unsigned lane, row; /* of the thread's: rows row … row + EACH − 1, column lane */

    __device__ place() : lane(threadIdx.x % WARP), row(threadIdx.x / WARP * EACH)
    {
    }
};

/* product[i] = row (row + i) of a · row (lane) of b */
template <class T>
__device__ void row_products(real<T> (&product)[EACH], pair_memory<real<T>> &memory, const rows_of<T> &a,
                             const rows_of<T> &b, size_t size)
{
    const place at;
    for (unsigned i = 0; i < EACH; i++) product[i] = 0;
    for (size_t d = 0; d < size; d += SIDE) {
        __syncthreads(); /* what lay there has been read */
        for (unsigned i = 0; i < EACH; i++) {
            memory.a[at.row + i][at.lane] = a.element(at.row + i, d + at.lane, size);
            memory.b[at.row + i][at.lane] = b.element(at.row + i, d + at.lane, size);
        }
        __syncthreads();
#pragma unroll 8
        for (unsigned term = 0; term < SIDE; term++)
            for (unsigned i = 0; i < EACH; i++) product[i] += memory.a[at.row + i][term] * memory.b[at.lane][term];
    }
}

/* Columns first … first + SLICE − 1 of the rows into memory.slice(). */
template <class T>
__device__ void load_slice(pair_memory<real<T>> &memory, const rows_of<T> &rows, size_t first, size_t size)
{
    const place at;
    __syncthreads();
    for (unsigned i = 0; i < EACH; i++)
        for (unsigned c = at.lane; c < SLICE; c += WARP)
            memory.slice()[at.row + i][c] = rows.element(at.row + i, first + c, size);
    __syncthreads();
}

/* What a block has to do: a tile of one head's rows, and a slice of its columns. */
struct task {
    size_t head, first, column; /* head within the batch·heads; first row; first column */

    template <class T> __device__ explicit task(const attention<T> &a, bool heavy_last)
    {
        const size_t tiles = ceiling<size_t>(a.context, SIDE), tile = blockIdx.x % tiles;
        head = a.first_head + blockIdx.x / tiles;
        first = (heavy_last ? tiles - 1 - tile : tile) * SIDE; /* the longest first */
        column = blockIdx.y * static_cast<size_t>(SLICE);
    }
};

/* Rows first … of q (0), k (1) or v (2). */
template <class T> __device__ rows_of<T> packed_rows(const attention<T> &a, size_t head, unsigned which, size_t first)
{
    return {a.qkv + a.offset(head, a.packed()) + which * a.width() + first * a.packed(), a.packed(), a.context - first};
}

template <class T> __device__ rows_of<T> rows(const attention<T> &a, const T *array, size_t head, size_t first)
{
    return {array + a.offset(head, a.width()) + first * a.width(), a.width(), a.context - first};
}

template <class T> __device__ real<T> kept(const attention<T> &a, size_t head, size_t query, size_t key)
{
    return stream_of_bits<real<T>>(a.dropout, head / a.heads).factor(a.first_element(head) + query * a.context + key);
}

/* Stores sums [SIDE][SLICE] as rows first … of an array whose first row of the head is at `out`. */
template <class T>
__device__ void store_sums(const attention<T> &a, T *out, size_t stride, const task &t, real<T> (&sum)[EACH][PARTS])
{
    const place at;
    for (unsigned i = 0; i < EACH; i++) {
        for (unsigned c = 0; c < PARTS; c++) {
            const size_t row = t.first + at.row + i, column = t.column + at.lane + c * WARP;
            if (row < a.context && column < a.size) out[row * stride + column] = narrow<T>(sum[i][c]);
        }
    }
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

template <class T> __global__ void __launch_bounds__(THREADS, 2) attend_kernel(attention<T> a)
{
    using W = real<T>;
    SHARED(pair_memory<W>, memory, [1]);
    const place at;
    const task t(a, true);
    W sum[EACH][PARTS] = {}, largest[EACH], total[EACH] = {};
    for (unsigned i = 0; i < EACH; i++) largest[i] = lowest<W>;
    for (size_t first_key = 0; first_key <= t.first; first_key += SIDE) {
        W s[EACH];
        row_products<T>(s, *memory, packed_rows(a, t.head, 0, t.first), packed_rows(a, t.head, 1, first_key), a.size);
        const size_t key = first_key + at.lane;
        for (unsigned i = 0; i < EACH; i++) {
            const size_t query = t.first + at.row + i;
            s[i] = key <= query ? s[i] * a.scale : lowest<W>;
            const W top = larger(largest[i], warp_max(larger(lowest<W>, s[i]))), before = largest[i];
            largest[i] = top;
            W p = exponential(s[i] - top);
            const W correction = exponential(before - top);
            total[i] = total[i] * correction + warp_sum(p);
            if (a.dropout.draws) p *= kept(a, t.head, query, key);
            for (unsigned c = 0; c < PARTS; c++) sum[i][c] *= correction;
            memory->p[at.row + i][at.lane] = p;
        }
        load_slice(*memory, packed_rows(a, t.head, 2, first_key), t.column, a.size);
#pragma unroll 4
        for (unsigned j = 0; j < SIDE; j++)
            for (unsigned i = 0; i < EACH; i++)
                for (unsigned c = 0; c < PARTS; c++)
                    sum[i][c] += memory->p[at.row + i][j] * memory->slice()[j][at.lane + c * WARP];
    }
    for (unsigned i = 0; i < EACH; i++) {
        for (unsigned c = 0; c < PARTS; c++) sum[i][c] /= total[i];
        const size_t query = t.first + at.row + i;
        if (at.lane == 0 && blockIdx.y == 0 && query < a.context)
            a.lse[t.head * a.context + query] = largest[i] + logarithm(total[i]);
    }
    store_sums(a, a.out + a.offset(t.head, a.width()), a.width(), t, sum);
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

constexpr unsigned ROW_WARPS = THREADS / WARP;

/* A warp to a row. */
template <class T> __global__ void __launch_bounds__(THREADS) delta_kernel(attention<T> a, size_t count)
{
    using W = real<T>;
    const size_t row = blockIdx.x * static_cast<size_t>(ROW_WARPS) + threadIdx.x / WARP;
    if (row >= count) return;
    const size_t head = a.first_head + row / a.context;
    const size_t begin = a.offset(head, a.width()) + row % a.context * a.width();
    W sum = 0;
    for (size_t d = threadIdx.x % WARP; d < a.size; d += WARP)
        sum += widen(a.dout[begin + d]) * widen(a.result[begin + d]);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) a.delta[row] = sum;
}

/* memory.p = m·p, memory.ds = p·(m·dp − delta) for the queries and keys from there on; 0 where a key is not seen. */
template <class T>
__device__ void score_gradients(const attention<T> &a, pair_memory<real<T>> &memory, size_t head, size_t first_query,
                                size_t first_key)
{
    using W = real<T>;
    const place at;
    W s[EACH], dp[EACH];
    row_products<T>(s, memory, packed_rows(a, head, 0, first_query), packed_rows(a, head, 1, first_key), a.size);
    row_products<T>(dp, memory, rows(a, a.dout, head, first_query), packed_rows(a, head, 2, first_key), a.size);
    const size_t key = first_key + at.lane;
    for (unsigned i = 0; i < EACH; i++) {
        const size_t query = first_query + at.row + i;
        W p = 0, ds = 0;
        if (key <= query && query < a.context) {
            const W factor = a.dropout.draws ? kept(a, head, query, key) : 1;
            p = exponential(s[i] * a.scale - a.lse[head * a.context + query]);
            ds = p * (factor * dp[i] - a.delta[(head - a.first_head) * a.context + query]);
            p *= factor;
        }
        memory.p[at.row + i][at.lane] = p;
        memory.ds[at.row + i][at.lane] = ds;
    }
}

/* dk and dv of a tile of keys, query tile by query tile. */
template <class T> __global__ void __launch_bounds__(THREADS) key_gradients_kernel(attention<T> a)
{
    using W = real<T>;
    SHARED(pair_memory<W>, memory, [1]);
    const place at;
    const task t(a, false);
    W dk[EACH][PARTS] = {}, dv[EACH][PARTS] = {};
    for (size_t first = t.first; first < a.context; first += SIDE) {
        score_gradients(a, *memory, t.head, first, t.first);
        load_slice(*memory, rows(a, a.dout, t.head, first), t.column, a.size);
#pragma unroll 4
        for (unsigned j = 0; j < SIDE; j++)
            for (unsigned i = 0; i < EACH; i++)
                for (unsigned c = 0; c < PARTS; c++)
                    dv[i][c] += memory->p[j][at.row + i] * memory->slice()[j][at.lane + c * WARP];
        load_slice(*memory, packed_rows(a, t.head, 0, first), t.column, a.size);
#pragma unroll 4
        for (unsigned j = 0; j < SIDE; j++)
            for (unsigned i = 0; i < EACH; i++)
                for (unsigned c = 0; c < PARTS; c++)
                    dk[i][c] += memory->ds[j][at.row + i] * memory->slice()[j][at.lane + c * WARP];
    }
    for (unsigned i = 0; i < EACH; i++)
        for (unsigned c = 0; c < PARTS; c++) dk[i][c] *= a.scale;
    T *dq_row = a.dqkv + a.offset(t.head, a.packed());
    store_sums(a, dq_row + a.width(), a.packed(), t, dk);
    store_sums(a, dq_row + 2 * a.width(), a.packed(), t, dv);
}

/* dq of a tile of queries, key tile by key tile. */
template <class T> __global__ void __launch_bounds__(THREADS) query_gradients_kernel(attention<T> a)
{
    using W = real<T>;
    SHARED(pair_memory<W>, memory, [1]);
    const place at;
    const task t(a, true);
    W dq[EACH][PARTS] = {};
    for (size_t first_key = 0; first_key <= t.first; first_key += SIDE) {
        score_gradients(a, *memory, t.head, t.first, first_key);
        load_slice(*memory, packed_rows(a, t.head, 1, first_key), t.column, a.size);
#pragma unroll 4
        for (unsigned j = 0; j < SIDE; j++)
            for (unsigned i = 0; i < EACH; i++)
                for (unsigned c = 0; c < PARTS; c++)
                    dq[i][c] += memory->ds[at.row + i][j] * memory->slice()[j][at.lane + c * WARP];
    }
    for (unsigned i = 0; i < EACH; i++)
        for (unsigned c = 0; c < PARTS; c++) dq[i][c] *= a.scale;
    store_sums(a, a.dqkv + a.offset(t.head, a.packed()), a.packed(), t, dq);
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static bool nothing(const struct attention_shape &shape)
{
    return shape.batch == 0 || shape.context == 0 || shape.heads == 0 || shape.head_size == 0;
}

template <class T>
static attention<T> call_of(const compute *qkv, const struct dropout *dropout, const attention_shape &s)
{
    return {static_cast<const T *>(qkv),
            nullptr,
            nullptr,
            nullptr,
            nullptr,
            nullptr,
            nullptr,
            0,
            s.context,
            s.heads,
            s.head_size,
            static_cast<real<T>>(1 / sqrt(static_cast<double>(s.head_size))),
            drawing<real<T>>(dropout)};
}

/* Blocks: one to a tile of each head and each slice. */
template <class T> static dim3 task_grid(const attention<T> &a, size_t heads)
{
    return dim3(static_cast<unsigned>(heads * ceiling<size_t>(a.context, SIDE)),
                static_cast<unsigned>(ceiling<size_t>(a.size, SLICE)));
}

template <class T>
static void attention_forward(struct kernels *kernels, compute *out, wide *lse, const compute *qkv,
                              const struct dropout *dropout, struct attention_shape shape)
{
    struct cuda *cuda = cuda_enter(kernels);
    if (nothing(shape)) return;
    attention<T> a = call_of<T>(qkv, dropout, shape);
    a.out = static_cast<T *>(out);
    a.lse = static_cast<real<T> *>(lse);
    const size_t heads = shape.batch * shape.heads;
    if (tiles_serve(a))
        start_tiles_forward(cuda, a, heads);
    else
        start(cuda, "attention_forward", attend_kernel<T>, task_grid(a, heads), THREADS, 0, a);
}

template <class T>
static void attention_backward(struct kernels *kernels, compute *dqkv, const compute *dout, const compute *out,
                               const wide *lse, const compute *qkv, const struct dropout *dropout,
                               struct attention_shape shape)
{
    struct cuda *cuda = cuda_enter(kernels);
    if (nothing(shape)) return;
    attention<T> a = call_of<T>(qkv, dropout, shape);
    a.dqkv = static_cast<T *>(dqkv);
    a.dout = static_cast<const T *>(dout);
    a.result = static_cast<const T *>(out);
    a.lse = static_cast<real<T> *>(const_cast<wide *>(lse));
    a.delta = static_cast<real<T> *>(cuda->scratch);
    const size_t all = shape.batch * shape.heads, fit = CUDA_SCRATCH_BYTES / (shape.context * sizeof(real<T>));
    for (size_t heads; a.first_head < all; a.first_head += heads) {
        heads = all - a.first_head < fit ? all - a.first_head : fit;
        const size_t count = heads * shape.context;
        start(cuda, "attention_backward", delta_kernel<T>, static_cast<unsigned>(ceiling<size_t>(count, ROW_WARPS)),
              THREADS, 0, a, count);
        if (tiles_serve(a)) {
            start_tiles_backward(cuda, a, heads);
        } else {
            start(cuda, "attention_backward", key_gradients_kernel<T>, task_grid(a, heads), THREADS, 0, a);
            start(cuda, "attention_backward", query_gradients_kernel<T>, task_grid(a, heads), THREADS, 0, a);
        }
    }
}

template <class T> void fill_attention(struct cuda *cuda)
{
    cuda->table.attention_forward = attention_forward<T>;
    cuda->table.attention_backward = attention_backward<T>;
    prepare_tiles<T>(cuda);
}
FOR_EVERY_TYPE(fill_attention);

} // namespace gpu
