/*
 * Causal self-attention by blocks of queries and keys: the softmax is carried along the keys (online softmax, Milakov
 * and Gimelshein 2018), the backward recomputes the probabilities from lse (FlashAttention, Dao et al. 2022). No memory
 * grows with context². The formulas are those of reference/attention.c.
 *
 * Scores stand transposed, [keys,queries]: what belongs to a query is a column, so that its maximum, its sum and all
 * else are worked out for many queries at once, without sums across a vector. Only products of the orders NN and TN are
 * needed, the fast ones for blocks of this size.
 */
#include <math.h>

#include "kernels/cpu/dropout.h"
#include "kernels/cpu/instance.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/vector_math.h"

#define QUERIES 64 /* of a block, and the stride of its scores */
#define KEYS 32
#define LANES 16

struct ahead;

/* One head of one sequence. */
struct head {
    const element *q, *k, *v; /* rows of `packed` elements */
    size_t packed, width;     /* 3·heads·head_size, heads·head_size */
    size_t context, size;
    real scale;                    /* 1/√size */
    const struct dropout *dropout; /* NULL: none */
    uint64_t sequence, first_element;
    const struct ahead *ahead;
};

/* A call: each head of each sequence is a task. */
struct attention {
    element *out; /* forward */
    real *lse_out;
    element *dqkv; /* backward */
    const element *dout, *result;
    const real *lse;
    const element *qkv;
    const struct dropout *dropout;
    struct attention_shape shape;
    size_t rows_limit; /* see struct cpu */
};

/* The rows of the next task: short pieces far apart, which the processor does not fetch of its own accord. */
struct ahead {
    struct {
        const element *rows;
        size_t stride;
        bool written;
    } arrays[8];
    size_t count;
};

/* What is wanted of a block of queries: rows as real, and transposed for the scores. */
struct query_block {
    size_t first, rows;
    struct matrix q, dout;        /* [rows,size] */
    real *q_columns, *do_columns; /* [size,QUERIES]; q times 1/√size */
    real max[QUERIES], sum[QUERIES], correction[QUERIES];
    real lse[QUERIES], mean[QUERIES]; /* backward: mean = do·o */
    real *total;                      /* [rows,size]: o, or dq */
};

/* The thread's scratch memory, cut up. */
struct blocks {
    real *q, *q_columns, *dout, *do_columns, *out, *total; /* [QUERIES,size] */
    real *k, *v;                                           /* [KEYS,size] */
    real *scores, *dscores, *factors;                      /* [KEYS,QUERIES] */
    real *sums;                                            /* all that is left, for dk and dv */
    size_t rows;                                           /* of each */
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
    struct blocks b = {0};
    real **const operands[] = {&b.q, &b.q_columns, &b.dout, &b.do_columns, &b.out, &b.total};
    for (size_t i = 0; i < sizeof operands / sizeof *operands; i++) *operands[i] = take(&free, QUERIES * head->size);
    b.k = take(&free, KEYS * head->size);
    b.v = take(&free, KEYS * head->size);
    b.scores = take(&free, KEYS * QUERIES);
    b.dscores = take(&free, KEYS * QUERIES);
    b.factors = take(&free, KEYS * QUERIES);
    b.sums = free;
    b.rows = (CPU_SCRATCH_REALS - (size_t)(free - scratch)) / (2 * head->size);
    return b;
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
        .scale = (real)(1 / sqrt((double)shape.head_size)),
        .dropout = draws ? dropout : NULL,
        .sequence = draws ? dropout->sequence[b] : 0,
        .first_element = (uint64_t)h * shape.context * shape.context,
    };
}

/* --- a block of scores ------------------------------------------------------------------------------------------- */

/* Keys key … key+keys−1 by the queries of a block from column `column` on: those before see none of the keys. */
struct pair {
    size_t key, keys, column, columns;
};

static struct pair pair_at(const struct head *head, const struct query_block *q, size_t key)
{
    const size_t keys = smaller(KEYS, head->context - key);
    return (struct pair){key, keys, key > q->first ? key - q->first : 0, q->rows};
}

