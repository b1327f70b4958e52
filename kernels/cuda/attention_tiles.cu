/*
 * Attention on tensor cores, in the manner of FlashAttention-2 (Dao 2023): tiles of keys and values, or of queries and
 * their gradients, stream through two stages of shared memory by asynchronous copies, while sums stay in registers.
 * Probabilities and their gradients are rounded to the compute type where they become operands; all sums are fp32.
 *
 * A warp owns 16 (forward: 16·MT) rows of its block's tile. Where the sums are those of keys, scores are worked out
 * transposed, [keys,queries]: in either pass the scores then are, as the registers have them, the left operand of the
 * products that follow, and no score goes through memory.
 *
 * In tiles, rows are D elements, those behind the head's size zeros, and 8 more that keep eight rows' pieces of 16
 * bytes in different banks.
 */
#include "kernels/cuda/attention.h"
#include "kernels/cuda/mma_tile.h"

namespace gpu
{

constexpr unsigned WARPS = 4, TILE_THREADS = WARPS * WARP;
constexpr float LOG2_E = 1.44269504088896340736f;

template <unsigned D> constexpr unsigned pitch = D + 8;
template <unsigned ROWS, unsigned D> constexpr unsigned tile_elements = ROWS *pitch<D>;

/* --- tiles and fragments ------------------------------------------------------------------------------------------ */

/* Rows of a head in memory, `stride` elements apart. */
template <class T> struct head_rows {
    const T *at;
    unsigned stride;
};

/* Starts the copies of rows first … first + ROWS − 1; those from `count` on, and columns from `size` on, become zeros.
 */
template <unsigned ROWS, unsigned D, class T>
__device__ void fetch_tile(T *tile, const head_rows<T> &rows, unsigned first, unsigned count, unsigned size)
{
    constexpr unsigned PIECES = D / 8, ABREAST = TILE_THREADS / PIECES; /* of a row; rows at a time */
    static_assert(ROWS % ABREAST == 0, "as many pieces to every thread");
    const unsigned row = threadIdx.x / PIECES, column = threadIdx.x % PIECES * 8;
    const T *from = rows.at + static_cast<size_t>(first + row) * rows.stride + column;
    T *to = tile + row * pitch<D> + column;
#pragma unroll
    for (unsigned r = 0; r < ROWS; r += ABREAST, from += ABREAST * rows.stride) {
        const bool present = first + row + r < count && column < size;
        copy_async(to + r * pitch<D>, present ? from : rows.at, present);
    }
}

/* Rows row … row + 15, columns column … column + 15 as a left operand. */
template <unsigned D, class T> __device__ void load_left(frag_a &a, const T *tile, unsigned row, unsigned column)
{
    const unsigned lane = threadIdx.x % WARP;
    ldmatrix_x4(a.r, tile + (row + lane % 16) * pitch<D> + column + lane / 16 * 8);
}

/* Right operands of two products side by side: [16 columns from `column` on, 16 rows from `row` on], so the product is
 * one with the tile's rows. */
template <unsigned D, class T> __device__ void load_right(frag_b (&b)[2], const T *tile, unsigned row, unsigned column)
{
    const unsigned lane = threadIdx.x % WARP;
    uint32_t r[4];
    ldmatrix_x4(r, tile + (row + lane / 16 * 8 + lane % 8) * pitch<D> + column + lane / 8 % 2 * 8);
    b[0] = {{r[0], r[1]}};
    b[1] = {{r[2], r[3]}};
}

/* The same of [16 rows, 16 columns]: the product is a weighted sum of the tile's rows. */
template <unsigned D, class T>
__device__ void load_right_rows(frag_b (&b)[2], const T *tile, unsigned row, unsigned column)
{
    const unsigned lane = threadIdx.x % WARP;
    uint32_t r[4];
    ldmatrix_x4_trans(r, tile + (row + lane % 16) * pitch<D> + column + lane / 16 * 8);
    b[0] = {{r[0], r[1]}};
    b[1] = {{r[2], r[3]}};
}

template <class T> __device__ uint32_t pack(float low, float high)
{
    uint32_t bits;
    if constexpr (std::is_same_v<T, bf16>) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        memcpy(&bits, &pair, sizeof bits);
    } else {
        const __half2 pair = __floats2half2_rn(low, high);
        memcpy(&bits, &pair, sizeof bits);
    }
    return bits;
}

