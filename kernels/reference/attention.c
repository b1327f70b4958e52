/*
 * Causal self-attention, one score at a time (Vaswani et al. 2017): s_ij = q_i·k_j/√D for j <= i, p_i = softmax(s_i),
 * o_i = Σ_j m_ij·p_ij·v_j, where m_ij is 0 or 1/(1−p) with dropout and 1 without. The backward uses
 * p_ij = exp(s_ij − lse_i) and, as FlashAttention does (Dao et al. 2022), Σ_j p_ij·dp_ij = do_i·o_i.
 */
#include <math.h>

#include "kernels/reference/reference.h"

/* One head of one sequence: row i of q, k, v, out … starts at i times its stride. */
struct head {
    const double *q, *k, *v;
    size_t stride; /* of qkv */
    size_t size;
    const struct dropout *dropout;
    uint64_t sequence;
    uint64_t first_element; /* of score (0, 0) */
    size_t context;
};

static struct head head_at(const double *qkv, const struct dropout *dropout, struct attention_shape shape, size_t b,
                           size_t h)
{
    const size_t width = shape.heads * shape.head_size;
    const double *q = qkv + b * shape.context * 3 * width + h * shape.head_size;
    const bool drops = dropout && dropout->p > 0;
    return (struct head){
        .q = q,
        .k = q + width,
        .v = q + 2 * width,
        .stride = 3 * width,
        .size = shape.head_size,
        .dropout = drops ? dropout : NULL,
        .sequence = drops ? dropout->sequence[b] : 0,
        .first_element = (uint64_t)h * shape.context * shape.context,
        .context = shape.context,
    };
}

static double dot(const double *a, const double *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static double score(const struct head *head, size_t i, size_t j)
{
    return dot(head->q + i * head->stride, head->k + j * head->stride, head->size) / sqrt((double)head->size);
}

/* m_ij */
static double kept(const struct head *head, size_t i, size_t j)
{
    if (!head->dropout) return 1;
    const struct dropout *dropout = head->dropout;
    const uint64_t element = head->first_element + i * head->context + j;
    return dropout_keeps(dropout->p, *dropout->key, dropout->site, head->sequence, element) ? 1 / (1 - dropout->p) : 0;
}

static double log_sum_exp(const struct head *head, size_t i)
{
    double largest = -HUGE_VAL, sum = 0;
    for (size_t j = 0; j <= i; j++) {
        const double s = score(head, i, j);
        if (s > largest) largest = s;
    }
    for (size_t j = 0; j <= i; j++) sum += exp(score(head, i, j) - largest);
    return largest + log(sum);
}

void reference_attention_forward(struct kernels *kernels, compute *out_, wide *lse_, const compute *qkv,
                                 const struct dropout *dropout, struct attention_shape shape)
{
    (void)kernels;
    double *out = out_, *lse = lse_;
    const size_t width = shape.heads * shape.head_size;
    for (size_t b = 0; b < shape.batch; b++) {
        for (size_t h = 0; h < shape.heads; h++) {
            const struct head head = head_at(qkv, dropout, shape, b, h);
            for (size_t i = 0; i < shape.context; i++) {
                double *o = out + (b * shape.context + i) * width + h * shape.head_size;
                const double lse_i = log_sum_exp(&head, i);
                lse[(b * shape.heads + h) * shape.context + i] = lse_i;
                for (size_t d = 0; d < shape.head_size; d++) o[d] = 0;
                for (size_t j = 0; j <= i; j++) {
                    const double p = exp(score(&head, i, j) - lse_i) * kept(&head, i, j);
                    for (size_t d = 0; d < shape.head_size; d++) o[d] += p * head.v[j * head.stride + d];
                }
            }
        }
    }
}

/* dv_j += m_ij·p_ij·do_i; ds_ij = p_ij·(m_ij·do_i·v_j − do_i·o_i); dq_i += ds_ij·k_j/√D; dk_j += ds_ij·q_i/√D */
static void backward_pair(const struct head *head, double *dq, const double *o, const double *doi, double lse_i,
                          size_t i, size_t j)
{
    const size_t width = head->stride / 3, row = head->stride;
    const double p = exp(score(head, i, j) - lse_i);
    const double m = kept(head, i, j);
    const double *q = head->q + i * row, *k = head->k + j * row, *v = head->v + j * row;
    const double ds = p * (m * dot(doi, v, head->size) - dot(doi, o, head->size)) / sqrt((double)head->size);
    for (size_t d = 0; d < head->size; d++) {
        dq[i * row + d] += ds * k[d];
        dq[j * row + width + d] += ds * q[d];
        dq[j * row + 2 * width + d] += m * p * doi[d];
    }
}

void reference_attention_backward(struct kernels *kernels, compute *dqkv_, const compute *dout_, const compute *out_,
                                  const wide *lse_, const compute *qkv, const struct dropout *dropout,
                                  struct attention_shape shape)
{
    (void)kernels;
    double *dqkv = dqkv_;
    const double *dout = dout_, *out = out_, *lse = lse_;
    const size_t width = shape.heads * shape.head_size;
    for (size_t i = 0; i < shape.batch * shape.context * 3 * width; i++) dqkv[i] = 0;
    for (size_t b = 0; b < shape.batch; b++) {
        for (size_t h = 0; h < shape.heads; h++) {
            const struct head head = head_at(qkv, dropout, shape, b, h);
            double *dq = dqkv + (head.q - (const double *)qkv);
            for (size_t i = 0; i < shape.context; i++) {
                const size_t at = (b * shape.context + i) * width + h * shape.head_size;
                const double lse_i = lse[(b * shape.heads + h) * shape.context + i];
                for (size_t j = 0; j <= i; j++) backward_pair(&head, dq, out + at, dout + at, lse_i, i, j);
            }
        }
    }
}
