/*
 * Token and position embeddings. The sums of the backward are in the order of the rows.
 */
#include "kernels/cuda/instance.h"

namespace gpu
{

/* A thread takes N columns of a row; width is a multiple of N. */
template <class T, unsigned N>
__global__ void __launch_bounds__(THREADS)
    embed_kernel(T *out, const int32_t *tokens, const T *wte, const T *wpe, size_t rows, size_t context, size_t width)
{
    const size_t pieces = width / N, step = static_cast<size_t>(gridDim.x) * THREADS;
    for (size_t at = blockIdx.x * static_cast<size_t>(THREADS) + threadIdx.x; at < rows * pieces; at += step) {
        const size_t row = at / pieces, column = at % pieces * N;
        real<T> token[N], position[N];
        load<N>(token, wte + static_cast<size_t>(tokens[row]) * width + column);
        load<N>(position, wpe + row % context * width + column);
        for (unsigned i = 0; i < N; i++) token[i] += position[i];
        store<N>(out + row * width + column, token);
    }
}

template <class T>
static void embedding_forward(struct kernels *kernels, compute *out, const int32_t *tokens, const compute *wte,
                              const compute *wpe, size_t batch, size_t context, size_t width)
{
    struct cuda *cuda = cuda_enter(kernels);
    const size_t rows = batch * context;
    if (rows == 0 || width == 0) return;
    const auto run = [&](auto kernel, size_t columns) {
        start(cuda, "embedding_forward", kernel, blocks_for(cuda, rows * (width / columns), THREADS), THREADS, 0,
              static_cast<T *>(out), tokens, static_cast<const T *>(wte), static_cast<const T *>(wpe), rows, context,
              width);
    };
    if (width % lanes<T> == 0 && aligned(out) && aligned(wte) && aligned(wpe))
        run(embed_kernel<T, lanes<T>>, lanes<T>);
    else
        run(embed_kernel<T, 1>, 1);
}

/* dwpe[position] += the rows of that position, one sequence after the other. */
template <class T, unsigned N>
__global__ void __launch_bounds__(THREADS)
    positions_kernel(real<T> *dwpe, const T *dout, size_t batch, size_t context, size_t width)
{
    const size_t pieces = width / N, step = static_cast<size_t>(gridDim.x) * THREADS;
    for (size_t at = blockIdx.x * static_cast<size_t>(THREADS) + threadIdx.x; at < context * pieces; at += step) {
        real<T> sum[N], v[N];
        load<N>(sum, dwpe + at * N);
#pragma unroll 4
        for (size_t b = 0; b < batch; b++) {
            load<N>(v, dout + b * context * width + at * N);
            for (unsigned i = 0; i < N; i++) sum[i] += v[i];
        }
        store<N>(dwpe + at * N, sum);
    }
}

constexpr unsigned CLASSES = 1024; /* of tokens: token mod CLASSES */
constexpr unsigned COLUMN_THREADS = 128;
constexpr unsigned LISTED = 1024; /* rows looked through at a time */
constexpr unsigned AHEAD = 8;     /* rows on their way from memory */

/* The rows first … first + LISTED − 1 whose token is of the class, in order; returns how many. */
__device__ inline unsigned list_rows(uint32_t *list, unsigned *warp_count, const int32_t *tokens, size_t first,
                                     size_t rows, unsigned token_class)
{
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    unsigned listed = 0;
    for (unsigned begin = 0; begin < LISTED && first + begin < rows; begin += COLUMN_THREADS) {
        const size_t row = first + begin + threadIdx.x;
        const bool mine = row < rows && static_cast<uint32_t>(tokens[row]) % CLASSES == token_class;
        const unsigned found = __ballot_sync(ALL_LANES, mine);
        __syncthreads(); /* warp_count has been read */
        if (lane == 0) warp_count[warp] = static_cast<unsigned>(__popc(found));
        __syncthreads();
        unsigned at = listed;
        for (unsigned w = 0; w < COLUMN_THREADS / WARP; w++) {
            if (w == warp && mine)
                list[at + static_cast<unsigned>(__popc(found & ((1u << lane) - 1)))] = static_cast<uint32_t>(row);
            at += warp_count[w];
        }
        listed = at;
    }
    __syncthreads();
    return listed;
}

/* dwte[token] += the rows with that token. A block owns one class of tokens and COLUMN_THREADS·N columns, so that every
 * sum has one owner, who adds in the order of the rows. */
template <class T, unsigned N>
__global__ void __launch_bounds__(COLUMN_THREADS)
    tokens_kernel(real<T> *dwte, const T *dout, const int32_t *tokens, size_t rows, size_t width)
{
    SHARED(uint32_t, list, [LISTED]);
    SHARED(unsigned, warp_count, [COLUMN_THREADS / WARP]);
    const size_t column = (blockIdx.y * static_cast<size_t>(COLUMN_THREADS) + threadIdx.x) * N;
    const bool owns = column < width;
    real<T> sum[N] = {};
    int32_t current = -1; /* the token whose sum this is */
    for (size_t first = 0; first < rows; first += LISTED) {
        const unsigned listed = list_rows(list, warp_count, tokens, first, rows, blockIdx.x);
        for (unsigned begin = 0; owns && begin < listed; begin += AHEAD) {
            real<T> v[AHEAD][N];
#pragma unroll
            for (unsigned ahead = 0; ahead < AHEAD; ahead++)
                if (begin + ahead < listed) load<N>(v[ahead], dout + list[begin + ahead] * width + column);
#pragma unroll
            for (unsigned ahead = 0; ahead < AHEAD; ahead++) {
                if (begin + ahead >= listed) break;
                const int32_t token = tokens[list[begin + ahead]];
                if (token != current) {
                    if (current >= 0) store<N>(dwte + static_cast<size_t>(current) * width + column, sum);
                    current = token;
                    load<N>(sum, dwte + static_cast<size_t>(current) * width + column);
                }
                for (unsigned i = 0; i < N; i++) sum[i] += v[ahead][i];
            }
        }
        __syncthreads(); /* the list has been read */
    }
    if (current >= 0) store<N>(dwte + static_cast<size_t>(current) * width + column, sum);
}

template <class T>
static void embedding_backward(struct kernels *kernels, wide *dwte, wide *dwpe, const compute *dout,
                               const int32_t *tokens, size_t batch, size_t context, size_t width)
{
    struct cuda *cuda = cuda_enter(kernels);
    const size_t rows = batch * context;
    if (rows == 0 || width == 0) return;
    const auto run = [&](auto positions, auto by_token, size_t columns) {
        const size_t pieces = width / columns;
        if (dwpe)
            start(cuda, "embedding_backward", positions, blocks_for(cuda, context * pieces, THREADS), THREADS, 0,
                  static_cast<real<T> *>(dwpe), static_cast<const T *>(dout), batch, context, width);
        const dim3 grid(CLASSES, static_cast<unsigned>(ceiling<size_t>(pieces, COLUMN_THREADS)));
        if (dwte)
            start(cuda, "embedding_backward", by_token, grid, COLUMN_THREADS, 0, static_cast<real<T> *>(dwte),
                  static_cast<const T *>(dout), tokens, rows, width);
    };
    if (width % lanes<T> == 0 && aligned(dwte) && aligned(dwpe) && aligned(dout))
        run(positions_kernel<T, lanes<T>>, tokens_kernel<T, lanes<T>>, lanes<T>);
    else
        run(positions_kernel<T, 1>, tokens_kernel<T, 1>, 1);
}

template <class T> void fill_embedding(struct cuda *cuda)
{
    cuda->table.embedding_forward = embedding_forward<T>;
    cuda->table.embedding_backward = embedding_backward<T>;
}
FOR_EVERY_TYPE(fill_embedding);

} // namespace gpu