/* Two results side by side as a left operand, rounded. */
template <class T> __device__ frag_a left_of(const frag_c &c0, const frag_c &c1)
{
    return {
        {pack<T>(c0.r[0], c0.r[1]), pack<T>(c0.r[2], c0.r[3]), pack<T>(c1.r[0], c1.r[1]), pack<T>(c1.r[2], c1.r[3])}};
}

/* c[m][n] = rows row + 16·m … of `left` · rows 8·n … of `right`, over D columns */
template <unsigned D, unsigned MT, unsigned NT, class T>
__device__ void tile_products(frag_c (&c)[MT][NT], const T *left, unsigned row, const T *right)
{
#pragma unroll
    for (unsigned m = 0; m < MT; m++)
#pragma unroll
        for (unsigned n = 0; n < NT; n++) c[m][n] = {};
#pragma unroll
    for (unsigned d = 0; d < D; d += 16) {
        frag_a a[MT];
#pragma unroll
        for (unsigned m = 0; m < MT; m++) load_left<D>(a[m], left, row + 16 * m, d);
#pragma unroll
        for (unsigned n = 0; n < NT; n += 2) {
            frag_b b[2];
            load_right<D>(b, right, 8 * n, d);
#pragma unroll
            for (unsigned m = 0; m < MT; m++) {
                mma<T>(c[m][n], a[m], b[0]);
                mma<T>(c[m][n + 1], a[m], b[1]);
            }
        }
    }
}

/* sum[m] += p[m]·rows of the tile */
template <unsigned D, unsigned MT, unsigned NT, class T>
__device__ void add_weighted_rows(frag_c (&sum)[MT][D / 8], const frag_c (&p)[MT][NT], const T *tile)
{
#pragma unroll
    for (unsigned k = 0; k < NT; k += 2) {
        frag_a a[MT];
#pragma unroll
        for (unsigned m = 0; m < MT; m++) a[m] = left_of<T>(p[m][k], p[m][k + 1]);
#pragma unroll
        for (unsigned d = 0; d < D; d += 16) {
            frag_b b[2];
            load_right_rows<D>(b, tile, 8 * k, d);
#pragma unroll
            for (unsigned m = 0; m < MT; m++) {
                mma<T>(sum[m][d / 8], a[m], b[0]);
                mma<T>(sum[m][d / 8 + 1], a[m], b[1]);
            }
        }
    }
}

/* Rows first + g and first + g + 8 of an array; columns behind the head's size are not there. */
template <unsigned D, class T>
__device__ void store_rows(T *out, unsigned stride, unsigned first, unsigned count, unsigned size,
                           const frag_c (&c)[D / 8], float low_factor, float high_factor)
{
    const unsigned lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (unsigned d = 0; d < D / 8; d++) {
        const unsigned column = 8 * d + 2 * t;
        if (column >= size) continue;
        const uint32_t low = pack<T>(c[d].r[0] * low_factor, c[d].r[1] * low_factor);
        const uint32_t high = pack<T>(c[d].r[2] * high_factor, c[d].r[3] * high_factor);
        if (first + g < count) vstore_pair(out + static_cast<size_t>(first + g) * stride + column, low);
        if (first + g + 8 < count) vstore_pair(out + static_cast<size_t>(first + g + 8) * stride + column, high);
    }
}

/* --- dropout of a result ------------------------------------------------------------------------------------------ */

/* The draws of a head, four keys to each; context is a multiple of four. Their numbers are below 2^32. */
struct head_draws {
    stream_of_bits<float> bits;
    uint32_t first, of_query; /* number of the head's first draw; draws of a query */

    template <class T>
    __device__ head_draws(const attention<T> &a, size_t head)
        : bits(a.dropout, head / a.heads), first(static_cast<uint32_t>(a.first_element(head) / 4)),
          of_query(static_cast<uint32_t>(a.context / 4))
    {
    }
};

/* The factors of c [queries,keys] at query + g (+ 8), key + 2t (+ 1). Four keys share a draw: of a pair of lanes one
 * draws for each row, and they exchange halves. */
