/*
 * The arithmetic of training behind one header. A backend (cpu, reference; cuda in a module of its own) fills a
 * `struct kernels` for one compute type; everything above is written against this file alone.
 *
 * Two element types appear in the signatures:
 *   compute  what parameters, activations and activation gradients are stored in: the job's precision.compute
 *   wide     gradients, moments, master parameters, statistics, loss seeds: fp32, or fp64 when compute is fp64
 * Products take compute operands and accumulate in wide; statistics, softmax and losses are worked out in wide;
 * every result of type compute is rounded once, when it is stored (so fp16 overflows to infinity beyond 65504).
 *
 * Shapes are row-major. Every pointer given to a kernel is to the backend's own memory, from `allocate`, unless it says
 * host; the CPU's is ordinary memory. Buffers are the caller's and do not overlap unless a parameter says so. Calls run
 * in the order in which they are made; they may return before they have run (an accelerator's do), and what the host
 * reads comes through `download`, which waits. Kernels keep no state but scratch memory, so one `struct kernels` serves
 * one caller at a time; same inputs, shapes and thread count give the same bits. No kernel fails where it is called:
 * sizes are checked by the caller, and what goes wrong in a device is told by `wait` and `download`. A call of size 0
 * does nothing. A target or row of weight 0 is skipped, never multiplied.
 */
#ifndef GACC_KERNELS_H
#define GACC_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype { DTYPE_FP32, DTYPE_BF16, DTYPE_FP16, DTYPE_FP64 };

typedef void compute; /* an array of the compute type */
typedef void wide;    /* an array of the wide type */

size_t dtype_size(enum dtype type);
const char *dtype_name(enum dtype type);
static inline enum dtype dtype_wide(enum dtype compute_type)
{
    return compute_type == DTYPE_FP64 ? DTYPE_FP64 : DTYPE_FP32;
}

/* How a weight matrix is stored: GPT-2's Conv1D keeps [in, out], everything else (and the tied head) [out, in]. */
enum weight_layout { WEIGHT_IN_OUT, WEIGHT_OUT_IN };

enum activation { ACTIVATE_NONE, ACTIVATE_RELU, ACTIVATE_TANH, ACTIVATE_GELU, ACTIVATE_GELU_TANH };

/* y = activate(x·W + bias); x [rows, in], y [rows, out]. */
struct linear_shape {
    size_t rows, in, out;
    enum weight_layout layout;
    size_t
        stride; /* from row to row of y, pre and dy, ≥ out (the logits' rows are longer than the vocabulary); 0: out */
};

#define NORM_EPS 1e-5 /* added to every variance */

/* x [rows, positions, channels]: what GroupNorm and BatchNorm normalise. `groups` divides the channels (GroupNorm). */
struct norm_shape {
    size_t rows, positions, channels, groups;
};

/* Images, and the places of a window over them: (height + 2·padding − window_height)/stride + 1 below each other, as
 * many side by side by its width. x [rows, height, width, channels], or, channels_first, [rows, channels, height,
 * width]. */
struct image_shape {
    size_t rows, channels, height, width;
    size_t window_height, window_width, stride, padding;
    bool channels_first;
};
static inline size_t image_places_down(const struct image_shape *shape)
{
    return (shape->height + 2 * shape->padding - shape->window_height) / shape->stride + 1;
}
static inline size_t image_places_across(const struct image_shape *shape)
{
    return (shape->width + 2 * shape->padding - shape->window_width) / shape->stride + 1;
}

enum pooling { POOL_MAX, POOL_AVERAGE };

/* Causal self-attention of `batch` sequences: qkv [batch, context, 3·heads·head_size] as GPT-2 packs it (all q, all k,
 * all v; head h holds columns h·head_size …). head_size at most 2048. */
struct attention_shape {
    size_t batch, context, heads, head_size;
};

/* Which dropout bits: Philox4x32-10 (Salmon et al. 2011). The key is the attempt-th output of SplitMix64 started at
 * `seed`, mix(seed + attempt·0x9E3779B97F4A7C15), as {low, high} words; the counter is {element / 4, site, sequence
 * low, sequence high}; the word used is output element mod 4. An element is kept iff (word >> 8)·2^-24 >= p; kept
 * elements are multiplied by 1/(1−p). `element` counts inside the sequence's own part of the tensor (< 2^34), so the
 * bits do not depend on how the global batch was cut. p = 0: nothing is drawn, nothing changes. */
