/*
 * A backend whose memory is not the host's, called with the host's arrays: each call finds copies of exactly the sizes
 * that its header gives, and what it may have written is brought back. So one set of tests serves every backend. Arrays
 * that are the same for the host are the same for the backend. Between arrays lie guards, which no call may touch.
 *
 * `shift` elements before each array put it out of the alignment that allocate() gives.
 */
#ifndef GACC_TESTS_KERNELS_MIRROR_H
#define GACC_TESTS_KERNELS_MIRROR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "proto/error.h"

#define MIRROR_BYTES ((size_t)16 << 20) /* of all arrays of a call */
#define MIRROR_GUARD 256                /* bytes, at least, before and after each */
#define MIRROR_FILL 0xA5

struct mirrored {
    const void *host;
    size_t at, bytes; /* in the memory */
    void *written;    /* the host's, when the call may write it */
};

struct mirror {
    struct kernels head;
    struct kernels *backend;
    size_t shift;
    char *memory;         /* the backend's, [MIRROR_BYTES] */
    unsigned char *image; /* what is to be there, and was */
    size_t used;
    struct mirrored arrays[32];
    size_t count;
};

/* Of all that calls have given so far (FNV-1a). */
static uint64_t mirror_digest = 0xcbf29ce484222325;

static inline struct mirror *mirror_of(struct kernels *kernels)
{
    return (struct mirror *)kernels;
}

/* [n] elements of the host's, in the backend's memory. */
static inline struct mirrored *mirror_take(struct mirror *mirror, const void *host, size_t n, size_t element)
{
    const size_t bytes = n * element, at = mirror->used + MIRROR_GUARD + mirror->shift * element;
    for (size_t i = 0; i < mirror->count; i++) {
        if (mirror->arrays[i].host != host) continue;
        assert_int_equal(mirror->arrays[i].bytes, bytes);
        return &mirror->arrays[i];
    }
    const size_t end = (at + bytes + MIRROR_GUARD + 255) / 256 * 256; /* allocate()'s alignment */
    assert_true(end <= MIRROR_BYTES);
    assert_true(mirror->count < sizeof mirror->arrays / sizeof *mirror->arrays);
    memset(mirror->image + mirror->used, MIRROR_FILL, end - mirror->used);
    memcpy(mirror->image + at, host, bytes);
    mirror->backend->table->upload(mirror->backend, mirror->memory + mirror->used, mirror->image + mirror->used,
                                   end - mirror->used);
    mirror->used = end;
    struct mirrored *array = &mirror->arrays[mirror->count++];
    *array = (struct mirrored){host, at, bytes, NULL};
    return array;
}

/* [n] that the call reads. */
static inline const void *mirror_in(struct mirror *mirror, const void *host, size_t n, size_t element)
{
    return host ? mirror->memory + mirror_take(mirror, host, n, element)->at : NULL;
}

/* [n] that the call may write. */
static inline void *mirror_out(struct mirror *mirror, void *host, size_t n, size_t element)
{
    if (!host) return NULL;
    struct mirrored *array = mirror_take(mirror, host, n, element);
    array->written = host;
    return mirror->memory + array->at;
}

static inline void mirror_back(struct mirror *mirror)
{
    unsigned char *image = mirror->image;
    const unsigned char *before = memcpy(malloc(mirror->used + 1), image, mirror->used);
    const char *failure = mirror->backend->table->download(mirror->backend, image, mirror->memory, mirror->used);
    if (failure) fail_msg("%s", failure);
    for (size_t i = 0; i < mirror->count; i++) {
        const struct mirrored *array = &mirror->arrays[i];
        if (!array->written) continue;
        memcpy(array->written, image + array->at, array->bytes);
        for (size_t b = 0; b < array->bytes; b++)
            mirror_digest = (mirror_digest ^ image[array->at + b]) * 0x100000001b3;
        memcpy(image + array->at, before + array->at, array->bytes);
    }
    assert_memory_equal(image, before, mirror->used); /* guards, and what the call only reads */
    free((void *)(uintptr_t)before);
    mirror->used = mirror->count = 0;
}

/* What a call's wrapper needs: the backend's table, the sizes of its elements, and in and out for arrays of them. */
#define MIRROR(kernels)                                                          \
    struct mirror *const mirror = mirror_of(kernels);                            \
    struct kernels *const backend = mirror->backend;                             \
    const struct kernel_table *const table = backend->table;                     \
    const size_t element = dtype_size((kernels)->compute_type);                  \
    const size_t wide_element = dtype_size(dtype_wide((kernels)->compute_type)); \
    (void)element, (void)wide_element
