/*
 * Causal self-attention by blocks of queries and keys: the softmax is carried along the keys (online softmax, Milakov
 * and Gimelshein 2018), the backward recomputes the probabilities from lse (FlashAttention, Dao et al. 2022). No memory
 * grows with context². The formulas are those of reference/attention.c.
 */
#include <math.h>

#include "kernels/cpu/dropout.h"
#include "kernels/cpu/instance.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/vector_math.h"

#define BLOCK 64 /* queries, keys */
#define LANES 16

/* One head of one sequence. */
struct head {
    const element *q, *k, *v; /* rows of `packed` elements */
    size_t packed, width;     /* 3·heads·head_size, heads·head_size */
    size_t context, size;
    size_t block;
    real scale;                    /* 1/√size */
    const struct dropout *dropout; /* NULL: none */
    uint64_t sequence, first_element;
};

/* The thread's scratch memory, cut up. */
struct blocks {
    real *q, *k, *v, *dout, *out; /* [block,size] widened operands */
    real *scores, *dscores;       /* [block,block] */
    real *o, *dk, *dv;            /* [block,size] sums */
    real *dq;                     /* all that is left */
    size_t dq_rows;
};

static real *take(real **free, size_t count)
{
    real *taken = *free;
    *free += (count + LANES - 1) / LANES * LANES;
    return taken;
}

static struct blocks cut_scratch(real *scratch, const struct head *head)
{
    real *free = scratch;
    const size_t operand = head->block * head->size, square = head->block * head->block;
    struct blocks b = {.q = take(&free, operand), .k = take(&free, operand), .v = take(&free, operand)};
    b.dout = take(&free, operand);
    b.out = take(&free, operand);
    b.o = take(&free, operand);
    b.dk = take(&free, operand);
    b.dv = take(&free, operand);
    b.scores = take(&free, square);
    b.dscores = take(&free, square);
    b.dq = free;
    b.dq_rows = (CPU_SCRATCH_REALS - (size_t)(free - scratch)) / head->size;
    return b;
}

/* Nine operand blocks and two squares fit the scratch memory up to a head size of 4096. */
static size_t block_for(size_t head_size)
{
    return head_size <= 512 ? BLOCK : head_size <= 1024 ? BLOCK / 2 : BLOCK / 4;
}

static struct head head_at(const element *qkv, const struct dropout *dropout, struct attention_shape shape, size_t task)
{
    const size_t b = task / shape.heads, h = task % shape.heads;
    const size_t width = shape.heads * shape.head_size;
    const element *q = qkv + b * shape.context * 3 * width + h * shape.head_size;
    const bool draws = dropout_draws(dropout);
    return (struct head){
        .q = q,
        .k = q + width,
        .v = q + 2 * width,
        .packed = 3 * width,
        .width = width,
        .context = shape.context,
        .size = shape.head_size,
        .block = block_for(shape.head_size),
        .scale = (real)(1 / sqrt((double)shape.head_size)),
        .dropout = draws ? dropout : NULL,
        .sequence = draws ? dropout->sequence[b] : 0,
        .first_element = (uint64_t)h * shape.context * shape.context,
    };
}