struct dropout {
    double p;
    uint32_t site;       /* one number per dropout layer of the model */
    const uint64_t *key; /* [1] dropout_key(seed, attempt), attempts counted from 1; in the backend's memory, so that
                            recorded work (`record`) serves every step */
    const uint64_t *sequence; /* [batch] index of each sequence in the data set */
};
uint64_t dropout_key(uint64_t seed, uint64_t attempt);

/* The definition above for one element: what every backend reproduces. */
bool dropout_keeps(double p, uint64_t key, uint32_t site, uint64_t sequence, uint64_t element);

enum optimizer_kind { OPTIMIZER_KIND_ADAMW, OPTIMIZER_KIND_SGD };

/* One fused pass over a run of a shard that shares these numbers. g = gradient·unscale, unscale = clip coefficient / S
 * formed in double by the caller.
 *   adamw (Loshchilov & Hutter 2019, algorithm 2): w −= lr·decay·w; m, v, bias-corrected by `t` applied steps (this one
 *         counted); w −= lr·m̂/(√v̂ + eps)
 *   sgd   as PyTorch: g += decay·w; m = momentum·m + g (m = g at the first applied step, t = 1); w −= lr·m (momentum 0:
 * lr·g, m unused) */
struct update {
    enum optimizer_kind kind;
    double lr, beta1, beta2, eps, momentum, weight_decay;
    double unscale;
    uint64_t t;
};

/* Sums over a shard, in fp64 and in a fixed order. All zero: nothing was added yet. */
struct gradient_check {
    uint64_t nonfinite;        /* 0: every element so far was finite */
    double sum_squares_scaled; /* Σ g² */
    double sum_squares; /* Σ (g·inverse_scale)²: formed per element, so that it is finite where Σ g² is not an fp32
                           number */
};

/* The network whose output's gradient by its inputs is penalised: layers y = activate(W·x + bias), the last one with
 * one output and without activation. W [out, in]; bias NULL: none; dweight, dbias NULL: nobody wants them. */
struct penalty_layer {
    const compute *weight, *bias;
    wide *dweight, *dbias;
    size_t in, out;
};
enum { PENALTY_LAYERS = 65 };
struct penalty {
    struct penalty_layer layers[PENALTY_LAYERS];
    size_t count;
    enum activation activation;
    double lambda;
};
/* Of each row: what it is on its way through the layers, and two numbers more. */
static inline size_t penalty_scratch(const struct penalty *penalty, size_t rows)
{
    size_t numbers = 2;
    for (size_t l = 0; l < penalty->count; l++) numbers += 2 * penalty->layers[l].in + 5 * penalty->layers[l].out;
    return rows * numbers;
}

struct kernels;
struct recording; /* the backend's own */

/* Why there is no such backend, or device, here. */
struct kernels_failure {
    char text[640];   /* one line */
    bool unavailable; /* the device is not to be had; else the host lacks memory */
};

struct kernels_options {
    enum dtype compute_type;
    int threads; /* for arithmetic, ≥ 1 */
};

/* Open a backend; NULL when out of memory. `kernels_close(NULL)` is allowed. */
struct kernels *kernels_open_cpu(const struct kernels_options *options);
struct kernels *kernels_open_reference(const struct kernels_options *options); /* compute_type must be DTYPE_FP64 */
void kernels_close(struct kernels *kernels);

struct kernel_table {
    const char *name;
    void (*close)(struct kernels *);

    /* --- memory ---------------------------------------------------------------------------------------------- */
    bool on_host; /* the backend's memory is ordinary memory: the host may read and write what it has waited for */
    /* Zeroed, aligned to 256 bytes. NULL: there is no more. release(NULL) is allowed. */
    void *(*allocate)(struct kernels *, size_t bytes);
    void (*release)(struct kernels *, void *memory);
    void (*clear)(struct kernels *, void *memory, size_t bytes);
    void (*copy)(struct kernels *, void *to, const void *from, size_t bytes); /* both the backend's */
    /* from host; it may be written again when this returns. Where memory is the host's, to == from does nothing. */
    void (*upload)(struct kernels *, void *to, const void *from, size_t bytes);
    /* to host; waits for it and for everything before it. Returns as wait does. */
    const char *(*download)(struct kernels *, void *to, const void *from, size_t bytes);
    /* Waits until everything asked for so far has run. NULL; a device that failed says why here, from then on, in a
     * text that is the backend's. */
    const char *(*wait)(struct kernels *);
    /* Bytes that are free for `allocate`, and in all; false where nobody knows. */
    bool (*memory_left)(struct kernels *, uint64_t *left, uint64_t *all);