#define IN(array, n) mirror_in(mirror, array, n, element)
#define OUT(array, n) mirror_out(mirror, array, n, element)
#define WIDE_IN(array, n) mirror_in(mirror, array, n, wide_element)
#define WIDE_OUT(array, n) mirror_out(mirror, array, n, wide_element)
#define OF_IN(array, n) mirror_in(mirror, array, n, sizeof *(array))
#define OF_OUT(array, n) mirror_out(mirror, array, n, sizeof *(array))

static inline size_t mirror_columns(struct linear_shape s)
{
    return s.stride ? s.stride : s.out;
}

static inline void mirror_linear_forward(struct kernels *kernels, compute *y, compute *pre, const compute *x,
                                         const compute *w, const compute *bias, struct linear_shape s,
                                         enum activation activation)
{
    MIRROR(kernels);
    table->linear_forward(backend, OUT(y, s.rows * mirror_columns(s)), OUT(pre, s.rows * mirror_columns(s)),
                          IN(x, s.rows * s.in), IN(w, s.in * s.out), IN(bias, s.out), s, activation);
    mirror_back(mirror);
}

static inline void mirror_linear_backward_input(struct kernels *kernels, compute *dx, compute *activated,
                                                const compute *dy, const compute *w, const compute *pre,
                                                struct linear_shape s, enum activation activation)
{
    MIRROR(kernels);
    table->linear_backward_input(backend, OUT(dx, s.rows * s.in), OUT(activated, s.rows * s.in),
                                 IN(dy, s.rows * mirror_columns(s)), IN(w, s.in * s.out), IN(pre, s.rows * s.in), s,
                                 activation);
    mirror_back(mirror);
}

static inline void mirror_linear_backward_weight(struct kernels *kernels, wide *dw, wide *dbias, const compute *dy,
                                                 const compute *x, struct linear_shape s)
{
    MIRROR(kernels);
    table->linear_backward_weight(backend, WIDE_OUT(dw, s.in * s.out), WIDE_OUT(dbias, s.out),
                                  IN(dy, s.rows * mirror_columns(s)), IN(x, s.rows * s.in), s);
    mirror_back(mirror);
}

static inline void mirror_add(struct kernels *kernels, compute *out, const compute *a, double factor, const compute *b,
                              size_t n)
{
    MIRROR(kernels);
    table->add(backend, OUT(out, n), IN(a, n), factor, IN(b, n), n);
    mirror_back(mirror);
}

static inline void mirror_activation_forward(struct kernels *kernels, compute *y, const compute *x,
                                             enum activation activation, size_t n)
{
    MIRROR(kernels);
    table->activation_forward(backend, OUT(y, n), IN(x, n), activation, n);
    mirror_back(mirror);
}

static inline void mirror_activation_backward(struct kernels *kernels, compute *dx, const compute *dy, const compute *x,
                                              enum activation activation, size_t n)
{
    MIRROR(kernels);
    table->activation_backward(backend, OUT(dx, n), IN(dy, n), IN(x, n), activation, n);
    mirror_back(mirror);
}

static inline const struct dropout *mirror_drawing(struct mirror *mirror, struct dropout *copy,
                                                   const struct dropout *dropout, size_t batch)
{
    if (!dropout) return NULL;
    *copy = *dropout;
    copy->key = mirror_in(mirror, dropout->key, 1, sizeof *dropout->key);
    copy->sequence = mirror_in(mirror, dropout->sequence, batch, sizeof *dropout->sequence);
    return copy;
}

static inline void mirror_dropout(struct kernels *kernels, compute *out, const compute *x,
                                  const struct dropout *dropout, size_t batch, size_t elements)
{
    MIRROR(kernels);
    struct dropout copy;
    table->dropout(backend, OUT(out, batch * elements), IN(x, batch * elements),
                   mirror_drawing(mirror, &copy, dropout, batch), batch, elements);
    mirror_back(mirror);
}

/* The tables reach as far as the tests' tokens do. */
static inline size_t mirror_vocabulary(const int32_t *tokens, size_t n)
{
    int32_t most = 0;
    for (size_t i = 0; i < n; i++) most = tokens[i] > most ? tokens[i] : most;
    return (size_t)most + 1;
}