/* The first column that sees key j of the pair. */
static size_t first_seeing(const struct query_block *q, const struct pair *p, size_t j)
{
    const size_t key = p->key + j;
    return key > q->first ? smaller(key - q->first, p->columns) : 0;
}

static size_t lane_of(size_t column)
{
    return column / LANES * LANES;
}

static size_t padded(size_t columns)
{
    return lane_of(columns + LANES - 1);
}

/* scores[keys,columns] = a·b for rows `a` of the pair's keys and columns `b` of the block's queries. */
static void score_product(const struct head *head, const struct pair *p, struct matrix a, const real *b, real *scores)
{
    const struct matrix columns = {b + p->column, QUERIES};
    product(PRODUCT_NN, p->keys, p->columns - p->column, head->size, 1, a, columns, 0, scores + p->column, QUERIES);
}

/* Dropout factors as the scores stand; they are drawn along the keys. */
static void draw_factors(const struct head *head, const struct query_block *q, const struct pair *p, real *factors)
{
    real drawn[QUERIES * KEYS];
    for (size_t i = p->column; i < p->columns; i++) {
        const uint64_t first = head->first_element + (q->first + i) * head->context + p->key;
        dropout_factors(drawn + (i - p->column) * KEYS, head->dropout, head->sequence, first, p->keys);
    }
    transpose(factors + p->column, QUERIES, (struct matrix){drawn, KEYS}, p->columns - p->column, p->keys, 1);
}