    /* --- recorded work: NULL where it gains nothing ----------------------------------------------------------- */
    /* Between the two, calls are written down instead of run: kernels, clear and copy only. The same calls are then run
     * again by replay, with the same pointers and numbers; what changes from one to the next is in memory. NULL: could
     * not be recorded; nothing has run. */
    void (*record)(struct kernels *);
    struct recording *(*recorded)(struct kernels *);
    void (*replay)(struct kernels *, struct recording *);
    void (*recording_close)(struct kernels *, struct recording *);

    /* --- ranges for a profiler: NULL where there is none ------------------------------------------------------- */
    void (*range_begin)(struct kernels *, const char *name); /* ends the one before */
    void (*range_end)(struct kernels *);

    /* --- products ------------------------------------------------------------------------------------------- */
    /* y[rows,out] = activate(x·W + bias). bias may be NULL. When activation is not NONE and pre is not NULL,
     * pre[rows,out] = x·W + bias, rounded, is stored too and the activation is taken of the rounded value. */
    void (*linear_forward)(struct kernels *, compute *y, compute *pre, const compute *x, const compute *w,
                           const compute *bias, struct linear_shape shape, enum activation activation);
    /* dx[rows,in] = dy·Wᵀ, times activate'(pre) elementwise when activation is not NONE (pre [rows,in] is the
     * pre-activation of the layer below; NULL with NONE). With `activated` not NULL, activate(pre) is stored there once
     * more, the same bits as linear_forward's y, so that no caller need keep it; it may be pre. */
    void (*linear_backward_input)(struct kernels *, compute *dx, compute *activated, const compute *dy,
                                  const compute *w, const compute *pre, struct linear_shape shape,
                                  enum activation activation);
    /* dw += xᵀ·dy in W's layout, dbias += column sums of dy; both wide, never rounded to compute, and either NULL where
     * nobody wants it. */
    void (*linear_backward_weight)(struct kernels *, wide *dw, wide *dbias, const compute *dy, const compute *x,
                                   struct linear_shape shape);

    /* --- elementwise ---------------------------------------------------------------------------------------- */
    /* out = a + factor·b, rounded once; out may be a or b. a NULL: factor·b. */
    void (*add)(struct kernels *, compute *out, const compute *a, double factor, const compute *b, size_t n);
    /* y = activate(x); y may be x */
    void (*activation_forward)(struct kernels *, compute *y, const compute *x, enum activation activation, size_t n);
    /* dx = dy·activate'(x); dx may be dy */
    void (*activation_backward)(struct kernels *, compute *dx, const compute *dy, const compute *x,
                                enum activation activation, size_t n);
    /* out = keep ? x/(1−p) : 0, x [batch, elements]; the same call serves forward and backward. out may be x. */
    void (*dropout)(struct kernels *, compute *out, const compute *x, const struct dropout *dropout, size_t batch,
                    size_t elements);

    /* --- embedding: out[batch,context,width] = wte[token] + wpe[position] ------------------------------------- */
    void (*embedding_forward)(struct kernels *, compute *out, const int32_t *tokens, const compute *wte,
                              const compute *wpe, size_t batch, size_t context, size_t width);
    /* dwte, dwpe +=; either may be NULL. */
    void (*embedding_backward)(struct kernels *, wide *dwte, wide *dwpe, const compute *dout, const int32_t *tokens,
                               size_t batch, size_t context, size_t width);

