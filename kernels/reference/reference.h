/* The parts of the reference backend that have a file of their own. Signatures as in struct kernel_table. */
#ifndef GACC_KERNELS_REFERENCE_H
#define GACC_KERNELS_REFERENCE_H

#include "kernels/kernels.h"

void reference_attention_forward(struct kernels *, compute *out, wide *lse, const compute *qkv,
                                 const struct dropout *dropout, struct attention_shape shape);
void reference_attention_backward(struct kernels *, compute *dqkv, const compute *dout, const compute *out,
                                  const wide *lse, const compute *qkv, const struct dropout *dropout,
                                  struct attention_shape shape);

void reference_groupnorm_forward(struct kernels *, compute *y, wide *mean, wide *rstd, const compute *x,
                                 const compute *weight, const compute *bias, struct norm_shape shape);
void reference_groupnorm_backward(struct kernels *, compute *dx, wide *dweight, wide *dbias, const compute *dy,
                                  const compute *x, const wide *mean, const wide *rstd, const compute *weight,
                                  struct norm_shape shape);
void reference_batchnorm_moments(struct kernels *, double *moments, const compute *x, const double *row_weight,
                                 struct norm_shape shape);
void reference_batchnorm_settle(struct kernels *, wide *mean, wide *rstd, double *all, double before,
                                const double *moments, double count, size_t channels);
void reference_batchnorm_forward(struct kernels *, compute *y, const compute *x, const wide *mean, const wide *rstd,
                                 const compute *weight, const compute *bias, struct norm_shape shape);
void reference_batchnorm_sums(struct kernels *, double *sums, wide *dweight, wide *dbias, const compute *dy,
                              const compute *x, const wide *mean, const wide *rstd, const double *row_weight,
                              struct norm_shape shape);
void reference_batchnorm_backward(struct kernels *, compute *dx, const compute *dy, const compute *x, const wide *mean,
                                  const wide *rstd, const compute *weight, const double *sums, double count,
                                  const double *row_weight, struct norm_shape shape);

void reference_patches_forward(struct kernels *, compute *out, const compute *x, struct image_shape shape);
void reference_patches_backward(struct kernels *, compute *dx, const compute *dout, struct image_shape shape);
void reference_pool_forward(struct kernels *, compute *y, const compute *x, enum pooling pooling,
                            struct image_shape shape);
void reference_pool_backward(struct kernels *, compute *dx, const compute *dy, const compute *x, enum pooling pooling,
                             struct image_shape shape);

double reference_activate(enum activation activation, double x);
double reference_slope(enum activation activation, double x);

void reference_critic_loss(struct kernels *, compute *gradient, const compute *prediction, const double *target,
                           const double *weight, const wide *seed, size_t rows, double *loss_sum);
void reference_gradient_penalty(struct kernels *, const struct penalty *penalty, const double *x, const double *weight,
                                const double *share, const wide *seed, size_t rows, double *loss_sum, void *scratch);

#endif