static inline void mirror_embedding_forward(struct kernels *kernels, compute *out, const int32_t *tokens,
                                            const compute *wte, const compute *wpe, size_t batch, size_t context,
                                            size_t width)
{
    MIRROR(kernels);
    const size_t rows = batch * context;
    table->embedding_forward(backend, OUT(out, rows * width), OF_IN(tokens, rows),
                             IN(wte, mirror_vocabulary(tokens, rows) * width), IN(wpe, context * width), batch, context,
                             width);
    mirror_back(mirror);
}

static inline void mirror_embedding_backward(struct kernels *kernels, wide *dwte, wide *dwpe, const compute *dout,
                                             const int32_t *tokens, size_t batch, size_t context, size_t width)
{
    MIRROR(kernels);
    const size_t rows = batch * context;
    table->embedding_backward(backend, WIDE_OUT(dwte, mirror_vocabulary(tokens, rows) * width),
                              WIDE_OUT(dwpe, context * width), IN(dout, rows * width), OF_IN(tokens, rows), batch,
                              context, width);
    mirror_back(mirror);
}

static inline void mirror_layernorm_forward(struct kernels *kernels, compute *y, compute *sum, wide *mean, wide *rstd,
                                            const compute *x, const compute *residual, const compute *weight,
                                            const compute *bias, size_t rows, size_t width)
{
    MIRROR(kernels);
    const size_t n = rows * width;
    table->layernorm_forward(backend, OUT(y, n), OUT(sum, n), WIDE_OUT(mean, rows), WIDE_OUT(rstd, rows), IN(x, n),
                             IN(residual, n), IN(weight, width), IN(bias, width), rows, width);
    mirror_back(mirror);
}

static inline void mirror_layernorm_backward(struct kernels *kernels, compute *dx, const compute *dresidual,
                                             wide *dweight, wide *dbias, const compute *dy, const compute *x,
                                             const wide *mean, const wide *rstd, const compute *weight, size_t rows,
                                             size_t width)
{
    MIRROR(kernels);
    const size_t n = rows * width;
    table->layernorm_backward(backend, OUT(dx, n), IN(dresidual, n), WIDE_OUT(dweight, width), WIDE_OUT(dbias, width),
                              IN(dy, n), IN(x, n), WIDE_IN(mean, rows), WIDE_IN(rstd, rows), IN(weight, width), rows,
                              width);
    mirror_back(mirror);
}

static inline size_t mirror_normed(struct norm_shape s)
{
    return s.rows * s.positions * s.channels;
}

static inline void mirror_groupnorm_forward(struct kernels *kernels, compute *y, wide *mean, wide *rstd,
                                            const compute *x, const compute *weight, const compute *bias,
                                            struct norm_shape s)
{
    MIRROR(kernels);
    const size_t n = mirror_normed(s), sets = s.rows * s.groups;
    table->groupnorm_forward(backend, OUT(y, n), WIDE_OUT(mean, sets), WIDE_OUT(rstd, sets), IN(x, n),
                             IN(weight, s.channels), IN(bias, s.channels), s);
    mirror_back(mirror);
}

static inline void mirror_groupnorm_backward(struct kernels *kernels, compute *dx, wide *dweight, wide *dbias,
                                             const compute *dy, const compute *x, const wide *mean, const wide *rstd,
                                             const compute *weight, struct norm_shape s)
{
    MIRROR(kernels);
    const size_t n = mirror_normed(s), sets = s.rows * s.groups;
    table->groupnorm_backward(backend, OUT(dx, n), WIDE_OUT(dweight, s.channels), WIDE_OUT(dbias, s.channels),
                              IN(dy, n), IN(x, n), WIDE_IN(mean, sets), WIDE_IN(rstd, sets), IN(weight, s.channels), s);
    mirror_back(mirror);
}

static inline void mirror_batchnorm_moments(struct kernels *kernels, double *moments, const compute *x,
                                            const double *row_weight, struct norm_shape s)
{
    MIRROR(kernels);
    table->batchnorm_moments(backend, OF_OUT(moments, 2 * s.channels), IN(x, mirror_normed(s)),
                             OF_IN(row_weight, s.rows), s);
    mirror_back(mirror);
}