    /* --- LayerNorm over the last dimension; bias may be NULL --------------------------------------------------- */
    /* With `residual` not NULL: sum[rows,width] = x + residual, rounded, and y is the norm of sum; else sum is not
     * written and y is the norm of x. mean, rstd: [rows]. */
    void (*layernorm_forward)(struct kernels *, compute *y, compute *sum, wide *mean, wide *rstd, const compute *x,
                              const compute *residual, const compute *weight, const compute *bias, size_t rows,
                              size_t width);
    /* dx = (dresidual or 0) + d/dx; x is what was normalised. dx may be dresidual. dweight, dbias +=; either may be
     * NULL. */
    void (*layernorm_backward)(struct kernels *, compute *dx, const compute *dresidual, wide *dweight, wide *dbias,
                               const compute *dy, const compute *x, const wide *mean, const wide *rstd,
                               const compute *weight, size_t rows, size_t width);

    /* --- GroupNorm: each group of a row's channels, over all positions; bias may be NULL ------------------------ */
    /* y as x; mean, rstd: [rows, groups]; weight, bias: [channels]. */
    void (*groupnorm_forward)(struct kernels *, compute *y, wide *mean, wide *rstd, const compute *x,
                              const compute *weight, const compute *bias, struct norm_shape shape);
    /* dx may be dy. dweight, dbias +=; either may be NULL. */
    void (*groupnorm_backward)(struct kernels *, compute *dx, wide *dweight, wide *dbias, const compute *dy,
                               const compute *x, const wide *mean, const wide *rstd, const compute *weight,
                               struct norm_shape shape);

    /* --- BatchNorm: each channel over the rows and positions of a set, of which these rows may be a part --------- */
    /* row_weight [rows]: rows of weight 0 are not there; NULL: all are. weight, bias, mean, rstd: [channels]; bias may
     * be NULL. */
    /* moments [2][channels]: mean, and Σ (x − mean)², of these rows; 0 when there are none. */
    void (*batchnorm_moments)(struct kernels *, double *moments, const compute *x, const double *row_weight,
                              struct norm_shape shape);
    /* The mean of a set and 1/√(variance + eps), from its moments over `count` values a channel; which join `all`
     * [2][channels], the moments of `before` values (Chan, Golub & LeVeque 1979), unless count is 0. */
    void (*batchnorm_settle)(struct kernels *, wide *mean, wide *rstd, double *all, double before,
                             const double *moments, double count, size_t channels);
    void (*batchnorm_forward)(struct kernels *, compute *y, const compute *x, const wide *mean, const wide *rstd,
                              const compute *weight, const compute *bias, struct norm_shape shape);
    /* sums [2][channels]: Σ dy, and Σ dy·(x − mean)·rstd, of these rows. dbias and dweight += them; either may be NULL.
     */
    void (*batchnorm_sums)(struct kernels *, double *sums, wide *dweight, wide *dbias, const compute *dy,
                           const compute *x, const wide *mean, const wide *rstd, const double *row_weight,
                           struct norm_shape shape);
    /* dx, 0 in rows of weight 0, and may be dy. sums: those of the whole set, which has `count` rows times positions;
     * NULL: mean and rstd do not depend on x. */
    void (*batchnorm_backward)(struct kernels *, compute *dx, const compute *dy, const compute *x, const wide *mean,
                               const wide *rstd, const compute *weight, const double *sums, double count,
                               const double *row_weight, struct norm_shape shape);

    /* --- images: what a convolution multiplies, and pooling ---------------------------------------------------- */
    /* out [rows, places down, places across, channels·window_height·window_width]: what is under the window, channel by
     * channel, line by line; 0 in the padding. */
    void (*patches_forward)(struct kernels *, compute *out, const compute *x, struct image_shape shape);
    /* dx: the sum over the windows that an element is under. */
    void (*patches_backward)(struct kernels *, compute *dx, const compute *dout, struct image_shape shape);
    /* y [rows, places down, places across, channels]; without padding, channels last. NaN is larger than any number. */
    void (*pool_forward)(struct kernels *, compute *y, const compute *x, enum pooling pooling,
                         struct image_shape shape);
    /* max: to the first of the largest. */
    void (*pool_backward)(struct kernels *, compute *dx, const compute *dy, const compute *x, enum pooling pooling,
                          struct image_shape shape);