/* NaN are left to the exponentials that follow. */
static real row_max(const real *x, size_t n)
{
    real lane[LANES];
    for (size_t l = 0; l < LANES; l++) lane[l] = (real)-INFINITY;
    for (size_t i = 0; i < n; i += LANES) {
        SIMD for (size_t l = 0; l < LANES; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    }
    real largest = lane[0];
    for (size_t l = 1; l < LANES; l++) largest = lane[l] > largest ? lane[l] : largest;
    return largest;
}

/* What a query has seen so far. */
struct online {
    real max, sum;
};

/* scores[n] → e^(s − max), dropped; beyond n, as far as the block goes, 0. Gives the factor that what was summed before
 * has to be multiplied by. */
static real softmax_row(const struct head *head, struct online *seen, real *scores, size_t n, size_t query, size_t key)
{
    const size_t padded = (n + LANES - 1) / LANES * LANES;
    for (size_t j = n; j < padded; j++) scores[j] = (real)-INFINITY;
    const real largest = row_max(scores, padded);
    const real max = largest > seen->max ? largest : seen->max;
    const real correction = exp_real(seen->max - max);
    real sum = 0;
    SIMD_SUM(sum) for (size_t j = 0; j < padded; j++)
    {
        scores[j] = exp_real(scores[j] - max);
        sum += scores[j];
    }
    seen->max = max;
    seen->sum = seen->sum * correction + sum;
    for (size_t j = padded; j < head->block; j++) scores[j] = 0;
    if (head->dropout) {
        real factor[BLOCK];
        dropout_factors(factor, head->dropout, head->sequence, head->first_element + query * head->context + key, n);
        SIMD for (size_t j = 0; j < n; j++) scores[j] *= factor[j];
    }
    return correction;
}

static void forward_block(const struct head *head, const struct blocks *b, struct online *seen, struct matrix q,
                          size_t query, size_t rows, size_t key, size_t keys)
{
    const struct matrix k = widen_panel(b->k, head->k + key * head->packed, head->packed, keys, head->size);
    const struct matrix v = widen_panel(b->v, head->v + key * head->packed, head->packed, keys, head->size);
    product(PRODUCT_NT, rows, keys, head->size, head->scale, q, k, 0, b->scores, head->block);
    for (size_t i = 0; i < rows; i++) {
        const size_t n = smaller(keys, query + i + 1 - key);
        const real correction = softmax_row(head, seen + i, b->scores + i * head->block, n, query + i, key);
        real *o = b->o + i * head->size;
        if (key > 0) SIMD for (size_t d = 0; d < head->size; d++) o[d] *= correction;
    }
    product(PRODUCT_NN, rows, head->size, keys, 1, (struct matrix){b->scores, head->block}, v, key > 0, b->o,
            head->size);
}

static void forward_head(const struct head *head, element *out, real *lse, real *scratch)
{
    const struct blocks b = cut_scratch(scratch, head);
    struct online seen[BLOCK];
    for (size_t query = 0; query < head->context; query += head->block) {
        const size_t rows = smaller(head->block, head->context - query), end = query + rows;
        const struct matrix q = widen_panel(b.q, head->q + query * head->packed, head->packed, rows, head->size);
        for (size_t i = 0; i < rows; i++) seen[i] = (struct online){(real)-INFINITY, 0};
        for (size_t key = 0; key < end; key += head->block)
            forward_block(head, &b, seen, q, query, rows, key, smaller(head->block, end - key));
        for (size_t i = 0; i < rows; i++) {
            real *o = b.o + i * head->size;
            const real inverse = 1 / seen[i].sum;
            SIMD for (size_t d = 0; d < head->size; d++) o[d] *= inverse;
            narrow(out + (query + i) * head->width, o, head->size);
            lse[query + i] = seen[i].max + (real)log((double)seen[i].sum);
        }
    }
}

static void forward_heads(element *out, real *lse, const element *qkv, const struct dropout *dropout,
                          struct attention_shape shape, real *scratch, size_t begin, size_t end)
{
    for (size_t task = begin; task < end; task++) {
        const struct head head = head_at(qkv, dropout, shape, task);
        const size_t b = task / shape.heads, h = task % shape.heads;
        forward_head(&head, out + b * shape.context * head.width + h * head.size, lse + task * shape.context, scratch);
    }
}

void cpu_attention_forward(struct kernels *kernels, compute *out, wide *lse, const compute *qkv,
                           const struct dropout *dropout, struct attention_shape shape)
{
    const size_t heads = shape.context > 0 && shape.head_size > 0 ? shape.batch * shape.heads : 0;
    CPU_PARALLEL(kernels, heads, 1,
                 forward_heads(out, lse, qkv, dropout, shape, cpu_scratch(kernels, thread), begin, end));
}

/* --- backward --------------------------------------------------------------------------------------------------- */

/* The head's gradients and what they are made from. */
struct gradients {
    element *dq, *dk, *dv; /* rows of head.packed elements */
    const element *dout, *out;
    const real *lse;
};

static real dot(const real *a, const real *b, size_t n)
{
    real sum = 0;
    SIMD_SUM(sum) for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* scores: s → m·p, dscores: dp → ds = p·(m·dp − do·o)/√D, for the first n keys; beyond, 0. */
static void backward_row(const struct head *head, real *scores, real *dscores, real lse, real mean, size_t n,
                         size_t query, size_t key)
{
    real factor[BLOCK];
    const real scale = head->scale;
    if (head->dropout) {
        dropout_factors(factor, head->dropout, head->sequence, head->first_element + query * head->context + key, n);
        SIMD for (size_t j = 0; j < n; j++)
        {
            const real p = exp_real(scores[j] - lse);
            scores[j] = p * factor[j];
            dscores[j] = p * (dscores[j] * factor[j] - mean) * scale;
        }
    } else {
        SIMD for (size_t j = 0; j < n; j++)
        {
            scores[j] = exp_real(scores[j] - lse);
            dscores[j] = scores[j] * (dscores[j] - mean) * scale;
        }
    }
    for (size_t j = n; j < head->block; j++) scores[j] = dscores[j] = 0;
}

/* Which sums a visit of a pair of blocks adds to. */
enum { SUM_KEYS = 1, SUM_QUERIES = 2 };

static void backward_block(const struct head *head, const struct gradients *g, const struct blocks *b, struct matrix k,
                           struct matrix v, size_t query, size_t key, size_t keys, int sums, real *dq)
{
    const size_t rows = smaller(head->block, head->context - query), size = head->size, block = head->block;
    const struct matrix q = widen_panel(b->q, head->q + query * head->packed, head->packed, rows, size);
    const struct matrix dout = widen_panel(b->dout, g->dout + query * head->width, head->width, rows, size);
    const struct matrix out = widen_panel(b->out, g->out + query * head->width, head->width, rows, size);
    product(PRODUCT_NT, rows, keys, size, head->scale, q, k, 0, b->scores, block);
    product(PRODUCT_NT, rows, keys, size, 1, dout, v, 0, b->dscores, block);
    for (size_t i = 0; i < rows; i++) {
        const size_t n = query + i + 1 > key ? smaller(keys, query + i + 1 - key) : 0;
        const real mean = dot(dout.at + i * dout.stride, out.at + i * out.stride, size);
        backward_row(head, b->scores + i * block, b->dscores + i * block, g->lse[query + i], mean, n, query + i, key);
    }
    const struct matrix p = {b->scores, block}, ds = {b->dscores, block};
    if (sums & SUM_KEYS) {
        const real beta = query > key ? 1 : 0;
        product(PRODUCT_TN, keys, size, rows, 1, p, dout, beta, b->dv, size);
        product(PRODUCT_TN, keys, size, rows, 1, ds, q, beta, b->dk, size);
    }
    if (sums & SUM_QUERIES) product(PRODUCT_NN, rows, size, keys, 1, ds, k, key > 0, dq, size);
}

static void store_rows(const struct head *head, element *out, const real *sums, size_t rows)
{
    for (size_t i = 0; i < rows; i++) narrow(out + i * head->packed, sums + i * head->size, head->size);
}

/* Key block by key block; a pair's work also goes into the gradient of its queries when those of all queries fit. */
static void backward_keys(const struct head *head, const struct gradients *g, const struct blocks *b, int sums)
{
    for (size_t key = 0; key < head->context; key += head->block) {
        const size_t keys = smaller(head->block, head->context - key);
        const struct matrix k = widen_panel(b->k, head->k + key * head->packed, head->packed, keys, head->size);
        const struct matrix v = widen_panel(b->v, head->v + key * head->packed, head->packed, keys, head->size);
        for (size_t query = key; query < head->context; query += head->block)
            backward_block(head, g, b, k, v, query, key, keys, sums, b->dq + query * head->size);
        store_rows(head, g->dk + key * head->packed, b->dk, keys);
        store_rows(head, g->dv + key * head->packed, b->dv, keys);
    }
}

/* For a context so long that they do not fit: once more, query block by query block. */
static void backward_queries(const struct head *head, const struct gradients *g, const struct blocks *b)
{
    for (size_t query = 0; query < head->context; query += head->block) {
        const size_t rows = smaller(head->block, head->context - query);
        for (size_t key = 0; key < query + rows; key += head->block) {
            const size_t keys = smaller(head->block, head->context - key);
            const struct matrix k = widen_panel(b->k, head->k + key * head->packed, head->packed, keys, head->size);
            const struct matrix v = widen_panel(b->v, head->v + key * head->packed, head->packed, keys, head->size);
            backward_block(head, g, b, k, v, query, key, keys, SUM_QUERIES, b->dq);
        }
        store_rows(head, g->dq + query * head->packed, b->dq, rows);
    }
}

static void backward_heads(element *dqkv, const element *dout, const element *out, const real *lse, const element *qkv,
                           const struct dropout *dropout, struct attention_shape shape, real *scratch, size_t dq_limit,
                           size_t begin, size_t end)
{
    for (size_t task = begin; task < end; task++) {
        const struct head head = head_at(qkv, dropout, shape, task);
        const struct blocks b = cut_scratch(scratch, &head);
        const size_t first = task / shape.heads * shape.context * head.width + task % shape.heads * head.size;
        element *dq = dqkv + (head.q - qkv);
        const struct gradients g = {
            .dq = dq,
            .dk = dq + head.width,
            .dv = dq + 2 * head.width,
            .dout = dout + first,
            .out = out + first,
            .lse = lse + task * shape.context,
        };
        if (head.context <= smaller(b.dq_rows, dq_limit)) {
            backward_keys(&head, &g, &b, SUM_KEYS | SUM_QUERIES);
            store_rows(&head, g.dq, b.dq, head.context);
        } else {
            backward_keys(&head, &g, &b, SUM_KEYS);
            backward_queries(&head, &g, &b);
        }
    }
}

void cpu_attention_backward(struct kernels *kernels, compute *dqkv, const compute *dout, const compute *out,
                            const wide *lse, const compute *qkv, const struct dropout *dropout,
                            struct attention_shape shape)
{
    const size_t heads = shape.context > 0 && shape.head_size > 0 ? shape.batch * shape.heads : 0;
    const size_t dq_limit = ((struct cpu *)kernels)->attention_rows;
    CPU_PARALLEL(
        kernels, heads, 1,
        backward_heads(dqkv, dout, out, lse, qkv, dropout, shape, cpu_scratch(kernels, thread), dq_limit, begin, end));
}