static inline void mirror_batchnorm_settle(struct kernels *kernels, wide *mean, wide *rstd, double *all, double before,
                                           const double *moments, double count, size_t channels)
{
    MIRROR(kernels);
    table->batchnorm_settle(backend, WIDE_OUT(mean, channels), WIDE_OUT(rstd, channels), OF_OUT(all, 2 * channels),
                            before, OF_IN(moments, 2 * channels), count, channels);
    mirror_back(mirror);
}

static inline void mirror_batchnorm_forward(struct kernels *kernels, compute *y, const compute *x, const wide *mean,
                                            const wide *rstd, const compute *weight, const compute *bias,
                                            struct norm_shape s)
{
    MIRROR(kernels);
    const size_t n = mirror_normed(s);
    table->batchnorm_forward(backend, OUT(y, n), IN(x, n), WIDE_IN(mean, s.channels), WIDE_IN(rstd, s.channels),
                             IN(weight, s.channels), IN(bias, s.channels), s);
    mirror_back(mirror);
}

static inline void mirror_batchnorm_sums(struct kernels *kernels, double *sums, wide *dweight, wide *dbias,
                                         const compute *dy, const compute *x, const wide *mean, const wide *rstd,
                                         const double *row_weight, struct norm_shape s)
{
    MIRROR(kernels);
    const size_t n = mirror_normed(s);
    table->batchnorm_sums(backend, OF_OUT(sums, 2 * s.channels), WIDE_OUT(dweight, s.channels),
                          WIDE_OUT(dbias, s.channels), IN(dy, n), IN(x, n), WIDE_IN(mean, s.channels),
                          WIDE_IN(rstd, s.channels), OF_IN(row_weight, s.rows), s);
    mirror_back(mirror);
}

static inline void mirror_batchnorm_backward(struct kernels *kernels, compute *dx, const compute *dy, const compute *x,
                                             const wide *mean, const wide *rstd, const compute *weight,
                                             const double *sums, double count, const double *row_weight,
                                             struct norm_shape s)
{
    MIRROR(kernels);
    const size_t n = mirror_normed(s);
    table->batchnorm_backward(backend, OUT(dx, n), IN(dy, n), IN(x, n), WIDE_IN(mean, s.channels),
                              WIDE_IN(rstd, s.channels), IN(weight, s.channels), OF_IN(sums, 2 * s.channels), count,
                              OF_IN(row_weight, s.rows), s);
    mirror_back(mirror);
}

static inline void mirror_attention_forward(struct kernels *kernels, compute *out, wide *lse, const compute *qkv,
                                            const struct dropout *dropout, struct attention_shape s)
{
    MIRROR(kernels);
    struct dropout copy;
    const size_t rows = s.batch * s.context, width = s.heads * s.head_size;
    table->attention_forward(backend, OUT(out, rows * width), WIDE_OUT(lse, rows * s.heads), IN(qkv, rows * 3 * width),
                             mirror_drawing(mirror, &copy, dropout, s.batch), s);
    mirror_back(mirror);
}

static inline void mirror_attention_backward(struct kernels *kernels, compute *dqkv, const compute *dout,
                                             const compute *out, const wide *lse, const compute *qkv,
                                             const struct dropout *dropout, struct attention_shape s)
{
    MIRROR(kernels);
    struct dropout copy;
    const size_t rows = s.batch * s.context, width = s.heads * s.head_size;
    table->attention_backward(backend, OUT(dqkv, rows * 3 * width), IN(dout, rows * width), IN(out, rows * width),
                              WIDE_IN(lse, rows * s.heads), IN(qkv, rows * 3 * width),
                              mirror_drawing(mirror, &copy, dropout, s.batch), s);
    mirror_back(mirror);
}

static inline size_t mirror_pixels(struct image_shape s)
{
    return s.rows * s.channels * s.height * s.width;
}

static inline size_t mirror_places(struct image_shape s)
{
    return s.rows * image_places_down(&s) * image_places_across(&s);
}

static inline size_t mirror_patches(struct image_shape s)
{
    return mirror_places(s) * s.channels * s.window_height * s.window_width;
}

static inline void mirror_patches_forward(struct kernels *kernels, compute *out, const compute *x, struct image_shape s)
{
    MIRROR(kernels);
    table->patches_forward(backend, OUT(out, mirror_patches(s)), IN(x, mirror_pixels(s)), s);
    mirror_back(mirror);
}

static inline void mirror_patches_backward(struct kernels *kernels, compute *dx, const compute *dout,
                                           struct image_shape s)
{
    MIRROR(kernels);
    table->patches_backward(backend, OUT(dx, mirror_pixels(s)), IN(dout, mirror_patches(s)), s);
    mirror_back(mirror);
}