    /* --- attention, by blocks, no context×context matrix in memory --------------------------------------------- */
    /* out [batch,context,heads·head_size]; lse [batch,heads,context] log-sum-exp of each score row (of the undropped
     * softmax); dropout on the probabilities: element = (head·context + query)·context + key. dropout may be NULL. */
    void (*attention_forward)(struct kernels *, compute *out, wide *lse, const compute *qkv,
                              const struct dropout *dropout, struct attention_shape shape);
    void (*attention_backward)(struct kernels *, compute *dqkv, const compute *dout, const compute *out,
                               const wide *lse, const compute *qkv, const struct dropout *dropout,
                               struct attention_shape shape);

    /* --- losses --------------------------------------------------------------------------------------------- */
    /* logits [rows, stride], of which the first `classes` columns count; target [rows] in 0…classes−1, or negative:
     * masked, as a row of weight 0 is. Each `repeat` rows, one after the other, share a weight and a seed: weight
     * [rows/repeat] double, seed [rows/repeat] wide. *loss_sum
     * += Σ weight·ℓ, in double and in a fixed order. With seed (S·averaging·weight) not NULL the logits are replaced by
     * their gradient (p − onehot)·seed, columns classes…stride−1 and rows of weight 0 by 0. A row one of whose logits
     * is not finite has a NaN loss and gradient: what overflowed is not taken for a probability of 0. */
    void (*cross_entropy)(struct kernels *, compute *logits, const int32_t *target, const double *weight,
                          const wide *seed, size_t rows, size_t repeat, size_t classes, size_t stride,
                          double *loss_sum);
    /* prediction, target [rows, outputs] (target double). ℓ = factor·Σ(ŷ−y)² per row (½: half_mse, 1/outputs: mse).
     * gradient [rows, outputs] = 2·factor·(ŷ−y)·seed when seed is not NULL; may be prediction. */
    void (*squared_error)(struct kernels *, compute *gradient, const compute *prediction, const double *target,
                          const double *weight, const wide *seed, double factor, size_t rows, size_t outputs,
                          double *loss_sum);

    /* *loss_sum += Σ weight·(x·w) over the rows of weight ≠ 0; x [rows, columns] and weight [rows] double, w [columns].
     */
    void (*linear_loss)(struct kernels *, const double *x, const double *weight, const compute *w, size_t rows,
                        size_t columns, double *loss_sum);

    /* --- a critic's --------------------------------------------------------------------------------------------- */
    /* ℓ = −y·ŷ; prediction, target, gradient [rows], otherwise as squared_error. */
    void (*critic_loss)(struct kernels *, compute *gradient, const compute *prediction, const double *target,
                        const double *weight, const wide *seed, size_t rows, double *loss_sum);
    /* ℓ = share·λ·(|∂ŷ/∂x| − 1)² of the rows whose weight and share are not 0; x [rows, inputs], weight, share [rows]
     * double. *loss_sum += Σ weight·ℓ; with seed (S·averaging·weight) not NULL the layers' gradients += that of Σ
     * seed·ℓ. In the wide type throughout. scratch: penalty_scratch(…, rows) numbers of it, aligned as
     * allocate does. */
    void (*gradient_penalty)(struct kernels *, const struct penalty *penalty, const double *x, const double *weight,
                             const double *share, const wide *seed, size_t rows, double *loss_sum, void *scratch);

    /* --- parameters, gradients, shards ----------------------------------------------------------------------- */
    /* out [rows, columns] = x rounded once from double; a row of weight 0 becomes zeros, whatever stands in it. */
    void (*cast_rows)(struct kernels *, compute *out, const double *x, const double *weight, size_t rows,
                      size_t columns);
    void (*cast)(struct kernels *, compute *out, const wide *in,
                 size_t n); /* rounds to nearest even; out may be in for equal types */
    void (*accumulate)(struct kernels *, wide *into, const compute *addend, size_t n); /* into += addend */
    void (*check)(struct kernels *, struct gradient_check *into, const wide *gradient, size_t n,
                  double inverse_scale); /* into += */
    /* m, v: [n], v NULL for sgd, m NULL for sgd without momentum */
    void (*update)(struct kernels *, wide *master, wide *m, wide *v, const wide *gradient, size_t n,
                   const struct update *update);
};

/* The head of every backend's own struct. */
struct kernels {
    const struct kernel_table *table;
    enum dtype compute_type;
    int threads;
};

#endif