/* While the last block of queries meets key j of the pair, fetch the rows of that number of the next task. */
static void fetch_ahead(const struct head *head, const struct query_block *q, const struct pair *p, size_t j)
{
    if (q->first + q->rows < head->context) return;
    for (size_t a = 0; a < head->ahead->count; a++) {
        const element *row = head->ahead->arrays[a].rows + (p->key + j) * head->ahead->arrays[a].stride;
        for (size_t d = 0; d < head->size; d += 64 / sizeof *row) {
            if (head->ahead->arrays[a].written)
                __builtin_prefetch(row + d, 1, 2);
            else
                __builtin_prefetch(row + d, 0, 2);
        }
    }
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* Maxima with this pair's keys, and what sums so far have to be multiplied by. NaN are left to the exponentials. */
static void carry_max(struct query_block *q, const struct pair *p, real *scores)
{
    const size_t begin = lane_of(p->column), end = padded(p->columns);
    real max[QUERIES];
    memcpy(max, q->max, sizeof max);
    for (size_t j = 0; j < p->keys; j++) {
        const size_t seeing = first_seeing(q, p, j);
        real *row = scores + j * QUERIES;
        for (size_t i = lane_of(seeing); i < seeing; i++) row[i] = (real)-INFINITY;
        SIMD for (size_t i = lane_of(seeing); i < end; i++) max[i] = row[i] > max[i] ? row[i] : max[i];
    }
    MATH_LOOP for (size_t i = begin; i < end; i++)
    {
        q->correction[i] = exp_real(q->max[i] - max[i]);
        q->sum[i] *= q->correction[i];
        q->max[i] = max[i];
    }
}

/* scores → e^(s − max), 0 where a query does not see the key, summed and then dropped. */
static void exponentials(const struct head *head, struct query_block *q, const struct pair *p, real *scores,
                         real *factors)
{
    const size_t end = padded(p->columns);
    for (size_t j = 0; j < p->keys; j++) {
        const size_t begin = lane_of(first_seeing(q, p, j));
        fetch_ahead(head, q, p, j);
        real *row = scores + j * QUERIES;
        for (size_t i = p->column; i < begin; i++) row[i] = 0;
        MATH_LOOP for (size_t i = begin; i < end; i++)
        {
            row[i] = exp_real(row[i] - q->max[i]);
            q->sum[i] += row[i];
        }
    }
    if (!head->dropout) return;
    draw_factors(head, q, p, factors);
    for (size_t j = 0; j < p->keys; j++) {
        SIMD for (size_t i = p->column; i < p->columns; i++) scores[j * QUERIES + i] *= factors[j * QUERIES + i];
    }
}

static void forward_pair(const struct head *head, const struct blocks *b, struct query_block *q, const struct pair *p)
{
    const struct matrix k = pack_panel(b->k, head->k + p->key * head->packed, head->packed, p->keys, head->size);
    const struct matrix v = pack_panel(b->v, head->v + p->key * head->packed, head->packed, p->keys, head->size);
    score_product(head, p, k, q->q_columns, b->scores);
    carry_max(q, p, b->scores);
    exponentials(head, q, p, b->scores, b->factors);
    for (size_t i = p->column; i < p->columns && p->key > 0; i++) {
        real *o = q->total + i * head->size;
        SIMD for (size_t d = 0; d < head->size; d++) o[d] *= q->correction[i];
    }
    const struct matrix probabilities = {b->scores + p->column, QUERIES};
    product(PRODUCT_TN, p->columns - p->column, head->size, p->keys, 1, probabilities, v, p->key > 0,
            q->total + p->column * head->size, head->size);
}

static void open_queries(const struct head *head, const struct blocks *b, struct query_block *q, size_t first)
{
    q->first = first;
    q->rows = smaller(QUERIES, head->context - first);
    q->q = pack_panel(b->q, head->q + first * head->packed, head->packed, q->rows, head->size);
    q->q_columns = b->q_columns;
    q->total = b->total;
    transpose(q->q_columns, QUERIES, q->q, q->rows, head->size, head->scale);
}

static void forward_head(const struct head *head, element *out, real *lse, real *scratch)
{
    const struct blocks b = cut_scratch(scratch, head);
    struct query_block q;
    for (size_t first = 0; first < head->context; first += QUERIES) {
        open_queries(head, &b, &q, first);
        for (size_t i = 0; i < QUERIES; i++) q.max[i] = (real)-INFINITY, q.sum[i] = 0;
        for (size_t key = 0; key < first + q.rows; key += KEYS) {
            const struct pair p = pair_at(head, &q, key);
            forward_pair(head, &b, &q, &p);
        }
        for (size_t i = 0; i < q.rows; i++) {
            real *o = q.total + i * head->size;
            const real inverse = 1 / q.sum[i];
            SIMD for (size_t d = 0; d < head->size; d++) o[d] *= inverse;
            narrow(out + (first + i) * head->width, o, head->size);
            lse[first + i] = q.max[i] + (real)log((double)q.sum[i]);
        }
    }
}

static size_t task_count(struct attention_shape shape)
{
    return shape.context > 0 && shape.head_size > 0 ? shape.batch * shape.heads : 0;
}

/* Where a task's first row is in an array [batch,context,width]. */
static size_t task_offset(const struct head *head, struct attention_shape shape, size_t task)
{
    return task / shape.heads * shape.context * head->width + task % shape.heads * head->size;
}

static struct ahead forward_ahead(const struct attention *a, size_t task)
{
    const struct head next = head_at(a->qkv, a->dropout, a->shape, task);
    return (struct ahead){
        .arrays = {{next.q, next.packed, false},
                   {next.k, next.packed, false},
                   {next.v, next.packed, false},
                   {a->out + task_offset(&next, a->shape, task), next.width, true}},
        .count = 4,
    };
}

static void forward_heads(const void *arguments, struct cpu_share share)
{
    const struct attention *a = arguments;
    for (size_t task = share.begin; task < share.end; task++) {
        struct head head = head_at(a->qkv, a->dropout, a->shape, task);
        const struct ahead ahead = task + 1 < share.end ? forward_ahead(a, task + 1) : (struct ahead){.count = 0};
        head.ahead = &ahead;
        forward_head(&head, a->out + task_offset(&head, a->shape, task), a->lse_out + task * a->shape.context,
                     share.scratch);
    }
}

void cpu_attention_forward(struct kernels *kernels, compute *out, wide *lse, const compute *qkv,
                           const struct dropout *dropout, struct attention_shape shape)
{
    const struct attention a = {.out = out, .lse_out = lse, .qkv = qkv, .dropout = dropout, .shape = shape};
    cpu_spread(kernels, forward_heads, &a, task_count(shape), 1);
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

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

static void open_backward(const struct head *head, const struct gradients *g, const struct blocks *b,
                          struct query_block *q, size_t first)
{
    open_queries(head, b, q, first);
    q->do_columns = b->do_columns;
    q->dout = pack_panel(b->dout, g->dout + first * head->width, head->width, q->rows, head->size);
    transpose(q->do_columns, QUERIES, q->dout, q->rows, head->size, 1);
    const struct matrix out = pack_panel(b->out, g->out + first * head->width, head->width, q->rows, head->size);
    for (size_t i = 0; i < q->rows; i++) {
        q->mean[i] = dot(q->dout.at + i * q->dout.stride, out.at + i * out.stride, head->size);
        q->lse[i] = g->lse[first + i];
    }
    for (size_t i = q->rows; i < QUERIES; i++) q->mean[i] = q->lse[i] = 0;
}

/* scores: s → m·p; dscores: dp → ds·√D = p·(m·dp − do·o). */
static void score_gradients(const struct head *head, const struct query_block *q, const struct pair *p, real *scores,
                            real *dscores, real *factors)
{
    const size_t end = padded(p->columns);
    if (head->dropout) draw_factors(head, q, p, factors);
    for (size_t j = 0; j < p->keys; j++) {
        const size_t seeing = first_seeing(q, p, j);
        real *row = scores + j * QUERIES, *drow = dscores + j * QUERIES;
        fetch_ahead(head, q, p, j);
        if (head->dropout) {
            const real *factor = factors + j * QUERIES;
            MATH_LOOP for (size_t i = lane_of(seeing); i < end; i++)
            {
                const real probability = exp_real(row[i] - q->lse[i]);
                row[i] = probability * factor[i];
                drow[i] = probability * (drow[i] * factor[i] - q->mean[i]);
            }
        } else {
            MATH_LOOP for (size_t i = lane_of(seeing); i < end; i++)
            {
                row[i] = exp_real(row[i] - q->lse[i]);
                drow[i] = row[i] * (drow[i] - q->mean[i]);
            }
        }
        for (size_t i = p->column; i < seeing; i++) row[i] = drow[i] = 0;
    }
}

/* Adds a pair's part to dk and dv [keys,size] (the first of a key's pairs: stores it), and to the queries' dq; each
 * where it is not NULL. */
static void backward_pair(const struct head *head, const struct blocks *b, const struct query_block *q,
                          const struct pair *p, real *dk, real *dv, real *dq)
{
    const size_t size = head->size, columns = p->columns - p->column;
    const struct matrix k = pack_panel(b->k, head->k + p->key * head->packed, head->packed, p->keys, size);
    const struct matrix v = pack_panel(b->v, head->v + p->key * head->packed, head->packed, p->keys, size);
    score_product(head, p, k, q->q_columns, b->scores);
    score_product(head, p, v, q->do_columns, b->dscores);
    score_gradients(head, q, p, b->scores, b->dscores, b->factors);
    const struct matrix probabilities = {b->scores + p->column, QUERIES}, ds = {b->dscores + p->column, QUERIES};
    if (dk) {
        const bool adds = p->key < q->first;
        const struct matrix dout = {q->dout.at + p->column * q->dout.stride, q->dout.stride};
        const struct matrix rows = {q->q.at + p->column * q->q.stride, q->q.stride};
        product(PRODUCT_NN, p->keys, size, columns, 1, probabilities, dout, adds, dv, size);
        product(PRODUCT_NN, p->keys, size, columns, head->scale, ds, rows, adds, dk, size);
    }
    if (dq) product(PRODUCT_TN, columns, size, p->keys, head->scale, ds, k, p->key > 0, dq + p->column * size, size);
}

static void store_rows(const struct head *head, element *out, const real *sums, size_t rows)
{
    for (size_t i = 0; i < rows; i++) narrow(out + i * head->packed, sums + i * head->size, head->size);
}

/* Query block by query block; a pair's work also goes into the gradients of its keys when those of all keys fit. */
static void backward_queries(const struct head *head, const struct gradients *g, const struct blocks *b, bool keys_fit)
{
    struct query_block q;
    real *dk = b->sums, *dv = b->sums + head->context * head->size;
    for (size_t first = 0; first < head->context; first += QUERIES) {
        open_backward(head, g, b, &q, first);
        for (size_t key = 0; key < first + q.rows; key += KEYS) {
            const struct pair p = pair_at(head, &q, key);
            const size_t at = key * head->size;
            backward_pair(head, b, &q, &p, keys_fit ? dk + at : NULL, keys_fit ? dv + at : NULL, q.total);
        }
        store_rows(head, g->dq + first * head->packed, q.total, q.rows);
    }
    if (!keys_fit) return;
    store_rows(head, g->dk, dk, head->context);
    store_rows(head, g->dv, dv, head->context);
}

/* For a context so long that they do not fit: once more, key block by key block. */
static void backward_keys(const struct head *head, const struct gradients *g, const struct blocks *b)
{
    struct query_block q;
    real *dk = b->sums, *dv = b->sums + KEYS * head->size;
    for (size_t key = 0; key < head->context; key += KEYS) {
        const size_t keys = smaller(KEYS, head->context - key);
        for (size_t first = key / QUERIES * QUERIES; first < head->context; first += QUERIES) {
            open_backward(head, g, b, &q, first);
            const struct pair p = pair_at(head, &q, key);
            backward_pair(head, b, &q, &p, dk, dv, NULL);
        }
        store_rows(head, g->dk + key * head->packed, dk, keys);
        store_rows(head, g->dv + key * head->packed, dv, keys);
    }
}

static struct gradients gradients_at(const struct attention *a, const struct head *head, size_t task)
{
    const size_t offset = task_offset(head, a->shape, task);
    element *dq = a->dqkv + (head->q - a->qkv);
    return (struct gradients){
        .dq = dq,
        .dk = dq + head->width,
        .dv = dq + 2 * head->width,
        .dout = a->dout + offset,
        .out = a->result + offset,
        .lse = a->lse + task * a->shape.context,
    };
}

static struct ahead backward_ahead(const struct attention *a, size_t task)
{
    const struct head next = head_at(a->qkv, a->dropout, a->shape, task);
    const struct gradients g = gradients_at(a, &next, task);
    return (struct ahead){
        .arrays = {{next.q, next.packed, false},
                   {next.k, next.packed, false},
                   {next.v, next.packed, false},
                   {g.dout, next.width, false},
                   {g.out, next.width, false},
                   {g.dq, next.packed, true},
                   {g.dk, next.packed, true},
                   {g.dv, next.packed, true}},
        .count = 8,
    };
}

static void backward_heads(const void *arguments, struct cpu_share share)
{
    const struct attention *a = arguments;
    for (size_t task = share.begin; task < share.end; task++) {
        struct head head = head_at(a->qkv, a->dropout, a->shape, task);
        const struct ahead ahead = task + 1 < share.end ? backward_ahead(a, task + 1) : (struct ahead){.count = 0};
        head.ahead = &ahead;
        const struct blocks b = cut_scratch(share.scratch, &head);
        const struct gradients g = gradients_at(a, &head, task);
        const bool keys_fit = head.context <= smaller(b.rows, a->rows_limit);
        backward_queries(&head, &g, &b, keys_fit);
        if (!keys_fit) backward_keys(&head, &g, &b);
    }
}

void cpu_attention_backward(struct kernels *kernels, compute *dqkv, const compute *dout, const compute *out,
                            const wide *lse, const compute *qkv, const struct dropout *dropout,
                            struct attention_shape shape)
{
    const struct attention a = {
        .dqkv = dqkv,
        .dout = dout,
        .result = out,
        .lse = lse,
        .qkv = qkv,
        .dropout = dropout,
        .shape = shape,
        .rows_limit = ((struct cpu *)kernels)->attention_rows,
    };
    cpu_spread(kernels, backward_heads, &a, task_count(shape), 1);
}