static inline void mirror_pool_forward(struct kernels *kernels, compute *y, const compute *x, enum pooling pooling,
                                       struct image_shape s)
{
    MIRROR(kernels);
    table->pool_forward(backend, OUT(y, mirror_places(s) * s.channels), IN(x, mirror_pixels(s)), pooling, s);
    mirror_back(mirror);
}

static inline void mirror_pool_backward(struct kernels *kernels, compute *dx, const compute *dy, const compute *x,
                                        enum pooling pooling, struct image_shape s)
{
    MIRROR(kernels);
    table->pool_backward(backend, OUT(dx, mirror_pixels(s)), IN(dy, mirror_places(s) * s.channels),
                         IN(x, mirror_pixels(s)), pooling, s);
    mirror_back(mirror);
}

static inline void mirror_cross_entropy(struct kernels *kernels, compute *logits, const int32_t *target,
                                        const double *weight, const wide *seed, size_t rows, size_t repeat,
                                        size_t classes, size_t stride, double *loss_sum)
{
    MIRROR(kernels);
    table->cross_entropy(backend, OUT(logits, rows * stride), OF_IN(target, rows), OF_IN(weight, rows / repeat),
                         WIDE_IN(seed, rows / repeat), rows, repeat, classes, stride, OF_OUT(loss_sum, 1));
    mirror_back(mirror);
}

static inline void mirror_squared_error(struct kernels *kernels, compute *gradient, const compute *prediction,
                                        const double *target, const double *weight, const wide *seed, double factor,
                                        size_t rows, size_t outputs, double *loss_sum)
{
    MIRROR(kernels);
    const size_t n = rows * outputs;
    table->squared_error(backend, OUT(gradient, n), IN(prediction, n), OF_IN(target, n), OF_IN(weight, rows),
                         WIDE_IN(seed, rows), factor, rows, outputs, OF_OUT(loss_sum, 1));
    mirror_back(mirror);
}

static inline void mirror_linear_loss(struct kernels *kernels, const double *x, const double *weight, const compute *w,
                                      size_t rows, size_t columns, double *loss_sum)
{
    MIRROR(kernels);
    table->linear_loss(backend, OF_IN(x, rows * columns), OF_IN(weight, rows), IN(w, columns), rows, columns,
                       OF_OUT(loss_sum, 1));
    mirror_back(mirror);
}

static inline void mirror_critic_loss(struct kernels *kernels, compute *gradient, const compute *prediction,
                                      const double *target, const double *weight, const wide *seed, size_t rows,
                                      double *loss_sum)
{
    MIRROR(kernels);
    table->critic_loss(backend, OUT(gradient, rows), IN(prediction, rows), OF_IN(target, rows), OF_IN(weight, rows),
                       WIDE_IN(seed, rows), rows, OF_OUT(loss_sum, 1));
    mirror_back(mirror);
}

static inline void mirror_gradient_penalty(struct kernels *kernels, const struct penalty *penalty, const double *x,
                                           const double *weight, const double *share, const wide *seed, size_t rows,
                                           double *loss_sum, void *scratch)
{
    MIRROR(kernels);
    struct penalty copy = *penalty;
    for (size_t l = 0; l < penalty->count; l++) {
        const struct penalty_layer *from = &penalty->layers[l];
        struct penalty_layer *to = &copy.layers[l];
        to->weight = IN(from->weight, from->in * from->out), to->bias = IN(from->bias, from->out);
        to->dweight = WIDE_OUT(from->dweight, from->in * from->out), to->dbias = WIDE_OUT(from->dbias, from->out);
    }
    const size_t bytes = penalty_scratch(penalty, rows) * wide_element;
    void *const own = table->allocate(backend, bytes);
    assert_non_null(own);
    table->upload(backend, own, scratch, bytes);
    table->gradient_penalty(backend, &copy, OF_IN(x, rows * penalty->layers[0].in), OF_IN(weight, rows),
                            OF_IN(share, rows), WIDE_IN(seed, rows), rows, OF_OUT(loss_sum, 1), own);
    mirror_back(mirror);
    table->release(backend, own);
}