__device__ inline frag_c key_factors(const head_draws &draws, unsigned query, unsigned key)
{
    const unsigned lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const bool odd = t % 2;
    float own[4];
    draws.bits.factors(own, draws.first + (query + g + (odd ? 8 : 0)) * draws.of_query + key / 4 + t / 2);
    const float low = __shfl_xor_sync(ALL_LANES, odd ? own[0] : own[2], 1);
    const float high = __shfl_xor_sync(ALL_LANES, odd ? own[1] : own[3], 1);
    if (odd) return {{low, high, own[2], own[3]}};
    return {{own[0], own[1], low, high}};
}

__device__ inline float select(const float (&v)[4], unsigned i)
{
    return i < 2 ? (i == 0 ? v[0] : v[1]) : (i == 2 ? v[2] : v[3]);
}

/* The factors of c [keys,queries] at key + g (+ 8), query + 2t (+ 1). Four lanes, with keys that share a draw, need two
 * queries' and two rows' draws: each makes one of them, and they transpose the four by four. */
__device__ inline frag_c query_factors(const head_draws &draws, unsigned key, unsigned query)
{
    const unsigned lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, i = g % 4;
    float drawn[4], mine[4]; /* mine[j]: from the lane that is number i ^ j of the four */
    draws.bits.factors(drawn, draws.first + (query + 2 * t + i % 2) * draws.of_query + key / 4 + i / 2 * 2 + g / 4);
#pragma unroll
    for (unsigned j = 0; j < 4; j++)
        mine[j] = j == 0 ? select(drawn, i) : __shfl_xor_sync(ALL_LANES, select(drawn, i ^ j), static_cast<int>(4 * j));
    frag_c c;
#pragma unroll
    for (unsigned r = 0; r < 4; r++) c.r[r] = select(mine, i ^ r); /* number r drew for query r%2, row r/2 */
    return c;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* What a warp carries along the keys for 16·MT queries: row g of each 16 at [0], row g + 8 at [1]. */
template <unsigned D, unsigned MT> struct carried {
    frag_c sum[MT][D / 8];
    float largest[MT][2], total[MT][2];
};

__device__ inline float quad_sum(float x)
{
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

__device__ inline float quad_max(float x)
{
    x = larger(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return larger(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

/* s → e^(scale·(s − largest)), not yet dropped; what was carried is brought to the new maxima. scale is in base 2. */
template <unsigned D, unsigned MT, unsigned NT>
__device__ void soften(frag_c (&s)[MT][NT], carried<D, MT> &carry, float scale, unsigned query, unsigned key)
{
    const unsigned lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const bool crosses = key + 8 * NT - 1 > query; /* the diagonal */
#pragma unroll
    for (unsigned m = 0; m < MT; m++) {
#pragma unroll
        for (unsigned h = 0; h < 2; h++) {
            const unsigned row = query + 16 * m + 8 * h + g;
            float top = carry.largest[m][h];
#pragma unroll
            for (unsigned n = 0; n < NT; n++) {
#pragma unroll
                for (unsigned i = 0; i < 2; i++) {
                    float &score = s[m][n].r[2 * h + i];
                    if (crosses && key + 8 * n + 2 * t + i > row) score = lowest<float>;
                    top = larger(top, score);
                }
            }
            top = quad_max(top);
            const float correction = exp2f((carry.largest[m][h] - top) * scale), shift = top * scale;
            carry.largest[m][h] = top;
            float total = 0;
#pragma unroll
            for (unsigned n = 0; n < NT; n++) {
#pragma unroll
                for (unsigned i = 0; i < 2; i++) {
                    float &p = s[m][n].r[2 * h + i];
                    p = exp2f(p * scale - shift);
                    total += p;
                }
            }
            carry.total[m][h] = carry.total[m][h] * correction + total; /* of this lane's columns */
#pragma unroll
            for (unsigned d = 0; d < D / 8; d++) {
                carry.sum[m][d].r[2 * h] *= correction;
                carry.sum[m][d].r[2 * h + 1] *= correction;
            }
        }
    }
}

template <unsigned D, unsigned MT> struct forward_shape {
    static constexpr unsigned QUERIES = 16 * MT * WARPS, KEYS = 64;
    static constexpr size_t ELEMENTS = tile_elements<QUERIES, D> + 4 * tile_elements<KEYS, D>;
};

template <class T, unsigned D, unsigned MT, bool DROPS>
__global__ void __launch_bounds__(TILE_THREADS, 2) attend_tiles_kernel(attention<T> a)
{
    using shape = forward_shape<D, MT>;
    constexpr unsigned KEYS = shape::KEYS, STAGE = tile_elements<KEYS, D>;
    SHARED_DYNAMIC(T, memory);
    T *q_tile = memory, *k_tiles = q_tile + tile_elements<shape::QUERIES, D>, *v_tiles = k_tiles + 2 * STAGE;
    const unsigned context = static_cast<unsigned>(a.context), size = static_cast<unsigned>(a.size);
    const unsigned blocks = ceiling<unsigned>(context, shape::QUERIES);
    const size_t head = a.first_head + blockIdx.x / blocks;
    const unsigned first = (blocks - 1 - blockIdx.x % blocks) * shape::QUERIES; /* the longest first */
    const unsigned own = threadIdx.x / WARP * 16 * MT;                          /* the warp's first row */
    const unsigned width = static_cast<unsigned>(a.width()), packed = 3 * width;
    const head_rows<T> q = {a.qkv + a.offset(head, packed), packed}, k = {q.at + width, packed},
                       v = {k.at + width, packed};
    const unsigned last = first + shape::QUERIES < context ? first + shape::QUERIES : context;
    const unsigned steps = ceiling<unsigned>(last, KEYS);
    fetch_tile<shape::QUERIES, D>(q_tile, q, first, context, size);
    fetch_tile<KEYS, D>(k_tiles, k, 0, context, size);
    fetch_tile<KEYS, D>(v_tiles, v, 0, context, size);
    copy_commit();
    carried<D, MT> carry = {};
#pragma unroll
    for (unsigned m = 0; m < MT; m++) carry.largest[m][0] = carry.largest[m][1] = lowest<float>;
    for (unsigned step = 0; step < steps; step++) {
        const unsigned key = step * KEYS;
        T *k_tile = k_tiles + step % 2 * STAGE, *v_tile = v_tiles + step % 2 * STAGE;
        if (step + 1 < steps) {
            fetch_tile<KEYS, D>(k_tiles + (step + 1) % 2 * STAGE, k, key + KEYS, context, size);
            fetch_tile<KEYS, D>(v_tiles + (step + 1) % 2 * STAGE, v, key + KEYS, context, size);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        if (key < first + own + 16 * MT) { /* else the warp's queries see none of these keys */
            frag_c s[MT][KEYS / 8];
            tile_products<D>(s, q_tile, own, k_tile);
            soften<D>(s, carry, a.scale * LOG2_E, first + own, key);
            if constexpr (DROPS) {
                const head_draws draws(a, head);
#pragma unroll
                for (unsigned m = 0; m < MT; m++) {
#pragma unroll
                    for (unsigned n = 0; n < KEYS / 8; n++) {
                        const frag_c factor = key_factors(draws, first + own + 16 * m, key + 8 * n);
#pragma unroll
                        for (unsigned r = 0; r < 4; r++) s[m][n].r[r] *= factor.r[r];
                    }
                }
            }
            add_weighted_rows<D>(carry.sum, s, v_tile);
        }
        __syncthreads(); /* the stage has been read */
    }
    copy_wait<0>();
    T *out = a.out + a.offset(head, width);
    const unsigned lane = threadIdx.x % WARP;
#pragma unroll
    for (unsigned m = 0; m < MT; m++) {
        const float low = quad_sum(carry.total[m][0]), high = quad_sum(carry.total[m][1]);
        const unsigned row = first + own + 16 * m;
        store_rows<D>(out, width, row, context, size, carry.sum[m], 1 / low, 1 / high);
        if (lane % 4 != 0) continue;
        float *lse = a.lse + head * a.context;
        if (row + lane / 4 < context) lse[row + lane / 4] = carry.largest[m][0] * a.scale + logf(low);
        if (row + lane / 4 + 8 < context) lse[row + lane / 4 + 8] = carry.largest[m][1] * a.scale + logf(high);
    }
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* lse (in base 2) and delta of a query: p = 0 where there is none. */
struct query_numbers {
    float lse, delta;

    template <class T> __device__ query_numbers(const attention<T> &a, size_t head, unsigned query)
    {
        const bool there = query < a.context;
        lse = there ? a.lse[head * a.context + query] * LOG2_E : static_cast<float>(INFINITY);
        delta = there ? a.delta[(head - a.first_head) * a.context + query] : 0;
    }
};

template <unsigned D> struct key_shape {
    static constexpr unsigned KEYS = 16 * WARPS, QUERIES = D > 64 ? 16 : 64;
    static constexpr size_t ELEMENTS = 2 * tile_elements<KEYS, D> + 4 * tile_elements<QUERIES, D>;
};

/* dk and dv of a tile of keys, query tile by query tile. Scores are [keys,queries]. */
template <class T, unsigned D, bool DROPS>
__global__ void __launch_bounds__(TILE_THREADS, D > 64 || DROPS ? 2 : 3) key_tiles_kernel(attention<T> a)
{
    using shape = key_shape<D>;
    constexpr unsigned QUERIES = shape::QUERIES, NT = QUERIES / 8, STAGE = tile_elements<QUERIES, D>;
    SHARED_DYNAMIC(T, memory);
    SHARED(float, lse, [QUERIES]);
    SHARED(float, delta, [QUERIES]);
    T *k_tile = memory, *v_tile = k_tile + tile_elements<shape::KEYS, D>;
    T *q_tiles = v_tile + tile_elements<shape::KEYS, D>, *do_tiles = q_tiles + 2 * STAGE;
    const unsigned context = static_cast<unsigned>(a.context), size = static_cast<unsigned>(a.size);
    const unsigned blocks = ceiling<unsigned>(context, shape::KEYS), first = blockIdx.x % blocks * shape::KEYS;
    const size_t head = a.first_head + blockIdx.x / blocks;
    const unsigned lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, own = threadIdx.x / WARP * 16;
    const unsigned width = static_cast<unsigned>(a.width()), packed = 3 * width;
    const head_rows<T> q = {a.qkv + a.offset(head, packed), packed}, k = {q.at + width, packed},
                       v = {k.at + width, packed}, dout = {a.dout + a.offset(head, width), width};
    fetch_tile<shape::KEYS, D>(k_tile, k, first, context, size);
    fetch_tile<shape::KEYS, D>(v_tile, v, first, context, size);
    fetch_tile<QUERIES, D>(q_tiles, q, first, context, size);
    fetch_tile<QUERIES, D>(do_tiles, dout, first, context, size);
    copy_commit();
    frag_c dk[1][D / 8] = {}, dv[1][D / 8] = {};
    unsigned stage = 0;
    for (unsigned query = first; query < context; query += QUERIES, stage ^= 1) {
        const T *q_tile = q_tiles + stage * STAGE, *do_tile = do_tiles + stage * STAGE;
        if (query + QUERIES < context) {
            fetch_tile<QUERIES, D>(q_tiles + (stage ^ 1) * STAGE, q, query + QUERIES, context, size);
            fetch_tile<QUERIES, D>(do_tiles + (stage ^ 1) * STAGE, dout, query + QUERIES, context, size);
        }
        copy_commit();
        if (threadIdx.x < QUERIES) {
            const query_numbers numbers(a, head, query + threadIdx.x);
            lse[threadIdx.x] = numbers.lse;
            delta[threadIdx.x] = numbers.delta;
        }
        copy_wait<1>();
        __syncthreads();
        frag_c p[1][NT], ds[1][NT];
        tile_products<D>(p, k_tile, own, q_tile);
        tile_products<D>(ds, v_tile, own, do_tile);
        const bool crosses = query < first + own + 15; /* the diagonal */
#pragma unroll
        for (unsigned n = 0; n < NT; n++) {
            frag_c factor = {{1, 1, 1, 1}};
            if constexpr (DROPS) factor = query_factors(head_draws(a, head), first + own, query + 8 * n);
#pragma unroll
            for (unsigned r = 0; r < 4; r++) {
                const unsigned column = 8 * n + 2 * t + r % 2;
                const bool seen = !crosses || query + column >= first + own + g + r / 2 * 8;
                const float exact = exp2f(p[0][n].r[r] * (a.scale * LOG2_E) - lse[column]), own_p = seen ? exact : 0;
                p[0][n].r[r] = own_p * factor.r[r];
                ds[0][n].r[r] = seen ? own_p * (factor.r[r] * ds[0][n].r[r] - delta[column]) : 0;
            }
        }
        add_weighted_rows<D>(dv, p, do_tile);
        add_weighted_rows<D>(dk, ds, q_tile);
        __syncthreads(); /* the stage has been read */
    }
    copy_wait<0>();
    T *dk_rows = a.dqkv + a.offset(head, packed) + width;
    store_rows<D>(dk_rows, packed, first + own, context, size, dk[0], a.scale, a.scale);
    store_rows<D>(dk_rows + width, packed, first + own, context, size, dv[0], 1, 1);
}

template <unsigned D, bool DROPS> struct query_shape {
    static constexpr unsigned QUERIES = 16 * WARPS, KEYS = D <= 64 ? 64 : DROPS ? 16 : 32;
    static constexpr size_t ELEMENTS = 2 * tile_elements<QUERIES, D> + 4 * tile_elements<KEYS, D>;
};

/* dq of a tile of queries, key tile by key tile. */
template <class T, unsigned D, bool DROPS>
__global__ void __launch_bounds__(TILE_THREADS, 2) query_tiles_kernel(attention<T> a)
{
    using shape = query_shape<D, DROPS>;
    constexpr unsigned KEYS = shape::KEYS, NT = KEYS / 8, STAGE = tile_elements<KEYS, D>;
    SHARED_DYNAMIC(T, memory);
    T *q_tile = memory, *do_tile = q_tile + tile_elements<shape::QUERIES, D>;
    T *k_tiles = do_tile + tile_elements<shape::QUERIES, D>, *v_tiles = k_tiles + 2 * STAGE;
    const unsigned context = static_cast<unsigned>(a.context), size = static_cast<unsigned>(a.size);
    const unsigned blocks = ceiling<unsigned>(context, shape::QUERIES);
    const size_t head = a.first_head + blockIdx.x / blocks;
    const unsigned first = (blocks - 1 - blockIdx.x % blocks) * shape::QUERIES; /* the longest first */
    const unsigned lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, own = threadIdx.x / WARP * 16;
    const unsigned width = static_cast<unsigned>(a.width()), packed = 3 * width;
    const head_rows<T> q = {a.qkv + a.offset(head, packed), packed}, k = {q.at + width, packed},
                       v = {k.at + width, packed}, dout = {a.dout + a.offset(head, width), width};
    fetch_tile<shape::QUERIES, D>(q_tile, q, first, context, size);
    fetch_tile<shape::QUERIES, D>(do_tile, dout, first, context, size);
    fetch_tile<KEYS, D>(k_tiles, k, 0, context, size);
    fetch_tile<KEYS, D>(v_tiles, v, 0, context, size);
    copy_commit();
    const query_numbers low(a, head, first + own + g), high(a, head, first + own + g + 8);
    const unsigned last = first + shape::QUERIES < context ? first + shape::QUERIES : context;
    frag_c dq[1][D / 8] = {};
    unsigned stage = 0;
    for (unsigned key = 0; key < last; key += KEYS, stage ^= 1) {
        const T *k_tile = k_tiles + stage * STAGE, *v_tile = v_tiles + stage * STAGE;
        if (key + KEYS < last) {
            fetch_tile<KEYS, D>(k_tiles + (stage ^ 1) * STAGE, k, key + KEYS, context, size);
            fetch_tile<KEYS, D>(v_tiles + (stage ^ 1) * STAGE, v, key + KEYS, context, size);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        frag_c s[1][NT], ds[1][NT];
        tile_products<D>(s, q_tile, own, k_tile);
        tile_products<D>(ds, do_tile, own, v_tile);
        const bool crosses = key + KEYS - 1 > first + own; /* the diagonal */
#pragma unroll
        for (unsigned n = 0; n < NT; n++) {
            frag_c factor = {{1, 1, 1, 1}};
            if constexpr (DROPS) factor = key_factors(head_draws(a, head), first + own, key + 8 * n);
#pragma unroll
            for (unsigned r = 0; r < 4; r++) {
                const bool seen = !crosses || key + 8 * n + 2 * t + r % 2 <= first + own + g + r / 2 * 8;
                const query_numbers &row = r < 2 ? low : high;
                const float p = exp2f(s[0][n].r[r] * (a.scale * LOG2_E) - row.lse);
                ds[0][n].r[r] = seen ? p * (factor.r[r] * ds[0][n].r[r] - row.delta) : 0;
            }
        }
        add_weighted_rows<D>(dq, ds, k_tile);
        __syncthreads(); /* the stage has been read */
    }
    copy_wait<0>();
    store_rows<D>(a.dqkv + a.offset(head, packed), packed, first + own, context, size, dq[0], a.scale, a.scale);
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

template <class T> constexpr bool has_tiles = std::is_same_v<T, bf16> || std::is_same_v<T, fp16>;

template <class T> bool tiles_serve(const attention<T> &a)
{
    return has_tiles<T> && a.size % 8 == 0 && a.size <= 128 && aligned(a.qkv) && aligned(a.dout) &&
           (!a.dropout.draws || a.context % 4 == 0);
}

/* The kernels for heads of up to D. */
template <class T, unsigned D, bool DROPS> struct tile_kernels {
    static constexpr unsigned MT = D > 64 || DROPS ? 1 : 2;
    using forward = forward_shape<D, MT>;

    static void prepare(struct cuda *cuda)
    {
        const auto allow = [&](auto kernel, size_t elements) {
            cuda_note(cuda,
                      cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(elements * sizeof(T))),
                      "attention");
        };
        allow(attend_tiles_kernel<T, D, MT, DROPS>, forward::ELEMENTS);
        allow(key_tiles_kernel<T, D, DROPS>, key_shape<D>::ELEMENTS);
        allow(query_tiles_kernel<T, D, DROPS>, query_shape<D, DROPS>::ELEMENTS);
    }

    static void run_forward(struct cuda *cuda, const attention<T> &a, size_t heads)
    {
        const size_t blocks = heads * ceiling<size_t>(a.context, forward::QUERIES);
        start(cuda, "attention_forward", attend_tiles_kernel<T, D, MT, DROPS>, static_cast<unsigned>(blocks),
              TILE_THREADS, forward::ELEMENTS * sizeof(T), a);
    }

    static void run_backward(struct cuda *cuda, const attention<T> &a, size_t heads)
    {
        const auto run = [&](auto kernel, size_t rows, size_t elements) {
            start(cuda, "attention_backward", kernel, static_cast<unsigned>(heads * ceiling(a.context, rows)),
                  TILE_THREADS, elements * sizeof(T), a);
        };
        run(key_tiles_kernel<T, D, DROPS>, key_shape<D>::KEYS, key_shape<D>::ELEMENTS);
        run(query_tiles_kernel<T, D, DROPS>, query_shape<D, DROPS>::QUERIES, query_shape<D, DROPS>::ELEMENTS);
    }
};

template <class T, class F> static void with_tiles(const attention<T> &a, F f)
{
    if (a.size <= 64) {
        if (a.dropout.draws)
            f(tile_kernels<T, 64, true>{});
        else
            f(tile_kernels<T, 64, false>{});
    } else {
        if (a.dropout.draws)
            f(tile_kernels<T, 128, true>{});
        else
            f(tile_kernels<T, 128, false>{});
    }
}

template <class T> void start_tiles_forward(struct cuda *cuda, const attention<T> &a, size_t heads)
{
    if constexpr (has_tiles<T>) with_tiles(a, [&](auto kernels) { kernels.run_forward(cuda, a, heads); });
}

template <class T> void start_tiles_backward(struct cuda *cuda, const attention<T> &a, size_t heads)
{
    if constexpr (has_tiles<T>) with_tiles(a, [&](auto kernels) { kernels.run_backward(cuda, a, heads); });
}

template <class T> void prepare_tiles(struct cuda *cuda)
{
    if constexpr (has_tiles<T>) {
        tile_kernels<T, 64, false>::prepare(cuda);
        tile_kernels<T, 64, true>::prepare(cuda);
        tile_kernels<T, 128, false>::prepare(cuda);
        tile_kernels<T, 128, true>::prepare(cuda);
    }
}

#define TILES_OF(T)                                                                     \
    template bool tiles_serve<T>(const attention<T> &);                                 \
    template void start_tiles_forward<T>(struct cuda *, const attention<T> &, size_t);  \
    template void start_tiles_backward<T>(struct cuda *, const attention<T> &, size_t); \
    template void prepare_tiles<T>(struct cuda *)
TILES_OF(float);
TILES_OF(bf16);
TILES_OF(fp16);
TILES_OF(double);

} // namespace gpu