static inline void mirror_cast_rows(struct kernels *kernels, compute *out, const double *x, const double *weight,
                                    size_t rows, size_t columns)
{
    MIRROR(kernels);
    table->cast_rows(backend, OUT(out, rows * columns), OF_IN(x, rows * columns), OF_IN(weight, rows), rows, columns);
    mirror_back(mirror);
}

static inline void mirror_cast(struct kernels *kernels, compute *out, const wide *in, size_t n)
{
    MIRROR(kernels);
    table->cast(backend, OUT(out, n), WIDE_IN(in, n), n);
    mirror_back(mirror);
}

static inline void mirror_accumulate(struct kernels *kernels, wide *into, const compute *addend, size_t n)
{
    MIRROR(kernels);
    table->accumulate(backend, WIDE_OUT(into, n), IN(addend, n), n);
    mirror_back(mirror);
}

static inline void mirror_check(struct kernels *kernels, struct gradient_check *into, const wide *gradient, size_t n,
                                double inverse_scale)
{
    MIRROR(kernels);
    table->check(backend, OF_OUT(into, 1), WIDE_IN(gradient, n), n, inverse_scale);
    mirror_back(mirror);
}

static inline void mirror_update(struct kernels *kernels, wide *master, wide *m, wide *v, const wide *gradient,
                                 size_t n, const struct update *update)
{
    MIRROR(kernels);
    table->update(backend, WIDE_OUT(master, n), WIDE_OUT(m, n), WIDE_OUT(v, n), WIDE_IN(gradient, n), n, update);
    mirror_back(mirror);
}

static inline void mirror_close(struct kernels *kernels)
{
    struct mirror *mirror = mirror_of(kernels);
    mirror->backend->table->release(mirror->backend, mirror->memory);
    kernels_close(mirror->backend);
    printf("digest %016llx\n", (unsigned long long)mirror_digest);
    free(mirror->image);
    free(mirror);
}

/* Takes the backend over. */
static inline struct kernels *mirror_open(struct kernels *backend, size_t shift)
{
    static const struct kernel_table table = {
        .name = "mirror",
        .close = mirror_close,
        .linear_forward = mirror_linear_forward,
        .linear_backward_input = mirror_linear_backward_input,
        .linear_backward_weight = mirror_linear_backward_weight,
        .add = mirror_add,
        .activation_forward = mirror_activation_forward,
        .activation_backward = mirror_activation_backward,
        .dropout = mirror_dropout,
        .embedding_forward = mirror_embedding_forward,
        .embedding_backward = mirror_embedding_backward,
        .layernorm_forward = mirror_layernorm_forward,
        .layernorm_backward = mirror_layernorm_backward,
        .groupnorm_forward = mirror_groupnorm_forward,
        .groupnorm_backward = mirror_groupnorm_backward,
        .batchnorm_moments = mirror_batchnorm_moments,
        .batchnorm_settle = mirror_batchnorm_settle,
        .batchnorm_forward = mirror_batchnorm_forward,
        .batchnorm_sums = mirror_batchnorm_sums,
        .batchnorm_backward = mirror_batchnorm_backward,
        .attention_forward = mirror_attention_forward,
        .attention_backward = mirror_attention_backward,
        .patches_forward = mirror_patches_forward,
        .patches_backward = mirror_patches_backward,
        .pool_forward = mirror_pool_forward,
        .pool_backward = mirror_pool_backward,
        .cross_entropy = mirror_cross_entropy,
        .squared_error = mirror_squared_error,
        .linear_loss = mirror_linear_loss,
        .critic_loss = mirror_critic_loss,
        .gradient_penalty = mirror_gradient_penalty,
        .cast_rows = mirror_cast_rows,
        .cast = mirror_cast,
        .accumulate = mirror_accumulate,
        .check = mirror_check,
        .update = mirror_update,
    };
    struct mirror *mirror = calloc(1, sizeof *mirror);
    assert_non_null(mirror);
    mirror->head = (struct kernels){&table, backend->compute_type, backend->threads};
    mirror->backend = backend;
    mirror->shift = shift;
    mirror->memory = backend->table->allocate(backend, MIRROR_BYTES);
    mirror->image = malloc(MIRROR_BYTES);
    assert_non_null(mirror->memory);
    assert_non_null(mirror->image);
    assert_int_equal((uintptr_t)mirror->memory % 256, 0);
    return &mirror->head;
}

#undef MIRROR
#undef IN
#undef OUT
#undef WIDE_IN
#undef WIDE_OUT
#undef OF_IN
#undef OF_OUT

#endif
